//! Rows on their way into the log: what a caller offers, checked and completed before a byte is written.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray, new_null_array,
};
use arrow::datatypes::{
    DataType, Field, Fields, Int64Type, Schema, SchemaRef, TimestampMicrosecondType,
};

use crate::clock::{Clock, HybridClock};
use crate::columns::{
    DELETE, EVENT_TIME, OP_TYPE, STATE_KEY, STATE_VALUE, UPSERT, VERSION, event_time_type,
    value_field,
};
use crate::conform::conform;
use crate::definition::StateDefinition;
use crate::encode::{MAX_DAYS_PER_APPEND, MICROS_PER_DAY};
use crate::error::{Error, ErrorKind, Result};
use crate::order::OrderBy;
use crate::required::check_required;

/// The first instant that can be stored: 0001-01-01T00:00:00Z.
pub const MIN_EVENT_TIME: i64 = -62_135_596_800_000_000;
/// The last instant that can be stored: 9999-12-31T23:59:59.999999Z.
pub const MAX_EVENT_TIME: i64 = 253_402_300_799_999_999;

/// Rows that may be appended: `state_key, version, event_time, op_type, state_value`, complete and valid.
#[derive(Debug, Clone)]
pub(crate) struct LogRows {
    pub(crate) batch: RecordBatch,
    pub(crate) definition: Arc<StateDefinition>,
    /// The days that the rows span, counted from 1970; each is a file.
    pub(crate) days: Vec<i64>,
    /// The commit up to whose markers the keys are known not to be erased ones.
    pub(crate) checked: i64,
}

/// Refuses changes that an append to a state of this definition would refuse; nothing is written, nor must the state exist.
/// Gives what the state would be with them: it has the fields that they add.
///
/// # Errors
/// As of [`crate::Log::append`] for the same changes.
pub fn check_changes(
    changes: &RecordBatch,
    definition: &Arc<StateDefinition>,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<StateDefinition>> {
    let versions = HybridClock::new(clock.clone());
    let rows = LogRows::from_changes(changes, definition, &versions)?;
    Ok(rows.definition)
}

/// The schema of [`LogRows`].
pub(crate) fn rows_schema(fields: &Fields) -> SchemaRef {
    Arc::new(Schema::new(vec![
        Arc::new(Field::new(STATE_KEY, DataType::Utf8, false)),
        Arc::new(Field::new(VERSION, DataType::Int64, false)),
        Arc::new(Field::new(EVENT_TIME, event_time_type(), false)),
        Arc::new(Field::new(OP_TYPE, DataType::Utf8, false)),
        value_field(fields),
    ]))
}

impl LogRows {
    /// The keys.
    pub(crate) fn keys(&self) -> &StringArray {
        self.batch.column(0).as_string()
    }

    /// The versions of the first and the last row.
    pub(crate) fn versions(&self) -> (i64, i64) {
        let versions = self.batch.column(1).as_primitive::<Int64Type>();
        match versions.len() {
            0 => (0, 0),
            rows => (versions.value(0), versions.value(rows - 1)),
        }
    }

    /// Checks and completes what a caller offers.
    ///
    /// `changes` has a column `state_key`, and may have `op_type` (default UPSERT), `version`, `event_time` and
    /// `state_value`; other columns are refused. Fields that the state doesn't know make its definition grow.
    pub(crate) fn from_changes(
        changes: &RecordBatch,
        definition: &Arc<StateDefinition>,
        clock: &HybridClock,
    ) -> Result<Self> {
        check_columns(changes)?;
        let rows = changes.num_rows();
        let keys = required_text(changes, STATE_KEY)?;
        let deletes = delete_mask(changes)?;
        let (version, event_time) = complete_order(changes, definition, clock, &keys)?;
        check_times(&event_time, definition, clock, &keys)?;
        let days = days_of(&event_time)?;

        let offered = match changes.column_by_name(STATE_VALUE) {
            Some(column) => column.clone(),
            None => new_null_array(&DataType::Struct(Fields::empty()), rows),
        };
        let DataType::Struct(offered_fields) = offered.data_type() else {
            return Err(Error::invalid(format!(
                "{STATE_VALUE} is {}: it must be a struct of the state's fields",
                offered.data_type()
            )));
        };
        let known = |field: &Arc<Field>| definition.fields.iter().any(|known| known == field);
        let definition = match offered_fields.iter().all(known) {
            true => definition.clone(),
            false => Arc::new(definition.grown_by(offered_fields)?),
        };
        if definition.fields.is_empty() && rows > 0 {
            return Err(Error::invalid(
                "the state has no fields yet, and Parquet can't store a value without any: append rows that have a field, or declare one",
            ));
        }
        check_presence(&offered, &deletes, &keys)?;
        let stored = DataType::Struct(definition.stored_fields());
        let value = conform(&offered, &stored, STATE_VALUE)?;
        check_required(&value, &definition.fields, STATE_VALUE, &keys)?;

        let op_type: StringArray = deletes
            .values()
            .iter()
            .map(|delete| Some(if delete { DELETE } else { UPSERT }))
            .collect();
        let batch = RecordBatch::try_new(
            rows_schema(&definition.stored_fields()),
            vec![Arc::new(keys), Arc::new(version), Arc::new(event_time), Arc::new(op_type), value],
        )?;
        Ok(Self { batch, definition, days, checked: 0 })
    }

    /// The same rows with room for the fields of a grown definition.
    pub(crate) fn adapted_to(&self, definition: &Arc<StateDefinition>) -> Result<Self> {
        if self.definition.fields == definition.fields {
            return Ok(self.clone());
        }
        let stored = definition.stored_fields();
        let value = conform(self.batch.column(4), &DataType::Struct(stored.clone()), STATE_VALUE)?;
        let mut columns: Vec<ArrayRef> = self.batch.columns()[..4].to_vec();
        columns.push(value);
        let batch = RecordBatch::try_new(rows_schema(&stored), columns)?;
        let (definition, days) = (definition.clone(), self.days.clone());
        Ok(Self { batch, definition, days, checked: self.checked })
    }
}

fn check_columns(changes: &RecordBatch) -> Result<()> {
    const KNOWN: [&str; 5] = [STATE_KEY, VERSION, EVENT_TIME, OP_TYPE, STATE_VALUE];
    for field in changes.schema_ref().fields() {
        if !KNOWN.contains(&field.name().as_str()) {
            return Err(Error::invalid(format!(
                "unknown column {:?}: the columns are {}; a state's own fields belong into {STATE_VALUE}",
                field.name(),
                KNOWN.join(", ")
            )));
        }
    }
    Ok(())
}

/// A text for messages that names a row without flooding them.
pub(crate) fn row_name(keys: &StringArray, row: usize) -> String {
    let key = keys.value(row);
    let shown: String = key.chars().take(60).collect();
    let more = if shown.len() < key.len() { ".." } else { "" };
    format!("row {row} (key {:?}{more})", shown)
}

fn required_text(changes: &RecordBatch, name: &str) -> Result<StringArray> {
    let column = changes
        .column_by_name(name)
        .ok_or_else(|| Error::invalid(format!("the column {name} is missing")))?;
    let column = conform(column, &DataType::Utf8, name)?;
    let text = column.as_string::<i32>();
    if let Some(row) =
        (text.null_count() > 0).then(|| (0..text.len()).find(|&row| text.is_null(row)))
    {
        let row = row.unwrap_or_default();
        return Err(Error::invalid(format!(
            "row {row}: {name} is null; every row needs a key (an empty one is legal); nothing was written"
        )));
    }
    Ok(text.clone())
}

fn delete_mask(changes: &RecordBatch) -> Result<BooleanArray> {
    if changes.column_by_name(OP_TYPE).is_none() {
        return Ok(BooleanArray::from(vec![false; changes.num_rows()]));
    }
    let operations = required_text(changes, OP_TYPE)?;
    let mut deletes = Vec::with_capacity(operations.len());
    for (row, operation) in operations.iter().enumerate() {
        deletes.push(match operation {
            Some(UPSERT) => false,
            Some(DELETE) => true,
            other => {
                return Err(Error::invalid(format!(
                    "row {row}: {OP_TYPE} is {:?}; write {UPSERT} or {DELETE}",
                    other.unwrap_or_default()
                )));
            }
        });
    }
    Ok(BooleanArray::from(deletes))
}

/// Fills in versions and event times by the rules of the state's order.
fn complete_order(
    changes: &RecordBatch,
    definition: &StateDefinition,
    clock: &HybridClock,
    keys: &StringArray,
) -> Result<(Int64Array, TimestampMicrosecondArray)> {
    let rows = changes.num_rows();
    let optional = |name: &str, data_type: &DataType| match changes.column_by_name(name) {
        Some(column) => conform(column, data_type, name),
        None => Ok(new_null_array(data_type, rows)),
    };
    let versions = optional(VERSION, &DataType::Int64)?;
    let versions = versions.as_primitive::<Int64Type>();
    let times = optional(EVENT_TIME, &event_time_type())?;
    let times = times.as_primitive::<TimestampMicrosecondType>();

    if definition.order_by == OrderBy::EventTime && times.null_count() > 0 {
        let orphan = (0..rows).find(|&row| times.is_null(row) && versions.is_valid(row));
        if let Some(row) = orphan {
            return Err(Error::invalid(format!(
                "{}: it has the version {} but no event_time, and the state is ordered by event_time; \
                 give its event_time, or leave the version out too to use the time of arrival",
                row_name(keys, row),
                versions.value(row)
            )));
        }
    }
    let arrival = clock.arrival_micros();
    let event_time: TimestampMicrosecondArray = match times.null_count() {
        0 => times.clone(),
        _ => times.iter().map(|time| Some(time.unwrap_or(arrival))).collect(),
    };
    let version: Int64Array = match versions.null_count() {
        0 => versions.clone(),
        missing => {
            let mut next = clock.reserve(missing)?;
            let mut fresh = || {
                let version = next;
                next = next.wrapping_add(HybridClock::STEP);
                version
            };
            versions.iter().map(|version| Some(version.unwrap_or_else(&mut fresh))).collect()
        }
    };
    Ok((version, event_time.with_timezone("UTC")))
}

fn check_times(
    times: &TimestampMicrosecondArray,
    definition: &StateDefinition,
    clock: &HybridClock,
    keys: &StringArray,
) -> Result<()> {
    let latest = clock
        .arrival_micros()
        .saturating_add(definition.max_future_ms.saturating_mul(1_000))
        .min(MAX_EVENT_TIME);
    let outside = times.values().iter().position(|&time| time < MIN_EVENT_TIME || time > latest);
    let Some(row) = outside else { return Ok(()) };
    let time = times.value(row);
    let shown = chrono::DateTime::from_timestamp_micros(time)
        .map_or_else(|| format!("{time} microseconds"), |t| t.to_rfc3339());
    let rule = if (MIN_EVENT_TIME..=MAX_EVENT_TIME).contains(&time) {
        format!(
            "later than now plus max_future ({} ms): it would win over every later change",
            definition.max_future_ms
        )
    } else {
        "outside of the years 0001 to 9999".to_owned()
    };
    Err(Error::invalid(format!("{}: event_time {shown} is {rule}", row_name(keys, row))))
}

/// The days that rows span; refused when they are too many for one append.
fn days_of(times: &TimestampMicrosecondArray) -> Result<Vec<i64>> {
    let mut days: Vec<i64> =
        times.values().iter().map(|time| time.div_euclid(MICROS_PER_DAY)).collect();
    days.dedup();
    days.sort_unstable();
    days.dedup();
    if days.len() > MAX_DAYS_PER_APPEND {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            format!(
                "the rows span {} days, and one append may span {MAX_DAYS_PER_APPEND}: append them in several batches, by event time",
                days.len()
            ),
        ));
    }
    Ok(days)
}

/// An UPSERT has a value, a DELETE has none.
fn check_presence(value: &ArrayRef, deletes: &BooleanArray, keys: &StringArray) -> Result<()> {
    for row in 0..value.len() {
        match (deletes.value(row), value.is_valid(row)) {
            (true, true) => {
                return Err(Error::invalid(format!(
                    "{}: a DELETE has a {STATE_VALUE}; leave the value out",
                    row_name(keys, row)
                )));
            }
            (false, false) => {
                return Err(Error::invalid(format!(
                    "{}: an UPSERT has no {STATE_VALUE}; give a value, or write a DELETE",
                    row_name(keys, row)
                )));
            }
            _ => {}
        }
    }
    Ok(())
}
