//! CMP-*: a day's files are merged once, no row changes, and nothing is written where nothing is to gain.

use std::sync::Arc;

use alluvium::{
    Clock, LayoutSettings, ManualClock, OrderBy, Point, RawState, SnapshotChange, Storage, Store,
    StoreSettings, SystemClock,
};
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use futures::future::join_all;
use object_store::ObjectStore;

use crate::support::answers::answers;
use crate::support::delta;
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{
    DAY, Home, SECOND, START, assert_sound, by_time, by_version, commit_of, create, live, n_batch,
    n_batch_at, n_fields, n_of, ordered_by, settings,
};

/// Commits of a day: keys in turn, ties in version and time among them, and a row for the day before.
async fn append_day(state: &RawState, clock: &ManualClock, day: i64, commits: i64) {
    for part in 0..commits {
        let time = START + day * DAY + part * SECOND;
        clock.set(time);
        let n = commit_of(state).await + 1;
        let (a, b) = (format!("k{}", n % 7), format!("k{}", n % 3));
        let rows = [(a.as_str(), n, Some(n)), (b.as_str(), n / 2, Some(-n)), ("t", 1, Some(n))];
        let times = [time, time - DAY, START + day * DAY];
        state.append(&n_batch_at(&rows, &times)).await.unwrap();
    }
}

fn log_rows(state: &RawState) -> u64 {
    state.log().state().files().map(|file| file.stats.rows.unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_state_answers_is_the_same_after_its_log_is_compacted() {
    for order_by in [OrderBy::EventTime, OrderBy::Version] {
        for materialized in [false, true] {
            let home = Home::new();
            let clock = Arc::new(ManualClock::at(START));
            let store = home.open_at(&clock).await;
            let state = match order_by {
                OrderBy::EventTime => by_time(&store, "s").await,
                OrderBy::Version => by_version(&store, "s").await,
            };
            for day in 0..5 {
                append_day(&state, &clock, day, 8).await;
                if materialized && day == 2 {
                    state.materialize(false).await.unwrap();
                }
            }
            clock.set(START + 9 * DAY);
            let before = answers(&state, 40).await;
            let rows = log_rows(&state);
            let dry = state.compact(true).await.unwrap();
            assert_eq!(commit_of(&state).await, 40, "a dry run changes nothing");
            let done = state.compact(false).await.unwrap();
            assert_eq!((&done.days, done.rows), (&dry.days, dry.rows));
            assert_eq!(log_rows(&state), rows);
            let files = state.log().state().file_count();
            match materialized {
                // The rows of the last two days aren't folded yet, and stay where they are.
                true => assert_eq!(files, 4 + 2 * 16),
                false => assert_eq!(files, 6, "one file for each day"),
            }
            let newest = commit_of(&state).await;
            state.log().table().checkpoint().await.unwrap();
            let reopened = home.open_at(&clock).await.raw_state("s").await.unwrap();
            for handle in [&state, &reopened] {
                assert_eq!(answers(handle, 40).await, before);
                assert_eq!(handle.compact(false).await.unwrap().commits, 0);
                assert_eq!(commit_of(handle).await, newest);
            }
            assert_sound(&reopened).await;
        }
    }
}

/// The runs have rows of the same keys between each other's, so that no run comes before another one.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_merged_lies_in_its_order_and_is_merged_again() {
    for order_by in [OrderBy::EventTime, OrderBy::Version] {
        let home = Home::new();
        let clock = Arc::new(ManualClock::at(START));
        let state = create(&home.open_at(&clock).await, "s", &n_fields(), order_by).await;
        for round in 1..=3 {
            for run in 0..4_i64 {
                let versions = (0..5).map(|row| round * 100 + 4 * row + run);
                let rows: Vec<_> = versions
                    .flat_map(|n| [("a", n, Some(n)), ("b", n, (n % 5 > 0).then_some(n))])
                    .collect();
                let times: Vec<i64> = rows.iter().map(|row| START + row.1 / 2).collect();
                state.append(&n_batch_at(&rows, &times)).await.unwrap();
            }
            clock.set(START + 5 * DAY);
            let commit = commit_of(&state).await;
            let before = answers(&state, commit).await;
            let done = state.compact(false).await.unwrap();
            assert_eq!(done.rows, 40 * round as u64, "{done:?}");
            assert_eq!((log_rows(&state), state.log().state().file_count()), (done.rows, 1));
            assert_eq!(answers(&state, commit).await, before, "round {round}");
        }
        assert_sound(&state).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cmp_02_each_day_is_written_once_more_however_often_the_job_runs() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let (mut appended, mut rewritten, mut halfway) = (0, 0, 0);
    for day in 0..40 {
        append_day(&state, &clock, day, 6).await;
        appended += 18;
        state.materialize(false).await.unwrap();
        for _ in 0..3 {
            rewritten += state.compact(false).await.unwrap().rows;
        }
        if day == 19 {
            halfway = rewritten;
        }
    }
    // Rows arrive for a day and the day before it, so that a day may be written twice more at most.
    assert!(rewritten <= appended * 2, "{rewritten} rows rewritten for {appended} appended");
    assert!(rewritten <= halfway * 2 + 80, "{halfway} of them in the first half");
    let before = commit_of(&state).await;
    assert_eq!(state.compact(false).await.unwrap().commits, 0);
    assert_eq!(commit_of(&state).await, before, "nothing to gain, no commit");
    // A late row for one day: too little to write that day again. Many of them: that day only.
    let late = START + 3 * DAY + 5;
    state.append(&n_batch_at(&[("late", 1, Some(1))], &[late])).await.unwrap();
    state.materialize(false).await.unwrap();
    assert_eq!(state.compact(false).await.unwrap().commits, 0);
    for n in 2..12 {
        state.append(&n_batch_at(&[("late", n, Some(n))], &[late])).await.unwrap();
    }
    state.materialize(false).await.unwrap();
    assert_eq!(state.compact(false).await.unwrap().days, ["2024-01-18"]);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cmp_04_merges_after_checkpoints_neither_lose_nor_multiply_rows() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    let folder = home.table("s", "log");
    for round in 0..4_i64 {
        for part in 0..4_i64 {
            let rows: Vec<(String, i64)> =
                (0..100).map(|key| (format!("k{key:03}"), round * 4 + part)).collect();
            let rows: Vec<_> = rows.iter().map(|(k, n)| (k.as_str(), *n, Some(*n))).collect();
            state.append(&n_batch_at(&rows, &[START; 100])).await.unwrap();
        }
        let expected = (round as u64 + 1) * 400;
        clock.set(START + 5 * DAY);
        for step in ["checkpoint", "compact", "checkpoint", "optimize", "compact", "checkpoint"] {
            match step {
                "checkpoint" => {
                    state.log().refresh().await.unwrap();
                    state.log().table().checkpoint().await.unwrap();
                }
                "compact" => {
                    state.compact(false).await.unwrap();
                }
                _ => {
                    delta::optimize(&folder, 1 << 30).await;
                }
            }
            let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
            state.log().refresh().await.unwrap();
            for handle in [&state, &fresh] {
                assert_eq!(log_rows(handle), expected, "{step} of round {round}");
                assert_eq!(live(handle, Point::LATEST).await.len(), 100);
            }
        }
    }
    for commit in 1..=4 {
        assert_eq!(n_of(&state, Point::at_commit(commit), "k000").await, Some(commit - 1));
    }
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_engine_merged_is_stamped_so_that_its_commits_can_be_cleaned_up() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    for n in 1..=6 {
        state.append(&n_batch_at(&[("a", n, Some(n))], &[START])).await.unwrap();
    }
    assert!(delta::optimize(&home.table("s", "log"), 1 << 30).await);
    clock.set(START + 5 * DAY);
    let report = state.compact(false).await.unwrap();
    assert_eq!((report.files_removed, report.files_added), (1, 1), "{report:?}");
    assert_eq!(state.compact(false).await.unwrap().commits, 0);
    state.log().table().checkpoint().await.unwrap();
    // The other engine took its time from the machine.
    clock.set(SystemClock.now_micros() + DAY);
    let cleaned = state.log().table().clean_up(0, false).await.unwrap();
    assert_eq!(cleaned.oldest_version, 8, "{cleaned:?}");
    let reopened = home.open_at(&clock).await.raw_state("s").await.unwrap();
    for n in 1..=6 {
        assert_eq!(n_of(&reopened, Point::at_commit(n), "a").await, Some(n));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_killed_at_any_call_loses_no_row_and_is_made_good_by_the_next() {
    let built = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open(&built, &clock).await, "s").await;
    append_day(&state, &clock, 0, 4).await;
    append_day(&state, &clock, 1, 3).await;
    let (rows, answer) = (log_rows(&state), answers(&state, 7).await);
    clock.set(START + 9 * DAY);
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let faulty = built.forked();
        let state = open(&faulty, &clock).await.raw_state("s").await.unwrap();
        faulty.die_at(call, takes_place);
        let outcome = state.compact(false).await;
        let died = faulty.is_dead();
        assert_eq!(outcome.is_err(), died, "call {call}: {outcome:?}");
        let alive = faulty.reborn();
        let state = open(&alive, &clock).await.raw_state("s").await.unwrap();
        assert_eq!(log_rows(&state), rows, "call {call}");
        if call % 3 == 0 {
            assert_eq!(answers(&state, 7).await, answer, "call {call}");
        }
        state.compact(false).await.unwrap();
        assert_eq!(log_rows(&state), rows, "call {call}, after the next run");
        assert_eq!(state.log().state().file_count(), 3);
        if call % 3 == 0 {
            assert_eq!(answers(&state, 7).await, answer, "call {call}, after the next run");
        }
        if !died {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_compactors_and_appenders_at_once_lose_no_row_and_double_none() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    let mut handles = Vec::new();
    for _ in 0..3 {
        handles.push(home.open().await.raw_state("s").await.unwrap());
    }
    let mut rows = 0;
    for round in 0..6_i64 {
        let appends = (0..8_i64).map(|part| {
            let (handle, n) = (&handles[part as usize % 3], round * 8 + part);
            async move {
                let batch = n_batch_at(&[("a", n, Some(n)), ("b", n, Some(n))], &[START, START]);
                handle.append(&batch).await.unwrap();
            }
        });
        rows += 16;
        let compactions = handles.iter().map(|handle| handle.compact(false));
        let (_, reports) = futures::join!(join_all(appends), join_all(compactions));
        reports.into_iter().for_each(|report| drop(report.unwrap()));
        state.log().refresh().await.unwrap();
        assert_eq!(log_rows(&state), rows, "round {round}");
    }
    state.compact(false).await.unwrap();
    assert_eq!(log_rows(&state), rows);
    assert!(state.log().state().file_count() <= 3);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cmp_06_a_compaction_of_much_in_little_memory_writes_files_by_ranges_of_keys() {
    let home = Home::new();
    let mut small = StoreSettings { memory_budget_bytes: 64 * 1024, ..settings() };
    small.layout.compacted_file_rows = 1_000;
    let store = home.open_with(small).await;
    let state = store.create_state("s", &n_fields(), ordered_by(OrderBy::Version)).await.unwrap().0;
    for part in 0..40_i64 {
        let keys: Vec<String> =
            (0..250).map(|n| format!("k{:05}", (n * 37 + part) % 5_000)).collect();
        let rows: Vec<_> = keys.iter().map(|key| (key.as_str(), part, Some(part))).collect();
        state.append(&n_batch_at(&rows, &[START; 250])).await.unwrap();
    }
    let folder = home.table("s", "log");
    assert!(delta::optimize(&folder, 1 << 30).await, "one large file that isn't sorted");
    let report = state.compact(false).await.unwrap();
    assert_eq!((report.files_removed, report.files_added, report.rows), (1, 10, 10_000));
    let log = state.log().state();
    let mut ranges: Vec<_> =
        log.files().map(|file| (file.stats.min_key.clone(), file.stats.max_key.clone())).collect();
    ranges.sort();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
    assert_sound(&state).await;
}

/// The data files of the snapshot, as they lie in the store.
async fn snapshot_files(store: &FaultyStore) -> Vec<(String, u64)> {
    let folder = object_store::path::Path::from("s/snapshot");
    let mut files: Vec<_> = store
        .list(Some(&folder))
        .map_ok(|meta| (meta.location.to_string(), meta.size))
        .try_filter(|(path, _)| {
            std::future::ready(path.ends_with(".parquet") && !path.contains("_delta_log"))
        })
        .try_collect()
        .await
        .unwrap();
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn cmp_08_where_nothing_changes_no_file_is_written_and_no_commit_that_can_be_done_without() {
    // As base only, and as base and runs.
    for small_state_rows in [LayoutSettings::default().small_state_rows, 0] {
        let objects = FaultyStore::new();
        let layout = LayoutSettings { small_state_rows, file_rows: 500, ..Default::default() };
        let storage = Storage::from_object_store(objects.clone(), "faulty://");
        let builder = Store::builder("faulty://").storage(storage);
        let store = builder.settings(StoreSettings { layout, ..settings() }).open().await.unwrap();
        let state = by_version(&store, "s").await;
        let keys: Vec<String> = (0..2_000).map(|n| format!("k{n:05}")).collect();
        let rows: Vec<_> = keys.iter().map(|key| (key.as_str(), 5, Some(5))).collect();
        state.append(&n_batch(&rows)).await.unwrap();
        state.materialize(false).await.unwrap();
        state.append(&n_batch(&[("k00007", 6, Some(6)), ("gone", 6, None)])).await.unwrap();
        state.materialize(false).await.unwrap();
        let (files, before) = (snapshot_files(&objects).await, live(&state, Point::LATEST).await);
        let version = state.stats().await.unwrap().snapshot_version;
        objects.counts.take();
        for _ in 0..100 {
            let report = state.materialize(false).await.unwrap();
            assert_eq!(
                (report.change, report.snapshot_version),
                (SnapshotChange::UpToDate, version)
            );
        }
        let [_, _, data, puts, _] = objects.counts.take();
        assert_eq!((data, puts), (0, 0), "a hundred times nothing");
        // Only late rows; only repeated ones, one of them a DELETE; both, many times over.
        let late: Vec<_> = keys.iter().map(|key| (key.as_str(), 1, Some(1))).collect();
        let same = [("k00007", 6, Some(6)), ("gone", 6, None), ("k00009", 5, Some(5))];
        let both: Vec<_> = late.iter().chain(&same).chain(&late).copied().collect();
        for (count, rows) in (1..).zip([&late[..], &same, &both]) {
            state.append(&n_batch(rows)).await.unwrap();
            let report = state.materialize(false).await.unwrap();
            assert_eq!(report.change, SnapshotChange::ProgressOnly, "{report:?}");
            assert_eq!((report.rows_written, report.files_added, report.files_removed), (0, 0, 0));
            assert_eq!(report.snapshot_version, version + count, "one commit");
            assert_eq!(snapshot_files(&objects).await, files);
            assert_eq!(live(&state, Point::LATEST).await, before);
        }
        // An append of nothing is nothing.
        let commit = commit_of(&state).await;
        objects.counts.take();
        let nothing = state.append(&n_batch(&[])).await;
        assert_eq!(commit_of(&state).await, commit, "{nothing:?}");
        assert_eq!(objects.counts.take()[3], 0, "{nothing:?}");
        assert_sound(&state).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_feed_of_a_large_compacted_day_comes_in_the_order_of_commits_a_window_at_a_time() {
    const COMMITS: i64 = 30;
    const ROWS: i64 = 20_000;
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    let keys: Vec<String> = (0..ROWS).map(|n| format!("k{n:05}")).collect();
    for n in 1..=COMMITS {
        let rows: Vec<_> = keys.iter().map(|key| (key.as_str(), n, Some(n))).collect();
        state.append(&n_batch_at(&rows, &vec![START; keys.len()])).await.unwrap();
    }
    state.compact(false).await.unwrap();
    let basis = state.reader().basis().await.unwrap();
    let mut feed = state.reader().changes_rows(&basis, 2).await.unwrap();
    let (mut expected, mut batches) = (3 * ROWS, 0);
    while let Some(batch) = feed.try_next().await.unwrap() {
        batches += 1;
        assert!(batch.num_rows() <= 300_000, "{} rows at once", batch.num_rows());
        let commits = batch.column_by_name("commit").unwrap().as_primitive::<Int64Type>();
        for commit in commits.values() {
            assert_eq!(*commit, expected / ROWS);
            expected += 1;
        }
    }
    assert_eq!(expected, (COMMITS + 1) * ROWS);
    assert!(batches > 1, "{batches} batches");
}
