//! The state loop of a stream on a typed state, against a bare hash map with nothing durable, and against the least that a
//! durable one can cost: the same map, and one Parquet file and one log entry for each epoch.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use alluvium::{Store, StoreSettings};
use alluvium_benches::{
    Events, Figures, Floor, Loop, Outcome, Place, UserStatus, Workload, alluvium_loop, logins,
};

use crate::Setup;

/// Bytes of the row cache, which holds all of the state.
const WHOLE_CACHE_BYTES: u64 = 1 << 30;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("state_loop");
    let place = setup.place("state_loop")?;
    let work = Workload {
        events: setup.pick(2_000_000, 500_000),
        keys: setup.pick(1_000_000, 250_000),
        epoch_events: 10_000,
    };
    let rate = |side: &str, metric: &str, work: Workload, took: Duration| {
        figures.line(side, metric, work.rate(took) / 1e3, "k events/s", work.events);
    };
    let bare = hash_map(work, |_| Ok(()))?;
    rate("hash map", "state loop, nothing durable", work, bare);
    let durable = durable_floor(&place, work)?;
    rate("floor", "state loop, a file and an entry per epoch", work, durable);
    for (how, name) in [(Loop::Stream, "stream"), (Loop::OneByOne, "epochs one by one")] {
        let took = ours(&figures, &place, name, work, how).await?;
        rate("alluvium", &format!("state loop, {name}"), work, took);
        figures.ratio("floor", &format!("state loop, {name}"), durable.div_duration_f64(took), 1.0);
        figures.ratio("hash map", &format!("state loop, {name}"), bare.div_duration_f64(took), 0.3);
    }
    Ok(())
}

/// Our side in a store of its own.
async fn ours(
    figures: &Figures,
    place: &Place,
    name: &str,
    work: Workload,
    how: Loop,
) -> Outcome<Duration> {
    let folder = place.path(&name.replace(' ', "-"));
    let settings = StoreSettings { row_cache_bytes: WHOLE_CACHE_BYTES, ..StoreSettings::default() };
    let store = Store::builder(&folder.display().to_string()).settings(settings).open().await?;
    let users = store.state::<UserStatus>("users").await?;
    let started = Instant::now();
    alluvium_loop(&store, &users, work, how).await?;
    let took = started.elapsed();
    let stats = users.row_cache_stats();
    let hits = stats.hits as f64 / (stats.hits + stats.misses).max(1) as f64;
    figures.line("alluvium", &format!("hit rate, {name}"), hits, "of 1", work.events);
    figures.line(
        "alluvium",
        &format!("bytes of a cached row, {name}"),
        stats.bytes as f64 / stats.rows.max(1) as f64,
        "bytes",
        1,
    );
    store.close().await;
    let seen = logins(&users).await?;
    match seen == i64::try_from(work.events)? {
        true => Ok(took),
        false => Err(format!("{name}: {seen} logins for {} events", work.events).into()),
    }
}

/// A plain map; `epoch_end` is given the users that changed.
fn hash_map(work: Workload, mut epoch_end: impl FnMut(&[u64]) -> Outcome<()>) -> Outcome<Duration> {
    let mut users: HashMap<String, UserStatus> = HashMap::new();
    let mut key = String::new();
    let started = Instant::now();
    for events in work.epochs() {
        let changed: Vec<u64> = events.iter().map(|event| event.user).collect();
        for event in events {
            event.key_into(&mut key);
            let before = users.get(key.as_str()).cloned();
            let after = UserStatus::after(before, event);
            match users.get_mut(key.as_str()) {
                Some(user) => *user = after,
                None => drop(users.insert(key.clone(), after)),
            }
        }
        epoch_end(&changed)?;
    }
    Ok(started.elapsed())
}

fn durable_floor(place: &Place, work: Workload) -> Outcome<Duration> {
    let mut floor = Floor::new(&place.path("floor"))?;
    let mut rows = Events::seeded(8);
    hash_map(work, |changed| floor.commit(&rows.of_keys(changed)?))
}
