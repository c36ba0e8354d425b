//! Object stores that count what is asked of them, or lose the reply of a write that took place.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// What a store was asked for.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) gets: AtomicU64,
    pub(crate) commit_gets: AtomicU64,
    pub(crate) data_gets: AtomicU64,
    pub(crate) puts: AtomicU64,
    pub(crate) lists: AtomicU64,
    pub(crate) deletes: AtomicU64,
}

impl Counts {
    /// What was asked for since the last call: gets, gets of commits, gets of data files, puts, lists.
    pub(crate) fn take(&self) -> [u64; 5] {
        [&self.gets, &self.commit_gets, &self.data_gets, &self.puts, &self.lists]
            .map(|count| count.swap(0, Ordering::SeqCst))
    }
}

/// A store in memory with faults that a test turns on.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    inner: InMemory,
    pub(crate) counts: Counts,
    /// Replies of writes of commits (`N.json`) that are still to be lost: the write takes place, the caller sees an error.
    pub(crate) lost_commit_replies: AtomicI64,
    /// Writes of commits that are still to fail without taking place.
    pub(crate) failed_commits: AtomicI64,
    /// The same for data files.
    pub(crate) lost_data_replies: AtomicI64,
    /// Whether every write fails, so that a reader is shown to write nothing.
    pub(crate) read_only: AtomicBool,
}

impl FaultyStore {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: InMemory::new(),
            counts: Counts::default(),
            lost_commit_replies: AtomicI64::new(0),
            failed_commits: AtomicI64::new(0),
            lost_data_replies: AtomicI64::new(0),
            read_only: AtomicBool::new(false),
        })
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store with faults")
    }
}

fn timeout() -> Error {
    Error::Generic { store: "faulty", source: "the reply was lost".into() }
}

fn due(count: &AtomicI64) -> bool {
    count
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| (left > 0).then_some(left - 1))
        .is_ok()
}

fn is_commit(location: &Path) -> bool {
    location.as_ref().contains("_delta_log/") && location.as_ref().ends_with(".json")
}

fn is_data(location: &Path) -> bool {
    !location.as_ref().contains("_delta_log/") && location.as_ref().ends_with(".parquet")
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.counts.puts.fetch_add(1, Ordering::SeqCst);
        if self.read_only.load(Ordering::SeqCst)
            || (is_commit(location) && due(&self.failed_commits))
        {
            return Err(timeout());
        }
        let done = self.inner.put_opts(location, payload, options).await?;
        let lost = (is_commit(location) && due(&self.lost_commit_replies))
            || (is_data(location) && due(&self.lost_data_replies));
        if lost { Err(timeout()) } else { Ok(done) }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.counts.puts.fetch_add(1, Ordering::SeqCst);
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.counts.gets.fetch_add(1, Ordering::SeqCst);
        if is_commit(location) {
            self.counts.commit_gets.fetch_add(1, Ordering::SeqCst);
        }
        if is_data(location) {
            self.counts.data_gets.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.counts.gets.fetch_add(1, Ordering::SeqCst);
        if is_data(location) {
            self.counts.data_gets.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.counts.deletes.fetch_add(1, Ordering::SeqCst);
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counts.lists.fetch_add(1, Ordering::SeqCst);
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counts.lists.fetch_add(1, Ordering::SeqCst);
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.counts.lists.fetch_add(1, Ordering::SeqCst);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
