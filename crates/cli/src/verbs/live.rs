//! `get` and `scan`: live keys and their values at a point.

use std::sync::Arc;

use alluvium::format::{Json, encode_key, format_timestamp, integer_key_part, parse_json};
use alluvium::{Error, Lookup, Point, StateDefinition};
use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{
    DataType, Field, FieldRef, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType,
};
use futures::StreamExt;

use super::{Outcome, Session};
use crate::args::{GetArgs, ScanArgs};
use crate::failure::{ExitCodes, Failure};
use crate::output::{TableStyle, rename};

/// The columns of a live row: there, and here.
const COLUMNS: [(&str, &str); 4] = [
    ("state_key", "key"),
    ("state_value", "value"),
    ("version", "version"),
    ("event_time", "event_time"),
];

fn value_field(definition: &StateDefinition) -> FieldRef {
    Arc::new(Field::new("state_value", DataType::Struct(definition.stored_fields()), true))
}

fn schema(definition: &StateDefinition) -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        Field::new("key", DataType::Utf8, false),
        Field::new("value", DataType::Struct(definition.stored_fields()), true),
        Field::new("version", DataType::Int64, false),
        Field::new("event_time", time, false),
    ]))
}

pub(super) async fn scan(session: &mut Session<'_>, args: ScanArgs) -> Outcome {
    let store = session.open().await?;
    let named = args.point.point();
    let (state, points) = session.state_at(&store, &args.state, &[&named]).await?;
    let point = points.into_iter().next().unwrap_or_default();
    let reader = state.reader();
    let basis = reader.basis().await?;
    let payload = vec![value_field(basis.definition())];
    let streams = reader.scan(&basis, point, args.keys.filter(), payload, 1).await?;
    let rows = streams.into_iter().next().ok_or_else(|| Error::internal("a scan without rows"))?;
    let batches = rows.map(|batch| rename(&batch?, &COLUMNS));
    let schema = schema(basis.definition());
    let written = session.emit(&schema, args.limit, batches).await;
    store.close().await;
    let (rows, remark) = written?;
    session.summarize(rows, Some((basis.commit(), point)), remark);
    Ok(ExitCodes::OK)
}

pub(super) async fn get(session: &mut Session<'_>, args: GetArgs) -> Outcome {
    let keys = args
        .keys
        .iter()
        .map(|key| if args.composite { composite_key(key) } else { Ok(key.clone()) })
        .collect::<Result<Vec<String>, Failure>>()?;
    let store = session.open().await?;
    let named = args.point.point();
    let (state, points) = session.state_at(&store, &args.state, &[&named]).await?;
    let point = points.into_iter().next().unwrap_or_default();
    let reader = state.reader();
    let basis = reader.basis().await?;
    let wanted: Vec<&str> = keys.iter().map(String::as_str).collect();
    let found = reader.multi_get(&basis, point, &wanted).await?;
    let mut rows = session.begin(TableStyle::Records, &schema(basis.definition()))?;
    let mut missing = Vec::new();
    for (key, lookup) in keys.iter().zip(found) {
        match lookup {
            Lookup::Found(row) => rows.write(session.console, &rename(&row, &COLUMNS)?)?,
            other => missing.push(explain_missing(&args.state, key, point, &other)),
        }
    }
    let (count, remark) = rows.finish(session.console)?;
    for message in &missing {
        session.complain(message);
    }
    if count > 0 {
        session.summarize(count, Some((basis.commit(), point)), remark);
    }
    Ok(if missing.is_empty() { ExitCodes::OK } else { ExitCodes::NOT_FOUND })
}

/// Why a key has no value.
fn explain_missing(state: &str, key: &str, point: Point, lookup: &Lookup) -> String {
    let when = if point.is_latest() { String::new() } else { format!(" as of {point}") };
    match lookup {
        Lookup::Deleted(row) => {
            let place = deletion(row).map_or(String::new(), |(version, time, commit)| {
                let time = format_timestamp(time);
                format!(" at version {version} (event_time {time}, commit {commit})")
            });
            format!("the key {key:?} of {state} was deleted{place}{when}: it has no value")
        }
        _ => format!("the state {state} has no key {key:?}{when}"),
    }
}

fn deletion(row: &RecordBatch) -> Option<(i64, i64, i64)> {
    let integer = |name: &str| {
        row.column_by_name(name)?.as_primitive_opt::<Int64Type>().map(|column| column.value(0))
    };
    let time = row
        .column_by_name("event_time")?
        .as_primitive_opt::<TimestampMicrosecondType>()
        .map(|column| column.value(0))?;
    Some((integer("version")?, time, integer("commit")?))
}

/// A composite key from a JSON array of its parts: texts as they are, integers as columns of integers are encoded.
pub(super) fn composite_key(text: &str) -> Result<String, Failure> {
    let wrong = || {
        Failure::usage(format!(
            "{text} is no composite key: give a JSON array of texts and integers, such as '[\"eu\", 42]'"
        ))
    };
    let Json::Array(parts) = parse_json(text).map_err(|_| wrong())? else { return Err(wrong()) };
    let parts = parts
        .into_iter()
        .map(|part| match part {
            Json::String(text) => Ok(text.into_owned()),
            Json::Number(digits) => digits.parse().map(integer_key_part).map_err(|_| wrong()),
            Json::Bool(value) => Ok(if value { "1" } else { "0" }.to_owned()),
            _ => Err(wrong()),
        })
        .collect::<Result<Vec<String>, Failure>>()?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Ok(encode_key(&parts))
}
