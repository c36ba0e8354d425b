//! Checkpoints: when one is due, and writing it off the path of commits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Table;
use super::delta::Mark;
use super::listing::Origin;
use super::load::is_of_log;
use crate::error::{Error, Result};
use crate::settings::MaintenanceSettings;

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
        self.commits_since_checkpoint() >= CHECKPOINT_INTERVAL.max(files)
    }

    /// How many commits an opening would read one by one now.
    pub fn commits_since_checkpoint(&self) -> i64 {
        self.state().version - self.checkpointed.load(Ordering::Relaxed)
    }

    /// Writes a checkpoint of the newest version, unless one is being written.
    pub async fn checkpoint(&self) -> Result<bool> {
        let Ok(_writing) = self.checkpointing.try_lock() else { return Ok(false) };
        let version = self.state().version;
        let before = self.checkpointed.load(Ordering::Relaxed);
        let written = match self.access.checkpoint(before, version).await {
            Ok(()) => version,
            Err(error) if is_of_log(&error) => {
                self.checkpoint_otherwise(before, version, self.placed(error)).await?
            }
            Err(error) => return Err(self.placed(error)),
        };
        self.checkpointed.store(written, Ordering::Relaxed);
        metrics::counter!(crate::metrics::CHECKPOINTS).increment(1);
        Ok(true)
    }

    /// What comes of a checkpoint that could not be made of what lies there: others are further, or one that can't be read is in the
    /// way. Gives the version of the checkpoint that there is.
    async fn checkpoint_otherwise(&self, before: i64, version: i64, error: Error) -> Result<i64> {
        // deltalake begins with the hint of the newest one, which leads beyond this version.
        let later =
            self.list_versions().await?.checkpoints.range(version + 1..).next_back().copied();
        if let Some(later) = later
            && self.load_origin(Origin::Checkpoint(later), later).await.is_ok()
        {
            return Ok(later);
        }
        if !self.set_unreadable_aside(version).await? {
            return Err(error);
        }
        tracing::warn!(table = %self.label, version, %error, "a checkpoint is made without one that can't be read");
        self.access.checkpoint(before, version).await.map_err(|e| self.placed(e))?;
        Ok(version)
    }

    /// Sets the checkpoints aside that can't be read, from the one nearest to a version down to the first one that can, or to the log's
    /// beginning; false when there is none, or nothing else tells what they told: then they stay where they are.
    ///
    /// A writer may have died at one, on a store that shows half of what was written.
    async fn set_unreadable_aside(&self, version: i64) -> Result<bool> {
        let mut unreadable = Vec::new();
        for origin in self.list_versions().await?.origins(version) {
            let Origin::Checkpoint(at) = origin else {
                self.load_origin(origin, version).await?;
                return self.set_unchanged_aside(unreadable).await;
            };
            let mark = self.access.checkpoint_mark(at).await.map_err(|e| self.placed(e))?;
            match self.load_origin(origin, at).await {
                Ok(_) => {
                    self.load_origin(origin, version).await?;
                    return self.set_unchanged_aside(unreadable).await;
                }
                Err(error) if is_of_log(&error) => unreadable.extend(mark.map(|mark| (at, mark))),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Sets checkpoints aside, unless somebody has written one over since it was looked at; whether there were any.
    async fn set_unchanged_aside(&self, unreadable: Vec<(i64, Mark)>) -> Result<bool> {
        for (at, mark) in &unreadable {
            let now = self.access.checkpoint_mark(*at).await.map_err(|e| self.placed(e))?;
            if now.as_ref() == Some(mark) {
                let aside = self.access.set_checkpoint_aside(*at).await;
                let aside = aside.map_err(|e| self.placed(e))?;
                tracing::warn!(table = %self.label, %aside, "a checkpoint that can't be read is set aside");
            }
        }
        Ok(!unreadable.is_empty())
    }

    /// Writes a checkpoint when one is due, and removes the commits that it makes superfluous. A failure costs only time at
    /// the next opening, or room: it is told to the trace and tried again after the next commits.
    pub async fn checkpoint_if_due(&self, settings: Result<MaintenanceSettings>) {
        if !self.is_checkpoint_due() {
            return;
        }
        match self.checkpoint().await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(table = %self.label, %error, "a checkpoint could not be written");
                return;
            }
        }
        let cleaned = match settings {
            Ok(settings) => self.clean_up(settings.commit_retention_ms, false).await,
            Err(error) => Err(error),
        };
        match cleaned {
            Ok(report) => tracing::debug!(table = %self.label, ?report, "cleaned up the log"),
            Err(error) => {
                tracing::warn!(table = %self.label, %error, "the log could not be cleaned up");
            }
        }
    }

    /// Does the same in the background, when it is due.
    pub fn checkpoint_in_background(
        self: &Arc<Self>,
        settings: Result<MaintenanceSettings>,
    ) -> Option<tokio::task::JoinHandle<()>> {
        if !self.is_checkpoint_due() || self.checkpointing.try_lock().is_err() {
            return None;
        }
        let table = self.clone();
        Some(tokio::spawn(async move { table.checkpoint_if_due(settings).await }))
    }
}
