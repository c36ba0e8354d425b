//! FOR-*: another engine's `OPTIMIZE` that read the log before ours, or another one, rewrote files and commits after it: it brings
//! rows in again that lie elsewhere by then. Every row counts once all the same, and the next merge leaves it once.

use std::sync::Arc;

use alluvium::{ManualClock, OrderBy, Point, RawState};
use deltalake_core::DeltaTable;

use crate::support::answers::answers;
use crate::support::delta;
use crate::support::stores::{
    DAY, Home, SECOND, START, assert_sound, by_time, by_version, commit_of, live, n_batch_at,
};

/// Rows of one day: keys in turn, and ties within commits and between them.
async fn append(state: &RawState, commits: i64) {
    for _ in 0..commits {
        let n = commit_of(state).await + 1;
        let (a, b) = (format!("k{}", n % 7), format!("k{}", n % 3));
        let rows = [
            (a.as_str(), n, Some(n)),
            (b.as_str(), n / 2, Some(-n)),
            ("t", 1, Some(n)),
            ("t", 1, Some(n)),
            ("gone", n, None),
        ];
        let times = [START + n * SECOND, START + n, START, START, START + n];
        state.append(&n_batch_at(&rows, &times)).await.unwrap();
    }
}

async fn made(home: &Home, clock: &Arc<ManualClock>, order_by: OrderBy) -> RawState {
    let store = home.open_at(clock).await;
    match order_by {
        OrderBy::EventTime => by_time(&store, "s").await,
        OrderBy::Version => by_version(&store, "s").await,
    }
}

/// Rows of the log's files, those that lie there twice counted twice.
fn stored_rows(state: &RawState) -> u64 {
    state.log().state().files().map(|file| file.stats.rows.unwrap()).sum()
}

/// Everything that is asked of the past is answered as before, by handles that saw it happen and by new ones, also after
/// checkpoints, a materialization, a rebuild, and the merge that leaves each row once.
async fn unharmed(
    home: &Home,
    clock: &Arc<ManualClock>,
    states: &[&RawState],
    before: &[String],
    rows: u64,
) {
    let newest = before_commits(before);
    let same = async |state: &RawState, when: &str| {
        state.log().refresh().await.unwrap();
        let now = answers(state, newest).await;
        for (index, (now, then)) in now.iter().zip(before).enumerate() {
            assert_eq!(now, then, "answer {index} {when}");
        }
    };
    let reopened = async || home.open_at(clock).await.raw_state("s").await.unwrap();
    for state in states {
        same(state, "as it is").await;
    }
    let fresh = reopened().await;
    same(&fresh, "by a new handle").await;
    fresh.log().table().checkpoint().await.unwrap();
    same(&reopened().await, "from a checkpoint").await;
    let late = reopened().await;
    late.materialize(false).await.unwrap();
    same(&late, "materialized").await;
    assert_sound(&late).await;
    same(&late, "rebuilt").await;
    late.compact(false).await.unwrap();
    assert_eq!(stored_rows(&late), rows, "each row once");
    same(&late, "merged").await;
    assert_eq!(late.compact(false).await.unwrap().commits, 0, "there is nothing left to do");
    for state in states {
        same(state, "merged, by the handles of before").await;
    }
    late.log().table().checkpoint().await.unwrap();
    let last = reopened().await;
    same(&last, "merged, from a checkpoint").await;
    assert_sound(&last).await;
}

/// The commit up to which answers were asked for.
fn before_commits(answers: &[String]) -> i64 {
    (answers.len() as i64 - 2) / 3 - 1
}

async fn optimize(table: DeltaTable) {
    assert!(delta::optimize_from(table, 1 << 30).await, "it made a commit");
}

#[tokio::test(flavor = "multi_thread")]
async fn for_01_an_optimize_that_comes_after_our_merge_of_the_same_files_doubles_no_row() {
    for order_by in [OrderBy::EventTime, OrderBy::Version] {
        let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START + 9 * DAY)));
        let state = made(&home, &clock, order_by).await;
        append(&state, 6).await;
        state.materialize(false).await.unwrap();
        let before = answers(&state, 6).await;
        let late = delta::open(&home.table("s", "log")).await;
        let follower = home.open_at(&clock).await.raw_state("s").await.unwrap();
        assert_eq!(state.compact(false).await.unwrap().files_removed, 6);
        optimize(late).await;
        unharmed(&home, &clock, &[&state, &follower], &before, 30).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn for_02_our_merge_that_comes_after_an_optimize_of_the_same_files_gives_way() {
    let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START + 9 * DAY)));
    let state = made(&home, &clock, OrderBy::Version).await;
    append(&state, 6).await;
    let before = answers(&state, 6).await;
    let idle = home.open_at(&clock).await.raw_state("s").await.unwrap();
    assert!(delta::optimize(&home.table("s", "log"), 1 << 30).await);
    unharmed(&home, &clock, &[&state, &idle], &before, 30).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn for_03_an_optimize_that_merged_files_of_ours_that_went_and_others_doubles_no_row() {
    let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START + 9 * DAY)));
    let state = made(&home, &clock, OrderBy::EventTime).await;
    append(&state, 4).await;
    // Only what is folded is merged: the rest is in the other engine's file alone.
    state.materialize(false).await.unwrap();
    append(&state, 3).await;
    let before = answers(&state, 7).await;
    let late = delta::open(&home.table("s", "log")).await;
    assert_eq!(state.compact(false).await.unwrap().files_removed, 4);
    optimize(late).await;
    unharmed(&home, &clock, &[&state], &before, 35).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn for_04_an_optimize_that_comes_after_two_merges_or_merges_again_doubles_no_row() {
    let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START + 9 * DAY)));
    let state = made(&home, &clock, OrderBy::Version).await;
    append(&state, 4).await;
    let late = delta::open(&home.table("s", "log")).await;
    state.compact(false).await.unwrap();
    append(&state, 4).await;
    let other = delta::open(&home.table("s", "log")).await;
    let before = answers(&state, 9).await;
    state.compact(false).await.unwrap();
    optimize(late).await;
    optimize(other).await;
    // What is doubled is merged into one file, by one that knows nothing of it.
    assert!(delta::rewrite(&home.table("s", "log")).await);
    unharmed(&home, &clock, &[&state], &before, 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn for_05_two_optimizes_of_the_same_files_double_no_row() {
    let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START + 9 * DAY)));
    let state = made(&home, &clock, OrderBy::EventTime).await;
    append(&state, 3).await;
    delta::append(&home.table("s", "log"), &n_batch_at(&[("f", 1, Some(1))], &[START])).await;
    append(&state, 3).await;
    let before = answers(&state, 7).await;
    let (one, other) =
        (delta::open(&home.table("s", "log")).await, delta::open(&home.table("s", "log")).await);
    optimize(one).await;
    optimize(other).await;
    unharmed(&home, &clock, &[&state], &before, 31).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn for_06_a_process_that_knows_the_merge_from_a_checkpoint_only_looks_further_back() {
    let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START + 9 * DAY)));
    let state = made(&home, &clock, OrderBy::Version).await;
    append(&state, 6).await;
    let before = answers(&state, 6).await;
    let late = delta::open(&home.table("s", "log")).await;
    state.compact(false).await.unwrap();
    state.log().table().checkpoint().await.unwrap();
    // It loads the checkpoint, in which nothing is left of the files that went.
    let follower = home.open_at(&clock).await.raw_state("s").await.unwrap();
    optimize(late).await;
    unharmed(&home, &clock, &[&follower, &state], &before, 30).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn for_07_where_the_commits_of_doubled_rows_cannot_be_told_any_more_each_counts_once_or_is_refused()
 {
    let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START + 9 * DAY)));
    let state = made(&home, &clock, OrderBy::Version).await;
    append(&state, 6).await;
    let before = answers(&state, 6).await;
    let late = delta::open(&home.table("s", "log")).await;
    state.compact(false).await.unwrap();
    optimize(late).await;
    state.log().refresh().await.unwrap();
    state.log().table().checkpoint().await.unwrap();
    // Somebody else cleans up, without a thought for what the commits tell.
    for commit in 0..=8 {
        std::fs::remove_file(home.commit_file("s", commit)).unwrap();
    }
    let reopened = home.open_at(&clock).await.raw_state("s").await.unwrap();
    let error = reopened.get(Point::at_commit(3), "t").await.unwrap_err();
    assert_eq!(error.kind(), alluvium::ErrorKind::PointUnavailable, "{error}");
    let now = answers_of_history(&reopened).await;
    assert_eq!(now, answers_of_history(&state).await, "the whole history");
    assert_eq!(format!("{now:?}"), before[1]);
    let latest = live(&reopened, Point::LATEST).await;
    assert_eq!(latest, live(&state, Point::LATEST).await);
}

async fn answers_of_history(state: &RawState) -> Vec<arrow::array::RecordBatch> {
    use futures::TryStreamExt;
    let basis = state.reader().basis().await.unwrap();
    let rows = state.reader().history_rows(&basis, alluvium::KeyFilter::All, Point::LATEST).await;
    rows.unwrap().try_collect().await.unwrap()
}
