//! Arrow columns of any writer as the types that a state stores, losing nothing.
//!
//! Two steps: [`Caster::canonical`] turns foreign types into stored ones (unsigned integers, views, dictionaries,
//! other units of time), and [`Caster::conform`] turns one stored type into the one that the state has for the
//! field. A value that would lose digits or range is noted as a bad row; two types of which one is not a wider or
//! narrower form of the other are an error of the whole input.

use std::collections::HashSet;
use std::sync::Arc;

use alluvium_log::{Error, Result, event_time_type};
use arrow::array::{Array, ArrayRef, AsArray, ListArray, MapArray, StructArray, new_null_array};
use arrow::compute::kernels::cmp::not_distinct;
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{
    DataType, Date32Type, Field, FieldRef, Fields, TimeUnit, TimestampMicrosecondType,
};

use super::ddl::{format_type, list_type, map_type};
use super::fault::Fault;
use super::infer::case_clash;
use super::json_out::write_value;
use super::time::{MAX_MICROS, MIN_MICROS, is_stored_day};

/// Casts columns, and notes the rows with a value that does not survive it.
#[derive(Default)]
pub(crate) struct Caster {
    bad: Vec<(usize, Fault)>,
}

impl Caster {
    /// The bad rows, in their order, and what is wrong with each.
    pub(crate) fn into_bad(mut self) -> Vec<(usize, Fault)> {
        self.bad.sort_by_key(|(row, _)| *row);
        self.bad
    }

    pub(crate) fn note(&mut self, row: usize, fault: Fault) {
        self.bad.push((row, fault));
    }

    /// Does something with the values below a column, and notes what it finds under the column's rows.
    fn below(
        &mut self,
        place: impl Fn(usize, Fault) -> Option<(usize, Fault)>,
        work: impl FnOnce(&mut Self) -> Result<Option<ArrayRef>>,
    ) -> Result<Option<ArrayRef>> {
        let outer = std::mem::take(&mut self.bad);
        let result = work(self);
        let inner = std::mem::replace(&mut self.bad, outer);
        self.bad.extend(inner.into_iter().filter_map(|(row, fault)| place(row, fault)));
        result
    }

    /// The column as a stored type; none when it holds only nulls that have no type.
    ///
    /// # Errors
    /// The type has no counterpart among the stored ones.
    pub(crate) fn canonical(&mut self, array: &ArrayRef) -> Result<Option<ArrayRef>> {
        let cast_to = |target: &DataType| -> Result<ArrayRef> { Ok(cast(array, target)?) };
        Ok(Some(match array.data_type() {
            DataType::Null => return Ok(None),
            DataType::Boolean
            | DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::Float32
            | DataType::Float64
            | DataType::Utf8
            | DataType::Binary => Arc::clone(array),
            DataType::Date32 => self.check_days(Arc::clone(array)),
            DataType::UInt8 => cast_to(&DataType::Int16)?,
            DataType::UInt16 => cast_to(&DataType::Int32)?,
            DataType::UInt32 => cast_to(&DataType::Int64)?,
            DataType::UInt64 => self.lossless(array, &DataType::Int64)?,
            DataType::Float16 => cast_to(&DataType::Float32)?,
            DataType::LargeUtf8 | DataType::Utf8View => cast_to(&DataType::Utf8)?,
            DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
                cast_to(&DataType::Binary)?
            }
            DataType::Dictionary(_, value) => return self.canonical(&cast_to(value)?),
            DataType::Date64 => {
                let days = self.lossless(array, &DataType::Date32)?;
                self.check_days(days)
            }
            DataType::Timestamp(_, zone) => {
                let zone = zone.as_ref().map(|_| Arc::from("UTC"));
                let target = DataType::Timestamp(TimeUnit::Microsecond, zone);
                let micros = self.lossless(array, &target)?;
                self.check_times(micros)
            }
            DataType::Decimal128(_, scale) if *scale >= 0 => Arc::clone(array),
            DataType::Decimal128(..)
            | DataType::Decimal32(..)
            | DataType::Decimal64(..)
            | DataType::Decimal256(..) => self.decimal(array)?,
            DataType::Struct(_) => return self.canonical_struct(array),
            DataType::List(element) => return self.canonical_list(array, element),
            DataType::LargeList(element)
            | DataType::FixedSizeList(element, _)
            | DataType::ListView(element)
            | DataType::LargeListView(element) => {
                let list = cast_to(&DataType::List(Arc::clone(element)))?;
                return self.canonical_list(&list, element);
            }
            DataType::Map(_, _) => return self.canonical_map(array),
            other => return Err(no_counterpart(other)),
        }))
    }

    fn decimal(&mut self, array: &ArrayRef) -> Result<ArrayRef> {
        const MOST: u8 = 38;
        let (precision, scale) = match array.data_type() {
            DataType::Decimal32(precision, scale)
            | DataType::Decimal64(precision, scale)
            | DataType::Decimal128(precision, scale)
            | DataType::Decimal256(precision, scale) => (*precision, *scale),
            other => return Err(no_counterpart(other)),
        };
        let zeros = u8::try_from(-i16::from(scale)).unwrap_or(0);
        let scale = scale.max(0);
        if scale.unsigned_abs() > MOST {
            return Err(no_counterpart(array.data_type()));
        }
        let precision = precision.saturating_add(zeros).min(MOST);
        self.lossless(array, &DataType::Decimal128(precision, scale))
    }

    fn canonical_struct(&mut self, array: &ArrayRef) -> Result<Option<ArrayRef>> {
        let object = array.as_struct();
        let mut fields = Vec::new();
        let mut columns = Vec::new();
        for (field, column) in object.fields().iter().zip(object.columns()) {
            let name = field.name();
            let under =
                |row, fault: Fault| object.is_valid(row).then(|| (row, fault.in_field(name)));
            let column = self.below(under, |caster| caster.canonical(column));
            if let Some(column) = column.map_err(|error| error.context(name))? {
                fields.push(Field::new(name, column.data_type().clone(), true));
                columns.push(column);
            }
        }
        if fields.is_empty() {
            return Ok(None);
        }
        let nulls = object.nulls().cloned();
        let object = StructArray::try_new_with_length(fields.into(), columns, nulls, object.len())?;
        Ok(Some(Arc::new(object)))
    }

    fn canonical_list(&mut self, array: &ArrayRef, element: &FieldRef) -> Result<Option<ArrayRef>> {
        let list = array.as_list::<i32>();
        let under = |item, fault: Fault| owner(list.offsets(), list, item, fault);
        let items = self.below(under, |caster| caster.canonical(list.values()));
        let Some(items) = items.map_err(|error| error.context(element.name()))? else {
            return Ok(None);
        };
        let DataType::List(element) = list_type(items.data_type().clone(), true) else {
            return Ok(None);
        };
        let nulls = list.nulls().cloned();
        Ok(Some(Arc::new(ListArray::try_new(element, list.offsets().clone(), items, nulls)?)))
    }

    fn canonical_map(&mut self, array: &ArrayRef) -> Result<Option<ArrayRef>> {
        let map = array.as_map();
        let under = |item, fault: Fault| owner(map.offsets(), map, item, fault);
        let keys = self.below(under, |caster| caster.canonical(map.keys()))?;
        let values = self.below(under, |caster| caster.canonical(map.values()))?;
        let (Some(keys), Some(values)) = (keys, values) else { return Ok(None) };
        if keys.data_type().is_nested() {
            return Err(no_counterpart(array.data_type()));
        }
        let target = map_type(keys.data_type().clone(), values.data_type().clone(), true);
        for row in (0..map.len()).filter(|row| map.is_valid(*row)) {
            if let Some(fault) = bad_keys(keys.as_ref(), map.value_offsets(), row)? {
                self.note(row, fault);
            }
        }
        build_map(map, &target, keys, values).map(Some)
    }

    /// The column as the type that the state has for it, with everything in it nullable.
    ///
    /// # Errors
    /// The types are not forms of one another; or a new field differs from a known one only by case.
    pub(crate) fn conform(&mut self, array: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
        match (array.data_type(), target) {
            (from, to) if from == to => Ok(Arc::clone(array)),
            (DataType::Struct(_), DataType::Struct(fields)) => self.conform_struct(array, fields),
            (DataType::List(_), DataType::List(element)) => {
                let list = array.as_list::<i32>();
                let under = |item, fault: Fault| owner(list.offsets(), list, item, fault);
                let items = self.below(under, |caster| {
                    caster.conform(list.values(), element.data_type()).map(Some)
                })?;
                let items = items.unwrap_or_else(|| Arc::clone(list.values()));
                let nulls = list.nulls().cloned();
                let offsets = list.offsets().clone();
                Ok(Arc::new(ListArray::try_new(Arc::clone(element), offsets, items, nulls)?))
            }
            (DataType::Map(_, _), DataType::Map(entry, _)) => {
                let DataType::Struct(pair) = entry.data_type() else {
                    return Err(does_not_fit(array.data_type(), target));
                };
                let [key, value] = &**pair else {
                    return Err(does_not_fit(array.data_type(), target));
                };
                let map = array.as_map();
                let under = |item, fault: Fault| owner(map.offsets(), map, item, fault);
                let keys = self
                    .below(under, |caster| caster.conform(map.keys(), key.data_type()).map(Some))?;
                let values = self.below(under, |caster| {
                    caster.conform(map.values(), value.data_type()).map(Some)
                })?;
                let keys = keys.unwrap_or_else(|| Arc::clone(map.keys()));
                let values = values.unwrap_or_else(|| Arc::clone(map.values()));
                build_map(map, target, keys, values)
            }
            (from, to) if can_follow(from, to) => self.lossless(array, to),
            (from, to) => Err(does_not_fit(from, to)),
        }
    }

    fn conform_struct(&mut self, array: &ArrayRef, fields: &Fields) -> Result<ArrayRef> {
        let object = array.as_struct();
        let mut columns = Vec::with_capacity(fields.len());
        for field in fields {
            let name = field.name();
            let column = match object.column_by_name(name) {
                None => new_null_array(field.data_type(), object.len()),
                Some(column) => {
                    let under = |row, fault: Fault| {
                        object.is_valid(row).then(|| (row, fault.in_field(name)))
                    };
                    let column = self
                        .below(under, |caster| caster.conform(column, field.data_type()).map(Some));
                    column
                        .map_err(|error| error.context(super::fault::quote_name(name)))?
                        .unwrap_or_else(|| new_null_array(field.data_type(), object.len()))
                }
            };
            columns.push(column);
        }
        let nulls = object.nulls().cloned();
        Ok(Arc::new(StructArray::try_new_with_length(
            fields.clone(),
            columns,
            nulls,
            object.len(),
        )?))
    }

    /// A cast that is checked by casting back: a row whose value comes back another one is bad.
    fn lossless(&mut self, array: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
        if array.data_type() == target {
            return Ok(Arc::clone(array));
        }
        let options = CastOptions { safe: true, ..CastOptions::default() };
        let there = cast_with_options(array, target, &options)?;
        let back = cast_with_options(&there, array.data_type(), &options)?;
        let same = not_distinct(&back, array)?;
        if same.true_count() < same.len() {
            for row in (0..same.len()).filter(|row| !same.value(*row)) {
                let mut text = Vec::new();
                write_value(&mut text, array.as_ref(), row)?;
                self.note(
                    row,
                    Fault::new(format!(
                        "the value {} does not fit {}: it would lose digits or range",
                        String::from_utf8_lossy(&text),
                        format_type(target)
                    )),
                );
            }
        }
        Ok(there)
    }

    fn check_days(&mut self, array: ArrayRef) -> ArrayRef {
        if let Some(days) = array.as_primitive_opt::<Date32Type>() {
            for (row, day) in days.iter().enumerate() {
                if day.is_some_and(|day| !is_stored_day(i64::from(day))) {
                    self.note(row, Fault::new("a DATE lies in the years 0001 to 9999"));
                }
            }
        }
        array
    }

    fn check_times(&mut self, array: ArrayRef) -> ArrayRef {
        if let Some(times) = array.as_primitive_opt::<TimestampMicrosecondType>() {
            for (row, time) in times.iter().enumerate() {
                if time.is_some_and(|time| !(MIN_MICROS..=MAX_MICROS).contains(&time)) {
                    self.note(row, Fault::new("a TIMESTAMP lies in the years 0001 to 9999"));
                }
            }
        }
        array
    }
}

/// The row that an item of a list or map belongs to, when that row is there and not null.
fn owner(offsets: &[i32], rows: &dyn Array, item: usize, fault: Fault) -> Option<(usize, Fault)> {
    let at = i32::try_from(item).ok()?;
    let row = offsets.partition_point(|start| *start <= at).checked_sub(1)?;
    let start = usize::try_from(*offsets.get(row)?).ok()?;
    (row < rows.len() && rows.is_valid(row)).then(|| (row, fault.at_index(item - start)))
}

fn build_map(
    map: &MapArray,
    target: &DataType,
    keys: ArrayRef,
    values: ArrayRef,
) -> Result<ArrayRef> {
    let DataType::Map(entry, sorted) = target else { return Err(no_counterpart(target)) };
    let DataType::Struct(pair) = entry.data_type() else { return Err(no_counterpart(target)) };
    let entries = StructArray::try_new(pair.clone(), vec![keys, values], None)?;
    let nulls = map.nulls().cloned();
    Ok(Arc::new(MapArray::try_new(
        Arc::clone(entry),
        map.offsets().clone(),
        entries,
        nulls,
        *sorted,
    )?))
}

fn bad_keys(keys: &dyn Array, offsets: &[i32], row: usize) -> Result<Option<Fault>> {
    let bound = |at: usize| offsets.get(at).map_or(0, |end| usize::try_from(*end).unwrap_or(0));
    let mut seen = HashSet::new();
    for item in bound(row)..bound(row + 1) {
        if keys.is_null(item) {
            return Ok(Some(Fault::new("the key of a map can't be null")));
        }
        let mut text = Vec::new();
        write_value(&mut text, keys, item)?;
        if !seen.insert(text.clone()) {
            let text = String::from_utf8_lossy(&text).into_owned();
            return Ok(Some(Fault::new(format!("the map has the key {text} twice"))));
        }
    }
    Ok(None)
}

/// Whether one type can hold some values of the other exactly, so that it is for the values to say.
fn can_follow(from: &DataType, to: &DataType) -> bool {
    let is_decimal = |t: &DataType| matches!(t, DataType::Decimal128(..));
    match (from, to) {
        (from, to) if from.is_integer() => to.is_integer() || to.is_floating() || is_decimal(to),
        (from, to) if from.is_floating() => to.is_floating(),
        (from, to) if is_decimal(from) => to.is_integer() || is_decimal(to),
        _ => false,
    }
}

fn does_not_fit(from: &DataType, to: &DataType) -> Error {
    Error::invalid(format!(
        "the input has {}, the state {}: cast it in the input to the state's type",
        format_type(from),
        format_type(to)
    ))
}

fn no_counterpart(data_type: &DataType) -> Error {
    Error::invalid(format!(
        "a state does not store the type {}: cast it in the input, such as to BIGINT or STRING",
        format_type(data_type)
    ))
}

/// The fields of a state, grown by those that the input has besides (their types canonical).
///
/// # Errors
/// A new field differs from a known one only by case.
pub(crate) fn grow_fields(known: &Fields, offered: &Fields) -> Result<Fields, Fault> {
    let mut grown: Vec<FieldRef> = Vec::with_capacity(known.len());
    for field in known {
        let data_type = match offered.find(field.name()) {
            Some((_, offer)) => grow_type(field.data_type(), offer.data_type())
                .map_err(|fault| fault.in_field(field.name()))?,
            None => field.data_type().clone(),
        };
        grown.push(Arc::new(field.as_ref().clone().with_data_type(data_type)));
    }
    for offer in offered.iter().filter(|offer| known.find(offer.name()).is_none()) {
        let folded = offer.name().to_lowercase();
        if let Some(near) = grown.iter().find(|field| field.name().to_lowercase() == folded) {
            return Err(case_clash(offer.name(), near.name()));
        }
        grown.push(Arc::clone(offer));
    }
    Ok(grown.into())
}

fn grow_type(known: &DataType, offered: &DataType) -> Result<DataType, Fault> {
    Ok(match (known, offered) {
        (DataType::Struct(known), DataType::Struct(offered)) => {
            DataType::Struct(grow_fields(known, offered)?)
        }
        (DataType::List(known), DataType::List(offered)) => {
            let element = grow_type(known.data_type(), offered.data_type())?;
            DataType::List(Arc::new(known.as_ref().clone().with_data_type(element)))
        }
        (DataType::Map(entry, sorted), DataType::Map(offered, _)) => {
            let entries = grow_type(entry.data_type(), offered.data_type())?;
            DataType::Map(Arc::new(entry.as_ref().clone().with_data_type(entries)), *sorted)
        }
        (known, _) => known.clone(),
    })
}

/// Whether the type is that of an instant.
pub(crate) fn is_instant(data_type: &DataType) -> bool {
    *data_type == event_time_type()
}
