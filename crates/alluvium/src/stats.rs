//! What lies in a state, told from the tables' metadata alone.

use std::collections::BTreeSet;

use alluvium_log::{DT, OrderBy};
use alluvium_query::Basis;
use serde::Serialize;

/// Figures of one state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StateStats {
    /// The state.
    pub state: String,
    /// What it is ordered by.
    pub order_by: OrderBy,
    /// The newest log commit.
    pub commit: i64,
    /// When the newest commit was made, in milliseconds since 1970; 0 when it is only known from a checkpoint.
    pub commit_time_ms: i64,
    /// Rows of the log.
    pub log_rows: u64,
    /// Files of the log.
    pub log_files: u64,
    /// Bytes of the log's files.
    pub log_bytes: u64,
    /// UTC days that the log has rows of.
    pub log_days: u64,
    /// The first of those days.
    pub first_day: Option<String>,
    /// The last of those days.
    pub last_day: Option<String>,
    /// The snapshot table's version; -1 without a snapshot.
    pub snapshot_version: i64,
    /// The log commit up to which the snapshot folds.
    pub snapshot_commit: i64,
    /// Keys with a value in the snapshot; not known while it has runs.
    pub snapshot_live_keys: Option<u64>,
    /// Deleted keys that the snapshot remembers.
    pub snapshot_tombstones: u64,
    /// Rows of the snapshot's files.
    pub snapshot_rows: u64,
    /// Base files of the snapshot.
    pub base_files: u64,
    /// Run files of the snapshot.
    pub run_files: u64,
    /// Bytes of the snapshot's files.
    pub snapshot_bytes: u64,
    /// Commits that the snapshot does not fold yet.
    pub tail_commits: i64,
    /// Rows of those commits.
    pub tail_rows: u64,
}

impl StateStats {
    pub(crate) fn of(state: &str, basis: &Basis) -> Self {
        let (log, snapshot) = (basis.log(), basis.snapshot());
        let rows = |file: &std::sync::Arc<alluvium_log::DataFile>| file.stats.rows.unwrap_or(0);
        let days: BTreeSet<String> =
            log.files().filter_map(|file| file.add.partition.get(DT).cloned().flatten()).collect();
        Self {
            state: state.to_owned(),
            order_by: basis.definition().order_by,
            commit: basis.commit(),
            commit_time_ms: log.timestamp_ms,
            log_rows: log.files().map(rows).sum(),
            log_files: log.file_count() as u64,
            log_bytes: log.files().map(|file| file.add.size).sum(),
            log_days: days.len() as u64,
            first_day: days.first().cloned(),
            last_day: days.last().cloned(),
            snapshot_version: snapshot.version(),
            snapshot_commit: snapshot.log_commit(),
            snapshot_live_keys: snapshot.live_keys(),
            snapshot_tombstones: snapshot.tombstones(),
            snapshot_rows: snapshot.rows(),
            base_files: snapshot.base().len() as u64,
            run_files: snapshot.runs().len() as u64,
            snapshot_bytes: snapshot.bytes(),
            tail_commits: basis.commit() - snapshot.log_commit(),
            tail_rows: log.files_after(snapshot.log_commit()).map(rows).sum(),
        }
    }
}
