//! Opening a store with a long tail, and the first correct get: time and memory of a process that does only that.

use std::path::Path;

use alluvium::{Lookup, OrderBy, Point};
use alluvium_benches::{
    Events, Figures, Outcome, Samples, as_child, distinct_keys, key_text, open_state, run_child,
};

use crate::Setup;

const BATCH_ROWS: usize = 100_000;
/// Commits that the tail's rows come in.
const TAIL_COMMITS: usize = 100;
const TAIL_ROWS: usize = 100_000;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("open");
    let place = setup.place("open")?;
    for (name, keys) in [("1M", 1_000_000), ("10M", setup.pick(10_000_000, 0))] {
        if keys == 0 {
            continue;
        }
        let (store, state) = place.new_state(name, OrderBy::Version).await?;
        let mut events = Events::seeded(10);
        for first in (0..keys).step_by(BATCH_ROWS) {
            let numbers: Vec<u64> = (first..keys.min(first + BATCH_ROWS as u64)).collect();
            state.append(&events.of_keys(&numbers)?).await?;
        }
        state.materialize(false).await?;
        let tail = distinct_keys(14, TAIL_ROWS, keys);
        for numbers in tail.chunks(TAIL_ROWS / TAIL_COMMITS) {
            state.append(&events.of_keys(numbers)?).await?;
        }
        store.close().await;
        let in_tail = key_text(*tail.first().ok_or("no tail")?);
        let (mut opened, mut rss) = (Samples::default(), 0);
        for key in [&in_tail, &key_text(1), &key_text(keys - 1), &in_tail, &key_text(keys / 2)] {
            let ran = run_child(&format!("open:{key}"), &place.path(name))?;
            opened.push(ran.took());
            rss = rss.max(ran.rss_bytes);
        }
        let metric = format!("open and first get, {name} keys, 100k rows in the tail");
        figures.duration("alluvium", &metric, &opened);
        let mib = rss as f64 / f64::from(1 << 20);
        figures.line("alluvium", &format!("peak RSS of it, {name} keys"), mib, "MiB", opened.len());
        figures.ratio("200 ms", &metric, 0.2 / opened.median(), 1.0);
        figures.ratio("200 MB", &metric, 200e6 / rss as f64, 1.0);
        std::fs::remove_dir_all(place.path(name))?;
    }
    Ok(())
}

/// Opens and gets in a process of its own.
pub(crate) async fn child(key: &str, folder: &Path) -> Outcome<()> {
    let first_get = async {
        let (_, state) = open_state(folder).await?;
        match state.get(Point::LATEST, key).await? {
            Lookup::Found(_) => Ok(1),
            other => Err(format!("{key}: {other:?}").into()),
        }
    };
    as_child(first_get).await
}
