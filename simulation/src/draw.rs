//! Drawing what processes do and ask: keys, versions and times from small pools, so that rows meet and tie.

use alluvium::{Durability, LayoutSettings, MaintainStep, Point, StoreSettings};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::actors::{Intent, Question};
use crate::checks::mark;
use crate::promises::Promises;
use crate::rows::{Change, Shape, Value};

/// 2024-01-15T00:00:00Z in microseconds.
const START: i64 = 1_705_276_800_000_000;
const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

/// Keys that may be erased.
pub const ERASABLE: [&str; 3] = ["person/1", "person/2", "person/3"];

/// The pools that keys, versions and times are drawn from.
#[derive(Debug)]
pub struct Pools {
    keys: Vec<String>,
    versions: i64,
    times: Vec<i64>,
}

impl Pools {
    /// The pools of one run.
    pub fn new(rng: &mut StdRng) -> Self {
        let count = *[2, 9, 40].choose(rng).unwrap();
        let days = rng.random_range(1..4);
        let times = (0..days).flat_map(|day| (0..6).map(move |n| START + day * DAY + n * SECOND));
        Self {
            keys: (0..count)
                .map(|n| format!("k{n:02}"))
                .chain(ERASABLE.map(str::to_owned))
                .collect(),
            versions: rng.random_range(1..30),
            times: times.collect(),
        }
    }

    /// When the run begins, in microseconds: some of the days are over, some may be not.
    pub fn begin(&self) -> i64 {
        START + 3 * DAY
    }

    /// One of the keys.
    pub fn key(&self, rng: &mut StdRng) -> String {
        self.keys.choose(rng).unwrap().clone()
    }

    /// The rows of an attempt.
    pub fn rows(&self, rng: &mut StdRng, shape: Shape, attempt: usize) -> Vec<Change> {
        let count = *[1, 1, 3, 12].choose(rng).unwrap();
        let mut rows: Vec<Change> = (0..count)
            .map(|_| Change {
                key: self.key(rng),
                version: rng.random_range(0..self.versions),
                event_time: *self.times.choose(rng).unwrap(),
                value: (!rng.random_bool(0.2)).then(|| value(rng, shape)),
            })
            .collect();
        let number = attempt as i64;
        let value = Value { n: number, ..Value::default() };
        let time = *self.times.choose(rng).unwrap();
        let key = mark(attempt);
        rows.push(Change { key, version: number, event_time: time, value: Some(value) });
        rows
    }

    fn point(&self, rng: &mut StdRng, newest: i64) -> Point {
        let mut point = Point::LATEST;
        if rng.random_bool(0.5) {
            point.commit = Some(rng.random_range(0..=newest));
        }
        if rng.random_bool(0.3) {
            point.version = Some(rng.random_range(0..self.versions));
        }
        if rng.random_bool(0.3) {
            point.event_time = Some(*self.times.choose(rng).unwrap());
        }
        point
    }

    /// What a reader asks that knows of commits up to one.
    pub fn question(&self, rng: &mut StdRng, newest: i64) -> Question {
        match rng.random_range(0..6) {
            0 => Question::Scan(self.point(rng, newest)),
            1 => Question::History(self.point(rng, newest)),
            2 => Question::Changes(rng.random_range(0..=newest)),
            3 => Question::Diff(self.point(rng, newest), self.point(rng, newest)),
            _ => {
                let keys = (0..3).map(|_| self.key(rng)).collect();
                Question::Get(keys, self.point(rng, newest))
            }
        }
    }
}

/// Any value.
pub fn value(rng: &mut StdRng, shape: Shape) -> Value {
    let b = (shape.b && rng.random_bool(0.7)).then(|| format!("b{}", rng.random_range(0..3)));
    Value {
        n: rng.random_range(0..4),
        text: rng.random_bool(0.5).then(|| format!("text {}", rng.random_range(0..3))),
        object: rng.random_bool(0.5).then(|| (Some(rng.random_range(0..3)), b)),
        grown: (shape.grown && rng.random_bool(0.7)).then(|| rng.random_range(0..3)),
    }
}

/// The least shape that these rows fit into, if they were drawn for a lesser one than is known now.
pub fn shape_of(rows: &[Change], _known: Shape) -> Shape {
    let values = || rows.iter().filter_map(|row| row.value.as_ref());
    Shape {
        grown: values().any(|value| value.grown.is_some()),
        b: values().any(|value| value.object.as_ref().is_some_and(|object| object.1.is_some())),
    }
}

/// What a process does next that has to do with what is kept of the past, with what it holds; most often nothing.
pub fn keeping(
    rng: &mut StdRng,
    pools: &Pools,
    promises: &Promises,
    newest: i64,
    number: u64,
    held: Option<i64>,
) -> Option<Intent> {
    if let Some(held) = held
        && rng.random_bool(0.5)
    {
        let question = pools.question(rng, newest.min(held));
        return Some(if rng.random_bool(0.6) { Intent::Renew } else { Intent::ReadHeld(question) });
    }
    let saved: Vec<(&String, &i64)> = promises.savepoints.iter().collect();
    let saved = saved.choose(rng).map(|(name, commit)| ((*name).clone(), **commit));
    let is_tended = promises.tending.is_some();
    match rng.random_range(0..100) {
        0..3 => Some(Intent::Restore(format!("r{number}"), pools.point(rng, newest))),
        3..6 if saved.is_none() || rng.random_bool(0.3) => Some(Intent::Save(format!("s{number}"))),
        6..7 => saved.map(|(name, _)| Intent::Release(name)),
        7..12 => saved.map(|(name, commit)| {
            let point = Point::at_commit(commit);
            let keys = (0..3).map(|_| pools.key(rng)).collect();
            let question = match rng.random_bool(0.5) {
                true => Question::Get(keys, point),
                false => Question::Scan(point),
            };
            Intent::ReadSaved(question, name)
        }),
        12..15 if promises.tending.is_some_and(|tending| tending.erases) => Some(Intent::Erase {
            key: (*ERASABLE.choose(rng).unwrap()).to_owned(),
            now: rng.random_bool(0.3),
        }),
        15..19 if is_tended && held.is_none() => Some(Intent::Hold),
        19..27 if is_tended => Some(Intent::Maintain(MaintainStep::ALL.to_vec())),
        _ => None,
    }
}

/// What a process does next.
pub fn intent(
    rng: &mut StdRng,
    pools: &Pools,
    shape: &mut Shape,
    newest: i64,
    attempt: usize,
) -> Intent {
    if rng.random_bool(0.01) {
        shape.grown |= rng.random_bool(0.5);
        shape.b |= rng.random_bool(0.5);
    }
    match rng.random_range(0..100) {
        0..40 => {
            let rows = pools.rows(rng, *shape, attempt);
            let shape = shape_of(&rows, *shape);
            let typed = rng.random_bool(0.2);
            Intent::Append { attempt, rows, shape, typed }
        }
        40..55 => {
            let app = format!("app/{}", rng.random_range(0..2));
            let rows = pools.rows(rng, *shape, attempt);
            let shape = shape_of(&rows, *shape);
            Intent::Epoch { attempt, app, number: 0, rows, shape }
        }
        55..65 => Intent::Materialize { rebuild: rng.random_bool(0.1) },
        65..68 => Intent::Maintain(MaintainStep::ALL.to_vec()),
        68..72 => Intent::Maintain(vec![*MaintainStep::ALL.choose(rng).unwrap()]),
        72..75 => Intent::Maintain(vec![MaintainStep::Compact]),
        75..78 => Intent::Optimize,
        _ => Intent::Read(pools.question(rng, newest)),
    }
}

/// Settings of a process.
pub fn settings(rng: &mut StdRng) -> StoreSettings {
    StoreSettings {
        durability: Durability::Os,
        memory_budget_bytes: *[10_000, 1 << 20, 1 << 28].choose(rng).unwrap(),
        tail_bytes: *[0, 2_000, 1 << 20].choose(rng).unwrap(),
        footer_cache_bytes: *[0, 1 << 20].choose(rng).unwrap(),
        page_cache_bytes: *[0, 1 << 20].choose(rng).unwrap(),
        partitions: 2,
        batch_rows: *[1, 50, 8_192].choose(rng).unwrap(),
        row_cache_bytes: *[0, 2_000, 1 << 20].choose(rng).unwrap(),
        epoch_bytes: *[1, 400, 1 << 20].choose(rng).unwrap(),
        tidy_after_commits: *[0, 0, 6].choose(rng).unwrap(),
        layout: LayoutSettings {
            small_state_rows: *[0, 40].choose(rng).unwrap(),
            file_rows: *[5, 40].choose(rng).unwrap(),
            lookup_rows: *[0, 16_384].choose(rng).unwrap(),
            compacted_file_rows: *[11, 60].choose(rng).unwrap(),
        },
        ..StoreSettings::default()
    }
}
