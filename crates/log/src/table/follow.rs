//! Following a table: the commits that others make, and whether it is still the same table.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use object_store::ObjectStoreExt;

use super::state::TableState;
use super::{Table, commit_path};
use crate::error::{Error, ErrorKind, Result};
use crate::forks::identity_of;
use crate::settings::LEAST_COMMIT_RETENTION_MS;

/// A handle that has not looked at the log for so long makes sure that the commits after its own were not cleaned up.
const IDLE_MS: i64 = LEAST_COMMIT_RETENTION_MS / 6;

impl Table {
    /// Reads the commits that others have made; returns the newest state.
    ///
    /// It doesn't wait for a commit that is being made here: whoever has read further publishes, and a state is the same
    /// whoever has read it.
    pub async fn refresh(&self) -> Result<Arc<TableState>> {
        if !self.verify_identity().await? {
            self.catch_up().await?;
        }
        Ok(self.state())
    }

    /// Reads commits until there is none.
    pub(super) async fn catch_up(&self) -> Result<()> {
        let before = self.state();
        let mut state = (*before).clone().unpuzzled();
        let is_torn = loop {
            let next = state.version + 1;
            let (found, is_beyond) =
                futures::join!(self.read_commit(next), self.is_there(next + 1));
            let found = match found {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    return self.look_over_damage(next, error).await;
                }
                found => found?,
            };
            let Some(actions) = found else { break is_beyond? };
            state = state.apply(next, &actions).map_err(|e| self.placed(e))?;
        };
        let next = state.version + 1;
        if state.is_puzzled() {
            state = self.looked_up(state).await?;
        }
        if state.version > before.version {
            self.publish(Arc::new(state)).await?;
        }
        self.note_seen();
        if is_torn { self.look_over_gap(next).await } else { Ok(()) }
    }

    /// The same state, or a newer one, made of what the log tells further back: another engine moved rows of files that had gone
    /// before what is remembered here. What the log doesn't tell any more stays unknown.
    async fn looked_up(&self, state: TableState) -> Result<TableState> {
        let loaded = self.load().await?;
        Ok(match loaded {
            Some(loaded)
                if identity_of(&loaded) == identity_of(&state)
                    && loaded.version >= state.version =>
            {
                loaded
            }
            _ => state,
        })
    }

    fn note_seen(&self) {
        self.seen_ms.store(self.clock.now_ms(), Ordering::Relaxed);
    }

    fn has_idled(&self) -> bool {
        let seen = self.seen_ms.load(Ordering::Relaxed);
        self.clock.now_ms().saturating_sub(seen).saturating_abs() >= IDLE_MS
    }

    /// Makes a state the newest one, unless a newer one is known by now.
    pub(super) async fn publish(&self, state: Arc<TableState>) -> Result<()> {
        // A look that fails must not fail a commit that is made: the older anchor stays, and is as good.
        let seen = match self.check_identity && state.version >= 0 {
            true => self.look_at(state.version).await.ok(),
            false => None,
        };
        let mut current = self.state.write();
        if state.version >= current.version {
            if let Some(seen) = seen {
                *self.anchor.write() = seen.map(|mark| (state.version, mark));
            }
            *current = state;
            self.note_seen();
        }
        Ok(())
    }

    /// What tells the file of a commit from any other that may come to lie in its place; `None` if there is none.
    pub(super) async fn look_at(&self, version: i64) -> Result<Option<String>> {
        if let Some(mark) = self.probe_mark(version) {
            return mark.map_err(|error| self.placed(error));
        }
        match self.store.head(&commit_path(version)).await {
            Ok(meta) => Ok(Some(meta.e_tag.unwrap_or_default())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.placed(error.into())),
        }
    }

    /// Makes sure that the table under this handle is still the one that was opened, and that what this handle knows of it
    /// is not older than what the log still tells; true when everything that there is was read on the way.
    pub(super) async fn verify_identity(&self) -> Result<bool> {
        let known = self.state().version;
        if known < 0 {
            return Ok(false);
        }
        let anchor = self.anchor.read().clone();
        if let Some((version, mark)) = anchor {
            if self.look_at(version).await?.as_deref() != Some(mark.as_str()) {
                return self.reload(version).await.map(|()| true);
            }
            self.note_identity();
        }
        if !self.has_idled() {
            return Ok(false);
        }
        // Commits are cleaned up in ascending order. So if the last one that could be read is still there afterwards, the
        // next one was not missing for having been cleaned up.
        self.catch_up().await?;
        let newest = self.state().version;
        if self.look_at(newest).await?.is_none() {
            self.reload(newest).await?;
        }
        Ok(true)
    }

    /// Loads the table anew; refuses another one than it was.
    async fn reload(&self, version: i64) -> Result<()> {
        let old = identity_of(&self.state()).to_owned();
        let now = match self.load().await? {
            Some(state) if identity_of(&state) == old && state.version >= version => {
                // The same table: a copy was moved back, or the log was cleaned up to here.
                self.publish(Arc::new(state)).await?;
                self.older_transactions.write().clear();
                return Ok(());
            }
            Some(state) => format!("{} at version {}", identity_of(&state), state.version),
            None => "none".to_owned(),
        };
        Err(self.placed(Error::new(
            ErrorKind::IdentityChanged,
            format!("the table's identity changed: it was {old} at version {version}, now it is {now}; reopen the store"),
        )))
    }
}
