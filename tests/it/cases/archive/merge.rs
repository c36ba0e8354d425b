//! The archive's files are merged by days, as the log's are: same rows, same answers, and nothing where nothing is to gain.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::{MaintainStep, ManualClock, Point, RawState};
use alluvium_log::{DT, MaintenanceSettings};

use super::{archive, archived, day_of, let_archive};
use crate::support::answers::answers;
use crate::support::faults::{FaultyStore, Left, open_both, work_to_death};
use crate::support::stores::{
    DAY, Home, START, by_time, by_version, commit_of, live, row_count, set,
};

/// Before the archive is looked at: everything else that a run of the job does.
const BEFORE: [MaintainStep; 2] = [MaintainStep::Materialize, MaintainStep::Compact];

/// How many files each day of the archive has.
async fn files_by_day(state: &RawState) -> BTreeMap<String, usize> {
    let log = state.log();
    let known = log.refresh().await.unwrap();
    let mut days = BTreeMap::new();
    if let Some(archive) = log.archive_contents(&known).await.unwrap() {
        for file in &archive.files {
            let day = file.add.partition.get(DT).cloned().flatten().unwrap();
            *days.entry(day).or_default() += 1;
        }
    }
    days
}

async fn version_of_archive(state: &RawState) -> i64 {
    let settings = MaintenanceSettings::from_metadata(&state.log().state().metadata).unwrap();
    let table = state.log().open_archive(&settings).await.unwrap().unwrap();
    table.refresh().await.unwrap().version
}

#[tokio::test(flavor = "multi_thread")]
async fn arc_10_what_came_to_an_archived_day_at_different_times_is_one_run_with_the_same_answers() {
    for is_by_time in [true, false] {
        let (home, cold) = (Home::new(), Home::new());
        let clock = Arc::new(ManualClock::at(START));
        let store = home.open_at(&clock).await;
        let state = match is_by_time {
            true => by_time(&store, "s").await,
            false => by_version(&store, "s").await,
        };
        let_archive(&state).await;
        set(&state, &[("archive", &cold.uri())]).await;
        let (mut moved, mut merged) = (0, 0);
        for day in 0..30 {
            day_of(&state, &clock, day).await;
            state.maintain(&BEFORE, false).await.unwrap();
            let newest = commit_of(&state).await;
            let is_looked_at = day % 6 == 5;
            let before = match is_looked_at {
                true => answers(&state, newest).await,
                false => Vec::new(),
            };
            let report = archive(&state).await;
            assert!(!report.gave_way && !report.merged.gave_way, "{report:?}");
            moved += report.files;
            merged += report.merged.files_removed;
            if is_looked_at {
                assert_eq!(answers(&state, newest).await, before, "day {day}");
            }
            let (commit, version) = (commit_of(&state).await, {
                match archived(&state) {
                    Some(_) => version_of_archive(&state).await,
                    None => -1,
                }
            });
            let again = archive(&state).await;
            assert_eq!((again.files, again.merged.files_removed), (0, 0), "{again:?}");
            assert_eq!(commit_of(&state).await, commit, "a second run makes no commit");
            if version >= 0 {
                assert_eq!(version_of_archive(&state).await, version);
            }
            state.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
        }
        let days = files_by_day(&state).await;
        assert!(merged > 10 && moved > days.len() as u64 + 5, "{merged} of {moved}: {days:?}");
        assert!(days.values().all(|files| *files == 1), "{days:?}");
        let totals = archived(&state).unwrap();
        assert_eq!(totals.files as usize, days.len());
        let hot: u64 = state.log().state().files().filter_map(|file| file.stats.rows).sum();
        assert_eq!(totals.rows as u64 + hot, 90);
        let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
        assert_eq!(row_count(&fresh).await, 90);
        assert!(fresh.verify().await.unwrap().is_sound());
        fresh.materialize(true).await.unwrap();
        assert_eq!(live(&fresh, Point::LATEST).await, live(&state, Point::LATEST).await);
        let deep = store.examine("s").await.unwrap();
        assert!(deep.damaged.is_empty(), "{deep:?}");
        assert_eq!(deep.archived_rows, totals.rows as u64);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arc_11_a_merge_killed_at_any_call_of_either_store_is_made_good() {
    let built = [FaultyStore::new(), FaultyStore::new()];
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open_both(&built, &clock).await, "s").await;
    let_archive(&state).await;
    set(&state, &[("archive", "cold://far")]).await;
    let mut known = Vec::new();
    for day in 0..16 {
        day_of(&state, &clock, day).await;
        known.push((commit_of(&state).await, live(&state, Point::LATEST).await));
        // The last ones wait, so that some days have something to be merged with.
        if day < 14 {
            state.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
    }
    state.maintain(&BEFORE, false).await.unwrap();
    clock.set(START + 19 * DAY);
    state.materialize(false).await.unwrap();
    let mut merges = 0;
    for dying in [0, 1] {
        for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
            let job =
                async |state: &RawState| state.maintain(&[MaintainStep::Archive], false).await;
            let left = work_to_death(&built, &clock, (dying, call, takes_place), job).await;
            let Left { died, state, .. } = left;
            for _ in 0..2 {
                for (commit, rows) in [&known[0], &known[7], &known[15]] {
                    assert_eq!(live(&state, Point::at_commit(*commit)).await, *rows, "{call}");
                }
                assert_eq!(row_count(&state).await, 48, "call {call}");
                merges += archive(&state).await.merged.files_removed;
            }
            let days = files_by_day(&state).await;
            assert!(days.values().all(|files| *files == 1), "call {call}: {days:?}");
            assert!(state.verify().await.unwrap().is_sound(), "call {call}");
            if !died {
                break;
            }
        }
    }
    assert!(merges > 20, "{merges}");
}
