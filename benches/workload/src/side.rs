//! What is measured of a store of others: the loop, gets, opening again, and the same with a state four times the cache.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::events::{Event, UserStatus, Workload};

/// Events of an epoch that fills a state.
const FILL_EVENTS: usize = 100_000;
/// Bytes of a row of the state as others keep it: the key, [`encode`]'s bytes, and what a block holds beside them.
const ROW_BYTES: u64 = 44;
/// Gets that are measured: of a state in memory, and of one four times the cache.
const GETS: (usize, usize) = (100_000, 20_000);

/// A store that the state loop runs on.
pub trait Side: Sized {
    /// Opens the store in a folder, which is made when there is none; with a bound, its cache holds no more bytes.
    fn open(folder: &Path, cache_bytes: Option<u64>) -> Outcome<Self>;

    /// Gets the value of each event's user, changes it and puts it back; all is durable when it returns.
    fn epoch(&mut self, events: &[Event]) -> Outcome<()>;

    /// How long a get of each of these keys took; a key that is not there is an error.
    fn gets(&self, keys: &[String]) -> Outcome<Vec<Duration>>;

    /// How often users were seen, by a scan of the state: as often as there were events.
    fn logins(&self) -> Outcome<i64>;

    /// Closes it in an orderly way.
    fn close(self) -> Outcome<()>;
}

/// What came of it. Durations are in seconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Measured {
    /// The state loop with all of the state in memory.
    pub whole_loop: f64,
    /// The middle one of many gets after it.
    pub whole_get: f64,
    /// Opening the store again and the first get.
    pub reopen: f64,
    /// The loop over a fifth of the events, with a state four times the cache.
    pub large_loop: f64,
    /// The middle one of many gets after it.
    pub large_get: f64,
    /// The same loop with a cache of as many bytes as Alluvium's caches have together.
    pub same_loop: f64,
    /// The middle one of many gets after it.
    pub same_get: f64,
}

/// Measures a store in folders of its own below a folder.
pub fn measure<S: Side>(folder: &Path, work: Workload) -> Outcome<Measured> {
    let (whole, large) = (folder.join("whole"), folder.join("large"));
    let keys = work.some_keys(GETS.0);
    let mut side = S::open(&whole, None)?;
    let whole_loop = run(&mut side, work.epochs())?;
    check(&side, work.events)?;
    let whole_get = median(side.gets(&keys)?);
    side.close()?;
    let started = Instant::now();
    let side = S::open(&whole, None)?;
    side.gets(&keys[..1])?;
    let reopen = started.elapsed();
    check(&side, work.events)?;
    side.close()?;
    std::fs::remove_dir_all(whole)?;

    let (large_loop, large_get) = larger::<S>(&large, work, work.keys * ROW_BYTES / 4)?;
    let (same_loop, same_get) = larger::<S>(&large, work, work.caches_bytes())?;
    Ok(Measured {
        whole_loop: whole_loop.as_secs_f64(),
        whole_get: whole_get.as_secs_f64(),
        reopen: reopen.as_secs_f64(),
        large_loop: large_loop.as_secs_f64(),
        large_get: large_get.as_secs_f64(),
        same_loop: same_loop.as_secs_f64(),
        same_get: same_get.as_secs_f64(),
    })
}

/// The loop over a fifth of the events, and gets after it, on a state that was filled before, with a cache of so many bytes.
fn larger<S: Side>(
    folder: &Path,
    work: Workload,
    cache_bytes: u64,
) -> Outcome<(Duration, Duration)> {
    let mut side = S::open(folder, Some(cache_bytes))?;
    run(&mut side, work.every_user(FILL_EVENTS))?;
    side.close()?;
    // Opened again, so that what filled it is in files.
    let mut side = S::open(folder, Some(cache_bytes))?;
    let part = work.part();
    let took = run(&mut side, part.epochs())?;
    check(&side, part.events + usize::try_from(work.keys)?)?;
    let get = median(side.gets(&spread(work, GETS.1))?);
    side.close()?;
    std::fs::remove_dir_all(folder)?;
    Ok((took, get))
}

/// Keys from the whole state.
fn spread(work: Workload, count: usize) -> Vec<String> {
    Workload { events: count, epoch_events: count, ..work }.some_keys(count)
}

fn run(side: &mut impl Side, epochs: impl Iterator<Item = Vec<Event>>) -> Outcome<Duration> {
    let started = Instant::now();
    for events in epochs {
        side.epoch(&events)?;
    }
    Ok(started.elapsed())
}

fn check(side: &impl Side, events: usize) -> Outcome<()> {
    let logins = side.logins()?;
    match logins == i64::try_from(events)? {
        true => Ok(()),
        false => Err(format!("{logins} logins for {events} events").into()),
    }
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took.get(took.len() / 2).copied().unwrap_or_default()
}

/// A value as bytes: two numbers and the text.
pub fn encode(user: &UserStatus, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend(user.login_count.to_le_bytes());
    bytes.extend(user.score.to_le_bytes());
    bytes.extend(user.source.as_bytes());
}

/// What [`encode`] wrote.
pub fn decode(bytes: &[u8]) -> Outcome<UserStatus> {
    let (count, rest) = bytes.split_first_chunk().ok_or("a short value")?;
    let (score, source) = rest.split_first_chunk().ok_or("a short value")?;
    Ok(UserStatus {
        login_count: i64::from_le_bytes(*count),
        score: f64::from_le_bytes(*score),
        source: std::str::from_utf8(source)?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;

    /// A map that a file holds after each epoch, and forgets some of it when asked to.
    struct Map {
        file: std::path::PathBuf,
        users: BTreeMap<String, UserStatus>,
        forgets: bool,
    }

    impl Side for Map {
        fn open(folder: &Path, cache_bytes: Option<u64>) -> Outcome<Self> {
            std::fs::create_dir_all(folder)?;
            let file = folder.join("map");
            let mut users = BTreeMap::new();
            if let Ok(text) = std::fs::read_to_string(&file) {
                for line in text.lines() {
                    let (key, count) = line.split_once(' ').ok_or("a damaged line")?;
                    let user = UserStatus { login_count: count.parse()?, ..UserStatus::default() };
                    users.insert(key.to_owned(), user);
                }
            }
            let forgets = cache_bytes.is_some() && folder.to_string_lossy().contains("forgetful");
            Ok(Self { file, users, forgets })
        }

        fn epoch(&mut self, events: &[Event]) -> Outcome<()> {
            for &event in events.iter().skip(usize::from(self.forgets)) {
                let before = self.users.get(&event.key()).cloned();
                self.users.insert(event.key(), UserStatus::after(before, event));
            }
            let lines: Vec<String> = self
                .users
                .iter()
                .map(|(key, user)| format!("{key} {}\n", user.login_count))
                .collect();
            Ok(std::fs::write(&self.file, lines.concat())?)
        }

        fn gets(&self, keys: &[String]) -> Outcome<Vec<Duration>> {
            keys.iter()
                .map(|key| {
                    let started = Instant::now();
                    self.users
                        .get(key)
                        .map(|_| started.elapsed())
                        .ok_or(format!("{key} is gone").into())
                })
                .collect()
        }

        fn logins(&self) -> Outcome<i64> {
            Ok(self.users.values().map(|user| user.login_count).sum())
        }

        fn close(self) -> Outcome<()> {
            Ok(())
        }
    }

    fn folder(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("alluvium-workload-{}-{name}", std::process::id()))
    }

    const WORK: Workload = Workload { events: 500, keys: 40, epoch_events: 60 };

    #[test]
    fn a_side_that_does_the_work_is_measured() {
        let folder = folder("sound");
        let measured = measure::<Map>(&folder, WORK).unwrap();
        assert!(measured.whole_loop > 0.0 && measured.large_loop > 0.0, "{measured:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_side_that_loses_events_is_found_out() {
        let folder = folder("forgetful");
        let error = measure::<Map>(&folder, WORK).unwrap_err();
        assert!(error.to_string().contains("logins for"), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn values_come_back() {
        let user = UserStatus { login_count: 7, score: 0.5, source: "web".to_owned() };
        let mut bytes = Vec::new();
        encode(&user, &mut bytes);
        assert_eq!(decode(&bytes).unwrap(), user);
        assert!(decode(&bytes[..12]).is_err());
    }
}
