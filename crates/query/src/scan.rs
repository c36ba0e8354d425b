//! Scans: the live rows at a point, in order of keys, as one stream per range of keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use alluvium_log::{
    DELETE, DataFile, Hold, KeyFilter, OP_TYPE, OrderBy, ReadHints, ReadSpec, Result, RowFilter,
    STATE_KEY, Table, holds_only_upserts,
};
use alluvium_materializer::{
    BatchStream, SnapshotState, SortedInput, file_input, file_stream, file_stream_with, fold,
    least_key, merge_partly, supersede,
};
use arrow::array::{Array, AsArray, RecordBatch, StringArray};
use arrow::array::{ArrayRef, StructArray, new_null_array};
use arrow::compute::filter_record_batch;
use arrow::compute::kernels::cmp::neq;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use crate::anew::Part;
use crate::basis::Basis;
use crate::point::Point;
use crate::reader::Reader;
use crate::tail::Tail;

/// Winners of a tail that are kept in memory so that several partitions can share them.
const SHARED_TAIL_ROWS: u64 = 1 << 20;

/// A first scan folds more rows of a tail than these as they come: to keep them for later takes three times as long.
const LONG_TAIL_ROWS: u64 = 1 << 18;

/// Decoded bytes per byte of a file, about.
const EXPANSION: u64 = 5;

/// Rows of some files; a file that doesn't tell counts as very many.
pub(crate) fn log_rows(files: &[Arc<DataFile>]) -> u64 {
    files
        .iter()
        .fold(0_u64, |sum, file| sum.saturating_add(file.stats.rows.unwrap_or(u64::from(u32::MAX))))
}

/// What a scan reads: for plans and for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanSources {
    /// The version of the snapshot that is the base; -1 for none.
    pub snapshot_version: i64,
    /// The log commit that the base folds.
    pub snapshot_commit: i64,
    /// Base files.
    pub base_files: usize,
    /// Run files.
    pub run_files: usize,
    /// Log files beside them.
    pub log_files: usize,
    /// How many of these lie in the archive.
    pub archived_files: usize,
}

/// What a scan is asked for, beside its keys.
#[derive(Debug, Clone)]
pub(crate) struct Scan {
    pub(crate) point: Point,
    pub(crate) payload: Vec<FieldRef>,
    pub(crate) hints: ReadHints,
}

impl Reader {
    /// The live rows at a point of a basis, in ascending order of keys: `fold_schema(payload)`, deleted keys left out.
    ///
    /// One stream per partition, of ranges of keys that follow each other; there may be fewer than asked for. `payload` is
    /// empty, or `state_value` with any of its fields.
    pub async fn scan(
        &self,
        basis: &Basis,
        point: Point,
        keys: KeyFilter,
        payload: Vec<FieldRef>,
        partitions: usize,
    ) -> Result<Vec<BatchStream>> {
        self.scan_with(basis, point, keys, payload, &ReadHints::default(), partitions).await
    }

    /// The same, leaving out of the snapshot's files what nobody looks at. A column that stays unread comes as zeros or
    /// empty texts; rows outside of the bounds may come all the same.
    #[tracing::instrument(name = "scan", level = "debug", skip_all, fields(state = self.name(), basis = basis.commit(), as_of = %point), err(level = "debug"))]
    pub(crate) async fn scan_with(
        &self,
        basis: &Basis,
        point: Point,
        keys: KeyFilter,
        payload: Vec<FieldRef>,
        hints: &ReadHints,
        partitions: usize,
    ) -> Result<Vec<BatchStream>> {
        basis.check(point)?;
        let snapshot = self.snapshot_for(basis, point).await?;
        let mut scan = Scan { point, payload, hints: hints.clone() };
        let may_go = snapshot.table().is_some() && snapshot.version() != basis.snapshot.version();
        if may_go {
            // By its keys a scan goes on from another base.
            scan.hints.unread.retain(|name| *name != STATE_KEY);
        }
        let parts = self.scan_from(basis, &snapshot, &scan, keys, partitions).await?;
        let streams = parts.into_iter().map(|(range, rows)| match may_go {
            false => rows,
            true => Part {
                reader: self.clone(),
                basis: basis.clone(),
                scan: scan.clone(),
                base: snapshot.clone(),
                range,
                rows,
                last: None,
            }
            .into_stream(),
        });
        Ok(streams.collect())
    }

    /// The parts of a scan that begins with a snapshot, each with its keys.
    pub(crate) async fn scan_from(
        &self,
        basis: &Basis,
        snapshot: &SnapshotState,
        scan: &Scan,
        keys: KeyFilter,
        partitions: usize,
    ) -> Result<Vec<(KeyFilter, BatchStream)>> {
        let Scan { point, payload, hints } = scan;
        let hold = self.hold_for(basis, snapshot);
        let filter = tail_filter(basis, *point, snapshot, &keys);
        let spec = ReadSpec { payload: payload.clone(), filter };
        let mut plan = ScanPlan::new(self, snapshot, &spec);
        let tail_files = self.log_files(basis, &spec.filter).await?;
        plan.take(hints, &tail_files, basis.definition.order_by);
        let tail = self.tail_of(basis, *point, &spec).await?;
        let ranges = match &tail {
            TailRows::Streamed(_) => vec![keys],
            TailRows::Shared(_) => plan.ranges(&keys, partitions),
        };
        let order_by = basis.definition.order_by;
        let batch_rows = self.inner.options.fold.batch_rows;
        let schema = spec.schema();
        let mut tail = Some(tail);
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges {
            let mut inputs = plan.inputs(&range);
            match &mut tail {
                Some(TailRows::Shared(batches)) => {
                    let rows = rows_in_range(batches, &range)?;
                    if !rows.is_empty() {
                        inputs.push(SortedInput::Batches(rows));
                    }
                }
                other => {
                    if let Some(TailRows::Streamed(rows)) = other.take() {
                        inputs.push(SortedInput::Stream(rows));
                    }
                }
            }
            let winners = match plan.has_unread_keys() {
                true => concatenated(inputs),
                false => merge_partly(order_by, schema.clone(), inputs, batch_rows, &hints.unread),
            };
            parts.push((range, live_rows(winners, hold.clone())));
        }
        Ok(parts)
    }

    /// What [`Reader::scan`] would read.
    pub async fn scan_sources(
        &self,
        basis: &Basis,
        point: Point,
        keys: &KeyFilter,
    ) -> Result<ScanSources> {
        basis.check(point)?;
        let snapshot = self.snapshot_for(basis, point).await?;
        let filter = tail_filter(basis, point, &snapshot, keys);
        let wanted = RowFilter { keys: keys.clone(), ..RowFilter::default() };
        let files = self.log_files(basis, &filter).await?;
        let count =
            |files: Vec<Arc<DataFile>>| files.iter().filter(|file| wanted.may_match(file)).count();
        Ok(ScanSources {
            snapshot_version: snapshot.version(),
            snapshot_commit: snapshot.log_commit(),
            base_files: count(snapshot.base()),
            run_files: count(snapshot.runs()),
            log_files: files.len(),
            archived_files: files.iter().filter(|file| file.is_archived()).count(),
        })
    }

    /// The winners among the log rows that the base does not hold.
    async fn tail_of(&self, basis: &Basis, point: Point, spec: &ReadSpec) -> Result<TailRows> {
        if point.is_latest()
            && !self.passes_tail(basis).await?
            && let Some(sorted) = self.sorted_tail(basis).await?
        {
            let projected = sorted
                .iter()
                .map(|batch| project(batch, &spec.schema()))
                .collect::<Result<Vec<_>>>()?;
            return Ok(TailRows::Shared(projected));
        }
        let files = self.log_files(basis, &spec.filter).await?;
        let rows = log_rows(&files);
        let stored = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.add.size));
        let in_memory = usize::try_from(stored.saturating_mul(EXPANSION)).unwrap_or(usize::MAX);
        let fits = rows <= SHARED_TAIL_ROWS && in_memory <= self.inner.options.tail_bytes;
        let inputs = files
            .iter()
            .map(|file| file_input(self.log_table(), file, spec, self.footers()))
            .collect();
        let settings = &self.inner.options.fold;
        let folded =
            fold(basis.definition.order_by, spec.schema(), inputs, settings).boxed().await?;
        if fits {
            return Ok(TailRows::Shared(folded.try_collect().await?));
        }
        Ok(TailRows::Streamed(folded))
    }

    /// Whether a scan leaves the tail where it is: when much of it is not in memory, and no scan has come by before.
    async fn passes_tail(&self, basis: &Basis) -> Result<bool> {
        if self.inner.has_passed_tail.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let loaded = self.inner.tail.read().await.as_ref().map_or(-1, Tail::to);
        let filter = RowFilter {
            after_commit: Some(basis.snapshot.log_commit().max(loaded)),
            up_to_commit: Some(basis.commit()),
            ..RowFilter::default()
        };
        let is_long = log_rows(&self.log_files(basis, &filter).await?) > LONG_TAIL_ROWS;
        Ok(is_long && !self.inner.has_passed_tail.swap(true, Ordering::Relaxed))
    }
}

enum TailRows {
    /// In memory, sorted, one row per key: every partition takes its range.
    Shared(Vec<RecordBatch>),
    /// Too many for that: one partition.
    Streamed(BatchStream),
}

fn tail_filter(
    basis: &Basis,
    point: Point,
    snapshot: &SnapshotState,
    keys: &KeyFilter,
) -> RowFilter {
    RowFilter {
        keys: keys.clone(),
        after_commit: Some(snapshot.log_commit()),
        ..point.filter(basis.commit())
    }
}

/// The snapshot's files as a scan reads them.
struct ScanPlan {
    table: Option<Arc<Table>>,
    base: Vec<Arc<DataFile>>,
    runs: Vec<Arc<DataFile>>,
    payload: Vec<FieldRef>,
    /// What need not be read of base files.
    hints: ReadHints,
    /// Every row beside the base is greater than all of its rows.
    is_beaten: bool,
    footers: Arc<alluvium_log::FooterCache>,
}

impl ScanPlan {
    fn new(reader: &Reader, snapshot: &SnapshotState, spec: &ReadSpec) -> Self {
        Self {
            table: snapshot.table().map(|(table, _)| table.clone()),
            base: snapshot.base(),
            runs: snapshot.runs(),
            payload: spec.payload.clone(),
            hints: ReadHints::default(),
            is_beaten: false,
            footers: reader.footers().clone(),
        }
    }

    /// Takes the hints that don't change which row wins.
    fn take(&mut self, hints: &ReadHints, tail: &[Arc<DataFile>], order_by: OrderBy) {
        let overlay: Vec<_> = self.runs.iter().chain(tail).cloned().collect();
        let is_ours = self.base.iter().all(|file| file.is_sorted());
        let is_beaten = supersede(&overlay, &self.base, order_by);
        if is_ours && overlay.is_empty() {
            self.hints.unread.clone_from(&hints.unread);
        } else if is_ours && is_beaten {
            // Rows are merged by their keys, and whatever lies beside the base wins: by what need not be known of the base.
            self.is_beaten = true;
            let unread = hints.unread.iter().filter(|name| **name != STATE_KEY);
            self.hints.unread = unread.copied().collect();
        }
        // A base row that is left out must not let an older one beside it win.
        if is_beaten {
            self.hints.bounds.clone_from(&hints.bounds);
        }
    }

    /// Whether the rows come without their keys, so that there is nothing to merge by.
    fn has_unread_keys(&self) -> bool {
        self.hints.unread.contains(&STATE_KEY)
    }

    /// Ranges of keys with about as many rows each, along the boundaries of base files.
    fn ranges(&self, keys: &KeyFilter, partitions: usize) -> Vec<KeyFilter> {
        if matches!(keys, KeyFilter::Keys(_)) || partitions < 2 {
            return vec![keys.clone()];
        }
        let wanted = RowFilter { keys: keys.clone(), ..RowFilter::default() };
        let base: Vec<_> = self.base.iter().filter(|file| wanted.may_match(file)).collect();
        let rows_of = |file: &Arc<DataFile>| file.stats.rows.unwrap_or(1).max(1);
        let total: u64 = base.iter().map(|file| rows_of(file)).sum();
        let share = total.div_ceil(partitions as u64).max(1);
        let mut cuts: Vec<String> = Vec::new();
        let mut rows = 0;
        for file in base {
            if rows >= share * (cuts.len() as u64 + 1)
                && let Some(least) = least_key(file)
            {
                cuts.push(least.to_owned());
            }
            rows += rows_of(file);
        }
        let mut from = None;
        let mut ranges = Vec::with_capacity(cuts.len() + 1);
        for cut in cuts {
            ranges.push(KeyFilter::Range { from: from.take(), to: Some(cut.clone()) });
            from = Some(cut);
        }
        ranges.push(match from {
            None => KeyFilter::All,
            from => KeyFilter::Range { from, to: None },
        });
        ranges.iter().map(|range| range.intersect(keys)).collect()
    }

    /// The base as one sorted input, and each run as another.
    fn inputs(&self, range: &KeyFilter) -> Vec<SortedInput> {
        let Some(table) = &self.table else { return Vec::new() };
        let filter = RowFilter { keys: range.clone(), ..RowFilter::default() };
        let spec = ReadSpec { payload: self.payload.clone(), filter };
        let wanted = |file: &&Arc<DataFile>| spec.filter.may_match(file);
        let base: Vec<BatchStream> = self
            .base
            .iter()
            .filter(wanted)
            .map(|file| file_stream_with(table, file, &spec, &self.hints, &self.footers))
            .collect();
        let mut inputs = Vec::with_capacity(1 + self.runs.len());
        if !base.is_empty() {
            let rows = stream::iter(base).flatten().boxed();
            // Files that another engine has rewritten are checked row by row.
            let ours = self.base.iter().all(|file| file.is_sorted());
            inputs.push(match ours {
                true if self.is_beaten => SortedInput::Beaten(rows),
                true => SortedInput::Unique(rows),
                false => SortedInput::Stream(rows),
            });
        }
        for run in self.runs.iter().filter(wanted) {
            let rows = file_stream(table, run, &spec, &self.footers);
            let ours = run.is_sorted();
            inputs.push(if ours { SortedInput::Unique(rows) } else { SortedInput::Stream(rows) });
        }
        inputs
    }
}

/// The one input that there is, as it comes.
fn concatenated(inputs: Vec<SortedInput>) -> BatchStream {
    let rows = inputs.into_iter().map(|input| match input {
        SortedInput::Batches(batches) => stream::iter(batches.into_iter().map(Ok)).boxed(),
        SortedInput::Stream(rows) | SortedInput::Unique(rows) | SortedInput::Beaten(rows) => rows,
    });
    stream::iter(rows).flatten().boxed()
}

/// The rows of sorted batches whose keys a filter wants.
fn rows_in_range(batches: &[RecordBatch], range: &KeyFilter) -> Result<Vec<RecordBatch>> {
    if *range == KeyFilter::All {
        return Ok(batches.to_vec());
    }
    let mut rows = Vec::new();
    for batch in batches {
        let keys = crate::reader::key_column(batch)?;
        let found = match range {
            KeyFilter::Range { from, to } => {
                let start = from.as_ref().map_or(0, |from| first_not_below(keys, from));
                let end = to.as_ref().map_or(keys.len(), |to| first_not_below(keys, to));
                batch.slice(start, end.saturating_sub(start))
            }
            _ => {
                let wanted = |key: Option<&str>| Some(range.matches(key.unwrap_or_default()));
                filter_record_batch(batch, &keys.iter().map(wanted).collect())?
            }
        };
        if found.num_rows() > 0 {
            rows.push(found);
        }
    }
    Ok(rows)
}

/// The place of the first of some sorted keys that is not below a bound.
fn first_not_below(keys: &StringArray, bound: &str) -> usize {
    let (mut low, mut high) = (0, keys.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if keys.value(middle) < bound { low = middle + 1 } else { high = middle }
    }
    low
}

/// The same rows with fewer columns, or fewer fields of the value.
pub(crate) fn project(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        columns.push(match batch.column_by_name(field.name()) {
            None => new_null_array(field.data_type(), batch.num_rows()),
            Some(column) => project_value(column, field.data_type())?,
        });
    }
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}

fn project_value(column: &ArrayRef, wanted: &DataType) -> Result<ArrayRef> {
    let DataType::Struct(fields) = wanted else { return Ok(column.clone()) };
    if column.data_type() == wanted {
        return Ok(column.clone());
    }
    let whole = column.as_struct();
    if fields.is_empty() {
        return Ok(Arc::new(StructArray::new_empty_fields(column.len(), whole.nulls().cloned())));
    }
    let columns = fields
        .iter()
        .map(|field| match whole.column_by_name(field.name()) {
            None => new_null_array(field.data_type(), column.len()),
            Some(column) => column.clone(),
        })
        .collect();
    Ok(Arc::new(StructArray::try_new(fields.clone(), columns, whole.nulls().cloned())?))
}

/// Leaves out the keys whose winner is a DELETE. What is read is held meanwhile.
fn live_rows(winners: BatchStream, hold: Hold) -> BatchStream {
    winners
        .map(move |batch| {
            let (batch, _) = (batch?, &hold);
            let operations = batch.column_by_name(OP_TYPE).ok_or_else(|| {
                alluvium_log::Error::internal(format!("no {OP_TYPE} beside {STATE_KEY}"))
            })?;
            if holds_only_upserts(operations.as_ref()) {
                return Ok(batch);
            }
            let live = neq(operations, &StringArray::new_scalar(DELETE))?;
            if live.true_count() == batch.num_rows() {
                return Ok(batch);
            }
            Ok(filter_record_batch(&batch, &live)?)
        })
        .try_filter(|batch: &RecordBatch| std::future::ready(batch.num_rows() > 0))
        .boxed()
}
