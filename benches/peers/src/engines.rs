//! The latest state of a log of 2M rows over 1M keys: ours, and DuckDB and Polars on the same Parquet files by `engines.py`.

use std::process::{Command, Stdio};

use alluvium::{OrderBy, Point};
use alluvium_benches::{
    Events, Figures, Outcome, Place, Samples, count_rows, data_files, open_state, parquet_session,
    scan_rows, timed, window_query,
};

use crate::Setup;

const BATCH_ROWS: usize = 100_000;
const ORDER: &str = "event_time DESC, version DESC";

pub(crate) async fn run(setup: Setup) -> Outcome<()> {
    let figures = Figures::of("engines");
    let place = Place::below(&setup.parent, "engines")?;
    let keys: u64 = if setup.quick { 200_000 } else { 1_000_000 };
    let rounds: usize = if setup.quick { 2 } else { 5 };
    let rows = keys as usize * 2;
    let (store, state) = place.new_state("store", OrderBy::EventTime).await?;
    let mut events = Events::seeded(70);
    for _ in 0..rows / BATCH_ROWS {
        state.append(&events.random(BATCH_ROWS, keys)?).await?;
    }
    store.close().await;
    let mut from_log = Samples::default();
    let mut expected = 0;
    for _ in 0..rounds {
        // Opened anew: nothing of the tail is in memory.
        let (store, state) = open_state(&place.path("store")).await?;
        let (found, took) = timed(scan_rows(&state, Point::LATEST)).await;
        expected = found?;
        from_log.push(took);
        store.close().await;
    }
    figures.duration("alluvium", "latest state, from the log alone", &from_log);
    let query = window_query(ORDER, "true");
    let mut window = Samples::default();
    for _ in 0..rounds {
        let files = data_files(&place.log("store"))?;
        let (counted, took) =
            timed(async { count_rows(&parquet_session("log", files).await?, &query).await }).await;
        if counted? != expected {
            return Err("the scan and the window query differ".into());
        }
        window.push(took);
    }
    figures.duration("datafusion", "latest state, window query", &window);
    others(&setup, &place, rounds, expected)?;
    let mut rebuilds = Samples::default();
    let mut latest = Samples::default();
    let (store, state) = open_state(&place.path("store")).await?;
    for _ in 0..rounds {
        let (report, took) = timed(state.materialize(true)).await;
        report?;
        rebuilds.push(took);
        let (found, took) = timed(scan_rows(&state, Point::LATEST)).await;
        if found? != expected {
            return Err("the snapshot and the log differ".into());
        }
        latest.push(took);
    }
    store.close().await;
    figures.duration("alluvium", "rebuild, snapshot written", &rebuilds);
    figures.duration("alluvium", "latest state, from the snapshot", &latest);
    Ok(())
}

/// The other engines; their lines go through to standard output as they are.
fn others(setup: &Setup, place: &Place, rounds: usize, expected: usize) -> Outcome<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/engines.py");
    let status = Command::new(&setup.python)
        .arg(script)
        .arg(place.log("store"))
        .args(["--expected", &expected.to_string(), "--rounds", &rounds.to_string()])
        .stdin(Stdio::null())
        .status()
        .map_err(|error| {
            format!(
                "{}: {error}; `tests/interop/run.sh` makes it, or name another Python with duckdb and polars by --python",
                setup.python.display()
            )
        })?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{script} failed ({status})").into()),
    }
}
