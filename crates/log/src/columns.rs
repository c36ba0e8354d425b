//! The columns of the log and the snapshot: their names, and the Arrow schemas made of them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};

/// The key of a row.
pub const STATE_KEY: &str = "state_key";
/// The number that orders rows.
pub const VERSION: &str = "version";
/// When a change happened.
pub const EVENT_TIME: &str = "event_time";
/// `UPSERT` or `DELETE`.
pub const OP_TYPE: &str = "op_type";
/// The state's own fields.
pub const STATE_VALUE: &str = "state_value";
/// Names the rows of one commit before its number is known.
pub const APPEND_ID: &str = "append_id";
/// The place of a row among the equal rows of its commit.
pub const APPEND_SEQ: &str = "append_seq";
/// The log commit of a row.
pub const COMMIT: &str = "commit";
/// The partition of the log: the UTC day of the event time.
pub const DT: &str = "dt";
/// The partition of the snapshot: `base` or `run`.
pub const TIER: &str = "tier";
/// The operation that sets a key's value.
pub const UPSERT: &str = "UPSERT";
/// The operation that removes a key.
pub const DELETE: &str = "DELETE";

/// The type of `event_time`: microseconds in UTC.
pub fn event_time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

fn leading() -> Vec<FieldRef> {
    vec![
        Arc::new(Field::new(STATE_KEY, DataType::Utf8, false)),
        Arc::new(Field::new(VERSION, DataType::Int64, false)),
        Arc::new(Field::new(EVENT_TIME, event_time_type(), false)),
        Arc::new(Field::new(OP_TYPE, DataType::Utf8, false)),
    ]
}

/// The field `state_value` of a state with these value fields.
pub fn value_field(value_fields: &Fields) -> FieldRef {
    Arc::new(Field::new(STATE_VALUE, DataType::Struct(value_fields.clone()), true))
}

/// The schema of a log file (without the partition column).
pub fn log_schema(value_fields: &Fields) -> SchemaRef {
    let mut fields = leading();
    fields.push(value_field(value_fields));
    fields.push(Arc::new(Field::new(APPEND_ID, DataType::Utf8, true)));
    fields.push(Arc::new(Field::new(APPEND_SEQ, DataType::Int32, true)));
    fields.push(Arc::new(Field::new(COMMIT, DataType::Int64, true)));
    Arc::new(Schema::new(fields))
}

/// The schema of the rows that a fold works on: the columns that decide, then any payload.
///
/// `state_key, version, event_time, op_type, commit, append_seq, <payload>`. Nothing but the payload is null.
pub fn fold_schema(payload: &[FieldRef]) -> SchemaRef {
    let mut fields = leading();
    fields.push(Arc::new(Field::new(COMMIT, DataType::Int64, false)));
    fields.push(Arc::new(Field::new(APPEND_SEQ, DataType::Int32, false)));
    fields.extend(payload.iter().cloned());
    Arc::new(Schema::new(fields))
}

/// How many leading columns of a fold schema decide; the payload begins here.
pub const FOLD_COLUMNS: usize = 6;
