//! Refusing what needs rows that have expired from the log: the error names what was asked and how far back answers go.

use std::fmt;
use std::sync::Arc;

use alluvium_log::{Error, ErrorKind, Expired, Result, UnreadableCommit};
use alluvium_materializer::{Horizon, Savepoint, SnapshotState};

use crate::basis::Basis;
use crate::point::Point;
use crate::reader::Reader;

/// Why a question about the past has no answer any more; the cause of an error of the kind [`ErrorKind::PointUnavailable`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryExpired {
    /// The state.
    pub state: String,
    /// What was asked for.
    pub question: String,
    /// Rows of commits up to this one have expired from the log.
    pub expired_commit: i64,
    /// The earliest points that can be answered, each bound alone.
    pub horizon: Horizon,
    /// Earlier commits that savepoints keep, by their names: states can be asked for as of these very commits.
    pub savepoints: Vec<(String, i64)>,
    /// The earlier commits that the grid of snapshots keeps: states can be asked for as of these, too.
    pub grid: Vec<i64>,
    /// The commits of the snapshot's table that can't be read: no answer can begin with the versions that need them.
    pub unreadable: Vec<UnreadableCommit>,
}

impl fmt::Display for HistoryExpired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, question, expired_commit, horizon, savepoints, grid, unreadable } = self;
        let bound = |point: Point| point.to_string();
        let mut from = vec![bound(Point::at_commit(horizon.commit))];
        from.extend(horizon.version.map(|version| bound(Point::at_version(version))));
        from.extend(horizon.event_time.map(|time| bound(Point::at_time(time))));
        write!(
            f,
            "{question} of {state} needs rows that have expired from its log: of commits up to {expired_commit} rows are gone; states can be asked for as of {} or later, and changes after commit {expired_commit}",
            from.join(", ")
        )?;
        let kept: Vec<String> = savepoints
            .iter()
            .map(|(name, commit)| format!("{} ({name})", Point::at_commit(*commit)))
            .collect();
        if !kept.is_empty() {
            write!(f, "; savepoints keep {}", kept.join(", "))?;
        }
        if let (Some(first), Some(last)) = (grid.iter().min(), grid.iter().max()) {
            write!(
                f,
                "; the grid keeps {} snapshots, of commits {first} to {last}: alluvium savepoint list {state} --grid",
                grid.len()
            )?;
        }
        for commit in unreadable {
            write!(
                f,
                "; versions {} to {} of the snapshot can't be asked because {} can't be read: put it back from a copy to ask for what they hold",
                commit.version,
                commit.whole_from - 1,
                commit.file
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for HistoryExpired {}

impl Reader {
    /// The error about a question that can't be answered from this basis, because rows have expired.
    pub(crate) async fn expired(&self, basis: &Basis, question: String) -> Error {
        let expired_commit = basis.expired_commit();
        let horizon = self.inner.snapshot.horizon(&basis.snapshot, expired_commit).await;
        let horizon = match horizon {
            Ok(Some(horizon)) => horizon,
            // What the basis itself has can be answered in any case.
            Ok(None) => Horizon {
                commit: basis.snapshot.log_commit(),
                version: basis.snapshot.max_version(),
                event_time: basis.snapshot.max_event_time(),
            },
            Err(error) => return error,
        };
        let snapshot = &self.inner.snapshot;
        let (savepoints, grid) =
            match (snapshot.savepoints().await, snapshot.grid_snapshots().await) {
                (Ok(savepoints), Ok(grid)) => (savepoints, grid),
                (Err(error), _) | (_, Err(error)) => return error,
            };
        let is_earlier = |kept: &&Arc<Savepoint>| kept.log_commit < horizon.commit;
        let savepoints = savepoints
            .iter()
            .filter(is_earlier)
            .map(|savepoint| (savepoint.name.clone(), savepoint.log_commit))
            .collect();
        let grid = grid.iter().filter(is_earlier).map(|kept| kept.log_commit).collect();
        let unreadable = match basis.snapshot.table() {
            Some((table, _)) => match table.unreadable_commits().await {
                Ok(found) => found.into_iter().filter(UnreadableCommit::makes_a_hole).collect(),
                Err(error) => return error,
            },
            None => Vec::new(),
        };
        let state = self.name().to_owned();
        let cause = HistoryExpired {
            state,
            question,
            expired_commit,
            horizon,
            savepoints,
            grid,
            unreadable,
        };
        Error::new(ErrorKind::PointUnavailable, cause.to_string()).with_source(cause)
    }

    /// Refuses a question about the changes after a commit if some of them are gone.
    pub(crate) async fn check_changes(
        &self,
        basis: &Basis,
        after: i64,
        question: impl FnOnce() -> String,
    ) -> Result<()> {
        match basis.lacks_changes_after(after) {
            true => Err(self.expired(basis, question()).await),
            false => Ok(()),
        }
    }

    /// The snapshot of a new basis: one that holds what has expired from the log.
    ///
    /// Where another engine has rewritten the newest one, an older one goes on answering.
    pub(crate) async fn holding_expired(
        &self,
        snapshot: SnapshotState,
        log: &alluvium_log::TableState,
    ) -> Result<SnapshotState> {
        let expired = Expired::commit_of(log);
        if snapshot.log_commit() >= expired {
            return Ok(snapshot);
        }
        let newest = self.inner.snapshot.refresh().await?;
        let bounds = alluvium_materializer::BaseBounds { expired, ..Default::default() };
        let found = self.inner.snapshot.within(&newest, &bounds).await?;
        if found.log_commit() >= expired {
            return Ok(found);
        }
        Err(Error::corrupt(format!(
            "rows of commits up to {expired} have expired from the log of {}, and no snapshot that holds what they came to can be read: put the state's snapshot folder back from a backup",
            self.name()
        )))
    }
}
