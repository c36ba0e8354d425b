//! The snapshot of a state: a Delta table that holds the fold of the log up to a commit, as base and runs.

mod bases;
mod erasing;
mod forking;
mod grid;
mod savepoints;

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_log::{
    APPEND_SEQ, COMMIT, DataFile, ERASE_APP_ID, Error, ErrorKind, FLOOR_APP_ID, HeldVersion, Hold,
    LeasedTable, Log, OrderBy, Protocol, Result, StateDefinition, Storage, TIER, Table,
    TableMetadata, TableState, log_schema,
};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use parking_lot::RwLock;

use crate::hash::RowsHash;
pub use bases::{BaseBounds, Horizon};
pub use grid::GridReport;
pub use savepoints::{Savepoint, examine_savepoints, validate_savepoint_name};

/// The application id under which a snapshot commit records the log commit that it folds.
pub const MATERIALIZER_APP_ID: &str = "alluvium/materializer";
/// The value of the partition `tier` of files with one row per key in ranges that do not overlap.
pub const BASE: &str = "base";
/// The value of the partition `tier` of files with later winners.
pub const RUN: &str = "run";
/// The application id under which the greatest version is recorded that a snapshot was ever made without.
pub(crate) const FORGOTTEN_VERSION_APP_ID: &str = "alluvium/forgotten/version";
/// The same of event times.
pub(crate) const FORGOTTEN_TIME_APP_ID: &str = "alluvium/forgotten/time";
/// The application id under which it is recorded when all files were last as they were written, in milliseconds since 1970-01-01.
pub(crate) const CHECK_APP_ID: &str = "alluvium/check";
/// What every state of a snapshot's table must know.
const APP_IDS: [&str; 6] = [
    MATERIALIZER_APP_ID,
    ERASE_APP_ID,
    FLOOR_APP_ID,
    FORGOTTEN_VERSION_APP_ID,
    FORGOTTEN_TIME_APP_ID,
    CHECK_APP_ID,
];
/// The property that carries the id of the log that a snapshot folds.
const SNAPSHOT_OF: &str = "alluvium.snapshotOf";
pub(crate) const TAG_MIN_KEY: &str = "alluvium.minKey";
pub(crate) const TAG_MAX_VERSION: &str = "alluvium.maxVersion";
pub(crate) const TAG_MAX_EVENT_TIME: &str = "alluvium.maxEventTime";
pub(crate) const TAG_MAX_COMMIT: &str = "alluvium.maxCommit";
pub(crate) const TAG_TOMBSTONES: &str = "alluvium.tombstones";
/// The least event time of a tombstone, in microseconds.
pub(crate) const TAG_LEAST_TOMBSTONE: &str = "alluvium.leastTombstone";
pub(crate) const TAG_HASH: &str = "alluvium.hash";
/// The bytes of its rows once they are decoded: what decides which files become one.
pub(crate) const TAG_DECODED: &str = "alluvium.decodedBytes";
pub(crate) const TAG_LOG_COMMIT: &str = "alluvium.logCommit";

/// The path of a state's snapshot below the store's root.
pub fn snapshot_path(state: &str) -> String {
    format!("{state}/snapshot")
}

/// The columns of a snapshot file, in order (without the partition).
pub(crate) fn snapshot_file_schema(value_fields: &Fields) -> SchemaRef {
    let log = log_schema(value_fields);
    let mut fields: Vec<FieldRef> = log.fields().iter().take(5).cloned().collect();
    fields.push(Arc::new(Field::new(APPEND_SEQ, DataType::Int32, true)));
    fields.push(Arc::new(Field::new(COMMIT, DataType::Int64, true)));
    Arc::new(Schema::new(fields))
}

/// A handle on one state's snapshot. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Snapshot {
    inner: Arc<SnapshotInner>,
}

#[derive(Debug)]
struct SnapshotInner {
    storage: Storage,
    log: Log,
    table: RwLock<Option<Arc<Table>>>,
    opening: tokio::sync::Mutex<()>,
    /// One rewriter of the table at a time in this process; others are told apart by the commit.
    rewriting: tokio::sync::Mutex<()>,
    /// Earlier versions, read on demand and extended as they come.
    history: tokio::sync::Mutex<Vec<SnapshotState>>,
    /// Records of savepoints by their path, as they were read last.
    records: parking_lot::Mutex<savepoints::KnownRecords>,
}

/// A snapshot at one version, or none at all (then everything is in the log).
#[derive(Debug, Clone)]
pub struct SnapshotState {
    table: Option<Arc<Table>>,
    state: Option<Arc<TableState>>,
}

impl SnapshotState {
    /// No snapshot: the state before the first materialization.
    pub fn none() -> Self {
        Self { table: None, state: None }
    }

    /// A version of a table.
    pub(crate) fn of(table: &Arc<Table>, state: Option<Arc<TableState>>) -> Self {
        Self { table: Some(table.clone()), state }
    }

    /// The Delta table and its state, unless there is no snapshot.
    pub fn table(&self) -> Option<(&Arc<Table>, &Arc<TableState>)> {
        self.table.as_ref().zip(self.state.as_ref())
    }

    /// The Delta version of the snapshot table; -1 without one.
    pub fn version(&self) -> i64 {
        self.state.as_ref().map_or(-1, |state| state.version)
    }

    /// The log commit up to which the snapshot is the fold; 0, the empty log, without one.
    pub fn log_commit(&self) -> i64 {
        self.transaction(MATERIALIZER_APP_ID).unwrap_or(0)
    }

    /// When it was made, in milliseconds since 1970; `None` where no commit tells.
    pub fn made_ms(&self) -> Option<i64> {
        self.state.as_ref().map(|state| state.timestamp_ms).filter(|made| *made > 0)
    }

    /// All files.
    pub fn files(&self) -> impl Iterator<Item = &Arc<DataFile>> {
        self.state.iter().flat_map(|state| state.files())
    }

    /// Whether every file is as a materializer wrote it. Of files that another engine has rewritten or added anew, bounds, order
    /// and uniqueness of keys can't be relied on: then the log answers, until the snapshot is made anew.
    pub fn is_ours(&self) -> bool {
        self.files().all(|file| file.is_sorted() && file.add.tags.contains_key(TAG_HASH))
    }

    /// The base files, in order of their keys.
    pub fn base(&self) -> Vec<Arc<DataFile>> {
        let mut files: Vec<_> = self.files().filter(|file| is_base(file)).cloned().collect();
        files.sort_by(|a, b| least_key(a).cmp(&least_key(b)));
        files
    }

    /// The run files.
    pub fn runs(&self) -> Vec<Arc<DataFile>> {
        self.files().filter(|file| !is_base(file)).cloned().collect()
    }

    /// Rows in all files; a key in several runs counts several times.
    pub fn rows(&self) -> u64 {
        self.files().map(|file| rows_of(file)).sum()
    }

    /// The greatest version of a row, also of those that it was made without.
    pub fn max_version(&self) -> Option<i64> {
        let files = self.files().map(|file| file.integer_tag(TAG_MAX_VERSION).unwrap_or(i64::MAX));
        files.max().max(self.transaction(FORGOTTEN_VERSION_APP_ID))
    }

    /// The greatest event time of a row, also of those that it was made without, in microseconds.
    pub fn max_event_time(&self) -> Option<i64> {
        let files =
            self.files().map(|file| file.integer_tag(TAG_MAX_EVENT_TIME).unwrap_or(i64::MAX));
        files.max().max(self.transaction(FORGOTTEN_TIME_APP_ID))
    }

    fn transaction(&self, app_id: &str) -> Option<i64> {
        self.state.as_ref().and_then(|state| state.transaction(app_id))
    }

    /// When all of its files were last as they were written, as far as somebody looked.
    pub(crate) fn sound_at_ms(&self) -> Option<i64> {
        self.transaction(CHECK_APP_ID)
    }

    /// The event time, in microseconds, up to which it is without tombstones; `None` where it has all of them.
    pub fn floor(&self) -> Option<i64> {
        self.transaction(FLOOR_APP_ID)
    }

    /// The greatest version and the greatest event time of the tombstones that it was ever made without, if any.
    pub(crate) fn forgotten(&self) -> Option<(i64, i64)> {
        self.transaction(FORGOTTEN_VERSION_APP_ID).zip(self.transaction(FORGOTTEN_TIME_APP_ID))
    }

    /// No tombstone is of an earlier event time, in microseconds; `None` without tombstones.
    pub fn least_tombstone(&self) -> Option<i64> {
        self.files().filter_map(|file| least_tombstone(file)).min()
    }

    /// Tombstones in all files.
    pub fn tombstones(&self) -> u64 {
        let count = |file: &Arc<DataFile>| file.integer_tag(TAG_TOMBSTONES).unwrap_or(0);
        self.files().map(count).filter_map(|count| u64::try_from(count).ok()).sum()
    }

    /// Keys that have a value; known without reading only while there are no runs.
    pub fn live_keys(&self) -> Option<u64> {
        self.runs().is_empty().then(|| self.rows().saturating_sub(self.tombstones()))
    }

    /// The hash of all rows; known without reading only while there are no runs.
    pub fn hash(&self) -> Option<RowsHash> {
        if !self.runs().is_empty() {
            return None;
        }
        self.files()
            .map(|file| file_hash(file))
            .try_fold(RowsHash::default(), |sum, hash| Some(sum.and(hash?)))
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files().map(|file| file.add.size).sum()
    }

    /// Whether the snapshot holds nothing beyond a point, so that it can be the base of an answer as of it.
    pub fn lies_within(
        &self,
        commit: Option<i64>,
        version: Option<i64>,
        event_time: Option<i64>,
    ) -> bool {
        let within = |greatest: Option<i64>, bound: Option<i64>| match (greatest, bound) {
            (Some(greatest), Some(bound)) => greatest <= bound,
            _ => true,
        };
        commit.is_none_or(|commit| self.log_commit() <= commit)
            && within(self.max_version(), version)
            && within(self.max_event_time(), event_time)
    }
}

/// Whether every row of some files is greater in a state's order than every row of some base files, by the bounds alone.
pub fn supersede(overlay: &[Arc<DataFile>], base: &[Arc<DataFile>], order_by: OrderBy) -> bool {
    let least = |file: &Arc<DataFile>| match order_by {
        OrderBy::EventTime => file.stats.min_event_time,
        OrderBy::Version => file.stats.min_version,
    };
    let greatest = |file: &Arc<DataFile>| match order_by {
        OrderBy::EventTime => file.integer_tag(TAG_MAX_EVENT_TIME),
        OrderBy::Version => file.integer_tag(TAG_MAX_VERSION),
    };
    let oldest = overlay.iter().map(|file| least(file).unwrap_or(i64::MIN)).min();
    let newest = base.iter().map(|file| greatest(file).unwrap_or(i64::MAX)).max();
    oldest.zip(newest).is_none_or(|(oldest, newest)| oldest > newest)
}

/// The least key of a file, whole.
pub fn least_key(file: &DataFile) -> Option<&str> {
    file.add.tags.get(TAG_MIN_KEY).or(file.stats.min_key.as_ref()).map(String::as_str)
}

pub(crate) fn is_base(file: &DataFile) -> bool {
    file.add.partition.get(TIER).and_then(Option::as_deref) == Some(BASE)
}

/// No tombstone of a file is of an earlier event time; `None` without tombstones.
pub(crate) fn least_tombstone(file: &DataFile) -> Option<i64> {
    match file.integer_tag(TAG_TOMBSTONES) {
        Some(0) => None,
        // Files of earlier versions of the program don't tell; then the bound of all rows is one.
        _ => file.integer_tag(TAG_LEAST_TOMBSTONE).or(file.stats.min_event_time).or(Some(i64::MIN)),
    }
}

pub(crate) fn rows_of(file: &DataFile) -> u64 {
    file.stats.rows.unwrap_or(0)
}

pub(crate) fn file_hash(file: &DataFile) -> Option<RowsHash> {
    file.add.tags.get(TAG_HASH).and_then(|text| RowsHash::parse(text))
}

impl Snapshot {
    /// The snapshot of a log's state, which need not exist yet.
    pub async fn open(storage: &Storage, log: &Log) -> Result<Self> {
        let snapshot = Self {
            inner: Arc::new(SnapshotInner {
                storage: storage.clone(),
                log: log.clone(),
                table: RwLock::new(None),
                opening: tokio::sync::Mutex::new(()),
                rewriting: tokio::sync::Mutex::new(()),
                history: tokio::sync::Mutex::new(Vec::new()),
                records: parking_lot::Mutex::default(),
            }),
        };
        snapshot.find().await?;
        Ok(snapshot)
    }

    /// The log that this is a snapshot of.
    pub fn log(&self) -> &Log {
        &self.inner.log
    }

    /// Waits until no other rewriter of this process is at work.
    pub(crate) async fn lock_for_rewriting(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.inner.rewriting.lock().await
    }

    /// The newest snapshot known here.
    pub fn state(&self) -> SnapshotState {
        let table = self.inner.table.read().clone();
        let state = table.as_ref().map(|table| table.state());
        SnapshotState { table, state }
    }

    /// Reads what others have materialized.
    pub async fn refresh(&self) -> Result<SnapshotState> {
        let known = self.inner.table.read().clone();
        match known {
            Some(table) => {
                table.refresh().await?;
            }
            None => self.find().await?,
        }
        Ok(self.state())
    }

    async fn find(&self) -> Result<()> {
        let _opening = self.inner.opening.lock().await;
        if self.inner.table.read().is_some() {
            return Ok(());
        }
        let inner = &self.inner;
        let path = snapshot_path(inner.log.name());
        let clock = inner.log.clock().clone();
        let found = Table::open(&inner.storage, &path, clock, &APP_IDS).await?;
        let Some(table) = found else { return Ok(()) };
        let log_id = &inner.log.state().metadata.id;
        if table.state().metadata.properties.get(SNAPSHOT_OF) != Some(log_id) {
            return Err(Error::new(
                ErrorKind::IdentityChanged,
                format!(
                    "the snapshot in {path} is not of this log: the log was replaced; remove the snapshot's folder and materialize again"
                ),
            ));
        }
        *inner.table.write() = Some(Arc::new(self.leased(table)));
        Ok(())
    }

    /// The table, of which nothing is removed that a reader holds.
    fn leased(&self, table: Table) -> Table {
        table.leased_in(self.inner.log.leases(), LeasedTable::Snapshot)
    }

    /// Holds a state of the log and snapshots for a read, each since it was found to be one that may be read, until what is
    /// returned is dropped with its clones.
    pub fn hold(
        &self,
        (log, pinned_ms): (&Arc<TableState>, i64),
        snapshots: &[(&SnapshotState, i64)],
    ) -> Hold {
        let held = snapshots.iter().filter_map(|(snapshot, pinned_ms)| {
            let (table, state) = snapshot.table()?;
            Some(HeldVersion {
                table: LeasedTable::Snapshot,
                version: state.version,
                pinned_ms: *pinned_ms,
                files: Some((table.clone(), state.clone())),
            })
        });
        self.inner.log.hold(log, pinned_ms, held)
    }

    /// The table, created when there is none.
    pub(crate) async fn table_or_create(&self, definition: &StateDefinition) -> Result<Arc<Table>> {
        if let Some(table) = self.inner.table.read().clone() {
            return Ok(table);
        }
        let inner = &self.inner;
        let path = snapshot_path(inner.log.name());
        let (protocol, metadata) = new_table(&inner.log, definition);
        let clock = inner.log.clock().clone();
        match Table::create(&inner.storage, &path, clock, protocol, metadata, &APP_IDS).await? {
            Some(table) => {
                let table = Arc::new(self.leased(table));
                *inner.table.write() = Some(table.clone());
                Ok(table)
            }
            None => {
                self.find().await?;
                self.inner.table.read().clone().ok_or_else(|| {
                    Error::corrupt(format!("table {path} exists, but can't be opened"))
                })
            }
        }
    }
}

/// Protocol and metadata of a new snapshot table.
fn new_table(log: &Log, definition: &StateDefinition) -> (Protocol, TableMetadata) {
    let state = log.state();
    let mut metadata = TableMetadata {
        // The snapshot is a table of its own; its id is made from the log's, so that racing creators agree.
        id: derived_id(&state.metadata.id),
        schema: Arc::new(Schema::empty()),
        partition_columns: vec![TIER.to_owned()],
        properties: BTreeMap::from([
            ("alluvium.formatVersion".to_owned(), "1".to_owned()),
            ("alluvium.orderBy".to_owned(), definition.order_by.to_string()),
            (SNAPSHOT_OF.to_owned(), state.metadata.id.clone()),
            ("delta.dataSkippingNumIndexedCols".to_owned(), "4".to_owned()),
            ("delta.enableExpiredLogCleanup".to_owned(), "false".to_owned()),
            ("delta.checkpointInterval".to_owned(), i32::MAX.to_string()),
        ]),
        created_ms: Some(log.clock().now_ms()),
    };
    metadata.schema = table_schema(&definition.stored_fields());
    (state.protocol.clone(), metadata)
}

/// All columns of the snapshot table.
pub(crate) fn table_schema(value_fields: &Fields) -> SchemaRef {
    let mut columns: Vec<FieldRef> =
        snapshot_file_schema(value_fields).fields().iter().cloned().collect();
    columns.push(Arc::new(Field::new(TIER, DataType::Utf8, true)));
    Arc::new(Schema::new(columns))
}

fn derived_id(id: &str) -> String {
    // Another version digit keeps it a UUID, and other than the log's.
    match id.char_indices().nth(14) {
        Some((at, '4')) => format!("{}8{}", &id[..at], &id[at + 1..]),
        _ => format!("{id}-snapshot"),
    }
}
