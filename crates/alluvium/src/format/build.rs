//! Columns from JSON values or text cells, each value exactly or not at all.
//!
//! A [`ColumnBuilder`] takes one value per row and never rounds, wraps or turns into null what does not fit:
//! it answers with a [`Fault`] instead, after which [`ColumnBuilder::truncate`] takes the column back to the
//! rows that were good. Whether required values are there is not looked at here but in [`super::required`],
//! so that a row can first be judged to be a DELETE.
//!
//! | type | JSON that fits | text cell that fits |
//! |---|---|---|
//! | integers | a number without fraction or exponent, in range | the same |
//! | FLOAT, DOUBLE | an integer that it holds exactly; a decimal, as the nearest; `"NaN"`, `"Infinity"`, `"-Infinity"` | the same, unquoted |
//! | DECIMAL | a number or a string with no more digits than the type has, `3.9e-6` included | the same |
//! | STRING | a string | any text |
//! | BINARY | a string of padded base64 | the same |
//! | DATE, TIMESTAMP, TIMESTAMP_NTZ | a string as [`super::time`] reads it | the same |
//! | BOOLEAN | `true`, `false` | `true`, `false` in any case |
//! | STRUCT | an object | that JSON |
//! | ARRAY | an array | that JSON |
//! | MAP | an object when keys are STRING, or an array of `[key, value]` pairs | that JSON |

use alluvium_log::{Error, ErrorKind, Result};
use arrow::array::{ArrayRef, BooleanBufferBuilder, NullBufferBuilder};
use arrow::datatypes::{DataType, Field, TimeUnit};

use super::ddl::format_type;
use super::fault::{Fault, excerpt};
use super::json::{Json, parse_json};
use super::leaf::{self, Given};
use super::object::ObjectBuilder;
use super::required;

mod finish;

/// A column under construction.
pub struct ColumnBuilder {
    data_type: DataType,
    nulls: NullBufferBuilder,
    kind: Kind,
}

enum Kind {
    Boolean(BooleanBufferBuilder),
    Integer { values: Vec<i64>, min: i64, max: i64 },
    Float(Vec<f32>),
    Double(Vec<f64>),
    Date(Vec<i32>),
    Timestamp { values: Vec<i64>, has_zone: bool },
    Decimal { values: Vec<i128>, precision: u8, scale: i8 },
    Text(Bytes),
    Binary(Bytes),
    Struct(ObjectBuilder),
    List { offsets: Vec<i32>, items: Box<ColumnBuilder> },
    Map { offsets: Vec<i32>, keys: Box<ColumnBuilder>, values: Box<ColumnBuilder> },
}

struct Bytes {
    offsets: Vec<i32>,
    data: Vec<u8>,
}

impl Bytes {
    fn new() -> Self {
        Self { offsets: vec![0], data: Vec::new() }
    }

    fn close(&mut self) -> Result<(), Fault> {
        self.offsets.push(offset(self.data.len())?);
        Ok(())
    }

    fn truncate(&mut self, len: usize) {
        self.offsets.truncate(len + 1);
        self.data.truncate(last(&self.offsets));
    }
}

fn offset(len: usize) -> Result<i32, Fault> {
    i32::try_from(len)
        .map_err(|_| Fault::new("a batch holds at most 2 GiB of one column; use smaller batches"))
}

fn last(offsets: &[i32]) -> usize {
    offsets.last().map_or(0, |end| usize::try_from(*end).unwrap_or(0))
}

impl ColumnBuilder {
    /// A builder of this type, in which everything but a map's key may be null.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a type that a state does not store.
    pub fn new(data_type: &DataType) -> Result<Self> {
        let integer = |min, max| Kind::Integer { values: Vec::new(), min, max };
        let kind = match data_type {
            DataType::Boolean => Kind::Boolean(BooleanBufferBuilder::new(0)),
            DataType::Int8 => integer(i8::MIN.into(), i8::MAX.into()),
            DataType::Int16 => integer(i16::MIN.into(), i16::MAX.into()),
            DataType::Int32 => integer(i32::MIN.into(), i32::MAX.into()),
            DataType::Int64 => integer(i64::MIN, i64::MAX),
            DataType::Float32 => Kind::Float(Vec::new()),
            DataType::Float64 => Kind::Double(Vec::new()),
            DataType::Date32 => Kind::Date(Vec::new()),
            DataType::Timestamp(TimeUnit::Microsecond, zone) => {
                Kind::Timestamp { values: Vec::new(), has_zone: zone.is_some() }
            }
            DataType::Decimal128(precision, scale) => {
                Kind::Decimal { values: Vec::new(), precision: *precision, scale: *scale }
            }
            DataType::Utf8 => Kind::Text(Bytes::new()),
            DataType::Binary => Kind::Binary(Bytes::new()),
            DataType::Struct(fields) => Kind::Struct(ObjectBuilder::new(fields)?),
            DataType::List(element) => {
                let items = Box::new(Self::new(element.data_type())?);
                Kind::List { offsets: vec![0], items }
            }
            DataType::Map(entry, _) => {
                let DataType::Struct(pair) = entry.data_type() else {
                    return Err(unsupported(data_type));
                };
                let [key, value] = &**pair else { return Err(unsupported(data_type)) };
                if key.data_type().is_nested() {
                    return Err(unsupported(data_type));
                }
                let keys = Box::new(Self::new(key.data_type())?);
                let values = Box::new(Self::new(value.data_type())?);
                Kind::Map { offsets: vec![0], keys, values }
            }
            other => return Err(unsupported(other)),
        };
        let data_type = required::relax(data_type);
        Ok(Self { data_type, nulls: NullBufferBuilder::new(0), kind })
    }

    /// How many rows it holds.
    pub fn len(&self) -> usize {
        self.nulls.len()
    }

    /// Whether it holds no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of the array that it will give.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Adds a row from JSON.
    ///
    /// # Errors
    /// The value does not fit; [`Self::truncate`] before going on.
    pub fn push_json(&mut self, value: &Json<'_>) -> Result<(), Fault> {
        match (&mut self.kind, value) {
            (_, Json::Null) => {
                self.push_null();
                return Ok(());
            }
            (Kind::Struct(object), Json::Object(entries)) => object.push(entries)?,
            (Kind::List { offsets, items }, Json::Array(values)) => {
                for (index, value) in values.iter().enumerate() {
                    items.push_json(value).map_err(|fault| fault.at_index(index))?;
                }
                offsets.push(offset(items.len())?);
            }
            (Kind::Map { offsets, keys, values }, Json::Object(entries)) => {
                if keys.data_type != DataType::Utf8 {
                    return Err(Fault::new(format!(
                        "the keys of the stored {} are no strings: give an array of [key, value] pairs",
                        format_type(&self.data_type)
                    )));
                }
                for (name, value) in entries {
                    keys.push_leaf(&Given::Text(name))?;
                    values.push_json(value).map_err(|fault| fault.in_field(name))?;
                }
                offsets.push(offset(keys.len())?);
            }
            (Kind::Map { offsets, keys, values }, Json::Array(pairs)) => {
                push_pairs(last(offsets), keys, values, pairs)?;
                offsets.push(offset(keys.len())?);
            }
            (Kind::Struct(_) | Kind::List { .. } | Kind::Map { .. }, other) => {
                return Err(self.mismatch(&other.describe(), "it is of another kind"));
            }
            (_, Json::Bool(value)) => return self.push_leaf(&Given::Bool(*value)),
            (_, Json::Number(text)) => return self.push_leaf(&Given::Number(text)),
            (_, Json::String(text)) => return self.push_leaf(&Given::Text(text)),
            (_, other) => return Err(self.mismatch(&other.describe(), "it is of another kind")),
        }
        self.nulls.append_non_null();
        Ok(())
    }

    /// Adds a row from the text of a CSV cell; a nested type reads it as JSON.
    ///
    /// # Errors
    /// The text does not fit; [`Self::truncate`] before going on.
    pub fn push_cell(&mut self, text: &str) -> Result<(), Fault> {
        if !self.data_type.is_nested() {
            return self.push_leaf(&Given::Cell(text));
        }
        let value = parse_json(text).map_err(|error| {
            self.mismatch(&format!("the text {}", excerpt(text)), error.message())
        })?;
        self.push_json(&value)
    }

    fn push_leaf(&mut self, given: &Given<'_>) -> Result<(), Fault> {
        let pushed = match &mut self.kind {
            Kind::Boolean(values) => leaf::boolean(given).map(|value| values.append(value)),
            Kind::Integer { values, min, max } => {
                leaf::integer(given, *min, *max).map(|value| values.push(value))
            }
            Kind::Float(values) => leaf::float(given).map(|value| values.push(value)),
            Kind::Double(values) => leaf::double(given).map(|value| values.push(value)),
            Kind::Date(values) => leaf::date(given).map(|value| values.push(value)),
            Kind::Timestamp { values, has_zone } => {
                leaf::timestamp(given, *has_zone).map(|value| values.push(value))
            }
            Kind::Decimal { values, precision, scale } => {
                leaf::decimal(given, *precision, *scale).map(|value| values.push(value))
            }
            Kind::Text(bytes) => {
                let text =
                    leaf::text(given).map(|text| bytes.data.extend_from_slice(text.as_bytes()));
                if text.is_ok() {
                    bytes.close()?;
                }
                text
            }
            Kind::Binary(bytes) => {
                let decoded = leaf::binary(given, &mut bytes.data);
                if decoded.is_ok() {
                    bytes.close()?;
                }
                decoded
            }
            Kind::Struct(_) | Kind::List { .. } | Kind::Map { .. } => Err("it is of another kind"),
        };
        match pushed {
            Ok(()) => {
                self.nulls.append_non_null();
                Ok(())
            }
            Err(why) => Err(self.mismatch(&given.describe(), why)),
        }
    }

    /// Adds a row that is known to fit: an integer in range, or the microseconds of a time.
    pub(crate) fn push_integer(&mut self, value: i64) {
        match &mut self.kind {
            Kind::Integer { values, .. } | Kind::Timestamp { values, .. } => {
                values.push(value);
                self.nulls.append_non_null();
            }
            _ => self.push_null(),
        }
    }

    /// Adds a row that has no value.
    pub fn push_null(&mut self) {
        match &mut self.kind {
            Kind::Boolean(values) => values.append(false),
            Kind::Integer { values, .. } | Kind::Timestamp { values, .. } => values.push(0),
            Kind::Float(values) => values.push(0.0),
            Kind::Double(values) => values.push(0.0),
            Kind::Date(values) => values.push(0),
            Kind::Decimal { values, .. } => values.push(0),
            Kind::Struct(object) => object.push_null(),
            Kind::Text(Bytes { offsets, .. })
            | Kind::Binary(Bytes { offsets, .. })
            | Kind::List { offsets, .. }
            | Kind::Map { offsets, .. } => offsets.push(offsets.last().copied().unwrap_or(0)),
        }
        self.nulls.append_null();
    }

    /// Takes back everything after the first `len` rows, a half-added row included.
    pub fn truncate(&mut self, len: usize) {
        self.nulls.truncate(len.min(self.nulls.len()));
        match &mut self.kind {
            Kind::Boolean(values) => values.truncate(len.min(values.len())),
            Kind::Integer { values, .. } | Kind::Timestamp { values, .. } => values.truncate(len),
            Kind::Float(values) => values.truncate(len),
            Kind::Double(values) => values.truncate(len),
            Kind::Date(values) => values.truncate(len),
            Kind::Decimal { values, .. } => values.truncate(len),
            Kind::Text(bytes) | Kind::Binary(bytes) => bytes.truncate(len),
            Kind::Struct(object) => object.truncate(len),
            Kind::List { offsets, items } => {
                offsets.truncate(len + 1);
                items.truncate(last(offsets));
            }
            Kind::Map { offsets, keys, values } => {
                offsets.truncate(len + 1);
                keys.truncate(last(offsets));
                values.truncate(last(offsets));
            }
        }
    }

    /// The object builder of a STRUCT column.
    pub(crate) fn as_object(&mut self) -> Option<&mut ObjectBuilder> {
        match &mut self.kind {
            Kind::Struct(object) => Some(object),
            _ => None,
        }
    }

    /// Closes a row whose fields were pushed through [`Self::as_object`].
    pub(crate) fn close_object_row(&mut self) {
        if let Kind::Struct(object) = &mut self.kind {
            object.close_row();
        }
        self.nulls.append_non_null();
    }

    /// Calls back with each object builder at or below this column that met unknown fields.
    pub(crate) fn visit_objects(&self, path: &str, visit: &mut dyn FnMut(&str, &ObjectBuilder)) {
        match &self.kind {
            Kind::Struct(object) => {
                visit(path, object);
                object.visit_objects(path, visit);
            }
            Kind::List { items, .. } => items.visit_objects(&format!("{path}[]"), visit),
            Kind::Map { values, .. } => values.visit_objects(&format!("{path}{{}}"), visit),
            _ => {}
        }
    }

    fn mismatch(&self, given: &str, why: &str) -> Fault {
        Fault::new(format!("{given} does not fit {}: {why}", format_type(&self.data_type)))
    }

    /// A text that is equal for two rows exactly when their map keys are.
    fn key_text(&self, row: usize) -> Vec<u8> {
        match &self.kind {
            Kind::Boolean(values) => vec![u8::from(values.get_bit(row))],
            Kind::Integer { values, .. } | Kind::Timestamp { values, .. } => {
                values[row].to_le_bytes().to_vec()
            }
            Kind::Float(values) => values[row].to_bits().to_le_bytes().to_vec(),
            Kind::Double(values) => values[row].to_bits().to_le_bytes().to_vec(),
            Kind::Date(values) => values[row].to_le_bytes().to_vec(),
            Kind::Decimal { values, .. } => values[row].to_le_bytes().to_vec(),
            Kind::Text(bytes) | Kind::Binary(bytes) => {
                bytes.data[last(&bytes.offsets[..=row])..last(&bytes.offsets[..=row + 1])].to_vec()
            }
            Kind::Struct(_) | Kind::List { .. } | Kind::Map { .. } => Vec::new(),
        }
    }
}

fn push_pairs(
    start: usize,
    keys: &mut ColumnBuilder,
    values: &mut ColumnBuilder,
    pairs: &[Json<'_>],
) -> Result<(), Fault> {
    let mut seen = std::collections::HashSet::with_capacity(pairs.len());
    for (index, pair) in pairs.iter().enumerate() {
        let Json::Array(pair) = pair else {
            return Err(Fault::new("a map is given as [key, value] pairs").at_index(index));
        };
        let [key, value] = pair.as_slice() else {
            return Err(Fault::new("a pair of a map has a key and a value").at_index(index));
        };
        if matches!(key, Json::Null) {
            return Err(Fault::new("the key of a map can't be null").at_index(index));
        }
        keys.push_json(key).map_err(|fault| fault.at_index(index))?;
        values.push_json(value).map_err(|fault| fault.at_index(index))?;
        if !seen.insert(keys.key_text(start + index)) {
            let reason = format!("the map has the key {} twice", key.describe());
            return Err(Fault::new(reason).at_index(index));
        }
    }
    Ok(())
}

pub(crate) fn unsupported(data_type: &DataType) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("a state does not store the type {}", format_type(data_type)),
    )
}

/// The array of one value per row; the field says the type and whether null is allowed.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] with the row (from 0), the path, the value and the stored type.
pub fn build_array(field: &Field, values: &[Json<'_>]) -> Result<ArrayRef> {
    let mut column = ColumnBuilder::new(field.data_type())?;
    for (row, value) in values.iter().enumerate() {
        column.push_json(value).map_err(|fault| {
            Error::from(fault.in_field(field.name())).context(format!("row {row}"))
        })?;
    }
    let array = column.finish()?;
    for row in 0..values.len() {
        if let Some(fault) = required::missing(array.as_ref(), field, row) {
            return Err(Error::from(fault).context(format!("row {row}")));
        }
    }
    required::retype(&array, field.data_type())
}
