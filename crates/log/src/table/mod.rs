//! A Delta table whose commits are ours: loaded once, followed commit by commit, and written by put-if-absent.
//!
//! Nothing here lists a folder or reloads a snapshot per commit. The newest state is in memory; `refresh` reads the
//! commits after it, one GET each; `commit` writes the next number and, when somebody else has taken it, reads
//! that commit, decides again and takes the one after. The decision is made by the caller's closure on
//! exactly the state that precedes the commit, so that what it checked is what holds.

mod delta;
mod gap;
mod model;
mod state;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use parking_lot::RwLock;
use rand::Rng;
use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Storage;
use delta::DeltaAccess;
pub use model::{
    Action, CommitInfo, FileAdd, FileRemove, Protocol, TAG_APPEND, TAG_COMMIT, TAG_SORTED,
    TableMetadata,
};
pub use state::{CommitSpan, DataFile, FileCommits, FileStats, TableState};

/// How often a commit is tried again after losing the race for a number.
pub const MAX_COMMIT_ATTEMPTS: u32 = 1_000;
/// How often a number may be taken without a commit to be read under it.
const MAX_STUCK_ATTEMPTS: u32 = 16;
/// How often a write whose outcome is unknown is sent again.
pub const MAX_UNKNOWN_RETRIES: u32 = 5;
/// Commits between checkpoints, at least.
pub const CHECKPOINT_INTERVAL: i64 = 100;
/// A table with more files than this times the interval is checkpointed less often, so that the cost of
/// checkpoints per commit stays bounded.
const FILES_PER_COMMIT_OF_INTERVAL: usize = 8;
/// How many commits are read at the same time when a log without checkpoints is opened.
const REPLAY_CONCURRENCY: usize = 32;

/// What a commit's closure decides on the state before it.
#[derive(Debug)]
pub enum Attempt<T> {
    /// Write these actions as the next commit.
    Write(Vec<Action>),
    /// Write nothing; this is the outcome.
    Stop(T),
}

/// What came of a commit.
#[derive(Debug)]
pub enum Outcome<T> {
    /// It is the commit with this number, and this is the state after it.
    Committed(Arc<TableState>),
    /// The closure stopped.
    Stopped(T),
}

/// A handle on one Delta table.
#[derive(Debug)]
pub struct Table {
    store: Arc<dyn ObjectStore>,
    label: String,
    access: DeltaAccess,
    clock: Arc<dyn Clock>,
    state: RwLock<Arc<TableState>>,
    /// Held while a commit is made: one at a time in this process.
    committing: Mutex<()>,
    /// What the file of the newest known commit looks like: another one means another table.
    anchor: RwLock<Option<(i64, String)>>,
    /// Applications whose progress every state knows, also after a checkpoint.
    app_ids: Vec<String>,
    check_identity: bool,
    transactions_complete: AtomicBool,
    /// Progress of applications that a checkpoint holds, read on demand.
    older_transactions: RwLock<HashMap<String, Option<i64>>>,
    checkpointed: AtomicI64,
    checkpointing: Arc<Mutex<()>>,
}

fn commit_path(version: i64) -> Path {
    Path::from(format!("_delta_log/{version:020}.json"))
}

impl Table {
    fn new(storage: &Storage, path: &str, clock: Arc<dyn Clock>, app_ids: &[&str]) -> Self {
        let table = Path::from(path);
        Self {
            store: storage.table_store(&table),
            label: path.to_owned(),
            access: DeltaAccess::new(storage.object_store().clone(), table),
            clock,
            state: RwLock::new(Arc::new(TableState::empty())),
            committing: Mutex::new(()),
            anchor: RwLock::new(None),
            app_ids: app_ids.iter().map(|&id| id.to_owned()).collect(),
            check_identity: storage.is_local(),
            transactions_complete: AtomicBool::new(true),
            older_transactions: RwLock::new(HashMap::new()),
            checkpointed: AtomicI64::new(0),
            checkpointing: Arc::new(Mutex::new(())),
        }
    }

    /// Creates the table; `None` when its first commit exists already.
    pub async fn create(
        storage: &Storage,
        path: &str,
        clock: Arc<dyn Clock>,
        protocol: Protocol,
        metadata: TableMetadata,
    ) -> Result<Option<Self>> {
        let table = Self::new(storage, path, clock, &[]);
        let actions = [Action::Protocol(protocol), Action::Metadata(metadata)];
        let first = |state: &TableState, _| match state.version {
            -1 => Ok(Attempt::Write(actions.to_vec())),
            _ => Ok(Attempt::Stop(())),
        };
        match table.commit("CREATE TABLE", None, BTreeMap::new(), first).await? {
            Outcome::Committed(_) => Ok(Some(table)),
            Outcome::Stopped(()) => Ok(None),
        }
    }

    /// Opens the table at its newest version; `None` when there is none. Its states know the progress of `app_ids`.
    pub async fn open(
        storage: &Storage,
        path: &str,
        clock: Arc<dyn Clock>,
        app_ids: &[&str],
    ) -> Result<Option<Self>> {
        let table = Self::new(storage, path, clock, app_ids);
        let Some(state) = table.load().await? else { return Ok(None) };
        table.publish(Arc::new(state)).await?;
        Ok(Some(table))
    }

    /// The object store of the table's files.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// How the table is named in messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The newest state known here.
    pub fn state(&self) -> Arc<TableState> {
        self.state.read().clone()
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

    fn placed(&self, error: Error) -> Error {
        error.context(format!("table {}", self.label))
    }

    // --- loading -------------------------------------------------------------------------------------------

    async fn load(&self) -> Result<Option<TableState>> {
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

    async fn list_log(&self) -> Result<LogListing> {
        let mut listing = LogListing::default();
        let folder = Path::from("_delta_log");
        let mut entries = self.store.list(Some(&folder));
        while let Some(entry) = entries.next().await {
            let location = entry.map_err(|e| self.placed(e.into()))?.location;
            // Only files straight in the log folder count.
            if location.parts().count() == 2 {
                listing.note(location.filename().unwrap_or_default());
            }
        }
        listing.commits.sort_unstable();
        Ok(listing)
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

    // --- following -----------------------------------------------------------------------------------------

    /// Reads the commits that others have made; returns the newest state.
    ///
    /// It doesn't wait for a commit that is being made here: whoever has read further publishes, and a state is the same
    /// whoever has read it.
    pub async fn refresh(&self) -> Result<Arc<TableState>> {
        self.verify_identity().await?;
        self.catch_up().await?;
        Ok(self.state())
    }

    /// Reads commits until there is none.
    async fn catch_up(&self) -> Result<()> {
        let before = self.state();
        let mut state = (*before).clone();
        let is_torn = loop {
            let next = state.version + 1;
            let (found, is_beyond) =
                futures::join!(self.read_commit(next), self.is_there(next + 1));
            let Some(actions) = found? else { break is_beyond? };
            state = state.apply(next, &actions).map_err(|e| self.placed(e))?;
        };
        let next = state.version + 1;
        if state.version > before.version {
            self.publish(Arc::new(state)).await?;
        }
        if is_torn { self.look_over_gap(next).await } else { Ok(()) }
    }

    /// Makes a state the newest one, unless a newer one is known by now.
    async fn publish(&self, state: Arc<TableState>) -> Result<()> {
        // A look that fails must not fail a commit that is made: the older anchor stays, and is as good.
        let seen = match self.check_identity && state.version >= 0 {
            true => self.look_at(state.version).await.ok(),
            false => None,
        };
        let mut current = self.state.write();
        if state.version >= current.version {
            if let Some(seen) = seen {
                *self.anchor.write() = seen.map(|etag| (state.version, etag));
            }
            *current = state;
        }
        Ok(())
    }

    async fn look_at(&self, version: i64) -> Result<Option<String>> {
        match self.store.head(&commit_path(version)).await {
            Ok(meta) => Ok(meta.e_tag),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.placed(error.into())),
        }
    }

    /// Makes sure that the table under this handle is still the one that was opened.
    async fn verify_identity(&self) -> Result<()> {
        let Some((version, known)) = self.anchor.read().clone() else { return Ok(()) };
        let seen = self.look_at(version).await?;
        if seen.as_deref() == Some(known.as_str()) {
            return Ok(());
        }
        let old = self.state().metadata.id.clone();
        let now = match self.load().await? {
            Some(state) if state.metadata.id == old && state.version >= version => {
                // The same table: a copy was moved back, or the log was cleaned up to here.
                self.publish(Arc::new(state)).await?;
                self.older_transactions.write().clear();
                return Ok(());
            }
            Some(state) => format!("{} at version {}", state.metadata.id, state.version),
            None => "none".to_owned(),
        };
        Err(self.placed(Error::new(
            ErrorKind::IdentityChanged,
            format!("the table's identity changed: it was {old} at version {version}, now it is {now}; reopen the store"),
        )))
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

    // --- committing ----------------------------------------------------------------------------------------

    /// Writes one commit. `decide` sees the state that precedes the number it is given, and is asked again
    /// whenever another commit has come first.
    pub async fn commit<T>(
        &self,
        operation: &str,
        blind_append: Option<bool>,
        note: BTreeMap<String, serde_json::Value>,
        mut decide: impl FnMut(&TableState, i64) -> Result<Attempt<T>>,
    ) -> Result<Outcome<T>> {
        let _alone = self.committing.lock().await;
        self.verify_identity().await?;
        let id = format!("{:032x}", rand::rng().random::<u128>());
        let mut note = note;
        note.insert("id".to_owned(), serde_json::Value::String(id.clone()));
        let mut stuck = 0;
        for attempt in 0..MAX_COMMIT_ATTEMPTS {
            if self.is_there(self.state().version + 2).await? {
                // Others are further, or a commit is gone, whose number must not be given away again.
                self.catch_up().await?;
            }
            let state = self.state();
            let version = state.version + 1;
            let actions = match decide(&state, version)? {
                Attempt::Write(actions) => actions,
                Attempt::Stop(outcome) => return Ok(Outcome::Stopped(outcome)),
            };
            let info = CommitInfo {
                timestamp_ms: Some(self.clock.now_ms().max(state.timestamp_ms + 1)),
                operation: operation.to_owned(),
                blind_append,
                note: note.clone(),
            };
            let mut all = Vec::with_capacity(actions.len() + 1);
            all.push(Action::Info(info));
            all.extend(actions);
            if self.put_commit(version, delta::encode(&all)?, &id).await? {
                let next = Arc::new(state.apply(version, &all)?);
                self.publish(next.clone()).await?;
                return Ok(Outcome::Committed(next));
            }
            metrics::counter!(crate::metrics::COMMIT_CONFLICTS).increment(1);
            self.catch_up().await?;
            stuck = if self.state().version < version { stuck + 1 } else { 0 };
            if stuck >= MAX_STUCK_ATTEMPTS {
                return Err(self.placed(Error::corrupt(format!(
                    "the name {version:020}.json is taken in the Delta log, but there is no commit under it: remove what is there"
                ))));
            }
            back_off(attempt).await;
        }
        Err(self.placed(Error::new(
            ErrorKind::Conflict,
            format!("other writers took {MAX_COMMIT_ATTEMPTS} commits in a row; nothing was written, try again"),
        )))
    }

    /// Puts a commit if its number is free; false when another commit has it.
    async fn put_commit(&self, version: i64, bytes: Bytes, id: &str) -> Result<bool> {
        let path = commit_path(version);
        let options = PutOptions { mode: PutMode::Create, ..Default::default() };
        let mut last_error = None;
        for attempt in 0..=MAX_UNKNOWN_RETRIES {
            match self.store.put_opts(&path, bytes.clone().into(), options.clone()).await {
                Ok(_) => return Ok(true),
                Err(object_store::Error::AlreadyExists { .. }) => {
                    // The one that is there may be ours, if an earlier reply was lost: then not being able to
                    // look means not knowing.
                    return match self.is_ours(version, id).await {
                        Err(error) if last_error.is_some() => {
                            Err(self.unknown(version, Some(error.into())))
                        }
                        known => known,
                    };
                }
                // These are told before anything is written.
                Err(
                    error @ (object_store::Error::PermissionDenied { .. }
                    | object_store::Error::Unauthenticated { .. }
                    | object_store::Error::InvalidPath { .. }),
                ) if last_error.is_none() => return Err(self.placed(error.into())),
                Err(error) => {
                    // The reply may be lost and the commit made. The same bytes under the same number may be
                    // sent again: if it was made, the number is taken, and by us.
                    tracing::warn!(table = %self.label, version, %error, "the outcome of a commit is unknown");
                    last_error = Some(error);
                    back_off(attempt).await;
                }
            }
        }
        if self.is_ours(version, id).await.unwrap_or(false) {
            return Ok(true);
        }
        Err(self.unknown(version, last_error.map(Into::into)))
    }

    fn unknown(
        &self,
        version: i64,
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        let error = Error::new(
            ErrorKind::Unknown,
            format!(
                "whether commit {version} was made could not be learned: read again before retrying"
            ),
        );
        self.placed(match source {
            Some(source) => error.with_source(source),
            None => error,
        })
    }

    async fn is_ours(&self, version: i64, id: &str) -> Result<bool> {
        let actions = self.read_commit(version).await?.unwrap_or_default();
        Ok(actions
            .iter()
            .any(|action| matches!(action, Action::Info(info) if info.id() == Some(id))))
    }

    // --- checkpoints ---------------------------------------------------------------------------------------

    /// Whether enough commits have been made since the last checkpoint for another one to pay.
    pub fn is_checkpoint_due(&self) -> bool {
        let state = self.state();
        let files = i64::try_from(state.file_count() / FILES_PER_COMMIT_OF_INTERVAL).unwrap_or(0);
        state.version - self.checkpointed.load(Ordering::Relaxed) >= CHECKPOINT_INTERVAL.max(files)
    }

    /// Writes a checkpoint of the newest version, unless one is being written.
    pub async fn checkpoint(&self) -> Result<bool> {
        let Ok(_writing) = self.checkpointing.try_lock() else { return Ok(false) };
        let version = self.state().version;
        self.access.checkpoint(version).await.map_err(|e| self.placed(e))?;
        self.checkpointed.store(version, Ordering::Relaxed);
        metrics::counter!(crate::metrics::CHECKPOINTS).increment(1);
        Ok(true)
    }

    /// Writes a checkpoint in the background when one is due. Its failure costs only time at the next opening.
    pub fn checkpoint_in_background(self: &Arc<Self>) -> Option<tokio::task::JoinHandle<()>> {
        if !self.is_checkpoint_due() || self.checkpointing.try_lock().is_err() {
            return None;
        }
        let table = self.clone();
        Some(tokio::spawn(async move {
            if let Err(error) = table.checkpoint().await {
                tracing::warn!(table = %table.label, %error, "a checkpoint could not be written");
            }
        }))
    }
}

/// Waits longer the more often a race was lost, by a random share so that racers part.
async fn back_off(attempt: u32) {
    if attempt == 0 {
        return;
    }
    let ceiling_ms = 1_u64 << attempt.min(6);
    let wait_ms = rand::rng().random_range(0..=ceiling_ms);
    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
}

/// The names in a table's log folder, as far as they are commits and checkpoints.
#[derive(Debug, Default)]
struct LogListing {
    commits: Vec<i64>,
    checkpoint: Option<i64>,
}

impl LogListing {
    fn note(&mut self, name: &str) {
        let Some((digits, rest)) = name.split_at_checked(20) else { return };
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return;
        }
        let Ok(version) = digits.parse::<i64>() else { return };
        if rest == ".json" {
            self.commits.push(version);
        } else if rest.starts_with(".checkpoint") {
            self.checkpoint = self.checkpoint.max(Some(version));
        }
    }

    fn newest(&self) -> Option<i64> {
        self.commits.last().copied().max(self.checkpoint)
    }

    fn reaches_back_to_the_first(&self) -> bool {
        self.commits.first() == Some(&0)
    }

    /// The first commit that is missing among those needed: after the checkpoint, or all.
    fn gap(&self) -> Option<i64> {
        let first = self.checkpoint.map_or(0, |version| version + 1);
        let needed = self.commits.iter().filter(|&&version| version >= first);
        needed
            .zip(first..)
            .find(|(version, expected)| *version != expected)
            .map(|(_, expected)| expected)
    }
}
