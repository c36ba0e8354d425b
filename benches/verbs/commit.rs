//! Appends of one row: their latency, how it grows with the number of commits, opening, and many writers at once.

use std::path::Path;
use std::time::{Duration, Instant};

use alluvium::{OrderBy, RawState};
use alluvium_benches::{
    Events, Figures, Floor, KEYS, Outcome, Place, Samples, append_rows, as_child, open_state,
    open_table, table_at, timed,
};
use arrow::array::RecordBatch;

use crate::Setup;

/// Commits of the small store, and of each point of the plot.
const WINDOW: usize = 100;
/// Commits to each store, in turns, by which the small and the large one are compared.
const TURNS: usize = 200;
/// Openings of each of them, in turns.
const OPENED_IN_TURNS: usize = 31;
/// Of the other side's commits, which grow much faster.
const THEIR_WINDOW: usize = 20;
/// Commits of the other side whose median is compared with ours.
const THEIR_COMMITS: usize = 200;
/// Commits after which the table is opened anew.
const OPENED_AT: [usize; 7] = [10, 30, WINDOW, 300, 1_000, 2_000, 3_000];
const OPENINGS: usize = 7;
const WRITERS: u64 = 64;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("commit");
    let place = setup.place("commit")?;
    let commits = setup.pick(10_000, 1_000);
    let (ours, floor) = one_at_a_time(&figures, &place, commits).await?;
    in_turns(&figures, &place, commits).await?;
    let all_theirs = by_delta_rs(&figures, &place, setup.pick(500, 100)).await?;
    by_number(&figures, "alluvium", &ours, WINDOW);
    by_number(&figures, "floor", &floor, WINDOW);
    by_number(&figures, "delta-rs", &all_theirs, THEIR_WINDOW);
    let theirs = all_theirs.part(0, THEIR_COMMITS);
    figures.latency("alluvium", "append of 1 row", &ours);
    figures.latency("floor", "append of 1 row", &floor);
    figures.latency("delta-rs", "append of 1 row", &theirs);
    let end = theirs.len();
    figures.duration("delta-rs", "the first 20 commits", &theirs.part(0, THEIR_WINDOW));
    figures.duration("delta-rs", "the last 20 commits", &theirs.part(end - THEIR_WINDOW, end));
    figures.times("delta-rs", "append of 1 row, p50", &theirs, &ours, 5.0);
    figures.times("floor", "append of 1 row, p50 (1/1.5 wanted)", &floor, &ours, 1.0 / 1.5);
    many_writers(&figures, &place, setup.pick(100, 30)).await
}

/// The median of each window of commits, by the number of its last one.
fn by_number(figures: &Figures, side: &str, samples: &Samples, window: usize) {
    for first in (0..samples.len()).step_by(window) {
        let part = samples.part(first, first + window);
        let at = ((first + part.len()) as f64, "commits");
        figures.point(side, "append of 1 row, p50", at, part.median() * 1e3, "ms");
    }
}

/// Commits in turns with the floor.
async fn one_at_a_time(
    figures: &Figures,
    place: &Place,
    commits: usize,
) -> Outcome<(Samples, Samples)> {
    let (store, state) = place.new_default_state("store", OrderBy::Version).await?;
    let mut floor = Floor::new(&place.path("floor"))?;
    let mut events = Events::seeded(1);
    let (mut ours, mut least) = (Samples::default(), Samples::default());
    for commit in 1..=commits {
        let row = events.random(1, KEYS)?;
        ours.push(append(&state, &row).await?);
        let (done, took) = timed(async { floor.commit(&row) }).await;
        done?;
        least.push(took);
        if OPENED_AT.contains(&commit) || commit == commits {
            openings(figures, place, commit).await?;
        }
    }
    store.close().await;
    Ok((ours, least))
}

async fn append(state: &RawState, row: &RecordBatch) -> Outcome<Duration> {
    let (done, took) = timed(state.append(row)).await;
    done?;
    Ok(took)
}

/// The store of many commits and one of few, in turns: a disk whose speed changes meanwhile changes both.
async fn in_turns(figures: &Figures, place: &Place, commits: usize) -> Outcome<()> {
    let mut events = Events::seeded(2);
    let (store, small) = place.new_default_state("small", OrderBy::Version).await?;
    for _ in 0..WINDOW {
        append(&small, &events.random(1, KEYS)?).await?;
    }
    store.close().await;
    let (mut few, mut many) = (Samples::default(), Samples::default());
    for _ in 0..OPENED_IN_TURNS {
        for (name, samples) in [("small", &mut few), ("store", &mut many)] {
            let (opened, took) = timed(place.reopen(name)).await;
            opened?;
            samples.push(took);
        }
    }
    figures.duration("alluvium", &format!("open at {WINDOW} commits"), &few);
    figures.duration("alluvium", &format!("open at {commits} commits"), &many);
    let growth = many.median() / few.median();
    figures.line("alluvium", "growth of opening (3 wanted)", growth, "times", many.len());

    let ((first, large), (second, small)) =
        (place.reopen("store").await?, place.reopen("small").await?);
    let (mut few, mut many) = (Samples::default(), Samples::default());
    for _ in 0..TURNS {
        for (state, samples) in [(&small, &mut few), (&large, &mut many)] {
            samples.push(append(state, &events.random(1, KEYS)?).await?);
        }
    }
    for store in [first, second] {
        store.close().await;
    }
    let numbers = |from: usize| format!("commits {from} to {}", from + TURNS);
    figures.duration("alluvium", &numbers(WINDOW), &few);
    figures.duration("alluvium", &numbers(commits), &many);
    let growth = many.median() / few.median();
    figures.line("alluvium", "growth of a commit (1.2 wanted)", growth, "times", TURNS);
    Ok(())
}

async fn openings(figures: &Figures, place: &Place, commits: usize) -> Outcome<()> {
    let mut samples = Samples::default();
    for _ in 0..OPENINGS {
        let (opened, took) = timed(place.reopen("store")).await;
        opened?;
        samples.push(took);
    }
    figures.point("alluvium", "open", (commits as f64, "commits"), samples.median() * 1e3, "ms");
    Ok(())
}

/// Opens a store's state many times, in a process of its own, so that a profile shows nothing else.
pub(crate) async fn child(openings: &str, folder: &Path) -> Outcome<()> {
    let openings: u64 = openings.parse()?;
    let opened = async {
        for _ in 0..openings {
            open_state(folder).await?;
        }
        Ok(openings)
    };
    as_child(opened).await
}

async fn by_delta_rs(figures: &Figures, place: &Place, commits: usize) -> Outcome<Samples> {
    let mut events = Events::seeded(1);
    let mut table = table_at(&place.path("delta")).await?;
    let mut samples = Samples::default();
    for commit in 1..=commits {
        let row = events.random(1, KEYS)?;
        let (written, took) = timed(append_rows(table, vec![row])).await;
        table = written?;
        samples.push(took);
        if OPENED_AT.contains(&commit) || commit == commits {
            let mut opened = Samples::default();
            for _ in 0..OPENINGS {
                let (table, took) = timed(open_table(&place.path("delta"))).await;
                table?;
                opened.push(took);
            }
            let at = (commit as f64, "commits");
            figures.point("delta-rs", "open", at, opened.median() * 1e3, "ms");
        }
    }
    Ok(samples)
}

async fn many_writers(figures: &Figures, place: &Place, rows_each: usize) -> Outcome<()> {
    let (store, state) = place.new_state("shared", OrderBy::Version).await?;
    let started = Instant::now();
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(append_each(state.clone(), writer, rows_each)))
        .collect();
    let mut waits = Samples::default();
    for task in tasks {
        for wait in task.await?? {
            waits.push(wait);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let rows = waits.len();
    figures.line("alluvium", "64 writers of 1 row", rows as f64 / seconds, "rows/s", rows);
    figures.latency("alluvium", "64 writers, wait", &waits);
    let commits = state.log().state().version;
    figures.line(
        "alluvium",
        "64 writers, rows of a commit",
        rows as f64 / commits as f64,
        "rows",
        rows,
    );
    store.close().await;
    Ok(())
}

async fn append_each(state: RawState, writer: u64, rows: usize) -> Outcome<Vec<Duration>> {
    let mut events = Events::seeded(100 + writer);
    let mut waits = Vec::with_capacity(rows);
    for _ in 0..rows {
        let row = events.random(1, KEYS)?;
        let (done, took) = timed(state.append(&row)).await;
        done?;
        waits.push(took);
    }
    Ok(waits)
}
