//! Dropping a fork: first it is no state any more, then its files go, and its name last.

use std::sync::Arc;

use alluvium_log::{
    CLOCK_MARGIN_MS, Clock, Error, ErrorKind, ForkRecord, LEASE_SPAN_MS, Log, LogOptions,
    NameClaim, NameFolder, Result, Storage, archive_path, identity_of, log_path, told_unfinished,
};
use futures::TryStreamExt;
use futures::future::try_join_all;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use serde::Serialize;

use crate::snapshot::Snapshot;

/// How often a folder is listed, in case that somebody still writes there.
const MAX_LISTINGS: usize = 8;
/// Files that are removed at the same time.
const REMOVE_CONCURRENCY: usize = 16;

/// What dropping a fork removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DropReport {
    /// The fork.
    pub name: String,
    /// The state that it was made of.
    pub parent: String,
    /// The commit that it was made at.
    pub commit: i64,
    /// Files removed.
    pub files: u64,
}

/// Drops a fork, whole or not: it and all that was appended to it is gone. Its parent, and forks that were made of it, are not touched.
///
/// # Errors
/// The name is not that of a fork; or the fork is being made by somebody who was at work within the last hour.
pub async fn drop_fork(storage: &Storage, name: &str, options: &LogOptions) -> Result<DropReport> {
    let names = NameFolder::of(storage);
    let Some(record) = names.fork(name).await? else {
        return Err(no_fork(storage, &names, name).await);
    };
    let now_ms = options.clock.now_ms();
    let record = match record.dropped_ms {
        Some(_) => record,
        None => {
            let archive = match storage.has_state(name).await? {
                true => archive_of(storage, name, options).await.unwrap_or(record.archive.clone()),
                false => {
                    check_left_over(&record, options.clock.as_ref())?;
                    record.archive.clone()
                }
            };
            let record = ForkRecord { dropped_ms: Some(now_ms), archive, ..record };
            names.note(&record).await?;
            record
        }
    };
    let dropping = Dropping { names: &names, record: &record };
    dropping.close(storage).await?;
    let mut files = dropping.remove_all(storage, &Path::from(name)).await?;
    if let Some(home) = archive_home(&record, options)? {
        files += dropping.remove_all(&home, &Path::from(archive_path(name))).await?;
    }
    // Who began it may be at work on it, and must find its name taken.
    if record.name_is_kept_until_ms().is_none_or(|until_ms| until_ms <= now_ms) {
        names.give_back_own(name, &record.id).await?;
    }
    metrics::counter!(crate::metrics::FORKS_DROPPED).increment(1);
    Ok(DropReport {
        name: name.to_owned(),
        parent: record.parent().to_owned(),
        commit: record.commit,
        files,
    })
}

/// Whether a fork that is not whole, or is being dropped, is a left-over of somebody who died: none has been at work on it for so long.
pub fn is_left_over(record: &ForkRecord, grace_ms: i64, now_ms: i64) -> bool {
    let last_ms = record.dropped_ms.unwrap_or(record.renewed_ms);
    last_ms.saturating_add(grace_ms.max(LEASE_SPAN_MS + CLOCK_MARGIN_MS)) < now_ms
}

/// Removes what there is of a fork that its maker could not bring to its end, unless somebody else has done so meanwhile.
pub(super) async fn clear_up(snapshot: &Snapshot, record: &ForkRecord) -> Result<()> {
    let storage = snapshot.storage();
    let (names, options) = (NameFolder::of(storage), snapshot.log().options());
    match names.fork(&record.name).await? {
        Some(found) if found.id == record.id && found.dropped_ms.is_none() => {
            match state_of_name(storage, record, options).await? {
                Some(identity) if identity == record.id => Ok(()),
                // A state was created before the name was taken.
                Some(_) => names.give_back_own(&record.name, &record.id).await,
                None => {
                    names.note(&dropped_now(&found, options)).await?;
                    drop_fork(storage, &record.name, options).await.map(drop)
                }
            }
        }
        _ => clear_up_late(snapshot, record).await,
    }
}

/// What the state by the name of a fork is, if there is one.
pub(super) async fn state_of_name(
    storage: &Storage,
    record: &ForkRecord,
    options: &LogOptions,
) -> Result<Option<String>> {
    if !storage.has_state(&record.name).await? {
        return Ok(None);
    }
    let options = LogOptions { background_checkpoints: false, ..options.clone() };
    let log = Log::open(storage, &record.name, options).await?;
    Ok(log.map(|log| identity_of(&log.state()).to_owned()))
}

/// Removes what a maker has written who slept while its fork was dropped. Who has the name by now for something else has waited until
/// no maker could be at work any more.
pub(super) async fn clear_up_late(snapshot: &Snapshot, record: &ForkRecord) -> Result<()> {
    let storage = snapshot.storage();
    let (names, options) = (NameFolder::of(storage), snapshot.log().options());
    match names.read(&record.name).await? {
        Some(NameClaim::Fork(found)) if found.id == record.id && found.dropped_ms.is_some() => {
            names.note(&ForkRecord { finished: true, ..found }).await?;
        }
        Some(_) => return Ok(()),
        None => {
            let dropped = NameClaim::Fork(dropped_now(record, options));
            if names.claim(&record.name, &dropped).await?.is_some() {
                return Ok(());
            }
            // Who has created a state meanwhile has given the name back already.
            if storage.has_state(&record.name).await? {
                return names.give_back_own(&record.name, &record.id).await;
            }
        }
    }
    drop_fork(storage, &record.name, options).await.map(drop)
}

/// What its own maker says of a fork that he drops.
fn dropped_now(record: &ForkRecord, options: &LogOptions) -> ForkRecord {
    let dropped_ms = Some(options.clock.now_ms());
    ForkRecord { finished: true, dropped_ms, ..record.clone() }
}

/// Where the archive of a whole fork lies as it is set now; `None` where the fork can't be opened.
async fn archive_of(storage: &Storage, name: &str, options: &LogOptions) -> Option<Option<String>> {
    let options = LogOptions { background_checkpoints: false, ..options.clone() };
    let log = match Log::open(storage, name, options).await {
        Ok(log) => log?,
        Err(error) => {
            tracing::warn!(fork = name, %error, "the fork to be dropped can't be opened");
            return None;
        }
    };
    log.maintenance_settings().ok().map(|settings| settings.archive)
}

/// The store of an archive that lies elsewhere.
fn archive_home(record: &ForkRecord, options: &LogOptions) -> Result<Option<Storage>> {
    match (&record.archive, &options.archive) {
        (None, _) => Ok(None),
        (Some(_), Some(given)) => Ok(Some(given.clone())),
        (Some(uri), None) => Storage::open(uri, options.durability).map(Some),
    }
}

fn check_left_over(record: &ForkRecord, clock: &dyn Clock) -> Result<()> {
    if is_left_over(record, 0, clock.now_ms()) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Conflict,
        format!(
            "{}; it can be dropped then, or when nobody has worked on it for an hour",
            told_unfinished(record)
        ),
    ))
}

async fn no_fork(storage: &Storage, names: &NameFolder, name: &str) -> Error {
    match storage.has_state(name).await {
        Ok(true) => {
            return Error::invalid(format!(
                "the state {name} is no fork, and only forks can be dropped; nothing was removed"
            ));
        }
        Ok(false) => {}
        Err(error) => return error,
    }
    let known = match names.forks().await {
        Ok(forks) => forks.iter().map(|fork| fork.name.clone()).collect::<Vec<_>>(),
        Err(error) => return error,
    };
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Error::new(ErrorKind::NotFound, format!("there is no fork {name:?}: there is {known}"))
}

/// A fork whose record says that it is dropped.
struct Dropping<'a> {
    names: &'a NameFolder,
    record: &'a ForkRecord,
}

impl Dropping<'_> {
    /// Removes what a reading of the log may begin with, what others build on last: then there is no state any more.
    async fn close(&self, storage: &Storage) -> Result<()> {
        let store = storage.object_store();
        let folder = Path::from(log_path(&self.record.name)).join("_delta_log");
        for _ in 0..MAX_LISTINGS {
            let mut gates: Vec<Path> = list(store, &folder).await?;
            gates.retain(|path| is_gate(path.filename().unwrap_or_default()));
            if gates.is_empty() {
                return Ok(());
            }
            // Names begin with the version, but for the hint, which goes first; the first commit goes last.
            gates.sort_by_cached_key(|path| {
                let name = path.filename().unwrap_or_default().to_owned();
                (name == FIRST, !name.starts_with('_'), std::cmp::Reverse(name))
            });
            for gate in gates {
                self.check().await?;
                remove(store, &gate).await?;
            }
        }
        Err(busy(&self.record.name))
    }

    async fn remove_all(&self, storage: &Storage, folder: &Path) -> Result<u64> {
        let store = storage.object_store();
        let mut removed = 0;
        for _ in 0..MAX_LISTINGS {
            let found = list(store, folder).await?;
            if found.is_empty() {
                return Ok(removed);
            }
            for chunk in found.chunks(REMOVE_CONCURRENCY) {
                self.check().await?;
                let removals: Vec<_> = chunk.iter().map(|path| remove(store, path)).collect();
                try_join_all(removals).await?;
                removed += chunk.len() as u64;
            }
        }
        Err(busy(folder.as_ref()))
    }

    /// Makes sure that the name is not another fork's by now, because somebody else has dropped this one too, and that nobody goes on
    /// making it.
    async fn check(&self) -> Result<()> {
        match self.names.fork(&self.record.name).await? {
            Some(found) if found.id == self.record.id && found.dropped_ms.is_some() => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "another process has dropped the fork {}, or goes on making it: look at `alluvium fork list`",
                    self.record.name
                ),
            )),
        }
    }
}

const FIRST: &str = "00000000000000000000.json";

fn is_gate(name: &str) -> bool {
    let is_checkpoint = name.len() > 20
        && name.is_char_boundary(20)
        && name.as_bytes()[..20].iter().all(u8::is_ascii_digit)
        && name[20..].starts_with(".checkpoint.");
    name == FIRST || name == "_last_checkpoint" || is_checkpoint
}

fn busy(place: &str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("somebody still writes to {place}: stop who does, and drop the fork again"),
    )
}

async fn list(store: &Arc<dyn ObjectStore>, folder: &Path) -> Result<Vec<Path>> {
    let listed = store.list(Some(folder)).map_ok(|meta| meta.location).try_collect().await;
    listed.map_err(|error| Error::from(error).context(folder))
}

async fn remove(store: &Arc<dyn ObjectStore>, path: &Path) -> Result<()> {
    match store.delete(path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(Error::from(error).context(path)),
    }
}
