//! Epochs over typed states: changes are held back, seen by the epoch's own reads, and applied exactly once.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};

use alluvium_log::{EpochOutcome, Result};
use arrow::array::RecordBatch;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::raw::RawState;
use crate::typed::{Pending, State};

/// An exactly-once batch of changes, named by an application id and a number that grows.
///
/// The last change of each key counts; it gets its version and, as event time, the time of the commit. Dropping an epoch drops its changes.
pub struct Epoch {
    app_id: String,
    number: i64,
    pending: BTreeMap<String, Box<dyn PendingState>>,
}

impl std::fmt::Debug for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoch")
            .field("app_id", &self.app_id)
            .field("number", &self.number)
            .field("states", &self.pending.keys().collect::<Vec<_>>())
            .finish()
    }
}

trait PendingState: Send + Sync {
    fn raw(&self) -> &RawState;
    fn take_batch(&mut self) -> Result<RecordBatch>;
    fn as_any(&mut self) -> &mut dyn Any;
}

impl<V> PendingState for Pending<V>
where
    V: Serialize + DeserializeOwned + Send + Sync + 'static,
{
    fn raw(&self) -> &RawState {
        self.state.raw()
    }

    fn take_batch(&mut self) -> Result<RecordBatch> {
        Pending::take_batch(self)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl Epoch {
    pub(crate) fn new(app_id: &str, number: i64) -> Self {
        Self { app_id: app_id.to_owned(), number, pending: BTreeMap::new() }
    }

    fn pending<V>(&mut self, state: &State<V>) -> Result<&mut HashMap<String, Option<V>>>
    where
        V: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let name = state.raw().name().to_owned();
        let pending = self
            .pending
            .entry(name.clone())
            .or_insert_with(|| Box::new(Pending { state: state.clone(), changes: HashMap::new() }));
        match pending.as_any().downcast_mut::<Pending<V>>() {
            Some(typed) => Ok(&mut typed.changes),
            None => Err(alluvium_log::Error::invalid(format!(
                "the epoch has changes of the state {name} with another type of values: use one type for a state"
            ))),
        }
    }

    /// Sets a key's value when the epoch commits.
    pub fn put<V>(&mut self, state: &State<V>, key: &str, value: V) -> Result<()>
    where
        V: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        self.pending(state)?.insert(key.to_owned(), Some(value));
        Ok(())
    }

    /// Removes a key when the epoch commits.
    pub fn delete<V>(&mut self, state: &State<V>, key: &str) -> Result<()>
    where
        V: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        self.pending(state)?.insert(key.to_owned(), None);
        Ok(())
    }

    /// A key's value as the epoch sees it: its own changes first.
    pub async fn get<V>(&mut self, state: &State<V>, key: &str) -> Result<Option<V>>
    where
        V: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
    {
        if let Some(change) = self.pending(state)?.get(key) {
            return Ok(change.clone());
        }
        state.get(key).await
    }

    /// Applies the changes, state by state, each with one commit. A state in which this epoch or a later one was applied before is left
    /// as it is, which is a success; so after any failure the same epoch can simply be sent again.
    pub async fn commit(mut self) -> Result<BTreeMap<String, EpochOutcome>> {
        let mut outcomes = BTreeMap::new();
        for (name, pending) in &mut self.pending {
            let mut commit = pending.raw().epoch(&self.app_id, self.number)?;
            commit.stage(&pending.take_batch()?).await?;
            outcomes.insert(name.clone(), commit.commit().await?);
        }
        Ok(outcomes)
    }
}
