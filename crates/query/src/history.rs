//! How a state got where it is: every change of a key with its provenance, and the feed of all changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alluvium_log::{
    APPEND_ID, COMMIT, DataFile, EVENT_TIME, Error, Expired, KeyFilter, OP_TYPE, OrderBy, Rank,
    ReadSpec, Result, RowFilter, STATE_KEY, StateDefinition, VERSION, event_time_type, read_file,
    value_field,
};
use alluvium_materializer::{BatchStream, SnapshotState, rank};
use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringArray, UInt32Array,
};
use arrow::compute::kernels::cmp::gt;
use arrow::compute::{concat_batches, filter_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use crate::basis::Basis;
use crate::distinct::distinct;
use crate::point::Point;
use crate::reader::Reader;

/// Rows that are put in order in memory at a time, about.
const WINDOW_ROWS: u64 = 262_144;
const READ_CONCURRENCY: usize = 8;
/// Bytes of a file that count as a row of a window at least.
const BYTES_PER_ROW: u64 = 64;

/// The columns of a history or a feed of changes.
///
/// `state_key, version, event_time, op_type, state_value, commit, writer, app_id, epoch, is_late`: `writer` names the writer that
/// appended the row, `app_id` and `epoch` the epoch if it came with one; `is_late` (history only, null in a feed) says that
/// when the row was committed a later one of its key was there already, so that it never became the state.
pub fn history_schema(definition: &StateDefinition) -> SchemaRef {
    Arc::new(Schema::new(vec![
        Arc::new(Field::new(STATE_KEY, DataType::Utf8, false)),
        Arc::new(Field::new(VERSION, DataType::Int64, false)),
        Arc::new(Field::new(EVENT_TIME, event_time_type(), false)),
        Arc::new(Field::new(OP_TYPE, DataType::Utf8, false)),
        value_field(&definition.stored_fields()),
        Arc::new(Field::new(COMMIT, DataType::Int64, false)),
        Arc::new(Field::new("writer", DataType::Utf8, true)),
        Arc::new(Field::new("app_id", DataType::Utf8, true)),
        Arc::new(Field::new("epoch", DataType::Int64, true)),
        Arc::new(Field::new("is_late", DataType::Boolean, true)),
    ]))
}

/// In which order rows come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrangement {
    /// By key, then in the order of commits.
    ByKey,
    /// In the order of commits, then by key.
    ByCommit,
}

impl Reader {
    /// Every log row of the wanted keys that counts at a point: by key, then in the order of commits.
    ///
    /// # Errors
    /// Rows have expired from the log: then only the changes after some commit can be told, see [`Reader::history_rows_after`].
    pub async fn history_rows(
        &self,
        basis: &Basis,
        keys: KeyFilter,
        point: Point,
    ) -> Result<BatchStream> {
        self.history_rows_after(basis, keys, point, 0).await
    }

    /// The same of the commits after `after` only.
    ///
    /// Once rows have expired, `is_late` is null where that depends on what is gone.
    ///
    /// # Errors
    /// Rows of commits after `after` have expired ([`crate::HistoryExpired`]): the error names the commit after which all are there.
    #[tracing::instrument(name = "history", level = "debug", skip_all, fields(state = self.name(), basis = basis.commit(), as_of = %point, after = after), err(level = "debug"))]
    pub async fn history_rows_after(
        &self,
        basis: &Basis,
        keys: KeyFilter,
        point: Point,
        after: i64,
    ) -> Result<BatchStream> {
        basis.check(point)?;
        let question = || format!("the history after commit {after} at {point}");
        self.check_changes(basis, after, question).await?;
        // What is older decides which rows came late.
        let filter = RowFilter { keys, ..point.filter(basis.commit()) };
        let files = self.inner.log.files_as_they_lie(&basis.log, &filter).await?;
        let windows = key_windows(&files, &filter);
        let rows = self.windows(basis, windows, Arrangement::ByKey);
        if after <= 0 {
            return Ok(rows);
        }
        let shown = rows.map(move |batch| {
            let batch = batch?;
            let commits = batch
                .column_by_name(COMMIT)
                .ok_or_else(|| Error::internal("a history lacks the commits of its rows"))?;
            let later = gt(commits, &Int64Array::new_scalar(after))?;
            Ok(filter_record_batch(&batch, &later)?)
        });
        let with_rows = |batch: &RecordBatch| std::future::ready(batch.num_rows() > 0);
        Ok(shown.try_filter(with_rows).boxed())
    }

    /// The log rows of the commits after `from_commit`, in the order of commits: a feed that can be followed by
    /// asking again after the last commit seen.
    ///
    /// # Errors
    /// Some of them have expired ([`crate::HistoryExpired`]): the error names the commit after which all are there.
    #[tracing::instrument(name = "changes", level = "debug", skip_all, fields(state = self.name(), basis = basis.commit(), after = from_commit), err(level = "debug"))]
    pub async fn changes_rows(&self, basis: &Basis, from_commit: i64) -> Result<BatchStream> {
        if from_commit > basis.commit() {
            basis.check(Point::at_commit(from_commit))?;
        }
        let question = || format!("the changes after commit {from_commit}");
        self.check_changes(basis, from_commit, question).await?;
        let filter = RowFilter {
            after_commit: Some(from_commit),
            up_to_commit: Some(basis.commit()),
            ..RowFilter::default()
        };
        let files = self.inner.log.files_as_they_lie(&basis.log, &filter).await?;
        let windows = commit_windows(&files, &filter);
        Ok(self.windows(basis, windows, Arrangement::ByCommit))
    }

    fn windows(
        &self,
        basis: &Basis,
        windows: Vec<RowFilter>,
        arrangement: Arrangement,
    ) -> BatchStream {
        let hold = self.hold_for(basis, &SnapshotState::none());
        let (reader, basis) = (self.clone(), basis.clone());
        stream::iter(windows)
            .then(move |filter| {
                let _ = &hold;
                let (reader, basis) = (reader.clone(), basis.clone());
                async move { reader.window(&basis, filter, arrangement).await }.boxed()
            })
            .try_filter_map(|batch| std::future::ready(Ok(batch)))
            .boxed()
    }

    async fn window(
        &self,
        basis: &Basis,
        filter: RowFilter,
        arrangement: Arrangement,
    ) -> Result<Option<RecordBatch>> {
        let definition = &basis.definition;
        let append_id: FieldRef = Arc::new(Field::new(APPEND_ID, DataType::Utf8, true));
        let payload = vec![value_field(&definition.stored_fields()), append_id];
        let spec = ReadSpec { payload, filter };
        let files = self.inner.log.files_as_they_lie(&basis.log, &spec.filter).await?;
        let spec = &spec;
        let batches: Vec<Vec<RecordBatch>> = stream::iter(files.clone())
            .map(|file| {
                async move {
                    read_file(self.log_table(), &file, spec, self.footers())
                        .await?
                        .try_collect()
                        .await
                }
                .boxed()
            })
            .buffered(READ_CONCURRENCY)
            .try_collect()
            .await?;
        let batches: Vec<RecordBatch> = batches.into_iter().flatten().collect();
        let rows = distinct(concat_batches(&spec.schema(), &batches)?, &files)?;
        if rows.num_rows() == 0 {
            return Ok(None);
        }
        let rows = arrange(&rows, arrangement, definition.order_by)?;
        let late = match arrangement {
            Arrangement::ByKey => {
                Some(late_rows(&rows, definition.order_by, Expired::of(&basis.log))?)
            }
            Arrangement::ByCommit => None,
        };
        with_provenance(&rows, definition, late).map(Some)
    }
}

/// How much of a window a file takes: its rows, wide ones counted as several.
fn weight(file: &DataFile) -> u64 {
    file.stats.rows.unwrap_or(WINDOW_ROWS).max(file.add.size / BYTES_PER_ROW)
}

/// Ranges of keys whose rows fit into memory together, cut at keys that files begin with.
fn key_windows(files: &[Arc<DataFile>], filter: &RowFilter) -> Vec<RowFilter> {
    let total: u64 = files.iter().map(|file| weight(file)).sum();
    if total <= WINDOW_ROWS || matches!(filter.keys, KeyFilter::Keys(_)) {
        return vec![filter.clone()];
    }
    let starts: BTreeSet<&str> = files
        .iter()
        .flat_map(|file| [file.stats.min_key.as_deref(), file.stats.max_key.as_deref()])
        .flatten()
        .collect();
    let windows = usize::try_from(total / WINDOW_ROWS).unwrap_or(usize::MAX).saturating_add(1);
    let step = starts.len().div_ceil(windows).max(1);
    let cuts = starts.into_iter().skip(step).step_by(step);
    let mut from = None;
    let mut out = Vec::new();
    for cut in cuts {
        out.push(KeyFilter::Range { from: from.take(), to: Some(cut.to_owned()) });
        from = Some(cut.to_owned());
    }
    out.push(KeyFilter::Range { from, to: None });
    out.into_iter()
        .map(|range| RowFilter { keys: range.intersect(&filter.keys), ..filter.clone() })
        .collect()
}

/// Spans of commits whose rows fit into memory together, about.
///
/// A compacted file has rows of many commits, which count as if each of them had as many.
fn commit_windows(files: &[Arc<DataFile>], filter: &RowFilter) -> Vec<RowFilter> {
    // Where the commits of rows aren't known, no commit inside of their span may be told from another.
    if files.iter().any(|file| !file.commits.are_exact()) {
        return vec![filter.clone()];
    }
    let edges: Vec<(i64, f64)> = rows_by_commit(files, filter).into_iter().collect();
    let (mut after, mut gathered, mut rows_each) = (filter.after_commit, 0.0, 0.0);
    let mut out = Vec::new();
    for pair in edges.windows(2) {
        let [(first, change), (next, _)] = pair else { continue };
        rows_each += change;
        let mut commit = *first;
        while commit < *next {
            let room = WINDOW_ROWS as f64 - gathered;
            // A float that is too large for it becomes the greatest integer.
            let fitting = if rows_each > 0.0 { (room / rows_each) as i64 } else { i64::MAX };
            if fitting < 1 && gathered > 0.0 {
                let up_to_commit = Some(commit - 1);
                out.push(RowFilter { after_commit: after, up_to_commit, ..filter.clone() });
                (after, gathered) = (up_to_commit, 0.0);
                continue;
            }
            let taken = fitting.max(1).min(*next - commit);
            commit += taken;
            gathered += rows_each * taken as f64;
        }
    }
    out.push(RowFilter { after_commit: after, ..filter.clone() });
    out
}

/// By how many the rows of a commit are more than those of the commit before, wherever they are others.
fn rows_by_commit(files: &[Arc<DataFile>], filter: &RowFilter) -> BTreeMap<i64, f64> {
    let first = filter.after_commit.map_or(i64::MIN, |after| after.saturating_add(1));
    let last = filter.up_to_commit.unwrap_or(i64::MAX);
    let mut changes = BTreeMap::new();
    for file in files {
        let span = file.commits.span();
        let commits = span.high.saturating_sub(span.low).saturating_add(1).max(1);
        let rows = weight(file) as f64 / commits as f64;
        let (low, high) = (span.low.max(first), span.high.min(last));
        if low <= high {
            *changes.entry(low).or_default() += rows;
            *changes.entry(high.saturating_add(1)).or_default() -= rows;
        }
    }
    changes
}

/// Puts rows in order.
fn arrange(rows: &RecordBatch, arrangement: Arrangement, order_by: OrderBy) -> Result<RecordBatch> {
    let keys = crate::reader::key_column(rows)?;
    let ranks = (0..rows.num_rows()).map(|row| rank(rows, row)).collect::<Result<Vec<_>>>()?;
    let mut order: Vec<usize> = (0..rows.num_rows()).collect();
    order.sort_by(|&a, &b| {
        let by_key = keys.value(a).cmp(keys.value(b));
        let by_commit = ranks[a].commit.cmp(&ranks[b].commit);
        let first = match arrangement {
            Arrangement::ByKey => by_key.then(by_commit),
            Arrangement::ByCommit => by_commit.then(by_key),
        };
        first.then_with(|| ranks[a].compare(&ranks[b], order_by))
    });
    let order = UInt32Array::from_iter_values(order.into_iter().map(|row| row as u32));
    Ok(take_record_batch(rows, &order)?)
}

/// Which rows, by key and in the order of commits, came after a row that outranks them; null where an expired one may have been
/// that row.
fn late_rows(
    rows: &RecordBatch,
    order_by: OrderBy,
    expired: Option<Expired>,
) -> Result<BooleanArray> {
    let order = |rank: &Rank| match order_by {
        OrderBy::EventTime => rank.event_time,
        OrderBy::Version => rank.version,
    };
    let keys = crate::reader::key_column(rows)?;
    let mut late = Vec::with_capacity(rows.num_rows());
    let mut best: Option<Rank> = None;
    for row in 0..rows.num_rows() {
        if row > 0 && keys.value(row) != keys.value(row - 1) {
            best = None;
        }
        let rank = rank(rows, row)?;
        let outranked = best
            .is_some_and(|best| best.commit < rank.commit && best.compare(&rank, order_by).is_gt());
        if best.is_none_or(|best| rank.compare(&best, order_by).is_gt()) {
            best = Some(rank);
        }
        let is_known = outranked || expired.is_none_or(|expired| order(&rank) > expired.order);
        late.push(is_known.then_some(outranked));
    }
    Ok(BooleanArray::from(late))
}

/// Takes append ids apart: `<writer>-<n>` or `<writer>-<n>/<epoch>/<app id>`.
fn with_provenance(
    rows: &RecordBatch,
    definition: &StateDefinition,
    late: Option<BooleanArray>,
) -> Result<RecordBatch> {
    let column = |index: usize| {
        rows.columns()
            .get(index)
            .ok_or_else(|| Error::internal("a batch lacks the columns of a history"))
    };
    let ids = column(7)?.as_string::<i32>();
    let parts = |id: &str| {
        let mut parts = id.splitn(3, '/');
        let writer = parts.next().and_then(|stem| stem.split('-').next()).map(str::to_owned);
        let epoch = parts.next().and_then(|epoch| epoch.parse::<i64>().ok());
        (writer, parts.next().map(str::to_owned), epoch)
    };
    let known: Vec<_> = ids.iter().map(|id| id.map_or((None, None, None), parts)).collect();
    let writers: StringArray = known.iter().map(|(writer, _, _)| writer.as_deref()).collect();
    let apps: StringArray = known.iter().map(|(_, app, _)| app.as_deref()).collect();
    let epochs: Int64Array = known.iter().map(|(_, _, epoch)| *epoch).collect();
    let late = late.unwrap_or_else(|| BooleanArray::new_null(rows.num_rows()));
    let mut columns: Vec<ArrayRef> = rows.columns().iter().take(4).cloned().collect();
    columns.push(column(6)?.clone());
    columns.push(column(4)?.clone());
    columns.extend([
        Arc::new(writers) as ArrayRef,
        Arc::new(apps),
        Arc::new(epochs),
        Arc::new(late),
    ]);
    Ok(RecordBatch::try_new(history_schema(definition), columns)?)
}
