//! `cargo run --release -- [--quick] [--dir FOLDER]`: our state loop and gets beside those of embedded key-value stores.
//!
//! JSON lines go to standard output, the same figures for people to standard error.

mod sides;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use alluvium::{Store, StoreSettings};
use alluvium_benches::{
    Figures, Loop, Outcome, Place, Samples, UserStatus, Workload, alluvium_loop, logins,
};

/// Bytes of our row cache: all of the state fits, as it does into the others' memory tables and caches.
const ROW_CACHE_BYTES: u64 = 1 << 30;

type Side = (&'static str, fn(&Path, Workload) -> Outcome<sides::Figures>);

fn peers() -> Vec<Side> {
    vec![
        #[cfg(feature = "rocksdb")]
        ("rocksdb", sides::rocksdb),
        #[cfg(feature = "fjall")]
        ("fjall", sides::fjall),
        #[cfg(feature = "redb")]
        ("redb", sides::redb),
    ]
}

fn main() -> Outcome<()> {
    let mut quick = false;
    let mut parent = PathBuf::from("target/peers-tmp");
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => quick = true,
            "--dir" => parent = arguments.next().ok_or("--dir needs a folder")?.into(),
            other => return Err(format!("{other:?} is not known: --quick, --dir FOLDER").into()),
        }
    }
    let work = Workload {
        events: if quick { 500_000 } else { 2_000_000 },
        keys: if quick { 250_000 } else { 1_000_000 },
        epoch_events: 10_000,
    };
    let place = Place::below(&parent, "peers")?;
    let runtime = tokio::runtime::Runtime::new()?;
    let figures = Figures::of("peers");
    let ours = |how: Loop| {
        let (place, work) = (place.path(&format!("alluvium-{how:?}")), work);
        runtime.block_on(async { tokio::spawn(our_side(place, work, how)).await? })
    };
    // Ours before and after the others: what the machine does besides changes meanwhile.
    let (mut stream, get) = ours(Loop::Stream)?;
    let (one_by_one, _) = ours(Loop::OneByOne)?;
    let mut others = Vec::new();
    for (name, side) in peers() {
        let seen = side(&place.path(name), work)?;
        if seen.logins != i64::try_from(work.events)? {
            return Err(format!("{name}: {} logins", seen.logins).into());
        }
        figures.line(name, "state loop", work.rate(seen.took) / 1e3, "k events/s", work.events);
        figures.line(name, "get, p50", seen.get * 1e9, "ns", 100_000);
        others.push((name, seen));
    }
    std::fs::remove_dir_all(place.path("alluvium-Stream"))?;
    stream = stream.min(ours(Loop::Stream)?.0);
    for (metric, took) in [("stream", stream), ("epochs one by one", one_by_one)] {
        let metric = format!("state loop, {metric}");
        figures.line("alluvium", &metric, work.rate(took) / 1e3, "k events/s", work.events);
        for (name, seen) in &others {
            let wanted = if *name == "rocksdb" { 4.0 } else { 1.0 };
            figures.ratio(name, &metric, seen.took.div_duration_f64(took), wanted);
        }
    }
    figures.line("alluvium", "get, cached, p50", get * 1e9, "ns", 100_000);
    for (name, seen) in &others {
        figures.ratio(name, "get, cached, p50", seen.get / get, 1.0);
    }
    Ok(())
}

/// Our state loop, and the middle one of many cached gets, in seconds.
async fn our_side(folder: PathBuf, work: Workload, how: Loop) -> Outcome<(Duration, f64)> {
    let settings =
        StoreSettings { row_cache_bytes: ROW_CACHE_BYTES, ..StoreSettings::default() };
    let store = Store::builder(&folder.display().to_string()).settings(settings).open().await?;
    let users = store.state::<UserStatus>("users").await?;
    let started = Instant::now();
    alluvium_loop(&store, &users, work, how).await?;
    let took = started.elapsed();
    store.close().await;
    let seen = logins(&users).await?;
    if seen != i64::try_from(work.events)? {
        return Err(format!("alluvium: {seen} logins for {} events", work.events).into());
    }
    let mut key = String::new();
    let mut samples = Samples::default();
    for event in work.epochs().take(10).flatten() {
        event.key_into(&mut key);
        let started = Instant::now();
        let found = users.get(&key).await;
        samples.push(started.elapsed());
        if found?.is_none() {
            return Err(format!("{key} is gone").into());
        }
    }
    Ok((took, samples.median()))
}
