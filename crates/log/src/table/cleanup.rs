//! Removing commits and checkpoints that no kept version needs, off the path of commits.
//!
//! A version is kept when it was the newest one at some moment of the retention. The oldest kept version needs one
//! checkpoint at or before it, and all commits since. What lies before that checkpoint goes, oldest first: so at each instant,
//! also if this is killed half-way, every kept version can be read, and so can whatever is left of the older ones.

use std::collections::BTreeMap;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStoreExt};
use serde::{Deserialize, Serialize};

use super::Table;
use super::listing::{LogFile, LogFileKind, LogListing, Origin};
use super::load::{commit_time, is_of_log};
use super::state::TableState;
use crate::error::{Error, ErrorKind, Result};

/// Commits that are read at the same time to learn their times.
const READ_CONCURRENCY: usize = 16;
/// A temporary file this old belongs to nobody any more.
const STALE_TEMPORARY_MS: i64 = 86_400_000;

/// What a clean-up of a table's log removed, or would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanUpReport {
    /// The oldest version that can be read afterwards.
    pub oldest_version: i64,
    /// Commits removed.
    pub commits_removed: u64,
    /// Files of checkpoints removed.
    pub checkpoint_files_removed: u64,
    /// Checksums, merged commits and left-overs removed.
    pub other_files_removed: u64,
    /// Bytes of all of them.
    pub bytes_removed: u64,
    /// Why nothing more was removed.
    pub reason: String,
}

impl CleanUpReport {
    fn count(&mut self, kind: Option<LogFileKind>, bytes: u64) {
        let counter = match kind {
            Some(LogFileKind::Commit) => &mut self.commits_removed,
            Some(LogFileKind::Checkpoint) => &mut self.checkpoint_files_removed,
            Some(LogFileKind::Derived) | None => &mut self.other_files_removed,
        };
        *counter += 1;
        self.bytes_removed += bytes;
    }
}

/// The version that was the newest at the beginning of the retention, and why none younger is.
struct Boundary {
    version: Option<i64>,
    reason: String,
}

impl Boundary {
    /// The same, or the oldest version that a reader holds where that is older; what can't be read anyway is held otherwise.
    fn up_to_held(self, held: &BTreeMap<i64, String>, oldest_readable: i64) -> Self {
        match (self.version, held.range(oldest_readable..).next()) {
            (Some(version), Some((oldest, holder))) if *oldest < version => Self {
                version: Some(*oldest),
                reason: format!("version {oldest} is held by a lease of {holder}"),
            },
            _ => self,
        }
    }
}

impl Table {
    /// Removes the commits and checkpoints that no version of the last `retention_ms` needs.
    pub async fn clean_up(&self, retention_ms: i64, dry_run: bool) -> Result<CleanUpReport> {
        let _alone = self.cleaning.lock().await;
        // The time first: what is held by a lease that is written from now on is within the retention.
        let now_ms = self.clock.now_ms();
        let held = self.held_versions(now_ms).await?;
        let state = self.refresh().await?;
        let listing = self.list_log().await?;
        let mut report = CleanUpReport {
            oldest_version: listing.oldest_readable().unwrap_or(state.version),
            ..CleanUpReport::default()
        };
        let boundary = self.boundary(&listing, &state, now_ms.saturating_sub(retention_ms)).await?;
        let boundary = boundary.up_to_held(&held, report.oldest_version);
        report.reason = boundary.reason;
        let base = match boundary.version {
            Some(version) => self.proved_base(&listing, version).await?,
            None => None,
        };
        if let Some(base) = base {
            for file in files_before(&listing, base) {
                if dry_run || self.remove(&file.meta).await? {
                    report.count(Some(file.kind), file.meta.size);
                }
            }
            report.oldest_version = base;
        }
        for meta in listing.temporary.iter().filter(|meta| is_stale(meta, now_ms)) {
            if dry_run || self.remove(meta).await? {
                report.count(None, meta.size);
            }
        }
        if !dry_run {
            metrics::counter!(crate::metrics::COMMITS_CLEANED_UP).increment(report.commits_removed);
        }
        Ok(report)
    }

    /// The newest checkpoint from which a version and all later ones can be read, once that is shown: what would be left has to be whole
    /// before anything else goes. One that can't be read is passed over for an older one.
    async fn proved_base(&self, listing: &LogListing, version: i64) -> Result<Option<i64>> {
        let mut version = version;
        while let Some(base) = listing.base_for(version) {
            if files_before(listing, base).is_empty() {
                return Ok(Some(base));
            }
            match self.load_origin(Origin::Checkpoint(base), base).await {
                Ok(_) => return Ok(Some(base)),
                Err(error) if is_of_log(&error) => {
                    tracing::warn!(table = %self.label, base, %error, "a checkpoint can't be read; cleaning up before an older one");
                    version = base - 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Reads commits, oldest first, up to the first one of the retention.
    async fn boundary(
        &self,
        listing: &LogListing,
        state: &TableState,
        cutoff_ms: i64,
    ) -> Result<Boundary> {
        let newest_base = listing.checkpoints.last().copied();
        let Some(last) = newest_base else {
            return Ok(Boundary { version: None, reason: "there is no checkpoint".to_owned() });
        };
        let candidates: Vec<i64> =
            listing.commits.iter().copied().filter(|version| *version <= last).collect();
        let mut times = stream::iter(candidates)
            .map(|version| {
                async move {
                    let commit = match self.read_commit(version).await {
                        // When it was made is not known: no later than what comes after it.
                        Err(error) if error.kind() == ErrorKind::Corrupt => None,
                        commit => Some(commit?),
                    };
                    Ok::<_, Error>((version, commit))
                }
                .boxed()
            })
            .buffered(READ_CONCURRENCY);
        let (mut kept, mut effective) = (None, i64::MIN);
        let mut reason = "the newest checkpoint is reached".to_owned();
        while let Some((version, commit)) = times.try_next().await? {
            let Some(commit) = commit else {
                effective = effective.saturating_add(1);
                continue;
            };
            // Times increase with the versions, whatever the clocks of the writers said.
            let given = commit.as_deref().and_then(commit_time).unwrap_or(i64::MIN);
            effective = given.max(effective.saturating_add(1));
            if effective > cutoff_ms {
                reason = format!("version {version} and later ones are within the retention");
                break;
            }
            kept = Some(version);
        }
        let telling = state.oldest_telling_commit().map(|version| version - 1);
        if let Some(telling) = telling.filter(|telling| kept.is_some_and(|kept| *telling < kept)) {
            reason = format!(
                "commit {} tells which commits the rows of a file of another engine have: compact the file first",
                telling + 1
            );
            kept = Some(telling);
        }
        Ok(Boundary { version: kept, reason })
    }

    /// Removes a file; false when it was gone already.
    pub(super) async fn remove(&self, meta: &ObjectMeta) -> Result<bool> {
        match self.store.delete(&meta.location).await {
            Ok(()) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.placed(error.into())),
        }
    }
}

/// The files that are of no use for a version and those after it, in the order of their removal.
fn files_before(listing: &LogListing, base: i64) -> Vec<&LogFile> {
    let mut files: Vec<&LogFile> =
        listing.files.iter().filter(|file| file.version < base).collect();
    files.sort_by_key(|file| (file.version, file.kind));
    files
}

fn is_stale(meta: &ObjectMeta, now_ms: i64) -> bool {
    now_ms.saturating_sub(meta.last_modified.timestamp_millis()) > STALE_TEMPORARY_MS
}
