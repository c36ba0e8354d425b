//! How a read of the past grows with its depth: gets and scans as of versions further and further back, with a snapshot made
//! after each tenth of the history, and from the log alone.

use alluvium::{OrderBy, Point, RawState};
use alluvium_benches::{
    Events, Figures, KEYS, Outcome, Samples, distinct_keys, key_text, scan_rows, timed,
};

use crate::Setup;

const BATCHES: usize = 40;
/// How far back of the newest version, in percent of the history. Those with a half lie between snapshots.
const DEPTHS: [f64; 10] = [0.0, 1.0, 2.5, 5.0, 10.0, 22.5, 40.0, 62.5, 80.0, 92.5];

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("depth");
    let keys: u64 = setup.pick(KEYS, KEYS / 10);
    let rows = keys as usize * 2;
    let mut known = Vec::new();
    for (name, snapshots) in [("snapshots every tenth", true), ("log alone", false)] {
        let place = setup.place("depth")?;
        let (store, state) = place.new_state("store", OrderBy::Version).await?;
        let mut events = Events::seeded(60);
        for batch in 1..=BATCHES {
            state.append(&events.random(rows / BATCHES, keys)?).await?;
            if snapshots && batch % (BATCHES / 10) == 0 {
                state.materialize(false).await?;
            }
        }
        let mut answers = Vec::new();
        for depth in DEPTHS {
            let version = (rows as f64 * (1.0 - depth / 100.0)) as i64;
            answers.push(measure(setup, &figures, &state, (name, depth, version), keys).await?);
        }
        store.close().await;
        if !known.is_empty() && known != answers {
            return Err(format!("with and without snapshots: {known:?}, {answers:?}").into());
        }
        known = answers;
    }
    Ok(())
}

/// How many of some keys there were, and how many rows.
async fn measure(
    setup: &Setup,
    figures: &Figures,
    state: &RawState,
    (name, depth, version): (&str, f64, i64),
    keys: u64,
) -> Outcome<(usize, usize)> {
    let point = Point::at_version(version);
    let (mut gets, mut scans) = (Samples::default(), Samples::default());
    let mut found = 0_usize;
    let count = setup.pick(500, 100);
    for (index, key) in distinct_keys(61, count + 50, keys).into_iter().enumerate() {
        let key = key_text(key);
        let (got, took) = timed(state.get(point, &key)).await;
        let is_present = got?.found().is_some();
        found += usize::from(is_present);
        // The first ones read footers and filters. Far back most keys are not there yet, which costs next to nothing.
        if index >= 50 && is_present {
            gets.push(took);
        }
    }
    let mut rows = 0;
    for _ in 0..setup.pick(5, 3) {
        let (scanned, took) = timed(scan_rows(state, point)).await;
        rows = scanned?;
        scans.push(took);
    }
    let at = (depth, "% back");
    figures.point("alluvium", &format!("get, present, p50, {name}"), at, gets.median() * 1e3, "ms");
    figures.point("alluvium", &format!("scan, {name}"), at, scans.median() * 1e3, "ms");
    Ok((found, rows))
}
