//! The tail of the log in memory: the winners of the commits after the snapshot, found by key at once.
//!
//! It is read once per commit, not once per question, and bounded in bytes; a longer tail is read from its files.

use std::sync::Arc;

use alluvium_log::{
    Error, FOLD_COLUMNS, FooterCache, Log, OrderBy, ReadSpec, Result, RowFilter, TableState,
    read_file,
};
use alluvium_materializer::{fold_batches, rank};
use arrow::array::{AsArray, RecordBatch, StringArray, UInt64Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use hashbrown::HashTable;
use quick_cache::DefaultHashBuilder;

/// Files of the tail that are read at the same time.
const READ_CONCURRENCY: usize = 8;

/// The rows of the commits (`from`, `to`], and which of them wins each key.
#[derive(Debug)]
pub(crate) struct Tail {
    from: i64,
    to: i64,
    /// The last erase that was through when it was begun: one that came later may have taken rows out.
    erased: i64,
    order_by: OrderBy,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    /// The keys of each batch, so that the table of winners needs no copy of them.
    keys: Vec<StringArray>,
    winners: HashTable<Place>,
    hasher: DefaultHashBuilder,
    batch_bytes: usize,
    /// The winners in order of keys, made when a scan first asks.
    sorted: Option<Arc<Vec<RecordBatch>>>,
}

/// The batch and the row of a winner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    batch: u32,
    row: u32,
}

impl Place {
    fn key(self, keys: &[StringArray]) -> &str {
        keys.get(self.batch as usize).map_or("", |keys| keys.value(self.row as usize))
    }
}

impl Tail {
    /// An empty tail after a commit.
    pub(crate) fn after(from: i64, erased: i64, order_by: OrderBy, schema: SchemaRef) -> Self {
        Self {
            from,
            to: from,
            erased,
            order_by,
            schema,
            batches: Vec::new(),
            keys: Vec::new(),
            winners: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            batch_bytes: 0,
            sorted: None,
        }
    }

    /// Whether it begins after this commit and erase and has these columns, so that it can be extended.
    pub(crate) fn continues(&self, from: i64, erased: i64, schema: &SchemaRef) -> bool {
        self.from == from && self.erased == erased && self.schema == *schema
    }

    /// Whether it holds the rows of precisely these commits, with these columns.
    pub(crate) fn is_of(&self, from: i64, to: i64, schema: &SchemaRef) -> bool {
        (self.from, self.to) == (from, to) && self.schema == *schema
    }

    /// The batch and the row of a key's winner.
    pub(crate) fn row_of(&self, key: &str) -> Option<(&RecordBatch, usize)> {
        let place = self.place_of(key)?;
        Some((self.batches.get(place.batch as usize)?, place.row as usize))
    }

    /// The last commit whose rows are in.
    pub(crate) fn to(&self) -> i64 {
        self.to
    }

    /// The bytes of the rows and of the table that finds them.
    pub(crate) fn bytes(&self) -> usize {
        self.batch_bytes + self.winners.allocation_size()
    }

    /// The winners of keys, in no order.
    pub(crate) fn get(&self, keys: &[&str]) -> Result<Vec<RecordBatch>> {
        let mut places: Vec<Place> = keys.iter().filter_map(|&key| self.place_of(key)).collect();
        places.sort_unstable();
        places.dedup();
        places
            .chunk_by(|a, b| a.batch == b.batch)
            .filter_map(|chunk| Some((self.batches.get(chunk.first()?.batch as usize)?, chunk)))
            .map(|(batch, chunk)| match chunk {
                [only] => Ok(batch.slice(only.row as usize, 1)),
                _ => {
                    let rows = chunk.iter().map(|place| u64::from(place.row));
                    Ok(take_record_batch(batch, &UInt64Array::from_iter_values(rows))?)
                }
            })
            .collect()
    }

    fn place_of(&self, key: &str) -> Option<Place> {
        let is_it = |place: &Place| place.key(&self.keys) == key;
        self.winners.find(self.hasher.hash_one(key), is_it).copied()
    }

    /// The winners in order of keys.
    pub(crate) fn sorted(&mut self) -> Result<Arc<Vec<RecordBatch>>> {
        if let Some(sorted) = &self.sorted {
            return Ok(sorted.clone());
        }
        let sorted = Arc::new(fold_batches(self.order_by, &self.schema, &self.batches)?);
        self.sorted = Some(sorted.clone());
        Ok(sorted)
    }

    /// Adds the rows of the commits up to `to`.
    fn add(&mut self, to: i64, batches: Vec<RecordBatch>) -> Result<()> {
        for batch in batches {
            let Some(keys) = batch.columns().first() else { continue };
            let count = number(batch.num_rows())?;
            let index = number(self.batches.len())?;
            self.batch_bytes += batch.get_array_memory_size();
            self.keys.push(keys.as_string::<i32>().clone());
            self.batches.push(batch);
            for row in 0..count {
                self.add_row(Place { batch: index, row })?;
            }
        }
        self.to = to;
        self.sorted = None;
        Ok(())
    }

    fn add_row(&mut self, place: Place) -> Result<()> {
        let (keys, hasher) = (&self.keys, &self.hasher);
        let key = place.key(keys);
        let hash = hasher.hash_one(key);
        let Some(known) = self.winners.find_mut(hash, |known| known.key(keys) == key) else {
            let hash_of = |known: &Place| hasher.hash_one(known.key(keys));
            self.winners.insert_unique(hash, place, hash_of);
            return Ok(());
        };
        let rank_of = |place: Place| match self.batches.get(place.batch as usize) {
            Some(batch) => rank(batch, place.row as usize),
            None => Err(Error::internal("a winner of the tail without its batch")),
        };
        if rank_of(place)?.compare(&rank_of(*known)?, self.order_by).is_gt() {
            *known = place;
        }
        Ok(())
    }

    /// Reads the commits that are not in yet; false when that would take more than `limit_bytes`.
    pub(crate) async fn extend(
        &mut self,
        log: &Log,
        state: &TableState,
        footers: &Arc<FooterCache>,
        limit_bytes: usize,
    ) -> Result<bool> {
        if state.version <= self.to {
            return Ok(true);
        }
        let spec = ReadSpec {
            // The basis's definition, not the newest: the log may have grown a field since.
            payload: self.schema.fields().iter().skip(FOLD_COLUMNS).cloned().collect(),
            filter: RowFilter {
                after_commit: Some(self.to),
                up_to_commit: Some(state.version),
                ..RowFilter::default()
            },
        };
        let files = log.files(state, &spec.filter).await?;
        let stored: u64 = files.iter().map(|file| file.add.size).sum();
        if usize::try_from(stored).unwrap_or(usize::MAX).saturating_add(self.bytes()) > limit_bytes
        {
            return Ok(false);
        }
        let spec = &spec;
        let mut reads = stream::iter(files)
            .map(|file| {
                async move {
                    read_file(log.table(), &file, spec, footers)
                        .await?
                        .try_collect::<Vec<_>>()
                        .await
                }
                .boxed()
            })
            .buffered(READ_CONCURRENCY);
        let (mut rows, mut bytes) = (Vec::new(), self.bytes());
        while let Some(batches) = reads.try_next().await? {
            bytes += batches.iter().map(RecordBatch::get_array_memory_size).sum::<usize>();
            if bytes > limit_bytes {
                return Ok(false);
            }
            rows.extend(batches);
        }
        drop(reads);
        self.add(state.version, rows)?;
        Ok(true)
    }
}

fn number(count: usize) -> Result<u32> {
    u32::try_from(count)
        .map_err(|error| Error::internal("more rows than can be numbered").with_source(error))
}
