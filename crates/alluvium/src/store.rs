//! A store: any number of states under one root.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use alluvium_log::{
    ArchivePlaces, Clock, Durability, Error, ErrorKind, FooterCache, Log, LogOptions, PageCache,
    RemoteSettings, Result, StateDefinition, StateSettings, Storage, StorageOptions, SystemClock,
};
use alluvium_materializer::{FoldSettings, LayoutSettings, Snapshot, snapshot_path};
use alluvium_query::{Reader, ReaderOptions, SqlSession, SqlSettings};
use arrow::datatypes::Fields;
use datafusion::execution::SendableRecordBatchStream;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::columns::fields_of;
use crate::epoch::Epoch;
use crate::epoch_stream::EpochStream;
use crate::format::format_fields;
use crate::raw::{EmbeddedSettings, RawState};
use crate::typed::{State, Value};

/// States that a message names at most.
const NAMED_STATES: usize = 20;

/// Settings of a process that opens a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreSettings {
    /// What an acknowledged write on a local disk means.
    pub durability: Durability,
    /// Memory of one materialization, fold or SQL statement, in bytes: 256 MiB. More is spilled to disk. SQL takes
    /// 16 MiB at least.
    pub memory_budget_bytes: usize,
    /// The tail of each state is kept in memory up to so many bytes: 256 MiB.
    pub tail_bytes: usize,
    /// Footers of files kept in memory, in bytes: 64 MiB.
    pub footer_cache_bytes: u64,
    /// Decoded pages of files that keys were looked up in, kept in memory for all states together, in bytes: 64 MiB. With 0 each
    /// lookup that goes to files decodes the pages that it needs.
    pub page_cache_bytes: u64,
    /// Rows of pages that had to leave the page cache are read from temporary files without a name in `spill_dir`, of at most so many
    /// bytes: 256 MiB. A row takes its bytes twice, about. With 0 such pages are decoded again for each lookup.
    pub page_spill_bytes: u64,
    /// For how many milliseconds a read may miss what other processes commit: 0, none. This process's own writes are always seen.
    pub max_staleness_ms: u64,
    /// Streams of rows that a scan is read by: as many as there are cores.
    pub partitions: usize,
    /// Rows of a batch in folds and scans at most: 8192.
    pub batch_rows: usize,
    /// Decoded rows of each state that typed reads keep in memory, in bytes, for each type of values: 64 MiB. With 0 every typed
    /// read goes to tail and snapshot.
    pub row_cache_bytes: u64,
    /// Changes of one state that an [`Epoch`] holds in memory, in bytes: 64 MiB. Beyond, they are staged as files, which become
    /// visible with the epoch's commit like all others.
    pub epoch_bytes: usize,
    /// When an append or a typed epoch has committed and the tail has so many rows, or takes more than half of `tail_bytes`, it is
    /// materialized in the background: 1,048,576. With 0, never.
    pub materialize_after_rows: u64,
    /// When the tail has so many commits then, it is materialized in the background and files that are folded are merged, so that
    /// opening and reading the log don't grow with the number of commits: 512. With 0, never.
    pub tidy_after_commits: u64,
    /// How snapshots are laid out.
    pub layout: LayoutSettings,
    /// How object stores are reached.
    pub remote: RemoteSettings,
    /// The folder for what is spilled; the system's own when not given.
    pub spill_dir: Option<std::path::PathBuf>,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            durability: Durability::Fsync,
            memory_budget_bytes: 256 * 1024 * 1024,
            tail_bytes: 256 * 1024 * 1024,
            footer_cache_bytes: alluvium_log::DEFAULT_FOOTER_CACHE_BYTES,
            page_cache_bytes: alluvium_log::DEFAULT_PAGE_CACHE_BYTES,
            page_spill_bytes: alluvium_log::DEFAULT_PAGE_SPILL_BYTES,
            max_staleness_ms: 0,
            partitions: std::thread::available_parallelism().map_or(1, usize::from),
            batch_rows: FoldSettings::default().batch_rows,
            row_cache_bytes: 64 * 1024 * 1024,
            epoch_bytes: 64 * 1024 * 1024,
            materialize_after_rows: 1_048_576,
            tidy_after_commits: 512,
            layout: LayoutSettings::default(),
            remote: RemoteSettings::default(),
            spill_dir: None,
        }
    }
}

impl StoreSettings {
    /// Refuses settings with which nothing works.
    pub fn validate(&self) -> Result<()> {
        self.fold().validate()?;
        self.layout.validate()?;
        self.remote.validate()?;
        if self.partitions == 0 {
            return Err(Error::invalid("partitions is 0: a scan needs at least one"));
        }
        Ok(())
    }

    fn fold(&self) -> FoldSettings {
        FoldSettings {
            memory_budget_bytes: self.memory_budget_bytes,
            batch_rows: self.batch_rows,
            spill_dir: self.spill_dir.clone(),
            ..FoldSettings::default()
        }
    }
}

/// Opens a store with other settings or components than the usual ones.
#[derive(Debug)]
pub struct StoreBuilder {
    uri: String,
    settings: StoreSettings,
    clock: Arc<dyn Clock>,
    storage: Option<Storage>,
    archive: Option<Storage>,
}

impl StoreBuilder {
    /// All settings at once.
    pub fn settings(mut self, settings: StoreSettings) -> Self {
        self.settings = settings;
        self
    }

    /// See [`StoreSettings::durability`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.settings.durability = durability;
        self
    }

    /// See [`StoreSettings::memory_budget_bytes`].
    pub fn memory_budget_bytes(mut self, bytes: usize) -> Self {
        self.settings.memory_budget_bytes = bytes;
        self
    }

    /// Where time comes from; for tests and replays.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// An object store of one's own, instead of the one that the URI names.
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = Some(storage);
        self
    }

    /// Where the archives of states lie that have `archive` set, if not at that URI itself; for stores that a URI can't name.
    pub fn archive_storage(mut self, storage: Storage) -> Self {
        self.archive = Some(storage);
        self
    }

    /// Opens the store. Nothing of its states is read yet.
    pub async fn open(self) -> Result<Store> {
        self.settings.validate()?;
        let storage = match self.storage {
            Some(storage) => storage,
            None => {
                let options = StorageOptions::from_process(self.settings.remote.clone());
                Storage::open_with(&self.uri, self.settings.durability, &options)?
            }
        };
        let footers = FooterCache::new(self.settings.footer_cache_bytes);
        let spill_dir = self.settings.spill_dir.clone().unwrap_or_else(std::env::temp_dir);
        let pages = PageCache::spilling(
            self.settings.page_cache_bytes,
            self.settings.page_spill_bytes,
            spill_dir,
        );
        Ok(Store {
            inner: Arc::new(StoreInner {
                storage,
                archive: self.archive,
                settings: self.settings,
                clock: self.clock,
                footers,
                pages,
                states: Mutex::new(HashMap::new()),
            }),
        })
    }
}

/// A handle on a store. Cheap to clone, and may be shared between tasks and threads.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<StoreInner>,
}

#[derive(Debug)]
struct StoreInner {
    storage: Storage,
    archive: Option<Storage>,
    settings: StoreSettings,
    clock: Arc<dyn Clock>,
    footers: Arc<FooterCache>,
    pages: Arc<PageCache>,
    states: Mutex<HashMap<String, RawState>>,
}

impl Store {
    /// Opens the store at a URI: a folder, made when it doesn't exist, `memory://`, or a folder of an object store such as
    /// `s3://bucket/dir` ([`Storage::open`]).
    pub async fn open(uri: &str) -> Result<Self> {
        Self::builder(uri).open().await
    }

    /// Opens a store with other settings.
    pub fn builder(uri: &str) -> StoreBuilder {
        StoreBuilder {
            uri: uri.to_owned(),
            settings: StoreSettings::default(),
            clock: Arc::new(SystemClock),
            storage: None,
            archive: None,
        }
    }

    /// How the store is named in messages.
    pub fn label(&self) -> &str {
        self.inner.storage.label()
    }

    /// Where it lies.
    pub(crate) fn storage(&self) -> &Storage {
        &self.inner.storage
    }

    /// Where archives may lie.
    pub(crate) fn archive_places(&self) -> ArchivePlaces<'_> {
        ArchivePlaces {
            store: self.storage(),
            given: self.inner.archive.as_ref(),
            durability: self.inner.settings.durability,
        }
    }

    /// Where time comes from.
    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// The settings it was opened with.
    pub fn settings(&self) -> &StoreSettings {
        &self.inner.settings
    }

    /// The names of the store's states, in order.
    pub async fn state_names(&self) -> Result<Vec<String>> {
        self.inner.storage.state_names().await
    }

    /// A state whose values are of type `V`. It is created when it doesn't exist, ordered by event time, with the fields of `V`;
    /// a field that is no `Option` is required.
    pub async fn state<V: Value>(&self, name: &str) -> Result<State<V>> {
        let raw = match self.find(name).await? {
            Some(raw) => raw,
            None => {
                let fields = fields_of::<V>()?;
                self.create_state(name, &fields, StateSettings::default()).await?.0
            }
        };
        State::new(raw)
    }

    /// Creates a state; the second value says whether it was created here, or existed with the same definition.
    pub async fn create_state(
        &self,
        name: &str,
        fields: &Fields,
        settings: StateSettings,
    ) -> Result<(RawState, bool)> {
        let definition = StateDefinition::new(fields, settings)?;
        let created = Log::create(&self.inner.storage, name, &definition, self.log_options()).await;
        let (log, created) = match created {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(self.explain_clash(name, &definition, error).await);
            }
            other => other?,
        };
        let mut states = self.inner.states.lock().await;
        if let Some(known) = states.get(name) {
            return Ok((known.clone(), created));
        }
        let raw = self.raw(log).await?;
        states.insert(name.to_owned(), raw.clone());
        Ok((raw, created))
    }

    /// The error about a state that exists with another definition, the fields as they are written in a schema.
    async fn explain_clash(&self, name: &str, wanted: &StateDefinition, error: Error) -> Error {
        let Ok(Some(state)) = self.find(name).await else { return error };
        let known = state.definition();
        let shown = |definition: &StateDefinition| {
            format!(
                "ordered by {}, with the fields: {}",
                definition.order_by,
                format_fields(&definition.fields)
            )
        };
        let text = format!(
            "the state {name} exists with another definition, {}; asked for was one {}; use it as it is, fields are added by appending, or another name",
            shown(&known),
            shown(wanted)
        );
        Error::new(ErrorKind::AlreadyExists, text)
    }

    /// A state by its name, whatever its values are.
    pub async fn raw_state(&self, name: &str) -> Result<RawState> {
        match self.find(name).await? {
            Some(raw) => Ok(raw),
            None => {
                let known = self.state_names().await?;
                Err(Error::new(
                    ErrorKind::NotFound,
                    format!(
                        "the store {} has no state {name:?}: {}",
                        self.label(),
                        there_is(name, &known)
                    ),
                ))
            }
        }
    }

    /// A state whose log is torn, to read what was known up to a commit before the hole: every answer is as of that commit
    /// at most, and nothing can be written.
    ///
    /// # Errors
    /// There is no such state, or a commit up to the given one is gone too.
    pub async fn raw_state_up_to(&self, name: &str, commit: i64) -> Result<RawState> {
        let storage = self.inner.storage.up_to_commit(name, commit);
        let options = LogOptions { background_checkpoints: false, ..self.log_options() };
        let Some(log) = Log::open(&storage, name, options).await? else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("the store {} has no state {name:?} as of commit {commit}", self.label()),
            ));
        };
        let raw = self.raw_in(&storage, log.clone()).await?;
        if raw.snapshot().state().log_commit() <= log.state().version {
            return Ok(raw);
        }
        // A snapshot that holds more than that is of no use: the log answers, as far as it has all rows.
        self.raw_in(&storage.without_table(&snapshot_path(name)), log).await
    }

    async fn find(&self, name: &str) -> Result<Option<RawState>> {
        let mut states = self.inner.states.lock().await;
        if let Some(known) = states.get(name) {
            return Ok(Some(known.clone()));
        }
        let Some(log) = Log::open(&self.inner.storage, name, self.log_options()).await? else {
            return Ok(None);
        };
        let raw = self.raw(log).await?;
        states.insert(name.to_owned(), raw.clone());
        Ok(Some(raw))
    }

    /// Forgets the handle on a state, so that the next one who asks for the state opens it anew.
    pub(crate) async fn forget(&self, name: &str) {
        self.inner.states.lock().await.remove(name);
    }

    pub(crate) fn log_options(&self) -> LogOptions {
        LogOptions {
            clock: self.inner.clock.clone(),
            durability: self.inner.settings.durability,
            archive: self.inner.archive.clone(),
            ..LogOptions::default()
        }
    }

    async fn raw(&self, log: Log) -> Result<RawState> {
        self.raw_in(&self.inner.storage, log).await
    }

    async fn raw_in(&self, storage: &Storage, log: Log) -> Result<RawState> {
        let settings = &self.inner.settings;
        let snapshot = Snapshot::open(storage, &log).await?;
        let options = ReaderOptions {
            footers: self.inner.footers.clone(),
            pages: self.inner.pages.clone(),
            tail_bytes: settings.tail_bytes,
            fold: settings.fold(),
            max_staleness: Duration::from_millis(settings.max_staleness_ms),
        };
        let reader = Reader::new(log.clone(), snapshot.clone(), options);
        let embedded = EmbeddedSettings {
            row_cache_bytes: settings.row_cache_bytes,
            epoch_bytes: settings.epoch_bytes,
            materialize_after_rows: settings.materialize_after_rows,
            tidy_after_commits: settings.tidy_after_commits,
        };
        Ok(RawState::new(log, snapshot, reader, settings.fold(), settings.layout, embedded))
    }

    /// Begins an epoch: changes of any of the store's states that are applied exactly once under (`app_id`, `number`).
    pub fn epoch(&self, app_id: &str, number: i64) -> Epoch {
        Epoch::new(app_id, number)
    }

    /// Begins a stream of epochs of an application, in which the next epoch is filled while earlier ones become durable.
    pub fn epochs(&self, app_id: &str) -> EpochStream {
        EpochStream::new(app_id)
    }

    /// Runs a SQL query. Each state is a table; see `docs/sql.md`. All tables of one query are read at one basis each.
    pub async fn sql(&self, query: &str) -> Result<SendableRecordBatchStream> {
        self.session(|name| query.contains(name)).await?.query(query).await
    }

    /// A session for several SQL queries.
    pub async fn sql_session(&self) -> Result<SqlSession> {
        self.session(|_| true).await
    }

    /// A session over the states that open; one that is needed and does not is an error, another one a warning.
    async fn session(&self, is_needed: impl Fn(&str) -> bool) -> Result<SqlSession> {
        let mut readers = Vec::new();
        for name in self.state_names().await? {
            match self.raw_state(&name).await {
                Ok(state) => readers.push(state.reader().clone()),
                Err(error) if is_needed(&name) => return Err(error),
                Err(error) => {
                    tracing::warn!(state = %name, %error, "a state can't be opened; the query does not name it");
                }
            }
        }
        let settings = SqlSettings {
            memory_limit_bytes: self
                .inner
                .settings
                .memory_budget_bytes
                .max(SqlSettings::LEAST_MEMORY_BYTES),
            target_partitions: self.inner.settings.partitions,
            ..SqlSettings::default()
        };
        SqlSession::new(readers, &settings)
    }

    /// Waits for work in the background (checkpoints), so that the process may end.
    pub async fn close(&self) {
        let states: Vec<RawState> = self.inner.states.lock().await.values().cloned().collect();
        for state in states {
            state.log().close().await;
        }
    }
}

/// Which states there are, for one who has asked for another; the one that was meant, where that is plain.
fn there_is(asked: &str, known: &[String]) -> String {
    if known.is_empty() {
        return "it has none".to_owned();
    }
    if let Some(near) = known.iter().find(|known| known.eq_ignore_ascii_case(asked)) {
        return format!("names keep their case, write {near}");
    }
    let shown: Vec<&str> = known.iter().take(NAMED_STATES).map(String::as_str).collect();
    let more = match known.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("it has {}{more}", shown.join(", "))
}
