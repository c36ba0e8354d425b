//! Golden stores: small stores of the format of their day, kept in `tests/fixtures`. Each still opens, answers every point as it did when
//! it was made, and is gone on with. A change of the format that breaks one of them is seen here.
//!
//! `ALLUVIUM_GOLDEN=golden-2 cargo test --test it golden::make -- --ignored` makes another one, of the format of today.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alluvium::{
    ErrorKind, KeyErased, MaintainStep, ManualClock, OrderBy, Point, RawState, Result, Store,
};
use alluvium_log::{Archived, KeyFilter};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};

use crate::support::search::texts;
use crate::support::stores::{DAY, START, commit_of, create, settings, sql, value_batch};

const STATE: &str = "things";
const ERASED: &str = "gone-for-good";
const DAYS: i64 = 4;

/// What a golden store answers; lies beside it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Expected {
    /// The time at which it was made, in microseconds.
    clock_micros: i64,
    newest_commit: i64,
    saved_commit: i64,
    archived_rows: i64,
    /// By question.
    answers: BTreeMap<String, Vec<String>>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn fields() -> Fields {
    let inner = Fields::from(vec![Field::new("a", DataType::Int64, true)]);
    Fields::from(vec![
        Field::new("n", DataType::Int64, true),
        Field::new("text", DataType::Utf8, true),
        Field::new("inner", DataType::Struct(inner), true),
    ])
}

/// Changes of keys at versions; no number is a DELETE.
fn batch(rows: &[(&str, i64, Option<i64>)], time: i64) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.2)));
    let words = rows.iter().map(|row| row.2.filter(|n| n % 3 != 0).map(|n| format!("word {n}")));
    let words: ArrayRef = Arc::new(StringArray::from_iter(words));
    let inner = Fields::from(vec![Field::new("a", DataType::Int64, true)]);
    let inner = StructArray::new(inner, vec![numbers.clone()], None);
    let present: Vec<bool> = rows.iter().map(|row| row.2.is_some()).collect();
    let columns = vec![numbers, words, Arc::new(inner) as ArrayRef];
    let value = StructArray::new(fields(), columns, Some(NullBuffer::from(present)));
    let times: Vec<i64> = (0..rows.len() as i64).map(|row| time + row).collect();
    let (keys, versions) = (rows.iter().map(|row| row.0), rows.iter().map(|row| row.1));
    value_batch(keys, versions, &times, Arc::new(value))
}

async fn open(folder: &Path, clock: &Arc<ManualClock>) -> Store {
    let builder = Store::builder(folder.to_str().unwrap()).settings(settings());
    builder.clock(clock.clone()).open().await.unwrap()
}

/// One of everything that a store may have: days in the log, merged and not, others in the archive, a snapshot of base and runs,
/// checkpoints with their checksums, a savepoint, an epoch, an erased key.
async fn fill(folder: &Path, clock: &Arc<ManualClock>) {
    let store = open(folder, clock).await;
    let state = create(&store, STATE, &fields(), OrderBy::EventTime).await;
    let spans = [
        ("commit_retention", "30d"),
        ("file_retention", "1d"),
        ("as_of_window", "1d"),
        ("hot_days", "1d"),
    ];
    let spans = spans.map(|(name, value)| (name.to_owned(), value.to_owned()));
    state.set_maintenance(&spans).await.unwrap();
    for day in 0..DAYS {
        let time = START + day * DAY;
        clock.set(time + DAY / 2);
        let own = format!("d{day}");
        let rows = [
            ("daily", day, Some(day)),
            (own.as_str(), day, (day != 3).then_some(10 * day)),
            ("d0", day, Some(-day)),
            (ERASED, day, Some(day)),
        ];
        state.append(&batch(&rows, time)).await.unwrap();
        // Late, of the day before.
        let mut epoch = state.epoch("feed", day).unwrap();
        epoch.stage(&batch(&[("late", day, Some(100 + day))], time - DAY)).await.unwrap();
        epoch.commit().await.unwrap();
        if day == 1 {
            state.create_savepoint("kept", Some("a note")).await.unwrap();
        }
        if day < DAYS - 1 {
            state.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
    }
    state.erase(&[ERASED.to_owned()], true).await.unwrap();
    state.log().table().checkpoint().await.unwrap();
    let snapshot = state.snapshot().refresh().await.unwrap();
    snapshot.table().unwrap().0.checkpoint().await.unwrap();
    state.append(&batch(&[("tail", 1, Some(7))], START + DAYS * DAY)).await.unwrap();
    store.close().await;
}

/// Every question is bound to a commit, so that what comes later changes no answer.
async fn answers(
    store: &Store,
    state: &RawState,
    newest: i64,
    saved: i64,
) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::new();
    let reader = state.reader();
    let basis = reader.basis().await.unwrap();
    let until = Point::at_commit(newest);
    let mut points: Vec<Point> = (0..=newest).map(Point::at_commit).collect();
    points.extend((0..DAYS).map(|version| Point::at_version(version).and(until)));
    points.extend((0..DAYS).map(|day| Point::at_time(START + day * DAY).and(until)));
    points.push(Point::at_commit(saved));
    for point in points {
        let rows = state.scan(point, KeyFilter::All).await.unwrap();
        all.insert(format!("scan {point}"), rows_of(rows.try_collect().await));
        let found = state.get(point, "d0").await.unwrap().found();
        all.insert(format!("get d0 {point}"), found.iter().flat_map(texts).collect());
    }
    let history = reader.history_rows(&basis, KeyFilter::All, until).await.unwrap();
    all.insert("history".to_owned(), rows_of(history.try_collect().await));
    let diff = reader.diff_rows(&basis, Point::at_commit(2), until, KeyFilter::All).await.unwrap();
    all.insert("diff".to_owned(), rows_of(diff.try_collect().await));
    let query = format!(
        "SELECT state_key, n, text FROM as_of('{STATE}', 'commit:{newest}') ORDER BY state_key"
    );
    all.insert("sql".to_owned(), texts(&sql(store, &query).await.unwrap()));
    let query = format!("SELECT count(*), min(commit) FROM log.{STATE} WHERE commit <= {newest}");
    all.insert("sql log".to_owned(), texts(&sql(store, &query).await.unwrap()));
    let saved = state.savepoints().await.unwrap();
    let saved = saved.iter().map(|saved| format!("{} {:?}", saved.name, saved.note)).collect();
    all.insert("savepoints".to_owned(), saved);
    let last = state.log().last_epoch("feed").await.unwrap();
    all.insert("epoch".to_owned(), vec![format!("{last:?}")]);
    all
}

fn rows_of(batches: Result<Vec<RecordBatch>>) -> Vec<String> {
    batches.unwrap().iter().flat_map(texts).collect()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

async fn holds(golden: &Path) {
    let text = std::fs::read_to_string(golden.join("expected.json")).unwrap();
    let expected: Expected = serde_json::from_str(&text).unwrap();
    let folder = tempfile::tempdir().unwrap();
    copy(&golden.join("store"), folder.path());
    let clock = Arc::new(ManualClock::at(expected.clock_micros));
    let store = open(folder.path(), &clock).await;
    let state = store.raw_state(STATE).await.unwrap();
    let (newest, saved) = (expected.newest_commit, expected.saved_commit);
    assert_eq!(commit_of(&state).await, newest);
    let same = async |state: &RawState, when: &str| {
        let found = answers(&store, state, newest, saved).await;
        assert_eq!(found.len(), expected.answers.len());
        for (question, rows) in &expected.answers {
            assert_eq!(found.get(question), Some(rows), "{question} {when}");
        }
    };
    same(&state, "as it is").await;
    let deep = store.examine(STATE).await.unwrap();
    assert!(deep.is_sound() && deep.unchecked_files == 0, "{deep:?}");
    assert_eq!(deep.archived_rows as i64, expected.archived_rows);
    assert!(state.verify().await.unwrap().is_sound());
    let refused = state.append(&batch(&[(ERASED, 99, Some(1))], START)).await.unwrap_err();
    assert!(KeyErased::is_cause_of(&refused) && refused.kind() == ErrorKind::InvalidInput);

    // It is gone on with.
    state.append(&batch(&[("new", 1, Some(1)), ("d1", 9, None)], START + DAY)).await.unwrap();
    same(&state, "appended").await;
    state.materialize(false).await.unwrap();
    same(&state, "materialized").await;
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
    same(&state, "maintained").await;
    assert!(state.verify().await.unwrap().is_sound());
    clock.set(expected.clock_micros + 3 * DAY);
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
    let fresh = open(folder.path(), &clock).await.raw_state(STATE).await.unwrap();
    same(&fresh, "maintained some days later, by a new handle").await;
    state.materialize(true).await.unwrap();
    same(&state, "rebuilt").await;
    assert!(store.examine(STATE).await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_of_all_formats_open_answer_as_they_did_and_are_gone_on_with() {
    let mut found = 0;
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("golden-") {
            holds(&path).await;
            found += 1;
        }
    }
    assert!(found > 0, "there are no golden stores");
}

/// Makes a store of the format of today, with what it answers, under the name that `ALLUVIUM_GOLDEN` gives.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes a new golden store"]
async fn make_a_golden_store() {
    let name = std::env::var("ALLUVIUM_GOLDEN").expect("ALLUVIUM_GOLDEN names the new store");
    let golden = fixtures().join(name);
    assert!(!golden.exists(), "{} is there: golden stores stay as they are", golden.display());
    let clock = Arc::new(ManualClock::at(START));
    fill(&golden.join("store"), &clock).await;
    // What is told is told by a copy, so that asking leaves nothing there.
    let folder = tempfile::tempdir().unwrap();
    copy(&golden.join("store"), folder.path());
    let store = open(folder.path(), &clock).await;
    let state = store.raw_state(STATE).await.unwrap();
    let newest_commit = commit_of(&state).await;
    let saved_commit = state.savepoints().await.unwrap()[0].log_commit;
    let expected = Expected {
        clock_micros: alluvium::Clock::now_micros(clock.as_ref()),
        newest_commit,
        saved_commit,
        archived_rows: Archived::of(&state.log().state()).unwrap().rows,
        answers: answers(&store, &state, newest_commit, saved_commit).await,
    };
    let text = serde_json::to_string_pretty(&expected).unwrap();
    std::fs::write(golden.join("expected.json"), text + "\n").unwrap();
}
