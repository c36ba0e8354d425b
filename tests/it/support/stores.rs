//! Stores in temporary folders, states of one field `n`, and reads of them told as plain values.

use std::future::Future;
use std::sync::Arc;

use alluvium::{
    Durability, Error, ErrorKind, Lookup, MaintainStep, OrderBy, Point, RawState, Result,
    StateSettings, Storage, Store, StoreSettings,
};
use alluvium_log::{KeyFilter, ManualClock};
pub(crate) use alluvium_simulation::rows::value_batch;
use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields, Int64Type, TimestampMicrosecondType};
use bytes::Bytes;
use futures::TryStreamExt;
use tempfile::TempDir;

use super::search::{files_of, objects_of};

/// 2024-01-15T00:00:00Z in microseconds.
pub(crate) const START: i64 = 1_705_276_800_000_000;
pub(crate) const SECOND: i64 = 1_000_000;
pub(crate) const DAY: i64 = 86_400 * SECOND;

/// Settings under which tests run: nothing here is lost by a power failure.
pub(crate) fn settings() -> StoreSettings {
    StoreSettings { durability: Durability::Os, ..StoreSettings::default() }
}

/// A store in a folder of its own, which vanishes with the value; with `ALLUVIUM_TEST_STORE=s3://bucket/dir` in a folder of a bucket,
/// for those tests that look at a store through the library alone.
pub(crate) struct Home {
    pub(crate) folder: TempDir,
    remote: Option<String>,
}

impl Home {
    pub(crate) fn new() -> Self {
        let bucket = std::env::var("ALLUVIUM_TEST_STORE").ok();
        let remote = bucket.map(|uri| format!("{uri}/{:016x}", rand::random::<u64>()));
        Self { folder: tempfile::tempdir().unwrap(), remote }
    }

    /// The store by a clock that the test moves.
    pub(crate) async fn open_at(&self, clock: &Arc<ManualClock>) -> Store {
        let builder = Store::builder(&self.uri()).settings(settings()).clock(clock.clone());
        builder.open().await.unwrap()
    }

    pub(crate) fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    pub(crate) fn uri(&self) -> String {
        if let Some(uri) = &self.remote {
            return uri.clone();
        }
        self.folder.path().to_str().unwrap().to_owned()
    }

    /// A handle of its own, as another process would have.
    pub(crate) async fn open(&self) -> Store {
        self.open_with(settings()).await
    }

    pub(crate) async fn open_with(&self, settings: StoreSettings) -> Store {
        Store::builder(&self.uri()).settings(settings).open().await.unwrap()
    }

    /// All files of the store, by their paths, wherever it lies.
    pub(crate) async fn files(&self) -> Vec<(String, Bytes)> {
        match &self.remote {
            None => files_of(self.folder.path()),
            Some(uri) => {
                objects_of(Storage::open(uri, Durability::Os).unwrap().object_store()).await
            }
        }
    }

    /// The folder of one of a state's tables.
    pub(crate) fn table(&self, state: &str, table: &str) -> std::path::PathBuf {
        assert!(self.remote.is_none(), "this test looks at the files of a folder: leave it out");
        self.folder.path().join(state).join(table)
    }

    /// The file of a commit of the log.
    pub(crate) fn commit_file(&self, state: &str, commit: i64) -> std::path::PathBuf {
        self.table(state, "log").join(format!("_delta_log/{commit:020}.json"))
    }
}

/// One nullable field `n`.
pub(crate) fn n_fields() -> Fields {
    Fields::from(vec![Field::new("n", DataType::Int64, true)])
}

pub(crate) fn ordered_by(order_by: OrderBy) -> StateSettings {
    StateSettings { order_by, ..StateSettings::default() }
}

/// A state with the field `n`, ordered by version.
pub(crate) async fn by_version(store: &Store, name: &str) -> RawState {
    create(store, name, &n_fields(), OrderBy::Version).await
}

/// A state with the field `n`, ordered by event time.
pub(crate) async fn by_time(store: &Store, name: &str) -> RawState {
    create(store, name, &n_fields(), OrderBy::EventTime).await
}

pub(crate) async fn create(
    store: &Store,
    name: &str,
    fields: &Fields,
    order_by: OrderBy,
) -> RawState {
    store.create_state(name, fields, ordered_by(order_by)).await.unwrap().0
}

/// A change of a key at a version: a number, or none for a DELETE. Event times follow the versions.
pub(crate) type Change<'a> = (&'a str, i64, Option<i64>);

/// Changes of a state with the field `n`.
pub(crate) fn n_batch(changes: &[Change<'_>]) -> RecordBatch {
    let times: Vec<i64> = changes
        .iter()
        .map(|change| START + change.1.clamp(-1_000_000, 1_000_000) * SECOND)
        .collect();
    n_batch_at(changes, &times)
}

/// The same with event times in microseconds.
pub(crate) fn n_batch_at(changes: &[Change<'_>], times: &[i64]) -> RecordBatch {
    let present: Vec<bool> = changes.iter().map(|change| change.2.is_some()).collect();
    let n: ArrayRef = Arc::new(Int64Array::from_iter(changes.iter().map(|change| change.2)));
    let value = StructArray::new(n_fields(), vec![n], Some(NullBuffer::from(present)));
    value_batch(
        changes.iter().map(|change| change.0),
        changes.iter().map(|change| change.1),
        times,
        Arc::new(value),
    )
}

/// A change a day of a key that all days share and of one of its own, and a run of the job after each.
pub(crate) async fn tended(state: &RawState, clock: &ManualClock, days: std::ops::Range<i64>) {
    for day in days {
        let time = START + day * DAY;
        clock.set(time + DAY / 2);
        let own = format!("d{day:04}");
        let rows = [("daily", day, Some(day)), (own.as_str(), day, Some(day))];
        state.append(&n_batch_at(&rows, &[time, time])).await.unwrap();
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
    }
}

/// Sets spans of the maintenance of a state.
pub(crate) async fn set(state: &RawState, changes: &[(&str, &str)]) {
    let changes: Vec<_> = changes.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    state.set_maintenance(&changes).await.unwrap();
}

/// All rows that the log tells of, archived or not: each once.
pub(crate) async fn row_count(state: &RawState) -> usize {
    let basis = state.reader().basis().await.unwrap();
    let rows = state.reader().changes_rows(&basis, 0).await.unwrap();
    let rows: Vec<_> = rows.try_collect().await.unwrap();
    rows.iter().map(RecordBatch::num_rows).sum()
}

/// Upserts of keys at versions 1, 2, .. with the given columns as the value.
pub(crate) fn upserts(
    keys: &[&str],
    first_version: i64,
    columns: Vec<(&str, ArrayRef)>,
) -> RecordBatch {
    let value: StructArray = StructArray::try_from(columns).unwrap();
    let versions: Vec<i64> = (0..keys.len() as i64).map(|row| first_version + row).collect();
    let times: Vec<i64> = versions.iter().map(|version| START + version * SECOND).collect();
    value_batch(keys.iter().copied(), versions, &times, Arc::new(value))
}

/// A live row: key, version, `n`.
pub(crate) type Live = (String, i64, Option<i64>);

/// All rows of a scan.
pub(crate) async fn scan_rows(state: &RawState, point: Point) -> Vec<RecordBatch> {
    state.scan(point, KeyFilter::All).await.unwrap().try_collect().await.unwrap()
}

/// The live keys at a point, in order, with version and `n`.
pub(crate) async fn live(state: &RawState, point: Point) -> Vec<Live> {
    scan_rows(state, point).await.iter().flat_map(live_of).collect()
}

pub(crate) fn live_of(batch: &RecordBatch) -> Vec<Live> {
    let keys = batch.column(0).as_string::<i32>();
    let versions = batch.column(1).as_primitive::<Int64Type>();
    let value = batch.column_by_name("state_value").unwrap().as_struct();
    let n = value.column_by_name("n").unwrap().as_primitive::<Int64Type>();
    (0..batch.num_rows())
        .map(|row| {
            (keys.value(row).to_owned(), versions.value(row), n.is_valid(row).then(|| n.value(row)))
        })
        .collect()
}

/// `n` of a key at a point; `None` when the key has no value.
pub(crate) async fn n_of(state: &RawState, point: Point, key: &str) -> Option<i64> {
    let row = state.get(point, key).await.unwrap().found()?;
    live_of(&row).pop().unwrap().2
}

pub(crate) async fn lookup(state: &RawState, key: &str) -> Lookup {
    state.get(Point::LATEST, key).await.unwrap()
}

pub(crate) fn event_time_of(row: &RecordBatch) -> i64 {
    row.column(2).as_primitive::<TimestampMicrosecondType>().value(0)
}

/// The newest commit that a new handle sees.
pub(crate) async fn commit_of(state: &RawState) -> i64 {
    state.log().refresh().await.unwrap().version
}

/// Asserts that a call is refused with this kind, that the error names each of `names`, and that nothing was written.
pub(crate) async fn refused<T: std::fmt::Debug>(
    state: &RawState,
    call: impl Future<Output = Result<T>>,
    kind: ErrorKind,
    names: &[&str],
) -> Error {
    let before = commit_of(state).await;
    let error = call.await.expect_err("the call was to be refused");
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for name in names {
        assert!(text.contains(name), "the error does not name {name:?}: {text}");
    }
    assert_eq!(commit_of(state).await, before, "a refused call made a commit: {text}");
    error
}

/// Asserts that the snapshot is the fold of the log, and that a rebuild says the same as the increments did.
pub(crate) async fn assert_sound(state: &RawState) {
    let report = state.verify().await.unwrap();
    assert!(report.is_sound(), "{report:?}");
    let before = whole_rows(state).await;
    state.materialize(true).await.unwrap();
    let rebuilt = state.verify().await.unwrap();
    assert!(rebuilt.is_sound(), "{rebuilt:?}");
    assert_eq!(whole_rows(state).await, before, "a rebuild differs from the increments");
}

/// The live rows with their whole value, without the commit: of rows given several times it may be that of any.
async fn whole_rows(state: &RawState) -> Option<RecordBatch> {
    let batches = scan_rows(state, Point::LATEST).await;
    let whole = arrow::compute::concat_batches(&batches.first()?.schema(), &batches).unwrap();
    Some(whole.project(&[0, 1, 2, 3, 6]).unwrap())
}

/// The rows of a query, as one batch.
pub(crate) async fn sql(store: &Store, query: &str) -> Result<RecordBatch> {
    let rows = store.sql(query).await?;
    let schema = rows.schema();
    let batches: Vec<RecordBatch> = rows.try_collect().await.map_err(alluvium_query::sql_error)?;
    Ok(arrow::compute::concat_batches(&schema, &batches).unwrap())
}

/// The first column of a query's rows as 64-bit integers.
pub(crate) async fn sql_numbers(store: &Store, query: &str) -> Vec<i64> {
    let rows = sql(store, query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
    rows.column(0).as_primitive::<Int64Type>().values().to_vec()
}

/// The first column of a query's rows as texts.
pub(crate) async fn sql_texts(store: &Store, query: &str) -> Vec<String> {
    let rows = sql(store, query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
    let texts = arrow::compute::cast(rows.column(0), &DataType::Utf8).unwrap();
    texts.as_string::<i32>().iter().map(|text| text.unwrap_or("NULL").to_owned()).collect()
}
