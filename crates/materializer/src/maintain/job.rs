//! The periodic job: any subset of the steps, in the order that lets each one profit from those before it, and one report.

use std::time::Instant;

use alluvium_log::{
    DEFAULT_FOOTER_CACHE_BYTES, Error, Expired, FooterCache, LEAST_COMMIT_RETENTION_MS,
    MaintenanceSettings, Result, Table,
};
use futures::FutureExt;
use tracing::Instrument;

use super::archive::archive;
use super::check::check;
use super::compact::{CompactOptions, compact};
use super::expire::expire;
use super::folding::materialize_step;
use super::report::{
    ArchiveTotals, FailedSteps, Footprint, LeftOut, LeftOutReason, MaintainReport, ReportedError,
    StepOutcome, StepReport,
};
use super::step::MaintainStep;
use super::stop::StopSignal;
use super::tombstones::forget_tombstones;
use super::vacuum::{archive_in_use, vacuum};
use crate::materialize::{MaterializeOptions, join_small_files};
use crate::snapshot::Snapshot;

/// A checkpoint is worth writing, beside those that are due anyway, when so many commits have come since the last one.
const CHECKPOINT_MIN_COMMITS: i64 = 10;

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

/// Carries out steps of maintenance on a state. It may be killed at any instant and run again.
///
/// # Errors
/// A step fails, and those after it are not begun; but where only the archive can't be reached, all steps are carried out without it.
/// Either error has the report of what was done ([`FailedSteps`]); one that comes before the first step has none.
#[tracing::instrument(level = "info", skip_all, fields(state = snapshot.log().name(), dry_run = options.dry_run, basis = snapshot.log().state().version, commit = tracing::field::Empty), err(level = "debug"))]
pub async fn maintain(snapshot: &Snapshot, options: &MaintainOptions) -> Result<MaintainReport> {
    match options.dry_run {
        true => rehearse(snapshot, options).boxed().await,
        false => carry_out_all(snapshot, options).boxed().await,
    }
}

/// Carries them out on what only seems to be changed: so the report is that of a run, whatever a step makes of those before it.
async fn rehearse(snapshot: &Snapshot, options: &MaintainOptions) -> Result<MaintainReport> {
    let spill_dir = options.materialize.fold.spill_dir.clone().unwrap_or_else(std::env::temp_dir);
    let place = || format!("maintaining {}, a dry run", snapshot.log().name());
    snapshot.log().refresh().await?;
    let (storage, log) =
        snapshot.log().rehearsal(&spill_dir).await.map_err(|error| error.context(place()))?;
    let rehearsed = Snapshot::open(&storage, &log).await?;
    // What is read of files that are gone with the rehearsal is of no use to anybody else.
    let footers = FooterCache::new(DEFAULT_FOOTER_CACHE_BYTES);
    let materialize = MaterializeOptions { footers, ..options.materialize.clone() };
    let options = MaintainOptions { materialize, ..options.clone() };
    let outcome = carry_out_all(&rehearsed, &options).await;
    log.close().await;
    outcome
}

async fn carry_out_all(snapshot: &Snapshot, options: &MaintainOptions) -> Result<MaintainReport> {
    let started = Instant::now();
    let log = snapshot.log();
    let settings = log.maintenance_settings()?;
    settings.validate().map_err(|error| error.context(format!("state {}", log.name())))?;
    let mut report = begin(snapshot, options).await?;
    let mut failed = None;
    for step in MaintainStep::ALL.into_iter().filter(|step| options.steps.contains(step)) {
        let is_broken = report.steps.iter().any(StepReport::is_unfinished);
        if is_broken || options.stop.is_wanted() {
            let reason = match is_broken {
                true => LeftOutReason::EarlierStepFailed,
                false => LeftOutReason::Stopped,
            };
            report.left_out.push(LeftOut { step, reason });
            continue;
        }
        let begun = Instant::now();
        let (state, basis) = (log.name(), log.state().version);
        let commit = tracing::field::Empty;
        let span = tracing::info_span!("step", %step, state, basis, commit);
        let done = carry_out(step, snapshot, &settings, options).instrument(span.clone()).await;
        span.record("commit", log.state().version);
        let (outcome, error) = match done {
            Ok(done) => done,
            Err(error) => (StepOutcome::Unfinished, Some(error)),
        };
        let elapsed_ms = millis(begun);
        let told = error.as_ref().map(ReportedError::from);
        report.steps.push(StepReport { step, outcome, failed: told, elapsed_ms });
        let context = || format!("maintaining {}, step {step}", log.name());
        failed = failed.or(error.map(|error| error.context(context())));
    }
    tracing::Span::current().record("commit", log.state().version);
    report.note_unreadable_commits(&settings);
    if let Err(error) = end(snapshot, &mut report).await {
        report.afterwards_unknown = Some(ReportedError::from(&error));
        let place = format!("maintaining {}, what came of it", log.name());
        failed = failed.or(Some(error.context(place)));
    }
    report.elapsed_ms = millis(started);
    match failed {
        None => Ok(report),
        Some(cause) => Err(FailedSteps::error(report, cause)),
    }
}

/// A report before the first step.
async fn begin(snapshot: &Snapshot, options: &MaintainOptions) -> Result<MaintainReport> {
    let log = snapshot.log();
    snapshot.refresh().await?;
    log.refresh().await?;
    let log_before = footprint(log.table()).await?;
    let snapshot_before = snapshot_footprint(snapshot).await?;
    Ok(MaintainReport {
        state: log.name().to_owned(),
        dry_run: options.dry_run,
        log_before,
        log_after: log_before,
        snapshot_before,
        snapshot_after: snapshot_before,
        archive: None,
        expired_commit: 0,
        horizon: None,
        unreadable_commits: Vec::new(),
        steps: Vec::new(),
        left_out: Vec::new(),
        afterwards_unknown: None,
        elapsed_ms: 0,
    })
}

/// Tells what the tables are made of by now: first what is known here, then what only the store tells.
async fn end(snapshot: &Snapshot, report: &mut MaintainReport) -> Result<()> {
    let log = snapshot.log();
    report.log_after = known_footprint(log.table(), report.log_after.oldest_version);
    if let Some((table, _)) = snapshot.state().table() {
        let oldest = report.snapshot_after.map_or(0, |before| before.oldest_version);
        report.snapshot_after = Some(known_footprint(table, oldest));
    }
    report.archive = ArchiveTotals::of(&log.state());
    report.expired_commit = Expired::commit_of(&log.state());
    report.log_after = footprint(log.table()).await?;
    report.snapshot_after = snapshot_footprint(snapshot).await?;
    if report.expired_commit > 0 {
        report.horizon = snapshot.horizon(&snapshot.state(), report.expired_commit).await?;
    }
    Ok(())
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
    Ok(known_footprint(table, table.oldest_version().await?))
}

fn known_footprint(table: &Table, oldest_version: i64) -> Footprint {
    let state = table.state();
    Footprint {
        version: state.version,
        oldest_version,
        files: state.file_count() as u64,
        bytes: state.files().map(|file| file.add.size).sum(),
    }
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
        MaintainStep::Grid => snapshot.keep_grid(false).await.map(StepOutcome::Grid),
        MaintainStep::Tombstones => {
            forget_tombstones(snapshot, &options.materialize).await.map(StepOutcome::Forgot)
        }
        MaintainStep::Compact => {
            let merging = compact_options(snapshot, options);
            let mut report = compact(snapshot.log(), &merging).await?;
            if !report.gave_way {
                report.note_snapshot(&join_small_files(snapshot, &options.materialize).await?);
            }
            Ok(StepOutcome::Compacted(report))
        }
        MaintainStep::Archive if !options.with_archive => {
            Ok(StepOutcome::NotArchived { stays_hot: true })
        }
        MaintainStep::Archive => {
            let merging = compact_options(snapshot, options);
            archive(snapshot, Some(&merging), false).await.map(StepOutcome::Archived)
        }
        MaintainStep::Expire => {
            expire(snapshot, options.with_archive, false).await.map(StepOutcome::Expired)
        }
        MaintainStep::Checkpoint => Ok(StepOutcome::Checkpointed {
            log_version: checkpoint(log).await?,
            snapshot_version: match table {
                Some(table) => checkpoint(table).await?,
                None => None,
            },
            archive_version: match &archive_table {
                Some((table, _)) => checkpoint(table).await?,
                None => None,
            },
        }),
        MaintainStep::Cleanup => Ok(StepOutcome::CleanedUp {
            log: log.clean_up(settings.commit_retention_ms, false).await?,
            snapshot: match table {
                Some(table) => Some(table.clean_up(settings.commit_retention_ms, false).await?),
                None => None,
            },
            archive: match &archive_table {
                Some((table, use_ms)) => {
                    // It begins a moment later than the time that this is as of.
                    let use_ms = use_ms.saturating_add(LEAST_COMMIT_RETENTION_MS);
                    let kept_ms = settings.commit_retention_ms.max(use_ms);
                    Some(table.clean_up(kept_ms, false).await?)
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
        dry_run: false,
    }
}

/// Writes a checkpoint if enough has happened since the last one.
async fn checkpoint(table: &Table) -> Result<Option<i64>> {
    if table.commits_since_checkpoint() < CHECKPOINT_MIN_COMMITS {
        return Ok(None);
    }
    let version = table.state().version;
    Ok(table.checkpoint().await?.then_some(version))
}
