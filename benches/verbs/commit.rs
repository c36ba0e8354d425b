//! Appends of one row: their latency, how it grows with the number of commits, opening, and many writers at once.

use std::time::{Duration, Instant};

use alluvium::{OrderBy, RawState};
use alluvium_benches::{
    Events, Figures, Floor, KEYS, Outcome, Place, Samples, append_rows, table_at, timed,
};

use crate::Setup;

/// Commits of each end of the growth that are compared.
const WINDOW: usize = 100;
const WRITERS: u64 = 64;

pub(crate) async fn run(setup: &Setup) -> Outcome<()> {
    let figures = Figures::of("commit");
    let place = setup.place("commit")?;
    let commits = setup.pick(5_000, 1_000);
    let (ours, floor) = one_at_a_time(&figures, &place, commits).await?;
    let theirs = by_delta_rs(&place, setup.pick(200, 100)).await?;
    figures.latency("alluvium", "append of 1 row", &ours);
    figures.latency("floor", "append of 1 row", &floor);
    figures.latency("delta-rs", "append of 1 row", &theirs);
    let (early, late) = (ours.part(WINDOW, 2 * WINDOW), ours.part(commits - WINDOW, commits));
    let (floor_early, floor_late) =
        (floor.part(0, WINDOW), floor.part(floor.len() - WINDOW, floor.len()));
    figures.duration("alluvium", "commits 100 to 200", &early);
    figures.duration("alluvium", "the last 100 commits", &late);
    figures.duration("floor", "meanwhile, early", &floor_early);
    figures.duration("floor", "meanwhile, late", &floor_late);
    let end = theirs.len();
    figures.duration("delta-rs", "the first 20 commits", &theirs.part(0, 20));
    figures.duration("delta-rs", "the last 20 commits", &theirs.part(end - 20, end));
    figures.times("delta-rs", "append of 1 row, p50", &theirs, &ours, 5.0);
    figures.times("floor", "append of 1 row, p50 (1/1.5 wanted)", &floor, &ours, 1.0 / 1.5);
    let growth = late.median() / early.median();
    let floor_growth = floor_late.median() / floor_early.median();
    figures.line("alluvium", "growth, last to early", growth, "times", WINDOW);
    figures.line(
        "alluvium",
        "growth, the floor's own taken out",
        growth / floor_growth,
        "times",
        WINDOW,
    );
    many_writers(&figures, &place, setup.pick(100, 30)).await
}

/// Commits in turns with the floor, where they are compared: at both ends.
async fn one_at_a_time(
    figures: &Figures,
    place: &Place,
    commits: usize,
) -> Outcome<(Samples, Samples)> {
    let (store, state) = place.new_state("store", OrderBy::Version).await?;
    let mut floor = Floor::new(&place.path("floor"))?;
    let mut events = Events::seeded(1);
    let (mut ours, mut least) = (Samples::default(), Samples::default());
    let mut opened_early = Samples::default();
    for commit in 0..commits {
        let row = events.random(1, KEYS)?;
        let (done, took) = timed(state.append(&row)).await;
        done?;
        ours.push(took);
        if commit < 3 * WINDOW || commit + 3 * WINDOW >= commits {
            let (done, took) = timed(async { floor.commit(&row) }).await;
            done?;
            least.push(took);
        }
        if commit + 1 == WINDOW {
            opened_early = openings(place).await?;
        }
    }
    store.close().await;
    let opened_late = openings(place).await?;
    figures.duration("alluvium", "open at 100 commits", &opened_early);
    figures.duration("alluvium", &format!("open at {commits} commits"), &opened_late);
    let growth = opened_late.median() / opened_early.median();
    figures.line("alluvium", "growth of opening", growth, "times", opened_late.len());
    Ok((ours, least))
}

async fn openings(place: &Place) -> Outcome<Samples> {
    let mut samples = Samples::default();
    for _ in 0..7 {
        let (opened, took) = timed(place.reopen("store")).await;
        opened?;
        samples.push(took);
    }
    Ok(samples)
}

async fn by_delta_rs(place: &Place, commits: usize) -> Outcome<Samples> {
    let mut events = Events::seeded(1);
    let mut table = table_at(&place.path("delta")).await?;
    let mut samples = Samples::default();
    for _ in 0..commits {
        let row = events.random(1, KEYS)?;
        let (written, took) = timed(append_rows(table, vec![row])).await;
        table = written?;
        samples.push(took);
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
