//! The merge of sorted inputs into the winner of each key, streaming.
//!
//! The [`Merger`] is synchronous and says which input it needs a batch of; only the driver around it waits.

use alluvium_log::{Error, OrderBy, Result};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::batch::KeyedBatch;
use super::cursor::{Cursor, Standing};
use super::merger::{Merger, Step};
use super::ranking::Ranking;
use super::{BatchStream, Bounds};

/// Rows sorted by key ascending.
///
/// A key may repeat, its rows one after the other, in any order of rank, also over the end of a batch.
pub enum SortedInput {
    /// In memory.
    Batches(Vec<RecordBatch>),
    /// Read as the merge gets there.
    Stream(BatchStream),
    /// Read as the merge gets there, and known to hold each key once: just the ends of its batches are checked.
    Unique(BatchStream),
    /// The same, and each of its rows loses against one of the same key in any other input, whatever their ranks are: what decides
    /// need not be read.
    Beaten(BatchStream),
}

impl std::fmt::Debug for SortedInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Batches(batches) => f.debug_tuple("Batches").field(&batches.len()).finish(),
            Self::Stream(_) => f.write_str("Stream"),
            Self::Unique(_) => f.write_str("Unique"),
            Self::Beaten(_) => f.write_str("Beaten"),
        }
    }
}

/// Merges sorted inputs of the columns `schema` to one row per key, the winner of all, ascending by key.
///
/// The batches hold up to `batch_rows` rows and about 64 MiB. A batch whose keys are of no other input and
/// unique comes through without a copy; a single [`SortedInput::Unique`] comes through in its own batches. Holds one batch of each input, and a few batches of its own. An input
/// that is not sorted is an error of kind [`Corrupt`](alluvium_log::ErrorKind::Corrupt). Inputs are asked for
/// their next batch one at a time, when it is needed: a stream that waits for a network should read ahead.
pub fn merge(
    ranking: impl Into<Ranking>,
    schema: SchemaRef,
    inputs: Vec<SortedInput>,
    batch_rows: usize,
) -> BatchStream {
    merge_partly(ranking, schema, inputs, batch_rows, &[])
}

/// The same for a reader that doesn't look at some of the columns that decide: these may come as zeros and empty texts.
pub fn merge_partly(
    ranking: impl Into<Ranking>,
    schema: SchemaRef,
    mut inputs: Vec<SortedInput>,
    batch_rows: usize,
    unread: &[&str],
) -> BatchStream {
    if let [SortedInput::Unique(_) | SortedInput::Beaten(_)] = inputs.as_slice()
        && let Some(SortedInput::Unique(only) | SortedInput::Beaten(only)) = inputs.pop()
    {
        return checked(schema, only);
    }
    let merger = Merger::new(ranking.into(), schema, Bounds::of_rows(batch_rows));
    drive(merger.map(|merger| merger.leave_out(unread)), inputs)
}

/// The one input of a merge, which is its result.
fn checked(schema: SchemaRef, rows: BatchStream) -> BatchStream {
    // Of unique keys none compete.
    let ranking = Ranking::from(OrderBy::default());
    let mut cursor = Cursor::new(Standing::Unique);
    rows.try_filter(|batch| std::future::ready(batch.num_rows() > 0))
        .map(move |batch| {
            let batch = KeyedBatch::try_new(batch?, &schema)?;
            cursor.enter(0, &batch, &ranking)?;
            cursor.leave(&batch);
            Ok(batch.into_batch())
        })
        .boxed()
}

pub(super) fn merge_bounded(
    ranking: Ranking,
    schema: SchemaRef,
    inputs: Vec<SortedInput>,
    bounds: Bounds,
) -> BatchStream {
    drive(Merger::new(ranking, schema, bounds), inputs)
}

fn drive(merger: Result<Merger>, inputs: Vec<SortedInput>) -> BatchStream {
    let sources = inputs.into_iter().map(Source::from).collect();
    let driver = merger.map(|merger| Driver { sources, merger, started: false, rows_unyielded: 0 });
    stream::once(async { driver })
        .map_ok(|driver| {
            stream::try_unfold(driver, |mut driver| async move {
                Ok(driver.next().await?.map(|batch| (batch, driver)))
            })
        })
        .try_flatten()
        .boxed()
}

enum Source {
    Batches(std::vec::IntoIter<RecordBatch>),
    Stream(BatchStream),
    Unique(BatchStream),
    Beaten(BatchStream),
}

impl From<SortedInput> for Source {
    fn from(input: SortedInput) -> Self {
        match input {
            SortedInput::Batches(batches) => Self::Batches(batches.into_iter()),
            SortedInput::Stream(stream) => Self::Stream(stream),
            SortedInput::Unique(stream) => Self::Unique(stream),
            SortedInput::Beaten(stream) => Self::Beaten(stream),
        }
    }
}

impl Source {
    fn standing(&self) -> Standing {
        match self {
            Self::Batches(_) | Self::Stream(_) => Standing::Any,
            Self::Unique(_) => Standing::Unique,
            Self::Beaten(_) => Standing::Beaten,
        }
    }

    /// The next batch that has rows.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let batch = match self {
                Self::Batches(batches) => batches.next(),
                Self::Stream(stream) | Self::Unique(stream) | Self::Beaten(stream) => {
                    stream.try_next().await?
                }
            };
            match batch {
                Some(batch) if batch.num_rows() == 0 => {}
                other => return Ok(other),
            }
        }
    }
}

/// Feeds a merger from its sources.
struct Driver {
    sources: Vec<Source>,
    merger: Merger,
    started: bool,
    rows_unyielded: usize,
}

/// How many inputs are opened at once at the start.
const OPENING: usize = 16;

/// After so many rows in or out, other tasks get their turn.
const ROWS_BETWEEN_YIELDS: usize = 16_384;

impl Driver {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if !self.started {
            self.start().await?;
        }
        loop {
            match self.merger.step()? {
                Step::Emit(batch) => {
                    self.give_way(batch.num_rows()).await;
                    return Ok(Some(batch));
                }
                Step::Need(input) => {
                    let batch = match self.sources.get_mut(input) {
                        Some(source) => source.next().await?,
                        None => None,
                    };
                    self.give_way(batch.as_ref().map_or(0, RecordBatch::num_rows)).await;
                    self.merger.feed(input, batch)?;
                }
                Step::Done => return Ok(None),
            }
        }
    }

    async fn start(&mut self) -> Result<()> {
        let standings: Vec<Standing> = self.sources.iter().map(Source::standing).collect();
        let opening = stream::iter(std::mem::take(&mut self.sources)).map(|mut source| async {
            let first = source.next().await?;
            Ok::<_, Error>((source, first))
        });
        let opened: Vec<_> = opening.buffered(OPENING).try_collect().await?;
        let (sources, firsts) = opened.into_iter().unzip();
        self.sources = sources;
        self.merger.start(firsts, &standings)?;
        self.started = true;
        Ok(())
    }

    async fn give_way(&mut self, rows: usize) {
        self.rows_unyielded += rows;
        if self.rows_unyielded >= ROWS_BETWEEN_YIELDS {
            self.rows_unyielded = 0;
            tokio::task::yield_now().await;
        }
    }
}
