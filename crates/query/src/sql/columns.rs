//! How a state's rows look in SQL: the columns of the live table, and how they are made of the rows of a fold.

use std::collections::HashSet;
use std::sync::Arc;

use alluvium_log::{
    APPEND_SEQ, COMMIT, DT, EVENT_TIME, FOLD_COLUMNS, Result, STATE_KEY, STATE_VALUE,
    StateDefinition, TIER, VERSION, fold_schema, log_schema, value_field,
};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, StringArray};
use arrow::compute::{is_null, nullif};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};

/// The columns of the live table that are not the value's.
pub(super) const OWN_COLUMNS: [&str; 3] = [STATE_KEY, VERSION, EVENT_TIME];

/// Where a column of a table comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// A column of the rows of a fold.
    Row(String),
    /// A field of the value.
    Value(String),
    /// The partition of the file.
    Partition,
}

/// A table's columns, in order, with their origins.
#[derive(Debug, Clone)]
pub(super) struct Columns {
    schema: SchemaRef,
    origins: Vec<Origin>,
    /// The value's own fields, whole.
    value: FieldRef,
}

impl Columns {
    /// The columns of the live table: key, version, event time, then the value's fields.
    ///
    /// A field that is named like one of the first three, be it in another case, is shown as `value_<name>`.
    pub(super) fn live(definition: &StateDefinition) -> Self {
        let stored = definition.stored_fields();
        let mut fields: Vec<FieldRef> = fold_schema(&[]).fields().iter().take(3).cloned().collect();
        let mut origins: Vec<Origin> =
            OWN_COLUMNS.iter().map(|&name| Origin::Row(name.to_owned())).collect();
        for (field, name) in stored.iter().zip(shown_names(&stored)) {
            fields.push(Arc::new(field.as_ref().clone().with_name(name)));
            origins.push(Origin::Value(field.name().clone()));
        }
        Self { schema: Arc::new(Schema::new(fields)), origins, value: value_field(&stored) }
    }

    /// The columns of the log as they lie, `commit` being the log commit of the row also where none is stored.
    pub(super) fn log(definition: &StateDefinition) -> Self {
        let stored = definition.stored_fields();
        let mut fields: Vec<FieldRef> = log_schema(&stored).fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new(DT, DataType::Utf8, true)));
        Self::raw(fields, &stored)
    }

    /// The columns of the snapshot as they lie.
    pub(super) fn snapshot(definition: &StateDefinition) -> Self {
        let stored = definition.stored_fields();
        let log = log_schema(&stored);
        let mut fields: Vec<FieldRef> = log.fields().iter().take(5).cloned().collect();
        fields.push(Arc::new(Field::new(APPEND_SEQ, DataType::Int32, true)));
        fields.push(Arc::new(Field::new(COMMIT, DataType::Int64, true)));
        fields.push(Arc::new(Field::new(TIER, DataType::Utf8, true)));
        Self::raw(fields, &stored)
    }

    fn raw(fields: Vec<FieldRef>, stored: &Fields) -> Self {
        let origin = |field: &FieldRef| match field.name().as_str() {
            DT | TIER => Origin::Partition,
            name => Origin::Row(name.to_owned()),
        };
        let origins = fields.iter().map(origin).collect();
        Self { schema: Arc::new(Schema::new(fields)), origins, value: value_field(stored) }
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The field of the value that a column shows, and its type.
    pub(super) fn value_field(&self, column: &str) -> Option<(&str, &DataType)> {
        let (index, field) = self.schema.column_with_name(column)?;
        match self.origins.get(index)? {
            Origin::Value(name) => Some((name, field.data_type())),
            _ => None,
        }
    }

    /// The deciding columns that are not shown.
    pub(super) fn unread(&self) -> Vec<&'static str> {
        let is_shown = |name: &str| self.origins.contains(&Origin::Row(name.to_owned()));
        [STATE_KEY, VERSION, EVENT_TIME, COMMIT, APPEND_SEQ]
            .into_iter()
            .filter(|name| !is_shown(name))
            .collect()
    }

    /// Only some of the columns, in the order asked for.
    pub(super) fn project(&self, projection: Option<&Vec<usize>>) -> Result<Self> {
        let Some(projection) = projection else { return Ok(self.clone()) };
        Ok(Self {
            schema: Arc::new(self.schema.project(projection)?),
            origins: projection
                .iter()
                .filter_map(|&index| self.origins.get(index).cloned())
                .collect(),
            value: self.value.clone(),
        })
    }

    /// What must be read beside the columns of a fold: the value with just the fields that are shown, the append id.
    pub(super) fn payload(&self) -> Vec<FieldRef> {
        let wanted: HashSet<&str> = self
            .origins
            .iter()
            .filter_map(|origin| match origin {
                Origin::Value(name) => Some(name.as_str()),
                _ => None,
            })
            .collect();
        let mut payload = Vec::new();
        let whole = Origin::Row(STATE_VALUE.to_owned());
        match self.value.data_type() {
            _ if self.origins.contains(&whole) => payload.push(self.value.clone()),
            DataType::Struct(fields) if !wanted.is_empty() => {
                let some = fields.iter().filter(|field| wanted.contains(field.name().as_str()));
                payload.push(value_field(&some.cloned().collect()));
            }
            _ => {}
        }
        let known = fold_schema(&[]);
        for (origin, field) in self.origins.iter().zip(self.schema.fields()) {
            match origin {
                Origin::Row(name)
                    if name != STATE_VALUE && known.field_with_name(name).is_err() =>
                {
                    payload.push(field.clone());
                }
                _ => {}
            }
        }
        payload
    }

    /// Makes the columns of rows in fold shape; `partition` is that of the file that they come from.
    pub(super) fn show(&self, rows: &RecordBatch, partition: Option<&str>) -> Result<RecordBatch> {
        let missing =
            |name: &str| alluvium_log::Error::internal(format!("a batch of a scan lacks {name}"));
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.origins.len());
        for origin in &self.origins {
            columns.push(match origin {
                Origin::Row(name) => {
                    rows.column_by_name(name).ok_or_else(|| missing(name))?.clone()
                }
                Origin::Partition => Arc::new(StringArray::from(vec![partition; rows.num_rows()])),
                Origin::Value(name) => {
                    let value =
                        rows.columns().get(FOLD_COLUMNS).and_then(|value| value.as_struct_opt());
                    let value = value.ok_or_else(|| missing(STATE_VALUE))?;
                    let field = value.column_by_name(name).ok_or_else(|| missing(name))?;
                    // A field of a value that is null as a whole is null, whatever lies beneath.
                    if value.null_count() > 0 {
                        nullif(field, &is_null(value)?)?
                    } else {
                        field.clone()
                    }
                }
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }
}

/// The names of the value's fields as columns of the live table.
fn shown_names(fields: &Fields) -> Vec<String> {
    let mut taken: HashSet<String> = OWN_COLUMNS.iter().map(|&name| name.to_owned()).collect();
    let clashes = |name: &str| OWN_COLUMNS.iter().any(|own| own.eq_ignore_ascii_case(name));
    taken.extend(fields.iter().map(|field| field.name().to_lowercase()));
    fields
        .iter()
        .map(|field| {
            if !clashes(field.name()) {
                return field.name().clone();
            }
            let mut name = format!("value_{}", field.name());
            while !taken.insert(name.to_lowercase()) {
                name = format!("value_{name}");
            }
            name
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_field_named_like_a_column_is_shown_under_another_name() {
        let fields = ["version", "Event_Time", "plain", "value_version"]
            .map(|name| Field::new(name, DataType::Int64, true));
        let names = shown_names(&Fields::from(fields.to_vec()));
        assert_eq!(names, ["value_value_version", "value_Event_Time", "plain", "value_version"]);
    }

    #[test]
    fn only_what_is_shown_is_read() {
        let fields = Fields::from(vec![
            Field::new("a", DataType::Int64, true),
            Field::new("b", DataType::Utf8, true),
        ]);
        let definition =
            StateDefinition::new(&fields, alluvium_log::StateSettings::default()).unwrap();
        let live = Columns::live(&definition);
        assert!(live.project(Some(&vec![0, 2])).unwrap().payload().is_empty());
        let payload = live.project(Some(&vec![4, 0])).unwrap().payload();
        assert_eq!(
            payload,
            vec![value_field(&Fields::from(vec![Field::new("b", DataType::Utf8, true)]))]
        );
        let log = Columns::log(&definition).project(Some(&vec![5, 8])).unwrap();
        assert_eq!(log.payload().len(), 1);
    }
}
