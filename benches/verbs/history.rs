//! The history of one key, and gets as of a version, over a log of many files.

use alluvium::{KeyFilter, OrderBy, Point, RawState};
use alluvium_benches::{Events, Figures, KEYS, Outcome, Samples, distinct_keys, key_text, timed};
use futures::TryStreamExt;

use crate::Setup;

const FILE_ROWS: usize = 20_000;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("history");
    let place = setup.place("history")?;
    let files = setup.pick(500, 50);
    let (store, state) = place.new_state("store", OrderBy::Version).await?;
    let mut events = Events::seeded(30);
    for _ in 0..files {
        state.append(&events.random(FILE_ROWS, KEYS)?).await?;
    }
    let rows = files * FILE_ROWS;
    let name = format!("over {}k rows in {files} files", rows / 1_000);
    let before = measure(setup, &figures, &state, rows, &name).await?;
    state.materialize(false).await?;
    let (report, took) = timed(state.compact(false)).await;
    let report = report?;
    if report.files_removed == 0 || report.gave_way {
        return Err(format!("nothing was compacted: {report:?}").into());
    }
    figures.line("alluvium", "compaction", rows as f64 / took.as_secs_f64() / 1e6, "M rows/s", 1);
    let merged = format!("{} files merged into {}", report.files_removed, report.files_added);
    figures.line("alluvium", &merged, report.bytes_after as f64 / 1e6, "MB", 1);
    let after = measure(setup, &figures, &state, rows, "when compacted").await?;
    if before != after {
        return Err(format!("histories and gets before and after: {before:?}, {after:?}").into());
    }
    store.close().await;
    Ok(())
}

/// How many rows the histories had, and how many keys the gets found.
async fn measure(
    setup: &Setup,
    figures: &Figures,
    state: &RawState,
    rows: usize,
    name: &str,
) -> Outcome<(usize, usize)> {
    let reader = state.reader();
    let basis = reader.basis().await?;
    let (mut histories, mut gets) = (Samples::default(), Samples::default());
    let (mut rows_seen, mut keys_found) = (0, 0);
    for (index, key) in distinct_keys(31, setup.pick(200, 50), KEYS).into_iter().enumerate() {
        let key = key_text(key);
        let history = async {
            let keys = KeyFilter::keys([key.clone()]);
            let rows = reader.history_rows(&basis, keys, Point::LATEST).await?;
            rows.try_fold(0, |sum, batch| std::future::ready(Ok(sum + batch.num_rows()))).await
        };
        let (found, took) = timed(history).await;
        rows_seen += found?;
        let point = Point::at_version((rows / 2) as i64);
        let (got, took_get) = timed(state.get(point, &key)).await;
        keys_found += usize::from(got?.found().is_some());
        // The first ones read the footers.
        if index >= 5 {
            histories.push(took);
            gets.push(took_get);
        }
    }
    figures.latency("alluvium", &format!("history of a key {name}"), &histories);
    figures.ratio("50 ms", &format!("history of a key {name}"), 0.05 / histories.median(), 1.0);
    figures.latency("alluvium", &format!("get as of a version {name}"), &gets);
    figures.ratio("10 ms", &format!("get as of a version {name}"), 0.01 / gets.median(), 1.0);
    Ok((rows_seen, keys_found))
}
