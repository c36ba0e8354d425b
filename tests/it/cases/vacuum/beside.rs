//! A vacuum beside which another process cleans up the log, at any call of it.

use std::sync::Arc;

use alluvium::{MaintainStep, ManualClock, Point};

use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{DAY, START, assert_sound, by_version, n_batch_at, n_of};

/// A log whose commits may be cleaned up to its newest checkpoint but one, and which begins with its first commit, or a checkpoint.
async fn built(clock: &ManualClock, objects: &Arc<FaultyStore>, is_cleaned_up: bool) -> i64 {
    let shared = Arc::new(ManualClock::at(START));
    let state = by_version(&open(objects, &shared).await, "s").await;
    let mut commit = 0;
    let rounds = if is_cleaned_up { 3 } else { 2 };
    for round in 0..rounds {
        for day in [round * 40, round * 40 + 1] {
            shared.set(START + day * DAY);
            commit += 1;
            let row = n_batch_at(&[("k", commit, Some(commit))], &[START + day * DAY]);
            state.append(&row).await.unwrap();
            state.materialize(false).await.unwrap();
        }
        if round + 1 < rounds {
            state.log().table().checkpoint().await.unwrap();
            if let Some((snapshot, _)) = state.snapshot().state().table() {
                snapshot.checkpoint().await.unwrap();
            }
        }
        if round == 1 && is_cleaned_up {
            state.maintain(&[MaintainStep::Cleanup], false).await.unwrap();
        }
    }
    clock.set(START + (rounds * 40 - 1) * DAY);
    commit
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vacuum_beside_which_others_clean_up_at_any_call_of_it_ends_well() {
    for is_cleaned_up in [false, true] {
        let clock = Arc::new(ManualClock::at(START));
        let built_on = FaultyStore::new();
        let newest = built(&clock, &built_on, is_cleaned_up).await;
        let mut cleaned = 0;
        for call in 0.. {
            let case = format!("call {call}, {is_cleaned_up}");
            let objects = built_on.forked();
            let state = open(&objects, &clock).await.raw_state("s").await.unwrap();
            let other = open(&objects.reborn(), &clock).await.raw_state("s").await.unwrap();
            let (reached, let_go) = objects.hold_call(call);
            let mut vacuum =
                tokio::spawn(async move { state.maintain(&[MaintainStep::Vacuum], false).await });
            let early = tokio::select! {
                done = &mut vacuum => Some(done),
                Ok(()) = reached => None,
            };
            let is_over = early.is_some();
            let done = match early {
                Some(done) => done,
                None => {
                    let first = other.log().table().oldest_version().await.unwrap();
                    other.maintain(&[MaintainStep::Cleanup], false).await.unwrap();
                    let then = other.log().table().oldest_version().await.unwrap();
                    cleaned += u32::from(then > first);
                    let_go.send(()).unwrap();
                    vacuum.await
                }
            };
            done.unwrap().unwrap_or_else(|error| panic!("{case}: {error}"));
            let fresh = open(&objects.reborn(), &clock).await.raw_state("s").await.unwrap();
            for commit in 1..=newest {
                let found = n_of(&fresh, Point::at_version(commit), "k").await;
                assert_eq!(found, Some(commit), "{case}: as of {commit}");
            }
            assert_sound(&fresh).await;
            if is_over {
                break;
            }
        }
        assert!(cleaned > 5, "{is_cleaned_up}: {cleaned}");
    }
}
