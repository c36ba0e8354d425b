//! What a state is: its order, its value's fields, and the rules by which the fields may grow.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, TimeUnit};
use serde::{Deserialize, Serialize};

use crate::columns::{DT, STATE_VALUE, log_schema};
use crate::error::{Error, ErrorKind, Result};
use crate::order::OrderBy;
use crate::table::{Protocol, TableMetadata};

/// How far in the future a row may be dated, unless the state says otherwise: one day.
pub const DEFAULT_MAX_FUTURE_MS: i64 = 86_400_000;
/// How deep a value may nest.
pub const MAX_NESTING: usize = 32;

const FORMAT_VERSION: &str = "1";
const PROPERTY_FORMAT: &str = "alluvium.formatVersion";
const PROPERTY_ORDER: &str = "alluvium.orderBy";
const PROPERTY_REQUIRED: &str = "alluvium.requiredFields";
const PROPERTY_MAX_FUTURE: &str = "alluvium.maxFutureMs";
/// Characters that Delta does not allow in names of columns without column mapping.
const ILLEGAL_IN_NAMES: &[char] = &[' ', ',', ';', '{', '}', '(', ')', '\n', '\t', '='];

/// What a state is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDefinition {
    /// What decides which row of a key wins; immutable.
    pub order_by: OrderBy,
    /// The fields of `state_value`, in canonical types. A field that is not nullable is required in every UPSERT.
    pub fields: Fields,
    /// Rows dated later than now plus this are refused.
    pub max_future_ms: i64,
}

/// Settings of a state that may be given when it is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSettings {
    /// See [`StateDefinition::order_by`].
    pub order_by: OrderBy,
    /// See [`StateDefinition::max_future_ms`].
    pub max_future_ms: i64,
}

impl Default for StateSettings {
    fn default() -> Self {
        Self { order_by: OrderBy::default(), max_future_ms: DEFAULT_MAX_FUTURE_MS }
    }
}

/// A random (version 4) UUID, as Delta asks for.
pub(crate) fn random_table_id() -> String {
    let (high, low): (u64, u64) = (crate::random::random(), crate::random::random());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        (low >> 48) & 0x3fff | 0x8000,
        low & 0xffff_ffff_ffff
    )
}

impl StateDefinition {
    /// A state with these fields, brought to canonical types and checked.
    pub fn new(fields: &Fields, settings: StateSettings) -> Result<Self> {
        let fields = canonical_fields(fields, STATE_VALUE, 0)?;
        if settings.max_future_ms < 0 {
            return Err(Error::invalid("max_future_ms is negative: give milliseconds from 0 up"));
        }
        Ok(Self { order_by: settings.order_by, fields, max_future_ms: settings.max_future_ms })
    }

    /// The fields as rows carry them: nothing required, since a DELETE has none of them.
    pub fn stored_fields(&self) -> Fields {
        nullable_fields(&self.fields)
    }

    /// The protocol that a table of this state needs.
    pub(crate) fn protocol(&self) -> Protocol {
        if self.fields.iter().any(|field| has_ntz(field.data_type())) {
            Protocol { reader: 3, writer: 7, features: vec!["timestampNtz".to_owned()] }
        } else {
            Protocol { reader: 1, writer: 2, features: Vec::new() }
        }
    }

    /// The metadata of a new log table.
    pub(crate) fn new_metadata(&self, now_ms: i64) -> Result<TableMetadata> {
        let mut metadata = TableMetadata {
            id: random_table_id(),
            schema: Arc::new(Schema::empty()),
            partition_columns: vec![DT.to_owned()],
            properties: BTreeMap::from([
                (PROPERTY_FORMAT.to_owned(), FORMAT_VERSION.to_owned()),
                (PROPERTY_ORDER.to_owned(), self.order_by.to_string()),
                (PROPERTY_MAX_FUTURE.to_owned(), self.max_future_ms.to_string()),
                ("delta.appendOnly".to_owned(), "true".to_owned()),
                ("delta.dataSkippingNumIndexedCols".to_owned(), "4".to_owned()),
                ("delta.enableExpiredLogCleanup".to_owned(), "false".to_owned()),
                ("delta.checkpointInterval".to_owned(), i32::MAX.to_string()),
            ]),
            created_ms: Some(now_ms),
        };
        self.write_to(&mut metadata)?;
        Ok(metadata)
    }

    /// Puts the fields into a table's metadata.
    pub(crate) fn write_to(&self, metadata: &mut TableMetadata) -> Result<()> {
        let mut columns: Vec<FieldRef> =
            log_schema(&nullable_fields(&self.fields)).fields().iter().cloned().collect();
        columns.push(Arc::new(Field::new(DT, DataType::Utf8, true)));
        metadata.schema = Arc::new(Schema::new(columns));
        let mut required = Vec::new();
        required_paths(&self.fields, &mut Vec::new(), &mut required);
        let text = serde_json::to_string(&required)
            .map_err(|error| Error::internal("required fields").with_source(error))?;
        metadata.properties.insert(PROPERTY_REQUIRED.to_owned(), text);
        Ok(())
    }

    /// Reads a state's definition from its log table's metadata.
    pub(crate) fn from_metadata(metadata: &TableMetadata) -> Result<Self> {
        let property = |name: &str| metadata.properties.get(name).map(String::as_str);
        match property(PROPERTY_FORMAT) {
            Some(FORMAT_VERSION) => {}
            Some(other) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "the state has format version {other}, this program knows {FORMAT_VERSION}: use a newer one"
                    ),
                ));
            }
            None => {
                return Err(Error::corrupt(
                    "the table is no state: it has no alluvium.formatVersion",
                ));
            }
        }
        let order_by = property(PROPERTY_ORDER)
            .ok_or_else(|| Error::corrupt("the property alluvium.orderBy is missing"))?
            .parse()?;
        let max_future_ms = match property(PROPERTY_MAX_FUTURE) {
            None => DEFAULT_MAX_FUTURE_MS,
            Some(text) => text.parse().map_err(|_| {
                Error::corrupt(format!(
                    "the property {PROPERTY_MAX_FUTURE} is {text:?}, not a number"
                ))
            })?,
        };
        let value = metadata
            .schema
            .field_with_name(STATE_VALUE)
            .map_err(|_| Error::corrupt("the log has no column state_value"))?;
        let DataType::Struct(fields) = value.data_type() else {
            return Err(Error::corrupt("the column state_value is not a struct"));
        };
        let required: Vec<Vec<String>> = match property(PROPERTY_REQUIRED) {
            None => Vec::new(),
            Some(text) => serde_json::from_str(text)
                .map_err(|error| Error::corrupt(PROPERTY_REQUIRED).with_source(error))?,
        };
        let fields = with_required(fields, &mut Vec::new(), &required);
        Ok(Self { order_by, fields, max_future_ms })
    }

    /// The definition with room for offered fields: new ones are added, nullable; known ones keep their type.
    ///
    /// Whether a known field's rows fit its type is a matter of the rows, not decided here; new fields are checked.
    pub fn grown_by(&self, offered: &Fields) -> Result<Self> {
        Ok(Self { fields: merge_fields(&self.fields, offered, STATE_VALUE, 0)?, ..self.clone() })
    }
}

fn has_ntz(data_type: &DataType) -> bool {
    match data_type {
        DataType::Timestamp(_, None) => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_ntz(field.data_type())),
        DataType::List(field) | DataType::Map(field, _) => has_ntz(field.data_type()),
        _ => false,
    }
}

fn nullable_fields(fields: &Fields) -> Fields {
    fields.iter().map(|field| Arc::new(nullable_field(field, true))).collect()
}

/// The field as the Delta schema shows it: nothing required, except the keys and entries of maps.
fn nullable_field(field: &Field, nullable: bool) -> Field {
    let data_type = match field.data_type() {
        DataType::Struct(fields) => DataType::Struct(nullable_fields(fields)),
        DataType::List(element) => DataType::List(Arc::new(nullable_field(element, true))),
        DataType::Map(entries, sorted) => {
            let DataType::Struct(parts) = entries.data_type() else { return field.clone() };
            let parts = Fields::from(vec![
                nullable_field(&parts[0], false),
                nullable_field(&parts[1], true),
            ]);
            let entries = Field::new(entries.name(), DataType::Struct(parts), false);
            DataType::Map(Arc::new(entries), *sorted)
        }
        other => other.clone(),
    };
    Field::new(field.name(), data_type, nullable)
}

fn children(data_type: &DataType) -> Option<&Fields> {
    match data_type {
        DataType::Struct(fields) => Some(fields),
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => Some(fields),
            _ => None,
        },
        _ => None,
    }
}

fn required_paths(fields: &Fields, path: &mut Vec<String>, out: &mut Vec<Vec<String>>) {
    for field in fields {
        required_path(field, path, out);
    }
}

fn required_path(field: &Field, path: &mut Vec<String>, out: &mut Vec<Vec<String>>) {
    path.push(field.name().clone());
    if !field.is_nullable() {
        out.push(path.clone());
    }
    match field.data_type() {
        DataType::List(element) => required_path(element, path, out),
        other => {
            if let Some(fields) = children(other) {
                required_paths(fields, path, out);
            }
        }
    }
    path.pop();
}

fn with_required(fields: &Fields, path: &mut Vec<String>, required: &[Vec<String>]) -> Fields {
    fields.iter().map(|field| Arc::new(field_with_required(field, path, required))).collect()
}

fn field_with_required(field: &Field, path: &mut Vec<String>, required: &[Vec<String>]) -> Field {
    path.push(field.name().clone());
    let nullable = !required.iter().any(|known| known == path);
    let data_type = match field.data_type() {
        DataType::Struct(fields) => DataType::Struct(with_required(fields, path, required)),
        DataType::List(element) => {
            DataType::List(Arc::new(field_with_required(element, path, required)))
        }
        DataType::Map(entries, sorted) => match entries.data_type() {
            DataType::Struct(parts) => {
                let parts = Fields::from(vec![
                    field_with_required(&parts[0], path, required).with_nullable(false),
                    field_with_required(&parts[1], path, required),
                ]);
                let entries = Field::new(entries.name(), DataType::Struct(parts), false);
                DataType::Map(Arc::new(entries), *sorted)
            }
            other => other.clone(),
        },
        other => other.clone(),
    };
    path.pop();
    Field::new(field.name(), data_type, nullable)
}

/// Brings fields to the types that a state stores, refusing those that Delta can't.
fn canonical_fields(fields: &Fields, path: &str, depth: usize) -> Result<Fields> {
    check_names(fields, path)?;
    fields
        .iter()
        .map(|field| {
            let path = format!("{path}.{}", field.name());
            let data_type = canonical_type(field.data_type(), &path, depth + 1)?;
            Ok(Arc::new(Field::new(field.name(), data_type, field.is_nullable())))
        })
        .collect()
}

fn check_names(fields: &Fields, path: &str) -> Result<()> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for field in fields {
        let name = field.name();
        if name.is_empty() {
            return Err(Error::invalid(format!("a field of {path} has an empty name")));
        }
        if let Some(illegal) = name.chars().find(|c| ILLEGAL_IN_NAMES.contains(c)) {
            return Err(Error::invalid(format!(
                "the field name {name:?} in {path} has {illegal:?}: Delta tables do not allow any of \" ,;{{}}()=\", tab or newline in names; rename the field"
            )));
        }
        if let Some(other) = seen.insert(name.to_lowercase(), name) {
            return Err(Error::invalid(format!(
                "the fields {other:?} and {name:?} of {path} differ only in case: Delta tables can't hold both; rename one"
            )));
        }
    }
    Ok(())
}

/// The type that a state stores for an offered type.
pub(crate) fn canonical_type(data_type: &DataType, path: &str, depth: usize) -> Result<DataType> {
    if depth > MAX_NESTING {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            format!("{path} nests deeper than {MAX_NESTING} levels"),
        ));
    }
    Ok(match data_type {
        DataType::Boolean
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::Float32
        | DataType::Float64
        | DataType::Utf8
        | DataType::Binary
        | DataType::Date32 => data_type.clone(),
        DataType::UInt8 => DataType::Int16,
        DataType::UInt16 => DataType::Int32,
        DataType::UInt32 => DataType::Int64,
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            DataType::Binary
        }
        DataType::Dictionary(_, value) => canonical_type(value, path, depth)?,
        DataType::Timestamp(_, None) => DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Timestamp(_, Some(_)) => {
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
        }
        DataType::Decimal128(precision, scale)
            if *scale >= 0 && u8::try_from(*scale).is_ok_and(|scale| scale <= *precision) =>
        {
            data_type.clone()
        }
        DataType::Struct(fields) => DataType::Struct(canonical_fields(fields, path, depth)?),
        DataType::List(element)
        | DataType::LargeList(element)
        | DataType::ListView(element)
        | DataType::LargeListView(element)
        | DataType::FixedSizeList(element, _) => {
            let inner = canonical_type(element.data_type(), &format!("{path}[]"), depth + 1)?;
            DataType::List(Arc::new(Field::new("element", inner, element.is_nullable())))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(parts) if parts.len() == 2 => {
                let key = canonical_type(parts[0].data_type(), &format!("{path}.key"), depth + 1)?;
                let value =
                    canonical_type(parts[1].data_type(), &format!("{path}.value"), depth + 1)?;
                let parts = Fields::from(vec![
                    Field::new("key", key, false),
                    Field::new("value", value, parts[1].is_nullable()),
                ]);
                DataType::Map(
                    Arc::new(Field::new("key_value", DataType::Struct(parts), false)),
                    false,
                )
            }
            _ => return Err(unstorable(data_type, path)),
        },
        _ => return Err(unstorable(data_type, path)),
    })
}

fn unstorable(data_type: &DataType, path: &str) -> Error {
    let remedy = match data_type {
        DataType::Null => {
            "no value has told its type yet: declare the field's type or leave it out"
        }
        DataType::UInt64 => "use DECIMAL(20,0), or BIGINT if it fits",
        _ => "use a type that Delta stores",
    };
    Error::new(
        ErrorKind::Unsupported,
        format!("{path} has the type {data_type}, which Delta tables can't store: {remedy}"),
    )
}

fn merge_fields(stored: &Fields, offered: &Fields, path: &str, depth: usize) -> Result<Fields> {
    let mut merged: Vec<FieldRef> = Vec::with_capacity(stored.len());
    for field in stored {
        let same = offered.iter().find(|other| other.name() == field.name());
        merged.push(match same {
            None => field.clone(),
            Some(other) => {
                let path = format!("{path}.{}", field.name());
                let data_type = merge_type(field.data_type(), other.data_type(), &path, depth + 1)?;
                Arc::new(Field::new(field.name(), data_type, field.is_nullable()))
            }
        });
    }
    for field in offered {
        if stored.iter().any(|known| known.name() == field.name())
            || *field.data_type() == DataType::Null
        {
            continue;
        }
        let path = format!("{path}.{}", field.name());
        let data_type = canonical_type(field.data_type(), &path, depth + 1)?;
        merged.push(Arc::new(nullable_field(&Field::new(field.name(), data_type, true), true)));
    }
    let merged = Fields::from(merged);
    check_names(&merged, path)?;
    Ok(merged)
}

fn merge_type(stored: &DataType, offered: &DataType, path: &str, depth: usize) -> Result<DataType> {
    if depth > MAX_NESTING {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            format!("{path} nests deeper than {MAX_NESTING} levels"),
        ));
    }
    Ok(match (stored, offered) {
        (DataType::Struct(stored), DataType::Struct(offered)) => {
            DataType::Struct(merge_fields(stored, offered, path, depth)?)
        }
        (DataType::List(stored), DataType::List(offered) | DataType::LargeList(offered)) => {
            let inner = merge_type(stored.data_type(), offered.data_type(), path, depth + 1)?;
            DataType::List(Arc::new(Field::new("element", inner, stored.is_nullable())))
        }
        (DataType::Map(stored_entries, sorted), DataType::Map(offered_entries, _)) => {
            match (children(stored), children(offered)) {
                (Some(known), Some(new)) if known.len() == 2 && new.len() == 2 => {
                    let value =
                        merge_type(known[1].data_type(), new[1].data_type(), path, depth + 1)?;
                    let parts = Fields::from(vec![
                        known[0].as_ref().clone(),
                        Field::new("value", value, known[1].is_nullable()),
                    ]);
                    let entries = Field::new(stored_entries.name(), DataType::Struct(parts), false);
                    DataType::Map(Arc::new(entries), *sorted)
                }
                _ => return Err(unstorable(offered_entries.data_type(), path)),
            }
        }
        (stored, _) => stored.clone(),
    })
}
