//! FLT-*: one call of the store fails while somebody reads. The answer is the right one, or the storage's failure: never a refusal that
//! would not be one without the failure, and never another answer. What was met on the way is not kept: asked again, the same handle
//! answers right.

use std::sync::Arc;

use alluvium::{ErrorKind, ManualClock, Point, RawState, Result, Storage, Store};
use alluvium_log::{Archived, Expired, KeyFilter};
use arrow::array::RecordBatch;
use futures::TryStreamExt;

use crate::support::delta;
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{
    DAY, SECOND, START, by_time, by_version, commit_of, n_batch_at, set, tended,
};

/// How long what is kept of states that are maintained.
const SPANS: [(&str, &str); 3] =
    [("commit_retention", "3d"), ("file_retention", "1d"), ("as_of_window", "1d")];

/// What is asked.
#[derive(Debug, Clone)]
pub(super) enum Ask {
    Scan(Point),
    /// The same in several parts.
    Parts(Point),
    Get(Point, &'static str),
    History(Point),
    Changes(i64),
    Diff(Point, Point),
    Sql(String),
    Verify,
    Examine,
    Savepoints,
    /// Makes the snapshot anew, and then all of it.
    Rebuild,
}

/// What was told, as a text; or the kind of the refusal with its words.
pub(super) type Told = Result<String, (ErrorKind, String)>;

pub(super) fn told(outcome: Result<String>) -> Told {
    outcome.map_err(|error| (error.kind(), error.to_string()))
}

async fn rows(stream: alluvium_materializer::BatchStream) -> Result<String> {
    Ok(shown(stream.try_collect().await?))
}

/// Rows as a text, however they were parted.
fn shown(batches: Vec<RecordBatch>) -> String {
    let Some(first) = batches.first() else { return String::new() };
    let mut whole = arrow::compute::concat_batches(&first.schema(), &batches).unwrap();
    // Drawn at random by each handle that writes.
    if let Ok(writer) = whole.schema().index_of("writer") {
        whole.remove_column(writer);
    }
    format!("{whole:?}")
}

pub(super) async fn asked(store: &Store, state: &RawState, ask: &Ask) -> Result<String> {
    let reader = state.reader();
    match ask.clone() {
        Ask::Scan(point) => rows(state.scan(point, KeyFilter::All).await?).await,
        Ask::Parts(point) => {
            let basis = reader.basis().await?;
            let payload = alluvium_materializer::whole_value(basis.definition());
            let mut all: Vec<RecordBatch> = Vec::new();
            for part in reader.scan(&basis, point, KeyFilter::All, payload, 3).await? {
                all.extend(part.try_collect::<Vec<_>>().await?);
            }
            Ok(shown(all))
        }
        Ask::Get(point, key) => Ok(format!("{:?}", state.get(point, key).await?.found())),
        Ask::History(point) => {
            let basis = reader.basis().await?;
            rows(reader.history_rows(&basis, KeyFilter::All, point).await?).await
        }
        Ask::Changes(after) => {
            let basis = reader.basis().await?;
            rows(reader.changes_rows(&basis, after).await?).await
        }
        Ask::Diff(from, to) => {
            let basis = reader.basis().await?;
            rows(reader.diff_rows(&basis, from, to, KeyFilter::All).await?).await
        }
        Ask::Sql(query) => {
            let found = store.sql(&query).await?;
            let batches: Vec<RecordBatch> =
                found.try_collect().await.map_err(alluvium_query::sql_error)?;
            Ok(shown(batches))
        }
        Ask::Verify => Ok(format!("{}", state.verify().await?.is_sound())),
        Ask::Examine => {
            let report = store.examine("s").await?;
            let alluvium::DeepReport { files, bytes, damaged, failure, .. } = report;
            Ok(format!("{files} {bytes} {damaged:?} {failure:?}"))
        }
        Ask::Rebuild => {
            state.materialize(true).await?;
            rows(state.scan(Point::LATEST, KeyFilter::All).await?).await
        }
        Ask::Savepoints => Ok(format!("{:?}", state.savepoints().await?)),
    }
}

async fn opened(faulty: &Arc<FaultyStore>, clock: &Arc<ManualClock>) -> Result<(Store, RawState)> {
    let storage = Storage::from_object_store(faulty.clone(), "faulty://");
    let builder = Store::builder("faulty://").storage(storage).clock(clock.clone());
    let store = builder.open().await?;
    let state = store.raw_state("s").await?;
    Ok((store, state))
}

/// That of an answer under a fault nothing else came than what may.
fn is_honest(ask: &Ask, call: i64, found: &Told, right: &Told) {
    match found {
        Err((ErrorKind::Storage, _)) => {}
        found => assert_eq!(found, right, "{ask:?} with a fault at call {call}"),
    }
}

/// Asks each question of a new handle, with a fault at each call from its opening on; then once more.
async fn is_held(built: &Arc<FaultyStore>, clock: &Arc<ManualClock>, asks: &[Ask]) -> u64 {
    let mut faults = 0;
    for ask in asks {
        let (store, state) = opened(&built.forked(), clock).await.unwrap();
        let right = told(asked(&store, &state, ask).await);
        for call in 0.. {
            let faulty = built.forked();
            faulty.fail_at(call);
            let handle = opened(&faulty, clock).await;
            let found = match &handle {
                Ok((store, state)) => told(asked(store, state, ask).await),
                Err(error) => Err((error.kind(), error.to_string())),
            };
            if !faulty.has_failed() {
                assert_eq!(found, right, "{ask:?} without a fault");
                break;
            }
            faults += 1;
            is_honest(ask, call, &found, &right);
            if let Ok((store, state)) = &handle {
                let again = told(asked(store, state, ask).await);
                assert_eq!(again, right, "{ask:?} again, after a fault at call {call}");
            }
        }
    }
    faults
}

async fn append(state: &RawState, commits: i64) {
    for _ in 0..commits {
        let n = commit_of(state).await + 1;
        let own = format!("k{}", n % 3);
        let rows = [(own.as_str(), n, Some(n)), ("t", 1, Some(n)), ("gone", n, None)];
        let times = [START + n * SECOND, START, START + n];
        state.append(&n_batch_at(&rows, &times)).await.unwrap();
    }
}

fn questions(early: i64, late: i64, key: &'static str) -> Vec<Ask> {
    vec![
        Ask::Get(Point::LATEST, key),
        Ask::Get(Point::at_commit(early), key),
        Ask::Get(Point::at_version(early), key),
        Ask::Scan(Point::at_commit(late)),
        Ask::Parts(Point::at_commit(late)),
        Ask::Scan(Point::at_time(START + early * DAY)),
        Ask::History(Point::at_commit(late)),
        Ask::Changes(early),
        Ask::Diff(Point::at_commit(early), Point::at_commit(late)),
        Ask::Sql(format!("SELECT sum(n), count(*) FROM as_of('s', 'commit:{early}')")),
        Ask::Verify,
        Ask::Examine,
        Ask::Savepoints,
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn flt_01_after_an_optimize_a_read_is_right_or_tells_the_fault_whichever_call_fails() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_version(&open(&built, &clock).await, "s").await;
    append(&state, 3).await;
    state.materialize(false).await.unwrap();
    append(&state, 2).await;
    delta::optimize_in(built.clone(), "s/log").await;
    append(&state, 2).await;
    // A checkpoint doesn't say what commits the rows of the merged file have: the log's beginning does.
    state.log().refresh().await.unwrap();
    state.log().table().checkpoint().await.unwrap();
    append(&state, 1).await;
    let faults = is_held(&built, &clock, &questions(1, 5, "k1")).await;
    assert!(faults > 100, "{faults}");
}

/// Handles that opened the state before and follow it.
#[tokio::test(flavor = "multi_thread")]
async fn flt_02_who_follows_an_optimize_is_right_or_tells_the_fault_whichever_call_fails() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_version(&open(&built, &clock).await, "s").await;
    append(&state, 3).await;
    let late = built.forked();
    append(&open(&late, &clock).await.raw_state("s").await.unwrap(), 2).await;
    for ask in [Ask::Get(Point::at_commit(1), "k1"), Ask::Changes(1), Ask::Scan(Point::LATEST)] {
        let mut right = None;
        for call in -1_i64.. {
            let faulty = late.forked();
            let (store, state) = opened(&faulty, &clock).await.unwrap();
            let reborn = faulty.reborn();
            let other = open(&reborn, &clock).await.raw_state("s").await.unwrap();
            // Ours merges what the other engine read before, which then brings the rows in once more.
            other.materialize(false).await.unwrap();
            delta::optimize_in(reborn.clone(), "s/log").await;
            other.log().refresh().await.unwrap();
            other.log().table().checkpoint().await.unwrap();
            append(&other, 1).await;
            if call >= 0 {
                faulty.fail_at(call);
            }
            let found = told(asked(&store, &state, &ask).await);
            let right = right.get_or_insert_with(|| found.clone());
            is_honest(&ask, call, &found, right);
            if call >= 0 && !faulty.has_failed() {
                break;
            }
            assert_eq!(&told(asked(&store, &state, &ask).await), right, "{ask:?} again, {call}");
        }
        assert!(right.is_some_and(|right| right.is_ok()), "{ask:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flt_03_after_a_clean_up_and_a_vacuum_a_read_is_right_or_tells_the_fault() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_version(&open(&built, &clock).await, "s").await;
    set(&state, &SPANS).await;
    tended(&state, &clock, 0..3).await;
    state.create_savepoint("kept", None).await.unwrap();
    state.log().table().checkpoint().await.unwrap();
    let snapshot = state.snapshot().state();
    snapshot.table().unwrap().0.checkpoint().await.unwrap();
    tended(&state, &clock, 3..10).await;
    let first = commit_of(&state).await - 3;
    assert!(state.log().table().oldest_version().await.unwrap() > 1, "commits are cleaned up");
    is_held(&built, &clock, &questions(3, first, "daily")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flt_04_with_an_archive_a_read_is_right_or_tells_the_fault() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_time(&open(&built, &clock).await, "s").await;
    set(&state, &SPANS).await;
    set(&state, &[("hot_days", "3d")]).await;
    tended(&state, &clock, 0..8).await;
    assert!(Archived::of(&state.log().state()).is_some_and(|archived| archived.rows > 0));
    let newest = commit_of(&state).await;
    is_held(&built, &clock, &questions(3, newest - 2, "daily")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flt_05_once_rows_have_expired_a_read_is_right_refused_for_that_or_tells_the_fault() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = by_time(&open(&built, &clock).await, "s").await;
    set(&state, &SPANS).await;
    set(&state, &[("log_retention", "4d")]).await;
    tended(&state, &clock, 0..3).await;
    state.create_savepoint("kept", None).await.unwrap();
    let saved = state.savepoints().await.unwrap()[0].log_commit;
    tended(&state, &clock, 3..10).await;
    assert!(Expired::commit_of(&state.log().state()) > saved);
    let newest = commit_of(&state).await;
    let mut asks = questions(2, newest - 1, "daily");
    asks.push(Ask::Get(Point::at_commit(saved), "daily"));
    asks.push(Ask::Scan(Point::at_commit(saved)));
    is_held(&built, &clock, &asks).await;
}
