//! Copies of rows that lie in several batches into one batch.

use alluvium_log::{Error, Result, unread_column, upsert_column};
use arrow::array::{Array, ArrayRef, Capacities, MutableArrayData, make_array};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;

use super::batch::{KeyedBatch, OPERATION};

/// Consecutive rows of one batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) batch: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Segment {
    pub(super) fn rows(&self) -> usize {
        self.end - self.start
    }
}

/// From this mean length on, segments are copied as ranges rather than row by row.
const RANGE_ROWS: usize = 6;

/// A batch of the rows of some segments, whose batches are numbered by their place in `sources`.
///
/// The columns at the places `unread` are not copied: nobody looks at them.
pub(super) fn copy_segments(
    schema: &SchemaRef,
    sources: &[&KeyedBatch],
    segments: &[Segment],
    unread: &[usize],
) -> Result<RecordBatch> {
    let rows: usize = segments.iter().map(Segment::rows).sum();
    if segments.len() * RANGE_ROWS <= rows {
        let ranges = |arrays: &[&dyn Array]| copy_ranges(arrays, segments, rows);
        return copy(schema, sources, rows, unread, ranges);
    }
    let mut places = Vec::with_capacity(rows);
    for segment in segments {
        places.extend((segment.start..segment.end).map(|row| (segment.batch, row)));
    }
    copy(schema, sources, rows, unread, |arrays| Ok(interleave(arrays, &places)?))
}

/// A batch of single rows, each given by its batch's place in `sources` and its place there.
pub(super) fn copy_rows(
    schema: &SchemaRef,
    sources: &[&KeyedBatch],
    places: &[(usize, usize)],
) -> Result<RecordBatch> {
    copy(schema, sources, places.len(), &[], |arrays| Ok(interleave(arrays, places)?))
}

/// Column by column; operations that are UPSERTs everywhere need no copy.
fn copy(
    schema: &SchemaRef,
    sources: &[&KeyedBatch],
    rows: usize,
    unread: &[usize],
    of_column: impl Fn(&[&dyn Array]) -> Result<ArrayRef>,
) -> Result<RecordBatch> {
    let only_upserts = sources.iter().all(|source| source.has_only_upserts());
    let columns = (0..schema.fields().len())
        .map(|index| {
            if index == OPERATION && only_upserts {
                return Ok(upsert_column(rows));
            }
            if unread.contains(&index) {
                return Ok(unread_column(schema.field(index).data_type(), rows));
            }
            let arrays: Vec<&dyn Array> =
                sources.iter().map(|source| source.batch().column(index).as_ref()).collect();
            of_column(&arrays)
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}

fn copy_ranges(arrays: &[&dyn Array], segments: &[Segment], rows: usize) -> Result<ArrayRef> {
    let data: Vec<_> = arrays.iter().map(|array| array.to_data()).collect();
    let capacity = match arrays.first().map(|array| array.data_type()) {
        Some(DataType::Utf8 | DataType::Binary) => {
            Capacities::Binary(rows, Some(rows * TEXT_BYTES))
        }
        _ => Capacities::Array(rows),
    };
    let mut copied = MutableArrayData::with_capacities(data.iter().collect(), false, capacity);
    for segment in segments {
        let extended = copied.try_extend(segment.batch, segment.start, segment.end);
        extended.map_err(|error| {
            Error::internal("rows of a merge do not fit one batch").with_source(error)
        })?;
    }
    Ok(make_array(copied.freeze()))
}

/// Bytes of a text for which room is made; longer ones make more.
const TEXT_BYTES: usize = 16;
