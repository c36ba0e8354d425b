//! Required fields: there wherever their parent is, at every depth, also inside lists and maps.
//!
//! Arrow's own check can't be used: a DELETE has no value at all, and a child of a parent that isn't there may hold anything.

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::datatypes::{DataType, Field, Fields};

use crate::error::{Error, Result};
use crate::rows::row_name;

/// Checks values against the fields of a state; `value` has these fields in this order, none of them required by Arrow.
pub(crate) fn check_required(
    value: &ArrayRef,
    fields: &Fields,
    path: &str,
    keys: &StringArray,
) -> Result<()> {
    if !fields.iter().any(|field| requires(field)) {
        return Ok(());
    }
    let present: Vec<bool> = (0..value.len()).map(|row| value.is_valid(row)).collect();
    let rows: Vec<usize> = (0..value.len()).collect();
    check_children(value, fields, path, &Places { present, rows }, keys)
}

/// Whether the field, or one inside of it, is required.
fn requires(field: &Field) -> bool {
    !field.is_nullable()
        || match field.data_type() {
            DataType::Struct(fields) => fields.iter().any(|field| requires(field)),
            DataType::List(element) => requires(element),
            DataType::Map(entries, _) => map_value(entries).is_some_and(requires),
            _ => false,
        }
}

fn map_value(entries: &Field) -> Option<&Field> {
    match entries.data_type() {
        DataType::Struct(parts) => parts.get(1).map(AsRef::as_ref),
        _ => None,
    }
}

/// The elements of an array: whether everything around each is there, and which row it belongs to.
struct Places {
    present: Vec<bool>,
    rows: Vec<usize>,
}

impl Places {
    /// The places of the elements of lists or maps.
    fn inside(&self, array: &ArrayRef, offsets: &[i32], elements: usize) -> Self {
        let mut inner = Self { present: vec![false; elements], rows: vec![0; elements] };
        let at = |offset: i32| usize::try_from(offset).unwrap_or_default();
        for (index, span) in offsets.windows(2).enumerate() {
            if self.present[index] && array.is_valid(index) {
                for element in at(span[0])..at(span[1]) {
                    inner.present[element] = true;
                    inner.rows[element] = self.rows[index];
                }
            }
        }
        inner
    }
}

fn check_children(
    parent: &ArrayRef,
    fields: &Fields,
    path: &str,
    places: &Places,
    keys: &StringArray,
) -> Result<()> {
    for (field, column) in fields.iter().zip(parent.as_struct().columns()) {
        check_field(column, field, &format!("{path}.{}", field.name()), places, keys)?;
    }
    Ok(())
}

fn check_field(
    column: &ArrayRef,
    field: &Field,
    path: &str,
    places: &Places,
    keys: &StringArray,
) -> Result<()> {
    if !requires(field) {
        return Ok(());
    }
    if !field.is_nullable() && column.null_count() > 0 {
        let missing =
            (0..column.len()).find(|&index| places.present[index] && column.is_null(index));
        if let Some(index) = missing {
            return Err(Error::invalid(format!(
                "{}: {path} is null or missing, and the state requires it",
                row_name(keys, places.rows[index])
            )));
        }
    }
    match field.data_type() {
        DataType::Struct(fields) => {
            let present =
                (0..column.len()).map(|index| places.present[index] && column.is_valid(index));
            let inner = Places { present: present.collect(), rows: places.rows.clone() };
            check_children(column, fields, path, &inner, keys)
        }
        DataType::List(element) => {
            let list = column.as_list::<i32>();
            let inner = places.inside(column, list.value_offsets(), list.values().len());
            check_field(list.values(), element, &format!("{path}[]"), &inner, keys)
        }
        DataType::Map(entries, _) => {
            let map = column.as_map();
            let inner = places.inside(column, map.value_offsets(), map.values().len());
            let Some(value) = map_value(entries) else { return Ok(()) };
            check_field(map.values(), value, &format!("{path}.value"), &inner, keys)
        }
        _ => Ok(()),
    }
}
