//! The rows that a merge has decided on, until they are many enough to be copied into a batch.

use std::collections::VecDeque;

use alluvium_log::Result;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::Bounds;
use super::batch::KeyedBatch;
use super::bytes::{Weights, batch_bytes};
use super::copy::{Segment, copy_segments};
use super::patch::{Patch, patch_rows};

/// The batches that rows of a merge still lie in: those under a cursor, and those a cursor has left.
#[derive(Debug)]
pub(super) struct Arena {
    loaded: Vec<Loaded>,
    free: Vec<usize>,
    left: Vec<usize>,
    left_bytes: usize,
    negligible_bytes: usize,
    vacant: Loaded,
}

#[derive(Debug, Clone)]
struct Loaded {
    batch: KeyedBatch,
    weights: Weights,
    bytes: usize,
}

impl Arena {
    /// For a merge of so many inputs into batches of at most `max_bytes`.
    pub(super) fn new(schema: &SchemaRef, inputs: usize, max_bytes: usize) -> Result<Self> {
        let empty = KeyedBatch::try_new(RecordBatch::new_empty(schema.clone()), schema)?;
        let vacant = Loaded { batch: empty, weights: Weights::Mean(0), bytes: 0 };
        Ok(Self {
            loaded: Vec::new(),
            free: Vec::new(),
            left: Vec::new(),
            left_bytes: 0,
            negligible_bytes: max_bytes / (inputs + 1),
            vacant,
        })
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> &KeyedBatch {
        &self.loaded[number].batch
    }

    pub(super) fn insert(&mut self, batch: KeyedBatch) -> usize {
        let bytes = batch_bytes(batch.batch());
        let weights = Weights::of(batch.batch(), bytes, self.negligible_bytes);
        let loaded = Loaded { batch, weights, bytes };
        if let Some(number) = self.free.pop() {
            self.loaded[number] = loaded;
            return number;
        }
        self.loaded.push(loaded);
        self.loaded.len() - 1
    }

    /// A cursor has left this batch: it stays only until the rows taken from it have been copied.
    pub(super) fn leave(&mut self, number: usize) {
        self.left.push(number);
        self.left_bytes += self.loaded[number].bytes;
    }

    /// A batch for its last use: itself where no cursor is in it any more, else a second hold on it.
    fn take_if_left(&mut self, number: usize, keep: Option<usize>) -> KeyedBatch {
        let loaded = &mut self.loaded[number];
        if keep != Some(number) && self.left.contains(&number) {
            std::mem::replace(loaded, self.vacant.clone()).batch
        } else {
            loaded.batch.clone()
        }
    }

    /// What the batches that no cursor is in any more keep in memory.
    pub(super) fn left_bytes(&self) -> usize {
        self.left_bytes
    }

    /// Drops the batches that cursors have left, but the one to keep.
    fn release(&mut self, keep: Option<usize>) {
        let left = std::mem::take(&mut self.left);
        for number in left {
            if keep == Some(number) {
                self.left.push(number);
            } else {
                self.loaded[number] = self.vacant.clone();
                self.free.push(number);
            }
        }
        self.left_bytes = 0;
    }
}

/// A row by its batch in the arena.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) batch: usize,
    pub(super) row: usize,
}

/// Gathers rows, and makes batches of them.
#[derive(Debug)]
pub(super) struct Output {
    schema: SchemaRef,
    bounds: Bounds,
    /// The places of columns that nobody looks at.
    unread: Vec<usize>,
    segments: Vec<Segment>,
    rows: usize,
    bytes: usize,
    ready: VecDeque<RecordBatch>,
}

impl Output {
    pub(super) fn new(schema: SchemaRef, bounds: Bounds) -> Self {
        let (unread, segments, ready) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { schema, bounds, unread, segments, rows: 0, bytes: 0, ready }
    }

    /// Leaves out columns that nobody looks at.
    pub(super) fn leave_out(&mut self, unread: Vec<usize>) {
        self.unread = unread;
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<RecordBatch> {
        self.ready.pop_front()
    }

    #[inline]
    pub(super) fn push(&mut self, arena: &mut Arena, place: Place) -> Result<()> {
        let weight = arena.loaded[place.batch].weights.of_row(place.row);
        if self.rows > 0 && self.bytes + weight > self.bounds.bytes {
            self.flush(arena, Some(place.batch))?;
        }
        self.append(place.batch, place.row, place.row + 1, weight);
        if self.rows >= self.bounds.rows {
            self.flush(arena, None)?;
        }
        Ok(())
    }

    /// Pushes the rows from `start` to `end` of a batch that a cursor is in.
    pub(super) fn push_range(
        &mut self,
        arena: &mut Arena,
        batch: usize,
        mut start: usize,
        end: usize,
    ) -> Result<()> {
        if (end - start) * 2 >= self.bounds.rows {
            // A long range goes out as a slice of its batch, so it must not share a batch with what came before.
            let joined = self.segments.pop_if(|last| last.batch == batch && last.end == start);
            if let Some(joined) = joined {
                self.rows -= joined.end - joined.start;
                self.bytes -= arena.loaded[batch].weights.of_rows(joined.start, joined.end);
                start = joined.start;
            }
            self.flush(arena, None)?;
        }
        while start < end {
            let weights = &arena.loaded[batch].weights;
            let room = (end - start).min(self.bounds.rows - self.rows);
            let free = self.bounds.bytes.saturating_sub(self.bytes);
            let mut count = weights.fitting(start, start + room, free);
            if count == 0 && self.rows == 0 {
                // A row wider than the bound is a batch of its own.
                count = 1;
            }
            let weight = weights.of_rows(start, start + count);
            self.append(batch, start, start + count, weight);
            start += count;
            if start < end || self.rows >= self.bounds.rows {
                self.flush(arena, None)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn append(&mut self, batch: usize, start: usize, end: usize, weight: usize) {
        match self.segments.last_mut() {
            Some(last) if last.batch == batch && last.end == start => last.end = end,
            _ if start < end => self.segments.push(Segment { batch, start, end }),
            _ => {}
        }
        self.rows += end - start;
        self.bytes += weight;
    }

    /// Makes a batch of the rows gathered, and drops the batches that are not needed for it any more.
    pub(super) fn flush(&mut self, arena: &mut Arena, keep: Option<usize>) -> Result<()> {
        if !self.segments.is_empty() {
            let batch = self.build(arena, keep)?;
            self.ready.push_back(batch);
            self.segments.clear();
            (self.rows, self.bytes) = (0, 0);
        }
        arena.release(keep);
        Ok(())
    }

    /// Whether what was gathered is a large part of this batch, with little of others.
    pub(super) fn is_mostly_of(&self, batch: usize, arena: &Arena) -> bool {
        let own = || self.segments.iter().filter(|segment| segment.batch == batch);
        arena.get(batch).rows() * 2 >= self.bounds.rows
            && own().map(Segment::rows).sum::<usize>() * 4 >= self.rows * 3
    }

    fn build(&self, arena: &mut Arena, keep: Option<usize>) -> Result<RecordBatch> {
        if let [only] = self.segments.as_slice() {
            // A slice keeps its whole batch in memory, so a copy is better for a small part of one.
            let of = arena.get(only.batch);
            if only.rows() * 2 >= of.rows().min(self.bounds.rows) {
                return Ok(of.batch().slice(only.start, only.rows()));
            }
        }
        let patched = self.patched(arena);
        const UNUSED: usize = usize::MAX;
        let mut numbers = vec![UNUSED; arena.loaded.len()];
        let mut used = Vec::new();
        let mut segments = self.segments.clone();
        for segment in &mut segments {
            let number = &mut numbers[segment.batch];
            if *number == UNUSED && patched.is_none_or(|(base, _)| base != segment.batch) {
                *number = used.len();
                used.push(segment.batch);
            }
            segment.batch = *number;
        }
        let Some((base, start)) = patched else {
            let sources: Vec<_> = used.iter().map(|number| arena.get(*number)).collect();
            return copy_segments(&self.schema, &sources, &segments, &self.unread);
        };
        for segment in segments.iter_mut().filter(|segment| segment.batch == UNUSED) {
            segment.batch = used.len();
        }
        let base = arena.take_if_left(base, keep);
        let others: Vec<_> = used.iter().map(|number| arena.get(*number)).collect();
        let patch = Patch { start, rows: self.rows, segments: &segments };
        patch_rows(&self.schema, base, &others, &patch, &self.unread)
    }

    /// The batch whose rows stay where they are, but for a few that rows with the same keys take the place of; and its first row
    /// that goes out.
    fn patched(&self, arena: &Arena) -> Option<(usize, usize)> {
        let base = self.segments.iter().max_by_key(|segment| segment.rows())?.batch;
        let (mut place, mut kept, mut first) = (0, 0, None);
        for segment in &self.segments {
            if segment.batch == base {
                let start = segment.start.checked_sub(place)?;
                if *first.get_or_insert(start) != start {
                    return None;
                }
                kept += segment.rows();
            }
            place += segment.rows();
        }
        let (start, batch) = (first?, arena.get(base));
        if kept * 4 < self.rows * 3 || start + self.rows > batch.rows() {
            return None;
        }
        let mut place = start;
        for segment in &self.segments {
            if segment.batch != base {
                let other = arena.get(segment.batch);
                let has_same_key =
                    |row: usize| other.key(segment.start + row) == batch.key(place + row);
                if !(0..segment.rows()).all(has_same_key) {
                    return None;
                }
            }
            place += segment.rows();
        }
        Some((base, start))
    }
}
