//! What an erase did: names of files and numbers of commits, and of the keys only their markers, so that it may be kept.

use alluvium_log::Marked;
use serde::{Deserialize, Serialize};

/// A file that held rows of the keys and is no longer part of its table, or of a savepoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErasedFile {
    /// Where it lies, from the store's root.
    pub path: String,
    /// The savepoint that had it; none for one of a table's newest version.
    pub savepoint: Option<String>,
    /// The files that hold its other rows now; none when it had no others.
    pub rewritten_as: Vec<String>,
    /// Rows of the keys in it.
    pub rows_removed: u64,
}

/// A file that holds rows of the keys and stays until no read can need it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingFile {
    /// Where it lies, from the store's root.
    pub path: String,
    /// Its bytes.
    pub bytes: u64,
    /// When a vacuum may remove it at the latest, in milliseconds since 1970.
    pub until_ms: i64,
}

/// What an erase did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EraseReceipt {
    /// The state.
    pub state: String,
    /// When it began, in milliseconds since 1970.
    pub erased_ms: i64,
    /// The marker of each key, in the order given: its keyed hash.
    pub markers: Vec<String>,
    /// The commit of the log that marked the keys; none when they were marked before.
    pub marker_commit: Option<i64>,
    /// The commits of the log that took the rows out.
    pub log_commits: Vec<i64>,
    /// The versions of the snapshot's table that took the rows out of it, or ended the folds that began before.
    pub snapshot_versions: Vec<i64>,
    /// Rows that left log and archive.
    pub rows_removed: u64,
    /// The savepoints that have other files now, those of the grid too: their answers lack the keys.
    pub savepoints: Vec<String>,
    /// The files that were rewritten.
    pub files: Vec<ErasedFile>,
    /// The files of the Delta logs that named the keys, and don't any more.
    pub redacted: Vec<String>,
    /// The files that were removed at once: left-overs of dead writers, and with `now` all that held the keys.
    pub removed: Vec<String>,
    /// The files that hold the keys until a vacuum removes them.
    pub pending: Vec<PendingFile>,
    /// Files that are part of nothing and can't be read: whether they hold the keys is not known; a vacuum removes them.
    pub unreadable: Vec<String>,
    /// Files that a repair, or a reader of checkpoints, set aside as damaged: they are not looked into, and may hold the keys. Remove
    /// them by hand.
    pub set_aside: Vec<String>,
    /// What was done in the forks that come from the state, each with a receipt of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forks: Vec<EraseReceipt>,
    /// A vacuum at or after this time, of the forks too, leaves nothing of the keys, in milliseconds since 1970; none when nothing is left already.
    pub nothing_left_after_ms: Option<i64>,
}

impl EraseReceipt {
    pub(super) fn new(state: &str, erased_ms: i64, marked: Marked) -> Self {
        Self {
            state: state.to_owned(),
            erased_ms,
            markers: marked.markers,
            marker_commit: marked.commit,
            log_commits: Vec::new(),
            snapshot_versions: Vec::new(),
            rows_removed: 0,
            savepoints: Vec::new(),
            files: Vec::new(),
            redacted: Vec::new(),
            removed: Vec::new(),
            pending: Vec::new(),
            unreadable: Vec::new(),
            set_aside: Vec::new(),
            forks: Vec::new(),
            nothing_left_after_ms: None,
        }
    }

    /// Whether anything was changed that others may have in memory.
    pub(super) fn has_changed(&self) -> bool {
        !self.log_commits.is_empty()
            || !self.snapshot_versions.is_empty()
            || !self.savepoints.is_empty()
    }
}
