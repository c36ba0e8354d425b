//! Brings an array to the type that a state stores, without loss or not at all: fields by name at every depth,
//! missing ones null, narrower numbers widened, everything else refused with path, types and row.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, ListArray, MapArray, StructArray, UInt32Array, make_array,
    new_null_array,
};
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{DataType, Decimal128Type, Field, Fields, TimeUnit};
use arrow::row::{RowConverter, SortField};

use crate::error::{Error, Result};

/// Brings `array` to `target`; `path` names it in errors.
pub(crate) fn conform(array: &ArrayRef, target: &DataType, path: &str) -> Result<ArrayRef> {
    if array.data_type() == target {
        check_values(array, path)?;
        return Ok(array.clone());
    }
    match (array.data_type(), target) {
        (DataType::Null, _) => Ok(new_null_array(target, array.len())),
        (DataType::Struct(_), DataType::Struct(fields)) => conform_struct(array, fields, path),
        (DataType::List(_), DataType::List(element)) => {
            conform_list(array.as_list(), element, path)
        }
        (
            DataType::LargeList(_)
            | DataType::FixedSizeList(_, _)
            | DataType::ListView(_)
            | DataType::LargeListView(_),
            DataType::List(element),
        ) => {
            let DataType::List(field) = list_of(array.data_type()) else {
                return Err(mismatch(array, target, path, None));
            };
            let plain = strict_cast(array, &DataType::List(field), path)?;
            conform_list(plain.as_list(), element, path)
        }
        (DataType::Map(_, _), DataType::Map(entries, _)) => {
            conform_map(array.as_map(), entries, path)
        }
        (DataType::Dictionary(_, value), _) => {
            let plain = strict_cast(array, value, path)?;
            conform(&plain, target, path)
        }
        (offered, stored) if may_cast(offered, stored) => {
            let cast = exact_cast(array, target, path)?;
            check_values(&cast, path)?;
            Ok(cast)
        }
        _ => Err(mismatch(array, target, path, first_valid(array))),
    }
}

/// Brings an array that comes out of a file to the type that the state has now; what is stored was checked when it was written.
pub(crate) fn conform_stored(array: &ArrayRef, target: &DataType, path: &str) -> Result<ArrayRef> {
    match (array.data_type(), target) {
        (offered, target) if offered == target => Ok(array.clone()),
        // How Spark's INT96 arrives: an instant, without a zone and in nanoseconds.
        (
            DataType::Timestamp(TimeUnit::Nanosecond, None),
            DataType::Timestamp(TimeUnit::Microsecond, Some(_)),
        ) => exact_cast(array, target, path),
        _ => conform(array, target, path),
    }
}

fn list_of(data_type: &DataType) -> DataType {
    match data_type {
        DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::ListView(field)
        | DataType::LargeListView(field) => DataType::List(field.clone()),
        other => other.clone(),
    }
}

fn first_valid(array: &ArrayRef) -> Option<usize> {
    (0..array.len()).find(|&row| array.is_valid(row))
}

fn mismatch(array: &ArrayRef, target: &DataType, path: &str, row: Option<usize>) -> Error {
    let place = row.map_or(String::new(), |row| format!(", row {row}"));
    Error::invalid(format!(
        "{path} is stored as {target}, but {} was offered{place}: convert the field, or use another name for it",
        array.data_type()
    ))
}

fn conform_struct(array: &ArrayRef, fields: &Fields, path: &str) -> Result<ArrayRef> {
    let offered = array.as_struct();
    if fields.is_empty() {
        return Ok(Arc::new(StructArray::new_empty_fields(array.len(), offered.nulls().cloned())));
    }
    let mut columns = Vec::with_capacity(fields.len());
    for field in fields {
        columns.push(match offered.column_by_name(field.name()) {
            None => new_null_array(field.data_type(), array.len()),
            Some(column) => {
                conform(column, field.data_type(), &format!("{path}.{}", field.name()))?
            }
        });
    }
    let fields = relaxed(fields);
    let conformed = StructArray::try_new(fields, columns, offered.nulls().cloned())?;
    Ok(Arc::new(conformed))
}

/// Which fields are required is checked on the rows, not by Arrow: a null parent has null children.
fn relaxed(fields: &Fields) -> Fields {
    fields.iter().map(|field| Arc::new(field.as_ref().clone().with_nullable(true))).collect()
}

fn conform_list(list: &ListArray, element: &Arc<Field>, path: &str) -> Result<ArrayRef> {
    let values = conform(list.values(), element.data_type(), &format!("{path}[]"))?;
    let element = Arc::new(element.as_ref().clone().with_nullable(true));
    Ok(Arc::new(ListArray::try_new(
        element,
        list.offsets().clone(),
        values,
        list.nulls().cloned(),
    )?))
}

fn conform_map(map: &MapArray, entries: &Arc<Field>, path: &str) -> Result<ArrayRef> {
    let DataType::Struct(parts) = entries.data_type() else {
        return Err(Error::internal(format!("{path}: the stored map has no entries")));
    };
    // A sliced map shares its parent's entries: copy it, so that no neighbour's entry can slip in.
    let rows = UInt32Array::from_iter_values(0..u32::try_from(map.len()).unwrap_or(u32::MAX));
    let copied = take(map, &rows, None)?;
    let map = copied.as_map();
    let keys = conform(map.keys(), parts[0].data_type(), &format!("{path}.key"))?;
    if keys.null_count() > 0 {
        return Err(Error::invalid(format!(
            "{path} has a map with a null key: leave the entry out"
        )));
    }
    let values = conform(map.values(), parts[1].data_type(), &format!("{path}.value"))?;
    let parts = Fields::from(vec![
        parts[0].as_ref().clone().with_nullable(false),
        parts[1].as_ref().clone().with_nullable(true),
    ]);
    let field = Arc::new(Field::new(entries.name(), DataType::Struct(parts.clone()), false));
    let entries = StructArray::try_new(parts, vec![keys, values], None)?;
    let map =
        MapArray::try_new(field, map.offsets().clone(), entries, map.nulls().cloned(), false)?;
    check_map_keys(&map, path)?;
    Ok(Arc::new(map))
}

/// Refuses a map that holds a key twice.
fn check_map_keys(map: &MapArray, path: &str) -> Result<()> {
    let converter = RowConverter::new(vec![SortField::new(map.keys().data_type().clone())])?;
    let keys = converter.convert_columns(&[map.keys().clone()])?;
    let mut seen = Vec::new();
    for (row, span) in map.offsets().windows(2).enumerate() {
        let (start, end) = (offset(span[0]), offset(span[1]));
        seen.clear();
        seen.extend((start..end).map(|index| keys.row(index)));
        seen.sort_unstable();
        if seen.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!(
                "{path}, row {row}: the map holds a key twice; keep one of them"
            )));
        }
    }
    Ok(())
}

fn offset(value: i32) -> usize {
    usize::try_from(value).unwrap_or_default()
}

/// Checks of values that their type alone does not make.
fn check_values(array: &ArrayRef, path: &str) -> Result<()> {
    match array.data_type() {
        DataType::Decimal128(precision, _) => array
            .as_primitive::<Decimal128Type>()
            .validate_decimal_precision(*precision)
            .map_err(|error| {
                Error::invalid(format!("{path} has a number with more digits than its type"))
                    .with_source(error)
            }),
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            fields.iter().zip(columns).try_for_each(|(field, column)| {
                check_values(column, &format!("{path}.{}", field.name()))
            })
        }
        DataType::List(_) => check_values(array.as_list::<i32>().values(), &format!("{path}[]")),
        DataType::Map(_, _) => {
            check_map_keys(array.as_map(), path)?;
            check_values(array.as_map().values(), &format!("{path}.value"))
        }
        _ => Ok(()),
    }
}

/// Whether values of one type can be stored as another when they fit exactly.
fn may_cast(offered: &DataType, stored: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Date32, Date64, Decimal32, Decimal64, Decimal128, FixedSizeBinary,
        Float16, Float32, Float64, LargeBinary, LargeUtf8, Timestamp, Utf8, Utf8View,
    };
    match (offered, stored) {
        (from, to) if from.is_integer() => {
            to.is_integer() || matches!(to, Float32 | Float64 | Decimal128(_, _))
        }
        (Float16, Float32 | Float64) | (Float32, Float64) => true,
        (Utf8 | LargeUtf8 | Utf8View, Utf8) => true,
        (Binary | LargeBinary | BinaryView | FixedSizeBinary(_), Binary) => true,
        (Decimal32(_, _) | Decimal64(_, _) | Decimal128(_, _), Decimal128(_, _)) => true,
        (Date64, Date32) => true,
        (Timestamp(_, from), Timestamp(_, to)) => from.is_some() == to.is_some(),
        _ => false,
    }
}

fn strict_cast(array: &ArrayRef, target: &DataType, path: &str) -> Result<ArrayRef> {
    let options = CastOptions { safe: false, ..Default::default() };
    cast_with_options(array, target, &options)
        .map_err(|error| mismatch(array, target, path, None).with_source(error))
}

/// Casts, and casts back to see that nothing was lost.
fn exact_cast(array: &ArrayRef, target: &DataType, path: &str) -> Result<ArrayRef> {
    let lenient = CastOptions { safe: true, ..Default::default() };
    let cast = cast_with_options(array, target, &lenient)?;
    let back = cast_with_options(&cast, array.data_type(), &lenient)?;
    let equal = arrow::compute::kernels::cmp::not_distinct(&back, array);
    match equal {
        Ok(equal) if equal.false_count() == 0 && equal.null_count() == 0 => Ok(cast),
        Ok(equal) => {
            let row = equal.iter().position(|same| same != Some(true));
            Err(mismatch(array, target, path, row).context("the value does not fit exactly"))
        }
        // Types that can't be compared directly (such as views) are compared by their data.
        Err(_) if make_array(back.to_data()).to_data() == array.to_data() => Ok(cast),
        Err(_) => Err(mismatch(array, target, path, None)),
    }
}
