//! Writing the files of a snapshot: a sorted stream of winners in, uploaded files out, in bounded memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_log::{
    Action, DELETE, EncodedParts, Error, FileAdd, Log, Result, STATE_VALUE, TAG_CHECK, TAG_SORTED,
    TIER, Table, encode_parquet_parts, statistics_of,
};
use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, SchemaRef, TimestampMicrosecondType};
use futures::{FutureExt, Stream, StreamExt, TryStreamExt};

use crate::fold::batch_bytes;
use crate::hash::{RowsHash, hash_rows};
use crate::snapshot::{
    TAG_DECODED, TAG_HASH, TAG_LEAST_TOMBSTONE, TAG_LOG_COMMIT, TAG_MAX_COMMIT, TAG_MAX_EVENT_TIME,
    TAG_MAX_VERSION, TAG_MIN_KEY, TAG_TOMBSTONES,
};
use crate::thread::OwnThread;

/// A least key up to this length stands whole in the statistics.
const MAX_PLAIN_MIN_KEY: usize = 256;
/// Files that are encoded and uploaded at the same time.
pub(crate) const WRITE_CONCURRENCY: usize = 2;

/// The threads that encode files, one for each that is under way.
#[derive(Debug)]
pub(crate) struct Encoders([OwnThread; WRITE_CONCURRENCY]);

impl Default for Encoders {
    fn default() -> Self {
        Self([(); WRITE_CONCURRENCY].map(|()| OwnThread::new("alluvium-encode")))
    }
}

impl Encoders {
    /// Encodes the file with a number, beside the one before and the one after it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        index: usize,
        encode: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.0[index % WRITE_CONCURRENCY].run(encode).await
    }
}

/// Where files go and what is noted with them.
#[derive(Debug, Clone)]
pub(crate) struct FileWriter {
    pub(crate) table: Arc<Table>,
    pub(crate) log: Log,
    /// The columns of a file.
    pub(crate) schema: SchemaRef,
    pub(crate) tier: &'static str,
    pub(crate) log_commit: i64,
    /// Unique to this materialization, so that names never collide.
    pub(crate) run_id: String,
}

impl FileWriter {
    /// Writes what each chunk holds as a file; see [`chunks`].
    pub(crate) async fn write(
        &self,
        chunks: impl Stream<Item = Result<Vec<RecordBatch>>>,
    ) -> Result<Vec<FileAdd>> {
        let encoders = &Encoders::default();
        let write = |(index, chunk): (usize, Result<Vec<RecordBatch>>)| {
            async move { self.write_file(chunk?, index, encoders).await }.boxed()
        };
        let files: Vec<Option<FileAdd>> =
            chunks.enumerate().map(write).buffered(WRITE_CONCURRENCY).try_collect().await?;
        Ok(files.into_iter().flatten().collect())
    }

    async fn write_file(
        &self,
        batches: Vec<RecordBatch>,
        index: usize,
        encoders: &Encoders,
    ) -> Result<Option<FileAdd>> {
        let schema = self.schema.clone();
        let encoded = encoders.run(index, move || encode(batches, &schema)).await?;
        let Some(file) = encoded else { return Ok(None) };
        let path = format!("{TIER}={}/{}-{index}.parquet", self.tier, self.run_id);
        let size = file.parquet.bytes.content_length() as u64;
        self.table.put_new(&path, file.parquet.bytes).await?;
        metrics::counter!(crate::metrics::BYTES_WRITTEN).increment(size);
        let mut tags = file.tags;
        tags.insert(TAG_CHECK.to_owned(), file.parquet.check);
        tags.insert(TAG_SORTED.to_owned(), "true".to_owned());
        tags.insert(TAG_LOG_COMMIT.to_owned(), self.log_commit.to_string());
        Ok(Some(FileAdd {
            path,
            size,
            partition: BTreeMap::from([(TIER.to_owned(), Some(self.tier.to_owned()))]),
            modified_ms: self.log.clock().now_ms(),
            data_change: true,
            stats: Some(file.stats),
            tags,
        }))
    }
}

/// The actions that make files part of the table.
pub(crate) fn add_actions(files: Vec<FileAdd>) -> impl Iterator<Item = Action> {
    files.into_iter().map(|file| Action::Add(Arc::new(file)))
}

struct Encoded {
    parquet: EncodedParts,
    stats: String,
    tags: BTreeMap<String, String>,
}

fn encode(batches: Vec<RecordBatch>, schema: &SchemaRef) -> Result<Option<Encoded>> {
    let Some(first) = batches.first() else { return Ok(None) };
    let (mut hash, mut tombstones, mut least_tombstone) = (RowsHash::default(), 0_usize, i64::MAX);
    let (mut version, mut event_time, mut commit) = (i64::MIN, i64::MIN, i64::MIN);
    for batch in &batches {
        hash = hash.and(hash_rows(batch)?);
        version = version.max(greatest(column(batch, 1)?.as_primitive::<Int64Type>().values()));
        let times = column(batch, 2)?.as_primitive::<TimestampMicrosecondType>();
        event_time = event_time.max(greatest(times.values()));
        for (operation, time) in column(batch, 3)?.as_string::<i32>().iter().zip(times.values()) {
            if operation == Some(DELETE) {
                tombstones += 1;
                least_tombstone = least_tombstone.min(*time);
            }
        }
        commit = commit.max(greatest(column(batch, 4)?.as_primitive::<Int64Type>().values()));
    }
    let decoded: usize = batches.iter().map(batch_bytes).sum();
    let stats = statistics_of(&batches)?.to_string();
    let mut tags = BTreeMap::from([
        (TAG_MAX_VERSION.to_owned(), version.to_string()),
        (TAG_MAX_EVENT_TIME.to_owned(), event_time.to_string()),
        (TAG_MAX_COMMIT.to_owned(), commit.to_string()),
        (TAG_TOMBSTONES.to_owned(), tombstones.to_string()),
        (TAG_HASH.to_owned(), hash.to_text()),
        (TAG_DECODED.to_owned(), decoded.to_string()),
    ]);
    if tombstones > 0 {
        tags.insert(TAG_LEAST_TOMBSTONE.to_owned(), least_tombstone.to_string());
    }
    // Ranges of base files are told apart by their least keys, so these must be whole.
    let with_rows = batches.iter().find(|batch| batch.num_rows() > 0).unwrap_or(first);
    let least =
        column(with_rows, 0)?.as_string::<i32>().iter().flatten().next().unwrap_or_default();
    if least.len() > MAX_PLAIN_MIN_KEY {
        tags.insert(TAG_MIN_KEY.to_owned(), least.to_owned());
    }
    // In place of the rows, so that each batch goes as soon as it is encoded.
    let stored =
        batches.into_iter().map(|batch| to_file_columns(&batch, schema)).collect::<Result<_>>()?;
    Ok(Some(Encoded { parquet: encode_parquet_parts(stored)?, stats, tags }))
}

fn greatest(values: &[i64]) -> i64 {
    values.iter().copied().max().unwrap_or(i64::MIN)
}

fn column(batch: &RecordBatch, index: usize) -> Result<&ArrayRef> {
    batch.columns().get(index).ok_or_else(|| Error::internal("a batch lacks the columns of a fold"))
}

/// From the shape of a fold to the columns of a snapshot file.
fn to_file_columns(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let value = batch
        .column_by_name(STATE_VALUE)
        .ok_or_else(|| Error::internal("a snapshot row has no state_value"))?;
    let mut columns: Vec<ArrayRef> = batch.columns().iter().take(4).cloned().collect();
    columns.push(value.clone());
    columns.push(column(batch, 5)?.clone());
    columns.push(column(batch, 4)?.clone());
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}
