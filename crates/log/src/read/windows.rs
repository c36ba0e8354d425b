//! A file's rows fetched and decoded a few pages at a time, where a row group at once would be too much: a merge that has
//! many files open holds that much of each.

use std::ops::Range;

use futures::stream::{self, StreamExt, TryStreamExt};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, RowSelection, RowSelector};
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use parquet::file::metadata::ParquetMetaData;

use super::breakdown::{decode, decode_stream};
use super::ranges::RangeReader;
use super::{BATCH_ROWS, RowStream};
use crate::error::Error;

/// Consecutive rows of a row group, and which of them are wanted; all when nothing is said.
struct Window {
    group: usize,
    rows: Range<usize>,
    wanted: Option<RowSelection>,
}

/// The wanted rows of some row groups, in order.
///
/// `selection` is about the rows of these row groups, one after the other. Windows end with pages of the key, so that a page of
/// a file of our own is read once.
pub(super) fn read_in_windows(
    reader: RangeReader,
    metadata: &ArrowReaderMetadata,
    projection: &ProjectionMask,
    row_groups: &[usize],
    selection: Option<RowSelection>,
    key: Option<usize>,
    window_rows: usize,
) -> RowStream {
    let (metadata, projection) = (metadata.clone(), projection.clone());
    let windows = windows(metadata.metadata(), row_groups, selection, key, window_rows);
    stream::iter(windows)
        .map(move |window| {
            let mut selectors = RowSelection::from(vec![RowSelector::skip(window.rows.start)]);
            let wanted = window.wanted.unwrap_or_else(|| {
                RowSelection::from(vec![RowSelector::select(window.rows.len())])
            });
            selectors = selectors.iter().chain(wanted.iter()).copied().collect();
            let builder = ParquetRecordBatchStreamBuilder::new_with_metadata(
                reader.clone(),
                metadata.clone(),
            );
            let builder = builder
                .with_projection(projection.clone())
                .with_batch_size(window.rows.len().min(BATCH_ROWS))
                .with_row_groups(vec![window.group])
                .with_row_selection(selectors);
            Ok::<_, Error>(decode_stream(decode(|| Ok(builder.build()?))?))
        })
        .try_flatten()
        .boxed()
}

fn windows(
    metadata: &ParquetMetaData,
    row_groups: &[usize],
    selection: Option<RowSelection>,
    key: Option<usize>,
    window_rows: usize,
) -> Vec<Window> {
    let mut rest = selection;
    let mut windows = Vec::new();
    for &group in row_groups {
        let rows = usize::try_from(metadata.row_group(group).num_rows()).unwrap_or(0);
        let mut of_group = rest.as_mut().map(|rest| rest.split_off(rows));
        for rows in cuts(&page_starts(metadata, group, key), rows, window_rows) {
            let wanted = of_group.as_mut().map(|of_group| of_group.split_off(rows.len()));
            if wanted.as_ref().is_none_or(RowSelection::selects_any) {
                windows.push(Window { group, rows, wanted });
            }
        }
    }
    windows
}

/// The first rows of the key's pages; none where they are not known.
fn page_starts(metadata: &ParquetMetaData, group: usize, key: Option<usize>) -> Vec<usize> {
    let pages = metadata
        .offset_index()
        .and_then(|groups| groups.get(group))
        .and_then(|columns| columns.get(key?));
    let starts = pages.into_iter().flat_map(|pages| pages.page_locations());
    starts.filter_map(|page| usize::try_from(page.first_row_index).ok()).collect()
}

/// Cuts rows at starts of pages into windows of about `window_rows`; into one where no page is known, since each window
/// would then read all of them.
fn cuts(page_starts: &[usize], rows: usize, window_rows: usize) -> Vec<Range<usize>> {
    let mut windows = Vec::new();
    let mut start = 0;
    for (at, &page) in page_starts.iter().enumerate() {
        let end = page_starts.get(at + 1).copied().unwrap_or(rows);
        if page > start && end - start > window_rows {
            windows.push(start..page);
            start = page;
        }
    }
    if start < rows {
        windows.push(start..rows);
    }
    windows
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

    use std::collections::BTreeMap;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use arrow::compute::concat_batches;
    use arrow::datatypes::{DataType, Field, Fields};
    use bytes::Bytes;
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use parquet::file::properties::WriterProperties;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::super::key_leaf;
    use super::*;
    use crate::table::FileAdd;
    use crate::{Durability, Log, LogOptions, StateDefinition, StateSettings, Storage};

    #[test]
    fn windows_cover_all_rows_end_with_pages_and_hold_what_fits() {
        let starts = [0, 10, 20, 30, 95];
        assert_eq!(cuts(&starts, 100, 10), [0..10, 10..20, 20..30, 30..95, 95..100]);
        assert_eq!(cuts(&starts, 100, 20), [0..20, 20..30, 30..95, 95..100]);
        assert_eq!(cuts(&starts, 100, 1_000), [0..100]);
        assert_eq!(cuts(&[], 100, 10), [0..100]);
        assert!(cuts(&[0], 0, 10).is_empty());
    }

    fn file(rng: &mut StdRng) -> (RecordBatch, Bytes) {
        let rows = rng.random_range(1..400_i64);
        let keys = StringArray::from_iter_values((0..rows).map(|row| format!("k{row:04}")));
        let batch = RecordBatch::try_from_iter([
            ("state_key", Arc::new(keys) as ArrayRef),
            ("version", Arc::new((0..rows).map(Some).collect::<Int64Array>())),
        ])
        .unwrap();
        let properties = WriterProperties::builder()
            .set_write_batch_size(1)
            .set_data_page_row_count_limit(rng.random_range(1..9))
            .set_max_row_group_row_count(Some(rng.random_range(5..150)))
            .build();
        let mut writer =
            ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        (batch, writer.into_inner().unwrap().into())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn rows_that_are_read_in_windows_are_those_that_are_read_at_once() {
        let storage = Storage::open("memory://", Durability::Os).unwrap();
        let fields = Fields::from(vec![Field::new("n", DataType::Int64, true)]);
        let definition = StateDefinition::new(&fields, StateSettings::default()).unwrap();
        let log = Log::create(&storage, "s", &definition, LogOptions::default()).await.unwrap().0;
        for seed in 0..100 {
            let mut rng = StdRng::seed_from_u64(seed);
            let (all, bytes) = file(&mut rng);
            let add = FileAdd {
                path: format!("dt=2024-01-01/f-{seed}.parquet"),
                size: bytes.len() as u64,
                partition: BTreeMap::new(),
                modified_ms: 0,
                data_change: true,
                stats: None,
                tags: BTreeMap::new(),
            };
            log.table().put_new(&add.path, bytes.clone()).await.unwrap();
            let mut reader = RangeReader::of(log.table(), &add).unwrap();
            let (metadata, _) = reader.load_metadata().await.unwrap();
            let groups: Vec<usize> = (0..metadata.metadata().num_row_groups())
                .filter(|_| rng.random_bool(0.7))
                .collect();
            let rows_of = |group: &usize| metadata.metadata().row_group(*group).num_rows() as usize;
            let rows: usize = groups.iter().map(rows_of).sum();
            let selection = rng.random_bool(0.7).then(|| {
                let share = rng.random_range(0.0..1.0);
                let wanted: Vec<RowSelector> = (0..rows)
                    .map(|_| match rng.random_bool(share) {
                        true => RowSelector::select(1),
                        false => RowSelector::skip(1),
                    })
                    .collect();
                RowSelection::from(wanted)
            });
            let mut at_once =
                ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, metadata.clone())
                    .with_row_groups(groups.clone());
            if let Some(selection) = selection.clone() {
                at_once = at_once.with_row_selection(selection);
            }
            let expected: Vec<RecordBatch> =
                at_once.build().unwrap().collect::<Result<_, _>>().unwrap();
            let key = key_leaf(metadata.metadata());
            let window = rng.random_range(1..200);
            let found: Vec<RecordBatch> = read_in_windows(
                reader,
                &metadata,
                &ProjectionMask::all(),
                &groups,
                selection,
                key,
                window,
            )
            .try_collect()
            .await
            .unwrap();
            let whole = |batches: &[RecordBatch]| concat_batches(&all.schema(), batches).unwrap();
            assert_eq!(whole(&found), whole(&expected), "seed {seed}");
            // A page holds up to 8 rows here.
            let most = found.iter().map(RecordBatch::num_rows).max().unwrap_or(0);
            assert!(most <= window.max(8), "seed {seed}: {most} rows at once of {window}");
        }
    }
}
