//! What a cache of rows is fed with: the winners of many keys as few batches, and what commits changed.

use std::sync::Arc;

use alluvium_log::{
    DataFile, Error, KeyFilter, OrderBy, ReadSpec, Result, RowFilter, StateDefinition, read_file,
    read_keys,
};
use alluvium_materializer::whole_value;
use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::FieldRef;
use futures::TryStreamExt;

use crate::basis::Basis;
use crate::point::Point;
use crate::reader::{Reader, places_of_winners};

impl Reader {
    /// Pins the newest basis like [`Reader::basis`], without waiting where one look at the disk tells that the log has nothing new.
    pub async fn basis_by_probe(&self) -> Result<Basis> {
        match self.known_basis()? {
            Some(basis) => Ok(basis),
            None => self.basis().await,
        }
    }

    /// Looks several keys up at one point of one basis: the rows that win, deletes included, in no order. A key without a
    /// row has none.
    ///
    /// Pages that several of the keys lie in are read once.
    #[tracing::instrument(name = "get", level = "debug", skip_all, fields(state = self.name(), basis = basis.commit(), as_of = %point, keys = keys.len()), err(level = "debug"))]
    pub async fn rows_of_keys(
        &self,
        basis: &Basis,
        point: Point,
        keys: &[&str],
    ) -> Result<Vec<RecordBatch>> {
        basis.check(point)?;
        newest_of(&self.candidate_rows(basis, point, keys).await?, basis.definition.order_by)
    }

    /// Looks keys up in files of an epoch that is not committed yet ([`alluvium_log::EpochCommit::staged_files`]): the rows
    /// that win among those.
    pub async fn rows_of_staged(
        &self,
        files: &[Arc<DataFile>],
        definition: &StateDefinition,
        keys: &[&str],
    ) -> Result<Vec<RecordBatch>> {
        let keys = KeyFilter::keys(keys.iter().map(|&key| key.to_owned()));
        let spec = ReadSpec {
            payload: whole_value(definition),
            filter: RowFilter { keys, ..RowFilter::default() },
        };
        let mut rows = Vec::new();
        for file in files.iter().filter(|file| spec.filter.may_match(file)) {
            let (table, footers, pages) = (self.log_table(), self.footers(), self.pages());
            rows.extend(read_keys(table, file, &spec, footers, pages).await?);
        }
        newest_of(&rows, definition.order_by)
    }

    /// The rows of the log commits after `after` up to the basis, in the order of commits, each with this payload; `None` when they
    /// are more than `limit_rows`, or some of them have expired.
    pub async fn changed_rows(
        &self,
        basis: &Basis,
        after: i64,
        limit_rows: u64,
        payload: Vec<FieldRef>,
    ) -> Result<Option<Vec<RecordBatch>>> {
        if basis.lacks_changes_after(after) {
            return Ok(None);
        }
        let filter = RowFilter {
            after_commit: Some(after),
            up_to_commit: Some(basis.commit()),
            ..RowFilter::default()
        };
        let files = self.log_files(basis, &filter).await?;
        let mut known = files.iter().map(|file| file.stats.rows);
        let rows = known.try_fold(0_u64, |sum, rows| sum.checked_add(rows?));
        if rows.is_none_or(|rows| rows > limit_rows) {
            return Ok(None);
        }
        let spec = ReadSpec { payload, filter };
        let mut batches = Vec::new();
        for file in files {
            let stream = read_file(self.log_table(), &file, &spec, self.footers()).await?;
            batches.extend(stream.try_collect::<Vec<_>>().await?);
        }
        Ok(Some(batches))
    }
}

/// Of the rows of each key the one that wins.
fn newest_of(rows: &[RecordBatch], order_by: OrderBy) -> Result<Vec<RecordBatch>> {
    let mut places: Vec<Vec<u32>> = vec![Vec::new(); rows.len()];
    for (index, row) in places_of_winners(rows, order_by)?.into_values() {
        let row = u32::try_from(row).map_err(|error| {
            Error::internal("a batch of more rows than can be numbered").with_source(error)
        })?;
        places[index].push(row);
    }
    let chosen = rows.iter().zip(places).filter(|(_, places)| !places.is_empty());
    chosen
        .map(|(batch, mut places)| {
            places.sort_unstable();
            match places.len() == batch.num_rows() {
                true => Ok(batch.clone()),
                false => Ok(take_record_batch(batch, &UInt32Array::from(places))?),
            }
        })
        .collect()
}
