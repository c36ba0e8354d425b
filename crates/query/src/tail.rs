//! The tail of the log in memory: the winners of the commits after the snapshot, found by key at once.
//!
//! It is read once per commit, not once per question, and bounded in bytes; a longer tail is read from its files.

use std::collections::HashMap;
use std::sync::Arc;

use alluvium_log::{
    FOLD_COLUMNS, FooterCache, Log, OrderBy, ReadSpec, Result, RowFilter, TableState, read_file,
};
use alluvium_materializer::{fold_batches, log_files, rank};
use arrow::array::{AsArray, RecordBatch, UInt64Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

/// Files of the tail that are read at the same time.
const READ_CONCURRENCY: usize = 8;

/// The rows of the commits (`from`, `to`], and which of them wins each key.
#[derive(Debug)]
pub(crate) struct Tail {
    from: i64,
    to: i64,
    order_by: OrderBy,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    winners: HashMap<String, (usize, usize)>,
    bytes: usize,
    /// The winners in order of keys, made when a scan first asks.
    sorted: Option<Arc<Vec<RecordBatch>>>,
}

impl Tail {
    /// An empty tail after a commit.
    pub(crate) fn after(from: i64, order_by: OrderBy, schema: SchemaRef) -> Self {
        Self {
            from,
            to: from,
            order_by,
            schema,
            batches: Vec::new(),
            winners: HashMap::new(),
            bytes: 0,
            sorted: None,
        }
    }

    /// Whether it begins after this commit and has these columns, so that it can be extended.
    pub(crate) fn continues(&self, from: i64, schema: &SchemaRef) -> bool {
        self.from == from && self.schema == *schema
    }

    /// The last commit whose rows are in.
    pub(crate) fn to(&self) -> i64 {
        self.to
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The winners of keys, in no order.
    pub(crate) fn get(&self, keys: &[&str]) -> Result<Vec<RecordBatch>> {
        let mut places: Vec<(usize, usize)> =
            keys.iter().filter_map(|&key| self.winners.get(key).copied()).collect();
        places.sort_unstable();
        places.dedup();
        places
            .chunk_by(|a, b| a.0 == b.0)
            .filter_map(|chunk| Some((self.batches.get(chunk.first()?.0)?, chunk)))
            .map(|(batch, chunk)| match chunk {
                [(_, row)] => Ok(batch.slice(*row, 1)),
                _ => {
                    let rows = chunk.iter().map(|&(_, row)| row as u64);
                    Ok(take_record_batch(batch, &UInt64Array::from_iter_values(rows))?)
                }
            })
            .collect()
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
            let index = self.batches.len();
            self.bytes += batch.get_array_memory_size();
            let Some(keys) = batch.columns().first() else { continue };
            for (row, key) in keys.as_string::<i32>().iter().enumerate() {
                let key = key.unwrap_or_default();
                self.bytes += 64;
                match self.winners.get_mut(key) {
                    None => {
                        self.bytes += key.len() + 64;
                        self.winners.insert(key.to_owned(), (index, row));
                    }
                    Some(place) => {
                        let known = match self.batches.get(place.0) {
                            Some(earlier) => rank(earlier, place.1)?,
                            None => rank(&batch, place.1)?,
                        };
                        if rank(&batch, row)?.compare(&known, self.order_by).is_gt() {
                            *place = (index, row);
                        }
                    }
                }
            }
            self.batches.push(batch);
        }
        self.to = to;
        self.sorted = None;
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
        let files = log_files(state, &spec.filter);
        let stored: u64 = files.iter().map(|file| file.add.size).sum();
        if usize::try_from(stored).unwrap_or(usize::MAX).saturating_add(self.bytes) > limit_bytes {
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
        let (mut rows, mut bytes) = (Vec::new(), self.bytes);
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
