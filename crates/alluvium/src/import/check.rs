//! The rules of the log, row by row: so that a bad row is named by its line, and can be set aside alone.

use std::sync::Arc;

use alluvium_log::{
    DELETE, EVENT_TIME, Erased, Error, Floor, MAX_EVENT_TIME, MIN_EVENT_TIME, OP_TYPE, OrderBy,
    Result, STATE_KEY, STATE_VALUE, StateDefinition, VERSION,
};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::TimestampMicrosecondType;

use crate::format::{ChangeChunk, Fault, format_timestamp, write_value};

/// Refuses the rows of a chunk that the state's log would refuse.
///
/// # Errors
/// A row is bad, and bad rows stop the read.
pub(super) fn check_rows(
    chunk: &mut ChangeChunk,
    definition: &StateDefinition,
    (erased, floor): (Option<Arc<Erased>>, Option<Floor>),
    now_micros: i64,
) -> Result<()> {
    let rules = Rules { floor, ..Rules::new(&chunk.changes, definition, erased, now_micros)? };
    let bad: Vec<(usize, Fault)> =
        (0..chunk.len()).filter_map(|row| rules.fault(row).map(|fault| (row, fault))).collect();
    if bad.is_empty() {
        return Ok(());
    }
    let texts = bad
        .iter()
        .map(|(row, _)| native_change(&chunk.changes, *row))
        .collect::<Result<Vec<Vec<u8>>>>()?;
    let before = chunk.rejects.len();
    chunk.drop_bad(bad)?;
    for (reject, text) in chunk.rejects.iter_mut().skip(before).zip(texts) {
        // Not every format keeps the text of rows that seemed good.
        if reject.text.is_empty() {
            reject.text = text;
        }
    }
    chunk.rejects.sort_by_key(|reject| reject.line);
    Ok(())
}

/// A row as a native change, which can be mended and appended.
fn native_change(changes: &RecordBatch, row: usize) -> Result<Vec<u8>> {
    const NAMES: [(&str, &str); 5] = [
        (STATE_KEY, "key"),
        (OP_TYPE, "op"),
        (STATE_VALUE, "value"),
        (VERSION, "version"),
        (EVENT_TIME, "event_time"),
    ];
    let mut text = Vec::new();
    for (column, name) in NAMES {
        let Some(column) = changes.column_by_name(column).filter(|column| column.is_valid(row))
        else {
            continue;
        };
        text.push(if text.is_empty() { b'{' } else { b',' });
        text.extend_from_slice(format!("\"{name}\":").as_bytes());
        write_value(&mut text, column.as_ref(), row)?;
    }
    text.push(b'}');
    Ok(text)
}

struct Rules {
    keys: ArrayRef,
    /// The markers of keys that may not come back.
    erased: Option<Arc<Erased>>,
    ops: ArrayRef,
    versions: ArrayRef,
    times: ArrayRef,
    values: ArrayRef,
    order_by: OrderBy,
    max_future_ms: i64,
    latest: i64,
    /// Up to which event time changes are refused.
    floor: Option<Floor>,
}

impl Rules {
    fn new(
        changes: &RecordBatch,
        definition: &StateDefinition,
        erased: Option<Arc<Erased>>,
        now_micros: i64,
    ) -> Result<Self> {
        let column = |name: &str| {
            changes
                .column_by_name(name)
                .cloned()
                .ok_or_else(|| Error::internal(format!("changes without the column {name}")))
        };
        let latest = now_micros
            .saturating_add(definition.max_future_ms.saturating_mul(1_000))
            .min(MAX_EVENT_TIME);
        Ok(Self {
            keys: column(STATE_KEY)?,
            erased: erased.filter(|erased| !erased.is_empty()),
            ops: column(OP_TYPE)?,
            versions: column(VERSION)?,
            times: column(EVENT_TIME)?,
            values: column(STATE_VALUE)?,
            order_by: definition.order_by,
            max_future_ms: definition.max_future_ms,
            latest,
            floor: None,
        })
    }

    fn fault(&self, row: usize) -> Option<Fault> {
        self.key_fault(row).or_else(|| self.time_fault(row)).or_else(|| self.value_fault(row))
    }

    fn key_fault(&self, row: usize) -> Option<Fault> {
        let key = self.keys.as_string_opt::<i32>().filter(|keys| keys.is_valid(row))?.value(row);
        let is_erased = self.erased.as_ref().is_some_and(|erased| erased.contains(key));
        is_erased.then(|| {
            Fault::new(
                "the key was erased and may not come back; leave the row out, or allow the key again by erase --forget",
            )
            .in_field(STATE_KEY)
        })
    }

    fn time_fault(&self, row: usize) -> Option<Fault> {
        if self.times.is_null(row) {
            let is_orphan = self.order_by == OrderBy::EventTime && self.versions.is_valid(row);
            return is_orphan.then(|| {
                Fault::new(
                    "it has a version but no event time, and the state is ordered by event time; \
                     give its event time, or leave the version out too to use the time of arrival",
                )
                .in_field(EVENT_TIME)
            });
        }
        let time = self.times.as_primitive::<TimestampMicrosecondType>().value(row);
        if let Some(floor) = self.floor.filter(|floor| time <= floor.time) {
            return Some(
                Fault::new(format!(
                    "{}: it is at or below the floor {}, up to which deleted keys may be forgotten already (tombstone_retention); leave the \
                     row out, or give it the time at which it is made known",
                    format_timestamp(time),
                    format_timestamp(floor.time)
                ))
                .in_field(EVENT_TIME),
            );
        }
        if (MIN_EVENT_TIME..=self.latest).contains(&time) {
            return None;
        }
        let why = if (MIN_EVENT_TIME..=MAX_EVENT_TIME).contains(&time) {
            format!(
                "it is later than now plus {} ms, and would win over every later change; correct the time",
                self.max_future_ms
            )
        } else {
            "it lies outside of the years 0001 to 9999; correct the time".to_owned()
        };
        Some(Fault::new(format!("{}: {why}", format_timestamp(time))).in_field(EVENT_TIME))
    }

    fn value_fault(&self, row: usize) -> Option<Fault> {
        let is_delete = self.ops.as_string::<i32>().value(row) == DELETE;
        match (is_delete, self.values.is_valid(row)) {
            (true, true) => {
                Some(Fault::new("a DELETE has a value; leave the value out").in_field(STATE_VALUE))
            }
            (false, false) => Some(
                Fault::new("an UPSERT has no value; give a value, or write a DELETE")
                    .in_field(STATE_VALUE),
            ),
            _ => None,
        }
    }
}

/// Passes over the lines up to `line`, the bad ones among them too.
pub(super) fn skip_lines(chunk: &mut ChangeChunk, line: u64) -> Result<()> {
    chunk.rejects.retain(|reject| reject.line > line);
    if chunk.first_line().is_none_or(|first| first > line) {
        return Ok(());
    }
    let wanted: BooleanArray = chunk.lines.iter().map(|at| Some(*at > line)).collect();
    chunk.changes = filter_record_batch(&chunk.changes, &wanted)?;
    chunk.lines.retain(|at| *at > line);
    Ok(())
}

/// How many of the changes are deletes.
pub(super) fn count_deletes(changes: &RecordBatch) -> u64 {
    changes.column_by_name(OP_TYPE).map_or(0, |column| {
        column.as_string::<i32>().iter().filter(|op| *op == Some(DELETE)).count() as u64
    })
}
