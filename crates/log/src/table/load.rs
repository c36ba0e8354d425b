//! Loading a table: the newest checkpoint and the commits after it, or a version of the past.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::ObjectStoreExt;

use super::delta;
use super::state::TableState;
use super::{Action, Table, commit_path};
use crate::error::{Error, Result};

/// How many commits are read at the same time when a log without checkpoints is opened.
const REPLAY_CONCURRENCY: usize = 32;

impl Table {
    pub(super) async fn load(&self) -> Result<Option<TableState>> {
        let listing = self.list_log().await?;
        let Some(newest) = listing.newest() else { return Ok(None) };
        if let Some(gap) = listing.gap() {
            return Err(self.missing_commit(gap));
        }
        self.checkpointed.store(listing.checkpoint.unwrap_or(0), Ordering::Relaxed);
        let Some(checkpoint) = listing.checkpoint else {
            return self.replay(TableState::empty(), 0, newest).await.map(Some);
        };
        self.transactions_complete.store(false, Ordering::Relaxed);
        // The commits after the checkpoint are read here, each once.
        let state = match self.access.load(Some(checkpoint), &self.known_applications()).await {
            Ok(loaded) => self.replay(TableState::loaded(loaded), checkpoint + 1, newest).await?,
            Err(error) if listing.reaches_back_to_the_first() => {
                tracing::warn!(table = %self.label, %error, "a checkpoint is unusable; replaying the whole log");
                self.transactions_complete.store(true, Ordering::Relaxed);
                self.replay(TableState::empty(), 0, newest).await?
            }
            Err(error) => return Err(self.placed(error)),
        };
        if state.has_unknown_commits() && listing.reaches_back_to_the_first() {
            // Another engine wrote files without our tags; only the commits themselves say when.
            self.transactions_complete.store(true, Ordering::Relaxed);
            return self.replay(TableState::empty(), 0, newest).await.map(Some);
        }
        Ok(Some(state))
    }

    /// Whose progress a loaded state must know: what was known before must not be forgotten by a reload.
    fn known_applications(&self) -> Vec<String> {
        let state = self.state();
        let mut ids: Vec<String> = self.app_ids.clone();
        ids.extend(state.application_ids().map(str::to_owned));
        ids.extend(self.older_transactions.read().keys().cloned());
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The table as it was at an earlier version.
    pub async fn state_at(&self, version: i64) -> Result<TableState> {
        if let Ok(state) = self.replay(TableState::empty(), 0, version).await {
            return Ok(state);
        }
        let loaded =
            self.access.load(Some(version), &self.app_ids).await.map_err(|e| self.placed(e))?;
        Ok(TableState::loaded(loaded))
    }

    /// Every version of the table from the first one on, as far as its commits can still be read one by one; else none.
    ///
    /// The states share what they have in common, so that many of them cost little more than one.
    pub async fn states(&self) -> Result<Vec<Arc<TableState>>> {
        let newest = self.state().version;
        let mut states: Vec<Arc<TableState>> = Vec::new();
        let mut commits = stream::iter(0..=newest)
            .map(|version| {
                async move { Ok::<_, Error>((version, self.read_commit(version).await?)) }.boxed()
            })
            .buffered(REPLAY_CONCURRENCY);
        let mut state = TableState::empty();
        while let Some((version, actions)) = commits.try_next().await? {
            let Some(actions) = actions else { return Ok(Vec::new()) };
            state = state.apply(version, &actions).map_err(|e| self.placed(e))?;
            states.push(Arc::new(state.clone()));
        }
        Ok(states)
    }

    /// Applies the commits of a range to a state.
    async fn replay(&self, from: TableState, first: i64, last: i64) -> Result<TableState> {
        let mut state = from;
        let mut commits = stream::iter(first..=last)
            .map(|version| {
                async move { Ok::<_, Error>((version, self.read_commit(version).await?)) }.boxed()
            })
            .buffered(REPLAY_CONCURRENCY);
        while let Some((version, actions)) = commits.try_next().await? {
            let actions = actions.ok_or_else(|| self.missing_commit(version))?;
            state = state.apply(version, &actions).map_err(|e| self.placed(e))?;
        }
        Ok(state)
    }

    /// Reads one commit; `None` when it isn't there.
    pub async fn read_commit(&self, version: i64) -> Result<Option<Vec<Action>>> {
        let bytes = match self.store.get(&commit_path(version)).await {
            Ok(found) => found.bytes().await.map_err(|e| self.placed(e.into()))?,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.placed(error.into())),
        };
        delta::decode(version, &bytes).map(Some).map_err(|e| self.placed(e))
    }

    /// An application's last number.
    ///
    /// Inside a commit's closure the state's own knowledge comes first: it is newer than what this returned before.
    pub async fn transaction(&self, app_id: &str) -> Result<Option<i64>> {
        let state = self.state();
        if let Some(known) = state.transaction(app_id) {
            return Ok(Some(known));
        }
        if self.transactions_complete.load(Ordering::Relaxed) || state.version < 0 {
            return Ok(None);
        }
        if let Some(known) = self.older_transactions.read().get(app_id) {
            return Ok(*known);
        }
        let found = self
            .access
            .transaction(state.version, app_id.to_owned())
            .await
            .map_err(|e| self.placed(e))?;
        self.older_transactions.write().insert(app_id.to_owned(), found);
        Ok(self.state().transaction(app_id).or(found))
    }
}
