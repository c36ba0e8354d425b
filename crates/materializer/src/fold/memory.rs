//! The fold of unsorted batches in memory: rows sorted by eight bytes of their keys, ties settled by looking.
//!
//! A hash table over the keys takes three times as long: it looks at a key for each row, far away in memory,
//! where sorting by a word at hand looks only at the keys that may be equal.

use alluvium_log::{Error, ErrorKind, Result};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::Bounds;
use super::batch::{KeyedBatch, check_schema, shared_length};
use super::bytes::{Weights, batch_bytes};
use super::copy::copy_rows;
use super::ranking::Ranking;

/// The rows of a batch that [`fold_batches`] makes.
const BATCH_ROWS: usize = 8192;

/// What folding in memory takes for a row beside the row: its place, once while sorted and once as a winner.
pub(super) const INDEX_BYTES_PER_ROW: usize = 2 * size_of::<Candidate>();

/// Folds unsorted batches of the columns `schema` to the winner of each key, ascending by key.
///
/// The result is in batches of at most 8192 rows and about 64 MiB, and shares no memory with the input.
pub fn fold_batches(
    ranking: impl Into<Ranking>,
    schema: &SchemaRef,
    batches: &[RecordBatch],
) -> Result<Vec<RecordBatch>> {
    fold_batches_bounded(&ranking.into(), schema, batches, Bounds::of_rows(BATCH_ROWS))
}

pub(super) fn fold_batches_bounded(
    ranking: &Ranking,
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
    let mut rows = candidates(&batches)?;
    // Room for all rows at once: to grow would take as much again while it copies.
    let winners = Vec::with_capacity(rows.len());
    let mut contest = Contest { batches: &batches, ranking, winners };
    contest.settle(&mut rows, 0);
    let winners = contest.winners;
    drop(rows);
    gather(schema, &winners, &batches, bounds)
}

/// A row that may win.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// The part of the key that is compared first; see [`KeyedBatch::word`].
    word: u64,
    batch: u32,
    row: u32,
}

fn candidates(batches: &[KeyedBatch]) -> Result<Vec<Candidate>> {
    let count: usize = batches.iter().map(KeyedBatch::rows).sum();
    if u32::try_from(count).is_err() {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            format!("{count} rows are too many for one fold in memory: fold them with a budget"),
        ));
    }
    let mut rows = Vec::with_capacity(count);
    for (number, batch) in batches.iter().enumerate() {
        // The numbers fit, since all rows together are fewer.
        rows.extend((0..batch.rows() as u32).map(|row| Candidate {
            word: 0,
            batch: number as u32,
            row,
        }));
    }
    Ok(rows)
}

/// Finds the winners, ascending by key.
struct Contest<'a> {
    batches: &'a [KeyedBatch],
    ranking: &'a Ranking,
    winners: Vec<Candidate>,
}

/// Fewer rows are sorted by their whole keys at once.
const FEW_ROWS: usize = 64;

/// After so many words of shared beginnings, whole keys are compared.
const MAX_DEPTH: usize = 8;

impl<'a> Contest<'a> {
    fn key(&self, row: &Candidate) -> &'a [u8] {
        self.batches[row.batch as usize].key(row.row as usize)
    }

    /// Settles rows of any keys: by the word after what all their keys share, then by the next such word.
    fn settle(&mut self, rows: &mut [Candidate], depth: usize) {
        let Some(first) = rows.first().map(|first| self.key(first)) else {
            return;
        };
        let mut shared = first.len();
        let mut all_equal = true;
        for row in rows.iter() {
            let key = self.key(row);
            all_equal &= key.len() == first.len();
            if key.get(..shared) != first.get(..shared) {
                shared = shared_length(first, key, shared);
                all_equal = false;
            }
        }
        if all_equal {
            self.settle_one_key(rows);
            return;
        }
        for row in rows.iter_mut() {
            row.word = self.batches[row.batch as usize].word(row.row as usize, shared);
        }
        rows.sort_unstable_by_key(|row| row.word);
        for group in rows.chunk_by_mut(|a, b| a.word == b.word) {
            match group {
                [only] => self.winners.push(*only),
                few if few.len() < FEW_ROWS || depth == MAX_DEPTH => self.settle_few(few),
                many => self.settle(many, depth + 1),
            }
        }
    }

    fn settle_few(&mut self, rows: &mut [Candidate]) {
        let is_one_key = rows.windows(2).all(|pair| self.key(&pair[0]) == self.key(&pair[1]));
        if is_one_key {
            self.settle_one_key(rows);
            return;
        }
        rows.sort_unstable_by(|a, b| self.key(a).cmp(self.key(b)));
        let mut rest: &[Candidate] = rows;
        while let Some(first) = rest.first() {
            let key = self.key(first);
            let end = rest.iter().position(|row| self.key(row) != key).unwrap_or(rest.len());
            let (of_key, others) = rest.split_at(end);
            self.settle_one_key(of_key);
            rest = others;
        }
    }

    fn settle_one_key(&mut self, rows: &[Candidate]) {
        let best = rows.iter().copied().reduce(|best, row| {
            let (batch, best_batch) =
                (&self.batches[row.batch as usize], &self.batches[best.batch as usize]);
            let wins = batch.beats(row.row as usize, best_batch, best.row as usize, self.ranking);
            if wins { row } else { best }
        });
        self.winners.extend(best);
    }
}

fn gather(
    schema: &SchemaRef,
    winners: &[Candidate],
    batches: &[KeyedBatch],
    bounds: Bounds,
) -> Result<Vec<RecordBatch>> {
    let negligible = bounds.bytes / (batches.len() + 1);
    let weights: Vec<Weights> = batches
        .iter()
        .map(|batch| Weights::of(batch.batch(), batch_bytes(batch.batch()), negligible))
        .collect();
    let sources: Vec<&KeyedBatch> = batches.iter().collect();
    let mut folded = Vec::new();
    let (mut indices, mut bytes) = (Vec::new(), 0);
    for winner in winners {
        let (batch, row) = (winner.batch as usize, winner.row as usize);
        let weight = weights[batch].of_row(row);
        let is_full = indices.len() == bounds.rows || bytes + weight > bounds.bytes;
        if is_full && !indices.is_empty() {
            folded.push(copy_rows(schema, &sources, &indices)?);
            indices.clear();
            bytes = 0;
        }
        indices.push((batch, row));
        bytes += weight;
    }
    if !indices.is_empty() {
        folded.push(copy_rows(schema, &sources, &indices)?);
    }
    Ok(folded)
}
