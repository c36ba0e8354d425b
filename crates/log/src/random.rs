//! Randomness of names, ids and waits: from the system, or in a simulation from a seed.

use std::cell::RefCell;

use rand::distr::{Distribution, StandardUniform};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

thread_local! {
    static SEEDED: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// A value drawn at random.
pub fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    SEEDED.with_borrow_mut(|seeded| match seeded {
        Some(rng) => rng.random(),
        None => rand::rng().random(),
    })
}

/// Draws everything random on this thread from a seed, or from the system again: so that a simulation on one thread is
/// replayed from its seed.
///
/// Never with a seed in a process that writes to a store which others write to: names would meet.
pub fn seed_randomness(seed: Option<u64>) {
    SEEDED.set(seed.map(StdRng::seed_from_u64));
}
