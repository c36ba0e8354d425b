//! Decoded rows by key, bounded in bytes, and the log commit that all of them are valid at.
//!
//! An entry is what its key's newest row was as of the cache's commit; the row's own commit says since when. So an entry
//! answers for every commit from its own to the cache's. The cache moves on in two ways: past a commit that was made here
//! with known values, by putting these in; past any other commits, by dropping the keys that they changed. Keys without a
//! value are entries too.
//!
//! While the cache has followed a state from its first row on, or from a moment at which it took in all of it, and nothing had
//! to leave it since, it is complete: then a key that it lacks has no value, and nothing needs to be read to know that.
//!
//! Order of locks: whoever adds what was read at a commit holds `moving` shared and checks that the cache is still there;
//! whoever moves it on holds `moving` alone. Hits take no lock but that of their shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use alluvium_log::{OrderBy, Rank};
use arrow::array::{AsArray, RecordBatch};
use parking_lot::RwLock;
use quick_cache::sync::{Cache, EntryAction, EntryResult};
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter};

use crate::metrics as names;

/// What an entry takes beside key and value: its rank, its places in the map and in the queues.
const ENTRY_BYTES: usize = 96;
/// The size of an entry by which the number of entries is estimated.
const TYPICAL_BYTES: u64 = 160;
/// Hits and misses between two publications of the metrics.
const PUBLISH_EVERY: u64 = 4_096;

/// A row as it is known: its value, or none; and what decided it.
#[derive(Debug, Clone)]
pub(crate) struct Known<V> {
    pub(crate) value: Option<V>,
    pub(crate) rank: Rank,
}

/// One row for the cache.
#[derive(Debug)]
pub(crate) struct KeyedRow<V> {
    pub(crate) key: String,
    pub(crate) known: Known<V>,
}

#[derive(Debug, Clone)]
struct Entry<V> {
    known: Known<V>,
    bytes: u32,
}

#[derive(Debug, Clone, Copy)]
struct Weight;

impl<V> Weighter<String, Entry<V>> for Weight {
    fn weight(&self, _: &String, entry: &Entry<V>) -> u64 {
        u64::from(entry.bytes)
    }
}

/// Counts what leaves for want of room; the first one that does ends completeness.
#[derive(Debug, Clone, Default)]
struct Evictions(Arc<Leaving>);

#[derive(Debug, Default)]
struct Leaving {
    count: AtomicU64,
    is_complete: AtomicBool,
}

impl Evictions {
    fn is_complete(&self) -> bool {
        self.0.is_complete.load(Ordering::Acquire)
    }

    fn set_complete(&self, complete: bool) {
        self.0.is_complete.store(complete, Ordering::Release);
    }
}

impl<V> Lifecycle<String, V> for Evictions {
    type RequestState = ();

    fn begin_request(&self) {}

    fn on_evict(&self, _: &mut (), _: String, _: V) {
        // Under the lock of the entry's shard: whoever then misses it there sees this.
        self.set_complete(false);
        self.0.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a row cache has done, and how large it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCacheStats {
    /// Reads that it answered.
    pub hits: u64,
    /// Reads that went on to tail and snapshot.
    pub misses: u64,
    /// Rows that had to leave for others.
    pub evictions: u64,
    /// Rows in it.
    pub rows: u64,
    /// Bytes of keys and values, about.
    pub bytes: u64,
    /// Bytes at most.
    pub budget_bytes: u64,
}

/// The rows of one state as values of one type.
pub(crate) struct RowCache<V> {
    state: String,
    entries: Cache<String, Entry<V>, Weight, DefaultHashBuilder, Evictions>,
    budget_bytes: u64,
    /// The log commit as of which every entry is the newest row of its key.
    commit: AtomicI64,
    moving: RwLock<()>,
    /// The commit at which the cache became complete, if it is.
    complete_from: AtomicI64,
    /// What the state was ordered by at most at that commit: a row beyond it wins over any that the cache doesn't know of.
    floor: AtomicI64,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: Evictions,
}

impl<V> std::fmt::Debug for RowCache<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowCache")
            .field("state", &self.state)
            .field("commit", &self.commit)
            .finish_non_exhaustive()
    }
}

impl<V: Clone> RowCache<V> {
    /// An empty cache of at most so many bytes; of none it keeps nothing.
    pub(crate) fn new(state: &str, budget_bytes: u64) -> Self {
        let evictions = Evictions::default();
        let items = usize::try_from(budget_bytes / TYPICAL_BYTES).unwrap_or(usize::MAX).max(1);
        Self {
            state: state.to_owned(),
            entries: Cache::with(
                items,
                budget_bytes,
                Weight,
                DefaultHashBuilder::default(),
                evictions.clone(),
            ),
            budget_bytes,
            commit: AtomicI64::new(-1),
            moving: RwLock::new(()),
            complete_from: AtomicI64::new(0),
            floor: AtomicI64::new(i64::MIN),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evictions,
        }
    }

    /// The log commit as of which the cache answers.
    pub(crate) fn commit(&self) -> i64 {
        self.commit.load(Ordering::Acquire)
    }

    /// Whether it can hold anything at all.
    pub(crate) fn is_on(&self) -> bool {
        self.budget_bytes > 0
    }

    /// Whether a key that it lacks has no value.
    pub(crate) fn is_complete(&self) -> bool {
        self.evictions.is_complete()
    }

    /// A key's newest value, if the cache has it and knows everything up to `newest`.
    pub(crate) fn get(&self, key: &str, newest: i64) -> Option<Option<V>> {
        self.get_as_of(key, newest, i64::MAX)
    }

    /// A key's value as of `basis`, if the cache has it and knows everything from `since` on, before which nothing is asked for.
    pub(crate) fn get_as_of(&self, key: &str, since: i64, basis: i64) -> Option<Option<V>> {
        let mut found = None;
        if self.commit() >= since {
            found = match self.entries.get(key) {
                Some(entry) if entry.known.rank.commit <= basis => Some(entry.known.value),
                Some(_) => None,
                // In this order: completeness ends before an entry is seen to be gone.
                None => (self.is_complete() && basis >= self.complete_from.load(Ordering::Acquire))
                    .then_some(None),
            };
        }
        if found.is_some() {
            self.count(&self.hits, 1);
        }
        found
    }

    /// Counts reads that went on to tail and snapshot.
    pub(crate) fn missed(&self, reads: usize) {
        self.count(&self.misses, reads as u64);
    }

    /// Adds rows that are the newest ones as of every one of some commits; false if the cache stands at another one.
    pub(crate) fn add(
        &self,
        commits: std::ops::RangeInclusive<i64>,
        rows: impl IntoIterator<Item = KeyedRow<V>>,
    ) -> bool
    where
        V: serde::Serialize,
    {
        let _staying = self.moving.read();
        if !commits.contains(&self.commit()) || !self.is_on() {
            return false;
        }
        for KeyedRow { key, known } in rows {
            let bytes = entry_bytes(&key, known.value.as_ref());
            self.entries.insert(key, Entry { known, bytes });
        }
        true
    }

    /// Becomes complete, all live rows as of a commit having been added; false if it has moved on, or if some had to leave since
    /// there were `evictions`. `floor` is what the state is ordered by at most.
    pub(crate) fn complete_at(&self, commit: i64, evictions: u64, floor: i64) -> bool {
        let _alone = self.moving.write();
        if self.commit() != commit || self.stats().evictions != evictions || !self.is_on() {
            return false;
        }
        self.floor.store(floor, Ordering::Release);
        self.complete_from.store(commit, Ordering::Release);
        self.evictions.set_complete(true);
        true
    }

    /// Moves on from one commit to a later one; the rows in between have these keys. `None` stands for too many to be named.
    pub(crate) fn advance(&self, from: i64, to: i64, changed: Option<&[RecordBatch]>) {
        let _alone = self.moving.write();
        if self.commit() != from || from >= to {
            return;
        }
        self.evictions.set_complete(false);
        match changed {
            None => self.entries.clear(),
            Some(batches) => {
                let keys = batches.iter().filter_map(|batch| batch.columns().first());
                for key in keys.flat_map(|column| column.as_string::<i32>().iter().flatten()) {
                    self.entries.remove(key);
                }
            }
        }
        self.commit.store(to, Ordering::Release);
    }

    /// Moves an empty cache to a commit; false if it isn't empty. Of a state without any row, the cache is complete.
    pub(crate) fn start_at(&self, to: i64, has_rows: bool) -> bool {
        let _alone = self.moving.write();
        if self.commit() >= to {
            return true;
        }
        if !self.entries.is_empty() || self.is_complete() {
            return false;
        }
        self.floor.store(i64::MIN, Ordering::Release);
        self.complete_from.store(to, Ordering::Release);
        self.evictions.set_complete(!has_rows);
        self.commit.store(to, Ordering::Release);
        true
    }

    /// Moves on past the commits up to one, whose rows are these, if the cache stands at `from`, right before them. Rows of keys
    /// that it has are replaced by the greater ones; others stay unknown, or are added if the cache is complete.
    pub(crate) fn put_through<'a>(
        &self,
        from: i64,
        to: i64,
        order_by: OrderBy,
        rows: impl Iterator<Item = (&'a str, Option<&'a V>, Rank)>,
    ) where
        V: serde::Serialize + 'a,
    {
        let _alone = self.moving.write();
        if self.commit() != from || from >= to || !self.is_on() {
            return;
        }
        let (is_complete, floor) = (self.is_complete(), self.floor.load(Ordering::Acquire));
        for (key, value, rank) in rows {
            let bytes = entry_bytes(key, value);
            let replace = |_: &String, entry: &mut Entry<V>| {
                if rank.compare(&entry.known.rank, order_by).is_lt() {
                    return EntryAction::Retain(());
                }
                if entry.bytes != bytes {
                    return EntryAction::Remove;
                }
                entry.known = Known { value: value.cloned(), rank };
                EntryAction::Retain(())
            };
            let known = || Known { value: value.cloned(), rank };
            match self.entries.entry(key, None, replace) {
                EntryResult::Removed(key, _) => {
                    self.entries.insert(key, Entry { known: known(), bytes });
                }
                EntryResult::Vacant(place) if is_complete => {
                    let place_in_order = match order_by {
                        OrderBy::EventTime => rank.event_time,
                        OrderBy::Version => rank.version,
                    };
                    // At or below the floor there may be a DELETE that wins, which the cache never saw.
                    let is_winner = place_in_order > floor || floor == i64::MIN;
                    if !is_winner || place.insert(Entry { known: known(), bytes }).is_err() {
                        self.evictions.set_complete(false);
                    }
                }
                // A place that isn't filled leaves nothing behind.
                _ => {}
            }
        }
        self.commit.store(to, Ordering::Release);
    }

    /// What it has done so far.
    pub(crate) fn stats(&self) -> RowCacheStats {
        RowCacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            evictions: self.evictions.0.count.load(Ordering::Relaxed),
            rows: self.entries.len() as u64,
            bytes: self.entries.weight(),
            budget_bytes: self.budget_bytes,
        }
    }

    fn count(&self, counter: &AtomicU64, reads: u64) {
        let before = counter.fetch_add(reads, Ordering::Relaxed);
        if before.next_multiple_of(PUBLISH_EVERY) < before + reads {
            self.publish();
        }
    }

    #[cold]
    fn publish(&self) {
        let RowCacheStats { hits, misses, evictions, bytes, .. } = self.stats();
        let state = || self.state.clone();
        metrics::counter!(names::ROW_CACHE_HITS, "state" => state()).absolute(hits);
        metrics::counter!(names::ROW_CACHE_MISSES, "state" => state()).absolute(misses);
        metrics::counter!(names::ROW_CACHE_EVICTIONS, "state" => state()).absolute(evictions);
        metrics::gauge!(names::ROW_CACHE_BYTES, "state" => state()).set(bytes as f64);
    }
}

fn entry_bytes<V: serde::Serialize>(key: &str, value: Option<&V>) -> u32 {
    let value = value.map_or(size_of::<V>(), crate::heap::bytes_of);
    u32::try_from(value + key.len() + ENTRY_BYTES).unwrap_or(u32::MAX)
}
