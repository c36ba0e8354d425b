//! A Delta table whose commits are ours: loaded once, followed commit by commit, and written by put-if-absent.
//!
//! Nothing here lists a folder or reloads a snapshot per commit. The newest state is in memory; `refresh` reads the
//! commits after it, one GET each; `commit` writes the next number and, when somebody else has taken it, reads
//! that commit, decides again and takes the one after. The decision is made by the caller's closure on
//! exactly the state that precedes the commit, so that what it checked is what holds.

mod ahead;
mod checkpoint;
mod cleanup;
mod commit;
mod data_file;
mod delta;
mod examine;
mod file_stats;
mod follow;
mod gap;
mod link;
mod listing;
mod load;
mod model;
mod moved;
mod probe;
mod redact;
mod state;
mod vacuum;
mod version_at;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use parking_lot::RwLock;
use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::leases::{LeaseFolder, LeasedTable};
use crate::storage::{GuardedStore, LocalTable, Storage, Unsynced};
pub use checkpoint::CHECKPOINT_INTERVAL;
pub use cleanup::CleanUpReport;
pub use commit::{MAX_COMMIT_ATTEMPTS, MAX_UNKNOWN_RETRIES};
pub use data_file::{CommitSpan, DataFile, FileCommits};
use delta::DeltaAccess;
pub use examine::{Damage, Examination, FileRole};
pub use file_stats::FileStats;
pub use link::{EARLIER_COMMITS, LinkPlan, Linked, Linking};
pub use model::{
    Action, CommitInfo, FileAdd, FileRemove, Protocol, TAG_APPEND, TAG_COMMIT, TAG_COMMITS,
    TAG_RUN, TAG_SORTED, TableMetadata,
};
pub use state::TableState;
pub use vacuum::{Pins, Stray, VACUUM_APP_ID, VacuumOptions, VacuumReport};
pub use version_at::VersionAt;

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
    /// The same, where small files become durable with the commit that names them.
    local: Option<LocalTable>,
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
    probe: Option<Arc<probe::CommitProbe>>,
    /// What must be made sure of before a commit.
    guard: Option<Arc<GuardedStore>>,
    /// Whether the log was listed since the table was opened, or need not be.
    is_listed: AtomicBool,
    transactions_complete: AtomicBool,
    /// Progress of applications that a checkpoint holds, read on demand.
    older_transactions: RwLock<HashMap<String, Option<i64>>>,
    checkpointed: AtomicI64,
    checkpointing: Arc<Mutex<()>>,
    cleaning: Mutex<()>,
    /// When the newest known version was last seen to be in the log, by the clock in milliseconds.
    seen_ms: AtomicI64,
    /// Where readers say which of its versions they hold.
    leases: Option<(LeaseFolder, LeasedTable)>,
}

fn commit_path(version: i64) -> Path {
    Path::from(format!("_delta_log/{version:020}.json"))
}

impl Table {
    fn new(storage: &Storage, path: &str, clock: Arc<dyn Clock>, app_ids: &[&str]) -> Self {
        let table = Path::from(path);
        let probe = storage.commit_probe(path).map(probe::CommitProbe::new).map(Arc::new);
        Self {
            store: storage.table_store(&table),
            local: storage.local_table(&table),
            label: path.to_owned(),
            access: DeltaAccess::new(storage.object_store().clone(), table, probe.clone()),
            clock,
            state: RwLock::new(Arc::new(TableState::empty())),
            committing: Mutex::new(()),
            anchor: RwLock::new(None),
            app_ids: app_ids.iter().chain(&[VACUUM_APP_ID]).map(|&id| id.to_owned()).collect(),
            check_identity: storage.is_local(),
            probe,
            guard: storage.guard(),
            is_listed: AtomicBool::new(true),
            transactions_complete: AtomicBool::new(true),
            older_transactions: RwLock::new(HashMap::new()),
            checkpointed: AtomicI64::new(0),
            checkpointing: Arc::new(Mutex::new(())),
            cleaning: Mutex::new(()),
            seen_ms: AtomicI64::new(i64::MIN),
            leases: None,
        }
    }

    /// Creates the table; `None` when its first commit exists already. Its states know the progress of `app_ids`.
    pub async fn create(
        storage: &Storage,
        path: &str,
        clock: Arc<dyn Clock>,
        protocol: Protocol,
        metadata: TableMetadata,
        app_ids: &[&str],
    ) -> Result<Option<Self>> {
        let table = Self::new(storage, path, clock, app_ids);
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

    /// The same table, named otherwise in messages.
    pub(crate) fn labelled(mut self, label: String) -> Self {
        self.label = label;
        self
    }

    /// The same table, of which nothing is removed that readers hold by leases.
    pub fn leased_in(mut self, folder: &LeaseFolder, as_table: LeasedTable) -> Self {
        self.leases = Some((folder.clone(), as_table));
        self
    }

    /// The versions that readers hold by leases that count at a time, and who holds them.
    async fn held_versions(&self, now_ms: i64) -> Result<BTreeMap<i64, String>> {
        let Some((folder, as_table)) = &self.leases else { return Ok(BTreeMap::new()) };
        let mut held = BTreeMap::new();
        for lease in folder.alive(now_ms).await.map_err(|error| self.placed(error))? {
            let versions = lease.versions(*as_table).iter();
            held.extend(versions.map(|version| (*version, lease.holder.clone())));
        }
        Ok(held)
    }

    /// How the table is named in messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Writes a data file that no commit refers to yet; its name must be new.
    pub async fn put_new(&self, path: &str, bytes: impl Into<PutPayload>) -> Result<()> {
        let options = PutOptions { mode: PutMode::Create, ..Default::default() };
        let put = self.store.put_opts(&Path::from(path), bytes.into(), options).await;
        put.map(drop).map_err(|error| self.not_written(path, error))
    }

    /// The same for a small file that a commit of this handle is to name soon. On a local disk it isn't durable yet, with `later` not
    /// even written: the commit is given what is returned, and sees to it.
    pub(crate) async fn put_new_unsynced(
        &self,
        path: &str,
        bytes: impl Into<PutPayload>,
        later: bool,
    ) -> Result<Option<Arc<Unsynced>>> {
        let Some(local) = &self.local else {
            return self.put_new(path, bytes).await.map(|()| None);
        };
        let (at, bytes) = (Path::from(path), bytes.into());
        let unsynced = match later {
            true => local.write_later(&at, bytes),
            false => local.write(&at, bytes).await,
        };
        unsynced.map(Some).map_err(|error| self.not_written(path, error))
    }

    /// Writes those files that [`Self::put_new_unsynced`] has left to a commit.
    pub(crate) async fn ensure_written(&self, files: Vec<Arc<Unsynced>>) -> Result<()> {
        match &self.local {
            Some(local) if !files.is_empty() => {
                local.ensure_written(files).await.map_err(|error| self.placed(error.into()))
            }
            _ => Ok(()),
        }
    }

    /// Whether a commit of this handle is being made.
    pub(crate) fn is_committing(&self) -> bool {
        self.committing.try_lock().is_err()
    }

    fn not_written(&self, path: &str, error: object_store::Error) -> Error {
        self.placed(Error::from(error).context(format!("writing {path}")))
    }

    /// Removes a data file that no commit refers to, nor ever will. What can't be removed stays, unseen, until a vacuum.
    pub async fn discard(&self, path: &str) {
        if let Err(error) = self.store.delete(&Path::from(path)).await {
            tracing::warn!(table = self.label, path, %error, "an unused file could not be removed");
        }
    }

    /// The newest state known here.
    pub fn state(&self) -> Arc<TableState> {
        self.state.read().clone()
    }

    fn placed(&self, error: Error) -> Error {
        error.context(format!("table {}", self.label))
    }
}
