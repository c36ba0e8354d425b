//! The same small cycle in one process over and over: append, refresh, get, now and then a fold, more seldom the job. Once it is warm
//! memory and open files have to stay where they are; if they don't, the bench fails.

use std::sync::Arc;

use alluvium::{Change, ManualClock, Point, State, Store, StoreSettings};
use alluvium_benches::{Figures, Outcome, UserStatus, key_text};

use crate::Setup;
use crate::soak::{open_files, resident_bytes, shorten_retention};

const CYCLES: u64 = 2_000;
const ROWS: u64 = 10;
/// All of them are known by the time from which memory is judged.
const KEYS: u64 = 5_000;
/// Cycles from one fold to the next, and from one run of the job to the next.
const FOLD_EVERY: u64 = 20;
const MAINTAIN_EVERY: u64 = 100;
/// 2024-01-15T00:00:00Z in microseconds.
const FIRST_MICROS: i64 = 1_705_276_800_000_000;
/// A hundred cycles are a day, so that each run of the job has one to merge and one to vacuum.
const CYCLE_MICROS: i64 = 864_000_000;
/// By how much memory may grow over the second half.
const GROWTH: f64 = 1.10;

/// What was held after a cycle.
struct Mark {
    cycle: u64,
    bytes: f64,
    files: usize,
}

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("cycles");
    let place = setup.place("cycles")?;
    let uri = place.path("store").display().to_string();
    let clock = Arc::new(ManualClock::at(FIRST_MICROS));
    let builder = || Store::builder(&uri).settings(small_caches()).clock(clock.clone());
    let store = builder().open().await?;
    let users: State<UserStatus> = store.state("users").await?;
    shorten_retention(users.raw()).await?;
    // Another handle follows what this one writes, as another part of the program would.
    let other = builder().open().await?;
    let reader: State<UserStatus> = other.state("users").await?;
    let cycles = setup.pick(CYCLES, CYCLES / 10);
    let mut marks = Vec::new();
    for cycle in 1..=cycles {
        clock.set(FIRST_MICROS + i64::try_from(cycle)? * CYCLE_MICROS);
        turn(&users, &reader, cycle).await?;
        if cycle.is_multiple_of(cycles / 4) {
            // What goes on in the background has files open, and ends first.
            store.close().await;
            other.close().await;
            let mark = Mark { cycle, bytes: resident_bytes()?, files: open_files()? };
            let at = (cycle as f64, "cycles");
            figures.point("alluvium", "memory", at, mark.bytes / 1e6, "MB");
            figures.point("alluvium", "open files", at, mark.files as f64, "");
            figures.progress(&format!(
                "cycle {}: {:.1} MB, {} open files",
                mark.cycle,
                mark.bytes / 1e6,
                mark.files
            ));
            marks.push(mark);
        }
    }
    if !users.raw().verify().await?.is_sound() {
        return Err("the snapshot isn't the fold of the log".into());
    }
    store.close().await;
    other.close().await;
    // A short run ends before it is warm.
    if setup.quick { Ok(()) } else { judge(&figures, &marks) }
}

/// Caches that are full long before memory is judged: what they take until then is no growth without end.
fn small_caches() -> StoreSettings {
    const BYTES: u64 = 1024 * 1024;
    StoreSettings {
        footer_cache_bytes: BYTES,
        page_cache_bytes: BYTES,
        page_spill_bytes: BYTES,
        row_cache_bytes: BYTES,
        ..StoreSettings::default()
    }
}

/// One cycle.
async fn turn(users: &State<UserStatus>, reader: &State<UserStatus>, cycle: u64) -> Outcome<()> {
    let first = cycle * ROWS;
    let login_count = i64::try_from(cycle)?;
    let changes: Vec<_> = (first..first + ROWS)
        .map(|n| {
            let value = UserStatus { login_count, score: n as f64, source: "cycles".into() };
            Change::upsert(key_text(n % KEYS), value)
        })
        .collect();
    users.append(&changes).await?;
    reader.raw().log().refresh().await?;
    let key = key_text(first % KEYS);
    if reader.get(&key).await?.map(|user| user.login_count) != Some(login_count) {
        return Err(format!("cycle {cycle}: {key} is not what was appended").into());
    }
    // Past the rows in memory: a key of some cycles ago, from tail or files.
    let before = key_text(first.saturating_sub(FOLD_EVERY * 2 * ROWS).max(ROWS) % KEYS);
    if reader.raw().get(Point::LATEST, &before).await?.found().is_none() {
        return Err(format!("cycle {cycle}: {before} is gone").into());
    }
    if cycle.is_multiple_of(FOLD_EVERY) {
        users.raw().materialize(false).await?;
    }
    if cycle.is_multiple_of(MAINTAIN_EVERY) {
        users.raw().maintain(&alluvium::MaintainStep::ALL, false).await?;
    }
    Ok(())
}

/// What the second half added.
fn judge(figures: &Figures, marks: &[Mark]) -> Outcome<()> {
    let [_, half, _, last] = marks else { return Err("four marks were to be taken".into()) };
    let growth = last.bytes / half.bytes;
    figures.line("alluvium", "memory, the end against half the way", growth, "times", 1);
    if growth > GROWTH {
        return Err(format!(
            "memory grew {growth:.2} times from cycle {} to cycle {}, more than {GROWTH}",
            half.cycle, last.cycle
        )
        .into());
    }
    if last.files > half.files {
        return Err(format!(
            "{} files were open after cycle {}, {} after cycle {}",
            half.files, half.cycle, last.files, last.cycle
        )
        .into());
    }
    Ok(())
}
