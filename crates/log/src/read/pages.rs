//! Decoded pages of files that keys were looked up in, bounded in bytes.
//!
//! A page is known by its file's footer, row group and number. Files never change, and a footer that is read again counts as
//! another one, so a page is never that of other rows. What a page is decoded to depends on the fields that a state has: a page
//! of other columns than asked for is decoded anew.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter};

use super::page_spill::PageSpill;
use super::upserts::is_upsert_column;
use crate::metrics as names;

/// Decoded pages kept in memory, in bytes.
pub const DEFAULT_PAGE_CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// What a page takes beside its columns.
const ENTRY_BYTES: u64 = 512;
/// The size of a page by which the number of pages is estimated.
const TYPICAL_BYTES: u64 = 64 * 1024;
/// A lookup that reads more than such a share of the cache leaves nothing in it: it would only drive out what others look at.
const SHARE_OF_A_LOOKUP: u64 = 4;
/// Hits and misses between two publications of the metrics.
const PUBLISH_EVERY: u64 = 1_024;

/// Which page: of which footer, as it was read, which row group, and which page of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PageId {
    pub(super) footer: u64,
    pub(super) group: usize,
    pub(super) page: usize,
}

#[derive(Debug, Clone, Copy)]
struct PageWeight;

impl Weighter<PageId, Arc<RecordBatch>> for PageWeight {
    fn weight(&self, _: &PageId, rows: &Arc<RecordBatch>) -> u64 {
        ENTRY_BYTES + bytes_of(rows)
    }
}

fn has_schema(rows: &RecordBatch, schema: &SchemaRef) -> bool {
    Arc::ptr_eq(rows.schema_ref(), schema) || rows.schema_ref() == schema
}

fn bytes_of(rows: &RecordBatch) -> u64 {
    // The column of UPSERTs is shared by all.
    let own = rows.columns().iter().filter(|column| !is_upsert_column(column.as_ref()));
    own.map(|column| column.get_array_memory_size() as u64).sum()
}

/// Counts what leaves for want of room, and spills it.
#[derive(Debug, Clone, Default)]
struct Evictions {
    count: Arc<AtomicU64>,
    spill: Option<Arc<PageSpill>>,
}

impl Lifecycle<PageId, Arc<RecordBatch>> for Evictions {
    type RequestState = Vec<(PageId, Arc<RecordBatch>)>;

    fn begin_request(&self) -> Self::RequestState {
        Vec::new()
    }

    fn on_evict(&self, left: &mut Self::RequestState, id: PageId, rows: Arc<RecordBatch>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.spill.is_some() {
            left.push((id, rows));
        }
    }

    // Here no lock of the cache is held any more.
    fn end_request(&self, left: Self::RequestState) {
        if let Some(spill) = &self.spill {
            left.iter().for_each(|(id, rows)| spill.left(*id, rows));
        }
    }
}

/// What a page cache has done, and how large it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCacheStats {
    /// Pages that were there.
    pub hits: u64,
    /// Pages that were read and decoded.
    pub misses: u64,
    /// Pages that had to leave for others.
    pub evictions: u64,
    /// Bytes of the pages in it.
    pub bytes: u64,
    /// Bytes at most.
    pub budget_bytes: u64,
    /// Rows that were read from the temporary files of pages that had to leave.
    pub spill_hits: u64,
    /// Bytes of these files.
    pub spill_bytes: u64,
}

/// Decoded pages of files that keys were looked up in.
#[derive(Debug)]
pub struct PageCache {
    entries: Cache<PageId, Arc<RecordBatch>, PageWeight, DefaultHashBuilder, Evictions>,
    budget_bytes: u64,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: Evictions,
}

impl PageCache {
    /// A cache of at most so many bytes; of none it keeps nothing.
    pub fn new(budget_bytes: u64) -> Arc<Self> {
        Self::spilling(budget_bytes, 0, PathBuf::new())
    }

    /// The same, whose pages are written to temporary files of at most `spill_bytes` in a folder when they have to leave, for their
    /// rows to be read one by one.
    pub fn spilling(budget_bytes: u64, spill_bytes: u64, folder: PathBuf) -> Arc<Self> {
        let spill = (spill_bytes > 0).then(|| Arc::new(PageSpill::new(spill_bytes, folder)));
        let evictions = Evictions { spill, ..Evictions::default() };
        let items = usize::try_from(budget_bytes / TYPICAL_BYTES).unwrap_or(usize::MAX).max(16);
        Arc::new(Self {
            entries: Cache::with(
                items,
                budget_bytes,
                PageWeight,
                DefaultHashBuilder::default(),
                evictions.clone(),
            ),
            budget_bytes,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evictions,
        })
    }

    /// Whether a lookup that decodes so many bytes leaves its pages here.
    pub(super) fn keeps(&self, bytes: u64) -> bool {
        bytes <= self.budget_bytes / SHARE_OF_A_LOOKUP
    }

    /// A page, if it is there with these columns.
    pub(super) fn get(&self, id: PageId, schema: &SchemaRef) -> Option<Arc<RecordBatch>> {
        let found = self.entries.get(&id).filter(|rows| has_schema(rows, schema));
        self.count(if found.is_some() { &self.hits } else { &self.misses });
        found
    }

    /// The same for one who always asks with one and the same schema, and goes on to ask by [`PageCache::get`] for what is not
    /// there: only hits are counted.
    pub(super) fn known(&self, id: PageId, schema: &SchemaRef) -> Option<Arc<RecordBatch>> {
        let mut found = self.entries.get(&id)?;
        if !Arc::ptr_eq(found.schema_ref(), schema) {
            if found.schema_ref() != schema {
                return None;
            }
            // So that the next one need not compare all fields.
            found = Arc::new(found.as_ref().clone().with_schema(schema.clone()).ok()?);
            self.entries.insert(id, found.clone());
        }
        self.count(&self.hits);
        Some(found)
    }

    /// The row of a key in a page that had to leave, as a batch of its own; `None` if only the page itself can tell.
    pub(super) fn spilled(&self, id: PageId, key: &str, schema: &SchemaRef) -> Option<RecordBatch> {
        self.evictions.spill.as_ref()?.row_of(id, key, schema)
    }

    fn count(&self, counter: &AtomicU64) {
        if counter.fetch_add(1, Ordering::Relaxed).is_multiple_of(PUBLISH_EVERY) {
            self.publish();
        }
    }

    pub(super) fn insert(&self, id: PageId, rows: RecordBatch) {
        if self.budget_bytes > 0 {
            self.entries.insert(id, Arc::new(rows));
        }
    }

    /// What it has done so far.
    pub fn stats(&self) -> PageCacheStats {
        PageCacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            evictions: self.evictions.count.load(Ordering::Relaxed),
            bytes: self.entries.weight(),
            budget_bytes: self.budget_bytes,
            spill_hits: self.evictions.spill.as_ref().map_or(0, |spill| spill.hits()),
            spill_bytes: self.evictions.spill.as_ref().map_or(0, |spill| spill.bytes()),
        }
    }

    #[cold]
    fn publish(&self) {
        let stats = self.stats();
        let PageCacheStats { hits, misses, evictions, bytes, .. } = stats;
        metrics::counter!(names::PAGE_CACHE_HITS).absolute(hits);
        metrics::counter!(names::PAGE_CACHE_MISSES).absolute(misses);
        metrics::counter!(names::PAGE_CACHE_EVICTIONS).absolute(evictions);
        metrics::gauge!(names::PAGE_CACHE_BYTES).set(bytes as f64);
        metrics::counter!(names::PAGE_SPILL_HITS).absolute(stats.spill_hits);
        metrics::gauge!(names::PAGE_SPILL_BYTES).set(stats.spill_bytes as f64);
    }
}
