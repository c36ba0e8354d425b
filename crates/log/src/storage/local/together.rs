//! A commit's files made durable together.
//!
//! Before a commit gets its name, its data, the name of that in its folder and the commit's own bytes have to be durable, and
//! after that its name. One after the other these are four waits for the disk. The first three need no order among each
//! other: asked for at once they share a write of the file system's journal, and two waits are left.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use object_store::path::Path;
use object_store::{Error, PutMode, PutPayload, Result};
use parking_lot::Mutex;

use super::rounds::{Part, at_once};
use super::{
    Durability, Folders, LocalStore, disk, failed, folder_of, not_put, open_new, put_staged,
};

/// A data file that nothing refers to yet, and that a commit is to make durable.
#[derive(Debug)]
pub(crate) struct Unsynced {
    path: PathBuf,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
enum Progress {
    /// For the commit to be written, or for whoever wants to read it.
    Waiting(PutPayload),
    /// It stays open: what goes wrong with its bytes meanwhile is told to those who had it open then.
    Written(File),
    Durable,
    /// What was lost by a sync that failed is not told by the next one.
    Lost,
}

/// Why a file was not published.
#[derive(Debug)]
pub(crate) enum Unpublished {
    /// A file that belongs to it could not be made durable: nothing was published, and it must not be tried again.
    Beside(Error),
    /// Its own.
    Entry(Error),
}

impl From<Unpublished> for Error {
    fn from(unpublished: Unpublished) -> Self {
        match unpublished {
            Unpublished::Beside(error) | Unpublished::Entry(error) => error,
        }
    }
}

/// Why files were not made durable.
pub(super) enum Failed {
    Beside(Error),
    Own(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Own(error)
    }
}

impl Unsynced {
    /// Writes a file under a name that is free.
    pub(super) fn write(target: &FsPath, payload: &PutPayload, folders: &Folders) -> Result<Self> {
        Ok(Self::of(target, write_new(target, payload, folders)?))
    }

    pub(super) fn of(path: &FsPath, file: File) -> Self {
        Self { path: path.to_owned(), progress: Mutex::new(Progress::Written(file)) }
    }

    /// A file that is written when it is to become durable.
    pub(super) fn later(target: PathBuf, payload: PutPayload) -> Self {
        Self { path: target, progress: Mutex::new(Progress::Waiting(payload)) }
    }

    /// Writes the file if that is still to be done.
    pub(super) fn ensure_written(&self, folders: &Folders) -> Result<()> {
        let mut progress = self.progress.lock();
        if let Progress::Waiting(payload) = &*progress {
            let written = write_new(&self.path, payload, folders);
            // What could not be written may be tried again.
            *progress = Progress::Written(written?);
        }
        Ok(())
    }

    /// Makes the file and its name durable.
    pub(super) fn sync(self: &Arc<Self>, folders: &Folders) -> Result<()> {
        if folders.durability == Durability::Os {
            return Ok(());
        }
        let synced = at_once(|| self.sync_bytes(), vec![self.name_part(folders)]);
        synced.map_err(|error| match error {
            Failed::Beside(error) => error,
            Failed::Own(source) => failed(&self.path, source),
        })
    }

    fn name_part(self: &Arc<Self>, folders: &Folders) -> Part {
        let (unsynced, folders) = (self.clone(), folders.clone());
        Box::new(move || folders.sync_entry(&unsynced.path).map_err(Failed::Beside))
    }

    fn bytes_part(self: &Arc<Self>) -> Part {
        let unsynced = self.clone();
        Box::new(move || unsynced.sync_bytes())
    }

    fn sync_bytes(&self) -> Result<(), Failed> {
        let mut progress = self.progress.lock();
        let synced = match &*progress {
            Progress::Durable => return Ok(()),
            Progress::Written(file) => disk::sync(&self.path, file),
            Progress::Waiting(_) => Err(io::Error::other("it was to be made durable unwritten")),
            Progress::Lost => Err(io::Error::other("it was lost when it was to be made durable")),
        };
        *progress = if synced.is_ok() { Progress::Durable } else { Progress::Lost };
        synced.map_err(|source| {
            remove_torn(&self.path);
            Failed::Beside(failed(&self.path, source))
        })
    }
}

/// Writes a file under a name that is free; what is torn is removed.
fn write_new(target: &FsPath, payload: &PutPayload, folders: &Folders) -> Result<File> {
    let mut file =
        open_new(target, folders.durability).map_err(|source| not_put(target, source))?;
    if let Err(source) = disk::write(target, &mut file, payload) {
        drop(file);
        remove_torn(target);
        return Err(failed(target, source));
    }
    Ok(file)
}

fn remove_torn(path: &FsPath) {
    if let Err(error) = disk::remove(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "a torn file could not be removed");
    }
}

/// Makes a staged file durable, and at the same time those that belong to it, with their names.
pub(super) fn sync(
    (path, file): (&FsPath, &File),
    beside: &[Arc<Unsynced>],
    folders: &Folders,
) -> Result<(), Failed> {
    if folders.durability == Durability::Os {
        return Ok(());
    }
    let mut named = BTreeSet::new();
    let mut parts = Vec::with_capacity(2 * beside.len());
    for unsynced in beside {
        parts.push(unsynced.bytes_part());
        if named.insert(folder_of(&unsynced.path)) {
            parts.push(unsynced.name_part(folders));
        }
    }
    at_once(|| Ok(disk::sync(path, file)?), parts)
}

/// A table in a folder of this machine, whose data files and commit become durable together.
#[derive(Debug)]
pub(crate) struct LocalTable {
    store: Arc<LocalStore>,
    table: Path,
}

impl LocalTable {
    pub(in super::super) fn new(store: Arc<LocalStore>, table: &Path) -> Self {
        Self { store, table: table.clone() }
    }

    fn file(&self, path: &Path) -> Result<PathBuf> {
        let location: Path = self.table.parts().chain(path.parts()).collect();
        self.store.inner.path_to_filesystem(&location)
    }

    /// Writes a data file that nothing refers to yet, and leaves it to [`Self::commit`] to make it durable.
    pub(crate) async fn write(&self, path: &Path, bytes: PutPayload) -> Result<Arc<Unsynced>> {
        let (target, folders) = (self.file(path)?, self.store.folders.clone());
        let write = move || Unsynced::write(&target, &bytes, &folders).map(Arc::new);
        tokio::task::spawn_blocking(write).await.map_err(|source| Error::JoinError { source })?
    }

    /// The same for a file that is written with the commit, or before by [`Self::ensure_written`].
    pub(crate) fn write_later(&self, path: &Path, bytes: PutPayload) -> Result<Arc<Unsynced>> {
        Ok(Arc::new(Unsynced::later(self.file(path)?, bytes)))
    }

    /// Writes what was to be written later, for who wants to read it.
    pub(crate) async fn ensure_written(&self, files: Vec<Arc<Unsynced>>) -> Result<()> {
        let folders = self.store.folders.clone();
        let write = move || files.iter().try_for_each(|file| file.ensure_written(&folders));
        tokio::task::spawn_blocking(write).await.map_err(|source| Error::JoinError { source })?
    }

    /// Creates a commit once the files that belong to it are durable, which it sees to.
    pub(crate) async fn commit(
        &self,
        path: &Path,
        bytes: PutPayload,
        files: Vec<Arc<Unsynced>>,
    ) -> Result<(), Unpublished> {
        let target = self.file(path).map_err(Unpublished::Entry)?;
        let folders = self.store.folders.clone();
        let create = move || put_staged(&target, &bytes, &PutMode::Create, (&folders, &files));
        let created = tokio::task::spawn_blocking(create).await;
        created.unwrap_or_else(|source| Err(Unpublished::Entry(Error::JoinError { source })))
    }
}
