//! The archive of a log: whole days in a Delta table of their own, at any URI, read through the log's states.
//!
//! ```text
//! copy the files -> one commit of the archive adds them -> one commit of the log removes them and names the archive's version
//! ```
//!
//! A state of the log names the version of the archive that belongs to it, as transactions ([`Archived`]). A reader of that state
//! reads the archive at that very version, so what is visible changes with the one commit of the log, and at each instant
//! every row is in exactly one place that is read. What a move that died has left in the archive is named by no state; the next
//! move adopts or removes it ([`Log::move_to_archive`]).
//!
//! The archive is opened when rows of commits are asked for that it holds, and not before.

mod erase;
mod examine;
mod moves;

use std::collections::HashMap;
use std::fmt;
use std::path::Path as FsPath;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use crate::columns::DT;
use crate::erased::ERASE_APP_ID;
use crate::error::{Error, ErrorKind, Result};
use crate::leases::LeasedTable;
use crate::log::Log;
use crate::read::RowFilter;
use crate::settings::{LEAST_FILE_RETENTION_MS, MaintenanceSettings};
use crate::storage::Storage;
use crate::table::{Action, DataFile, Table, TableState, VACUUM_APP_ID};
pub use erase::ArchiveContents;
pub use examine::{ArchivePlaces, examine_archive};
pub use moves::ArchiveOutcome;

/// The application id under which a log records the version of its archive.
pub const ARCHIVE_APP_ID: &str = "alluvium/archive";
/// What else a log records of it, in the order of [`Archived::numbers`].
const PART_IDS: [&str; 7] = [
    "alluvium/archive/commit",
    "alluvium/archive/prior",
    "alluvium/archive/since",
    "alluvium/archive/dropped",
    "alluvium/archive/files",
    "alluvium/archive/rows",
    "alluvium/archive/bytes",
];
/// All of them, for those who must know them of every state.
pub(crate) const ARCHIVE_APP_IDS: [&str; 8] = [
    ARCHIVE_APP_ID,
    PART_IDS[0],
    PART_IDS[1],
    PART_IDS[2],
    PART_IDS[3],
    PART_IDS[4],
    PART_IDS[5],
    PART_IDS[6],
];
/// The property of an archive that names the log it belongs to, by the id of its table.
const PROPERTY_ARCHIVE_OF: &str = "alluvium.archiveOf";
/// What every state of an archive's table must know: which erase of the log it follows.
const APP_IDS: [&str; 1] = [ERASE_APP_ID];
/// No day is as early.
const NO_DAY: i64 = i64::MIN;

/// What a state of a log says of its archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Archived {
    /// The version of the archive's table that belongs to the state.
    pub version: i64,
    /// No archived row is of a later commit.
    pub commit: i64,
    /// An earlier version that those may still read who began within the last hour before `since_ms`.
    pub prior: i64,
    /// When the version was named, in milliseconds since 1970.
    pub since_ms: i64,
    /// Files of this day, counted from 1970-01-01, and of earlier ones are part of the version, but not of the log any more: they
    /// have expired.
    pub dropped_day: i64,
    /// Files that are part of the log.
    pub files: i64,
    /// Their rows.
    pub rows: i64,
    /// Their bytes.
    pub bytes: i64,
}

impl Archived {
    /// What a state says; `None` while nothing was ever archived.
    pub fn of(state: &TableState) -> Option<Self> {
        let part = |index: usize| PART_IDS.get(index).and_then(|id| state.transaction(id));
        Some(Self {
            version: state.transaction(ARCHIVE_APP_ID)?,
            commit: part(0).unwrap_or(i64::MAX),
            prior: part(1).unwrap_or(0),
            since_ms: part(2).unwrap_or(i64::MAX),
            dropped_day: part(3).unwrap_or(NO_DAY),
            files: part(4).unwrap_or(0),
            rows: part(5).unwrap_or(0),
            bytes: part(6).unwrap_or(0),
        })
    }

    fn numbers(self) -> [i64; 7] {
        let Self { commit, prior, since_ms, dropped_day, files, rows, bytes, .. } = self;
        [commit, prior, since_ms, dropped_day, files, rows, bytes]
    }

    /// How it is recorded.
    pub fn actions(self) -> impl Iterator<Item = Action> {
        let parts = PART_IDS.into_iter().zip(self.numbers());
        [(ARCHIVE_APP_ID, self.version)]
            .into_iter()
            .chain(parts)
            .map(|(app_id, version)| Action::Transaction { app_id: app_id.to_owned(), version })
    }

    /// The same without the files of a day and earlier ones, and with what is left.
    pub fn dropping<'a>(self, day: i64, left: impl Iterator<Item = &'a Arc<DataFile>>) -> Self {
        Self { dropped_day: self.dropped_day.max(day), ..self }.counting(left)
    }

    fn counting<'a>(self, files: impl Iterator<Item = &'a Arc<DataFile>>) -> Self {
        let mut counted = Self { files: 0, rows: 0, bytes: 0, ..self };
        for file in files {
            let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            counted.files += 1;
            counted.rows = counted.rows.saturating_add(number(file.stats.rows.unwrap_or(0)));
            counted.bytes = counted.bytes.saturating_add(number(file.add.size));
        }
        counted
    }

    /// Whether a file of the named version is part of the log.
    fn has(self, file: &DataFile) -> bool {
        self.dropped_day == NO_DAY || day_of(file).is_none_or(|day| day > self.dropped_day)
    }
}

/// The day of a file's partition, counted from 1970-01-01; `None` when it is no day.
pub fn day_of(file: &DataFile) -> Option<i64> {
    let day = file.add.partition.get(DT)?.as_deref()?;
    let date = chrono::NaiveDate::parse_from_str(day, "%Y-%m-%d").ok()?;
    Some(date.signed_duration_since(chrono::NaiveDate::default()).num_days())
}

/// The archived files of a state of a log.
#[derive(Debug)]
pub struct ArchivedFiles {
    /// The version of the archive's table.
    pub version: i64,
    /// The files; each knows the archive's table, so that it is read from there.
    pub files: Vec<Arc<DataFile>>,
}

/// Why a question has no answer for now: the cause of an error about an archive that can't be read.
#[derive(Debug)]
pub struct ArchiveUnreachable {
    /// The state.
    pub state: String,
    /// Where its archive is to be.
    pub place: String,
    /// What stood in the way.
    cause: Error,
}

impl fmt::Display for ArchiveUnreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the archive of {} at {} can't be reached", self.state, self.place)
    }
}

impl std::error::Error for ArchiveUnreachable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

type FilesKey = (Option<String>, i64, i64);

/// An archive as far as a handle on its log has come to know it.
#[derive(Debug, Default)]
pub(crate) struct KnownArchive {
    /// By the setting that says where it lies.
    table: tokio::sync::Mutex<HashMap<Option<String>, Arc<Table>>>,
    /// The files that were last asked for.
    files: Mutex<Option<(FilesKey, Arc<ArchivedFiles>)>>,
}

/// The path of a state's archive below the store's root, or below the URI that is set.
pub fn archive_path(state: &str) -> String {
    format!("{state}/archive")
}

impl Log {
    /// The files that may hold rows which a filter wants, those of the oldest commits first: of the log, and where the filter
    /// reaches back so far, of the archive. Rows of them after a commit may be put beside a snapshot that folds the log up to it.
    ///
    /// # Errors
    /// The archive is needed and can't be read ([`ArchiveUnreachable`]); another engine appended below the floor ([`crate::Floor`]).
    pub fn files<'a>(
        &'a self,
        state: &'a TableState,
        filter: &'a RowFilter,
    ) -> BoxFuture<'a, Result<Vec<Arc<DataFile>>>> {
        async move {
            let files = self.files_of(state, filter).await?;
            self.refuse_late(state, filter, &files).await?;
            Ok(files)
        }
        .boxed()
    }

    /// The same files for those who tell rows as they lie, and put them beside no snapshot.
    pub fn files_as_they_lie<'a>(
        &'a self,
        state: &'a TableState,
        filter: &'a RowFilter,
    ) -> BoxFuture<'a, Result<Vec<Arc<DataFile>>>> {
        self.files_of(state, filter).boxed()
    }

    async fn files_of(&self, state: &TableState, filter: &RowFilter) -> Result<Vec<Arc<DataFile>>> {
        let after = filter.after_commit.unwrap_or(-1);
        let archived = self.archived(state, after).await?;
        let hot = state.files_after(after).filter(|file| filter.may_match(file)).cloned();
        let mut files: Vec<_> = match &archived {
            None => hot.collect(),
            Some(archived) => {
                let cold = archived.files.iter().filter(|file| filter.may_match(file)).cloned();
                cold.chain(hot).collect()
            }
        };
        if archived.is_some() {
            files.sort_by_key(|file| file.commits.span().high);
        }
        Ok(files)
    }

    /// The archived files of a state, if any of them may hold rows of commits after this one. Else the archive isn't opened.
    ///
    /// # Errors
    /// The archive is needed and can't be read ([`ArchiveUnreachable`]).
    pub fn archived<'a>(
        &'a self,
        state: &'a TableState,
        after: i64,
    ) -> BoxFuture<'a, Result<Option<Arc<ArchivedFiles>>>> {
        self.archived_of(state, after).boxed()
    }

    async fn archived_of(
        &self,
        state: &TableState,
        after: i64,
    ) -> Result<Option<Arc<ArchivedFiles>>> {
        let Some(known) =
            Archived::of(state).filter(|known| known.files > 0 && after.max(0) < known.commit)
        else {
            return Ok(None);
        };
        let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
        let key = (settings.archive.clone(), known.version, known.dropped_day);
        if let Some((found, files)) = &*self.inner.archive.files.lock()
            && *found == key
        {
            return Ok(Some(files.clone()));
        }
        let read = self.read_archive(&settings, known).await;
        let files =
            Arc::new(read.map_err(|error| self.unreachable(&settings, Some(known), error))?);
        *self.inner.archive.files.lock() = Some((key, files.clone()));
        Ok(Some(files))
    }

    async fn read_archive(
        &self,
        settings: &MaintenanceSettings,
        known: Archived,
    ) -> Result<ArchivedFiles> {
        let Some(table) = self.open_archive(settings).await? else {
            return Err(Error::new(ErrorKind::NotFound, "there is no Delta table"));
        };
        let state = table_at(&table, known.version).await?;
        let part = |file: &&Arc<DataFile>| known.has(file);
        let files = state.files().filter(part).map(|file| Arc::new(file.lying_in(&table)));
        Ok(ArchivedFiles { version: known.version, files: files.collect() })
    }

    /// The archive's table at the place that settings name; `None` when there is none.
    pub async fn open_archive(&self, settings: &MaintenanceSettings) -> Result<Option<Arc<Table>>> {
        let mut known = self.inner.archive.table.lock().await;
        if let Some(table) = known.get(&settings.archive) {
            return Ok(Some(table.clone()));
        }
        let is_by_uri = self.inner.options.archive.is_none();
        if is_by_uri && settings.archive.as_deref().is_some_and(is_missing_folder) {
            return Ok(None);
        }
        let (storage, path) = (self.archive_storage(settings)?, archive_path(self.name()));
        let clock = self.inner.options.clock.clone();
        let Some(table) = Table::open(&storage, &path, clock, &APP_IDS).await? else {
            return Ok(None);
        };
        let table = table.leased_in(self.leases(), LeasedTable::Archive);
        let table = Arc::new(table.labelled(self.archive_place(settings)));
        self.check_owner(&table)?;
        known.insert(settings.archive.clone(), table.clone());
        Ok(Some(table))
    }

    /// Looks whether the archive can be read, as it is to be used from now on.
    ///
    /// # Errors
    /// It can't ([`ArchiveUnreachable`]).
    pub async fn reach_archive(&self) -> Result<()> {
        let state = self.state();
        let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
        let known = Archived::of(&state);
        let found = match self.open_archive(&settings).await {
            Ok(Some(table)) => table.refresh().await.map(drop),
            // It is made when the first days move.
            Ok(None) if known.is_none() => Ok(()),
            Ok(None) => Err(Error::new(ErrorKind::NotFound, "there is no Delta table")),
            Err(error) => Err(error),
        };
        found.map_err(|error| self.unreachable(&settings, known, error))
    }

    /// Two logs must not share an archive.
    fn check_owner(&self, table: &Table) -> Result<()> {
        let (own, state) = (self.state().metadata.id.clone(), table.state());
        match state.metadata.properties.get(PROPERTY_ARCHIVE_OF) {
            Some(owner) if *owner == own => Ok(()),
            owner => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "the table {} is the archive of the log with the id {}, not of {} ({own}): set another archive",
                    table.label(),
                    owner.map_or("(none)", String::as_str),
                    self.name()
                ),
            )),
        }
    }

    /// The store that the archive lies in.
    pub fn archive_storage(&self, settings: &MaintenanceSettings) -> Result<Storage> {
        match (&settings.archive, &self.inner.options.archive) {
            (None, _) => Ok(self.inner.storage.clone()),
            (Some(_), Some(given)) => Ok(given.clone()),
            (Some(uri), None) => Storage::open(uri, self.inner.options.durability),
        }
    }

    /// The same log as if what is written from now on were written, its archive included: what changes goes to temporary folders below
    /// one of this machine, and nothing of the stores is changed.
    pub async fn rehearsal(&self, spill_dir: &FsPath) -> Result<(Storage, Self)> {
        let storage = self.inner.storage.rehearsal(spill_dir)?;
        let mut options = self.inner.options.clone();
        let archive = match (self.maintenance_settings()?.archive, &options.archive) {
            (None, _) => None,
            (Some(_), Some(given)) => Some(given.clone()),
            // Opening it would make the folder.
            (Some(uri), None) if is_missing_folder(&uri) => Some(Storage::empty(&uri)),
            // What can't be opened is told by who needs it.
            (Some(uri), None) => Storage::open(&uri, options.durability).ok(),
        };
        options.archive = archive.map(|archive| archive.rehearsal(spill_dir)).transpose()?;
        let log = Self::open(&storage, self.name(), options).await?;
        let log = log.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("there is no state {} any more", self.name()))
        })?;
        Ok((storage, log))
    }

    /// Where the archive lies, for messages.
    pub fn archive_place(&self, settings: &MaintenanceSettings) -> String {
        let path = archive_path(self.name());
        match &settings.archive {
            None => path,
            Some(uri) => format!("{uri}/{path}"),
        }
    }

    fn unreachable(
        &self,
        settings: &MaintenanceSettings,
        known: Option<Archived>,
        error: Error,
    ) -> Error {
        let kind = match error.kind() {
            ErrorKind::NotFound => ErrorKind::Storage,
            kind => kind,
        };
        let (state, place) = (self.name().to_owned(), self.archive_place(settings));
        let rows = known.map_or_else(String::new, |known| {
            format!(", and rows of commits up to {} are there", known.commit)
        });
        let message = format!(
            "the archive of {state} at {place} can't be read{rows}: make it reachable again and repeat the call; what is asked about later commits alone needs nothing of it, and maintenance can leave it alone (--no-archive)"
        );
        Error::new(kind, message).with_source(ArchiveUnreachable { state, place, cause: error })
    }

    /// How long files and commits of the archive stay at least as of a time, so that whoever began with a state of the log finds the
    /// version that it names.
    pub async fn archive_use_ms(&self, table: &Table, known: Archived, now_ms: i64) -> Result<i64> {
        let is_settled = now_ms.saturating_sub(known.since_ms) > LEAST_FILE_RETENTION_MS;
        let oldest = if is_settled { known.version } else { known.prior.min(known.version) };
        // An erase whose files are to go at once lets nobody begin with a version that had them.
        let oldest = oldest.max(table.state().transaction(VACUUM_APP_ID).unwrap_or(0));
        if oldest >= table.state().version {
            return Ok(0);
        }
        // What the version before it had may go: the files that an erase or an expiry took out are to be gone some day.
        let made_ms = table_at(table, oldest).await?.timestamp_ms;
        Ok(now_ms.saturating_sub(made_ms))
    }
}

/// A table as of one of its versions.
async fn table_at(table: &Table, version: i64) -> Result<Arc<TableState>> {
    let mut state = table.state();
    if state.version < version {
        state = table.refresh().await?;
    }
    if state.version < version {
        return Err(Error::corrupt(format!(
            "the table {} ends with version {}, and the log names version {version:020}: put its Delta log back from a copy",
            table.label(),
            state.version
        )));
    }
    match state.version == version {
        true => Ok(state),
        false => table.state_at(version).await.map(Arc::new),
    }
}

/// Whether a URI is a folder of this machine that isn't there: opening it would make it.
fn is_missing_folder(uri: &str) -> bool {
    match uri.split_once("://") {
        None => !FsPath::new(uri).exists(),
        Some(("file", _)) => {
            let path = url::Url::parse(uri).ok().and_then(|url| url.to_file_path().ok());
            path.is_some_and(|path| !path.exists())
        }
        Some(_) => false,
    }
}
