//! Object stores that count what is asked of them, lose the reply of a write that took place, or whose process dies at a
//! chosen call.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use alluvium::{MaintainStep, ManualClock, RawState, Storage, Store};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::oneshot;

/// What a store was asked for.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) gets: AtomicU64,
    pub(crate) commit_gets: AtomicU64,
    pub(crate) data_gets: AtomicU64,
    pub(crate) puts: AtomicU64,
    pub(crate) lists: AtomicU64,
    pub(crate) deletes: AtomicU64,
    data_bytes_read: AtomicU64,
    data_bytes_written: AtomicU64,
    data_files_read: Mutex<BTreeSet<String>>,
}

/// What was asked for of data files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DataCounts {
    /// The files of which any part was read.
    pub(crate) files_read: BTreeSet<String>,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
}

impl Counts {
    /// What was asked for since the last call: gets, gets of commits, gets of data files, puts, lists.
    pub(crate) fn take(&self) -> [u64; 5] {
        [&self.gets, &self.commit_gets, &self.data_gets, &self.puts, &self.lists]
            .map(|count| count.swap(0, Ordering::SeqCst))
    }

    /// What was asked for of data files since the last call.
    pub(crate) fn take_data(&self) -> DataCounts {
        DataCounts {
            files_read: std::mem::take(&mut *self.data_files_read.lock().unwrap()),
            bytes_read: self.data_bytes_read.swap(0, Ordering::SeqCst),
            bytes_written: self.data_bytes_written.swap(0, Ordering::SeqCst),
        }
    }

    /// A data file was asked for, or a part of it.
    fn data_read(&self, location: &Path, bytes: u64) {
        self.data_bytes_read.fetch_add(bytes, Ordering::SeqCst);
        self.data_files_read.lock().unwrap().insert(location.as_ref().to_owned());
    }
}

/// The death of a process at one of its calls of the store.
#[derive(Debug)]
struct Crash {
    /// Calls that are still to be answered.
    calls_left: AtomicI64,
    /// Whether the call at which it dies takes place nevertheless.
    takes_place: AtomicBool,
    /// Whether only that call fails, and the process lives on.
    is_survived: AtomicBool,
    /// Whether it came to that call.
    is_over: AtomicBool,
    dead: AtomicBool,
}

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    Unanswered,
    Never,
}

impl Crash {
    fn fate(&self) -> Fate {
        if self.dead.load(Ordering::SeqCst) {
            return Fate::Never;
        }
        if self.calls_left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return Fate::Answered;
        }
        if self.is_survived.load(Ordering::SeqCst) {
            self.calls_left.store(i64::MAX, Ordering::SeqCst);
            self.is_over.store(true, Ordering::SeqCst);
            return Fate::Never;
        }
        self.dead.store(true, Ordering::SeqCst);
        if self.takes_place.load(Ordering::SeqCst) { Fate::Unanswered } else { Fate::Never }
    }

    /// Refuses a call that only reads, once it is time.
    fn read(&self) -> Result<()> {
        if self.fate() == Fate::Answered { Ok(()) } else { Err(timeout()) }
    }
}

/// A store in memory with faults that a test turns on.
#[derive(Debug)]
pub(crate) struct FaultyStore {
    inner: Arc<InMemory>,
    crash: Arc<Crash>,
    pub(crate) counts: Counts,
    /// Replies of writes of commits (`N.json`) that are still to be lost: the write takes place, the caller sees an error.
    pub(crate) lost_commit_replies: AtomicI64,
    /// Writes of commits that are still to fail without taking place.
    pub(crate) failed_commits: AtomicI64,
    /// Whether commits are refused, but for those whose replies are still to be lost.
    pub(crate) refuse_commits: AtomicBool,
    /// Replies of writes of data files that are still to be lost.
    pub(crate) lost_data_replies: AtomicI64,
    /// Whether every write fails, so that a reader is shown to write nothing.
    pub(crate) read_only: AtomicBool,
    /// Whether a listing that waits is of before it waited.
    pub(crate) lists_before: AtomicBool,
    held: Mutex<Option<Held>>,
    stopped: Stopped,
    /// A listing of a Delta log that waits when it is made.
    listed: Stopped,
}

/// Calls that are still to be answered before one waits, and that one.
type Stopped = Arc<Mutex<Option<(u64, Held)>>>;

/// Waits if it is the turn of the call that waits.
async fn pass(stopped: Stopped) {
    let held = {
        let mut stopped = stopped.lock().unwrap();
        match stopped.as_mut() {
            Some((0, _)) => stopped.take().map(|(_, held)| held),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        }
    };
    if let Some(held) = held {
        held.reached.send(()).unwrap();
        held.go_on.await.unwrap();
    }
}

/// A write that waits: what tells that it is reached, and what lets it go on.
#[derive(Debug)]
struct Held {
    reached: oneshot::Sender<()>,
    go_on: oneshot::Receiver<()>,
}

impl FaultyStore {
    pub(crate) fn new() -> Arc<Self> {
        Self::over(Arc::new(InMemory::new()))
    }

    /// The same objects as another process sees them: without faults.
    pub(crate) fn reborn(&self) -> Arc<Self> {
        Self::over(self.inner.clone())
    }

    /// A copy of the objects, which goes its own way.
    pub(crate) fn forked(&self) -> Arc<Self> {
        Self::over(Arc::new(self.inner.fork()))
    }

    /// Lets the process die at its n-th call from now (0: the next one); whether that call takes place is told too.
    pub(crate) fn die_at(&self, call: i64, takes_place: bool) {
        self.crash.takes_place.store(takes_place, Ordering::SeqCst);
        self.crash.calls_left.store(call, Ordering::SeqCst);
    }

    /// Lets the n-th call from now fail (0: the next one), and all others be answered.
    pub(crate) fn fail_at(&self, call: i64) {
        self.crash.is_survived.store(true, Ordering::SeqCst);
        self.crash.calls_left.store(call, Ordering::SeqCst);
    }

    /// Whether it came to the call that was to fail.
    pub(crate) fn has_failed(&self) -> bool {
        self.crash.is_over.load(Ordering::SeqCst)
    }

    /// Lets the next write of a data file wait: the first value tells when it is reached, the second one lets it go on.
    pub(crate) fn hold_next_data_file(&self) -> (oneshot::Receiver<()>, oneshot::Sender<()>) {
        let ((reached, is_reached), (let_go, go_on)) = (oneshot::channel(), oneshot::channel());
        *self.held.lock().unwrap() = Some(Held { reached, go_on });
        (is_reached, let_go)
    }

    /// Lets the n-th call from now wait (0: the next one): the first value tells when it is reached, the second one lets it go on.
    pub(crate) fn hold_call(&self, call: u64) -> (oneshot::Receiver<()>, oneshot::Sender<()>) {
        let ((reached, is_reached), (let_go, go_on)) = (oneshot::channel(), oneshot::channel());
        *self.stopped.lock().unwrap() = Some((call, Held { reached, go_on }));
        (is_reached, let_go)
    }

    /// Lets the next listing of a table's Delta log wait once it is made: what comes then is not in it.
    pub(crate) fn hold_listing(&self) -> (oneshot::Receiver<()>, oneshot::Sender<()>) {
        let ((reached, is_reached), (let_go, go_on)) = (oneshot::channel(), oneshot::channel());
        *self.listed.lock().unwrap() = Some((0, Held { reached, go_on }));
        (is_reached, let_go)
    }

    /// Whether the process has died.
    pub(crate) fn is_dead(&self) -> bool {
        self.crash.dead.load(Ordering::SeqCst)
    }

    fn over(inner: Arc<InMemory>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            crash: Arc::new(Crash {
                calls_left: AtomicI64::new(i64::MAX),
                takes_place: AtomicBool::new(false),
                is_survived: AtomicBool::new(false),
                is_over: AtomicBool::new(false),
                dead: AtomicBool::new(false),
            }),
            counts: Counts::default(),
            lost_commit_replies: AtomicI64::new(0),
            failed_commits: AtomicI64::new(0),
            refuse_commits: AtomicBool::new(false),
            lost_data_replies: AtomicI64::new(0),
            read_only: AtomicBool::new(false),
            held: Mutex::new(None),
            lists_before: AtomicBool::new(false),
            stopped: Stopped::default(),
            listed: Stopped::default(),
        })
    }
}

/// A store of states on these objects, by a clock.
pub(crate) async fn open(faulty: &Arc<FaultyStore>, clock: &Arc<ManualClock>) -> Store {
    let storage = Storage::from_object_store(faulty.clone(), "faulty://");
    Store::builder("faulty://").storage(storage).clock(clock.clone()).open().await.unwrap()
}

/// Maintains state `s` on a copy of these objects until the process dies at a call; whether it came to that, and the state as
/// the next process finds it.
pub(crate) async fn maintain_to_death(
    built: &Arc<FaultyStore>,
    clock: &Arc<ManualClock>,
    call: i64,
    takes_place: bool,
) -> (bool, RawState) {
    let faulty = built.forked();
    let state = open(&faulty, clock).await.raw_state("s").await.unwrap();
    faulty.die_at(call, takes_place);
    let outcome = state.maintain(&MaintainStep::ALL, false).await;
    let died = faulty.is_dead();
    assert!(outcome.is_err() || !died, "call {call}: {outcome:?}");
    (died, open(&faulty.reborn(), clock).await.raw_state("s").await.unwrap())
}

/// A store whose archives lie in another one.
pub(crate) async fn open_both(stores: &[Arc<FaultyStore>; 2], clock: &Arc<ManualClock>) -> Store {
    let storage = |store: &Arc<FaultyStore>| Storage::from_object_store(store.clone(), "faulty://");
    let builder = Store::builder("faulty://").storage(storage(&stores[0])).clock(clock.clone());
    builder.archive_storage(storage(&stores[1])).open().await.unwrap()
}

/// A call of one of two stores at which a process dies: which store, which call, and whether that takes place.
pub(crate) type Death = (usize, i64, bool);

/// What was left by a process that died at a call of either store while it worked with state `s`.
pub(crate) struct Left {
    /// Whether it came to that.
    pub(crate) died: bool,
    pub(crate) stores: [Arc<FaultyStore>; 2],
    /// As the next process finds it.
    pub(crate) state: RawState,
}

/// Lets a process work with state `s` on copies of these stores until it dies at a call.
pub(crate) async fn work_to_death<T: fmt::Debug>(
    built: &[Arc<FaultyStore>; 2],
    clock: &Arc<ManualClock>,
    (dying, call, takes_place): Death,
    work: impl AsyncFnOnce(&RawState) -> alluvium::Result<T>,
) -> Left {
    let stores = [built[0].forked(), built[1].forked()];
    let state = open_both(&stores, clock).await.raw_state("s").await.unwrap();
    stores[dying].die_at(call, takes_place);
    let outcome = work(&state).await;
    let died = stores[dying].is_dead();
    assert!(outcome.is_err() || !died, "call {call}: {outcome:?}");
    let stores = [stores[0].reborn(), stores[1].reborn()];
    let state = open_both(&stores, clock).await.raw_state("s").await.unwrap();
    Left { died, stores, state }
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
        if is_data(location) {
            let bytes = payload.content_length() as u64;
            self.counts.data_bytes_written.fetch_add(bytes, Ordering::SeqCst);
        }
        pass(self.stopped.clone()).await;
        let held = if is_data(location) { self.held.lock().unwrap().take() } else { None };
        if let Some(held) = held {
            held.reached.send(()).unwrap();
            held.go_on.await.unwrap();
        }
        if self.read_only.load(Ordering::SeqCst)
            || (is_commit(location) && due(&self.failed_commits))
        {
            return Err(timeout());
        }
        if is_commit(location)
            && self.refuse_commits.load(Ordering::SeqCst)
            && self.lost_commit_replies.load(Ordering::SeqCst) == 0
        {
            let path = location.to_string();
            return Err(Error::PermissionDenied { path, source: "it is not allowed".into() });
        }
        let fate = self.crash.fate();
        if fate == Fate::Never {
            return Err(timeout());
        }
        let done = self.inner.put_opts(location, payload, options).await?;
        if fate == Fate::Unanswered {
            return Err(timeout());
        }
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
        self.crash.read()?;
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
        pass(self.stopped.clone()).await;
        self.crash.read()?;
        let found = self.inner.get_opts(location, options).await?;
        if is_data(location) {
            self.counts.data_read(location, found.range.end - found.range.start);
        }
        Ok(found)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.counts.gets.fetch_add(1, Ordering::SeqCst);
        if is_data(location) {
            self.counts.data_gets.fetch_add(1, Ordering::SeqCst);
            let bytes = ranges.iter().map(|range| range.end - range.start).sum();
            self.counts.data_read(location, bytes);
        }
        pass(self.stopped.clone()).await;
        self.crash.read()?;
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.counts.deletes.fetch_add(1, Ordering::SeqCst);
        let (inner, crash) = (self.inner.clone(), self.crash.clone());
        let stopped = self.stopped.clone();
        locations
            .then(move |location| {
                let (inner, crash) = (inner.clone(), crash.clone());
                let stopped = stopped.clone();
                async move {
                    pass(stopped).await;
                    let location = location?;
                    let fate = crash.fate();
                    if fate != Fate::Never {
                        inner.delete(&location).await?;
                    }
                    if fate == Fate::Answered { Ok(location) } else { Err(timeout()) }
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counts.lists.fetch_add(1, Ordering::SeqCst);
        match self.crash.read() {
            Ok(()) => {
                let (inner, prefix) = (self.inner.clone(), prefix.cloned());
                let (stopped, listed) = (self.stopped.clone(), self.listed.clone());
                let before = self.lists_before.load(Ordering::SeqCst);
                let listing = async move {
                    let earlier = inner.list(prefix.as_ref());
                    pass(stopped).await;
                    let listing = if before { earlier } else { inner.list(prefix.as_ref()) };
                    if prefix.is_some_and(|path| path.as_ref().ends_with("log/_delta_log")) {
                        pass(listed).await;
                    }
                    listing
                };
                stream::once(listing).flatten().boxed()
            }
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.counts.lists.fetch_add(1, Ordering::SeqCst);
        match self.crash.read() {
            Ok(()) => self.inner.list_with_offset(prefix, offset),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.counts.lists.fetch_add(1, Ordering::SeqCst);
        self.crash.read()?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        pass(self.stopped.clone()).await;
        let fate = self.crash.fate();
        if fate != Fate::Never {
            self.inner.copy_opts(from, to, options).await?;
        }
        if fate == Fate::Answered { Ok(()) } else { Err(timeout()) }
    }
}
