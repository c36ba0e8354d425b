//! One state's log: the handle that everything else holds. Creating, opening, following, appending.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use arrow::array::RecordBatch;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use parking_lot::{Mutex, RwLock};
use rand::Rng;
use serde_json::json;

use crate::clock::{Clock, HybridClock, SystemClock};
use crate::columns::DT;
use crate::definition::StateDefinition;
use crate::encode::{EncodedFile, encode_rows};
use crate::epoch::{EpochCommit, OWNER_PREFIX};
use crate::error::{Error, ErrorKind, Result};
use crate::rows::LogRows;
use crate::storage::{Storage, validate_state_name};
use crate::table::{
    Action, Attempt, FileAdd, Outcome, TAG_APPEND, TAG_COMMIT, TAG_SORTED, Table, TableState,
};
use crate::writer::GroupCommitter;

/// Files written at the same time by one append.
const UPLOAD_CONCURRENCY: usize = 16;
/// Rows from which encoding leaves the async thread.
const ENCODE_INLINE_ROWS: usize = 4_096;

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

/// How a log is opened.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Appends that may wait for the group being written, in rows.
    pub group_rows: usize,
    /// Whether checkpoints are written in the background when they are due.
    pub background_checkpoints: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock), group_rows: 262_144, background_checkpoints: true }
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
    last_definition_version: AtomicI64,
}

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
        let clash = storage
            .state_names()
            .await?
            .into_iter()
            .find(|known| known != name && known.eq_ignore_ascii_case(name));
        if let Some(known) = clash {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "the state {known:?} exists, and {name:?} differs from it only in case: use another name"
                ),
            ));
        }
        let metadata = definition.new_metadata(options.clock.now_ms())?;
        let created = Table::create(
            storage,
            &log_path(name),
            options.clock.clone(),
            definition.protocol(),
            metadata,
        )
        .await?;
        if let Some(table) = created {
            return Ok((Self::new(name, table, options)?, true));
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
        match Table::open(storage, &log_path(name), options.clock.clone(), &[]).await? {
            None => Ok(None),
            Some(table) => Self::new(name, table, options).map(Some),
        }
    }

    fn new(name: &str, table: Table, options: LogOptions) -> Result<Self> {
        let state = table.state();
        let definition = StateDefinition::from_metadata(&state.metadata)
            .map_err(|error| error.context(format!("state {name}")))?;
        Ok(Self {
            inner: Arc::new(LogInner {
                name: name.to_owned(),
                table: Arc::new(table),
                definition: RwLock::new((state.version, Arc::new(definition))),
                versions: HybridClock::new(options.clock.clone()),
                options,
                writer: rand::rng().random(),
                appends: AtomicU64::new(0),
                committer: tokio::sync::OnceCell::new(),
                owned: Mutex::new(BTreeMap::new()),
                background: Mutex::new(Vec::new()),
                last_definition_version: AtomicI64::new(state.version),
            }),
        })
    }

    /// The state's name.
    pub fn name(&self) -> &str {
        &self.inner.name
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

    /// The newest commit known here and its files.
    pub fn state(&self) -> Arc<TableState> {
        self.inner.table.state()
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
    #[tracing::instrument(name = "append", level = "debug", skip_all, fields(state = %self.inner.name, rows = changes.num_rows()), err(level = "debug"))]
    pub async fn append(&self, changes: &RecordBatch) -> Result<Receipt> {
        let inner = &self.inner;
        let rows = inner.check(changes)?;
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
        committer.append(rows).await
    }

    /// Begins an epoch: rows that are written exactly once under (`app_id`, `number`).
    pub fn epoch(&self, app_id: &str, number: i64) -> Result<EpochCommit> {
        EpochCommit::new(self.clone(), app_id, number)
    }

    /// The greatest epoch of an application that is in the log.
    pub async fn last_epoch(&self, app_id: &str) -> Result<Option<i64>> {
        self.inner.table.transaction(app_id).await
    }

    /// Waits for work in the background, so that a process may end.
    pub async fn close(&self) {
        let tasks = std::mem::take(&mut *self.inner.background.lock());
        for task in tasks {
            if let Err(error) = task.await {
                tracing::warn!(state = %self.inner.name, %error, "a background task was aborted");
            }
        }
    }
}

/// A file that lies in the store, and that no commit refers to yet.
#[derive(Debug, Clone)]
pub(crate) struct StagedFile {
    pub(crate) add: FileAdd,
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
    pub(crate) fn check(&self, changes: &RecordBatch) -> Result<LogRows> {
        let definition = self.definition.read().1.clone();
        LogRows::from_changes(changes, &definition, &self.versions, self.options.clock.as_ref())
            .map_err(|error| error.context(format!("state {}", self.name)))
    }

    /// A name for the rows of the next commit, unique in the log.
    pub(crate) fn next_append_id(&self) -> String {
        format!("{:016x}-{}", self.writer, self.appends.fetch_add(1, Ordering::Relaxed))
    }

    /// Sorts, encodes and uploads rows; nothing refers to the files yet.
    pub(crate) async fn stage(
        &self,
        rows: RecordBatch,
        append_id: &str,
        first_file: usize,
        first_seq: i32,
    ) -> Result<(Vec<StagedFile>, i32)> {
        let order_by = self.definition.read().1.order_by;
        let (files, greatest_seq) = if rows.num_rows() <= ENCODE_INLINE_ROWS {
            encode_rows(&rows, order_by, append_id, first_seq)?
        } else {
            let append_id = append_id.to_owned();
            tokio::task::spawn_blocking(move || encode_rows(&rows, order_by, &append_id, first_seq))
                .await
                .map_err(|error| Error::internal("encoding was aborted").with_source(error))??
        };
        let staged = stream::iter(files.into_iter().enumerate())
            .map(|(index, file)| self.upload(file, append_id, first_file + index).boxed())
            .buffered(UPLOAD_CONCURRENCY)
            .try_collect()
            .await?;
        Ok((staged, greatest_seq))
    }

    async fn upload(&self, file: EncodedFile, append_id: &str, index: usize) -> Result<StagedFile> {
        let stem = append_id.split('/').next().unwrap_or(append_id);
        let path = format!("{DT}={}/{stem}-{index}.parquet", file.dt);
        let size = file.bytes.len() as u64;
        let options = PutOptions { mode: PutMode::Create, ..Default::default() };
        self.table
            .store()
            .put_opts(&Path::from(path.as_str()), file.bytes.into(), options)
            .await
            .map_err(|error| {
            Error::from(error).context(format!("state {}: writing {path}", self.name))
        })?;
        metrics::counter!(crate::metrics::BYTES_WRITTEN).increment(size);
        Ok(StagedFile {
            add: FileAdd {
                path,
                size,
                partition: BTreeMap::from([(DT.to_owned(), Some(file.dt))]),
                modified_ms: self.options.clock.now_ms(),
                data_change: true,
                stats: Some(file.stats),
                tags: BTreeMap::from([
                    (TAG_APPEND.to_owned(), append_id.to_owned()),
                    (TAG_SORTED.to_owned(), "true".to_owned()),
                ]),
            },
        })
    }

    /// Removes files that no commit refers to, nor ever will. What can't be removed stays, unseen.
    async fn discard(&self, files: &[StagedFile]) {
        for file in files {
            let path = Path::from(file.add.path.as_str());
            if let Err(error) = self.table.store().delete(&path).await {
                tracing::warn!(state = %self.name, %path, %error, "an unused file could not be removed");
            }
        }
    }

    /// The actions that make staged files part of the table as the given commit.
    fn adds(files: &[StagedFile], commit: i64) -> impl Iterator<Item = Action> + '_ {
        files.iter().map(move |file| {
            let mut add = file.add.clone();
            add.tags.insert(TAG_COMMIT.to_owned(), commit.to_string());
            Action::Add(Arc::new(add))
        })
    }

    /// The metadata action that a commit needs when its rows have fields that the table lacks.
    fn growth(state: &TableState, definition: &StateDefinition) -> Result<Option<Action>> {
        let stored = StateDefinition::from_metadata(&state.metadata)?;
        let grown = stored.grown_by(&definition.fields)?;
        // Also when the field is there already: this writer may not have known of it when its rows were made.
        check_same_types(&grown, definition)?;
        if grown.fields == stored.fields {
            return Ok(None);
        }
        if grown.protocol() != stored.protocol() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a field of type TIMESTAMP_NTZ can't be added to a state that has none: it would need another \
                 table protocol; declare such fields when the state is created, or use TIMESTAMP",
            ));
        }
        let mut metadata = (*state.metadata).clone();
        grown.write_to(&mut metadata)?;
        Ok(Some(Action::Metadata(metadata)))
    }

    /// Commits staged files without conditions.
    pub(crate) async fn commit_append(
        &self,
        files: &[StagedFile],
        definition: &StateDefinition,
        append_id: &str,
        rows: usize,
    ) -> Result<i64> {
        let note = BTreeMap::from([
            ("appendId".to_owned(), json!(append_id)),
            ("rows".to_owned(), json!(rows)),
        ]);
        let outcome = self
            .table
            .commit::<()>("WRITE", Some(true), note, |state, commit| {
                let mut actions: Vec<Action> =
                    Self::growth(state, definition)?.into_iter().collect();
                actions.extend(Self::adds(files, commit));
                Ok(Attempt::Write(actions))
            })
            .await
            .map_err(|error| error.context(format!("state {}", self.name)))?;
        match outcome {
            Outcome::Committed(state) => {
                self.after_commit(&state, rows)?;
                Ok(state.version)
            }
            Outcome::Stopped(()) => Err(Error::internal("an append stopped without a reason")),
        }
    }

    fn after_commit(&self, state: &TableState, rows: usize) -> Result<()> {
        self.note_definition(state)?;
        metrics::counter!(crate::metrics::COMMITS).increment(1);
        metrics::counter!(crate::metrics::ROWS_APPENDED).increment(rows as u64);
        if self.options.background_checkpoints
            && let Some(task) = self.table.checkpoint_in_background()
        {
            let mut background = self.background.lock();
            background.retain(|task| !task.is_finished());
            background.push(task);
        }
        Ok(())
    }

    /// Commits staged files under an epoch, exactly once.
    pub(crate) async fn commit_epoch(
        &self,
        files: &[StagedFile],
        definition: Option<&StateDefinition>,
        app_id: &str,
        number: i64,
        receipt: Receipt,
    ) -> Result<EpochOutcome> {
        let owner_id = format!("{OWNER_PREFIX}{app_id}");
        let known_last = self.table.transaction(app_id).await?;
        let known_owner = self.table.transaction(&owner_id).await?;
        let owned = self.owned.lock().get(app_id).copied();
        let note = BTreeMap::from([
            ("appId".to_owned(), json!(app_id)),
            ("epoch".to_owned(), json!(number)),
            ("rows".to_owned(), json!(receipt.rows)),
        ]);
        let mut generation = None;
        let outcome = self
            .table
            .commit("WRITE", Some(true), note, |state, commit| {
                let last = state.transaction(app_id).max(known_last);
                if let Some(last) = last.filter(|last| *last >= number) {
                    return Ok(Attempt::Stop(last));
                }
                let owner = state.transaction(&owner_id).max(known_owner).unwrap_or(0);
                // The first epoch of a handle makes it the owner; from then on a newer owner ends it.
                let mine = owned.unwrap_or(owner + 1);
                if owner > mine {
                    return Err(fenced(app_id, owner, mine));
                }
                generation = Some(mine);
                let mut actions = Vec::with_capacity(files.len() + 3);
                if let Some(definition) = definition {
                    actions.extend(Self::growth(state, definition)?);
                }
                actions.push(Action::Transaction { app_id: app_id.to_owned(), version: number });
                actions.push(Action::Transaction { app_id: owner_id.clone(), version: mine });
                actions.extend(Self::adds(files, commit));
                Ok(Attempt::Write(actions))
            })
            .await
            .map_err(|error| error.context(format!("state {}", self.name)))?;
        match outcome {
            Outcome::Stopped(known) => {
                self.discard(files).await;
                // What stopped it may be old knowledge: tell what the log holds now.
                let newest = self.table.refresh().await?.transaction(app_id);
                Ok(EpochOutcome::AlreadyApplied {
                    last: newest.map_or(known, |last| last.max(known)),
                })
            }
            Outcome::Committed(state) => {
                if let Some(generation) = generation {
                    self.owned.lock().insert(app_id.to_owned(), generation);
                }
                self.after_commit(&state, usize::try_from(receipt.rows).unwrap_or(usize::MAX))?;
                Ok(EpochOutcome::Committed(Receipt { commit: state.version, ..receipt }))
            }
        }
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

fn fenced(app_id: &str, owner: i64, mine: i64) -> Error {
    Error::new(
        ErrorKind::Fenced,
        format!(
            "the application {app_id:?} has a newer owner (generation {owner}, this one has {mine}): \
             this process has been replaced and must stop"
        ),
    )
}

/// Two writers may add a field of one name at the same time: the second one's rows must fit the first one's type.
fn check_same_types(grown: &StateDefinition, written: &StateDefinition) -> Result<()> {
    for field in &written.fields {
        let stored = grown.fields.iter().find(|known| known.name() == field.name());
        if let Some(stored) = stored
            && !stored.data_type().equals_datatype(field.data_type())
            && !contains_type(stored.data_type(), field.data_type())
        {
            return Err(Error::invalid(format!(
                "state_value.{} was added by another writer as {}, and these rows have {}: convert the field",
                field.name(),
                stored.data_type(),
                field.data_type()
            )));
        }
    }
    Ok(())
}

/// Whether rows of a nested type fit a type that has the same fields and more.
fn contains_type(
    stored: &arrow::datatypes::DataType,
    written: &arrow::datatypes::DataType,
) -> bool {
    use arrow::datatypes::DataType::{List, Map, Struct};
    match (stored, written) {
        (Struct(stored), Struct(written)) => written.iter().all(|field| {
            stored.iter().any(|known| {
                known.name() == field.name() && contains_type(known.data_type(), field.data_type())
            })
        }),
        (List(stored), List(written)) | (Map(stored, _), Map(written, _)) => {
            contains_type(stored.data_type(), written.data_type())
        }
        (stored, written) => stored.equals_datatype(written),
    }
}
