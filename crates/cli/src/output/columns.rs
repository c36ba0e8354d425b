//! Columns by other names and in another order, and the fields of `value` as columns.

use std::sync::Arc;

use alluvium::Error;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StructArray};
use arrow::compute::kernels::boolean::is_not_null;
use arrow::compute::not;
use arrow::compute::nullif;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};

use super::Result;

/// The column whose fields CSV and tables show as columns.
pub(crate) const VALUE: &str = "value";

/// Some columns of a batch, by other names: pairs of the name there and the name here.
pub(crate) fn rename(batch: &RecordBatch, names: &[(&str, &str)]) -> Result<RecordBatch> {
    let mut fields = Vec::with_capacity(names.len());
    let mut columns = Vec::with_capacity(names.len());
    let schema = batch.schema();
    for (from, to) in names {
        let place = schema.index_of(from)?;
        let field = schema.field(place);
        fields.push(Field::new(*to, field.data_type().clone(), field.is_nullable()));
        columns.push(batch.column(place).clone());
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// A batch with one more column at its end.
pub(crate) fn with_column(
    batch: &RecordBatch,
    name: &str,
    column: ArrayRef,
) -> Result<RecordBatch> {
    let mut fields: Vec<FieldRef> = batch.schema().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(name, column.data_type().clone(), true)));
    let mut columns = batch.columns().to_vec();
    columns.push(column);
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// A schema in which the fields of `value` stand as columns: behind the other columns in CSV, and where they can give way
/// in a table.
pub(super) struct Flat {
    pub(super) fields: Vec<FieldRef>,
    /// The columns that `value` gave.
    pub(super) from_value: std::ops::Range<usize>,
    place: Option<usize>,
}

impl Flat {
    pub(super) fn new(schema: &SchemaRef) -> Self {
        let place = schema.fields().iter().position(|field| {
            field.name() == VALUE && matches!(field.data_type(), DataType::Struct(_))
        });
        let mut fields: Vec<FieldRef> = Vec::new();
        let mut value_fields: Vec<FieldRef> = Vec::new();
        for (at, field) in schema.fields().iter().enumerate() {
            match field.data_type() {
                DataType::Struct(inner) if Some(at) == place => {
                    value_fields.extend(inner.iter().cloned())
                }
                _ => fields.push(field.clone()),
            }
        }
        let start = fields.len();
        // As in SQL: a field that is named like one of the leading columns is told apart.
        let taken: Vec<String> = fields.iter().map(|field| field.name().to_lowercase()).collect();
        fields.extend(value_fields.into_iter().map(|field| {
            if taken.contains(&field.name().to_lowercase()) {
                let name = format!("{VALUE}_{}", field.name());
                Arc::new(field.as_ref().clone().with_name(name))
            } else {
                field
            }
        }));
        let from_value = start..fields.len();
        Self { fields, from_value, place }
    }

    /// The columns of a batch in the order of [`Self::fields`].
    pub(super) fn columns(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.fields.len());
        let mut value = None;
        for (at, column) in batch.columns().iter().enumerate() {
            if Some(at) == self.place {
                value = Some(column.as_struct().clone());
            } else {
                columns.push(column.clone());
            }
        }
        if let Some(value) = value {
            for column in value.columns() {
                columns.push(masked(column, &value)?);
            }
        }
        if columns.len() != self.fields.len() {
            return Err(Error::internal("rows of another schema").into());
        }
        Ok(columns)
    }
}

/// A field of a struct, null where the struct is.
fn masked(column: &ArrayRef, parent: &StructArray) -> Result<ArrayRef> {
    if parent.null_count() == 0 {
        return Ok(column.clone());
    }
    Ok(nullif(column, &not(&is_not_null(parent)?)?)?)
}
