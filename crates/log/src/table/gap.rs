//! Holes in a log: a commit that is gone while later ones are there. Nothing goes on past one, and nothing fills it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Table;
use super::load::is_of_log;
use crate::error::{Error, Result};
use crate::forks::identity_of;

impl Table {
    /// Whether a commit of this number lies in the log, as far as a look costs microseconds; elsewhere holes are found
    /// when the table is opened.
    pub(super) async fn is_there(&self, version: i64) -> Result<bool> {
        if let Some(found) = self.probe_commit(version) {
            return Ok(found);
        }
        Ok(self.check_identity && self.look_at(version).await?.is_some())
    }

    /// Looks closely where a commit was not found and the one after it was.
    ///
    /// # Errors
    /// It is gone, and no checkpoint stands for it: the message names the file.
    pub(super) async fn look_over_gap(&self, version: i64) -> Result<()> {
        if self.is_there(version).await? {
            // It came between the two looks.
            return Ok(());
        }
        match self.load().await? {
            Some(state) if state.version >= version => {
                // It was cleaned away, as a part of what a checkpoint holds.
                self.publish(Arc::new(state)).await?;
                self.older_transactions.write().clear();
                Ok(())
            }
            _ => Err(self.missing_commit(version)),
        }
    }

    /// Goes on past a commit that can't be read, if a checkpoint stands for it.
    ///
    /// # Errors
    /// None does: the error is that of the commit.
    pub(super) async fn look_over_damage(&self, version: i64, error: Error) -> Result<()> {
        let before = self.state();
        match self.load().await {
            Ok(Some(state))
                if state.version >= version && identity_of(&state) == identity_of(&before) =>
            {
                tracing::warn!(table = %self.label, version, %error, "a commit can't be read: a checkpoint stands for it");
                self.publish(Arc::new(state)).await?;
                self.older_transactions.write().clear();
                Ok(())
            }
            Err(other) if !is_of_log(&other) => Err(other),
            _ => Err(error),
        }
    }

    /// Makes sure, once for a handle that was opened without a listing, that no commits lie beyond a hole that is wider than such an
    /// opening looks: their numbers must not be given away again.
    pub(super) async fn look_beyond(&self) -> Result<()> {
        if self.is_listed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let newest = self.list_versions().await?.newest().unwrap_or(-1);
        if newest > self.state().version {
            self.catch_up().await?;
        }
        let known = self.state().version;
        if newest > known {
            self.look_over_gap(known + 1).await?;
        }
        self.is_listed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The error about a commit that is gone.
    pub(super) fn missing_commit(&self, version: i64) -> Error {
        let readable = match version {
            0 => String::new(),
            _ => format!(
                "; until then what was known up to commit {0} can be read (as of commit {0}), and nothing can be appended",
                version - 1
            ),
        };
        self.placed(Error::corrupt(format!(
            "commit {version} ({version:020}.json) is missing from the Delta log, and later ones are there: restore the file{readable}"
        )))
    }
}
