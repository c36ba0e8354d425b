//! Seeded events, and the change that each makes to a value.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// What a row of this state takes in Alluvium's row cache, which holds a quarter of the state where the state is larger.
const CACHED_ROW_BYTES: u64 = 160;
/// Alluvium's cache of decoded pages, which is there besides; it is this large by default.
const PAGE_CACHE_BYTES: u64 = 64 * 1024 * 1024;
const SOURCES: [&str; 6] = ["web", "ios", "android", "api", "batch", "partner"];

/// A value of the state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UserStatus {
    /// How often the user was seen.
    pub login_count: i64,
    /// A number that every event changes.
    pub score: f64,
    /// Where the user was seen last.
    pub source: String,
}

impl UserStatus {
    /// The value after one more event.
    pub fn after(before: Option<Self>, event: Event) -> Self {
        let mut user = before.unwrap_or_default();
        user.login_count += 1;
        user.score = user.score * 0.5 + event.score;
        event.source.clone_into(&mut user.source);
        user
    }
}

/// One event.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// The number of the user.
    pub user: u64,
    score: f64,
    source: &'static str,
}

impl Event {
    fn of(user: u64, rng: &mut StdRng) -> Self {
        Self { user, score: rng.random(), source: SOURCES[rng.random_range(0..SOURCES.len())] }
    }

    /// Writes the user's key into a buffer that is used again and again.
    pub fn key_into(self, key: &mut String) {
        use std::fmt::Write;
        key.clear();
        // Writing to a text can't fail.
        write!(key, "user-{:010}", self.user).ok();
    }

    /// The user's key.
    pub fn key(self) -> String {
        let mut key = String::new();
        self.key_into(&mut key);
        key
    }
}

/// How much work.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Workload {
    /// Events in all.
    pub events: usize,
    /// Different keys, drawn uniformly.
    pub keys: u64,
    /// Events of an epoch.
    pub epoch_events: usize,
}

impl Workload {
    /// The events, epoch by epoch.
    pub fn epochs(self) -> impl Iterator<Item = Vec<Event>> {
        let mut rng = StdRng::seed_from_u64(77);
        (0..self.events.div_ceil(self.epoch_events)).map(move |epoch| {
            let left = self.events - epoch * self.epoch_events;
            (0..left.min(self.epoch_events))
                .map(|_| {
                    let user = rng.random_range(0..self.keys);
                    Event::of(user, &mut rng)
                })
                .collect()
        })
    }

    /// One event of each user, in epochs of so many: what fills a state.
    pub fn every_user(self, epoch_events: usize) -> impl Iterator<Item = Vec<Event>> {
        let mut rng = StdRng::seed_from_u64(78);
        (0..self.keys).step_by(epoch_events).map(move |first| {
            let users = first..self.keys.min(first + epoch_events as u64);
            users.map(|user| Event::of(user, &mut rng)).collect()
        })
    }

    /// A fifth of the events, which is enough where each get costs more.
    pub fn part(self) -> Self {
        Self { events: self.events / 5, ..self }
    }

    /// Bytes of the row cache where it holds a quarter of the state.
    pub fn row_cache_bytes(self) -> u64 {
        self.keys * CACHED_ROW_BYTES / 4
    }

    /// Bytes of the row cache then and of the cache of pages.
    pub fn caches_bytes(self) -> u64 {
        self.row_cache_bytes() + PAGE_CACHE_BYTES
    }

    /// Keys that the events of a loop have surely put, all over the state.
    pub fn some_keys(self, count: usize) -> Vec<String> {
        self.epochs().flatten().take(count).map(Event::key).collect()
    }

    /// Events per second.
    pub fn rate(self, took: std::time::Duration) -> f64 {
        self.events as f64 / took.as_secs_f64()
    }
}
