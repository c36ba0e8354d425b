//! Following a table: the commits that others make, and whether it is still the same table.

use std::sync::Arc;

use object_store::ObjectStoreExt;

use super::state::TableState;
use super::{Table, commit_path};
use crate::error::{Error, ErrorKind, Result};

impl Table {
    /// Reads the commits that others have made; returns the newest state.
    ///
    /// It doesn't wait for a commit that is being made here: whoever has read further publishes, and a state is the same
    /// whoever has read it.
    pub async fn refresh(&self) -> Result<Arc<TableState>> {
        self.verify_identity().await?;
        self.catch_up().await?;
        Ok(self.state())
    }

    /// Reads commits until there is none.
    pub(super) async fn catch_up(&self) -> Result<()> {
        let before = self.state();
        let mut state = (*before).clone();
        let is_torn = loop {
            let next = state.version + 1;
            let (found, is_beyond) =
                futures::join!(self.read_commit(next), self.is_there(next + 1));
            let Some(actions) = found? else { break is_beyond? };
            state = state.apply(next, &actions).map_err(|e| self.placed(e))?;
        };
        let next = state.version + 1;
        if state.version > before.version {
            self.publish(Arc::new(state)).await?;
        }
        if is_torn { self.look_over_gap(next).await } else { Ok(()) }
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
                *self.anchor.write() = seen.map(|etag| (state.version, etag));
            }
            *current = state;
        }
        Ok(())
    }

    pub(super) async fn look_at(&self, version: i64) -> Result<Option<String>> {
        match self.store.head(&commit_path(version)).await {
            Ok(meta) => Ok(meta.e_tag),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.placed(error.into())),
        }
    }

    /// Makes sure that the table under this handle is still the one that was opened.
    pub(super) async fn verify_identity(&self) -> Result<()> {
        let Some((version, known)) = self.anchor.read().clone() else { return Ok(()) };
        let seen = self.look_at(version).await?;
        if seen.as_deref() == Some(known.as_str()) {
            self.note_identity();
            return Ok(());
        }
        let old = self.state().metadata.id.clone();
        let now = match self.load().await? {
            Some(state) if state.metadata.id == old && state.version >= version => {
                // The same table: a copy was moved back, or the log was cleaned up to here.
                self.publish(Arc::new(state)).await?;
                self.older_transactions.write().clear();
                return Ok(());
            }
            Some(state) => format!("{} at version {}", state.metadata.id, state.version),
            None => "none".to_owned(),
        };
        Err(self.placed(Error::new(
            ErrorKind::IdentityChanged,
            format!("the table's identity changed: it was {old} at version {version}, now it is {now}; reopen the store"),
        )))
    }
}
