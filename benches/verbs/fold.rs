//! The fold of a whole log against the window query over the same files: time, and memory of a process that does only that.

use std::path::Path;
use std::process::Command;

use alluvium::{OrderBy, RawState};
use alluvium_benches::{
    Events, Figures, KEYS, Outcome, Samples, count_rows, data_files, drain, open_state,
    parquet_session, peak_rss_bytes, timed, window_query,
};
use alluvium_log::{ReadSpec, RowFilter};
use alluvium_materializer::{FoldSettings, file_input, log_files, whole_value};

use crate::Setup;

const BATCH_ROWS: usize = 100_000;
const ORDER: &str = "event_time DESC, version DESC";

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("fold");
    let place = setup.place("fold")?;
    let batches = 20;
    let rows = batches * BATCH_ROWS;
    let (store, state) = place.new_state("store", OrderBy::EventTime).await?;
    let mut events = Events::seeded(3);
    for _ in 0..batches {
        state.append(&events.random(BATCH_ROWS, KEYS)?).await?;
    }
    let query = window_query(ORDER, "true");
    let (mut folds, mut rebuilds, mut queries) =
        (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..setup.pick(5, 3) {
        let (found, took) = timed(fold_log(&state)).await;
        let found = found?;
        folds.push(took);
        let (report, took) = timed(state.materialize(true)).await;
        report?;
        rebuilds.push(took);
        let files = data_files(&place.log("store"))?;
        let (counted, took) =
            timed(async { count_rows(&parquet_session("log", files).await?, &query).await }).await;
        queries.push(took);
        if counted? != found {
            return Err("the fold and the query differ".into());
        }
    }
    figures.rate("alluvium", "fold", rows, &folds);
    figures.rate("alluvium", "rebuild, snapshot written", rows, &rebuilds);
    figures.rate("datafusion", "window query", rows, &queries);
    figures.times("datafusion", "fold alone", &queries, &folds, 1.0);
    figures.times("datafusion", "rebuild, writing included", &queries, &rebuilds, 1.0);
    store.close().await;
    let folder = place.path("store");
    for (side, work) in [("alluvium", "fold"), ("alluvium", "rebuild"), ("datafusion", "window")] {
        let rss = rss_of_child(work, &folder)?;
        let metric = format!("peak RSS of a process, {work}");
        figures.line(side, &metric, rss as f64 / f64::from(1 << 20), "MiB", 1);
    }
    let empty = rss_of_child("nothing", &folder)?;
    figures.line(
        "floor",
        "peak RSS of a process that does nothing",
        empty as f64 / f64::from(1 << 20),
        "MiB",
        1,
    );
    Ok(())
}

async fn fold_log(state: &RawState) -> Outcome<usize> {
    let log = state.log();
    let log_state = log.refresh().await?;
    let definition = log.definition();
    let filter = RowFilter {
        after_commit: Some(0),
        up_to_commit: Some(log_state.version),
        ..RowFilter::default()
    };
    let files = log_files(&log_state, &filter);
    let spec = ReadSpec { payload: whole_value(&definition), filter };
    let footers = state.reader().footers();
    let inputs = files.iter().map(|file| file_input(log.table(), file, &spec, footers)).collect();
    let folded = alluvium_materializer::fold(
        definition.order_by,
        spec.schema(),
        inputs,
        &FoldSettings::default(),
    )
    .await?;
    drain(vec![folded]).await
}

/// Runs this program again for one piece of work, and reads what it says of its memory.
fn rss_of_child(work: &str, folder: &Path) -> Outcome<u64> {
    let output =
        Command::new(std::env::current_exe()?).arg("--child").arg(work).arg(folder).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// One piece of work in a process of its own; prints the peak of its memory.
pub(crate) async fn child(work: &str, folder: &Path) -> Outcome<()> {
    match work {
        "nothing" => {}
        "fold" => {
            fold_log(&open_state(folder).await?.1).await?;
        }
        "rebuild" => {
            open_state(folder).await?.1.materialize(true).await?;
        }
        "window" => {
            let log = folder.join(alluvium_benches::STATE).join("log");
            let session = parquet_session("log", data_files(&log)?).await?;
            count_rows(&session, &window_query(ORDER, "true")).await?;
        }
        other => return Err(format!("no work {other:?}").into()),
    }
    println!("{}", peak_rss_bytes()?);
    Ok(())
}
