//! The state loop of a stream on a state four times the row cache: its keys prefetched, key by key, and key by key with a quarter
//! of the pages in memory too; and what a get costs there.

use std::time::Instant;

use alluvium::{State, Store, StoreSettings};
use alluvium_benches::{
    Events, Figures, Loop, Outcome, Place, Samples, UserStatus, Workload, alluvium_loop, logins,
};

use crate::Setup;

/// What a key takes in decoded pages, about.
const PAGE_BYTES_OF_A_KEY: u64 = 76;
/// Gets of keys from all over the state.
const GETS: usize = 50_000;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("state_larger");
    let place = setup.place("state_larger")?;
    let work = Workload {
        events: setup.pick(1_000_000, 250_000),
        keys: setup.pick(1_000_000, 250_000),
        epoch_events: 10_000,
    };
    let usual = StoreSettings::default().page_cache_bytes;
    let quarter = work.keys * PAGE_BYTES_OF_A_KEY / 4;
    for (how, name, page_cache_bytes) in [
        (Loop::Prefetch, "prefetched", usual),
        (Loop::Stream, "key by key", usual),
        (Loop::Stream, "key by key, a quarter of the pages in memory", quarter),
    ] {
        side(&figures, &place, name, work, how, page_cache_bytes).await?;
    }
    Ok(())
}

async fn side(
    figures: &Figures,
    place: &Place,
    name: &str,
    work: Workload,
    how: Loop,
    page_cache_bytes: u64,
) -> Outcome<()> {
    let folder = place.path(&name.replace([' ', ','], "-"));
    let row_cache_bytes = work.row_cache_bytes();
    let settings = StoreSettings { row_cache_bytes, page_cache_bytes, ..StoreSettings::default() };
    let store = Store::builder(&folder.display().to_string()).settings(settings).open().await?;
    let users = store.state::<UserStatus>("users").await?;
    for batch in Events::seeded(5).every_key(work.keys, 100_000)? {
        users.raw().append(&batch).await?;
    }
    users.raw().materialize(false).await?;
    let before = logins(&users).await?;
    let seen = |metric: &str, value: f64, unit: &str| {
        figures.line("alluvium", &format!("{metric}, {name}"), value, unit, work.events);
    };
    seen("page cache's budget", page_cache_bytes as f64 / work.keys as f64, "bytes a key");
    if how == Loop::Stream {
        let got = gets(&users, work).await?;
        seen("get, p50", got.median() * 1e6, "us");
        seen("get, p99", got.percentile(0.99) * 1e6, "us");
    }
    let (rows, pages) = (users.row_cache_stats(), users.raw().reader().pages().stats());
    let started = Instant::now();
    alluvium_loop(&store, &users, work, how).await?;
    let took = started.elapsed();
    let rate = |hits: u64, misses: u64| hits as f64 / (hits + misses).max(1) as f64;
    let rows_now = users.row_cache_stats();
    let pages_now = users.raw().reader().pages().stats();
    seen("state loop", work.rate(took) / 1e3, "k events/s");
    let of_rows = rate(rows_now.hits - rows.hits, rows_now.misses - rows.misses);
    seen("hits of the row cache", of_rows, "of 1");
    let of_pages = rate(pages_now.hits - pages.hits, pages_now.misses - pages.misses);
    seen("hits of the page cache", of_pages, "of 1");
    seen("bytes in the page cache", pages_now.bytes as f64 / work.keys as f64, "bytes a key");
    let spilled = pages_now.spill_hits - pages.spill_hits;
    seen("rows read from spilled pages", spilled as f64 / work.events as f64, "an event");
    seen("bytes of spilled pages", pages_now.spill_bytes as f64 / work.keys as f64, "bytes a key");
    store.close().await;
    let logins = logins(&users).await? - before;
    match logins == i64::try_from(work.events)? {
        true => Ok(()),
        false => Err(format!("{name}: {logins} logins for {} events", work.events).into()),
    }
}

/// Gets of random keys, each of which looks whether anything newer is committed.
async fn gets(users: &State<UserStatus>, work: Workload) -> Outcome<Samples> {
    let spread = Workload { events: GETS, epoch_events: GETS, ..work };
    let mut samples = Samples::default();
    for key in spread.some_keys(GETS) {
        let started = Instant::now();
        let found = users.get(&key).await;
        samples.push(started.elapsed());
        if found?.is_none() {
            return Err(format!("{key} is gone").into());
        }
    }
    Ok(samples)
}
