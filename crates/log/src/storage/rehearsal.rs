//! A store as if what is written to it were written: the writes go to a temporary folder, and the store beneath is only read.
//!
//! Whoever works on it does what he would do, reads what he has written, and tells what would come of it. When the last handle is gone,
//! so is the folder.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path as FsPath;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use parking_lot::RwLock;
use tempfile::TempDir;

/// What was done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Written,
    Removed,
}

/// A store that is only read, and what was done on top of it.
#[derive(Debug, Clone)]
pub(super) struct RehearsedStore(Arc<Rehearsed>);

#[derive(Debug)]
struct Rehearsed {
    inner: Arc<dyn ObjectStore>,
    written: LocalFileSystem,
    changes: RwLock<BTreeMap<Path, Change>>,
    /// Decides who creates a file of several who would.
    creating: tokio::sync::Mutex<()>,
    _folder: TempDir,
}

impl RehearsedStore {
    /// Over a store; what is written lies in a folder of its own below one of this machine.
    pub(super) fn over(inner: Arc<dyn ObjectStore>, spill_dir: &FsPath) -> Result<Self> {
        let failed =
            |source: std::io::Error| Error::Generic { store: "rehearsal", source: source.into() };
        let folder = TempDir::with_prefix_in("alluvium-dry-run-", spill_dir).map_err(failed)?;
        let written = LocalFileSystem::new_with_prefix(folder.path())?;
        let (changes, creating) = Default::default();
        Ok(Self(Arc::new(Rehearsed { inner, written, changes, creating, _folder: folder })))
    }

    fn change(&self, location: &Path) -> Option<Change> {
        self.0.changes.read().get(location).copied()
    }

    fn note(&self, location: &Path, change: Change) {
        self.0.changes.write().insert(location.clone(), change);
    }

    async fn is_there(&self, location: &Path) -> Result<bool> {
        match self.head(location).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Refuses to create what is there.
    async fn check_new(&self, location: &Path) -> Result<()> {
        match self.is_there(location).await? {
            true => Err(Error::AlreadyExists {
                path: location.to_string(),
                source: "it is there already".into(),
            }),
            false => Ok(()),
        }
    }

    async fn remove(&self, location: &Path) -> Result<()> {
        match self.change(location) {
            Some(Change::Removed) => return Err(missing(location)),
            Some(Change::Written) => self.0.written.delete(location).await?,
            None => drop(self.0.inner.head(location).await?),
        }
        self.note(location, Change::Removed);
        Ok(())
    }

    /// What of a listing of the store beneath is as it is there, and what was written, in the order of the paths, which some rely on.
    fn joined(
        &self,
        below: BoxStream<'static, Result<ObjectMeta>>,
        written: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let this = self.clone();
        let joined = async move {
            let mut all: Vec<ObjectMeta> = below.try_collect().await?;
            all.retain(|entry| this.change(&entry.location).is_none());
            let written: Vec<ObjectMeta> = written.try_collect().await?;
            all.extend(written);
            all.sort_unstable_by(|a, b| a.location.cmp(&b.location));
            Ok::<_, Error>(stream::iter(all).map(Ok))
        };
        stream::once(joined).try_flatten().boxed()
    }
}

fn missing(location: &Path) -> Error {
    Error::NotFound { path: location.to_string(), source: "it was removed".into() }
}

impl fmt::Display for RehearsedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, only read", self.0.inner)
    }
}

#[async_trait]
impl ObjectStore for RehearsedStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let _alone = self.0.creating.lock().await;
        match &options.mode {
            PutMode::Create => self.check_new(location).await?,
            PutMode::Overwrite => {}
            PutMode::Update(_) => {
                return Err(Error::NotSupported { source: "an update of a file".into() });
            }
        }
        let done = self.0.written.put(location, payload).await?;
        self.note(location, Change::Written);
        Ok(done)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.0.written.put_multipart_opts(location, options).await?;
        self.note(location, Change::Written);
        Ok(upload)
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        match self.change(location) {
            Some(Change::Written) => self.0.written.get_opts(location, options).await,
            Some(Change::Removed) => Err(missing(location)),
            None => self.0.inner.get_opts(location, options).await,
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .then(move |location| {
                let this = this.clone();
                async move {
                    let location = location?;
                    this.remove(&location).await.map(|()| location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.joined(self.0.inner.list(prefix), self.0.written.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.joined(
            self.0.inner.list_with_offset(prefix, offset),
            self.0.written.list_with_offset(prefix, offset),
        )
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let written = self.0.written.list_with_delimiter(prefix).await?;
        let mut listed = self.0.inner.list_with_delimiter(prefix).await?;
        listed.objects.retain(|entry| self.change(&entry.location).is_none());
        listed.objects.extend(written.objects);
        listed.common_prefixes.extend(written.common_prefixes);
        listed.common_prefixes.sort_unstable();
        listed.common_prefixes.dedup();
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let bytes = self.get(from).await?.bytes().await?;
        let mode = match options.mode {
            CopyMode::Create => PutMode::Create,
            CopyMode::Overwrite => PutMode::Overwrite,
        };
        self.put_opts(to, bytes.into(), mode.into()).await.map(drop)
    }
}
