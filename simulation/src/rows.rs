//! Rows as the model knows them, and the way to and from Arrow.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringArray, StructArray,
    TimestampMicrosecondArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields, Int64Type, TimestampMicrosecondType};

/// The value of a row. `grown` and the struct's `b` are fields that a state gets later.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value {
    /// A number, always there.
    pub n: i64,
    /// A text.
    pub text: Option<String>,
    /// A struct of two fields.
    pub object: Option<(Option<i64>, Option<String>)>,
    /// A field that a state gets later.
    pub grown: Option<i64>,
}

/// One change of a key, as it is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The version.
    pub version: i64,
    /// When it happened, in microseconds.
    pub event_time: i64,
    /// The value; none for a DELETE.
    pub value: Option<Value>,
}

/// A row as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The key.
    pub key: String,
    /// The version.
    pub version: i64,
    /// When it happened, in microseconds.
    pub event_time: i64,
    /// Whether it is a DELETE.
    pub is_delete: bool,
    /// The value.
    pub value: Option<Value>,
    /// The commit that it has.
    pub commit: i64,
    /// The application of the epoch that brought it, where a read tells.
    pub app: Option<String>,
    /// The number of that epoch.
    pub epoch: Option<i64>,
}

/// Which of the later fields a batch has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// The field `grown`.
    pub grown: bool,
    /// The field `b` of the struct.
    pub b: bool,
}

fn object_fields(shape: Shape) -> Fields {
    let mut fields = vec![Field::new("a", DataType::Int64, true)];
    if shape.b {
        // First, so that fields are matched by name and not by place.
        fields.insert(0, Field::new("b", DataType::Utf8, true));
    }
    Fields::from(fields)
}

/// The fields of a value.
pub fn fields(shape: Shape) -> Fields {
    let mut fields = vec![
        Field::new("n", DataType::Int64, false),
        Field::new("text", DataType::Utf8, true),
        Field::new("object", DataType::Struct(object_fields(shape)), true),
    ];
    if shape.grown {
        fields.insert(1, Field::new("grown", DataType::Int64, true));
    }
    Fields::from(fields)
}

/// Changes as a batch.
pub fn batch(changes: &[Change], shape: Shape) -> RecordBatch {
    let values: Vec<Option<&Value>> = changes.iter().map(|change| change.value.as_ref()).collect();
    let present = NullBuffer::from_iter(values.iter().map(Option::is_some));
    let objects: Vec<Option<&(Option<i64>, Option<String>)>> =
        values.iter().map(|value| value.and_then(|value| value.object.as_ref())).collect();
    let mut inner: Vec<ArrayRef> =
        vec![Arc::new(Int64Array::from_iter(objects.iter().map(|o| o.and_then(|o| o.0))))];
    if shape.b {
        let b = StringArray::from_iter(objects.iter().map(|o| o.and_then(|o| o.1.as_deref())));
        inner.insert(0, Arc::new(b));
    }
    let nulls = NullBuffer::from_iter(objects.iter().map(Option::is_some));
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(
            values.iter().map(|value| value.map_or(0, |value| value.n)),
        )),
        Arc::new(StringArray::from_iter(
            values.iter().map(|value| value.and_then(|value| value.text.as_deref())),
        )),
        Arc::new(StructArray::new(object_fields(shape), inner, Some(nulls))),
    ];
    if shape.grown {
        let grown =
            Int64Array::from_iter(values.iter().map(|value| value.and_then(|value| value.grown)));
        columns.insert(1, Arc::new(grown));
    }
    let value = StructArray::new(fields(shape), columns, Some(present));
    let times: Vec<i64> = changes.iter().map(|change| change.event_time).collect();
    let keys = changes.iter().map(|change| change.key.as_str());
    value_batch(keys, changes.iter().map(|change| change.version), &times, Arc::new(value))
}

/// The values of a struct column.
pub fn values(column: &ArrayRef) -> Vec<Option<Value>> {
    let whole = column.as_struct();
    let number = |array: &ArrayRef, row: usize| {
        let numbers = array.as_primitive::<Int64Type>();
        numbers.is_valid(row).then(|| numbers.value(row))
    };
    let text = |array: &ArrayRef, row: usize| {
        let texts = array.as_string::<i32>();
        texts.is_valid(row).then(|| texts.value(row).to_owned())
    };
    let n = whole.column_by_name("n").unwrap();
    let texts = whole.column_by_name("text").unwrap();
    let objects = whole.column_by_name("object").unwrap().as_struct();
    let a = objects.column_by_name("a").unwrap();
    let value = |row: usize| {
        let object = objects
            .is_valid(row)
            .then(|| (number(a, row), objects.column_by_name("b").and_then(|b| text(b, row))));
        Value {
            n: number(n, row).expect("n is required"),
            text: text(texts, row),
            object,
            grown: whole.column_by_name("grown").and_then(|grown| number(grown, row)),
        }
    };
    (0..column.len()).map(|row| whole.is_valid(row).then(|| value(row))).collect()
}

/// The rows of a batch in fold shape with the whole value.
pub fn seen(batch: &RecordBatch) -> Vec<Seen> {
    let named =
        |name: &str| batch.column_by_name(name).unwrap_or_else(|| panic!("no column {name}"));
    let keys = named("state_key").as_string::<i32>();
    let versions = named("version").as_primitive::<Int64Type>();
    let times = named("event_time").as_primitive::<TimestampMicrosecondType>();
    let operations = named("op_type").as_string::<i32>();
    let commits = named("commit").as_primitive::<Int64Type>();
    let values = values(named("state_value"));
    let apps = batch.column_by_name("app_id").map(|column| column.as_string::<i32>());
    let epochs = batch.column_by_name("epoch").map(|column| column.as_primitive::<Int64Type>());
    values
        .into_iter()
        .enumerate()
        .map(|(row, value)| Seen {
            key: keys.value(row).to_owned(),
            version: versions.value(row),
            event_time: times.value(row),
            is_delete: operations.value(row) == "DELETE",
            value,
            commit: commits.value(row),
            app: apps.filter(|apps| apps.is_valid(row)).map(|apps| apps.value(row).to_owned()),
            epoch: epochs.filter(|epochs| epochs.is_valid(row)).map(|epochs| epochs.value(row)),
        })
        .collect()
}

/// A column of flags, where null is `None`.
pub fn flags(column: &ArrayRef) -> Vec<Option<bool>> {
    let flags: &BooleanArray = column.as_boolean();
    flags.iter().collect()
}

/// Changes with any value; a null one is a DELETE.
pub fn value_batch<'a>(
    keys: impl IntoIterator<Item = &'a str>,
    versions: impl IntoIterator<Item = i64>,
    times: &[i64],
    value: ArrayRef,
) -> RecordBatch {
    let operations: StringArray = (0..value.len())
        .map(|row| Some(if value.is_null(row) { "DELETE" } else { "UPSERT" }))
        .collect();
    RecordBatch::try_from_iter_with_nullable([
        ("state_key", Arc::new(StringArray::from_iter_values(keys)) as ArrayRef, false),
        ("version", Arc::new(Int64Array::from_iter_values(versions)), false),
        (
            "event_time",
            Arc::new(TimestampMicrosecondArray::from(times.to_vec()).with_timezone("UTC")),
            false,
        ),
        ("op_type", Arc::new(operations), false),
        ("state_value", value, true),
    ])
    .unwrap()
}
