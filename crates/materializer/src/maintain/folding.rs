//! The step of the job that folds the log into the snapshot.

use alluvium_log::Result;

use super::job::MaintainOptions;
use super::report::StepOutcome;
use crate::materialize::materialize;
use crate::snapshot::Snapshot;

/// Folds what is new.
pub(super) async fn materialize_step(
    snapshot: &Snapshot,
    options: &MaintainOptions,
) -> Result<StepOutcome> {
    let report = materialize(snapshot, &options.materialize).await?;
    Ok(StepOutcome::Materialized(report))
}
