//! Forks by the program.

use crate::cases::program::{change, fail, lines, succeed};
use crate::support::stores::Home;

#[test]
fn forks_are_made_listed_promoted_and_dropped_by_the_program() {
    let home = Home::new();
    succeed(&home, &["append", "users"], &change("u1", 1, 1));
    succeed(&home, &["append", "users"], &change("u2", 2, 2));
    succeed(&home, &["savepoint", "create", "users", "two"], "");
    succeed(&home, &["append", "users"], &change("u3", 3, 3));
    let told = succeed(&home, &["fork", "users", "trial", "--dry-run", "--output", "jsonl"], "");
    assert_eq!(lines(&told)[0]["outcome"], "dry_run");
    assert_eq!(succeed(&home, &["fork", "list", "--output", "jsonl"], ""), "");
    let made = succeed(&home, &["fork", "users", "trial", "--output", "jsonl"], "");
    assert_eq!(
        (&lines(&made)[0]["outcome"], &lines(&made)[0]["commit"]),
        (&"made".into(), &3.into())
    );
    succeed(&home, &["fork", "users", "old", "--at", "commit:1"], "");
    succeed(&home, &["fork", "users", "kept", "--savepoint", "two"], "");
    fail(&home, &["fork", "users", "x", "--savepoint", "three"], "", 3, &["three"]);
    fail(&home, &["fork", "users", "trial"], "", 2, &["trial", "commit 3"]);
    fail(&home, &["fork", "users", "x", "--at", "version:3"], "", 2, &["restore x --to version:3"]);
    fail(&home, &["fork", "users", "x", "--at", "commit:9"], "", 4, &["commit 9"]);
    fail(&home, &["fork", "users"], "", 2, &["NAME"]);
    let listed = lines(&succeed(&home, &["fork", "list", "--output", "jsonl"], ""));
    let names: Vec<_> = listed.iter().map(|line| (&line["name"], &line["commit"])).collect();
    assert_eq!(
        names,
        [(&"kept".into(), &2.into()), (&"old".into(), &1.into()), (&"trial".into(), &3.into())]
    );
    assert_eq!((&listed[0]["parent"], &listed[0]["status"]), (&"users".into(), &"whole".into()));
    let count =
        |state: &str| lines(&succeed(&home, &["scan", state, "--output", "jsonl"], "")).len();
    assert_eq!([count("users"), count("trial"), count("old"), count("kept")], [3, 3, 1, 2]);

    succeed(&home, &["append", "trial"], &change("u4", 4, 4));
    let shown = succeed(&home, &["fork", "promote", "trial", "--dry-run", "--output", "jsonl"], "");
    assert!(shown.contains("u4") && !shown.contains("u1"), "{shown}");
    assert_eq!(count("users"), 3);
    let promoted = succeed(&home, &["fork", "promote", "trial", "--output", "jsonl"], "");
    assert_eq!(lines(&promoted)[0]["outcome"], "promoted");
    assert_eq!(count("users"), 4);
    succeed(&home, &["append", "trial"], &change("u1", 5, 50));
    succeed(&home, &["append", "users"], &change("u1", 6, 60));
    fail(&home, &["fork", "promote", "trial"], "", 5, &["u1", "--overwrite"]);
    succeed(&home, &["fork", "promote", "trial", "--overwrite"], "");
    let row = succeed(&home, &["get", "users", "u1", "--output", "jsonl"], "");
    assert_eq!(lines(&row)[0]["value"]["n"], 50);
    fail(&home, &["fork", "drop", "users"], "", 2, &["users", "no fork"]);
    succeed(&home, &["fork", "drop", "trial"], "");
    fail(&home, &["get", "trial", "u1"], "", 3, &["trial"]);
    fail(&home, &["fork", "drop", "trial"], "", 3, &["trial", "kept, old"]);
}
