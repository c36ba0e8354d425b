//! A local folder as an object store whose acknowledged writes survive a power loss.
//!
//! `object_store`'s own local store never syncs. This one writes a file, syncs it, publishes it under its name, and
//! syncs the folders that gained an entry, in this order; only then is the write acknowledged. Folders above that this
//! process has not synced yet are synced too: whoever made them may not have come to it. Reading and listing are
//! `object_store`'s, with listings in order of names, as Delta expects of a store.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use together::Failed;
pub(crate) use together::{LocalTable, Unpublished, Unsynced};

use super::disk;
use super::warm::read_cached;

/// What is no longer than this is read and closed when it is asked for.
const SMALL_FILE_BYTES: u64 = 256 * 1024;
/// Files that are opened at once, of those that are read so.
const MAX_OPEN_FILES: usize = 32;

/// What an acknowledged write on a local disk means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The bytes and the folder entries were synced: they survive a power loss.
    #[default]
    Fsync,
    /// The bytes are with the operating system: they survive a crash of the process.
    Os,
}

/// A folder as an object store.
#[derive(Debug)]
pub(crate) struct LocalStore {
    inner: LocalFileSystem,
    root: PathBuf,
    folders: Folders,
    /// Files that are being read at once.
    opened: Semaphore,
}

/// The folders below a root, and which of them are known to survive a power loss.
#[derive(Debug, Clone)]
struct Folders {
    root: PathBuf,
    durability: Durability,
    synced: Arc<Mutex<HashSet<PathBuf>>>,
}

impl Folders {
    fn new(root: &FsPath, durability: Durability) -> Self {
        Self { root: root.to_owned(), durability, synced: Arc::default() }
    }

    /// Makes the folder of a file that `object_store` is to write, which would not sync it.
    async fn prepare(&self, target: &FsPath) -> Result<()> {
        let (target, durability) = (target.to_owned(), self.durability);
        let make = move || match folder_of(&target) {
            Some(folder) => create_folder(folder, durability).map_err(|e| failed(folder, e)),
            None => Ok(()),
        };
        tokio::task::spawn_blocking(make).await.map_err(|source| Error::JoinError { source })?
    }

    /// Makes the entry of a file durable: that in its folder, and those of the folders above that nobody here has synced.
    fn sync_entry(&self, target: &FsPath) -> Result<()> {
        if self.durability == Durability::Os {
            return Ok(());
        }
        let sync =
            |folder: &FsPath| disk::sync_folder(folder).map_err(|source| failed(folder, source));
        let Some(mut folder) = folder_of(target) else { return Ok(()) };
        sync(folder)?;
        let mut found = Vec::new();
        while folder != self.root && !self.synced.lock().contains(folder) {
            let Some(parent) = folder_of(folder) else { break };
            sync(parent)?;
            found.push(folder.to_owned());
            folder = parent;
        }
        self.synced.lock().extend(found);
        Ok(())
    }
}

impl LocalStore {
    /// The store of an existing folder.
    pub(crate) fn open(root: &FsPath, durability: Durability) -> Result<Self> {
        let inner = LocalFileSystem::new_with_prefix(root)?;
        let root = root.canonicalize().map_err(|source| failed(root, source))?;
        let folders = Folders::new(&root, durability);
        Ok(Self { inner, root, folders, opened: Semaphore::new(MAX_OPEN_FILES) })
    }

    /// The folder.
    pub(super) fn root(&self) -> &FsPath {
        &self.root
    }
}

impl fmt::Display for LocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.root.display())
    }
}

/// Whether the operating system lets this process read at most.
fn is_refusal(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn refused(path: &FsPath, source: &dyn fmt::Display) -> Error {
    let source = format!(
        "{source}; nothing was written: this process may read there at most, run it as a user who may write, or mount the store for writing"
    );
    Error::PermissionDenied { path: path.display().to_string(), source: source.into() }
}

/// An error of `object_store` about what was to be written, told as those of this store are.
fn told(root: &FsPath, error: Error) -> Error {
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        if inner.downcast_ref::<io::Error>().is_some_and(|error| is_refusal(error.kind())) {
            return refused(root, &error);
        }
        cause = inner.source();
    }
    error
}

fn failed(path: &FsPath, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::NotFound => {
            Error::NotFound { path: path.display().to_string(), source: Box::new(source) }
        }
        kind if is_refusal(kind) => refused(path, &source),
        _ => Error::Generic {
            store: "local",
            source: format!("{}: {source}", path.display()).into(),
        },
    }
}

/// The folder that holds a path; of a bare relative name it is the current one, which `parent` gives as an empty path.
fn folder_of(path: &FsPath) -> Option<&FsPath> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(FsPath::new(".")),
        parent => parent,
    }
}

/// Makes the folder and those above it, and syncs every folder that gained one.
fn create_folder(folder: &FsPath, durability: Durability) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut current = folder;
    while !current.exists() {
        missing.push(current);
        match folder_of(current) {
            Some(parent) => current = parent,
            None => break,
        }
    }
    disk::create_folders(folder, &missing)?;
    if durability == Durability::Fsync {
        for created in missing {
            if let Some(parent) = folder_of(created) {
                disk::sync_folder(parent)?;
            }
        }
    }
    Ok(())
}

/// A name beside the target that listings leave out (`object_store` skips names ending in `#<digits>`).
fn staging_path(target: &FsPath) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(format!("#{}", rand::random::<u64>()));
    PathBuf::from(name)
}

fn open_new(path: &FsPath, durability: Durability) -> io::Result<File> {
    match disk::create_new(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(folder) = folder_of(path) {
                create_folder(folder, durability)?;
            }
            disk::create_new(path)
        }
        other => other,
    }
}

/// Writes under a staging name, then publishes at once: whoever sees the name sees the whole content. What belongs to it and is
/// not durable yet is made so before, while the content is.
fn put_staged(
    target: &FsPath,
    payload: &PutPayload,
    mode: &PutMode,
    (folders, beside): (&Folders, &[Arc<Unsynced>]),
) -> Result<(), Unpublished> {
    let staged = staging_path(target);
    let publish = || -> Result<(), Failed> {
        for unsynced in beside {
            unsynced.ensure_written(folders).map_err(Failed::Beside)?;
        }
        let mut file = open_new(&staged, folders.durability)?;
        disk::write(&staged, &mut file, payload)?;
        together::sync((&staged, &file), beside, folders)?;
        drop(file);
        let published = match mode {
            PutMode::Create => disk::link(&staged, target),
            _ => disk::rename(&staged, target),
        };
        Ok(published?)
    };
    let outcome = publish();
    if outcome.is_err() || matches!(mode, PutMode::Create) {
        // The staged name is only a second name by now, or a leftover of a failure; a leftover is
        // invisible to readers, so failing to remove it must not fail the write.
        if let Err(error) = disk::remove(&staged)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %staged.display(), %error, "a staged file could not be removed");
        }
    }
    outcome.map_err(|error| match error {
        Failed::Beside(error) => Unpublished::Beside(error),
        Failed::Own(source) => Unpublished::Entry(not_put(target, source)),
    })?;
    folders.sync_entry(target).map_err(Unpublished::Entry)
}

fn not_put(target: &FsPath, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::AlreadyExists => {
            Error::AlreadyExists { path: target.display().to_string(), source: Box::new(source) }
        }
        _ => failed(target, source),
    }
}

/// Writes straight to a name that nothing refers to yet; a torn file stays unreferenced.
fn put_unreferenced(target: &FsPath, payload: &PutPayload, folders: &Folders) -> Result<()> {
    Arc::new(Unsynced::write(target, payload, folders)?).sync(folders)
}

#[async_trait]
impl ObjectStore for LocalStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if matches!(options.mode, PutMode::Update(_)) {
            return self.inner.put_opts(location, payload, options).await;
        }
        let target = self.inner.path_to_filesystem(location)?;
        let folders = self.folders.clone();
        let in_log = location.parts().any(|part| part.as_ref() == "_delta_log");
        // Whoever lists a folder sees what lies there at once: only data is looked at by those alone who know that it is whole.
        let is_data = !in_log && location.as_ref().ends_with(".parquet");
        let write = move || {
            if is_data && options.mode == PutMode::Create {
                put_unreferenced(&target, &payload, &folders)
            } else {
                put_staged(&target, &payload, &options.mode, (&folders, &[])).map_err(Error::from)
            }
        };
        tokio::task::spawn_blocking(write)
            .await
            .map_err(|source| Error::JoinError { source })??;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let target = self.inner.path_to_filesystem(location)?;
        self.folders.prepare(&target).await?;
        let inner = self.inner.put_multipart_opts(location, options).await;
        let inner = inner.map_err(|error| told(&target, error))?;
        Ok(Box::new(SyncedUpload { inner, target, folders: self.folders.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head {
            return self.inner.get_opts(location, options).await;
        }
        // Whoever asks for hundreds of commits at once holds none of them open. It is never closed.
        let is_open = self.opened.acquire().await.ok();
        let found = self.inner.get_opts(location, options).await?;
        let (meta, range, attributes) =
            (found.meta.clone(), found.range.clone(), found.attributes.clone());
        if range.end - range.start > SMALL_FILE_BYTES {
            return Ok(found);
        }
        let bytes = found.bytes().await?;
        drop(is_open);
        let payload = GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed());
        Ok(GetResult { payload, meta, range, attributes })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if let Some(bytes) = read_cached(&self.inner.path_to_filesystem(location)?, ranges) {
            return Ok(bytes);
        }
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (root, place) = (self.root.clone(), self.root.clone());
        let inside = locations.map(move |location| {
            let location = location?;
            check_inside(&root, &location)?;
            Ok(location)
        });
        let deleted = self.inner.delete_stream(inside.boxed());
        deleted.map_err(move |error| told(&place, error)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        in_order(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        in_order(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let target = self.inner.path_to_filesystem(to)?;
        self.folders.prepare(&target).await?;
        let copied = self.inner.copy_opts(from, to, options).await;
        copied.map_err(|error| told(&target, error))?;
        sync_file(target, self.folders.clone()).await
    }
}

/// Refuses to remove what a link to a folder elsewhere leads to.
fn check_inside(root: &FsPath, location: &Path) -> Result<()> {
    let path = root.join(location.as_ref());
    let Some(folder) = path.parent() else { return Ok(()) };
    match folder.canonicalize() {
        Ok(real) if !real.starts_with(root) => Err(Error::PermissionDenied {
            path: path.display().to_string(),
            source: "a link leads out of the store: nothing is removed behind it; remove the link"
                .into(),
        }),
        // What isn't there can't be removed, which the removal tells.
        _ => Ok(()),
    }
}

/// The same listing in ascending order of names.
fn in_order(
    listing: BoxStream<'static, Result<ObjectMeta>>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    stream::once(async move {
        let mut entries: Vec<ObjectMeta> = listing.try_collect().await?;
        entries.sort_unstable_by(|a, b| a.location.cmp(&b.location));
        Ok::<_, Error>(stream::iter(entries.into_iter().map(Ok)))
    })
    .try_flatten()
    .boxed()
}

/// Makes a file durable that `object_store` has written.
async fn sync_file(target: PathBuf, folders: Folders) -> Result<()> {
    if folders.durability == Durability::Os {
        return Ok(());
    }
    let sync = move || {
        File::open(&target)
            .and_then(|file| disk::sync(&target, &file))
            .map_err(|source| failed(&target, source))?;
        folders.sync_entry(&target)
    };
    tokio::task::spawn_blocking(sync).await.map_err(|source| Error::JoinError { source })?
}

/// A multipart upload that is synced when it completes.
#[derive(Debug)]
struct SyncedUpload {
    inner: Box<dyn MultipartUpload>,
    target: PathBuf,
    folders: Folders,
}

#[async_trait]
impl MultipartUpload for SyncedUpload {
    fn put_part(&mut self, data: PutPayload) -> object_store::UploadPart {
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let result = self.inner.complete().await?;
        sync_file(self.target.clone(), self.folders.clone()).await?;
        Ok(result)
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

/// The store of a folder, as everything above sees it.
pub(crate) fn local_store(root: &FsPath, durability: Durability) -> Result<Arc<LocalStore>> {
    create_folder(root, durability).map_err(|source| failed(root, source))?;
    Ok(Arc::new(LocalStore::open(root, durability)?))
}

mod rounds;
#[cfg(test)]
mod tests;
mod together;
