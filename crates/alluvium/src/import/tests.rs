//! Imports into a store in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Cursor;

use alluvium_log::{ErrorKind, KeyFilter};
use futures::TryStreamExt;

use super::{Import, ImportInput, ImportOptions, ImportReport};
use crate::format::{ChangeMapping, write_row};
use crate::{Point, Result, Store};

fn text(text: &str) -> Vec<ImportInput> {
    let read = Box::new(Cursor::new(text.to_owned().into_bytes()));
    vec![ImportInput::Stream { label: "input".to_owned(), read }]
}

fn by_id() -> ImportOptions {
    let mapping = ChangeMapping { key: vec!["id".to_owned()], ..ChangeMapping::default() };
    ImportOptions { mapping, ..ImportOptions::default() }
}

async fn import(store: &Store, input: &str, options: ImportOptions) -> Result<ImportReport> {
    Import::new(store, "s", text(input)).options(options).run().await
}

async fn values(store: &Store) -> Vec<String> {
    let state = store.raw_state("s").await.unwrap();
    let batches: Vec<_> =
        state.scan(Point::LATEST, KeyFilter::All).await.unwrap().try_collect().await.unwrap();
    let mut lines = Vec::new();
    for batch in batches {
        let shown = batch.project(&[0, 6]).unwrap();
        for row in 0..shown.num_rows() {
            let mut line = Vec::new();
            write_row(&mut line, &shown, row).unwrap();
            lines.push(String::from_utf8(line).unwrap());
        }
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn records_create_the_state_and_later_ones_grow_it() {
    let store = Store::open("memory://").await.unwrap();
    let first =
        import(&store, "{\"id\":\"a\",\"n\":1}\n{\"id\":\"b\",\"n\":2,\"x\":null}\n", by_id());
    let first = first.await.unwrap();
    assert!(first.created);
    assert_eq!((first.rows, first.commits, first.last_commit), (2, 1, Some(1)));
    assert_eq!(first.fields_left_out, ["x"]);
    let second = import(&store, "{\"id\":\"a\",\"n\":3,\"tag\":\"t\"}\n", by_id()).await.unwrap();
    assert!(!second.created);
    assert_eq!(second.fields_added, ["tag"]);
    assert_eq!(
        values(&store).await,
        [
            r#"{"state_key":"a","state_value":{"n":3,"tag":"t"}}"#,
            r#"{"state_key":"b","state_value":{"n":2,"tag":null}}"#
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expression_over_the_records_tells_deletes() {
    let store = Store::open("memory://").await.unwrap();
    import(&store, "{\"id\":\"a\",\"n\":1}\n{\"id\":\"b\",\"n\":2}\n", by_id()).await.unwrap();
    let options = ImportOptions { delete_when: Some("n IS NULL AND gone".to_owned()), ..by_id() };
    let lines = "{\"id\":\"a\",\"gone\":true}\n{\"id\":\"b\",\"n\":5,\"gone\":null}\n";
    let report = import(&store, lines, options).await.unwrap();
    assert_eq!((report.rows, report.deletes), (2, 1));
    assert_eq!(values(&store).await, [r#"{"state_key":"b","state_value":{"n":5,"gone":null}}"#]);

    for wrong in ["nope = 1", "n + 1", "n ="] {
        let options = ImportOptions { delete_when: Some(wrong.to_owned()), ..by_id() };
        let error = import(&store, "{\"id\":\"a\",\"n\":1}\n", options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(wrong), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_midway_says_what_is_in_and_how_to_go_on() {
    let store = Store::open("memory://").await.unwrap();
    let lines = "{\"id\":\"a\",\"n\":1}\n{\"id\":\"b\",\"n\":2}\n{\"id\":\"c\",\"n\":3}\n{\"id\":\"d\",\"n\":\"x\"}\n";
    let options = || ImportOptions {
        batch_rows: 2,
        fields: Some(crate::format::parse_fields("n BIGINT").unwrap()),
        ..by_id()
    };
    let error = import(&store, lines, options()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let message = error.to_string();
    for part in [
        "input: line 4",
        "2 rows are in already, as commit 1: lines 1 to 2 of input",
        "after line 2",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let mended = lines.replace("\"x\"", "4");
    let rest = import(&store, &mended, ImportOptions { after_line: 2, ..options() }).await.unwrap();
    assert_eq!(rest.rows, 2);
    assert_eq!(values(&store).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_is_all_or_nothing_and_applied_once() {
    let store = Store::open("memory://").await.unwrap();
    let options = || ImportOptions { batch_rows: 1, epoch: Some(("job".to_owned(), 7)), ..by_id() };
    let bad = "{\"id\":\"a\",\"n\":1}\n{\"id\":null,\"n\":2}\n";
    let error = import(&store, bad, options()).await.unwrap_err();
    assert!(error.to_string().contains("nothing of it was applied"), "{error}");
    let good = "{\"id\":\"a\",\"n\":1}\n{\"id\":\"b\",\"n\":2}\n";
    let report = import(&store, good, options()).await.unwrap();
    assert_eq!((report.rows, report.commits), (2, 1));
    let again = import(&store, good, options()).await.unwrap();
    assert_eq!((again.rows, again.already_applied), (0, Some(7)));
    assert_eq!(values(&store).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_rows_are_set_aside_with_place_and_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rejects.jsonl");
    let store = Store::open("memory://").await.unwrap();
    let lines = "{\"key\":\"a\",\"value\":{\"n\":1}}\nnonsense\n\
        {\"key\":\"b\",\"value\":{\"n\":2},\"event_time\":\"2999-01-01T00:00:00Z\"}\n\
        {\"key\":\"c\",\"value\":{\"n\":3},\"version\":4}\n";
    let import = Import::new(&store, "s", text(lines)).rejects(&path);
    let report = import.run().await.unwrap();
    assert_eq!((report.rows, report.rejected), (1, 3));
    let rejects = std::fs::read_to_string(&path).unwrap();
    let rejects: Vec<&str> = rejects.lines().collect();
    assert_eq!(rejects.len(), 3);
    assert!(rejects[0].starts_with(r#"{"file":"input","line":2,"reason":""#), "{}", rejects[0]);
    assert!(rejects[0].ends_with(r#""text":"nonsense"}"#), "{}", rejects[0]);
    assert!(
        rejects[1].contains(r#"{\"key\":\"b\",\"op\":\"UPSERT\",\"value\":{\"n\":2},"#),
        "{}",
        rejects[1]
    );
    assert!(rejects[1].contains("later than now") && rejects[2].contains("no event time"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_append_that_is_refused_leaves_no_state_behind() {
    let store = Store::open("memory://").await.unwrap();
    let later: String = (0..1_100)
        .map(|day| {
            let time = 1_600_000_000_000_000_i64 + day * 86_400_000_000;
            let time = crate::format::format_timestamp(time);
            format!("{{\"key\":\"k{day}\",\"value\":{{\"n\":1}},\"event_time\":\"{time}\"}}\n")
        })
        .collect();
    let declared = |schema: &str| ImportOptions {
        fields: Some(crate::format::parse_fields(schema).unwrap()),
        ..ImportOptions::default()
    };
    let epoch =
        ImportOptions { epoch: Some(("job".to_owned(), 1)), ..declared("n BIGINT NOT NULL") };
    let refused = [
        ("{\"key\":null,\"value\":{\"n\":1}}\n", ImportOptions::default()),
        ("{\"key\":\"a\",\"value\":{\"n\":1},\"version\":1}\n", ImportOptions::default()),
        ("{\"key\":\"a\",\"value\":{\"n\":\"x\"}}\n", declared("n BIGINT")),
        ("{\"key\":\"a\",\"value\":{\"n\":null}}\n", declared("n BIGINT NOT NULL")),
        ("{\"key\":\"a\",\"value\":{\"n\":null}}\n", epoch),
        ("{\"key\":\"a\",\"value\":{}}\n", ImportOptions::default()),
        (later.as_str(), ImportOptions::default()),
    ];
    for (lines, options) in refused {
        let error = import(&store, lines, options).await.unwrap_err();
        let shown: String = lines.chars().take(100).collect();
        assert!(error.to_string().contains("the state s was not created"), "{shown}: {error}");
        assert!(store.state_names().await.unwrap().is_empty(), "{shown}: {error}");
    }
    let good =
        import(&store, "{\"key\":\"a\",\"value\":{\"n\":1}}\n", declared("n BIGINT NOT NULL"));
    assert!(good.await.unwrap().created);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_is_not_created_for_rows_that_are_all_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rejects.jsonl");
    let store = Store::open("memory://").await.unwrap();
    let lines =
        "{nonsense\n{\"key\":\"b\",\"value\":{\"n\":2},\"event_time\":\"2999-01-01T00:00:00Z\"}\n";
    let import = Import::new(&store, "s", text(lines)).rejects(&path);
    let error = import.run().await.unwrap_err();
    assert!(error.to_string().contains("every row was rejected (2)"), "{error}");
    assert!(store.state_names().await.unwrap().is_empty());
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_whose_last_batch_is_refused_leaves_no_state_behind() {
    let store = Store::open("memory://").await.unwrap();
    let options = || ImportOptions { batch_rows: 1, epoch: Some(("job".to_owned(), 7)), ..by_id() };
    let good =
        "{\"id\":\"a\",\"n\":1}\n{\"id\":\"b\",\"n\":2,\"tag\":\"t\"}\n{\"id\":\"c\",\"n\":3}\n";
    for bad in ["{\"id\":null}\n", "{\"id\":\"d\",\"n\":\"x\"}\n", "{\n"] {
        let error = import(&store, &format!("{good}{bad}"), options()).await.unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("nothing of it was applied") && message.contains("not created"),
            "{message}"
        );
        assert!(store.state_names().await.unwrap().is_empty(), "{message}");
    }
    let report = import(&store, good, options()).await.unwrap();
    assert_eq!((report.created, report.rows, report.commits), (true, 3, 1));
    assert_eq!(
        values(&store).await,
        [
            r#"{"state_key":"a","state_value":{"n":1,"tag":null}}"#,
            r#"{"state_key":"b","state_value":{"n":2,"tag":"t"}}"#,
            r#"{"state_key":"c","state_value":{"n":3,"tag":null}}"#
        ]
    );
    let again = import(&store, good, options()).await.unwrap();
    assert_eq!((again.rows, again.already_applied), (0, Some(7)));
}
