//! What batches weigh: of the rows alone, row by row, and of the memory that they keep alive.

use std::collections::HashSet;

use alluvium_log::is_upsert_column;
use arrow::array::{
    Array, ArrayData, AsArray, GenericByteArray, GenericListArray, OffsetSizeTrait,
};
use arrow::datatypes::{
    ArrowNativeType, BinaryType, ByteArrayType, DataType, LargeBinaryType, LargeUtf8Type, Utf8Type,
};
use arrow::record_batch::RecordBatch;

/// About the bytes that the rows of a batch would take if they were copied.
///
/// Unlike `get_array_memory_size` this counts only the rows of a slice.
pub(crate) fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| array_bytes(column.as_ref())).sum()
}

/// The same for the first `n` rows of a batch, for each `n` from none to all.
pub(super) fn cumulative_row_bytes(batch: &RecordBatch) -> Vec<u64> {
    let mut bytes = vec![0; batch.num_rows()];
    for column in batch.columns() {
        add_row_bytes(column.as_ref(), &mut bytes);
    }
    cumulate(&bytes)
}

fn cumulate(bytes: &[u64]) -> Vec<u64> {
    let mut sums = Vec::with_capacity(bytes.len() + 1);
    let mut sum = 0_u64;
    sums.push(sum);
    for one in bytes {
        sum += one;
        sums.push(sum);
    }
    sums
}

/// The width of the types whose values all have the same; for the others what they have beside the values.
fn fixed_width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Null => Some(0),
        DataType::Boolean => Some(1),
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok(),
        // The values of a dictionary are shared by the rows, so that a row weighs no more than its key.
        DataType::Dictionary(keys, _) => keys.primitive_width(),
        other => other.primitive_width(),
    }
}

fn array_bytes(array: &dyn Array) -> usize {
    let values = match array.data_type() {
        DataType::Utf8 => text_bytes(array.as_bytes::<Utf8Type>()),
        DataType::LargeUtf8 => text_bytes(array.as_bytes::<LargeUtf8Type>()),
        DataType::Binary => text_bytes(array.as_bytes::<BinaryType>()),
        DataType::LargeBinary => text_bytes(array.as_bytes::<LargeBinaryType>()),
        DataType::List(_) => list_bytes(array.as_list::<i32>()),
        DataType::LargeList(_) => list_bytes(array.as_list::<i64>()),
        DataType::Map(_, _) => {
            let map = array.as_map();
            let (start, end) = ends(map.value_offsets());
            let entries = map.entries().slice(start, end - start);
            array_bytes(&entries) + size_of::<i32>() * map.len()
        }
        DataType::FixedSizeList(_, _) => array_bytes(array.as_fixed_size_list().values().as_ref()),
        DataType::Struct(_) => {
            array.as_struct().columns().iter().map(|column| array_bytes(column.as_ref())).sum()
        }
        other => match fixed_width(other) {
            Some(width) => width * array.len(),
            None => array.get_array_memory_size(),
        },
    };
    values + if array.nulls().is_some() { array.len().div_ceil(8) } else { 0 }
}

fn ends<O: OffsetSizeTrait>(offsets: &[O]) -> (usize, usize) {
    match (offsets.first(), offsets.last()) {
        (Some(first), Some(last)) => (first.as_usize(), last.as_usize()),
        _ => (0, 0),
    }
}

fn text_bytes<T: ByteArrayType>(array: &GenericByteArray<T>) -> usize {
    let (start, end) = ends(array.value_offsets());
    end - start + size_of::<T::Offset>() * array.len()
}

fn list_bytes<O: OffsetSizeTrait>(array: &GenericListArray<O>) -> usize {
    let (start, end) = ends(array.value_offsets());
    let values = array.values().slice(start, end - start);
    array_bytes(values.as_ref()) + size_of::<O>() * array.len()
}

fn add_row_bytes(array: &dyn Array, rows: &mut [u64]) {
    match array.data_type() {
        DataType::Utf8 => add_text_bytes(array.as_bytes::<Utf8Type>(), rows),
        DataType::LargeUtf8 => add_text_bytes(array.as_bytes::<LargeUtf8Type>(), rows),
        DataType::Binary => add_text_bytes(array.as_bytes::<BinaryType>(), rows),
        DataType::LargeBinary => add_text_bytes(array.as_bytes::<LargeBinaryType>(), rows),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            add_child_bytes(list.values().as_ref(), list.value_offsets(), rows);
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            add_child_bytes(list.values().as_ref(), list.value_offsets(), rows);
        }
        DataType::Map(_, _) => {
            let map = array.as_map();
            add_child_bytes(map.entries(), map.value_offsets(), rows);
        }
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or(0);
            let mut children = vec![0; size * rows.len()];
            add_row_bytes(array.as_fixed_size_list().values().as_ref(), &mut children);
            if size > 0 {
                for (row, of_row) in rows.iter_mut().zip(children.chunks(size)) {
                    *row += of_row.iter().sum::<u64>();
                }
            }
        }
        DataType::Struct(_) => {
            for column in array.as_struct().columns() {
                add_row_bytes(column.as_ref(), rows);
            }
        }
        other => {
            let each = match fixed_width(other) {
                Some(width) => width,
                None => array.get_array_memory_size() / array.len().max(1),
            };
            rows.iter_mut().for_each(|row| *row += each as u64);
        }
    }
}

fn add_text_bytes<T: ByteArrayType>(array: &GenericByteArray<T>, rows: &mut [u64]) {
    let own = size_of::<T::Offset>();
    for (row, pair) in rows.iter_mut().zip(array.value_offsets().windows(2)) {
        *row += (pair[1].as_usize() - pair[0].as_usize() + own) as u64;
    }
}

fn add_child_bytes<O: OffsetSizeTrait>(child: &dyn Array, offsets: &[O], rows: &mut [u64]) {
    let (start, end) = ends(offsets);
    let mut children = vec![0; end - start];
    add_row_bytes(child.slice(start, end - start).as_ref(), &mut children);
    let sums = cumulate(&children);
    for (row, pair) in rows.iter_mut().zip(offsets.windows(2)) {
        *row += sums[pair[1].as_usize() - start] - sums[pair[0].as_usize() - start];
        *row += size_of::<O>() as u64;
    }
}

/// The memory that a set of batches keeps alive, each buffer counted once however many slices share it.
///
/// Neither of the two usual sizes can hold a budget: the size of the slice overlooks that a slice of ten rows
/// keeps its whole buffer, and `get_array_memory_size` counts a shared buffer once for each slice.
#[derive(Debug, Default)]
pub(super) struct Footprint {
    buffers: HashSet<usize>,
    bytes: usize,
}

impl Footprint {
    pub(super) fn add(&mut self, batch: &RecordBatch) {
        self.bytes += size_of::<RecordBatch>();
        // The column of UPSERTs that all batches share is there anyway, and much larger than a small batch.
        let own = batch.columns().iter().filter(|column| !is_upsert_column(column.as_ref()));
        for column in own {
            self.add_data(&column.to_data());
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn add_data(&mut self, data: &ArrayData) {
        self.bytes += size_of::<ArrayData>();
        let nulls = data.nulls().map(|nulls| nulls.inner().inner());
        for buffer in data.buffers().iter().chain(nulls) {
            if self.buffers.insert(buffer.data_ptr().as_ptr().addr()) {
                // A buffer that is not ours to size (another allocator's) has no capacity.
                self.bytes += buffer.capacity().max(buffer.len());
            }
        }
        for child in data.child_data() {
            self.add_data(child);
        }
    }
}

/// What each row of a batch weighs, as far as the bound on the bytes of a batch needs it.
#[derive(Debug, Clone)]
pub(super) enum Weights {
    /// All rows together are too light to matter, so that each counts as the mean.
    Mean(usize),
    /// The weight of the first `n` rows, for each `n` from none to all.
    Cumulative(Vec<u64>),
}

impl Weights {
    /// The mean of a batch of at most `negligible` bytes without a wide row, else the weight of each row.
    ///
    /// With `negligible` an n-th part of a bound, the error that n batches together make is at most the bound.
    pub(super) fn of(batch: &RecordBatch, bytes: usize, negligible: usize) -> Self {
        if bytes <= negligible {
            Self::Mean(bytes.div_ceil(batch.num_rows().max(1)))
        } else {
            Self::Cumulative(cumulative_row_bytes(batch))
        }
    }

    #[inline]
    pub(super) fn of_row(&self, row: usize) -> usize {
        self.of_rows(row, row + 1)
    }

    #[inline]
    pub(super) fn of_rows(&self, start: usize, end: usize) -> usize {
        match self {
            Self::Mean(each) => each * (end - start),
            Self::Cumulative(sums) => (sums[end] - sums[start]) as usize,
        }
    }

    /// How many of the rows from `start` to `end` weigh no more than `bytes` together.
    pub(super) fn fitting(&self, start: usize, end: usize, bytes: usize) -> usize {
        match self {
            Self::Mean(each) => (end - start).min(bytes / (*each).max(1)),
            Self::Cumulative(sums) => {
                let most = sums[start].saturating_add(bytes as u64);
                sums[start + 1..=end].partition_point(|sum| *sum <= most)
            }
        }
    }
}
