//! What one query is pinned to, from start to end.

use std::sync::Arc;

use alluvium_log::{Error, ErrorKind, Expired, Hold, Result, StateDefinition, TableState};
use alluvium_materializer::SnapshotState;

use crate::point::Point;

/// The pair (snapshot version, log commit) that a query reads, with the definition of the state at that commit.
#[derive(Debug, Clone)]
pub struct Basis {
    pub(crate) definition: Arc<StateDefinition>,
    pub(crate) log: Arc<TableState>,
    pub(crate) snapshot: SnapshotState,
    /// When it was pinned, in milliseconds since 1970.
    pub(crate) pinned_ms: i64,
    pub(crate) hold: Option<Hold>,
}

impl Basis {
    /// The log commit: nothing later is seen.
    pub fn commit(&self) -> i64 {
        self.log.version
    }

    /// The snapshot table's version; -1 while there is no snapshot.
    pub fn snapshot_version(&self) -> i64 {
        self.snapshot.version()
    }

    /// What keeps its files from being removed, if it is one of [`Reader::hold`](crate::Reader::hold).
    pub fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    /// What the state is.
    pub fn definition(&self) -> &Arc<StateDefinition> {
        &self.definition
    }

    /// The log's files.
    pub fn log(&self) -> &Arc<TableState> {
        &self.log
    }

    /// The snapshot's files.
    pub fn snapshot(&self) -> &SnapshotState {
        &self.snapshot
    }

    /// The commit up to which rows have expired from the log; 0 while every row is there.
    pub fn expired_commit(&self) -> i64 {
        Expired::commit_of(&self.log)
    }

    /// Whether rows of commits after this one have expired.
    pub(crate) fn lacks_changes_after(&self, commit: i64) -> bool {
        self.expired_commit() > commit.max(0)
    }

    /// Refuses points that this basis can't answer.
    pub fn check(&self, point: Point) -> Result<()> {
        let newest = self.commit();
        match point.commit {
            Some(commit) if commit < 0 => Err(Error::invalid(format!(
                "there is no commit {commit}: the log has commits 0 to {newest}"
            ))),
            Some(commit) if commit > newest => Err(Error::new(
                ErrorKind::PointUnavailable,
                format!("there is no commit {commit} yet: the log has commits 0 to {newest}"),
            )),
            _ => Ok(()),
        }
    }
}
