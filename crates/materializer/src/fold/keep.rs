//! The merge that keeps every row: sorted inputs in, all their rows by key and rank out. For files that are rewritten and
//! must not lose a row, where [`merge`](super::merge) keeps winners only.

use std::cmp::Ordering;
use std::sync::Arc;

use alluvium_log::{Error, OrderBy, Rank, Result};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::batch::{KeyedBatch, check_schema};
use super::bytes::{Weights, batch_bytes};
use super::settings::FoldSettings;
use super::spill::{SpillArea, blocking};
use super::tree::LoserTree;
use super::{BatchStream, Bounds};

/// Inputs that are opened at once at the start.
const OPENING: usize = 16;

/// Merges inputs that are sorted by key and rank to all their rows, sorted alike.
///
/// Holds one batch of each input and the batch that comes out. An input that is not sorted is an error of kind
/// [`Corrupt`](alluvium_log::ErrorKind::Corrupt).
pub(crate) fn merge_all(
    order_by: OrderBy,
    schema: SchemaRef,
    inputs: Vec<BatchStream>,
    batch_rows: usize,
) -> BatchStream {
    let keeper = async move {
        check_schema(&schema)?;
        Keeper::open(order_by, schema, inputs, Bounds::of_rows(batch_rows)).await
    };
    stream::once(keeper)
        .map_ok(|keeper| {
            stream::try_unfold(keeper, |mut keeper| async move {
                Ok(keeper.next().await?.map(|batch| (batch, keeper)))
            })
        })
        .try_flatten()
        .boxed()
}

/// Sorts rows that come in any order by key and rank, keeping all of them; what does not fit into a third of the budget
/// is spilled.
pub(crate) async fn sort_all(
    order_by: OrderBy,
    schema: SchemaRef,
    mut rows: BatchStream,
    settings: &FoldSettings,
) -> Result<BatchStream> {
    check_schema(&schema)?;
    let spill = Arc::new(SpillArea::new(settings.spill_dir.clone()));
    let limit = (settings.memory_budget_bytes / 3).max(1);
    let (mut runs, mut gathered, mut bytes) = (Vec::new(), Vec::new(), 0);
    while let Some(batch) = rows.try_next().await? {
        bytes += batch_bytes(&batch);
        gathered.push(batch);
        if bytes >= limit {
            let sorted = sort(order_by, &schema, std::mem::take(&mut gathered), settings).await?;
            runs.push(
                spill.spill(&schema, stream::iter(sorted.into_iter().map(Ok)).boxed()).await?,
            );
            bytes = 0;
        }
    }
    let last = sort(order_by, &schema, gathered, settings).await?;
    let last = stream::iter(last.into_iter().map(Ok)).boxed();
    if runs.is_empty() {
        return Ok(last);
    }
    let mut inputs: Vec<BatchStream> =
        runs.into_iter().map(super::spill::SpilledRun::read).collect();
    inputs.push(last);
    Ok(merge_all(order_by, schema, inputs, settings.batch_rows))
}

async fn sort(
    order_by: OrderBy,
    schema: &SchemaRef,
    batches: Vec<RecordBatch>,
    settings: &FoldSettings,
) -> Result<Vec<RecordBatch>> {
    let (schema, batch_rows) = (schema.clone(), settings.batch_rows.max(1));
    blocking(move || {
        let keyed: Vec<KeyedBatch> = batches
            .into_iter()
            .map(|batch| KeyedBatch::try_new(batch, &schema))
            .collect::<Result<_>>()?;
        let mut places: Vec<(usize, usize)> = keyed
            .iter()
            .enumerate()
            .flat_map(|(number, batch)| (0..batch.rows()).map(move |row| (number, row)))
            .collect();
        places.sort_by(|&(a, x), &(b, y)| {
            let keys = keyed[a].key(x).cmp(keyed[b].key(y));
            keys.then_with(|| keyed[a].rank(x).compare(&keyed[b].rank(y), order_by))
        });
        let sources: Vec<&RecordBatch> = keyed.iter().map(KeyedBatch::batch).collect();
        let chunks = places.chunks(batch_rows);
        chunks.map(|chunk| Ok(interleave_record_batch(&sources, chunk)?)).collect()
    })
    .await
}

/// One input as far as it has been read.
struct Source {
    rows: BatchStream,
    /// The loaded batch and what its rows weigh; `None` at the end.
    loaded: Option<(KeyedBatch, Weights)>,
    row: usize,
    /// The number of the loaded batch among those held for the batch that comes out.
    held: Option<usize>,
}

impl Source {
    async fn open(mut rows: BatchStream, schema: SchemaRef, negligible: usize) -> Result<Self> {
        let loaded = load(&mut rows, &schema, negligible).await?;
        Ok(Self { rows, loaded, row: 0, held: None })
    }

    fn head(&self) -> Option<(&[u8], Rank)> {
        let (batch, _) = self.loaded.as_ref()?;
        Some((batch.key(self.row), batch.rank(self.row)))
    }
}

struct Keeper {
    order_by: OrderBy,
    schema: SchemaRef,
    bounds: Bounds,
    negligible: usize,
    sources: Vec<Source>,
    tree: LoserTree,
    /// Batches that picked rows lie in.
    held: Vec<RecordBatch>,
    picks: Vec<(usize, usize)>,
    bytes: usize,
}

impl Keeper {
    async fn open(
        order_by: OrderBy,
        schema: SchemaRef,
        inputs: Vec<BatchStream>,
        bounds: Bounds,
    ) -> Result<Self> {
        let negligible = bounds.bytes / (inputs.len() + 1);
        let opening: Vec<BoxFuture<'static, Result<Source>>> = inputs
            .into_iter()
            .map(|rows| Source::open(rows, schema.clone(), negligible).boxed())
            .collect();
        let sources: Vec<Source> = stream::iter(opening).buffered(OPENING).try_collect().await?;
        let tree = LoserTree::new(sources.len(), |a, b| precedes(&sources, order_by, a, b));
        let (held, picks) = (Vec::new(), Vec::new());
        Ok(Self { order_by, schema, bounds, negligible, sources, tree, held, picks, bytes: 0 })
    }

    /// The next batch of rows.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while self.picks.len() < self.bounds.rows && self.bytes < self.bounds.bytes {
            let winner = self.tree.winner();
            let Some(source) = self.sources.get_mut(winner) else { break };
            let Some((batch, weights)) = &source.loaded else { break };
            let held = *source.held.get_or_insert_with(|| {
                self.held.push(batch.batch().clone());
                self.held.len() - 1
            });
            self.picks.push((held, source.row));
            self.bytes += weights.of_row(source.row);
            self.advance(winner).await?;
            let (sources, order_by) = (&self.sources, self.order_by);
            self.tree.replay(|a, b| precedes(sources, order_by, a, b));
        }
        if self.picks.is_empty() {
            return Ok(None);
        }
        let batches: Vec<&RecordBatch> = self.held.iter().collect();
        let batch = interleave_record_batch(&batches, &self.picks)?;
        self.held.clear();
        self.picks.clear();
        self.bytes = 0;
        self.sources.iter_mut().for_each(|source| source.held = None);
        // The merge is work of the processor: others get their turn.
        tokio::task::yield_now().await;
        Ok(Some(batch))
    }

    /// Moves on by a row, which must not come before the one that is left.
    async fn advance(&mut self, input: usize) -> Result<()> {
        let order_by = self.order_by;
        let Some(source) = self.sources.get_mut(input) else { return Ok(()) };
        let left = source.row;
        if let Some((batch, _)) = &source.loaded
            && left + 1 < batch.rows()
        {
            source.row += 1;
            return check(batch, left, batch, left + 1, order_by, input);
        }
        let Some((batch, _)) = source.loaded.take() else { return Ok(()) };
        let loaded = load(&mut source.rows, &self.schema, self.negligible).await?;
        if let Some((following, _)) = &loaded {
            check(&batch, left, following, 0, order_by, input)?;
        }
        (source.loaded, source.row, source.held) = (loaded, 0, None);
        Ok(())
    }
}

async fn load(
    rows: &mut BatchStream,
    schema: &SchemaRef,
    negligible: usize,
) -> Result<Option<(KeyedBatch, Weights)>> {
    while let Some(batch) = rows.try_next().await? {
        if batch.num_rows() > 0 {
            let weights = Weights::of(&batch, batch_bytes(&batch), negligible);
            return Ok(Some((KeyedBatch::try_new(batch, schema)?, weights)));
        }
    }
    Ok(None)
}

/// Refuses a row of an input that comes after one which it should precede.
fn check(
    one: &KeyedBatch,
    row: usize,
    other: &KeyedBatch,
    other_row: usize,
    order_by: OrderBy,
    input: usize,
) -> Result<()> {
    let keys = one.key(row).cmp(other.key(other_row));
    let order = keys.then_with(|| one.rank(row).compare(&other.rank(other_row), order_by));
    match order {
        Ordering::Greater => Err(Error::corrupt(format!(
            "input {input} of a merge: rows that should be sorted by key and order are not"
        ))),
        _ => Ok(()),
    }
}

/// Whether one source's head comes before another's; equal rows in the order of the inputs.
fn precedes(sources: &[Source], order_by: OrderBy, a: usize, b: usize) -> bool {
    match (sources[a].head(), sources[b].head()) {
        (Some((key, rank)), Some((other_key, other_rank))) => {
            let order = key.cmp(other_key).then_with(|| rank.compare(&other_rank, order_by));
            order.then(a.cmp(&b)).is_lt()
        }
        (one, other) => one.is_some() || (other.is_none() && a < b),
    }
}
