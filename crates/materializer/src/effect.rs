//! Whether changes change anything: rows that are late, or repeat what the snapshot holds, are not worth a write.

use std::collections::HashMap;
use std::sync::Arc;

use alluvium_log::{
    DELETE, DataFile, Error, KeyFilter, OrderBy, Rank, ReadSpec, Result, RowFilter, StateDefinition,
};
use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int32Type, Int64Type, TimestampMicrosecondType};
use futures::TryStreamExt;

use crate::fold::{FoldSettings, Ranking, fold};
use crate::inputs::{snapshot_inputs, whole_value};
use crate::materialize::MaterializeOptions;
use crate::snapshot::SnapshotState;

/// Whether some row of the tail may be older than one of the snapshot, by the bounds alone.
pub(crate) fn may_be_late(
    tail: &[Arc<DataFile>],
    snapshot: &SnapshotState,
    order_by: OrderBy,
) -> bool {
    let (newest, oldest) = match order_by {
        OrderBy::EventTime => (
            snapshot.max_event_time(),
            tail.iter().map(|file| file.stats.min_event_time.unwrap_or(i64::MIN)).min(),
        ),
        OrderBy::Version => (
            snapshot.max_version(),
            tail.iter().map(|file| file.stats.min_version.unwrap_or(i64::MIN)).min(),
        ),
    };
    match (newest, oldest) {
        (Some(newest), Some(oldest)) => oldest <= newest,
        _ => false,
    }
}

/// Drops the winners of the tail that change nothing; also tells how many.
pub(crate) async fn drop_ineffective(
    winners: Vec<RecordBatch>,
    snapshot: &SnapshotState,
    definition: &StateDefinition,
    ranking: &Ranking,
    options: &MaterializeOptions,
) -> Result<(Vec<RecordBatch>, u64)> {
    let mut keys = Vec::new();
    for batch in &winners {
        keys.extend(text(batch, 0)?.iter().flatten().map(str::to_owned));
    }
    let spec = ReadSpec {
        payload: whole_value(definition),
        filter: RowFilter { keys: KeyFilter::keys(keys), ..RowFilter::default() },
    };
    let inputs = snapshot_inputs(snapshot, &spec, &options.footers);
    let settings = FoldSettings { ..options.fold.clone() };
    let stored: Vec<RecordBatch> =
        fold(ranking.clone(), spec.schema(), inputs, &settings).await?.try_collect().await?;
    let mut places: HashMap<&str, (usize, usize)> = HashMap::new();
    for (index, batch) in stored.iter().enumerate() {
        for (row, key) in text(batch, 0)?.iter().enumerate() {
            places.insert(key.unwrap_or_default(), (index, row));
        }
    }
    let (mut kept, mut stale) = (Vec::new(), 0_u64);
    for batch in &winners {
        let keys = text(batch, 0)?;
        let mut mask = Vec::with_capacity(batch.num_rows());
        for row in 0..batch.num_rows() {
            let effective = match places.get(keys.value(row)) {
                None => true,
                Some(&(index, place)) => changes(batch, row, &stored[index], place, ranking)?,
            };
            stale += u64::from(!effective);
            mask.push(effective);
        }
        let left = filter_record_batch(batch, &BooleanArray::from(mask))?;
        if left.num_rows() > 0 {
            kept.push(left);
        }
    }
    Ok((kept, stale))
}

/// Whether a new row replaces a stored one, and is another than it.
fn changes(
    new: &RecordBatch,
    row: usize,
    old: &RecordBatch,
    place: usize,
    ranking: &Ranking,
) -> Result<bool> {
    let (a, b) = (rank(new, row)?, rank(old, place)?);
    let is_tie = a.version == b.version && a.event_time == b.event_time;
    let value = |batch: &RecordBatch, row: usize| {
        batch.columns().get(alluvium_log::FOLD_COLUMNS).map(|column| column.slice(row, 1))
    };
    let same = is_tie && a.is_delete == b.is_delete && value(new, row) == value(old, place);
    if is_tie && !same {
        ranking.count_tie();
    }
    Ok(!same && a.compare(&b, ranking.order_by()).is_ge())
}

fn text(batch: &RecordBatch, index: usize) -> Result<&arrow::array::StringArray> {
    batch
        .columns()
        .get(index)
        .map(|column| column.as_string::<i32>())
        .ok_or_else(|| Error::internal("a batch lacks the columns of a fold"))
}

/// The rank of a row of a batch in fold shape.
pub fn rank(batch: &RecordBatch, row: usize) -> Result<Rank> {
    let [_, versions, times, operations, commits, sequence, ..] = batch.columns() else {
        return Err(Error::internal("a batch lacks the columns of a fold"));
    };
    Ok(Rank {
        version: versions.as_primitive::<Int64Type>().value(row),
        event_time: times.as_primitive::<TimestampMicrosecondType>().value(row),
        is_delete: operations.as_string::<i32>().value(row) == DELETE,
        commit: commits.as_primitive::<Int64Type>().value(row),
        append_seq: sequence.as_primitive::<Int32Type>().value(row),
    })
}
