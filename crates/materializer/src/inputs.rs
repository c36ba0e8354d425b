//! The files of log and snapshot as inputs of a fold.

use std::sync::Arc;

use alluvium_log::{
    DataFile, Error, FooterCache, ROW_GROUP_ROWS, ReadHints, ReadSpec, Result, StateDefinition,
    Table, TableState, read_file_with, value_field,
};
use arrow::datatypes::FieldRef;
use futures::{StreamExt, TryStreamExt, stream};

use crate::fold::{BatchStream, FoldInput};
use crate::snapshot::SnapshotState;

/// Decoded bytes per byte of a compressed file, about; what a fold reserves is measured, this only plans.
const EXPANSION: u64 = 5;
/// Rows of a batch that a file is read by.
const FILE_BATCH_ROWS: usize = 8_192;
/// The batch that a merge is in, the one before it, and the pages that the next one comes of.
const DECODED_BATCHES: u64 = 3;
/// Decoded bytes of a row at least.
const ROW_BYTES: u64 = 64;

/// The payload of rows that carry the whole value.
pub fn whole_value(definition: &StateDefinition) -> Vec<FieldRef> {
    vec![value_field(&definition.stored_fields())]
}

/// A file's wanted rows, opened when the first one is asked for.
pub fn file_stream(
    table: &Arc<Table>,
    file: &Arc<DataFile>,
    spec: &ReadSpec,
    footers: &Arc<FooterCache>,
) -> BatchStream {
    file_stream_with(table, file, spec, &ReadHints::default(), footers)
}

/// The same, leaving out what hints allow.
pub fn file_stream_with(
    table: &Arc<Table>,
    file: &Arc<DataFile>,
    spec: &ReadSpec,
    hints: &ReadHints,
    footers: &Arc<FooterCache>,
) -> BatchStream {
    let (table, file, spec, footers) = (table.clone(), file.clone(), spec.clone(), footers.clone());
    let hints = hints.clone();
    stream::once(async move { read_file_with(&table, &file, &spec, &hints, &footers).await })
        .try_flatten()
        .boxed()
}

/// A file's wanted rows as an input of a fold.
pub fn file_input(
    table: &Arc<Table>,
    file: &Arc<DataFile>,
    spec: &ReadSpec,
    footers: &Arc<FooterCache>,
) -> FoldInput {
    let rows = file.stats.rows.unwrap_or(0);
    let bytes = (file.add.size * EXPANSION).max(rows * ROW_BYTES);
    let opened = file_stream(table, file, spec, footers);
    let open = Box::new(move || opened);
    if file.is_sorted() {
        FoldInput::Sorted { bytes, open_bytes: open_bytes(file), open }
    } else {
        FoldInput::Unsorted { bytes, open }
    }
}

/// About what a file's stream holds: a row group as it was fetched, and decoded batches under way.
fn open_bytes(file: &DataFile) -> u64 {
    let Some(rows) = file.stats.rows.filter(|rows| *rows > 0) else { return file.add.size };
    let of_rows = |count: usize| file.add.size * rows.min(count as u64) / rows;
    of_rows(ROW_GROUP_ROWS) + DECODED_BATCHES * EXPANSION * of_rows(FILE_BATCH_ROWS)
}

/// The snapshot's files, base and runs, that may hold wanted rows, as inputs of a fold.
pub fn snapshot_inputs(
    snapshot: &SnapshotState,
    spec: &ReadSpec,
    footers: &Arc<FooterCache>,
) -> Vec<FoldInput> {
    let Some((table, state)) = snapshot.table() else { return Vec::new() };
    state
        .files()
        .filter(|file| spec.filter.may_match(file))
        .map(|file| file_input(table, file, spec, footers))
        .collect()
}

/// A snapshot that claims to fold more of the log than there is belongs to another log.
pub(crate) fn check_not_ahead(snapshot: &SnapshotState, log: &TableState) -> Result<()> {
    if snapshot.log_commit() > log.version {
        return Err(Error::corrupt(format!(
            "the snapshot folds the log up to commit {}, but the log ends at {}: the log was cut or replaced; rebuild the snapshot",
            snapshot.log_commit(),
            log.version
        )));
    }
    Ok(())
}
