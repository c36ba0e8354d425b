//! What only the rows of a log tell: how many keys, how many changes came late, how many ties conflict.

use alluvium_log::{DELETE, KeyFilter, OP_TYPE, ReadSpec, Result, RowFilter};
use alluvium_materializer::{Ranking, file_input, fold, whole_value};
use alluvium_query::{Basis, Point};
use arrow::array::AsArray;
use futures::TryStreamExt;
use serde::Serialize;

use crate::raw::RawState;

/// What a look at every row of the log tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DepthStats {
    /// Keys that the log has a row of, or the snapshot where days have expired.
    pub keys: u64,
    /// Of these, keys with a value.
    pub live_keys: u64,
    /// Of these, keys whose newest change is a DELETE.
    pub deleted_keys: u64,
    /// Rows that were older than what was there already when they were committed, so that they never became the state. Once days have
    /// expired, of the commits after these, as far as what is left tells.
    pub late_rows: u64,
    /// Rows of one key that are equal in version and event time and differ in operation or value, each time that two of them met.
    pub conflicting_ties: u64,
}

impl RawState {
    /// Reads the whole log of a basis twice, in bounded memory.
    pub(crate) async fn depth(&self, basis: &Basis) -> Result<DepthStats> {
        let mut depth = DepthStats::default();
        let ranking = Ranking::from(basis.definition().order_by);
        let filter = RowFilter { up_to_commit: Some(basis.commit()), ..RowFilter::default() };
        let spec = ReadSpec { payload: whole_value(basis.definition()), filter };
        let (table, footers) = (self.reader().log_table(), self.reader().footers());
        let files = self.reader().log_files(basis, &spec.filter).await?;
        let mut inputs: Vec<_> =
            files.iter().map(|file| file_input(table, file, &spec, footers)).collect();
        if basis.expired_commit() > 0
            && let Some((table, _)) = basis.snapshot().table()
        {
            // What has expired is in the snapshot alone; a row that is in both is one.
            let spec = ReadSpec { filter: RowFilter::default(), ..spec.clone() };
            let folded = basis.snapshot().files();
            inputs.extend(folded.map(|file| file_input(table, file, &spec, footers)));
        }
        let mut winners =
            fold(ranking.clone(), spec.schema(), inputs, self.fold_settings()).await?;
        while let Some(batch) = winners.try_next().await? {
            let deletes = batch.column_by_name(OP_TYPE).map_or(0, |operations| {
                let operations = operations.as_string::<i32>();
                operations.iter().filter(|operation| *operation == Some(DELETE)).count()
            });
            depth.keys += batch.num_rows() as u64;
            depth.deleted_keys += deletes as u64;
        }
        depth.live_keys = depth.keys - depth.deleted_keys;
        depth.conflicting_ties = ranking.conflicting_ties();
        let (all, after) = (KeyFilter::All, basis.expired_commit());
        let mut rows = self.reader().history_rows_after(basis, all, Point::LATEST, after).await?;
        while let Some(batch) = rows.try_next().await? {
            if let Some(late) = batch.column_by_name("is_late") {
                depth.late_rows += late.as_boolean().true_count() as u64;
            }
        }
        Ok(depth)
    }
}
