//! CMP-07 and what goes with it: a key that is erased is in no file any more and can't come back, and nothing else has changed.

mod archive;
mod damage;
mod races;

use std::collections::BTreeSet;
use std::sync::Arc;

use alluvium::{
    EpochOutcome, ErrorKind, KeyErased, MaintainStep, ManualClock, Point, RawState, SnapshotChange,
    Store, StoreSettings,
};
use alluvium_log::KeyFilter;
use arrow::array::{ArrayRef, RecordBatch, StringArray, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use futures::TryStreamExt;

use super::program::{fail, lines, succeed};
use crate::support::delta;
use crate::support::search::{files_of, holding, texts};
use crate::support::stores::{
    DAY, Home, SECOND, START, assert_sound, commit_of, create, settings, value_batch,
};

/// The key that goes: longer than what stands whole in statistics.
const LONG: &str = "a-marie-7391-";
const KEY: &str = "u7-marie-7391";
/// What its values say.
const VALUE: &str = "lives-at-elm-street-13";

fn fields() -> Fields {
    Fields::from(vec![Field::new("text", DataType::Utf8, true)])
}

async fn create_in(store: &Store, order_by: alluvium::OrderBy) -> RawState {
    create(store, "s", &fields(), order_by).await
}

/// Changes of keys at versions; no text is a DELETE.
fn batch(rows: &[(&str, i64, Option<String>)], time: i64) -> RecordBatch {
    let present: Vec<bool> = rows.iter().map(|row| row.2.is_some()).collect();
    let text: ArrayRef = Arc::new(rows.iter().map(|row| row.2.as_deref()).collect::<StringArray>());
    let value = StructArray::new(fields(), vec![text], Some(NullBuffer::from(present)));
    let times = vec![time; rows.len()];
    let (keys, versions) = (rows.iter().map(|row| row.0), rows.iter().map(|row| row.1));
    value_batch(keys, versions, &times, Arc::new(value))
}

fn long_key() -> String {
    LONG.repeat(40)
}

/// What a state answers of all other keys: changes, history, and the state at every commit, version and day.
async fn rest(state: &RawState, newest: i64, erased: &[String]) -> Vec<String> {
    let basis = state.reader().basis().await.unwrap();
    let reader = state.reader();
    let changes = reader.changes_rows(&basis, 0).await.unwrap();
    let history = reader.history_rows(&basis, KeyFilter::All, Point::LATEST).await.unwrap();
    let mut batches: Vec<RecordBatch> = changes.try_collect().await.unwrap();
    batches.extend(history.try_collect::<Vec<_>>().await.unwrap());
    for n in 0..=newest {
        for point in [Point::at_commit(n), Point::at_version(n), Point::at_time(START + n * DAY)] {
            let rows = state.scan(point, KeyFilter::All).await.unwrap();
            batches.extend(rows.try_collect::<Vec<_>>().await.unwrap());
        }
    }
    let all = batches.iter().flat_map(texts);
    all.filter(|row| !erased.iter().any(|key| row.contains(&format!("{key}|")))).collect()
}

async fn erase(state: &RawState, key: &str, now: bool) -> alluvium::EraseReceipt {
    state.erase(&[key.to_owned()], now).await.unwrap()
}

async fn found(home: &Home) -> BTreeSet<String> {
    holding(&home.files().await, &[KEY, VALUE, LONG])
}

/// Days of commits in which the keys are written, changed and deleted among others, with ties, late rows and repeated ones.
async fn append_days(state: &RawState, clock: &ManualClock, days: std::ops::Range<i64>) {
    let long = long_key();
    for day in days {
        let time = START + day * DAY;
        clock.set(time + 5 * SECOND);
        let others = |n: i64| format!("other {n}");
        for part in 0..3 {
            let n = day * 3 + part + 1;
            let old = format!("u{}", n % 5);
            let last = if part == 2 { None } else { Some(format!("{VALUE} again {n}")) };
            let rows = [
                (KEY, n, Some(format!("{VALUE} {n}"))),
                (KEY, n, last),
                (long.as_str(), n, Some(format!("{VALUE} long {n}"))),
                (old.as_str(), n, Some(others(n))),
                (old.as_str(), n, Some(others(-n))),
                ("t", 1, Some(others(n))),
            ];
            state.append(&batch(&rows, time + part)).await.unwrap();
        }
    }
}

/// A state with all that may hold a key: tables with checkpoints, compacted days, a base and a run, a savepoint, a released one,
/// an epoch that nobody will commit.
async fn fill(state: &RawState, clock: &ManualClock) {
    append_days(state, clock, 0..2).await;
    state.materialize(false).await.unwrap();
    state.create_savepoint("one", None).await.unwrap();
    state.create_savepoint("two", None).await.unwrap();
    state.release_savepoint("two").await.unwrap();
    append_days(state, clock, 2..4).await;
    state.materialize(false).await.unwrap();
    state.compact(false).await.unwrap();
    checkpoint(state).await;
    append_days(state, clock, 4..5).await;
    let mut epoch = state.epoch("app", 1).unwrap();
    epoch.stage(&batch(&[(KEY, 99, Some(VALUE.to_owned()))], START)).await.unwrap();
}

async fn checkpoint(state: &RawState) {
    state.log().table().checkpoint().await.unwrap();
    let snapshot = state.snapshot().refresh().await.unwrap();
    snapshot.table().unwrap().0.checkpoint().await.unwrap();
}

/// How many rows each table has at the version of each of its checkpoints, by another engine; of folders only.
async fn rows_at_checkpoints(home: &Home) -> BTreeSet<(&'static str, i64, String)> {
    let mut all = BTreeSet::new();
    if home.is_remote() {
        return all;
    }
    for name in ["log", "snapshot"] {
        let folder = home.table("s", name);
        for (path, _) in files_of(&folder.join("_delta_log")) {
            let Some(version) = path.strip_suffix(".checkpoint.parquet") else { continue };
            let version: i64 = version.parse().unwrap();
            let table = delta::open_at(&folder, version).await;
            let context = delta::session(&[("t", &table)]).await;
            let query = "SELECT count(*) FROM t WHERE state_key >= 'a' AND version > 0";
            let rows = delta::query(&context, query).await;
            all.insert((name, version, format!("{rows:?}")));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn cmp_07_a_purged_key_is_gone_and_its_neighbours_are_not_new_to_anybody() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let store = home.open_at(&clock).await;
    let state = create_in(&store, alluvium::OrderBy::Version).await;
    let names: Vec<String> =
        (1..=100).map(|n| if n == 7 { KEY.to_owned() } else { format!("u{n}") }).collect();
    let rows: Vec<_> = names
        .iter()
        .zip(1..)
        .map(|(key, n)| {
            (key.as_str(), n, Some(if n == 7 { VALUE.to_owned() } else { format!("other {n}") }))
        })
        .collect();
    let written = state.append(&batch(&rows, START)).await.unwrap().commit;
    state.materialize(false).await.unwrap();
    let erased = [KEY.to_owned()];
    let before = rest(&state, written, &erased).await;
    let receipt = erase(&state, KEY, false).await;
    assert_eq!((receipt.rows_removed, receipt.files.len()), (1, 2), "{receipt:?}");
    let again = state.materialize(false).await.unwrap();
    assert_eq!((again.change, again.rows_folded), (SnapshotChange::UpToDate, 0));
    assert_eq!(rest(&state, written, &erased).await, before);
    let basis = state.reader().basis().await.unwrap();
    let news = state.reader().changes_rows(&basis, written).await.unwrap();
    assert_eq!(news.try_collect::<Vec<_>>().await.unwrap(), [], "nobody is new");
    assert!(state.get(Point::LATEST, KEY).await.unwrap().found().is_none());
    assert!(state.get(Point::at_commit(written), KEY).await.unwrap().found().is_none());
    assert_sound(&state).await;
    // What still holds it is what the receipt says, and no more.
    let pending: BTreeSet<String> = receipt.pending.iter().map(|file| file.path.clone()).collect();
    assert!(!pending.is_empty());
    assert_eq!(found(&home).await, pending);
    clock.set(receipt.nothing_left_after_ms.unwrap() * 1_000 + SECOND);
    state.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
    assert_eq!(found(&home).await, BTreeSet::new());
    let commit = commit_of(&state).await;
    let receipt = erase(&state, KEY, false).await;
    assert_eq!((receipt.nothing_left_after_ms, receipt.marker_commit), (None, None), "{receipt:?}");
    assert_eq!(commit_of(&state).await, commit, "a second erase finds nothing to do");
    assert_eq!(rest(&state, written, &erased).await, before);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_may_hold_a_key_is_free_of_it_and_all_else_is_as_it_was() {
    for (order_by, compacted) in
        [(alluvium::OrderBy::Version, true), (alluvium::OrderBy::EventTime, false)]
    {
        let home = Home::new();
        let clock = Arc::new(ManualClock::at(START));
        let tiny = StoreSettings { layout: tiny_layout(), ..settings() };
        let builder = Store::builder(&home.uri()).settings(tiny).clock(clock.clone());
        let state = create_in(&builder.open().await.unwrap(), order_by).await;
        fill(&state, &clock).await;
        if compacted {
            clock.set(START + 6 * DAY);
            state
                .maintain(&[MaintainStep::Materialize, MaintainStep::Compact], false)
                .await
                .unwrap();
        }
        let erased = [KEY.to_owned(), long_key()];
        let before = rest(&state, 16, &erased).await;
        let at_checkpoints = rows_at_checkpoints(&home).await;
        assert!(found(&home).await.len() > 10);
        assert!(at_checkpoints.len() == 2 || home.is_remote());
        let receipt = state.erase(&erased, false).await.unwrap();
        assert_eq!(receipt.markers.len(), 2);
        assert_eq!(receipt.rows_removed, 45);
        assert_eq!(receipt.savepoints, ["one"]);
        assert!(!receipt.redacted.is_empty() && receipt.unreadable.is_empty(), "{receipt:?}");
        assert!(receipt.removed.iter().any(|path| path.starts_with("s/log/dt=2024-01-15/")));
        let text = serde_json::to_string(&receipt).unwrap();
        assert!(!text.contains(KEY) && !text.contains(VALUE), "a receipt may be kept");
        let pending: BTreeSet<String> =
            receipt.pending.iter().map(|file| file.path.clone()).collect();
        assert_eq!(found(&home).await, pending, "{receipt:#?}");
        // Of a checkpoint that was written over, another engine makes the same version, while its files are there.
        assert!(rows_at_checkpoints(&home).await.is_superset(&at_checkpoints));
        let reopened = home.open_at(&clock).await.raw_state("s").await.unwrap();
        for handle in [&state, &reopened] {
            assert_eq!(rest(handle, 16, &erased).await, before);
            for point in [Point::LATEST, Point::at_commit(6), Point::at_version(9)] {
                let lookup = handle.get(point, KEY).await.unwrap();
                assert!(matches!(lookup, alluvium::Lookup::Absent), "{lookup:?}");
            }
        }
        let saved = state.savepoints().await.unwrap();
        assert!(saved[0].erased_ms.is_some());
        append_others(&reopened).await;
        assert_sound(&reopened).await;
        clock.set(receipt.nothing_left_after_ms.unwrap() * 1_000 + SECOND);
        reopened.maintain(&MaintainStep::ALL, false).await.unwrap();
        assert_eq!(found(&home).await, BTreeSet::new());
        assert_sound(&reopened).await;
        let again = reopened.erase(&erased, false).await.unwrap();
        assert_eq!((again.pending.len(), again.files.len()), (0, 0), "{again:?}");
    }
}

fn tiny_layout() -> alluvium::LayoutSettings {
    alluvium::LayoutSettings {
        file_rows: 4,
        small_state_rows: 0,
        compacted_file_rows: 7,
        ..alluvium::LayoutSettings::default()
    }
}

async fn append_others(state: &RawState) {
    state.append(&batch(&[("u1", 50, Some("new".to_owned()))], START + 4 * DAY)).await.unwrap();
    state.materialize(false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn with_now_nothing_is_left_at_once_and_what_had_it_is_refused() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = create_in(&home.open_at(&clock).await, alluvium::OrderBy::Version).await;
    fill(&state, &clock).await;
    let old = state.reader().basis().await.unwrap();
    let receipt = state.erase(&[KEY.to_owned(), long_key()], true).await.unwrap();
    assert_eq!((receipt.pending.len(), receipt.nothing_left_after_ms), (0, None));
    assert!(receipt.removed.len() > 10, "{receipt:?}");
    assert_eq!(found(&home).await, BTreeSet::new());
    let table = state.log().table();
    let error = table.state_at(5).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
    let reader = state.reader();
    let error = reader.get(&old, Point::at_commit(2), "u1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("is gone"), "{error}");
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_key_can_not_come_back_by_any_way_until_it_is_forgotten() {
    let home = Home::new();
    let store = home.open().await;
    let state = create_in(&store, alluvium::OrderBy::Version).await;
    let other = home.open().await.raw_state("s").await.unwrap();
    let rows = batch(&[("u1", 1, Some("x".to_owned())), (KEY, 2, Some(VALUE.to_owned()))], START);
    let mut staged = other.epoch("app", 3).unwrap();
    staged.stage(&rows).await.unwrap();
    let receipt = erase(&state, KEY, false).await;
    assert_eq!(receipt.rows_removed, 0, "a key that was never there is marked all the same");
    assert!(receipt.marker_commit.is_some());
    let before = home.files().await.len();
    for handle in [&state, &other] {
        let error = handle.append(&rows).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(KeyErased::is_cause_of(&error) && error.to_string().contains("row 1"), "{error}");
        let mut epoch = handle.epoch("app", 4).unwrap();
        let error = epoch.stage(&rows).await.unwrap_err();
        assert!(KeyErased::is_cause_of(&error), "{error}");
        handle.log().refresh().await.unwrap();
    }
    let error = staged.commit().await.unwrap_err();
    assert!(KeyErased::is_cause_of(&error), "{error}");
    assert!(home.files().await.len() <= before, "what was refused leaves nothing");
    assert_eq!(found(&home).await, BTreeSet::new());
    let delete = batch(&[(KEY, 9, None)], START);
    assert!(KeyErased::is_cause_of(&state.append(&delete).await.unwrap_err()));
    let near = batch(&[("u7-marie-739", 1, Some("y".to_owned()))], START);
    state.append(&near).await.unwrap();
    assert_eq!(state.forget_erased(&[KEY.to_owned()]).await.unwrap(), 1);
    assert_eq!(state.forget_erased(&[KEY.to_owned()]).await.unwrap(), 0);
    other.log().refresh().await.unwrap();
    other.append(&rows).await.unwrap();
    let mut epoch = state.epoch("app", 3).unwrap();
    epoch.stage(&rows).await.unwrap();
    assert!(matches!(epoch.commit().await.unwrap(), EpochOutcome::Committed(_)));
    assert!(state.get(Point::LATEST, KEY).await.unwrap().found().is_some());
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_process_has_in_memory_of_a_key_is_dropped() {
    #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Text {
        text: String,
    }
    let home = Home::new();
    let (ours, theirs) = (home.open().await, home.open().await);
    let state = ours.state::<Text>("s").await.unwrap();
    let other = theirs.state::<Text>("s").await.unwrap();
    for materialized in [true, false] {
        for key in [KEY, "u1"] {
            state.put(key, &Text { text: VALUE.to_owned() }).await.unwrap();
        }
        if materialized {
            ours.raw_state("s").await.unwrap().materialize(false).await.unwrap();
        }
        for _ in 0..2 {
            assert!(other.get(KEY).await.unwrap().is_some());
        }
        let raw = ours.raw_state("s").await.unwrap();
        erase(&raw, KEY, false).await;
        for handle in [&state, &other] {
            assert_eq!(handle.get(KEY).await.unwrap(), None);
            assert!(handle.get("u1").await.unwrap().is_some());
        }
        let error = other.put(KEY, &Text { text: VALUE.to_owned() }).await.unwrap_err();
        assert!(KeyErased::is_cause_of(&error), "{error}");
        raw.forget_erased(&[KEY.to_owned()]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_whose_log_expires_is_erased_from_its_snapshots_too() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = create_in(&home.open_at(&clock).await, alluvium::OrderBy::Version).await;
    let spans = [
        ("commit_retention", "3d"),
        ("file_retention", "1d"),
        ("as_of_window", "2d"),
        ("log_retention", "5d"),
        ("snapshot_grid", "1d:60d"),
    ];
    let spans = spans.map(|(name, value)| (name.to_owned(), value.to_owned()));
    state.set_maintenance(&spans).await.unwrap();
    for day in 0..20 {
        append_days(&state, &clock, day..day + 1).await;
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
        if day == 4 {
            state.create_savepoint("kept", None).await.unwrap();
        }
    }
    let grid = state.grid_snapshots().await.unwrap();
    assert!(grid.len() > 10);
    let points: Vec<Point> = grid.iter().map(|kept| Point::at_commit(kept.log_commit)).collect();
    let erased = [KEY.to_owned(), long_key()];
    let lives = |state: RawState| {
        let (points, erased) = (points.clone(), erased.clone());
        async move {
            let mut all = Vec::new();
            for point in points {
                let rows = state.scan(point, KeyFilter::All).await.unwrap();
                let rows: Vec<RecordBatch> = rows.try_collect().await.unwrap();
                let rows = rows.iter().flat_map(texts);
                all.extend(rows.filter(|row| !erased.iter().any(|key| row.starts_with(&**key))));
            }
            all
        }
    };
    let before = lives(state.clone()).await;
    let receipt = state.erase(&erased, false).await.unwrap();
    assert!(receipt.savepoints.len() > 10, "{:?}", receipt.savepoints);
    let reopened = home.open_at(&clock).await.raw_state("s").await.unwrap();
    assert_eq!(lives(reopened.clone()).await, before);
    for point in &points {
        assert!(reopened.get(*point, KEY).await.unwrap().found().is_none());
    }
    assert_sound(&reopened).await;
    let pending: BTreeSet<String> = receipt.pending.iter().map(|file| file.path.clone()).collect();
    assert_eq!(found(&home).await, pending);
    clock.set(receipt.nothing_left_after_ms.unwrap() * 1_000 + SECOND);
    reopened.maintain(&MaintainStep::ALL, false).await.unwrap();
    assert_eq!(found(&home).await, BTreeSet::new());
    assert_sound(&reopened).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_another_engine_are_erased_from_and_keep_their_commits() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = create_in(&home.open_at(&clock).await, alluvium::OrderBy::EventTime).await;
    append_days(&state, &clock, 0..2).await;
    let folder = home.table("s", "log");
    assert!(delta::optimize(&folder, 1 << 20).await);
    let erased = [KEY.to_owned(), long_key()];
    let before = rest(&state, 7, &erased).await;
    let receipt = state.erase(&erased, false).await.unwrap();
    assert_eq!(receipt.rows_removed, 18);
    assert_eq!(rest(&state, 7, &erased).await, before);
    let pending: BTreeSet<String> = receipt.pending.iter().map(|file| file.path.clone()).collect();
    assert_eq!(found(&home).await, pending, "{receipt:#?}");
    assert_sound(&state).await;
    let reopened = home.open_at(&clock).await.raw_state("s").await.unwrap();
    assert_eq!(rest(&reopened, 7, &erased).await, before);
}

#[test]
fn the_program_erases_with_a_receipt_and_sets_rows_of_erased_keys_aside() {
    let home = Home::new();
    let line = |key: &str| format!("{{\"key\":\"{key}\",\"value\":{{\"text\":\"{VALUE}\"}}}}\n");
    succeed(&home, &["append", "s"], &(line(KEY) + &line("u1")));
    let file = home.folder.path().join("receipt.json");
    let file = file.to_str().unwrap();
    let receipt = succeed(&home, &["erase", "s", KEY, "nobody", "--now", "--receipt", file], "");
    let receipt = &lines(&receipt)[0];
    assert_eq!((&receipt["rows_removed"], &receipt["state"]), (&1.into(), &"s".into()));
    assert_eq!(receipt["markers"].as_array().unwrap().len(), 2);
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(kept, *receipt);
    assert_eq!(holding(&files_of(home.folder.path()), &[KEY]), BTreeSet::new());
    fail(&home, &["append", "s"], &line(KEY), 2, &["line 1", "erased", "--forget"]);
    let rejects = home.folder.path().join("rejects.jsonl");
    let arguments = ["append", "s", "--rejects", rejects.to_str().unwrap()];
    succeed(&home, &arguments, &(line("u2") + &line(KEY) + &line("u3")));
    assert_eq!(lines(&succeed(&home, &["scan", "s"], "")).len(), 3);
    assert_eq!(lines(&std::fs::read_to_string(&rejects).unwrap()).len(), 1);
    fail(&home, &["erase", "none", "k"], "", 3, &["none"]);
    succeed(&home, &["erase", "s", KEY, "--forget"], "");
    succeed(&home, &["append", "s"], &line(KEY));
    assert_eq!(lines(&succeed(&home, &["scan", "s"], "")).len(), 4);
}
