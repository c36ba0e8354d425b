//! Processes that use one store at once, on a disk with faults, by a clock and in an order that a seed tells.
//!
//! A run is drawn from its seed: what each process does, in which order the calls of the store are answered, which of them fail, lose
//! their reply, arrive in part, see a listing of before, or are the last that a process makes. After each operation [`checks`] compare
//! what was told with a model too simple to be wrong ([`ledger`]). What does not hold is a [`Find`], which prints what replays it.
//!
//! * [`store`] parks every call until the driver lets it go on; [`fate`] draws what becomes of it;
//! * [`actors`] are what processes do, [`draw`] draws what they do and ask;
//! * [`typed`] are reads through caches and streams of epochs, [`forks`] are forks and what they must hold, [`leads`] is who leads;
//! * [`promises`] are what savepoints, restores, erases and spans of retention promise;
//! * [`world`] is the driver: one thread, one call at a time;
//! * [`races`] is the other half: real processes and real time.
//!
//! It is an instrument for tests: a bug in it may panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod actors;
pub mod checks;
pub mod draw;
pub mod fate;
pub mod forks;
pub mod leads;
pub mod ledger;
pub mod promises;
pub mod races;
pub mod rows;
pub mod store;
pub mod typed;
pub mod world;

use std::fmt;
use std::sync::Arc;

use alluvium::{Durability, Storage};

use store::Disk;
use world::{Counts, World};

/// Something that does not hold, and how to see it again.
#[derive(Debug, Clone)]
pub struct Find {
    /// The seed of the run.
    pub seed: u64,
    /// How many operations it had.
    pub operations: u64,
    /// What does not hold.
    pub broken: String,
    /// What was done, the last of it.
    pub trace: Vec<String>,
}

impl fmt::Display for Find {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "{}", self.broken)?;
        let Self { seed, operations, .. } = self;
        write!(
            f,
            "replay with: cargo run --bin simulation -- run --seed {seed} --operations {operations}"
        )
    }
}

/// Lines of what was done that a find shows, unless all are asked for.
const SHOWN: usize = 60;

/// The URI of an object store on which seeds are run instead of in memory, each below a folder of its own.
pub const PLACE: &str = "ALLUVIUM_SIMULATION_STORE";

/// Where the objects of a run are kept.
fn disk(seed: u64) -> Result<Arc<Disk>, String> {
    let Ok(place) = std::env::var(PLACE) else { return Ok(Disk::new(None)) };
    let begun = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let folder = format!("{place}/{seed}-{}", begun.map_or(0, |since| since.as_micros()));
    let storage = Storage::open(&folder, Durability::Os).map_err(|error| error.to_string())?;
    Ok(Disk::new(Some(storage.object_store().clone())))
}

/// Runs one seed on a thread of its own kind: what is random on it is drawn from the seed too. Objects lie in memory, or where
/// [`PLACE`] in the environment says.
pub fn run(seed: u64, operations: u64, is_traced: bool) -> Result<Counts, Box<Find>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    alluvium_log::seed_randomness(Some(seed));
    let outcome = runtime.block_on(async {
        let begun = match disk(seed) {
            Ok(disk) => World::new(seed, disk).await,
            Err(broken) => Err(broken),
        };
        let mut world = begun.map_err(|broken| (broken, Vec::new()))?;
        let outcome = world.run(operations).await;
        outcome.map_err(|broken| (broken, std::mem::take(&mut world.trace)))
    });
    alluvium_log::seed_randomness(None);
    runtime.shutdown_background();
    outcome.map_err(|(broken, mut trace)| {
        if !is_traced {
            trace.drain(..trace.len().saturating_sub(SHOWN));
        }
        Box::new(Find { seed, operations, broken, trace })
    })
}
