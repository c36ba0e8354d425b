//! A state on Arrow batches: what everything typed is made of.

use alluvium_log::{EpochCommit, KeyFilter, Log, Receipt, Result, StateDefinition};
use alluvium_materializer::{
    BatchStream, FoldSettings, LayoutSettings, MaterializeOptions, MaterializeReport, Snapshot,
    VerifyOptions, VerifyReport, materialize, verify, whole_value,
};
use alluvium_query::{Lookup, Point, Reader};
use arrow::array::RecordBatch;
use std::sync::Arc;

use crate::stats::StateStats;

/// A handle on one state. Cheap to clone, and may be shared between tasks and threads.
#[derive(Debug, Clone)]
pub struct RawState {
    log: Log,
    snapshot: Snapshot,
    reader: Reader,
    fold: FoldSettings,
    layout: LayoutSettings,
}

impl RawState {
    pub(crate) fn new(
        log: Log,
        snapshot: Snapshot,
        reader: Reader,
        fold: FoldSettings,
        layout: LayoutSettings,
    ) -> Self {
        Self { log, snapshot, reader, fold, layout }
    }

    /// The state's name.
    pub fn name(&self) -> &str {
        self.log.name()
    }

    /// What the state is: its order and its fields.
    pub fn definition(&self) -> Arc<StateDefinition> {
        self.log.definition()
    }

    /// The log of the state.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The snapshot of the state.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The reader of the state: points, histories, differences, feeds.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Appends changes; resolves when they are durable. See [`Log::append`] for the columns.
    pub async fn append(&self, changes: &RecordBatch) -> Result<Receipt> {
        self.log.append(changes).await
    }

    /// Begins an epoch of this state alone; see [`Log::epoch`].
    pub fn epoch(&self, app_id: &str, number: i64) -> Result<EpochCommit> {
        self.log.epoch(app_id, number)
    }

    /// Looks a key up at a point.
    pub async fn get(&self, point: Point, key: &str) -> Result<Lookup> {
        let basis = self.reader.basis().await?;
        self.reader.get(&basis, point, key).await
    }

    /// The live rows at a point, in order of keys: the columns of a fold, and `state_value`.
    pub async fn scan(&self, point: Point, keys: KeyFilter) -> Result<BatchStream> {
        let basis = self.reader.basis().await?;
        let payload = whole_value(basis.definition());
        let mut streams = self.reader.scan(&basis, point, keys, payload, 1).await?;
        streams.pop().ok_or_else(|| alluvium_log::Error::internal("a scan without a partition"))
    }

    /// Folds the tail of the log into the snapshot; with `rebuild`, the whole log anew.
    pub async fn materialize(&self, rebuild: bool) -> Result<MaterializeReport> {
        let options = MaterializeOptions {
            fold: self.fold.clone(),
            rebuild,
            layout: self.layout,
            footers: self.reader.footers().clone(),
        };
        materialize(&self.snapshot, &options).await
    }

    /// Proves that the snapshot is the fold of the log.
    pub async fn verify(&self) -> Result<VerifyReport> {
        let options =
            VerifyOptions { fold: self.fold.clone(), footers: self.reader.footers().clone() };
        verify(&self.snapshot, &options).await
    }

    /// What lies in log and snapshot.
    pub async fn stats(&self) -> Result<StateStats> {
        let basis = self.reader.basis().await?;
        Ok(StateStats::of(self.name(), &basis))
    }
}
