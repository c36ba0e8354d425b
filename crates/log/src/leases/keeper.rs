//! Who holds what in this process, and the task that takes, renews and gives back the lease for it.
//!
//! All reads of one handle on a state share one lease. It is written when a read has gone on for [`LEASE_AFTER_MS`], and names the versions of
//! all that have. Each number of it is a file of its own; the one before the last stays until the next, so that whoever lists the folder
//! meanwhile finds one of them.
//!
//! A version whose lease came too late, or was not renewed in time because the process was asleep or cut off, goes on being named: that
//! it was held all the time can't be proved then, and [`Hold::status`] says so.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::{
    CLOCK_MARGIN_MS, FORMAT_VERSION, LEASE_AFTER_MS, LEASE_SPAN_MS, LeaseFolder, LeasedTable,
    ReaderLease, holder,
};
use crate::clock::Clock;
use crate::error::Result;
use crate::settings::LEAST_FILE_RETENTION_MS;
use crate::table::{Table, TableState};

/// A lease is renewed after so long.
const RENEWED_AFTER_MS: i64 = LEASE_SPAN_MS / 4;
/// Without a lease the files of a version are sure to be there for so long after it was pinned, also by clocks that differ.
const PROMISED_MS: i64 = LEAST_FILE_RETENTION_MS / 2 - CLOCK_MARGIN_MS;
/// The task looks at the clock at least this often: a machine may have been asleep.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
/// Before a lease that could not be written is tried again.
const WAIT_AFTER_FAILURE: Duration = Duration::from_secs(30);

type Key = (LeasedTable, i64);

/// A version of a table that a read needs.
#[derive(Debug, Clone)]
pub struct HeldVersion {
    /// Of which table.
    pub table: LeasedTable,
    /// Its number.
    pub version: i64,
    /// When it was found to be one that may be read, in milliseconds since 1970.
    pub pinned_ms: i64,
    /// The table and the version's files, so that it can be looked whether they are there.
    pub files: Option<(Arc<Table>, Arc<TableState>)>,
}

/// What a read holds. It is held until this and all its clones are dropped.
#[derive(Debug, Clone)]
pub struct Hold {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    keeper: Arc<KeeperInner>,
    /// What it holds, and since when.
    pins: Vec<(Key, i64)>,
}

/// How safe a read is from those who remove files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldStatus {
    /// It is so young that it needs no lease yet.
    Young,
    /// It has a lease until this time, in milliseconds since 1970, which is renewed meanwhile.
    Leased {
        /// The end of the lease as it was written last.
        until_ms: i64,
    },
    /// It is safe for `file_retention` and no longer: the lease could not be written, or not in time.
    Unheld {
        /// Why.
        reason: String,
    },
}

impl Hold {
    /// How safe the read is.
    pub fn status(&self) -> HoldStatus {
        self.held.keeper.status(&self.held.pins)
    }

    /// Takes the lease now, however young the read is: for a read that is known to become long. A lease that can't be written is no
    /// error of the read; what is returned says so.
    pub async fn secure(&self) -> HoldStatus {
        self.held.keeper.want(&self.held.pins);
        if let Err(error) = self.held.keeper.beat().await {
            tracing::debug!(state = %self.held.keeper.label, %error, "a lease could not be taken");
        }
        self.status()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.clone().let_go(&self.pins);
    }
}

/// A version that is held here.
#[derive(Debug)]
struct Part {
    /// How many hold it since when.
    pins: BTreeMap<i64, usize>,
    /// Until then nobody removes its files.
    safe_until_ms: i64,
    is_wanted: bool,
    is_leased: bool,
    /// Since when and why it is not sure that it was held all the time.
    doubt: Option<(i64, String)>,
    files: Option<(Arc<Table>, Arc<TableState>)>,
}

impl Part {
    /// Since when it is held by the oldest read.
    fn since_ms(&self) -> i64 {
        self.pins.keys().next().copied().unwrap_or(i64::MAX)
    }
}

#[derive(Debug, Default)]
struct Parts {
    held: BTreeMap<Key, Part>,
    until_ms: i64,
    /// Why the lease could not be written the last time.
    trouble: Option<String>,
}

/// The numbers that may lie in the store.
#[derive(Debug, Default)]
struct Written {
    id: Option<String>,
    last: u64,
    /// Those not removed yet.
    numbers: Vec<u64>,
    renewed_ms: i64,
}

/// What the reads of one handle on a state hold.
#[derive(Debug)]
pub(crate) struct Keeper {
    inner: Arc<KeeperInner>,
}

#[derive(Debug)]
struct KeeperInner {
    folder: LeaseFolder,
    clock: Arc<dyn Clock>,
    label: String,
    parts: Mutex<Parts>,
    /// One at a time writes.
    written: tokio::sync::Mutex<Written>,
    has_files: AtomicBool,
    is_running: Arc<AtomicBool>,
}

impl Keeper {
    pub(crate) fn new(folder: LeaseFolder, clock: Arc<dyn Clock>, state: &str) -> Self {
        Self {
            inner: Arc::new(KeeperInner {
                folder,
                clock,
                label: state.to_owned(),
                parts: Mutex::default(),
                written: tokio::sync::Mutex::default(),
                has_files: AtomicBool::new(false),
                is_running: Arc::default(),
            }),
        }
    }

    pub(crate) fn folder(&self) -> &LeaseFolder {
        &self.inner.folder
    }

    /// Holds versions; nothing is written yet.
    pub(crate) fn hold(&self, versions: impl IntoIterator<Item = HeldVersion>) -> Hold {
        let mut parts = self.inner.parts.lock();
        let pins = versions.into_iter().map(|version| parts.add(version)).collect();
        // Under the lock, so that a task that finds nothing to do is not taken for one at work.
        if !self.inner.is_running.swap(true, Ordering::AcqRel) {
            self.inner.start();
        }
        drop(parts);
        Hold { held: Arc::new(Held { keeper: self.inner.clone(), pins }) }
    }

    /// Takes, renews or gives back the lease, as is due by now.
    pub(crate) async fn beat(&self) -> Result<()> {
        self.inner.beat().await
    }

    /// Waits until what is not held any more is given back.
    pub(crate) async fn settle(&self) {
        let mut written = self.inner.written.lock().await;
        if self.inner.parts.lock().held.is_empty() {
            self.inner.give_back(&mut written).await;
        }
    }
}

impl Parts {
    fn add(&mut self, version: HeldVersion) -> (Key, i64) {
        let HeldVersion { table, version, pinned_ms, files } = version;
        let key = (table, version);
        let promised_ms = pinned_ms.saturating_add(PROMISED_MS);
        let part = self.held.entry(key).or_insert(Part {
            pins: BTreeMap::new(),
            safe_until_ms: promised_ms,
            is_wanted: false,
            is_leased: false,
            doubt: None,
            files: None,
        });
        *part.pins.entry(pinned_ms).or_default() += 1;
        part.safe_until_ms = part.safe_until_ms.max(promised_ms);
        if part.doubt.as_ref().is_some_and(|(since_ms, _)| *since_ms <= pinned_ms) {
            // It was found to be one that may be read once more. The next lease proves it.
            part.doubt = None;
            part.is_leased = false;
        }
        if part.files.is_none() {
            part.files = files;
        }
        (key, pinned_ms)
    }

    fn remove(&mut self, (key, pinned_ms): (Key, i64)) {
        let Some(part) = self.held.get_mut(&key) else { return };
        if let Some(count) = part.pins.get_mut(&pinned_ms) {
            *count -= 1;
            if *count == 0 {
                part.pins.remove(&pinned_ms);
            }
        }
        if part.pins.is_empty() {
            self.held.remove(&key);
        }
    }

    /// What a lease written now is to name, and whether it is time to write one.
    fn due(&self, now_ms: i64, renewed_ms: i64) -> (Vec<Key>, bool) {
        let is_old = |part: &Part| now_ms.saturating_sub(part.since_ms()) >= LEASE_AFTER_MS;
        let mut is_due = now_ms.saturating_sub(renewed_ms) >= RENEWED_AFTER_MS;
        let mut keys = Vec::new();
        for (key, part) in &self.held {
            if part.is_leased || part.is_wanted || is_old(part) {
                is_due |= !part.is_leased;
                keys.push(*key);
            }
        }
        (keys, is_due)
    }

    /// Notes that a lease was there at a time; gives the versions that it names first.
    fn note(&mut self, keys: &[Key], there_ms: i64, until_ms: i64) -> Vec<Key> {
        self.until_ms = until_ms;
        self.trouble = None;
        let mut first = Vec::new();
        for key in keys {
            let Some(part) = self.held.get_mut(key) else { continue };
            if !part.is_leased {
                first.push(*key);
            }
            part.is_leased = true;
            if there_ms > part.safe_until_ms {
                part.doubt.get_or_insert_with(|| {
                    let late_ms = there_ms.saturating_sub(part.safe_until_ms);
                    let reason = format!(
                        "its lease came {} s later than its files were sure to be there: this process was asleep or cut off from the store, or the read began long after its basis was pinned",
                        late_ms.div_euclid(1_000) + 1
                    );
                    (there_ms, reason)
                });
            }
            part.safe_until_ms = part.safe_until_ms.max(until_ms);
        }
        first
    }
}

impl KeeperInner {
    fn status(&self, pins: &[(Key, i64)]) -> HoldStatus {
        let parts = self.parts.lock();
        let held = || pins.iter().filter_map(|(key, _)| parts.held.get(key));
        let doubt = held().find_map(|part| part.doubt.clone());
        if let Some((_, reason)) = doubt {
            return HoldStatus::Unheld { reason };
        }
        let now_ms = self.clock.now_ms();
        let is_leased = held().all(|part| part.is_leased);
        match &parts.trouble {
            _ if is_leased && now_ms <= parts.until_ms => {
                HoldStatus::Leased { until_ms: parts.until_ms }
            }
            Some(reason) => HoldStatus::Unheld { reason: reason.clone() },
            None if is_leased => {
                HoldStatus::Unheld { reason: "its lease was not renewed in time".to_owned() }
            }
            // Before the task that takes it has come to say so.
            None if held().any(|part| !part.is_leased && now_ms > part.safe_until_ms) => {
                HoldStatus::Unheld { reason: "its lease has not come in time".to_owned() }
            }
            None => HoldStatus::Young,
        }
    }

    fn want(&self, pins: &[(Key, i64)]) {
        let mut parts = self.parts.lock();
        for (key, _) in pins {
            if let Some(part) = parts.held.get_mut(key) {
                part.is_wanted = true;
            }
        }
    }

    fn let_go(self: Arc<Self>, pins: &[(Key, i64)]) {
        let is_empty = {
            let mut parts = self.parts.lock();
            for pin in pins {
                parts.remove(*pin);
            }
            parts.held.is_empty()
        };
        if is_empty
            && self.has_files.load(Ordering::Acquire)
            && let Ok(runtime) = Handle::try_current()
        {
            // What can't be removed now times out.
            runtime.spawn(async move { Keeper { inner: self }.settle().await });
        }
    }

    async fn beat(&self) -> Result<()> {
        let mut written = self.written.lock().await;
        let now_ms = self.clock.now_ms();
        let (keys, is_due) = self.parts.lock().due(now_ms, written.renewed_ms);
        if keys.is_empty() {
            self.give_back(&mut written).await;
            return Ok(());
        }
        if !is_due {
            return Ok(());
        }
        let lease = self.next(&mut written, &keys, now_ms);
        self.has_files.store(true, Ordering::Release);
        if let Err(error) = self.folder.put(&lease).await {
            metrics::counter!(crate::metrics::LEASE_FAILURES).increment(1);
            let first = self.parts.lock().trouble.replace(error.to_string()).is_none();
            if first {
                tracing::warn!(
                    state = %self.label,
                    %error,
                    "a lease could not be written: long reads hold nothing, and are safe for file_retention only"
                );
            }
            return Err(error);
        }
        metrics::counter!(crate::metrics::LEASES_WRITTEN).increment(1);
        written.renewed_ms = now_ms;
        let there_ms = self.clock.now_ms();
        let first = self.parts.lock().note(&keys, there_ms, lease.until_ms);
        self.prove(&first).await;
        // The one before stays, for those who list the folder now.
        let (old, kept) = written.numbers.iter().partition(|&&number| number + 1 < lease.number);
        written.numbers = kept;
        self.remove(&lease.id, old).await;
        Ok(())
    }

    /// The next number of the lease.
    fn next(&self, written: &mut Written, keys: &[Key], now_ms: i64) -> ReaderLease {
        let id =
            written.id.get_or_insert_with(|| format!("{:032x}", crate::random::random::<u128>()));
        written.last += 1;
        written.numbers.push(written.last);
        let parts = self.parts.lock();
        let begun = keys.iter().filter_map(|key| parts.held.get(key)).map(Part::since_ms);
        let mut lease = ReaderLease {
            sum: None,
            format_version: FORMAT_VERSION,
            id: id.clone(),
            number: written.last,
            holder: holder(),
            since_ms: begun.min().unwrap_or(now_ms),
            renewed_ms: now_ms,
            until_ms: now_ms.saturating_add(LEASE_SPAN_MS),
            log_versions: Default::default(),
            snapshot_versions: Default::default(),
            archive_versions: Default::default(),
        };
        for (table, version) in keys {
            lease.versions_mut(*table).insert(*version);
        }
        lease
    }

    /// Looks whether all files of versions are there that a lease names first.
    async fn prove(&self, keys: &[Key]) {
        for key in keys {
            let files = self.parts.lock().held.get(key).and_then(|part| part.files.clone());
            let Some((table, state)) = files else { continue };
            let doubt = match table.missing_file(&state).await {
                Ok(None) => None,
                Ok(Some(path)) => Some(format!("{path} of {} is missing", table.label())),
                Err(error) => Some(format!("its files could not be looked at: {error}")),
            };
            if let Some(doubt) = doubt
                && let Some(part) = self.parts.lock().held.get_mut(key)
            {
                part.doubt = Some((self.clock.now_ms(), doubt));
            }
        }
        let parts = self.parts.lock();
        let doubts =
            keys.iter().filter_map(|key| Some((key, parts.held.get(key)?.doubt.as_ref()?)));
        for ((table, version), (_, doubt)) in doubts {
            metrics::counter!(crate::metrics::LEASES_IN_DOUBT).increment(1);
            tracing::warn!(
                state = %self.label,
                ?table,
                version,
                "a long read is safe for file_retention only: {doubt}"
            );
        }
    }

    /// Removes the lease; what can't be removed times out.
    async fn give_back(&self, written: &mut Written) {
        let Some(id) = written.id.clone() else { return };
        let numbers = std::mem::take(&mut written.numbers);
        self.has_files.store(false, Ordering::Release);
        self.remove(&id, numbers).await;
    }

    async fn remove(&self, id: &str, numbers: Vec<u64>) {
        for number in numbers {
            if let Err(error) = self.folder.remove(&self.folder.path(id, number)).await {
                tracing::debug!(state = %self.label, number, %error, "a lease stays until it times out");
            }
        }
    }

    /// Starts the task that keeps the lease. Where there is no runtime reads hold nothing until one begins within one.
    fn start(self: &Arc<Self>) {
        match Handle::try_current() {
            Ok(runtime) => {
                let running = Running(Some(self.is_running.clone()));
                runtime.spawn(keep(Arc::downgrade(self), running));
            }
            Err(_) => self.is_running.store(false, Ordering::Release),
        }
    }

    /// How long the task may wait.
    fn wait(&self) -> Duration {
        let now_ms = self.clock.now_ms();
        let parts = self.parts.lock();
        let due = parts.held.values().map(|part| match part.is_leased {
            true => parts.until_ms.saturating_sub(LEASE_SPAN_MS).saturating_add(RENEWED_AFTER_MS),
            false => part.since_ms().saturating_add(LEASE_AFTER_MS),
        });
        let wait_ms = due.min().map_or(0, |due_ms| due_ms.saturating_sub(now_ms));
        Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0))
            .clamp(SHORTEST_WAIT, LONGEST_WAIT)
    }
}

/// Says that the task runs, until it ends by itself or with its runtime.
struct Running(Option<Arc<AtomicBool>>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(running) = &self.0 {
            running.store(false, Ordering::Release);
        }
    }
}

/// Keeps the lease for as long as anything is held.
async fn keep(keeper: Weak<KeeperInner>, mut running: Running) {
    let Some(mut wait) = keeper.upgrade().map(|keeper| keeper.wait()) else { return };
    loop {
        tokio::time::sleep(wait).await;
        let Some(keeper) = keeper.upgrade() else { return };
        wait = match keeper.beat().await {
            Ok(()) => keeper.wait(),
            Err(_) => WAIT_AFTER_FAILURE,
        };
        let parts = keeper.parts.lock();
        if parts.held.is_empty() {
            keeper.is_running.store(false, Ordering::Release);
            running.0 = None;
            return;
        }
    }
}
