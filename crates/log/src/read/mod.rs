//! Reading the rows of one file in the shape that a fold works on, touching as little of the file as the filter
//! allows: file statistics, bloom filter, row groups, pages, rows.

mod breakdown;
mod claims;
mod fetched;
mod filter;
mod hints;
mod key_pages;
mod keys;
mod known;
mod page_spill;
mod pages;
mod prune;
mod ranges;
mod shape;
mod thrift;
mod upserts;
mod windows;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use parquet::bloom_filter::Sbbf;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use parquet::file::statistics::Statistics;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::checksum::BlockSums;
use crate::columns::{APPEND_ID, OP_TYPE, STATE_KEY, STATE_VALUE, UPSERT, fold_schema};
use crate::error::{Error, ErrorKind, Result};
use crate::table::{DataFile, FileCommits, Table};
use breakdown::decode_next;
pub(crate) use breakdown::decode_stream;
pub use breakdown::{decode, decode_all};
pub use filter::{KeyFilter, RowFilter};
use hints::Leading;
pub use hints::{FieldBounds, FieldValue, ReadHints};
use key_pages::KeyPageIndex;
pub use keys::read_keys;
pub use known::{KnownRow, LookupFile};
pub use page_spill::DEFAULT_PAGE_SPILL_BYTES;
pub use pages::{DEFAULT_PAGE_CACHE_BYTES, PageCache, PageCacheStats};
use prune::Pruner;
use ranges::Metadata;
pub(crate) use ranges::RangeReader;
use shape::shape;
pub use shape::unread_column;
pub use upserts::{holds_only_upserts, is_upsert_column, upsert_column};
use windows::read_in_windows;

/// Batches of rows.
pub type RowStream = BoxStream<'static, Result<RecordBatch>>;

/// Files up to this size are fetched whole, with one request.
const WHOLE_FILE_BYTES: u64 = 256 * 1024;
/// Files of more rows are decoded as they are read, also when they are fetched whole.
const WHOLE_FILE_ROWS: usize = 1 << 18;
/// Footers kept in memory, in bytes.
pub const DEFAULT_FOOTER_CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// Rows of a batch.
pub const BATCH_ROWS: usize = 8_192;

/// A file's footer and page index, and its bloom filters once asked for.
#[derive(Debug)]
struct Footer {
    /// Of this footer alone, as long as the process lives.
    id: u64,
    metadata: ArrowReaderMetadata,
    key_pages: KeyPageIndex,
    blooms: OnceLock<Arc<Vec<Option<Sbbf>>>>,
    /// The sums of the file's blocks, if it has any.
    blocks: Option<Arc<BlockSums>>,
    /// The statistics say that every row is an UPSERT: the column need not be read.
    only_upserts: bool,
}

#[derive(Debug, Clone)]
struct FooterWeight;

impl Weighter<String, Arc<Footer>> for FooterWeight {
    fn weight(&self, path: &String, footer: &Arc<Footer>) -> u64 {
        // Bloom filters come on top later: about ten bits a row.
        let metadata = footer.metadata.metadata();
        let rows = u64::try_from(metadata.file_metadata().num_rows()).unwrap_or(0);
        let blocks = footer.blocks.as_ref().map_or(0, |blocks| blocks.memory_size());
        (path.len() + metadata.memory_size()) as u64 + blocks + rows * 5 / 4
    }
}

/// Footers of files that were read, bounded in bytes. Files never change, so neither do these.
#[derive(Debug)]
pub struct FooterCache {
    entries: Cache<String, Arc<Footer>, FooterWeight>,
}

impl FooterCache {
    /// A cache of at most so many bytes.
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { entries: Cache::with_weighter(1_024, bytes, FooterWeight) })
    }
}

/// What to read of a file.
#[derive(Debug, Clone)]
pub struct ReadSpec {
    /// What follows the deciding columns: `state_value`, whole or with some of its fields, and `append_id`; or nothing.
    pub payload: Vec<FieldRef>,
    /// Which rows.
    pub filter: RowFilter,
}

impl ReadSpec {
    /// The schema of the batches that come of it.
    pub fn schema(&self) -> SchemaRef {
        fold_schema(&self.payload)
    }
}

/// Reads the wanted rows of a file. Rows come in the order of the file.
pub async fn read_file(
    table: &Table,
    file: &Arc<DataFile>,
    spec: &ReadSpec,
    footers: &Arc<FooterCache>,
) -> Result<RowStream> {
    read_file_with(table, file, spec, &ReadHints::default(), footers).await
}

/// The same, leaving out what hints allow.
pub async fn read_file_with(
    table: &Table,
    file: &Arc<DataFile>,
    spec: &ReadSpec,
    hints: &ReadHints,
    footers: &Arc<FooterCache>,
) -> Result<RowStream> {
    let table = file.home(table);
    check_span(table, file, &spec.filter)?;
    if !spec.filter.may_match(file) {
        return Ok(stream::empty().boxed());
    }
    let leading = Leading::of(hints, &spec.filter, file);
    // Only of files that we wrote it is known that their statistics can be compared.
    let bounds: &[FieldBounds] = if file.is_sorted() { &hints.bounds } else { &[] };
    let place = format!("table {}, file {}", table.label(), file.add.path);
    let opened = if is_small(file) && !is_known_lookup(table, file, spec, footers) {
        read_whole(table, file, spec, (leading, bounds), footers).await
    } else {
        let window_rows = hints.window_rows.filter(|_| file.is_sorted());
        read_parts(table, file, spec, (leading, bounds), window_rows, footers).await
    };
    let (raw, only_upserts) = opened.map_err(|error| gone(error, file).context(&place))?;
    let (file, spec) = (file.clone(), spec.clone());
    let exact = spec.filter.matches_all(&file);
    let rows = raw.map(move |batch| {
        let batch = batch.map_err(|error| gone(error, &file).context(&place))?;
        let shaped = shape(&batch, &file, &spec, leading, only_upserts)
            .map_err(|error| error.context(&place))?;
        if exact {
            return Ok(shaped);
        }
        let mask = spec.filter.mask(&shaped)?;
        Ok(if mask.true_count() == shaped.num_rows() {
            shaped
        } else {
            filter_record_batch(&shaped, &mask)?
        })
    });
    Ok(rows.try_filter(|batch| std::future::ready(batch.num_rows() > 0)).boxed())
}

/// Whether a file is fetched whole rather than in parts.
fn is_small(file: &DataFile) -> bool {
    file.add.size <= WHOLE_FILE_BYTES
}

/// Whether keys are looked up in a file whose footer is known to lead to bloom filters: these answer for most keys
/// that aren't in the file, so even a small one is not fetched whole.
fn is_known_lookup(table: &Table, file: &DataFile, spec: &ReadSpec, footers: &FooterCache) -> bool {
    matches!(spec.filter.keys, KeyFilter::Keys(_))
        && footers.entries.get(&cache_key(table, file)).is_some_and(|footer| {
            let groups = footer.metadata.metadata().row_groups();
            groups.iter().any(|group| {
                group.columns().iter().any(|column| column.bloom_filter_offset().is_some())
            })
        })
}

/// A missing data file is damage, told with what added it.
fn gone(error: Error, file: &DataFile) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    let span = file.commits.span();
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "the data file is gone (partition {:?}, rows of commits {} to {}): restore it from a copy, or rebuild the snapshot if it belongs to one",
            file.add.partition, span.low, span.high
        ),
    )
    .with_source(error)
}

/// Refuses to cut by commit where a file's commits are not known well enough.
fn check_span(table: &Table, file: &DataFile, filter: &RowFilter) -> Result<()> {
    let unsure = match &file.commits {
        FileCommits::All(span) => *span,
        FileCommits::ByAppend { rest: Some(rest), .. } => *rest,
        FileCommits::ByAppend { rest: None, .. } | FileCommits::Stamped(_) => return Ok(()),
    };
    let cuts = [filter.after_commit, filter.up_to_commit];
    let inside = cuts.into_iter().flatten().find(|cut| unsure.low <= *cut && *cut < unsure.high);
    match inside {
        Some(cut) if file.stats.rows != Some(0) => Err(Error::new(
            ErrorKind::PointUnavailable,
            format!(
                "table {}, file {}: its rows belong to some commit of {} to {}, which can't be told any more \
                 (another engine wrote it and the log was cleaned up), so commit {cut} can't be answered; ask from {} on",
                table.label(),
                file.add.path,
                unsure.low,
                unsure.high,
                unsure.high
            ),
        )),
        _ => Ok(()),
    }
}

fn reader_options() -> ArrowReaderOptions {
    ArrowReaderOptions::new()
        .with_skip_arrow_metadata(true)
        .with_page_index_policy(PageIndexPolicy::Optional)
}

/// The columns of a file that a spec needs.
fn projection(
    footer: &Footer,
    file: &DataFile,
    spec: &ReadSpec,
    leading: Leading,
) -> ProjectionMask {
    let metadata = &footer.metadata;
    let schema = metadata.parquet_schema();
    let value_fields: Option<HashSet<&str>> =
        spec.payload.iter().find_map(|field| match (field.name().as_str(), field.data_type()) {
            (STATE_VALUE, DataType::Struct(fields)) => {
                Some(fields.iter().map(|field| field.name().as_str()).collect())
            }
            _ => None,
        });
    // Only rows of several commits in one file are told apart by it, or whoever asks for it.
    let by_append = matches!(file.commits, FileCommits::ByAppend { .. })
        || spec.payload.iter().any(|field| field.name() == APPEND_ID);
    let leaves =
        schema.columns().iter().enumerate().filter(|(_, column)| match column.path().parts() {
            [first, second, ..] if first == STATE_VALUE => {
                value_fields.as_ref().is_some_and(|wanted| wanted.contains(second.as_str()))
            }
            [first, ..] => {
                leading.reads(first)
                    || (first == OP_TYPE && !footer.only_upserts)
                    || (first == APPEND_ID && by_append)
            }
            [] => false,
        });
    let mut wanted: Vec<usize> = leaves.map(|(index, _)| index).collect();
    let has_value = wanted.iter().any(|&leaf| is_value(metadata, leaf));
    if value_fields.is_some() && !has_value {
        // The struct's own nulls are needed, even if the file has none of its fields: any leaf carries them.
        wanted.extend((0..schema.num_columns()).find(|&leaf| is_value(metadata, leaf)));
    }
    ProjectionMask::leaves(schema, wanted)
}

fn is_value(metadata: &ArrowReaderMetadata, leaf: usize) -> bool {
    metadata
        .parquet_schema()
        .column(leaf)
        .path()
        .parts()
        .first()
        .is_some_and(|part| part == STATE_VALUE)
}

async fn read_whole(
    table: &Table,
    file: &DataFile,
    spec: &ReadSpec,
    leave_out: (Leading, &[FieldBounds]),
    footers: &FooterCache,
) -> Result<(RowStream, bool)> {
    let reader = RangeReader::new(table, file)?;
    let known = footers.entries.get(&cache_key(table, file));
    let metadata = known.as_ref().map(|footer| (footer.metadata.clone(), footer.blocks.clone()));
    let (bytes, metadata) = reader.load_whole(metadata).await?;
    let footer = known.unwrap_or_else(|| remember(table, file, footers, metadata));
    let pruner = Pruner::new(footer.metadata.metadata(), &spec.filter, leave_out.1);
    let row_groups = pruner.row_groups();
    let selection = pruner.rows(&row_groups);
    let mut counted = claims::counted(footer.metadata.metadata(), &row_groups);
    let mut builder =
        ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, footer.metadata.clone())
            .with_projection(projection(&footer, file, spec, leave_out.0))
            .with_batch_size(BATCH_ROWS)
            .with_row_groups(row_groups);
    if let Some(selection) = selection {
        builder = builder.with_row_selection(selection);
    }
    let decoder = decode(|| Ok(builder.build()?))?;
    let batches = decode_all(decoder, unreadable).map(move |batch| batch.and_then(&mut counted));
    if rows_of(&footer) > WHOLE_FILE_ROWS {
        // A small file of another writer may unfold to any number of rows.
        return Ok((stream::iter(batches).boxed(), footer.only_upserts));
    }
    // After an error the reader gives errors for ever: the first one ends it.
    let batches: Vec<RecordBatch> = batches.collect::<Result<_>>()?;
    Ok((stream::iter(batches.into_iter().map(Ok)).boxed(), footer.only_upserts))
}

fn rows_of(footer: &Footer) -> usize {
    usize::try_from(footer.metadata.metadata().file_metadata().num_rows()).unwrap_or(usize::MAX)
}

fn unreadable(error: arrow::error::ArrowError) -> Error {
    Error::new(ErrorKind::Corrupt, "the Parquet file can't be read").with_source(error)
}

fn cache_key(table: &Table, file: &DataFile) -> String {
    format!("{}/{}", table.label(), file.add.path)
}

fn remember(
    table: &Table,
    file: &DataFile,
    footers: &FooterCache,
    (metadata, blocks): Metadata,
) -> Arc<Footer> {
    let only_upserts = file.is_sorted() && has_only_upserts(metadata.metadata());
    static NEXT_ID: AtomicU64 = AtomicU64::new(0);
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let key_pages = KeyPageIndex::of(metadata.metadata());
    let blooms = OnceLock::new();
    let footer = Arc::new(Footer { id, metadata, key_pages, blooms, blocks, only_upserts });
    footers.entries.insert(cache_key(table, file), footer.clone());
    footer
}

/// Whether the statistics of all row groups show nothing but UPSERTs.
fn has_only_upserts(metadata: &ParquetMetaData) -> bool {
    let leaf = metadata
        .file_metadata()
        .schema_descr()
        .columns()
        .iter()
        .position(|column| matches!(column.path().parts(), [only] if only == OP_TYPE));
    let Some(leaf) = leaf else { return false };
    metadata.row_groups().iter().all(|group| match group.column(leaf).statistics() {
        Some(known @ Statistics::ByteArray(_)) => {
            let upsert = Some(UPSERT.as_bytes());
            known.min_bytes_opt() == upsert
                && known.max_bytes_opt() == upsert
                && known.null_count_opt() == Some(0)
        }
        _ => false,
    })
}

async fn read_parts(
    table: &Table,
    file: &DataFile,
    spec: &ReadSpec,
    leave_out: (Leading, &[FieldBounds]),
    window_rows: Option<usize>,
    footers: &FooterCache,
) -> Result<(RowStream, bool)> {
    let mut reader = RangeReader::new(table, file)?;
    let footer = match footers.entries.get(&cache_key(table, file)) {
        Some(footer) => footer,
        None => remember(table, file, footers, reader.load_metadata().await?),
    };
    let reader = reader.with_blocks(footer.blocks.clone());
    let pruner = Pruner::new(footer.metadata.metadata(), &spec.filter, leave_out.1);
    let mut row_groups = pruner.row_groups();
    if let KeyFilter::Keys(keys) = &spec.filter.keys {
        let blooms = bloom_filters(&footer, reader.clone()).await?;
        let absent = |group: &usize| {
            blooms
                .get(*group)
                .and_then(Option::as_ref)
                .is_some_and(|bloom| keys.iter().all(|key| !bloom.check(&key.as_str())))
        };
        row_groups.retain(|group| !absent(group));
    }
    if row_groups.is_empty() {
        return Ok((stream::empty().boxed(), footer.only_upserts));
    }
    let selection = pruner.rows(&row_groups);
    let projection = projection(&footer, file, spec, leave_out.0);
    let mut counted = claims::counted(footer.metadata.metadata(), &row_groups);
    if let Some(window_rows) = window_rows {
        let key = key_leaf(footer.metadata.metadata());
        let metadata = &footer.metadata;
        let rows = read_in_windows(
            reader,
            metadata,
            &projection,
            &row_groups,
            selection,
            key,
            window_rows,
        );
        return Ok((rows, footer.only_upserts));
    }
    let mut builder =
        ParquetRecordBatchStreamBuilder::new_with_metadata(reader, footer.metadata.clone())
            .with_projection(projection)
            .with_batch_size(BATCH_ROWS)
            .with_row_groups(row_groups);
    if let Some(selection) = selection {
        builder = builder.with_row_selection(selection);
    }
    let rows = decode_stream(decode(|| Ok(builder.build()?))?);
    let rows = rows.map(move |batch| batch.and_then(&mut counted));
    Ok((rows.boxed(), footer.only_upserts))
}

/// The bloom filters on the key of every row group, read once and kept with the footer.
async fn bloom_filters(footer: &Footer, reader: RangeReader) -> Result<Arc<Vec<Option<Sbbf>>>> {
    if let Some(known) = footer.blooms.get() {
        return Ok(known.clone());
    }
    let metadata = footer.metadata.metadata();
    let key = key_leaf(metadata);
    let mut filters = Vec::new();
    if let Some(key) = key {
        let mut builder =
            ParquetRecordBatchStreamBuilder::new_with_metadata(reader, footer.metadata.clone());
        for group in 0..metadata.num_row_groups() {
            let filter = builder.get_row_group_column_bloom_filter(group, key);
            // One without a block knows nothing, and can't be asked.
            filters.push(decode_next(filter).await?.filter(|filter| filter.num_blocks() > 0));
        }
    }
    // Another one may have read them meanwhile: the same ones.
    Ok(footer.blooms.get_or_init(|| Arc::new(filters)).clone())
}

/// Which leaf column the key is.
fn key_leaf(metadata: &ParquetMetaData) -> Option<usize> {
    let columns = metadata.file_metadata().schema_descr().columns();
    columns.iter().position(|column| matches!(column.path().parts(), [only] if only == STATE_KEY))
}
