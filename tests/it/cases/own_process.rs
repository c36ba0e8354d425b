//! OWN-*: one handle in several hands. Whatever else a process commits by a handle while a vacuum or a read is at some call of it, what has
//! been listed before has no part of it, and nothing is taken for lost.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use alluvium::{MaintainStep, ManualClock, Point, RawState, Result};

use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{
    DAY, SECOND, START, assert_sound, by_time, live, n_batch_at, n_of, set,
};

/// Days of the state that is asked about.
const DAYS: i64 = 9;

/// When a change happened: one a day, and then more on the last day.
fn time_of(n: i64) -> i64 {
    START + n.min(DAYS - 1) * DAY + (n - DAYS + 1).max(0) * SECOND
}

/// A change, by a handle that others use as well.
async fn change(state: &RawState, n: i64) {
    state.append(&n_batch_at(&[("k", n, Some(n))], &[time_of(n)])).await.unwrap();
    state.materialize(false).await.unwrap();
}

/// Does something by a handle, and changes the state by the same one at the n-th call of it: what came of both, and whether it was over
/// before.
async fn beside<T: Send + 'static>(
    objects: &Arc<FaultyStore>,
    state: &RawState,
    call: u64,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> (Result<T>, bool) {
    objects.lists_before.store(true, Ordering::SeqCst);
    let (reached, let_go) = objects.hold_call(call);
    let mut work = tokio::spawn(work);
    let early = tokio::select! {
        done = &mut work => Some(done),
        Ok(()) = reached => None,
    };
    let is_over = early.is_some();
    let done = match early {
        Some(done) => done,
        None => {
            let state = state.clone();
            let mut changing = tokio::spawn(async move {
                for n in DAYS..DAYS + 4 {
                    change(&state, n).await;
                }
            });
            // Where it waits for the call itself, it goes on after it.
            let early = tokio::time::timeout(Duration::from_secs(2), &mut changing).await;
            let_go.send(()).unwrap();
            match early {
                Ok(changed) => changed.unwrap(),
                Err(_) => changing.await.unwrap(),
            }
            work.await
        }
    };
    (done.unwrap(), is_over)
}

#[tokio::test(flavor = "multi_thread")]
async fn own_01_a_vacuum_beside_commits_of_its_own_process_at_any_call_ends_well() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_time(&open(&built, &clock).await, "s").await;
    set(&state, &[("commit_retention", "8d"), ("file_retention", "1d"), ("as_of_window", "1d")])
        .await;
    for n in 0..DAYS {
        clock.set(START + n * DAY);
        change(&state, n).await;
    }
    for call in 0.. {
        let objects = built.forked();
        let state = open(&objects, &clock).await.raw_state("s").await.unwrap();
        let vacuumed = state.clone();
        let work = async move { vacuumed.maintain(&[MaintainStep::Vacuum], false).await };
        let (done, is_over) = beside(&objects, &state, call, work).await;
        done.unwrap_or_else(|error| panic!("call {call}: {error}"));
        let fresh = open(&objects.reborn(), &clock).await.raw_state("s").await.unwrap();
        let last = if is_over { DAYS } else { DAYS + 4 };
        for n in 0..last {
            let found = n_of(&fresh, Point::at_time(time_of(n)), "k").await;
            assert_eq!(found, Some(n), "call {call}: as of day {n}");
        }
        assert_sound(&fresh).await;
        if is_over {
            assert!(call > 10, "{call}");
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn own_02_a_vacuum_beside_which_its_own_process_commits_at_each_listing_of_the_log_ends_well()
{
    let (objects, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_time(&open(&objects, &clock).await, "s").await;
    for n in 0..DAYS {
        clock.set(START + n * DAY);
        change(&state, n).await;
    }
    for step in [MaintainStep::Vacuum, MaintainStep::Cleanup, MaintainStep::Checkpoint] {
        let (mut reached, mut let_go) = objects.hold_listing();
        let kept = state.clone();
        let mut work = tokio::spawn(async move { kept.maintain(&[step], false).await });
        let (mut appended, mut listings) = (state.log().state().version, 0);
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                Ok(()) = &mut reached => {}
            }
            appended += 1;
            listings += 1;
            let row = n_batch_at(&[("k", appended, Some(appended))], &[time_of(appended)]);
            assert_eq!(state.append(&row).await.unwrap().commit, appended);
            let next = objects.hold_listing();
            let_go.send(()).unwrap();
            (reached, let_go) = next;
        };
        done.unwrap().unwrap_or_else(|error| panic!("{step:?}, {listings} listings: {error}"));
        assert!(listings > 0 || step == MaintainStep::Checkpoint, "{step:?}");
    }
    let fresh = open(&objects.reborn(), &clock).await.raw_state("s").await.unwrap();
    let newest = fresh.log().state().version;
    for commit in DAYS + 1..=newest {
        let found = n_of(&fresh, Point::at_commit(commit), "k").await;
        assert_eq!(found, Some(commit), "as of commit {commit}");
    }
    assert_sound(&fresh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn own_03_a_read_of_the_past_beside_folds_of_its_own_process_answers_at_any_call() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_time(&open(&built, &clock).await, "s").await;
    let spans = [
        ("commit_retention", "8d"),
        ("file_retention", "4d"),
        ("as_of_window", "4d"),
        ("log_retention", "5d"),
    ];
    set(&state, &spans).await;
    let mut commits = Vec::new();
    for n in 0..DAYS {
        clock.set(START + n * DAY);
        change(&state, n).await;
        commits.push(state.log().state().version);
        state.maintain(&[MaintainStep::Expire], false).await.unwrap();
    }
    // The log has expired beyond it: only a snapshot of the window has the answer.
    let point = Point::at_commit(commits[DAYS as usize - 4]);
    let before = live(&state, point).await;
    assert_eq!(before.len(), 1);
    for call in 0.. {
        let objects = built.forked();
        let state = open(&objects, &clock).await.raw_state("s").await.unwrap();
        let reading = state.clone();
        let work = async move {
            let row = reading.get(point, "k").await?;
            Ok(row.found().is_some())
        };
        let (done, is_over) = beside(&objects, &state, call, work).await;
        assert!(done.unwrap_or_else(|error| panic!("call {call}: {error}")), "call {call}");
        if is_over {
            assert!(call > 3, "{call}");
            break;
        }
        assert_eq!(live(&state, point).await, before, "call {call}");
    }
}
