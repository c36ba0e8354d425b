//! The proof of the view: fold the log anew, compare with the snapshot, and name the first key that differs. Tombstones at or below the
//! floor by which the snapshot was made belong to neither.

use std::sync::Arc;
use std::time::{Duration, Instant};

use alluvium_log::{
    DELETE, Expired, FOLD_COLUMNS, FooterCache, OrderBy, ReadSpec, Result, RowFilter, STATE_KEY,
    TableState,
};
use arrow::array::{Array, AsArray, RecordBatch};
use futures::TryStreamExt;
use serde::Serialize;

use crate::effect::rank;
use crate::fold::{BatchStream, FoldSettings, fold};
use crate::hash::{RowsHash, hash_rows};
use crate::inputs::{check_not_ahead, file_input, file_stream, snapshot_inputs, whole_value};
use crate::materialize::lost_rows;
use crate::snapshot::{Snapshot, SnapshotState, file_hash};
use crate::tombstones::Forgetting;

/// How to verify.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    /// Memory, batches, spilling.
    pub fold: FoldSettings,
    /// Footers of files, shared with readers.
    pub footers: Arc<FooterCache>,
}

/// A key for which snapshot and log disagree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The key.
    pub key: String,
    /// What the log says, or that it has no such key.
    pub in_log: String,
    /// What the snapshot says, or that it has no such key.
    pub in_snapshot: String,
}

/// What a verification found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The log commit up to which was compared: the snapshot's.
    pub log_commit: i64,
    /// The snapshot table's Delta version.
    pub snapshot_version: i64,
    /// The log was folded from this commit on, onto the oldest snapshot that holds what has expired of it; 0 where all of it is
    /// there.
    pub from_commit: i64,
    /// Keys compared, tombstones included.
    pub keys: u64,
    /// Keys with a value.
    pub live_keys: u64,
    /// The hash of the folded rows.
    pub hash: String,
    /// The first key that differs, if any.
    pub first_difference: Option<Difference>,
    /// A file of the snapshot whose rows are not those that were written, if any.
    pub damaged_file: Option<String>,
    /// How long it took.
    pub elapsed: Duration,
}

impl VerifyReport {
    /// Whether the snapshot is the fold of the log.
    pub fn is_sound(&self) -> bool {
        self.first_difference.is_none() && self.damaged_file.is_none()
    }
}

/// Recomputes the fold of the log up to the snapshot's commit, onto an older snapshot where days of the log have expired, and
/// compares it with the snapshot row by row; then
/// compares every file of the snapshot with the hash noted when it was written.
#[tracing::instrument(level = "info", skip_all, fields(state = snapshot.log().name(), basis = tracing::field::Empty, commit = tracing::field::Empty), err(level = "debug"))]
pub async fn verify(snapshot: &Snapshot, options: &VerifyOptions) -> Result<VerifyReport> {
    match attempt(snapshot, options).await {
        // A vacuum may have taken the older snapshot that this began with: it says so before, and another one is begun with.
        Err(error) if error.is_of_missing_file() => attempt(snapshot, options).await,
        told => told,
    }
}

async fn attempt(snapshot: &Snapshot, options: &VerifyOptions) -> Result<VerifyReport> {
    let started = Instant::now();
    let log = snapshot.log();
    // The snapshot first, so that the log is at least as new as what the snapshot folds.
    let state = snapshot.refresh().await?;
    let log_state = log.refresh().await?;
    check_not_ahead(&state, &log_state)?;
    let span = tracing::Span::current();
    span.record("basis", log_state.version).record("commit", state.log_commit());
    let context = |error: alluvium_log::Error| error.context(format!("verifying {}", log.name()));
    let base = match Expired::commit_of(&log_state) {
        0 => SnapshotState::none(),
        expired => {
            let oldest = snapshot.oldest_base(&state, expired).await.map_err(context)?;
            oldest.ok_or_else(|| context(lost_rows(snapshot, expired)))?
        }
    };
    let now_ms = log.clock().now_ms();
    let _held = snapshot.hold((&log_state, now_ms), &[(&base, now_ms), (&state, now_ms)]);
    let mut pair =
        open_both(snapshot, &log_state, (&base, &state), options).await.map_err(context)?;
    let mut report = VerifyReport {
        log_commit: state.log_commit(),
        snapshot_version: state.version(),
        from_commit: base.log_commit(),
        keys: 0,
        live_keys: 0,
        hash: String::new(),
        first_difference: None,
        damaged_file: None,
        elapsed: Duration::ZERO,
    };
    let mut hash = RowsHash::default();
    compare(&mut pair, &mut report, &mut hash).await.map_err(context)?;
    report.hash = hash.to_text();
    if report.first_difference.is_none() {
        report.damaged_file = damaged_file(&state, snapshot, options).await.map_err(context)?;
    }
    report.elapsed = started.elapsed();
    Ok(report)
}

/// The fold of the log and the fold of the snapshot, side by side.
struct Pair {
    log: Side,
    snapshot: Side,
    order_by: OrderBy,
}

async fn open_both(
    snapshot: &Snapshot,
    log_state: &TableState,
    (base, state): (&SnapshotState, &SnapshotState),
    options: &VerifyOptions,
) -> Result<Pair> {
    let log = snapshot.log();
    let definition = log.definition();
    let payload = whole_value(&definition);
    let filter = RowFilter {
        after_commit: Some(base.log_commit()),
        up_to_commit: Some(state.log_commit()),
        ..RowFilter::default()
    };
    let spec = ReadSpec { payload, filter };
    let files = log.files(log_state, &spec.filter).await?;
    let mut inputs: Vec<_> =
        files.iter().map(|file| file_input(log.table(), file, &spec, &options.footers)).collect();
    let spec = ReadSpec { filter: RowFilter::default(), ..spec };
    inputs.extend(snapshot_inputs(base, &spec, &options.footers));
    let order_by = definition.order_by;
    let from_log = fold(order_by, spec.schema(), inputs, &options.fold).await?;
    let forgetting = state.floor().map(Forgetting::below);
    let from_log = Forgetting::of_some(forgetting.as_ref(), from_log);
    let inputs = snapshot_inputs(state, &spec, &options.footers);
    let from_snapshot = fold(order_by, spec.schema(), inputs, &options.fold).await?;
    Ok(Pair { log: Side::new(from_log), snapshot: Side::new(from_snapshot), order_by })
}

/// A stream of rows, one at a time.
struct Side {
    rows: BatchStream,
    batch: Option<RecordBatch>,
    row: usize,
}

impl Side {
    fn new(rows: BatchStream) -> Self {
        Self { rows, batch: None, row: 0 }
    }

    /// Makes sure that the current row is there; false at the end.
    async fn fill(&mut self) -> Result<bool> {
        while self.batch.as_ref().is_none_or(|batch| self.row >= batch.num_rows()) {
            match self.rows.try_next().await? {
                None => {
                    self.batch = None;
                    return Ok(false);
                }
                Some(batch) => {
                    self.batch = Some(batch);
                    self.row = 0;
                }
            }
        }
        Ok(true)
    }

    fn key(&self) -> Option<&str> {
        let batch = self.batch.as_ref()?;
        Some(batch.column_by_name(STATE_KEY)?.as_string::<i32>().value(self.row))
    }

    fn describe(&self) -> Result<String> {
        let Some(batch) = &self.batch else { return Ok("no such key".to_owned()) };
        let rank = rank(batch, self.row)?;
        let operation = if rank.is_delete { DELETE } else { alluvium_log::UPSERT };
        let hash = hash_rows(&batch.slice(self.row, 1))?;
        Ok(format!(
            "{operation} version {} event_time {} us (row hash {})",
            rank.version,
            rank.event_time,
            hash.to_text()
        ))
    }
}

async fn compare(pair: &mut Pair, report: &mut VerifyReport, hash: &mut RowsHash) -> Result<()> {
    loop {
        let (in_log, in_snapshot) = (pair.log.fill().await?, pair.snapshot.fill().await?);
        if !in_log && !in_snapshot {
            return Ok(());
        }
        let order = match (pair.log.key(), pair.snapshot.key()) {
            (Some(a), Some(b)) => a.cmp(b),
            (Some(_), None) => std::cmp::Ordering::Less,
            _ => std::cmp::Ordering::Greater,
        };
        if order.is_eq() && same_row(pair)? {
            note(pair, report, hash)?;
            pair.log.row += 1;
            pair.snapshot.row += 1;
            continue;
        }
        let absent = "no such key".to_owned();
        let key = if order.is_gt() { pair.snapshot.key() } else { pair.log.key() };
        report.first_difference = Some(Difference {
            key: key.unwrap_or_default().to_owned(),
            in_log: if order.is_gt() { absent.clone() } else { pair.log.describe()? },
            in_snapshot: if order.is_lt() { absent } else { pair.snapshot.describe()? },
        });
        return Ok(());
    }
}

/// Whether both sides hold the same row. The commit is not compared: a repeated row changes nothing, so the
/// snapshot may keep the first of several that are the same.
fn same_row(pair: &Pair) -> Result<bool> {
    let (Some(a), Some(b)) = (&pair.log.batch, &pair.snapshot.batch) else { return Ok(false) };
    let (x, y) = (rank(a, pair.log.row)?, rank(b, pair.snapshot.row)?);
    let neutral = alluvium_log::Rank { commit: 0, append_seq: 0, ..x };
    let other = alluvium_log::Rank { commit: 0, append_seq: 0, ..y };
    let value = |batch: &RecordBatch, row: usize| {
        batch.columns().get(FOLD_COLUMNS).map(|column| column.slice(row, 1))
    };
    Ok(neutral.compare(&other, pair.order_by).is_eq()
        && value(a, pair.log.row) == value(b, pair.snapshot.row))
}

/// Counts a row that agrees, and hashes whole batches where the first row of one is reached.
fn note(pair: &Pair, report: &mut VerifyReport, hash: &mut RowsHash) -> Result<()> {
    let Some(batch) = &pair.log.batch else { return Ok(()) };
    if pair.log.row == 0 {
        *hash = hash.and(hash_rows(batch)?);
    }
    report.keys += 1;
    report.live_keys += u64::from(!rank(batch, pair.log.row)?.is_delete);
    Ok(())
}

async fn damaged_file(
    state: &SnapshotState,
    snapshot: &Snapshot,
    options: &VerifyOptions,
) -> Result<Option<String>> {
    let Some((table, files)) = state.table() else { return Ok(None) };
    let spec = ReadSpec {
        payload: whole_value(&snapshot.log().definition()),
        filter: RowFilter::default(),
    };
    for file in files.files() {
        let Some(noted) = file_hash(file) else { continue };
        let mut rows = file_stream(table, file, &spec, &options.footers);
        let mut found = RowsHash::default();
        while let Some(batch) = rows.try_next().await? {
            found = found.and(hash_rows(&batch)?);
        }
        if found != noted {
            return Ok(Some(file.add.path.clone()));
        }
    }
    Ok(None)
}
