//! What of a snapshot a fork of the state begins with: versions of its table, and what savepoints and the grid keep.

use std::sync::Arc;

use alluvium_log::{
    Action, ERASE_APP_ID, ERASED_APP_ID, Error, ErrorKind, Expired, FileAdd, Floor, ForkedVersions,
    OrderBy, Result, Storage, Table, TableState, VACUUM_APP_ID,
};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;

use super::savepoints::Savepoint;
use super::{APP_IDS, Snapshot, SnapshotState};

/// Records that are written at the same time.
const WRITE_CONCURRENCY: usize = 16;

/// The versions of a snapshot that a fork begins with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) versions: ForkedVersions,
    /// Whether the newest of them is one that only a savepoint, or the grid, has kept.
    pub(crate) is_kept: bool,
}

impl Snapshot {
    /// The store that it lies in.
    pub(crate) fn storage(&self) -> &Storage {
        &self.inner.storage
    }

    /// What savepoints and the grid keep of the commits up to one, the oldest first.
    pub(crate) async fn kept_up_to(&self, commit: i64) -> Result<Vec<Arc<Savepoint>>> {
        let mut kept = self.savepoints().await?;
        kept.extend(self.grid_snapshots().await?);
        kept.retain(|kept| kept.log_commit <= commit);
        kept.sort_by_key(|kept| (kept.snapshot_version, kept.log_commit));
        Ok(kept)
    }

    /// The newest version that folds nothing after a state of the log; while rows have expired from that, the older ones too, which
    /// answer what the log can't. Where no such version is whole any more it is the newest one that is kept.
    ///
    /// # Errors
    /// Rows have expired, and no version that holds them is as old as the state.
    pub(crate) async fn versions_for(
        &self,
        log: &TableState,
        kept: &[Arc<Savepoint>],
    ) -> Result<Option<Begun>> {
        let current = self.refresh().await?;
        let Some((table, newest)) = current.table() else { return Ok(None) };
        let expired = Expired::of(log).map(|expired| expired.commit);
        let erased = log.transaction(ERASE_APP_ID);
        let whole_from = newest.transaction(VACUUM_APP_ID).unwrap_or(0);
        let is_whole = |state: &Arc<TableState>| state.version >= whole_from;
        let states = table.states().await?;
        let whole: Vec<Arc<TableState>> = states.into_iter().filter(is_whole).collect();
        let folds_enough = |folded: i64| (expired.unwrap_or(0)..=log.version).contains(&folded);
        let is_base = |state: &&Arc<TableState>| {
            let known = SnapshotState::of(table, Some((*state).clone()));
            folds_enough(known.log_commit())
                && state.transaction(ERASE_APP_ID) >= erased
                && known.is_ours()
        };
        let base = whole.iter().rev().find(is_base).map(|state| state.version);
        let kept = kept.iter().filter(|kept| folds_enough(kept.log_commit));
        let kept = kept.map(|kept| kept.snapshot_version).max();
        match (base.max(kept), expired) {
            (Some(newest), _) if base < Some(newest) => {
                let versions = ForkedVersions { oldest: newest, newest };
                Ok(Some(Begun { versions, is_kept: true }))
            }
            (Some(newest), expired) => {
                let oldest = whole.first().filter(|_| expired.is_some());
                let oldest = oldest.map_or(newest, |oldest| oldest.version);
                Ok(Some(Begun { versions: ForkedVersions { oldest, newest }, is_kept: false }))
            }
            (None, Some(expired)) => Err(Error::new(
                ErrorKind::PointUnavailable,
                format!(
                    "rows up to commit {expired} have expired from the log, and no snapshot that holds them is as old as commit {}",
                    log.version
                ),
            )),
            (None, None) => Ok(None),
        }
    }

    /// The table.
    pub(crate) async fn forked_table(&self) -> Result<Arc<Table>> {
        let current = self.refresh().await?;
        let table = current.table().map(|(table, _)| table.clone());
        table.ok_or_else(|| Error::new(ErrorKind::PointUnavailable, "the snapshot is gone"))
    }

    /// The versions of a range.
    pub(crate) async fn forked_states(
        &self,
        table: &Arc<Table>,
        versions: ForkedVersions,
    ) -> Result<Vec<Arc<TableState>>> {
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
        Ok(states)
    }

    /// A version that is kept, as the first one of a table. Since it was kept all that was erased was taken out of it.
    pub(crate) fn kept_state(
        &self,
        table: &Arc<Table>,
        kept: &[Arc<Savepoint>],
        version: i64,
        log: &TableState,
    ) -> Result<Arc<TableState>> {
        let kept = kept.iter().find(|kept| kept.snapshot_version == version);
        let state = kept.map(|kept| kept.state(table));
        let Some((_, of)) = state.as_ref().and_then(SnapshotState::table) else {
            return Err(Error::new(
                ErrorKind::PointUnavailable,
                format!("version {version} of the snapshot was kept, and is released"),
            ));
        };
        let files: Vec<FileAdd> = of.files().map(|file| (*file.add).clone()).collect();
        let erased = log.transaction(ERASE_APP_ID);
        let known = APP_IDS.into_iter().filter(|app_id| *app_id != ERASE_APP_ID);
        let known = known.map(|app_id| (app_id, of.transaction(app_id)));
        let known = known.chain([(ERASE_APP_ID, erased)]);
        let known = known.filter_map(|(app_id, last)| Some((app_id.to_owned(), last?))).collect();
        Ok(Arc::new(TableState::of_files(version, of, files, known, of.timestamp_ms)))
    }

    /// A log of which all rows up to a commit have expired: of that commit only what is kept of the snapshot is left.
    pub(crate) fn log_without_rows(
        &self,
        kept: &Savepoint,
        table: &Arc<Table>,
    ) -> Result<TableState> {
        let newest = self.log().state();
        let snapshot = kept.state(table);
        let greatest = match self.log().definition().order_by {
            OrderBy::EventTime => snapshot.max_event_time(),
            OrderBy::Version => snapshot.max_version(),
        };
        let commit = kept.log_commit;
        let expired = Expired { commit, order: greatest.unwrap_or(i64::MIN) };
        let floor = snapshot.floor().map(|time| Floor { time, commit });
        let erased = [ERASE_APP_ID, ERASED_APP_ID];
        let erased = erased
            .into_iter()
            .filter_map(|app_id| newest.transaction(app_id).map(|last| (app_id.to_owned(), last)));
        let actions =
            expired.actions().into_iter().chain(floor.into_iter().flat_map(Floor::actions));
        let known = actions.filter_map(|action| match action {
            Action::Transaction { app_id, version } => Some((app_id, version)),
            _ => None,
        });
        let known = known.chain(erased).collect();
        Ok(TableState::of_files(commit, &newest, Vec::new(), known, kept.made_ms))
    }

    /// Writes the records of what is kept for a fork that has the files of all of it. Those that it has already stay.
    pub(crate) async fn put_kept(&self, fork: &str, kept: &[Arc<Savepoint>]) -> Result<()> {
        let puts = kept.iter().map(|kept| async move {
            match self.put_record(&self.path_in(fork, kept), kept).await {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
                other => other,
            }
        });
        let puts: Vec<_> = puts.collect();
        stream::iter(puts).buffer_unordered(WRITE_CONCURRENCY).try_collect().await
    }

    /// Where a fork has what is kept.
    fn path_in(&self, fork: &str, kept: &Savepoint) -> Path {
        let own = self.record_path(kept);
        [Path::from(fork)].iter().flat_map(|path| path.parts()).chain(own.parts().skip(1)).collect()
    }
}
