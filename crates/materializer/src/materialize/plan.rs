//! What an attempt writes: the whole log folded anew, the changes merged into the base or laid beside it, or small files joined.

use std::sync::Arc;

use alluvium_log::{DataFile, Log, ReadSpec, Result, RowFilter};
use futures::{StreamExt, TryStreamExt, stream};

use super::{BASE_PER_RUN_ROWS, Change, MaterializeOptions, Plan, Work};
use crate::bounds::{FileBounds, chunks};
use crate::effect::{drop_ineffective, may_be_late};
use crate::files::FileWriter;
use crate::fold::{BatchStream, FoldInput, SortedInput, fold, merge};
use crate::inputs::{beside_fold_bytes, file_inputs, stream_in_windows, window_rows};
use crate::ranges::{Ranges, merge_ranges};
use crate::snapshot::{BASE, RUN, SnapshotState, rows_of, snapshot_file_schema};
use crate::tombstones::Forgetting;

/// A new run takes in the existing ones with up to this many times its rows, so that their sizes grow geometrically.
const RUN_GROWTH: u64 = 4;

pub(super) fn tail_rows(work: &Work) -> u64 {
    work.tail.iter().map(|file| rows_of(file)).sum()
}

fn tail_inputs(log: &Log, work: &Work, options: &MaterializeOptions) -> Vec<FoldInput> {
    file_inputs(log.table(), &work.tail, &work.spec, &options.footers, &options.fold)
}

async fn fold_tail(log: &Log, work: &Work, options: &MaterializeOptions) -> Result<BatchStream> {
    let inputs = tail_inputs(log, work, options);
    fold(work.ranking.clone(), work.spec.schema(), inputs, &options.fold).await
}

fn writer(log: &Log, work: &Work, tier: &'static str) -> FileWriter {
    FileWriter {
        table: work.table.clone(),
        log: log.clone(),
        schema: snapshot_file_schema(&work.definition.stored_fields()),
        tier,
        log_commit: work.to,
        run_id: format!("{:020}-{:016x}", work.to, alluvium_log::random::<u64>()),
    }
}

pub(super) async fn plan_rebuild(
    log: &Log,
    work: &Work,
    options: &MaterializeOptions,
) -> Result<Plan> {
    let mut inputs = tail_inputs(log, work, options);
    if let Some((table, _)) = work.base.table() {
        let files: Vec<Arc<DataFile>> = work.base.files().cloned().collect();
        let spec = work.spec_of_all();
        inputs.extend(file_inputs(table, &files, &spec, &options.footers, &options.fold));
    }
    let winners = fold(work.ranking.clone(), work.spec.schema(), inputs, &options.fold).await?;
    let winners = Forgetting::of_some(work.forgetting.as_ref(), winners);
    let added = writer(log, work, BASE).write(chunks(winners, work.bounds(options)?)).await?;
    Ok(Plan {
        change: Change::Rebuilt,
        added,
        removed: work.before.files().cloned().collect(),
        stale_keys: None,
    })
}

pub(super) async fn plan_increment(
    log: &Log,
    work: &Work,
    options: &MaterializeOptions,
) -> Result<Plan> {
    let count = tail_rows(work);
    let mut winners = fold_tail(log, work, options).await?;
    let mut stale_keys = None;
    if !may_be_late(&work.tail, &work.before, work.definition.order_by) {
        stale_keys = Some(0);
    } else if count <= options.layout.lookup_rows {
        let batches: Vec<_> = winners.try_collect().await?;
        let (kept, stale) =
            drop_ineffective(batches, &work.before, &work.definition, &work.ranking, options)
                .await?;
        if kept.is_empty() && work.forgetting.is_none() {
            return Ok(Plan {
                change: Change::ProgressOnly,
                added: Vec::new(),
                removed: Vec::new(),
                stale_keys: Some(stale),
            });
        }
        stale_keys = Some(stale);
        winners = stream::iter(kept.into_iter().map(Ok)).boxed();
    }
    let base = work.before.base();
    let runs = work.before.runs();
    let base_rows: u64 = base.iter().map(|file| rows_of(file)).sum();
    let run_rows: u64 = runs.iter().map(|file| rows_of(file)).sum();
    let is_small = base_rows + run_rows + count <= options.layout.small_state_rows;
    // A tombstone goes only where all rows of its key come together.
    let is_all = is_small || work.forgetting.is_some();
    if is_all || (run_rows + count).saturating_mul(BASE_PER_RUN_ROWS) > base_rows {
        let changes = with_runs(work, winners, &runs, options);
        let ranges = work.ranges(changes, options)?;
        let ranking = work.ranking.clone();
        let merged = merge_ranges(&ranges, ranking, options.fold.batch_rows);
        let added = writer(log, work, BASE).write(merged).await?;
        let mut removed = ranges.touched();
        removed.extend(runs);
        return Ok(Plan { change: Change::Merged, added, removed, stale_keys });
    }
    let taken = runs_to_take(runs, count);
    let run = with_runs(work, winners, &taken, options);
    let added = writer(log, work, RUN).write(chunks(run, work.bounds(options)?)).await?;
    Ok(Plan { change: Change::Run, added, removed: taken, stale_keys })
}

/// Joins small files of the base with their neighbours; no row changes.
pub(super) async fn plan_join(
    log: &Log,
    work: &Work,
    options: &MaterializeOptions,
) -> Result<Plan> {
    let ranges = work.ranges(stream::empty().boxed(), options)?.joining();
    let merged = merge_ranges(&ranges, work.ranking.clone(), options.fold.batch_rows);
    let added = writer(log, work, BASE).write(merged).await?;
    Ok(Plan { change: Change::Joined, added, removed: ranges.touched(), stale_keys: Some(0) })
}

/// About how much one file of the snapshot holds.
pub(super) fn bounds_of(
    log: &Log,
    before: &SnapshotState,
    tail: &[Arc<DataFile>],
    options: &MaterializeOptions,
) -> Result<FileBounds> {
    let target = log.maintenance_settings()?.target_file_bytes;
    let bounds = FileBounds::new(options.layout.file_rows, &options.fold);
    Ok(bounds.aimed(target, &options.fold, before.files().chain(tail)))
}

impl Work {
    /// What to read of snapshot files: every row.
    fn spec_of_all(&self) -> ReadSpec {
        ReadSpec { payload: self.spec.payload.clone(), filter: RowFilter::default() }
    }

    /// About how much one file holds.
    fn bounds(&self, options: &MaterializeOptions) -> Result<FileBounds> {
        bounds_of(&self.log, &self.before, &self.tail, options)
    }

    /// The base, with changes that are to be merged into it.
    fn ranges(&self, changes: BatchStream, options: &MaterializeOptions) -> Result<Ranges> {
        let base = (self.before.base(), self.bounds(options)?);
        let (table, spec) = (self.table.clone(), self.spec_of_all());
        let ranges =
            Ranges::new(table, base, spec, changes, &options.fold, options.footers.clone());
        Ok(ranges.forgetting(self.forgetting.clone()))
    }
}

/// The winners together with the rows of some runs.
fn with_runs(
    work: &Work,
    winners: BatchStream,
    runs: &[Arc<DataFile>],
    options: &MaterializeOptions,
) -> BatchStream {
    let spec = work.spec_of_all();
    let mut inputs = vec![SortedInput::Stream(winners)];
    let window_rows = window_rows(runs, runs.len(), beside_fold_bytes(&options.fold));
    inputs.extend(runs.iter().map(|file| {
        let rows = stream_in_windows(&work.table, file, &spec, window_rows, &options.footers);
        SortedInput::Stream(rows)
    }));
    merge(work.ranking.clone(), spec.schema(), inputs, options.fold.batch_rows)
}

/// The existing runs that a new run of so many rows takes in: the small ones, smallest first.
fn runs_to_take(mut runs: Vec<Arc<DataFile>>, new_rows: u64) -> Vec<Arc<DataFile>> {
    runs.sort_by_key(|file| rows_of(file));
    let mut rows = new_rows;
    let mut taken = Vec::new();
    for run in runs {
        if rows_of(&run) > rows.saturating_mul(RUN_GROWTH) {
            break;
        }
        rows += rows_of(&run);
        taken.push(run);
    }
    taken
}
