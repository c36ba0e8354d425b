//! Which columns of a file are worth compressing: found out by compressing a sample.
//!
//! What does not become smaller costs every reader the work, and a point read the state of a decompressor for each column.

use std::collections::HashMap;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{BinaryType, ByteArrayType, DataType, Utf8Type};
use parquet::schema::types::ColumnPath;

use crate::columns::STATE_VALUE;

/// Rows of the sample; of fewer it is not worth finding out.
pub(crate) const SAMPLE_ROWS: usize = 4_096;
/// Bytes of the sample that are compressed.
const SAMPLE_BYTES: usize = 64 * 1024;
/// Values that come so many times each on average are stored as numbers of a dictionary.
const REPEATS_OF_DICTIONARY: usize = 8;
/// Compression must leave at most this share of the bytes, in percent.
const WORTHWHILE_PERCENT: usize = 85;

/// The fields of the value, of plain types, that compression would not make notably smaller.
pub(crate) fn incompressible_fields(batch: &RecordBatch) -> Vec<ColumnPath> {
    let Some(value) = batch.column_by_name(STATE_VALUE).and_then(|value| value.as_struct_opt())
    else {
        return Vec::new();
    };
    let fields = value.fields().iter().zip(value.columns());
    fields
        .filter(|(_, column)| {
            let sample = column.slice(0, column.len().min(SAMPLE_ROWS));
            is_column_compressible(sample.as_ref()) == Some(false)
        })
        .map(|(field, _)| ColumnPath::new(vec![STATE_VALUE.to_owned(), field.name().clone()]))
        .collect()
}

/// Whether a column would become notably smaller; `None` for types whose pages hold more than their rows' bytes.
fn is_column_compressible(column: &dyn Array) -> Option<bool> {
    fn of_bytes<T: ByteArrayType>(column: &dyn Array) -> bool {
        let texts = column.as_bytes::<T>();
        is_compressible(&texts.iter().flatten().map(AsRef::as_ref).collect::<Vec<&[u8]>>())
    }
    match column.data_type() {
        DataType::Utf8 => Some(of_bytes::<Utf8Type>(column)),
        DataType::Binary => Some(of_bytes::<BinaryType>(column)),
        other => {
            let width = other.primitive_width()?;
            let data = column.to_data();
            let bytes = data.buffers().first()?.as_slice();
            let rows = (0..column.len()).filter(|&row| column.is_valid(row)).map(|row| {
                let start = (data.offset() + row) * width;
                bytes.get(start..start + width)
            });
            Some(is_compressible(&rows.collect::<Option<Vec<&[u8]>>>()?))
        }
    }
}

fn is_compressible(rows: &[&[u8]]) -> bool {
    let mut numbers: HashMap<&[u8], u8> = HashMap::new();
    let mut indices = Vec::with_capacity(rows.len());
    for &row in rows {
        let next = u8::try_from(numbers.len());
        match (numbers.get(row), next) {
            (Some(number), _) => indices.push(*number),
            (None, Ok(next)) => {
                numbers.insert(row, next);
                indices.push(next);
            }
            (None, Err(_)) => break,
        }
    }
    let is_dictionary =
        indices.len() == rows.len() && numbers.len() * REPEATS_OF_DICTIONARY <= rows.len();
    if is_dictionary {
        // Parquet packs the numbers into as few bits as it takes.
        let bits = usize::BITS - numbers.len().saturating_sub(1).leading_zeros();
        return pays(&indices, indices.len() * bits as usize / 8);
    }
    let mut bytes = Vec::with_capacity(SAMPLE_BYTES);
    for row in rows {
        bytes.extend_from_slice(row);
        if bytes.len() >= SAMPLE_BYTES {
            break;
        }
    }
    pays(&bytes, bytes.len())
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
    fn noise_and_numbers_of_a_dictionary_stay_as_they_are_and_repetition_is_compressed() {
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
        let found: Vec<String> =
            incompressible_fields(&batch).iter().map(|path| path.parts()[1].clone()).collect();
        assert_eq!(found, ["noise", "kind", "null"]);
    }
}
