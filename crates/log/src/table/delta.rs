//! The one place of this crate that names `deltalake` types: commits as Delta writes them (`actions`), loading a table whose
//! log has checkpoints, and writing checkpoints.

mod actions;
mod found;
mod read;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use deltalake_core::kernel::EagerSnapshot;
use deltalake_core::logstore::{LogStoreRef, StorageConfig, default_logstore};
use deltalake_core::{DeltaTable, DeltaTableError};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt};
use serde_json::Value;

pub(super) use self::actions::{decode, encode};
use self::actions::{deletion_vector, from_add, from_metadata, from_protocol};
pub(super) use self::found::{founding_checkpoint, tell_the_same};
use super::model::{FileAdd, Protocol, TableMetadata};
use super::probe::CommitProbe;
use crate::checksum::{checkpoint_note, is_noted};
use crate::error::{Error, ErrorKind, Result};

/// The runtime of `deltalake`'s own machinery, which blocks inside async functions and needs several threads.
static RUNTIME: LazyLock<std::io::Result<tokio::runtime::Runtime>> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("alluvium-delta")
        .enable_all()
        .build()
});

async fn on_delta_runtime<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: std::future::Future<Output = Result<T>> + Send + 'static,
{
    let runtime = RUNTIME.as_ref().map_err(|error| {
        Error::internal(format!("the runtime for Delta checkpoints could not start: {error}"))
    })?;
    runtime
        .spawn(work)
        .await
        .map_err(|error| Error::internal("a Delta task was aborted").with_source(error))?
}

fn delta_error(error: DeltaTableError, what: &str) -> Error {
    let kind = if is_of_storage(&error) { ErrorKind::Storage } else { ErrorKind::Corrupt };
    Error::new(kind, what.to_owned()).with_source(error)
}

/// Whether a store didn't answer as it should, which says nothing of what lies in it. That a file is not there is of the table.
fn is_of_storage(error: &DeltaTableError) -> bool {
    match error {
        DeltaTableError::ObjectStore { source } => {
            !matches!(source, object_store::Error::NotFound { .. })
        }
        // The kernel keeps the store's error to itself, and is a crate that can't be named here: its text tells.
        DeltaTableError::KernelError(error) => {
            error.to_string().contains("Error interacting with object store")
        }
        _ => false,
    }
}

/// A table's files, schema and protocol, as a checkpoint and the commits after it say.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) version: i64,
    pub(super) metadata: TableMetadata,
    pub(super) protocol: Protocol,
    pub(super) files: Vec<FileAdd>,
    pub(super) transactions: Vec<(String, i64)>,
    /// Whether these are all that there are.
    pub(super) has_all_transactions: bool,
}

/// A table as `deltalake` sees it.
#[derive(Debug, Clone)]
pub(super) struct DeltaAccess {
    root: Arc<dyn ObjectStore>,
    table: Path,
    probe: Option<Arc<CommitProbe>>,
}

impl DeltaAccess {
    pub(super) fn new(
        root: Arc<dyn ObjectStore>,
        table: Path,
        probe: Option<Arc<CommitProbe>>,
    ) -> Self {
        Self { root, table, probe }
    }

    fn log_store(&self) -> Result<LogStoreRef> {
        // The scheme is our own, so that paths are taken as they are and never as places of the local disk.
        let url = url::Url::parse(&format!("alluvium:///{}/", self.table))
            .map_err(|error| Error::internal("a table's URL").with_source(error))?;
        let prefixed: Arc<dyn ObjectStore> =
            Arc::new(PrefixStore::new(self.root.clone(), self.table.clone()));
        Ok(default_logstore(prefixed, self.root.clone(), &url, &StorageConfig::default()))
    }

    fn log_file(&self, name: &str) -> Path {
        Path::from(format!("{}/_delta_log/{name}", self.table))
    }

    /// A file of the log folder; `None` when it isn't there.
    async fn read_log_file(&self, name: &str) -> Result<Option<Bytes>> {
        match self.root.get(&self.log_file(name)).await {
            Ok(found) => Ok(Some(found.bytes().await?)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The checkpoint of a version, checked by what is noted beside it; `None` where there is none of one file.
    pub(super) async fn read_checked(&self, version: i64) -> Result<Option<Bytes>> {
        let names = (checkpoint_name(version), note_name(version));
        for attempt in 1.. {
            let (bytes, note) =
                futures::try_join!(self.read_log_file(&names.0), self.read_log_file(&names.1))?;
            let (Some(bytes), Some(note)) = (&bytes, note) else { return Ok(bytes) };
            match is_noted(version, &note, bytes) {
                Some(true) => {}
                // An erase may be writing both over; what is damaged stays so.
                Some(false) if attempt < CHECK_ATTEMPTS => {
                    tokio::time::sleep(CHECK_WAIT * attempt).await;
                    continue;
                }
                Some(false) => return Err(damaged_checkpoint(version)),
                None => {
                    tracing::warn!(table = %self.table, version, "the checksum of a checkpoint is damaged, so it is not checked");
                }
            }
            return Ok(Some(bytes.clone()));
        }
        Err(damaged_checkpoint(version))
    }

    /// Loads the version of a checkpoint by a single pass over its file; `None` where that is of another kind or can't be read so.
    ///
    /// # Errors
    /// The file is not the one that was written.
    pub(super) async fn load_checkpoint(&self, version: i64) -> Result<Option<Loaded>> {
        let Some(bytes) = self.read_checked(version).await? else { return Ok(None) };
        let reading = tokio::task::spawn_blocking(move || read::read_checkpoint(version, bytes));
        match reading.await {
            Ok(Ok(loaded)) => Ok(loaded),
            Ok(Err(error)) => {
                // `deltalake` tells what is wrong with it, if anything is.
                tracing::debug!(table = %self.table, version, %error, "a checkpoint can't be read in one pass");
                Ok(None)
            }
            Err(error) => Err(damaged_checkpoint(version).with_source(error)),
        }
    }

    /// Puts a checkpoint that is damaged out of the way of whoever reads the log, under a name that nobody looks for, with the hint
    /// that may point to it; gives its new name.
    pub(super) async fn set_checkpoint_aside(&self, version: i64) -> Result<Path> {
        let from = self.log_file(&checkpoint_name(version));
        let to = self.log_file(&format!("{}{DAMAGED_SUFFIX}", checkpoint_name(version)));
        self.root.copy(&from, &to).await?;
        // The hint first: one that points to nothing is worse than none.
        for path in [self.log_file(POINTER), self.log_file(&note_name(version)), from] {
            match self.root.delete(&path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(to)
    }

    /// Whether the checkpoint of a version is the one that was written, as far as can be told.
    async fn is_checkpoint_whole(&self, version: i64) -> Result<bool> {
        match self.read_checked(version).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Loads the newest version, or the one given, with the progress of some applications.
    pub(super) async fn load(&self, version: Option<i64>, app_ids: &[String]) -> Result<Loaded> {
        let (access, app_ids) = (self.clone(), app_ids.to_vec());
        on_delta_runtime(async move { access.load_here(version, app_ids).await }).await
    }

    async fn load_here(&self, version: Option<i64>, app_ids: Vec<String>) -> Result<Loaded> {
        let snapshot = self.snapshot(version).await?;
        let log_store = self.log_store()?;
        let views: Vec<_> = snapshot
            .file_views(log_store.as_ref(), None)
            .try_collect()
            .await
            .map_err(|error| delta_error(error, "the table's files could not be listed"))?;
        // The replacement that the deprecation names is private to `deltalake`.
        #[allow(deprecated)]
        let files = views
            .into_iter()
            .map(|view| {
                if view.deletion_vector_descriptor().is_some() {
                    return Err(deletion_vector(&view.path()));
                }
                Ok(from_add(view.add_action()))
            })
            .collect::<Result<Vec<_>>>()?;
        let mut transactions = Vec::new();
        for app_id in app_ids {
            let last = snapshot.transaction_version(log_store.as_ref(), &app_id).await.map_err(
                |error| delta_error(error, "an application's progress could not be read"),
            )?;
            transactions.extend(last.map(|last| (app_id, last)));
        }
        Ok(Loaded {
            transactions,
            has_all_transactions: false,
            version: version_of(snapshot.version())?,
            metadata: from_metadata(snapshot.metadata())?,
            protocol: from_protocol(snapshot.protocol())?,
            files,
        })
    }

    async fn snapshot(&self, version: Option<i64>) -> Result<EagerSnapshot> {
        let log_store = self.log_store()?;
        let wanted = version
            .map(|v| u64::try_from(v).map_err(|_| Error::invalid(format!("no commit {v}"))))
            .transpose()?;
        EagerSnapshot::try_new(log_store.as_ref(), wanted)
            .await
            .map_err(|error| delta_error(error, "the Delta log could not be read"))
    }

    /// The last number of an application at a version.
    pub(super) async fn transaction(&self, version: i64, app_id: String) -> Result<Option<i64>> {
        let access = self.clone();
        on_delta_runtime(async move {
            let snapshot = access.snapshot(Some(version)).await?;
            let log_store = access.log_store()?;
            snapshot
                .transaction_version(log_store.as_ref(), app_id)
                .await
                .map_err(|error| delta_error(error, "an application's progress could not be read"))
        })
        .await
    }

    /// Writes a checkpoint of a version, and its checksum beside it; `before` is the one that there is, as far as is known.
    pub(super) async fn checkpoint(&self, before: i64, version: i64) -> Result<()> {
        let (mut base, own) = (checkpoint_name(before), checkpoint_name(version));
        let between = self.checkpoints_between(&base, &own).await?;
        for at in between.keys().rev().filter_map(|name| checkpointed_version(name)) {
            if self.is_checkpoint_whole(at).await? {
                break;
            }
            // The new one would be made of what is wrong in it.
            let aside = self.set_checkpoint_aside(at).await?;
            tracing::warn!(table = %self.table, %aside, "a damaged checkpoint is set aside and made anew");
            base.clear();
        }
        self.write_checkpoint_alone(&base, version).await?;
        match self.read_log_file(&own).await? {
            Some(bytes) => self.note_checkpoint(version, &bytes).await,
            None => Ok(()),
        }
    }

    /// Writes a checkpoint, which is made of an earlier one: deltalake reads that in parts, and an erase, or who writes the same one, may
    /// write it over meanwhile.
    /// It is `base`, or one that came after it.
    async fn write_checkpoint_alone(&self, base: &str, version: i64) -> Result<()> {
        let own = checkpoint_name(version);
        for attempt in 1.. {
            let mut before = self.checkpoints_between(base, &own).await?;
            let written = self.write_checkpoint(version).await;
            let mut after = self.checkpoints_between(base, &own).await?;
            if written.is_ok() {
                // This is written by now, by this itself.
                before.remove(&own);
                after.remove(&own);
            }
            if before == after || attempt >= CHECK_ATTEMPTS && written.is_err() {
                return written;
            }
            if attempt >= CHECK_ATTEMPTS {
                break;
            }
            tokio::time::sleep(CHECK_WAIT * attempt).await;
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "checkpoints were written over {CHECK_ATTEMPTS} times while {own} was made of them: run it again when no key is being erased"
            ),
        ))
    }

    /// The checkpoints from one to another, by their names, each with what tells it from another one in its place.
    async fn checkpoints_between(&self, first: &str, last: &str) -> Result<BTreeMap<String, Mark>> {
        let is_wanted = |name: &str| (first..=last).contains(&name);
        let mut found = BTreeMap::new();
        if let Some(names) = self.checkpoint_names().await {
            for name in names.into_iter().filter(|name| is_wanted(name)) {
                if let Some(mark) = self.mark(&name).await? {
                    found.insert(name, mark);
                }
            }
            return Ok(found);
        }
        let folder = Path::from(format!("{}/_delta_log", self.table));
        let mut entries = self.root.list(Some(&folder));
        while let Some(meta) = entries.try_next().await? {
            let name = meta.location.filename().unwrap_or_default();
            if name.ends_with(CHECKPOINT_SUFFIX) && is_wanted(name) {
                found.insert(name.to_owned(), (meta.e_tag, meta.size));
            }
        }
        Ok(found)
    }

    async fn mark(&self, name: &str) -> Result<Option<Mark>> {
        match self.root.head(&self.log_file(name)).await {
            Ok(meta) => Ok(Some((meta.e_tag, meta.size))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What tells the checkpoint of a version from another one in its place; `None` where there is none of one file.
    pub(super) async fn checkpoint_mark(&self, version: i64) -> Result<Option<Mark>> {
        self.mark(&checkpoint_name(version)).await
    }

    /// The names of all checkpoints, where the log's folder is one of this machine: nothing is asked about each file, as a store does
    /// that lists them.
    async fn checkpoint_names(&self) -> Option<Vec<String>> {
        let probe = self.probe.clone()?;
        let list = move || {
            let mut names = Vec::new();
            let note = |name: &str| {
                if name.ends_with(CHECKPOINT_SUFFIX) {
                    names.push(name.to_owned());
                }
            };
            probe.each_name(note).map(|()| names)
        };
        tokio::task::spawn_blocking(list).await.ok()?.ok()
    }

    /// Writes the checksum beside a checkpoint.
    pub(super) async fn note_checkpoint(&self, version: i64, checkpoint: &Bytes) -> Result<()> {
        let note = note_name(version);
        let text = checkpoint_note(version, checkpoint);
        self.root.put(&self.log_file(&note), text.into()).await?;
        // An erase may write the checkpoint over at the same time: better no checksum than one of another text.
        let name = checkpoint_name(version);
        let (bytes, text) =
            futures::try_join!(self.read_log_file(&name), self.read_log_file(&note))?;
        match bytes.zip(text) {
            Some((bytes, text)) if is_noted(version, &text, &bytes) == Some(false) => {
                self.forget_note(version).await
            }
            _ => Ok(()),
        }
    }

    /// Removes the checksum beside a checkpoint.
    pub(super) async fn forget_note(&self, version: i64) -> Result<()> {
        match self.root.delete(&self.log_file(&note_name(version))).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn write_checkpoint(&self, version: i64) -> Result<()> {
        match self.write_checkpoint_after_hint(version).await {
            Err(error) if self.has_stale_hint().await? => {
                tracing::warn!(table = %self.table, %error, "the hint of the newest checkpoint names none that is there; it is removed");
                match self.root.delete(&self.log_file(POINTER)).await {
                    Err(object_store::Error::NotFound { .. }) | Ok(()) => {}
                    Err(error) => return Err(error.into()),
                }
                self.write_checkpoint_after_hint(version).await
            }
            written => written,
        }
    }

    /// Whether there is a hint, and it can't be read or names a checkpoint of one file that is gone.
    async fn has_stale_hint(&self) -> Result<bool> {
        let Some(hint) = self.read_log_file(POINTER).await? else { return Ok(false) };
        let hint: Option<Value> = serde_json::from_slice(&hint).ok();
        let Some(version) = hint.as_ref().and_then(|hint| hint.get("version")?.as_i64()) else {
            return Ok(true);
        };
        let has_parts = hint.is_some_and(|hint| hint.get("parts").is_some_and(|of| !of.is_null()));
        match self.root.head(&self.log_file(&checkpoint_name(version))).await {
            Ok(_) => Ok(false),
            Err(object_store::Error::NotFound { .. }) => Ok(!has_parts),
            Err(error) => Err(error.into()),
        }
    }

    /// deltalake begins with the hint, and fails where that leads to nothing.
    async fn write_checkpoint_after_hint(&self, version: i64) -> Result<()> {
        let access = self.clone();
        on_delta_runtime(async move {
            let mut table = DeltaTable::new(access.log_store()?);
            let wanted =
                u64::try_from(version).map_err(|_| Error::internal("a negative version"))?;
            let failed = |error| delta_error(error, "a checkpoint could not be written");
            table.load_version(wanted).await.map_err(failed)?;
            deltalake_core::checkpoints::create_checkpoint(&table, None).await.map_err(failed)
        })
        .await
    }
}

/// What the names of checkpoints of one file end with.
const CHECKPOINT_SUFFIX: &str = ".checkpoint.parquet";
/// The tag and the size of a file.
pub(super) type Mark = (Option<String>, u64);

/// How often a checkpoint is read that doesn't fit its checksum, and the wait before the second time.
const CHECK_ATTEMPTS: u32 = 4;
const CHECK_WAIT: Duration = Duration::from_millis(10);
/// What is added to the name of a checkpoint that is set aside.
pub(super) const DAMAGED_SUFFIX: &str = ".damaged";
/// The hint where to begin reading.
pub(super) const POINTER: &str = "_last_checkpoint";

fn checkpoint_name(version: i64) -> String {
    format!("{version:020}{CHECKPOINT_SUFFIX}")
}

/// The version of which a file of the log folder is the checkpoint, wholly.
pub(super) fn checkpointed_version(name: &str) -> Option<i64> {
    version_in(name.strip_suffix(CHECKPOINT_SUFFIX)?)
}

/// The version that a name consists of.
pub(super) fn version_in(number: &str) -> Option<i64> {
    let is_number = number.len() == 20 && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| number.parse().ok()).flatten()
}

/// The file that tells the checksum of a checkpoint.
pub(super) fn note_name(version: i64) -> String {
    format!("{version:020}.alluvium.json")
}

fn damaged_checkpoint(version: i64) -> Error {
    Error::corrupt(format!(
        "the checkpoint {} is damaged: it is not the one that was written; restore it from a copy, or run alluvium repair",
        checkpoint_name(version)
    ))
}

fn version_of(version: u64) -> Result<i64> {
    i64::try_from(version).map_err(|_| Error::corrupt("a Delta version beyond 2^63"))
}

/// The version that a table's hint of its newest checkpoint names, if it is one of a single file.
pub(super) fn hinted_version(hint: &Bytes) -> Option<i64> {
    let hint: Value = serde_json::from_slice(hint).ok()?;
    match hint.get("parts").is_none_or(Value::is_null) {
        true => hint.get("version")?.as_i64(),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_fails_is_no_damage_and_a_file_that_is_gone_is() {
        let failed = || object_store::Error::Generic { store: "test", source: "503".into() };
        let gone = object_store::Error::NotFound { path: "0.json".into(), source: "404".into() };
        let kind = |error| delta_error(error, "read").kind();
        assert_eq!(kind(DeltaTableError::ObjectStore { source: failed() }), ErrorKind::Storage);
        assert_eq!(kind(DeltaTableError::ObjectStore { source: gone }), ErrorKind::Corrupt);
        assert_eq!(kind(DeltaTableError::KernelError(failed().into())), ErrorKind::Storage);
        let gone = object_store::Error::NotFound { path: "0.json".into(), source: "404".into() };
        assert_eq!(kind(DeltaTableError::KernelError(gone.into())), ErrorKind::Corrupt);
    }
}
