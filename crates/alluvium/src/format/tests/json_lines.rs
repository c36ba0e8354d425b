//! Changes from JSON lines.

use arrow::array::BooleanArray;
use std::io::Write;

use super::super::{
    ChangeMapping, ChangeReader, InputFormat, OnBad, ReadOptions, format_fields, parse_fields,
};
use super::{by_key, bytes, fixed, read, refusal, rows};

fn collect() -> ReadOptions {
    ReadOptions { on_bad: OnBad::Collect, ..Default::default() }
}

#[test]
fn native_lines_become_changes() {
    let text = "\u{feff}{\"key\":\"u1\",\"op\":\"UPSERT\",\"value\":{\"n\":1},\"version\":1,\"event_time\":\"2024-01-15T10:30:00Z\"}\r\n\
        \n  \n{\"key\":\"\",\"value\":{\"n\":2},\"version\":\"9223372036854775807\"}\n\
        {\"key\":\"u1\",\"op\":\"DELETE\"}\n{\"key\":\"u2\",\"op\":\"DELETE\",\"value\":null,\"event_time\":null}";
    let chunks = read(text, ReadOptions::default()).unwrap();
    assert_eq!(chunks[0].lines, [1, 4, 5, 6]);
    assert_eq!(
        rows(&chunks),
        [
            r#"{"state_key":"u1","op_type":"UPSERT","version":1,"event_time":"2024-01-15T10:30:00Z","state_value":{"n":1}}"#,
            r#"{"state_key":"","op_type":"UPSERT","version":9223372036854775807,"event_time":null,"state_value":{"n":2}}"#,
            r#"{"state_key":"u1","op_type":"DELETE","version":null,"event_time":null,"state_value":null}"#,
            r#"{"state_key":"u2","op_type":"DELETE","version":null,"event_time":null,"state_value":null}"#,
        ]
    );
}

#[test]
fn bad_native_lines_are_refused_with_line_field_and_remedy() {
    let cases: [(&str, &str); 18] = [
        (r#"{"key":"a","value":{},"ver":1}"#, "no field ver"),
        (r#"{"key":"a","op":"U","value":{}}"#, "op: the operation is \"U\": use UPSERT or DELETE"),
        (r#"{"key":"a","op":"upsert","value":{}}"#, "use UPSERT or DELETE"),
        (r#"{"key":7,"value":{}}"#, "key: a key is a string"),
        (r#"{"key":null,"value":{}}"#, "key: the key is null or missing"),
        (r#"{"value":{}}"#, "key: the key is null or missing"),
        (r#"{"key":"a"}"#, "value: an UPSERT needs its value"),
        (r#"{"key":"a","value":null}"#, "to remove the key set op to DELETE"),
        (r#"{"key":"a","value":5}"#, "value: the value of a change is an object"),
        (r#"{"key":"a","op":"DELETE","value":{}}"#, "a DELETE has no value"),
        (r#"{"key":"a","value":{},"version":1.5}"#, "version: the version \"1.5\" is no BIGINT"),
        (r#"{"key":"a","value":{},"version":"x"}"#, "version: "),
        (r#"{"key":"a","value":{},"version":9223372036854775808}"#, "range"),
        (r#"{"key":"a","value":{},"event_time":"2024-01-15T10:30:00"}"#, "event_time: "),
        (
            r#"{"key":"a","value":{},"event_time":1705314600}"#,
            "event_time: an event time is a string",
        ),
        (r#"{"key":"a","value":{},"key":"b"}"#, "\"key\" twice"),
        (r#"{"key":"a","value":{}} x"#, "trailing"),
        (r#"["a"]"#, "one JSON object"),
    ];
    for (line, why) in cases {
        let good = r#"{"key":"ok","value":{"n":1}}"#;
        let message = refusal(format!("{good}\n{line}\n"), ReadOptions::default());
        assert!(message.contains("input: line 2: ") && message.contains(why), "{line}: {message}");
        let chunks = read(format!("{good}\n{line}\n{good}\n"), collect()).unwrap();
        assert_eq!((rows(&chunks).len(), chunks[0].rejects.len()), (2, 1), "{line}");
        let reject = &chunks[0].rejects[0];
        assert_eq!((reject.line, reject.text.as_slice()), (2, line.as_bytes()));
        assert!(reject.reason.contains(why));
    }
}

#[test]
fn a_value_that_does_not_fit_the_state_names_path_type_and_value() {
    let options = || ReadOptions {
        schema: fixed("n BIGINT, a STRUCT<b: INT>, tags ARRAY<STRING>"),
        ..Default::default()
    };
    let line = |value: &str| format!("{{\"key\":\"a\",\"value\":{value}}}");
    let message = refusal(line(r#"{"n":1.5}"#), options());
    assert!(
        message.contains("line 1: state_value.n: the number 1.5 does not fit BIGINT"),
        "{message}"
    );
    assert!(refusal(line(r#"{"a":{"b":2147483648}}"#), options()).contains("state_value.a.b: "));
    assert!(refusal(line(r#"{"tags":["x",null,7]}"#), options()).contains("state_value.tags[2]: "));
    let chunks = read(line(r#"{"n":9007199254740993,"tags":[]}"#), options()).unwrap();
    assert!(rows(&chunks)[0].contains(r#"{"n":9007199254740993,"a":null,"tags":[]}"#));
}

#[test]
fn new_fields_are_appended_and_known_ones_keep_their_place() {
    let options = ReadOptions {
        schema: fixed("b BIGINT NOT NULL, o STRUCT<p: INT>"),
        batch_rows: 1,
        ..Default::default()
    };
    let text = "{\"key\":\"1\",\"value\":{\"b\":1,\"empty\":[]}}\n\
        {\"key\":\"2\",\"value\":{\"a\":\"x\",\"b\":2,\"o\":{\"q\":1.5,\"p\":1}}}\n\
        {\"key\":\"3\",\"value\":{\"b\":3,\"empty\":[7],\"a\":\"y\"}}";
    let chunks = read(text, options).unwrap();
    assert_eq!(chunks[0].left_out, ["empty"]);
    assert_eq!(format_fields(chunks[0].fields()), "b BIGINT NOT NULL, o STRUCT<p: INT>");
    assert_eq!(
        format_fields(chunks[1].fields()),
        "b BIGINT NOT NULL, o STRUCT<p: INT, q: DOUBLE>, a STRING"
    );
    assert_eq!(
        format_fields(chunks[2].fields()),
        "b BIGINT NOT NULL, o STRUCT<p: INT, q: DOUBLE>, a STRING, empty ARRAY<BIGINT>"
    );
    assert!(rows(&chunks)[1].ends_with(r#""state_value":{"b":2,"o":{"p":1,"q":1.5},"a":"x"}}"#));
}

#[test]
fn a_new_field_that_differs_only_by_case_is_refused_with_both_spellings() {
    let options = ReadOptions { schema: fixed("colUtc BIGINT"), ..Default::default() };
    let message = refusal(r#"{"key":"1","value":{"colUTC":1}}"#, options);
    assert!(message.contains("colUTC") && message.contains("colUtc"), "{message}");
}

#[test]
fn required_values_are_asked_of_upserts_only() {
    let options =
        || ReadOptions { schema: fixed("id BIGINT NOT NULL, x BIGINT"), ..Default::default() };
    assert_eq!(read(r#"{"key":"a","op":"DELETE"}"#, options()).unwrap()[0].len(), 1);
    for value in [r#"{"id":null,"x":1}"#, r#"{"x":1}"#] {
        let message = refusal(format!("{{\"key\":\"b\",\"value\":{value}}}"), options());
        assert!(message.contains("line 1: state_value.id: it is required"), "{message}");
    }
    let text = "{\"key\":\"a\",\"value\":{\"x\":1}}\n{\"key\":\"b\",\"value\":{\"id\":1}}";
    let chunks = read(text, ReadOptions { on_bad: OnBad::Collect, ..options() }).unwrap();
    assert_eq!(chunks[0].lines, [2]);
    assert_eq!(chunks[0].rejects[0].text, br#"{"key":"a","value":{"x":1}}"#);
}

#[test]
fn records_are_mapped_by_their_columns() {
    let mapping = ChangeMapping {
        event_time: Some("at".into()),
        version: Some("lsn".into()),
        ..by_key(&["id"])
    };
    let text = "{\"id\":7,\"name\":\"x\",\"at\":\"2024-01-15T10:30:00+01:00\",\"lsn\":\"12\",\"op\":\"D\"}\n{\"id\":\"a\",\"name\":null,\"lsn\":13}";
    let chunks =
        read(text, ReadOptions { mapping: mapping.clone(), ..Default::default() }).unwrap();
    assert_eq!(
        rows(&chunks),
        [
            r#"{"state_key":"7","op_type":"UPSERT","version":12,"event_time":"2024-01-15T09:30:00Z","state_value":{"name":"x","op":"D"}}"#,
            r#"{"state_key":"a","op_type":"UPSERT","version":13,"event_time":null,"state_value":{"name":null,"op":null}}"#,
        ]
    );
    let options = || ReadOptions { mapping: mapping.clone(), ..Default::default() };
    assert!(
        refusal(r#"{"name":"x"}"#, options()).contains("line 1: id: the key is null or missing")
    );
    assert!(refusal(r#"{"id":1.5}"#, options()).contains("id: a key is a string or a BIGINT"));
    assert!(refusal(r#"{"id":[1]}"#, options()).contains("id: a key"));
}

#[test]
fn several_key_columns_make_one_ordered_key() {
    let options = ReadOptions { mapping: by_key(&["origin", "flight"]), ..Default::default() };
    let text = "{\"flight\":9,\"origin\":\"EWR\"}\n{\"flight\":10,\"origin\":\"EWR\",\"x\":1}\n{\"flight\":\"9\",\"origin\":\"EWR\"}";
    let chunks = read(text, options).unwrap();
    let keys =
        arrow::array::AsArray::as_string::<i32>(chunks[0].changes.column(0).as_ref()).clone();
    assert_eq!(super::super::decode_key(keys.value(0)), ["EWR", "09223372036854775817"]);
    assert!(keys.value(0) < keys.value(1));
    assert_eq!(keys.value(2), "EWR\09");
}

#[test]
fn a_predicate_over_the_records_makes_deletes_before_required_values_are_asked() {
    let options = |on_bad| ReadOptions {
        mapping: ChangeMapping { version: Some("v".into()), ..by_key(&["id"]) },
        schema: fixed("n BIGINT NOT NULL, op STRING"),
        want_records: true,
        on_bad,
        ..Default::default()
    };
    let text = "{\"id\":\"a\",\"op\":\"I\",\"n\":1,\"v\":1}\n{\"id\":\"a\",\"op\":\"D\",\"v\":2}\n{\"id\":\"b\",\"op\":\"I\",\"v\":3}";
    let chunk = read(text, options(OnBad::Collect)).unwrap().remove(0);
    let records = chunk.records.clone().unwrap();
    let names: Vec<_> = records.schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["n", "op", "id", "v"]);
    let mask = BooleanArray::from(vec![Some(false), Some(true), None]);
    let chunk = chunk.with_deletes(&mask).unwrap();
    assert_eq!(format_fields(chunk.fields()), "n BIGINT NOT NULL, op STRING");
    assert_eq!(
        rows(std::slice::from_ref(&chunk)),
        [
            r#"{"state_key":"a","op_type":"UPSERT","version":1,"event_time":null,"state_value":{"n":1,"op":"I"}}"#,
            r#"{"state_key":"a","op_type":"DELETE","version":2,"event_time":null,"state_value":null}"#,
        ]
    );
    assert_eq!(chunk.rejects[0].line, 3);
    let chunk = read(text, options(OnBad::Fail)).unwrap().remove(0);
    assert!(
        chunk
            .with_deletes(&mask)
            .unwrap_err()
            .to_string()
            .contains("line 3: state_value.n: it is required")
    );
    let native = ReadOptions { want_records: true, ..Default::default() };
    assert!(refusal("{}", native).contains("predicate"));
}

#[test]
fn a_row_that_contradicts_the_sample_is_set_aside_and_adds_no_field() {
    let text = "{\"key\":\"1\",\"value\":{\"n\":1}}\n{\"key\":\"2\",\"value\":{\"ghost\":true,\"n\":\"x\"}}\n{\"key\":\"3\",\"value\":{\"n\":3}}";
    let chunks = read(text, collect()).unwrap();
    assert_eq!(format_fields(chunks[0].fields()), "n BIGINT");
    assert_eq!((chunks[0].lines.as_slice(), chunks[0].rejects[0].line), ([1, 3].as_slice(), 2));
    assert!(
        refusal(text, ReadOptions::default())
            .contains("line 2: state_value.n: the string \"x\" does not fit BIGINT")
    );
}

#[test]
fn chunks_are_bounded_by_rows_and_the_sample_reaches_beyond_the_first() {
    let mut text: String =
        (0..25).map(|n| format!("{{\"key\":\"{n}\",\"value\":{{\"n\":{n}}}}}\n")).collect();
    text.push_str("{\"key\":\"last\",\"value\":{\"n\":0.5}}\n");
    let chunks = read(text, ReadOptions { batch_rows: 10, ..Default::default() }).unwrap();
    let sizes: Vec<usize> = chunks.iter().map(super::super::ChangeChunk::len).collect();
    assert_eq!(sizes, [10, 10, 6]);
    assert_eq!(chunks[2].first_line(), Some(21));
    assert_eq!(format_fields(chunks[0].fields()), "n DOUBLE");
}

#[test]
fn bytes_bound_a_chunk_too() {
    let text: String =
        (0..100).map(|n| format!("{{\"key\":\"{n}\",\"value\":{{\"n\":{n}}}}}\n")).collect();
    let options = ReadOptions { batch_bytes: 500, schema: fixed("n BIGINT"), ..Default::default() };
    let chunks = read(text, options).unwrap();
    assert!(chunks.len() > 4 && rows(&chunks).len() == 100);
}

#[test]
fn compressed_inputs_are_read_as_they_are() {
    let line = |n: u32| format!("{{\"key\":\"{n}\",\"value\":{{\"n\":{n}}}}}\n").into_bytes();
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let members = [gzip(&line(1)), gzip(&line(2))].concat();
    assert_eq!(rows(&read(members.clone(), ReadOptions::default()).unwrap()).len(), 2);
    let frames =
        [zstd::encode_all(&*line(1), 1).unwrap(), zstd::encode_all(&*line(2), 1).unwrap()].concat();
    assert_eq!(rows(&read(frames.clone(), ReadOptions::default()).unwrap()).len(), 2);
    let message = refusal(&members[..members.len() - 5], ReadOptions::default());
    assert!(message.contains("damaged or cut off"), "{message}");
    assert!(
        refusal(&frames[..frames.len() - 5], ReadOptions::default()).contains("damaged or cut off")
    );
}

#[test]
fn progress_counts_the_bytes_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changes.jsonl.zst");
    let text: String =
        (0..1_000).map(|n| format!("{{\"key\":\"{n}\",\"value\":{{\"n\":{n}}}}}\n")).collect();
    std::fs::write(&path, zstd::encode_all(text.as_bytes(), 3).unwrap()).unwrap();
    let mut reader = ChangeReader::open(&path, ReadOptions::default()).unwrap();
    assert_eq!(reader.format(), InputFormat::Jsonl);
    assert_eq!(reader.by_ref().map(|chunk| chunk.unwrap().len()).sum::<usize>(), 1_000);
    assert_eq!(Some(reader.bytes_read()), reader.total_bytes());
    assert_eq!(reader.total_bytes(), Some(std::fs::metadata(&path).unwrap().len()));
    let missing = ChangeReader::open(folder.path().join("nope"), ReadOptions::default());
    assert_eq!(missing.err().unwrap().kind(), alluvium_log::ErrorKind::NotFound);
    assert!(ChangeReader::open(folder.path(), ReadOptions::default()).is_err());
}

#[test]
fn invalid_utf8_and_other_encodings_are_refused() {
    let mut text = b"{\"key\":\"a\",\"value\":{}}\n{\"key\":\"".to_vec();
    text.extend([0xff, b'"', b'}']);
    assert!(refusal(text, ReadOptions::default()).contains("line 2: not valid UTF-8 at byte 9"));
    let options = ReadOptions { format: Some(InputFormat::Jsonl), ..Default::default() };
    assert!(refusal([0xff, 0xfe, b'{', 0], options).contains("UTF-16"));
    assert!(refusal("[{}]", ReadOptions::default()).contains("one object per line"));
    assert!(refusal("a,b\n", ReadOptions::default()).contains("say which it is"));
}

#[test]
fn an_empty_input_has_no_chunks_and_a_failed_reader_stays_ended() {
    assert!(read("", ReadOptions::default()).unwrap().is_empty());
    assert!(read("\n \n", ReadOptions::default()).unwrap().is_empty());
    let mut reader = ChangeReader::from_read("x", bytes("{"), ReadOptions::default()).unwrap();
    assert!(reader.next_chunk().is_err());
    assert!(reader.next_chunk().unwrap().is_none());
}

#[test]
fn a_mapping_that_contradicts_itself_is_refused() {
    let mapping = ChangeMapping { version: Some("id".into()), ..by_key(&["id"]) };
    assert!(refusal("{}", ReadOptions { mapping, ..Default::default() }).contains("named twice"));
    let mapping = ChangeMapping { version: Some("v".into()), ..Default::default() };
    assert!(
        refusal("{}", ReadOptions { mapping, ..Default::default() }).contains("needs a key column")
    );
    assert_eq!(parse_fields("a INT").unwrap().len(), 1);
}

#[test]
fn rows_that_are_set_aside_add_no_field() {
    let text = "{\"key\":\"1\",\"value\":{\"n\":1}}\n{\"key\":null,\"value\":{\"x\":1}}\n{\"key\":\"3\",\"value\":{\"y\":1,\"n\":\"z\"}}\n\
        {\"key\":\"4\",\"value\":{\"n\":4,\"new\":true}}";
    for schema in [super::super::ReaderSchema::Infer, fixed("n BIGINT")] {
        let chunks = read(text, ReadOptions { schema, ..collect() }).unwrap();
        assert_eq!(format_fields(chunks[0].fields()), "n BIGINT, new BOOLEAN");
        let refused: Vec<u64> = chunks[0].rejects.iter().map(|reject| reject.line).collect();
        assert_eq!(
            (chunks[0].lines.as_slice(), refused.as_slice()),
            ([1, 4].as_slice(), [2, 3].as_slice())
        );
    }
}

#[test]
fn a_line_or_record_without_an_end_is_refused_before_it_fills_the_memory() {
    use std::io::Read;
    let endless = |start: &'static str| Box::new(start.as_bytes().chain(std::io::repeat(b'x')));
    for (start, format, mapping) in [
        ("{\"key\":\"", InputFormat::Jsonl, ChangeMapping::default()),
        ("id,n\na,\"", InputFormat::Csv, by_key(&["id"])),
    ] {
        let options = ReadOptions { format: Some(format), mapping, ..Default::default() };
        let error = ChangeReader::from_read("x", endless(start), options)
            .unwrap()
            .next_chunk()
            .unwrap_err();
        assert_eq!(error.kind(), alluvium_log::ErrorKind::LimitExceeded);
        assert!(error.to_string().contains("longer than 64 MiB"));
    }
}

#[test]
fn a_reader_can_be_sent_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<ChangeReader>();
    is_send::<super::super::ChangeChunk>();
}
