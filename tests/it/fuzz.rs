//! The targets of `fuzz/`, on their seeds and on what a seeded source of chance makes of them: short enough for every run of the
//! tests. `fuzz/run.sh` looks for more, led by coverage.
//!
//! `ALLUVIUM_FUZZ_RUNS=n` makes n inputs for each seed instead of few; `ALLUVIUM_SEED` draws others. The input that fails is
//! written to a file, whose path is told; as a file in `fuzz/seeds/` it is a test from then on.

#[path = "../../fuzz/targets.rs"]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Inputs made of each seed, of the targets that only read text.
const RUNS: u64 = 300;
/// Of those that open a store for each input.
const STORE_RUNS: u64 = 15;
/// What is put in at random: what numbers, texts and formats are sensitive to.
const WORDS: [&str; 30] = [
    "null",
    "0",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
    "1e999",
    "0.1",
    "NaN",
    "\"",
    "\\u0000",
    "\\ud800",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\n",
    "\r\n",
    "\u{1}",
    "\0",
    "é",
    "😀",
    "''",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:60Z",
    "STRUCT<a: ",
    "DECIMAL(38,",
    "NOT NULL",
    " ",
];

fn seeds(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(name);
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} holds no seeds", folder.display());
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Changes an input at some places.
fn change(input: &mut Vec<u8>, others: &[(PathBuf, Vec<u8>)], rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..=6) {
        let at = rng.random_range(0..=input.len());
        let end = rng.random_range(at..=input.len().min(at + 24));
        match rng.random_range(0..7) {
            0 => drop(input.drain(at..end)),
            1 => {
                let word = WORDS.choose(rng).unwrap();
                input.splice(at..at, word.bytes());
            }
            2 => {
                let word = WORDS.choose(rng).unwrap();
                input.splice(at..end, word.bytes());
            }
            3 => {
                let again = input[at..end].to_vec();
                let times = rng.random_range(1..=40);
                input.splice(at..at, again.repeat(times));
            }
            4 if at < input.len() => input[at] ^= 1 << rng.random_range(0..8),
            5 if at < input.len() => input[at] = rng.random(),
            _ => {
                let other = &others.choose(rng).unwrap().1;
                let from = rng.random_range(0..=other.len());
                let to = rng.random_range(from..=other.len().min(from + 64));
                input.splice(at..end, other[from..to].iter().copied());
            }
        }
    }
}

#[allow(clippy::print_stderr)]
fn run(name: &str, runs: u64) {
    let (_, target) = targets::TARGETS.iter().find(|target| target.0 == name).unwrap();
    let number = |variable: &str| std::env::var(variable).ok().map(|n| n.parse::<u64>().unwrap());
    let runs = number("ALLUVIUM_FUZZ_RUNS").unwrap_or(runs);
    let seeds = seeds(name);
    let mut rng = StdRng::seed_from_u64(number("ALLUVIUM_SEED").unwrap_or(1));
    for (path, seed) in &seeds {
        for n in 0..=runs {
            let mut input = seed.clone();
            if n > 0 {
                change(&mut input, &seeds, &mut rng);
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&input))) {
                let find = std::env::temp_dir().join(format!("fuzz-{name}-find"));
                std::fs::write(&find, &input).unwrap();
                eprintln!(
                    "{name} fails on {}, made of {}: {:?}",
                    find.display(),
                    path.display(),
                    String::from_utf8_lossy(&input)
                );
                resume_unwind(panic);
            }
        }
    }
}

#[test]
fn lines_of_changes_are_taken_as_they_read_back_or_refused() {
    run("change_lines", RUNS);
}

#[test]
fn csv_is_taken_as_it_reads_back_or_refused() {
    run("csv_mapping", RUNS);
}

#[test]
fn schemas_are_taken_as_they_read_back_or_refused() {
    run("schema", RUNS);
}

#[test]
fn points_times_and_spans_are_taken_as_they_read_back_or_refused() {
    run("points", RUNS);
}

#[test]
fn keys_of_several_parts_come_back_and_keep_their_order() {
    run("keys", RUNS);
}

#[test]
fn settings_are_taken_or_refused() {
    run("settings", RUNS);
}

#[test]
fn a_commit_of_another_writer_is_followed_or_refused() {
    run("commit_json", STORE_RUNS);
}

#[test]
fn a_data_file_of_another_writer_is_read_or_refused() {
    run("log_rows", STORE_RUNS);
}

#[test]
fn arguments_of_functions_are_answered_or_refused() {
    run("sql_arguments", STORE_RUNS);
}

#[test]
fn every_target_has_seeds_and_is_run_by_libfuzzer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    for (name, _) in targets::TARGETS {
        assert!(!seeds(name).is_empty());
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "{name} is not in fuzz/Cargo.toml"
        );
        let text = std::fs::read_to_string(folder.join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(text.contains(&format!("targets::{name}(")), "{text}");
    }
}
