//! `cargo run --release -- [--quick] [--without STORE] [--slatedb-events N] [--dir FOLDER] [--python PROGRAM] [WHAT..]`: ours beside what others would be picked for.
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
    /// Stores that are left out.
    without: Vec<String>,
    /// SlateDB takes minutes for what others do in seconds: fewer events, if asked for. Rates are compared.
    slatedb_events: Option<usize>,
}

fn main() -> Outcome<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut setup = Setup {
        quick: false,
        parent: PathBuf::from("target/peers-tmp"),
        python: here.join("../../target/interop-venv/bin/python"),
        without: Vec::new(),
        slatedb_events: None,
    };
    let mut what = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => setup.quick = true,
            "--without" => {
                setup.without.push(arguments.next().ok_or("--without needs the name of a store")?);
            }
            "--slatedb-events" => {
                let events = arguments.next().ok_or("--slatedb-events needs a number")?;
                setup.slatedb_events = Some(events.parse()?);
            }
            "--dir" => setup.parent = arguments.next().ok_or("--dir needs a folder")?.into(),
            "--python" => setup.python = arguments.next().ok_or("--python needs a program")?.into(),
            "state_loop" | "engines" => what.push(argument),
            other => {
                return Err(format!(
                    "{other:?} is not known: state_loop, engines, --quick, --without STORE, --slatedb-events N, --dir FOLDER, --python PROGRAM"
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
    let peers = sides::all();
    for name in &setup.without {
        if peers.iter().all(|(known, _)| *known != name.as_str()) {
            let names: Vec<&str> = peers.iter().map(|(known, _)| *known).collect();
            return Err(format!("--without {name}: the stores are {}", names.join(", ")).into());
        }
    }
    let place = Place::below(&setup.parent, "peers")?;
    let figures = Figures::of("peers");
    figures.progress("alluvium");
    let mut ours = Ours::measure(&place, runtime, work)?;
    ours.print(&figures, work);
    let wanted =
        peers.iter().filter(|(name, _)| setup.without.iter().all(|left| left.as_str() != *name));
    for (at, (name, measure)) in wanted.enumerate() {
        figures.progress(name);
        let events = setup.slatedb_events.filter(|_| *name == "slatedb").unwrap_or(work.events);
        let theirs = Workload { events, ..work };
        let seen =
            measure(&place.path(name), theirs).map_err(|error| format!("{name}: {error}"))?;
        print(&figures, name, theirs, seen);
        if at == 0 {
            // Ours before and after it: what the machine does besides changes meanwhile.
            ours.take_better(Ours::measure(&place, runtime, work)?);
            ours.print(&figures, work);
        }
        // At once, so that what was measured is told though a later store should not come to its end.
        ours.compare(&figures, name, work, seen, theirs);
    }
    Ok(())
}

/// What was measured of our side.
struct Ours {
    stream: ours::Whole,
    one_by_one: ours::Whole,
    prefetched: ours::Large,
    by_key: ours::Large,
}

impl Ours {
    fn measure(place: &Place, runtime: &tokio::runtime::Runtime, work: Workload) -> Outcome<Self> {
        let whole = |how: Loop| {
            let folder = place.path(&format!("alluvium-{how:?}"));
            runtime.block_on(async { tokio::spawn(ours::whole(folder, work, how)).await? })
        };
        let large = |how: Loop| {
            let folder = place.path(&format!("alluvium-large-{how:?}"));
            runtime.block_on(async { tokio::spawn(ours::large(folder, work, how)).await? })
        };
        Ok(Self {
            stream: whole(Loop::Stream)?,
            one_by_one: whole(Loop::OneByOne)?,
            prefetched: large(Loop::Prefetch)?,
            by_key: large(Loop::Stream)?,
        })
    }

    fn take_better(&mut self, again: Self) {
        for (mine, other) in
            [(&mut self.stream, again.stream), (&mut self.one_by_one, again.one_by_one)]
        {
            mine.seconds = mine.seconds.min(other.seconds);
            mine.get = mine.get.min(other.get);
            mine.reopen = mine.reopen.min(other.reopen);
        }
        for (mine, other) in
            [(&mut self.prefetched, again.prefetched), (&mut self.by_key, again.by_key)]
        {
            mine.seconds = mine.seconds.min(other.seconds);
            mine.get = mine.get.min(other.get);
        }
    }

    fn print(&self, figures: &Figures, work: Workload) {
        let rate = |events: usize, seconds: f64| events as f64 / seconds / 1e3;
        let loops = [("stream", &self.stream), ("epochs one by one", &self.one_by_one)];
        for (name, seen) in loops {
            let metric = format!("state loop, {name}");
            let rate = rate(work.events, seen.seconds);
            figures.line("alluvium", &metric, rate, "k events/s", work.events);
        }
        figures.line("alluvium", "get, cached, p50", self.stream.get * 1e9, "ns", 100_000);
        figures.line("alluvium", "open again and first get", self.stream.reopen * 1e3, "ms", 1);
        let events = work.part().events;
        for (name, seen) in [("prefetched", &self.prefetched), ("key by key", &self.by_key)] {
            let metric = format!("state loop, state 4 x the cache, {name}");
            figures.line("alluvium", &metric, rate(events, seen.seconds), "k events/s", events);
        }
        let metric = "get, state 4 x the cache, p50";
        figures.line("alluvium", metric, self.by_key.get * 1e9, "ns", ours::LARGE_GETS);
    }

    /// Ours against another store by time for an event and for a get; only RocksDB is what the wanted ratios are about.
    fn compare(
        &self,
        figures: &Figures,
        name: &str,
        work: Workload,
        seen: Measured,
        their_work: Workload,
    ) {
        let ratio = |metric: &str, ours: f64, theirs: f64, wanted: f64| {
            let wanted = if name == "rocksdb" { wanted } else { 1.0 };
            figures.ratio(name, metric, theirs / ours, wanted);
        };
        let event = |seconds: f64, work: Workload| seconds / work.events as f64;
        let theirs = event(seen.whole_loop, their_work);
        ratio("state loop, stream", event(self.stream.seconds, work), theirs, 4.0);
        ratio("state loop, epochs one by one", event(self.one_by_one.seconds, work), theirs, 4.0);
        ratio("get, cached, p50", self.stream.get, seen.whole_get, 1.0);
        ratio("open again", self.stream.reopen, seen.reopen, 1.0);
        for (how, mine) in [("prefetched", &self.prefetched), ("key by key", &self.by_key)] {
            let mine = event(mine.seconds, work.part());
            let caches =
                [("state 4 x the cache", seen.large_loop), ("as much cache", seen.same_loop)];
            for (cache, theirs) in caches {
                let metric = format!("state loop, {cache}, {how}");
                ratio(&metric, mine, event(theirs, their_work.part()), 1.0);
            }
        }
        ratio("get, state 4 x the cache, p50", self.by_key.get, seen.large_get, 1.0);
        ratio("get, as much cache, p50", self.by_key.get, seen.same_get, 1.0);
    }
}

fn print(figures: &Figures, name: &str, work: Workload, seen: Measured) {
    let part = work.part();
    let rate = |events: usize, seconds: f64| events as f64 / seconds / 1e3;
    figures.line(name, "state loop", rate(work.events, seen.whole_loop), "k events/s", work.events);
    figures.line(name, "get, cached, p50", seen.whole_get * 1e9, "ns", 100_000);
    figures.line(name, "open again and first get", seen.reopen * 1e3, "ms", 1);
    let large = [
        ("state 4 x the cache", seen.large_loop, seen.large_get),
        ("as much cache", seen.same_loop, seen.same_get),
    ];
    for (cache, seconds, get) in large {
        let metric = format!("state loop, {cache}");
        figures.line(name, &metric, rate(part.events, seconds), "k events/s", part.events);
        figures.line(name, &format!("get, {cache}, p50"), get * 1e9, "ns", 20_000);
    }
}
