//! Drawing steps: keys, versions and times from small pools, so that rows meet and tie at every level.

use alluvium::{LayoutSettings, OrderBy, Point, StoreSettings};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

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
}

/// The next step.
pub(crate) fn step(rng: &mut StdRng, kind: Kind) -> Step {
    let handle = rng.random_range(0..HANDLES);
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
        // A restore may need what has expired, which is refused: `cases::restore` shows it.
        94..98 if !kind.expires => Step::Restore { handle },
        // What a clean-up at once takes away is promised where the log expires.
        98..100 if !kind.expires => Step::CleanUp { handle, snapshot: rng.random_bool(0.5) },
        _ => Step::Append { handle },
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
#[derive(Debug)]
pub(crate) struct Pools {
    pub(crate) keys: Vec<String>,
    versions: i64,
    times: Vec<i64>,
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
        Self { keys, versions: rng.random_range(1..60), times }
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

    fn change(&self, rng: &mut StdRng, shape: Shape) -> Change {
        let value = (!rng.random_bool(0.18)).then(|| value(rng, shape));
        Change {
            key: self.key(rng),
            version: self.version(rng),
            event_time: *self.times.choose(rng).unwrap(),
            value,
        }
    }

    /// Rows of an append, some of them repeated, or repeating what was given before.
    pub(crate) fn changes(&self, rng: &mut StdRng, shape: Shape, known: &[Change]) -> Vec<Change> {
        let most = *[1, 1, 6, 40, 200].choose(rng).unwrap();
        let mut changes = Vec::new();
        for _ in 0..rng.random_range(1..=most) {
            let earlier = match rng.random_range(0..10) {
                0 => changes.choose(rng),
                1 => known.choose(rng),
                _ => None,
            };
            let change = match earlier.cloned() {
                Some(same) if fits(&same, shape) => same,
                _ => self.change(rng, shape),
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
            point.event_time = Some(self.times.choose(rng).unwrap() + rng.random_range(-1..=1));
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
