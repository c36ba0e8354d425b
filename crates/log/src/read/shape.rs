//! Rows as they lie in a file, brought to the shape of a fold.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray, new_null_array,
};
use arrow::datatypes::{DataType, Int32Type, Int64Type};

use super::ReadSpec;
use super::hints::Leading;
use super::upserts::upsert_column;
use crate::columns::{
    APPEND_ID, APPEND_SEQ, COMMIT, DELETE, EVENT_TIME, OP_TYPE, STATE_KEY, UPSERT, VERSION,
};
use crate::conform::conform_stored;
use crate::error::{Error, Result};
use crate::table::{DataFile, FileCommits};

/// Brings a batch as it lies in a file to the shape of a fold, and checks what other engines may have written.
pub(super) fn shape(
    batch: &RecordBatch,
    file: &DataFile,
    spec: &ReadSpec,
    leading: Leading,
    only_upserts: bool,
) -> Result<RecordBatch> {
    let rows = batch.num_rows();
    let required = |name: &str, data_type: &DataType| {
        let column = batch
            .column_by_name(name)
            .ok_or_else(|| Error::corrupt(format!("the column {name} is missing")))?;
        if let Some(row) =
            (column.null_count() > 0).then(|| (0..rows).find(|&row| column.is_null(row)))
        {
            return Err(Error::corrupt(format!(
                "{name} is null in row {} of the batch: another engine wrote a row that can't be valid",
                row.unwrap_or_default()
            )));
        }
        conform_stored(column, data_type, name)
            .map_err(|error| Error::corrupt(error.message().to_owned()))
    };
    let schema = spec.schema();
    let or_unread = |is_read: bool, name: &str, index: usize| {
        let data_type = schema.field(index).data_type();
        if is_read { required(name, data_type) } else { Ok(unread_column(data_type, rows)) }
    };
    let keys = or_unread(leading.key, STATE_KEY, 0)?;
    let versions = or_unread(leading.version, VERSION, 1)?;
    let times = or_unread(leading.event_time, EVENT_TIME, 2)?;
    let operations = match only_upserts {
        true => upsert_column(rows),
        false => required(OP_TYPE, &DataType::Utf8)?,
    };
    if !file.is_sorted() {
        check_operations(operations.as_string())?;
    }
    let mut columns: Vec<ArrayRef> = vec![keys, versions, times, operations];
    columns.push(match leading.commit {
        true => Arc::new(commits(batch, file, rows)?),
        false => unread_column(schema.field(4).data_type(), rows),
    });
    columns.push(Arc::new(sequence(batch, rows)?));
    for field in &spec.payload {
        columns.push(match batch.column_by_name(field.name()) {
            None => new_null_array(field.data_type(), rows),
            Some(column) => conform_stored(column, field.data_type(), field.name())
                .map_err(|error| Error::corrupt(error.message().to_owned()))?,
        });
    }
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// Stands for one of the columns that decide, when nobody looks at it: zeros, or empty texts.
pub fn unread_column(data_type: &DataType, rows: usize) -> ArrayRef {
    match data_type {
        DataType::Utf8 => Arc::new(std::iter::repeat_n(Some(""), rows).collect::<StringArray>()),
        DataType::Int32 => Arc::new(Int32Array::from(vec![0; rows])),
        DataType::Int64 => Arc::new(Int64Array::from(vec![0; rows])),
        DataType::Timestamp(_, zone) => {
            let zeros = TimestampMicrosecondArray::from(vec![0; rows]);
            Arc::new(zeros.with_timezone_opt(zone.clone()))
        }
        other => new_null_array(other, rows),
    }
}

fn check_operations(operations: &StringArray) -> Result<()> {
    let unknown = operations.iter().flatten().position(|op| op != UPSERT && op != DELETE);
    match unknown {
        None => Ok(()),
        Some(row) => Err(Error::corrupt(format!(
            "{OP_TYPE} is {:?} in row {row} of the batch: another engine wrote a row that is neither {UPSERT} nor {DELETE}",
            operations.value(row)
        ))),
    }
}

fn sequence(batch: &RecordBatch, rows: usize) -> Result<Int32Array> {
    let Some(column) = batch.column_by_name(APPEND_SEQ) else {
        return Ok(Int32Array::from(vec![0; rows]));
    };
    let column = conform_stored(column, &DataType::Int32, APPEND_SEQ)?;
    let given = column.as_primitive::<Int32Type>();
    Ok(match given.null_count() {
        0 => given.clone(),
        _ => given.iter().map(|seq| Some(seq.unwrap_or(0))).collect(),
    })
}

/// The commit of each row: what the row says itself, else what the file says, by append id where it holds several.
fn commits(batch: &RecordBatch, file: &DataFile, rows: usize) -> Result<Int64Array> {
    let stamped = match batch.column_by_name(COMMIT) {
        Some(column) => Some(conform_stored(column, &DataType::Int64, COMMIT)?),
        None => None,
    };
    let stamped = stamped.as_ref().map(|column| column.as_primitive::<Int64Type>());
    if let Some(all) = stamped.filter(|column| column.null_count() == 0) {
        return Ok(all.clone());
    }
    if matches!(file.commits, FileCommits::Stamped(_)) {
        return Err(Error::corrupt(
            "a row has no commit in a file whose rows are said to carry theirs: restore the file from a copy",
        ));
    }
    let append_ids = match (&file.commits, batch.column_by_name(APPEND_ID)) {
        (FileCommits::ByAppend { .. }, Some(column)) => {
            Some(conform_stored(column, &DataType::Utf8, APPEND_ID)?)
        }
        _ => None,
    };
    let append_ids = append_ids.as_ref().map(|column| column.as_string::<i32>());
    let of_file = |row: usize| match &file.commits {
        FileCommits::All(span) | FileCommits::Stamped(span) => span.high,
        FileCommits::ByAppend { known, rest, span } => append_ids
            .filter(|ids| ids.is_valid(row))
            .and_then(|ids| known.get(ids.value(row)).copied())
            .unwrap_or(rest.unwrap_or(*span).high),
    };
    Ok((0..rows)
        .map(|row| {
            let own = stamped.filter(|column| column.is_valid(row)).map(|column| column.value(row));
            Some(own.unwrap_or_else(|| of_file(row)))
        })
        .collect())
}
