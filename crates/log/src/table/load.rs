//! Loading a table: a checkpoint and the commits after it, or all commits; the newest version, or one of the past.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::ObjectStoreExt;

use super::ahead::Ahead;
use super::delta::{self, Loaded};
use super::listing::{LogListing, Origin};
use super::state::TableState;
use super::walk::Between;
use super::{Action, Table, VACUUM_APP_ID, commit_path};
use crate::error::{Error, ErrorKind, Result};

/// How many commits are read at the same time.
const REPLAY_CONCURRENCY: usize = 32;
/// How often loading begins anew because the log was cleaned up meanwhile.
pub(super) const MAX_LOADS: u32 = 4;

impl Table {
    /// Loads the newest version; `None` when there is no table.
    pub(super) async fn load(&self) -> Result<Option<TableState>> {
        let mut ahead = self.read_ahead().await;
        if let Some(state) = ahead.as_ref().and_then(|ahead| self.plainly_newest(ahead)) {
            self.note_transactions(&state);
            return Ok(Some(state));
        }
        let mut listing = self.list_versions().await?;
        for _ in 1..MAX_LOADS {
            let error = match self.load_listed(&listing, ahead.take()).await {
                Ok(state) => return Ok(state),
                Err(error) => error,
            };
            // What was listed may have been cleaned up since, being replaced by something newer.
            let again = self.list_versions().await?;
            if again == listing {
                return Err(error);
            }
            listing = again;
        }
        self.load_listed(&listing, None).await
    }

    async fn load_listed(
        &self,
        listing: &LogListing,
        ahead: Option<Ahead>,
    ) -> Result<Option<TableState>> {
        let Some(newest) = listing.newest() else { return Ok(None) };
        let origins = listing.origins(newest);
        if origins.is_empty() {
            return Err(self.missing_commit(listing.gap()));
        }
        let newest_checkpoint = listing.checkpoints.last().copied().unwrap_or(0);
        self.checkpointed.store(newest_checkpoint, Ordering::Relaxed);
        let state = match ahead.filter(|ahead| origins.first() == Some(&ahead.origin)) {
            Some(ahead) => self.load_rest(ahead, newest).await,
            None => None,
        };
        let state = match state {
            Some(state) => state,
            None => self.load_from(&origins, newest).await?,
        };
        self.is_listed.store(true, Ordering::Relaxed);
        self.note_transactions(&state);
        Ok(Some(state))
    }

    fn note_transactions(&self, state: &TableState) {
        self.transactions_complete.store(state.has_all_transactions(), Ordering::Relaxed);
    }

    /// The newest version from what was read ahead; `None` leaves it to the way that knows older checkpoints too, where what goes
    /// wrong is met again, and told.
    async fn load_rest(&self, ahead: Ahead, newest: i64) -> Option<TableState> {
        let next = ahead.state.version + 1;
        let state = self.replay(ahead.state, next, newest).await.ok()?;
        (!state.has_unknown_commits()).then_some(state)
    }

    /// Makes a version from the nearest origin that can be read.
    ///
    /// A checkpoint doesn't say what commits the rows of another engine's files have: then the farthest origin is asked,
    /// which knows most.
    pub(super) async fn load_from(&self, origins: &[Origin], version: i64) -> Result<TableState> {
        let mut failure: Option<Error> = None;
        for origin in origins {
            match self.load_origin(*origin, version).await {
                Ok(state) => {
                    let farthest = origins.last().filter(|last| *last != origin);
                    return match farthest.filter(|_| state.has_unknown_commits()) {
                        Some(farthest) => self.told_by(*farthest, state).await,
                        None => Ok(state),
                    };
                }
                Err(error) => {
                    tracing::warn!(table = %self.label, ?origin, %error, "a version can't be read from here; trying an older checkpoint");
                    // Damage is final, a storage that failed is not: whoever repeats the call may have the answer.
                    if failure.as_ref().is_none_or(is_of_log) {
                        failure = Some(error);
                    }
                }
            }
        }
        Err(failure.unwrap_or_else(|| self.missing_commit(version)))
    }

    /// The same version, with what an origin further back tells of it. What that does not tell any more stays unknown; but an origin
    /// that could not be asked has told nothing, and to go on without would be to refuse what can be answered.
    async fn told_by(&self, farthest: Origin, state: TableState) -> Result<TableState> {
        match self.load_whole(farthest, state.version).await {
            Err(error) if is_of_log(&error) => {
                tracing::warn!(table = %self.label, ?farthest, %error, "what commits another engine's rows have can't be told from here");
                Ok(state)
            }
            told => told,
        }
    }

    pub(super) async fn load_origin(&self, origin: Origin, version: i64) -> Result<TableState> {
        self.load_after(origin, version, |state| state).await
    }

    /// The same, knowing all files that were rewritten since.
    async fn load_whole(&self, origin: Origin, version: i64) -> Result<TableState> {
        let state = self.load_after(origin, version, TableState::remembering).await?;
        Ok(state.forgetting())
    }

    async fn load_after(
        &self,
        origin: Origin,
        version: i64,
        begun: impl FnOnce(TableState) -> TableState,
    ) -> Result<TableState> {
        match origin {
            Origin::First => self.replay(begun(TableState::empty()), 0, version).await,
            Origin::Checkpoint(at) => {
                let loaded = self.access.load_checkpoint(at).await.map_err(|e| self.placed(e))?;
                let loaded = match loaded {
                    Some(loaded) => loaded,
                    None => {
                        let loading = self.access.load(Some(at), &self.known_applications()).await;
                        loading.map_err(|e| self.placed(e))?
                    }
                };
                self.load_checkpointed(loaded, version, begun).await
            }
        }
    }

    /// A version from what a checkpoint says and the commits after it.
    async fn load_checkpointed(
        &self,
        loaded: Loaded,
        version: i64,
        begun: impl FnOnce(TableState) -> TableState,
    ) -> Result<TableState> {
        let state = begun(self.begun_with(loaded).await?);
        let next = state.version + 1;
        self.replay(state, next, version).await
    }

    /// The version of a checkpoint.
    pub(super) async fn begun_with(&self, loaded: Loaded) -> Result<TableState> {
        // A checkpoint has no time; the commit that it stands for has, while it is kept.
        // Nothing else of it is needed, so that it may be damaged.
        let commit = match self.read_commit(loaded.version).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => None,
            found => found?,
        }
        .unwrap_or_default();
        Ok(TableState::loaded(loaded).made_at(commit_time(&commit)))
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

    /// The oldest version that can be read by its number: its commits are there, and its files.
    pub async fn oldest_version(&self) -> Result<i64> {
        let state = self.state();
        let listing = self.list_versions().await?;
        // Others may have written one.
        let newest_checkpoint = listing.checkpoints.last().copied().unwrap_or(0);
        self.checkpointed.fetch_max(newest_checkpoint.min(state.version), Ordering::Relaxed);
        let told = listing.oldest_readable().unwrap_or(state.version);
        Ok(told.max(state.transaction(VACUUM_APP_ID).unwrap_or(0)))
    }

    /// The table as it was at an earlier version; refused when some of its files are gone, unless a reader holds it.
    pub async fn state_at(&self, version: i64) -> Result<TableState> {
        let whole_from = self.state().transaction(VACUUM_APP_ID).unwrap_or(0);
        if version < whole_from
            && !self.held_versions(self.clock.now_ms()).await?.contains_key(&version)
        {
            return Err(self.placed(Error::new(
                ErrorKind::PointUnavailable,
                format!(
                    "version {version} can't be read: a vacuum removed files of the versions before {whole_from}; {whole_from} to {} can be read",
                    self.state().version
                ),
            )));
        }
        let listing = self.list_versions().await?;
        let origins = listing.origins(version);
        if origins.is_empty() {
            let newest = listing.newest().unwrap_or(-1);
            let oldest = listing.oldest_readable().unwrap_or(newest);
            return Err(self.placed(Error::new(
                ErrorKind::PointUnavailable,
                format!(
                    "version {version} can't be read: the versions {oldest} to {newest} can; older ones are cleaned up"
                ),
            )));
        }
        self.load_from(&origins, version).await
    }

    /// Every version of the table that can be made, oldest first; those that need a commit which can't be read are left out.
    ///
    /// The states share what they have in common, so that many of them cost little more than one.
    pub async fn states(&self) -> Result<Vec<Arc<TableState>>> {
        // What is committed after it was listed, by this process too, is not in the listing, and is not looked for.
        let mut newest = self.state().version;
        let mut listing = self.list_versions().await?;
        for _ in 1..MAX_LOADS {
            let error = match self.states_listed(&listing, newest).await {
                Ok(states) => return Ok(states),
                Err(error) => error,
            };
            // All that was listed may have been cleaned up since, being replaced by something newer.
            newest = self.state().version;
            let again = self.list_versions().await?;
            if again == listing {
                return Err(error);
            }
            listing = again;
        }
        self.states_listed(&listing, newest).await
    }

    async fn states_listed(
        &self,
        listing: &LogListing,
        newest: i64,
    ) -> Result<Vec<Arc<TableState>>> {
        let mut origins = listing.origins(newest);
        while let Some(origin) = origins.pop() {
            match self.states_from(listing, origin, newest).await {
                Ok(states) => return Ok(states),
                // A younger checkpoint may be whole, or this one is being cleaned up. A storage that failed says neither, and
                // fewer versions than there are would be taken for all.
                Err(error) if !origins.is_empty() && is_of_log(&error) => {
                    tracing::debug!(table = %self.label, ?origin, %error, "versions can't be read from here on");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(vec![self.state()])
    }

    async fn states_from(
        &self,
        listing: &LogListing,
        origin: Origin,
        newest: i64,
    ) -> Result<Vec<Arc<TableState>>> {
        let mut states: Vec<Arc<TableState>> = Vec::new();
        let oldest = match origin {
            Origin::First => TableState::empty(),
            Origin::Checkpoint(at) => {
                let state = self.load_origin(origin, at).await?;
                states.push(Arc::new(state.clone()));
                state
            }
        };
        self.walk(listing, oldest, newest, |_, after, between| {
            if let Between::Hole(hole) = between {
                for commit in &hole.unreadable {
                    tracing::warn!(table = %self.label, file = commit.file, whole_from = commit.whole_from, problem = commit.problem, "a commit can't be read: the versions up to the next checkpoint can't be made");
                }
            }
            if states.last().is_some_and(|last| last.version == after.version) {
                states.pop();
            }
            states.push(Arc::new(after.clone()));
        })
        .await?;
        Ok(states)
    }

    /// Applies the commits of a range to a state.
    async fn replay(&self, from: TableState, first: i64, last: i64) -> Result<TableState> {
        let mut state = from;
        let mut commits = self.commits(first, last);
        while let Some((version, actions)) = commits.try_next().await? {
            state = state.apply(version, &actions).map_err(|e| self.placed(e))?;
        }
        Ok(state)
    }

    /// The commits of a range, in order; a missing one is an error.
    pub(super) fn commits(
        &self,
        first: i64,
        last: i64,
    ) -> impl futures::Stream<Item = Result<(i64, Vec<Action>)>> + Unpin + '_ {
        stream::iter(first..=last)
            .map(move |version| {
                async move {
                    let actions = self.read_commit(version).await?;
                    let actions = actions.ok_or_else(|| self.missing_commit(version))?;
                    Ok((version, actions))
                }
                .boxed()
            })
            .buffered(REPLAY_CONCURRENCY)
    }

    /// Reads one commit; `None` when it isn't there.
    pub async fn read_commit(&self, version: i64) -> Result<Option<Vec<Action>>> {
        if let Some(bytes) = self.probe_bytes(version) {
            return delta::decode(version, &bytes).map(Some).map_err(|e| self.placed(e));
        }
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

/// Whether an error tells what lies in the log, or lies there no more, and not that it could not be read.
pub(super) fn is_of_log(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported)
}

/// When a commit was made, as it says itself.
pub(super) fn commit_time(actions: &[Action]) -> Option<i64> {
    actions.iter().find_map(|action| match action {
        Action::Info(info) => info.timestamp_ms,
        _ => None,
    })
}
