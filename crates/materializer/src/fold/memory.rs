//! The fold of unsorted batches in memory: the best row of each key by hash, then only the winners sorted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hasher, RandomState};

use alluvium_log::{Error, ErrorKind, OrderBy, Result};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::Bounds;
use super::batch::{KeyedBatch, check_schema, shared_length};
use super::bytes::{Weights, batch_bytes};

/// The rows of a batch that [`fold_batches`] makes.
const BATCH_ROWS: usize = 8192;

/// What the index of [`fold_batches`] takes for a row, at most: a slot of the table, twice while it grows,
/// and the winner's place.
pub(super) const INDEX_BYTES_PER_ROW: usize = 64;

/// Folds unsorted batches of the columns `schema` to the winner of each key, ascending by key.
///
/// The result is in batches of at most 8192 rows and about 64 MiB, and shares no memory with the input.
pub fn fold_batches(
    order_by: OrderBy,
    schema: &SchemaRef,
    batches: &[RecordBatch],
) -> Result<Vec<RecordBatch>> {
    fold_batches_bounded(order_by, schema, batches, Bounds::of_rows(BATCH_ROWS))
}

pub(super) fn fold_batches_bounded(
    order_by: OrderBy,
    schema: &SchemaRef,
    batches: &[RecordBatch],
    bounds: Bounds,
) -> Result<Vec<RecordBatch>> {
    check_schema(schema)?;
    let batches: Vec<KeyedBatch> = batches
        .iter()
        .filter(|batch| batch.num_rows() > 0)
        .map(|batch| KeyedBatch::try_new(batch.clone(), schema))
        .collect::<Result<_>>()?;
    let rows: usize = batches.iter().map(KeyedBatch::rows).sum();
    if u32::try_from(rows).is_err() {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            format!("{rows} rows are too many for one fold in memory: fold them with a budget"),
        ));
    }
    let mut winners = find_winners(&batches, order_by);
    sort_by_key(&mut winners, &batches);
    gather(&winners, &batches, bounds)
}

/// A row that no other row of its key has beaten. The numbers fit, since all rows together are fewer.
#[derive(Debug, Clone, Copy)]
struct Winner {
    /// The part of the key that is compared first.
    word: u64,
    batch: u32,
    row: u32,
}

fn find_winners(batches: &[KeyedBatch], order_by: OrderBy) -> Vec<Winner> {
    let mut index: HashMap<&[u8], u32, KeyHashes> =
        HashMap::with_hasher(KeyHashes { seed: RandomState::new().hash_one(0) });
    let mut winners: Vec<Winner> = Vec::new();
    for (number, batch) in batches.iter().enumerate() {
        for row in 0..batch.rows() {
            let contender = Winner { word: 0, batch: number as u32, row: row as u32 };
            match index.entry(batch.key(row)) {
                Entry::Vacant(entry) => {
                    entry.insert(winners.len() as u32);
                    winners.push(contender);
                }
                Entry::Occupied(entry) => {
                    let best = &mut winners[*entry.get() as usize];
                    if batch.beats(row, &batches[best.batch as usize], best.row as usize, order_by)
                    {
                        *best = contender;
                    }
                }
            }
        }
    }
    winners
}

fn sort_by_key(winners: &mut [Winner], batches: &[KeyedBatch]) {
    let key = |winner: &Winner| batches[winner.batch as usize].key(winner.row as usize);
    let Some(sample) = winners.first().map(key) else {
        return;
    };
    // Keys of one kind often begin alike; the word begins where they first differ.
    let skip = winners
        .iter()
        .fold(sample.len(), |shared, winner| shared_length(sample, key(winner), shared));
    for winner in winners.iter_mut() {
        winner.word = batches[winner.batch as usize].word(winner.row as usize, skip);
    }
    winners.sort_unstable_by(|a, b| a.word.cmp(&b.word).then_with(|| key(a).cmp(key(b))));
}

fn gather(winners: &[Winner], batches: &[KeyedBatch], bounds: Bounds) -> Result<Vec<RecordBatch>> {
    let negligible = bounds.bytes / (batches.len() + 1);
    let weights: Vec<Weights> = batches
        .iter()
        .map(|batch| Weights::of(batch.batch(), batch_bytes(batch.batch()), negligible))
        .collect();
    let sources: Vec<&RecordBatch> = batches.iter().map(KeyedBatch::batch).collect();
    let mut folded = Vec::new();
    let (mut indices, mut bytes) = (Vec::new(), 0);
    for winner in winners {
        let (batch, row) = (winner.batch as usize, winner.row as usize);
        let weight = weights[batch].of_row(row);
        let is_full = indices.len() == bounds.rows || bytes + weight > bounds.bytes;
        if is_full && !indices.is_empty() {
            folded.push(interleave_record_batch(&sources, &indices)?);
            indices.clear();
            bytes = 0;
        }
        indices.push((batch, row));
        bytes += weight;
    }
    if !indices.is_empty() {
        folded.push(interleave_record_batch(&sources, &indices)?);
    }
    Ok(folded)
}

/// Makes [`KeyHasher`]s. The seed is random, so that nobody can choose keys that collide.
struct KeyHashes {
    seed: u64,
}

impl BuildHasher for KeyHashes {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher { state: self.seed }
    }
}

/// A hash by folded multiplication: short keys take a few cycles, where the standard one takes many.
struct KeyHasher {
    state: u64,
}

impl KeyHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.state ^ word) * u128::from(ODD ^ self.state.rotate_left(32));
        self.state = (product as u64) ^ ((product >> 64) as u64) ^ word.rotate_left(23);
    }
}

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_le_bytes(last));
        }
    }

    #[inline]
    fn write_usize(&mut self, length: usize) {
        self.mix(length as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        let mut last = Self { state: self.state };
        last.mix(0);
        last.state
    }
}
