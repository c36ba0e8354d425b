//! The state of a merge between two batches: which row is next, and which input must be read to know it.
//!
//! A tree of losers over the inputs' cursors gives the next key. Where one input is ahead alone for a while,
//! as a base under a few small overlays is, whole ranges are taken at once.

use alluvium_log::Result;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::Bounds;
use super::batch::{KeyedBatch, check_schema, shared_length};
use super::cursor::{Cursor, Standing};
use super::output::{Arena, Output, Place};
use super::ranking::Ranking;
use super::tree::LoserTree;

/// What a merger got to.
pub(super) enum Step {
    /// A batch of winners.
    Emit(RecordBatch),
    /// The next batch of this input is needed to go on.
    Need(usize),
    /// All inputs have ended.
    Done,
}

/// The state of a merge between two batches.
pub(super) struct Merger {
    ranking: Ranking,
    schema: SchemaRef,
    bounds: Bounds,
    arena: Arena,
    cursors: Vec<Cursor>,
    tree: LoserTree,
    output: Output,
    /// The best row so far of the key that the merge is at.
    pending: Option<Place>,
    /// The keys of all loaded batches, from their heads on, begin with the first `skip` bytes of `sample`.
    skip: usize,
    sample: Vec<u8>,
    rows_since_sample: usize,
    /// The input that the last keys came from, and how many.
    streak_of: usize,
    streak: usize,
}

/// After so many keys in a row from one input, its range up to the next other key is looked for.
const STREAK_BEFORE_RUN: usize = 2;

/// A shorter range was not worth the search.
const WORTHWHILE_RUN: usize = 4;

impl Merger {
    pub(super) fn new(ranking: Ranking, schema: SchemaRef, bounds: Bounds) -> Result<Self> {
        check_schema(&schema)?;
        Ok(Self {
            ranking,
            bounds,
            arena: Arena::new(&schema, 0, bounds.bytes)?,
            cursors: Vec::new(),
            tree: LoserTree::new(0, |_, _| false),
            output: Output::new(schema.clone(), bounds),
            schema,
            pending: None,
            skip: 0,
            sample: Vec::new(),
            rows_since_sample: 0,
            streak_of: 0,
            streak: 0,
        })
    }

    /// Columns that nobody looks at may come as zeros or empty texts.
    pub(super) fn leave_out(mut self, names: &[&str]) -> Self {
        let place = |name: &&str| self.schema.index_of(name).ok();
        self.output.leave_out(names.iter().filter_map(place).collect());
        self
    }

    /// Begins with the first batch of each input.
    ///
    /// `standings` tells what is known of each of them.
    pub(super) fn start(
        &mut self,
        firsts: Vec<Option<RecordBatch>>,
        standings: &[Standing],
    ) -> Result<()> {
        self.arena = Arena::new(&self.schema, firsts.len(), self.bounds.bytes)?;
        self.cursors = standings.iter().copied().map(Cursor::new).collect();
        for (input, first) in firsts.into_iter().enumerate() {
            match first {
                Some(batch) => self.load(input, batch)?,
                None => self.cursors[input].end(),
            }
        }
        self.resample();
        let (cursors, arena) = (&self.cursors, &self.arena);
        self.tree = LoserTree::new(cursors.len(), |a, b| precedes(cursors, arena, a, b));
        Ok(())
    }

    /// Gives the next batch of the input that was needed, or its end.
    pub(super) fn feed(&mut self, input: usize, batch: Option<RecordBatch>) -> Result<()> {
        let left = self.cursors[input].batch;
        self.settle_last(input)?;
        self.cursors[input].leave(self.arena.get(left));
        self.arena.leave(left);
        if self.pending.is_none() && self.output.is_mostly_of(left, &self.arena) {
            // Then the next batch of this input begins an output of its own, as this one did: its rows may stay in place.
            self.output.flush(&mut self.arena, None)?;
        }
        if self.arena.left_bytes() > self.bounds.bytes {
            // Few rows were taken of much that was read: let go of it.
            self.output.flush(&mut self.arena, self.pending.map(|place| place.batch))?;
        }
        match batch {
            Some(batch) => {
                self.load(input, batch)?;
                self.adjust_skip(input);
            }
            None => self.cursors[input].end(),
        }
        self.replay();
        Ok(())
    }

    /// Decides on the key of a spent input's last row if no other row can have it.
    fn settle_last(&mut self, input: usize) -> Result<()> {
        let cursor = &self.cursors[input];
        let Some(last) = self.pending else { return Ok(()) };
        let key = self.arena.get(last.batch).key(last.row);
        let has_key = |other: &Cursor| {
            !other.done && !other.is_spent() && self.arena.get(other.batch).key(other.head()) == key
        };
        if cursor.is_unique() && !self.cursors.iter().any(has_key) {
            self.pending = None;
            self.output.push(&mut self.arena, last)?;
        }
        Ok(())
    }

    fn load(&mut self, input: usize, batch: RecordBatch) -> Result<()> {
        let is_beaten = self.cursors[input].is_beaten();
        let batch = KeyedBatch::try_new(batch, &self.schema)?.beaten(is_beaten);
        self.rows_since_sample += batch.rows();
        let number = self.arena.insert(batch);
        self.cursors[input]
            .enter(number, self.arena.get(number), &self.ranking)
            .map_err(|error| error.context(format_args!("input {input} of a merge")))
    }

    /// Merges on until a batch is ready or another one is needed.
    pub(super) fn step(&mut self) -> Result<Step> {
        loop {
            if let Some(batch) = self.output.pop() {
                return Ok(Step::Emit(batch));
            }
            let winner = self.tree.winner();
            match self.cursors.get(winner) {
                Some(cursor) if !cursor.done => {
                    if cursor.is_spent() {
                        return Ok(Step::Need(winner));
                    }
                }
                _ => return self.finish(),
            }
            self.take_head(winner)?;
            if self.is_ahead_alone(winner) {
                self.take_run(winner)?;
            }
            let cursor = &mut self.cursors[winner];
            if !cursor.is_spent() {
                cursor.word = self.arena.get(cursor.batch).word(cursor.head(), self.skip);
                self.replay();
            }
        }
    }

    fn finish(&mut self) -> Result<Step> {
        if let Some(last) = self.pending.take() {
            self.output.push(&mut self.arena, last)?;
        }
        self.output.flush(&mut self.arena, None)?;
        Ok(self.output.pop().map_or(Step::Done, Step::Emit))
    }

    /// Lets the head of a cursor contend for its key, and moves on by one.
    #[inline]
    fn take_head(&mut self, input: usize) -> Result<()> {
        let cursor = &mut self.cursors[input];
        let head = Place { batch: cursor.batch, row: cursor.head() };
        cursor.advance_to(cursor.pos() + 1);
        if let Some(best) = self.pending {
            let (best_batch, batch) = (self.arena.get(best.batch), self.arena.get(head.batch));
            if best_batch.key(best.row) == batch.key(head.row) {
                if batch.beats(head.row, best_batch, best.row, &self.ranking) {
                    self.pending = Some(head);
                }
                return Ok(());
            }
            self.output.push(&mut self.arena, best)?;
        }
        self.pending = Some(head);
        Ok(())
    }

    fn is_ahead_alone(&mut self, input: usize) -> bool {
        if self.streak_of != input {
            (self.streak_of, self.streak) = (input, 0);
        }
        self.streak += 1;
        self.streak > STREAK_BEFORE_RUN || self.cursors.len() == 1
    }

    /// Takes all rows of the winning cursor that lie before the key of any other.
    fn take_run(&mut self, input: usize) -> Result<()> {
        let cursor = &self.cursors[input];
        if cursor.is_spent() {
            return Ok(());
        }
        let batch = self.arena.get(cursor.batch);
        let (cursors, arena) = (&self.cursors, &self.arena);
        let other = self.tree.runner_up(|a, b| precedes(cursors, arena, a, b));
        let end = match other.map(|other| &cursors[other]) {
            Some(other) if !other.done => {
                cursor.run_end(batch, arena.get(other.batch).key(other.head()), self.skip)
            }
            _ => cursor.run_end_of_batch(),
        };
        if end - cursor.pos() < WORTHWHILE_RUN {
            self.streak = 0;
        }
        if end == cursor.pos() {
            return Ok(());
        }
        // The last row of the run stays pending: its key may go on in the next batch.
        let (number, start, last) = (cursor.batch, cursor.pos(), end - 1);
        let run_end = Place { batch: number, row: cursor.row_at(last) };
        let best = self.pending.replace(run_end);
        if cursor.selection().is_none()
            && let Some(best) = best
            && (best.batch, best.row + 1) == (number, start)
        {
            // The run goes out as one range with the head that began it.
            self.output.push_range(&mut self.arena, number, best.row, last)?;
            self.cursors[input].advance_to(end);
            return Ok(());
        }
        if let Some(best) = best {
            self.output.push(&mut self.arena, best)?;
        }
        match cursor.selection() {
            None => self.output.push_range(&mut self.arena, number, start, last)?,
            Some(rows) => {
                for row in &rows[start..last] {
                    let place = Place { batch: number, row: *row as usize };
                    self.output.push(&mut self.arena, place)?;
                }
            }
        }
        self.cursors[input].advance_to(end);
        Ok(())
    }

    #[inline]
    fn replay(&mut self) {
        let (cursors, arena) = (&self.cursors, &self.arena);
        self.tree.replay(|a, b| precedes(cursors, arena, a, b));
    }

    /// Keeps `skip` right after an input has got a new batch.
    fn adjust_skip(&mut self, input: usize) {
        // To find the longest common beginning anew asks all inputs, so it is done once for many rows.
        if self.rows_since_sample > RESAMPLE_ROWS * self.cursors.len() {
            self.resample();
            return;
        }
        let cursor = &self.cursors[input];
        let batch = self.arena.get(cursor.batch);
        let first = shared_length(&self.sample, batch.key(cursor.head()), self.skip);
        let last = shared_length(&self.sample, batch.key(cursor.last_row()), self.skip);
        if first.min(last) < self.skip {
            self.set_skip(first.min(last));
        } else {
            self.cursors[input].word = batch.word(cursor.head(), self.skip);
        }
    }

    /// Finds the longest beginning that the keys of all loaded batches share.
    ///
    /// Keys of one kind often begin alike (`customer-0000…`), and the word that is compared first would say
    /// nothing if it held that. In a sorted batch all keys share what the first and the last do.
    fn resample(&mut self) {
        self.rows_since_sample = 0;
        self.sample.clear();
        let mut shared = usize::MAX;
        for cursor in self.cursors.iter().filter(|cursor| !cursor.is_spent()) {
            let batch = self.arena.get(cursor.batch);
            for row in [cursor.head(), cursor.last_row()] {
                let key = batch.key(row);
                if shared == usize::MAX {
                    self.sample.extend_from_slice(key);
                    shared = key.len();
                } else {
                    shared = shared_length(&self.sample, key, shared);
                }
            }
        }
        self.set_skip(shared);
    }

    fn set_skip(&mut self, skip: usize) {
        self.skip = skip;
        for cursor in self.cursors.iter_mut().filter(|cursor| !cursor.is_spent()) {
            cursor.word = self.arena.get(cursor.batch).word(cursor.head(), skip);
        }
    }
}

/// Rows that each input has given on average before the shared beginning of the keys is found anew.
const RESAMPLE_ROWS: usize = 256;

/// Whether one cursor's head comes before another's; equal keys in the order of the inputs.
#[inline]
fn precedes(cursors: &[Cursor], arena: &Arena, a: usize, b: usize) -> bool {
    let (one, other) = (&cursors[a], &cursors[b]);
    if one.word != other.word {
        return one.word < other.word;
    }
    if one.done || other.done {
        return !one.done || (other.done && a < b);
    }
    let key = arena.get(one.batch).key(one.head());
    let other_key = arena.get(other.batch).key(other.head());
    (key, a) < (other_key, b)
}
