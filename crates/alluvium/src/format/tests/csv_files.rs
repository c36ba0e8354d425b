//! Changes from CSV files.

use super::super::{ChangeMapping, InputFormat, OnBad, ReadOptions, ReaderSchema, format_fields};
use super::{by_key, fixed, read, refusal, rows};

fn csv(mapping: ChangeMapping) -> ReadOptions {
    ReadOptions { format: Some(InputFormat::Csv), mapping, ..Default::default() }
}

#[test]
fn the_types_of_columns_are_found_from_their_cells() {
    let mapping = ChangeMapping { null_tokens: vec!["NA".into()], ..by_key(&["id"]) };
    let text = "\u{feff}id,n,x,ok,day,at,zip,mixed,none,time\r\n\
        007,1,1.5,true,2024-01-15,2024-01-15T10:00:00Z,01234,1,NA,2024-01-15T10:00:00Z\r\n\
        8,NA,2,FALSE,2024-01-16,2024-01-16T10:00:00+01:00,12345,x,,2024-01-16\r\n";
    let chunks = read(text, csv(mapping)).unwrap();
    assert_eq!(
        format_fields(chunks[0].fields()),
        "n BIGINT, x DOUBLE, ok BOOLEAN, day DATE, at TIMESTAMP, zip STRING, mixed STRING, time STRING"
    );
    assert_eq!(chunks[0].left_out, ["none"]);
    assert_eq!(chunks[0].lines, [2, 3]);
    assert_eq!(
        rows(&chunks)[1],
        r#"{"state_key":"8","op_type":"UPSERT","version":null,"event_time":null,"state_value":{"n":null,"x":2.0,"ok":false,"day":"2024-01-16","at":"2024-01-16T09:00:00Z","zip":"12345","mixed":"x","time":"2024-01-16"}}"#
    );
    assert!(rows(&chunks)[0].starts_with(r#"{"state_key":"007""#));
}

#[test]
fn mapped_columns_leave_the_value() {
    let mapping = ChangeMapping {
        event_time: Some("at".into()),
        version: Some("lsn".into()),
        ..by_key(&["a", "b"])
    };
    let text = "b,n,a,at,lsn\ny,1,x,2024-01-15T10:00:00Z,5\nz,2,x,,\n";
    let options = ReadOptions { want_records: true, ..csv(mapping) };
    let chunk = read(text, options).unwrap().remove(0);
    let names: Vec<_> = chunk
        .records
        .as_ref()
        .unwrap()
        .schema()
        .fields()
        .iter()
        .map(|f| f.name().clone())
        .collect();
    assert_eq!(names, ["n", "a", "b", "at", "lsn"]);
    let none = arrow::array::BooleanArray::from(vec![false, false]);
    assert_eq!(
        rows(&[chunk.with_deletes(&none).unwrap()]),
        [
            r#"{"state_key":"x\u0000y","op_type":"UPSERT","version":5,"event_time":"2024-01-15T10:00:00Z","state_value":{"n":1}}"#,
            r#"{"state_key":"x\u0000z","op_type":"UPSERT","version":null,"event_time":null,"state_value":{"n":2}}"#,
        ]
    );
}

#[test]
fn bad_rows_stop_the_read_or_are_set_aside_with_line_and_reason() {
    let text = "id,n\na,1\n,2\nb,x\nc,1,2\nd\n\"e\n f\",3\ng,9223372036854775808\nh,4\n";
    let options = || ReadOptions { schema: fixed("n BIGINT"), ..csv(by_key(&["id"])) };
    assert!(
        refusal(text, options())
            .contains("input: line 5: the row has 3 cells, but the header has 2")
    );
    let chunks = read(text, ReadOptions { on_bad: OnBad::Collect, ..options() }).unwrap();
    assert_eq!(chunks[0].lines, [2, 7, 10]);
    let rejects: Vec<(u64, &[u8])> =
        chunks[0].rejects.iter().map(|r| (r.line, r.text.as_slice())).collect();
    let expected: [(u64, &[u8]); 5] =
        [(3, b",2"), (4, b"b,x"), (5, b"c,1,2"), (6, b"d"), (9, b"g,9223372036854775808")];
    assert_eq!(rejects, expected);
    assert!(
        chunks[0].rejects[1].reason.contains("state_value.n: the text \"x\" does not fit BIGINT")
    );
}

#[test]
fn two_quotes_are_the_empty_text_and_nothing_is_null() {
    let schema = "s STRING, n BIGINT, b BINARY, t STRING";
    let text =
        "id,s,n,b,t\n\"\",\"\",\"\",\"\",\n1,,,,\"\"\r\n\n\"2\",\"a\"\"\",\"7\",Zg==,\"\"\"\"\n";
    let values = |options: ReadOptions| -> Vec<String> {
        let rows = rows(&read(text, options).unwrap());
        let key = |row: &String| row.split("\"op_type\"").next().unwrap().to_owned();
        let value = |row: &String| row.split("\"state_value\":").nth(1).unwrap().to_owned();
        rows.iter().map(|row| key(row) + &value(row)).collect()
    };
    let fixed = ReadOptions { schema: fixed(schema), ..csv(by_key(&["id"])) };
    let expected = [
        r#"{"state_key":"",{"s":"","n":null,"b":"","t":null}}"#,
        r#"{"state_key":"1",{"s":null,"n":null,"b":null,"t":""}}"#,
        r#"{"state_key":"2",{"s":"a\"","n":7,"b":"Zg==","t":"\""}}"#,
    ];
    assert_eq!(values(fixed), expected);
    // Without a schema the type of a column is told by its other cells.
    let found = values(csv(by_key(&["id"])));
    assert_eq!(found, expected);
    let mapping = ChangeMapping { null_tokens: vec![String::new()], ..by_key(&["t"]) };
    let message = refusal("t,n\n\"\",1\n", csv(mapping));
    assert!(message.contains("line 2: t: the key is null"), "{message}");
    let only = rows(&read("id,s\na,\"\"\nb,\n", csv(by_key(&["id"]))).unwrap());
    assert!(only[0].ends_with(r#"{"s":""}}"#) && only[1].ends_with(r#"{"s":null}}"#), "{only:?}");
}

#[test]
fn a_rejected_row_keeps_its_empty_texts_and_its_delimiter() {
    let mapping = ChangeMapping { delimiter: b';', ..by_key(&["id"]) };
    let options =
        ReadOptions { schema: fixed("n BIGINT, s STRING"), on_bad: OnBad::Collect, ..csv(mapping) };
    let chunks = read("id;n;s;t\na;x;\"\";\n", options).unwrap();
    assert_eq!(chunks[0].rejects[0].text, b"a;x;\"\";");
}

#[test]
fn lines_are_counted_right_around_blank_lines_and_both_line_ends() {
    for end in ["\n", "\r\n"] {
        let text = ["id,n", "a,1", "", "", "b,2", "\"c\n\nc\",3", "d,4"].join(end);
        let chunks = read(text, csv(by_key(&["id"]))).unwrap();
        assert_eq!(chunks[0].lines, [2, 5, 6, 9], "{end:?}");
    }
}

#[test]
fn header_faults_are_told_at_once() {
    assert!(refusal("", csv(by_key(&["id"]))).contains("row of column names"));
    assert!(
        refusal("ID,n\n", csv(by_key(&["id"])))
            .contains("no column \"id\" (did you mean \"ID\"?); the columns are ID, n")
    );
    assert!(
        refusal("id;n\na;1\n", csv(by_key(&["id"])))
            .contains("the columns are id;n; if ';' separates the cells, name it as the delimiter")
    );
    assert!(refusal("id,N,n\n", csv(by_key(&["id"]))).contains("rename one"));
    assert!(refusal("id,n\n", csv(ChangeMapping::default())).contains("name its key column"));
    let options = ReadOptions { schema: fixed("colUtc BIGINT"), ..csv(by_key(&["id"])) };
    assert!(refusal("id,colUTC\n", options).contains("differs only by case"));
}

#[test]
fn numbers_that_would_lose_digits_ask_for_a_schema() {
    let message = refusal("id,n\na,1\nb,9223372036854775808\n", csv(by_key(&["id"])));
    assert!(
        message.contains("line 3: n: ") && message.contains("DECIMAL(38,0) or STRING"),
        "{message}"
    );
    let message = refusal("id,n\na,9007199254740993\nb,0.5\n", csv(by_key(&["id"])));
    assert!(message.contains("n: it has integers that a DOUBLE can't hold"), "{message}");
    let options = ReadOptions { on_bad: OnBad::Collect, ..csv(by_key(&["id"])) };
    let chunks = read("id,n\na,1\nb,9223372036854775808\n", options).unwrap();
    assert_eq!((chunks[0].len(), chunks[0].rejects[0].line), (1, 3));
}

#[test]
fn declared_types_read_their_cells_and_new_columns_are_appended() {
    let schema = "d DECIMAL(10,2) NOT NULL, s STRING, o STRUCT<p: INT>, absent INT, t TIMESTAMP_NTZ, b BINARY";
    let options = || ReadOptions { schema: fixed(schema), ..csv(by_key(&["id"])) };
    let text = "id,s,d,o,new,t,b\na,007,1.50,\"{\"\"p\"\":1}\",3,2024-01-15 10:00:00,Zg==\n";
    let chunks = read(text, options()).unwrap();
    assert_eq!(format_fields(chunks[0].fields()), format!("{schema}, new BIGINT"));
    assert!(rows(&chunks)[0].ends_with(
        r#""state_value":{"d":"1.50","s":"007","o":{"p":1},"absent":null,"t":"2024-01-15T10:00:00","b":"Zg==","new":3}}"#
    ));
    let message = refusal("id,d,o\na,1,{x}\n", options());
    assert!(
        message.contains("line 2: state_value.o: ") && message.contains("not valid JSON"),
        "{message}"
    );
    assert!(refusal("id,d\na,\n", options()).contains("line 2: state_value.d: it is required"));
    assert!(refusal("id,s\na,x\n", options()).contains("line 2: state_value.d: it is required"));
}

#[test]
fn a_column_of_unknown_type_joins_when_a_cell_tells_it() {
    let options = ReadOptions { batch_rows: 1, schema: fixed("n BIGINT"), ..csv(by_key(&["id"])) };
    let text: String = std::iter::once("id,n,later\n".to_owned())
        .chain((0..10_001).map(|n| format!("{n},{n},\n")))
        .chain(["x,1,2024-01-15\n".to_owned()])
        .collect();
    let chunks = read(text, options).unwrap();
    assert_eq!(chunks.len(), 10_002);
    assert_eq!(chunks[0].left_out, ["later"]);
    assert_eq!(format_fields(chunks[10_001].fields()), "n BIGINT, later DATE");
}

#[test]
fn invalid_utf8_in_a_cell_is_refused_with_line_and_column() {
    let text = b"id,n\na,x\nb,\xff\nc,y\n".to_vec();
    assert!(refusal(text.clone(), csv(by_key(&["id"]))).contains("line 3: n: not valid UTF-8"));
    let chunks =
        read(text, ReadOptions { on_bad: OnBad::Collect, ..csv(by_key(&["id"])) }).unwrap();
    assert_eq!(chunks[0].rejects[0].text, b"b,\xff");
}

#[test]
fn the_real_flights_file_loads_whole() {
    let root = std::path::Path::new(option_env!("CARGO_MANIFEST_DIR").unwrap_or("."));
    let path = root.join("../../../shared/data/flights.csv.gz");
    if !path.exists() {
        return;
    }
    let mapping = ChangeMapping {
        event_time: Some("time_hour".into()),
        null_tokens: vec!["NA".into()],
        ..by_key(&["tailnum"])
    };
    let options = ReadOptions {
        on_bad: OnBad::Collect,
        schema: ReaderSchema::Infer,
        mapping,
        ..Default::default()
    };
    let (mut rows, mut rejects, mut fields) = (0, 0, String::new());
    for chunk in super::super::ChangeReader::open(path, options).unwrap() {
        let chunk = chunk.unwrap();
        rows += chunk.len();
        rejects += chunk.rejects.len();
        fields = format_fields(chunk.fields());
        assert!(
            chunk.rejects.iter().all(|reject| reject.reason.contains("tailnum: the key is null"))
        );
    }
    assert_eq!((rows, rejects), (334_264, 2_512));
    assert_eq!(
        fields,
        "year BIGINT, month BIGINT, day BIGINT, dep_time BIGINT, sched_dep_time BIGINT, dep_delay BIGINT, \
         arr_time BIGINT, sched_arr_time BIGINT, arr_delay BIGINT, carrier STRING, flight BIGINT, origin STRING, \
         dest STRING, air_time BIGINT, distance BIGINT, hour BIGINT, minute BIGINT"
    );
}
