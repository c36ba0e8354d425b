//! A state on Arrow batches: what everything typed is made of.

use alluvium_log::{
    EpochCommit, KeyFilter, Log, MaintenanceSettings, Receipt, Result, StateDefinition,
};
use alluvium_materializer::{
    BatchStream, CompactOptions, CompactReport, EraseOptions, EraseReceipt, FoldSettings,
    LayoutSettings, MaintainOptions, MaintainReport, MaintainStep, MaterializeOptions,
    MaterializeReport, RetentionReport, Savepoint, SharedFiles, Snapshot, StepOutcome, StopSignal,
    VerifyOptions, VerifyReport, compaction_debt, erase, explain_retention, maintain, materialize,
    tombstones_to_forget, validate_savepoint_name, verify, whole_value,
};
use alluvium_query::{Basis, Lookup, Point, Reader};
use arrow::array::RecordBatch;
use parking_lot::Mutex;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::stats::StateStats;

/// What a state needs to be the store of an application's own data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmbeddedSettings {
    pub(crate) row_cache_bytes: u64,
    pub(crate) epoch_bytes: usize,
    pub(crate) materialize_after_rows: u64,
    pub(crate) tidy_after_commits: u64,
}

/// Merges of another engine this old keep ours in the background off no longer: one day.
const REWRITTEN_LATELY_MS: i64 = 86_400_000;

type Shared = Weak<dyn Any + Send + Sync>;

/// What all handles on one state of a store share beside its tables.
#[derive(Debug, Default)]
struct Embedded {
    /// What typed handles share, by the type of their values.
    typed: Mutex<HashMap<TypeId, Shared>>,
    tidying: AtomicBool,
}

/// A handle on one state. Cheap to clone, and may be shared between tasks and threads.
#[derive(Debug, Clone)]
pub struct RawState {
    log: Log,
    snapshot: Snapshot,
    reader: Reader,
    fold: FoldSettings,
    layout: LayoutSettings,
    settings: EmbeddedSettings,
    embedded: Arc<Embedded>,
}

impl RawState {
    pub(crate) fn new(
        log: Log,
        snapshot: Snapshot,
        reader: Reader,
        fold: FoldSettings,
        layout: LayoutSettings,
        settings: EmbeddedSettings,
    ) -> Self {
        Self { log, snapshot, reader, fold, layout, settings, embedded: Arc::default() }
    }

    pub(crate) fn embedded(&self) -> &EmbeddedSettings {
        &self.settings
    }

    /// What typed handles with values of one type share, while there is one.
    pub(crate) fn typed(&self, values: TypeId) -> Option<Arc<dyn Any + Send + Sync>> {
        self.embedded.typed.lock().get(&values)?.upgrade()
    }

    pub(crate) fn remember_typed(&self, values: TypeId, shared: &Arc<dyn Any + Send + Sync>) {
        self.embedded.typed.lock().insert(values, Arc::downgrade(shared));
    }

    /// Starts a materialization in the background when the tail has grown beyond its bounds and none is running; where it has many
    /// commits, files that are folded are merged afterwards.
    ///
    /// Its failure costs reads time and nothing else; the next commit tries again.
    pub(crate) fn tidy_when_due(&self) {
        if self.embedded.tidying.load(Ordering::Acquire) {
            return;
        }
        let from = self.snapshot.state().log_commit();
        let log = self.log.state();
        let rows = log.files_after(from).filter_map(|file| file.stats.rows).sum::<u64>();
        let commits = log.version.abs_diff(from);
        let EmbeddedSettings { materialize_after_rows, tidy_after_commits, .. } = self.settings;
        let is_long = || rows >= materialize_after_rows || rows > 0 && self.reader.is_tail_long();
        let has_many_rows = materialize_after_rows > 0 && is_long();
        let has_many_commits = tidy_after_commits > 0 && commits >= tidy_after_commits;
        if !has_many_rows && !has_many_commits || self.embedded.tidying.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let state = self.clone();
        self.log.in_background(async move {
            if let Err(error) = state.tidy(has_many_commits).await {
                tracing::warn!(state = %state.name(), %error, "the tail could not be folded in the background");
            }
            state.embedded.tidying.store(false, Ordering::Release);
        });
    }

    async fn tidy(&self, has_many_commits: bool) -> Result<()> {
        // What both merge at once would lie there twice until a merge of ours finds it.
        if !has_many_commits || self.is_rewritten_elsewhere() {
            return self.materialize(false).await.map(drop);
        }
        self.maintain(&[MaintainStep::Materialize, MaintainStep::Compact], false).await.map(drop)
    }

    /// Whether another engine has rewritten files of the log lately, and so may be at it again.
    fn is_rewritten_elsewhere(&self) -> bool {
        let last = self.log.state().rewritten_elsewhere_ms();
        let now = self.log.clock().now_ms();
        last.is_some_and(|last| now.saturating_sub(last) < REWRITTEN_LATELY_MS)
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
        let receipt = self.log.append(changes).await?;
        self.tidy_when_due();
        Ok(receipt)
    }

    /// Begins an epoch of this state alone; see [`Log::epoch`].
    pub fn epoch(&self, app_id: &str, number: i64) -> Result<EpochCommit> {
        self.log.epoch(app_id, number)
    }

    /// Looks a key up at a point.
    pub async fn get(&self, point: Point, key: &str) -> Result<Lookup> {
        let basis = self.reader.basis_by_probe().await?;
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
        materialize(&self.snapshot, &self.materialize_options(rebuild)).await
    }

    fn materialize_options(&self, rebuild: bool) -> MaterializeOptions {
        MaterializeOptions {
            fold: self.fold.clone(),
            rebuild,
            layout: self.layout,
            footers: self.reader.footers().clone(),
        }
    }

    /// Merges the files of days of the log that are over into sorted runs; with `dry_run`, only tells what it would merge.
    pub async fn compact(&self, dry_run: bool) -> Result<CompactReport> {
        let report = self.maintain(&[MaintainStep::Compact], dry_run).await?;
        let outcome = report.steps.into_iter().map(|step| step.outcome).next();
        match outcome {
            Some(StepOutcome::Compacted(report)) => Ok(report),
            _ => Err(alluvium_log::Error::internal("a compaction without a report")),
        }
    }

    /// Keeps the state small: see [`MaintainStep`]. Nothing that can be asked has another answer afterwards; what has expired can't be
    /// asked for any more.
    pub async fn maintain(&self, steps: &[MaintainStep], dry_run: bool) -> Result<MaintainReport> {
        self.maintain_until(steps, dry_run, &StopSignal::default()).await
    }

    /// The same; no further step is begun once it is to stop.
    pub async fn maintain_until(
        &self,
        steps: &[MaintainStep],
        dry_run: bool,
        stop: &StopSignal,
    ) -> Result<MaintainReport> {
        maintain(&self.snapshot, &self.maintain_options(steps, dry_run, stop)).await
    }

    /// The same, leaving the archive alone: every day stays where it is.
    pub async fn maintain_hot(
        &self,
        steps: &[MaintainStep],
        dry_run: bool,
        stop: &StopSignal,
    ) -> Result<MaintainReport> {
        let options = self.maintain_options(steps, dry_run, stop);
        maintain(&self.snapshot, &MaintainOptions { with_archive: false, ..options }).await
    }

    fn maintain_options(
        &self,
        steps: &[MaintainStep],
        dry_run: bool,
        stop: &StopSignal,
    ) -> MaintainOptions {
        MaintainOptions {
            steps: steps.to_vec(),
            materialize: self.materialize_options(false),
            with_archive: true,
            dry_run,
            stop: stop.clone(),
        }
    }

    /// Tells what of the state is kept, what keeps it, what it costs, and what the next run of the job would take away.
    pub async fn explain_retention(&self) -> Result<RetentionReport> {
        explain_retention(&self.snapshot).await
    }

    /// Takes all rows of some keys out of the state, its savepoints and its grid, and marks the keys so that they can't be appended
    /// again. What older versions of the tables have goes with a vacuum when no read can need it; with `now` at once, and reads under
    /// way of older versions fail.
    ///
    /// # Errors
    /// A file can't be rewritten, or others were faster every time. Run it again: what is done stays done.
    pub async fn erase(&self, keys: &[String], now: bool) -> Result<EraseReceipt> {
        let options = EraseOptions { materialize: self.materialize_options(false), now };
        erase(&self.snapshot, keys, &options).await
    }

    /// Lets erased keys be appended again; gives how many of them were erased.
    pub async fn forget_erased(&self, keys: &[String]) -> Result<u64> {
        self.log.forget_erased(keys).await.map(|marked| marked.changed)
    }

    /// Keeps the newest state under a name, whatever is cleaned up: it is materialized, and stays readable as of its commit
    /// until it is released.
    pub async fn create_savepoint(&self, name: &str, note: Option<&str>) -> Result<Savepoint> {
        // Nothing is folded for a name that is refused.
        validate_savepoint_name(name)?;
        self.materialize(false).await?;
        self.snapshot.create_savepoint(name, note).await
    }

    /// The savepoints, the oldest commit first.
    pub async fn savepoints(&self) -> Result<Vec<Arc<Savepoint>>> {
        self.snapshot.refresh().await?;
        self.snapshot.savepoints().await
    }

    /// The snapshots that `snapshot_grid` keeps, the oldest commit first.
    pub async fn grid_snapshots(&self) -> Result<Vec<Arc<Savepoint>>> {
        self.snapshot.refresh().await?;
        self.snapshot.grid_snapshots().await
    }

    /// Lets go of what a savepoint keeps.
    pub async fn release_savepoint(&self, name: &str) -> Result<Savepoint> {
        self.snapshot.release_savepoint(name).await
    }

    /// How long what is kept of the state.
    pub async fn maintenance_settings(&self) -> Result<MaintenanceSettings> {
        self.log.refresh().await?;
        self.log.maintenance_settings()
    }

    /// Changes settings of maintenance by name; see [`Log::set_maintenance`].
    pub async fn set_maintenance(
        &self,
        changes: &[(String, String)],
    ) -> Result<MaintenanceSettings> {
        self.log.set_maintenance(changes).await
    }

    /// Proves that the snapshot is the fold of the log.
    pub async fn verify(&self) -> Result<VerifyReport> {
        let options =
            VerifyOptions { fold: self.fold.clone(), footers: self.reader.footers().clone() };
        verify(&self.snapshot, &options).await
    }

    /// What lies in log and snapshot, told from what is in memory about their files. While there are deleted keys that the next run of the
    /// job forgets, the snapshot's keys are read to count them.
    pub async fn stats(&self) -> Result<StateStats> {
        let basis = self.reader.basis().await?;
        self.stats_of(&basis).await
    }

    /// The same, and what only the rows tell: the whole log is read.
    pub async fn stats_in_depth(&self) -> Result<StateStats> {
        let basis = self.reader.basis().await?;
        let depth = self.depth(&basis).await?;
        Ok(StateStats { depth: Some(depth), ..self.stats_of(&basis).await? })
    }

    async fn stats_of(&self, basis: &Basis) -> Result<StateStats> {
        let options = CompactOptions {
            fold: self.fold.clone(),
            file_rows: self.layout.compacted_file_rows,
            footers: self.reader.footers().clone(),
            up_to_commit: basis
                .snapshot()
                .table()
                .map_or(i64::MAX, |_| basis.snapshot().log_commit()),
            dry_run: true,
        };
        let debt = compaction_debt(&self.log, basis.log(), &options)?;
        let forgetting =
            tombstones_to_forget(&self.snapshot, &self.fold, self.reader.footers()).await?;
        let shared = SharedFiles::of(&self.snapshot).await?;
        let now_ms = self.log.clock().now_ms();
        Ok(StateStats::of(self.name(), basis, (&debt, &forgetting), &shared, now_ms))
    }

    pub(crate) fn fold_settings(&self) -> &FoldSettings {
        &self.fold
    }
}
