//! The benches, one per verb: `cargo bench -p alluvium-benches -- [VERB..] [--quick] [--dir FOLDER]`.
//!
//! JSON lines go to standard output, the same figures for people to standard error. `docs/benchmarks.md` says what
//! each of them means.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod as_of;
mod bulk;
mod commit;
mod fold;
mod get;
mod get_cached;
mod growth;
mod history;
mod materialize;
mod open;
mod scan;
mod state_loop;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use alluvium_benches::{Outcome, Place};

const VERBS: [&str; 12] = [
    "commit",
    "bulk",
    "fold",
    "materialize",
    "scan",
    "get",
    "as_of",
    "state_loop",
    "growth",
    "history",
    "get_cached",
    "open",
];

/// What a bench is told.
#[derive(Debug, Clone)]
struct Setup {
    quick: bool,
    parent: PathBuf,
}

impl Setup {
    fn place(&self, bench: &str) -> Outcome<Place> {
        Place::below(&self.parent, bench)
    }

    /// A size that is smaller in a quick run.
    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(async { tokio::spawn(run()).await }) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Outcome<()> {
    let mut setup = Setup { quick: false, parent: PathBuf::from(env!("CARGO_TARGET_TMPDIR")) };
    let mut verbs = Vec::new();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // Cargo adds it.
            "--bench" => {}
            "--quick" => setup.quick = true,
            "--dir" => setup.parent = arguments.next().ok_or("--dir needs a folder")?.into(),
            "--child" => {
                let side = arguments.next().ok_or("--child needs a side")?;
                let folder = arguments.next().ok_or("--child needs a folder")?;
                if let Some(key) = side.strip_prefix("open:") {
                    return open::child(key, &PathBuf::from(folder)).await;
                }
                return fold::child(&side, &PathBuf::from(folder)).await;
            }
            verb if VERBS.contains(&verb) => verbs.push(verb.to_owned()),
            other => {
                return Err(format!("{other:?} is no bench: they are {}", VERBS.join(", ")).into());
            }
        }
    }
    if verbs.is_empty() {
        verbs = VERBS.iter().map(|&verb| verb.to_owned()).collect();
    }
    for verb in verbs {
        let started = Instant::now();
        match verb.as_str() {
            "commit" => commit::run(&setup).await?,
            "bulk" => bulk::run(&setup).await?,
            "fold" => fold::run(&setup).await?,
            "materialize" => materialize::run(&setup).await?,
            "scan" => scan::run(&setup).await?,
            "get" => get::run(&setup).await?,
            "state_loop" => state_loop::run(&setup).await?,
            "growth" => growth::run(&setup).await?,
            "history" => history::run(&setup).await?,
            "get_cached" => get_cached::run(&setup).await?,
            "open" => open::run(&setup).await?,
            _ => as_of::run(&setup).await?,
        }
        eprintln!("   ({verb} took {:.1} s)", started.elapsed().as_secs_f64());
    }
    Ok(())
}
