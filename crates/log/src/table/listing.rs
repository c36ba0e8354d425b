//! What lies in a table's log folder: commits, checkpoints, what belongs to them, and left-overs; and from where a version
//! can be made of it.

use std::collections::{BTreeMap, BTreeSet};

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use super::Table;
use crate::error::Result;

/// What a file of the log folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LogFileKind {
    /// `N.json`.
    Commit,
    /// A checksum of a version, or several commits in one file: derived from commits, and of no use without them.
    Derived,
    /// A checkpoint, or a part of one.
    Checkpoint,
}

/// A file of the log folder that belongs to a version; the least one when it belongs to several.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LogFile {
    pub(super) version: i64,
    pub(super) kind: LogFileKind,
    pub(super) meta: ObjectMeta,
}

/// The files of a table's log folder.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LogListing {
    /// The versions that have a commit, ascending.
    pub(super) commits: Vec<i64>,
    /// The versions that have a whole checkpoint.
    pub(super) checkpoints: BTreeSet<i64>,
    /// All of the above file by file, and what is derived from them.
    pub(super) files: Vec<LogFile>,
    /// Left-overs of writers that died before they gave a file its name.
    pub(super) temporary: Vec<ObjectMeta>,
    /// Parts found of checkpoints of several parts, by version and number of parts.
    parts: BTreeMap<(i64, u64), BTreeSet<u64>>,
}

/// Where the reading of a version may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// With the checkpoint of this version.
    Checkpoint(i64),
    /// With the first commit.
    First,
}

/// How often a folder is listed at most, for a listing without a hole.
const MAX_LISTINGS: u32 = 4;

impl Table {
    /// Lists the log folder.
    pub(super) async fn list_log(&self) -> Result<LogListing> {
        self.list_without_hole(false).await
    }

    /// Lists which commits and checkpoints there are, which costs less on a local disk: nothing is asked about each file.
    pub(super) async fn list_versions(&self) -> Result<LogListing> {
        self.list_without_hole(true).await
    }

    /// A folder that changes while it is listed may show a commit and not the one before it: then it is listed again.
    /// A hole that stays is one of the log.
    async fn list_without_hole(&self, names_only: bool) -> Result<LogListing> {
        let mut listing = self.list_once(names_only).await?;
        for _ in 1..MAX_LISTINGS {
            if !listing.has_hole() {
                break;
            }
            let again = self.list_once(names_only).await?;
            if again == listing {
                break;
            }
            listing = again;
        }
        Ok(listing)
    }

    async fn list_once(&self, names_only: bool) -> Result<LogListing> {
        if let Some(probe) = self.probe.clone().filter(|_| names_only) {
            let list = move || {
                let mut listing = LogListing::default();
                let noted = probe.each_name(|name| {
                    listing.note_version(name);
                });
                noted.map(|()| listing.complete())
            };
            // Where that fails, the object store's own words tell what is wrong.
            if let Ok(Ok(listing)) = tokio::task::spawn_blocking(list).await {
                return Ok(listing);
            }
        }
        let mut listing = LogListing::default();
        let folder = Path::from("_delta_log");
        let mut entries = self.store.list(Some(&folder));
        while let Some(meta) = entries.try_next().await.map_err(|e| self.placed(e.into()))? {
            // Only files straight in the log folder count.
            if meta.location.parts().count() == 2 {
                listing.note(meta);
            }
        }
        Ok(listing.complete())
    }
}

/// The version that a name begins with, and the rest of the name.
fn versioned(name: &str) -> Option<(i64, &str)> {
    let (digits, rest) = name.split_at_checked(20)?;
    let version = digits.bytes().try_fold(0_i64, |version, byte| {
        let digit = byte.is_ascii_digit().then(|| i64::from(byte - b'0'))?;
        version.checked_mul(10)?.checked_add(digit)
    });
    Some((version?, rest))
}

/// Reads `.checkpoint.<part>.<parts>.parquet`.
fn part_of(rest: &str) -> Option<(u64, u64)> {
    let numbers = rest.strip_prefix(".checkpoint.")?.strip_suffix(".parquet")?;
    let (part, parts) = numbers.split_once('.')?;
    Some((part.parse().ok()?, parts.parse().ok()?))
}

impl LogListing {
    fn note(&mut self, meta: ObjectMeta) {
        let name = meta.location.filename().unwrap_or_default().to_owned();
        match self.note_version(&name) {
            Some((version, kind)) => self.files.push(LogFile { version, kind, meta }),
            None if name.ends_with(".tmp") => self.temporary.push(meta),
            None => {}
        }
    }

    /// Notes what a file's name says; gives what it is, unless it is none of the log's.
    fn note_version(&mut self, name: &str) -> Option<(i64, LogFileKind)> {
        // Hadoop keeps checksums of files beside them, under hidden names.
        let plain = name.strip_prefix('.').filter(|rest| rest.ends_with(".crc")).unwrap_or(name);
        let (version, rest) = versioned(plain)?;
        let kind = if rest == ".json" {
            self.commits.push(version);
            LogFileKind::Commit
        } else if rest.ends_with(".crc")
            || rest.ends_with(".compacted.json")
            || rest == ".alluvium.json"
        {
            LogFileKind::Derived
        } else if let Some((part, parts)) = part_of(rest) {
            self.parts.entry((version, parts)).or_default().insert(part);
            LogFileKind::Checkpoint
        } else if rest.starts_with(".checkpoint.")
            && (rest.ends_with(".parquet") || rest.ends_with(".json"))
        {
            self.checkpoints.insert(version);
            LogFileKind::Checkpoint
        } else {
            return None;
        };
        Some((version, kind))
    }

    /// The listing when everything is noted.
    fn complete(mut self) -> Self {
        self.commits.sort_unstable();
        let whole = self.parts.iter().filter(|((_, of), found)| found.len() as u64 == *of);
        let whole: Vec<i64> = whole.map(|((version, _), _)| *version).collect();
        self.checkpoints.extend(whole);
        self
    }

    /// Whether a commit is missing between others.
    fn has_hole(&self) -> bool {
        self.commits.windows(2).any(|pair| pair[0] + 1 < pair[1])
    }

    /// The newest checkpoint from which a version, and every one after it, can be read.
    pub(super) fn base_for(&self, version: i64) -> Option<i64> {
        let lowest = self.first_of_run(self.newest()?).saturating_sub(1);
        // A commit that is missing after the version leaves none.
        let bases = (lowest <= version).then(|| self.checkpoints.range(lowest..=version));
        bases.and_then(|mut bases| bases.next_back()).copied()
    }

    /// The newest version.
    pub(super) fn newest(&self) -> Option<i64> {
        self.commits.last().copied().max(self.checkpoints.last().copied())
    }

    /// The least version from which on there is a commit for each up to `version`; one more when `version` has none.
    pub(super) fn first_of_run(&self, version: i64) -> i64 {
        let mut first = version + 1;
        let up_to = self.commits.partition_point(|commit| *commit <= version);
        for commit in self.commits.iter().take(up_to).rev() {
            if *commit + 1 != first {
                break;
            }
            first = *commit;
        }
        first
    }

    /// From where a version can be made: the nearest place first.
    pub(super) fn origins(&self, version: i64) -> Vec<Origin> {
        let first = self.first_of_run(version);
        let checkpoints = self.checkpoints.range(first.saturating_sub(1)..=version).rev();
        let mut origins: Vec<Origin> = checkpoints.map(|at| Origin::Checkpoint(*at)).collect();
        if first == 0 {
            origins.push(Origin::First);
        }
        origins
    }

    /// The first commit that is missing after the newest checkpoint.
    pub(super) fn gap(&self) -> i64 {
        let first = self.checkpoints.last().map_or(0, |version| version + 1);
        let needed = self.commits.iter().copied().filter(|version| *version >= first);
        let mut expected = first;
        for version in needed {
            if version != expected {
                break;
            }
            expected += 1;
        }
        expected
    }

    /// The oldest version that can be read, of those from which every later one up to the newest can be read too.
    pub(super) fn oldest_readable(&self) -> Option<i64> {
        let origins = self.origins(self.newest()?);
        origins.last().map(|origin| match origin {
            Origin::Checkpoint(version) => *version,
            Origin::First => 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(commits: impl IntoIterator<Item = i64>, checkpoints: &[i64]) -> LogListing {
        let mut listing = LogListing::default();
        for version in commits {
            listing.note_version(&format!("{version:020}.json"));
        }
        for version in checkpoints {
            listing.note_version(&format!("{version:020}.checkpoint.parquet"));
        }
        listing.complete()
    }

    #[test]
    fn a_base_has_every_commit_after_it_whatever_is_missing() {
        for missing in 0..=31 {
            let found = listing((0..=30).filter(|version| *version != missing), &[0, 10, 20]);
            assert_eq!(found.has_hole(), (1..30).contains(&missing), "{missing}");
            for version in 0..=30 {
                let base = found.base_for(version);
                let is_whole = |base: &i64| missing <= *base || missing >= 30;
                let wanted = [20, 10, 0].into_iter().find(|base| *base <= version);
                assert_eq!(base, wanted.filter(is_whole), "{version} without {missing}");
            }
        }
    }
}
