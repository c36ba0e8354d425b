//! The periodic job: any subset of the steps, in the order that lets each one profit from those before it, and one report.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use alluvium_log::{
    Archived, CleanUpReport, Error, Expired, LEAST_COMMIT_RETENTION_MS, MaintenanceSettings,
    Result, StagedReport, Table, TableState, VacuumReport,
};
use serde::{Deserialize, Serialize};
use tracing::Instrument;

use super::archive::{ArchiveReport, archive};
use super::check::{SnapshotCheck, check};
use super::compact::{CompactOptions, CompactReport, compact};
use super::expire::{ExpireReport, expire};
use super::folding::materialize_step;
use super::stop::StopSignal;
use super::tombstones::{TombstonesReport, forget_tombstones, tombstones_to_forget};
use super::vacuum::{archive_in_use, vacuum};
use crate::materialize::{MaterializeOptions, MaterializeReport};
use crate::snapshot::{GridReport, Horizon, Snapshot};

/// A checkpoint is worth writing, beside those that are due anyway, when so many commits have come since the last one.
const CHECKPOINT_MIN_COMMITS: i64 = 10;

/// A step of maintenance. They are carried out in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaintainStep {
    /// Fold the log into the snapshot.
    Materialize,
    /// Look whether the snapshot's files are as they were written, and make it anew if not.
    Check,
    /// Keep the snapshots that the grid asks for, and let go of those that it asks for no more.
    Grid,
    /// Refuse changes that are older than deleted keys are remembered, and forget those keys.
    Tombstones,
    /// Merge the log's files by days.
    Compact,
    /// Move the days of the log that are over for long to its archive.
    Archive,
    /// Drop the days of the log that are past their retention, where snapshots hold what their rows came to.
    Expire,
    /// Write checkpoints of both tables.
    Checkpoint,
    /// Remove the commits that no kept version needs.
    Cleanup,
    /// Remove the data files that no kept version has.
    Vacuum,
}

impl MaintainStep {
    /// All steps, in order.
    pub const ALL: [Self; 10] = [
        Self::Materialize,
        Self::Check,
        Self::Grid,
        Self::Tombstones,
        Self::Compact,
        Self::Archive,
        Self::Expire,
        Self::Checkpoint,
        Self::Cleanup,
        Self::Vacuum,
    ];

    /// The step's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Materialize => "materialize",
            Self::Check => "check",
            Self::Grid => "grid",
            Self::Tombstones => "tombstones",
            Self::Compact => "compact",
            Self::Archive => "archive",
            Self::Expire => "expire",
            Self::Checkpoint => "checkpoint",
            Self::Cleanup => "cleanup",
            Self::Vacuum => "vacuum",
        }
    }
}

impl fmt::Display for MaintainStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MaintainStep {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|step| step.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::invalid(format!("{text:?} is no step of maintenance: the steps are {names}"))
        })
    }
}

impl MaintainStep {
    fn looks_at_archive(self) -> bool {
        matches!(
            self,
            Self::Archive | Self::Expire | Self::Checkpoint | Self::Cleanup | Self::Vacuum
        )
    }
}

/// What to do, and by what means.
#[derive(Debug, Clone)]
pub struct MaintainOptions {
    /// Which steps; their order doesn't matter.
    pub steps: Vec<MaintainStep>,
    /// Memory, layout and footers of all steps; the log is never folded anew here.
    pub materialize: MaterializeOptions,
    /// Whether the archive is looked at and changed; without, every day stays where it is.
    pub with_archive: bool,
    /// Tell what would be done, and change nothing.
    pub dry_run: bool,
    /// Begin no further step once this is wanted.
    pub stop: StopSignal,
}

/// What one step did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StepOutcome {
    /// The log was folded into the snapshot.
    Materialized(MaterializeReport),
    /// The log would be folded into the snapshot.
    ToMaterialize {
        /// Commits that the snapshot doesn't fold yet.
        commits: i64,
        /// Their rows.
        rows: u64,
    },
    /// The snapshot's files were looked at.
    Checked(SnapshotCheck),
    /// Snapshots were kept for the grid, and let go of.
    Grid(GridReport),
    /// Deleted keys were forgotten.
    Forgot(TombstonesReport),
    /// Files of the log were merged.
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
}

/// One step of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepReport {
    /// Which step.
    pub step: MaintainStep,
    /// What it did.
    pub outcome: StepOutcome,
    /// Why it failed: the archive, which it was to look at, can't be reached. It was carried out as far as it needs nothing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// How long it took.
    pub elapsed_ms: u64,
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
    /// Nothing was changed; this is what would have been.
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
    /// The steps, in the order in which they were carried out.
    pub steps: Vec<StepReport>,
    /// The steps that were not begun, because the run was to stop.
    pub left_out: Vec<MaintainStep>,
    /// How long it took.
    pub elapsed_ms: u64,
}

impl MaintainReport {
    /// Whether every step was carried out, and as a whole.
    pub fn is_complete(&self) -> bool {
        self.left_out.is_empty() && self.steps.iter().all(|step| step.failed.is_none())
    }
}

/// A run in which steps failed because the archive can't be reached; the cause of its error. Everything else was done.
#[derive(Debug)]
pub struct FailedSteps {
    /// What was done.
    pub report: MaintainReport,
    cause: Error,
}

impl FailedSteps {
    /// What was done by a run that ended with an error, if that was only that steps failed for the archive.
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

/// Carries out steps of maintenance on a state. It may be killed at any instant and run again.
///
/// # Errors
/// A step fails, and those after it are not begun; but where only the archive can't be reached, all steps are carried out without it, and
/// the error has their report ([`FailedSteps`]).
#[tracing::instrument(level = "info", skip_all, fields(state = snapshot.log().name(), dry_run = options.dry_run, basis = snapshot.log().state().version, commit = tracing::field::Empty), err(level = "debug"))]
pub async fn maintain(snapshot: &Snapshot, options: &MaintainOptions) -> Result<MaintainReport> {
    let started = Instant::now();
    let log = snapshot.log();
    let settings = log.maintenance_settings()?;
    settings.validate().map_err(|error| error.context(format!("state {}", log.name())))?;
    snapshot.refresh().await?;
    log.refresh().await?;
    let mut report = MaintainReport {
        state: log.name().to_owned(),
        dry_run: options.dry_run,
        log_before: footprint(log.table()).await?,
        log_after: Footprint::default(),
        snapshot_before: snapshot_footprint(snapshot).await?,
        snapshot_after: None,
        archive: None,
        expired_commit: 0,
        horizon: None,
        steps: Vec::new(),
        left_out: Vec::new(),
        elapsed_ms: 0,
    };
    let mut failed = None;
    for step in MaintainStep::ALL.into_iter().filter(|step| options.steps.contains(step)) {
        if options.stop.is_wanted() {
            report.left_out.push(step);
            continue;
        }
        let begun = Instant::now();
        let (state, basis) = (log.name(), log.state().version);
        let commit = tracing::field::Empty;
        let span = tracing::info_span!("step", %step, state, basis, commit);
        let done = carry_out(step, snapshot, &settings, options).instrument(span.clone()).await;
        span.record("commit", log.state().version);
        let context =
            |error: Error| error.context(format!("maintaining {}, step {step}", log.name()));
        let (outcome, error) = done.map_err(context)?;
        let told = error.as_ref().map(ToString::to_string);
        failed = failed.or(error.map(context));
        report.steps.push(StepReport { step, outcome, failed: told, elapsed_ms: millis(begun) });
    }
    tracing::Span::current().record("commit", log.state().version);
    report.log_after = footprint(log.table()).await?;
    report.snapshot_after = snapshot_footprint(snapshot).await?;
    report.archive = ArchiveTotals::of(&log.state());
    report.expired_commit = Expired::commit_of(&log.state());
    if report.expired_commit > 0 {
        report.horizon = snapshot.horizon(&snapshot.state(), report.expired_commit).await?;
    }
    report.elapsed_ms = millis(started);
    match failed {
        None => Ok(report),
        Some(cause) => {
            Err(Error::new(cause.kind(), cause.to_string())
                .with_source(FailedSteps { report, cause }))
        }
    }
}

/// One step. Where the archive that it looks at can't be reached, it is carried out without, and the error is given beside.
async fn carry_out(
    step: MaintainStep,
    snapshot: &Snapshot,
    settings: &MaintenanceSettings,
    options: &MaintainOptions,
) -> Result<(StepOutcome, Option<Error>)> {
    let error = match run(step, snapshot, settings, options).await {
        Ok(outcome) => return Ok((outcome, None)),
        Err(error) => error,
    };
    if !options.with_archive || !step.looks_at_archive() {
        return Err(error);
    }
    let Err(unreachable) = snapshot.log().reach_archive().await else { return Err(error) };
    let without = MaintainOptions { with_archive: false, ..options.clone() };
    Ok((run(step, snapshot, settings, &without).await?, Some(unreachable)))
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

async fn footprint(table: &Table) -> Result<Footprint> {
    let state = table.state();
    Ok(Footprint {
        version: state.version,
        oldest_version: table.oldest_version().await?,
        files: state.file_count() as u64,
        bytes: state.files().map(|file| file.add.size).sum(),
    })
}

async fn snapshot_footprint(snapshot: &Snapshot) -> Result<Option<Footprint>> {
    match snapshot.state().table() {
        Some((table, _)) => footprint(table).await.map(Some),
        None => Ok(None),
    }
}

async fn run(
    step: MaintainStep,
    snapshot: &Snapshot,
    settings: &MaintenanceSettings,
    options: &MaintainOptions,
) -> Result<StepOutcome> {
    let log = snapshot.log().table();
    let state = snapshot.state();
    let table = state.table().map(|(table, _)| table.as_ref());
    let dry_run = options.dry_run;
    let looks_at_archive =
        matches!(step, MaintainStep::Checkpoint | MaintainStep::Cleanup | MaintainStep::Vacuum);
    let now_ms = snapshot.log().clock().now_ms();
    let archive_table = match looks_at_archive && options.with_archive {
        true => archive_in_use(snapshot.log(), settings, now_ms).await?,
        false => None,
    };
    match step {
        MaintainStep::Materialize => materialize_step(snapshot, options).await,
        MaintainStep::Check => check(snapshot, options).await.map(StepOutcome::Checked),
        MaintainStep::Grid => snapshot.keep_grid(dry_run).await.map(StepOutcome::Grid),
        MaintainStep::Tombstones => {
            let options = &options.materialize;
            let report = match dry_run {
                true => tombstones_to_forget(snapshot, &options.fold, &options.footers).await,
                false => forget_tombstones(snapshot, options).await,
            };
            report.map(StepOutcome::Forgot)
        }
        MaintainStep::Compact => {
            let options = compact_options(snapshot, options);
            compact(snapshot.log(), &options).await.map(StepOutcome::Compacted)
        }
        MaintainStep::Archive if !options.with_archive => {
            Ok(StepOutcome::NotArchived { stays_hot: true })
        }
        MaintainStep::Archive => {
            if dry_run && settings.hot_days_ms.is_some() {
                // As a run finds out that moves days.
                snapshot.log().reach_archive().await?;
            }
            let merging = compact_options(snapshot, options);
            archive(snapshot, Some(&merging), dry_run).await.map(StepOutcome::Archived)
        }
        MaintainStep::Expire => {
            expire(snapshot, options.with_archive, dry_run).await.map(StepOutcome::Expired)
        }
        MaintainStep::Checkpoint => Ok(StepOutcome::Checkpointed {
            log_version: checkpoint(log, dry_run).await?,
            snapshot_version: match table {
                Some(table) => checkpoint(table, dry_run).await?,
                None => None,
            },
            archive_version: match &archive_table {
                Some((table, _)) => checkpoint(table, dry_run).await?,
                None => None,
            },
        }),
        MaintainStep::Cleanup => Ok(StepOutcome::CleanedUp {
            log: log.clean_up(settings.commit_retention_ms, dry_run).await?,
            snapshot: match table {
                Some(table) => Some(table.clean_up(settings.commit_retention_ms, dry_run).await?),
                None => None,
            },
            archive: match &archive_table {
                Some((table, use_ms)) => {
                    // It begins a moment later than the time that this is as of.
                    let use_ms = use_ms.saturating_add(LEAST_COMMIT_RETENTION_MS);
                    let kept_ms = settings.commit_retention_ms.max(use_ms);
                    Some(table.clean_up(kept_ms, dry_run).await?)
                }
                None => None,
            },
        }),
        MaintainStep::Vacuum => {
            vacuum(snapshot, settings, options, archive_table.as_ref(), now_ms).await
        }
    }
}

fn compact_options(snapshot: &Snapshot, options: &MaintainOptions) -> CompactOptions {
    let state = snapshot.state();
    CompactOptions {
        fold: options.materialize.fold.clone(),
        file_rows: options.materialize.layout.compacted_file_rows,
        footers: options.materialize.footers.clone(),
        // What isn't folded yet is found faster in small files; without a snapshot every read takes all of the log anyway.
        up_to_commit: state.table().map_or(i64::MAX, |_| state.log_commit()),
        dry_run: options.dry_run,
    }
}

/// Writes a checkpoint if enough has happened since the last one.
async fn checkpoint(table: &Table, dry_run: bool) -> Result<Option<i64>> {
    if table.commits_since_checkpoint() < CHECKPOINT_MIN_COMMITS {
        return Ok(None);
    }
    let version = table.state().version;
    let written = dry_run || table.checkpoint().await?;
    Ok(written.then_some(version))
}
