//! Rows that are the same in everything, once: for files in which another engine has put rows a second time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use alluvium_log::{FOLD_COLUMNS, Rank, Result};
use arrow::array::UInt32Array;
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use futures::{StreamExt, TryStreamExt};

use super::BatchStream;
use super::batch::KeyedBatch;

/// The kept rows that are equal to the last one in key and rank.
#[derive(Default)]
struct Group {
    place: Option<(Vec<u8>, Rank)>,
    /// Each alone in a batch.
    rows: Vec<RecordBatch>,
}

/// Of rows sorted by key and rank, each one once; counts those that are left out.
pub(crate) fn distinct(
    rows: BatchStream,
    schema: SchemaRef,
    left_out: Arc<AtomicU64>,
) -> BatchStream {
    let mut group = Group::default();
    rows.and_then(move |batch| {
        let kept = group.take(batch, &schema, &left_out);
        std::future::ready(kept)
    })
    .boxed()
}

impl Group {
    fn take(
        &mut self,
        batch: RecordBatch,
        schema: &SchemaRef,
        left_out: &AtomicU64,
    ) -> Result<RecordBatch> {
        let rows = KeyedBatch::try_new(batch, schema)?;
        let mut kept = Vec::with_capacity(rows.rows());
        for row in 0..rows.rows() {
            if self.keeps(&rows, row) {
                kept.push(row as u32);
            }
        }
        let lost = rows.rows() - kept.len();
        left_out.fetch_add(lost as u64, Ordering::Relaxed);
        match lost {
            0 => Ok(rows.into_batch()),
            _ => Ok(take_record_batch(rows.batch(), &UInt32Array::from(kept))?),
        }
    }

    fn keeps(&mut self, rows: &KeyedBatch, row: usize) -> bool {
        let (key, rank) = (rows.key(row), rows.rank(row));
        let one = rows.batch().slice(row, 1);
        let is_same = self.place.as_ref().is_some_and(|(known, of)| *of == rank && known == key);
        if !is_same {
            self.place = Some((key.to_vec(), rank));
            self.rows.clear();
        } else if self.rows.iter().any(|other| is_equal(other, &one)) {
            return false;
        }
        self.rows.push(one);
        true
    }
}

/// Whether two rows of one key and rank are the same in what follows: their values, and what brought them.
fn is_equal(row: &RecordBatch, other: &RecordBatch) -> bool {
    row.columns().iter().skip(FOLD_COLUMNS).eq(other.columns().iter().skip(FOLD_COLUMNS))
}
