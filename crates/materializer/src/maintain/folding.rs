//! The step of the job that folds the log into the snapshot.

use alluvium_log::{Result, RowFilter};

use super::job::{MaintainOptions, StepOutcome};
use crate::materialize::materialize;
use crate::snapshot::Snapshot;

/// Folds what is new, or tells how much that would be.
pub(super) async fn materialize_step(
    snapshot: &Snapshot,
    options: &MaintainOptions,
) -> Result<StepOutcome> {
    if !options.dry_run {
        let report = materialize(snapshot, &options.materialize).await?;
        return Ok(StepOutcome::Materialized(report));
    }
    let (log, from) = (snapshot.log(), snapshot.state().log_commit());
    let filter = RowFilter { after_commit: Some(from), ..RowFilter::default() };
    let state = log.state();
    let files = log.files(&state, &filter).await?;
    let rows = files.iter().filter_map(|file| file.stats.rows).sum();
    Ok(StepOutcome::ToMaterialize { commits: state.version - from, rows })
}
