//! Cleaning up the commits of a table: what is kept stays readable at each instant, and what is gone is refused by name.

use std::sync::Arc;

use alluvium::{ErrorKind, ManualClock, Point, RawState};
use alluvium_log::Table;

use crate::support::answers::answers;
use crate::support::delta;
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{
    DAY, Home, START, assert_sound, by_version, commit_of, live, n_batch, n_batch_at, n_of,
};

const DAY_MS: i64 = DAY / 1_000;

/// A commit a day from version 1 on, and a checkpoint of both tables every `every` commits.
async fn append_daily(state: &RawState, clock: &ManualClock, days: i64, every: i64) {
    for _ in 0..days {
        let n = commit_of(state).await + 1;
        clock.set(START + n * DAY);
        let batch = n_batch_at(&[(&format!("k{}", n % 7), n, Some(n))], &[START + n * DAY]);
        assert_eq!(state.append(&batch).await.unwrap().commit, n);
        state.materialize(false).await.unwrap();
        if n % every == 0 {
            state.log().table().checkpoint().await.unwrap();
            snapshot_table(state).checkpoint().await.unwrap();
        }
    }
}

fn snapshot_table(state: &RawState) -> Arc<Table> {
    state.snapshot().state().table().unwrap().0.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_log_answers_is_the_same_after_its_commits_are_cleaned_up() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    append_daily(&state, &clock, 40, 10).await;
    let before = answers(&state, 40).await;
    let other = home.open_at(&clock).await.raw_state("s").await.unwrap();
    // Version 25 was the newest one fifteen days ago; the checkpoint before it is 20.
    let dry = state.log().table().clean_up(15 * DAY_MS, true).await.unwrap();
    assert_eq!((dry.oldest_version, dry.commits_removed), (20, 20), "{dry:?}");
    let first = home.commit_file("s", 0);
    assert!(first.is_file(), "a dry run removes nothing");
    let done = state.log().table().clean_up(15 * DAY_MS, false).await.unwrap();
    assert_eq!(done, dry);
    assert_eq!(done.checkpoint_files_removed, 1, "that of version 10");
    assert!(!first.exists() && home.commit_file("s", 20).is_file());
    assert_eq!(
        snapshot_table(&state).clean_up(15 * DAY_MS, false).await.unwrap().oldest_version,
        20
    );
    let again = state.log().table().clean_up(15 * DAY_MS, false).await.unwrap();
    assert_eq!((again.commits_removed, again.bytes_removed), (0, 0));
    let reopened = home.open_at(&clock).await.raw_state("s").await.unwrap();
    for handle in [&state, &other, &reopened] {
        assert_eq!(answers(handle, 40).await, before);
        assert_eq!(handle.log().table().state_at(20).await.unwrap().version, 20);
        let error = handle.log().table().state_at(19).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PointUnavailable);
        assert!(error.to_string().contains("20 to 40"), "{error}");
    }
    append_daily(&reopened, &clock, 3, 10).await;
    assert_eq!(live(&other, Point::LATEST).await, live(&reopened, Point::LATEST).await);
    assert_sound(&other).await;
}

/// What other engines leave beside a log: sums of versions and of files, merged commits, checkpoints of another kind, half written files.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_left_beside_the_log_goes_with_the_versions_that_it_belongs_to() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    append_daily(&state, &clock, 40, 10).await;
    let folder = home.table("s", "log").join("_delta_log");
    let of = |version: i64| {
        [
            format!("{version:020}.crc"),
            format!(".{version:020}.json.crc"),
            format!("{version:020}.{:020}.compacted.json", version + 3),
            format!(".{version:020}.checkpoint.parquet.crc"),
        ]
    };
    for name in [2, 13, 19, 20, 21, 38].iter().flat_map(|version| of(*version)) {
        std::fs::write(folder.join(name), "{").unwrap();
    }
    let before = answers(&state, 40).await;
    // The checkpoint that the oldest kept version begins with is 20.
    let dry = state.log().table().clean_up(15 * DAY_MS, true).await.unwrap();
    let done = state.log().table().clean_up(15 * DAY_MS, false).await.unwrap();
    assert_eq!(done, dry);
    assert!(done.other_files_removed >= 12, "{done:?}");
    for version in [2, 13, 19, 20, 21, 38] {
        for name in of(version) {
            assert_eq!(folder.join(&name).exists(), version >= 20, "{name}");
        }
    }
    assert_eq!(answers(&state, 40).await, before);
    let again = state.log().table().clean_up(15 * DAY_MS, false).await.unwrap();
    assert_eq!((again.other_files_removed, again.bytes_removed), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_retention_is_obeyed_in_the_background_of_appends() {
    let faulty = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let store = open(&faulty, &clock).await;
    let state = by_version(&store, "s").await;
    // Twelve commits a day: those of the last thirty days are 360.
    for n in 1..=1_000_i64 {
        clock.set(START + n * DAY / 12);
        state.append(&n_batch_at(&[("a", n, Some(n))], &[START])).await.unwrap();
        store.close().await;
    }
    let table = state.log().table().clone();
    assert!(table.read_commit(640).await.unwrap().is_some());
    assert!(table.read_commit(499).await.unwrap().is_none());
    assert_eq!(table.state_at(640).await.unwrap().version, 640);
    assert_eq!(n_of(&state, Point::at_commit(7), "a").await, Some(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_up_killed_at_any_call_leaves_every_kept_version_readable() {
    let built = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open(&built, &clock).await, "s").await;
    append_daily(&state, &clock, 12, 3).await;
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let faulty = built.forked();
        let state = open(&faulty, &clock).await.raw_state("s").await.unwrap();
        faulty.die_at(call, takes_place);
        let outcome = state.log().table().clean_up(5 * DAY_MS, false).await;
        let died = faulty.is_dead();
        assert_eq!(outcome.is_err(), died, "call {call}: {outcome:?}");
        let state = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
        for version in 7..=12 {
            let read = state.log().table().state_at(version).await;
            let read = read.unwrap_or_else(|error| panic!("call {call}: {error}"));
            assert_eq!((read.version, read.file_count() as i64), (version, version));
            let key = format!("k{}", version % 7);
            assert_eq!(n_of(&state, Point::at_commit(version), &key).await, Some(version));
        }
        let report = state.log().table().clean_up(5 * DAY_MS, false).await.unwrap();
        assert_eq!(report.oldest_version, 6);
        assert_eq!(live(&state, Point::LATEST).await.len(), 7);
        if !died {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_that_idled_while_the_log_was_cleaned_up_neither_misses_a_commit_nor_writes_over_one()
 {
    let faulty = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open(&faulty, &clock).await, "s").await;
    let [reader, writer] = [open(&faulty, &clock).await, open(&faulty, &clock).await];
    let reader = reader.raw_state("s").await.unwrap();
    let writer = writer.raw_state("s").await.unwrap();
    append_daily(&state, &clock, 30, 10).await;
    state.log().table().clean_up(5 * DAY_MS, false).await.unwrap();
    assert!(state.log().table().read_commit(1).await.unwrap().is_none());
    assert_eq!(live(&reader, Point::LATEST).await, live(&state, Point::LATEST).await);
    let receipt = writer.append(&n_batch(&[("new", 99, Some(99))])).await.unwrap();
    assert_eq!(receipt.commit, 31);
    assert_eq!(n_of(&reader, Point::LATEST, "new").await, Some(99));
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_that_alone_tell_what_another_engine_merged_are_kept() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    let folder = home.table("s", "log");
    for n in 1..=4 {
        state.append(&n_batch_at(&[("a", n, Some(n))], &[START])).await.unwrap();
    }
    state.log().table().checkpoint().await.unwrap();
    assert!(delta::optimize(&folder, 1 << 30).await);
    let newest = commit_of(&state).await;
    state.log().table().checkpoint().await.unwrap();
    let report = state.log().table().clean_up(-DAY_MS, false).await.unwrap();
    assert_eq!(report.oldest_version, 4, "the merge is commit 5: {report:?}");
    assert!(report.reason.contains("commit 5"), "{report:?}");
    let reopened = home.open().await.raw_state("s").await.unwrap();
    for handle in [&state, &reopened] {
        for commit in 1..=newest {
            assert_eq!(n_of(handle, Point::at_commit(commit), "a").await, Some(commit.min(4)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tt_09_a_version_that_is_only_a_checkpoint_is_read_and_those_before_it_are_refused() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    for n in 1..=10 {
        state.append(&n_batch(&[("a", n, Some(n))])).await.unwrap();
    }
    state.log().table().checkpoint().await.unwrap();
    for commit in 0..=10 {
        std::fs::remove_file(home.commit_file("s", commit)).unwrap();
    }
    let only = home.open().await.raw_state("s").await.unwrap();
    assert_eq!(only.log().table().state_at(10).await.unwrap().version, 10);
    assert_eq!(n_of(&only, Point::at_commit(7), "a").await, Some(7));
    assert_eq!(only.append(&n_batch(&[("a", 11, Some(11))])).await.unwrap().commit, 11);
    let reopened = home.open().await.raw_state("s").await.unwrap();
    for handle in [&only, &reopened, &state] {
        let table = handle.log().table();
        for version in [10, 11] {
            assert_eq!(table.state_at(version).await.unwrap().version, version);
        }
        let error = table.state_at(9).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
        assert!(error.to_string().contains("10 to 11"), "{error}");
        assert_eq!(live(handle, Point::LATEST).await.len(), 1);
        assert_eq!(n_of(handle, Point::LATEST, "a").await, Some(11));
    }
    assert_sound(&reopened).await;
}

/// The hint of the newest checkpoint leads whoever makes one of an earlier version beyond it.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_of_a_version_that_others_are_beyond_is_theirs() {
    let faulty = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open(&faulty, &clock).await, "s").await;
    append_daily(&state, &clock, 3, 1).await;
    let idle = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
    for other in [&state, &idle] {
        append_daily(&state, &clock, 1, 1).await;
        state.log().table().checkpoint().await.unwrap();
        other.log().table().checkpoint().await.unwrap();
        assert_eq!(other.log().table().commits_since_checkpoint().max(0), 0);
    }
    let store = open(&faulty.reborn(), &clock).await;
    assert!(store.examine("s").await.unwrap().is_sound());
    assert_sound(&idle).await;
}
