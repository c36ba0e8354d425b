//! The bugs of `tests/planted`: each applies to the tree as it is, and names a test that there is. That the tests find them is
//! shown by `tests/planted/run.sh`.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn bugs() -> Vec<(String, String)> {
    let folder = root().join("tests/planted");
    let mut bugs: Vec<(String, String)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "patch"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    bugs.sort();
    bugs
}

fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// The lines that each part of a patch takes for granted, by file.
fn taken_for_granted(patch: &str) -> Vec<(&str, String)> {
    let (mut parts, mut file) = (Vec::new(), "");
    for line in patch.lines() {
        if let Some(name) = line.strip_prefix("--- a/") {
            file = name;
        } else if line.starts_with("@@ ") {
            parts.push((file, String::new()));
        } else if let (Some((_, lines)), Some(' ' | '-')) = (parts.last_mut(), line.chars().next())
        {
            lines.push_str(&line[1..]);
            lines.push('\n');
        }
    }
    parts
}

/// Whether a file of these folders has a test function of this name.
fn has_test(name: &str, folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return has_test(name, &path);
        }
        let is_code = path.extension().is_some_and(|end| end == "rs");
        is_code && std::fs::read_to_string(&path).unwrap().contains(&format!("fn {name}()"))
    })
}

#[test]
fn every_bug_applies_to_the_tree_and_names_a_test_that_there_is() {
    let bugs = bugs();
    assert!(bugs.len() >= 10, "{} bugs", bugs.len());
    for (name, patch) in &bugs {
        assert!(!field(patch, "bug").is_empty());
        assert!(patch.contains(&format!("|bug| bug == \"{name}\"")), "{name} is always on");
        let parts = taken_for_granted(patch);
        assert!(!parts.is_empty(), "{name} changes nothing");
        for (file, lines) in parts {
            let text = std::fs::read_to_string(root().join(file)).unwrap();
            let places = text.matches(&lines).count();
            assert_eq!(places, 1, "{name}: {file} has these lines {places} times:\n{lines}");
        }
        let test = field(patch, "test").rsplit("::").next().unwrap();
        let folder = match field(patch, "target") {
            "--test it" => root().join("tests/it"),
            "--workspace --lib" => root().join("crates"),
            other => panic!("{name}: {other} is no target"),
        };
        assert!(has_test(test, &folder), "{name}: there is no test {test}");
    }
}
