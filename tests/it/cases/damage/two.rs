//! Two repairs of one state at once: one waits at any of its calls while the other is brought to its end, and a writer goes on.

use std::sync::Arc;

use alluvium::{ErrorKind, ManualClock, Point, Store};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{DAY, START, assert_sound, by_version, n_batch_at, n_of};

/// What is damaged.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Harmed {
    Checkpoint,
    Hint,
    /// The log's last commit, which was torn before anybody was told of it.
    LastCommit,
    /// A data file of the snapshot.
    Snapshot,
    /// A commit without which the snapshot can't be opened.
    SnapshotLog,
}

const ALL: [Harmed; 5] =
    [Harmed::Checkpoint, Harmed::Hint, Harmed::LastCommit, Harmed::Snapshot, Harmed::SnapshotLog];

impl Harmed {
    fn is_here(self, path: &str) -> bool {
        match self {
            Self::Checkpoint => {
                path.ends_with("log/_delta_log/00000000000000000005.checkpoint.parquet")
            }
            Self::Hint => path.ends_with("log/_delta_log/_last_checkpoint"),
            Self::LastCommit => path.ends_with("log/_delta_log/00000000000000000006.json"),
            Self::Snapshot => path.contains("snapshot/") && path.ends_with(".parquet"),
            Self::SnapshotLog => path.ends_with("snapshot/_delta_log/00000000000000000000.json"),
        }
    }

    async fn happens(self, objects: &FaultyStore) {
        let listed: Vec<_> = objects.list(Some(&Path::from("s"))).try_collect().await.unwrap();
        let mut harmed = 0;
        for path in listed.into_iter().map(|meta| meta.location) {
            if self.is_here(path.as_ref()) {
                let whole = objects.get(&path).await.unwrap().bytes().await.unwrap();
                objects.put(&path, whole.slice(..whole.len() / 2).into()).await.unwrap();
                harmed += 1;
            }
        }
        assert!(harmed > 0, "{self:?}");
    }

    /// The commits that are still there.
    fn commits(self) -> i64 {
        if self == Self::LastCommit { 5 } else { 6 }
    }
}

async fn built(clock: &Arc<ManualClock>) -> Arc<FaultyStore> {
    let objects = FaultyStore::new();
    let state = by_version(&open(&objects, clock).await, "s").await;
    for n in 1..=6 {
        let key = format!("k{}", n % 3);
        state.append(&n_batch_at(&[(&key, n, Some(n))], &[START])).await.unwrap();
        match n {
            3 => drop(state.materialize(false).await.unwrap()),
            5 => {
                state.materialize(false).await.unwrap();
                state.log().table().checkpoint().await.unwrap();
            }
            _ => {}
        }
    }
    objects
}

#[tokio::test(flavor = "multi_thread")]
async fn two_repairs_at_once_and_a_writer_leave_a_sound_state_and_set_nothing_new_aside() {
    let clock = Arc::new(ManualClock::at(START + 6 * DAY));
    let built = built(&clock).await;
    for (turn, harmed) in ALL.into_iter().enumerate() {
        let damaged = built.forked();
        harmed.happens(&damaged).await;
        let mut refused = 0;
        // Each third call, of each kind of damage from another one on: most of them are looks at files.
        for call in (turn as u64 % 3..).step_by(3) {
            let case = format!("{harmed:?} at call {call}");
            let objects = damaged.forked();
            let first = open(&objects, &clock).await;
            let second = open(&objects.reborn(), &clock).await;
            let (reached, let_go) = objects.hold_call(call);
            let mut repairing = tokio::spawn(async move { first.repair("s", false).await });
            let early = tokio::select! {
                report = &mut repairing => Some(report),
                Ok(()) = reached => None,
            };
            let is_over = early.is_some();
            let mut has_new = false;
            let report = match early {
                Some(report) => report,
                None => {
                    has_new = mend_beside(&second, harmed, &case).await;
                    refused += u32::from(!has_new);
                    let_go.send(()).unwrap();
                    repairing.await
                }
            };
            let report = report.unwrap().unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(report.unrepaired.is_empty(), "{case}: {report:?}");
            check(&objects, &clock, harmed, has_new, &case).await;
            if is_over {
                break;
            }
        }
        assert!(refused > 5, "{harmed:?}: {refused} were refused");
    }
}

/// The second repair, and a write after it; false if it was refused because the first one is under way.
async fn mend_beside(store: &Store, harmed: Harmed, case: &str) -> bool {
    match store.repair("s", false).await {
        Ok(report) => assert!(report.unrepaired.is_empty(), "{case}: {report:?}"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{case}: {error}");
            assert!(error.to_string().contains("_alluvium/repairs/s.json"), "{case}: {error}");
            return false;
        }
    }
    let state = store.raw_state("s").await.unwrap();
    let next = harmed.commits() + 1;
    let row = n_batch_at(&[("new", next, Some(next))], &[START]);
    assert_eq!(state.append(&row).await.unwrap().commit, next, "{case}");
    true
}

async fn check(
    objects: &Arc<FaultyStore>,
    clock: &Arc<ManualClock>,
    harmed: Harmed,
    has_new: bool,
    case: &str,
) {
    let after = open(&objects.reborn(), clock).await;
    let deep = after.examine("s").await.unwrap();
    assert!(deep.is_sound(), "{case}: {deep:?}");
    let state = after.raw_state("s").await.unwrap();
    for n in 1..=harmed.commits() {
        let key = format!("k{}", n % 3);
        assert_eq!(n_of(&state, Point::at_commit(n), &key).await, Some(n), "{case}: as of {n}");
    }
    let new = has_new.then_some(harmed.commits() + 1);
    assert_eq!(n_of(&state, Point::LATEST, "new").await, new, "{case}");
    assert_sound(&state).await;
    state.materialize(false).await.unwrap();
    assert_sound(&state).await;
}
