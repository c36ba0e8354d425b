//! Key, version and event time of a batch, from columns of the types that can be one.

use std::borrow::Cow;
use std::sync::Arc;

use alluvium_log::{encode_key, event_time_type};
use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, StringBuilder, TimestampMicrosecondArray, new_null_array,
};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Int8Type, Int16Type, Int32Type, Int64Type, TimeUnit,
    TimestampMicrosecondType,
};

use super::canonical::{Caster, is_instant};
use super::ddl::format_type;
use super::fault::Fault;
use super::key_part::{self, PartStyle};
use super::rows::{null_key, parse_event_time, parse_version};
use super::time;

/// The keys of the rows, from one column or several.
pub(crate) fn keys(
    parts: &[(&str, ArrayRef)],
    style: PartStyle,
    caster: &mut Caster,
) -> Result<ArrayRef, Fault> {
    let rows = parts.first().map_or(0, |(_, array)| array.len());
    let mut keys = StringBuilder::with_capacity(rows, rows * 16);
    for (name, array) in parts {
        check_key_type(array.data_type(), style).map_err(|fault| fault.in_field(name))?;
    }
    for row in 0..rows {
        let mut texts: Vec<Cow<'_, str>> = Vec::with_capacity(parts.len());
        for (name, array) in parts {
            match part(array.as_ref(), row, style) {
                Some(text) => texts.push(text),
                None => caster.note(row, null_key(name)),
            }
        }
        match texts.as_slice() {
            [single] if parts.len() == 1 => keys.append_value(single),
            texts if texts.len() == parts.len() => {
                let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
                keys.append_value(encode_key(&texts));
            }
            _ => keys.append_null(),
        }
    }
    Ok(Arc::new(keys.finish()))
}

fn check_key_type(data_type: &DataType, style: PartStyle) -> Result<(), Fault> {
    match data_type {
        DataType::Utf8 | DataType::Boolean | DataType::Date32 => Ok(()),
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => Ok(()),
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => Ok(()),
        DataType::Decimal128(_, 0) if style == PartStyle::Text => Ok(()),
        other => Err(Fault::new(format!(
            "a column of {} can't be a key: cast it to STRING or BIGINT",
            format_type(other)
        ))),
    }
}

fn part<'a>(array: &'a dyn Array, row: usize, style: PartStyle) -> Option<Cow<'a, str>> {
    if array.is_null(row) {
        return None;
    }
    let integer = |value: i64| Cow::Owned(key_part::integer(value, style));
    Some(match array.data_type() {
        DataType::Utf8 => Cow::Borrowed(array.as_string::<i32>().value(row)),
        DataType::Int8 => integer(array.as_primitive::<Int8Type>().value(row).into()),
        DataType::Int16 => integer(array.as_primitive::<Int16Type>().value(row).into()),
        DataType::Int32 => integer(array.as_primitive::<Int32Type>().value(row).into()),
        DataType::Int64 => integer(array.as_primitive::<Int64Type>().value(row)),
        DataType::Boolean => Cow::Borrowed(key_part::boolean(array.as_boolean().value(row), style)),
        DataType::Date32 => {
            Cow::Owned(time::format_date(array.as_primitive::<Date32Type>().value(row)))
        }
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => {
            let micros = array.as_primitive::<TimestampMicrosecondType>().value(row);
            Cow::Owned(time::format_timestamp_key(micros))
        }
        DataType::Decimal128(..) => {
            Cow::Owned(array.as_primitive::<Decimal128Type>().value(row).to_string())
        }
        _ => return None,
    })
}

/// The versions of the rows: a column of integers, or of their digits.
pub(crate) fn versions(
    column: Option<(&str, ArrayRef)>,
    rows: usize,
    caster: &mut Caster,
) -> Result<ArrayRef, Fault> {
    let Some((name, array)) = column else { return Ok(new_null_array(&DataType::Int64, rows)) };
    if let Some(texts) = array.as_string_opt::<i32>() {
        let parsed: Int64Array = texts
            .iter()
            .enumerate()
            .map(|(row, text)| parsed(row, text?, name, parse_version, caster))
            .collect();
        return Ok(Arc::new(parsed));
    }
    let is_integer = array.data_type().is_integer();
    if !is_integer && !matches!(array.data_type(), DataType::Decimal128(..)) {
        return Err(Fault::new(format!(
            "a column of {} can't be a version: cast it to BIGINT",
            format_type(array.data_type())
        ))
        .in_field(name));
    }
    let mut own = Caster::default();
    let versions = own
        .conform(&array, &DataType::Int64)
        .map_err(|error| Fault::new(error.message()).in_field(name))?;
    for (row, fault) in own.into_bad() {
        caster.note(row, fault.in_field(name));
    }
    Ok(versions)
}

/// The event times of the rows: a column of TIMESTAMP, or of RFC 3339 texts.
pub(crate) fn event_times(
    column: Option<(&str, ArrayRef)>,
    rows: usize,
    caster: &mut Caster,
) -> Result<ArrayRef, Fault> {
    let Some((name, array)) = column else { return Ok(new_null_array(&event_time_type(), rows)) };
    if is_instant(array.data_type()) {
        return Ok(array);
    }
    if let Some(texts) = array.as_string_opt::<i32>() {
        let parsed: TimestampMicrosecondArray = texts
            .iter()
            .enumerate()
            .map(|(row, text)| parsed(row, text?, name, parse_event_time, caster))
            .collect();
        return Ok(Arc::new(parsed.with_timezone("UTC")));
    }
    let remedy = match array.data_type() {
        DataType::Timestamp(_, None) => {
            "it has no time zone, so the instants are not known: cast it in the input with the zone it was meant in"
        }
        _ => "cast it in the input to a timestamp with a time zone",
    };
    Err(Fault::new(format!(
        "a column of {} can't be the event time: {remedy}",
        format_type(array.data_type())
    ))
    .in_field(name))
}

fn parsed(
    row: usize,
    text: &str,
    name: &str,
    parse: fn(&str) -> Result<i64, Fault>,
    caster: &mut Caster,
) -> Option<i64> {
    parse(text).map_err(|fault| caster.note(row, fault.in_field(name))).ok()
}
