//! Changes from Parquet and Arrow.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields, Int8Type, Schema};

use super::super::{ChangeMapping, ChangeReader, InputFormat, OnBad, ReadOptions, format_fields};
use super::{by_key, fixed, read, refusal, rows};

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
        .unwrap()
}

fn parquet(batch: &RecordBatch) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut out, batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    out
}

fn stream(batch: &RecordBatch) -> Vec<u8> {
    let mut writer =
        arrow::ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

fn file(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = arrow::ipc::writer::FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

fn mapped(mapping: ChangeMapping) -> ReadOptions {
    ReadOptions { mapping, ..Default::default() }
}

#[test]
fn foreign_types_become_stored_ones() {
    let dictionary: DictionaryArray<Int8Type> = vec![Some("a"), None].into_iter().collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(UInt32Array::from(vec![1, u32::MAX]))),
        ("u8", Arc::new(UInt8Array::from(vec![0, 255]))),
        ("u64", Arc::new(UInt64Array::from(vec![0, i64::MAX as u64]))),
        ("dict", Arc::new(dictionary)),
        ("large", Arc::new(LargeStringArray::from(vec!["x", "y"]))),
        ("view", Arc::new(StringViewArray::from(vec!["x", "y"]))),
        (
            "fixed",
            Arc::new(FixedSizeBinaryArray::try_from_iter([b"ab", b"cd"].into_iter()).unwrap()),
        ),
        (
            "ns",
            Arc::new(TimestampNanosecondArray::from(vec![1_000, 2_000]).with_timezone("+01:00")),
        ),
        ("s", Arc::new(TimestampMillisecondArray::from(vec![1, 2]))),
        ("nothing", Arc::new(NullArray::new(2))),
    ];
    let batch = batch(columns);
    for bytes in [parquet(&batch), stream(&batch), file(&batch)] {
        let chunks = read(bytes, mapped(by_key(&["id"]))).unwrap();
        assert_eq!(
            format_fields(chunks[0].fields()),
            "u8 SMALLINT, u64 BIGINT, dict STRING, large STRING, view STRING, fixed BINARY, ns TIMESTAMP, s TIMESTAMP_NTZ"
        );
        assert_eq!(chunks[0].lines, [1, 2]);
        assert!(rows(&chunks)[1].starts_with(r#"{"state_key":"4294967295""#));
        assert!(rows(&chunks)[1].ends_with(
            r#"{"u8":255,"u64":9223372036854775807,"dict":null,"large":"y","view":"y","fixed":"Y2Q=","ns":"1970-01-01T00:00:00.000002Z","s":"1970-01-01T00:00:00.002"}}"#
        ));
    }
    assert_eq!(read(stream(&batch), mapped(by_key(&["id"]))).unwrap()[0].left_out, ["nothing"]);
}

#[test]
fn values_that_would_lose_digits_are_refused_with_row_and_path() {
    let inner = StructArray::from(vec![(
        Arc::new(Field::new(
            "t",
            DataType::Timestamp(arrow::datatypes::TimeUnit::Nanosecond, Some("UTC".into())),
            true,
        )),
        Arc::new(TimestampNanosecondArray::from(vec![1_000, 1_001, 3_000]).with_timezone("UTC"))
            as ArrayRef,
    )]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(StringArray::from(vec!["a", "b", "c"]))),
        ("o", Arc::new(inner)),
        ("u", Arc::new(UInt64Array::from(vec![1, 2, u64::MAX]))),
    ];
    let bytes = stream(&batch(columns));
    let message = refusal(bytes.clone(), mapped(by_key(&["id"])));
    assert!(
        message.contains("input: row 2: o.t: the value") && message.contains("lose digits"),
        "{message}"
    );
    let options = ReadOptions { on_bad: OnBad::Collect, ..mapped(by_key(&["id"])) };
    let chunks = read(bytes, options).unwrap();
    assert_eq!(chunks[0].lines, [1]);
    let places: Vec<u64> = chunks[0].rejects.iter().map(|reject| reject.line).collect();
    assert_eq!(places, [2, 3]);
    assert!(String::from_utf8_lossy(&chunks[0].rejects[1].text).contains("18446744073709551615"));
}

#[test]
fn columns_conform_to_the_state_or_are_refused_with_both_types() {
    let numbers = || {
        batch(vec![
            ("id", Arc::new(StringArray::from(vec!["a", "b"])) as ArrayRef),
            ("n", Arc::new(Int64Array::from(vec![1, 9_007_199_254_740_993]))),
        ])
    };
    let with = |schema: &str| ReadOptions { schema: fixed(schema), ..mapped(by_key(&["id"])) };
    let chunks = read(parquet(&numbers()), with("x STRING, n DECIMAL(38,2)")).unwrap();
    assert!(rows(&chunks)[1].ends_with(r#"{"x":null,"n":"9007199254740993.00"}}"#));
    for (schema, why) in [
        ("n INT", "row 2: state_value.n: the value 9007199254740993 does not fit INT"),
        ("n DOUBLE", "row 2: state_value.n: the value 9007199254740993 does not fit DOUBLE"),
        ("n STRING", "state_value: n: the input has BIGINT, the state STRING"),
        ("N BIGINT", "differs only by case"),
        ("n BIGINT, y INT NOT NULL", "row 1: state_value.y: it is required"),
    ] {
        let message = refusal(parquet(&numbers()), with(schema));
        assert!(message.contains(why), "{schema}: {message}");
    }
}

#[test]
fn native_changes_and_our_own_log_are_recognised() {
    let value = StructArray::try_new(
        Fields::from(vec![Field::new("n", DataType::Int32, true)]),
        vec![Arc::new(Int32Array::from(vec![Some(1), None]))],
        Some(NullBuffer::from(vec![true, false])),
    )
    .unwrap();
    let columns = |names: [&'static str; 4]| -> Vec<(&'static str, ArrayRef)> {
        vec![
            (names[0], Arc::new(StringArray::from(vec!["a", "b"]))),
            (names[1], Arc::new(StringArray::from(vec!["UPSERT", "DELETE"]))),
            (names[2], Arc::new(value.clone())),
            (names[3], Arc::new(Int64Array::from(vec![1, 2]))),
        ]
    };
    let native = batch(columns(["key", "op", "value", "version"]));
    let mut log = columns(["state_key", "op_type", "state_value", "version"]);
    log.push(("append_id", Arc::new(StringArray::from(vec!["x", "x"]))));
    let expected = [
        r#"{"state_key":"a","op_type":"UPSERT","version":1,"event_time":null,"state_value":{"n":1}}"#,
        r#"{"state_key":"b","op_type":"DELETE","version":2,"event_time":null,"state_value":null}"#,
    ];
    for bytes in [parquet(&native), stream(&batch(log))] {
        assert_eq!(rows(&read(bytes, ReadOptions::default()).unwrap()), expected);
    }
    let other = batch(vec![("id", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
    assert!(refusal(parquet(&other), ReadOptions::default()).contains("name the key column"));
    let mut wrong = columns(["key", "op", "value", "version"]);
    wrong[1].1 = Arc::new(StringArray::from(vec!["DELETE", "UPSERT"]));
    let options = ReadOptions { on_bad: OnBad::Collect, ..Default::default() };
    let chunks = read(stream(&batch(wrong)), options).unwrap();
    assert_eq!((chunks[0].len(), chunks[0].rejects.len()), (0, 2));
}

#[test]
fn event_times_need_a_zone_and_keys_a_value() {
    let columns = |at: ArrayRef| {
        batch(vec![
            ("id", Arc::new(StringArray::from(vec![Some("a"), None])) as ArrayRef),
            ("day", Arc::new(Date32Array::from(vec![0, 1]))),
            ("at", at),
        ])
    };
    let mapping = |key: &[&str]| ChangeMapping { event_time: Some("at".into()), ..by_key(key) };
    let local: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![0, 1]));
    let message = refusal(stream(&columns(local)), mapped(mapping(&["id"])));
    assert!(message.contains("at: a column of TIMESTAMP_NTZ can't be the event time"), "{message}");
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("2024-01-15T10:30:00Z"), None]));
    let message = refusal(stream(&columns(texts.clone())), mapped(mapping(&["id"])));
    assert!(message.contains("row 2: id: the key is null"), "{message}");
    let chunks = read(stream(&columns(texts)), mapped(mapping(&["day", "at"])));
    assert!(chunks.unwrap_err().to_string().contains("named twice"));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["2024-01-15T10:30:00Z", "noon"]));
    let message = refusal(stream(&columns(texts)), mapped(mapping(&["day"])));
    assert!(message.contains("row 2: at: the event time \"noon\""), "{message}");
}

#[test]
fn sliced_maps_keep_their_own_rows_and_duplicate_keys_are_refused() {
    let entries = |keys: Vec<i32>, values: Vec<i32>| {
        StructArray::from(vec![
            (
                Arc::new(Field::new("k", DataType::Int32, false)),
                Arc::new(Int32Array::from(keys)) as ArrayRef,
            ),
            (
                Arc::new(Field::new("v", DataType::Int32, true)),
                Arc::new(Int32Array::from(values)) as ArrayRef,
            ),
        ])
    };
    let map = |entries: StructArray, lengths: Vec<usize>| {
        let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
        MapArray::try_new(entry, OffsetBuffer::from_lengths(lengths), entries, None, false).unwrap()
    };
    let three = map(entries(vec![10, 20, 30], vec![100, 200, 300]), vec![1, 1, 1]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(StringArray::from(vec!["b", "c"]))),
        ("m", Arc::new(three.slice(1, 2))),
    ];
    let chunks = read(stream(&batch(columns)), mapped(by_key(&["id"]))).unwrap();
    assert!(rows(&chunks)[0].ends_with(r#"{"m":[[20,200]]}}"#));
    assert!(rows(&chunks)[1].ends_with(r#"{"m":[[30,300]]}}"#));
    let twice = map(entries(vec![1, 2, 2], vec![1, 2, 3]), vec![1, 2]);
    let columns: Vec<(&str, ArrayRef)> =
        vec![("id", Arc::new(StringArray::from(vec!["b", "c"]))), ("m", Arc::new(twice))];
    let message = refusal(stream(&batch(columns)), mapped(by_key(&["id"])));
    assert!(message.contains("row 2: m: the map has the key 2 twice"), "{message}");
}

#[test]
fn chunks_are_cut_to_size_and_files_are_read_in_place() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..1_000))),
        (
            "tags",
            Arc::new(ListArray::from_iter_primitive::<arrow::datatypes::Int64Type, _, _>(
                (0..1_000).map(|n| Some(vec![Some(n)])),
            )),
        ),
    ];
    let batch = batch(columns);
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in
        [("a.parquet", parquet(&batch)), ("a.arrow", stream(&batch)), ("b.arrow", file(&batch))]
    {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let options = ReadOptions { batch_rows: 300, ..mapped(by_key(&["id"])) };
        let mut reader = ChangeReader::open(&path, options).unwrap();
        assert_ne!(reader.format(), InputFormat::Jsonl);
        let chunks: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
        assert!(chunks.iter().all(|chunk| chunk.len() <= 300));
        assert_eq!(
            chunks[2].first_line(),
            Some(chunks[0].len() as u64 + chunks[1].len() as u64 + 1)
        );
        let rows = rows(&chunks);
        assert_eq!(rows.len(), 1_000);
        assert!(rows[999].ends_with(r#"{"tags":[999]}}"#));
        if name == "a.parquet" {
            assert_eq!(Some(reader.bytes_read()), reader.total_bytes());
        }
    }
}

#[test]
fn damaged_files_are_refused_not_panicked_on() {
    let small = batch(vec![("key", Arc::new(StringArray::from(vec!["a"])) as ArrayRef)]);
    for bytes in [parquet(&small), stream(&small), file(&small)] {
        for cut in (8..bytes.len()).step_by(7) {
            let _ = read(&bytes[..cut], mapped(by_key(&["key"])));
        }
    }
    let schema = Arc::new(Schema::new(vec![Field::new(
        "d",
        DataType::Duration(arrow::datatypes::TimeUnit::Second),
        true,
    )]));
    let odd =
        RecordBatch::try_new(schema, vec![Arc::new(DurationSecondArray::from(vec![1]))]).unwrap();
    let message = refusal(stream(&odd), mapped(by_key(&["d"])));
    assert!(message.contains("a state does not store the type"), "{message}");
}

#[test]
fn a_key_of_several_columns_is_the_same_from_every_format() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("region", Arc::new(StringArray::from(vec!["eu", "007", "eu"]))),
        ("id", Arc::new(Int32Array::from(vec![42, -7, 0]))),
        ("ok", Arc::new(BooleanArray::from(vec![true, false, true]))),
        ("n", Arc::new(Int32Array::from(vec![1, 2, 3]))),
    ];
    let lines = "{\"region\":\"eu\",\"id\":42,\"ok\":true,\"n\":1}\n\
        {\"region\":\"007\",\"id\":-7,\"ok\":false,\"n\":2}\n\
        {\"region\":\"eu\",\"id\":0,\"ok\":true,\"n\":3}\n";
    let cells = "region,id,ok,n\neu,42,true,1\n007,-7,false,2\neu,0,true,3\n";
    let keys = |text: &[u8], format: InputFormat, text_key_parts: bool| -> Vec<String> {
        let mapping = ChangeMapping { text_key_parts, ..by_key(&["region", "id", "ok"]) };
        let options = ReadOptions { format: Some(format), ..mapped(mapping) };
        let chunks = read(text, options).unwrap();
        let keys = chunks[0].changes.column(0).as_string::<i32>().clone();
        keys.iter().map(|key| key.unwrap().to_owned()).collect()
    };
    for (is_text, first) in [
        (false, ["eu", "09223372036854775850", "1"].join("\0")),
        (true, ["eu", "42", "true"].join("\0")),
    ] {
        let columnar = keys(&stream(&batch(columns.clone())), InputFormat::Arrow, is_text);
        assert_eq!(columnar[0], first);
        assert_eq!(keys(lines.as_bytes(), InputFormat::Jsonl, is_text), columnar);
        assert_eq!(keys(cells.as_bytes(), InputFormat::Csv, is_text), columnar);
    }
}
