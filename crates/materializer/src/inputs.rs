//! The files of log and snapshot as inputs of a fold.

use std::sync::Arc;

use alluvium_log::{
    DataFile, Error, Floor, FooterCache, PAGE_ROWS, ROW_GROUP_ROWS, ReadHints, ReadSpec, Result,
    StateDefinition, Table, TableState, read_file_with, value_field,
};
use arrow::datatypes::FieldRef;
use futures::{StreamExt, TryStreamExt, stream};

use crate::fold::{BatchStream, FoldInput, FoldSettings};
use crate::snapshot::SnapshotState;

/// Decoded bytes per byte of a compressed file, about; what a fold reserves is measured, this only plans.
const EXPANSION: u64 = 5;
/// Rows of a batch that a file is read by.
const FILE_BATCH_ROWS: usize = 8_192;
/// The batch that a merge is in, the one before it, and the pages that the next one comes of.
const DECODED_BATCHES: usize = 3;
/// Pages that are read at a time where a row group at a time is too much, most first.
const WINDOW_PAGES: [usize; 6] = [32, 16, 8, 4, 2, 1];
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
    input_in_windows(table, file, spec, None, footers)
}

fn input_in_windows(
    table: &Arc<Table>,
    file: &Arc<DataFile>,
    spec: &ReadSpec,
    window_rows: Option<usize>,
    footers: &Arc<FooterCache>,
) -> FoldInput {
    let rows = file.stats.rows.unwrap_or(0);
    let bytes = (file.add.size * EXPANSION).max(rows * ROW_BYTES);
    let opened = stream_in_windows(table, file, spec, window_rows, footers);
    let open = Box::new(move || opened);
    if file.is_sorted() {
        FoldInput::Sorted { bytes, open_bytes: open_bytes(file, window_rows), open }
    } else {
        FoldInput::Unsorted { bytes, open }
    }
}

/// Files of one table as inputs of a fold, each read in pieces so small that the fold can have many of them open within its
/// budget.
pub(crate) fn file_inputs(
    table: &Arc<Table>,
    files: &[Arc<DataFile>],
    spec: &ReadSpec,
    footers: &Arc<FooterCache>,
    fold: &FoldSettings,
) -> Vec<FoldInput> {
    let window_rows = window_rows(files, fold.fan_in, fold.open_bytes());
    let input = |file| input_in_windows(table, file, spec, window_rows, footers);
    files.iter().map(input).collect()
}

/// A file's wanted rows, read in pieces of about so many rows.
pub(crate) fn stream_in_windows(
    table: &Arc<Table>,
    file: &Arc<DataFile>,
    spec: &ReadSpec,
    window_rows: Option<usize>,
    footers: &Arc<FooterCache>,
) -> BatchStream {
    let hints = ReadHints { window_rows, ..ReadHints::default() };
    file_stream_with(table, file, spec, &hints, footers)
}

/// What the files that are merged with a fold's result may hold together while they are open: the fold itself is at work.
pub(crate) fn beside_fold_bytes(fold: &FoldSettings) -> u64 {
    (fold.memory_budget_bytes / 16) as u64
}

/// How many rows of each of some files to read at a time, so that `at_once` of them together hold about `budget_bytes`: a row
/// group, which is `None`, or less.
pub(crate) fn window_rows<'a>(
    files: impl IntoIterator<Item = &'a Arc<DataFile>>,
    at_once: usize,
    budget_bytes: u64,
) -> Option<usize> {
    let sorted = files.into_iter().filter(|file| file.is_sorted());
    window_of(
        &sorted.map(|file| (file.add.size, file.stats.rows)).collect::<Vec<_>>(),
        at_once,
        budget_bytes,
    )
}

/// The same for files of which sizes and rows are given.
fn window_of(files: &[(u64, Option<u64>)], at_once: usize, budget_bytes: u64) -> Option<usize> {
    let fits = |window: Option<usize>| {
        let all: u64 = files.iter().map(|(size, rows)| held_bytes(*size, *rows, window)).sum();
        all * at_once.min(files.len()) as u64 <= budget_bytes * files.len() as u64
    };
    if fits(None) {
        return None;
    }
    let mut windows = WINDOW_PAGES.map(|pages| pages * PAGE_ROWS).into_iter();
    Some(windows.find(|&rows| fits(Some(rows))).unwrap_or(PAGE_ROWS))
}

/// About what a file's stream holds: what is fetched at a time, a row group unless said otherwise, and decoded batches
/// under way.
pub(crate) fn open_bytes(file: &DataFile, window_rows: Option<usize>) -> u64 {
    held_bytes(file.add.size, file.stats.rows, window_rows)
}

fn held_bytes(size: u64, rows: Option<u64>, window_rows: Option<usize>) -> u64 {
    let Some(rows) = rows.filter(|rows| *rows > 0) else { return size };
    let of_rows = |count: usize| size * rows.min(count as u64) / rows;
    let window = window_rows.unwrap_or(ROW_GROUP_ROWS);
    of_rows(window) + EXPANSION * of_rows(DECODED_BATCHES * window.min(FILE_BATCH_ROWS))
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
    if snapshot.floor() > Floor::of(log).map(|floor| floor.time) {
        return Err(Error::corrupt(
            "the snapshot was made without tombstones that the log asks to keep: the log was cut or replaced; rebuild the snapshot",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_in_smaller_pieces_the_less_memory_there_is_for_them() {
        // A row group of 64 bytes a row is 8 MiB, and three of its batches take as much when decoded.
        let (size, rows) = (64 * ROW_GROUP_ROWS as u64, Some(ROW_GROUP_ROWS as u64));
        assert_eq!(held_bytes(size, rows, None) >> 20, 15);
        assert_eq!(held_bytes(size, rows, Some(PAGE_ROWS)) >> 20, 2);
        assert_eq!(held_bytes(size, None, Some(PAGE_ROWS)), size);
        let files = vec![(size, rows); 100];
        let window = |at_once, mib: u64| window_of(&files, at_once, mib << 20);
        assert_eq!(window(64, 1_000), None);
        assert_eq!(window(100, 1_000), Some(16 * PAGE_ROWS));
        assert_eq!(window(64, 500), Some(2 * PAGE_ROWS));
        assert_eq!(window(64, 85), Some(PAGE_ROWS));
        assert_eq!(window(64, 0), Some(PAGE_ROWS));
        assert_eq!(window_of(&[], 64, 0), None);
    }
}
