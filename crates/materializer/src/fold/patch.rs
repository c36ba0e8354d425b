//! A batch whose rows stay where they are, but for a few that rows of other batches take the place of.
//!
//! That is what becomes of most batches of a base under small overlays: keys are updated and few are new. Keys need no
//! copy then, and columns of fixed width are overwritten in place if nobody else holds them.

use std::sync::Arc;

use alluvium_log::{Result, upsert_column};
use arrow::array::{Array, ArrayData, ArrayRef, AsArray, StructArray, make_array};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;

use super::batch::{KeyedBatch, OPERATION};
use super::copy::{Segment, copy_ranges};

/// The place of the key among the columns of a fold.
const KEY: usize = 0;

/// Which rows of a base batch go out, and what takes the place of some of them.
#[derive(Debug)]
pub(super) struct Patch<'a> {
    /// The base's first row that goes out.
    pub(super) start: usize,
    pub(super) rows: usize,
    /// What goes out, in order. The base's batch has the number after those of the others.
    pub(super) segments: &'a [Segment],
}

impl Patch<'_> {
    /// The segments of other batches, with their places among the rows that go out.
    fn overwritten(&self, base: usize) -> impl Iterator<Item = (usize, Segment)> {
        let mut place = 0;
        self.segments.iter().filter_map(move |segment| {
            let at = place;
            place += segment.rows();
            (segment.batch != base).then_some((at, *segment))
        })
    }
}

/// The rows of a patch. Each row of another batch must have the key of the base's row in its place.
pub(super) fn patch_rows(
    schema: &SchemaRef,
    base: KeyedBatch,
    others: &[&KeyedBatch],
    patch: &Patch<'_>,
    unread: &[usize],
) -> Result<RecordBatch> {
    let only_upserts =
        base.has_only_upserts() && others.iter().all(|other| other.has_only_upserts());
    let (_, columns, _) = base.into_batch().into_parts();
    let patched = columns.into_iter().enumerate().map(|(index, column)| {
        // What nobody looks at may be anything: here, what lies there.
        if index == KEY || unread.contains(&index) {
            return Ok(column.slice(patch.start, patch.rows));
        }
        if index == OPERATION && only_upserts {
            return Ok(upsert_column(patch.rows));
        }
        let others: Vec<_> =
            others.iter().map(|other| other.batch().column(index).clone()).collect();
        patch_column(column, &others, patch)
    });
    let columns = patched.collect::<Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}

fn patch_column(base: ArrayRef, others: &[ArrayRef], patch: &Patch<'_>) -> Result<ArrayRef> {
    let has_nulls = base.null_count() > 0 || others.iter().any(|other| other.null_count() > 0);
    match base.data_type().clone() {
        DataType::Struct(fields) if !has_nulls && !fields.is_empty() => {
            let whole: StructArray = base.as_struct().clone();
            // So that the columns are held once.
            drop(base);
            let (_, columns, _) = whole.into_parts();
            let patched = columns.into_iter().enumerate().map(|(index, column)| {
                let others: Vec<_> =
                    others.iter().map(|other| other.as_struct().column(index).clone()).collect();
                patch_column(column, &others, patch)
            });
            let columns = patched.collect::<Result<Vec<_>>>()?;
            Ok(Arc::new(StructArray::try_new(fields, columns, None)?))
        }
        kind => match kind.primitive_width() {
            Some(width) if !has_nulls => Ok(overwrite(base, others, patch, width)?),
            _ => {
                let mut arrays: Vec<&dyn Array> = others.iter().map(AsRef::as_ref).collect();
                arrays.push(base.as_ref());
                copy_ranges(&arrays, patch.segments, patch.rows)
            }
        },
    }
}

/// The base's values of some bytes each, overwritten: in place where they are held nowhere else.
fn overwrite(
    base: ArrayRef,
    others: &[ArrayRef],
    patch: &Patch<'_>,
    width: usize,
) -> Result<ArrayRef> {
    let others: Vec<ArrayData> = others.iter().map(|other| other.to_data()).collect();
    let data = base.to_data();
    drop(base);
    let kind = data.data_type().clone();
    let first = data.offset() + patch.start;
    let values = data.buffers().first().cloned().unwrap_or_else(|| Buffer::from(&[]));
    drop(data);
    let (mut values, first) = match values.into_mutable() {
        Ok(values) => (values, first),
        Err(shared) => {
            let mut copied = MutableBuffer::with_capacity(patch.rows * width);
            copied.extend_from_slice(&shared[first * width..(first + patch.rows) * width]);
            (copied, 0)
        }
    };
    for (place, segment) in patch.overwritten(others.len()) {
        let other = &others[segment.batch];
        let from = (other.offset() + segment.start) * width;
        let to = (first + place) * width;
        let length = segment.rows() * width;
        let bytes = &other.buffers()[0].as_slice()[from..from + length];
        values.as_slice_mut()[to..to + length].copy_from_slice(bytes);
    }
    let built = ArrayData::builder(kind).len(patch.rows).offset(first).add_buffer(values.into());
    Ok(make_array(built.build()?))
}
