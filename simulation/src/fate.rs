//! What becomes of a call of the store: drawn from the seed, the process, and which call of its kind it is.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What becomes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is answered.
    Answered,
    /// It fails and doesn't take place.
    Failed,
    /// The store refuses it for being asked too much.
    Throttled,
    /// It takes place, and the reply is lost.
    Unanswered,
    /// Half of what is written arrives, and the writer is told that it failed. Never drawn for what is put if absent: that is atomic.
    Torn,
    /// A listing lacks what was written last.
    Stale,
    /// There is no room for what is written.
    NoSpace,
    /// The process dies at it; the value says whether the call takes place.
    Deadly(bool),
}

impl Fate {
    /// Whether the caller may fail for it.
    pub fn is_fault(self) -> bool {
        self != Self::Answered
    }
}

/// How often what happens, in calls of a million.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// Of [`Fate::Failed`].
    pub failed: u32,
    /// Of [`Fate::Throttled`].
    pub throttled: u32,
    /// Of [`Fate::Unanswered`].
    pub unanswered: u32,
    /// Of [`Fate::Torn`], of writes only.
    pub torn: u32,
    /// Of [`Fate::Stale`], of listings only.
    pub stale: u32,
    /// Of [`Fate::NoSpace`], of writes only.
    pub no_space: u32,
    /// Of [`Fate::Deadly`].
    pub deadly: u32,
}

impl Rates {
    /// Nothing ever fails.
    pub const NONE: Self =
        Self { failed: 0, throttled: 0, unanswered: 0, torn: 0, stale: 0, no_space: 0, deadly: 0 };

    /// Rates of one seed: a calm store, a bad one, or one where processes die all the time.
    pub fn draw(rng: &mut StdRng) -> Self {
        match rng.random_range(0..4) {
            0 => Self::NONE,
            1 => Self { failed: 2_000, unanswered: 2_000, stale: 20_000, ..Self::NONE },
            2 => Self {
                failed: 8_000,
                throttled: 8_000,
                unanswered: 8_000,
                torn: 8_000,
                stale: 100_000,
                no_space: 4_000,
                deadly: 1_000,
            },
            _ => Self { unanswered: 4_000, torn: 4_000, deadly: 12_000, ..Self::NONE },
        }
    }
}

/// The kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// A write of a whole object; the value says whether only if it is absent.
    Put(bool),
    /// A read.
    Get,
    /// A listing.
    List,
    /// A removal.
    Delete,
}

/// Draws fates. Which one a call has does not depend on the calls of others, so that a run that is slower somewhere is the same run.
#[derive(Debug)]
pub struct Fates {
    seed: u64,
    rates: Rates,
    seen: HashMap<(usize, u64, Call, String), u64>,
}

impl Fates {
    /// Fates of one seed.
    pub fn new(seed: u64, rates: Rates) -> Self {
        Self { seed, rates, seen: HashMap::new() }
    }

    /// From now on nothing fails.
    pub fn calm(&mut self) {
        self.rates = Rates::NONE;
    }

    /// The fate of the next call of this kind by an incarnation of a process.
    pub fn draw(&mut self, process: usize, incarnation: u64, call: Call, path: &str) -> Fate {
        let identity = (process, incarnation, call, kind_of(path));
        let count = self.seen.entry(identity.clone()).or_default();
        *count += 1;
        let mut hasher = DefaultHasher::new();
        (self.seed, &identity, *count).hash(&mut hasher);
        let mut rng = StdRng::seed_from_u64(hasher.finish());
        // The record of a fork is written over where it lies, and whoever reads forks needs all records: not on such a store.
        let may_tear = call == Call::Put(false) && !path.starts_with("_alluvium/names/");
        self.fate(call, may_tear, &mut rng)
    }

    fn fate(&self, call: Call, may_tear: bool, rng: &mut StdRng) -> Fate {
        let writes = matches!(call, Call::Put(_));
        let rates = self.rates;
        let of = |applies: bool, rate: u32| if applies { rate } else { 0 };
        let choices = [
            (rates.failed, Fate::Failed),
            (rates.throttled, Fate::Throttled),
            (of(writes || call == Call::Delete, rates.unanswered), Fate::Unanswered),
            (of(may_tear, rates.torn), Fate::Torn),
            (of(call == Call::List, rates.stale), Fate::Stale),
            (of(writes, rates.no_space), Fate::NoSpace),
            (rates.deadly, Fate::Deadly(rng.random_bool(0.5))),
        ];
        let mut drawn = rng.random_range(0..1_000_000);
        for (rate, fate) in choices {
            if drawn < rate {
                return fate;
            }
            drawn -= rate;
        }
        Fate::Answered
    }
}

/// What a path is, without what is drawn at random in it.
fn kind_of(path: &str) -> String {
    match path.rsplit_once("_delta_log/") {
        Some((table, name)) => format!("{table}_delta_log/{name}"),
        None => path.split('/').take(2).collect::<Vec<_>>().join("/"),
    }
}
