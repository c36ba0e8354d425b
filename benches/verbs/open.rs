//! Opening a store with a long tail, and the first correct get: time and memory of a process that does only that.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use alluvium::{Lookup, OrderBy, Point};
use alluvium_benches::{
    Events, Figures, Outcome, Samples, distinct_keys, key_text, open_state, peak_rss_bytes,
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
            let (took, peak) = by_child(&place.path(name), key)?;
            opened.push(std::time::Duration::from_secs_f64(took));
            rss = rss.max(peak);
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

fn by_child(folder: &Path, key: &str) -> Outcome<(f64, u64)> {
    let output = Command::new(std::env::current_exe()?)
        .arg("--child")
        .arg(format!("open:{key}"))
        .arg(folder)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let (seconds, rss) = text.trim().split_once(' ').ok_or("the child said something else")?;
    Ok((seconds.parse()?, rss.parse()?))
}

/// Opens and gets in a process of its own; prints seconds and the peak of its memory.
pub(crate) async fn child(key: &str, folder: &Path) -> Outcome<()> {
    let started = Instant::now();
    let (_, state) = open_state(folder).await?;
    let found = state.get(Point::LATEST, key).await?;
    let took = started.elapsed();
    match found {
        Lookup::Found(_) => println!("{} {}", took.as_secs_f64(), peak_rss_bytes()?),
        other => return Err(format!("{key}: {other:?}").into()),
    }
    Ok(())
}
