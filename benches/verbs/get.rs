//! Point gets, present and absent, from the snapshot and from the tail, against DataFusion over delta-rs on the same snapshot.

use alluvium::{Lookup, OrderBy, Point, RawState, Store, StoreSettings};
use alluvium_benches::{
    Events, Figures, KEYS, Outcome, Place, STATE, Samples, count_rows, distinct_keys, key_text,
    open_table, table_session, timed,
};
use datafusion::prelude::SessionContext;

use crate::Setup;

/// Keys of the large state.
const LARGE_KEYS: u64 = 10_000_000;
const LARGE_BATCH: usize = 100_000;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("get");
    let place = setup.place("get")?;
    let mut events = Events::seeded(6);
    let all = events.every_key(KEYS, 100_000)?;
    let (store, state) = place.loaded_state("store", OrderBy::Version, &all).await?;
    let table = open_table(&place.snapshot("store")).await?;
    let peer = table_session("snapshot", &table).await?;
    let (ours, theirs) = (setup.pick(5_000, 2_000), setup.pick(200, 60));
    // Footers and filters of all files are in memory from here on.
    gets(&state, &spread(200), true).await?;
    let present: Vec<String> = distinct_keys(11, ours, KEYS).into_iter().map(key_text).collect();
    let absent: Vec<String> = present.iter().map(|key| format!("{key}-none")).collect();
    let found = gets(&state, &present, true).await?;
    let missed = gets(&state, &absent, false).await?;
    let pinned = pinned_gets(&state, &present).await?;
    let their_found = peer_gets(&peer, &present[..theirs], 1).await?;
    let their_missed = peer_gets(&peer, &absent[..theirs], 0).await?;
    figures.latency("alluvium", "get, present", &found);
    figures.latency("alluvium", "get, absent", &missed);
    figures.latency("alluvium", "get, present, basis pinned before", &pinned);
    figures.latency("datafusion", "get, present", &their_found);
    figures.latency("datafusion", "get, absent", &their_missed);
    figures.times("datafusion", "get, present", &their_found, &found, 5.0);
    figures.times("datafusion", "get, absent", &their_missed, &missed, 5.0);
    let tail = distinct_keys(12, 10_000, KEYS);
    state.append(&events.of_keys(&tail)?).await?;
    let newest: Vec<String> = tail.iter().take(ours).map(|&number| key_text(number)).collect();
    gets(&state, &newest[..1], true).await?;
    let from_tail = gets(&state, &newest, true).await?;
    figures.latency("alluvium", "get, key in a tail of 10k rows", &from_tail);
    figures.times("datafusion", "get, key in a tail of 10k rows", &their_found, &from_tail, 5.0);
    let beside = gets(&state, &present[..ours / 2], true).await?;
    figures.latency("alluvium", "get, any key, beside a tail", &beside);
    state.materialize(false).await?;
    gets(&state, &spread(200), true).await?;
    let with_run = gets(&state, &present[..ours / 2], true).await?;
    figures.latency("alluvium", "get, present, base and a run", &with_run);
    figures.times("datafusion", "get, present, base and a run", &their_found, &with_run, 5.0);
    store.close().await;
    uncached(&figures, &place, "store", KEYS, ours).await?;
    if setup.quick {
        return Ok(());
    }
    let (store, state) = place.new_state("large", OrderBy::Version).await?;
    for first in (0..LARGE_KEYS).step_by(LARGE_BATCH) {
        let numbers: Vec<u64> = (first..first + LARGE_BATCH as u64).collect();
        state.append(&events.of_keys(&numbers)?).await?;
    }
    state.materialize(false).await?;
    store.close().await;
    uncached(&figures, &place, "large", LARGE_KEYS, ours).await
}

/// Footers in memory, and no page: every get reads and decodes one; then with the page cache as it is by default.
async fn uncached(
    figures: &Figures,
    place: &Place,
    name: &str,
    keys: u64,
    count: usize,
) -> Outcome<()> {
    let present: Vec<String> = distinct_keys(15, count, keys).into_iter().map(key_text).collect();
    let by_default = StoreSettings::default().page_cache_bytes;
    for (page_cache_bytes, which) in [(0, "no page in memory"), (by_default, "pages as by default")]
    {
        let settings = StoreSettings { page_cache_bytes, ..StoreSettings::default() };
        let uri = place.path(name).display().to_string();
        let store = Store::builder(&uri).settings(settings).open().await?;
        let state = store.raw_state(STATE).await?;
        let over_all: Vec<String> = (0..200).map(|at| key_text(at * (keys / 200))).collect();
        gets(&state, &over_all, true).await?;
        let found = gets(&state, &present, true).await?;
        let metric = format!("get, present, {} M keys, {which}", keys / 1_000_000);
        figures.latency("alluvium", &metric, &found);
        figures.ratio("200 us", &metric, 200e-6 / found.median(), 1.0);
        store.close().await;
    }
    Ok(())
}

/// Keys all over the state.
fn spread(count: u64) -> Vec<String> {
    (0..count).map(|place| key_text(place * (KEYS / count))).collect()
}

async fn gets(state: &RawState, keys: &[String], present: bool) -> Outcome<Samples> {
    let mut samples = Samples::default();
    for key in keys {
        let (found, took) = timed(state.get(Point::LATEST, key)).await;
        samples.push(took);
        check(found?, key, present)?;
    }
    Ok(samples)
}

async fn pinned_gets(state: &RawState, keys: &[String]) -> Outcome<Samples> {
    let reader = state.reader();
    let basis = reader.basis().await?;
    let mut samples = Samples::default();
    for key in keys {
        let (found, took) = timed(reader.get(&basis, Point::LATEST, key)).await;
        samples.push(took);
        check(found?, key, true)?;
    }
    Ok(samples)
}

fn check(found: Lookup, key: &str, present: bool) -> Outcome<()> {
    match found.found().is_some() == present {
        true => Ok(()),
        false => Err(format!("{key}: present should be {present}").into()),
    }
}

async fn peer_gets(context: &SessionContext, keys: &[String], rows: usize) -> Outcome<Samples> {
    let mut samples = Samples::default();
    for key in keys {
        let query = format!("SELECT * FROM snapshot WHERE state_key = '{key}'");
        let (found, took) = timed(count_rows(context, &query)).await;
        samples.push(took);
        if found? != rows {
            return Err(
                format!("{key}: DataFusion finds another number of rows than {rows}").into()
            );
        }
    }
    Ok(samples)
}
