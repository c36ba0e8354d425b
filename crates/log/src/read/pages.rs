//! Decoded pages of files that keys were looked up in, bounded in bytes.
//!
//! A page is known by its file's footer, row group and number. Files never change, and a footer that is read again counts as
//! another one, so a page is never that of other rows. What a page is decoded to depends on the fields that a state has: a page
//! of other columns than asked for is decoded anew.
//!
//! Under random lookups over much more than memory most pages are not asked for again before they have to leave. So once there is no
//! room, a lookup takes its rows and leaves the others where they are, but for one in some of those whose pages were asked for
//! before: what is asked for often comes in soon, and what keeping a page costs is shared by several lookups.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
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
/// So many pages are known to have been asked for, in some megabytes; then it begins anew.
const NOTED_PAGES: usize = 1 << 17;
/// Without room, one in so many lookups of pages that were asked for before keeps its page: to decode all of it, to make room, and to
/// spill what leaves take some times as long as to take one row.
const KEEP_EVERY: u64 = 8;
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

/// Pages that were looked up when there was no room for them, or had to leave: when one of them has to leave, it pays to spill it.
#[derive(Debug, Default)]
struct Noted(Mutex<HashSet<PageId>>);

impl Noted {
    /// Whether a page was noted before; it is from here on.
    fn note(&self, id: PageId) -> bool {
        let mut noted = self.0.lock();
        if noted.len() >= NOTED_PAGES {
            noted.clear();
        }
        !noted.insert(id)
    }
}

/// Counts what leaves for want of room, and spills it.
#[derive(Debug, Clone, Default)]
struct Evictions {
    count: Arc<AtomicU64>,
    noted: Arc<Noted>,
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
        let Some(spill) = &self.spill else { return };
        for (id, rows) in left {
            if self.noted.note(id) {
                spill.keep(id, &rows);
            }
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
    /// Lookups of pages that were asked for before and are not here.
    asked_again: AtomicU64,
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
            asked_again: AtomicU64::new(0),
            evictions,
        })
    }

    /// Whether a lookup that decodes so many bytes may leave pages here.
    pub(super) fn keeps(&self, bytes: u64) -> bool {
        bytes <= self.budget_bytes / SHARE_OF_A_LOOKUP
    }

    /// Whether a page that is not here is to be kept: as long as there is room each is, then some of those that are asked for again.
    pub(super) fn admits(&self, id: PageId) -> bool {
        let is_full = self.evictions.count.load(Ordering::Relaxed) > 0;
        let turn = || self.asked_again.fetch_add(1, Ordering::Relaxed);
        let is_turn = || turn().is_multiple_of(KEEP_EVERY);
        !is_full || (self.evictions.noted.note(id) && is_turn())
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use arrow::array::{ArrayRef, Int64Array};

    use super::*;

    #[test]
    fn without_room_one_in_some_of_the_pages_that_are_asked_for_again_comes_in() {
        let cache = PageCache::new(100_000);
        let id = |page| PageId { footer: 1, group: 0, page };
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
        let rows = RecordBatch::try_from_iter([("n", column)]).unwrap();
        let fits = (0..100).take_while(|page| {
            let is_admitted = cache.admits(id(*page));
            cache.insert(id(*page), rows.clone());
            is_admitted
        });
        let fits = fits.count();
        assert!((5..=12).contains(&fits), "{fits} pages of 8,000 bytes");
        for page in 1_000..2_000 {
            assert!(!cache.admits(id(page)), "{page}");
        }
        let again = (1_000..2_000).filter(|page| cache.admits(id(*page))).count();
        assert_eq!(again as u64, 1_000 / KEEP_EVERY);
        // What is asked for over and over is in soon.
        assert!((0..KEEP_EVERY).any(|_| cache.admits(id(1_000))));
    }
}
