//! The program `alluvium`, built for the tests that run it as a process; called with `race-worker`, a process of a race.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, rest)) if first == "race-worker" => race(rest),
        _ => alluvium_cli::main(),
    }
}

#[allow(clippy::print_stderr)]
fn race(arguments: &[String]) -> ExitCode {
    match alluvium_simulation::races::worker::main(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
