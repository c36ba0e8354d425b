//! Making a commit: decide on the state before it, put it under the next number if that is free, else look and
//! decide again; and never guess at what became of a write whose reply was lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::{ObjectStore, PutMode, PutOptions};

use super::state::TableState;
use super::{Action, Attempt, CommitInfo, Outcome, Table, commit_path, delta};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{Unpublished, Unsynced};

/// How often a commit is tried again after losing the race for a number.
pub const MAX_COMMIT_ATTEMPTS: u32 = 1_000;
/// How often a number may be taken without a commit to be read under it.
const MAX_STUCK_ATTEMPTS: u32 = 16;
/// How often a write whose outcome is unknown is sent again.
pub const MAX_UNKNOWN_RETRIES: u32 = 5;

impl Table {
    /// Writes one commit. `decide` sees the state that precedes the number it is given, and is asked again
    /// whenever another commit has come first.
    pub async fn commit<T>(
        &self,
        operation: &str,
        blind_append: Option<bool>,
        note: BTreeMap<String, serde_json::Value>,
        decide: impl FnMut(&TableState, i64) -> Result<Attempt<T>>,
    ) -> Result<Outcome<T>> {
        self.commit_with(operation, blind_append, note, &[], decide).await
    }

    /// The same for a commit that names files which are not durable yet: they are before it can be seen.
    pub(crate) async fn commit_with<T>(
        &self,
        operation: &str,
        blind_append: Option<bool>,
        note: BTreeMap<String, serde_json::Value>,
        files: &[Arc<Unsynced>],
        mut decide: impl FnMut(&TableState, i64) -> Result<Attempt<T>>,
    ) -> Result<Outcome<T>> {
        let _alone = self.committing.lock().await;
        if let Some(guard) = &self.guard {
            // Before anything is sent: what fails here has no outcome that is unknown.
            guard.prove().await.map_err(|error| self.placed(error.into()))?;
        }
        self.verify_identity().await?;
        self.look_beyond().await?;
        let id = format!("{:032x}", crate::random::random::<u128>());
        let mut note = note;
        note.insert("id".to_owned(), serde_json::Value::String(id.clone()));
        let mut stuck = 0;
        for attempt in 0..MAX_COMMIT_ATTEMPTS {
            if self.is_there(self.state().version + 2).await? {
                // Others are further, or a commit is gone, whose number must not be given away again.
                self.catch_up().await?;
            }
            let state = self.state();
            let version = state.version + 1;
            let actions = match decide(&state, version)? {
                Attempt::Write(actions) => actions,
                Attempt::Stop(outcome) => return Ok(Outcome::Stopped(outcome)),
            };
            let info = CommitInfo {
                timestamp_ms: Some(self.clock.now_ms().max(state.timestamp_ms + 1)),
                operation: operation.to_owned(),
                blind_append,
                note: note.clone(),
            };
            let mut all = Vec::with_capacity(actions.len() + 1);
            all.push(Action::Info(info));
            all.extend(actions);
            if self.put_commit(version, delta::encode(version, &all)?, &id, files).await? {
                let next = Arc::new(state.apply(version, &all)?);
                self.publish(next.clone()).await?;
                return Ok(Outcome::Committed(next));
            }
            metrics::counter!(crate::metrics::COMMIT_CONFLICTS).increment(1);
            self.catch_up().await?;
            stuck = if self.state().version < version { stuck + 1 } else { 0 };
            if stuck >= MAX_STUCK_ATTEMPTS {
                return Err(self.placed(Error::corrupt(format!(
                    "the name {version:020}.json is taken in the Delta log, but there is no commit under it: remove what is there"
                ))));
            }
            back_off(attempt).await;
        }
        Err(self.placed(Error::new(
            ErrorKind::Conflict,
            format!("other writers took {MAX_COMMIT_ATTEMPTS} commits in a row; nothing was written, try again"),
        )))
    }

    /// Puts a commit if its number is free; false when another commit has it.
    async fn put_commit(
        &self,
        version: i64,
        bytes: Bytes,
        id: &str,
        files: &[Arc<Unsynced>],
    ) -> Result<bool> {
        let mut last_error = None;
        for attempt in 0..=MAX_UNKNOWN_RETRIES {
            let put = match self.create_commit(version, bytes.clone(), files).await {
                // Sent again it would seem to be well.
                Err(Unpublished::Beside(error)) => return Err(self.placed(error.into())),
                Err(Unpublished::Entry(error)) => Err(error),
                Ok(()) => Ok(()),
            };
            match put {
                Ok(()) => return Ok(true),
                Err(object_store::Error::AlreadyExists { .. }) => {
                    // The one that is there may be ours, if an earlier reply was lost: then not being able to
                    // look means not knowing.
                    return match self.is_ours(version, id).await {
                        Err(error) if last_error.is_some() => {
                            Err(self.unknown(version, Some(error.into())))
                        }
                        known => known,
                    };
                }
                // These are told before anything is written.
                Err(
                    error @ (object_store::Error::PermissionDenied { .. }
                    | object_store::Error::Unauthenticated { .. }
                    | object_store::Error::NotSupported { .. }
                    | object_store::Error::InvalidPath { .. }),
                ) if last_error.is_none() => return Err(self.placed(error.into())),
                Err(error) => {
                    // The reply may be lost and the commit made. The same bytes under the same number may be
                    // sent again: if it was made, the number is taken, and by us.
                    tracing::warn!(table = %self.label, version, %error, "the outcome of a commit is unknown");
                    last_error = Some(error);
                    back_off(attempt).await;
                }
            }
        }
        match (self.is_ours(version, id).await, last_error) {
            (Ok(true), _) => Ok(true),
            // What a folder of this machine has refused, and does not have, is not on its way any more.
            (Ok(false), Some(error)) if self.check_identity => {
                let what = format!("commit {version} could not be written; nothing was changed");
                Err(self.placed(Error::from(error).context(what)))
            }
            (_, error) => Err(self.unknown(version, error.map(Into::into))),
        }
    }

    async fn create_commit(
        &self,
        version: i64,
        bytes: Bytes,
        files: &[Arc<Unsynced>],
    ) -> Result<(), Unpublished> {
        let path = commit_path(version);
        if let (Some(local), [_, ..]) = (&self.local, files) {
            return local.commit(&path, bytes.into(), files.to_vec()).await;
        }
        let options = PutOptions { mode: PutMode::Create, ..Default::default() };
        let put = self.store.put_opts(&path, bytes.into(), options).await;
        put.map(drop).map_err(Unpublished::Entry)
    }

    fn unknown(
        &self,
        version: i64,
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        let error = Error::new(
            ErrorKind::Unknown,
            format!(
                "whether commit {version} was made could not be learned: read again before retrying"
            ),
        );
        self.placed(match source {
            Some(source) => error.with_source(source),
            None => error,
        })
    }

    async fn is_ours(&self, version: i64, id: &str) -> Result<bool> {
        let actions = self.read_commit(version).await?.unwrap_or_default();
        Ok(actions
            .iter()
            .any(|action| matches!(action, Action::Info(info) if info.id() == Some(id))))
    }
}

/// Waits longer the more often a race was lost, by a random share so that racers part.
async fn back_off(attempt: u32) {
    if attempt == 0 {
        return;
    }
    let ceiling_ms = 1_u64 << attempt.min(6);
    let wait_ms = crate::random::random::<u64>() % (ceiling_ms + 1);
    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
}
