//! OUT-*: what is told of a commit whose reply is lost when something else goes wrong after it. It is told as made, or as unknown; as
//! failed only if it is not there, so that its files stay.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use alluvium::{ErrorKind, ManualClock, Point, RawState, Result};

use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{DAY, START, by_version, commit_of, live, n_batch, n_batch_at};

/// What commits.
#[derive(Debug, Clone, Copy)]
enum Work {
    Append,
    Materialize,
    Compact,
}

const WORK: [Work; 3] = [Work::Append, Work::Materialize, Work::Compact];

/// A state with something to do for each.
async fn built(clock: &Arc<ManualClock>) -> Arc<FaultyStore> {
    let objects = FaultyStore::new();
    let state = by_version(&open(&objects, clock).await, "s").await;
    for n in 1..5 {
        state
            .append(&n_batch_at(&[("a", n, Some(n)), ("b", n, Some(n))], &[START; 2]))
            .await
            .unwrap();
        if n == 3 {
            state.materialize(false).await.unwrap();
        }
    }
    clock.set(START + 5 * DAY);
    objects
}

/// The table's version that the work would make a commit of, as another process sees it.
async fn version_of(state: &RawState, work: Work) -> i64 {
    match work {
        Work::Append | Work::Compact => commit_of(state).await,
        Work::Materialize => state.snapshot().refresh().await.unwrap().version(),
    }
}

async fn carry_out(state: &RawState, work: Work) -> Result<()> {
    match work {
        Work::Append => state.append(&n_batch(&[("c", 9, Some(9))])).await.map(drop),
        Work::Materialize => state.materialize(false).await.map(drop),
        Work::Compact => state.compact(false).await.map(drop),
    }
}

/// That what is told is what there is, to another process: what was done is whole, or left no trace.
async fn is_told(
    faulty: &FaultyStore,
    clock: &Arc<ManualClock>,
    work: Work,
    told: &Result<()>,
    before: i64,
    place: &str,
) {
    let state = open(&faulty.reborn(), clock).await.raw_state("s").await.unwrap();
    let is_made = version_of(&state, work).await > before;
    match told {
        Ok(()) => assert!(is_made, "{place}: it is told as made"),
        Err(error) if error.kind() == ErrorKind::Unknown => {}
        // What comes after the commit of a compaction may fail too.
        Err(error) => assert!(
            !is_made || matches!(work, Work::Compact),
            "{place}: it is told as failed: {error}"
        ),
    }
    let is_appended = matches!(work, Work::Append) && is_made;
    assert_eq!(live(&state, Point::LATEST).await.len(), 2 + usize::from(is_appended), "{place}");
    assert!(state.verify().await.unwrap().is_sound(), "{place}");
}

#[tokio::test(flavor = "multi_thread")]
async fn out_01_a_commit_whose_reply_is_lost_is_not_told_as_failed_whichever_call_fails_beside_it()
{
    let clock = Arc::new(ManualClock::at(START));
    let built = built(&clock).await;
    for work in WORK {
        let mut unknown = 0;
        for call in 0.. {
            let faulty = built.forked();
            let state = open(&faulty, &clock).await.raw_state("s").await.unwrap();
            let before = version_of(&state, work).await;
            faulty.lost_commit_replies.store(1, Ordering::SeqCst);
            faulty.fail_at(call);
            let told = carry_out(&state, work).await;
            unknown += u64::from(matches!(&told, Err(error) if error.kind() == ErrorKind::Unknown));
            is_told(&faulty, &clock, work, &told, before, &format!("{work:?}, call {call}")).await;
            if !faulty.has_failed() {
                told.unwrap();
                break;
            }
        }
        assert!(unknown > 0, "{work:?} never came to a look that failed");
    }
}

/// As when what a process may do ends while it waits for the reply.
#[tokio::test(flavor = "multi_thread")]
async fn out_02_a_commit_whose_reply_is_lost_before_writes_are_refused_counts_as_made() {
    let clock = Arc::new(ManualClock::at(START));
    let built = built(&clock).await;
    for work in WORK {
        for is_made in [true, false] {
            let faulty = built.forked();
            let state = open(&faulty, &clock).await.raw_state("s").await.unwrap();
            let before = version_of(&state, work).await;
            faulty.lost_commit_replies.store(i64::from(is_made), Ordering::SeqCst);
            faulty.refuse_commits.store(true, Ordering::SeqCst);
            let told = carry_out(&state, work).await;
            let place = format!("{work:?}, {is_made}");
            is_told(&faulty, &clock, work, &told, before, &place).await;
            match told {
                Ok(()) => assert!(is_made, "{place}"),
                // Refused at once it is known not to be there.
                Err(error) => {
                    assert!(!is_made && error.kind() != ErrorKind::Unknown, "{place}: {error}")
                }
            }
        }
    }
}

/// Where nothing was lost, and another process has taken the number, it is known that the commit was not made.
#[tokio::test(flavor = "multi_thread")]
async fn out_03_a_lost_race_is_never_an_unknown_outcome_whichever_call_fails() {
    let clock = Arc::new(ManualClock::at(START));
    let built = built(&clock).await;
    let mut failed = 0;
    for call in 0.. {
        let faulty = built.forked();
        let state = open(&faulty, &clock).await.raw_state("s").await.unwrap();
        let other = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
        other.append(&n_batch(&[("b", 8, Some(8))])).await.unwrap();
        let before = commit_of(&other).await;
        faulty.fail_at(call);
        let told = carry_out(&state, Work::Append).await;
        let place = format!("call {call}");
        is_told(&faulty, &clock, Work::Append, &told, before, &place).await;
        if let Err(error) = told {
            assert_ne!(error.kind(), ErrorKind::Unknown, "{place}: {error}");
            failed += 1;
        }
        if !faulty.has_failed() {
            break;
        }
    }
    assert!(failed > 0);
}
