//! Checkpoints: when one is due, and writing it off the path of commits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Table;
use crate::error::Result;

/// Commits between checkpoints, at least.
pub const CHECKPOINT_INTERVAL: i64 = 100;
/// A table with more files than this times the interval is checkpointed less often, so that the cost of
/// checkpoints per commit stays bounded.
const FILES_PER_COMMIT_OF_INTERVAL: usize = 8;

impl Table {
    /// Whether enough commits have been made since the last checkpoint for another one to pay.
    pub fn is_checkpoint_due(&self) -> bool {
        let state = self.state();
        let files = i64::try_from(state.file_count() / FILES_PER_COMMIT_OF_INTERVAL).unwrap_or(0);
        state.version - self.checkpointed.load(Ordering::Relaxed) >= CHECKPOINT_INTERVAL.max(files)
    }

    /// Writes a checkpoint of the newest version, unless one is being written.
    pub async fn checkpoint(&self) -> Result<bool> {
        let Ok(_writing) = self.checkpointing.try_lock() else { return Ok(false) };
        let version = self.state().version;
        self.access.checkpoint(version).await.map_err(|e| self.placed(e))?;
        self.checkpointed.store(version, Ordering::Relaxed);
        metrics::counter!(crate::metrics::CHECKPOINTS).increment(1);
        Ok(true)
    }

    /// Writes a checkpoint in the background when one is due. Its failure costs only time at the next opening.
    pub fn checkpoint_in_background(self: &Arc<Self>) -> Option<tokio::task::JoinHandle<()>> {
        if !self.is_checkpoint_due() || self.checkpointing.try_lock().is_err() {
            return None;
        }
        let table = self.clone();
        Some(tokio::spawn(async move {
            if let Err(error) = table.checkpoint().await {
                tracing::warn!(table = %table.label, %error, "a checkpoint could not be written");
            }
        }))
    }
}
