//! The state loop of a stream: get a key's value, change it, put it back; an epoch every so many events.
//!
//! Every side works through the same seeded events with the same change, and is asked for the same sum at the end.

use alluvium::{State, Store};
use futures::TryStreamExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::Outcome;

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
    /// Writes the user's key into a buffer that is used again and again.
    pub fn key_into(self, key: &mut String) {
        use std::fmt::Write;
        key.clear();
        // Writing to a text can't fail.
        write!(key, "user-{:010}", self.user).ok();
    }
}

/// How much work.
#[derive(Debug, Clone, Copy)]
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
                .map(|_| Event {
                    user: rng.random_range(0..self.keys),
                    score: rng.random(),
                    source: SOURCES[rng.random_range(0..SOURCES.len())],
                })
                .collect()
        })
    }

    /// Events per second.
    pub fn rate(self, took: std::time::Duration) -> f64 {
        self.events as f64 / took.as_secs_f64()
    }
}

/// How our side goes through the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loop {
    /// The next epoch is filled while the one before is made durable.
    Stream,
    /// The same, and the keys of an epoch are read at once before it is filled.
    Prefetch,
    /// Each epoch is durable before the next one begins.
    OneByOne,
}

/// Our side; all is durable when it returns.
pub async fn alluvium_loop(
    store: &Store,
    users: &State<UserStatus>,
    work: Workload,
    how: Loop,
) -> Outcome<()> {
    let mut stream = store.epochs("bench");
    let mut key = String::new();
    for (number, events) in (1_i64..).zip(work.epochs()) {
        let mut epoch = match how {
            Loop::OneByOne => store.epoch("bench", number),
            _ => stream.begin(number).await?,
        };
        if how == Loop::Prefetch {
            let keys: Vec<String> =
                events.iter().map(|event| crate::key_text(event.user)).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            epoch.prefetch(users, &keys).await?;
        }
        for event in events {
            event.key_into(&mut key);
            let before = epoch.get(users, &key).await?;
            epoch.put(users, &key, UserStatus::after(before, event)).await?;
        }
        match how {
            Loop::OneByOne => drop(epoch.commit().await?),
            _ => stream.submit(epoch).await?,
        }
    }
    stream.flush().await?;
    Ok(())
}

/// How often users were seen, by the state: as often as there were events.
pub async fn logins(users: &State<UserStatus>) -> Outcome<i64> {
    let mut rows = users.scan("").await?;
    let mut sum = 0;
    while let Some(entry) = rows.try_next().await? {
        sum += entry.value.login_count;
    }
    Ok(sum)
}
