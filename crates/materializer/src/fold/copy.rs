//! Copies of rows that lie in several batches into one batch.

use std::sync::Arc;

use alluvium_log::{Error, Result, unread_column, upsert_column};
use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanBufferBuilder, GenericByteArray,
    GenericByteBuilder, MutableArrayData, StructArray, make_array,
};
use arrow::buffer::{MutableBuffer, NullBuffer};
use arrow::compute::interleave;
use arrow::datatypes::{BinaryType, ByteArrayType, DataType, SchemaRef, Utf8Type};
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

/// The rows of segments of one column, range by range.
///
/// `MutableArrayData` does the same for every type, at a price for each range and column that short ranges don't pay back.
pub(super) fn copy_ranges(
    arrays: &[&dyn Array],
    segments: &[Segment],
    rows: usize,
) -> Result<ArrayRef> {
    let Some(first) = arrays.first() else {
        return Err(Error::internal("a copy of rows of no batch"));
    };
    match first.data_type() {
        DataType::Struct(fields) if !fields.is_empty() => {
            let columns = (0..fields.len()).map(|index| {
                let columns: Vec<&dyn Array> =
                    arrays.iter().map(|array| array.as_struct().column(index).as_ref()).collect();
                copy_ranges(&columns, segments, rows)
            });
            let columns = columns.collect::<Result<Vec<_>>>()?;
            let nulls = copy_nulls(arrays, segments, rows);
            Ok(Arc::new(StructArray::try_new(fields.clone(), columns, nulls)?))
        }
        DataType::Utf8 => copy_texts::<Utf8Type>(arrays, segments, rows),
        DataType::Binary => copy_texts::<BinaryType>(arrays, segments, rows),
        kind => match kind.primitive_width() {
            Some(width) => copy_fixed(arrays, segments, rows, width),
            None => copy_any(arrays, segments, rows),
        },
    }
}

/// Values of some bytes each.
fn copy_fixed(
    arrays: &[&dyn Array],
    segments: &[Segment],
    rows: usize,
    width: usize,
) -> Result<ArrayRef> {
    let data: Vec<ArrayData> = arrays.iter().map(|array| array.to_data()).collect();
    let values: Vec<&[u8]> =
        data.iter().map(|data| &data.buffers()[0].as_slice()[data.offset() * width..]).collect();
    let mut copied = MutableBuffer::with_capacity(rows * width);
    for segment in segments {
        let range = segment.start * width..segment.end * width;
        copied.extend_from_slice(&values[segment.batch][range]);
    }
    let built = ArrayData::builder(data[0].data_type().clone())
        .len(rows)
        .nulls(copy_nulls(arrays, segments, rows))
        .add_buffer(copied.into());
    Ok(make_array(built.build()?))
}

/// Texts and bytes.
fn copy_texts<T: ByteArrayType<Offset = i32>>(
    arrays: &[&dyn Array],
    segments: &[Segment],
    rows: usize,
) -> Result<ArrayRef> {
    let arrays_of_bytes: Vec<&GenericByteArray<T>> =
        arrays.iter().map(|array| array.as_bytes::<T>()).collect();
    let bytes_of = |segment: &Segment| {
        let offsets = arrays_of_bytes[segment.batch].value_offsets();
        offsets[segment.start] as usize..offsets[segment.end] as usize
    };
    let total: usize = segments.iter().map(|segment| bytes_of(segment).len()).sum();
    if i32::try_from(total).is_err() {
        return Err(Error::internal("rows of a merge do not fit one batch"));
    }
    // What comes of whole ranges of valid texts is not checked once more.
    let mut copied = GenericByteBuilder::<T>::with_capacity(rows, total);
    for segment in segments {
        let array = arrays_of_bytes[segment.batch];
        copied.append_array(&array.slice(segment.start, segment.rows()))?;
    }
    Ok(Arc::new(copied.finish()))
}

/// Which rows are null; `None` when none is.
fn copy_nulls(arrays: &[&dyn Array], segments: &[Segment], rows: usize) -> Option<NullBuffer> {
    if arrays.iter().all(|array| array.null_count() == 0) {
        return None;
    }
    let mut valid = BooleanBufferBuilder::new(rows);
    for segment in segments {
        match arrays[segment.batch].nulls() {
            None => valid.append_n(segment.rows(), true),
            Some(nulls) => valid.append_buffer(&nulls.inner().slice(segment.start, segment.rows())),
        }
    }
    Some(NullBuffer::new(valid.finish()))
}

fn copy_any(arrays: &[&dyn Array], segments: &[Segment], rows: usize) -> Result<ArrayRef> {
    let data: Vec<_> = arrays.iter().map(|array| array.to_data()).collect();
    let mut copied = MutableArrayData::new(data.iter().collect(), false, rows);
    for segment in segments {
        let extended = copied.try_extend(segment.batch, segment.start, segment.end);
        extended.map_err(|error| {
            Error::internal("rows of a merge do not fit one batch").with_source(error)
        })?;
    }
    Ok(make_array(copied.freeze()))
}
