//! Looking at every file of a table: what is damaged or gone, told file by file. Nothing is changed.
//!
//! A table that can't be opened is looked at all the same, since nothing here needs all of it: commits and checkpoints one by one,
//! then the data files of every version that can be made.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use serde::Serialize;

use super::delta::POINTER;
use super::listing::{LogListing, Origin};
use super::load::is_of_log;
use super::state::TableState;
use super::vacuum::names_of;
use super::{FileAdd, Table, VACUUM_APP_ID, commit_path};
use crate::checksum::{TAG_CHECK, check_text};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::read::{RangeReader, decode, decode_stream};
use crate::storage::Storage;

/// Data files that are read at the same time.
const READ_CONCURRENCY: usize = 4;
/// Bytes of a file that are read at once: whole blocks.
const STEP_BYTES: u64 = 4 * 1024 * 1024;

/// What a damaged file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileRole {
    /// A commit of a Delta log.
    Commit,
    /// A checkpoint of a Delta log.
    Checkpoint,
    /// The checksum of a checkpoint.
    Checksum,
    /// The hint where a Delta log is to be read from.
    Pointer,
    /// A file with rows.
    Data,
    /// The record of a savepoint.
    Savepoint,
    /// An archive as a whole, which is not what the log says.
    Archive,
}

/// A file that is damaged or gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file, from the root of the store on.
    pub file: String,
    /// What it is.
    pub role: FileRole,
    /// The version of a commit or of a checkpoint; of a data file or an archive the greatest commit of its rows.
    pub version: Option<i64>,
    /// Whether the newest version of its table needs it.
    pub is_needed: bool,
    /// What is wrong with it.
    pub problem: String,
}

/// What was found in the files of a table.
#[derive(Debug, Default)]
pub struct Examination {
    /// Everything that is damaged, or gone.
    pub damages: Vec<Damage>,
    /// The newest version that can be made, if any.
    pub newest: Option<Arc<TableState>>,
    /// Why the table can't be opened, if it can't.
    pub failure: Option<Error>,
    /// Files that were read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files of other engines without a checksum: they were decoded, which finds most damage but not all.
    pub unchecked_files: u64,
    /// Rows that were counted in files of an archive.
    pub rows: u64,
    /// The versions of which there are commits, at least as far as the newest one.
    pub commits: Option<RangeInclusive<i64>>,
}

impl Table {
    /// Looks at all files of a table, also of one that can't be opened.
    pub async fn examine(
        storage: &Storage,
        path: &str,
        clock: Arc<dyn Clock>,
        app_ids: &[&str],
    ) -> Result<(Self, Examination)> {
        Self::examine_as(storage, path, path.to_owned(), clock, app_ids).await
    }

    /// The same, the table named otherwise in messages.
    pub(crate) async fn examine_as(
        storage: &Storage,
        path: &str,
        label: String,
        clock: Arc<dyn Clock>,
        app_ids: &[&str],
    ) -> Result<(Self, Examination)> {
        let table = Self::new(storage, path, clock, app_ids).labelled(label);
        let listing = table.list_log().await?;
        let mut found = Examination::default();
        if let (Some(first), Some(newest)) = (listing.commits.first(), listing.newest()) {
            found.commits = Some(*first..=newest);
        }
        table.examine_commits(&listing, &mut found).await?;
        table.examine_checkpoints(&listing, &mut found).await?;
        table.examine_pointer(&listing, &mut found).await?;
        match table.load().await {
            Ok(Some(state)) => {
                let state = Arc::new(state);
                table.publish(state.clone()).await?;
                found.newest = Some(state);
            }
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Storage => return Err(error),
            Err(error) => found.failure = Some(error),
        }
        table.examine_data(&mut found).await?;
        found.damages.sort_by(|a, b| (a.role, &a.file).cmp(&(b.role, &b.file)));
        Ok((table, found))
    }

    fn note(
        &self,
        found: &mut Examination,
        (role, version): (FileRole, Option<i64>),
        path: &Path,
        is_needed: bool,
        problem: String,
    ) {
        let file = format!("{}/{path}", self.label);
        found.damages.push(Damage { file, role, version, is_needed, problem });
    }

    async fn examine_commits(&self, listing: &LogListing, found: &mut Examination) -> Result<()> {
        // Those after the newest checkpoint are needed; what is missing among them too.
        let first = listing.checkpoints.last().map_or(0, |checkpoint| checkpoint + 1);
        let newest = listing.newest().unwrap_or(-1);
        let missing =
            (first..=newest).filter(|version| listing.commits.binary_search(version).is_err());
        for version in missing {
            let about = (FileRole::Commit, Some(version));
            self.note(found, about, &commit_path(version), true, "it is missing".to_owned());
        }
        for file in
            listing.files.iter().filter(|file| file.meta.location.as_ref().ends_with(".json"))
        {
            found.bytes += file.meta.size;
        }
        let mut commits = stream::iter(listing.commits.clone())
            .map(|version| async move { (version, self.read_commit(version).await) }.boxed())
            .buffered(READ_CONCURRENCY);
        while let Some((version, outcome)) = commits.next().await {
            found.files += 1;
            if let Some(problem) = problem_of(outcome)? {
                let about = (FileRole::Commit, Some(version));
                self.note(found, about, &commit_path(version), version >= first, problem);
            }
        }
        Ok(())
    }

    async fn examine_checkpoints(
        &self,
        listing: &LogListing,
        found: &mut Examination,
    ) -> Result<()> {
        for file in &listing.files {
            let name = file.meta.location.filename().unwrap_or_default();
            if !name.ends_with(".alluvium.json") {
                continue;
            }
            found.files += 1;
            let Some(text) = self.read_if_there(&file.meta.location).await? else { continue };
            if check_text(file.version.unsigned_abs(), &text) != Some(true) {
                let about = (FileRole::Checksum, Some(file.version));
                let problem = "it is not the text that was written".to_owned();
                self.note(found, about, &file.meta.location, false, problem);
            }
        }
        let versions: Vec<i64> = listing.checkpoints.iter().copied().collect();
        for version in versions {
            found.files += 1;
            let outcome = self.load_origin(Origin::Checkpoint(version), version).await;
            let problem = match outcome {
                Ok(state) => self.contradiction(listing, version, &state).await?,
                Err(error) => problem_of::<()>(Err(error))?,
            };
            let Some(problem) = problem else { continue };
            let path = Path::from(format!("_delta_log/{version:020}.checkpoint.parquet"));
            let about = (FileRole::Checkpoint, Some(version));
            let others: Vec<_> = others(listing, version);
            self.note(found, about, &path, others.is_empty(), problem);
        }
        Ok(())
    }

    /// What a checkpoint says otherwise than the commits up to it, as far as these can be read without it.
    async fn contradiction(
        &self,
        listing: &LogListing,
        version: i64,
        state: &TableState,
    ) -> Result<Option<String>> {
        let origins = others(listing, version);
        let other = match self.load_from(&origins, version).await {
            Ok(other) => other,
            Err(error) if is_of_log(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let files = |state: &TableState| -> BTreeMap<String, (u64, BTreeMap<String, String>)> {
            let of = |add: &FileAdd| (add.path.clone(), (add.size, add.tags.clone()));
            state.files().map(|file| of(&file.add)).collect()
        };
        let is_same = files(state) == files(&other) && state.metadata == other.metadata;
        Ok((!is_same).then(|| "it says otherwise than the commits before it".to_owned()))
    }

    async fn examine_pointer(&self, listing: &LogListing, found: &mut Examination) -> Result<()> {
        let path = Path::from(format!("_delta_log/{POINTER}"));
        let Some(bytes) = self.read_if_there(&path).await? else { return Ok(()) };
        found.files += 1;
        let version = serde_json::from_slice::<serde_json::Value>(&bytes)
            .ok()
            .and_then(|pointer| pointer["version"].as_i64());
        let problem = match version {
            Some(version) if listing.checkpoints.contains(&version) => return Ok(()),
            Some(version) => {
                format!("it points to a checkpoint of version {version}, and there is none")
            }
            None => "it is no JSON object with a version".to_owned(),
        };
        self.note(found, (FileRole::Pointer, None), &path, false, problem);
        Ok(())
    }

    pub(super) async fn read_if_there(&self, path: &Path) -> Result<Option<bytes::Bytes>> {
        match self.store.get(path).await {
            Ok(found) => Ok(Some(found.bytes().await.map_err(|e| self.placed(e.into()))?)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.placed(error.into())),
        }
    }

    /// Reads the data files of all versions whose files are to be there.
    async fn examine_data(&self, found: &mut Examination) -> Result<()> {
        let Some(newest) = found.newest.clone() else { return Ok(()) };
        let whole_from = newest.transaction(VACUUM_APP_ID).unwrap_or(0);
        let versions = match self.states().await {
            Ok(states) => states,
            Err(error) if error.kind() == ErrorKind::Storage => return Err(error),
            // The damage that keeps older versions from being made is noted by now.
            Err(_) => vec![newest.clone()],
        };
        let mut files: BTreeMap<String, (Arc<FileAdd>, i64)> = BTreeMap::new();
        for state in versions.iter().filter(|state| state.version >= whole_from).chain([&newest]) {
            for file in state.files() {
                files.insert(file.add.path.clone(), (file.add.clone(), file.commits.span().high));
            }
        }
        let adds: Vec<(Arc<FileAdd>, i64)> = files.into_values().collect();
        self.examine_files(adds, Some(&newest), found).await
    }

    /// The files of a state that are gone or have another size than was written, by one listing.
    pub async fn examine_sizes(&self, state: &TableState) -> Result<Vec<Damage>> {
        let there = self.data_files().await?;
        let sizes: HashMap<&str, u64> =
            there.iter().map(|meta| (meta.location.as_ref(), meta.size)).collect();
        let mut found = Examination::default();
        for file in state.files() {
            let size = names_of(&file.add.path).find_map(|name| sizes.get(name.as_str()).copied());
            let problem = match size {
                Some(size) if size == file.add.size => continue,
                Some(size) => {
                    format!("it has {size} bytes, and was written with {}", file.add.size)
                }
                None => "it is missing".to_owned(),
            };
            let about = (FileRole::Data, Some(file.commits.span().high));
            self.note(&mut found, about, &Path::from(file.add.path.as_str()), true, problem);
        }
        Ok(found.damages)
    }

    /// Reads data files, each with the greatest commit of its rows; those of a state are the ones that are needed.
    pub async fn examine_files(
        &self,
        files: Vec<(Arc<FileAdd>, i64)>,
        needed_by: Option<&TableState>,
        found: &mut Examination,
    ) -> Result<()> {
        let mut outcomes = stream::iter(files)
            .map(|(add, high)| {
                async move {
                    let outcome = self.read_all(&add).await;
                    (add, high, outcome)
                }
                .boxed()
            })
            .buffered(READ_CONCURRENCY);
        while let Some((add, high, outcome)) = outcomes.next().await {
            found.files += 1;
            found.bytes += add.size;
            found.unchecked_files += u64::from(!add.tags.contains_key(TAG_CHECK));
            if let Some(problem) = problem_of(outcome)? {
                let about = (FileRole::Data, Some(high));
                let path = Path::from(add.path.as_str());
                let is_needed = needed_by.is_some_and(|state| state.file(&add.path).is_some());
                self.note(found, about, &path, is_needed, problem);
            }
        }
        Ok(())
    }

    /// The rows that a data file has by its own footer.
    pub(crate) async fn rows_stored(&self, add: &FileAdd) -> Result<u64> {
        let (footer, _) = RangeReader::of(self, add)?.load_metadata().await?;
        let rows = footer.metadata().file_metadata().num_rows();
        u64::try_from(rows).map_err(|_| {
            self.placed(Error::corrupt(format!("{} has {rows} rows by its footer", add.path)))
        })
    }

    /// Reads a data file wholly, and checks it as well as it can be.
    async fn read_all(&self, add: &FileAdd) -> Result<()> {
        let mut reader = RangeReader::of(self, add)?;
        let (_, blocks) = reader.load_metadata().await?;
        if blocks.is_some() {
            let mut start = 0;
            while start < add.size {
                let end = (start + STEP_BYTES).min(add.size);
                reader.fetch(std::slice::from_ref(&(start..end))).await?;
                start = end;
            }
            return Ok(());
        }
        let builder = ParquetRecordBatchStreamBuilder::new(reader).await?;
        let rows = decode_stream(decode(|| Ok(builder.build()?))?);
        rows.try_for_each(|_| std::future::ready(Ok(()))).await
    }

    /// Moves a file of the table out of the way, to another place of the store, if it still is what was listed; false when somebody has
    /// written it over or removed it since. What was written over while it was copied stays too.
    pub async fn set_aside(&self, file: &ObjectMeta, to: &Path, storage: &Storage) -> Result<bool> {
        let (root, from) = (storage.object_store(), &file.location);
        let moved = async {
            if !is_same(file, &root.head(from).await?) {
                return Ok(false);
            }
            root.copy(from, to).await?;
            // What was copied is what is removed, or nothing is.
            let is_left = matches!(root.head(from).await, Ok(now) if is_same(file, &now));
            root.delete(if is_left { from } else { to }).await?;
            Ok(is_left)
        };
        match moved.await {
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            moved => moved.map_err(|error| {
                self.placed(Error::from(error).context(format!("moving {from} to {to}")))
            }),
        }
    }
}

/// Whether a file is what it was.
fn is_same(before: &ObjectMeta, now: &ObjectMeta) -> bool {
    match (&before.e_tag, &now.e_tag) {
        (Some(before), Some(now)) => before == now,
        _ => (before.size, before.last_modified) == (now.size, now.last_modified),
    }
}

/// Where a version can be made from without its own checkpoint.
fn others(listing: &LogListing, version: i64) -> Vec<Origin> {
    let mut origins = listing.origins(version);
    origins.retain(|origin| *origin != Origin::Checkpoint(version));
    origins
}

/// What is wrong with a file by what came of reading it; what says nothing about the file is an error.
fn problem_of<T>(outcome: Result<T>) -> Result<Option<String>> {
    match outcome {
        Ok(_) => Ok(None),
        Err(error) => match error.kind() {
            ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::IdentityChanged => {
                Ok(Some(error.to_string()))
            }
            ErrorKind::NotFound => Ok(Some("it is missing".to_owned())),
            _ => Err(error),
        },
    }
}
