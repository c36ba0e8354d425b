//! From checked rows to the bytes of Parquet files: sorted by key and order, one file per day, with the statistics
//! that Delta's log carries.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, Int32Array, RecordBatch, StringArray, UInt32Array, new_null_array,
};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Fields, Int64Type, SchemaRef, TimestampMicrosecondType};
use bytes::Bytes;
use object_store::PutPayload;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;
use serde_json::json;

use crate::checksum::{blocks_entry, file_check};
use crate::columns::{
    APPEND_ID, APPEND_SEQ, COMMIT, DELETE, DT, EVENT_TIME, OP_TYPE, STATE_KEY, VERSION, log_schema,
};
use crate::compression::{SAMPLE_ROWS, field_plans, key_plan};
use crate::error::{Error, ErrorKind, Result};
use crate::order::{OrderBy, Rank};
use crate::rows::MAX_EVENT_TIME;

/// Days that the rows of one append may span: each is a file of its own.
pub const MAX_DAYS_PER_APPEND: usize = 1_024;
/// Rows from which a bloom filter on the key pays.
const BLOOM_MIN_ROWS: usize = 2_048;
/// Rows from which compression pays.
const COMPRESS_MIN_ROWS: usize = 64;
/// Rows of a row group.
pub const ROW_GROUP_ROWS: usize = 131_072;
/// Rows of a data page: what a point read decodes.
pub const PAGE_ROWS: usize = 2_048;
/// Bytes of a column's dictionary at most: a point read decodes the whole dictionary for the sake of one row.
const DICTIONARY_BYTES: usize = 16 * 1024;
/// Longest key that stands in a file's statistics as it is.
const MAX_STATISTICS_KEY: usize = 256;
pub(crate) const MICROS_PER_DAY: i64 = 86_400_000_000;

/// A file ready to be written.
#[derive(Debug, Clone)]
pub(crate) struct EncodedFile {
    pub(crate) dt: String,
    pub(crate) parquet: EncodedParquet,
    pub(crate) stats: String,
}

/// A Parquet file in memory.
#[derive(Debug, Clone)]
pub struct EncodedParquet {
    /// All of it.
    pub bytes: Bytes,
    /// What its `add` has to carry as [`TAG_CHECK`](crate::TAG_CHECK), so that damage is found when it is read.
    pub check: String,
}

/// A Parquet file in memory, in parts.
#[derive(Debug, Clone)]
pub struct EncodedParts {
    /// All of it.
    pub bytes: PutPayload,
    /// As [`EncodedParquet::check`].
    pub check: String,
}

/// Encodes rows (of [`crate::rows::rows_schema`]) as one file per day; also tells the greatest `append_seq` used.
pub(crate) fn encode_rows(
    rows: &RecordBatch,
    order_by: OrderBy,
    append_id: &str,
    first_seq: i32,
) -> Result<(Vec<EncodedFile>, i32)> {
    let mut files = Vec::new();
    let mut greatest = first_seq;
    for (day, indices) in split_by_day(rows)? {
        let sorted = sort_rows(rows, order_by, indices)?;
        let seq = number_ties(&sorted, first_seq)?;
        greatest = greatest.max(seq.values().iter().copied().max().unwrap_or(first_seq));
        let batch = with_bookkeeping(&sorted, append_id, seq)?;
        let stats = statistics(&batch)?;
        files.push(EncodedFile {
            dt: day_text(day)?,
            parquet: encode_parquet(std::slice::from_ref(&batch))?,
            stats: stats.to_string(),
        });
    }
    Ok((files, greatest))
}

fn day_text(day: i64) -> Result<String> {
    chrono::DateTime::from_timestamp(day * 86_400, 0)
        .map(|time| time.format("%Y-%m-%d").to_string())
        .ok_or_else(|| Error::internal(format!("day {day} is outside of the calendar")))
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| Error::internal(format!("no column {name}")))
}

fn split_by_day(rows: &RecordBatch) -> Result<BTreeMap<i64, Vec<u32>>> {
    let times = column(rows, EVENT_TIME)?.as_primitive::<TimestampMicrosecondType>();
    let mut days: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    let mut current: Option<(i64, Vec<u32>)> = None;
    for (row, time) in times.values().iter().enumerate() {
        let day = time.div_euclid(MICROS_PER_DAY);
        let row = u32::try_from(row).map_err(|_| too_many_rows())?;
        match &mut current {
            Some((known, list)) if *known == day => list.push(row),
            _ => {
                if let Some((known, list)) = current.take() {
                    days.insert(known, list);
                }
                let mut list = days.remove(&day).unwrap_or_default();
                list.push(row);
                current = Some((day, list));
            }
        }
    }
    if let Some((known, list)) = current {
        days.insert(known, list);
    }
    Ok(days)
}

fn too_many_rows() -> Error {
    Error::new(ErrorKind::LimitExceeded, "an append may have 2^32 rows at most: split it")
}

/// Sorts the given rows by key, then by rank, rows of equal rank in the order given.
fn sort_rows(rows: &RecordBatch, order_by: OrderBy, mut indices: Vec<u32>) -> Result<RecordBatch> {
    if indices.len() == rows.num_rows() && rows.num_rows() <= 1 {
        return Ok(rows.clone());
    }
    let keys = column(rows, STATE_KEY)?.as_string::<i32>();
    let versions = column(rows, VERSION)?.as_primitive::<Int64Type>();
    let times = column(rows, EVENT_TIME)?.as_primitive::<TimestampMicrosecondType>();
    let operations = column(rows, OP_TYPE)?.as_string::<i32>();
    let rank = |row: u32| {
        let index = row as usize;
        Rank {
            version: versions.value(index),
            event_time: times.value(index),
            is_delete: operations.value(index) == DELETE,
            commit: 0,
            append_seq: 0,
        }
    };
    let shared = shared_prefix(keys, &indices);
    let mut keyed: Vec<(u64, u32)> =
        indices.iter().map(|&row| (prefix(keys.value(row as usize), shared), row)).collect();
    let compare = |a: &(u64, u32), b: &(u64, u32)| {
        a.0.cmp(&b.0)
            .then_with(|| keys.value(a.1 as usize).cmp(keys.value(b.1 as usize)))
            .then_with(|| rank(a.1).compare(&rank(b.1), order_by))
            .then_with(|| a.1.cmp(&b.1))
    };
    if keyed.is_sorted_by(|a, b| compare(a, b).is_lt()) {
        if indices.len() == rows.num_rows() {
            return Ok(rows.clone());
        }
    } else {
        // Plain numbers sort fastest; only what they leave undecided is sorted by all that counts.
        keyed.sort_unstable();
        for tied in keyed.chunk_by_mut(|a, b| a.0 == b.0) {
            if tied.len() > 1 {
                tied.sort_unstable_by(compare);
            }
        }
        indices = keyed.into_iter().map(|(_, row)| row).collect();
    }
    Ok(take_record_batch(rows, &UInt32Array::from(indices))?)
}

/// How many leading bytes all keys share: what follows them tells keys apart.
fn shared_prefix(keys: &StringArray, indices: &[u32]) -> usize {
    let Some(&first) = indices.first() else { return 0 };
    let first = keys.value(first as usize).as_bytes();
    let mut shared = first.len();
    for &row in indices {
        let key = keys.value(row as usize).as_bytes();
        let same = first.iter().zip(key).take(shared).take_while(|(a, b)| a == b).count();
        shared = shared.min(same);
        if shared == 0 {
            break;
        }
    }
    shared
}

/// The next eight bytes of a key after the shared ones, as a number that orders as they do.
fn prefix(key: &str, shared: usize) -> u64 {
    let rest = key.as_bytes().get(shared..).unwrap_or_default();
    let mut eight = [0_u8; 8];
    let length = rest.len().min(8);
    eight[..length].copy_from_slice(&rest[..length]);
    u64::from_be_bytes(eight)
}

/// Numbers the rows that are equal in key, version, event time and operation.
fn number_ties(sorted: &RecordBatch, first: i32) -> Result<Int32Array> {
    let keys = column(sorted, STATE_KEY)?.as_string::<i32>();
    let versions = column(sorted, VERSION)?.as_primitive::<Int64Type>().values();
    let times = column(sorted, EVENT_TIME)?.as_primitive::<TimestampMicrosecondType>().values();
    let operations = column(sorted, OP_TYPE)?.as_string::<i32>();
    let mut numbers = Vec::with_capacity(sorted.num_rows());
    for row in 0..sorted.num_rows() {
        let tied = row > 0
            && versions[row] == versions[row - 1]
            && times[row] == times[row - 1]
            && keys.value(row) == keys.value(row - 1)
            && operations.value(row) == operations.value(row - 1);
        let next = match (tied, numbers.last()) {
            (true, Some(&last)) => i32::checked_add(last, 1).ok_or_else(too_many_rows)?,
            _ => first,
        };
        numbers.push(next);
    }
    Ok(Int32Array::from(numbers))
}

fn with_bookkeeping(sorted: &RecordBatch, append_id: &str, seq: Int32Array) -> Result<RecordBatch> {
    let rows = sorted.num_rows();
    let schema_ref = sorted.schema_ref();
    let fields: Fields = match schema_ref.field(4).data_type() {
        DataType::Struct(fields) => fields.clone(),
        _ => return Err(Error::internal("state_value is not a struct")),
    };
    let mut columns = sorted.columns().to_vec();
    columns.push(Arc::new(StringArray::from_iter_values(std::iter::repeat_n(append_id, rows))));
    columns.push(Arc::new(seq));
    columns.push(new_null_array(&DataType::Int64, rows));
    Ok(RecordBatch::try_new(log_schema(&fields), columns)?)
}

/// Delta's statistics of the four leading columns of rows sorted by key.
pub fn statistics(sorted: &RecordBatch) -> Result<serde_json::Value> {
    statistics_of(std::slice::from_ref(sorted))
}

/// The same of rows that come in batches, one after the other.
pub fn statistics_of(sorted: &[RecordBatch]) -> Result<serde_json::Value> {
    let with_rows = || sorted.iter().filter(|batch| batch.num_rows() > 0);
    let (Some(first), Some(last)) = (with_rows().next(), with_rows().next_back()) else {
        return Ok(json!({ "numRecords": 0 }));
    };
    let rows: usize = sorted.iter().map(RecordBatch::num_rows).sum();
    let (mut low, mut high, mut early, mut late) = (i64::MAX, i64::MIN, i64::MAX, i64::MIN);
    let (mut min_op, mut max_op): (Option<&str>, Option<&str>) = (None, None);
    for batch in with_rows() {
        let of_batch = bounds(column(batch, VERSION)?.as_primitive::<Int64Type>().values());
        (low, high) = (low.min(of_batch.0), high.max(of_batch.1));
        let times = column(batch, EVENT_TIME)?.as_primitive::<TimestampMicrosecondType>();
        let of_batch = bounds(times.values());
        (early, late) = (early.min(of_batch.0), late.max(of_batch.1));
        for operation in column(batch, OP_TYPE)?.as_string::<i32>().iter().flatten() {
            min_op = Some(min_op.map_or(operation, |known| known.min(operation)));
            max_op = Some(max_op.map_or(operation, |known| known.max(operation)));
        }
    }
    let mut min = json!({
        VERSION: low,
        EVENT_TIME: millisecond_text(early.div_euclid(1_000))?,
        OP_TYPE: min_op.unwrap_or_default(),
    });
    let mut max = json!({
        VERSION: high,
        // Rounded up, except where that would leave the calendar; readers allow for a millisecond anyway.
        EVENT_TIME: millisecond_text(
            (late.div_euclid(1_000) + i64::from(late.rem_euclid(1_000) != 0)).min(MAX_EVENT_TIME / 1_000),
        )?,
        OP_TYPE: max_op.unwrap_or_default(),
    });
    min[STATE_KEY] = json!(cut(column(first, STATE_KEY)?.as_string::<i32>().value(0)));
    let greatest = column(last, STATE_KEY)?.as_string::<i32>().value(last.num_rows() - 1);
    if greatest.len() <= MAX_STATISTICS_KEY {
        max[STATE_KEY] = json!(greatest);
    }
    Ok(json!({
        "numRecords": rows,
        "minValues": min,
        "maxValues": max,
        "nullCount": { STATE_KEY: 0, VERSION: 0, EVENT_TIME: 0, OP_TYPE: 0 },
    }))
}

fn bounds(values: &[i64]) -> (i64, i64) {
    values.iter().fold((i64::MAX, i64::MIN), |(low, high), &v| (low.min(v), high.max(v)))
}

fn cut(key: &str) -> &str {
    let mut end = key.len().min(MAX_STATISTICS_KEY);
    while !key.is_char_boundary(end) {
        end -= 1;
    }
    &key[..end]
}

fn millisecond_text(ms: i64) -> Result<String> {
    chrono::DateTime::from_timestamp_millis(ms)
        .map(|time| time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true))
        .ok_or_else(|| Error::internal(format!("{ms} ms is outside of the calendar")))
}

/// Encodes batches of one schema, sorted by key, as one Parquet file in memory.
pub fn encode_parquet(batches: &[RecordBatch]) -> Result<EncodedParquet> {
    let mut writer = ArrowWriter::try_new(Vec::new(), schema(batches)?, properties(batches)?)?;
    for batch in batches {
        writer.write(batch)?;
    }
    let blocks = sum_up(&mut writer, |bytes| blocks_entry(std::iter::once(bytes.as_slice())))?;
    let bytes: Bytes = writer.into_inner()?.into();
    let check = file_check(std::iter::once(bytes.as_ref()), blocks);
    Ok(EncodedParquet { bytes, check })
}

/// The same for many rows in little memory: each batch is let go of once it is encoded, and the file comes in parts, so that no
/// large piece of memory is taken, doubled and given back.
pub fn encode_parquet_parts(batches: Vec<RecordBatch>) -> Result<EncodedParts> {
    let (schema, properties) = (schema(&batches)?, properties(&batches)?);
    let mut writer = ArrowWriter::try_new(Parts::default(), schema, properties)?;
    for batch in batches {
        writer.write(&batch)?;
    }
    let blocks = sum_up(&mut writer, |parts| blocks_entry(parts.iter()))?;
    let parts = writer.into_inner()?;
    let check = file_check(parts.iter(), blocks);
    Ok(EncodedParts { bytes: parts.finish(), check })
}

/// Notes the sums of blocks in the footer that is to be written, and tells how many there are.
fn sum_up<W: Write + Send>(
    writer: &mut ArrowWriter<W>,
    blocks: impl Fn(&W) -> Option<(usize, KeyValue)>,
) -> Result<usize> {
    writer.flush()?;
    // What is buffered has to lie in the file for its blocks to be summed up.
    writer.sync().map_err(|error| Error::internal("encoding in memory").with_source(error))?;
    let Some((count, entry)) = blocks(writer.inner()) else { return Ok(0) };
    writer.append_key_value_metadata(entry);
    Ok(count)
}

fn schema(batches: &[RecordBatch]) -> Result<SchemaRef> {
    let first = batches.first().ok_or_else(|| Error::internal("no rows to encode"))?;
    Ok(first.schema())
}

fn properties(batches: &[RecordBatch]) -> Result<Option<WriterProperties>> {
    let Some(first) = batches.first() else { return Ok(None) };
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    Ok(Some(writer_properties(first, rows, distinct_keys(batches)?)))
}

/// Bytes of one part of an encoded file: whole blocks of those that have checksums.
const PART_BYTES: usize = 256 * 1024;

/// A file in memory in parts.
#[derive(Debug, Default)]
struct Parts {
    done: Vec<Bytes>,
    open: Vec<u8>,
}

impl Parts {
    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.done.iter().map(AsRef::as_ref).chain([self.open.as_slice()])
    }

    fn finish(mut self) -> PutPayload {
        self.done.push(self.open.into());
        PutPayload::from_iter(self.done)
    }
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = bytes.len().min(PART_BYTES - self.open.len());
        self.open.extend_from_slice(&bytes[..count]);
        if self.open.len() == PART_BYTES {
            self.done.push(std::mem::take(&mut self.open).into());
        }
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn distinct_keys(batches: &[RecordBatch]) -> Result<usize> {
    let mut distinct = 0;
    let mut last: Option<&str> = None;
    for batch in batches {
        for key in column(batch, STATE_KEY)?.as_string::<i32>().iter().flatten() {
            if last != Some(key) {
                distinct += 1;
                last = Some(key);
            }
        }
    }
    Ok(distinct)
}

/// How files are written: by size, and by what their columns hold.
pub fn writer_properties(
    sample: &RecordBatch,
    rows: usize,
    distinct_keys: usize,
) -> WriterProperties {
    let mut builder = WriterProperties::builder()
        .set_created_by(concat!("alluvium version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_write_batch_size(1_024)
        .set_statistics_truncate_length(Some(64))
        .set_dictionary_page_size_limit(DICTIONARY_BYTES);
    if rows >= COMPRESS_MIN_ROWS {
        builder = builder.set_compression(Compression::ZSTD(ZstdLevel::default()));
    }
    let key = ColumnPath::from(STATE_KEY);
    let has_plain_keys = distinct_keys.saturating_mul(2) > rows;
    if has_plain_keys {
        builder = builder.set_column_dictionary_enabled(key.clone(), false);
    }
    if rows >= BLOOM_MIN_ROWS {
        builder = builder
            .set_column_bloom_filter_enabled(key.clone(), true)
            .set_column_bloom_filter_fpp(key.clone(), 0.01)
            .set_column_bloom_filter_max_ndv(key, distinct_keys.min(ROW_GROUP_ROWS) as u64);
    }
    for name in [VERSION, EVENT_TIME, COMMIT] {
        builder = builder
            .set_column_dictionary_enabled(ColumnPath::from(name), false)
            .set_column_encoding(ColumnPath::from(name), Encoding::DELTA_BINARY_PACKED);
    }
    // Their encodings leave nothing for a compression to take: it would only cost the readers.
    for name in [VERSION, EVENT_TIME, OP_TYPE, APPEND_ID, APPEND_SEQ, COMMIT] {
        builder = builder.set_column_compression(ColumnPath::from(name), Compression::UNCOMPRESSED);
    }
    if rows >= SAMPLE_ROWS {
        let of_key = has_plain_keys.then(|| key_plan(sample)).flatten();
        for plan in of_key.into_iter().chain(field_plans(sample)) {
            builder = plan.apply(builder);
        }
    }
    builder = lean_columns(builder, sample);
    builder
        .set_sorting_columns(Some(vec![SortingColumn {
            column_idx: 0,
            descending: false,
            nulls_first: false,
        }]))
        .build()
}

/// Statistics only where somebody prunes by them: the leading columns by page, the value's by row group.
fn lean_columns(
    mut builder: WriterPropertiesBuilder,
    sample: &RecordBatch,
) -> WriterPropertiesBuilder {
    for name in [APPEND_ID, APPEND_SEQ, COMMIT, DT] {
        if sample.column_by_name(name).is_some() {
            builder = builder
                .set_column_statistics_enabled(ColumnPath::from(name), EnabledStatistics::None);
        }
    }
    builder
}

#[cfg(test)]
mod tests;
