//! What rows weigh, against weights that were worked out by hand.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Decimal128Array, DictionaryArray,
    FixedSizeBinaryArray, FixedSizeListArray, Int32Array, Int64Array, Int64Builder,
    LargeBinaryArray, LargeListArray, LargeStringArray, ListBuilder, MapBuilder, NullArray,
    StringArray, StringBuilder, StructArray,
};
use arrow::datatypes::{DataType, Field, Int16Type, Int32Type};
use arrow::record_batch::RecordBatch;

use super::super::bytes::{Footprint, Weights, batch_bytes, cumulative_row_bytes};
use super::{batch_of, row};

const TEXTS: [&str; 3] = ["", "abc", "de"];
const FIVES: [&[u8]; 3] = [b"12345", b"abcde", b"vwxyz"];

/// Arrays of three rows without nulls, and what each row of them weighs.
fn weighed() -> Vec<(ArrayRef, [u64; 3])> {
    let bytes = TEXTS.map(str::as_bytes);
    let mut lists = ListBuilder::new(StringBuilder::new());
    let mut maps = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for texts in [&["a", "bc"][..], &[], &["d"]] {
        for text in texts {
            lists.values().append_value(text);
            maps.keys().append_value(text);
            maps.values().append_value(1);
        }
        lists.append(true);
        maps.append(true).unwrap();
    }
    let numbers = |of: &[i32]| Some(of.iter().copied().map(Some).collect::<Vec<_>>());
    let large: [Option<Vec<Option<i32>>>; 3] = [numbers(&[1]), numbers(&[2, 3]), numbers(&[])];
    let pairs: ArrayRef = Arc::new(StringArray::from(vec!["a", "", "bcd", "e", "", "fg"]));
    let item = Arc::new(Field::new_list_field(DataType::Utf8, false));
    let number: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(TEXTS));
    let of_struct = vec![
        (Arc::new(Field::new("number", DataType::Int64, false)), number.clone()),
        (Arc::new(Field::new("text", DataType::Utf8, false)), text.clone()),
    ];
    vec![
        (text, [4, 7, 6]),
        (Arc::new(LargeStringArray::from_iter_values(TEXTS)), [8, 11, 10]),
        (Arc::new(BinaryArray::from_iter_values(bytes)), [4, 7, 6]),
        (Arc::new(LargeBinaryArray::from_iter_values(bytes)), [8, 11, 10]),
        (number, [8; 3]),
        (Arc::new(Decimal128Array::from(vec![1, 2, 3])), [16; 3]),
        (Arc::new(BooleanArray::from(vec![true, false, true])), [1; 3]),
        (Arc::new(NullArray::new(3)), [0; 3]),
        (Arc::new(FixedSizeBinaryArray::try_from_iter(FIVES.iter()).unwrap()), [5; 3]),
        (Arc::new(TEXTS.into_iter().collect::<DictionaryArray<Int16Type>>()), [2; 3]),
        (Arc::new(lists.finish()), [4 + 5 + 6, 4, 4 + 5]),
        (
            Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(large)),
            [8 + 4, 8 + 2 * 4, 8],
        ),
        (Arc::new(maps.finish()), [4 + 5 + 6 + 2 * 8, 4, 4 + 5 + 8]),
        (Arc::new(FixedSizeListArray::new(item, 2, pairs, None)), [8 + 1, 8 + 3 + 1, 8 + 2]),
        (Arc::new(StructArray::from(of_struct)), [8 + 4, 8 + 7, 8 + 6]),
    ]
}

fn alone(array: ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter([("column", array)]).unwrap()
}

#[test]
fn rows_of_every_type_weigh_what_their_values_and_offsets_take_in_any_slice() {
    for (array, expected) in weighed() {
        let (name, batch) = (array.data_type().clone(), alone(array));
        for start in 0..=3 {
            for count in 0..=3 - start {
                let slice = batch.slice(start, count);
                let mut sums = vec![0];
                for weight in &expected[start..start + count] {
                    sums.push(sums[sums.len() - 1] + weight);
                }
                assert_eq!(cumulative_row_bytes(&slice), sums, "{name} {start} {count}");
                assert_eq!(batch_bytes(&slice) as u64, sums[count], "{name} {start} {count}");
            }
        }
    }
}

#[test]
fn a_batch_weighs_its_columns_and_the_bits_of_nulls() {
    let numbers = Int32Array::from(vec![Some(1), None, None, None, None, None, None, None, None]);
    let texts = StringArray::from(vec![Some("ab"), None, None, None, None, None, None, None, None]);
    let columns: [(&str, ArrayRef); 2] =
        [("numbers", Arc::new(numbers)), ("texts", Arc::new(texts))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    assert_eq!(batch_bytes(&batch), (9 * 4 + 2) + (2 + 9 * 4 + 2));
    assert_eq!(batch_bytes(&batch.slice(0, 8)), (8 * 4 + 1) + (2 + 8 * 4 + 1));
    assert_eq!(cumulative_row_bytes(&batch.slice(0, 2)), [0, 4 + 6, 4 + 6 + 4 + 4]);
}

#[test]
fn a_footprint_counts_a_buffer_once_and_each_slice_for_itself() {
    let batch = alone(Arc::new(Int64Array::from(vec![7; 1000])));
    let own = size_of::<RecordBatch>() + size_of::<arrow::array::ArrayData>();
    let mut footprint = Footprint::default();
    footprint.add(&batch.slice(10, 10));
    let one = footprint.bytes();
    assert!((own + 8000..own + 9000).contains(&one), "{one}");
    footprint.add(&batch.slice(500, 1));
    assert_eq!(footprint.bytes(), one + own);
    // Nulls and children have buffers too.
    let with_nulls = alone(Arc::new(Int64Array::from(vec![None::<i64>; 1000])));
    let mut nulls = Footprint::default();
    nulls.add(&with_nulls);
    assert!(nulls.bytes() >= own + 8000 + 125, "{}", nulls.bytes());
    let mut lists = ListBuilder::new(Int64Builder::new());
    lists.values().append_slice(&[7; 1000]);
    lists.append(true);
    let mut children = Footprint::default();
    children.add(&alone(Arc::new(lists.finish())));
    assert!(children.bytes() >= own + 8000, "{}", children.bytes());
}

/// A state's batches share one column of UPSERTs, which is there anyway.
#[test]
fn a_footprint_leaves_out_the_column_of_upserts_that_all_share() {
    let operations = alluvium_log::upsert_column(10);
    let mut footprint = Footprint::default();
    footprint.add(&alone(operations));
    assert_eq!(footprint.bytes(), size_of::<RecordBatch>());
}

#[test]
fn light_batches_are_weighed_by_their_mean_and_others_row_by_row() {
    let batch = alone(Arc::new(StringArray::from(vec!["", "abc", "defg"])));
    let bytes = batch_bytes(&batch);
    assert_eq!(bytes, 4 + 7 + 8);
    let (mean, each) = (Weights::of(&batch, bytes, bytes), Weights::of(&batch, bytes, bytes - 1));
    assert!(matches!(mean, Weights::Mean(7)), "{mean:?}");
    assert!(matches!(&each, Weights::Cumulative(sums) if *sums == [0, 4, 11, 19]), "{each:?}");
    assert_eq!([0, 1, 2].map(|row| mean.of_row(row)), [7; 3]);
    assert_eq!([0, 1, 2].map(|row| each.of_row(row)), [4, 7, 8]);
    assert_eq!((mean.of_rows(1, 3), each.of_rows(1, 3)), (14, 15));
}

#[test]
fn as_many_rows_fit_as_weigh_no_more_than_there_is_room_for() {
    let each = Weights::Cumulative(vec![0, 4, 11, 19]);
    let most = |start, end| [3, 4, 10, 11, 14, 15, 18, 19, 99].map(|b| each.fitting(start, end, b));
    assert_eq!(most(0, 3), [0, 1, 1, 2, 2, 2, 2, 3, 3]);
    assert_eq!(most(1, 3), [0, 0, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(most(1, 2), [0, 0, 1, 1, 1, 1, 1, 1, 1]);
    let mean = Weights::Mean(5);
    assert_eq!([4, 5, 14, 15, 99].map(|bytes| mean.fitting(2, 5, bytes)), [0, 1, 2, 3, 3]);
    assert_eq!(Weights::Mean(0).fitting(2, 5, 2), 2);
}

#[test]
fn all_columns_of_a_batch_of_rows_are_weighed() {
    let batch = batch_of(&[row("a", 1), row("bcd", 2), row("ef", 3)]);
    let fixed = 3 * 8 + 4;
    let key_and_operation = (4 + 1) + (4 + 3) + (4 + 2) + 3 * (4 + 6);
    let payload: usize =
        batch.columns()[6..].iter().map(|of| batch_bytes(&alone(of.clone()))).sum();
    assert_eq!(batch_bytes(&batch), 3 * fixed + key_and_operation + payload);
}
