//! Commits that can't be read while the table can: what is told of them wherever they keep something from being asked or removed.

use alluvium_log::{MaintenanceSettings, UnreadableCommit, VacuumReport};
use serde::Serialize;

/// A commit that can't be read while a later checkpoint stands for it, and for how long it matters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnreadableVersions {
    /// The commit. The versions of its table from its own up to the one before `whole_from` can't be made.
    #[serde(flatten)]
    pub commit: UnreadableCommit,
    /// When a clean-up may remove it, in milliseconds since 1970: once nothing needs these versions any more. None where no commit tells
    /// yet when they were over.
    pub goes_ms: Option<i64>,
}

impl UnreadableVersions {
    /// Those that vacuums met.
    pub(super) fn of<'a>(
        reports: impl IntoIterator<Item = &'a VacuumReport>,
        settings: &MaintenanceSettings,
    ) -> Vec<Self> {
        let kept_ms = settings.commit_retention_ms;
        let commits = reports.into_iter().flat_map(|report| report.unreadable.iter().cloned());
        commits
            .map(|commit| Self {
                goes_ms: commit.over_ms.map(|over| over.saturating_add(kept_ms)),
                commit,
            })
            .collect()
    }
}
