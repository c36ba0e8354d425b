//! One state's log: the handle that everything else holds. Creating, opening, following, appending.

mod commit;
mod erase;
mod growth;
mod stage;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use arrow::array::RecordBatch;
use parking_lot::{Mutex, RwLock};

use crate::archive::{Archived, KnownArchive};
use crate::clock::{Clock, HybridClock, SystemClock};
use crate::definition::StateDefinition;
use crate::epoch::EpochCommit;
use crate::erased::{Erased, KeyErased};
use crate::error::{Error, ErrorKind, Result};
use crate::expired::LOG_APP_IDS;
use crate::forks::NameFolder;
use crate::leases::{HeldVersion, Hold, Keeper, LeaseFolder, LeasedTable};
use crate::order::OrderBy;
use crate::rows::LogRows;
use crate::settings::MaintenanceSettings;
use crate::storage::{Durability, Storage, validate_state_name};
use crate::table::{Action, Attempt, Outcome, Table, TableMetadata, TableState};
use crate::writer::GroupCommitter;
pub use erase::Marked;
pub(crate) use stage::StagedFile;

/// What an append came to, once it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The log commit that the rows are in.
    pub commit: i64,
    /// How many rows.
    pub rows: u64,
    /// The version of the first row given.
    pub first_version: i64,
    /// The version of the last row given.
    pub last_version: i64,
}

/// What came of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpochOutcome {
    /// The rows were written by this commit.
    Committed(Receipt),
    /// The epoch had been applied before; nothing was written. `last` is the greatest epoch applied.
    AlreadyApplied {
        /// The greatest epoch of the application that is in the log.
        last: i64,
    },
}

/// The application id under which those who rewrite a log's files exclude each other: each of their commits raises its number.
pub const REWRITER_APP_ID: &str = "alluvium/rewriter";

/// How a log is opened.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Appends that may wait for the group being written, in rows.
    pub group_rows: usize,
    /// Whether checkpoints are written in the background when they are due.
    pub background_checkpoints: bool,
    /// What an acknowledged write means where an archive is opened by its URI.
    pub durability: Durability,
    /// Where archives lie whose URI is set, if not at that URI itself.
    pub archive: Option<Storage>,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            group_rows: 262_144,
            background_checkpoints: true,
            durability: Durability::default(),
            archive: None,
        }
    }
}

/// A handle on one state's log. Cheap to clone; all clones share one writer.
#[derive(Debug, Clone)]
pub struct Log {
    pub(crate) inner: Arc<LogInner>,
}

#[derive(Debug)]
pub(crate) struct LogInner {
    pub(crate) name: String,
    pub(crate) storage: Storage,
    pub(crate) archive: KnownArchive,
    pub(crate) table: Arc<Table>,
    pub(crate) options: LogOptions,
    definition: RwLock<(i64, Arc<StateDefinition>)>,
    versions: HybridClock,
    writer: u64,
    appends: AtomicU64,
    committer: tokio::sync::OnceCell<GroupCommitter>,
    /// The generation by which this handle owns each application id that it has committed for.
    owned: Mutex<BTreeMap<String, i64>>,
    background: Mutex<Vec<tokio::task::JoinHandle<()>>>,
    /// What the reads of this handle hold.
    leases: Keeper,
    /// One rewriter of the log's files at a time in this process; others are told apart by the commit.
    rewriting: tokio::sync::Mutex<()>,
    last_definition_version: AtomicI64,
    /// The markers of erased keys that were asked for last, and the metadata that they were read from.
    erased: RwLock<Option<ReadMarkers>>,
    /// Files that were looked into and hold no row below the floor of a commit that came after it.
    pub(crate) above_floor: Mutex<HashSet<(String, i64)>>,
}

/// Markers of erased keys, if there ever were any, and the metadata that they were read from.
type ReadMarkers = (Arc<TableMetadata>, Option<Arc<Erased>>);

/// The path of a state's log below the store's root.
pub fn log_path(state: &str) -> String {
    format!("{state}/log")
}

impl Log {
    /// Creates a state's log. When it exists already with the same definition it is opened; with another, that is an error.
    ///
    /// The second value says whether it was created here.
    pub async fn create(
        storage: &Storage,
        name: &str,
        definition: &StateDefinition,
        options: LogOptions,
    ) -> Result<(Self, bool)> {
        validate_state_name(name)?;
        let known = storage.state_names().await?;
        let is_new = !known.iter().any(|known| known == name);
        let clash =
            known.into_iter().find(|known| known != name && known.eq_ignore_ascii_case(name));
        if let Some(known) = clash {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "the state {known:?} exists, and {name:?} differs from it only in case: use another name"
                ),
            ));
        }
        let metadata = definition.new_metadata(options.clock.now_ms())?;
        let names = NameFolder::of(storage);
        // Of a state that is there the first commit may be gone: its number is not to be given away again.
        let created = match is_new {
            false => None,
            true => {
                // A fork of this name may be on its way.
                names.claim_for_creation(name).await?;
                let clock = options.clock.clone();
                let (path, protocol) = (log_path(name), definition.protocol());
                let created =
                    Table::create(storage, &path, clock, protocol, metadata, &LOG_APP_IDS).await?;
                names.created(name).await?;
                created
            }
        };
        if let Some(table) = created {
            return Ok((Self::new(storage, name, table, options)?, true));
        }
        let log = Self::open(storage, name, options).await?.ok_or_else(|| {
            Error::corrupt(format!("the state {name} has a first commit, but can't be opened"))
        })?;
        let known = log.definition();
        if known.order_by != definition.order_by || known.fields != definition.fields {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "the state {name} exists with another definition: it is ordered by {} and has the fields {}; asked for was the order by {} and the fields {}",
                    known.order_by,
                    shown(&known.fields),
                    definition.order_by,
                    shown(&definition.fields)
                ),
            ));
        }
        Ok((log, false))
    }

    /// Opens a state's log; `None` when there is no such state.
    pub async fn open(storage: &Storage, name: &str, options: LogOptions) -> Result<Option<Self>> {
        validate_state_name(name)?;
        match Table::open(storage, &log_path(name), options.clock.clone(), &LOG_APP_IDS).await {
            Ok(None) => Ok(None),
            Ok(Some(table)) => Self::new(storage, name, table, options).map(Some),
            Err(error) => Err(NameFolder::of(storage).explain(storage, name, error).await),
        }
    }

    fn new(storage: &Storage, name: &str, table: Table, options: LogOptions) -> Result<Self> {
        let state = table.state();
        let definition = StateDefinition::from_metadata(&state.metadata)
            .map_err(|error| error.context(format!("state {name}")))?;
        let leases = LeaseFolder::of(storage, name);
        let table = table.leased_in(&leases, LeasedTable::Log);
        Ok(Self {
            inner: Arc::new(LogInner {
                name: name.to_owned(),
                storage: storage.clone(),
                archive: KnownArchive::default(),
                table: Arc::new(table),
                definition: RwLock::new((state.version, Arc::new(definition))),
                versions: HybridClock::new(options.clock.clone()),
                leases: Keeper::new(leases, options.clock.clone(), name),
                options,
                writer: crate::random::random(),
                appends: AtomicU64::new(0),
                committer: tokio::sync::OnceCell::new(),
                owned: Mutex::new(BTreeMap::new()),
                background: Mutex::new(Vec::new()),
                rewriting: tokio::sync::Mutex::new(()),
                last_definition_version: AtomicI64::new(state.version),
                erased: RwLock::new(None),
                above_floor: Mutex::new(HashSet::new()),
            }),
        })
    }

    /// The state's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// How it was opened.
    pub fn options(&self) -> &LogOptions {
        &self.inner.options
    }

    /// The store that it lies in.
    pub fn storage(&self) -> &Storage {
        &self.inner.storage
    }

    /// The Delta table of the log.
    pub fn table(&self) -> &Arc<Table> {
        &self.inner.table
    }

    /// Where this log takes the time from.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.options.clock
    }

    /// What the state is, as of the newest commit known here.
    pub fn definition(&self) -> Arc<StateDefinition> {
        self.inner.definition.read().1.clone()
    }

    /// What the state is, as of a state of its table or newer: with at least the fields of that.
    pub fn definition_at(&self, state: &TableState) -> Result<Arc<StateDefinition>> {
        self.inner.note_definition(state)?;
        Ok(self.definition())
    }

    /// How long what is kept, as of the newest commit known here.
    pub fn maintenance_settings(&self) -> Result<MaintenanceSettings> {
        MaintenanceSettings::from_metadata(&self.state().metadata)
            .map_err(|error| error.context(format!("state {}", self.name())))
    }

    /// Changes settings of maintenance by name; see [`MaintenanceSettings::with`]. Settings that contradict each other are refused
    /// with the rule that they break, and nothing is changed.
    pub async fn set_maintenance(
        &self,
        changes: &[(String, String)],
    ) -> Result<MaintenanceSettings> {
        self.refresh().await?;
        let outcome = self
            .inner
            .table
            .commit("SET TBLPROPERTIES", Some(false), BTreeMap::new(), |state, _| {
                let stored = MaintenanceSettings::from_metadata(&state.metadata)?;
                let wanted = changes
                    .iter()
                    .try_fold(stored.clone(), |settings, (name, value)| settings.with(name, value))?;
                wanted.validate()?;
                let order_by = StateDefinition::from_metadata(&state.metadata)?.order_by;
                if wanted.tombstone_retention_ms.is_some() && order_by == OrderBy::Version {
                    return Err(Error::invalid(
                        "tombstone_retention needs a state ordered by event_time: of a version it can't be told how late it is",
                    ));
                }
                if wanted.archive != stored.archive && Archived::of(state).is_some() {
                    return Err(Error::invalid(format!(
                        "rows of the log lie in the archive at {}: it can't be set to another place",
                        self.archive_place(&stored)
                    )));
                }
                if wanted == stored {
                    return Ok(Attempt::Stop(()));
                }
                let mut metadata = (*state.metadata).clone();
                wanted.write_to(&mut metadata);
                Ok(Attempt::Write(vec![Action::Metadata(metadata)]))
            })
            .await
            .map_err(|error| error.context(format!("state {}", self.name())))?;
        if let Outcome::Committed(state) = outcome {
            self.inner.note_definition(&state)?;
        }
        self.maintenance_settings()
    }

    /// The newest commit known here and its files.
    pub fn state(&self) -> Arc<TableState> {
        self.inner.table.state()
    }

    /// Whether the log's folder is known to be gone, told without waiting.
    pub fn is_removed(&self) -> bool {
        self.inner.table.is_removed()
    }

    /// The newest commit, if it is known here already, told without waiting; see [`Table::probe`].
    pub fn probe(&self) -> Option<i64> {
        self.inner.table.probe()
    }

    /// Reads what others have committed.
    pub async fn refresh(&self) -> Result<Arc<TableState>> {
        let state = self.inner.table.refresh().await?;
        self.inner.note_definition(&state)?;
        Ok(state)
    }

    /// Appends rows; resolves when they are durable. All of them become visible with one commit, or none.
    ///
    /// `changes` has the columns `state_key` (text), and optionally `op_type` (`UPSERT`, the default, or `DELETE`), `version`
    /// (integer), `event_time` (timestamp) and `state_value` (struct). Appends of concurrent callers share a commit.
    /// A batch without rows writes nothing; its receipt names the newest commit. Dropping the future does not undo the append.
    #[tracing::instrument(name = "append", level = "debug", skip_all, fields(state = %self.inner.name, rows = changes.num_rows(), basis = self.state().version, commit = tracing::field::Empty), err(level = "debug"))]
    pub async fn append(&self, changes: &RecordBatch) -> Result<Receipt> {
        let inner = &self.inner;
        let rows = inner.check(changes).await?;
        if changes.num_rows() == 0 {
            let commit = self.state().version;
            return Ok(Receipt { commit, rows: 0, first_version: 0, last_version: 0 });
        }
        let committer = inner
            .committer
            .get_or_init(|| async {
                GroupCommitter::start(Arc::downgrade(inner), inner.options.group_rows)
            })
            .await;
        let receipt = committer.append(rows).await?;
        tracing::Span::current().record("commit", receipt.commit);
        Ok(receipt)
    }

    /// The time of what arrives now, in microseconds since 1970: it doesn't go back when the wall clock does by a little.
    pub fn arrival_micros(&self) -> i64 {
        self.inner.versions.arrival_micros()
    }

    /// Takes `count` versions of this writer's clock for rows that are written later; the first one is returned, and each
    /// next one is [`HybridClock::STEP`] greater.
    pub fn reserve_versions(&self, count: usize) -> Result<i64> {
        self.inner.versions.reserve(count)
    }

    /// Begins an epoch: rows that are written exactly once under (`app_id`, `number`).
    pub fn epoch(&self, app_id: &str, number: i64) -> Result<EpochCommit> {
        EpochCommit::new(self.clone(), app_id, number)
    }

    /// The greatest epoch of an application that is in the log.
    pub async fn last_epoch(&self, app_id: &str) -> Result<Option<i64>> {
        self.inner.table.transaction(app_id).await
    }

    /// Runs work in the background that [`Log::close`] waits for.
    pub fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.inner.keep(tokio::spawn(work));
    }

    /// Waits until no other rewriter of this process is at work on the log's files.
    pub async fn lock_for_rewriting(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.inner.rewriting.lock().await
    }

    /// Holds a state of the log for a read, and versions of the snapshot beside it, until what is returned is dropped with its clones.
    ///
    /// Nothing is written while the read is young; a task of the runtime takes and renews the lease.
    pub fn hold(
        &self,
        state: &Arc<TableState>,
        pinned_ms: i64,
        snapshots: impl IntoIterator<Item = HeldVersion>,
    ) -> Hold {
        let log = HeldVersion {
            table: LeasedTable::Log,
            version: state.version,
            pinned_ms,
            files: Some((self.table().clone(), state.clone())),
        };
        let archive = Archived::of(state).map(|known| HeldVersion {
            table: LeasedTable::Archive,
            version: known.version,
            pinned_ms,
            files: None,
        });
        self.inner.leases.hold([log].into_iter().chain(archive).chain(snapshots))
    }

    /// The leases of the state's readers.
    pub fn leases(&self) -> &LeaseFolder {
        self.inner.leases.folder()
    }

    /// Takes, renews or gives back the lease of this handle's reads, as is due by the clock. A task in the background does that already;
    /// this is for programs with a clock of their own.
    pub async fn keep_leases(&self) -> Result<()> {
        self.inner.leases.beat().await
    }

    /// Waits for work in the background, so that a process may end. The leases of reads that have ended are given back.
    pub async fn close(&self) {
        self.inner.leases.settle().await;
        let tasks = std::mem::take(&mut *self.inner.background.lock());
        for task in tasks {
            if let Err(error) = task.await {
                tracing::warn!(state = %self.inner.name, %error, "a background task was aborted");
            }
        }
    }
}

impl LogInner {
    /// Takes over the definition of a newer state of the table.
    pub(crate) fn note_definition(&self, state: &TableState) -> Result<()> {
        if self.definition.read().0 >= state.version {
            return Ok(());
        }
        let definition = StateDefinition::from_metadata(&state.metadata)
            .map_err(|error| error.context(format!("state {}", self.name)))?;
        let mut current = self.definition.write();
        if current.0 < state.version {
            let same = *current.1 == definition;
            let kept = if same { current.1.clone() } else { Arc::new(definition) };
            *current = (state.version, kept);
            self.last_definition_version.store(state.version, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Checks and completes rows against the newest definition known here.
    pub(crate) async fn check(&self, changes: &RecordBatch) -> Result<LogRows> {
        match self.check_known(changes) {
            // The marker may have been lifted meanwhile, by another process.
            Err(error) if KeyErased::is_cause_of(&error) => {
                self.table.refresh().await?;
                self.check_known(changes)
            }
            checked => checked,
        }
    }

    fn check_known(&self, changes: &RecordBatch) -> Result<LogRows> {
        let admitted = self.complete(changes).and_then(|rows| self.admitted(rows));
        admitted.map_err(|error| error.context(format!("state {}", self.name)))
    }

    /// Rows as they are in the log, whether they may be appended or not.
    pub(crate) fn complete(&self, changes: &RecordBatch) -> Result<LogRows> {
        let definition = self.definition.read().1.clone();
        LogRows::from_changes(changes, &definition, &self.versions)
    }

    /// A name for the rows of the next commit, unique in the log.
    pub(crate) fn next_append_id(&self) -> String {
        format!("{:016x}-{}", self.writer, self.appends.fetch_add(1, Ordering::Relaxed))
    }
}

/// Fields for a message: names, types, and what is required.
fn shown(fields: &arrow::datatypes::Fields) -> String {
    let one = |field: &std::sync::Arc<arrow::datatypes::Field>| {
        let required = if field.is_nullable() { "" } else { " NOT NULL" };
        format!("{} {}{required}", field.name(), field.data_type())
    };
    fields.iter().map(one).collect::<Vec<_>>().join(", ")
}
