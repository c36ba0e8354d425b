//! What an operator at a terminal meets: a query that must be stopped, one torn state among good ones, limits, and
//! messages that say what to do.

use std::time::{Duration, Instant};

use super::program::{change, fail, finish, lines, program, start, succeed};
use crate::support::stores::Home;

#[test]
fn the_first_ctrl_c_ends_a_query_whose_join_is_busy() {
    let home = Home::new();
    let input: String = (0..500).map(|n| change(&format!("k{n}"), 1, n)).collect();
    succeed(&home, &["append", "s"], &input);
    let query = "SELECT count(*) FROM s a, s b, s c, s d WHERE a.n + b.n + c.n + d.n = -1";
    let mut child = start(program(&home, &["sql", query]), "");
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(child.try_wait().unwrap().is_none(), "the query must still be running");
    let begun = Instant::now();
    let killed =
        std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.unwrap().success());
    let code = child.wait().unwrap().code();
    assert_eq!(code, Some(130));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn one_torn_state_does_not_keep_verbs_from_the_others() {
    let home = Home::new();
    for state in ["a", "torn", "z"] {
        for version in 1..=3 {
            succeed(&home, &["append", state], &change("k", version, version));
        }
    }
    std::fs::remove_file(home.commit_file("torn", 2)).unwrap();
    for verb in ["states", "stats", "materialize", "verify"] {
        let output = finish(program(&home, &[verb]), "");
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(6), "{verb}: {message}");
        assert!(message.contains("torn/log: commit 2 (00000000000000000002.json)"), "{message}");
        let states: Vec<_> = lines(&String::from_utf8(output.stdout).unwrap())
            .into_iter()
            .map(|line| line["state"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(states, ["a", "z"], "{verb}");
        if verb != "states" {
            fail(&home, &[verb, "torn"], "", 6, &["torn"]);
        }
    }
}

#[test]
fn rec_05_what_was_known_before_a_missing_commit_can_be_read_and_nothing_else() {
    let home = Home::new();
    for version in 1..=6 {
        succeed(&home, &["append", "s"], &change("k", version, version));
    }
    std::fs::remove_file(home.commit_file("s", 5)).unwrap();
    for arguments in
        [vec!["get", "s", "k"], vec!["scan", "s"], vec!["get", "s", "k", "--commit", "6"]]
    {
        fail(&home, &arguments, "", 6, &["00000000000000000005.json", "as of commit 4"]);
    }
    fail(&home, &["append", "s"], &change("k", 9, 9), 6, &["00000000000000000005.json"]);
    for arguments in [
        vec!["get", "s", "k", "--commit", "4"],
        vec!["scan", "s", "--commit", "4"],
        vec!["history", "s", "k", "--commit", "4", "--last", "1"],
    ] {
        assert_eq!(lines(&succeed(&home, &arguments, ""))[0]["value"]["n"], 4, "{arguments:?}");
    }
    let changed = succeed(&home, &["diff", "s", "commit:2", "commit:4"], "");
    assert_eq!(lines(&changed).len(), 1);
}

#[test]
fn a_query_without_enough_memory_says_which_setting_to_raise() {
    let home = Home::new();
    let text = "x".repeat(2_000);
    let input: String = (0..12_000)
        .map(|n| format!("{{\"key\":\"k{n}\",\"value\":{{\"n\":{n},\"t\":\"{text}{n}\"}}}}\n"))
        .collect();
    succeed(&home, &["append", "s"], &input);
    let query = "SELECT count(a.t), count(b.t) FROM s a JOIN s b ON a.t = b.t";
    fail(&home, &["--memory", "16MiB", "sql", query], "", 8, &["more memory", "--memory"]);
    succeed(&home, &["--memory", "1GiB", "sql", "SELECT count(*) FROM s"], "");
    fail(&home, &["--memory", "lots", "sql", query], "", 2, &["512MiB"]);
}

#[test]
fn messages_say_what_is_expected_and_what_to_write_instead() {
    let home = Home::new();
    succeed(&home, &["append", "Users"], &change("a", 1, 1));
    for (time, why) in [
        ("2024-01-15T10:30:00", "it has no offset"),
        ("2024-01-15 10:30", "it has no offset"),
        ("2024-01-15", "a day without a time of day"),
        ("noon", "not written as one"),
    ] {
        let example = "RFC 3339 with an offset, such as 2024-01-15T10:30:00Z";
        fail(&home, &["get", "Users", "a", "--time", time], "", 2, &[why, example]);
    }
    let feed = succeed(&home, &["changes", "Users"], "");
    fail(&home, &["append", "copy"], &feed, 2, &["line 1", "--as-input"]);
    let feed = succeed(&home, &["changes", "Users", "--as-input"], "");
    succeed(&home, &["append", "copy"], &feed);
    for table in ["users", "log.USERS"] {
        let query = format!("SELECT * FROM {table}");
        fail(&home, &["sql", &query], "", 3, &["names keep their case, write Users"]);
    }
    fail(&home, &["sql", "SELECT * FROM nobody"], "", 3, &["nobody", "SHOW TABLES"]);
    fail(&home, &["sql", "SELECT * FROM Users WHERE state_key = \"a\""], "", 2, &["'a'"]);
    fail(&home, &["sql", "SELECT * FROM Users LIMIT"], "", 2, &["Expected: an expression"]);
    fail(&home, &["get", "users", "a"], "", 3, &["names keep their case, write Users"]);
    let other = ["create", "Users", "--schema", "n INT, b STRING NOT NULL"];
    fail(&home, &other, "", 2, &["fields: n BIGINT;", "fields: n INT, b STRING NOT NULL;"]);
    fail(&home, &["append", "Users"], "{}\n", 2, &["line 1", "--rejects FILE"]);
}

#[test]
fn a_store_in_memory_is_refused_because_it_would_be_gone_at_once() {
    let home = Home::new();
    for arguments in [["append", "s"], ["scan", "s"], ["create", "s"]] {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--store", "memory://"]);
        fail(&home, &arguments, &change("a", 1, 1), 2, &["memory://", "give a folder"]);
    }
}

#[test]
fn settings_come_from_options_the_environment_and_the_file_in_this_order() {
    let home = Home::new();
    succeed(&home, &["append", "s"], &change("k", 1, 1));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("alluvium.toml");
    let text = format!(
        "store = {:?}\nmemory_budget_bytes = \"32MiB\"\ntail_bytes = \"5MB\"\n",
        home.uri()
    );
    std::fs::write(&file, text).unwrap();
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = program(&home, arguments);
        command.env_remove("ALLUVIUM_STORE").envs(variables.iter().copied());
        command.current_dir(folder.path());
        finish(command, "")
    };
    let setting = |arguments: &[&str], variables: &[(&str, &str)], name: &str| {
        let output = run(&[&["config"], arguments].concat(), variables);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rows = lines(&String::from_utf8(output.stdout).unwrap());
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        format!("{} by {}", row["value"].as_str().unwrap(), row["source"].as_str().unwrap())
    };
    assert_eq!(setting(&[], &[], "tail_bytes"), "5000000 by file");
    let variable = [("ALLUVIUM_MEMORY_BUDGET_BYTES", "64MiB")];
    assert_eq!(setting(&[], &[], "memory_budget_bytes"), "33554432 by file");
    assert_eq!(setting(&[], &variable, "memory_budget_bytes"), "67108864 by environment");
    let option = ["--memory", "1MiB"];
    assert_eq!(setting(&option, &variable, "memory_budget_bytes"), "1048576 by option");
    assert_eq!(setting(&[], &[], "epoch_bytes"), "67108864 by default");
    // The store is found by the file, wherever it was named from.
    for (arguments, variables) in [
        (vec!["get", "s", "k"], vec![]),
        (vec!["--config", file.to_str().unwrap(), "get", "s", "k"], vec![]),
        (vec!["get", "s", "k"], vec![("ALLUVIUM_CONFIG", file.to_str().unwrap())]),
    ] {
        let output = run(&arguments, &variables);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let output = run(&["get", "s", "k"], &[("ALLUVIUM_STORE", "nowhere")]);
    assert_eq!(output.status.code(), Some(3), "the environment counts before the file");
    std::fs::write(&file, "tail_byte = 3").unwrap();
    let output = run(&["get", "s", "k"], &[]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("alluvium.toml") && message.contains("tail_bytes"), "{message}");
    fail(&home, &["--config", "/nowhere.toml", "states"], "", 3, &["/nowhere.toml"]);
}
