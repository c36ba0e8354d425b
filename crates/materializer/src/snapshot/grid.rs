//! The grid of snapshots that stay readable beyond the as-of window: records like those of savepoints, made and released by the
//! periodic job.
//!
//! A mark of the grid is over when it is looked at; the snapshot that was the newest then is found among the versions that are still
//! whole, and those that are kept already. So the job may run seldom, as long as it does once within the window.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use alluvium_log::{Error, ErrorKind, LEAST_FILE_RETENTION_MS, Result};
use serde::{Deserialize, Serialize};

use super::savepoints::Savepoint;
use super::{Snapshot, SnapshotState};

/// What was done for the grid of snapshots, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridReport {
    /// Snapshots that the grid keeps afterwards.
    pub kept: u64,
    /// Those that were not kept before.
    pub added: u64,
    /// Those that no mark asks for any more; their files go with a vacuum when no read can last so long.
    pub released: u64,
}

/// A version that may be the newest one at a mark.
enum Candidate {
    Whole(SnapshotState),
    Kept(Arc<Savepoint>),
}

impl Candidate {
    fn made_ms(&self) -> i64 {
        match self {
            Self::Whole(state) => state.made_ms().unwrap_or(0),
            Self::Kept(savepoint) => savepoint.made_ms,
        }
    }
}

impl Snapshot {
    /// Keeps the snapshots that the state's `snapshot_grid` asks for, and lets go of those that it asks for no more.
    pub(crate) async fn keep_grid(&self, dry_run: bool) -> Result<GridReport> {
        let grid = self.inner.log.maintenance_settings()?.snapshot_grid;
        let kept = self.grid_snapshots().await?;
        let mut report = GridReport::default();
        if grid.is_none() && kept.is_empty() {
            return Ok(report);
        }
        let now_ms = self.inner.log.clock().now_ms();
        // Versions that fold the same commits are one: the oldest of them, or the one that is kept.
        let mut candidates: BTreeMap<i64, Candidate> = BTreeMap::new();
        let current = self.refresh().await?;
        self.visit(&current, |known| {
            if known.log_commit() > 0 && known.made_ms().is_some() && known.is_ours() {
                candidates.insert(known.log_commit(), Candidate::Whole(known.clone()));
            }
            ControlFlow::Continue(())
        })
        .await?;
        for savepoint in kept {
            let other = candidates.insert(savepoint.log_commit, Candidate::Kept(savepoint));
            if let Some(Candidate::Kept(twin)) = other
                && !dry_run
            {
                self.release(&self.record_path(&twin), &twin).await?;
            }
        }
        let made: Vec<i64> = candidates.values().map(Candidate::made_ms).collect();
        let marks = grid.marks(&made, now_ms);
        for (candidate, is_marked) in candidates.into_values().zip(marks) {
            match (candidate, is_marked) {
                (Candidate::Whole(state), true) => {
                    report.kept += 1;
                    report.added += 1;
                    if !dry_run {
                        self.keep_at_mark(&state, now_ms).await?;
                    }
                }
                (Candidate::Kept(_), true) => report.kept += 1,
                (Candidate::Kept(savepoint), false) => {
                    report.released += 1;
                    if !dry_run {
                        self.release(&self.record_path(&savepoint), &savepoint).await?;
                    }
                }
                (Candidate::Whole(_), false) => {}
            }
        }
        Ok(report)
    }

    async fn keep_at_mark(&self, state: &SnapshotState, begun_ms: i64) -> Result<()> {
        let Some((table, _)) = state.table() else { return Ok(()) };
        let mut savepoint = self.savepoint_of(state, &format!("grid-{}", state.version()), None);
        savepoint.is_grid = true;
        match self.put_whole(table, &savepoint).await {
            // Another job was first.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
            other => other?,
        }
        // The version was sure to be whole for the longest read only.
        let elapsed_ms = self.inner.log.clock().now_ms().saturating_sub(begun_ms);
        if elapsed_ms >= LEAST_FILE_RETENTION_MS / 2 {
            self.release(&self.record_path(&savepoint), &savepoint).await?;
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "keeping the snapshot of version {} took longer than it is sure to be there: run it again",
                    state.version()
                ),
            ));
        }
        Ok(())
    }
}
