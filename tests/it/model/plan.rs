//! Drawing steps: keys, versions and times from small pools, so that rows meet and tie at every level.

use alluvium::{LayoutSettings, OrderBy, Point, StoreSettings};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::support::rows::{Change, Shape, Value};
use crate::support::stores::{DAY, SECOND, START, settings};

/// What a sequence is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) order_by: OrderBy,
    /// Tiny files, batches and budgets, so that few rows take every path.
    pub(crate) tiny: bool,
    /// Whether another engine appends to the log and optimizes it.
    pub(crate) foreign: bool,
    /// Whether months pass by a clock of the test's own, and the periodic job keeps the state small.
    pub(crate) months: bool,
    /// Whether the log's days expire.
    pub(crate) expires: bool,
}

impl Kind {
    /// Nothing but appends and folds.
    pub(crate) fn of(order_by: OrderBy) -> Self {
        Self { order_by, tiny: false, foreign: false, months: false, expires: false }
    }
}

/// What else a sequence has, drawn for each so that everything meets everything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    /// Whether days move to an archive: no answer may differ.
    pub(crate) archives: bool,
    /// Whether deleted keys are forgotten, and changes that are as old refused.
    pub(crate) forgets: bool,
    /// Whether snapshots are kept by a grid of times.
    pub(crate) has_grid: bool,
    /// Whether reads are held for days.
    pub(crate) holds: bool,
    /// How many generations of forks there may be.
    pub(crate) forks: u32,
}

impl Traits {
    pub(crate) fn draw(kind: Kind, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(!seed);
        let mut any = |may: bool| rng.random_bool(0.5) && may;
        Self {
            archives: kind.months && seed.is_multiple_of(2),
            forgets: any(kind.months && kind.order_by == OrderBy::EventTime),
            has_grid: any(kind.expires),
            holds: any(kind.months),
            // What another engine merged can't always be erased from a fork.
            forks: if any(!kind.foreign) { rng.random_range(1..=2) } else { 0 },
        }
    }

    /// Of a fork: time passes, and reads are held, in its parent's world.
    pub(crate) fn of_fork(self) -> Self {
        Self { holds: false, forks: self.forks.saturating_sub(1), ..self }
    }
}

/// Handles on the store, as that many processes would have.
pub(crate) const HANDLES: usize = 3;
/// Applications that send epochs.
pub(crate) const APPS: usize = 2;

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Append {
        handle: usize,
    },
    /// Several appends at once, by all handles.
    Together,
    Epoch {
        handle: usize,
        app: usize,
        repeat: bool,
        parts: usize,
    },
    Materialize {
        handle: usize,
        rebuild: bool,
    },
    Grow,
    Checkpoint {
        handle: usize,
        snapshot: bool,
    },
    /// Cleans up the commits that the newest checkpoint makes superfluous, at once.
    CleanUp {
        handle: usize,
        snapshot: bool,
    },
    /// The periodic job, all steps of it.
    Maintain {
        handle: usize,
    },
    /// Makes a savepoint, or releases the oldest one of several.
    Savepoint {
        handle: usize,
    },
    /// Time passes.
    Wait {
        days: i64,
    },
    /// Merges the log's files by days.
    Compact {
        handle: usize,
    },
    /// Brings all keys, or some, back to a point.
    Restore {
        handle: usize,
    },
    /// Erases keys, which may come back afterwards.
    Erase {
        handle: usize,
    },
    Reopen {
        handle: usize,
    },
    Optimize,
    ForeignAppend,
    /// A fork of some commit.
    Fork {
        handle: usize,
    },
    /// Some steps in a fork.
    InFork,
    /// Brings back what was changed in a fork.
    Promote {
        handle: usize,
    },
    DropFork {
        handle: usize,
    },
    /// Begins a read that lasts for days, by a process of its own.
    Hold,
    /// Reads on, and may come to an end.
    ReadHeld,
}

/// The next step.
pub(crate) fn step(rng: &mut StdRng, kind: Kind, traits: Traits) -> Step {
    let handle = rng.random_range(0..HANDLES);
    match rng.random_range(0..100) {
        0..4 if traits.forks > 0 => return Step::Fork { handle },
        4..14 if traits.forks > 0 => return Step::InFork,
        14..17 if traits.forks > 0 => return Step::Promote { handle },
        17..18 if traits.forks > 0 => return Step::DropFork { handle },
        18..21 if traits.holds => return Step::Hold,
        21..26 if traits.holds => return Step::ReadHeld,
        _ => {}
    }
    if kind.months {
        match rng.random_range(0..100) {
            0..12 => return Step::Maintain { handle },
            12..25 => return Step::Wait { days: *[1, 3, 8, 25].choose(rng).unwrap() },
            25..40 if kind.expires => return Step::Wait { days: 1 },
            40..43 if kind.expires => return Step::Savepoint { handle },
            _ => {}
        }
    }
    match rng.random_range(0..100) {
        0..40 => Step::Append { handle },
        40..42 => Step::Erase { handle },
        42..46 => Step::Compact { handle },
        46..52 => Step::Together,
        52..60 => Step::Epoch {
            handle,
            app: rng.random_range(0..APPS),
            repeat: rng.random_bool(0.3),
            parts: rng.random_range(1..=3),
        },
        60..78 => Step::Materialize { handle, rebuild: rng.random_bool(0.12) },
        78..81 => Step::Grow,
        81..85 => Step::Checkpoint { handle, snapshot: rng.random_bool(0.5) },
        85..92 => Step::Reopen { handle },
        92..97 if kind.foreign => Step::Optimize,
        97..98 if kind.foreign => Step::ForeignAppend,
        94..98 => Step::Restore { handle },
        _ => Step::CleanUp { handle, snapshot: rng.random_bool(0.5) },
    }
}

/// Settings of one handle.
pub(crate) fn handle_settings(rng: &mut StdRng, kind: Kind) -> StoreSettings {
    if !kind.tiny {
        return settings();
    }
    StoreSettings {
        memory_budget_bytes: *[1, 10_000, 1 << 20, 1 << 28].choose(rng).unwrap(),
        tail_bytes: *[0, 20_000, 1 << 28].choose(rng).unwrap(),
        footer_cache_bytes: *[0, 1 << 20].choose(rng).unwrap(),
        page_cache_bytes: *[0, 30_000, 1 << 20].choose(rng).unwrap(),
        page_spill_bytes: *[0, 200_000, 1 << 20].choose(rng).unwrap(),
        partitions: rng.random_range(1..=3),
        batch_rows: *[1, 3, 50, 8_192].choose(rng).unwrap(),
        layout: LayoutSettings {
            small_state_rows: *[0, 0, 40].choose(rng).unwrap(),
            file_rows: *[2, 7, 40].choose(rng).unwrap(),
            lookup_rows: *[0, 10, 16_384].choose(rng).unwrap(),
            compacted_file_rows: *[3, 11, 60].choose(rng).unwrap(),
        },
        ..settings()
    }
}

/// The pools that keys, versions and times are drawn from.
#[derive(Debug, Clone)]
pub(crate) struct Pools {
    pub(crate) keys: Vec<String>,
    versions: i64,
    times: Vec<i64>,
    /// The day that it is, where changes have to be of the last days.
    pub(crate) today: Option<i64>,
}

impl Pools {
    pub(crate) fn new(rng: &mut StdRng) -> Self {
        let count = *[3, 25, 150].choose(rng).unwrap();
        let mut keys: Vec<String> =
            (0..count).map(|n| format!("{}/{n:03}", ["a", "b", "ba", "é"][n % 4])).collect();
        keys.extend(["", " ", "\u{10ffff}", "a\u{0}b"].map(str::to_owned));
        keys.extend(["x", "y"].map(|end| format!("{}{end}", "long".repeat(70))));
        let days = rng.random_range(1..6_i64);
        let per_day = rng.random_range(1..30_i64);
        let step = *[1, 999, SECOND, DAY / 40].choose(rng).unwrap();
        let mut times: Vec<i64> = (0..days)
            .flat_map(|day| (0..per_day).map(move |n| START + day * DAY + n * step))
            .collect();
        times.extend([START - 1, -1, -62_135_596_800_000_000]);
        Self { keys, versions: rng.random_range(1..60), times, today: None }
    }

    pub(crate) fn key(&self, rng: &mut StdRng) -> String {
        self.keys.choose(rng).unwrap().clone()
    }

    fn version(&self, rng: &mut StdRng) -> i64 {
        match rng.random_range(0..60) {
            0 => i64::MAX,
            1 => i64::MIN,
            2 => -1,
            _ => rng.random_range(0..self.versions),
        }
    }

    /// An event time, of so many days back where changes have to be of the last days.
    fn time(&self, rng: &mut StdRng, days: i64) -> i64 {
        let time = *self.times.choose(rng).unwrap();
        match self.today {
            None => time,
            Some(today) => {
                today + time.rem_euclid(DAY).min(DAY / 2) - rng.random_range(0..=days) * DAY
            }
        }
    }

    fn change(&self, rng: &mut StdRng, shape: Shape, days: i64) -> Change {
        let value = (!rng.random_bool(0.18)).then(|| value(rng, shape));
        Change {
            key: self.key(rng),
            version: self.version(rng),
            event_time: self.time(rng, days),
            value,
        }
    }

    /// Rows of an append, some of them repeated, or repeating what was given before.
    pub(crate) fn changes(&self, rng: &mut StdRng, shape: Shape, known: &[Change]) -> Vec<Change> {
        let most = *[1, 1, 6, 40, 200].choose(rng).unwrap();
        // Most have nothing that is old.
        let days = *[1, 1, 1, 8].choose(rng).unwrap();
        let is_old = |change: &Change| {
            self.today.is_some_and(|today| change.event_time < today - days * DAY)
        };
        let mut changes = Vec::new();
        for _ in 0..rng.random_range(1..=most) {
            let earlier = match rng.random_range(0..10) {
                0 => changes.choose(rng),
                1 => known.choose(rng),
                _ => None,
            };
            let change = match earlier.cloned() {
                Some(same) if fits(&same, shape) && !is_old(&same) => same,
                _ => self.change(rng, shape, days),
            };
            changes.push(change);
        }
        changes
    }

    /// A point: any of the three bounds, alone or together, on rows and between them.
    pub(crate) fn point(&self, rng: &mut StdRng, newest: i64) -> Point {
        let mut point = Point::LATEST;
        if rng.random_bool(0.4) {
            point.commit = Some(rng.random_range(0..=newest));
        }
        if rng.random_bool(0.4) {
            point.version = Some(match rng.random_range(0..12) {
                0 => i64::MAX,
                1 => i64::MIN,
                _ => self.version(rng),
            });
        }
        if rng.random_bool(0.4) {
            point.event_time = Some(self.time(rng, 12) + rng.random_range(-1..=1));
        }
        point
    }
}

fn fits(change: &Change, shape: Shape) -> bool {
    change.value.as_ref().is_none_or(|value| {
        let b = value.object.as_ref().and_then(|object| object.1.as_ref());
        (shape.grown || value.grown.is_none()) && (shape.b || b.is_none())
    })
}

fn value(rng: &mut StdRng, shape: Shape) -> Value {
    let object = rng.random_bool(0.7).then(|| {
        let b = (shape.b && rng.random_bool(0.7)).then(|| format!("b{}", rng.random_range(0..3)));
        (rng.random_bool(0.7).then(|| rng.random_range(0..3)), b)
    });
    Value {
        n: rng.random_range(0..4),
        text: rng.random_bool(0.7).then(|| format!("text {}", rng.random_range(0..3))),
        object,
        grown: (shape.grown && rng.random_bool(0.7)).then(|| rng.random_range(0..3)),
    }
}
