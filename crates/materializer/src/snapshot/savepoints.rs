//! Savepoints: versions of the snapshot that are kept under a name until they are released.
//!
//! ```text
//! create: the record by put-if-absent -> is all there that it pins? -> else the record goes again
//! vacuum: takes the time -> reads the records -> leaves what they pin
//! ```
//!
//! A record lists the version's files itself, so it needs no commit of the snapshot's table. It pins a version that is the newest one when
//! the record is written. So a vacuum that took its time before keeps the files as those of its retention, and one that took
//! it later finds the record. A record that is released goes on pinning for the longest read.

mod examine;

use std::collections::BTreeMap;

use alluvium_log::{
    DataFile, Error, ErrorKind, FLOOR_APP_ID, FileAdd, NO_SUM, Pins, Result, Table, TableState,
    VACUUM_APP_ID, check_text, seal_text, validate_state_name,
};
pub use examine::examine_savepoints;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::{
    FORGOTTEN_TIME_APP_ID, FORGOTTEN_VERSION_APP_ID, MATERIALIZER_APP_ID, Snapshot, SnapshotState,
};

/// Records that are read at the same time.
const READ_CONCURRENCY: usize = 8;
const FORMAT_VERSION: i64 = 1;
/// Of the sums of records.
const SEED: u64 = 0;

/// A version of the snapshot that is kept under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Savepoint {
    /// The sum of the record's text, in the store only.
    #[serde(rename = "alluvium.sum", skip_serializing_if = "Option::is_none", default)]
    pub(super) sum: Option<String>,
    pub(super) format_version: i64,
    /// The name that it is released by.
    pub name: String,
    /// What it is for.
    pub note: Option<String>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// The log commit as of which the state is kept.
    pub log_commit: i64,
    /// The version of the snapshot's table.
    pub snapshot_version: i64,
    /// When that version was made, in milliseconds since 1970.
    pub made_ms: i64,
    /// Whether it was made for a mark of the grid of snapshots, not by somebody.
    #[serde(default)]
    pub(super) is_grid: bool,
    /// When rows of erased keys were taken out of it, in milliseconds since 1970; none while it is as it was made.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub erased_ms: Option<i64>,
    /// Up to which event time it is without tombstones, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) floor: Option<i64>,
    /// The greatest version and the greatest event time that it may have been made without.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) forgotten: Option<(i64, i64)>,
    /// The id of the log that the snapshot is of.
    pub(super) log_id: String,
    /// Tells the record from another one under the same name.
    pub(super) id: String,
    /// When it was released; then it pins its files for the longest read only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) released_ms: Option<i64>,
    pub(super) files: Vec<PinnedFile>,
}

/// A file as the snapshot's table has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PinnedFile {
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) partition: BTreeMap<String, Option<String>>,
    pub(super) stats: Option<String>,
    pub(super) tags: BTreeMap<String, String>,
}

impl PinnedFile {
    fn of(file: &DataFile) -> Self {
        Self::of_add(&file.add)
    }

    pub(super) fn of_add(add: &FileAdd) -> Self {
        let FileAdd { path, size, partition, stats, tags, .. } = add.clone();
        Self { path, size, partition, stats, tags }
    }

    fn add(&self, modified_ms: i64) -> FileAdd {
        FileAdd {
            path: self.path.clone(),
            size: self.size,
            partition: self.partition.clone(),
            modified_ms,
            data_change: false,
            stats: self.stats.clone(),
            tags: self.tags.clone(),
        }
    }
}

impl Savepoint {
    /// Files that it keeps.
    pub fn files(&self) -> u64 {
        self.files.len() as u64
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// The paths of its files in the snapshot's table, with their sizes.
    pub fn paths(&self) -> impl Iterator<Item = (&str, u64)> {
        self.files.iter().map(|file| (file.path.as_str(), file.size))
    }

    /// Whether it was made for a mark of the grid of snapshots, not by somebody.
    pub fn is_of_grid(&self) -> bool {
        self.is_grid
    }

    pub(super) fn is_released(&self) -> bool {
        self.released_ms.is_some()
    }

    /// The record's text with its sum.
    pub(super) fn sealed(&self) -> Result<Vec<u8>> {
        let unsealed = Self { sum: Some(NO_SUM.to_owned()), ..self.clone() };
        let mut text = serde_json::to_vec_pretty(&unsealed)
            .map_err(|error| Error::internal("a savepoint").with_source(error))?;
        seal_text(SEED, &mut text);
        Ok(text)
    }

    /// The snapshot as it was.
    pub(crate) fn state(&self, table: &Arc<Table>) -> SnapshotState {
        let now = table.state();
        let files = self.files.iter().map(|file| file.add(self.created_ms)).collect();
        let known = [
            (MATERIALIZER_APP_ID, Some(self.log_commit)),
            (FLOOR_APP_ID, self.floor),
            (FORGOTTEN_VERSION_APP_ID, self.forgotten.map(|(version, _)| version)),
            (FORGOTTEN_TIME_APP_ID, self.forgotten.map(|(_, time)| time)),
        ];
        let transactions = known.into_iter();
        let transactions =
            transactions.filter_map(|(app_id, last)| Some((app_id.to_owned(), last?))).collect();
        let state =
            TableState::of_files(self.snapshot_version, &now, files, transactions, self.made_ms);
        SnapshotState { table: Some(table.clone()), state: Some(Arc::new(state)) }
    }
}

/// A record where it lies.
pub(super) struct Record {
    pub(super) meta: ObjectMeta,
    pub(super) savepoint: Arc<Savepoint>,
}

/// What was read of records before: a record never changes, and another one under its name has another time or size.
pub(super) type KnownRecords = BTreeMap<String, (ObjectMeta, Arc<Savepoint>)>;

/// Checks that a text may name a savepoint: what may name a state may.
pub fn validate_savepoint_name(name: &str) -> Result<()> {
    validate_state_name(name).map_err(|error| error.context("the name of a savepoint"))
}

/// Reads a record.
fn decode(path: &Path, bytes: &[u8]) -> Result<Savepoint> {
    let damaged = || {
        Error::corrupt(format!(
            "{path} is no record of a savepoint: put it back from a backup, or remove it to give up what it keeps"
        ))
    };
    if check_text(SEED, bytes) == Some(false) {
        return Err(damaged());
    }
    let savepoint: Savepoint =
        serde_json::from_slice(bytes).map_err(|error| damaged().with_source(error))?;
    Ok(Savepoint { sum: None, ..savepoint })
}

impl Snapshot {
    fn savepoints_folder(&self) -> Path {
        Path::from(format!("{}/savepoints", self.inner.log.name()))
    }

    /// Where the record of a savepoint lies that is not released.
    pub(super) fn record_path(&self, savepoint: &Savepoint) -> Path {
        match savepoint.is_grid {
            true => {
                let version = savepoint.snapshot_version;
                self.savepoints_folder().join("grid").join(format!("{version:020}.json"))
            }
            false => self.named_path(&savepoint.name),
        }
    }

    fn named_path(&self, name: &str) -> Path {
        self.savepoints_folder().join(format!("{name}.json"))
    }

    pub(super) fn released_path(&self, savepoint: &Savepoint) -> Path {
        self.savepoints_folder().join("released").join(format!("{}.json", savepoint.id))
    }

    /// Keeps the newest snapshot under a name, whatever is cleaned up, until [`Snapshot::release_savepoint`].
    ///
    /// # Errors
    /// The name is taken, or there is no snapshot yet: materialize first.
    #[tracing::instrument(level = "info", skip_all, fields(state = self.inner.log.name(), name = name, basis = self.inner.log.state().version, commit = tracing::field::Empty), err(level = "debug"))]
    pub async fn create_savepoint(&self, name: &str, note: Option<&str>) -> Result<Savepoint> {
        validate_savepoint_name(name)?;
        let current = self.refresh().await?;
        let place = format!("savepoint {name} of {}", self.inner.log.name());
        let Some((table, _)) = current.table() else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{place}: there is no snapshot to keep: append and materialize first"),
            ));
        };
        if !current.is_ours() {
            return Err(Error::corrupt(format!(
                "{place}: another engine rewrote the snapshot: materialize first, which makes it anew"
            )));
        }
        let savepoint = self.savepoint_of(&current, name, note);
        self.put_whole(table, &savepoint).await.map_err(|error| error.context(place))?;
        tracing::Span::current().record("commit", savepoint.log_commit);
        Ok(savepoint)
    }

    /// A record of a version under a name.
    pub(super) fn savepoint_of(
        &self,
        state: &SnapshotState,
        name: &str,
        note: Option<&str>,
    ) -> Savepoint {
        Savepoint {
            sum: None,
            format_version: FORMAT_VERSION,
            name: name.to_owned(),
            note: note.map(str::to_owned),
            created_ms: self.inner.log.clock().now_ms(),
            log_commit: state.log_commit(),
            snapshot_version: state.version(),
            made_ms: state.made_ms().unwrap_or(0),
            is_grid: false,
            erased_ms: None,
            floor: state.floor(),
            forgotten: state.forgotten(),
            log_id: self.inner.log.state().metadata.id.clone(),
            id: format!("{:032x}", alluvium_log::random::<u128>()),
            released_ms: None,
            files: state.files().map(|file| PinnedFile::of(file)).collect(),
        }
    }

    /// Writes a record, and takes it back if what it pins is not all there.
    pub(super) async fn put_whole(&self, table: &Arc<Table>, savepoint: &Savepoint) -> Result<()> {
        let path = self.record_path(savepoint);
        self.put_record(&path, savepoint).await?;
        if let Err(error) = self.prove_whole(table, savepoint).await {
            self.remove_record(&path).await?;
            return Err(error);
        }
        Ok(())
    }

    /// Makes sure that what a record pins was not removed before it was there to be seen.
    async fn prove_whole(&self, table: &Arc<Table>, savepoint: &Savepoint) -> Result<()> {
        let newest = table.refresh().await?;
        let whole_from = newest.transaction(VACUUM_APP_ID).unwrap_or(0);
        let pinned = savepoint.state(table);
        let missing = match pinned.table() {
            Some((table, state)) => table.missing_file(state).await?,
            None => None,
        };
        if savepoint.snapshot_version < whole_from || missing.is_some() {
            let missing = missing.map_or_else(String::new, |path| format!(": {path} is missing"));
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "a vacuum removed files of the snapshot meanwhile{missing}; nothing was kept, try again"
                ),
            ));
        }
        Ok(())
    }

    /// The savepoints, the oldest commit first.
    pub async fn savepoints(&self) -> Result<Vec<Arc<Savepoint>>> {
        let mut found: Vec<_> = self
            .records()
            .await?
            .into_iter()
            .map(|record| record.savepoint)
            .filter(|savepoint| !savepoint.is_released() && !savepoint.is_grid)
            .collect();
        found.sort_by(|a, b| (a.log_commit, &a.name).cmp(&(b.log_commit, &b.name)));
        Ok(found)
    }

    /// Lets go of what a savepoint keeps; a vacuum removes it when no read can last so long.
    #[tracing::instrument(level = "info", skip_all, fields(state = self.inner.log.name(), name = name, commit = tracing::field::Empty), err(level = "debug"))]
    pub async fn release_savepoint(&self, name: &str) -> Result<Savepoint> {
        let path = self.named_path(name);
        let records = self.records().await?;
        let Some(record) = records.iter().find(|record| record.meta.location == path) else {
            let known: Vec<&str> = records
                .iter()
                .filter(|record| !record.savepoint.is_released() && !record.savepoint.is_grid)
                .map(|record| record.savepoint.name.as_str())
                .collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("{} has no savepoint {name:?}: there is {known}", self.inner.log.name()),
            ));
        };
        tracing::Span::current().record("commit", record.savepoint.log_commit);
        self.release(&path, &record.savepoint).await
    }

    /// Lets go of a record: first the one that goes on pinning for a while is written, then the other one goes.
    pub(super) async fn release(&self, path: &Path, savepoint: &Savepoint) -> Result<Savepoint> {
        let released_ms = Some(self.inner.log.clock().now_ms());
        let released = Savepoint { released_ms, ..savepoint.clone() };
        let kept = self.released_path(&released);
        match self.put_record(&kept, &released).await {
            // An earlier release got as far as this.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => other?,
        }
        self.remove_record(path).await?;
        Ok(released)
    }

    /// The snapshots that the state's `snapshot_grid` keeps, the oldest commit first.
    pub async fn grid_snapshots(&self) -> Result<Vec<Arc<Savepoint>>> {
        let records = self.records().await?.into_iter().map(|record| record.savepoint);
        let mut found: Vec<_> =
            records.filter(|savepoint| savepoint.is_grid && !savepoint.is_released()).collect();
        found.sort_by_key(|savepoint| savepoint.snapshot_version);
        Ok(found)
    }

    /// What savepoints keep in the snapshot's table, and what those kept that were released more than `file_retention_ms` before
    /// `now_ms` and that no reader holds; also where the records of the latter lie.
    pub(crate) async fn pins(
        &self,
        now_ms: i64,
        file_retention_ms: i64,
    ) -> Result<(Pins, Vec<Path>)> {
        let mut over = Vec::new();
        let mut pins = Pins { longest_read_ms: Some(file_retention_ms), ..Pins::default() };
        let leases = self.inner.log.leases().alive(now_ms).await?;
        let is_held =
            |version| leases.iter().any(|lease| lease.snapshot_versions.contains(&version));
        for record in self.records().await? {
            let released = record.savepoint.released_ms;
            let is_over = released.is_some_and(|at| at.saturating_add(file_retention_ms) < now_ms)
                && !is_held(record.savepoint.snapshot_version);
            let paths = record.savepoint.paths().map(|(path, _)| path.to_owned());
            if is_over {
                pins.let_go.extend(paths);
                over.push(record.meta.location);
            } else {
                pins.kept.extend(paths);
            }
        }
        Ok((pins, over))
    }

    /// Removes records that keep nothing any more, after what they kept.
    pub(crate) async fn forget(&self, records: &[Path]) -> Result<()> {
        for path in records {
            self.remove_record(path).await?;
        }
        Ok(())
    }

    /// The snapshots that savepoints and the grid keep, the newest first.
    pub(super) async fn saved_states(&self, table: &Arc<Table>) -> Result<Vec<SnapshotState>> {
        let mut savepoints = self.savepoints().await?;
        savepoints.extend(self.grid_snapshots().await?);
        savepoints.sort_by_key(|savepoint| std::cmp::Reverse(savepoint.snapshot_version));
        Ok(savepoints.iter().map(|savepoint| savepoint.state(table)).collect())
    }

    pub(super) async fn records(&self) -> Result<Vec<Record>> {
        let store = self.inner.storage.object_store();
        let folder = self.savepoints_folder();
        let listed: Vec<ObjectMeta> = store
            .list(Some(&folder))
            .try_filter(|meta| std::future::ready(meta.location.as_ref().ends_with(".json")))
            .try_collect()
            .await
            .map_err(|error| Error::from(error).context(&folder))?;
        let known = std::mem::take(&mut *self.inner.records.lock());
        let read = |meta: ObjectMeta| {
            let known = known.get(meta.location.as_ref()).filter(|(other, _)| *other == meta);
            let known = known.map(|(_, savepoint)| savepoint.clone());
            async move {
                let savepoint = match known {
                    Some(savepoint) => Some(savepoint),
                    None => self.read_record(&meta.location).await?.map(Arc::new),
                };
                Ok::<_, Error>(savepoint.map(|savepoint| Record { meta, savepoint }))
            }
        };
        let found: Vec<Option<Record>> =
            stream::iter(listed).map(read).buffered(READ_CONCURRENCY).try_collect().await?;
        let records: Vec<Record> = found.into_iter().flatten().collect();
        let remembered = records.iter().map(|record| {
            let path = record.meta.location.as_ref().to_owned();
            (path, (record.meta.clone(), record.savepoint.clone()))
        });
        *self.inner.records.lock() = remembered.collect();
        Ok(records)
    }

    /// A record; `None` when it went meanwhile. One that can't be read is an error: what it pins is not known.
    pub(super) async fn read_record(&self, path: &Path) -> Result<Option<Savepoint>> {
        let store = self.inner.storage.object_store();
        let bytes = match store.get(path).await {
            Ok(found) => found.bytes().await.map_err(|error| Error::from(error).context(path))?,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(Error::from(error).context(path)),
        };
        let savepoint = decode(path, &bytes)?;
        if savepoint.format_version != FORMAT_VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{path} has the format {}, which this version does not know: use a newer one",
                    savepoint.format_version
                ),
            ));
        }
        if savepoint.log_id != self.inner.log.state().metadata.id {
            return Err(Error::new(
                ErrorKind::IdentityChanged,
                format!("{path} is a savepoint of another log: remove it"),
            ));
        }
        Ok(Some(savepoint))
    }

    /// Writes a record if there is none under its name.
    pub(super) async fn put_record(&self, path: &Path, savepoint: &Savepoint) -> Result<()> {
        let bytes = savepoint.sealed()?;
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let store = self.inner.storage.object_store();
        let error = match store.put_opts(path, bytes.into(), options).await {
            Ok(_) => return Ok(()),
            Err(object_store::Error::AlreadyExists { .. }) => {
                return Err(Error::new(
                    ErrorKind::AlreadyExists,
                    "it exists: take another name, or release it first",
                ));
            }
            Err(error) => error,
        };
        // The reply may be lost and the record written.
        match self.read_record(path).await {
            Ok(Some(written)) if written.id == savepoint.id => Ok(()),
            Ok(_) => Err(Error::from(error)),
            Err(_) => Err(Error::new(
                ErrorKind::Unknown,
                "whether it was made could not be learned: list the savepoints before trying again",
            )
            .with_source(error)),
        }
    }

    async fn remove_record(&self, path: &Path) -> Result<()> {
        match self.inner.storage.object_store().delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Error::from(error).context(path)),
        }
    }
}
