//! What an object store must do, and what its network does to it.
//!
//! * **It must refuse to create what exists.** Every commit rests on put-if-absent, and a store that ignores `If-None-Match: *`
//!   would lose commits without a word. So before the first write it is tried: an object is created twice, and a store that
//!   takes the second one is refused. Once for each store and process, and never by one that only reads.
//! * **A lost reply is no failure.** `object_store` sends a request again that was throttled or failed at the server, also when it
//!   took place: then what was created exists already. Whose it is, its bytes tell, since each file that is created has an
//!   id or a name of its own. Commits are left to the commit loop, which knows better.
//! * **Large files go in parts**, so that none has to be sent within the time of one request.
//! * **Nothing secret is told**, whatever a server repeats of what it was sent.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::OnceCell;

use super::options::Secrets;

/// Where put-if-absent is tried, below the root of the store; no state can have this name.
const PROBE_FOLDER: &str = "_alluvium/probe";
/// How often a file is sent whose fate isn't known. Each try has retries of its own below.
const CREATE_ATTEMPTS: u32 = 4;
/// Parts of one file that are on their way together.
const PARTS_IN_FLIGHT: usize = 4;
const FIRST_WAIT_MS: u64 = 100;

/// The stores that this process has tried.
static PROVED: LazyLock<Mutex<BTreeSet<String>>> = LazyLock::new(Mutex::default);

/// What is known of a store.
pub(super) struct Guard {
    /// How it is called in messages.
    pub(super) label: String,
    /// The same for all stores that keep put-if-absent alike; `None` for one that is tried by itself.
    pub(super) shared_as: Option<String>,
    pub(super) secrets: Secrets,
    /// Data files beyond twice this are sent in parts of it.
    pub(super) part_bytes: usize,
    /// What to look at when it can't be reached.
    pub(super) remedy: &'static str,
}

/// An object store that is made sure of.
pub(crate) struct GuardedStore {
    inner: Arc<dyn ObjectStore>,
    guard: Arc<Guard>,
    proved: OnceCell<()>,
}

impl fmt::Debug for GuardedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What it is made of holds credentials.
        f.debug_struct("GuardedStore").field("label", &self.guard.label).finish_non_exhaustive()
    }
}

impl fmt::Display for GuardedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.guard.label)
    }
}

impl GuardedStore {
    pub(super) fn new(inner: Arc<dyn ObjectStore>, guard: Guard) -> Self {
        Self { inner, guard: Arc::new(guard), proved: OnceCell::new() }
    }

    /// Makes sure, once, that the store refuses to create what exists.
    ///
    /// # Errors
    /// It does not ([`Error::NotSupported`]), or it can't be reached: nothing was written then.
    pub(crate) async fn prove(&self) -> Result<()> {
        let prove = || async {
            let shared_as = self.guard.shared_as.as_ref();
            if shared_as.is_some_and(|name| PROVED.lock().contains(name)) {
                return Ok(());
            }
            self.probe().await.map_err(|error| self.guard.clean(error))?;
            PROVED.lock().extend(shared_as.cloned());
            Ok(())
        };
        self.proved.get_or_try_init(prove).await.copied()
    }

    async fn probe(&self) -> Result<()> {
        let path = Path::from(format!("{PROBE_FOLDER}/{:032x}", rand::random::<u128>()));
        let create = |text: &'static str| {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            self.inner.put_opts(&path, text.into(), options)
        };
        match create("put-if-absent is tried here").await {
            // Its reply was lost, and it was sent again.
            Ok(_) | Err(Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(error),
        }
        let second = create("this must be refused").await;
        if let Err(error) = self.inner.delete(&path).await {
            tracing::warn!(store = %self, %path, error = %self.guard.clean(error), "the object that put-if-absent was tried with stays");
        }
        match second {
            Err(Error::AlreadyExists { .. }) => Ok(()),
            Ok(_) | Err(Error::NotSupported { .. } | Error::NotImplemented { .. }) => {
                let source = format!(
                    "{self} doesn't keep put-if-absent: it took a second object under one name in spite of If-None-Match: *, and would lose commits; use a store that supports conditional writes, and no proxy that drops the header"
                );
                Err(Error::NotSupported { source: source.into() })
            }
            Err(error) => Err(error),
        }
    }

    /// Creates a file that nobody else creates with the same bytes.
    async fn create(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let is_large = payload.content_length() > self.guard.part_bytes.saturating_mul(2);
        let mut attempt = 1;
        loop {
            let sent = match is_large && location.as_ref().ends_with(".parquet") {
                true => self.put_in_parts(location, payload.clone()).await,
                false => self.inner.put_opts(location, payload.clone(), options.clone()).await,
            };
            let error = match sent {
                Ok(result) => return Ok(result),
                Err(error @ Error::AlreadyExists { .. }) => {
                    match self.is_there(location, &payload).await {
                        Ok(Some(true)) => return Ok(PutResult { e_tag: None, version: None }),
                        Ok(Some(false)) => return Err(error),
                        // It was removed meanwhile.
                        Ok(None) => error,
                        Err(unseen) => unseen,
                    }
                }
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => error,
            };
            if attempt == CREATE_ATTEMPTS {
                return Err(error);
            }
            tracing::warn!(store = %self, path = %location, attempt, error = %self.guard.describe(&error), "whether a file was written is not known; it is sent again");
            wait(attempt).await;
            attempt += 1;
        }
    }

    /// Whether these very bytes lie under a name; `None` when nothing does.
    async fn is_there(&self, location: &Path, payload: &PutPayload) -> Result<Option<bool>> {
        let found = match self.inner.get(location).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if found.meta.size != payload.content_length() as u64 {
            return Ok(Some(false));
        }
        let (found, sent) = (found.bytes().await?, Bytes::from(payload.clone()));
        Ok(Some(found == sent))
    }

    async fn put_in_parts(&self, location: &Path, payload: PutPayload) -> Result<PutResult> {
        let mut upload = self.inner.put_multipart(location).await?;
        let mut rest = Bytes::from(payload);
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let part = rest.split_to(self.guard.part_bytes.min(rest.len()));
            parts.push(upload.put_part(part.into()));
        }
        let sent: Result<Vec<()>> =
            stream::iter(parts).buffer_unordered(PARTS_IN_FLIGHT).try_collect().await;
        let done = match sent {
            Ok(_) => upload.complete().await,
            Err(error) => Err(error),
        };
        if done.is_err()
            && let Err(error) = upload.abort().await
        {
            tracing::warn!(store = %self, path = %location, error = %self.guard.describe(&error), "parts of a file stay with the store: let it remove parts of uploads that are not completed");
        }
        done
    }
}

impl Guard {
    /// An error as it may be told.
    fn clean(&self, error: Error) -> Error {
        let shown = format!("{error} {error:?}");
        let asks_machine = ["169.254.169.254", "169.254.170.2", "metadata.google"]
            .iter()
            .any(|a| shown.contains(a));
        // The error of a listing says so in its text alone.
        let is_denied =
            ["401 Unauthorized", "403 Forbidden"].iter().any(|status| shown.contains(status))
                || matches!(error, Error::Unauthenticated { .. } | Error::PermissionDenied { .. });
        if !self.secrets.are_in(&shown) && !asks_machine && !is_denied {
            return error;
        }
        let mut text = self.describe(&error);
        if asks_machine || is_denied {
            text = format!("{text}; {}", self.remedy);
        }
        let source = text.into();
        match error {
            Error::NotFound { path, .. } => Error::NotFound { path, source },
            Error::AlreadyExists { path, .. } => Error::AlreadyExists { path, source },
            Error::Precondition { path, .. } => Error::Precondition { path, source },
            Error::NotModified { path, .. } => Error::NotModified { path, source },
            Error::PermissionDenied { path, .. } => Error::PermissionDenied { path, source },
            Error::Unauthenticated { path, .. } => Error::Unauthenticated { path, source },
            Error::NotSupported { .. } => Error::NotSupported { source },
            _ => Error::Generic { store: "remote", source },
        }
    }

    fn describe(&self, error: &Error) -> String {
        self.secrets.strike(&error.to_string())
    }
}

/// Whether a store has decided, and nothing was written.
fn is_final(error: &Error) -> bool {
    matches!(
        error,
        Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::InvalidPath { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::NotFound { .. }
    )
}

/// Commits are judged by the commit loop: under one number there may be another one's.
fn is_commit(location: &Path) -> bool {
    let is_in_log = location.parts().any(|part| part.as_ref() == "_delta_log");
    is_in_log && location.as_ref().ends_with(".json")
}

/// Waits, longer each time, by a random share so that clients part.
async fn wait(attempt: u32) {
    let ceiling = FIRST_WAIT_MS << attempt.min(6);
    let wait_ms = rand::rng().random_range(ceiling / 2..=ceiling);
    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
}

#[async_trait]
impl ObjectStore for GuardedStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.prove().await?;
        let put = match options.mode {
            PutMode::Create if !is_commit(location) => {
                self.create(location, payload, options).await
            }
            _ => self.inner.put_opts(location, payload, options).await,
        };
        put.map_err(|error| self.guard.clean(error))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.prove().await?;
        let inner = self.inner.put_multipart_opts(location, options).await;
        inner.map_err(|error| self.guard.clean(error))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let found = self.inner.get_opts(location, options).await;
        let mut found = found.map_err(|error| self.guard.clean(error))?;
        if let GetResultPayload::Stream(bytes) = found.payload {
            let guard = self.guard.clone();
            let bytes = bytes.map_err(move |error| guard.clean(error)).boxed();
            found.payload = GetResultPayload::Stream(bytes);
        }
        Ok(found)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let found = self.inner.get_ranges(location, ranges).await;
        found.map_err(|error| self.guard.clean(error))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.cleaned(self.inner.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.cleaned(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.cleaned(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let listed = self.inner.list_with_delimiter(prefix).await;
        listed.map_err(|error| self.guard.clean(error))
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.prove().await?;
        let copied = self.inner.copy_opts(from, to, options).await;
        copied.map_err(|error| self.guard.clean(error))
    }
}

impl GuardedStore {
    fn cleaned<T: Send + 'static>(
        &self,
        inner: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        let guard = self.guard.clone();
        inner.map_err(move |error| guard.clean(error)).boxed()
    }
}

/// A guard for a store that its owner has made: nothing is known of its secrets.
pub(super) fn guard_for(label: &str) -> Guard {
    Guard {
        label: label.to_owned(),
        shared_as: None,
        secrets: Secrets::default(),
        part_bytes: usize::try_from(super::options::RemoteSettings::default().part_bytes)
            .unwrap_or(usize::MAX),
        remedy: "look at what the store was made with",
    }
}
