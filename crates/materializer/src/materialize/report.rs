//! How to materialize, and what a materialization did.

use std::sync::Arc;
use std::time::Duration;

use alluvium_log::FooterCache;
use serde::Serialize;

use crate::fold::FoldSettings;
use crate::layout::LayoutSettings;

/// How to materialize.
#[derive(Debug, Clone)]
pub struct MaterializeOptions {
    /// Memory, batches, spilling.
    pub fold: FoldSettings,
    /// Fold the whole log anew instead of the tail; what of it has expired is taken from the oldest snapshot that holds it.
    pub rebuild: bool,
    /// When there are runs, and how large files are.
    pub layout: LayoutSettings,
    /// Footers of files, shared with readers.
    pub footers: Arc<FooterCache>,
}

/// What a materialization did to the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The log has no commit that the snapshot lacks: no commit was made.
    UpToDate,
    /// No row changes the state (late ones, repeated ones): only the progress was recorded.
    ProgressOnly,
    /// The changes were written as a run beside the base.
    Run,
    /// The changes were merged into the base.
    Merged,
    /// Nothing was folded; small files of the base became one with their neighbours.
    Joined,
    /// The base was made anew from the whole log, or from the oldest snapshot that holds what has expired and the log since.
    Rebuilt,
}

/// What a materialization did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MaterializeReport {
    /// What became of the snapshot.
    pub change: Change,
    /// The log commit up to which the snapshot folded before.
    pub from_commit: i64,
    /// The log commit up to which it folds now.
    pub to_commit: i64,
    /// The snapshot table's Delta version now.
    pub snapshot_version: i64,
    /// Rows of the log that were folded.
    pub rows_folded: u64,
    /// Keys whose newest change was older than, or the same as, what the snapshot holds; unknown where it was not looked up.
    pub stale_keys: Option<u64>,
    /// Conflicting ties that were decided: rows of one key with the same version and event time, and another operation or value.
    pub conflicting_ties: u64,
    /// Tombstones at or below the floor that the snapshot is without from now on.
    pub tombstones_forgotten: u64,
    /// Rows written to the snapshot.
    pub rows_written: u64,
    /// Bytes written to the snapshot.
    pub bytes_written: u64,
    /// Files added and removed.
    pub files_added: u64,
    /// Files that are no longer part of the snapshot.
    pub files_removed: u64,
    /// How long it took.
    pub elapsed: Duration,
}
