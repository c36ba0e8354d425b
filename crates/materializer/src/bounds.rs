//! How much one file holds, and which files are so small that they become one.

use std::collections::VecDeque;
use std::sync::Arc;

use alluvium_log::{DataFile, Result};
use arrow::array::RecordBatch;
use futures::{Stream, TryStreamExt};

use crate::fold::{BatchStream, FoldSettings, batch_bytes};
use crate::snapshot::{TAG_DECODED, rows_of};

/// Rows of one snapshot file, about, unless set otherwise.
pub const FILE_ROWS: usize = 262_144;
/// Decoded bytes of one file, before it is written; a single batch may exceed it.
const FILE_BYTES: usize = 64 * 1024 * 1024;
/// Of a small budget, the share that one file's decoded rows may take: two are under way at the same time.
const FILE_SHARE: usize = 10;
/// Decoded bytes per byte of a file that doesn't tell them, about and at most.
const EXPANSION: u64 = 6;
/// Smaller files would be all overhead.
const MIN_FILE_BYTES: usize = 1024 * 1024;

/// About how much one file holds. One that would leave less than half of it for the next one holds up to half as much again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileBounds {
    pub(crate) rows: usize,
    /// Decoded.
    bytes: usize,
    /// As they lie in the store.
    stored_bytes: u64,
}

impl FileBounds {
    /// At most `rows`, and what a share of the fold's budget holds.
    pub(crate) fn new(rows: usize, fold: &FoldSettings) -> Self {
        let share = (fold.memory_budget_bytes / FILE_SHARE).max(MIN_FILE_BYTES);
        let bytes = share.min(FILE_BYTES);
        Self { rows, bytes, stored_bytes: u64::MAX }
    }

    /// The same where files are to have so many bytes: rows go by the largest file that there is.
    pub(crate) fn aimed<'a>(
        self,
        target: Option<u64>,
        fold: &FoldSettings,
        files: impl Iterator<Item = &'a Arc<DataFile>>,
    ) -> Self {
        let Some(target) = target else { return self };
        let bytes = (fold.memory_budget_bytes / FILE_SHARE).max(MIN_FILE_BYTES);
        let rows = files.max_by_key(|file| rows_of(file)).map_or(self.rows, |largest| {
            let stored = u128::from(largest.add.size.max(1));
            let rows = u128::from(target) * u128::from(rows_of(largest)) / stored;
            usize::try_from(rows).unwrap_or(usize::MAX)
        });
        Self { rows: rows.clamp(1, self.rows), bytes, stored_bytes: target }
    }

    fn hold(&self, sum: &Sizes) -> bool {
        sum.rows <= self.rows as u64
            && sum.decoded <= self.bytes as u64
            && sum.stored <= self.stored_bytes
    }
}

/// What some files have together.
#[derive(Default)]
struct Sizes {
    rows: u64,
    decoded: u64,
    stored: u64,
}

impl Sizes {
    fn of(file: &DataFile) -> Self {
        let told = file.add.tags.get(TAG_DECODED).and_then(|text| text.parse().ok());
        let decoded = told.unwrap_or(file.add.size.saturating_mul(EXPANSION));
        Self { rows: rows_of(file), decoded, stored: file.add.size }
    }

    fn and(&self, other: &Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            decoded: self.decoded.saturating_add(other.decoded),
            stored: self.stored + other.stored,
        }
    }
}

/// Rows that were read and are not in a file yet, each batch with its decoded bytes.
#[derive(Default)]
struct Pending {
    batches: VecDeque<(RecordBatch, usize)>,
    rows: usize,
    bytes: usize,
}

impl Pending {
    fn push(&mut self, batch: RecordBatch, bytes: usize) {
        self.rows += batch.num_rows();
        self.bytes += bytes;
        self.batches.push_back((batch, bytes));
    }

    /// Whether a file of it leaves enough for another one.
    fn is_plenty(&self, bounds: &FileBounds) -> bool {
        let more = |bound: usize| bound.saturating_add(bound.div_ceil(2));
        self.rows >= more(bounds.rows) || self.bytes >= more(bounds.bytes)
    }

    /// What one file holds.
    fn take(&mut self, bounds: &FileBounds) -> Vec<RecordBatch> {
        let (mut batches, mut rows, mut bytes) = (Vec::new(), 0, 0);
        while rows < bounds.rows && bytes < bounds.bytes {
            let Some((batch, of_batch)) = self.batches.pop_front() else { break };
            let (count, room) = (batch.num_rows(), bounds.rows - rows);
            self.rows -= count;
            self.bytes -= of_batch;
            let (taken, of_taken) = match count > room {
                true => (batch.slice(0, room), of_batch / count * room),
                false => (batch.clone(), of_batch),
            };
            if count > room {
                let left = batch.slice(room, count - room);
                self.rows += left.num_rows();
                self.bytes += of_batch - of_taken;
                self.batches.push_front((left, of_batch - of_taken));
            }
            rows += taken.num_rows();
            bytes += of_taken;
            batches.push(taken);
        }
        batches
    }

    fn take_all(&mut self) -> Vec<RecordBatch> {
        std::mem::take(self).batches.into_iter().map(|(batch, _)| batch).collect()
    }
}

/// Cuts a sorted stream of winners into what one file holds.
pub(crate) fn chunks(
    rows: BatchStream,
    bounds: FileBounds,
) -> impl Stream<Item = Result<Vec<RecordBatch>>> + use<> {
    let state = (Some(rows), Pending::default());
    futures::stream::try_unfold(state, move |(mut rows, mut pending)| async move {
        while let Some(stream) = &mut rows
            && !pending.is_plenty(&bounds)
        {
            match stream.try_next().await? {
                Some(batch) if batch.num_rows() == 0 => {}
                Some(batch) => {
                    // The rows of a slice; the buffers that it shares are not this file's alone.
                    let bytes = batch_bytes(&batch);
                    pending.push(batch, bytes);
                }
                None => rows = None,
            }
        }
        let batches = match pending.is_plenty(&bounds) {
            true => pending.take(&bounds),
            false => pending.take_all(),
        };
        Ok((!batches.is_empty()).then_some((batches, (rows, pending))))
    })
}

/// Files that lie side by side in the order of keys, together as long as one file holds them.
pub(crate) fn neighbours(
    files: Vec<Arc<DataFile>>,
    bounds: &FileBounds,
) -> Vec<Vec<Arc<DataFile>>> {
    let mut groups: Vec<Vec<Arc<DataFile>>> = Vec::new();
    let mut sizes = Sizes::default();
    for file in files {
        let own = Sizes::of(&file);
        let sum = sizes.and(&own);
        match groups.last_mut() {
            Some(group) if bounds.hold(&sum) => {
                group.push(file);
                sizes = sum;
            }
            _ => {
                groups.push(vec![file]);
                sizes = own;
            }
        }
    }
    groups
}

/// Whether a quarter of the files or more would be gone if those that are small became one with their neighbours.
pub(crate) fn are_scattered(files: Vec<Arc<DataFile>>, bounds: &FileBounds) -> bool {
    let before = files.len();
    let after = neighbours(files, bounds).len();
    after < before && after * 4 <= before * 3
}
