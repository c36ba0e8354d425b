//! The step of the job that folds the log into the snapshot.

use alluvium_log::{Result, RowFilter};

use super::job::MaintainOptions;
use super::report::StepOutcome;
use crate::materialize::{MaterializeOptions, materialize};
use crate::snapshot::Snapshot;

/// Folds what is new; a snapshot that has lost a file is made anew, whether there is anything new or not.
pub(super) async fn materialize_step(
    snapshot: &Snapshot,
    options: &MaintainOptions,
) -> Result<StepOutcome> {
    if !options.dry_run {
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
        return Ok(StepOutcome::Materialized(report));
    }
    let (log, from) = (snapshot.log(), snapshot.state().log_commit());
    let filter = RowFilter { after_commit: Some(from), ..RowFilter::default() };
    let state = log.state();
    let files = log.files(&state, &filter).await?;
    let rows = files.iter().filter_map(|file| file.stats.rows).sum();
    Ok(StepOutcome::ToMaterialize { commits: state.version - from, rows })
}
