//! Histories with an independent oracle: the changes of a git repository, where git itself says what the state was.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use alluvium::{OrderBy, Point, RawState};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::support::stores::{Home, create, scan_rows, value_batch};

/// Points of a history that are compared at most.
const SAMPLES: usize = 50;

/// Paths with mode and blob.
type Tree = BTreeMap<String, (String, String)>;

fn git(repository: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(repository).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// The commits of the first-parent history, the first one first, with their times in seconds.
fn commits(repository: &Path) -> Option<Vec<(String, i64)>> {
    let log = git(repository, &["log", "--first-parent", "--reverse", "--format=%H %ct"])?;
    let commits: Vec<_> = log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(id, time)| (id.to_owned(), time.parse().unwrap()))
        .collect();
    (!commits.is_empty()).then_some(commits)
}

/// The changed paths of a commit against its first parent: mode and blob, or nothing where the path is gone.
fn changed(
    repository: &Path,
    parent: Option<&str>,
    commit: &str,
) -> Vec<(String, Option<(String, String)>)> {
    let mut arguments =
        vec!["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-commit-id", "--root"];
    arguments.extend(parent);
    arguments.push(commit);
    let raw = git(repository, &arguments).unwrap();
    let mut parts = raw.split('\0').filter(|part| !part.is_empty());
    let mut changes = Vec::new();
    while let (Some(facts), Some(path)) = (parts.next(), parts.next()) {
        // :<old mode> <new mode> <old blob> <new blob> <status>
        let facts: Vec<&str> = facts.trim_start_matches(':').split(' ').collect();
        let value =
            (!facts[4].starts_with('D')).then(|| (facts[1].to_owned(), facts[3].to_owned()));
        changes.push((path.to_owned(), value));
    }
    changes
}

fn tree(repository: &Path, commit: &str) -> Tree {
    let listing = git(repository, &["ls-tree", "-r", "-z", commit]).unwrap();
    let entries = listing.split('\0').filter(|entry| !entry.is_empty()).map(|entry| {
        let (facts, path) = entry.split_once('\t').unwrap();
        let facts: Vec<&str> = facts.split(' ').collect();
        (path.to_owned(), (facts[0].to_owned(), facts[2].to_owned()))
    });
    entries.collect()
}

fn fields() -> Fields {
    Fields::from(vec![
        Field::new("mode", DataType::Utf8, false),
        Field::new("blob", DataType::Utf8, false),
    ])
}

fn batch(
    changes: &[(String, Option<(String, String)>)],
    version: i64,
    seconds: i64,
) -> RecordBatch {
    let present = NullBuffer::from_iter(changes.iter().map(|(_, value)| value.is_some()));
    let texts = |pick: fn(&(String, String)) -> &String| -> ArrayRef {
        let texts = changes.iter().map(|(_, value)| value.as_ref().map_or("", |value| pick(value)));
        Arc::new(StringArray::from_iter_values(texts))
    };
    let value = StructArray::new(
        fields(),
        vec![texts(|value| &value.0), texts(|value| &value.1)],
        Some(present),
    );
    let rows = changes.len();
    let keys = changes.iter().map(|(path, _)| path.as_str());
    value_batch(keys, vec![version; rows], &vec![seconds * 1_000_000; rows], Arc::new(value))
}

async fn state_at(state: &RawState, point: Point) -> Tree {
    let mut paths = Tree::new();
    for batch in scan_rows(state, point).await {
        let keys = batch.column(0).as_string::<i32>();
        let value = batch.column_by_name("state_value").unwrap().as_struct();
        let text = |name: &str, row: usize| {
            value.column_by_name(name).unwrap().as_string::<i32>().value(row).to_owned()
        };
        for row in 0..keys.len() {
            let known =
                paths.insert(keys.value(row).to_owned(), (text("mode", row), text("blob", row)));
            assert!(known.is_none(), "{:?} is there twice", keys.value(row));
        }
    }
    paths
}

/// Loads a history and compares the states as of its commits with what git says.
async fn follow(repository: &Path, commits: &[(String, i64)]) {
    let home = Home::new();
    let state = create(&home.open().await, "files", &fields(), OrderBy::Version).await;
    let (mut log_commits, mut parent) = (Vec::new(), None);
    for (index, (id, seconds)) in commits.iter().enumerate() {
        let changes = changed(repository, parent, id);
        let receipt = state.append(&batch(&changes, index as i64 + 1, *seconds)).await.unwrap();
        log_commits.push(receipt.commit);
        parent = Some(id);
        if index % 16 == 7 {
            state.materialize(false).await.unwrap();
        }
    }
    let step = commits.len().div_ceil(SAMPLES);
    for round in 0..2 {
        for index in (0..commits.len()).rev().step_by(step) {
            let expected = tree(repository, &commits[index].0);
            let by_version = state_at(&state, Point::at_version(index as i64 + 1)).await;
            assert_eq!(by_version, expected, "round {round}: as of version {}", index + 1);
            let by_commit = state_at(&state, Point::at_commit(log_commits[index])).await;
            assert_eq!(
                by_commit, expected,
                "round {round}: as of log commit {}",
                log_commits[index]
            );
        }
        assert_eq!(state_at(&state, Point::LATEST).await, tree(repository, "HEAD"));
        state.materialize(round == 1).await.unwrap();
        assert!(state.verify().await.unwrap().is_sound());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stderr)]
async fn the_state_as_of_each_commit_of_this_repository_is_what_git_lists() {
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    match commits(&repository) {
        Some(commits) => follow(&repository, &commits).await,
        None => eprintln!("skipped: git or the repository's own history is not here"),
    }
}

/// A history made of a seed: files change, move, vanish and come back, get other modes, and have odd names.
fn random_history(seed: u64, count: usize) -> String {
    let mut rng = StdRng::seed_from_u64(seed);
    let names = [
        "a",
        "b/c",
        "b/d e",
        "é/日本",
        "q\"uote",
        "-dash",
        "x.y",
        "b2",
        "deep/er/and/deeper",
        "tab\there",
        "back\\slash",
    ];
    let mut stream = String::new();
    for n in 0..count {
        let seconds = 1_700_000_000 + rng.random_range(0..10_000);
        let message = format!("commit {n}");
        write!(stream, "commit refs/heads/main\ncommitter T <t@example.org> {seconds} +0130\n")
            .unwrap();
        write!(stream, "data {}\n{message}\n", message.len()).unwrap();
        for _ in 0..rng.random_range(0..6) {
            let name =
                format!("{}{}", names[rng.random_range(0..names.len())], rng.random_range(0..4));
            let quoted = format!(
                "\"{}\"",
                name.replace('\\', "\\\\").replace('"', "\\\"").replace('\t', "\\t")
            );
            if rng.random_bool(0.25) {
                writeln!(stream, "D {quoted}").unwrap();
                continue;
            }
            let mode = ["100644", "100755", "120000"][rng.random_range(0..3)];
            let content = format!("content {}", rng.random_range(0..5));
            write!(stream, "M {mode} inline {quoted}\ndata {}\n{content}\n", content.len())
                .unwrap();
        }
    }
    stream
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stderr)]
async fn the_state_as_of_each_commit_of_a_random_repository_is_what_git_lists() {
    let folder = tempfile::tempdir().unwrap();
    if git(folder.path(), &["init", "--quiet", "--initial-branch=main"]).is_none() {
        eprintln!("skipped: git is not here");
        return;
    }
    let mut import = Command::new("git")
        .arg("-C")
        .arg(folder.path())
        .args(["fast-import", "--quiet"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    import.stdin.take().unwrap().write_all(random_history(42, 150).as_bytes()).unwrap();
    assert!(import.wait().unwrap().success());
    let commits = commits(folder.path()).unwrap();
    assert_eq!(commits.len(), 150);
    follow(folder.path(), &commits).await;
    example(folder.path(), "15 of 150 commits");
}

/// Runs the example on a repository, and asserts how many commits it has compared.
fn example(repository: &Path, compared: &str) {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/git-history.sh");
    let output = Command::new("sh")
        .arg(script)
        .arg(repository)
        .env("ALLUVIUM", env!("CARGO_BIN_EXE_alluvium-under-test"))
        .env("SAMPLES", "15")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains(&format!("as of {compared} the state is exactly")), "{told}");
}
