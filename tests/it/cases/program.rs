//! The cases that are about processes and about what is typed: the program itself, run as people run it.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::stores::Home;

/// The program on a store, with the given environment on top.
pub(super) fn program(home: &Home, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_alluvium-under-test"));
    command
        .args(arguments)
        .env("ALLUVIUM_STORE", home.uri())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(super) fn start(mut command: Command, input: &str) -> Child {
    let mut child = command.spawn().unwrap();
    if let Err(error) = child.stdin.take().unwrap().write_all(input.as_bytes()) {
        // Who ends without reading all of it tells why by code and message.
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe, "{error}");
    }
    child
}

pub(super) fn finish(command: Command, input: &str) -> Output {
    start(command, input).wait_with_output().unwrap()
}

/// What the program writes when it succeeds.
pub(super) fn succeed(home: &Home, arguments: &[&str], input: &str) -> String {
    let output = finish(program(home, arguments), input);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Asserts an exit code, and that the message names each text.
pub(super) fn fail(home: &Home, arguments: &[&str], input: &str, code: i32, names: &[&str]) {
    let output = finish(program(home, arguments), input);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
    for name in names {
        assert!(message.contains(name), "{arguments:?}: no {name:?} in {message}");
    }
    assert!(output.stdout.is_empty(), "{arguments:?}: a failure writes no rows");
}

pub(super) fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(super) fn change(key: &str, version: i64, n: i64) -> String {
    let line = json!({"key": key, "value": {"n": n}, "version": version, "event_time": "2024-01-15T10:30:00Z"});
    format!("{line}\n")
}

pub(super) fn commits(home: &Home) -> usize {
    let log = home.table("s", "log").join("_delta_log");
    let names = std::fs::read_dir(log)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| Path::new(name).extension().is_some_and(|end| end == "json")).count()
}

#[test]
fn con_08_eight_processes_that_append_to_a_state_which_does_not_exist_all_get_in() {
    let home = Home::new();
    let children: Vec<Child> = (0..8)
        .map(|n| start(program(&home, &["append", "s"]), &change(&format!("k{n}"), 1, n)))
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let keys: Vec<Value> = lines(&succeed(&home, &["scan", "s"], ""))
        .into_iter()
        .map(|row| row["key"].clone())
        .collect();
    assert_eq!(keys, (0..8).map(|n| json!(format!("k{n}"))).collect::<Vec<_>>());
    assert_eq!(commits(&home), 9);
}

#[test]
fn rec_07_two_processes_that_send_one_epoch_at_the_same_moment_write_it_once() {
    let home = Home::new();
    succeed(&home, &["append", "s"], &change("k", 1, 0));
    let epoch = ["append", "s", "--app-id", "p1", "--epoch", "7"];
    let children: Vec<Child> =
        (0..2).map(|_| start(program(&home, &epoch), &change("k", 2, 7))).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    succeed(&home, &epoch, &change("k", 3, 8));
    succeed(&home, &["append", "s", "--app-id", "p1", "--epoch", "3"], &change("k", 3, 8));
    assert_eq!(commits(&home), 3);
    assert_eq!(lines(&succeed(&home, &["history", "s", "k"], "")).len(), 2);
}

#[test]
fn erg_01_every_key_that_a_scan_lists_can_be_given_to_get() {
    let home = Home::new();
    let keys = [
        "a/b", "a%2Fb", "/", "..", "a?b", "a#b", "a b", "a+b", "é", "", "latest", "history", "-x",
        "--help", "'", "\"", "\n", "😀",
    ];
    let input: String = keys.iter().enumerate().map(|(n, key)| change(key, 1, n as i64)).collect();
    succeed(&home, &["append", "s"], &input);
    let listed = lines(&succeed(&home, &["scan", "s"], ""));
    assert_eq!(listed.len(), keys.len());
    for row in &listed {
        let found = lines(&succeed(&home, &["get", "s", "--", row["key"].as_str().unwrap()], ""));
        assert_eq!(found, std::slice::from_ref(row));
    }
}

#[test]
fn erg_02_numbers_of_64_bits_go_through_the_program_and_back_exactly() {
    let home = Home::new();
    let input: String = [9_007_199_254_740_993, i64::MAX, i64::MIN, -1]
        .into_iter()
        .enumerate()
        .map(|(index, n)| change(&format!("k{index}"), n, n))
        .collect();
    succeed(&home, &["append", "s"], &input);
    let written = succeed(&home, &["scan", "s"], "");
    succeed(&home, &["append", "copy"], &written);
    assert_eq!(succeed(&home, &["scan", "copy"], ""), written);
    let written = lines(&written);
    assert_eq!(
        (&written[0]["version"], &written[2]["value"]["n"]),
        (&json!(9_007_199_254_740_993_i64), &json!(i64::MIN))
    );
}

#[test]
fn ord_14_what_is_no_version_is_refused_with_its_line_and_nothing_is_written() {
    let home = Home::new();
    succeed(&home, &["append", "s"], &change("good", 1, 1));
    for version in ["1.5", "9223372036854775808", "true", "\"x\"", "[1]"] {
        let line = format!(
            "{}{{\"key\":\"bad\",\"value\":{{\"n\":1}},\"version\":{version},\"event_time\":\"2024-01-15T10:30:00Z\"}}\n",
            change("before", 2, 2)
        );
        fail(&home, &["append", "s"], &line, 2, &["line 2", "version"]);
    }
    let wrong = [
        (r#"{"key":"x","key":"y","value":{"n":1}}"#, "key"),
        (r#"{"key":"x","value":{"n":1}} junk"#, "line 1"),
        (r#"{"key":null,"value":{"n":1}}"#, "key"),
        (r#"{"value":{"n":1}}"#, "key"),
        (
            r#"{"key":"x","value":{"n":1},"version":1,"event_time":"2016-12-31T23:59:60Z"}"#,
            "leap second",
        ),
        (
            r#"{"key":"x","value":{"n":1},"version":1,"event_time":"2016-12-31T23:59:59"}"#,
            "event_time",
        ),
        (r#"{"key":"x","value":{"n":1.5}}"#, "n"),
        (r#"{"key":"x","op":"DELETE","value":{"n":1}}"#, "value"),
        (r#"{"key":"x","op":"REPLACE","value":{"n":1}}"#, "REPLACE"),
        (r#"{"key":"x""#, "line 1"),
    ];
    for (line, name) in wrong {
        fail(&home, &["append", "s"], &format!("{line}\n"), 2, &["line 1", name]);
    }
    assert_eq!(commits(&home), 2);
    assert_eq!(lines(&succeed(&home, &["scan", "s"], "")).len(), 1);
}

#[test]
fn typ_04_the_zone_of_the_process_changes_neither_days_nor_answers() {
    let home = Home::new();
    let input = r#"{"key":"a","value":{"n":1},"version":1,"event_time":"2026-01-10T00:00:00+11:00"}
{"key":"b","value":{"n":1},"version":1,"event_time":"2026-01-01T23:30:00-05:00"}
"#;
    let mut append = program(&home, &["append", "s"]);
    append.env("TZ", "Australia/Melbourne");
    assert!(finish(append, input).status.success());
    let mut answers = Vec::new();
    for zone in ["UTC", "America/New_York", "Europe/Stockholm"] {
        for arguments in [
            vec!["scan", "s"],
            vec!["scan", "s", "--time", "2026-01-09T13:00:00Z"],
            vec![
                "sql",
                "SELECT state_key, dt, CAST(event_time AS VARCHAR) AS t FROM log.s WHERE event_time >= '2026-01-02' ORDER BY 1",
            ],
        ] {
            let mut read = program(&home, &arguments);
            read.env("TZ", zone);
            let output = finish(read, "");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            answers.push(String::from_utf8(output.stdout).unwrap());
        }
    }
    assert!(answers.chunks(3).all(|chunk| chunk == &answers[..3]), "{answers:?}");
    let days: Vec<Value> = lines(&answers[2]).into_iter().map(|row| row["dt"].clone()).collect();
    assert_eq!(days, [json!("2026-01-09"), json!("2026-01-02")]);
}

#[test]
fn erg_04_nothing_found_is_told_apart_from_what_went_wrong() {
    let home = Home::new();
    succeed(&home, &["append", "s"], &change("a", 1, 1));
    assert_eq!(succeed(&home, &["sql", "SELECT * FROM s WHERE n > 5"], ""), "");
    assert_eq!(succeed(&home, &["scan", "s", "--prefix", "zz"], ""), "");
    fail(&home, &["get", "s", "nobody"], "", 3, &["nobody"]);
    fail(&home, &["get", "t", "a"], "", 3, &["\"t\""]);
    fail(&home, &["get", "s", "a", "--commit", "99"], "", 4, &["99", "0 to 1"]);
    fail(&home, &["sql", "SELECT nothing FROM s"], "", 2, &["nothing"]);
    for wrong in ["yesterday", "2026-02-30T00:00:00Z"] {
        fail(&home, &["get", "s", "a", "--time", wrong], "", 2, &[wrong]);
    }
    assert_eq!(commits(&home), 2);
}

#[test]
fn perf_11_four_hundred_days_are_appended_and_read_with_few_open_files() {
    let home = Home::new();
    let mut input = String::new();
    for day in 0..400 {
        let time = chrono::DateTime::from_timestamp(1_700_000_000 - day * 86_400, 0).unwrap();
        input.push_str(&format!("{}\n", json!({"key": format!("k{day}"), "value": {"n": day}, "version": 1, "event_time": time.to_rfc3339()})));
    }
    let limited = |arguments: &str, input: &str| {
        let mut limited = Command::new("sh");
        let script = format!("ulimit -n 128; exec \"$0\" {arguments}");
        limited
            .args(["-c", &script, env!("CARGO_BIN_EXE_alluvium-under-test")])
            .env("ALLUVIUM_STORE", home.uri());
        limited.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(limited, input)
    };
    // Two thousand files.
    let appends = [("append s", input.as_str()); 5];
    let others = [("scan s", ""), ("materialize s", ""), ("verify s", "")];
    for (arguments, input) in appends.into_iter().chain(others) {
        let output = limited(arguments, input);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments}: {message}");
        if arguments == "scan s" {
            assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 400);
        }
    }
    // A merge of each day is a commit, and a checkpoint is made of hundreds of them.
    let output = limited("maintain s", "");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(lines(&succeed(&home, &["scan", "s"], "")).len(), 400);
    succeed(&home, &["maintain", "s"], "");
    succeed(&home, &["verify", "s"], "");
    succeed(&home, &["verify", "--deep", "s"], "");
}

#[test]
fn maintain_reports_what_it_did_and_set_keeps_what_it_was_told() {
    let home = Home::new();
    for n in 1..=12 {
        succeed(&home, &["append", "s"], &change("k", n, n));
    }
    let settings = lines(&succeed(&home, &["set", "s", "commit_retention=90d"], ""));
    assert_eq!(settings[0]["commit_retention"], json!("90d"));
    assert_eq!(lines(&succeed(&home, &["set", "s"], "")), settings);
    fail(&home, &["set", "s", "file_retention=100d"], "", 2, &["commit_retention (90d)"]);
    fail(&home, &["set", "s", "archive=ftp://host/cold"], "", 2, &["archive", "ftp://", "s3://"]);
    fail(&home, &["maintain", "--steps", "compress"], "", 2, &["compress", "compact"]);
    fail(&home, &["maintain", "nothing"], "", 3, &["nothing"]);
    let before = commits(&home);
    let dry = lines(&succeed(&home, &["maintain", "--dry-run"], ""));
    assert_eq!((commits(&home), &dry[0]["dry_run"]), (before, &json!(true)));
    let report = home.folder.path().join("report.json");
    let file = report.to_str().unwrap();
    let done = lines(&succeed(&home, &["maintain", "s", "--report", file], ""));
    let steps: Vec<&Value> = done[0]["steps"].as_array().unwrap().iter().collect();
    let names: Vec<&Value> = steps.iter().map(|step| &step["step"]).collect();
    assert_eq!(
        names,
        [
            "materialize",
            "check",
            "grid",
            "tombstones",
            "compact",
            "archive",
            "expire",
            "checkpoint",
            "cleanup",
            "vacuum"
        ]
    );
    assert_eq!(steps[4]["outcome"]["files_removed"], json!(12));
    assert_eq!(done[0]["log_after"]["files"], json!(1));
    let written: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(written["states"], json!([done[0]]));
    assert_eq!((&written["failed"], &written["left_out"]), (&json!([]), &json!([])));
    let table = succeed(&home, &["maintain", "s", "--output", "table", "--steps", "vacuum"], "");
    assert!(table.contains("readable") && table.contains("vacuum"), "{table}");
    assert_eq!(lines(&succeed(&home, &["get", "s", "k"], ""))[0]["value"], json!({"n": 12}));
}
