//! Leases of readers: what a long read holds, so that nothing it needs is removed for as long as it lives.
//!
//! ```text
//! <state>/leases/<id>-<number>.json    by put-if-absent, never changed; a holder's greatest number counts
//!
//! read    begins ------ 10 min ------> lease 1 ---- 15 min ----> lease 2 ----> ..  given back at the end, or times out
//! vacuum  takes the time -> reads the leases -> leaves the files of the versions that they name
//! ```
//!
//! Whoever begins a read is sure of its files for half an hour without a lease ([`crate::LEAST_FILE_RETENTION_MS`]). So a short read writes
//! none, and a first lease that is there in time leaves no gap: a vacuum that took its time and read the leases before it was
//! there finds the versions within its retention; a later one finds the lease. The same holds from one number to the next.
//!
//! A lease counts until its end and [`CLOCK_MARGIN_MS`] more, by the clock of whoever looks: clocks of machines that share a store must agree within
//! that. This file owns the records; [`Hold`] and who keeps the leases of a process are in `leases/keeper.rs`.

mod keeper;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};

use crate::checksum::{NO_SUM, seal_text};
use crate::error::{Error, ErrorKind, Result};
use crate::record::{Record, SEED, read_record};
use crate::settings::LEAST_FILE_RETENTION_MS;
use crate::storage::Storage;
pub(crate) use keeper::Keeper;
pub use keeper::{HeldVersion, Hold, HoldStatus};

/// A read takes a lease when it has gone on for so long: ten minutes.
pub const LEASE_AFTER_MS: i64 = LEAST_FILE_RETENTION_MS / 6;
/// A lease that is not renewed ends after so long: an hour.
pub const LEASE_SPAN_MS: i64 = LEAST_FILE_RETENTION_MS;
/// Clocks of machines that share a store are taken to agree within this: ten minutes.
pub const CLOCK_MARGIN_MS: i64 = LEAST_FILE_RETENTION_MS / 6;

const FORMAT_VERSION: i64 = 1;
/// How often the folder is listed again because a record in it was followed by the next one meanwhile.
const MAX_LISTINGS: usize = 8;

/// A table of a state whose versions are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeasedTable {
    /// Its log.
    Log,
    /// Its snapshot.
    Snapshot,
    /// Its archive.
    Archive,
}

/// What the reads of one process hold of a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReaderLease {
    /// The sum of the record's text, in the store only.
    #[serde(rename = "alluvium.sum", skip_serializing_if = "Option::is_none", default)]
    sum: Option<String>,
    format_version: i64,
    /// Of one process's handle on the state, and no other.
    pub id: String,
    /// How often it was written.
    pub number: u64,
    /// How the holder is called in messages.
    pub holder: String,
    /// When the oldest of its reads began, in milliseconds since 1970.
    pub since_ms: i64,
    /// When this was written, in milliseconds since 1970.
    pub renewed_ms: i64,
    /// When it ends unless it is renewed, in milliseconds since 1970.
    pub until_ms: i64,
    /// The versions of the log's table that are held.
    pub log_versions: BTreeSet<i64>,
    /// The same of the snapshot's table.
    pub snapshot_versions: BTreeSet<i64>,
    /// The same of the archive's table.
    pub archive_versions: BTreeSet<i64>,
}

impl ReaderLease {
    /// The versions of a table that it holds.
    pub fn versions(&self, table: LeasedTable) -> &BTreeSet<i64> {
        match table {
            LeasedTable::Log => &self.log_versions,
            LeasedTable::Snapshot => &self.snapshot_versions,
            LeasedTable::Archive => &self.archive_versions,
        }
    }

    fn versions_mut(&mut self, table: LeasedTable) -> &mut BTreeSet<i64> {
        match table {
            LeasedTable::Log => &mut self.log_versions,
            LeasedTable::Snapshot => &mut self.snapshot_versions,
            LeasedTable::Archive => &mut self.archive_versions,
        }
    }

    fn is_over(&self, now_ms: i64) -> bool {
        self.until_ms.saturating_add(CLOCK_MARGIN_MS) < now_ms
    }
}

impl Record for ReaderLease {
    const FORMAT_VERSION: i64 = FORMAT_VERSION;
    const DAMAGE: &'static str = "is no lease of a reader: remove it once the reads that were under way when it was written have ended";

    fn format_version(&self) -> i64 {
        self.format_version
    }
}

/// The leases of a state's readers, where they lie.
#[derive(Debug, Clone)]
pub struct LeaseFolder {
    store: Arc<dyn ObjectStore>,
    folder: Path,
}

/// The files of one holder by their numbers.
type Numbers = BTreeMap<u64, Path>;

impl LeaseFolder {
    /// Of a state of a store.
    pub(crate) fn of(storage: &Storage, state: &str) -> Self {
        let folder = Path::from(format!("{state}/leases"));
        Self { store: storage.object_store().clone(), folder }
    }

    /// The leases that count at a time, those of the oldest reads first. What they hold must not be removed by anybody who took that
    /// time before calling this.
    ///
    /// # Errors
    /// One can't be read: what it holds is not known, so nothing may be removed.
    pub async fn alive(&self, now_ms: i64) -> Result<Vec<ReaderLease>> {
        let mut leases = self.newest().await?;
        leases.retain(|lease| !lease.is_over(now_ms));
        leases.sort_by(|a, b| (a.since_ms, &a.id).cmp(&(b.since_ms, &b.id)));
        Ok(leases)
    }

    /// Removes the leases that count no more, and tells how many holders had left them.
    pub async fn remove_over(&self, now_ms: i64) -> Result<u64> {
        let over: BTreeSet<String> = self
            .newest()
            .await?
            .into_iter()
            .filter(|lease| lease.is_over(now_ms))
            .map(|lease| lease.id)
            .collect();
        if over.is_empty() {
            return Ok(0);
        }
        // Its holder may be only late: a number that it writes from now on is another file.
        for (id, numbers) in self.listed().await? {
            for (number, path) in numbers {
                if over.contains(&id)
                    && self.read(&path).await?.is_some_and(|lease| lease.is_over(now_ms))
                {
                    tracing::debug!(%path, number, "a lease that is over is removed");
                    self.remove(&path).await?;
                }
            }
        }
        metrics::counter!(crate::metrics::LEASES_OVER).increment(over.len() as u64);
        Ok(over.len() as u64)
    }

    /// What each holder wrote last.
    async fn newest(&self) -> Result<Vec<ReaderLease>> {
        for _ in 0..MAX_LISTINGS {
            let mut found = Vec::new();
            let listed = self.listed().await?;
            let wanted = listed.len();
            for numbers in listed.into_values() {
                let Some((_, path)) = numbers.last_key_value() else { continue };
                found.extend(self.read(path).await?);
            }
            if found.len() == wanted {
                return Ok(found);
            }
            // One was followed by the next number and removed, or given back.
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!("{} changed each time that it was listed: try again", self.folder),
        ))
    }

    async fn listed(&self) -> Result<BTreeMap<String, Numbers>> {
        let listing: Vec<ObjectMeta> = self
            .store
            .list(Some(&self.folder))
            .try_collect()
            .await
            .map_err(|error| Error::from(error).context(&self.folder))?;
        let mut found: BTreeMap<String, Numbers> = BTreeMap::new();
        for meta in listing {
            let name = meta.location.filename().and_then(|name| name.strip_suffix(".json"));
            let parts = name.and_then(|name| name.rsplit_once('-'));
            if let Some((id, number)) = parts
                && let Ok(number) = number.parse()
            {
                found.entry(id.to_owned()).or_default().insert(number, meta.location);
            }
        }
        Ok(found)
    }

    /// A record; `None` when it went meanwhile. One that can't be read is an error: what it holds is not known.
    async fn read(&self, path: &Path) -> Result<Option<ReaderLease>> {
        let lease: Option<ReaderLease> = read_record(self.store.as_ref(), path).await?;
        Ok(lease.map(|lease| ReaderLease { sum: None, ..lease }))
    }

    fn path(&self, id: &str, number: u64) -> Path {
        self.folder.clone().join(format!("{id}-{number:06}.json"))
    }

    /// Writes a record, whose number is new.
    async fn put(&self, lease: &ReaderLease) -> Result<()> {
        let path = self.path(&lease.id, lease.number);
        let unsealed = ReaderLease { sum: Some(NO_SUM.to_owned()), ..lease.clone() };
        let mut bytes = serde_json::to_vec_pretty(&unsealed)
            .map_err(|error| Error::internal("a lease").with_source(error))?;
        seal_text(SEED, &mut bytes);
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let Err(error) = self.store.put_opts(&path, bytes.into(), options).await else {
            return Ok(());
        };
        // The reply may be lost and the record written; nobody else writes this name.
        match self.read(&path).await {
            Ok(Some(written)) if written == *lease => Ok(()),
            _ => Err(Error::from(error).context(path)),
        }
    }

    async fn remove(&self, path: &Path) -> Result<()> {
        match self.store.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Error::from(error).context(path)),
        }
    }
}

/// How this process is called in messages.
fn holder() -> String {
    let host = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
    let host = host.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    let host = host.map_or_else(|| "an unknown host".to_owned(), |name| name.trim().to_owned());
    format!("process {} on {host}", std::process::id())
}
