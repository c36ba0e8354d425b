//! Required values: the same types with and without `NOT NULL`, and the rows in which one is missing.
//!
//! Columns are built and cast with everything nullable, then checked here, then given their true types:
//! so the rule is one for JSON, CSV, Parquet and Arrow, and a row known to be a DELETE escapes it.

use std::sync::Arc;

use alluvium_log::{Error, Result};
use arrow::array::{Array, ArrayRef, AsArray, ListArray, MapArray, StructArray};
use arrow::datatypes::{DataType, Field, FieldRef, Fields};

use super::fault::Fault;

/// The type with every value nullable but the keys of maps.
pub(crate) fn relax(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Struct(fields) => DataType::Struct(relax_fields(fields)),
        DataType::List(element) => DataType::List(relax_field(element)),
        DataType::Map(entry, sorted) => match entry.data_type() {
            DataType::Struct(pair) if pair.len() == 2 => {
                let pair = Fields::from(vec![Arc::clone(&pair[0]), relax_field(&pair[1])]);
                let entry = Field::new(entry.name(), DataType::Struct(pair), false);
                DataType::Map(Arc::new(entry), *sorted)
            }
            _ => data_type.clone(),
        },
        other => other.clone(),
    }
}

pub(crate) fn relax_fields(fields: &Fields) -> Fields {
    fields.iter().map(relax_field).collect()
}

fn relax_field(field: &FieldRef) -> FieldRef {
    let relaxed = field.as_ref().clone().with_nullable(true);
    Arc::new(relaxed.with_data_type(relax(field.data_type())))
}

/// Whether the field, or one below it, may not be null.
pub(crate) fn has_required(field: &Field) -> bool {
    !field.is_nullable() || has_required_below(field.data_type())
}

fn has_required_below(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(fields) => fields.iter().any(|field| has_required(field)),
        DataType::List(element) => has_required(element),
        DataType::Map(entry, _) => map_value(entry).is_some_and(has_required),
        _ => false,
    }
}

fn map_value(entry: &Field) -> Option<&Field> {
    match entry.data_type() {
        DataType::Struct(pair) => pair.get(1).map(AsRef::as_ref),
        _ => None,
    }
}

/// The first required value that a row lacks, seen from the object that holds the field.
pub(crate) fn missing(array: &dyn Array, field: &Field, row: usize) -> Option<Fault> {
    if array.is_null(row) {
        return (!field.is_nullable()).then(|| {
            Fault::new("it is required and can't be null or left out").in_field(field.name())
        });
    }
    missing_below(array, field.data_type(), row).map(|fault| fault.in_field(field.name()))
}

/// The first required value missing below a value that is there.
pub(crate) fn missing_below(array: &dyn Array, data_type: &DataType, row: usize) -> Option<Fault> {
    match data_type {
        DataType::Struct(fields) => {
            let object = array.as_struct_opt()?;
            fields
                .iter()
                .zip(object.columns())
                .find_map(|(field, column)| missing(column.as_ref(), field, row))
        }
        DataType::List(element) if has_required(element) => {
            let list = array.as_list_opt::<i32>()?;
            missing_item(list.values().as_ref(), element, list.value_offsets(), row)
        }
        DataType::Map(entry, _) => {
            let value = map_value(entry).filter(|value| has_required(value))?;
            let map = array.as_map_opt()?;
            missing_item(map.values().as_ref(), value, map.value_offsets(), row)
        }
        _ => None,
    }
}

fn missing_item(items: &dyn Array, field: &Field, offsets: &[i32], row: usize) -> Option<Fault> {
    let bound = |at: usize| offsets.get(at).map_or(0, |end| usize::try_from(*end).unwrap_or(0));
    let start = bound(row);
    (start..bound(row + 1)).find_map(|item| {
        let fault = if items.is_null(item) {
            (!field.is_nullable()).then(|| Fault::new("it is required and can't be null"))
        } else {
            missing_below(items, field.data_type(), item)
        };
        fault.map(|fault| fault.at_index(item - start))
    })
}

/// The same rows with another nullability or other names of inner fields; the shapes must agree.
pub(crate) fn retype(array: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    if array.data_type() == target {
        return Ok(Arc::clone(array));
    }
    Ok(match target {
        DataType::Struct(fields) => {
            let object = array.as_struct_opt().ok_or_else(|| shapes_differ(array, target))?;
            let columns = fields
                .iter()
                .zip(object.columns())
                .map(|(field, column)| retype(column, field.data_type()))
                .collect::<Result<Vec<_>>>()?;
            let nulls = object.nulls().cloned();
            Arc::new(StructArray::try_new_with_length(
                fields.clone(),
                columns,
                nulls,
                object.len(),
            )?)
        }
        DataType::List(element) => {
            let list = array.as_list_opt::<i32>().ok_or_else(|| shapes_differ(array, target))?;
            let items = retype(list.values(), element.data_type())?;
            let nulls = list.nulls().cloned();
            Arc::new(ListArray::try_new(Arc::clone(element), list.offsets().clone(), items, nulls)?)
        }
        DataType::Map(entry, sorted) => {
            let map = array.as_map_opt().ok_or_else(|| shapes_differ(array, target))?;
            let DataType::Struct(pair) = entry.data_type() else {
                return Err(shapes_differ(array, target));
            };
            let [key, value] = &**pair else { return Err(shapes_differ(array, target)) };
            let columns = vec![
                retype(map.keys(), key.data_type())?,
                retype(map.values(), value.data_type())?,
            ];
            let entries = StructArray::try_new(pair.clone(), columns, None)?;
            let nulls = map.nulls().cloned();
            Arc::new(MapArray::try_new(
                Arc::clone(entry),
                map.offsets().clone(),
                entries,
                nulls,
                *sorted,
            )?)
        }
        _ => return Err(shapes_differ(array, target)),
    })
}

fn shapes_differ(array: &ArrayRef, target: &DataType) -> Error {
    Error::internal(format!("a column of {} was to become {target}", array.data_type()))
}
