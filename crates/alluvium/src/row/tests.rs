#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use alluvium_log::value_field;
use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array,
    Int64Array, ListArray, StringArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{Fields as ArrowFields, Int32Type};
use serde::Deserialize;

use super::*;

/// Rows in fold shape with a value of plain and of other columns, some of them null.
fn batch() -> RecordBatch {
    let list: ListArray = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), Some(2)]),
        None,
        Some(vec![]),
    ]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("tiny", Arc::new(Int8Array::from(vec![Some(-1), None, Some(127)]))),
        ("short", Arc::new(Int16Array::from(vec![1, 300, -300]))),
        ("int", Arc::new(Int32Array::from(vec![Some(7), Some(70_000), None]))),
        ("long", Arc::new(Int64Array::from(vec![i64::MIN, 0, i64::MAX]))),
        ("single", Arc::new(Float32Array::from(vec![Some(0.5), None, Some(-0.0)]))),
        ("double", Arc::new(Float64Array::from(vec![0.25, f64::MAX, -1.0]))),
        ("flag", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
        ("text", Arc::new(StringArray::from(vec![Some(""), Some("Größe"), None]))),
        ("kind", Arc::new(StringArray::from(vec!["Web", "Ios", "Web"]))),
        ("letter", Arc::new(StringArray::from(vec!["a", "b", "c"]))),
        ("list", Arc::new(list)),
        (
            "at",
            Arc::new(
                TimestampMicrosecondArray::from(vec![0, 1, 1_700_000_000_000_000])
                    .with_timezone("UTC"),
            ),
        ),
    ];
    let value = StructArray::try_from(columns).unwrap();
    let fields: ArrowFields = value.fields().clone();
    let schema = alluvium_log::fold_schema(&[value_field(&fields)]);
    let times = TimestampMicrosecondArray::from(vec![5; 3]).with_timezone("UTC");
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from(vec!["a", "b", "c"])),
        Arc::new(Int64Array::from(vec![1, 2, 3])),
        Arc::new(times),
        Arc::new(StringArray::from(vec!["UPSERT", "UPSERT", "UPSERT"])),
        Arc::new(Int64Array::from(vec![9; 3])),
        Arc::new(Int32Array::from(vec![0; 3])),
        Arc::new(value),
    ];
    RecordBatch::try_new(schema, columns).unwrap()
}

/// What [`value_at`] reads of each row is what serde_arrow reads of it, values and refusals alike.
fn same<V: DeserializeOwned + Debug + PartialEq>() -> Vec<Option<V>> {
    let batch = batch();
    let rows = 0..batch.num_rows();
    rows.map(|row| {
        let text = |error: Error| error.to_string();
        let by_arrow = values_of::<V>(&batch.slice(row, 1)).map(|mut read| read.pop());
        let read = value_at::<V>(&batch, row).map(Some).map_err(text);
        assert_eq!(read, by_arrow.map_err(text), "row {row}");
        read.ok().flatten()
    })
    .collect()
}

#[derive(Debug, PartialEq, Deserialize)]
struct Plain {
    tiny: Option<i8>,
    short: i16,
    int: Option<i32>,
    long: i64,
    single: Option<f32>,
    double: f64,
    flag: Option<bool>,
    text: Option<String>,
    absent: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Wrapped(Plain);

#[derive(Debug, PartialEq, Deserialize)]
struct Id(i64);

#[derive(Debug, PartialEq, Deserialize)]
enum Kind {
    Web,
    Ios,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Rich {
    kind: Kind,
    letter: char,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Listed {
    list: Option<Vec<i32>>,
    long: Id,
    #[serde(default)]
    missing: u8,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Other {
    short: u8,
    double: f32,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Required {
    tiny: i8,
    text: String,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Lacking {
    nowhere: i64,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Flat {
    short: i64,
    #[serde(flatten)]
    rest: Tail,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Tail {
    text: Option<String>,
    double: f64,
}

#[test]
fn a_row_is_read_as_serde_arrow_reads_it() {
    let plain = same::<Plain>();
    assert!(plain.iter().all(Option::is_some), "{plain:?}");
    same::<Wrapped>();
    same::<Rich>();
    let lists = same::<Listed>();
    assert!(lists.iter().all(Option::is_some), "{lists:?}");
    same::<Other>();
    assert_eq!(same::<Required>().iter().flatten().count(), 1);
    assert!(same::<Lacking>().iter().all(Option::is_none));
    same::<Flat>();
    same::<BTreeMap<String, Option<i64>>>();
    same::<(i8, i16)>();
    same::<()>();
}

#[test]
fn plain_fields_are_read_here() {
    let batch = batch();
    let value = batch.column(FOLD_COLUMNS).as_struct();
    for row in 0..batch.num_rows() {
        assert!(Plain::deserialize(Row { value, row }).is_ok(), "row {row}");
    }
}
