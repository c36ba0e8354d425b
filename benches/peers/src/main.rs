//! `cargo run --release -- [--quick] [--dir FOLDER] [--python PROGRAM] [WHAT..]`: ours beside what others would be picked for.
//!
//! WHAT is `state_loop` (embedded key-value stores) or `engines` (DuckDB and Polars on the files of our log); both without it.
//! JSON lines go to standard output, the same figures for people to standard error.

mod engines;
mod ours;
mod sides;

use std::path::{Path, PathBuf};

use alluvium_benches::{Figures, Loop, Outcome, Place};
use alluvium_workload::{Measured, Workload};

/// What the program is told.
struct Setup {
    quick: bool,
    parent: PathBuf,
    python: PathBuf,
}

fn main() -> Outcome<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut setup = Setup {
        quick: false,
        parent: PathBuf::from("target/peers-tmp"),
        python: here.join("../../target/interop-venv/bin/python"),
    };
    let mut what = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => setup.quick = true,
            "--dir" => setup.parent = arguments.next().ok_or("--dir needs a folder")?.into(),
            "--python" => setup.python = arguments.next().ok_or("--python needs a program")?.into(),
            "state_loop" | "engines" => what.push(argument),
            other => {
                return Err(format!(
                    "{other:?} is not known: state_loop, engines, --quick, --dir FOLDER, --python PROGRAM"
                )
                .into());
            }
        }
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let asked = |name: &str| what.is_empty() || what.iter().any(|asked| asked == name);
    if asked("state_loop") {
        state_loop(&setup, &runtime)?;
    }
    if asked("engines") {
        runtime.block_on(async { tokio::spawn(engines::run(setup)).await? })?;
    }
    Ok(())
}

fn state_loop(setup: &Setup, runtime: &tokio::runtime::Runtime) -> Outcome<()> {
    let work = Workload {
        events: if setup.quick { 500_000 } else { 2_000_000 },
        keys: if setup.quick { 250_000 } else { 1_000_000 },
        epoch_events: 10_000,
    };
    let place = Place::below(&setup.parent, "peers")?;
    let figures = Figures::of("peers");
    let whole = |how: Loop| {
        let folder = place.path(&format!("alluvium-{how:?}"));
        runtime.block_on(async { tokio::spawn(ours::whole(folder, work, how)).await? })
    };
    // Ours before and after the others: what the machine does besides changes meanwhile.
    let mut stream = whole(Loop::Stream)?;
    let one_by_one = whole(Loop::OneByOne)?;
    let large = |how: Loop| {
        let folder = place.path(&format!("alluvium-large-{how:?}"));
        runtime.block_on(async { tokio::spawn(ours::large(folder, work, how)).await? })
    };
    let (prefetched, by_key) = (large(Loop::Prefetch)?, large(Loop::Stream)?);
    let mut others = Vec::new();
    for (name, measure) in sides::all() {
        figures.progress(name);
        let seen = measure(&place.path(name), work).map_err(|error| format!("{name}: {error}"))?;
        print(&figures, name, work, seen);
        others.push((name, seen));
    }
    let again = whole(Loop::Stream)?;
    stream.seconds = stream.seconds.min(again.seconds);
    let rate = |seconds: f64| work.events as f64 / seconds / 1e3;
    for (metric, seconds) in [("stream", stream.seconds), ("epochs one by one", one_by_one.seconds)]
    {
        let metric = format!("state loop, {metric}");
        figures.line("alluvium", &metric, rate(seconds), "k events/s", work.events);
        against(&figures, &others, &metric, seconds, |seen| seen.whole_loop, 4.0);
    }
    figures.line("alluvium", "get, cached, p50", stream.get * 1e9, "ns", 100_000);
    against(&figures, &others, "get, cached, p50", stream.get, |seen| seen.whole_get, 1.0);
    figures.line("alluvium", "open again and first get", stream.reopen * 1e3, "ms", 1);
    against(&figures, &others, "open again", stream.reopen, |seen| seen.reopen, 1.0);
    for (name, seen) in [("prefetched", &prefetched), ("key by key", &by_key)] {
        let metric = format!("state loop, state 4 x the cache, {name}");
        let rate = seen.events as f64 / seen.seconds / 1e3;
        figures.line("alluvium", &metric, rate, "k events/s", seen.events);
        // As if there had been as many events as the others had.
        let seconds = work.part().events as f64 / rate / 1e3;
        against(&figures, &others, &metric, seconds, |seen| seen.large_loop, 1.0);
    }
    let metric = "get, state 4 x the cache, p50";
    figures.line("alluvium", metric, by_key.get * 1e9, "ns", ours::LARGE_GETS);
    against(&figures, &others, metric, by_key.get, |seen| seen.large_get, 1.0);
    Ok(())
}

fn print(figures: &Figures, name: &str, work: Workload, seen: Measured) {
    let part = work.part();
    let rate = |events: usize, seconds: f64| events as f64 / seconds / 1e3;
    figures.line(name, "state loop", rate(work.events, seen.whole_loop), "k events/s", work.events);
    figures.line(name, "get, cached, p50", seen.whole_get * 1e9, "ns", 100_000);
    figures.line(name, "open again and first get", seen.reopen * 1e3, "ms", 1);
    let large = rate(part.events, seen.large_loop);
    figures.line(name, "state loop, state 4 x the cache", large, "k events/s", part.events);
    figures.line(name, "get, state 4 x the cache, p50", seen.large_get * 1e9, "ns", 20_000);
}

/// Ours against each of the others; only RocksDB is what the wanted ratio is about.
fn against(
    figures: &Figures,
    others: &[(&str, Measured)],
    metric: &str,
    ours: f64,
    theirs: fn(&Measured) -> f64,
    wanted: f64,
) {
    for (name, seen) in others {
        let wanted = if *name == "rocksdb" { wanted } else { 1.0 };
        figures.ratio(name, metric, theirs(seen) / ours, wanted);
    }
}
