//! One batch of the fold schema with the columns that decide at hand: keys by bytes, and ranks.

use std::cmp::Ordering;
use std::sync::Arc;

use alluvium_log::{
    DELETE, Error, FOLD_COLUMNS, Rank, Result, STATE_VALUE, fold_schema, holds_only_upserts,
};
use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{Int32Type, Int64Type, SchemaRef, TimestampMicrosecondType};
use arrow::record_batch::RecordBatch;

use super::ranking::Ranking;

/// The place of the operation among the columns of a fold.
pub(super) const OPERATION: usize = 3;

/// A batch whose schema has been checked, for comparing its rows without looking at Arrow again.
#[derive(Debug, Clone)]
pub(super) struct KeyedBatch {
    batch: RecordBatch,
    keys: StringArray,
    versions: ScalarBuffer<i64>,
    event_times: ScalarBuffer<i64>,
    op_types: StringArray,
    only_upserts: bool,
    commits: ScalarBuffer<i64>,
    append_seqs: ScalarBuffer<i32>,
    /// Its rows lose against those of any batch that isn't.
    is_beaten: bool,
}

/// Refuses a schema that does not begin with the columns that decide.
pub(super) fn check_schema(schema: &SchemaRef) -> Result<()> {
    let payload = schema.fields().get(FOLD_COLUMNS..).unwrap_or_default();
    let expected = fold_schema(payload);
    let same = schema.fields().len() == expected.fields().len()
        && schema.fields().iter().zip(expected.fields()).all(|(field, expected)| {
            field.name() == expected.name() && field.data_type() == expected.data_type()
        });
    if same {
        return Ok(());
    }
    Err(Error::internal(format!(
        "a fold was asked for over columns that are not its own: {schema}"
    )))
}

impl KeyedBatch {
    /// Takes a batch that must have the columns of `schema`, which [`check_schema`] has accepted.
    pub(super) fn try_new(batch: RecordBatch, schema: &SchemaRef) -> Result<Self> {
        let batch = conform(batch, schema)?;
        let column = |index: usize| batch.column(index).as_ref();
        if let Some(index) = (0..FOLD_COLUMNS).find(|index| column(*index).null_count() > 0) {
            let name = schema.field(index).name();
            return Err(Error::corrupt(format!("a row has no {name}, which is never null")));
        }
        Ok(Self {
            keys: column(0).as_string::<i32>().clone(),
            versions: column(1).as_primitive::<Int64Type>().values().clone(),
            event_times: column(2).as_primitive::<TimestampMicrosecondType>().values().clone(),
            op_types: column(OPERATION).as_string::<i32>().clone(),
            only_upserts: holds_only_upserts(column(OPERATION)),
            commits: column(4).as_primitive::<Int64Type>().values().clone(),
            append_seqs: column(5).as_primitive::<Int32Type>().values().clone(),
            is_beaten: false,
            batch,
        })
    }

    /// The same, of an input whose rows lose against those of any other.
    pub(super) fn beaten(self, is_beaten: bool) -> Self {
        Self { is_beaten, ..self }
    }

    pub(super) fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    pub(super) fn into_batch(self) -> RecordBatch {
        self.batch
    }

    /// Whether the batch is known to hold no DELETE.
    pub(super) fn has_only_upserts(&self) -> bool {
        self.only_upserts
    }

    pub(super) fn rows(&self) -> usize {
        self.versions.len()
    }

    #[inline]
    pub(super) fn key(&self, row: usize) -> &[u8] {
        let offsets = self.keys.value_offsets();
        &self.keys.value_data()[offsets[row] as usize..offsets[row + 1] as usize]
    }

    /// The eight bytes of the key after the first `skip`, as a number that compares as they do.
    ///
    /// A key that ends earlier is filled up with zeros, so that equal words say nothing: compare the keys.
    #[inline]
    pub(super) fn word(&self, row: usize, skip: usize) -> u64 {
        let offsets = self.keys.value_offsets();
        let end = offsets[row + 1] as usize;
        let start = (offsets[row] as usize + skip).min(end);
        let data = self.keys.value_data();
        let Some(bytes) = data.get(start..).and_then(|rest| rest.first_chunk::<8>()) else {
            return padded_word(&data[start..end]);
        };
        let word = u64::from_be_bytes(*bytes);
        match end - start {
            0 => 0,
            // What lies behind the end is of the next key.
            length @ 1..8 => word & !(u64::MAX >> (8 * length)),
            _ => word,
        }
    }

    pub(super) fn rank(&self, row: usize) -> Rank {
        Rank {
            version: self.versions[row],
            event_time: self.event_times[row],
            is_delete: !self.only_upserts && self.op_types.value(row) == DELETE,
            commit: self.commits[row],
            append_seq: self.append_seqs[row],
        }
    }

    /// Whether a row of this batch is greater than a row of another, both of one key.
    pub(super) fn beats(
        &self,
        row: usize,
        other: &Self,
        other_row: usize,
        ranking: &Ranking,
    ) -> bool {
        if self.is_beaten != other.is_beaten {
            return other.is_beaten;
        }
        let (rank, other_rank) = (self.rank(row), other.rank(other_row));
        if (rank.version, rank.event_time) == (other_rank.version, other_rank.event_time)
            && (rank.is_delete != other_rank.is_delete || self.value(row) != other.value(other_row))
        {
            ranking.count_tie();
        }
        rank.compare(&other_rank, ranking.order_by()) == Ordering::Greater
    }

    /// The value of a row, unless it is folded without its value.
    fn value(&self, row: usize) -> Option<ArrayRef> {
        let schema = self.batch.schema_ref();
        let follows = schema.fields().get(FOLD_COLUMNS).filter(|field| field.name() == STATE_VALUE);
        follows
            .and_then(|_| self.batch.columns().get(FOLD_COLUMNS))
            .map(|column| column.slice(row, 1))
    }
}

/// The first eight bytes of a text as [`KeyedBatch::word`] gives them of a key.
pub(super) fn first_word(bytes: &[u8]) -> u64 {
    bytes.first_chunk::<8>().map_or_else(|| padded_word(bytes), |word| u64::from_be_bytes(*word))
}

fn padded_word(bytes: &[u8]) -> u64 {
    let mut padded = [0; 8];
    padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(padded)
}

/// The length of the beginning that two keys share, at most `limit`.
pub(super) fn shared_length(one: &[u8], other: &[u8], limit: usize) -> usize {
    one.iter().zip(other).take(limit).take_while(|(one, other)| one == other).count()
}

/// Gives a batch the schema that all batches of the fold have, metadata and all.
fn conform(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let own = batch.schema();
    if Arc::ptr_eq(&own, schema) {
        return Ok(batch);
    }
    let same_types =
        own.fields().len() == schema.fields().len()
            && own.fields().iter().zip(schema.fields()).all(|(own, field)| {
                own.name() == field.name() && own.data_type() == field.data_type()
            });
    if !same_types {
        return Err(Error::internal(format!(
            "a fold over ({schema}) was given a batch of ({own})"
        )));
    }
    RecordBatch::try_new(schema.clone(), batch.columns().to_vec()).map_err(|error| {
        Error::corrupt("a batch contradicts the schema of its fold").with_source(error)
    })
}
