//! Epochs over typed states: changes are held back, seen by the epoch's own reads, and applied exactly once.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_log::{EpochOutcome, Error, Result};

use crate::epoch_part::{AnyPart, Part};
use crate::epoch_sealed::SealedPart;
use crate::epoch_stream::SealedEpoch;
use crate::typed::{State, Value};

/// An exactly-once batch of changes, named by an application id and a number that grows.
///
/// The last change of each key counts; it gets its version and, as event time, the time of the commit. Dropping an epoch
/// drops its changes.
///
/// **What its reads see.** The first read of a state pins the newest basis of that state; all reads of the epoch are answered
/// as of it, with the epoch's own changes on top. What others commit meanwhile is not seen: it is by the next epoch. So a
/// read of a cached key costs no look at the disk.
///
/// **Memory.** Changes of a state beyond [`crate::StoreSettings::epoch_bytes`] are staged as files, and read from there; they become
/// visible with the commit like the others.
pub struct Epoch {
    app_id: Arc<str>,
    number: i64,
    parts: Vec<Box<dyn AnyPart>>,
    /// The epochs of a stream that come before this one and were not known to be applied when it began, newest first.
    earlier: Vec<Arc<SealedEpoch>>,
    /// Changes of this epoch happen after this time, in microseconds.
    after_micros: i64,
}

impl std::fmt::Debug for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoch")
            .field("app_id", &self.app_id)
            .field("number", &self.number)
            .field("states", &self.parts.iter().map(|part| part.name()).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Epoch {
    pub(crate) fn new(app_id: &str, number: i64) -> Self {
        Self::after(Arc::from(app_id), number, Vec::new(), i64::MIN)
    }

    /// An epoch that sees earlier ones as if they were applied.
    pub(crate) fn after(
        app_id: Arc<str>,
        number: i64,
        earlier: Vec<Arc<SealedEpoch>>,
        after_micros: i64,
    ) -> Self {
        Self { app_id, number, parts: Vec::new(), earlier, after_micros }
    }

    /// Its number.
    pub fn number(&self) -> i64 {
        self.number
    }

    pub(crate) fn app_id(&self) -> &str {
        &self.app_id
    }

    fn part<V: Value>(&mut self, state: &State<V>) -> Result<&mut Part<V>> {
        let id = Part::<V>::id_of(state);
        let place = match self.parts.iter().position(|part| part.id() == id) {
            Some(place) => place,
            None => self.add_part(state)?,
        };
        self.parts
            .get_mut(place)
            .and_then(|part| part.as_any().downcast_mut::<Part<V>>())
            .ok_or_else(|| Error::internal("an epoch's part has another type than its state"))
    }

    #[cold]
    fn add_part<V: Value>(&mut self, state: &State<V>) -> Result<usize> {
        let name = state.raw().name();
        if self.parts.iter().any(|part| part.name() == name) {
            return Err(Error::invalid(format!(
                "the epoch has changes of the state {name} with another type of values: use one type for a state"
            )));
        }
        let earlier = self.earlier.iter().filter_map(|epoch| epoch.changes_of(state)).collect();
        self.parts.push(Box::new(Part::new(
            state,
            self.app_id.clone(),
            self.number,
            earlier,
            self.after_micros,
        )));
        Ok(self.parts.len() - 1)
    }

    /// Sets a key's value when the epoch commits. Waits only when changes must be staged as files for want of room.
    pub async fn put<V: Value>(&mut self, state: &State<V>, key: &str, value: V) -> Result<()> {
        let part = self.part(state)?;
        match part.change(key, Some(value)) {
            false => Ok(()),
            true => Box::pin(part.spill()).await,
        }
    }

    /// Removes a key when the epoch commits.
    pub async fn delete<V: Value>(&mut self, state: &State<V>, key: &str) -> Result<()> {
        let part = self.part(state)?;
        match part.change(key, None) {
            false => Ok(()),
            true => Box::pin(part.spill()).await,
        }
    }

    /// A key's value as the epoch sees it: its own changes first, then the state as of the epoch's first read of it.
    pub async fn get<V: Value>(&mut self, state: &State<V>, key: &str) -> Result<Option<V>> {
        let part = self.part(state)?;
        if let Some(value) = part.get_now(key)? {
            return Ok(value);
        }
        // Boxed, so that a hit doesn't carry the room for everything that a miss may do.
        let mut values = Box::pin(part.load(&[key], false)).await?;
        Ok(values.pop().flatten())
    }

    /// Reads the keys that the epoch is going to ask for, all at once: pages of files that several keys lie in are read once.
    ///
    /// The values stay in memory until the epoch ends, whatever the row cache's size is.
    pub async fn prefetch<V: Value>(&mut self, state: &State<V>, keys: &[&str]) -> Result<()> {
        let part = self.part(state)?;
        Box::pin(part.load(keys, true)).await.map(drop)
    }

    /// Applies the changes, state by state, each with one commit. A state in which this epoch or a later one was applied before is left
    /// as it is, which is a success; so after any failure the same epoch can simply be sent again. A state that was only read is left alone.
    pub async fn commit(self) -> Result<BTreeMap<String, EpochOutcome>> {
        let mut outcomes = BTreeMap::new();
        for mut part in self.into_sealed()? {
            part.stage().await?;
            outcomes.insert(part.name().to_owned(), part.commit().await?);
        }
        Ok(outcomes)
    }

    /// The changes of each state, complete.
    pub(crate) fn into_sealed(self) -> Result<Vec<Box<dyn SealedPart>>> {
        let changed = self.parts.into_iter().filter(|part| part.is_changed());
        let mut parts = changed.map(|part| part.seal()).collect::<Result<Vec<_>>>()?;
        parts.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(parts)
    }
}
