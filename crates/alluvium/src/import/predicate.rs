//! The expression that tells which records are deletes.

use std::sync::Arc;

use alluvium_log::{Error, Result};
use alluvium_query::sql_error;
use arrow::array::{ArrayRef, AsArray, BooleanArray, NullArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::DFSchema;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::format::ChangeChunk;

/// A SQL expression over the columns of records.
pub(super) struct DeletePredicate {
    text: String,
    context: SessionContext,
    compiled: Option<(SchemaRef, Arc<dyn PhysicalExpr>)>,
}

impl DeletePredicate {
    pub(super) fn new(text: &str) -> Self {
        let mut config = SessionConfig::new();
        // Names of columns are the user's: they keep their case without quotes.
        config.options_mut().sql_parser.enable_ident_normalization = false;
        Self {
            text: text.to_owned(),
            context: SessionContext::new_with_config(config),
            compiled: None,
        }
    }

    /// Makes DELETEs of the changes whose record it is true of; null is not true.
    ///
    /// # Errors
    /// The expression can't be understood or evaluated; or a row is bad, and bad rows stop the read.
    pub(super) fn apply(&mut self, chunk: ChangeChunk) -> Result<ChangeChunk> {
        let records = chunk
            .records
            .as_ref()
            .ok_or_else(|| Error::internal("a predicate for deletes without records"))?;
        let records = with_untyped(records, &chunk.left_out)?;
        let mask = self.mask(&records)?;
        chunk.with_deletes(&mask)
    }

    fn mask(&mut self, records: &RecordBatch) -> Result<BooleanArray> {
        let expression = self.compile(&records.schema())?;
        let column = expression
            .evaluate(records)
            .and_then(|value| value.into_array(records.num_rows()))
            .map_err(|error| self.named(sql_error(error)))?;
        Ok(match column.data_type() {
            DataType::Boolean => column.as_boolean().clone(),
            _ => BooleanArray::from(vec![false; records.num_rows()]),
        })
    }

    fn compile(&mut self, schema: &SchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
        if let Some((known, compiled)) = &self.compiled
            && known == schema
        {
            return Ok(Arc::clone(compiled));
        }
        let compiled = self.compile_anew(schema).map_err(|error| self.named(error))?;
        self.compiled = Some((Arc::clone(schema), Arc::clone(&compiled)));
        Ok(compiled)
    }

    fn compile_anew(&self, schema: &SchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
        let columns = DFSchema::try_from(schema.as_ref().clone()).map_err(sql_error)?;
        let parsed = self.context.parse_sql_expr(&self.text, &columns).map_err(sql_error)?;
        let compiled = self.context.create_physical_expr(parsed, &columns).map_err(sql_error)?;
        match compiled.data_type(schema).map_err(sql_error)? {
            DataType::Boolean | DataType::Null => Ok(compiled),
            other => Err(Error::invalid(format!(
                "it is of type {other}: write a condition, which is true or false"
            ))),
        }
    }

    fn named(&self, error: Error) -> Error {
        error.context(format!("the expression {:?} that tells deletes", self.text))
    }
}

/// The records with the columns that had no value yet to tell their type, as nulls.
fn with_untyped(records: &RecordBatch, left_out: &[String]) -> Result<RecordBatch> {
    let plain = |name: &&String| !name.contains(['.', '"', '[']);
    let missing = |name: &&String| records.column_by_name(name).is_none();
    let untyped: Vec<&String> = left_out.iter().filter(plain).filter(missing).collect();
    if untyped.is_empty() {
        return Ok(records.clone());
    }
    let schema = records.schema();
    let mut fields: Vec<Arc<Field>> = schema.fields().iter().cloned().collect();
    let mut columns = records.columns().to_vec();
    for name in untyped {
        fields.push(Arc::new(Field::new(name, DataType::Null, true)));
        columns.push(Arc::new(NullArray::new(records.num_rows())) as ArrayRef);
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}
