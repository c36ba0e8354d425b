//! What of a log is gone: rows of whole days, dropped by an expiry when a snapshot had folded them.
//!
//! It is recorded in the log itself, as transactions in the commit that drops the files, so that every state of the table knows
//! it, also one that is loaded from a checkpoint. Rows of later commits are all there, whatever day they are of.

use crate::table::{Action, TableState};

/// The application id under which the greatest commit is recorded of which rows have expired.
pub const EXPIRE_APP_ID: &str = "alluvium/expire";
/// The application id under which the greatest expired value is recorded of what the state is ordered by first.
pub const EXPIRE_ORDER_APP_ID: &str = "alluvium/expire/order";
/// What every state of a log's table must know beside its own progress.
pub(crate) const LOG_APP_IDS: [&str; 15] = {
    let archive = crate::archive::ARCHIVE_APP_IDS;
    [
        crate::log::REWRITER_APP_ID,
        EXPIRE_APP_ID,
        EXPIRE_ORDER_APP_ID,
        crate::erased::ERASE_APP_ID,
        crate::erased::ERASED_APP_ID,
        archive[0],
        archive[1],
        archive[2],
        archive[3],
        archive[4],
        archive[5],
        archive[6],
        archive[7],
        crate::floor::FLOOR_APP_ID,
        crate::floor::FLOOR_COMMIT_APP_ID,
    ]
};

/// What of a log has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// No row of a later commit has expired; of this one and of earlier ones rows may be gone.
    pub commit: i64,
    /// No expired row is greater in what the state is ordered by first: event times in microseconds, or versions.
    pub order: i64,
}

impl Expired {
    /// What a table records; `None` while every row is there.
    pub fn of(state: &TableState) -> Option<Self> {
        let commit = state.transaction(EXPIRE_APP_ID)?;
        // Without the second number nothing is known of the order of what is gone.
        let order = state.transaction(EXPIRE_ORDER_APP_ID).unwrap_or(i64::MAX);
        Some(Self { commit, order })
    }

    /// The commit up to which rows may be gone; 0, the commit that created the log, while every row is there.
    pub fn commit_of(state: &TableState) -> i64 {
        state.transaction(EXPIRE_APP_ID).unwrap_or(0)
    }

    /// Both together.
    pub fn join(self, other: Option<Self>) -> Self {
        other.map_or(self, |other| Self {
            commit: self.commit.max(other.commit),
            order: self.order.max(other.order),
        })
    }

    /// How it is recorded.
    pub fn actions(self) -> [Action; 2] {
        [(EXPIRE_APP_ID, self.commit), (EXPIRE_ORDER_APP_ID, self.order)]
            .map(|(app_id, version)| Action::Transaction { app_id: app_id.to_owned(), version })
    }
}
