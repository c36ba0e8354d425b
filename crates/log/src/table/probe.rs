//! Whether anything was committed after what is known here, told by one look at the disk.
//!
//! [`Table::refresh`] looks at the newest known commit's file (is this still the table that was opened?) and asks for the
//! one after it, each on another thread. Where the table lies in a folder of this machine, one system call answers the
//! second question; the first one is asked again every [`IDENTITY_INTERVAL`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Table;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::FolderProbe;

/// How long a look at the disk may rely on the table's folder being the one that was opened. A commit is seen at once
/// whatever this is; that the folder was removed or replaced under a running process, or that a commit was taken out of its
/// row, is noticed within it.
const IDENTITY_INTERVAL: Duration = Duration::from_millis(50);

/// A hole of at most so many commits is looked over when a log is opened without being listed.
const WIDEST_HOLE: i64 = 64;

/// A probe of a table's log folder, and when the folder was last known to be the table's.
#[derive(Debug)]
pub(super) struct CommitProbe {
    folder: FolderProbe,
    origin: Instant,
    /// Microseconds from `origin` on, plus one; 0 while it was never known.
    identified: AtomicU64,
}

impl CommitProbe {
    pub(super) fn new(folder: FolderProbe) -> Self {
        Self { folder, origin: Instant::now(), identified: AtomicU64::new(0) }
    }

    /// Tells the names of the files of the log folder.
    pub(super) fn each_name(&self, note: impl FnMut(&str)) -> std::io::Result<()> {
        self.folder.each_name(note)
    }

    fn now_micros(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX - 1) + 1
    }

    fn is_identified(&self) -> bool {
        let limit = u64::try_from(IDENTITY_INTERVAL.as_micros()).unwrap_or(u64::MAX);
        let identified = self.identified.load(Ordering::Acquire);
        identified > 0 && self.now_micros().saturating_sub(identified) < limit
    }
}

impl Table {
    /// The newest version, if it is known here already. `None` means that only [`Table::refresh`] can tell.
    ///
    /// Never waits, and allocates nothing. It sees what any process has committed before it was called.
    pub fn probe(&self) -> Option<i64> {
        let probe = self.probe.as_ref()?;
        if !probe.is_identified() {
            return None;
        }
        let known = || self.state.read().version;
        let look = || {
            let version = known();
            let name = commit_name(version.checked_add(1)?)?;
            match probe.folder.holds(std::str::from_utf8(&name).ok()?) {
                Ok(Some(false)) => Some(version),
                // Something new, or a disk that doesn't answer: the long way tells which.
                _ => None,
            }
        };
        probe.folder.settled(known, look)
    }

    /// Whether the table's folder is known to be gone, told without waiting.
    pub(crate) fn is_removed(&self) -> bool {
        self.probe.as_ref().is_some_and(|probe| probe.folder.is_removed().unwrap_or(true))
    }

    /// Whether a commit of this number lies in the log, told without waiting; `None` where only a look over a thread can tell.
    pub(super) fn probe_commit(&self, version: i64) -> Option<bool> {
        let probe = self.probe.as_ref()?;
        let name = commit_name(version)?;
        let mark = probe.folder.mark(std::str::from_utf8(&name).ok()?).ok()?;
        Some(mark.is_some())
    }

    /// A commit's bytes, where they are in memory.
    pub(super) fn probe_bytes(&self, version: i64) -> Option<bytes::Bytes> {
        let name = commit_name(version)?;
        self.probe.as_ref()?.folder.cached(std::str::from_utf8(&name).ok()?)
    }

    /// The hint of the newest checkpoint, where it is in memory.
    pub(super) fn probe_hint(&self) -> Option<bytes::Bytes> {
        self.probe.as_ref()?.folder.cached("_last_checkpoint")
    }

    /// Whether a version is the newest one of the log, told without listing it: no commit is there where the next ones would be,
    /// and since this one, or since what an opening reads beside it, nothing came to the log's folder or went from it.
    /// False is no more than that this can't tell.
    pub(super) fn is_plainly_newest(&self, version: i64, beside: &[&str]) -> bool {
        let Some(probe) = &self.probe else { return false };
        let Some(name) = commit_name(version) else { return false };
        let Ok(name) = std::str::from_utf8(&name) else { return false };
        let is_there = |version: i64| self.probe_commit(version);
        let last = version.saturating_add(WIDEST_HOLE + 1);
        (version + 1..=last).all(|next| is_there(next) == Some(false))
            && is_there(version) == Some(true)
            && probe.folder.is_settled_since(&[&[name], beside].concat()).unwrap_or(false)
    }

    /// What [`Table::look_at`] gives, where one system call can tell.
    pub(super) fn probe_mark(&self, version: i64) -> Option<Result<Option<String>>> {
        let probe = self.probe.as_ref()?;
        let name = commit_name(version)?;
        let name = std::str::from_utf8(&name).ok()?;
        Some(probe.folder.mark(name).map_err(|error| {
            Error::new(ErrorKind::Storage, format!("{name} can't be looked at")).with_source(error)
        }))
    }

    /// Notes that the table's folder is, at this moment, the one that was opened.
    pub(super) fn note_identity(&self) {
        let Some(probe) = &self.probe else { return };
        let now = probe.now_micros();
        // A folder that can't be opened makes reads go the long way, which then tells what is wrong.
        let identified = if probe.folder.renew().is_ok() { now } else { 0 };
        probe.identified.store(identified, Ordering::Release);
    }
}

/// The name of a commit's file, made on the stack.
fn commit_name(version: i64) -> Option<[u8; 25]> {
    let mut name = *b"00000000000000000000.json";
    let mut rest = u64::try_from(version).ok()?;
    for digit in name.iter_mut().take(20).rev() {
        *digit = b'0' + u8::try_from(rest % 10).ok()?;
        rest /= 10;
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_are_those_of_commits() {
        for version in [0, 7, 1_234_567_890, i64::MAX] {
            let name = commit_name(version).unwrap();
            assert_eq!(std::str::from_utf8(&name).unwrap(), format!("{version:020}.json"));
        }
        assert_eq!(commit_name(-1), None);
    }
}
