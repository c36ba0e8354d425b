//! A file in parts against the same file in one piece.
#![allow(clippy::unwrap_used)]

use arrow::array::{StructArray, TimestampMicrosecondArray};
use arrow::datatypes::Field;

use super::*;

fn rows(first: i64, count: i64) -> RecordBatch {
    let places = || first..first + count;
    let fields = Fields::from(vec![Field::new("n", DataType::Int64, true)]);
    let noise = places().map(|n| {
        let mixed = n.wrapping_mul(0x5851_f42d_4c95_7f2d);
        Some((mixed ^ (mixed >> 29)).wrapping_mul(0x1405_7b7e_f767_814f))
    });
    let values: ArrayRef = Arc::new(noise.collect::<arrow::array::Int64Array>());
    let times = TimestampMicrosecondArray::from_iter_values(places().map(|n| n * 1_001));
    let operation = |n: i64| if n % 7_919 == 5 { "DELETE" } else { "UPSERT" };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(places().map(|n| format!("key-{n:09}")))),
        Arc::new(places().map(|n| Some(n % 1_000)).collect::<arrow::array::Int64Array>()),
        Arc::new(times.with_timezone("UTC")),
        Arc::new(StringArray::from_iter_values(places().map(operation))),
        Arc::new(StructArray::new(fields.clone(), vec![values], None)),
        Arc::new(StringArray::from_iter_values(places().map(|_| "w-0"))),
        Arc::new(Int32Array::from(vec![0; usize::try_from(count).unwrap()])),
        new_null_array(&DataType::Int64, usize::try_from(count).unwrap()),
    ];
    RecordBatch::try_new(log_schema(&fields), columns).unwrap()
}

#[test]
fn a_file_in_parts_and_statistics_of_batches_are_as_those_of_the_whole() {
    let batches: Vec<RecordBatch> =
        [(0, 50_000), (50_000, 0), (50_000, 90_000), (140_000, 3)].map(|(a, b)| rows(a, b)).into();
    let whole = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
    assert_eq!(statistics_of(&batches).unwrap(), statistics(&whole).unwrap());
    assert_eq!(statistics_of(&batches[1..2]).unwrap(), json!({ "numRecords": 0 }));
    let expected = encode_parquet(&batches).unwrap();
    let parts = encode_parquet_parts(batches).unwrap();
    assert!(parts.bytes.iter().all(|part| part.len() <= PART_BYTES));
    assert!(parts.bytes.iter().count() > 3, "{} bytes", expected.bytes.len());
    let joined: Vec<u8> = parts.bytes.iter().flat_map(|part| part.to_vec()).collect();
    assert_eq!((joined, parts.check), (expected.bytes.to_vec(), expected.check));
}
