//! One state's share of an epoch: its changes in memory and in staged files, what its reads see, and how it is applied.
//!
//! Reads take, in this order: the epoch's own changes; those of earlier epochs of a stream that the basis doesn't hold or the
//! row cache has not taken in yet, newest first; what was prefetched; the row cache; tail and snapshot as of the basis.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use alluvium_log::{DataFile, EpochCommit, Result, StateDefinition};
use alluvium_query::Basis;
use arrow::array::RecordBatch;
use quick_cache::DefaultHashBuilder;
use tokio::sync::watch;

use crate::cache::KeyedRow;
use crate::columns::keyed_rows;
use crate::epoch_sealed::{Sealed, SealedPart};
use crate::typed::{Shared, State, Value};

/// What a change takes beside key and value: its place in the map.
const CHANGE_BYTES: usize = 64;

pub(crate) type Map<V> = HashMap<String, Option<V>, DefaultHashBuilder>;

/// The last change of each key: in memory, or, the older ones of a large epoch, in staged files.
#[derive(Debug)]
pub(crate) struct Changes<V> {
    pub(crate) pending: Map<V>,
    pub(crate) files: Vec<Arc<DataFile>>,
    definition: Option<StateDefinition>,
}

impl<V> Changes<V> {
    fn new() -> Self {
        Self { pending: Map::default(), files: Vec::new(), definition: None }
    }
}

/// How far an epoch of a stream has come: applied by a commit, or not (any more).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It may still be applied.
    Open,
    /// It is applied by this commit.
    Committed(i64),
    /// It was not, and won't be, applied by this process.
    Ended,
}

/// The changes of an earlier epoch of the same stream.
#[derive(Debug)]
pub(crate) struct Earlier<V> {
    pub(crate) number: i64,
    pub(crate) changes: Arc<Changes<V>>,
    pub(crate) progress: watch::Receiver<Progress>,
}

/// What all reads of a part are answered as of.
#[derive(Debug)]
struct Pin {
    basis: Basis,
    /// Rows that the cache has as of any commit from this one up to the basis hold, below what earlier epochs say.
    since: i64,
}

/// What can be told of a key without looking below the row cache.
enum Seen<'a, V> {
    Value(Option<V>),
    /// What the basis says counts.
    Below(&'a Pin),
    /// Nothing: no basis is pinned, or there are files to be read first.
    Nothing,
}

/// One state's share of an epoch that is being filled.
#[derive(Debug)]
pub(crate) struct Part<V> {
    state: Arc<Shared<V>>,
    app_id: Arc<str>,
    number: i64,
    changes: Changes<V>,
    bytes: usize,
    earlier: Vec<Earlier<V>>,
    pin: Option<Pin>,
    prefetched: Map<V>,
    commit: Option<EpochCommit>,
    /// When the changes happen, once that is decided.
    event_time_micros: Option<i64>,
    after_micros: i64,
}

impl<V: Value> Part<V> {
    pub(crate) fn new(
        state: &State<V>,
        app_id: Arc<str>,
        number: i64,
        earlier: Vec<Earlier<V>>,
        after_micros: i64,
    ) -> Self {
        Self {
            state: state.shared().clone(),
            app_id,
            number,
            changes: Changes::new(),
            bytes: 0,
            earlier,
            pin: None,
            prefetched: Map::default(),
            commit: None,
            event_time_micros: None,
            after_micros,
        }
    }

    /// Tells the states of an epoch apart without looking at names.
    pub(crate) fn id_of(state: &State<V>) -> usize {
        Arc::as_ptr(state.shared()).cast::<()>() as usize
    }

    /// Notes a change; true when the changes should be spilled.
    pub(crate) fn change(&mut self, key: &str, value: Option<V>) -> bool {
        let bytes = value.as_ref().map_or(0, crate::heap::bytes_of);
        self.bytes += bytes;
        match self.changes.pending.get_mut(key) {
            Some(known) => {
                let before = std::mem::replace(known, value);
                let freed = before.as_ref().map_or(0, crate::heap::bytes_of);
                self.bytes = self.bytes.saturating_sub(freed);
            }
            None => {
                self.bytes += key.len() + CHANGE_BYTES;
                self.changes.pending.insert(key.to_owned(), value);
            }
        }
        self.bytes > self.state.raw().embedded().epoch_bytes
    }

    /// What the epoch sees of a key, if that can be told without waiting.
    pub(crate) fn get_now(&self, key: &str) -> Result<Option<Option<V>>> {
        let pin = match self.seen(key) {
            Seen::Value(value) => return Ok(Some(value)),
            Seen::Nothing => return Ok(None),
            Seen::Below(pin) => pin,
        };
        let Some(known) = self.state.known_row(&pin.basis, key)? else { return Ok(None) };
        self.state.cache.missed(1);
        let value = known.value.clone();
        if self.state.cache.is_on() {
            let row = KeyedRow { key: key.to_owned(), known };
            self.state.cache.add(pin.since..=self.unchanged_to(pin), [row]);
        }
        Ok(Some(value))
    }

    /// What the epoch's own changes, those of earlier epochs, what was prefetched and the row cache say of a key.
    fn seen(&self, key: &str) -> Seen<'_, V> {
        if let Some(change) = self.changes.pending.get(key) {
            return Seen::Value(change.clone());
        }
        let Some(pin) = &self.pin else { return Seen::Nothing };
        if !self.changes.files.is_empty() {
            return Seen::Nothing;
        }
        for earlier in &self.earlier {
            if let Some(change) = earlier.changes.pending.get(key) {
                return Seen::Value(change.clone());
            }
            if !earlier.changes.files.is_empty() {
                return Seen::Nothing;
            }
        }
        if !self.prefetched.is_empty()
            && let Some(value) = self.prefetched.get(key)
        {
            return Seen::Value(value.clone());
        }
        match self.state.cache.get_as_of(key, pin.since, pin.basis.commit()) {
            Some(value) => Seen::Value(value),
            None => Seen::Below(pin),
        }
    }

    /// What the epoch sees of keys, in their order; with `keep`, what was read stays until the epoch ends.
    pub(crate) async fn load(&mut self, keys: &[&str], keep: bool) -> Result<Vec<Option<V>>> {
        self.pin().await?;
        let mut found: Map<V> = Map::default();
        let mut missing: Vec<&str> = Vec::new();
        for &key in keys {
            match self.seen(key) {
                Seen::Value(value) if keep => {
                    if !self.changes.pending.contains_key(key) {
                        found.insert(key.to_owned(), value);
                    }
                }
                Seen::Value(value) => {
                    found.insert(key.to_owned(), value);
                }
                Seen::Nothing | Seen::Below(_) => missing.push(key),
            }
        }
        missing.sort_unstable();
        missing.dedup();
        self.load_staged(&mut missing, &mut found).await?;
        let Some(pin) = self.pin.as_ref().filter(|_| !missing.is_empty()) else {
            return Ok(self.collect(keys, found, keep));
        };
        self.state.cache.missed(missing.len());
        let rows = self.state.look_up(&pin.basis, &missing).await?;
        for row in &rows {
            found.insert(row.key.clone(), row.known.value.clone());
        }
        // What was prefetched is at hand anyway: to keep nearly all of it in a row cache that is too small costs more than it saves.
        let last = if keep { pin.basis.commit() } else { self.unchanged_to(pin) };
        self.state.cache.add(pin.since..=last, rows);
        Ok(self.collect(keys, found, keep))
    }

    /// The last commit as of which the rows of keys that no earlier epoch has changed are those of the basis: from there on, as
    /// far as it is known, only earlier epochs of this stream were committed.
    fn unchanged_to(&self, pin: &Pin) -> i64 {
        let mut last = pin.basis.commit();
        for earlier in self.earlier.iter().rev() {
            match *earlier.progress.borrow() {
                Progress::Committed(at) if at <= last => {}
                Progress::Committed(at) if at == last + 1 => last = at,
                _ => break,
            }
        }
        last
    }

    fn collect(&mut self, keys: &[&str], found: Map<V>, keep: bool) -> Vec<Option<V>> {
        if keep {
            self.prefetched.extend(found);
            return Vec::new();
        }
        keys.iter().map(|&key| found.get(key).cloned().flatten()).collect()
    }

    /// Takes from `missing` what staged files and the earlier epochs that have some say.
    async fn load_staged(&self, missing: &mut Vec<&str>, found: &mut Map<V>) -> Result<()> {
        let layers = std::iter::once(&self.changes)
            .chain(self.earlier.iter().map(|earlier| earlier.changes.as_ref()));
        for layer in layers {
            missing.retain(|&key| match layer.pending.get(key) {
                Some(change) => {
                    found.insert(key.to_owned(), change.clone());
                    false
                }
                None => true,
            });
            let Some(definition) = layer.definition.as_ref() else { continue };
            if layer.files.is_empty() || missing.is_empty() {
                continue;
            }
            let reader = self.state.raw().reader();
            let batches: Vec<RecordBatch> =
                reader.rows_of_staged(&layer.files, definition, missing).await?;
            for batch in &batches {
                for row in keyed_rows::<V>(batch)? {
                    missing.retain(|&key| key != row.key);
                    found.insert(row.key, row.known.value);
                }
            }
        }
        Ok(())
    }

    /// Pins what reads are answered as of, when the first one asks.
    async fn pin(&mut self) -> Result<()> {
        if self.pin.is_some() {
            return Ok(());
        }
        let basis = self.state.raw().reader().basis_by_probe().await?;
        let (basis, held) = self.held_by(basis).await?;
        let since = self.settle(&basis, held).await?;
        self.pin = Some(Pin { basis, since });
        Ok(())
    }

    /// A basis, this one or a newer one, and the greatest epoch of the application that is in it.
    async fn held_by(&self, mut basis: Basis) -> Result<(Basis, Option<i64>)> {
        let log = self.state.raw().log();
        while !self.earlier.is_empty() && basis.log().transaction(&self.app_id).is_none() {
            // The commits that were read don't tell: a checkpoint may.
            let older = log.last_epoch(&self.app_id).await?;
            if log.state().transaction(&self.app_id).is_none() {
                return Ok((basis, older));
            }
            basis = self.state.raw().reader().basis_by_probe().await?;
        }
        let held = basis.log().transaction(&self.app_id);
        Ok((basis, held))
    }

    /// Drops the earlier epochs that the basis holds, and brings the cache up to the basis.
    ///
    /// Where nothing but earlier epochs of this stream lies between the cache and the basis, these are kept instead: what
    /// they say, on top of the cache as it stands, is the basis; and nothing has to be read.
    async fn settle(&mut self, basis: &Basis, held: Option<i64>) -> Result<i64> {
        let to = basis.commit();
        let known = self.state.cache.commit();
        let mut between = 0;
        let mut needed = Vec::with_capacity(self.earlier.len());
        for earlier in &mut self.earlier {
            let is_held = held.is_some_and(|held| held >= earlier.number);
            if is_held && known < to && self.state.cache.is_on() {
                // The basis holds it, so it was decided, and is told at once.
                let settled = earlier.progress.wait_for(|seen| *seen != Progress::Open).await;
                let commit = settled.map_or(Progress::Ended, |seen| *seen);
                let is_between =
                    matches!(commit, Progress::Committed(at) if known < at && at <= to);
                between += i64::from(is_between);
                needed.push(is_between);
            } else {
                needed.push(!is_held);
            }
        }
        let since = if known < to && known >= 0 && between == to - known {
            known
        } else {
            for (earlier, needed) in self.earlier.iter().zip(&mut needed) {
                *needed = held.is_none_or(|held| held < earlier.number);
            }
            self.state.catch_up(basis).await?;
            to
        };
        let mut needed = needed.into_iter();
        self.earlier.retain(|_| needed.next().unwrap_or(true));
        Ok(since)
    }

    /// Stages the changes in memory as files, and goes on with none.
    pub(crate) async fn spill(&mut self) -> Result<()> {
        let time = self.event_time();
        let mut commit = match self.commit.take() {
            Some(commit) => commit,
            None => self.state.raw().epoch(&self.app_id, self.number)?,
        };
        let pending = std::mem::take(&mut self.changes.pending);
        let first = self.state.raw().log().reserve_versions(pending.len())?;
        let batch = self.state.columns.numbered(rows_of(&pending), first, time)?;
        commit.stage(&batch).await?;
        metrics::counter!(crate::metrics::EPOCH_SPILLS).increment(1);
        self.changes.files = commit.staged_files();
        self.changes.definition = commit.definition().cloned();
        self.commit = Some(commit);
        self.bytes = 0;
        Ok(())
    }

    /// One time for all changes of the epoch, so that of two changes of one key the later one wins whatever the clock does.
    fn event_time(&mut self) -> i64 {
        let now = self.state.raw().log().arrival_micros();
        let after = self.after_micros.saturating_add(1);
        *self.event_time_micros.get_or_insert(now.max(after))
    }
}

pub(crate) fn rows_of<V>(pending: &Map<V>) -> impl ExactSizeIterator<Item = (&str, Option<&V>)> {
    pending.iter().map(|(key, value)| (key.as_str(), value.as_ref()))
}

/// A part whatever the type of its values is.
pub(crate) trait AnyPart: Send + Sync {
    fn id(&self) -> usize;
    fn name(&self) -> &str;
    fn is_changed(&self) -> bool;
    fn as_any(&mut self) -> &mut dyn Any;
    fn seal(self: Box<Self>) -> Result<Box<dyn SealedPart>>;
}

impl<V: Value> AnyPart for Part<V> {
    fn id(&self) -> usize {
        Arc::as_ptr(&self.state).cast::<()>() as usize
    }

    fn name(&self) -> &str {
        self.state.raw().name()
    }

    fn is_changed(&self) -> bool {
        !self.changes.pending.is_empty() || self.commit.is_some()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn seal(mut self: Box<Self>) -> Result<Box<dyn SealedPart>> {
        let event_time_micros = self.event_time();
        let raw = self.state.raw();
        let commit = match self.commit.take() {
            Some(commit) => commit,
            None => raw.epoch(&self.app_id, self.number)?,
        };
        // Before the next epoch of a stream can take any: its changes come after these.
        let first_version = raw.log().reserve_versions(self.changes.pending.len())?;
        Ok(Box::new(Sealed {
            state: self.state,
            app_id: self.app_id,
            number: self.number,
            changes: Arc::new(self.changes),
            commit: Some(commit),
            first_version,
            event_time_micros,
            progress: watch::channel(Progress::Open).0,
        }))
    }
}
