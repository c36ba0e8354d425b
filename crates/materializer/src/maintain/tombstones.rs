//! The step that lets go of tombstones: the floor of the log is raised, and the snapshot is made without those below it.
//!
//! ```text
//! tombstones past tombstone_retention -> the log's floor by one commit -> from then on older changes are refused -> materialize
//! ```
//!
//! The floor comes first: what is let go of must not be asked for by a change that arrives in between. If the process dies before the
//! snapshot is made, any later materialization makes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_log::{Attempt, Floor, FooterCache, MaintenanceSettings, Outcome, Result};
use serde::{Deserialize, Serialize};

use crate::fold::FoldSettings;
use crate::materialize::{MaterializeOptions, materialize};
use crate::snapshot::Snapshot;
use crate::tombstones::count_below;

/// What letting go of tombstones did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TombstonesReport {
    /// Changes at or below this event time are refused, in microseconds since 1970; none while every one is taken.
    pub floor: Option<i64>,
    /// Whether this run raised it.
    pub is_raised: bool,
    /// Tombstones that the snapshot is without from now on.
    pub forgotten: u64,
    /// Tombstones that it had before.
    pub tombstones: u64,
    /// Why no more was let go of.
    pub reason: String,
}

/// Raises the floor as far as `tombstone_retention` lets it if the snapshot has tombstones below, and makes the snapshot without them.
#[tracing::instrument(level = "info", skip_all, fields(state = snapshot.log().name()), err(level = "debug"))]
pub async fn forget_tombstones(
    snapshot: &Snapshot,
    options: &MaterializeOptions,
) -> Result<TombstonesReport> {
    let mut report = tombstones_to_forget(snapshot, &options.fold, &options.footers).await?;
    let log = snapshot.log();
    let planned = std::mem::take(&mut report.forgotten);
    if report.is_raised
        && let Err(reason) = raise(snapshot, report.floor).await?
    {
        report.is_raised = false;
        report.reason = reason;
    }
    report.floor = log.floor().map(|floor| floor.time);
    if planned > 0 && snapshot.state().least_tombstone() <= report.floor {
        let options = MaterializeOptions { rebuild: false, ..options.clone() };
        report.forgotten = materialize(snapshot, &options).await?.tombstones_forgotten;
        metrics::counter!(crate::metrics::TOMBSTONES_FORGOTTEN).increment(report.forgotten);
    }
    Ok(report)
}

/// What [`forget_tombstones`] would do: `floor` is what it would be, `forgotten` the tombstones of the snapshot as it is.
pub async fn tombstones_to_forget(
    snapshot: &Snapshot,
    fold: &FoldSettings,
    footers: &Arc<FooterCache>,
) -> Result<TombstonesReport> {
    let log = snapshot.log();
    let known = log.refresh().await?;
    let current = snapshot.refresh().await?;
    let settings = MaintenanceSettings::from_metadata(&known.metadata)?;
    let now = Floor::of(&known).map(|floor| floor.time);
    let wanted = Floor::wanted(&settings, log.clock().now_ms());
    let mut report = TombstonesReport {
        floor: now,
        tombstones: current.tombstones(),
        ..TombstonesReport::default()
    };
    if !current.is_ours() {
        report.reason =
            "another engine rewrote the snapshot: materialize makes it anew first".to_owned();
        return Ok(report);
    }
    let Some(target) = wanted.max(now) else {
        report.reason =
            "tombstone_retention is not set: deleted keys are remembered for ever".to_owned();
        return Ok(report);
    };
    report.forgotten = count_below(&current, target, fold, footers).await?;
    // Without anything to gain late changes go on being taken.
    if report.forgotten > 0 && wanted > now {
        report.floor = wanted;
        report.is_raised = true;
    }
    report.reason = match wanted {
        None => "tombstone_retention is not set any more: the floor stays where it is".to_owned(),
        Some(_) => "all other tombstones are within tombstone_retention, in whole days".to_owned(),
    };
    Ok(report)
}

/// Raises the floor by a commit of the log; or why not.
async fn raise(snapshot: &Snapshot, target: Option<i64>) -> Result<Result<(), String>> {
    let log = snapshot.log();
    let folded = snapshot.state().log_commit();
    let now_ms = log.clock().now_ms();
    let note = BTreeMap::from([("step".to_owned(), serde_json::json!("tombstones"))]);
    let outcome = log
        .table()
        .commit("WRITE", Some(false), note, |state, version| {
            let before = Floor::of(state);
            let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
            let Some(time) = target.filter(|time| Floor::wanted(&settings, now_ms) >= Some(*time))
            else {
                return Ok(Attempt::Stop("tombstone_retention was changed meanwhile"));
            };
            if before.is_some_and(|before| before.time >= time) {
                return Ok(Attempt::Stop("another process raised the floor meanwhile"));
            }
            // Once it is higher, nothing tells any more whether a row came in below the one before.
            let is_late = |before: Floor| {
                state.files_after(folded.max(before.commit)).any(|file| before.may_exceed(file))
            };
            if before.is_some_and(is_late) {
                return Ok(Attempt::Stop(
                    "rows that are not folded yet may lie below the floor: materialize first",
                ));
            }
            Ok(Attempt::Write(Floor { time, commit: version }.actions().into()))
        })
        .await
        .map_err(|error| error.context(format!("raising the floor of {}", log.name())))?;
    Ok(match outcome {
        Outcome::Committed(_) => Ok(()),
        Outcome::Stopped(reason) => Err(reason.to_owned()),
    })
}

/// What the step would do to a state, for those who only tell.
pub(super) async fn planned(snapshot: &Snapshot) -> Result<TombstonesReport> {
    let footers = FooterCache::new(0);
    tombstones_to_forget(snapshot, &FoldSettings::default(), &footers).await
}
