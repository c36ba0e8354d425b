//! A store as it was when one state's log ended with an earlier commit: to read what lies before a hole.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Hides what one Delta log tells of versions after a last one, and takes no writes.
#[derive(Debug)]
pub(super) struct LogView {
    inner: Arc<dyn ObjectStore>,
    /// The log's folder, with a slash at its end.
    folder: String,
    last: i64,
}

impl LogView {
    pub(super) fn new(inner: Arc<dyn ObjectStore>, table: &Path, last: i64) -> Self {
        Self { inner, folder: format!("{table}/_delta_log/"), last }
    }

    fn is_hidden(&self, location: &Path) -> bool {
        let Some(name) = location.as_ref().strip_prefix(&self.folder) else { return false };
        match name.get(..20).and_then(|digits| digits.parse::<i64>().ok()) {
            Some(version) => version > self.last,
            // A hint of where to begin may point at what is hidden.
            None => name == "_last_checkpoint",
        }
    }

    fn check(&self, location: &Path) -> Result<()> {
        if !self.is_hidden(location) {
            return Ok(());
        }
        let source = format!("hidden: it is not as of version {}", self.last);
        Err(Error::NotFound { path: location.to_string(), source: source.into() })
    }

    fn refusal(&self, location: &Path) -> Error {
        let source = format!("the store is read as of version {} of {}", self.last, self.folder);
        Error::PermissionDenied { path: location.to_string(), source: source.into() }
    }

    fn visible(
        &self,
        listing: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let view =
            Self { inner: Arc::clone(&self.inner), folder: self.folder.clone(), last: self.last };
        let is_visible = move |entry: &Result<ObjectMeta>| {
            let hidden = entry.as_ref().is_ok_and(|entry| view.is_hidden(&entry.location));
            std::future::ready(!hidden)
        };
        listing.filter(is_visible).boxed()
    }
}

impl fmt::Display for LogView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as of version {} of {}", self.inner, self.last, self.folder)
    }
}

#[async_trait]
impl ObjectStore for LogView {
    async fn put_opts(&self, location: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(self.refusal(location))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(self.refusal(location))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check(location)?;
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.check(location)?;
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::iter([Err(self.refusal(&Path::default()))]).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.visible(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.visible(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listing = self.inner.list_with_delimiter(prefix).await?;
        listing.objects.retain(|entry| !self.is_hidden(&entry.location));
        Ok(listing)
    }

    async fn copy_opts(&self, _: &Path, to: &Path, _: CopyOptions) -> Result<()> {
        Err(self.refusal(to))
    }
}
