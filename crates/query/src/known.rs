//! The newest row of a key, told from memory alone: tail, footers, bloom filters and decoded pages.
//!
//! It is what [`Reader::rows_of_keys`] finds as of the same basis, without tasks, locks that wait, or copies. Whatever is not in memory
//! is read by that one, and is there the next time.

use std::sync::Arc;

use alluvium_log::{KnownRow, Result, StateDefinition, fold_schema};
use alluvium_materializer::{rank, whole_value};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::basis::Basis;
use crate::reader::Reader;

/// A row of a batch in fold shape.
type Row<'a> = (&'a RecordBatch, usize);

/// The shape of a state's rows, made once for each definition.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    definition: Arc<StateDefinition>,
    schema: SchemaRef,
}

impl Reader {
    /// Gives `take` the newest row of a key as of a basis, a DELETE too, or none where the key has no row; `None` if something
    /// would have to be read to know it, or another read is just reading the tail.
    pub fn known_row<T>(
        &self,
        basis: &Basis,
        key: &str,
        take: impl FnOnce(Option<Row<'_>>) -> Result<T>,
    ) -> Result<Option<T>> {
        let schema = self.schema_of(&basis.definition);
        let (from, to) = (basis.snapshot.log_commit(), basis.commit());
        let tail = self.inner.tail.try_read();
        let in_tail = match tail.as_ref().map(|slot| slot.as_ref()) {
            _ if from == to => None,
            Ok(Some(tail)) if tail.is_of(from, to, &schema) => tail.row_of(key),
            _ => return Ok(None),
        };
        let mut found: Vec<(Arc<RecordBatch>, usize)> = Vec::new();
        let layout = self.layout(&basis.snapshot);
        for file in layout.files_of(key) {
            match file.known_row(key, &schema, self.footers(), self.pages()) {
                KnownRow::Absent => {}
                KnownRow::Unread => return Ok(None),
                KnownRow::At(rows, row) => found.push((rows, row)),
            }
        }
        let mut best: Option<Row<'_>> = in_tail;
        for (rows, row) in found.iter().map(|(rows, row)| (rows.as_ref(), *row)) {
            let wins = match best {
                None => true,
                Some((best, place)) => {
                    rank(rows, row)?.compare(&rank(best, place)?, basis.definition.order_by).is_gt()
                }
            };
            if wins {
                best = Some((rows, row));
            }
        }
        take(best).map(Some)
    }

    /// The columns of a state's rows with their whole values: one and the same schema for each definition, so that comparing
    /// two of them is comparing two addresses.
    pub(crate) fn schema_of(&self, definition: &Arc<StateDefinition>) -> SchemaRef {
        if let Some(shape) = self.inner.shape.read().as_ref()
            && Arc::ptr_eq(&shape.definition, definition)
        {
            return shape.schema.clone();
        }
        let schema = fold_schema(&whole_value(definition));
        let mut known = self.inner.shape.write();
        let same = known.as_ref().map(|shape| &shape.schema).filter(|known| **known == schema);
        let schema = same.cloned().unwrap_or(schema);
        *known = Some(Shape { definition: definition.clone(), schema: schema.clone() });
        schema
    }
}
