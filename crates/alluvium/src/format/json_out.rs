//! Rows as JSON, exactly: what is written here reads back equal through [`super::build`].
//!
//! | type | JSON |
//! |---|---|
//! | integers | a number with all its digits |
//! | FLOAT, DOUBLE | the shortest number that reads back equal, `-0.0` kept; `"NaN"`, `"Infinity"`, `"-Infinity"` |
//! | DECIMAL | always a string, with all digits of its scale |
//! | BINARY | a string of padded base64 |
//! | DATE, TIMESTAMP, TIMESTAMP_NTZ | a string; a TIMESTAMP in UTC with `Z`, zero, three or six digits of fraction |
//! | STRUCT | an object with all its fields, null ones too |
//! | MAP | an object if the keys are strings, else an array of `[key, value]` pairs |
//!
//! The types that only SQL results have (unsigned integers, views, dictionaries, other units of time) are written
//! in the same spirit; those without a JSON form of their own (intervals, durations) as their display text.

use std::io::Write;

use alluvium_log::{Error, Result};
use arrow::array::{Array, AsArray, MapArray, OffsetSizeTrait, RecordBatch, StructArray};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Date64Type, Float16Type, Float32Type, Float64Type,
    Int8Type, Int16Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::base64;
use super::time;

/// Appends one row of a batch as a JSON object, its columns in order.
///
/// # Errors
/// Only for a row that the batch does not have, or a type that can't be shown.
pub fn write_row(out: &mut Vec<u8>, batch: &RecordBatch, row: usize) -> Result<()> {
    out.push(b'{');
    for (at, (field, column)) in batch.schema_ref().fields().iter().zip(batch.columns()).enumerate()
    {
        if at > 0 {
            out.push(b',');
        }
        write_string(out, field.name())?;
        out.push(b':');
        write_value(out, column.as_ref(), row)?;
    }
    out.push(b'}');
    Ok(())
}

/// Appends one value of a column as JSON.
///
/// # Errors
/// Only for a row that the array does not have, or a type that can't be shown.
pub fn write_value(out: &mut Vec<u8>, array: &dyn Array, row: usize) -> Result<()> {
    if row >= array.len() {
        return Err(Error::internal(format!("row {row} of an array of {} rows", array.len())));
    }
    if array.is_null(row) {
        out.extend_from_slice(b"null");
        return Ok(());
    }
    match array.data_type() {
        DataType::Null => out.extend_from_slice(b"null"),
        DataType::Boolean => {
            let text: &[u8] = if array.as_boolean().value(row) { b"true" } else { b"false" };
            out.extend_from_slice(text);
        }
        DataType::Int8 => display(out, native::<Int8Type>(array, row))?,
        DataType::Int16 => display(out, native::<Int16Type>(array, row))?,
        DataType::Int32 => display(out, native::<Int32Type>(array, row))?,
        DataType::Int64 => display(out, native::<Int64Type>(array, row))?,
        DataType::UInt8 => display(out, native::<UInt8Type>(array, row))?,
        DataType::UInt16 => display(out, native::<UInt16Type>(array, row))?,
        DataType::UInt32 => display(out, native::<UInt32Type>(array, row))?,
        DataType::UInt64 => display(out, native::<UInt64Type>(array, row))?,
        DataType::Float16 => {
            let value = native::<Float16Type>(array, row).to_f32();
            write_float(out, f64::from(value), value)?;
        }
        DataType::Float32 => {
            let value = native::<Float32Type>(array, row);
            write_float(out, f64::from(value), value)?;
        }
        DataType::Float64 => {
            let value = native::<Float64Type>(array, row);
            write_float(out, value, value)?;
        }
        DataType::Utf8 => write_string(out, array.as_string::<i32>().value(row))?,
        DataType::LargeUtf8 => write_string(out, array.as_string::<i64>().value(row))?,
        DataType::Utf8View => write_string(out, array.as_string_view().value(row))?,
        DataType::Binary => write_binary(out, array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => write_binary(out, array.as_binary::<i64>().value(row)),
        DataType::BinaryView => write_binary(out, array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => write_binary(out, array.as_fixed_size_binary().value(row)),
        DataType::Date32 => quoted(out, &time::format_date(native::<Date32Type>(array, row))),
        DataType::Timestamp(unit, zone) => write_time(out, array, row, *unit, zone.is_some()),
        DataType::Struct(_) => write_object(out, array.as_struct(), row)?,
        DataType::Map(_, _) => write_map(out, array.as_map(), row)?,
        DataType::List(_) => write_list::<i32>(out, array, row)?,
        DataType::LargeList(_) => write_list::<i64>(out, array, row)?,
        DataType::FixedSizeList(_, _) => {
            write_items(out, array.as_fixed_size_list().value(row).as_ref())?;
        }
        DataType::Dictionary(_, _) => {
            let single = array.slice(row, 1);
            let dictionary = single.as_any_dictionary();
            let key = dictionary.normalized_keys().first().copied().unwrap_or(0);
            write_value(out, dictionary.values().as_ref(), key)?;
        }
        _ => write_displayed(out, array, row)?,
    }
    Ok(())
}

fn native<T: ArrowPrimitiveType>(array: &dyn Array, row: usize) -> T::Native {
    array.as_primitive::<T>().value(row)
}

fn display(out: &mut Vec<u8>, value: impl std::fmt::Display) -> Result<()> {
    write!(out, "{value}").map_err(not_written)
}

fn not_written(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::internal("a value could not be written as JSON").with_source(error)
}

/// `Debug` of a float is its shortest form that reads back equal, always with a point or an exponent.
fn write_float(out: &mut Vec<u8>, wide: f64, value: impl std::fmt::Debug) -> Result<()> {
    if wide.is_nan() {
        quoted(out, "NaN");
    } else if wide.is_infinite() {
        quoted(out, if wide > 0.0 { "Infinity" } else { "-Infinity" });
    } else {
        write!(out, "{value:?}").map_err(not_written)?;
    }
    Ok(())
}

fn write_string(out: &mut Vec<u8>, text: &str) -> Result<()> {
    serde_json::to_writer(out, text).map_err(not_written)
}

/// A text that is known to need no escapes.
fn quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

fn write_binary(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    base64::encode(out, bytes);
    out.push(b'"');
}

fn write_time(out: &mut Vec<u8>, array: &dyn Array, row: usize, unit: TimeUnit, has_zone: bool) {
    let mut text = match unit {
        TimeUnit::Second => time::date_time(native::<TimestampSecondType>(array, row)),
        TimeUnit::Millisecond => {
            let millis = native::<TimestampMillisecondType>(array, row);
            let fraction = millis.rem_euclid(1_000);
            let text = time::date_time(millis.div_euclid(1_000));
            if fraction == 0 { text } else { format!("{text}.{fraction:03}") }
        }
        TimeUnit::Microsecond => {
            time::format_timestamp_ntz(native::<TimestampMicrosecondType>(array, row))
        }
        TimeUnit::Nanosecond => {
            let nanos = native::<TimestampNanosecondType>(array, row);
            if nanos % 1_000 == 0 {
                time::format_timestamp_ntz(nanos / 1_000)
            } else {
                time::format_nanos(nanos)
            }
        }
    };
    if has_zone {
        text.push('Z');
    }
    quoted(out, &text);
}

fn write_object(out: &mut Vec<u8>, object: &StructArray, row: usize) -> Result<()> {
    out.push(b'{');
    for (at, (field, column)) in object.fields().iter().zip(object.columns()).enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_string(out, field.name())?;
        out.push(b':');
        write_value(out, column.as_ref(), row)?;
    }
    out.push(b'}');
    Ok(())
}

fn write_list<O: OffsetSizeTrait>(out: &mut Vec<u8>, array: &dyn Array, row: usize) -> Result<()> {
    write_items(out, array.as_list::<O>().value(row).as_ref())
}

fn write_items(out: &mut Vec<u8>, items: &dyn Array) -> Result<()> {
    out.push(b'[');
    for item in 0..items.len() {
        if item > 0 {
            out.push(b',');
        }
        write_value(out, items, item)?;
    }
    out.push(b']');
    Ok(())
}

fn write_map(out: &mut Vec<u8>, map: &MapArray, row: usize) -> Result<()> {
    let entries = map.value(row);
    let keys = entries.column(0).as_ref();
    let values = entries.column(1).as_ref();
    let is_text =
        matches!(keys.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    out.push(if is_text { b'{' } else { b'[' });
    for entry in 0..entries.len() {
        if entry > 0 {
            out.push(b',');
        }
        if !is_text {
            out.push(b'[');
        }
        write_value(out, keys, entry)?;
        out.push(if is_text { b':' } else { b',' });
        write_value(out, values, entry)?;
        if !is_text {
            out.push(b']');
        }
    }
    out.push(if is_text { b'}' } else { b']' });
    Ok(())
}

/// Decimals, and whatever else Arrow can only show as text.
fn write_displayed(out: &mut Vec<u8>, array: &dyn Array, row: usize) -> Result<()> {
    if let DataType::Date64 = array.data_type() {
        let millis = native::<Date64Type>(array, row);
        let days = millis.div_euclid(86_400_000);
        if millis.rem_euclid(86_400_000) == 0 {
            quoted(out, &time::format_date(i32::try_from(days).unwrap_or(i32::MAX)));
            return Ok(());
        }
    }
    let options = FormatOptions::new();
    let formatter = ArrayFormatter::try_new(array, &options)?;
    write_string(out, &formatter.value(row).to_string())
}
