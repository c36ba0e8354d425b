//! Savepoints by their names, wherever a point is asked for.

use crate::cases::program::{change, fail, lines, succeed};
use crate::support::stores::{Home, sql, sql_numbers};

/// Three changes of two keys, and a savepoint after the second one.
fn filled() -> Home {
    let home = Home::new();
    succeed(&home, &["append", "users"], &change("u1", 1, 1));
    succeed(&home, &["append", "users"], &change("u2", 2, 2));
    succeed(&home, &["savepoint", "create", "users", "two"], "");
    succeed(&home, &["append", "users"], &change("u1", 3, 30));
    home
}

#[test]
fn the_program_takes_savepoints_as_points() {
    let home = filled();
    let n = |args: &[&str]| {
        let told = succeed(&home, &[args, &["--output", "jsonl"]].concat(), "");
        lines(&told).iter().map(|line| line["value"]["n"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(n(&["get", "users", "u1"]), [30]);
    assert_eq!(n(&["get", "users", "u1", "--savepoint", "two"]), [1]);
    assert_eq!(n(&["scan", "users", "--savepoint", "two"]), [1, 2]);
    assert_eq!(n(&["history", "users", "u1", "--savepoint", "two"]), [1]);
    // A savepoint is a bound of commits; others go with it.
    assert_eq!(n(&["scan", "users", "--savepoint", "two", "--version", "1"]), [1]);
    let told =
        succeed(&home, &["diff", "users", "savepoint:two", "latest", "--output", "jsonl"], "");
    let told = lines(&told);
    assert_eq!(
        (told.len(), &told[0]["key"], &told[0]["change"]),
        (1, &"u1".into(), &"updated".into())
    );

    let known = ["no savepoint \"three\"", "two (commit 2)"];
    for args in [
        &["get", "users", "u1", "--savepoint", "three"][..],
        &["scan", "users", "--savepoint", "three"],
        &["history", "users", "u1", "--savepoint", "three"],
        &["diff", "users", "savepoint:three", "latest"],
        &["restore", "users", "--to", "savepoint:three"],
        &["fork", "users", "x", "--savepoint", "three"],
        &["fork", "users", "x", "--at", "savepoint:three"],
    ] {
        fail(&home, args, "", 3, &known);
    }
    fail(
        &home,
        &["get", "users", "u1", "--savepoint", "two", "--commit", "1"],
        "",
        2,
        &["--commit"],
    );
    fail(
        &home,
        &["diff", "users", "savepoint:two,commit:1", "latest"],
        "",
        2,
        &["leave it or commit:N out"],
    );
    fail(&home, &["diff", "users", "savepoints:two", "latest"], "", 2, &["savepoint:NAME"]);

    succeed(&home, &["fork", "users", "old", "--at", "savepoint:two"], "");
    assert_eq!(n(&["scan", "old"]), [1, 2]);
    succeed(&home, &["restore", "users", "--to", "savepoint:two"], "");
    assert_eq!(n(&["scan", "users"]), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_takes_savepoints_as_points() {
    let home = tokio::task::spawn_blocking(filled).await.unwrap();
    let store = home.open().await;
    for (query, expected) in [
        ("SELECT sum(n) FROM as_of('users', savepoint => 'two')", 3),
        ("SELECT sum(n) FROM as_of('users', 'savepoint:two')", 3),
        ("SELECT sum(n) FROM AS_OF('users', Savepoint => 'two', version => 1)", 1),
        ("SELECT count(*) FROM history('users', 'u1', savepoint => 'two')", 1),
        ("SELECT count(*) FROM diff('users', 'savepoint:two', 'latest')", 1),
        ("SELECT sum(n) FROM users", 32),
        ("EXPLAIN SELECT * FROM as_of('users', savepoint => 'two')", -1),
    ] {
        match expected {
            -1 => drop(sql(&store, query).await.unwrap()),
            _ => assert_eq!(sql_numbers(&store, query).await, [expected], "{query}"),
        }
    }
    for (query, why) in [
        ("SELECT * FROM as_of('users', savepoint => 'three')", "there is two (commit 2)"),
        ("SELECT * FROM as_of('users', savepoint => 3)", "not a 'text' in quotes"),
        ("SELECT * FROM as_of('users', savepoint => 'two', commit => 1)", "sets a bound twice"),
        ("SELECT * FROM as_of('users', 'savepoint:two,commit:1')", "leave it or commit:N out"),
        ("SELECT * FROM diff('users', 'savepoint:three')", "no savepoint \"three\""),
    ] {
        let error = sql(&store, query).await.unwrap_err().to_string();
        assert!(error.contains(why), "{query}: {error}");
    }
}
