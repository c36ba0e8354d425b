//! Our side of the state loop.

use std::path::{Path, PathBuf};
use std::time::Instant;

use alluvium::{State, Store, StoreSettings};
use alluvium_benches::{Events, Loop, Outcome, Samples, UserStatus, alluvium_loop, logins};
use alluvium_workload::Workload;

/// Bytes of the row cache that holds all of the state, as the others' memory tables and caches do.
const WHOLE_CACHE_BYTES: u64 = 1 << 30;
const WHOLE_GETS: usize = 100_000;
/// Gets of a state four times the cache.
pub(crate) const LARGE_GETS: usize = 20_000;

/// With all of the state in memory; durations are in seconds.
pub(crate) struct Whole {
    pub(crate) seconds: f64,
    pub(crate) get: f64,
    pub(crate) reopen: f64,
}

/// With a state four times the row cache.
pub(crate) struct Large {
    pub(crate) seconds: f64,
    pub(crate) get: f64,
}

async fn open(folder: &Path, row_cache_bytes: u64) -> Outcome<(Store, State<UserStatus>)> {
    let settings = StoreSettings { row_cache_bytes, ..StoreSettings::default() };
    let store = Store::builder(&folder.display().to_string()).settings(settings).open().await?;
    let users = store.state::<UserStatus>("users").await?;
    Ok((store, users))
}

/// The loop, gets of what the cache holds, and opening again.
pub(crate) async fn whole(folder: PathBuf, work: Workload, how: Loop) -> Outcome<Whole> {
    let (store, users) = open(&folder, WHOLE_CACHE_BYTES).await?;
    let started = Instant::now();
    alluvium_loop(&store, &users, work, how).await?;
    let seconds = started.elapsed().as_secs_f64();
    store.close().await;
    let seen = logins(&users).await?;
    if seen != i64::try_from(work.events)? {
        return Err(format!("alluvium: {seen} logins for {} events", work.events).into());
    }
    let keys = work.some_keys(WHOLE_GETS);
    let get = gets(&users, &keys).await?.median();
    drop((users, store));
    let started = Instant::now();
    let (store, users) = open(&folder, WHOLE_CACHE_BYTES).await?;
    gets(&users, &keys[..1]).await?;
    let reopen = started.elapsed().as_secs_f64();
    store.close().await;
    std::fs::remove_dir_all(folder)?;
    Ok(Whole { seconds, get, reopen })
}

/// The loop with a row cache of a quarter of the state, on a state that was filled before.
pub(crate) async fn large(folder: PathBuf, work: Workload, how: Loop) -> Outcome<Large> {
    let (store, users) = open(&folder, 0).await?;
    for batch in Events::seeded(5).every_key(work.keys, 100_000)? {
        users.raw().append(&batch).await?;
    }
    users.raw().materialize(false).await?;
    store.close().await;
    drop((users, store));
    let (store, users) = open(&folder, work.row_cache_bytes()).await?;
    let part = work.part();
    let before = logins(&users).await?;
    let started = Instant::now();
    alluvium_loop(&store, &users, part, how).await?;
    let seconds = started.elapsed().as_secs_f64();
    let seen = logins(&users).await? - before;
    if seen != i64::try_from(part.events)? {
        return Err(format!("alluvium: {seen} logins for {} events", part.events).into());
    }
    let spread = Workload { events: LARGE_GETS, epoch_events: LARGE_GETS, ..work };
    let get = gets(&users, &spread.some_keys(LARGE_GETS)).await?.median();
    store.close().await;
    std::fs::remove_dir_all(folder)?;
    Ok(Large { seconds, get })
}

async fn gets(users: &State<UserStatus>, keys: &[String]) -> Outcome<Samples> {
    let mut samples = Samples::default();
    for key in keys {
        let started = Instant::now();
        let found = users.get(key).await;
        samples.push(started.elapsed());
        if found?.is_none() {
            return Err(format!("{key} is gone").into());
        }
    }
    Ok(samples)
}
