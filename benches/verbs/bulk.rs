//! Appends of 100,000 rows: ours sorted by key and durable, delta-rs's as given.

use alluvium::OrderBy;
use alluvium_benches::{
    Events, Figures, KEYS, Outcome, Samples, append_rows, data_files, table_at, timed,
};

use crate::Setup;

const BATCH_ROWS: usize = 100_000;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("bulk");
    let place = setup.place("bulk")?;
    let batches = setup.pick(20, 8);
    let (store, state) = place.new_state("store", OrderBy::Version).await?;
    let mut table = table_at(&place.path("delta")).await?;
    let mut events = Events::seeded(2);
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for _ in 0..batches {
        let batch = events.random(BATCH_ROWS, KEYS)?;
        let (done, took) = timed(state.append(&batch)).await;
        done?;
        ours.push(took);
        let (written, took) = timed(append_rows(table, vec![batch])).await;
        table = written?;
        theirs.push(took);
    }
    figures.rate("alluvium", "append, one after the other", BATCH_ROWS, &ours);
    figures.rate("delta-rs", "write, one after the other", BATCH_ROWS, &theirs);
    let mut piped = Samples::default();
    for _ in 0..batches / 2 {
        let pair = (events.random(BATCH_ROWS, KEYS)?, events.random(BATCH_ROWS, KEYS)?);
        let (done, took) =
            timed(async { futures::try_join!(state.append(&pair.0), state.append(&pair.1)) }).await;
        done?;
        piped.push(took);
    }
    figures.rate("alluvium", "append, two at a time", 2 * BATCH_ROWS, &piped);
    figures.times("delta-rs", "bulk append", &theirs, &ours, 1.0);
    let bytes = |files: Vec<String>| -> Outcome<f64> {
        let mut sum = 0;
        for file in files {
            sum += std::fs::metadata(file)?.len();
        }
        Ok(sum as f64)
    };
    let rows = (batches + batches / 2 * 2) * BATCH_ROWS;
    let log = bytes(data_files(&place.log("store"))?)?;
    figures.line("alluvium", "stored", log / rows as f64, "bytes/row", rows);
    let theirs_stored: f64 = flat_bytes(&place.path("delta"))?;
    figures.line(
        "delta-rs",
        "stored",
        theirs_stored / (batches * BATCH_ROWS) as f64,
        "bytes/row",
        batches * BATCH_ROWS,
    );
    store.close().await;
    Ok(())
}

fn flat_bytes(folder: &std::path::Path) -> Outcome<f64> {
    let mut sum = 0;
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        if file.path().extension().is_some_and(|extension| extension == "parquet") {
            sum += file.metadata()?.len();
        }
    }
    Ok(sum as f64)
}
