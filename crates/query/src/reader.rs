//! The reader of one state: pins a basis, looks keys up, and hands out rows.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use alluvium_log::{
    ArchivedFiles, DELETE, DataFile, ERASE_APP_ID, ERASED_APP_ID, Error, ErrorKind, Expired,
    FooterCache, KeyFilter, Log, OrderBy, PageCache, ReadSpec, Result, RowFilter, Table,
    TableState, read_keys,
};
use alluvium_materializer::{Snapshot, SnapshotState, rank, whole_value};
use arrow::array::{AsArray, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::{Mutex as SyncMutex, RwLock as SyncRwLock};
use quick_cache::DefaultHashBuilder;
use tokio::sync::RwLock;

use crate::basis::Basis;
use crate::known::Shape;
use crate::layout::Layout;
use crate::point::Point;
use crate::tail::Tail;

/// Files that one lookup reads at the same time.
const LOOKUP_CONCURRENCY: usize = 8;
/// How long a reader goes on with the snapshot it knows; the tail grows longer meanwhile, the answers stay the same.
const SNAPSHOT_REFRESH: Duration = Duration::from_secs(1);
/// How long a read waits for a commit that it was asked to see.
const AT_LEAST_WAIT: Duration = Duration::from_secs(10);

/// How a state is read.
#[derive(Debug, Clone)]
pub struct ReaderOptions {
    /// Footers of files, shared with everything else that reads.
    pub footers: Arc<FooterCache>,
    /// Decoded pages that keys were looked up in, shared with everything else that looks keys up.
    pub pages: Arc<PageCache>,
    /// The tail is kept in memory up to so many bytes: 256 MiB.
    pub tail_bytes: usize,
    /// Memory, batches and spilling of folds.
    pub fold: alluvium_materializer::FoldSettings,
    /// For how long other processes' commits may be missed: zero, so that each read looks for them.
    pub max_staleness: Duration,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        Self {
            footers: FooterCache::new(alluvium_log::DEFAULT_FOOTER_CACHE_BYTES),
            pages: PageCache::new(alluvium_log::DEFAULT_PAGE_CACHE_BYTES),
            tail_bytes: 256 * 1024 * 1024,
            fold: alluvium_materializer::FoldSettings::default(),
            max_staleness: Duration::ZERO,
        }
    }
}

/// A reader of one state. Cheap to clone; clones share what they know.
#[derive(Clone)]
pub struct Reader {
    pub(crate) inner: Arc<ReaderInner>,
}

pub(crate) struct ReaderInner {
    pub(crate) log: Log,
    pub(crate) snapshot: Snapshot,
    pub(crate) options: ReaderOptions,
    /// Held alone by one who reads what is not in yet.
    pub(crate) tail: RwLock<Option<Tail>>,
    /// The tail takes more than half of the memory that it may take.
    is_tail_long: AtomicBool,
    /// A scan has merged a long tail without keeping it.
    pub(crate) has_passed_tail: AtomicBool,
    refreshed: SyncMutex<Refreshed>,
    pub(crate) layout: SyncRwLock<Option<Arc<Layout>>>,
    /// Of the definition that was asked for last.
    pub(crate) shape: SyncRwLock<Option<Shape>>,
}

#[derive(Default)]
struct Refreshed {
    log: Option<Instant>,
    snapshot: Option<Instant>,
}

/// What is known of a key at a point.
#[derive(Debug, Clone)]
pub enum Lookup {
    /// The key has this value: one row with the columns of a fold and `state_value`.
    Found(RecordBatch),
    /// The key was deleted: the row of the DELETE.
    Deleted(RecordBatch),
    /// No change of the key is known.
    Absent,
}

impl Lookup {
    /// The row, if the key has a value.
    pub fn found(self) -> Option<RecordBatch> {
        match self {
            Self::Found(row) => Some(row),
            _ => None,
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("state", &self.name()).finish_non_exhaustive()
    }
}

impl Reader {
    /// A reader of a log and its snapshot.
    pub fn new(log: Log, snapshot: Snapshot, options: ReaderOptions) -> Self {
        Self {
            inner: Arc::new(ReaderInner {
                log,
                snapshot,
                options,
                tail: RwLock::new(None),
                is_tail_long: AtomicBool::new(false),
                has_passed_tail: AtomicBool::new(false),
                refreshed: SyncMutex::new(Refreshed::default()),
                layout: SyncRwLock::new(None),
                shape: SyncRwLock::new(None),
            }),
        }
    }

    /// The state's name.
    pub fn name(&self) -> &str {
        self.inner.log.name()
    }

    /// The Delta table of the log.
    pub fn log_table(&self) -> &Arc<Table> {
        self.inner.log.table()
    }

    /// The footers that reads share.
    pub fn footers(&self) -> &Arc<FooterCache> {
        &self.inner.options.footers
    }

    /// The decoded pages that lookups share.
    pub fn pages(&self) -> &Arc<PageCache> {
        &self.inner.options.pages
    }

    /// The files of a basis that may hold rows which a filter wants, of the log and where it reaches back so far of the archive.
    pub fn log_files<'a>(
        &'a self,
        basis: &'a Basis,
        filter: &'a RowFilter,
    ) -> BoxFuture<'a, Result<Vec<Arc<DataFile>>>> {
        self.inner.log.files(&basis.log, filter)
    }

    /// The archived files that a filter reaches back to; none where it needs nothing of the archive.
    pub(crate) async fn archived(
        &self,
        basis: &Basis,
        filter: &RowFilter,
    ) -> Result<Option<Arc<ArchivedFiles>>> {
        self.inner.log.archived(&basis.log, filter.after_commit.unwrap_or(-1)).await
    }

    /// Whether the tail, when a read last asked for it, took more than half of [`ReaderOptions::tail_bytes`]. Beyond all of it, reads go
    /// to each of its files: it should be materialized before.
    pub fn is_tail_long(&self) -> bool {
        self.inner.options.tail_bytes > 0 && self.inner.is_tail_long.load(Ordering::Relaxed)
    }

    /// Pins the newest basis: what is committed when this is called is seen.
    pub async fn basis(&self) -> Result<Basis> {
        let inner = &self.inner;
        let stale =
            |last: Option<Instant>, limit: Duration| last.is_none_or(|at| at.elapsed() >= limit);
        let (log_due, snapshot_due) = {
            let refreshed = inner.refreshed.lock();
            (
                stale(refreshed.log, inner.options.max_staleness),
                stale(refreshed.snapshot, SNAPSHOT_REFRESH.max(inner.options.max_staleness)),
            )
        };
        // The snapshot first: the log is then at least as new as what the snapshot folds.
        let mut snapshot = self.usable(match snapshot_due {
            true => inner.snapshot.refresh().await?,
            false => inner.snapshot.state(),
        });
        let mut log = match log_due {
            true => inner.log.refresh().await?,
            false => inner.log.state(),
        };
        if !snapshot_due && lags_erase(&snapshot, &log) {
            snapshot = self.usable(inner.snapshot.refresh().await?);
        }
        if snapshot.log_commit() > log.version {
            log = inner.log.refresh().await?;
        }
        {
            let mut refreshed = inner.refreshed.lock();
            let now = Instant::now();
            if log_due {
                refreshed.log = Some(now);
            }
            if snapshot_due {
                refreshed.snapshot = Some(now);
            }
        }
        if snapshot.log_commit() > log.version {
            return Err(Error::corrupt(format!(
                "state {}: the snapshot folds the log up to commit {}, but the log ends at {}: the log was cut or replaced",
                self.name(),
                snapshot.log_commit(),
                log.version
            )));
        }
        snapshot = self.holding_expired(snapshot, &log).await?;
        if snapshot.log_commit() > log.version {
            log = inner.log.refresh().await?;
        }
        self.basis_of(log, snapshot)
    }

    /// The newest basis, if everything about it is known here already.
    pub fn known_basis(&self) -> Result<Option<Basis>> {
        let inner = &self.inner;
        let seen = inner.refreshed.lock().snapshot;
        let limit = SNAPSHOT_REFRESH.max(inner.options.max_staleness);
        let is_due = seen.is_none_or(|at| at.elapsed() >= limit);
        if is_due || self.newest_commit().is_none() || inner.log.is_removed() {
            return Ok(None);
        }
        let (snapshot, log) = (self.usable(inner.snapshot.state()), inner.log.state());
        let is_whole =
            snapshot.log_commit() >= Expired::commit_of(&log) && !lags_erase(&snapshot, &log);
        if snapshot.log_commit() > log.version || !is_whole {
            return Ok(None);
        }
        self.basis_of(log, snapshot).map(Some)
    }

    fn basis_of(&self, log: Arc<TableState>, snapshot: SnapshotState) -> Result<Basis> {
        let definition = self.inner.log.definition_at(&log)?;
        let pinned_ms = self.inner.log.clock().now_ms();
        Ok(Basis { definition, log, snapshot, pinned_ms, hold: None })
    }

    /// The log commit that is the newest one by what a read must see, if that can be told without waiting.
    ///
    /// Costs one look at the disk, or none while [`ReaderOptions::max_staleness`] allows to rely on an earlier one. What this
    /// process has committed is always in.
    pub fn newest_commit(&self) -> Option<i64> {
        let inner = &self.inner;
        let limit = inner.options.max_staleness;
        if !limit.is_zero() && inner.refreshed.lock().log.is_some_and(|at| at.elapsed() < limit) {
            return Some(inner.log.state().version);
        }
        inner.log.probe()
    }

    /// Pins a basis that holds at least a commit, as a receipt names it: to read one's own writes from anywhere.
    pub async fn basis_at_least(&self, commit: i64) -> Result<Basis> {
        let deadline = Instant::now() + AT_LEAST_WAIT;
        loop {
            self.inner.refreshed.lock().log = None;
            let basis = self.basis().await?;
            if basis.commit() >= commit {
                return Ok(basis);
            }
            if Instant::now() >= deadline {
                return Err(Error::new(
                    ErrorKind::PointUnavailable,
                    format!(
                        "state {}: commit {commit} did not appear within {} s; the log ends at {}",
                        self.name(),
                        AT_LEAST_WAIT.as_secs(),
                        basis.commit()
                    ),
                ));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Looks a key up at a point of a basis.
    pub async fn get(&self, basis: &Basis, point: Point, key: &str) -> Result<Lookup> {
        if point.is_latest()
            && let Some(known) = self.known_row(basis, key, |row| match row {
                None => Ok(Lookup::Absent),
                // A copy: what is looked up must not hold on to pages.
                Some((rows, row)) => classify(take_record_batch(rows, &row_number(row)?)?),
            })?
        {
            return Ok(known);
        }
        let mut found = self.multi_get(basis, point, &[key]).await?;
        Ok(found.pop().unwrap_or(Lookup::Absent))
    }

    /// Looks several keys up at one point of one basis; the answers are in the order of the keys.
    #[tracing::instrument(name = "get", level = "debug", skip_all, fields(state = self.name(), basis = basis.commit(), as_of = %point, keys = keys.len()), err(level = "debug"))]
    pub async fn multi_get(
        &self,
        basis: &Basis,
        point: Point,
        keys: &[&str],
    ) -> Result<Vec<Lookup>> {
        basis.check(point)?;
        let rows = self.candidate_rows(basis, point, keys).await?;
        let winners = places_of_winners(&rows, basis.definition.order_by)?;
        keys.iter()
            .map(|key| match winners.get(key) {
                None => Ok(Lookup::Absent),
                Some(&(index, row)) => classify(rows[index].slice(row, 1)),
            })
            .collect()
    }

    /// Every row that may win one of the keys.
    pub(crate) async fn candidate_rows(
        &self,
        basis: &Basis,
        point: Point,
        keys: &[&str],
    ) -> Result<Vec<RecordBatch>> {
        let mut snapshot = self.snapshot_for(basis, point).await?;
        loop {
            match self.rows_beside(basis, point, keys, &snapshot).await {
                Ok(rows) => return Ok(rows),
                Err(error) => snapshot = self.other_base(basis, point, &snapshot, error).await?,
            }
        }
    }

    /// The same, beginning with a snapshot.
    async fn rows_beside(
        &self,
        basis: &Basis,
        point: Point,
        keys: &[&str],
        snapshot: &SnapshotState,
    ) -> Result<Vec<RecordBatch>> {
        let mut filter = point.filter(basis.commit());
        filter.keys = KeyFilter::keys(keys.iter().map(|&key| key.to_owned()));
        filter.after_commit = Some(snapshot.log_commit());
        let mut rows = Vec::new();
        let payload = whole_value(&basis.definition);
        let in_memory = point.is_latest() && self.tail_rows(basis, keys, &mut rows).await?;
        let mut reads: Vec<(Arc<Table>, Arc<DataFile>, ReadSpec)> = Vec::new();
        if !in_memory {
            let spec = ReadSpec { payload: payload.clone(), filter: filter.clone() };
            let files = self.log_files(basis, &spec.filter).await?;
            reads.extend(
                files.into_iter().map(|file| (self.log_table().clone(), file, spec.clone())),
            );
        }
        if let Some((table, _)) = snapshot.table() {
            let filter = RowFilter { keys: filter.keys, ..RowFilter::default() };
            let spec = ReadSpec { payload, filter };
            let files = self.layout(snapshot).candidates(&spec.filter.keys);
            reads.extend(files.into_iter().map(|file| (table.clone(), file, spec.clone())));
        }
        let (footers, pages) = (self.footers(), self.pages());
        let mut batches = stream::iter(reads)
            .map(|(table, file, spec)| {
                async move { read_keys(&table, &file, &spec, footers, pages).await }.boxed()
            })
            .buffer_unordered(LOOKUP_CONCURRENCY);
        while let Some(found) = batches.try_next().await? {
            rows.extend(found);
        }
        Ok(rows)
    }

    /// The snapshot, or none if another engine has rewritten files of it: the log has all that is to be told.
    fn usable(&self, snapshot: SnapshotState) -> SnapshotState {
        if self.layout(&snapshot).is_ours { snapshot } else { SnapshotState::none() }
    }

    /// Puts the keys' winners in the tail into `rows`; false when the tail is not in memory as of this basis.
    async fn tail_rows(
        &self,
        basis: &Basis,
        keys: &[&str],
        rows: &mut Vec<RecordBatch>,
    ) -> Result<bool> {
        self.with_tail(basis, |tail| {
            rows.extend(tail.get(keys)?);
            Ok(())
        })
        .await
        .map(|done| done.is_some())
    }

    /// The winners of the tail in order of keys, when it is in memory as of this basis.
    pub(crate) async fn sorted_tail(&self, basis: &Basis) -> Result<Option<Arc<Vec<RecordBatch>>>> {
        self.with_tail(basis, Tail::sorted).await
    }

    async fn with_tail<T>(
        &self,
        basis: &Basis,
        work: impl FnOnce(&mut Tail) -> Result<T>,
    ) -> Result<Option<T>> {
        let from = basis.snapshot.log_commit();
        let erased = basis.log.transaction(ERASED_APP_ID).unwrap_or(0);
        let schema = self.schema_of(&basis.definition);
        let mut slot = self.inner.tail.write().await;
        // Another reader may have gone further than this basis: then the files are read as of the basis.
        if slot
            .as_ref()
            .is_some_and(|tail| tail.continues(from, erased, &schema) && tail.to() > basis.commit())
        {
            return Ok(None);
        }
        let tail = match slot.as_mut() {
            Some(tail) if tail.continues(from, erased, &schema) => tail,
            Some(tail) if tail.to() > basis.commit() => return Ok(None),
            _ => slot.insert(Tail::after(from, erased, basis.definition.order_by, schema)),
        };
        let inner = &self.inner;
        let limit = inner.options.tail_bytes;
        let in_reach = tail.extend(&inner.log, &basis.log, &inner.options.footers, limit).await?;
        metrics::gauge!(crate::metrics::TAIL_BYTES, "state" => self.name().to_owned())
            .set(tail.bytes() as f64);
        inner.is_tail_long.store(!in_reach || tail.bytes() > limit / 2, Ordering::Relaxed);
        if !in_reach {
            return Ok(None);
        }
        work(tail).map(Some)
    }
}

/// Whether a snapshot is known to be older than what the log says was erased from it.
fn lags_erase(snapshot: &SnapshotState, log: &TableState) -> bool {
    let begun = log.transaction(ERASE_APP_ID);
    begun.is_some()
        && log.transaction(ERASED_APP_ID) >= begun
        && snapshot.table().is_some_and(|(_, state)| state.transaction(ERASE_APP_ID) < begun)
}

/// Of keys the batch and the row of the one that wins.
pub(crate) type Winners<'a> = HashMap<&'a str, (usize, usize), DefaultHashBuilder>;

/// Of each key the batch and the row of the one that wins.
pub(crate) fn places_of_winners(rows: &[RecordBatch], order_by: OrderBy) -> Result<Winners<'_>> {
    let count = rows.iter().map(RecordBatch::num_rows).sum();
    let mut winners = Winners::with_capacity_and_hasher(count, DefaultHashBuilder::default());
    for (index, batch) in rows.iter().enumerate() {
        for (row, key) in key_column(batch)?.iter().enumerate() {
            let key = key.unwrap_or_default();
            let wins = match winners.get(key) {
                None => true,
                Some(&(other, place)) => {
                    rank(batch, row)?.compare(&rank(&rows[other], place)?, order_by).is_gt()
                }
            };
            if wins {
                winners.insert(key, (index, row));
            }
        }
    }
    Ok(winners)
}

pub(crate) fn key_column(batch: &RecordBatch) -> Result<&arrow::array::StringArray> {
    batch
        .columns()
        .first()
        .map(|column| column.as_string::<i32>())
        .ok_or_else(|| Error::internal("a batch lacks the columns of a fold"))
}

fn row_number(row: usize) -> Result<UInt32Array> {
    let row = u32::try_from(row)
        .map_err(|error| Error::internal("more rows than can be numbered").with_source(error))?;
    Ok(UInt32Array::from(vec![row]))
}

fn classify(row: RecordBatch) -> Result<Lookup> {
    let operation = row
        .columns()
        .get(3)
        .map(|column| column.as_string::<i32>().value(0).to_owned())
        .ok_or_else(|| Error::internal("a batch lacks the columns of a fold"))?;
    Ok(if operation == DELETE { Lookup::Deleted(row) } else { Lookup::Found(row) })
}
