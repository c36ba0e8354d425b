//! ORD-*: the winner is the greatest row in the state's order, and nothing else matters.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use alluvium::{ErrorKind, LayoutSettings, Lookup, OrderBy, Point, SnapshotChange, StoreSettings};
use arrow::array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, StructArray, UInt64Array,
};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::support::delta;
use crate::support::stores::{
    Change, Home, START, assert_sound, by_time, by_version, commit_of, live, lookup, n_batch,
    n_batch_at, n_of, refused, settings,
};

#[tokio::test(flavor = "multi_thread")]
async fn ord_01_a_late_older_update_does_not_overwrite_newer_state() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    state.append(&n_batch(&[("a", 10, Some(2))])).await.unwrap();
    state.materialize(false).await.unwrap();
    state.append(&n_batch(&[("a", 9, Some(1))])).await.unwrap();
    let report = state.materialize(false).await.unwrap();
    assert_eq!((report.change, report.stale_keys), (SnapshotChange::ProgressOnly, Some(1)));
    assert_eq!(n_of(&state, Point::LATEST, "a").await, Some(2));
    assert_eq!(n_of(&state, Point::at_version(9), "a").await, Some(1));
    assert_eq!(state.stats().await.unwrap().log_rows, 2);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ord_02_the_order_of_arrival_of_upserts_and_deletes_does_not_matter() {
    let rows: [Change<'_>; 3] = [("a", 1, Some(1)), ("a", 3, None), ("a", 2, Some(2))];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for one_batch in [true, false] {
            let home = Home::new();
            let state = by_version(&home.open().await, "s").await;
            let ordered = order.map(|index| rows[index]);
            for part in ordered.chunks(if one_batch { 3 } else { 1 }) {
                state.append(&n_batch(part)).await.unwrap();
                state.materialize(false).await.unwrap();
            }
            assert!(matches!(lookup(&state, "a").await, Lookup::Deleted(_)), "{order:?}");
            assert_eq!(live(&state, Point::LATEST).await, []);
            assert_eq!(n_of(&state, Point::at_version(2), "a").await, Some(2));
            assert_eq!(n_of(&state, Point::at_version(1), "a").await, Some(1));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ord_03_rows_of_one_version_have_the_documented_winner_in_every_run() {
    let rows: [Change<'_>; 4] =
        [("a", 5, Some(63)), ("a", 5, Some(65)), ("b", 7, Some(1)), ("b", 7, None)];
    let mut rng = StdRng::seed_from_u64(3);
    for run in 0..20 {
        let home = Home::new();
        let state = by_version(&home.open().await, "s").await;
        let (mut shuffled, mut conflicting_ties) = (rows, 0);
        shuffled.shuffle(&mut rng);
        let cut = if run % 2 == 0 { 4 } else { rng.random_range(1..4) };
        for part in [&shuffled[..cut], &shuffled[cut..]] {
            state.append(&n_batch(part)).await.unwrap();
            if run % 3 == 0 {
                conflicting_ties += state.materialize(false).await.unwrap().conflicting_ties;
            }
        }
        // Of rows that tie in everything the one given later wins; a DELETE beats an UPSERT wherever it stands.
        let last_of_a = shuffled.iter().rfind(|row| row.0 == "a").unwrap().2;
        for _ in 0..2 {
            assert_eq!(
                n_of(&state, Point::LATEST, "a").await,
                last_of_a,
                "{shuffled:?} cut at {cut}"
            );
            assert!(matches!(lookup(&state, "b").await, Lookup::Deleted(_)));
            conflicting_ties += state.materialize(false).await.unwrap().conflicting_ties;
        }
        assert!(conflicting_ties >= 2, "{shuffled:?} cut at {cut}: {conflicting_ties} were told");
        assert_eq!(state.materialize(true).await.unwrap().conflicting_ties, 2);
        assert_sound(&state).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ord_05_duplicate_keys_within_one_batch_neither_multiply_nor_fail() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    state.append(&n_batch(&[("a", 0, Some(0)), ("b", 0, Some(0))])).await.unwrap();
    state.materialize(false).await.unwrap();
    let rows = [
        ("a", 1, Some(1)),
        ("a", 2, Some(2)),
        ("a", 3, Some(3)),
        ("b", 1, Some(1)),
        ("b", 1, Some(1)),
        ("c", 1, Some(1)),
        ("c", 2, None),
    ];
    state.append(&n_batch(&rows)).await.unwrap();
    let first = state.materialize(false).await.unwrap();
    assert_eq!(
        live(&state, Point::LATEST).await,
        [("a".into(), 3, Some(3)), ("b".into(), 1, Some(1))]
    );
    // The copy of a row ties with it, but not in conflict.
    assert_eq!(first.conflicting_ties, 0);
    let second = state.materialize(false).await.unwrap();
    assert_eq!(
        (second.change, second.snapshot_version),
        (SnapshotChange::UpToDate, first.snapshot_version)
    );
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ord_07_fifty_thousand_random_rows_fold_incrementally_as_they_do_anew() {
    let home = Home::new();
    let layout = LayoutSettings {
        small_state_rows: 300,
        file_rows: 250,
        lookup_rows: 200,
        ..Default::default()
    };
    let store =
        home.open_with(StoreSettings { layout, memory_budget_bytes: 1 << 20, ..settings() }).await;
    let state = by_version(&store, "s").await;
    let mut rng = StdRng::seed_from_u64(7);
    let mut model: std::collections::BTreeMap<String, (i64, bool, u64, Option<i64>)> =
        Default::default();
    let (mut given, mut total, mut step) = (Vec::<(String, i64, Option<i64>)>::new(), 0_u64, 0);
    while total < 50_000 {
        let mut rows = Vec::new();
        for _ in 0..rng.random_range(1..=500) {
            let row = match rng.random_bool(0.1) && !given.is_empty() {
                true => given[rng.random_range(0..given.len())].clone(),
                false => {
                    let n = (!rng.random_bool(0.15)).then(|| rng.random_range(0..1_000));
                    (
                        format!("k{:04}", rng.random_range(0..2_000)),
                        rng.random_range(0..1_000_000),
                        n,
                    )
                }
            };
            given.push(row.clone());
            rows.push(row);
        }
        for (key, version, n) in &rows {
            total += 1;
            let rank = (*version, n.is_none(), total, *n);
            let known = model.entry(key.clone()).or_insert(rank);
            *known = (*known).max(rank);
        }
        let changes: Vec<Change<'_>> =
            rows.iter().map(|(key, version, n)| (key.as_str(), *version, *n)).collect();
        state.append(&n_batch(&changes)).await.unwrap();
        if rng.random_bool(0.4) {
            state.materialize(false).await.unwrap();
        }
        if rng.random_bool(0.05) {
            delta::optimize(&home.table("s", "log"), 1 << 20).await;
        }
        step += 1;
        if step % 10 == 0 {
            let expected: Vec<_> = model
                .iter()
                .filter(|(_, rank)| !rank.1)
                .map(|(key, rank)| (key.clone(), rank.0, rank.3))
                .collect();
            assert_eq!(live(&state, Point::LATEST).await, expected, "step {step}");
            assert!(state.verify().await.unwrap().is_sound());
        }
    }
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ord_10_a_null_key_is_refused_with_its_row_and_nothing_is_written() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    for (row, keys) in [
        (0, vec![None]),
        (5, (0..11).map(|n| (n != 5).then(|| format!("k{n}"))).collect::<Vec<_>>()),
    ] {
        let n: ArrayRef = Arc::new(Int64Array::from(vec![1; keys.len()]));
        let value = StructArray::try_from(vec![("n", n)]).unwrap();
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("state_key", Arc::new(StringArray::from(keys.clone())) as ArrayRef, true),
            ("version", Arc::new(Int64Array::from(vec![1; keys.len()])), false),
            ("state_value", Arc::new(value), false),
        ])
        .unwrap();
        refused(
            &state,
            state.append(&batch),
            ErrorKind::InvalidInput,
            &["state_key", &format!("row {row}")],
        )
        .await;
        for _ in 0..3 {
            assert_eq!(state.materialize(false).await.unwrap().change, SnapshotChange::UpToDate);
        }
    }
    assert_eq!(live(&state, Point::LATEST).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn ord_13_merging_one_changed_and_one_new_key_leaves_all_other_rows_as_they_are() {
    let home = Home::new();
    let layout = LayoutSettings {
        small_state_rows: 0,
        file_rows: 20_000,
        lookup_rows: 16_384,
        ..Default::default()
    };
    let store = home.open_with(StoreSettings { layout, ..settings() }).await;
    let state = by_version(&store, "s").await;
    let keys: Vec<String> = (0..100_000).map(|n| format!("k{n:05}")).collect();
    let rows: Vec<Change<'_>> = keys.iter().map(|key| (key.as_str(), 1, Some(1))).collect();
    state.append(&n_batch(&rows)).await.unwrap();
    state.materialize(false).await.unwrap();
    let before = live(&state, Point::LATEST).await;
    assert!(state.stats().await.unwrap().base_files >= 3);
    // Two changes stay a run; so many more that the runs are merged into the ranges which they touch.
    for round in 0..3_i64 {
        let fresh: Vec<String> =
            (0..=round * 12_000).map(|n| format!("new{round}/{n:05}")).collect();
        let mut rows: Vec<Change<'_>> = vec![("k50000", 2 + round, Some(2 + round))];
        rows.extend(fresh.iter().map(|key| (key.as_str(), 2, Some(9))));
        state.append(&n_batch(&rows)).await.unwrap();
        state.materialize(false).await.unwrap();
        let after = live(&state, Point::LATEST).await;
        let kept: Vec<_> =
            after.iter().filter(|row| row.0.starts_with('k') && row.0 != "k50000").collect();
        let untouched: Vec<_> = before.iter().filter(|row| row.0 != "k50000").collect();
        assert_eq!(kept, untouched);
        assert_eq!(n_of(&state, Point::LATEST, "k50000").await, Some(2 + round));
    }
    assert_sound(&state).await;
}

/// Adds the snapshot's files anew as another engine may: without statistics and tags.
fn strip_statistics(folder: &Path) {
    let log = folder.join("_delta_log");
    let (mut live, mut last) = (BTreeMap::new(), 0);
    let mut commits: Vec<_> = std::fs::read_dir(&log).unwrap().map(|e| e.unwrap().path()).collect();
    commits.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    commits.sort();
    for path in &commits {
        last = path.file_stem().unwrap().to_str().unwrap().parse::<i64>().unwrap();
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let action: serde_json::Value = serde_json::from_str(line).unwrap();
            if let Some(add) = action.get("add") {
                live.insert(add["path"].as_str().unwrap().to_owned(), add.clone());
            } else if let Some(remove) = action.get("remove") {
                live.remove(remove["path"].as_str().unwrap());
            }
        }
    }
    let lines: Vec<String> = live
        .into_values()
        .map(|mut add| {
            let fields = add.as_object_mut().unwrap();
            fields.retain(|name, _| name != "stats" && name != "tags");
            serde_json::json!({ "add": add }).to_string()
        })
        .collect();
    std::fs::write(log.join(format!("{:020}.json", last + 1)), lines.join("\n")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ord_13_a_snapshot_without_statistics_loses_no_row_and_is_made_anew() {
    let home = Home::new();
    let layout = LayoutSettings {
        small_state_rows: 0,
        file_rows: 2_000,
        lookup_rows: 1_000,
        ..Default::default()
    };
    let store = home.open_with(StoreSettings { layout, ..settings() }).await;
    let state = by_version(&store, "s").await;
    let keys: Vec<String> = (0..10_000).map(|n| format!("k{n:05}")).collect();
    let rows: Vec<Change<'_>> = keys.iter().map(|key| (key.as_str(), 1, Some(1))).collect();
    state.append(&n_batch(&rows)).await.unwrap();
    state.materialize(false).await.unwrap();
    let before = live(&state, Point::LATEST).await;
    strip_statistics(&Path::new(&home.uri()).join("s/snapshot"));
    let state =
        home.open_with(StoreSettings { layout, ..settings() }).await.raw_state("s").await.unwrap();
    assert_eq!(live(&state, Point::LATEST).await, before);
    assert_eq!(n_of(&state, Point::LATEST, "k00000").await, Some(1));
    assert_eq!(n_of(&state, Point::LATEST, "k09999").await, Some(1));
    state.append(&n_batch(&[("k05000", 2, Some(2)), ("new", 2, Some(9))])).await.unwrap();
    let report = state.materialize(false).await.unwrap();
    assert_eq!((report.change, report.rows_written), (SnapshotChange::Rebuilt, 10_001));
    let after = live(&state, Point::LATEST).await;
    assert_eq!(after.len(), 10_001);
    let untouched = |rows: &[(String, i64, Option<i64>)]| -> Vec<(String, i64, Option<i64>)> {
        rows.iter().filter(|row| row.0 != "k05000" && row.0 != "new").cloned().collect()
    };
    assert_eq!(untouched(&after), untouched(&before));
    assert_sound(&state).await;
}

/// A row with a version of some type and `n = 1`.
fn with_version(version: ArrayRef) -> RecordBatch {
    let value = StructArray::try_from(vec![("n", Arc::new(Int64Array::from(vec![1])) as ArrayRef)])
        .unwrap();
    RecordBatch::try_from_iter_with_nullable([
        ("state_key", Arc::new(StringArray::from(vec!["the key"])) as ArrayRef, false),
        ("version", version, true),
        ("state_value", Arc::new(value), false),
    ])
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn ord_14_extreme_versions_order_rightly_and_what_is_no_version_is_refused() {
    let home = Home::new();
    let store = home.open().await;
    let state = by_version(&store, "s").await;
    let legal = [i64::MIN, -1, 0, i64::MAX];
    for (n, version) in [2, 0, 3, 1].map(|index| (index as i64, legal[index])) {
        state.append(&n_batch_at(&[("a", version, Some(n))], &[START])).await.unwrap();
        state.materialize(false).await.unwrap();
    }
    assert_eq!(n_of(&state, Point::LATEST, "a").await, Some(3));
    for (n, version) in legal.into_iter().enumerate() {
        assert_eq!(n_of(&state, Point::at_version(version), "a").await, Some(n as i64));
    }
    assert_eq!(n_of(&state, Point::at_version(-2), "a").await, Some(0));
    let too_large: ArrayRef = Arc::new(UInt64Array::from(vec![1_u64 << 63]));
    let fraction: ArrayRef = Arc::new(Float64Array::from(vec![1.5]));
    let text: ArrayRef = Arc::new(StringArray::from(vec!["7"]));
    for wrong in [too_large, fraction, text] {
        refused(
            &state,
            state.append(&with_version(wrong)),
            ErrorKind::InvalidInput,
            &["version", "row 0"],
        )
        .await;
    }
    // No version at all is none given: the writer makes one.
    let made = state.append(&with_version(Arc::new(Int64Array::new_null(1)))).await.unwrap();
    assert!(made.first_version > 1 << 60);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ord_14_a_version_without_an_event_time_is_refused_where_event_times_decide() {
    let home = Home::new();
    let state = by_time(&home.open().await, "s").await;
    let one: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    refused(
        &state,
        state.append(&with_version(one)),
        ErrorKind::InvalidInput,
        &["the key", "event_time", "row 0"],
    )
    .await;
    let later = alluvium::Clock::now_micros(&alluvium::SystemClock) + 2 * 86_400_000_000;
    let future = n_batch_at(&[("far", 1, Some(1))], &[later]);
    refused(&state, state.append(&future), ErrorKind::InvalidInput, &["far", "max_future"]).await;
    assert_eq!(commit_of(&state).await, 0);
    assert_eq!(state.definition().order_by, OrderBy::EventTime);
}
