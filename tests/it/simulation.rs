//! The simulation: a fixed set of seeds, seeds that once found something, and a short race of real processes.
//!
//! `ALLUVIUM_SEED=<seed>` runs one seed, `ALLUVIUM_CASES=<n>` so many; `cargo run --bin simulation -- seeds --hours 8` goes on.

use std::path::PathBuf;
use std::time::Duration;

use alluvium_simulation::races::Race;

/// Seeds of a usual run.
const SEEDS: u64 = 6;
const OPERATIONS: u64 = 120;

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")))
}

fn hold(seeds: impl Iterator<Item = u64>) {
    for seed in seeds {
        if let Err(find) = alluvium_simulation::run(seed, OPERATIONS, false) {
            panic!("{find}");
        }
    }
}

#[test]
fn what_was_promised_holds_on_a_store_with_faults_and_whoever_dies() {
    match from_environment("ALLUVIUM_SEED") {
        Some(seed) => hold(std::iter::once(seed)),
        None => hold(1..=from_environment("ALLUVIUM_CASES").unwrap_or(SEEDS)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_race_with_keepers_and_another_engine_lose_nothing_and_double_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let race = Race {
        folder: folder.path().to_owned(),
        program: PathBuf::from(env!("CARGO_BIN_EXE_alluvium-under-test")),
        writers: 2,
        tasks: 4,
        time: Duration::from_secs(from_environment("ALLUVIUM_RACE_SECONDS").unwrap_or(6)),
    };
    let counts = race.run().await.unwrap_or_else(|broken| panic!("{broken}"));
    assert!(counts.writes > 0 && counts.reads > 0 && counts.upkeep > 0, "{counts:?}");
}
