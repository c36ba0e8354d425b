//! The step that frees space: data files that no kept version has, of log, snapshot and archive, what killed writers left, and leases of
//! dead readers.

use std::sync::Arc;

use alluvium_log::{
    Archived, Error, ErrorKind, Log, MaintenanceSettings, Pins, Result, StagedReport, Table,
    VacuumOptions, VacuumReport, archive_path,
};

use super::job::MaintainOptions;
use super::report::StepOutcome;
use crate::snapshot::Snapshot;

/// Carries it out on all tables as of a time; the archive's table is given with how long what it has is in use.
pub(super) async fn vacuum(
    snapshot: &Snapshot,
    settings: &MaintenanceSettings,
    options: &MaintainOptions,
    archive: Option<&(Arc<Table>, i64)>,
    now_ms: i64,
) -> Result<StepOutcome> {
    let archive = match archive {
        Some((table, use_ms)) => {
            let options = archive_vacuum(settings, *use_ms);
            Some(table.vacuum_beside(&options, now_ms, &Pins::default()).await?)
        }
        None => None,
    };
    let staged = remove_staged(snapshot.log(), settings, options.with_archive).await?;
    let (log, snapshot) = vacuum_step(snapshot, settings).await?;
    Ok(StepOutcome::Vacuumed { log, snapshot, archive, staged })
}

/// The archive's table, and how long what it has is in use as of a time whatever is set; `None` while there is none.
pub(super) async fn archive_in_use(
    log: &Log,
    settings: &MaintenanceSettings,
    now_ms: i64,
) -> Result<Option<(Arc<Table>, i64)>> {
    let Some(known) = Archived::of(&log.state()) else { return Ok(None) };
    let place = || log.archive_place(settings);
    let opened = log.open_archive(settings).await.map_err(|error| error.context(place()))?;
    let table = opened.ok_or_else(|| {
        Error::new(
            ErrorKind::Storage,
            format!(
                "the archive at {} isn't there: make it reachable again, or leave it alone (--no-archive)",
                place()
            ),
        )
    })?;
    table.refresh().await?;
    let use_ms = log.archive_use_ms(&table, known, now_ms).await?;
    Ok(Some((table, use_ms)))
}

/// What of the archive's files a vacuum leaves.
pub(super) fn archive_vacuum(settings: &MaintenanceSettings, use_ms: i64) -> VacuumOptions {
    VacuumOptions {
        file_retention_ms: settings.file_retention_ms.max(use_ms),
        orphan_grace_ms: settings.orphan_grace_ms,
        dry_run: false,
    }
}

/// Removes what killed processes had begun to write in the state's folder and in its archive's, once nobody can be at work on it.
async fn remove_staged(
    log: &Log,
    settings: &MaintenanceSettings,
    with_archive: bool,
) -> Result<StagedReport> {
    let cutoff_ms = log.clock().now_ms().saturating_sub(settings.orphan_grace_ms);
    let own = log.storage().remove_staged(log.name(), cutoff_ms, false).await?;
    if !with_archive || settings.archive.is_none() || Archived::of(&log.state()).is_none() {
        return Ok(own);
    }
    let (storage, path) = (log.archive_storage(settings)?, archive_path(log.name()));
    Ok(own.join(storage.remove_staged(&path, cutoff_ms, false).await?))
}

async fn vacuum_step(
    snapshot: &Snapshot,
    settings: &MaintenanceSettings,
) -> Result<(VacuumReport, Option<VacuumReport>)> {
    let orphan_grace_ms = settings.orphan_grace_ms;
    let options =
        |file_retention_ms| VacuumOptions { file_retention_ms, orphan_grace_ms, dry_run: false };
    let log = snapshot.log();
    let of_log = log.table().vacuum(&options(settings.file_retention_ms)).await?;
    log.leases().remove_over(log.clock().now_ms()).await?;
    let state = snapshot.state();
    let Some((table, _)) = state.table() else { return Ok((of_log, None)) };
    // The time first: a savepoint that is made from now on is of a version that this vacuum keeps.
    let now_ms = log.clock().now_ms();
    let (pins, over) = snapshot.pins(now_ms, settings.file_retention_ms).await?;
    let options = options(settings.snapshot_retention_ms());
    let of_snapshot = table.vacuum_beside(&options, now_ms, &pins).await?;
    snapshot.forget(&over).await?;
    Ok((of_log, Some(of_snapshot)))
}
