//! The program: runs seeds, replays one, or lets processes race.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use alluvium_simulation::races::{Race, worker};
use alluvium_simulation::world::More;
use clap::{Parser, Subcommand};

/// Alluvium's processes on a store with faults.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one seed, and shows what was done.
    Run {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Operations of processes.
        #[arg(long, default_value_t = 150)]
        operations: u64,
        /// Show all that was done, not only the last of it.
        #[arg(long)]
        trace: bool,
    },
    /// Runs seed after seed.
    Seeds {
        /// The first seed.
        #[arg(long, default_value_t = 1)]
        first: u64,
        /// How many.
        #[arg(long, default_value_t = u64::MAX)]
        count: u64,
        /// For how long at most.
        #[arg(long, default_value_t = 1.0)]
        hours: f64,
        /// Operations of processes in each.
        #[arg(long, default_value_t = 150)]
        operations: u64,
    },
    /// Lets processes race in real time, in a folder of its own.
    Races {
        /// For how long.
        #[arg(long, default_value_t = 10.0)]
        minutes: f64,
        /// Processes that write.
        #[arg(long, default_value_t = 8)]
        writers: usize,
        /// Tasks of each.
        #[arg(long, default_value_t = 8)]
        tasks: usize,
    },
    /// One process of a race; started by the race itself.
    #[command(hide = true)]
    RaceWorker {
        /// Role, folder, number, tasks.
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Run { seed, operations, trace } => {
            alluvium_simulation::run(seed, operations, trace)
                .map(|counts| println!("{counts:#?}"))
                .map_err(|find| find.to_string())
        }
        Command::Seeds { first, count, hours, operations } => {
            seeds(first, count, hours, operations)
        }
        Command::Races { minutes, writers, tasks } => races(minutes, writers, tasks),
        Command::RaceWorker { arguments } => worker::main(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(broken) => {
            eprintln!("{broken}");
            ExitCode::FAILURE
        }
    }
}

/// Goes on after a find: each is told as it comes.
fn seeds(first: u64, count: u64, hours: f64, operations: u64) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs_f64(hours * 3_600.0);
    let (mut runs, mut finds, mut calls, mut steps) = (0_u64, Vec::new(), 0, 0);
    let (mut faults, mut deaths, mut answers, mut more) = (0, 0, 0, More::default());
    for seed in first..first.saturating_add(count) {
        if Instant::now() >= end {
            break;
        }
        runs += 1;
        match alluvium_simulation::run(seed, operations, false) {
            Ok(counts) => {
                calls += counts.calls;
                steps += counts.operations;
                faults += counts.faults;
                deaths += counts.deaths;
                answers += counts.answers;
                more += counts.more;
            }
            Err(find) => {
                eprintln!("{find}\n");
                finds.push(seed);
            }
        }
    }
    println!(
        "{runs} seeds: {steps} operations, {calls} calls of the store, {faults} faults, {deaths} deaths, {answers} answers compared; of these {more:?}"
    );
    if finds.is_empty() { Ok(()) } else { Err(format!("seeds with finds: {finds:?}")) }
}

fn races(minutes: f64, writers: usize, tasks: usize) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let time = Duration::from_secs_f64(minutes * 60.0);
    let race = Race { folder: folder.path().to_owned(), program, writers, tasks, time };
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    match runtime.block_on(race.run()) {
        Ok(counts) => {
            println!("{counts:#?}");
            Ok(())
        }
        Err(broken) => Err(format!("{broken}\nthe store is left in {}", folder.keep().display())),
    }
}
