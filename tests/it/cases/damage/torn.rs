//! Checkpoints of which half arrived, on a store that shows what was written in part. Nothing hangs on one: the next is made without it,
//! of the commits or of an earlier one, and it is put aside. It stays where it is if nothing else tells what it told.

use std::sync::Arc;

use alluvium::{ErrorKind, MaintainStep, ManualClock, Point, RawState};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::support::answers::answers;
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{DAY, START, assert_sound, by_version, commit_of, n_batch_at, n_of};

const DAY_MS: i64 = DAY / 1_000;

async fn append(state: &RawState, clock: &ManualClock, commits: std::ops::RangeInclusive<i64>) {
    for n in commits {
        clock.set(START + n * DAY);
        let key = format!("k{}", n % 3);
        state.append(&n_batch_at(&[(&key, n, Some(n))], &[START])).await.unwrap();
        assert_eq!(commit_of(state).await, n);
    }
}

fn checkpoint(version: i64) -> Path {
    Path::from(format!("s/log/_delta_log/{version:020}.checkpoint.parquet"))
}

fn note(version: i64) -> Path {
    Path::from(format!("s/log/_delta_log/{version:020}.alluvium.json"))
}

async fn bytes_of(objects: &FaultyStore, path: &Path) -> Bytes {
    objects.get(path).await.unwrap().bytes().await.unwrap()
}

async fn is_there(objects: &FaultyStore, path: &Path) -> bool {
    objects.head(path).await.is_ok()
}

/// What becomes of the checksum beside a checkpoint that is cut.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Note {
    /// The writer died before it wrote one.
    Absent,
    /// Half of it arrived too.
    Cut,
    Whole,
}

/// Leaves so much of a checkpoint; gives what is left.
async fn tear(objects: &FaultyStore, version: i64, length: usize, beside: Note) -> Bytes {
    let whole = bytes_of(objects, &checkpoint(version)).await;
    let torn = whole.slice(..length.min(whole.len() - 1));
    objects.put(&checkpoint(version), torn.clone().into()).await.unwrap();
    match beside {
        Note::Absent => objects.delete(&note(version)).await.unwrap(),
        Note::Cut => {
            let whole = bytes_of(objects, &note(version)).await;
            objects.put(&note(version), whole.slice(..whole.len() / 2).into()).await.unwrap();
        }
        Note::Whole => {}
    }
    torn
}

/// That all is as it was, to a new process, and the newest checkpoint is whole.
async fn holds(objects: &Arc<FaultyStore>, clock: &Arc<ManualClock>, newest: i64, case: &str) {
    let store = open(&objects.reborn(), clock).await;
    let report = store.examine("s").await.unwrap();
    assert!(report.is_sound(), "{case}: {report:?}");
    let state = store.raw_state("s").await.unwrap();
    assert_eq!(commit_of(&state).await, newest, "{case}");
    assert_eq!(state.log().table().commits_since_checkpoint(), 0, "{case}");
    // Opened by the checkpoint alone.
    for commit in 0..=newest {
        let path = Path::from(format!("s/log/_delta_log/{commit:020}.json"));
        objects.delete(&path).await.unwrap();
    }
    let only = open(&objects.reborn(), clock).await.raw_state("s").await.unwrap();
    for state in [&state, &only] {
        for n in 1..=newest {
            let key = format!("k{}", n % 3);
            let found = n_of(state, Point::at_commit(n), &key).await;
            assert_eq!(found, Some(n), "{case}: as of {n}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_of_which_a_part_arrived_keeps_no_later_one_from_being_made() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_version(&open(&built, &clock).await, "s").await;
    append(&state, &clock, 1..=3).await;
    let alone = built.forked();
    state.log().table().checkpoint().await.unwrap();
    for (has_earlier, built) in [(true, built.clone()), (false, alone)] {
        let cut = [0, 11, 12, 2_000].map(|length| (length, Note::Absent));
        let others = [(usize::MAX, Note::Absent), (2_000, Note::Cut), (2_000, Note::Whole)];
        for (length, beside) in cut.into_iter().chain(others) {
            for (who, comes_later) in
                [(0, false), (1, false), (2, false), (0, true), (1, true), (2, true)]
            {
                let case = format!(
                    "{length} bytes, note {beside:?}, handle {who}, an earlier one {has_earlier}, later {comes_later}"
                );
                let objects = built.forked();
                let writer = open(&objects, &clock).await.raw_state("s").await.unwrap();
                let idle = open(&objects.reborn(), &clock).await.raw_state("s").await.unwrap();
                append(&writer, &clock, 4..=6).await;
                // Its write broke off: what follows is done by one who was told so, one who knows nothing of it, and one who comes anew.
                writer.log().table().checkpoint().await.unwrap();
                let torn = tear(&objects, 6, length, beside).await;
                let newest = if comes_later { 8 } else { 6 };
                append(&writer, &clock, 7..=newest).await;
                let anew = open(&objects.reborn(), &clock).await.raw_state("s").await.unwrap();
                let state = [&writer, &idle, &anew][who];
                state.log().refresh().await.unwrap();
                let written = state.log().table().checkpoint().await;
                assert!(written.is_ok(), "{case}: {written:?}");
                let aside = Path::from(format!("{}.damaged", checkpoint(6)));
                assert_eq!(bytes_of(&objects, &aside).await, torn, "{case}");
                holds(&objects, &clock, newest, &case).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_checkpoint_that_alone_tells_of_a_log_stays_where_it_is_and_is_named() {
    let (objects, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_version(&open(&objects, &clock).await, "s").await;
    append(&state, &clock, 1..=10).await;
    let table = state.log().table();
    table.checkpoint().await.unwrap();
    append(&state, &clock, 11..=12).await;
    table.clean_up(DAY_MS, false).await.unwrap();
    assert!(table.read_commit(9).await.unwrap().is_none());
    let whole = bytes_of(&objects, &checkpoint(10)).await;
    let torn = tear(&objects, 10, whole.len() / 2, Note::Absent).await;
    let error = table.checkpoint().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(bytes_of(&objects, &checkpoint(10)).await, torn);
    assert!(!is_there(&objects, &checkpoint(12)).await);
    objects.put(&checkpoint(10), whole.into()).await.unwrap();
    table.checkpoint().await.unwrap();
    holds(&objects, &clock, 12, "put back").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_up_begins_with_an_older_checkpoint_where_the_nearest_one_is_torn() {
    let (objects, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_version(&open(&objects, &clock).await, "s").await;
    for last in [5, 10, 15] {
        append(&state, &clock, last - 4..=last).await;
        state.log().table().checkpoint().await.unwrap();
    }
    let before = answers(&state, 15).await;
    tear(&objects, 10, 2_000, Note::Absent).await;
    let reborn = open(&objects.reborn(), &clock).await.raw_state("s").await.unwrap();
    let report = reborn.log().table().clean_up(3 * DAY_MS, false).await.unwrap();
    assert_eq!(report.oldest_version, 5, "{report:?}");
    assert_eq!(report.commits_removed, 5, "{report:?}");
    for version in 5..=15 {
        let read = reborn.log().table().state_at(version).await.unwrap();
        assert_eq!(read.version, version);
    }
    for state in [&state, &reborn] {
        assert_eq!(answers(state, 15).await, before);
    }
    assert_sound(&reborn).await;
}

/// What others do while a repair is under way.
#[derive(Debug, Clone, Copy)]
enum Beside {
    /// The very checkpoint that is damaged is made again.
    Checkpoint,
    Append,
    Maintain,
}

impl Beside {
    async fn happens(self, state: &RawState, clock: &ManualClock) {
        match self {
            Self::Checkpoint => drop(state.log().table().checkpoint().await.unwrap()),
            Self::Append => {
                append(state, clock, 7..=7).await;
                state.materialize(false).await.unwrap();
                state.log().table().checkpoint().await.unwrap();
            }
            Self::Maintain => {
                clock.set(START + 40 * DAY);
                state.maintain(&MaintainStep::ALL, false).await.unwrap();
            }
        }
    }
}

/// What was set aside, by its path.
async fn aside(objects: &Arc<FaultyStore>) -> Vec<(Path, Bytes)> {
    let listed: Vec<_> = objects.list(Some(&Path::from("s"))).try_collect().await.unwrap();
    let mut found = Vec::new();
    for path in listed.into_iter().map(|meta| meta.location) {
        if path.as_ref().contains("/damaged/") || path.as_ref().ends_with(".damaged") {
            let bytes = bytes_of(objects, &path).await;
            found.push((path, bytes));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_beside_which_others_write_sets_nothing_aside_that_they_have_just_written() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_version(&open(&built, &clock).await, "s").await;
    append(&state, &clock, 1..=3).await;
    state.log().table().checkpoint().await.unwrap();
    state.materialize(false).await.unwrap();
    append(&state, &clock, 4..=6).await;
    state.log().table().checkpoint().await.unwrap();
    let torn = tear(&built, 6, 2_000, Note::Absent).await;
    let mut made_beside = 0;
    for (beside, step) in [(Beside::Checkpoint, 1), (Beside::Append, 3), (Beside::Maintain, 3)] {
        for call in (0..).step_by(step) {
            let case = format!("{beside:?} at call {call}");
            clock.set(START + 6 * DAY);
            let objects = built.forked();
            let store = open(&objects, &clock).await;
            let other = open(&objects.reborn(), &clock).await.raw_state("s").await.unwrap();
            let (mut reached, let_go) = objects.hold_call(call);
            let mut repairing = std::pin::pin!(store.repair("s", false));
            let early = tokio::select! {
                biased;
                report = &mut repairing => Some(report),
                _ = &mut reached => None,
            };
            let is_over = early.is_some();
            let report = match early {
                Some(report) => report,
                None => {
                    beside.happens(&other, &clock).await;
                    let_go.send(()).unwrap();
                    repairing.await
                }
            };
            let report = match report {
                // Days have passed, in which a repair that says nothing may be followed by another one.
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    open(&objects.reborn(), &clock).await.repair("s", false).await
                }
                report => report,
            };
            let report = report.unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(report.unrepaired.is_empty(), "{case}: {report:?}");
            made_beside += i32::from(report.steps.is_empty());
            for (path, bytes) in aside(&objects.reborn()).await {
                let is_checkpoint = path.as_ref().contains(".checkpoint.parquet");
                assert!(!is_checkpoint || bytes == torn, "{case}: {path} was whole");
                assert!(!path.as_ref().ends_with(".json") || is_hint(&path), "{case}: {path}");
            }
            let after = open(&objects.reborn(), &clock).await;
            let sound = after.examine("s").await.unwrap();
            assert!(sound.is_sound(), "{case}: {sound:?}");
            let state = after.raw_state("s").await.unwrap();
            for n in 1..=6 {
                let key = format!("k{}", n % 3);
                let found = n_of(&state, Point::at_commit(n), &key).await;
                assert_eq!(found, Some(n), "{case}: as of {n}");
            }
            if is_over {
                break;
            }
        }
    }
    assert!(made_beside > 5, "{made_beside}");
}

/// The hint of the newest checkpoint, or the checksum beside one.
fn is_hint(path: &Path) -> bool {
    path.as_ref().ends_with("_last_checkpoint") || path.as_ref().ends_with(".alluvium.json")
}
