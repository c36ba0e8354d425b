//! PERF-*: what an operation asks of the store is counted, not timed.

use std::sync::Arc;

use alluvium::{Point, RawState, SnapshotChange, Storage, Store};

use crate::support::delta;
use crate::support::faults::FaultyStore;
use crate::support::stores::{
    DAY, Home, START, assert_sound, by_time, by_version, live, n_batch, n_batch_at, n_of,
};

async fn open(counting: &Arc<FaultyStore>) -> Store {
    let storage = Storage::from_object_store(counting.clone(), "counting://");
    Store::builder("counting://").storage(storage).open().await.unwrap()
}

async fn append(state: &RawState, n: i64) {
    state.append(&n_batch_at(&[(&format!("k{}", n % 50), n, Some(n))], &[START])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn perf_01_an_append_costs_the_same_after_a_thousand_commits_and_an_opening_reads_few_of_them()
 {
    let counting = FaultyStore::new();
    let store = open(&counting).await;
    let state = by_version(&store, "s").await;
    let mut per_append = Vec::new();
    for n in 1..=1_000_i64 {
        counting.counts.take();
        append(&state, n).await;
        let counts = counting.counts.take();
        if n % 100 == 50 {
            per_append.push(counts);
        }
        store.close().await;
    }
    assert!(per_append.iter().all(|counts| *counts == per_append[0]), "{per_append:?}");
    let [gets, _, data_gets, puts, lists] = per_append[0];
    assert_eq!((data_gets, puts, lists), (0, 2, 0), "one file and one commit, and nothing listed");
    assert!(gets <= 1, "{gets}");
    for extra in [0, 1, 60] {
        for n in 0..extra {
            append(&state, 2_000 + n).await;
        }
        store.close().await;
        counting.counts.take();
        let reopened = open(&counting).await.raw_state("s").await.unwrap();
        let [_, commits, data, puts, lists] = counting.counts.take();
        assert!(commits <= 165, "{commits} commits were read to open a log with checkpoints");
        assert_eq!((data, puts), (0, 0), "opening reads no data and writes nothing");
        assert!(lists <= 8, "{lists}");
        assert_eq!(n_of(&reopened, Point::at_version(999), "k49").await, Some(999));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn perf_02_following_the_log_reads_only_what_is_new() {
    let counting = FaultyStore::new();
    let state = by_version(&open(&counting).await, "s").await;
    for n in 1..=500 {
        append(&state, n).await;
    }
    state.log().close().await;
    // What the writer does in the background is its own.
    let counting = counting.reborn();
    let other = open(&counting).await.raw_state("s").await.unwrap();
    for n in 0..100 {
        append(&state, 1_000 + n).await;
        counting.counts.take();
        other.log().refresh().await.unwrap();
        let [gets, _, data, _, lists] = counting.counts.take();
        assert!(
            gets <= 2 && data == 0 && lists == 0,
            "{gets} gets, {lists} lists to follow one commit"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn perf_06_with_nothing_new_a_materialization_reads_no_data_and_commits_nothing() {
    let counting = FaultyStore::new();
    let state = by_version(&open(&counting).await, "s").await;
    let keys: Vec<String> = (0..5_000).map(|n| format!("k{n:05}")).collect();
    let rows: Vec<_> = keys.iter().map(|key| (key.as_str(), 1, Some(1))).collect();
    state.append(&n_batch(&rows)).await.unwrap();
    state.materialize(false).await.unwrap();
    let version = state.stats().await.unwrap().snapshot_version;
    for _ in 0..20 {
        counting.counts.take();
        let report = state.materialize(false).await.unwrap();
        assert_eq!((report.change, report.snapshot_version), (SnapshotChange::UpToDate, version));
        let [_, _, data, puts, _] = counting.counts.take();
        assert_eq!((data, puts), (0, 0));
    }
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn perf_06_a_log_that_was_only_optimized_gives_nothing_to_materialize() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    for n in 1..=5 {
        append(&state, n).await;
    }
    state.materialize(false).await.unwrap();
    assert!(delta::optimize(&home.table("s", "log"), 1 << 20).await);
    let report = state.materialize(false).await.unwrap();
    assert_eq!((report.change, report.rows_folded), (SnapshotChange::UpToDate, 0));
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn perf_11_one_append_over_four_hundred_days_is_read_folded_and_optimized() {
    let home = Home::new();
    let state = by_time(&home.open().await, "s").await;
    let keys: Vec<String> = (0..400).map(|n| format!("k{n:03}")).collect();
    for commit in 0..2_i64 {
        let rows: Vec<_> = keys.iter().map(|key| (key.as_str(), commit, Some(commit))).collect();
        let times: Vec<i64> = (0..400).map(|day| START - day * DAY + commit).collect();
        state.append(&n_batch_at(&rows, &times)).await.unwrap();
    }
    assert_eq!(state.stats().await.unwrap().log_days, 400);
    let expected: Vec<_> = keys.iter().map(|key| (key.clone(), 1, Some(1))).collect();
    assert_eq!(live(&state, Point::LATEST).await, expected);
    assert_eq!(live(&state, Point::at_version(0)).await.len(), 400);
    assert_eq!(live(&state, Point::at_time(START - 100 * DAY)).await.len(), 300);
    state.materialize(false).await.unwrap();
    delta::optimize(&home.table("s", "log"), 1 << 20).await;
    assert_eq!(live(&state, Point::at_commit(1)).await.len(), 400);
    assert_sound(&state).await;
    let many: Vec<String> = (0..1_025).map(|n| format!("d{n}")).collect();
    let rows: Vec<_> = many.iter().map(|key| (key.as_str(), 9, Some(9))).collect();
    let times: Vec<i64> = (0..1_025).map(|day| START - day * DAY).collect();
    let batch = n_batch_at(&rows, &times);
    let names: &[&str] = &["1025 days", "1024"];
    crate::support::stores::refused(
        &state,
        state.append(&batch),
        alluvium::ErrorKind::LimitExceeded,
        names,
    )
    .await;
}
