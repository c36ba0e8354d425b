//! Moving files to the archive, and bringing its table to what the log says of it.
//!
//! What the archive is to have is told by the log alone: the files of the version that it names, but for those that have expired,
//! and the files that are being moved. Whatever else the archive's newest version has was left by a move that died or lost a race.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::{APP_IDS, Archived, NO_DAY, PROPERTY_ARCHIVE_OF, archive_path, table_at};
use crate::columns::DT;
use crate::definition::random_table_id;
use crate::erased::ERASE_APP_ID;
use crate::error::{Error, ErrorKind, Result};
use crate::log::{Log, REWRITER_APP_ID};
use crate::settings::{LEAST_FILE_RETENTION_MS, MaintenanceSettings};
use crate::table::{
    Action, Attempt, DataFile, FileAdd, FileCommits, Outcome, TAG_COMMIT, Table, TableMetadata,
    TableState,
};

/// The tag of an archived file that says which file of the log it was.
const TAG_ARCHIVED: &str = "alluvium.archived";
/// Files that are copied at the same time.
const COPY_CONCURRENCY: usize = 2;
/// A version of the archive is named within this time, or made anew: long before a vacuum could take files of it.
const NAMED_WITHIN_MS: i64 = LEAST_FILE_RETENTION_MS / 2;

/// What came of a move.
#[derive(Debug)]
pub enum ArchiveOutcome {
    /// There was nothing to do.
    Nothing,
    /// The log names another version of the archive now; this is its state.
    Moved(Arc<TableState>),
    /// Another process changed the log meanwhile: nothing of it changed here.
    GaveWay,
}

/// What one move works on.
pub(super) struct Move<'a> {
    pub(super) settings: &'a MaintenanceSettings,
    pub(super) known: Option<Archived>,
    pub(super) rewriter: Option<i64>,
    pub(super) files: &'a [Arc<DataFile>],
    pub(super) table: Arc<Table>,
    /// Whether the version to be named lacks rows that were erased.
    pub(super) erases: bool,
}

impl Log {
    /// Moves files of a state of the log to its archive; with none, only sees to it that the archive has what the log says.
    ///
    /// Killed at any instant, each row is in exactly one place that is read, and the next call makes good what is left.
    pub fn move_to_archive<'a>(
        &'a self,
        state: &'a TableState,
        files: &'a [Arc<DataFile>],
    ) -> BoxFuture<'a, Result<ArchiveOutcome>> {
        self.move_files(state, files).boxed()
    }

    async fn move_files(
        &self,
        state: &TableState,
        files: &[Arc<DataFile>],
    ) -> Result<ArchiveOutcome> {
        let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
        let place = self.archive_place(&settings);
        self.carry_out(state, &settings, files)
            .await
            .map_err(|error| error.context(format!("the archive of {} at {place}", self.name())))
    }

    async fn carry_out(
        &self,
        state: &TableState,
        settings: &MaintenanceSettings,
        files: &[Arc<DataFile>],
    ) -> Result<ArchiveOutcome> {
        let known = Archived::of(state);
        let opened = match (self.open_archive(settings).await?, known) {
            (None, Some(_)) => {
                return Err(Error::new(
                    ErrorKind::Storage,
                    "there is no Delta table, though rows were moved there: make it reachable again",
                ));
            }
            (None, None) if files.is_empty() => None,
            (None, None) => Some(self.create_archive(state, settings).await?),
            (found, _) => found,
        };
        let Some(table) = opened else { return Ok(ArchiveOutcome::Nothing) };
        let newest = table.refresh().await?;
        let is_settled = match known {
            Some(known) => known.version == newest.version && known.dropped_day == NO_DAY,
            None => newest.file_count() == 0,
        };
        if files.is_empty() && is_settled {
            return Ok(ArchiveOutcome::Nothing);
        }
        let rewriter = state.transaction(REWRITER_APP_ID);
        let work = Move { settings, known, rewriter, files, table, erases: false };
        let mut target = work.named().await?;
        let has_same = newest.file_count() == target.len()
            && target.keys().all(|path| newest.file(path).is_some());
        if files.is_empty() && has_same && known.is_some_and(|known| known.dropped_day == NO_DAY) {
            // Only the archive's own upkeep made newer versions.
            return Ok(ArchiveOutcome::Nothing);
        }
        let copies = self.copies(&work, &newest).await?;
        target.extend(copies.iter().map(|add| (add.path.clone(), add.clone())));
        let Some(after) = self.commit_archive(&work, state, &target, None).await? else {
            // What was copied may have rows that were erased meanwhile.
            for add in copies.iter().filter(|add| newest.file(&add.path).is_none()) {
                work.table.discard(&add.path).await;
            }
            return Ok(ArchiveOutcome::GaveWay);
        };
        if files.is_empty() && known.is_none() {
            // Only left-overs of a first move that died.
            return Ok(ArchiveOutcome::Nothing);
        }
        self.name_version(&work, &after).await
    }

    async fn create_archive(
        &self,
        state: &TableState,
        settings: &MaintenanceSettings,
    ) -> Result<Arc<Table>> {
        let storage = self.archive_storage(settings)?;
        let (clock, path) = (self.inner.options.clock.clone(), archive_path(self.name()));
        let mut metadata = TableMetadata {
            id: random_table_id(),
            created_ms: Some(clock.now_ms()),
            ..(*state.metadata).clone()
        };
        // How long what is kept is a matter of the log.
        let is_of_table = |name: &String| name.starts_with("delta.") && !name.ends_with("Duration");
        metadata.properties.retain(|name, _| is_of_table(name));
        let owner = state.metadata.id.clone();
        metadata.properties.insert(PROPERTY_ARCHIVE_OF.to_owned(), owner);
        Table::create(&storage, &path, clock, state.protocol.clone(), metadata, &APP_IDS).await?;
        self.open_archive(settings)
            .await?
            .ok_or_else(|| Error::corrupt("the table has a first commit, but can't be opened"))
    }

    /// The files as they lie in the archive: copied, or adopted where a move that died had brought them.
    async fn copies(&self, work: &Move<'_>, newest: &TableState) -> Result<Vec<FileAdd>> {
        let mut left: HashMap<String, Arc<FileAdd>> = HashMap::new();
        for file in newest.files() {
            if let Some(origin) = file.add.tags.get(TAG_ARCHIVED) {
                left.insert(origin.clone(), file.add.clone());
            }
        }
        // In the order in which they come: of files with as many rows the same ones are merged first, whoever does it.
        let name = format!("{:020}-{:016x}", newest.version, crate::random::random::<u64>());
        let left = &left;
        let files: Vec<_> = work.files.to_vec();
        let copied = stream::iter(files.into_iter().enumerate()).map(|(index, file)| {
            let name = format!("{name}-{index}");
            async move {
                let found = left.get(&file.add.path);
                match found.filter(|found| found.size == file.add.size) {
                    Some(found) => Ok((**found).clone()),
                    None => self.copy(&work.table, &file, &name).await,
                }
            }
            .boxed()
        });
        copied.buffered(COPY_CONCURRENCY).try_collect().await
    }

    /// Copies one file, byte by byte. It tells by itself which commits its rows have, since the archive's own versions don't.
    async fn copy(&self, archive: &Table, file: &DataFile, name: &str) -> Result<FileAdd> {
        let path = Path::from(file.add.path.as_str());
        let read = async { self.table().store().get(&path).await?.bytes().await };
        let bytes = read.await.map_err(|error| {
            Error::from(error).context(format!("copying {} of {}", file.add.path, self.name()))
        })?;
        if bytes.len() as u64 != file.add.size {
            return Err(Error::corrupt(format!(
                "the file {} of the log of {} has {} bytes, and its commit says {}: nothing was moved",
                file.add.path,
                self.name(),
                bytes.len(),
                file.add.size
            )));
        }
        let day = file.add.partition.get(DT).cloned().flatten().unwrap_or_default();
        let mut add = FileAdd {
            path: format!("{DT}={day}/{name}.parquet"),
            modified_ms: self.clock().now_ms(),
            data_change: true,
            ..(*file.add).clone()
        };
        add.tags.insert(TAG_ARCHIVED.to_owned(), file.add.path.clone());
        if let FileCommits::All(span) = &file.commits {
            add.tags.insert(TAG_COMMIT.to_owned(), span.high.to_string());
        }
        archive.put_new(&add.path, bytes).await?;
        metrics::counter!(crate::metrics::BYTES_ARCHIVED).increment(add.size);
        Ok(add)
    }

    /// Brings the archive's newest version to exactly these files, and notes the erase of the log that it follows; `None` when it
    /// follows one which came after this state of the log.
    pub(super) async fn commit_archive(
        &self,
        work: &Move<'_>,
        log: &TableState,
        target: &BTreeMap<String, FileAdd>,
        follows: Option<i64>,
    ) -> Result<Option<Arc<TableState>>> {
        let now_ms = self.clock().now_ms();
        let note = BTreeMap::from([("step".to_owned(), serde_json::json!("archive"))]);
        let decide = |state: &TableState, _| {
            let followed = state.transaction(ERASE_APP_ID);
            if followed > Some(log.version) {
                return Ok(Attempt::Stop(false));
            }
            let mut actions = Vec::new();
            if let Some(version) = follows.filter(|version| followed < Some(*version)) {
                let app_id = ERASE_APP_ID.to_owned();
                actions.push(Action::Transaction { app_id, version });
            }
            if state.protocol != log.protocol {
                actions.push(Action::Protocol(log.protocol.clone()));
            }
            if state.metadata.schema != log.metadata.schema {
                let schema = log.metadata.schema.clone();
                let metadata = TableMetadata { schema, ..(*state.metadata).clone() };
                actions.push(Action::Metadata(metadata));
            }
            let superfluous = |file: &&Arc<DataFile>| !target.contains_key(&file.add.path);
            actions.extend(
                state.files().filter(superfluous).map(|file| file.add.removal(now_ms, true)),
            );
            let missing = target.values().filter(|add| state.file(&add.path).is_none());
            actions.extend(missing.map(|add| Action::Add(Arc::new(add.clone()))));
            Ok(match actions.is_empty() {
                true => Attempt::Stop(true),
                false => Attempt::Write(actions),
            })
        };
        Ok(match work.table.commit("WRITE", Some(false), note, decide).await? {
            Outcome::Committed(state) => Some(state),
            Outcome::Stopped(is_so) => is_so.then(|| work.table.state()),
        })
    }

    /// The one commit that makes the move: the log gives up the files and names the version that has them.
    pub(super) async fn name_version(
        &self,
        work: &Move<'_>,
        after: &TableState,
    ) -> Result<ArchiveOutcome> {
        let begun_ms = self.clock().now_ms();
        let note = BTreeMap::from([("step".to_owned(), serde_json::json!("archive"))]);
        let decide = |state: &TableState, version| {
            let now_ms = self.clock().now_ms();
            let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
            let is_same = Archived::of(state) == work.known
                && state.transaction(REWRITER_APP_ID) == work.rewriter
                && settings.archive == work.settings.archive
                && work.files.iter().all(|file| state.file(&file.add.path).is_some());
            if !is_same || now_ms.saturating_sub(begun_ms) > NAMED_WITHIN_MS {
                return Ok(Attempt::Stop(()));
            }
            let mut actions: Vec<Action> = work.next(after, now_ms).actions().collect();
            let is_rewriting = work.erases || !work.files.is_empty();
            // Whoever rewrites the same files at the same time gives way.
            let raised = [(REWRITER_APP_ID, is_rewriting), (ERASE_APP_ID, work.erases)];
            for (app_id, _) in raised.into_iter().filter(|(_, is_raised)| *is_raised) {
                actions.push(Action::Transaction { app_id: app_id.to_owned(), version });
            }
            actions.extend(work.files.iter().map(|file| file.add.removal(now_ms, false)));
            Ok(Attempt::Write(actions))
        };
        match self.table().commit("OPTIMIZE", Some(false), note, decide).await? {
            Outcome::Committed(state) => Ok(ArchiveOutcome::Moved(state)),
            Outcome::Stopped(()) => Ok(ArchiveOutcome::GaveWay),
        }
    }
}

impl Move<'_> {
    /// The files of the version that the log names which are part of the log.
    pub(super) async fn named(&self) -> Result<BTreeMap<String, FileAdd>> {
        let Some(known) = self.known else { return Ok(BTreeMap::new()) };
        let state = table_at(&self.table, known.version).await?;
        let part = state.files().filter(|file| known.has(file));
        Ok(part.map(|file| (file.add.path.clone(), (*file.add).clone())).collect())
    }

    /// What the log says of the archive from now on.
    fn next(&self, after: &TableState, now_ms: i64) -> Archived {
        // A version that was replaced within the hour may still be read by those who began before.
        let prior = self.known.map_or(after.version, |known| {
            let is_settled = now_ms.saturating_sub(known.since_ms) > LEAST_FILE_RETENTION_MS;
            if is_settled { known.version } else { known.prior.min(known.version) }
        });
        let next = Archived {
            version: after.version,
            commit: after.files().map(|file| file.commits.span().high).max().unwrap_or(0),
            prior,
            since_ms: now_ms,
            dropped_day: NO_DAY,
            files: 0,
            rows: 0,
            bytes: 0,
        };
        next.counting(after.files())
    }
}
