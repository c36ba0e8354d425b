//! The store of a simulation: one disk, seen by each process through a store of its own, in which every call waits until the
//! driver lets it go on.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use tokio::sync::{Notify, oneshot};

use crate::fate::{Call, Fate};

/// What was written last, that a stale listing may lack.
const RECENT: usize = 3;

/// A call that waits.
#[derive(Debug)]
pub struct Parked {
    /// Who calls.
    pub process: usize,
    /// Since how many deaths.
    pub incarnation: u64,
    /// What for.
    pub call: Call,
    /// Of which object or folder.
    pub path: String,
    answer: oneshot::Sender<Fate>,
}

impl Parked {
    /// Lets the call go on.
    pub fn answer(self, fate: Fate) {
        // Who doesn't wait any more is told nothing.
        let _unheard = self.answer.send(fate);
    }

    /// By what calls are told apart, whenever they came.
    pub fn place(&self) -> (usize, Call, &str) {
        (self.process, self.call, &self.path)
    }
}

/// What all processes share: the objects, and the calls that wait.
#[derive(Debug)]
pub struct Disk {
    objects: Arc<dyn ObjectStore>,
    parked: Mutex<Vec<Parked>>,
    /// Told when a call comes to wait, or an operation ends.
    pub changed: Notify,
    commits: Mutex<HashMap<String, Bytes>>,
    recent: Mutex<Vec<Path>>,
    /// What arrived in part, and was not written since.
    torn: Mutex<HashSet<Path>>,
    /// What was copied to where damaged files go, and is still there.
    aside: Mutex<HashSet<Path>>,
    broken: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    /// An empty disk in memory, or what is kept in an empty store.
    pub fn new(store: Option<Arc<dyn ObjectStore>>) -> Arc<Self> {
        Arc::new(Self {
            objects: store.unwrap_or_else(|| Arc::new(InMemory::new())),
            parked: Mutex::default(),
            changed: Notify::new(),
            commits: Mutex::default(),
            recent: Mutex::default(),
            torn: Mutex::default(),
            aside: Mutex::default(),
            broken: Mutex::default(),
        })
    }

    /// The objects, to those who look on from outside.
    pub fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }

    /// All objects as they are now, in a store in memory.
    pub async fn copied(&self) -> Result<Arc<InMemory>> {
        let copy = InMemory::new();
        let listed: Vec<ObjectMeta> = self.objects.list(None).try_collect().await?;
        for path in listed.into_iter().map(|meta| meta.location) {
            let bytes = self.objects.get(&path).await?.bytes().await?;
            copy.put(&path, bytes.into()).await?;
        }
        Ok(Arc::new(copy))
    }

    /// Whether a process has calls that wait.
    pub fn is_waiting(&self, process: usize) -> bool {
        lock(&self.parked).iter().any(|parked| parked.process == process)
    }

    /// The processes with calls that wait, in order.
    pub fn waiting(&self) -> Vec<usize> {
        let mut all: Vec<usize> = lock(&self.parked).iter().map(|parked| parked.process).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Takes the first of a process's calls.
    pub fn take(&self, process: usize) -> Option<Parked> {
        let mut parked = lock(&self.parked);
        let of_process = parked.iter().enumerate().filter(|(_, call)| call.process == process);
        let (place, _) = of_process.min_by(|a, b| a.1.place().cmp(&b.1.place()))?;
        Some(parked.remove(place))
    }

    /// Forgets the calls of a process that is no more: they never take place.
    pub fn forget(&self, process: usize) {
        lock(&self.parked).retain(|parked| parked.process != process);
    }

    /// What was found to be broken by looking at the calls themselves: a commit that was written over, a file that a reader missed.
    pub fn broken(&self) -> Vec<String> {
        lock(&self.broken).clone()
    }

    /// A state is gone, with its commits: another one may have its name.
    pub fn forget_commits(&self, state: &str) {
        lock(&self.commits).retain(|path, _| !path.starts_with(&format!("{state}/")));
    }

    fn note_broken(&self, text: String) {
        lock(&self.broken).push(text);
    }

    fn note_copied(&self, from: &Path, to: &Path) {
        if to.as_ref().ends_with(".damaged") || to.as_ref().contains("/damaged/") {
            lock(&self.aside).insert(from.clone());
        }
    }

    /// 27: what is set aside is what arrived in part, a checksum that lies beside it, or a hint. A whole file that somebody has just
    /// written is not.
    async fn note_removed(&self, location: &Path) {
        let stands_beside = [".alluvium.json", "_last_checkpoint"];
        let stands_beside = stands_beside.iter().any(|end| location.as_ref().ends_with(end));
        let is_aside = lock(&self.aside).remove(location);
        let is_torn = lock(&self.torn).remove(location);
        if is_aside && !stands_beside && !is_torn && self.objects.head(location).await.is_ok() {
            self.note_broken(format!("invariant 27: {location} is set aside, and was whole"));
        }
    }

    fn note_written(&self, location: &Path) {
        lock(&self.torn).remove(location);
        let mut recent = lock(&self.recent);
        recent.push(location.clone());
        let over = recent.len().saturating_sub(RECENT);
        recent.drain(..over);
    }

    /// A commit is written once, and never again with other bytes, but that an erase takes bounds of files out of it.
    fn note_commit(&self, location: &Path, bytes: Bytes, if_absent: bool) {
        let before = lock(&self.commits).insert(location.to_string(), bytes.clone());
        let is_same = |before: &Bytes| match if_absent {
            true => *before == bytes,
            false => without_bounds(before) == without_bounds(&bytes),
        };
        if before.is_some_and(|before| !is_same(&before)) {
            self.note_broken(format!("invariant 2: {location} was written twice"));
        }
    }
}

/// The store of one process, until its death.
#[derive(Debug, Clone)]
pub struct SimStore {
    disk: Arc<Disk>,
    process: usize,
    incarnation: u64,
    dead: Arc<AtomicBool>,
    faults: Arc<AtomicU64>,
}

impl fmt::Display for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the simulated store of process {}", self.process)
    }
}

fn failure(text: &'static str) -> Error {
    Error::Generic { store: "simulation", source: text.into() }
}

fn is_commit(location: &Path) -> bool {
    let name = location.filename().and_then(|name| name.strip_suffix(".json"));
    let is_number = name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    location.as_ref().contains("_delta_log/") && is_number
}

/// The actions of a commit without what tells the bounds of files, and without its sum.
fn without_bounds(commit: &Bytes) -> Vec<serde_json::Value> {
    let actions = serde_json::Deserializer::from_slice(commit).into_iter::<serde_json::Value>();
    let mut actions: Vec<serde_json::Value> = actions.map_while(|action| action.ok()).collect();
    actions.retain(|action| action.get("commitInfo").is_none());
    for action in &mut actions {
        for kind in ["add", "remove"] {
            if let Some(file) = action.get_mut(kind).and_then(|file| file.as_object_mut()) {
                file.remove("stats");
                file.remove("tags");
            }
        }
    }
    actions
}

impl SimStore {
    /// The store of a process on a disk.
    pub fn new(disk: &Arc<Disk>, process: usize, incarnation: u64) -> Arc<Self> {
        let disk = disk.clone();
        Arc::new(Self { disk, process, incarnation, dead: Arc::default(), faults: Arc::default() })
    }

    /// Whether the process has died.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Lets the process be no more: nothing that it still asks for takes place.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    /// How many of its calls were not answered as they should have been.
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::SeqCst)
    }

    /// Waits for the fate of a call.
    async fn fate(&self, call: Call, path: &str) -> Result<Fate> {
        if self.is_dead() {
            return Err(failure("the process is dead"));
        }
        let (answer, answered) = oneshot::channel();
        let (process, incarnation, path) = (self.process, self.incarnation, path.to_owned());
        lock(&self.disk.parked).push(Parked { process, incarnation, call, path, answer });
        self.disk.changed.notify_one();
        let fate = answered.await.map_err(|_| {
            // It died at another call, which may not have come to say so.
            self.kill();
            failure("the process is dead")
        })?;
        if self.is_dead() {
            return Err(failure("the process is dead"));
        }
        if fate.is_fault() {
            self.faults.fetch_add(1, Ordering::SeqCst);
        }
        if matches!(fate, Fate::Deadly(_)) {
            self.dead.store(true, Ordering::SeqCst);
        }
        match fate {
            Fate::Failed => Err(failure("the call failed")),
            Fate::Throttled => Err(failure("503 slow down")),
            Fate::NoSpace => Err(failure("no space left on device")),
            Fate::Deadly(false) => Err(failure("the process is dead")),
            fate => Ok(fate),
        }
    }

    async fn put_torn(&self, location: &Path, payload: PutPayload) -> Result<PutResult> {
        let whole: Bytes = payload.into();
        let half = whole.slice(..whole.len() / 2);
        self.disk.objects.put(location, half.into()).await?;
        lock(&self.disk.torn).insert(location.clone());
        Err(failure("the write broke off"))
    }
}

/// The reply of a call that took place.
fn reply<T>(fate: Fate, done: T) -> Result<T> {
    match fate {
        Fate::Unanswered => Err(failure("the reply was lost")),
        Fate::Deadly(_) => Err(failure("the process is dead")),
        _ => Ok(done),
    }
}

#[async_trait]
impl ObjectStore for SimStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let if_absent = options.mode == PutMode::Create;
        let fate = self.fate(Call::Put(if_absent), location.as_ref()).await?;
        if fate == Fate::Torn {
            return self.put_torn(location, payload).await;
        }
        let bytes: Bytes = payload.clone().into();
        let done = self.disk.objects.put_opts(location, payload, options).await?;
        if is_commit(location) {
            self.disk.note_commit(location, bytes, if_absent);
        }
        self.disk.note_written(location);
        reply(fate, done)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.fate(Call::Put(true), location.as_ref()).await?;
        self.disk.objects.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.fate(Call::Get, location.as_ref()).await?;
        self.disk.objects.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.fate(Call::Get, location.as_ref()).await?;
        self.disk.objects.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .then(move |location| {
                let store = store.clone();
                async move {
                    let location = location?;
                    let fate = store.fate(Call::Delete, location.as_ref()).await?;
                    store.disk.note_removed(&location).await;
                    store.disk.objects.delete(&location).await?;
                    reply(fate, location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_after(prefix.cloned(), None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_after(prefix.cloned(), Some(offset.clone()))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.fate(Call::List, prefix.map_or("", Path::as_ref)).await?;
        self.disk.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let fate = self.fate(Call::Put(true), to.as_ref()).await?;
        self.disk.note_copied(from, to);
        self.disk.objects.copy_opts(from, to, options).await?;
        reply(fate, ())
    }
}

impl SimStore {
    fn list_after(
        &self,
        prefix: Option<Path>,
        offset: Option<Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = self.clone();
        let listing = async move {
            let place = prefix.as_ref().map_or("", Path::as_ref).to_owned();
            let fate = store.fate(Call::List, &place).await?;
            let recent = match fate {
                Fate::Stale => lock(&store.disk.recent).clone(),
                _ => Vec::new(),
            };
            let found = match offset {
                Some(offset) => store.disk.objects.list_with_offset(prefix.as_ref(), &offset),
                None => store.disk.objects.list(prefix.as_ref()),
            };
            let found: Vec<ObjectMeta> = found.try_collect().await?;
            let told = found.into_iter().filter(move |meta| !recent.contains(&meta.location));
            Ok::<_, Error>(stream::iter(told.map(Ok)))
        };
        stream::once(listing).try_flatten().boxed()
    }
}
