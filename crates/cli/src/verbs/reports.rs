//! Reports of the library, which are JSON objects, as rows.

use std::sync::Arc;

use alluvium::format::{Json, build_array, infer_fields, parse_json};
use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::datatypes::{DataType, Field};

use super::Session;
use crate::failure::Failure;
use crate::output::{TableStyle, with_column};

/// Writes reports as rows of one schema; in a table as a line per figure.
pub(super) fn write(session: &mut Session<'_>, reports: &[String]) -> Result<u64, Failure> {
    write_as(session, reports, TableStyle::Records)
}

/// As [`write`], with the style of a table.
pub(super) fn write_as(
    session: &mut Session<'_>,
    reports: &[String],
    style: TableStyle,
) -> Result<u64, Failure> {
    let values =
        reports.iter().map(|report| parse_json(report)).collect::<Result<Vec<Json<'_>>, _>>()?;
    let (fields, untyped) = infer_fields(&values)?;
    let field = Field::new("report", DataType::Struct(fields.clone()), true);
    let values: Vec<Json<'_>> = values.into_iter().map(|value| without(value, &untyped)).collect();
    let array: ArrayRef = build_array(&field, &values)?;
    let mut batch = match array.as_any().downcast_ref::<arrow::array::StructArray>() {
        Some(rows) if !fields.is_empty() => RecordBatch::from(rows.clone()),
        _ => return Ok(0),
    };
    for name in untyped {
        // A figure that is null in all reports is there all the same.
        let nulls = new_null_array(&DataType::Utf8, batch.num_rows());
        batch = with_column(&batch, &name, Arc::clone(&nulls))?;
    }
    let mut rows = session.begin(style, &batch.schema())?;
    rows.write(session.console, &batch)?;
    rows.finish(session.console).map(|(count, _)| count)
}

/// An object without the fields that have no type.
fn without<'a>(value: Json<'a>, untyped: &[String]) -> Json<'a> {
    match value {
        Json::Object(entries) => Json::Object(
            entries
                .into_iter()
                .filter(|(name, _)| !untyped.iter().any(|other| other == name))
                .collect(),
        ),
        other => other,
    }
}
