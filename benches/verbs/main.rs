//! The benches, one per verb: `cargo bench -p alluvium-benches -- [VERB..] [--quick] [--scale [--max-keys N]] [--dir FOLDER]
//! [--flights FILE] [--minutes N]`.
//!
//! `rebuild`, `memory` and `scale` are small ones unless `--scale` is given: then they take minutes each, and the disk that
//! `docs/benchmarks.md` says. `year` takes the departures of `data/`, or of the file that `--flights` names; `soak` goes
//! on for `--minutes`, two by default; `cycles` ends with an error if memory or open files grow over its second half.
//!
//! JSON lines go to standard output, the same figures for people to standard error. `docs/benchmarks.md` says what
//! each of them means.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod as_of;
mod bulk;
mod checkpoint;
mod commit;
mod cycles;
mod depth;
mod fold;
mod get;
mod get_cached;
mod growth;
mod history;
mod materialize;
mod memory;
mod open;
mod rebuild;
mod scale;
mod scan;
mod soak;
mod state_larger;
mod state_loop;
mod year;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use alluvium_benches::{NOTHING, Outcome, Place, as_child};

const VERBS: [&str; 21] = [
    "commit",
    "bulk",
    "fold",
    "materialize",
    "scan",
    "get",
    "as_of",
    "state_loop",
    "state_larger",
    "growth",
    "history",
    "get_cached",
    "open",
    "depth",
    "rebuild",
    "memory",
    "scale",
    "year",
    "soak",
    "cycles",
    "checkpoint",
];
/// Keys of the largest state of `scale`, unless `--max-keys` says less.
const MAX_KEYS: u64 = 100_000_000;

/// Two months of departures.
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/flights-2013-sample.csv.gz");

/// What a bench is told.
#[derive(Debug, Clone)]
struct Setup {
    quick: bool,
    scale: bool,
    max_keys: u64,
    parent: PathBuf,
    flights: PathBuf,
    /// How long `soak` goes on.
    minutes: u64,
}

impl Setup {
    fn place(&self, bench: &str) -> Outcome<Place> {
        Place::below(&self.parent, bench)
    }

    /// A size that is smaller in a quick run.
    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// A size that is large only when asked for.
    fn pick_scale<T>(&self, large: T, small: T) -> T {
        if self.scale { large } else { small }
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
    let mut setup = Setup {
        quick: false,
        scale: false,
        max_keys: MAX_KEYS,
        parent: PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
        flights: PathBuf::from(SAMPLE),
        minutes: 2,
    };
    let mut verbs = Vec::new();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // Cargo adds it.
            "--bench" => {}
            "--quick" => setup.quick = true,
            "--scale" => setup.scale = true,
            "--max-keys" => {
                let keys = arguments.next().ok_or("--max-keys needs a number")?;
                setup.max_keys =
                    keys.parse().map_err(|_| format!("--max-keys: {keys:?} is no number"))?;
            }
            "--dir" => setup.parent = arguments.next().ok_or("--dir needs a folder")?.into(),
            "--minutes" => {
                let minutes = arguments.next().ok_or("--minutes needs a number")?;
                let wrong = || format!("--minutes: {minutes:?} is no number above 0");
                setup.minutes = minutes.parse().ok().filter(|&m| m > 0).ok_or_else(wrong)?;
            }
            "--flights" => setup.flights = arguments.next().ok_or("--flights needs a file")?.into(),
            "--child" => {
                let work = arguments.next().ok_or("--child needs its work")?;
                let folder = arguments.next().ok_or("--child needs a folder")?;
                return child(&work, Path::new(&folder)).await;
            }
            verb if VERBS.contains(&verb) => verbs.push(verb.to_owned()),
            other => {
                return Err(format!("{other:?} is no bench: they are {}", VERBS.join(", ")).into());
            }
        }
    }
    if setup.quick && setup.scale {
        return Err("--quick and --scale exclude each other: leave one out".into());
    }
    if verbs.is_empty() {
        verbs = VERBS.iter().map(|&verb| verb.to_owned()).collect();
    }
    for verb in verbs {
        let started = Instant::now();
        bench(&verb, &setup).await?;
        eprintln!("   ({verb} took {:.1} s)", started.elapsed().as_secs_f64());
    }
    Ok(())
}

async fn bench(verb: &str, setup: &Setup) -> Outcome<()> {
    match verb {
        "commit" => commit::run(setup).await,
        "bulk" => bulk::run(setup).await,
        "fold" => fold::run(setup).await,
        "materialize" => materialize::run(setup).await,
        "scan" => scan::run(setup).await,
        "get" => get::run(setup).await,
        "as_of" => as_of::run(setup).await,
        "state_loop" => state_loop::run(setup).await,
        "state_larger" => state_larger::run(setup).await,
        "growth" => growth::run(setup).await,
        "history" => history::run(setup).await,
        "get_cached" => get_cached::run(setup).await,
        "open" => open::run(setup).await,
        "depth" => depth::run(setup).await,
        "rebuild" => rebuild::run(setup).await,
        "memory" => memory::run(setup).await,
        "scale" => scale::run(setup).await,
        "year" => year::run(setup).await,
        "checkpoint" => checkpoint::run(setup).await,
        "soak" => soak::run(setup).await,
        "cycles" => cycles::run(setup).await,
        other => Err(format!("{other:?} is no bench").into()),
    }
}

/// One piece of work of a bench, in a process that does nothing else.
async fn child(work: &str, folder: &Path) -> Outcome<()> {
    let (bench, work) = work.split_once(':').unwrap_or((work, ""));
    match bench {
        NOTHING => as_child(async { Ok(0) }).await,
        "open" => open::child(work, folder).await,
        "commit" => commit::child(work, folder).await,
        "fold" => fold::child(work, folder).await,
        "memory" => memory::child(work, folder).await,
        other => Err(format!("{other:?} has no work for a child").into()),
    }
}
