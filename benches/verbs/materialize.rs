//! Random changes into a state of a million keys, against delta-rs MERGE of the same changes into a plain table.

use std::collections::BTreeMap;

use alluvium::OrderBy;
use alluvium_benches::{
    Events, Figures, KEYS, Outcome, Samples, append_rows, distinct_keys, merge_rows, table_at,
    timed,
};

use crate::Setup;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("materialize");
    let place = setup.place("materialize")?;
    let mut events = Events::seeded(4);
    let all = events.every_key(KEYS, 100_000)?;
    let (store, state) = place.loaded_state("store", OrderBy::Version, &all).await?;
    let mut table = append_rows(table_at(&place.path("delta")).await?, all).await?;
    let rounds = setup.pick(7, 3);
    for (size, wanted) in [(1_000, 10.0), (10_000, 8.0), (100_000, 3.0)] {
        let (mut appends, mut folds, mut sums, mut merges) =
            (Samples::default(), Samples::default(), Samples::default(), Samples::default());
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        let mut written = 0;
        for round in 0..rounds {
            let changes = events.of_keys(&distinct_keys(round * 31 + size, size as usize, KEYS))?;
            let (done, append) = timed(state.append(&changes)).await;
            done?;
            let (report, fold) = timed(state.materialize(false)).await;
            let report = report?;
            written += report.bytes_written;
            *kinds.entry(format!("{:?}", report.change)).or_default() += 1;
            appends.push(append);
            folds.push(fold);
            sums.push(append + fold);
            let (merged, took) = timed(merge_rows(table, changes)).await;
            table = merged?;
            merges.push(took);
        }
        let name = format!("{}k changes", size / 1_000);
        figures.duration("alluvium", &format!("{name}, materialize"), &folds);
        figures.line(
            "alluvium",
            &format!("{name}, slowest"),
            folds.percentile(1.0) * 1e3,
            "ms",
            folds.len(),
        );
        figures.duration("alluvium", &format!("{name}, append"), &appends);
        figures.duration("delta-rs", &format!("{name}, MERGE"), &merges);
        let each = written as f64 / f64::from(rounds as u32) / f64::from(size as u32);
        figures.line(
            "alluvium",
            &format!("{name}, snapshot bytes written"),
            each,
            "bytes/change",
            folds.len(),
        );
        figures.times("delta-rs", &format!("{name}, materialize"), &merges, &folds, wanted);
        figures.times("delta-rs", &format!("{name}, append and materialize"), &merges, &sums, 1.0);
        eprintln!("   what the materializations did: {kinds:?}");
    }
    store.close().await;
    Ok(())
}
