//! How cost grows: the same change into a small and a large state, and what a hundred changes write and leave behind.

use alluvium::{OrderBy, Point, RawState};
use alluvium_benches::{
    Events, Figures, Outcome, Samples, count_rows, data_files, distinct_keys, folder_bytes,
    key_text, parquet_session, scan_rows, timed,
};

use crate::Setup;

const CHANGES: usize = 1_000;
const BATCH_ROWS: usize = 100_000;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("growth");
    same_change(setup, &figures).await?;
    many_changes(setup, &figures).await
}

/// A thousand random changes into a state of many keys, and into one of ten times as many.
async fn same_change(setup: &Setup, figures: &Figures) -> Outcome<()> {
    let small = setup.pick(1_000_000, 100_000);
    let mut known: Option<(f64, f64)> = None;
    for keys in [small, small * 10] {
        let place = setup.place("growth")?;
        let (store, state) = place.new_state("store", OrderBy::Version).await?;
        let mut events = Events::seeded(21);
        load(&state, &mut events, keys).await?;
        let (mut folds, mut written) = (Samples::default(), 0);
        for round in 0..9 {
            let changed = distinct_keys(100 + round, CHANGES, keys);
            state.append(&events.of_keys(&changed)?).await?;
            let (report, took) = timed(state.materialize(false)).await;
            written += report?.bytes_written;
            folds.push(took);
        }
        store.close().await;
        let bytes = written as f64 / folds.len() as f64;
        let name = format!("materialize 1k changes into {}k keys", keys / 1_000);
        figures.duration("alluvium", &name, &folds);
        figures.line("alluvium", &format!("{name}, written"), bytes / 1e3, "kB", folds.len());
        match known {
            None => known = Some((folds.median(), bytes)),
            Some((seconds, before)) => {
                let time = seconds / folds.median();
                figures.ratio("a tenth of the keys", "time of 1k changes", time, 1.0 / 1.5);
                figures.ratio(
                    "a tenth of the keys",
                    "bytes of 1k changes",
                    before / bytes,
                    1.0 / 1.5,
                );
            }
        }
    }
    Ok(())
}

/// A hundred times one percent of the keys at random: what is written for it, and how fast reads still are.
async fn many_changes(setup: &Setup, figures: &Figures) -> Outcome<()> {
    let keys: u64 = setup.pick(1_000_000, 100_000);
    let place = setup.place("amplification")?;
    let (store, state) = place.new_state("store", OrderBy::Version).await?;
    let mut events = Events::seeded(22);
    load(&state, &mut events, keys).await?;
    let before = folder_bytes(&place.log("store"))?;
    let (mut written, mut folds) = (0, Samples::default());
    for round in 0..100 {
        let changed = distinct_keys(200 + round, (keys / 100) as usize, keys);
        state.append(&events.of_keys(&changed)?).await?;
        let (report, took) = timed(state.materialize(false)).await;
        written += report?.bytes_written;
        folds.push(took);
    }
    let changed = folder_bytes(&place.log("store"))? - before;
    let name = "100 changes of 1% each";
    figures.duration("alluvium", &format!("{name}, materialize"), &folds);
    let amplification = written as f64 / changed as f64;
    figures.line(
        "alluvium",
        &format!("{name}, written per byte of change"),
        amplification,
        "",
        100,
    );
    figures.ratio("15 bytes", &format!("{name}, written per byte"), 15.0 / amplification, 1.0);
    afterwards(figures, &place, &state, keys).await?;
    store.close().await;
    Ok(())
}

async fn afterwards(
    figures: &Figures,
    place: &alluvium_benches::Place,
    state: &RawState,
    keys: u64,
) -> Outcome<()> {
    let plain = parquet_session("snapshot", data_files(&place.snapshot("store"))?).await?;
    let (mut scans, mut files, mut gets) =
        (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..7 {
        let (rows, took) = timed(scan_rows(state, Point::LATEST)).await;
        scans.push(took);
        let (_, took) = timed(count_rows(&plain, "SELECT * FROM snapshot")).await;
        files.push(took);
        if rows? != keys as usize {
            return Err("a scan lost rows".into());
        }
    }
    for key in distinct_keys(300, 1_000, keys) {
        let (found, took) = timed(state.get(Point::LATEST, &key_text(key))).await;
        found?.found().ok_or("a get lost a row")?;
        gets.push(took);
    }
    figures.duration("alluvium", "scan after 100 changes", &scans);
    figures.duration("datafusion", "all files of the snapshot table after 100 changes", &files);
    figures.latency("alluvium", "get after 100 changes", &gets);
    Ok(())
}

async fn load(state: &RawState, events: &mut Events, keys: u64) -> Outcome<()> {
    for first in (0..keys).step_by(BATCH_ROWS) {
        let numbers: Vec<u64> = (first..keys.min(first + BATCH_ROWS as u64)).collect();
        state.append(&events.of_keys(&numbers)?).await?;
    }
    state.materialize(false).await?;
    Ok(())
}
