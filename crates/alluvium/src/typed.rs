//! States of typed values: `serde` on the outside, Arrow on the inside, and a cache of decoded rows between.
//!
//! A read takes, in this order: what the row cache has, once one look at the disk has told that nothing newer is committed;
//! then tail and snapshot at a newly pinned basis, whose rows the cache keeps. All handles on one state with one type of
//! values share their cache.

use std::any::{Any, TypeId};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::sync::Arc;

use alluvium_log::{Archived, ERASED_APP_ID, Error, KeyFilter, OrderBy, Rank, Receipt, Result};
use alluvium_materializer::whole_value;
use alluvium_query::{Basis, Lookup, Point};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use quick_cache::DefaultHashBuilder;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use crate::cache::{KeyedRow, Known, RowCache, RowCacheStats};
use crate::columns::{Columns, deletes, entries, fields_of, keyed_rows};
use crate::raw::RawState;
use crate::row::known_at;

/// Keys whose updates wait for each other share one of so many locks.
const UPDATE_LOCKS: usize = 64;
/// Rows that others wrote, up to this many, are read by a complete row cache to stay so.
const FOLLOWED_ROWS: u64 = 65_536;
/// Changed rows up to this many are read so that a row cache drops their keys; where more have changed it drops all.
const NAMED_CHANGES: u64 = 262_144;

/// How often a state is read anew to be taken into a cache while others commit.
const WARM_ATTEMPTS: usize = 3;

/// What the values of a typed state can do. Every type that can has it; a value that is expensive to clone may be an `Arc`.
pub trait Value: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {}

impl<V: Serialize + DeserializeOwned + Clone + Send + Sync + 'static> Value for V {}

/// One change of a typed state.
#[derive(Debug, Clone, PartialEq)]
pub struct Change<V> {
    pub(crate) key: String,
    pub(crate) value: Option<V>,
    pub(crate) version: Option<i64>,
    pub(crate) event_time_micros: Option<i64>,
}

impl<V> Change<V> {
    /// Sets a key's value.
    pub fn upsert(key: impl Into<String>, value: V) -> Self {
        Self { key: key.into(), value: Some(value), version: None, event_time_micros: None }
    }

    /// Removes a key.
    pub fn delete(key: impl Into<String>) -> Self {
        Self { key: key.into(), value: None, version: None, event_time_micros: None }
    }

    /// With the caller's own version; it only orders. Without one, the writer's clock makes it.
    pub fn version(mut self, version: i64) -> Self {
        self.version = Some(version);
        self
    }

    /// When it happened, in microseconds since 1970 UTC. Without one, it is the time of arrival.
    pub fn at(mut self, event_time_micros: i64) -> Self {
        self.event_time_micros = Some(event_time_micros);
        self
    }
}

/// A live key with its value and what decided that it is the newest.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<V> {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: V,
    /// The version of the change that set it.
    pub version: i64,
    /// When that happened, in microseconds since 1970 UTC.
    pub event_time_micros: i64,
    /// The log commit of that change.
    pub commit: i64,
}

/// A state whose values are of type `V`. Cheap to clone.
#[derive(Debug)]
pub struct State<V> {
    shared: Arc<Shared<V>>,
}

/// What all handles on one state with one type of values share.
#[derive(Debug)]
pub(crate) struct Shared<V> {
    raw: RawState,
    locks: Vec<Mutex<()>>,
    hasher: RandomState,
    pub(crate) columns: Columns,
    pub(crate) cache: RowCache<V>,
}

impl<V> Clone for State<V> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<V: Value> State<V> {
    pub(crate) fn new(raw: RawState) -> Result<Self> {
        if let Some(shared) = raw.typed(TypeId::of::<V>())
            && let Ok(shared) = shared.downcast::<Shared<V>>()
        {
            return Ok(Self { shared });
        }
        // A type that can't be traced may still fit; one that can is compared with what is stored.
        let of_type = fields_of::<V>().ok();
        if let Some(fields) = &of_type {
            raw.definition()
                .grown_by(fields)
                .map_err(|error| error.context(format!("state {}", raw.name())))?;
        }
        let shared = Arc::new(Shared {
            locks: (0..UPDATE_LOCKS).map(|_| Mutex::new(())).collect(),
            hasher: RandomState::new(),
            columns: Columns::new(raw.clone(), of_type),
            cache: RowCache::new(raw.name(), raw.embedded().row_cache_bytes),
            raw,
        });
        let as_any: Arc<dyn Any + Send + Sync> = shared.clone();
        shared.raw.remember_typed(TypeId::of::<V>(), &as_any);
        Ok(Self { shared })
    }

    /// The same state on Arrow batches.
    pub fn raw(&self) -> &RawState {
        &self.shared.raw
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<V>> {
        &self.shared
    }

    /// What the cache of decoded rows has done so far.
    pub fn row_cache_stats(&self) -> RowCacheStats {
        self.shared.cache.stats()
    }

    /// Sets a key's value; resolves when it is durable.
    pub async fn put(&self, key: &str, value: &V) -> Result<Receipt> {
        let batch = self.shared.columns.upserts(&[key], &[value])?;
        self.raw().append(&batch).await
    }

    /// Removes a key; resolves when that is durable. Removing a key that isn't there is no error.
    pub async fn delete(&self, key: &str) -> Result<Receipt> {
        self.raw().append(&deletes(&[key])?).await
    }

    /// Appends changes with their own versions and times, as one commit.
    pub async fn append(&self, changes: &[Change<V>]) -> Result<Receipt> {
        let batch = self.shared.columns.changes(changes)?;
        self.raw().append(&batch).await
    }

    /// Changes a key's value by what it is now: `None` in means that there is none, `None` out removes it.
    ///
    /// Updates of one key by clones of this handle wait for each other. Between handles or processes nothing is locked:
    /// there the later change wins.
    pub async fn update(
        &self,
        key: &str,
        change: impl FnOnce(Option<V>) -> Option<V>,
    ) -> Result<Receipt> {
        let shared = &self.shared;
        let lock = usize::try_from(shared.hasher.hash_one(key) % UPDATE_LOCKS as u64).unwrap_or(0);
        let _alone = shared.locks[lock].lock().await;
        match change(self.get(key).await?) {
            Some(value) => self.put(key, &value).await,
            None => self.delete(key).await,
        }
    }

    /// The newest value of a key: what any process has committed before this was called is seen.
    pub async fn get(&self, key: &str) -> Result<Option<V>> {
        if let Some(value) = self.shared.cached(key) {
            return Ok(value);
        }
        if let Some(value) = self.shared.read_from_memory(key)? {
            return Ok(value);
        }
        // Boxed, so that a hit doesn't carry the room for everything that a miss may do.
        let mut found = Box::pin(self.shared.load(&[key])).await?;
        Ok(found.pop().flatten())
    }

    /// The newest values of several keys as of one moment, in the order of the keys. Pages that several keys lie in are read once.
    pub async fn multi_get(&self, keys: &[&str]) -> Result<Vec<Option<V>>> {
        Box::pin(self.shared.load(keys)).await
    }

    /// Takes the whole state into the row cache, so that reads go on without files, also those of keys without a value: what an
    /// application does after a restart, where the state fits [`crate::StoreSettings::row_cache_bytes`].
    ///
    /// False if it does not fit, or others committed so often meanwhile that it could not be taken in as of one moment; what
    /// was read stays in the cache.
    pub async fn warm(&self) -> Result<bool> {
        self.shared.warm().await
    }

    /// All live keys that begin with a text, in order.
    pub async fn scan(&self, prefix: &str) -> Result<BoxStream<'static, Result<Entry<V>>>> {
        self.as_of(Point::LATEST).scan(prefix).await
    }

    /// The state as of a point.
    pub fn as_of(&self, point: Point) -> StateAt<V> {
        StateAt { raw: self.raw().clone(), point, values: PhantomData }
    }
}

impl<V: Value> Shared<V> {
    pub(crate) fn raw(&self) -> &RawState {
        &self.raw
    }

    /// The row that the cache has, if it can be told without waiting that it is the newest.
    fn cached(&self, key: &str) -> Option<Option<V>> {
        if !self.cache.is_on() {
            return None;
        }
        let newest = self.raw.reader().newest_commit()?;
        self.cache.get(key, newest)
    }

    /// The newest value of a key that the cache doesn't have, if basis, tail and pages are in memory.
    fn read_from_memory(&self, key: &str) -> Result<Option<Option<V>>> {
        let Some(basis) = self.raw.reader().known_basis()? else { return Ok(None) };
        let commit = basis.commit();
        if self.cache.is_on() && self.cache.commit() != commit {
            return Ok(None);
        }
        let Some(known) = self.known_row(&basis, key)? else { return Ok(None) };
        self.cache.missed(1);
        let value = known.value.clone();
        if self.cache.is_on() {
            self.cache.add(commit..=commit, [KeyedRow { key: key.to_owned(), known }]);
        }
        Ok(Some(value))
    }

    /// The newest values of keys: from the cache as far as it has them, the others all at once.
    async fn load(&self, keys: &[&str]) -> Result<Vec<Option<V>>> {
        let basis = self.raw.reader().basis_by_probe().await?;
        self.catch_up(&basis).await?;
        let commit = basis.commit();
        let mut values: Vec<Option<V>> = Vec::with_capacity(keys.len());
        let mut missing: Vec<usize> = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            let known = self.cache.get_as_of(key, commit, commit);
            if known.is_none() {
                missing.push(place);
            }
            values.push(known.flatten());
        }
        if missing.is_empty() {
            return Ok(values);
        }
        self.cache.missed(missing.len());
        let wanted: Vec<&str> = missing.iter().map(|&place| keys[place]).collect();
        let rows = self.look_up(&basis, &wanted).await?;
        let mut places: std::collections::HashMap<&str, Vec<usize>> = Default::default();
        for place in missing {
            places.entry(keys[place]).or_default().push(place);
        }
        for row in &rows {
            for &place in places.get(row.key.as_str()).into_iter().flatten() {
                values[place] = row.known.value.clone();
            }
        }
        self.cache.add(commit..=commit, rows);
        Ok(values)
    }

    /// Makes the cache know everything up to a basis: a complete one takes over what others wrote, another one drops their keys.
    pub(crate) async fn catch_up(&self, basis: &Basis) -> Result<()> {
        let (known, to) = (self.cache.commit(), basis.commit());
        if known >= to || !self.cache.is_on() {
            return Ok(());
        }
        let has_rows = basis.log().file_count() > 0
            || Archived::of(basis.log()).is_some()
            || basis.snapshot().files().next().is_some();
        if self.cache.start_at(to, has_rows) {
            return Ok(());
        }
        if basis.log().transaction(ERASED_APP_ID) > Some(known) {
            // Rows went without a row that tells so.
            self.cache.advance(known, to, None);
            return Ok(());
        }
        let reader = self.raw.reader();
        if self.cache.is_complete() {
            let payload = whole_value(basis.definition());
            if let Some(batches) = reader.changed_rows(basis, known, FOLLOWED_ROWS, payload).await?
            {
                let mut rows: Vec<KeyedRow<V>> = Vec::new();
                for batch in &batches {
                    rows.extend(keyed_rows(batch)?);
                }
                let rows = rows
                    .iter()
                    .map(|row| (row.key.as_str(), row.known.value.as_ref(), row.known.rank));
                self.cache.put_through(known, to, basis.definition().order_by, rows);
                return Ok(());
            }
        }
        let changed = reader.changed_rows(basis, known, NAMED_CHANGES, Vec::new()).await?;
        self.cache.advance(known, to, changed.as_deref());
        Ok(())
    }

    async fn warm(&self) -> Result<bool> {
        for _ in 0..WARM_ATTEMPTS {
            let basis = self.raw.reader().basis_by_probe().await?;
            self.catch_up(&basis).await?;
            if !self.cache.is_on() || self.cache.is_complete() {
                return Ok(self.cache.is_on());
            }
            let (commit, evictions) = (basis.commit(), self.cache.stats().evictions);
            let payload = whole_value(basis.definition());
            let reader = self.raw.reader();
            let mut streams =
                reader.scan(&basis, Point::LATEST, KeyFilter::All, payload, 1).await?;
            let mut rows =
                streams.pop().ok_or_else(|| Error::internal("a scan without a partition"))?;
            let mut is_there = true;
            while let (true, Some(batch)) = (is_there, rows.try_next().await?) {
                is_there = self.cache.add(commit..=commit, keyed_rows(&batch)?);
                if self.cache.stats().evictions != evictions {
                    return Ok(false);
                }
            }
            if is_there && self.cache.complete_at(commit, evictions, greatest_order(&basis)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The row of a key as of a basis, a key without one too, if tail and pages in memory tell it.
    pub(crate) fn known_row(&self, basis: &Basis, key: &str) -> Result<Option<Known<V>>> {
        self.raw.reader().known_row(basis, key, |row| match row {
            Some((rows, row)) => known_at(rows, row),
            None => Ok(no_row(basis.commit())),
        })
    }

    /// Reads keys from tail and snapshot as of a basis: one row for each, those without a value too.
    pub(crate) async fn look_up(&self, basis: &Basis, keys: &[&str]) -> Result<Vec<KeyedRow<V>>> {
        let batches = self.raw.reader().rows_of_keys(basis, Point::LATEST, keys).await?;
        let mut rows: Vec<KeyedRow<V>> = Vec::with_capacity(keys.len());
        for batch in &batches {
            rows.extend(keyed_rows(batch)?);
        }
        let mut absent: HashSet<&str, DefaultHashBuilder> = keys.iter().copied().collect();
        for row in &rows {
            absent.remove(row.key.as_str());
        }
        let nothing = |key: &str| KeyedRow { key: key.to_owned(), known: no_row(basis.commit()) };
        rows.extend(absent.into_iter().map(nothing));
        Ok(rows)
    }
}

/// That a key has no row: known as of a commit, and of no earlier one.
fn no_row<V>(commit: i64) -> Known<V> {
    let rank =
        Rank { version: i64::MIN, event_time: i64::MIN, is_delete: true, commit, append_seq: 0 };
    Known { value: None, rank }
}

/// A typed state at a point of its past.
#[derive(Debug)]
pub struct StateAt<V> {
    raw: RawState,
    point: Point,
    values: PhantomData<fn() -> V>,
}

impl<V: Value> StateAt<V> {
    /// A key's value at the point.
    pub async fn get(&self, key: &str) -> Result<Option<V>> {
        match self.raw.get(self.point, key).await? {
            Lookup::Found(row) => {
                let mut entries = entries::<V>(&row)?;
                Ok(entries.pop().map(|entry| entry.value))
            }
            _ => Ok(None),
        }
    }

    /// The keys live at the point that begin with a text, in order.
    pub async fn scan(&self, prefix: &str) -> Result<BoxStream<'static, Result<Entry<V>>>> {
        let rows = self.raw.scan(self.point, KeyFilter::prefix(prefix)).await?;
        let entries = rows.map(|batch| {
            let entries = entries::<V>(&batch?)?;
            Ok::<_, Error>(futures::stream::iter(entries.into_iter().map(Ok)))
        });
        Ok(entries.try_flatten().boxed())
    }
}

/// What the rows of a basis are ordered by at most: the greatest event time, or version; all there is where that isn't known.
fn greatest_order(basis: &Basis) -> i64 {
    let by_time = basis.definition().order_by == OrderBy::EventTime;
    let (log, snapshot) = (basis.log(), basis.snapshot());
    // Archived rows are no greater than what a snapshot that folds them holds.
    if Archived::of(log).is_some_and(|archived| archived.commit > snapshot.log_commit()) {
        return i64::MAX;
    }
    let of_files = log
        .files()
        .map(|file| if by_time { file.stats.max_event_time } else { file.stats.max_version })
        .map(|greatest| greatest.unwrap_or(i64::MAX));
    let of_snapshot = if by_time { snapshot.max_event_time() } else { snapshot.max_version() };
    of_files.chain(of_snapshot).max().unwrap_or(i64::MAX)
}
