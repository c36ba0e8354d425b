//! One sorted input of a merge as far as it has been read: the loaded batch, and the place in it.

use std::cmp::Ordering;

use alluvium_log::{Error, Result};

use super::batch::{KeyedBatch, first_word};
use super::ranking::Ranking;

/// What is known of the rows of an input before any of them is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Standing {
    /// Nothing but that they are sorted.
    #[default]
    Any,
    /// Each key comes once.
    Unique,
    /// Each key comes once, and loses against any other input's row of it.
    Beaten,
}

/// The place of a merge in one of its inputs.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// The loaded batch, by its number among the batches of the merge.
    pub(super) batch: usize,
    /// The rows that won within the batch; `None` if its keys are unique and so every row does.
    selection: Option<Vec<u32>>,
    pos: usize,
    len: usize,
    /// The part of the key of the head that is compared first; see [`KeyedBatch::word`].
    pub(super) word: u64,
    /// Whether the input has ended.
    pub(super) done: bool,
    /// The last key of the batch before, which the next one must not fall behind.
    last_key: Option<Vec<u8>>,
    standing: Standing,
}

impl Cursor {
    pub(super) fn new(standing: Standing) -> Self {
        Self { standing, ..Self::default() }
    }

    /// Whether the input is known to hold each key once.
    pub(super) fn is_unique(&self) -> bool {
        self.standing != Standing::Any
    }

    /// Whether the input's rows lose against those of any other.
    pub(super) fn is_beaten(&self) -> bool {
        self.standing == Standing::Beaten
    }

    /// Whether the loaded batch has been consumed, so that the next one must be loaded.
    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.pos == self.len
    }

    /// The row of the batch at the head. Asked only while the batch is not spent.
    #[inline]
    pub(super) fn head(&self) -> usize {
        self.row_at(self.pos)
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    /// The rows that won within the batch, or `None` if all did.
    pub(super) fn selection(&self) -> Option<&[u32]> {
        self.selection.as_deref()
    }

    #[inline]
    pub(super) fn row_at(&self, pos: usize) -> usize {
        match &self.selection {
            None => pos,
            Some(rows) => rows[pos] as usize,
        }
    }

    pub(super) fn last_row(&self) -> usize {
        self.row_at(self.len.saturating_sub(1))
    }

    #[inline]
    pub(super) fn advance_to(&mut self, pos: usize) {
        self.pos = pos;
    }

    /// Leaves the batch, whose last key stays behind for checking the next.
    pub(super) fn leave(&mut self, batch: &KeyedBatch) {
        if let Some(last) = batch.rows().checked_sub(1) {
            let key = self.last_key.get_or_insert_default();
            key.clear();
            key.extend_from_slice(batch.key(last));
        }
        (self.selection, self.pos, self.len) = (None, 0, 0);
    }

    /// Ends the input: this cursor comes after all others from now on.
    pub(super) fn end(&mut self) {
        self.done = true;
        self.word = u64::MAX;
    }

    /// Takes a batch of at least one row; refuses it if it is not sorted or falls behind the one before.
    pub(super) fn enter(&mut self, number: usize, batch: &KeyedBatch, by: &Ranking) -> Result<()> {
        if let Some(last) = &self.last_key
            && (batch.key(0), !self.is_unique()) < (last.as_slice(), true)
        {
            return Err(out_of_order(last, batch.key(0)));
        }
        self.selection = if self.is_unique() { None } else { reduce(batch, by)? };
        self.batch = number;
        self.pos = 0;
        self.len = self.selection.as_ref().map_or(batch.rows(), Vec::len);
        Ok(())
    }

    /// The end of the loaded batch.
    pub(super) fn run_end_of_batch(&self) -> usize {
        self.len
    }

    /// The first place whose key is not less than `bound`; both keys share their first `skip` bytes.
    pub(super) fn run_end(&self, batch: &KeyedBatch, bound: &[u8], skip: usize) -> usize {
        let bound = bound.get(skip..).unwrap_or_default();
        let bound_word = first_word(bound);
        let is_below = |pos: usize| {
            let row = self.row_at(pos);
            match batch.word(row, skip).cmp(&bound_word) {
                Ordering::Less => true,
                Ordering::Greater => false,
                Ordering::Equal => batch.key(row).get(skip..).unwrap_or_default() < bound,
            }
        };
        // The usual case of a large input with small overlays: nothing else falls into this batch.
        if is_below(self.len - 1) {
            return self.len;
        }
        let (mut low, mut stride) = (self.pos, 1);
        while low + stride <= self.len && is_below(low + stride - 1) {
            low += stride;
            stride *= 2;
        }
        let mut high = (low + stride - 1).min(self.len);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_below(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// The winner of each run of equal keys of a sorted batch, or `None` if all keys differ.
fn reduce(batch: &KeyedBatch, by: &Ranking) -> Result<Option<Vec<u32>>> {
    let order = |row: usize| batch.key(row - 1).cmp(batch.key(row));
    let rows = batch.rows();
    let unique = (1..rows).find(|row| order(*row) != Ordering::Less).unwrap_or(rows);
    if unique == rows {
        return Ok(None);
    }
    let mut winners = Vec::with_capacity(rows);
    winners.extend((0..unique).map(|row| row as u32));
    for row in unique..rows {
        match (order(row), winners.last_mut()) {
            (Ordering::Greater, _) => {
                return Err(out_of_order(batch.key(row - 1), batch.key(row)));
            }
            (Ordering::Equal, Some(best)) => {
                if batch.beats(row, batch, *best as usize, by) {
                    *best = row as u32;
                }
            }
            _ => winners.push(row as u32),
        }
    }
    Ok(Some(winners))
}

fn out_of_order(before: &[u8], after: &[u8]) -> Error {
    Error::corrupt(format!(
        "rows that should be sorted by key are not: {} comes after {}",
        shown(after),
        shown(before)
    ))
}

fn shown(key: &[u8]) -> String {
    const SHOWN_CHARS: usize = 80;
    let text = String::from_utf8_lossy(key);
    let mut short: String = text.chars().take(SHOWN_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}
