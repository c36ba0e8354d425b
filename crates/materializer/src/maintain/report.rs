//! What a run of the periodic job did to a state, step by step, also where one of them failed.

use std::fmt;

use alluvium_log::{
    Archived, CleanUpReport, Error, ErrorKind, MaintenanceSettings, StagedReport, TableState,
    VacuumReport,
};
use serde::Serialize;

use super::archive::ArchiveReport;
use super::check::SnapshotCheck;
use super::compact::CompactReport;
use super::expire::ExpireReport;
use super::step::MaintainStep;
use super::tombstones::TombstonesReport;
use super::unreadable::UnreadableVersions;
use crate::materialize::MaterializeReport;
use crate::snapshot::{GridReport, Horizon};

/// What one step did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant, reason = "a run has ten of them at most")]
pub enum StepOutcome {
    /// The log was folded into the snapshot.
    Materialized(MaterializeReport),
    /// The snapshot's files were looked at.
    Checked(SnapshotCheck),
    /// Snapshots were kept for the grid, and let go of.
    Grid(GridReport),
    /// Deleted keys were forgotten.
    Forgot(TombstonesReport),
    /// Files of the log were merged, and small ones of the snapshot.
    Compacted(CompactReport),
    /// Days moved from the log to its archive.
    Archived(ArchiveReport),
    /// The archive was to be left alone.
    NotArchived {
        /// Every day stays where it is.
        stays_hot: bool,
    },
    /// Days left the log.
    Expired(ExpireReport),
    /// Checkpoints were written, of these versions.
    Checkpointed {
        /// Of the log; none when it wasn't worth it.
        log_version: Option<i64>,
        /// Of the snapshot; none when it wasn't worth it, or there is no snapshot.
        snapshot_version: Option<i64>,
        /// Of the archive; none when it wasn't worth it, or there is no archive.
        archive_version: Option<i64>,
    },
    /// Commits were removed.
    CleanedUp {
        /// Of the log.
        log: CleanUpReport,
        /// Of the snapshot, if there is one.
        snapshot: Option<CleanUpReport>,
        /// Of the archive, if there is one.
        archive: Option<CleanUpReport>,
    },
    /// Data files were removed.
    Vacuumed {
        /// Of the log.
        log: VacuumReport,
        /// Of the snapshot, if there is one.
        snapshot: Option<VacuumReport>,
        /// Of the archive, if there is one.
        archive: Option<VacuumReport>,
        /// Of writes in local folders that killed processes had begun.
        staged: StagedReport,
    },
    /// It failed before it was done.
    Unfinished,
}

/// One step of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepReport {
    /// Which step.
    pub step: MaintainStep,
    /// What it did.
    pub outcome: StepOutcome,
    /// Why it failed. Where its outcome is told too, the archive can't be reached, and it was carried out as far as it needs nothing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<ReportedError>,
    /// How long it took.
    pub elapsed_ms: u64,
}

impl StepReport {
    /// Whether it failed before it was done, so that those after it are not begun.
    pub fn is_unfinished(&self) -> bool {
        self.outcome == StepOutcome::Unfinished
    }
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReportedError {
    /// What kind of error it is.
    pub kind: ErrorKind,
    /// What happened, with its causes.
    pub message: String,
    /// What to do about errors of this kind.
    pub remedy: &'static str,
}

impl From<&Error> for ReportedError {
    fn from(error: &Error) -> Self {
        let (kind, message) = (error.kind(), error.to_string());
        Self { kind, message, remedy: kind.remedy() }
    }
}

/// A step that was not begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Which step.
    pub step: MaintainStep,
    /// Why it was not begun.
    pub reason: LeftOutReason,
}

/// Why a step was not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOutReason {
    /// The run was to stop.
    Stopped,
    /// A step before it failed.
    EarlierStepFailed,
}

impl fmt::Display for LeftOutReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped => "the run was to stop",
            Self::EarlierStepFailed => "a step before it failed",
        })
    }
}

/// What a table is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// The newest version.
    pub version: i64,
    /// The oldest version that can be read by its number.
    pub oldest_version: i64,
    /// Files of the newest version.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What of a log lies in its archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ArchiveTotals {
    /// The version of the archive's table that the log names.
    pub version: i64,
    /// Rows of commits up to this one may be there.
    pub commit: i64,
    /// Files.
    pub files: i64,
    /// Their rows.
    pub rows: i64,
    /// Their bytes.
    pub bytes: i64,
}

impl ArchiveTotals {
    /// What a state of a log says; `None` while nothing was ever archived.
    pub fn of(log: &TableState) -> Option<Self> {
        let Archived { version, commit, files, rows, bytes, .. } = Archived::of(log)?;
        Some(Self { version, commit, files, rows, bytes })
    }
}

/// What a run of the job did to one state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MaintainReport {
    /// The state.
    pub state: String,
    /// Nothing was changed; this is what would have been: what is told as done, and the tables afterwards.
    pub dry_run: bool,
    /// The log before.
    pub log_before: Footprint,
    /// The log afterwards.
    pub log_after: Footprint,
    /// The snapshot before, if there was one.
    pub snapshot_before: Option<Footprint>,
    /// The snapshot afterwards, if there is one.
    pub snapshot_after: Option<Footprint>,
    /// What lies in the archive, if anything ever was moved there.
    pub archive: Option<ArchiveTotals>,
    /// Rows of commits up to this one may have expired from the log; 0 while every row is there.
    pub expired_commit: i64,
    /// The earliest points that can be answered; nothing while every point can.
    pub horizon: Option<Horizon>,
    /// The commits of its tables that the vacuum could not read, while checkpoints stand for them: what they may have named is kept.
    pub unreadable_commits: Vec<UnreadableVersions>,
    /// The steps, in the order in which they were carried out.
    pub steps: Vec<StepReport>,
    /// The steps that were not begun.
    pub left_out: Vec<LeftOut>,
    /// Why what the tables are made of afterwards could not be learned, if so: then it is told as far as it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub afterwards_unknown: Option<ReportedError>,
    /// How long it took.
    pub elapsed_ms: u64,
}

impl MaintainReport {
    /// Notes the commits that a vacuum among the steps could not read.
    pub(super) fn note_unreadable_commits(&mut self, settings: &MaintenanceSettings) {
        let of_step = |step: &StepReport| match &step.outcome {
            StepOutcome::Vacuumed { log, snapshot, archive, .. } => {
                let all = [Some(log), snapshot.as_ref(), archive.as_ref()];
                UnreadableVersions::of(all.into_iter().flatten(), settings)
            }
            _ => Vec::new(),
        };
        self.unreadable_commits = self.steps.iter().flat_map(of_step).collect();
    }

    /// Whether every step was carried out, and as a whole.
    pub fn is_complete(&self) -> bool {
        self.left_out.is_empty()
            && self.afterwards_unknown.is_none()
            && self.steps.iter().all(|step| step.failed.is_none())
    }
}

/// A run in which steps failed; the cause of its error.
#[derive(Debug)]
pub struct FailedSteps {
    /// What was done.
    pub report: MaintainReport,
    cause: Error,
}

impl FailedSteps {
    /// The error of a run in which something failed, with what was done.
    pub(super) fn error(report: MaintainReport, cause: Error) -> Error {
        Error::new(cause.kind(), cause.to_string()).with_source(Self { report, cause })
    }

    /// What was done by a run that ended with an error, if it came as far as its first step.
    pub fn report_of(error: &Error) -> Option<&MaintainReport> {
        let cause = std::error::Error::source(error)?;
        cause.downcast_ref::<Self>().map(|failed| &failed.report)
    }
}

impl fmt::Display for FailedSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.report.steps.iter().filter(|step| step.failed.is_some());
        let failed: Vec<&str> = failed.map(|step| step.step.name()).collect();
        write!(f, "of {} these steps failed: {}", self.report.state, failed.join(", "))
    }
}

impl std::error::Error for FailedSteps {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}
