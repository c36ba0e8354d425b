//! What goes in and comes out of the program: the same rows from every format, and nothing left behind by what is refused.

use super::program::{fail, lines, succeed};
use crate::support::stores::Home;

#[test]
fn a_refused_first_append_leaves_no_state_behind() {
    let home = Home::new();
    let rejects = std::path::Path::new(&home.uri()).join("rejects.jsonl");
    let good = "{\"key\":\"a\",\"value\":{\"n\":1}}\n";
    for (arguments, input, name) in [
        (vec!["append", "s"], format!("{good}{{\"key\":null,\"value\":{{\"n\":1}}}}\n"), "line 2"),
        (
            vec!["append", "s", "--schema", "n BIGINT"],
            "{\"key\":\"a\",\"value\":{\"n\":\"x\"}}\n".into(),
            "state_value.n",
        ),
        (vec!["append", "s", "--schema", "n NUMBER"], good.into(), "NUMBER"),
        (
            vec!["append", "s", "--rejects", rejects.to_str().unwrap()],
            "{\n{\"value\":{}}\n".into(),
            "every row was rejected (2)",
        ),
        (vec!["append", "s"], String::new(), "no rows"),
    ] {
        fail(&home, &arguments, &input, 2, &[name]);
        assert_eq!(succeed(&home, &["states"], ""), "", "{arguments:?}");
    }
    succeed(&home, &["append", "s"], good);
    assert_eq!(lines(&succeed(&home, &["states"], "")).len(), 1);
}

#[test]
fn a_key_of_two_columns_is_found_whichever_format_it_came_from() {
    let home = Home::new();
    let key = ["--key", "region,id", "--event-time", "at"];
    let append = |format: &'static str| [&["append", "s", "--format", format], &key[..]].concat();
    succeed(&home, &append("csv"), "region,id,n,at\neu,42,1,2024-01-15T10:30:00Z\n");
    succeed(
        &home,
        &append("jsonl"),
        "{\"region\":\"eu\",\"id\":42,\"n\":2,\"at\":\"2024-01-15T10:31:00Z\"}\n",
    );
    let found = lines(&succeed(&home, &["get", "s", "--composite", "[\"eu\", 42]"], ""));
    assert_eq!((found.len(), &found[0]["value"]["n"]), (1, &serde_json::json!(2)));
    let history = succeed(&home, &["history", "s", "--composite", "[\"eu\", 42]"], "");
    assert_eq!(lines(&history).len(), 2);
    fail(&home, &["get", "s", "--composite", "[\"eu\", \"42\"]"], "", 3, &["42"]);
}

#[test]
fn csv_that_is_written_reads_back_equal_with_empty_texts_and_nulls_apart() {
    let home = Home::new();
    let input = r#"{"key":"","value":{"s":"","t":null,"n":1},"version":1,"event_time":"2024-01-15T10:30:00Z"}
{"key":"a\"b","value":{"s":null,"t":"","n":null},"version":2,"event_time":"2024-01-15T10:30:00.000001Z"}
{"key":"\n","value":{"s":" , ","t":"\"\"","n":-3},"version":3,"event_time":"2024-01-15T10:30:00Z"}
"#;
    succeed(&home, &["append", "s"], input);
    let written = succeed(&home, &["scan", "s", "--output", "csv"], "");
    assert!(written.contains("\"\","), "{written}");
    let columns = ["--key", "key", "--version", "version", "--event-time", "event_time"];
    let append = [&["append", "copy", "--format", "csv"], &columns[..]].concat();
    succeed(&home, &append, &written);
    assert_eq!(succeed(&home, &["scan", "copy"], ""), succeed(&home, &["scan", "s"], ""));
    assert_eq!(lines(&succeed(&home, &["sql", "SELECT * FROM copy WHERE s = ''"], "")).len(), 1);
}
