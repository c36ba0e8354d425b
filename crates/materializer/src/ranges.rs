//! Merging changes into the base, range of keys by range of keys: a base file in whose range nothing changed stays.

use std::sync::Arc;

use alluvium_log::{DataFile, Error, FooterCache, ReadSpec, Result, STATE_KEY, Table};
use arrow::array::{Array, AsArray, RecordBatch};
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex as SyncMutex;
use tokio::sync::Mutex;

use crate::bounds::{FileBounds, chunks, neighbours};
use crate::fold::{BatchStream, FoldSettings, Ranking, SortedInput, merge};
use crate::inputs::{beside_fold_bytes, stream_in_windows, window_rows};
use crate::snapshot::least_key;
use crate::tombstones::{Forgetting, may_hold_below};

/// A sorted stream of changes that can be taken up to a key.
struct Changes {
    rows: BatchStream,
    /// What was read and not yet taken.
    left: Option<RecordBatch>,
}

impl Changes {
    async fn fill(&mut self) -> Result<Option<&RecordBatch>> {
        while self.left.as_ref().is_none_or(|batch| batch.num_rows() == 0) {
            match self.rows.try_next().await? {
                Some(batch) => self.left = Some(batch),
                None => return Ok(None),
            }
        }
        Ok(self.left.as_ref())
    }

    /// The next rows with keys below `upper`, or `None` when the next key is not.
    async fn take_below(&mut self, upper: Option<&str>) -> Result<Option<RecordBatch>> {
        let Some(batch) = self.fill().await? else { return Ok(None) };
        let Some(upper) = upper else { return Ok(self.left.take()) };
        let keys = batch
            .column_by_name(STATE_KEY)
            .ok_or_else(|| Error::internal("changes have no key"))?
            .as_string::<i32>();
        // Sorted, so that a binary search finds the boundary.
        let (mut low, mut high) = (0, keys.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if keys.value(middle) < upper { low = middle + 1 } else { high = middle }
        }
        if low == 0 {
            return Ok(None);
        }
        let taken = batch.slice(0, low);
        let rest = batch.slice(low, batch.num_rows() - low);
        self.left = Some(rest);
        Ok(Some(taken))
    }
}

/// The base, and what is to be merged into it.
pub(crate) struct Ranges {
    table: Arc<Table>,
    /// Files that become one where something changes in them.
    base: Vec<Vec<Arc<DataFile>>>,
    bounds: FileBounds,
    spec: ReadSpec,
    /// How many rows of a base file are read at a time.
    window_rows: Option<usize>,
    footers: Arc<FooterCache>,
    changes: Arc<Mutex<Changes>>,
    forgetting: Option<Forgetting>,
    /// Whether small files become one though nothing changed in them.
    joins: bool,
    touched: SyncMutex<Vec<Arc<DataFile>>>,
}

impl Ranges {
    /// `base` in order of keys; `changes` sorted, one row per key.
    pub(crate) fn new(
        table: Arc<Table>,
        (base, bounds): (Vec<Arc<DataFile>>, FileBounds),
        spec: ReadSpec,
        changes: BatchStream,
        fold: &FoldSettings,
        footers: Arc<FooterCache>,
    ) -> Self {
        let window_rows = window_rows(&base, 1, beside_fold_bytes(fold));
        let base = neighbours(base, &bounds);
        let changes = Arc::new(Mutex::new(Changes { rows: changes, left: None }));
        let touched = SyncMutex::new(Vec::new());
        Self {
            table,
            base,
            bounds,
            spec,
            window_rows,
            footers,
            changes,
            forgetting: None,
            joins: false,
            touched,
        }
    }

    /// The same without some tombstones; base files that hold any count as changed.
    pub(crate) fn forgetting(self, forgetting: Option<Forgetting>) -> Self {
        Self { forgetting, ..self }
    }

    /// The same with small files joined, whether something changed in them or not.
    pub(crate) fn joining(self) -> Self {
        Self { joins: true, ..self }
    }

    fn has_to_join(&self, index: usize) -> bool {
        self.joins && self.base.get(index).is_some_and(|files| files.len() > 1)
    }

    fn has_to_forget(&self, index: usize) -> bool {
        let floor = self.forgetting.as_ref().map(|forgetting| forgetting.floor);
        self.base
            .get(index)
            .zip(floor)
            .is_some_and(|(files, floor)| files.iter().any(|file| may_hold_below(file, floor)))
    }

    /// The base files whose ranges had changes, once the merge is done.
    pub(crate) fn touched(&self) -> Vec<Arc<DataFile>> {
        self.touched.lock().clone()
    }

    /// The changes below a key, as a stream of their own.
    fn below(&self, first: RecordBatch, upper: Option<String>) -> BatchStream {
        let changes = self.changes.clone();
        let rest = stream::try_unfold((changes, upper), |(changes, upper)| async move {
            let taken = changes.lock().await.take_below(upper.as_deref()).await?;
            Ok(taken.map(|batch| (batch, (changes, upper))))
        });
        stream::iter([Ok(first)]).chain(rest).boxed()
    }

    /// The merged rows of one range, or `None` when nothing changed in it.
    async fn merged(
        &self,
        index: usize,
        ranking: Ranking,
        batch_rows: usize,
    ) -> Result<Option<BatchStream>> {
        let next = self.base.get(index + 1).and_then(|files| files.first());
        let upper = next.and_then(|file| least_key(file)).map(str::to_owned);
        let first = self.changes.lock().await.take_below(upper.as_deref()).await?;
        let mut inputs = Vec::new();
        match first {
            Some(first) => inputs.push(SortedInput::Stream(self.below(first, upper))),
            None if self.has_to_forget(index) || self.has_to_join(index) => {}
            None => return Ok(None),
        }
        if let Some(files) = self.base.get(index) {
            self.touched.lock().extend_from_slice(files);
            let open = |file: &Arc<DataFile>| {
                stream_in_windows(&self.table, file, &self.spec, self.window_rows, &self.footers)
            };
            let rows: Vec<BatchStream> = files.iter().map(open).collect();
            inputs.push(SortedInput::Stream(stream::iter(rows).flatten().boxed()));
        }
        let merged = merge(ranking, self.spec.schema(), inputs, batch_rows);
        Ok(Some(Forgetting::of_some(self.forgetting.as_ref(), merged)))
    }
}

/// What each new base file holds.
pub(crate) fn merge_ranges(
    ranges: &Ranges,
    ranking: Ranking,
    batch_rows: usize,
) -> impl Stream<Item = Result<Vec<RecordBatch>>> {
    stream::iter(0..ranges.base.len().max(1))
        .then(move |index| ranges.merged(index, ranking.clone(), batch_rows).boxed())
        .try_filter_map(|merged| std::future::ready(Ok(merged)))
        .map_ok(|rows| chunks(rows, ranges.bounds))
        .try_flatten()
}
