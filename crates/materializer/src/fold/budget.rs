//! The fold of inputs of any size and number within a budget of memory.
//!
//! What is unsorted or small is gathered until a sixth of the budget is in use, and folded there. A result
//! that is still small stays and more is gathered on top of it, so that many changes of few keys never leave
//! memory; else it becomes a sorted run. Runs hold up to a third of the budget, then go to disk as one. Large
//! sorted inputs are not touched before the last merge, which takes them as they come.
//!
//! | what is held at most | while gathering | while merging |
//! |---|---|---|
//! | sorted runs in memory | 1/3, and the 1/6 that crosses it | 1/3 |
//! | what open files have fetched and decode | | 1/3, instead of sorted runs in memory |
//! | gathered batches with their index | 1/6 | |
//! | one batch of each run on disk | | 1/6 |
//! | the result of folding them; the batch that comes out and those it is made of | 1/6 | 1/4 |
//! | the rows of files under way, one gathered and one encoded, for whoever writes what comes out | | 1/4 |
//!
//! So all that is held together stays below the budget. On top come the batch that crosses a limit, and of each input that is
//! open a batch or a page. What a process takes beyond is up to its allocator. The usual one has an arena for each thread, and
//! keeps there what another thread has freed: so nothing here takes large pieces that come and go (files are fetched by pages,
//! and written in parts), and what is spilled is read by one thread.

use std::fmt;
use std::sync::Arc;

use alluvium_log::Result;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::batch::check_schema;
use super::bytes::Footprint;
use super::memory::{INDEX_BYTES_PER_ROW, fold_batches_bounded};
use super::merge::{SortedInput, merge_bounded};
use super::ranking::Ranking;
use super::settings::FoldSettings;
use super::spill::{SpillArea, SpilledRun, blocking};
use super::{BatchStream, Bounds};

/// Opens an input when the fold gets to it.
type Open = Box<dyn FnOnce() -> BatchStream + Send>;

/// Rows to fold, and about how many bytes they take when decoded. A wrong estimate costs time, not memory.
pub enum FoldInput {
    /// Sorted by key, where a key may repeat in rows one after the other.
    Sorted {
        /// About the decoded size.
        bytes: u64,
        /// About what it takes while it is open: what is fetched at once, and the batches under way.
        open_bytes: u64,
        /// Opens the input.
        open: Open,
    },
    /// In any order.
    Unsorted {
        /// About the decoded size.
        bytes: u64,
        /// Opens the input.
        open: Open,
    },
}

impl fmt::Debug for FoldInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, bytes) = match self {
            Self::Sorted { bytes, .. } => ("Sorted", bytes),
            Self::Unsorted { bytes, .. } => ("Unsorted", bytes),
        };
        f.debug_struct(name).field("bytes", bytes).finish_non_exhaustive()
    }
}

/// Folds inputs of the columns `schema` to the winner of each key, ascending by key, within a budget of memory.
///
/// Unsorted and small inputs are read before this returns; the rest is read with the stream. What is held stays
/// within the budget, plus one batch of each input that is open. Needs a Tokio runtime. An input that claims to
/// be sorted and is not is an error of kind [`Corrupt`](alluvium_log::ErrorKind::Corrupt), unless it is small;
/// then it is folded all the same.
pub async fn fold(
    ranking: impl Into<Ranking>,
    schema: SchemaRef,
    inputs: Vec<FoldInput>,
    settings: &FoldSettings,
) -> Result<BatchStream> {
    settings.validate()?;
    check_schema(&schema)?;
    let plan = Plan::new(ranking.into(), schema, settings);
    let mut runs = Vec::new();
    let mut gathered = Vec::new();
    for input in inputs {
        match input {
            FoldInput::Sorted { bytes, open_bytes, open } if bytes > plan.small_bytes => {
                runs.push(Run::Input { bytes, open_bytes, open });
            }
            FoldInput::Sorted { open, .. } | FoldInput::Unsorted { open, .. } => {
                gathered.push(open)
            }
        }
    }
    plan.gather(gathered, &mut runs).await?;
    plan.reduce_to_fan_in(&mut runs).await?;
    Ok(plan.merge(runs))
}

/// The shares of the budget, and where to spill.
struct Plan {
    ranking: Ranking,
    schema: SchemaRef,
    spill: Arc<SpillArea>,
    fan_in: usize,
    /// Sorted inputs up to this size are gathered.
    small_bytes: u64,
    gather_bytes: usize,
    runs_bytes: usize,
    /// What the sorted inputs of one merge may take together while they are open.
    open_bytes: u64,
    /// The bounds of batches that come out.
    bounds: Bounds,
    /// The bounds of batches in a run: as small as it takes to hold one of each run in a sixth of the budget.
    run_bounds: Bounds,
}

/// Part of what the last merge merges.
enum Run {
    /// A sorted input as it was given.
    Input { bytes: u64, open_bytes: u64, open: Open },
    /// Winners in memory.
    Memory { bytes: u64, batches: Vec<RecordBatch> },
    /// Winners on disk.
    Spilled(SpilledRun),
}

impl Run {
    fn bytes(&self) -> u64 {
        match self {
            Self::Input { bytes, .. } | Self::Memory { bytes, .. } => *bytes,
            Self::Spilled(run) => run.bytes,
        }
    }

    /// What it takes while it is open, beyond the share of each run on disk.
    fn open_bytes(&self) -> u64 {
        match self {
            Self::Input { open_bytes, .. } => *open_bytes,
            Self::Memory { .. } | Self::Spilled(_) => 0,
        }
    }

    fn into_input(self) -> SortedInput {
        match self {
            Self::Input { open, .. } => SortedInput::Stream(open()),
            Self::Memory { batches, .. } => SortedInput::Batches(batches),
            Self::Spilled(run) => SortedInput::Stream(run.read()),
        }
    }
}

/// How many of the gathered inputs are read at once.
const READING: usize = 4;

/// The smallest share of a budget that a batch may be bounded to: less would be all overhead.
const MIN_BATCH_BYTES: usize = 64 << 10;

impl Plan {
    fn new(ranking: Ranking, schema: SchemaRef, settings: &FoldSettings) -> Self {
        let budget = settings.memory_budget_bytes;
        let bounded = |share: usize| Bounds {
            rows: settings.batch_rows,
            bytes: share.clamp(MIN_BATCH_BYTES, Bounds::MAX_BYTES),
        };
        Self {
            ranking,
            schema,
            spill: Arc::new(SpillArea::new(settings.spill_dir.clone())),
            fan_in: settings.fan_in,
            small_bytes: (budget / 32) as u64,
            gather_bytes: budget / 6,
            runs_bytes: budget / 3,
            open_bytes: settings.open_bytes(),
            bounds: bounded(budget / 8),
            run_bounds: bounded(budget / 6 / settings.fan_in),
        }
    }

    /// Reads inputs and leaves their winners as runs, in memory as far as they fit.
    async fn gather(&self, inputs: Vec<Open>, runs: &mut Vec<Run>) -> Result<()> {
        let mut memory = Vec::new();
        let mut pool = Pool::default();
        // Streams do nothing until they are asked, so all of them may be opened at once.
        let opened: Vec<BatchStream> = inputs.into_iter().map(|open| open()).collect();
        let mut batches = stream::iter(opened).flatten_unordered(READING).fuse();
        while let Some(batch) = batches.try_next().await? {
            pool.add(batch);
            if pool.bytes() > self.gather_bytes {
                pool = self.fold_pool(pool).await?;
                if pool.bytes() > self.gather_bytes / 2 {
                    self.keep(std::mem::take(&mut pool), &mut memory, runs).await?;
                }
            }
        }
        if !pool.batches.is_empty() {
            let folded = self.fold_pool(pool).await?;
            self.keep(folded, &mut memory, runs).await?;
        }
        runs.append(&mut memory);
        Ok(())
    }

    async fn fold_pool(&self, pool: Pool) -> Result<Pool> {
        let (ranking, schema, bounds) =
            (self.ranking.clone(), self.schema.clone(), self.run_bounds);
        let folded =
            blocking(move || fold_batches_bounded(&ranking, &schema, &pool.batches, bounds))
                .await?;
        let mut pool = Pool::default();
        folded.into_iter().for_each(|batch| pool.add(batch));
        Ok(pool)
    }

    /// Keeps a folded pool as a run in memory, and spills all such runs if they have become too large.
    async fn keep(&self, folded: Pool, memory: &mut Vec<Run>, runs: &mut Vec<Run>) -> Result<()> {
        memory
            .push(Run::Memory { bytes: folded.footprint.bytes() as u64, batches: folded.batches });
        let held: u64 = memory.iter().map(Run::bytes).sum();
        if held > self.runs_bytes as u64 {
            runs.push(self.spill(std::mem::take(memory)).await?);
        }
        Ok(())
    }

    async fn spill(&self, runs: Vec<Run>) -> Result<Run> {
        let inputs = runs.into_iter().map(Run::into_input).collect();
        let merged =
            merge_bounded(self.ranking.clone(), self.schema.clone(), inputs, self.run_bounds);
        Ok(Run::Spilled(self.spill.spill(&self.schema, merged).await?))
    }

    /// Merges the smallest runs to runs on disk until no more are left than may be open at once, by number and by bytes.
    ///
    /// A group is only as large as it takes, so that the large runs are read once.
    async fn reduce_to_fan_in(&self, runs: &mut Vec<Run>) -> Result<()> {
        loop {
            let open: u64 = runs.iter().map(Run::open_bytes).sum();
            let may_open = |count: usize, open: u64| {
                count <= self.fan_in && (open <= self.open_bytes || count <= 2)
            };
            if may_open(runs.len(), open) {
                return Ok(());
            }
            runs.sort_by_key(|run| std::cmp::Reverse(run.bytes()));
            let (mut group, mut taken) = (0, 0);
            for run in runs.iter().rev() {
                let is_full = group == self.fan_in || taken + run.open_bytes() > self.open_bytes;
                if group >= 2 && (is_full || may_open(runs.len() - group + 1, open - taken)) {
                    break;
                }
                group += 1;
                taken += run.open_bytes();
            }
            let smallest = runs.split_off(runs.len() - group);
            runs.push(self.spill(smallest).await?);
        }
    }

    fn merge(&self, runs: Vec<Run>) -> BatchStream {
        let inputs = runs.into_iter().map(Run::into_input).collect();
        merge_bounded(self.ranking.clone(), self.schema.clone(), inputs, self.bounds)
    }
}

/// Batches in memory and what they take.
#[derive(Default)]
struct Pool {
    batches: Vec<RecordBatch>,
    footprint: Footprint,
    rows: usize,
}

impl Pool {
    fn add(&mut self, batch: RecordBatch) {
        if batch.num_rows() > 0 {
            self.footprint.add(&batch);
            self.rows += batch.num_rows();
            self.batches.push(batch);
        }
    }

    /// What the batches take, and the index that folding them makes.
    fn bytes(&self) -> usize {
        self.footprint.bytes() + self.rows * INDEX_BYTES_PER_ROW
    }
}
