//! The versions of a snapshot that a fork of the state begins with.

use std::sync::Arc;

use alluvium_log::{
    ERASE_APP_ID, Error, ErrorKind, Expired, ForkedVersions, Result, Storage, Table, TableState,
    VACUUM_APP_ID,
};

use super::{Snapshot, SnapshotState};

impl Snapshot {
    /// The store that it lies in.
    pub(crate) fn storage(&self) -> &Storage {
        &self.inner.storage
    }

    /// The newest version that folds nothing after a state of the log; while rows have expired from that, the older ones too, which
    /// answer what the log can't.
    ///
    /// # Errors
    /// Rows have expired, and no version that holds them is as old as the state.
    pub(crate) async fn versions_for(&self, log: &TableState) -> Result<Option<ForkedVersions>> {
        let current = self.refresh().await?;
        let expired = Expired::of(log).map(|expired| expired.commit);
        let erased = log.transaction(ERASE_APP_ID);
        let found = match current.table() {
            None => None,
            Some((table, newest)) => {
                let whole_from = newest.transaction(VACUUM_APP_ID).unwrap_or(0);
                let is_whole = |state: &Arc<TableState>| state.version >= whole_from;
                let states = table.states().await?;
                let whole: Vec<Arc<TableState>> = states.into_iter().filter(is_whole).collect();
                let is_base = |state: &&Arc<TableState>| {
                    let known = SnapshotState::of(table, Some((*state).clone()));
                    let folded = known.log_commit();
                    (expired.unwrap_or(0)..=log.version).contains(&folded)
                        && state.transaction(ERASE_APP_ID) >= erased
                        && known.is_ours()
                };
                let base = whole.iter().rev().find(is_base).map(|state| state.version);
                base.map(|newest| ForkedVersions {
                    newest,
                    oldest: match expired {
                        Some(_) => whole.first().map_or(newest, |oldest| oldest.version),
                        None => newest,
                    },
                })
            }
        };
        match (found, expired) {
            (None, Some(expired)) => Err(Error::new(
                ErrorKind::PointUnavailable,
                format!(
                    "rows up to commit {expired} have expired from the log, and no snapshot that holds them is as old as commit {}",
                    log.version
                ),
            )),
            (found, _) => Ok(found),
        }
    }

    /// The table, and its versions of a range.
    pub(crate) async fn forked_states(
        &self,
        versions: ForkedVersions,
    ) -> Result<(Arc<Table>, Vec<Arc<TableState>>)> {
        let current = self.refresh().await?;
        let Some((table, _)) = current.table() else {
            return Err(Error::new(ErrorKind::PointUnavailable, "the snapshot is gone"));
        };
        let mut states = table.states().await?;
        states.retain(|state| (versions.oldest..=versions.newest).contains(&state.version));
        let ends = |version| states.iter().any(|state| state.version == version);
        if !ends(versions.oldest) || !ends(versions.newest) {
            return Err(Error::new(
                ErrorKind::PointUnavailable,
                format!(
                    "versions {} to {} of the snapshot can't be read any more",
                    versions.oldest, versions.newest
                ),
            ));
        }
        Ok((table.clone(), states))
    }
}
