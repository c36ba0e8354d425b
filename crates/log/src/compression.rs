//! How the columns of a file are encoded, and which are worth compressing: found out from a sample.
//!
//! What compression does not make smaller costs every reader the work, and a point read the state of a decompressor for each
//! column. Parquet's own encodings often leave nothing to take: sorted keys share most of their bytes with the one before, and
//! numbers of a small range need few bits.

use std::collections::HashMap;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{BinaryType, ByteArrayType, DataType, Utf8Type};
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::WriterPropertiesBuilder;
use parquet::schema::types::ColumnPath;

use crate::columns::{STATE_KEY, STATE_VALUE};

/// Rows of the sample; of fewer it is not worth finding out.
pub(crate) const SAMPLE_ROWS: usize = 4_096;
/// Bytes of the sample that are compressed.
const SAMPLE_BYTES: usize = 64 * 1024;
/// Values that come so many times each on average are stored as numbers of a dictionary.
const REPEATS_OF_DICTIONARY: usize = 8;
/// Compression must leave at most this share of the bytes, in percent.
const WORTHWHILE_PERCENT: usize = 85;
/// Keys are stored without what they share with the one before where that leaves at most one byte of so many.
const SHARED_KEY_BYTES: usize = 3;
/// Integers that are packed together, with as many bits each as the widest of them needs.
const PACKED_TOGETHER: usize = 32;

/// How a column is written, where that is not as usual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnPlan {
    path: ColumnPath,
    has_dictionary: bool,
    encoding: Option<Encoding>,
    is_compressed: bool,
}

impl ColumnPlan {
    pub(crate) fn apply(self, builder: WriterPropertiesBuilder) -> WriterPropertiesBuilder {
        let Self { path, has_dictionary, encoding, is_compressed } = self;
        let mut builder = builder;
        if !has_dictionary {
            builder = builder.set_column_dictionary_enabled(path.clone(), false);
        }
        if let Some(encoding) = encoding {
            builder = builder.set_column_encoding(path.clone(), encoding);
        }
        if !is_compressed {
            builder = builder.set_column_compression(path, Compression::UNCOMPRESSED);
        }
        builder
    }
}

/// How to write the keys of a batch that is sorted by them, few of which come twice.
pub(crate) fn key_plan(batch: &RecordBatch) -> Option<ColumnPlan> {
    let keys = batch.column_by_name(STATE_KEY)?.as_string_opt::<i32>()?;
    let (mut plain, mut suffixes) = (0, 0);
    let (mut shared, mut left) = (Vec::new(), Vec::new());
    let mut before: &[u8] = &[];
    for key in keys.iter().take(SAMPLE_ROWS).flatten().map(str::as_bytes) {
        let prefix = before.iter().zip(key).take_while(|(a, b)| a == b).count();
        plain += key.len() + size_of::<u32>();
        suffixes += key.len() - prefix;
        shared.push(prefix as i64);
        left.push((key.len() - prefix) as i64);
        before = key;
    }
    let stored = suffixes + packed_bytes(&shared) + packed_bytes(&left);
    (stored * SHARED_KEY_BYTES <= plain).then(|| ColumnPlan {
        path: ColumnPath::from(STATE_KEY),
        has_dictionary: false,
        encoding: Some(Encoding::DELTA_BYTE_ARRAY),
        is_compressed: false,
    })
}

/// How to write those of the value's fields that have plain types and are better not written as usual.
pub(crate) fn field_plans(batch: &RecordBatch) -> Vec<ColumnPlan> {
    let Some(value) = batch.column_by_name(STATE_VALUE).and_then(|value| value.as_struct_opt())
    else {
        return Vec::new();
    };
    let fields = value.fields().iter().zip(value.columns());
    fields
        .filter_map(|(field, column)| {
            let sample = column.slice(0, column.len().min(SAMPLE_ROWS));
            let path = ColumnPath::new(vec![STATE_VALUE.to_owned(), field.name().clone()]);
            plan_of(path, sample.as_ref())
        })
        .collect()
}

/// `None` for types whose pages hold more than their rows' bytes, and where nothing is better than usual.
fn plan_of(path: ColumnPath, column: &dyn Array) -> Option<ColumnPlan> {
    fn of_bytes<T: ByteArrayType>(path: ColumnPath, column: &dyn Array) -> Option<ColumnPlan> {
        let texts = column.as_bytes::<T>();
        let rows: Vec<&[u8]> = texts.iter().flatten().map(AsRef::as_ref).collect();
        plan_of_rows(path, &rows, None)
    }
    match column.data_type() {
        DataType::Utf8 => of_bytes::<Utf8Type>(path, column),
        DataType::Binary => of_bytes::<BinaryType>(path, column),
        other => {
            let width = other.primitive_width()?;
            let data = column.to_data();
            let bytes = data.buffers().first()?.as_slice();
            let rows = (0..column.len()).filter(|&row| column.is_valid(row)).map(|row| {
                let start = (data.offset() + row) * width;
                bytes.get(start..start + width)
            });
            let rows = rows.collect::<Option<Vec<&[u8]>>>()?;
            let integers = match other {
                DataType::Int32 | DataType::Date32 | DataType::Int64 | DataType::Timestamp(..) => {
                    integers(&rows)
                }
                _ => None,
            };
            plan_of_rows(path, &rows, integers.as_deref())
        }
    }
}

fn integers(rows: &[&[u8]]) -> Option<Vec<i64>> {
    let integer = |row: &&[u8]| match row.len() {
        4 => Some(i64::from(i32::from_le_bytes((*row).try_into().ok()?))),
        8 => Some(i64::from_le_bytes((*row).try_into().ok()?)),
        _ => None,
    };
    rows.iter().map(integer).collect()
}

fn plan_of_rows(path: ColumnPath, rows: &[&[u8]], integers: Option<&[i64]>) -> Option<ColumnPlan> {
    let mut numbers: HashMap<&[u8], usize> = HashMap::new();
    let mut indices = Vec::with_capacity(rows.len());
    for &row in rows {
        let next = numbers.len();
        indices.push(*numbers.entry(row).or_insert(next));
    }
    if numbers.len() <= usize::from(u8::MAX) && numbers.len() * REPEATS_OF_DICTIONARY <= rows.len()
    {
        // Parquet packs the numbers into as few bits as it takes.
        let bits = usize::BITS - numbers.len().saturating_sub(1).leading_zeros();
        let indices: Vec<u8> = indices.iter().filter_map(|&n| u8::try_from(n).ok()).collect();
        let pays = pays(&indices, indices.len() * bits as usize / 8);
        return (!pays).then_some(ColumnPlan {
            path,
            has_dictionary: true,
            encoding: None,
            is_compressed: false,
        });
    }
    let mut bytes = Vec::with_capacity(SAMPLE_BYTES);
    let mut sampled = 0;
    for row in rows {
        bytes.extend_from_slice(row);
        sampled += 1;
        if bytes.len() >= SAMPLE_BYTES {
            break;
        }
    }
    if let Some(integers) = integers.and_then(|all| all.get(..sampled)) {
        let packed = packed_bytes(integers);
        if packed < bytes.len() && !pays(&bytes, packed) {
            return Some(ColumnPlan {
                path,
                has_dictionary: false,
                encoding: Some(Encoding::DELTA_BINARY_PACKED),
                is_compressed: false,
            });
        }
    }
    let is_compressed = pays(&bytes, bytes.len());
    // A dictionary that overflows is read with every page all the same.
    let has_dictionary = numbers.len() * 2 <= rows.len();
    (!is_compressed || !has_dictionary).then_some(ColumnPlan {
        path,
        has_dictionary,
        encoding: None,
        is_compressed,
    })
}

/// The bytes of integers in Parquet's packing of differences.
fn packed_bytes(integers: &[i64]) -> usize {
    let differences: Vec<i64> = integers.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    let blocks = differences.chunks(4 * PACKED_TOGETHER).map(|block| {
        let least = block.iter().copied().min().unwrap_or_default();
        let packed = block.chunks(PACKED_TOGETHER).map(|together| {
            let widest = together.iter().map(|d| d.wrapping_sub(least).cast_unsigned()).max();
            let bits = u64::BITS - widest.unwrap_or_default().leading_zeros();
            1 + bits as usize * PACKED_TOGETHER / 8
        });
        size_of::<u64>() / 2 + packed.sum::<usize>()
    });
    size_of::<u64>() + blocks.sum::<usize>()
}

/// Whether compressed bytes take notably less than `stored_bytes`. What can't be tried is taken to be worth it.
fn pays(bytes: &[u8], stored_bytes: usize) -> bool {
    match zstd::bulk::compress(bytes, 1) {
        Ok(compressed) => compressed.len() * 100 < stored_bytes * WORTHWHILE_PERCENT,
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray, StructArray};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn noise_and_numbers_of_a_dictionary_stay_as_they_are_integers_are_packed_and_repetition_is_compressed()
     {
        let mut rng = StdRng::seed_from_u64(1);
        let rows = SAMPLE_ROWS;
        let columns: Vec<(&str, ArrayRef)> = vec![
            (
                "noise",
                Arc::new((0..rows).map(|_| Some(rng.random::<f64>())).collect::<Float64Array>()),
            ),
            (
                "kind",
                Arc::new(
                    (0..rows)
                        .map(|_| Some(["a", "b", "c", "d"][rng.random_range(0..4)]))
                        .collect::<StringArray>(),
                ),
            ),
            (
                "small",
                Arc::new(
                    (0..rows).map(|_| Some(rng.random_range(0..9_000_i64))).collect::<Int64Array>(),
                ),
            ),
            (
                "rare",
                Arc::new(
                    (0..rows)
                        .map(|_| Some(i64::from(rng.random_range(0..100) == 0)))
                        .collect::<Int64Array>(),
                ),
            ),
            (
                "path",
                Arc::new(
                    (0..rows)
                        .map(|row| Some(format!("/srv/data/customer/{row}")))
                        .collect::<StringArray>(),
                ),
            ),
            ("null", Arc::new(StringArray::new_null(rows))),
        ];
        let value = StructArray::try_from(columns).unwrap();
        let batch =
            RecordBatch::try_from_iter([(STATE_VALUE, Arc::new(value) as ArrayRef)]).unwrap();
        let plans: Vec<(String, bool, Option<Encoding>, bool)> = field_plans(&batch)
            .into_iter()
            .map(|plan| {
                let field = plan.path.parts()[1].clone();
                (field, plan.has_dictionary, plan.encoding, plan.is_compressed)
            })
            .collect();
        let plan = |field: &str, has_dictionary, encoding, is_compressed| {
            (field.to_owned(), has_dictionary, encoding, is_compressed)
        };
        assert_eq!(
            plans,
            [
                plan("noise", false, None, false),
                plan("kind", true, None, false),
                plan("small", false, Some(Encoding::DELTA_BINARY_PACKED), false),
                plan("path", false, None, true),
                plan("null", true, None, false),
            ]
        );
    }

    #[test]
    fn keys_that_share_most_of_their_bytes_with_the_one_before_are_stored_without_these() {
        let batch = |keys: Vec<String>| {
            let keys: StringArray = keys.into_iter().map(Some).collect();
            RecordBatch::try_from_iter([(STATE_KEY, Arc::new(keys) as ArrayRef)]).unwrap()
        };
        let near = batch((0..5_000).map(|n| format!("user-{n:010}")).collect());
        let plan = key_plan(&near).unwrap();
        assert_eq!((plan.encoding, plan.is_compressed), (Some(Encoding::DELTA_BYTE_ARRAY), false));
        let mut rng = StdRng::seed_from_u64(2);
        let mut far: Vec<String> =
            (0..5_000).map(|_| format!("{:032x}", rng.random::<u128>())).collect();
        far.sort();
        assert_eq!(key_plan(&batch(far)), None);
    }
}
