//! The table of cases by id in `docs/testing.md`: each case has a row, and each test named there exists.

use std::path::{Path, PathBuf};

/// The cases of concurrency, recovery, compaction, time travel and performance.
const CASES: [(&str, &[u32]); 5] = [
    ("CON", &[1, 2, 3, 4, 6, 8, 9, 10]),
    ("REC", &[2, 4, 5, 6, 7, 8, 10, 11]),
    ("CMP", &[2, 4, 5, 6, 7, 8]),
    ("TT", &[1, 3, 4, 6, 7, 8, 9]),
    ("PERF", &[1, 2, 3, 4, 5, 6, 8, 9, 10, 11]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The names of modules and of functions without arguments below a folder.
fn names(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        found.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
        if path.is_dir() {
            names(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let functions = text.split("fn ").skip(1).filter_map(|rest| rest.split_once("()"));
            found.extend(functions.map(|(name, _)| name.to_owned()));
        }
    }
}

/// The rows of the table: id, names in backquotes, outcome.
fn rows() -> Vec<(String, Vec<String>, String)> {
    let text = std::fs::read_to_string(root().join("docs/testing.md")).unwrap();
    let (_, section) = text.split_once("\n## Cases by id\n").expect("no section of cases by id");
    let section = section.split("\n## ").next().unwrap();
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let rows = section.lines().filter(|line| line.starts_with("| ")).map(cells);
    rows.filter(|row| row.len() == 5 && row[1] != "case")
        .map(|row| {
            let named = row[2].split('`').skip(1).step_by(2).map(str::to_owned).collect();
            (row[1].clone(), named, row[3].clone())
        })
        .collect()
}

#[test]
fn every_case_has_a_row_and_every_test_named_in_it_exists() {
    let mut known = Vec::new();
    names(&root().join("tests/it"), &mut known);
    names(&root().join("crates"), &mut known);
    names(&root().join("benches/verbs"), &mut known);
    let rows = rows();
    let ids: Vec<String> = rows.iter().map(|row| row.0.clone()).collect();
    let cases = CASES.iter().flat_map(|(kind, numbers)| {
        numbers.iter().map(move |number| format!("{kind}-{number:02}"))
    });
    assert_eq!(ids, cases.collect::<Vec<_>>(), "the rows of the table");
    for (id, named, outcome) in rows {
        assert!(!outcome.is_empty(), "{id} has no outcome");
        assert!(!named.is_empty() || outcome.starts_with("no test"), "{id} names no test");
        for name in named {
            let last = name.rsplit("::").next().unwrap();
            let exists = match last.strip_suffix("..") {
                Some(start) => known.iter().any(|known| known.starts_with(start)),
                None => known.iter().any(|known| known == last),
            };
            assert!(exists, "{id}: there is no {name}");
        }
    }
}
