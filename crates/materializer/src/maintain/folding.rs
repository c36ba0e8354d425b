//! The step of the job that folds the log into the snapshot.

use alluvium_log::Result;

use super::job::MaintainOptions;
use super::report::StepOutcome;
use crate::materialize::{MaterializeOptions, materialize};
use crate::snapshot::Snapshot;

/// Folds what is new; a snapshot that has lost a file is made anew, whether there is anything new or not.
pub(super) async fn materialize_step(
    snapshot: &Snapshot,
    options: &MaintainOptions,
) -> Result<StepOutcome> {
    let folding = |rebuild| MaterializeOptions { rebuild, ..options.materialize.clone() };
    let mut report = materialize(snapshot, &folding(false)).await?;
    let current = snapshot.state();
    if let Some((table, state)) = current.table()
        && let Some(path) = table.missing_file(state).await?
    {
        tracing::warn!(
            state = snapshot.log().name(),
            path,
            "the snapshot has lost a file: it is made anew"
        );
        report = materialize(snapshot, &folding(true)).await?;
    }
    Ok(StepOutcome::Materialized(report))
}
