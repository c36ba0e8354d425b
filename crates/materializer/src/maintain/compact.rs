//! Compaction of the log: a day's files become one run, sorted by key and order, with every row and its commit.
//!
//! ```text
//! files of a day -> open, sorted -> merge of all rows -> files of a run -> one commit: remove, add
//! ```
//!
//! The commit is made only if every file that it removes is still there; whoever lost to another rewriter drops what it
//! wrote. Rows only move (`dataChange` is false), so appends never conflict with it, readers at an older state go on reading the
//! older files until a vacuum, and whoever follows the log sees nothing new.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use alluvium_log::{
    APPEND_ID, APPEND_SEQ, Action, Attempt, COMMIT, DT, EncodedParts, Error, FileAdd, FooterCache,
    Log, Outcome, REWRITER_APP_ID, ReadSpec, Result, RowFilter, STATE_VALUE, StateDefinition,
    TAG_CHECK, TAG_COMMITS, TAG_RUN, TAG_SORTED, Table, TableState, encode_parquet_parts,
    fold_schema, log_schema, statistics_of, value_field,
};
use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, SchemaRef};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use super::plan::{DayPlan, Rules, Run, plan};
use crate::bounds::{FileBounds, chunks};
use crate::files::{Encoders, WRITE_CONCURRENCY};
use crate::fold::{BatchStream, FoldSettings, distinct, merge_all, sort_all};
use crate::inputs::{stream_in_windows, window_rows};
use crate::materialize::MaterializeReport;

/// Rows of one file of a compacted day, about, unless set otherwise; about 64 MiB of decoded rows end a file earlier.
pub const COMPACTED_FILE_ROWS: usize = 1_048_576;
/// Merges of one day in one run of the job at most: each takes in what fits into memory at once.
const MAX_PASSES: usize = 1_000;

/// How to compact.
#[derive(Debug, Clone)]
pub struct CompactOptions {
    /// Memory, batches, spilling.
    pub fold: FoldSettings,
    /// Rows of one file at most.
    pub file_rows: usize,
    /// Footers of files, shared with readers.
    pub footers: Arc<FooterCache>,
    /// Only rows of commits up to this one; the log's last commit when there is no snapshot to fold the rest into.
    pub up_to_commit: i64,
    /// Tell what would be merged first, and change nothing.
    pub dry_run: bool,
}

/// What a compaction did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactReport {
    /// Days in which files were merged.
    pub days: Vec<String>,
    /// Commits made.
    pub commits: u64,
    /// Files merged.
    pub files_removed: u64,
    /// Files that came of it.
    pub files_added: u64,
    /// Rows rewritten.
    pub rows: u64,
    /// Bytes of the files merged.
    pub bytes_before: u64,
    /// Bytes of the files that came of it.
    pub bytes_after: u64,
    /// Small files of the snapshot that became one with their neighbours; a compaction of the log alone looks at none.
    pub snapshot_files_removed: u64,
    /// Files that came of these.
    pub snapshot_files_added: u64,
    /// Whether another rewriter was at work on the same log, so that this one stopped.
    pub gave_way: bool,
}

/// Merges the files of days that are over into sorted runs; makes no commit where there is nothing to gain.
#[tracing::instrument(level = "info", skip_all, fields(state = log.name()), err(level = "debug"))]
pub async fn compact(log: &Log, options: &CompactOptions) -> Result<CompactReport> {
    options.fold.validate()?;
    if options.file_rows == 0 {
        return Err(Error::invalid("file_rows is 0: a file holds at least one row"));
    }
    let _alone = log.lock_for_rewriting().await;
    let mut report = CompactReport::default();
    for _ in 0..MAX_PASSES {
        let state = log.refresh().await?;
        let plans = plan(state.files(), &rules(log, options)?);
        if plans.is_empty() {
            break;
        }
        // Several days are merged on one state: what this job itself has committed since is no other's work.
        let mut last_rewrite = state.transaction(REWRITER_APP_ID);
        for day in plans {
            if options.dry_run {
                report.count(&day, &[]);
                continue;
            }
            let merged = compact_day(log, &state, &day, options, &mut last_rewrite).await;
            let place = || format!("compacting {} of {}", day.day, log.name());
            match merged.map_err(|error| error.context(place()))? {
                Some(added) => report.count(&day, &added),
                None => {
                    report.gave_way = true;
                    return Ok(report);
                }
            }
        }
        if options.dry_run {
            break;
        }
    }
    Ok(report)
}

/// What a compaction of a state of the log would merge first; it looks at nothing but the state, and waits for nobody.
pub fn compaction_debt(
    log: &Log,
    state: &TableState,
    options: &CompactOptions,
) -> Result<CompactReport> {
    let mut report = CompactReport::default();
    for day in plan(state.files(), &rules(log, options)?) {
        report.count(&day, &[]);
    }
    Ok(report)
}

pub(super) fn rules(log: &Log, options: &CompactOptions) -> Result<Rules> {
    Ok(Rules {
        now_ms: log.clock().now_ms(),
        compact_after_ms: log.maintenance_settings()?.compact_after_ms,
        up_to_commit: options.up_to_commit,
        input_bytes: options.fold.open_bytes(),
    })
}

impl CompactReport {
    pub(super) fn note_snapshot(&mut self, joined: &MaterializeReport) {
        self.snapshot_files_removed = joined.files_removed;
        self.snapshot_files_added = joined.files_added;
    }

    pub(super) fn count(&mut self, day: &DayPlan, added: &[FileAdd]) {
        let files = || day.runs.iter().flat_map(|run| &run.files);
        if !self.days.contains(&day.day) {
            self.days.push(day.day.clone());
        }
        self.commits += 1;
        self.files_removed += files().count() as u64;
        self.files_added += added.len() as u64;
        self.rows += day.runs.iter().map(|run| run.rows).sum::<u64>();
        self.bytes_before += files().map(|file| file.add.size).sum::<u64>();
        self.bytes_after += added.iter().map(|file| file.size).sum::<u64>();
    }
}

/// Merges what was chosen of one day; `None` when another rewriter came first.
async fn compact_day(
    log: &Log,
    state: &TableState,
    day: &DayPlan,
    options: &CompactOptions,
    last_rewrite: &mut Option<i64>,
) -> Result<Option<Vec<FileAdd>>> {
    let added = merge_day(log, log.table(), state, day, options).await?;
    let outcome = commit(log, day, &added, *last_rewrite).await;
    match &outcome {
        Ok(Some(version)) => {
            *last_rewrite = Some(*version);
            return Ok(Some(added));
        }
        // Whether the commit was made is not known: its files must stay.
        Err(error) if error.kind() == alluvium_log::ErrorKind::Unknown => {}
        _ => {
            for file in &added {
                log.table().discard(&file.path).await;
            }
        }
    }
    outcome.map(|_| None)
}

/// Writes what was chosen of one day of a table as a run, to be committed there; nothing is left where that fails.
pub(super) async fn merge_day(
    log: &Log,
    table: &Arc<Table>,
    state: &TableState,
    day: &DayPlan,
    options: &CompactOptions,
) -> Result<Vec<FileAdd>> {
    let target = log.maintenance_settings()?.target_file_bytes;
    let writer = RunWriter {
        log,
        table,
        bounds: FileBounds::new(options.file_rows, &options.fold).aimed(
            target,
            &options.fold,
            state.files(),
        ),
        day: &day.day,
        schema: log_schema(&log.definition_at(state)?.stored_fields()),
        // In the order in which they are made: of runs with as many rows the same ones are merged first, whoever does it.
        run: format!("{:020}-{:016x}", state.version, alluvium_log::random::<u64>()),
    };
    let mut rows = merged_rows(log, table, state, &day.runs, options).await?;
    let doubled = Arc::new(AtomicU64::new(0));
    if day.doubles {
        let definition = log.definition_at(state)?;
        let schema = fold_schema(&payload(&definition));
        rows = distinct(rows, schema, doubled.clone());
    }
    let mut added = Vec::new();
    let written = writer.write(rows, &mut added).await;
    let expected: u64 = day.runs.iter().map(|run| run.rows).sum();
    let complete = match written.map(|rows| rows + doubled.load(Ordering::Relaxed)) {
        Ok(rows) if rows == expected => Ok(()),
        Ok(rows) => Err(Error::corrupt(format!(
            "the files have {rows} rows, and their statistics say {expected}: nothing was changed"
        ))),
        Err(error) => Err(error),
    };
    if let Err(error) = complete {
        for file in &added {
            table.discard(&file.path).await;
        }
        return Err(error);
    }
    Ok(added)
}

/// All rows of the runs, sorted by key and order.
async fn merged_rows(
    log: &Log,
    table: &Arc<Table>,
    state: &TableState,
    runs: &[Run],
    options: &CompactOptions,
) -> Result<BatchStream> {
    let definition = log.definition_at(state)?;
    let spec = ReadSpec { payload: payload(&definition), filter: RowFilter::default() };
    let mut inputs = Vec::with_capacity(runs.len());
    let files = runs.iter().flat_map(|run| &run.files);
    let window_rows = window_rows(files, runs.len(), options.fold.open_bytes());
    for run in runs {
        let streams: Vec<BatchStream> = run
            .files
            .iter()
            .map(|file| stream_in_windows(table, file, &spec, window_rows, &options.footers))
            .collect();
        let rows = stream::iter(streams).flatten().boxed();
        let is_sorted = run.files.iter().all(|file| file.is_sorted());
        inputs.push(match is_sorted {
            true => rows,
            false => sort_all(definition.order_by, spec.schema(), rows, &options.fold).await?,
        });
    }
    Ok(merge_all(definition.order_by, spec.schema(), inputs, options.fold.batch_rows))
}

pub(crate) fn payload(definition: &StateDefinition) -> Vec<Arc<Field>> {
    let append_id = Arc::new(Field::new(APPEND_ID, DataType::Utf8, true));
    vec![value_field(&definition.stored_fields()), append_id]
}

/// Commits the merge if nothing has happened to its files, and tells the commit; `None` when another rewriter came first.
async fn commit(
    log: &Log,
    day: &DayPlan,
    added: &[FileAdd],
    last_rewrite: Option<i64>,
) -> Result<Option<i64>> {
    let files: Vec<_> = day.runs.iter().flat_map(|run| &run.files).collect();
    let note = BTreeMap::from([
        ("step".to_owned(), serde_json::json!("compact")),
        ("day".to_owned(), serde_json::json!(day.day)),
    ]);
    let now_ms = log.clock().now_ms();
    let outcome = log
        .table()
        .commit("OPTIMIZE", Some(false), note, |state, version| {
            let is_there = |path: &str| state.file(path).is_some();
            if state.transaction(REWRITER_APP_ID) != last_rewrite
                || !files.iter().all(|file| is_there(&file.add.path))
            {
                return Ok(Attempt::Stop(()));
            }
            let app_id = REWRITER_APP_ID.to_owned();
            let mut actions = vec![Action::Transaction { app_id, version }];
            actions.extend(files.iter().map(|file| file.add.removal(now_ms, false)));
            actions.extend(added.iter().map(|file| Action::Add(Arc::new(file.clone()))));
            Ok(Attempt::Write(actions))
        })
        .await?;
    Ok(match outcome {
        Outcome::Committed(state) => Some(state.version),
        Outcome::Stopped(()) => None,
    })
}

/// Writes the files of one run.
struct RunWriter<'a> {
    log: &'a Log,
    table: &'a Table,
    day: &'a str,
    schema: SchemaRef,
    run: String,
    bounds: FileBounds,
}

impl RunWriter<'_> {
    /// Writes all rows; the files are noted in `added` as they come, also if a later one fails.
    async fn write(&self, rows: BatchStream, added: &mut Vec<FileAdd>) -> Result<u64> {
        let encoders = &Encoders::default();
        let write = |(part, chunk): (usize, Result<Vec<RecordBatch>>)| {
            async move { self.write_file(chunk?, part, encoders).await }.boxed()
        };
        let mut files =
            chunks(rows, self.bounds).enumerate().map(write).buffered(WRITE_CONCURRENCY).boxed();
        let mut rows = 0;
        while let Some((file, count)) = files.try_next().await? {
            rows += count;
            added.push(file);
        }
        Ok(rows)
    }

    async fn write_file(
        &self,
        batches: Vec<RecordBatch>,
        part: usize,
        encoders: &Encoders,
    ) -> Result<(FileAdd, u64)> {
        let schema = self.schema.clone();
        let encoded = encoders.run(part, move || encode(batches, &schema)).await?;
        let path = format!("{DT}={}/run-{}-{part}.parquet", self.day, self.run);
        let size = encoded.parquet.bytes.content_length() as u64;
        self.table.put_new(&path, encoded.parquet.bytes).await?;
        metrics::counter!(crate::metrics::COMPACTED_BYTES).increment(size);
        let add = FileAdd {
            path,
            size,
            partition: BTreeMap::from([(DT.to_owned(), Some(self.day.to_owned()))]),
            modified_ms: self.log.clock().now_ms(),
            data_change: false,
            stats: Some(encoded.stats),
            tags: BTreeMap::from([
                (TAG_CHECK.to_owned(), encoded.parquet.check),
                (TAG_COMMITS.to_owned(), encoded.commits),
                (TAG_RUN.to_owned(), format!("{}/{part:010}", self.run)),
                (TAG_SORTED.to_owned(), "true".to_owned()),
            ]),
        };
        Ok((add, encoded.rows))
    }
}

/// A file of stamped rows, ready to be written.
pub(crate) struct Encoded {
    pub(crate) parquet: EncodedParts,
    pub(crate) stats: String,
    pub(crate) commits: String,
    rows: u64,
}

/// Encodes rows of the shape that [`payload`] gives as a file of the log.
pub(crate) fn encode(batches: Vec<RecordBatch>, schema: &SchemaRef) -> Result<Encoded> {
    let (mut low, mut high, mut rows) = (i64::MAX, i64::MIN, 0);
    for batch in &batches {
        let commits = column(batch, COMMIT)?.as_primitive::<Int64Type>();
        low = commits.values().iter().copied().fold(low, i64::min);
        high = commits.values().iter().copied().fold(high, i64::max);
        rows += batch.num_rows() as u64;
    }
    let stats = statistics_of(&batches)?.to_string();
    // In place of the rows, so that each batch goes as soon as it is encoded.
    let stored =
        batches.into_iter().map(|batch| to_file_columns(&batch, schema)).collect::<Result<_>>()?;
    let parquet = encode_parquet_parts(stored)?;
    Ok(Encoded { parquet, stats, commits: format!("{low}-{high}"), rows })
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    batch
        .column_by_name(name)
        .ok_or_else(|| Error::internal(format!("a row that is compacted has no {name}")))
}

/// From the shape of a fold to the columns of a log file.
fn to_file_columns(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let mut columns: Vec<ArrayRef> = batch.columns().iter().take(4).cloned().collect();
    for name in [STATE_VALUE, APPEND_ID, APPEND_SEQ, COMMIT] {
        columns.push(column(batch, name)?.clone());
    }
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}
