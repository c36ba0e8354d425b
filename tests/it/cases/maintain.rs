//! The periodic job: a state that is maintained for a year stays small and answers as before; settings are obeyed.

mod dry_runs;
mod reports;

use std::sync::Arc;

use alluvium::{ErrorKind, MaintainStep, ManualClock, Point, RawState, StepOutcome};

use crate::support::faults::{FaultyStore, maintain_to_death, open};
use crate::support::reports::dry_then_real;
use crate::support::stores::{
    DAY, Home, START, assert_sound, by_time, by_version, commit_of, live, n_batch, n_batch_at,
    n_of, refused,
};

/// How many files lie below a folder.
fn on_disk(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { on_disk(&path) } else { 1 }).sum()
}

async fn day_of(state: &RawState, clock: &ManualClock, day: i64) {
    for part in 0..4 {
        let time = START + day * DAY + part;
        clock.set(time);
        let n = day * 4 + part;
        let rows = [(format!("k{}", n % 50), n), (format!("new{}", n / 8), n)];
        let rows: Vec<_> = rows.iter().map(|(key, n)| (key.as_str(), *n, Some(*n))).collect();
        state.append(&n_batch_at(&rows, &[time; 2])).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_is_maintained_daily_for_months_stays_small_and_answers_as_one_that_is_not() {
    const DAYS: i64 = 150;
    let clock = Arc::new(ManualClock::at(START));
    let homes = [Home::new(), Home::new()];
    let mut states = Vec::new();
    for home in &homes {
        states.push(by_time(&home.open_at(&clock).await, "s").await);
    }
    let [tended, left] = [&states[0], &states[1]];
    let spans = [("commit_retention", "8d"), ("file_retention", "2d"), ("as_of_window", "2d")];
    let spans = spans.map(|(name, value)| (name.to_owned(), value.to_owned()));
    tended.set_maintenance(&spans).await.unwrap();
    let mut halfway = 0;
    for day in 0..DAYS {
        day_of(tended, &clock, day).await;
        day_of(left, &clock, day).await;
        let report = tended.maintain(&MaintainStep::ALL, false).await.unwrap();
        assert_eq!(report.steps.len(), MaintainStep::ALL.len());
        if day == DAYS / 2 {
            halfway = on_disk(homes[0].folder.path());
        }
    }
    let (files, others) = (on_disk(homes[0].folder.path()), on_disk(homes[1].folder.path()));
    assert!(files * 2 < others, "{files} files against {others}");
    // A file for each day, and nothing else that grows.
    assert!(files < halfway + 75 + 60, "{halfway} files at half time, {files} at the end");
    for day in (0..DAYS).step_by(30) {
        let point = Point::at_time(START + day * DAY + DAY / 2);
        let (a, b) = (live(tended, point).await, live(left, point).await);
        assert!(a == b && !a.is_empty(), "day {day}");
        let point = Point::at_version(day * 4 + 2);
        assert_eq!(live(tended, point).await, live(left, point).await, "day {day}");
    }
    assert_sound(tended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_job_killed_at_any_call_is_made_good_by_the_next_run() {
    let built = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open(&built, &clock).await, "s").await;
    for day in [0, 1, 40, 41, 42] {
        day_of(&state, &clock, day).await;
        if day != 42 {
            state.materialize(false).await.unwrap();
            state.compact(false).await.unwrap();
            state.log().table().checkpoint().await.unwrap();
        }
    }
    clock.set(START + 60 * DAY);
    let expected = live(&state, Point::LATEST).await;
    let past = live(&state, Point::at_version(7)).await;
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let (died, state) = maintain_to_death(&built, &clock, call, takes_place).await;
        assert_eq!(live(&state, Point::LATEST).await, expected, "call {call}");
        assert_eq!(live(&state, Point::at_version(7)).await, past, "call {call}");
        let report = state.maintain(&MaintainStep::ALL, false).await.unwrap();
        assert_eq!(report.log_after.files, 5, "call {call}: {report:?}");
        let again = state.maintain(&MaintainStep::ALL, false).await.unwrap();
        assert_eq!(again.log_after, report.log_after);
        assert!(state.verify().await.unwrap().is_sound(), "call {call}");
        if !died {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_tells_what_the_real_run_does_and_changes_nothing() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    for day in 0..40 {
        day_of(&state, &clock, day).await;
        if day == 20 {
            state.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
    }
    clock.set(START + 60 * DAY);
    let before = on_disk(home.folder.path());
    let dry = state.maintain(&MaintainStep::ALL, true).await.unwrap();
    assert_eq!(on_disk(home.folder.path()), before);
    assert!(dry.log_after.files < dry.log_before.files, "{dry:?}");
    let StepOutcome::Materialized(folded) = &dry.steps[0].outcome else { panic!("{dry:?}") };
    assert!(folded.to_commit - folded.from_commit > 70, "{dry:?}");
    assert_eq!(folded.rows_folded, 19 * 8, "{dry:?}");
    let (real, _) = dry_then_real(&state, &MaintainStep::ALL, "60 days").await;
    let StepOutcome::Compacted(merged) = &real.steps[4].outcome else { panic!("{real:?}") };
    assert!(merged.commits > 10 && merged.files_added > 10 && merged.bytes_after > 0, "{real:?}");
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_kept_with_the_state_and_contradictions_change_nothing() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    let set = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    state.set_maintenance(&set("commit_retention", "90d")).await.unwrap();
    let other = home.open().await.raw_state("s").await.unwrap();
    let seen = other.maintenance_settings().await.unwrap();
    assert_eq!(seen.named()["commit_retention"], "90d");
    let commit = commit_of(&state).await;
    other.set_maintenance(&set("commit_retention", "90d")).await.unwrap();
    assert_eq!(commit_of(&state).await, commit, "what is set already makes no commit");
    let changes = set("file_retention", "91d");
    refused(&state, state.set_maintenance(&changes), ErrorKind::InvalidInput, &["91d", "90d"])
        .await;
    let changes = set("file_retentoin", "9d");
    refused(&state, state.set_maintenance(&changes), ErrorKind::InvalidInput, &["file_retention"])
        .await;
    let two = [set("commit_retention", "4w"), set("file_retention", "3w")].concat();
    state.set_maintenance(&two).await.unwrap();
    state.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap();
    assert_eq!(n_of(&other, Point::LATEST, "a").await, Some(1));
    assert_eq!(other.maintenance_settings().await.unwrap().named()["file_retention"], "21d");
}
