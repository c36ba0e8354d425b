//! Mixed work for as long as it is told, under a clock that runs fast, so that days end, are merged, expire and are vacuumed many times:
//! memory, open files, threads, files on the disk and latencies have to stay where they are.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use alluvium::{Clock, MaintainStep, Point, RawState, State, Store};
use alluvium_benches::{Figures, Outcome, Samples, UserStatus, key_text, logins, timed};
use futures::TryStreamExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::{JoinError, JoinSet};

use crate::Setup;

const KEYS: u64 = 100_000;
/// Tasks that put single values, each with keys of its own.
const PUTTERS: u64 = 4;
const EPOCH_EVENTS: u64 = 500;
const SAMPLES: u32 = 60;
/// 2024-01-15T00:00:00Z in microseconds.
const FIRST_MICROS: i64 = 1_705_276_800_000_000;
const DAY_MICROS: i64 = 86_400_000_000;
const MEMORY_BYTES: f64 = 1e9;
/// Shorter than by default, so that every step has something to do every day.
const SETTINGS: [(&str, &str); 5] = [
    ("commit_retention", "3d"),
    ("file_retention", "1d"),
    ("orphan_grace", "1d"),
    ("as_of_window", "2d"),
    ("log_retention", "7d"),
];

/// A clock that runs faster than time.
#[derive(Debug)]
struct FastClock {
    started: Instant,
    day: Duration,
}

impl Clock for FastClock {
    fn now_micros(&self) -> i64 {
        let days = self.started.elapsed().div_duration_f64(self.day);
        FIRST_MICROS + (days * DAY_MICROS as f64) as i64
    }
}

/// What the tasks share.
struct Soak {
    is_over: AtomicBool,
    puts: Mutex<Samples>,
    gets: Mutex<Samples>,
}

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("soak");
    let place = setup.place("soak")?;
    let length = match setup.quick {
        true => Duration::from_secs(10),
        false => Duration::from_secs(60 * setup.minutes),
    };
    let days = 20 + 2 * u32::try_from(setup.minutes)?;
    let clock = Arc::new(FastClock { started: Instant::now(), day: length / days });
    let folder = place.path("store");
    let uri = folder.display().to_string();
    let store = Store::builder(&uri).clock(clock.clone()).open().await?;
    let (users, visits) = (store.state("users").await?, store.state("visits").await?);
    let soak = Arc::new(Soak {
        is_over: AtomicBool::new(false),
        puts: Mutex::default(),
        gets: Mutex::default(),
    });
    let mut others = JoinSet::new();
    others.spawn(read(soak.clone(), visits.clone(), users.clone()));
    others.spawn(maintain(soak.clone(), visits.raw().clone(), clock.day));
    others.spawn(maintain(soak.clone(), users.raw().clone(), clock.day));
    let mut putters = JoinSet::new();
    for number in 0..PUTTERS {
        putters.spawn(put(soak.clone(), visits.clone(), number));
    }
    let counter = tokio::spawn(count(soak.clone(), store.clone(), users.clone()));
    // Whoever ends before the time has met an error.
    let table = tokio::select! {
        table = sample(&figures, &soak, &folder, length) => table?,
        Some(ended) = others.join_next() => return Err(early(ended)),
        Some(ended) = putters.join_next() => return Err(early(ended.map(|put| put.map(drop)))),
    };
    soak.is_over.store(true, Ordering::SeqCst);
    let mut expected = HashMap::new();
    while let Some(put) = putters.join_next().await {
        expected.extend(put??);
    }
    let events = counter.await??;
    while let Some(other) = others.join_next().await {
        other??;
    }
    figures.line("alluvium", "simulated days", f64::from(days), "", 1);
    figures.line("alluvium", "events of epochs", events as f64, "", 1);
    judge(&figures, &table);
    check(&visits, &expected, &users, events).await?;
    store.close().await;
    Ok(())
}

/// Why a task ended.
fn early(ended: Result<Outcome<()>, JoinError>) -> Box<dyn std::error::Error + Send + Sync> {
    match ended {
        Ok(Err(error)) => error,
        Err(error) => error.into(),
        Ok(Ok(())) => "a task ended before it was told to".into(),
    }
}

/// Puts values of its own keys one after the other; what each has in the end.
async fn put(
    soak: Arc<Soak>,
    visits: State<UserStatus>,
    number: u64,
) -> Outcome<HashMap<String, i64>> {
    let mut rng = StdRng::seed_from_u64(number);
    let mut expected = HashMap::new();
    for count in 1.. {
        if soak.is_over.load(Ordering::SeqCst) {
            break;
        }
        let key = key_text(rng.random_range(0..KEYS / PUTTERS) * PUTTERS + number);
        let value = UserStatus { login_count: count, score: rng.random(), source: "soak".into() };
        let (put, took) = timed(visits.put(&key, &value)).await;
        put?;
        expected.insert(key, count);
        if let Ok(mut puts) = soak.puts.lock() {
            puts.push(took);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(expected)
}

/// Counts logins by a stream of epochs; how many.
async fn count(soak: Arc<Soak>, store: Store, users: State<UserStatus>) -> Outcome<u64> {
    let mut rng = StdRng::seed_from_u64(99);
    let mut stream = store.epochs("soak");
    let mut events = 0;
    for number in 1.. {
        if soak.is_over.load(Ordering::SeqCst) {
            break;
        }
        let mut epoch = stream.begin(number).await?;
        for _ in 0..EPOCH_EVENTS {
            let key = key_text(rng.random_range(0..KEYS));
            let before = epoch.get(&users, &key).await?;
            let login_count = before.map_or(0, |user| user.login_count) + 1;
            let after = UserStatus { login_count, score: rng.random(), source: "soak".into() };
            epoch.put(&users, &key, after).await?;
        }
        stream.submit(epoch).await?;
        events += EPOCH_EVENTS;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    stream.flush().await?;
    Ok(events)
}

/// Gets, scans of a part, and the past.
async fn read(soak: Arc<Soak>, visits: State<UserStatus>, users: State<UserStatus>) -> Outcome<()> {
    let mut rng = StdRng::seed_from_u64(98);
    for turn in 0_u64.. {
        if soak.is_over.load(Ordering::SeqCst) {
            break;
        }
        for state in [&visits, &users] {
            let key = key_text(rng.random_range(0..KEYS));
            let (got, took) = timed(state.raw().get(Point::LATEST, &key)).await;
            got?;
            if let Ok(mut gets) = soak.gets.lock() {
                gets.push(took);
            }
            if turn % 100 == 0 {
                let prefix = &key[..key.len() - 2];
                let _: Vec<_> = state.scan(prefix).await?.try_collect().await?;
                let commit = state.raw().log().refresh().await?.version;
                state.raw().get(Point::at_commit(commit), &key).await?;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Sets spans with which every step of the job has something to do every day.
pub(crate) async fn shorten_retention(state: &RawState) -> Outcome<()> {
    let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    let settings: Vec<_> = SETTINGS.iter().map(owned).collect();
    state.set_maintenance(&settings).await?;
    Ok(())
}

/// The job, every day.
async fn maintain(soak: Arc<Soak>, state: RawState, day: Duration) -> Outcome<()> {
    shorten_retention(&state).await?;
    while !soak.is_over.load(Ordering::SeqCst) {
        state.maintain(&MaintainStep::ALL, false).await?;
        tokio::time::sleep(day).await;
    }
    Ok(())
}

/// What is looked at, over and over: each with its unit.
const LOOKED_AT: [(&str, &str); 7] = [
    ("memory", "MB"),
    ("open files", ""),
    ("threads", ""),
    ("files on the disk", ""),
    ("bytes on the disk", "MB"),
    ("put, p50", "ms"),
    ("get from files, p50", "ms"),
];

async fn sample(
    figures: &Figures,
    soak: &Soak,
    folder: &Path,
    length: Duration,
) -> Outcome<Vec<[f64; LOOKED_AT.len()]>> {
    let mut table = Vec::new();
    for turn in 1..=SAMPLES {
        tokio::time::sleep(length / SAMPLES).await;
        let median = |samples: &Mutex<Samples>| {
            let taken = samples.lock().map(|mut samples| std::mem::take(&mut *samples));
            taken.map_or(f64::NAN, |samples| samples.median() * 1e3)
        };
        let (files, bytes) = usage(folder.to_owned());
        let row = [
            resident_bytes()? / 1e6,
            open_files()? as f64,
            std::fs::read_dir("/proc/self/task")?.count() as f64,
            files,
            bytes / 1e6,
            median(&soak.puts),
            median(&soak.gets),
        ];
        let seconds = (length / SAMPLES * turn).as_secs_f64();
        let minutes = (seconds / 0.6).round() / 100.0;
        for ((metric, unit), value) in LOOKED_AT.iter().zip(row) {
            figures.point("alluvium", metric, (minutes, "min"), value, unit);
        }
        table.push(row);
    }
    Ok(table)
}

/// The last quarter against the second one, and the most memory against its limit.
fn judge(figures: &Figures, table: &[[f64; LOOKED_AT.len()]]) {
    let quarter = table.len() / 4;
    for (column, (metric, _)) in LOOKED_AT.iter().enumerate() {
        let median = |rows: &[[f64; LOOKED_AT.len()]]| {
            let mut values: Vec<f64> = rows.iter().map(|row| row[column]).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let (second, last) =
            (median(&table[quarter..2 * quarter]), median(&table[table.len() - quarter..]));
        let name = format!("{metric}, last quarter against second");
        figures.line("alluvium", &name, last / second, "times", quarter);
    }
    let most = table.iter().map(|row| row[0]).fold(0.0, f64::max);
    figures.ratio("1 GB", "the most memory", MEMORY_BYTES / 1e6 / most, 1.0);
}

/// Everything that was acknowledged is there, once.
async fn check(
    visits: &State<UserStatus>,
    expected: &HashMap<String, i64>,
    users: &State<UserStatus>,
    events: u64,
) -> Outcome<()> {
    let mut rows = visits.scan("").await?;
    let mut seen = 0;
    while let Some(row) = rows.try_next().await? {
        if expected.get(&row.key) != Some(&row.value.login_count) {
            return Err(format!("{} has {:?}", row.key, row.value).into());
        }
        seen += 1;
    }
    let counted = logins(users).await?;
    if seen != expected.len() || counted != i64::try_from(events)? {
        let wanted = expected.len();
        return Err(format!("{seen} visitors of {wanted}, {counted} logins of {events}").into());
    }
    for state in [visits.raw(), users.raw()] {
        if !state.verify().await?.is_sound() {
            return Err(format!("{}: the snapshot isn't the fold of the log", state.name()).into());
        }
    }
    Ok(())
}

/// Memory that the process holds now, in bytes.
pub(crate) fn resident_bytes() -> Outcome<f64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no figure")?.parse()?;
    Ok(kib * 1024.0)
}

/// Files that the process has open now, with the folder that tells it.
pub(crate) fn open_files() -> Outcome<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// Files and bytes below a folder; what vanishes meanwhile doesn't count.
fn usage(folder: PathBuf) -> (f64, f64) {
    let (mut files, mut bytes) = (0.0, 0.0);
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(about) if about.is_dir() => folders.push(entry.path()),
                Ok(about) => {
                    files += 1.0;
                    bytes += about.len() as f64;
                }
                Err(_) => {}
            }
        }
    }
    (files, bytes)
}
