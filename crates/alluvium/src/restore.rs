//! `restore`: brings the latest state, or some of its keys, back to what it was at a point.
//!
//! Nothing is taken out of the log. The difference between the point and the latest state is appended as ordinary changes, in
//! one epoch: a DELETE for each key that the point doesn't have, an UPSERT of the old value for each one that it has otherwise
//! or that is gone. So all that was known before is still known, and a restore is undone by one to the commit before it.
//!
//! How the rows win, and what may still win over them: `docs/decisions/018-restore.md`.

use std::sync::Arc;

use alluvium_log::{
    Archived, BelowFloor, DELETE, EVENT_TIME, EpochCommit, EpochOutcome, Erased, Error, ErrorKind,
    KeyErased, KeyFilter, OP_TYPE, OrderBy, Result, RowFilter, STATE_KEY, StateDefinition,
    TableState, UPSERT, VERSION, event_time_type, value_field,
};
use alluvium_query::{Basis, Lookup, Point};
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimestampMicrosecondType};
use futures::TryStreamExt;
use serde::Serialize;

use crate::raw::RawState;

/// The prefix of the application ids of restores.
const APP_PREFIX: &str = "restore/";
/// How often a restore begins anew because others changed its keys meanwhile.
const MAX_ATTEMPTS: u32 = 16;
/// Rows that are staged as one file at most.
const STAGED_ROWS: usize = 65_536;
/// Their bytes in memory at most, about.
const STAGED_BYTES: usize = 64 * 1024 * 1024;
/// Longest name of a restore, in bytes.
const MAX_ID_BYTES: usize = 128;

/// What is to be restored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// To which point.
    pub to: Point,
    /// Which keys.
    pub keys: KeyFilter,
    /// A name under which the restore is applied once at most, however often it is sent; a random one when not given.
    pub id: Option<String>,
    /// Only count what would be changed.
    pub dry_run: bool,
}

/// What came of a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoreOutcome {
    /// The changes were appended.
    Restored,
    /// The keys are as they were at the point: nothing was written.
    NothingToDo,
    /// A restore of this name was applied before: nothing was written.
    AlreadyApplied,
    /// Nothing was written; the counts are what would have been.
    DryRun,
}

/// What a restore did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    /// The state.
    pub state: String,
    /// The point.
    pub to: String,
    /// What came of it.
    pub outcome: RestoreOutcome,
    /// The newest commit before it: restoring to this one undoes it.
    pub before_commit: i64,
    /// Its own commit, if it made one.
    pub commit: Option<i64>,
    /// Keys that had no value and have one again.
    pub brought_back: u64,
    /// Keys whose value was set back.
    pub set_back: u64,
    /// Keys that had a value and have none any more.
    pub removed: u64,
    /// The name under which it was applied.
    pub id: String,
}

impl RawState {
    /// Brings the latest state of some keys back to a point, by changes that are appended in one epoch.
    ///
    /// When others change the keys while the difference is worked out, it is worked out anew: what is committed is exact. Keys that were
    /// erased stay so.
    ///
    /// # Errors
    /// The point can't be answered; a key's newest change is dated so far ahead that nothing that may be written now wins over
    /// it; the keys are changed all the time by others ([`ErrorKind::Conflict`]). Nothing was written then.
    #[tracing::instrument(level = "info", skip_all, fields(state = self.name(), to = %options.to, basis = tracing::field::Empty, commit = tracing::field::Empty), err(level = "debug"))]
    pub async fn restore(&self, options: &RestoreOptions) -> Result<RestoreReport> {
        let id = match &options.id {
            Some(id) => checked_id(id)?.to_owned(),
            None => format!("{:032x}", alluvium_log::random::<u128>()),
        };
        let mut report = RestoreReport {
            state: self.name().to_owned(),
            to: options.to.to_string(),
            outcome: RestoreOutcome::NothingToDo,
            before_commit: 0,
            commit: None,
            brought_back: 0,
            set_back: 0,
            removed: 0,
            id,
        };
        let app_id = format!("{APP_PREFIX}{}", report.id);
        for _ in 0..MAX_ATTEMPTS {
            self.log().refresh().await?;
            let basis = self.reader().basis().await?;
            report.before_commit = basis.commit();
            tracing::Span::current().record("basis", basis.commit());
            if options.id.is_some() && self.log().last_epoch(&app_id).await?.is_some() {
                report.outcome = RestoreOutcome::AlreadyApplied;
                return Ok(report);
            }
            let changes = match self.compensate(&basis, options, &app_id).await {
                Err(error) if KeyErased::is_cause_of(&error) => {
                    self.note_erased_meanwhile();
                    continue;
                }
                changes => changes?,
            };
            (report.brought_back, report.set_back, report.removed) = changes.counts;
            if options.dry_run || changes.counts == (0, 0, 0) {
                if options.dry_run {
                    report.outcome = RestoreOutcome::DryRun;
                }
                return Ok(report);
            }
            let unchanged = unchanged_since(&basis, &options.keys);
            let outcome = match changes.epoch.commit_if(unchanged).await {
                Err(error) if KeyErased::is_cause_of(&error) => {
                    self.note_erased_meanwhile();
                    continue;
                }
                outcome => outcome,
            };
            match outcome.map_err(|error| named(error, &report.id))? {
                Some(EpochOutcome::Committed(receipt)) => {
                    report.outcome = RestoreOutcome::Restored;
                    report.commit = Some(receipt.commit);
                    tracing::Span::current().record("commit", receipt.commit);
                    report.before_commit = receipt.commit - 1;
                    return Ok(report);
                }
                Some(EpochOutcome::AlreadyApplied { .. }) => {
                    (report.brought_back, report.set_back, report.removed) = (0, 0, 0);
                    report.outcome = RestoreOutcome::AlreadyApplied;
                    return Ok(report);
                }
                None => {
                    tracing::debug!(state = self.name(), "the keys were changed meanwhile");
                }
            }
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "state {}: others changed the keys to be restored {MAX_ATTEMPTS} times while the difference was worked out; nothing \
                 was written: stop those who write them, or restore fewer keys at a time",
                self.name()
            ),
        ))
    }

    fn note_erased_meanwhile(&self) {
        tracing::debug!(state = self.name(), "a key to be restored was erased meanwhile");
    }

    /// Stages the rows that lead from the latest state of a basis to the point.
    async fn compensate(
        &self,
        basis: &Basis,
        options: &RestoreOptions,
        app_id: &str,
    ) -> Result<Compensation> {
        let definition = basis.definition().clone();
        let epoch = self.log().epoch(app_id, 0)?;
        let schema = changes_schema(&definition);
        let mut changes = Compensation::new(epoch, schema);
        let now = self.log().arrival_micros();
        let (from, to) = (options.to, Point::LATEST);
        let mut differences =
            self.reader().diff_rows(basis, from, to, options.keys.clone()).await?;
        let erased = self.log().erased()?;
        while let Some(batch) = differences.try_next().await? {
            let batch = without_erased(&batch, erased.as_deref())?;
            let difference = Difference::of(&batch)?;
            difference.count(&mut changes.counts);
            if options.dry_run {
                continue;
            }
            let winners = self.winners(basis, &difference).await?;
            let rows = difference.compensating(&winners, &definition, now, &changes.schema)?;
            changes.add(rows).await.map_err(|error| self.too_far_ahead(error))?;
        }
        changes.stage().await.map_err(|error| self.too_far_ahead(error))?;
        Ok(changes)
    }

    /// Version and event time of each key's newest change: a difference doesn't tell those of DELETEs.
    async fn winners(&self, basis: &Basis, difference: &Difference<'_>) -> Result<Vec<(i64, i64)>> {
        let mut winners: Vec<(i64, i64)> = (0..difference.keys.len())
            .map(|row| (difference.versions.value(row), difference.times.value(row)))
            .collect();
        let gone: Vec<usize> =
            (0..difference.keys.len()).filter(|&row| difference.is_gone(row)).collect();
        let keys: Vec<&str> = gone.iter().map(|&row| difference.keys.value(row)).collect();
        let found = match keys.is_empty() {
            true => Vec::new(),
            false => self.reader().multi_get(basis, Point::LATEST, &keys).await?,
        };
        for (row, lookup) in gone.into_iter().zip(found) {
            let deletion = match lookup {
                Lookup::Deleted(deletion) => deletion,
                // Its DELETE is forgotten: whatever may be appended comes after it.
                Lookup::Absent if self.log().floor().is_some() => {
                    winners[row] = (i64::MIN, i64::MIN);
                    continue;
                }
                _ => {
                    return Err(Error::internal(
                        "a key without a value, which had one, has no DELETE",
                    ));
                }
            };
            let version = deletion.column(1).as_primitive::<Int64Type>().value(0);
            let time = deletion.column(2).as_primitive::<TimestampMicrosecondType>().value(0);
            winners[row] = (version, time);
        }
        Ok(winners)
    }

    fn too_far_ahead(&self, error: Error) -> Error {
        match error.kind() {
            _ if KeyErased::is_cause_of(&error) || BelowFloor::is_cause_of(&error) => error,
            ErrorKind::InvalidInput => error.context(format!(
                "state {}: the newest change of a key can't be won over by one of today; nothing was written",
                self.name()
            )),
            _ => error,
        }
    }
}

/// The differences of keys that may come back. Of an erased key there may be rows as long as the erase is under way: it stays erased.
fn without_erased(batch: &RecordBatch, erased: Option<&Erased>) -> Result<RecordBatch> {
    let Some(erased) = erased.filter(|erased| !erased.is_empty()) else { return Ok(batch.clone()) };
    let keys = batch.column_by_name(STATE_KEY).map(|keys| keys.as_string::<i32>());
    let keys = keys.ok_or_else(|| Error::internal("a difference lacks its keys"))?;
    let kept: BooleanArray = keys.iter().map(|key| key.map(|key| !erased.contains(key))).collect();
    Ok(filter_record_batch(batch, &kept)?)
}

/// Whether nobody has added rows of the keys since a basis.
pub(crate) fn unchanged_since(
    basis: &Basis,
    keys: &KeyFilter,
) -> impl Fn(&TableState) -> bool + use<> {
    let from = basis.commit();
    let filter = RowFilter { keys: keys.clone(), after_commit: Some(from), ..RowFilter::default() };
    move |state| {
        // A row that came since may have moved to the archive already.
        let moved = Archived::of(state).is_some_and(|archived| archived.commit > from);
        !moved && !state.files_after(from).any(|file| filter.may_match(file))
    }
}

fn checked_id(id: &str) -> Result<&str> {
    if id.is_empty() || id.len() > MAX_ID_BYTES {
        return Err(Error::invalid(format!(
            "{id:?} can't name a restore: use 1 to {MAX_ID_BYTES} bytes"
        )));
    }
    Ok(id)
}

/// An outcome that is not known can be learned by sending the same restore again.
fn named(error: Error, id: &str) -> Error {
    match error.kind() {
        ErrorKind::Unknown => error.context(format!(
            "the restore {id}: the same one sent again under this name is applied once at most"
        )),
        _ => error,
    }
}

fn changes_schema(definition: &StateDefinition) -> SchemaRef {
    Arc::new(Schema::new(vec![
        Arc::new(Field::new(STATE_KEY, DataType::Utf8, false)),
        Arc::new(Field::new(VERSION, DataType::Int64, true)),
        Arc::new(Field::new(EVENT_TIME, event_time_type(), false)),
        Arc::new(Field::new(OP_TYPE, DataType::Utf8, false)),
        value_field(&definition.stored_fields()),
    ]))
}

/// The changes of a restore, staged as far as they are many.
pub(crate) struct Compensation {
    pub(crate) epoch: EpochCommit,
    /// Keys brought back, set back, removed.
    counts: (u64, u64, u64),
    schema: SchemaRef,
    pending: Vec<RecordBatch>,
    bytes: usize,
}

impl Compensation {
    pub(crate) fn new(epoch: EpochCommit, schema: SchemaRef) -> Self {
        Self { epoch, counts: (0, 0, 0), schema, pending: Vec::new(), bytes: 0 }
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(crate) async fn add(&mut self, rows: RecordBatch) -> Result<()> {
        self.bytes += rows.get_array_memory_size();
        self.pending.push(rows);
        let rows: usize = self.pending.iter().map(RecordBatch::num_rows).sum();
        if rows >= STAGED_ROWS || self.bytes >= STAGED_BYTES {
            self.stage().await?;
        }
        Ok(())
    }

    pub(crate) async fn stage(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            let rows = concat_batches(&self.schema, &self.pending)?;
            self.pending.clear();
            self.bytes = 0;
            self.epoch.stage(&rows).await?;
        }
        Ok(())
    }
}

/// Rows of the difference from the point (before) to the latest state (after).
struct Difference<'a> {
    keys: &'a StringArray,
    changes: &'a StringArray,
    before: &'a ArrayRef,
    versions: &'a Int64Array,
    times: &'a TimestampMicrosecondArray,
}

impl<'a> Difference<'a> {
    fn of(batch: &'a RecordBatch) -> Result<Self> {
        let column = |name: &str| {
            batch
                .column_by_name(name)
                .ok_or_else(|| Error::internal(format!("a difference lacks the column {name}")))
        };
        Ok(Self {
            keys: column(STATE_KEY)?.as_string(),
            changes: column("change")?.as_string(),
            before: column("before")?,
            versions: column(VERSION)?.as_primitive(),
            times: column(EVENT_TIME)?.as_primitive(),
        })
    }

    /// Whether the key had a value at the point and has none now.
    fn is_gone(&self, row: usize) -> bool {
        self.changes.value(row) == "deleted"
    }

    fn count(&self, (brought_back, set_back, removed): &mut (u64, u64, u64)) {
        for row in 0..self.keys.len() {
            match (self.is_gone(row), self.before.is_valid(row)) {
                (true, _) => *brought_back += 1,
                (false, true) => *set_back += 1,
                (false, false) => *removed += 1,
            }
        }
    }

    /// The changes that lead back: each wins over the newest change of its key, and only just.
    fn compensating(
        &self,
        winners: &[(i64, i64)],
        definition: &StateDefinition,
        now: i64,
        schema: &SchemaRef,
    ) -> Result<RecordBatch> {
        let times: TimestampMicrosecondArray =
            winners.iter().map(|&(_, time)| Some(now.max(time.saturating_add(1)))).collect();
        let versions: Int64Array = winners
            .iter()
            .map(|&(version, _)| (definition.order_by == OrderBy::Version).then_some(version))
            .collect();
        let operations: StringArray = (0..self.keys.len())
            .map(|row| Some(if self.before.is_valid(row) { UPSERT } else { DELETE }))
            .collect();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.keys.clone()),
            Arc::new(versions),
            Arc::new(times.with_timezone("UTC")),
            Arc::new(operations),
            self.before.clone(),
        ];
        Ok(RecordBatch::try_new(schema.clone(), columns)?)
    }
}
