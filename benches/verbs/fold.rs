//! The fold of a whole log against the window query over the same files: time, and memory of a process that does only that.

use std::path::Path;

use alluvium::{OrderBy, RawState};
use alluvium_benches::{
    Events, Figures, KEYS, NOTHING, Outcome, Samples, as_child, count_rows, data_files, drain,
    open_state, parquet_session, run_child, timed, window_query,
};
use alluvium_log::{ReadSpec, RowFilter};
use alluvium_materializer::{FoldSettings, file_input, whole_value};

use crate::Setup;

const BATCH_ROWS: usize = 100_000;
/// The state's order, newest first, as the query says it.
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
        let ran = run_child(&format!("fold:{work}"), &folder)?;
        let metric = format!("peak RSS of a process, {work}");
        figures.line(side, &metric, ran.rss_bytes as f64 / f64::from(1 << 20), "MiB", 1);
    }
    let empty = run_child(NOTHING, &folder)?;
    figures.line(
        "floor",
        "peak RSS of a process that does nothing",
        empty.rss_bytes as f64 / f64::from(1 << 20),
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
    let files = state.log().files(&log_state, &filter).await?;
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

/// One piece of work in a process of its own; it counts the rows of the state.
pub(crate) async fn child(work: &str, folder: &Path) -> Outcome<()> {
    match work {
        "fold" => {
            as_child(async { Ok(fold_log(&open_state(folder).await?.1).await? as u64) }).await
        }
        "rebuild" => {
            let rebuild =
                async { Ok(open_state(folder).await?.1.materialize(true).await?.rows_written) };
            as_child(rebuild).await
        }
        "window" => {
            let window = async {
                let log = folder.join(alluvium_benches::STATE).join("log");
                let session = parquet_session("log", data_files(&log)?).await?;
                Ok(count_rows(&session, &window_query(ORDER, "true")).await? as u64)
            };
            as_child(window).await
        }
        other => Err(format!("no work {other:?}").into()),
    }
}
