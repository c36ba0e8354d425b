//! Changes row by row into columns: the common end of the text formats.

use std::borrow::Cow;

use alluvium_log::{DELETE, Error, Result, UPSERT, event_time_type};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Fields, Schema};

use super::build::ColumnBuilder;
use super::changes::{ChangeMapping, Role};
use super::chunk::Columns;
use super::fault::Fault;
use super::json::Json;
use super::object::ObjectBuilder;
use super::{required, time};

/// The columns of a chunk under construction.
pub(crate) struct RowSink {
    key: ColumnBuilder,
    op: ColumnBuilder,
    version: ColumnBuilder,
    event_time: ColumnBuilder,
    value: ColumnBuilder,
    /// The columns of the key as they are, when records are wanted.
    key_parts: Vec<ColumnBuilder>,
}

/// What a row says about itself besides its value.
pub(crate) struct Head<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) is_delete: bool,
    pub(crate) version: Option<i64>,
    pub(crate) event_time: Option<i64>,
}

impl RowSink {
    /// `key_parts` is how many columns of the key are wanted in the records.
    pub(crate) fn new(fields: &Fields, key_parts: usize) -> Result<Self> {
        let text = || ColumnBuilder::new(&DataType::Utf8);
        Ok(Self {
            key: text()?,
            op: text()?,
            version: ColumnBuilder::new(&DataType::Int64)?,
            event_time: ColumnBuilder::new(&event_time_type())?,
            value: ColumnBuilder::new(&DataType::Struct(fields.clone()))?,
            key_parts: (0..key_parts).map(|_| text()).collect::<Result<_>>()?,
        })
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        for column in [&mut self.key, &mut self.op, &mut self.version, &mut self.event_time] {
            column.truncate(len);
        }
        self.value.truncate(len);
        for column in &mut self.key_parts {
            column.truncate(len);
        }
    }

    pub(crate) fn push_head(&mut self, head: &Head<'_>) -> Result<(), Fault> {
        self.key.push_cell(&head.key)?;
        self.op.push_cell(if head.is_delete { DELETE } else { UPSERT })?;
        push_integer(&mut self.version, head.version);
        push_integer(&mut self.event_time, head.event_time);
        Ok(())
    }

    /// Adds the plain text of a column of the key.
    pub(crate) fn push_key_part(&mut self, place: usize, text: &str) -> Result<(), Fault> {
        match self.key_parts.get_mut(place) {
            Some(column) => column.push_cell(text),
            None => Ok(()),
        }
    }

    /// The fields of the value, to be followed by [`Self::close_value`].
    pub(crate) fn value(&mut self) -> Option<&mut ObjectBuilder> {
        self.value.as_object()
    }

    pub(crate) fn close_value(&mut self) {
        self.value.close_object_row();
    }

    /// Adds a value from the fields of a JSON object, less those that `is_value` turns down.
    pub(crate) fn push_value(
        &mut self,
        entries: Option<&[(Cow<'_, str>, Json<'_>)]>,
        is_value: impl Fn(&str) -> bool,
    ) -> Result<(), Fault> {
        let Some(entries) = entries else {
            self.value.push_null();
            return Ok(());
        };
        if let Some(object) = self.value.as_object() {
            let fields = entries.iter().filter(|(name, _)| is_value(name));
            for (guess, (name, value)) in fields.enumerate() {
                object
                    .push_field(guess, name, value)
                    .map_err(|fault| fault.in_field(alluvium_log::STATE_VALUE))?;
            }
        }
        self.value.close_object_row();
        Ok(())
    }

    /// Whether a value had a field that the schema lacks.
    pub(crate) fn has_unseen(&self) -> bool {
        let mut has_unseen = false;
        self.value.visit_objects("", &mut |_, object| has_unseen |= object.has_unseen());
        has_unseen
    }

    /// The paths of the fields that had no value to tell their type.
    pub(crate) fn left_out(&self) -> Vec<String> {
        let mut names = Vec::new();
        self.value.visit_objects("", &mut |path, object| {
            let dot = if path.is_empty() { "" } else { "." };
            let quoted = object.left_out().iter().map(|name| super::fault::quote_name(name));
            names.extend(quoted.map(|name| format!("{path}{dot}{name}")));
        });
        names
    }

    /// The columns, and the records when parts of the key were kept for them.
    pub(crate) fn finish(self, mapping: &ChangeMapping) -> Result<(Columns, Option<RecordBatch>)> {
        let columns = Columns {
            key: self.key.finish()?,
            op: self.op.finish()?,
            version: self.version.finish()?,
            event_time: self.event_time.finish()?,
            value: self.value.finish()?,
        };
        if self.key_parts.is_empty() {
            return Ok((columns, None));
        }
        let parts: Result<Vec<_>> = self.key_parts.into_iter().map(ColumnBuilder::finish).collect();
        let records = records(&columns, parts?, mapping)?;
        Ok((columns, Some(records)))
    }
}

fn push_integer(column: &mut ColumnBuilder, value: Option<i64>) {
    match value {
        Some(value) => column.push_integer(value),
        None => column.push_null(),
    }
}

/// The fields of the value, then the columns that the mapping names.
fn records(
    columns: &Columns,
    parts: Vec<ArrayRef>,
    mapping: &ChangeMapping,
) -> Result<RecordBatch> {
    let value = columns.value.as_struct();
    let mut fields: Vec<Field> =
        required::relax_fields(value.fields()).iter().map(|field| field.as_ref().clone()).collect();
    let mut arrays: Vec<ArrayRef> = value.columns().to_vec();
    let mut add = |name: &str, array: ArrayRef| {
        fields.push(Field::new(name, array.data_type().clone(), true));
        arrays.push(array);
    };
    for (name, part) in mapping.key.iter().zip(parts) {
        add(name, part);
    }
    if let Some(name) = &mapping.event_time {
        add(name, columns.event_time.clone());
    }
    if let Some(name) = &mapping.version {
        add(name, columns.version.clone());
    }
    Ok(RecordBatch::try_new(Schema::new(fields).into(), arrays)?)
}

/// The version in a text of digits.
pub(crate) fn parse_version(text: &str) -> Result<i64, Fault> {
    super::number::integer(text, i64::MIN, i64::MAX).map_err(|why| {
        Fault::new(format!(
            "the version {} is no BIGINT: {why}; give an integer",
            super::fault::excerpt(text)
        ))
    })
}

/// The event time in a text.
pub(crate) fn parse_event_time(text: &str) -> Result<i64, Fault> {
    time::timestamp(text).map_err(|why| {
        Fault::new(format!(
            "the event time {} can't be used: {why}; give RFC 3339 such as 2024-01-15T10:30:00Z",
            super::fault::excerpt(text)
        ))
    })
}

/// The refusal of a key that is null.
pub(crate) fn null_key(column: &str) -> Fault {
    Fault::new("the key is null or missing: every row needs its key").in_field(column)
}

/// Where the parts of a key stand among a row's columns: an error when one of them is nowhere.
pub(crate) fn find_roles<'a>(
    names: impl Iterator<Item = &'a str> + Clone,
    mapping: &ChangeMapping,
) -> Result<Vec<Option<Role>>> {
    for wanted in mapping.columns() {
        if !names.clone().any(|name| name == wanted) {
            let near = names.clone().find(|name| name.eq_ignore_ascii_case(wanted));
            let hint = near.map_or(String::new(), |near| format!(" (did you mean {near:?}?)"));
            let all: Vec<&str> = names.clone().collect();
            return Err(Error::invalid(format!(
                "there is no column {wanted:?}{hint}; the columns are {}",
                all.join(", ")
            )));
        }
    }
    Ok(names.map(|name| mapping.role(name)).collect())
}
