//! Bringing a fork's changes back: the keys that were changed in the fork become in its parent what they are in the fork.
//!
//! It is a merge of three: what a key was when the fork was made (or was brought back last), what it is in the fork, what it is in the
//! parent. What only the parent has changed stays; what both have changed, and not to the same, is refused or overwritten. The difference
//! is appended to the parent in one epoch, as ordinary changes that win as those of a restore do.

use std::collections::BTreeSet;
use std::sync::Arc;

use alluvium_log::{
    DELETE, EVENT_TIME, EpochOutcome, Error, ErrorKind, KeyFilter, OP_TYPE, OrderBy, Result,
    STATE_KEY, STATE_VALUE, StateDefinition, UPSERT, VERSION, event_time_type, identity_of,
    value_field,
};
use alluvium_query::{Basis, Lookup, Point};
use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, StructArray,
    TimestampMicrosecondArray, new_null_array,
};
use arrow::compute::{interleave, take};
use arrow::datatypes::{DataType, Field, Fields, Int64Type, Schema, TimestampMicrosecondType};
use futures::{FutureExt, TryStreamExt};
use serde::Serialize;

use crate::raw::RawState;
use crate::restore::{Compensation, unchanged_since};
use crate::store::Store;

/// The prefix of the application ids of promoted forks.
const APP_PREFIX: &str = "promote/";
/// How often it begins anew because others changed its keys meanwhile.
const MAX_ATTEMPTS: u32 = 16;
/// Keys changed on both sides that an error names.
const NAMED_KEYS: usize = 5;

/// How to bring a fork's changes back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromoteOptions {
    /// Keys that the parent has changed since get what the fork has, instead of being an error.
    pub overwrite: bool,
    /// Only count.
    pub dry_run: bool,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PromoteOutcome {
    /// The changes were appended to the parent.
    Promoted,
    /// The parent has all of them already: nothing was written.
    NothingToDo,
    /// The fork was promoted as of this commit before: nothing was written.
    AlreadyApplied,
    /// Nothing was written; the counts are what would have been.
    DryRun,
}

/// What bringing a fork's changes back did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PromoteReport {
    /// The fork.
    pub fork: String,
    /// Its parent.
    pub parent: String,
    /// What came of it.
    pub outcome: PromoteOutcome,
    /// The changes are those of the fork's commits after this one: the first one of its own, or the one that it was promoted as of last.
    pub since_commit: i64,
    /// And up to this one.
    pub fork_commit: i64,
    /// The newest commit of the parent before: restoring it to this one undoes it.
    pub before_commit: i64,
    /// The commit of the parent, if one was made.
    pub commit: Option<i64>,
    /// Keys that got a value.
    pub upserted: u64,
    /// Keys that lost theirs.
    pub deleted: u64,
    /// Of both, keys that the parent had changed too.
    pub overwritten: u64,
    /// Some keys that the parent had changed too.
    pub conflicts: Vec<String>,
}

impl Store {
    /// Makes of the parent what a fork is, as far as the fork was changed: the difference is appended to the parent in one commit. Keys that
    /// only the parent has changed stay as they are. The progress of streams is not moved.
    ///
    /// It may be repeated: nothing is appended again for commits of the fork that were promoted before. It is undone by a
    /// [`restore`](RawState::restore) of the parent to [`PromoteReport::before_commit`].
    ///
    /// # Errors
    /// Both have changed a key since ([`ErrorKind::Conflict`]), unless it is to be overwritten; the parent is another state by now; a key was
    /// erased in the parent. Nothing was written then.
    pub async fn promote_fork(
        &self,
        name: &str,
        options: &PromoteOptions,
    ) -> Result<PromoteReport> {
        let record = self.fork_record(name).await?;
        let fork = self.raw_state(name).await?;
        let parent = self.raw_state(record.parent()).await?;
        let context =
            |error: Error| error.context(format!("promoting {name} to {}", parent.name()));
        let expected = record.ancestors.first().map(|parent| parent.id.as_str());
        if expected != Some(identity_of(parent.log().refresh().await?.as_ref())) {
            return Err(context(Error::new(
                ErrorKind::IdentityChanged,
                "the parent is not the state that the fork was made of: it was replaced",
            )));
        }
        // The fork's own first commit adds nothing to the one that it was made at; a savepoint of the fork can keep it.
        let at = record.commit + 1;
        let promotion = Promotion { fork, parent: parent.clone(), at, app_id: record.id };
        promotion.run(options).boxed().await.map_err(context)
    }
}

struct Promotion {
    fork: RawState,
    parent: RawState,
    at: i64,
    app_id: String,
}

/// What is appended, and what speaks against it.
struct Difference {
    changes: Compensation,
    keys: BTreeSet<String>,
    conflicts: u64,
    named: Vec<String>,
    upserted: u64,
    deleted: u64,
}

impl Promotion {
    async fn run(&self, options: &PromoteOptions) -> Result<PromoteReport> {
        let app_id = format!("{APP_PREFIX}{}", self.app_id);
        for _ in 0..MAX_ATTEMPTS {
            self.fork.log().refresh().await?;
            self.parent.log().refresh().await?;
            let theirs = self.fork.reader().hold().await?;
            let ours = self.parent.reader().hold().await?;
            let last = self.parent.log().last_epoch(&app_id).await?;
            let since = last.map_or(self.at, |last| last.max(self.at));
            let mut report = self.report(since, &theirs, &ours);
            if last.is_some_and(|last| last >= theirs.commit()) {
                report.outcome = PromoteOutcome::AlreadyApplied;
                return Ok(report);
            }
            let found = self.difference(&theirs, &ours, since, &app_id).await?;
            (report.upserted, report.deleted) = (found.upserted, found.deleted);
            (report.overwritten, report.conflicts) = (found.conflicts, found.named);
            if options.dry_run {
                report.outcome = PromoteOutcome::DryRun;
                return Ok(report);
            }
            if report.overwritten > 0 && !options.overwrite {
                return Err(conflict(&report));
            }
            if found.keys.is_empty() {
                return Ok(report);
            }
            let unchanged = unchanged_since(&ours, &span(&found.keys));
            match found.changes.epoch.commit_if(unchanged).await? {
                Some(EpochOutcome::Committed(receipt)) => {
                    report.outcome = PromoteOutcome::Promoted;
                    report.commit = Some(receipt.commit);
                    report.before_commit = receipt.commit - 1;
                    return Ok(report);
                }
                Some(EpochOutcome::AlreadyApplied { .. }) => {
                    let none = self.report(since, &theirs, &ours);
                    return Ok(PromoteReport { outcome: PromoteOutcome::AlreadyApplied, ..none });
                }
                None => tracing::debug!("the keys were changed meanwhile"),
            }
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "others changed the keys {MAX_ATTEMPTS} times while the difference was worked out; nothing was written: stop those who write them"
            ),
        ))
    }

    fn report(&self, since: i64, theirs: &Basis, ours: &Basis) -> PromoteReport {
        PromoteReport {
            fork: self.fork.name().to_owned(),
            parent: self.parent.name().to_owned(),
            outcome: PromoteOutcome::NothingToDo,
            since_commit: since,
            fork_commit: theirs.commit(),
            before_commit: ours.commit(),
            commit: None,
            upserted: 0,
            deleted: 0,
            overwritten: 0,
            conflicts: Vec::new(),
        }
    }

    /// Works out, and stages, what leads the parent to what the fork is.
    async fn difference(
        &self,
        theirs: &Basis,
        ours: &Basis,
        since: i64,
        app_id: &str,
    ) -> Result<Difference> {
        let fields = union(theirs.definition(), ours.definition());
        let schema = Arc::new(Schema::new(vec![
            Arc::new(Field::new(STATE_KEY, DataType::Utf8, false)),
            Arc::new(Field::new(VERSION, DataType::Int64, true)),
            Arc::new(Field::new(EVENT_TIME, event_time_type(), false)),
            Arc::new(Field::new(OP_TYPE, DataType::Utf8, false)),
            value_field(&fields),
        ]));
        let epoch = self.parent.log().epoch(app_id, theirs.commit())?;
        let mut found = Difference {
            changes: Compensation::new(epoch, schema),
            keys: BTreeSet::new(),
            conflicts: 0,
            named: Vec::new(),
            upserted: 0,
            deleted: 0,
        };
        let now = self.parent.log().arrival_micros();
        let reader = self.fork.reader();
        let mut differences = reader
            .diff_rows(theirs, Point::at_commit(since), Point::LATEST, KeyFilter::All)
            .await?;
        while let Some(batch) = differences.try_next().await? {
            let rows = self.compare(theirs, ours, &batch, &fields).await?;
            if let Some(rows) = rows.changes(ours.definition().order_by, now, &mut found)? {
                found.changes.add(rows).await?;
            }
        }
        found.changes.stage().await?;
        Ok(found)
    }

    async fn compare(
        &self,
        theirs: &Basis,
        ours: &Basis,
        batch: &RecordBatch,
        fields: &Fields,
    ) -> Result<Compared> {
        let column = |name: &str| {
            let column = batch.column_by_name(name);
            column.ok_or_else(|| Error::internal(format!("a difference lacks {name}")))
        };
        let keys: StringArray = column(STATE_KEY)?.as_string().clone();
        let names: Vec<&str> = keys.iter().flatten().collect();
        let known = self.parent.reader().multi_get(ours, Point::LATEST, &names).await?;
        let own = self.fork.reader().multi_get(theirs, Point::LATEST, &names).await?;
        let versions = own.iter().map(|lookup| winner(lookup).map(|(version, _)| version));
        Ok(Compared {
            before: conformed(column("before")?, fields)?,
            after: conformed(column("after")?, fields)?,
            now: values(&known, fields)?,
            winners: known.iter().map(winner).collect(),
            versions: versions.collect(),
            keys,
        })
    }
}

/// Keys that the fork has changed: what they were, what they are there, what they are in the parent.
struct Compared {
    keys: StringArray,
    before: ArrayRef,
    after: ArrayRef,
    now: ArrayRef,
    /// Version and event time of the parent's newest change of each, if there is one.
    winners: Vec<Option<(i64, i64)>>,
    /// The version of the fork's newest change of each.
    versions: Vec<Option<i64>>,
}

impl Compared {
    /// The rows that make the parent what the fork is.
    fn changes(
        &self,
        order_by: OrderBy,
        now: i64,
        found: &mut Difference,
    ) -> Result<Option<RecordBatch>> {
        let mut rows: Vec<u64> = Vec::new();
        for row in 0..self.keys.len() {
            let is =
                |a: &ArrayRef, b: &ArrayRef| a.slice(row, 1).as_ref() == b.slice(row, 1).as_ref();
            if is(&self.now, &self.after) {
                continue;
            }
            let key = self.keys.value(row);
            if !is(&self.now, &self.before) {
                found.conflicts += 1;
                if found.named.len() < NAMED_KEYS {
                    found.named.push(key.to_owned());
                }
            }
            match self.after.is_valid(row) {
                true => found.upserted += 1,
                false => found.deleted += 1,
            }
            // Of very many keys the span between the ends is enough.
            found.keys.insert(key.to_owned());
            if found.keys.len() > 2 {
                let middle = found.keys.iter().nth(1).cloned();
                middle.map(|middle| found.keys.remove(&middle));
            }
            rows.push(row as u64);
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let version = |&row: &u64| {
            let row = row as usize;
            let known = self.winners[row].map(|(version, _)| version);
            // A version is one of the caller's own sequence, which goes on from there.
            (order_by == OrderBy::Version).then(|| self.versions[row].max(known)).flatten()
        };
        let time = |&row: &u64| {
            let known = self.winners[row as usize].map(|(_, time)| time);
            Some(known.map_or(now, |time| now.max(time.saturating_add(1))))
        };
        let versions: Int64Array = rows.iter().map(version).collect();
        let times: TimestampMicrosecondArray = rows.iter().map(time).collect();
        let operation =
            |&row: &u64| Some(if self.after.is_valid(row as usize) { UPSERT } else { DELETE });
        let operations: StringArray = rows.iter().map(operation).collect();
        let indices = arrow::array::UInt64Array::from(rows);
        let columns: Vec<ArrayRef> = vec![
            take(&self.keys, &indices, None)?,
            Arc::new(versions),
            Arc::new(times.with_timezone("UTC")),
            Arc::new(operations),
            take(&self.after, &indices, None)?,
        ];
        Ok(Some(RecordBatch::try_new(found.changes.schema().clone(), columns)?))
    }
}

fn conflict(report: &PromoteReport) -> Error {
    let more = match report.overwritten - report.conflicts.len() as u64 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Error::new(
        ErrorKind::Conflict,
        format!(
            "both have changed {}{more} since commit {} of the fork; nothing was written: bring them together in the fork, or let the fork's values win (--overwrite)",
            report.conflicts.iter().map(|key| format!("{key:?}")).collect::<Vec<_>>().join(", "),
            report.since_commit
        ),
    )
}

/// A range of keys with all of these in it.
fn span(keys: &BTreeSet<String>) -> KeyFilter {
    KeyFilter::Range {
        from: keys.first().cloned(),
        // No key lies between one and itself with a zero byte after it.
        to: keys.last().map(|last| format!("{last}\0")),
    }
}

/// The fields of both, each in its place in the parent.
fn union(fork: &StateDefinition, parent: &StateDefinition) -> Fields {
    merged(&parent.stored_fields(), &fork.stored_fields())
}

fn merged(first: &Fields, second: &Fields) -> Fields {
    let mut all: Vec<Arc<Field>> = Vec::with_capacity(first.len());
    for field in first {
        let other = second.iter().find(|other| other.name() == field.name());
        all.push(match (field.data_type(), other.map(|other| other.data_type())) {
            (DataType::Struct(own), Some(DataType::Struct(other))) => {
                let inner = DataType::Struct(merged(own, other));
                Arc::new(field.as_ref().clone().with_data_type(inner))
            }
            _ => field.clone(),
        });
    }
    let is_new = |field: &&Arc<Field>| !first.iter().any(|own| own.name() == field.name());
    all.extend(second.iter().filter(is_new).cloned());
    all.into()
}

/// Values with the fields of both: what one side does not have is null.
fn conformed(values: &ArrayRef, fields: &Fields) -> Result<ArrayRef> {
    let values = values.as_struct();
    let columns = fields.iter().map(|field| {
        let Some(column) = values.column_by_name(field.name()) else {
            return Ok(new_null_array(field.data_type(), values.len()));
        };
        match field.data_type() {
            DataType::Struct(inner) if column.data_type() != field.data_type() => {
                conformed(column, inner)
            }
            _ if column.data_type() == field.data_type() => Ok(column.clone()),
            wanted => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the field {} has the type {} on one side and {wanted} on the other: give it another name in the fork",
                    field.name(),
                    column.data_type()
                ),
            )),
        }
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let length = values.len();
    let built =
        StructArray::try_new_with_length(fields.clone(), columns, values.nulls().cloned(), length)?;
    Ok(Arc::new(built))
}

/// The values that were found, null where there is none.
fn values(found: &[Lookup], fields: &Fields) -> Result<ArrayRef> {
    let null = new_null_array(&DataType::Struct(fields.clone()), 1);
    let mut arrays: Vec<ArrayRef> = vec![null];
    let mut places = Vec::with_capacity(found.len());
    for lookup in found {
        let Lookup::Found(row) = lookup else {
            places.push((0, 0));
            continue;
        };
        let value = row.column_by_name(STATE_VALUE);
        let value = value.ok_or_else(|| Error::internal("a row lacks its value"))?;
        arrays.push(conformed(value, fields)?);
        places.push((arrays.len() - 1, 0));
    }
    let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    Ok(interleave(&arrays, &places)?)
}

fn winner(lookup: &Lookup) -> Option<(i64, i64)> {
    let (Lookup::Found(row) | Lookup::Deleted(row)) = lookup else { return None };
    let version = row.column(1).as_primitive::<Int64Type>().value(0);
    let time = row.column(2).as_primitive::<TimestampMicrosecondType>().value(0);
    Some((version, time))
}
