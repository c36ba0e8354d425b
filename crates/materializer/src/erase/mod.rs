//! Erase: the rows of keys leave log, savepoints and snapshot for good, and may not come back.
//!
//! ```text
//! marker (a commit of the log) -> log and archive rewritten -> savepoints and snapshot rewritten -> noted in the log
//!                                                              -> bounds in all Delta logs taken out
//!                                                              -> what older versions have: now, or by the vacuum
//! ```
//!
//! The marker comes first: from its commit on no row of the keys can arrive, so what is found afterwards is all there is. A
//! snapshot is rewritten after whatever it may be made of, by a commit that ends each fold which began before. So erase may be
//! killed at any call and run again, beside appends, folds, compactions and other erases; a second run finds nothing to do.
//!
//! What may hold a key is a table with a folder of data files, or a record that lists files of one: whatever else is to
//! hold rows (another table of the state) is one more step between the marker and the snapshot. Forks are states of their own, which go
//! through the same after their parent. What a file that is damaged holds
//! can't be told: it is named by an error, or where it is part of nothing by the receipt.

mod archive;
mod forks;
mod log;
mod receipt;
mod snapshot;
mod sweep;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use alluvium_log::{
    DataFile, ERASE_APP_ID, Error, ErrorKind, FileAdd, KeyFilter, Log, PageCache, ReadSpec, Result,
    RowFilter, STATE_KEY, Table, read_keys,
};
use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use crate::fold::BatchStream;
use crate::materialize::MaterializeOptions;
use crate::snapshot::Snapshot;
pub use receipt::{EraseReceipt, ErasedFile, PendingFile};

/// Keys of one erase at most: all of them are looked for in one pass.
pub const MAX_KEYS: usize = 10_000;
/// How often an erase begins anew because others rewrote the same files, or erased other keys, meanwhile.
const MAX_ATTEMPTS: u32 = 16;
/// Files that are looked at at the same time.
const LOOK_CONCURRENCY: usize = 8;
/// Decoded pages that are kept while files are looked at.
const PAGE_BYTES: u64 = 16 * 1024 * 1024;

/// How to erase.
#[derive(Debug, Clone)]
pub struct EraseOptions {
    /// Memory, layout and footers.
    pub materialize: MaterializeOptions,
    /// Remove the files that held the keys at once, and not when the longest read has ended: reads under way fail.
    pub now: bool,
}

/// What one erase works with.
struct Work<'a> {
    snapshot: &'a Snapshot,
    list: Vec<String>,
    keys: Arc<HashSet<String>>,
    spec: ReadSpec,
    pages: Arc<PageCache>,
    options: &'a EraseOptions,
    /// Files of the snapshot's table that were rewritten, by their paths: one may be pinned several times.
    rewritten: Mutex<HashMap<String, Arc<Rewritten>>>,
}

/// What became of a file.
#[derive(Debug, Clone)]
struct Rewritten {
    /// Its rows without those of the keys; no file when none are left.
    added: Vec<FileAdd>,
    rows_removed: u64,
}

/// Takes all rows of some keys out of a state and of all forks that come from it, and marks the keys there so that none of our writers
/// brings them back.
///
/// # Errors
/// The archive can't be read ([`alluvium_log::ArchiveUnreachable`]): nothing was changed, unless that happened on the way. A file is damaged,
/// or can't be rewritten without a loss; others were faster every time ([`ErrorKind::Conflict`]). The keys are marked by then: run
/// it again.
#[tracing::instrument(level = "info", skip_all, fields(state = snapshot.log().name(), keys = keys.len(), basis = snapshot.log().state().version, commit = tracing::field::Empty), err(level = "debug"))]
pub async fn erase(
    snapshot: &Snapshot,
    keys: &[String],
    options: &EraseOptions,
) -> Result<EraseReceipt> {
    let mut receipt = erase_alone(snapshot, keys, options).await?;
    // After the keys are marked, so that no fork comes later that has them.
    for fork in forks::forks_of(snapshot).await? {
        receipt.forks.extend(forks::erase_fork(snapshot, &fork, keys, options).await?);
    }
    let until = receipt.forks.iter().filter_map(|fork| fork.nothing_left_after_ms).max();
    receipt.nothing_left_after_ms = receipt.nothing_left_after_ms.max(until);
    Ok(receipt)
}

/// The same, of one state.
async fn erase_alone(
    snapshot: &Snapshot,
    keys: &[String],
    options: &EraseOptions,
) -> Result<EraseReceipt> {
    options.materialize.fold.validate()?;
    let work = Work::new(snapshot, keys, options)?;
    let log = snapshot.log();
    let context = |error: Error| error.context(format!("erasing keys of {}", log.name()));
    work.reach_archive().await.map_err(context)?;
    let marked = log.mark_erased(&work.list).await?;
    let mut receipt = EraseReceipt::new(log.name(), log.clock().now_ms(), marked);
    for _ in 0..MAX_ATTEMPTS {
        work.erase_log(&mut receipt).await.map_err(context)?;
        work.erase_archive(&mut receipt).await.map_err(context)?;
        let begun = work.erase_snapshot(&mut receipt).await.map_err(context)?;
        if !work.settle_archive(begun).await.map_err(context)? {
            continue;
        }
        if log.note_erased(begun, receipt.has_changed()).await.map_err(context)? {
            work.sweep(&mut receipt).await.map_err(context)?;
            tracing::Span::current().record("commit", log.state().version);
            return Ok(receipt);
        }
    }
    Err(context(Error::new(
        ErrorKind::Conflict,
        format!(
            "others erased other keys, or changed the archive, {MAX_ATTEMPTS} times meanwhile: the keys are marked, and may still be there; run it again"
        ),
    )))
}

impl<'a> Work<'a> {
    fn new(snapshot: &'a Snapshot, keys: &[String], options: &'a EraseOptions) -> Result<Self> {
        if keys.is_empty() || keys.len() > MAX_KEYS {
            return Err(Error::invalid(format!(
                "{} keys were given to be erased: give 1 to {MAX_KEYS} at once; nothing was changed",
                keys.len()
            )));
        }
        let filter =
            RowFilter { keys: KeyFilter::keys(keys.iter().cloned()), ..RowFilter::default() };
        Ok(Self {
            snapshot,
            list: keys.to_vec(),
            keys: Arc::new(keys.iter().cloned().collect()),
            spec: ReadSpec { payload: Vec::new(), filter },
            pages: PageCache::new(PAGE_BYTES),
            options,
            rewritten: Mutex::default(),
        })
    }

    fn log(&self) -> &Log {
        self.snapshot.log()
    }

    /// The number under which the log says that an erase was begun.
    fn begun(&self) -> i64 {
        self.log().state().transaction(ERASE_APP_ID).unwrap_or(0)
    }

    /// How many rows of the keys a file has.
    async fn rows_in(&self, table: &Table, file: &Arc<DataFile>) -> Result<u64> {
        let footers = &self.options.materialize.footers;
        let found = read_keys(table, file, &self.spec, footers, &self.pages).await?;
        Ok(found.iter().map(|batch| batch.num_rows() as u64).sum())
    }

    /// The files that have rows of the keys.
    async fn holders(
        &self,
        table: &Table,
        files: impl Iterator<Item = &Arc<DataFile>>,
    ) -> Result<Vec<Arc<DataFile>>> {
        let maybe: Vec<Arc<DataFile>> =
            files.filter(|file| self.spec.filter.may_match(file)).cloned().collect();
        let found: Vec<Option<Arc<DataFile>>> = stream::iter(maybe)
            .map(|file| {
                async move {
                        Ok::<_, Error>((self.rows_in(table, &file).await? > 0).then_some(file))
                    }
                    .boxed()
            })
            .buffered(LOOK_CONCURRENCY)
            .try_collect()
            .await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Rows without those of the keys; `counts` takes those that stay and those that go.
    fn without(&self, rows: BatchStream, counts: &Arc<Mutex<(u64, u64)>>) -> BatchStream {
        let (keys, counts) = (self.keys.clone(), counts.clone());
        let kept = rows.map(move |batch| {
            let batch = batch?;
            let kept = without(&batch, &keys)?;
            let mut counts = counts.lock();
            counts.0 += kept.num_rows() as u64;
            counts.1 += (batch.num_rows() - kept.num_rows()) as u64;
            Ok(kept)
        });
        kept.try_filter(|batch| std::future::ready(batch.num_rows() > 0)).boxed()
    }
}

fn without(batch: &RecordBatch, keys: &HashSet<String>) -> Result<RecordBatch> {
    let column = batch
        .column_by_name(STATE_KEY)
        .ok_or_else(|| Error::internal("a row of a file has no key"))?
        .as_string::<i32>();
    let stays: BooleanArray =
        (0..column.len()).map(|row| Some(!keys.contains(column.value(row)))).collect();
    if stays.true_count() == batch.num_rows() {
        return Ok(batch.clone());
    }
    Ok(filter_record_batch(batch, &stays)?)
}

/// Makes sure that a rewritten file lost the rows of the keys and no other.
fn check_count(file: &DataFile, (kept, removed): (u64, u64)) -> Result<()> {
    match file.stats.rows {
        Some(rows) if rows != kept + removed => Err(Error::corrupt(format!(
            "the file {} has {} rows, and its statistics say {rows}: it was not rewritten",
            file.add.path,
            kept + removed
        ))),
        _ => Ok(()),
    }
}
