//! Tombstones below the floor of a state, which no change may come after any more: the snapshot is made without them.
//!
//! A snapshot that folds the log up to a commit has every winner of it but the tombstones at or below the floor that the log had with
//! that commit, however it was made: that is what [`Forgetting`] leaves out, and what `verify` compares with.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use alluvium_log::{DELETE, DataFile, Error, FooterCache, OrderBy, ReadSpec, Result, RowFilter};
use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use futures::{StreamExt, TryStreamExt};

use crate::fold::{BatchStream, FoldSettings, fold};
use crate::inputs::file_input;
use crate::snapshot::SnapshotState;

/// Leaves tombstones at or below a floor out of winners, and counts them.
#[derive(Debug, Clone)]
pub(crate) struct Forgetting {
    /// In microseconds since 1970.
    pub(crate) floor: i64,
    forgotten: Arc<Forgotten>,
}

/// What was left out: how many, and the greatest version and event time.
#[derive(Debug)]
struct Forgotten {
    count: AtomicU64,
    version: AtomicI64,
    time: AtomicI64,
}

impl Forgetting {
    pub(crate) fn below(floor: i64) -> Self {
        let forgotten = Forgotten {
            count: AtomicU64::new(0),
            version: AtomicI64::new(i64::MIN),
            time: AtomicI64::new(i64::MIN),
        };
        Self { floor, forgotten: Arc::new(forgotten) }
    }

    /// How many were left out so far.
    pub(crate) fn count(&self) -> u64 {
        self.forgotten.count.load(Ordering::Relaxed)
    }

    /// The greatest version and the greatest event time of what was left out, if anything was.
    pub(crate) fn bounds(&self) -> Option<(i64, i64)> {
        let Forgotten { version, time, .. } = &*self.forgotten;
        let bounds = (version.load(Ordering::Relaxed), time.load(Ordering::Relaxed));
        (self.count() > 0).then_some(bounds)
    }

    /// The winners that stay. Each must be the winner of all rows of its key: an older one that it beats would come up instead.
    pub(crate) fn of(&self, winners: BatchStream) -> BatchStream {
        let own = self.clone();
        winners
            .map(move |batch| own.kept(batch?))
            .try_filter(|batch| std::future::ready(batch.num_rows() > 0))
            .boxed()
    }

    /// The same where something may be left out, else as they are.
    pub(crate) fn of_some(this: Option<&Self>, winners: BatchStream) -> BatchStream {
        match this {
            None => winners,
            Some(forgetting) => forgetting.of(winners),
        }
    }

    fn kept(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let [_, versions, times, operations, ..] = batch.columns() else {
            return Err(Error::internal("a batch lacks the columns of a fold"));
        };
        let times = times.as_primitive::<TimestampMicrosecondType>();
        let versions = versions.as_primitive::<Int64Type>();
        let operations = operations.as_string::<i32>();
        let is_gone = |row| times.value(row) <= self.floor && operations.value(row) == DELETE;
        let gone = (0..batch.num_rows()).filter(|row| is_gone(*row)).count();
        if gone == 0 {
            return Ok(batch);
        }
        let Forgotten { count, version, time } = &*self.forgotten;
        for row in (0..batch.num_rows()).filter(|row| is_gone(*row)) {
            version.fetch_max(versions.value(row), Ordering::Relaxed);
            time.fetch_max(times.value(row), Ordering::Relaxed);
        }
        count.fetch_add(gone as u64, Ordering::Relaxed);
        let kept: BooleanArray = (0..batch.num_rows()).map(|row| Some(!is_gone(row))).collect();
        Ok(filter_record_batch(&batch, &kept)?)
    }
}

/// The tombstones that a snapshot would be made without if the floor were this one: only keys and what decides are read, and of a
/// snapshot that has none by its files' tags nothing.
pub(crate) async fn count_below(
    snapshot: &SnapshotState,
    floor: i64,
    settings: &FoldSettings,
    footers: &Arc<FooterCache>,
) -> Result<u64> {
    let is_concerned = |file: &Arc<DataFile>| may_hold_below(file, floor);
    let Some((table, _)) = snapshot.table().filter(|_| snapshot.files().any(is_concerned)) else {
        return Ok(0);
    };
    // What a run holds may hide a row of the base.
    let has_runs = !snapshot.runs().is_empty();
    let spec = ReadSpec { payload: Vec::new(), filter: RowFilter::default() };
    let files = snapshot.files().filter(|file| has_runs || is_concerned(file));
    let inputs = files.map(|file| file_input(table, file, &spec, footers)).collect();
    let winners = fold(OrderBy::EventTime, spec.schema(), inputs, settings).await?;
    let forgetting = Forgetting::below(floor);
    let mut kept = forgetting.of(winners);
    while kept.try_next().await?.is_some() {}
    Ok(forgetting.count())
}

/// Whether a file of a snapshot may hold tombstones at or below a floor.
pub(crate) fn may_hold_below(file: &DataFile, floor: i64) -> bool {
    crate::snapshot::least_tombstone(file).is_some_and(|least| least <= floor)
}
