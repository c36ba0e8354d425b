//! Gets of a typed state whose row the cache has: always fresh, inside an epoch, and while others commit.

use std::time::{Duration, Instant};

use alluvium::{OrderBy, State, Store};
use alluvium_benches::{
    Events, Figures, Outcome, STATE, Samples, UserStatus, distinct_keys, key_text,
};

use crate::Setup;

/// Keys of the state, all of which the cache holds.
const KEYS: u64 = 100_000;
/// From one commit of another process to the next.
const COMMIT_EVERY: Duration = Duration::from_millis(10);

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("get_cached");
    let place = setup.place("get_cached")?;
    let mut events = Events::seeded(9);
    let all = events.every_key(KEYS, 50_000)?;
    let (store, _) = place.loaded_state("store", OrderBy::Version, &all).await?;
    let users = store.state::<UserStatus>(STATE).await?;
    let count = setup.pick(1_000_000, 200_000);
    let keys: Vec<String> = distinct_keys(13, 50_000, KEYS).into_iter().map(key_text).collect();
    let warm: Vec<&str> = keys.iter().map(String::as_str).collect();
    users.multi_get(&warm).await?;
    let fresh = gets(&users, &keys, count).await?;
    latency(&figures, "get, cached", &fresh);
    figures.ratio("1 us", "get, cached, p50", 1e-6 / fresh.median(), 1.0);
    let inside = epoch_gets(&store, &users, &keys, count).await?;
    latency(&figures, "get, cached, inside an epoch", &inside);
    let (other, raw) = place.reopen("store").await?;
    let writer = tokio::spawn(async move {
        loop {
            raw.append(&events.random(1, KEYS)?).await?;
            tokio::time::sleep(COMMIT_EVERY).await;
        }
        #[allow(unreachable_code)]
        Outcome::Ok(())
    });
    let raced = gets(&users, &keys, count).await?;
    writer.abort();
    latency(&figures, "get, cached, another process commits every 10 ms", &raced);
    other.close().await;
    store.close().await;
    Ok(())
}

fn latency(figures: &Figures, metric: &str, samples: &Samples) {
    let line = |name: &str, share: f64| {
        let metric = format!("{metric} {name}");
        figures.line("alluvium", &metric, samples.percentile(share) * 1e9, "ns", samples.len());
    };
    line("p50", 0.5);
    line("p99", 0.99);
}

async fn gets(users: &State<UserStatus>, keys: &[String], count: usize) -> Outcome<Samples> {
    let mut samples = Samples::default();
    for key in keys.iter().cycle().take(count) {
        let started = Instant::now();
        let found = users.get(key).await;
        samples.push(started.elapsed());
        if found?.is_none() {
            return Err(format!("{key} is gone").into());
        }
    }
    Ok(samples)
}

async fn epoch_gets(
    store: &Store,
    users: &State<UserStatus>,
    keys: &[String],
    count: usize,
) -> Outcome<Samples> {
    let mut samples = Samples::default();
    let mut epoch = store.epoch("bench", 1);
    for key in keys.iter().cycle().take(count) {
        let started = Instant::now();
        let found = epoch.get(users, key).await;
        samples.push(started.elapsed());
        if found?.is_none() {
            return Err(format!("{key} is gone").into());
        }
    }
    Ok(samples)
}
