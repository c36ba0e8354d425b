//! SAV-*: what a savepoint pins stays readable, whatever is cleaned up, until it is released.

use std::sync::Arc;

use alluvium::{
    ErrorKind, HistoryExpired, KeptBy, MaintainStep, ManualClock, Point, RawState, StepOutcome,
    Store, StoreSettings,
};
use futures::future::join_all;
mod named;

use std::error::Error as _;

use crate::support::faults::{FaultyStore, maintain_to_death, open};
use crate::support::stores::{
    DAY, Home, Live, START, by_version, commit_of, live, n_batch_at, n_of, settings, sql_numbers,
};

const SPANS: [(&str, &str); 4] = [
    ("commit_retention", "3d"),
    ("file_retention", "1d"),
    ("as_of_window", "1d"),
    ("log_retention", "5d"),
];

async fn let_expire(state: &RawState) {
    let spans = SPANS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    state.set_maintenance(&spans).await.unwrap();
}

/// Every key changes, so that no file of the snapshot is part of the next day's.
async fn change(state: &RawState, clock: &ManualClock, day: i64) {
    let time = START + day * DAY;
    clock.set(time + DAY / 2);
    let rows = ["a", "b", "c"].map(|key| (key, day, Some(day)));
    state.append(&n_batch_at(&rows, &[time; 3])).await.unwrap();
}

async fn days(state: &RawState, clock: &ManualClock, days: std::ops::Range<i64>) {
    for day in days {
        change(state, clock, day).await;
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
    }
}

async fn at(state: &RawState, commit: i64) -> Vec<Live> {
    live(state, Point::at_commit(commit)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sav_01_a_savepoint_answers_for_ever_and_frees_everything_when_it_is_released() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let store = home.open_at(&clock).await;
    let state = by_version(&store, "s").await;
    let_expire(&state).await;
    days(&state, &clock, 0..3).await;
    let saved = state.create_savepoint("before-move", Some("the move")).await.unwrap();
    let rows = live(&state, Point::LATEST).await;
    days(&state, &clock, 3..4).await;
    let lost = commit_of(&state).await;
    days(&state, &clock, 4..40).await;
    for handle in [&state, &home.open_at(&clock).await.raw_state("s").await.unwrap()] {
        assert_eq!(at(handle, saved.log_commit).await, rows);
        assert_eq!(n_of(handle, Point::at_commit(saved.log_commit), "b").await, Some(2));
        let error = handle.get(Point::at_commit(lost), "b").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
        let cause = error.source().unwrap().downcast_ref::<HistoryExpired>().unwrap();
        assert_eq!(cause.savepoints, [("before-move".to_owned(), saved.log_commit)]);
        assert!(error.to_string().contains("before-move"), "{error}");
    }
    let query = format!("SELECT sum(n) FROM as_of('s', 'commit:{}')", saved.log_commit);
    assert_eq!(sql_numbers(&store, &query).await, [6]);
    let listed = state.savepoints().await.unwrap();
    assert_eq!((listed.len(), listed[0].note.as_deref()), (1, Some("the move")));

    let explained = state.explain_retention().await.unwrap();
    assert_eq!(explained.savepoints.len(), 1);
    assert!(explained.savepoints[0].own_bytes > 0, "{explained:?}");
    let own = explained.kept.iter().find(|kept| kept.by == KeptBy::Savepoints).unwrap();
    assert_eq!(own.bytes, explained.savepoints[0].own_bytes);

    state.release_savepoint("before-move").await.unwrap();
    let error = state.get(Point::at_commit(saved.log_commit), "b").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PointUnavailable);
    // A read that began before may last as long as files are kept.
    let files = |state: &RawState| {
        let state = state.clone();
        async move {
            let snapshot = state.snapshot().state();
            let (table, _) = snapshot.table().unwrap();
            let here = table.files_on_store(&table.state()).await.unwrap();
            here.into_iter().map(|file| file.1).collect::<Vec<_>>()
        }
    };
    let pinned = saved.paths().next().unwrap().0.to_owned();
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
    assert!(files(&state).await.contains(&pinned));
    clock.set(START + 43 * DAY);
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
    assert!(!files(&state).await.contains(&pinned));
    assert!(!home.folder.path().join("s/savepoints/before-move.json").exists());
    let left = std::fs::read_dir(home.folder.path().join("s/savepoints/released")).unwrap();
    assert_eq!(left.count(), 0, "the record goes with its files");
}

#[tokio::test(flavor = "multi_thread")]
async fn sav_02_names_are_taken_once_and_what_is_not_there_can_not_be_released() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    let error = state.create_savepoint("one", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    days(&state, &clock, 0..1).await;
    let racers = join_all((0..4).map(|_| state.create_savepoint("one", None))).await;
    assert_eq!(racers.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    for error in racers.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    }
    state.append(&n_batch_at(&[("unfolded", 1_000_000, Some(1))], &[START])).await.unwrap();
    let before = state.snapshot().refresh().await.unwrap().version();
    for name in ["", "../one", "a b", "é"] {
        let error = state.create_savepoint(name, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(state.snapshot().refresh().await.unwrap().version(), before, "nothing is folded");
    let error = state.release_savepoint("two").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("there is one"), "{error}");
    state.release_savepoint("one").await.unwrap();
    assert!(state.savepoints().await.unwrap().is_empty());
    state.create_savepoint("one", None).await.unwrap();
    // What can't be read may pin anything: nothing is removed.
    let record = home.folder.path().join("s/savepoints/one.json");
    std::fs::write(&record, "{").unwrap();
    let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
    let error = fresh.maintain(&[MaintainStep::Vacuum], false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("one.json"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sav_03_a_savepoint_made_beside_maintenance_keeps_all_or_is_refused() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    let_expire(&state).await;
    days(&state, &clock, 0..2).await;
    let other = home.open_at(&clock).await.raw_state("s").await.unwrap();
    let mut saved = Vec::new();
    for day in 2..24 {
        clock.set(START + day * DAY);
        let rows = ["a", "b", "c"].map(|key| (key, day, Some(day)));
        state.append(&n_batch_at(&rows, &[START + day * DAY; 3])).await.unwrap();
        let name = format!("day-{day}");
        let (made, maintained) = futures::join!(
            state.create_savepoint(&name, None),
            other.maintain(&MaintainStep::ALL, false)
        );
        maintained.unwrap();
        saved.push((made.unwrap().log_commit, day));
    }
    clock.set(START + 60 * DAY);
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
    assert_eq!(state.log().state().file_count(), 0);
    for (commit, day) in saved {
        assert_eq!(n_of(&other, Point::at_commit(commit), "c").await, Some(day), "commit {commit}");
    }
    assert!(state.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn sav_04_making_and_releasing_killed_at_any_call_leaves_a_whole_savepoint_or_none() {
    let built = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open(&built, &clock).await, "s").await;
    let_expire(&state).await;
    days(&state, &clock, 0..3).await;
    let expected = live(&state, Point::LATEST).await;
    let (mut made, mut unmade) = (0, 0);
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        clock.set(START + 3 * DAY);
        let faulty = built.forked();
        let state = open(&faulty, &clock).await.raw_state("s").await.unwrap();
        faulty.die_at(call, takes_place);
        let outcome = match state.create_savepoint("p", None).await {
            Ok(_) => state.release_savepoint("p").await.map(drop),
            Err(error) => Err(error),
        };
        let died = faulty.is_dead();
        assert!(outcome.is_err() || !died, "call {call}");
        let state = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
        let left = state.savepoints().await.unwrap();
        days(&state, &clock, 20..30).await;
        match left.as_slice() {
            [] => unmade += 1,
            [saved] => {
                made += 1;
                assert_eq!(at(&state, saved.log_commit).await, expected, "call {call}");
                state.release_savepoint("p").await.unwrap();
            }
            more => panic!("call {call}: {more:?}"),
        }
        clock.set(START + 40 * DAY);
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
        let explained = state.explain_retention().await.unwrap();
        let kept = |by| explained.kept.iter().any(|kept| kept.by == by);
        assert!(!kept(KeptBy::Savepoints) && !kept(KeptBy::SnapshotWindow), "{explained:?}");
        assert!(state.savepoints().await.unwrap().is_empty());
        if !died {
            break;
        }
    }
    assert!(made > 1 && unmade > 1, "{made} made, {unmade} not");
}

#[tokio::test(flavor = "multi_thread")]
async fn sav_05_the_retention_is_explained_as_the_next_run_carries_it_out() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    days(&state, &clock, 0..12).await;
    let whole = state.explain_retention().await.unwrap();
    assert_eq!((whole.readable.horizon, whole.readable.changes_after), (None, 0));
    assert!(whole.next_expire.reason.contains("log_retention"), "{whole:?}");
    let_expire(&state).await;
    clock.set(START + 14 * DAY);
    let told = state.explain_retention().await.unwrap();
    let again = state.explain_retention().await.unwrap();
    assert_eq!(told, again, "explaining changes nothing");
    assert!(told.next_expire.days.len() > 5 && told.next_bytes > 0, "{told:?}");
    let past = told.kept.iter().find(|kept| kept.by == KeptBy::LogPastRetention).unwrap();
    assert_eq!(past.bytes, told.next_expire.bytes);
    let on_disk: u64 = told.kept.iter().map(|kept| kept.bytes).sum();
    assert_eq!(on_disk, parquet_bytes(home.folder.path()), "{told:?}");
    // The files are younger than the clock here: the vacuum first, while the commits that know them are there.
    let steps = [MaintainStep::Expire, MaintainStep::Vacuum];
    let done = state.maintain(&steps, false).await.unwrap();
    state.maintain(&[MaintainStep::Cleanup], false).await.unwrap();
    assert_eq!(done.expired_commit, told.readable_after.changes_after);
    assert_eq!(done.horizon, told.readable_after.horizon);
    let after = state.explain_retention().await.unwrap();
    assert_eq!(after.readable.horizon, told.readable_after.horizon);
    assert_eq!(after.readable.snapshot_version, told.readable_after.snapshot_version);
    assert_eq!(after.readable.known_since_ms, told.readable_after.known_since_ms);
    let now: u64 = after.kept.iter().map(|kept| kept.bytes).sum();
    let nothing = |kept: &&alluvium::Kept| kept.by == KeptBy::Nothing;
    let doomed = told.kept.iter().find(nothing).map_or(0, |kept| kept.bytes);
    assert_eq!(now, on_disk - doomed);
    assert!(!after.kept.iter().any(|kept| nothing(&kept)), "{after:?}");
}

/// Before anything was vacuumed, and after.
#[tokio::test(flavor = "multi_thread")]
async fn sav_09_what_the_next_run_takes_is_told_as_it_is_counted_afterwards() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    // Nothing is cleaned up but by the job.
    let settings = StoreSettings { tidy_after_commits: 0, ..settings() };
    let builder = Store::builder(&home.uri()).settings(settings).clock(clock.clone());
    let state = by_version(&builder.open().await.unwrap(), "s").await;
    let_expire(&state).await;
    let takes = [MaintainStep::Expire, MaintainStep::Cleanup, MaintainStep::Vacuum];
    let keeps: Vec<_> =
        MaintainStep::ALL.into_iter().filter(|step| !takes.contains(step)).collect();
    for round in 0..3 {
        for day in round * 12..(round + 1) * 12 {
            change(&state, &clock, day).await;
            state.maintain(&keeps, false).await.unwrap();
        }
        let told = state.explain_retention().await.unwrap();
        let steps = [MaintainStep::Expire, MaintainStep::Vacuum];
        let vacuumed = state.maintain(&steps, false).await.unwrap();
        let cleaned = state.maintain(&[MaintainStep::Cleanup], false).await.unwrap();
        let StepOutcome::Vacuumed { log, snapshot, .. } = &vacuumed.steps[1].outcome else {
            panic!("{vacuumed:?}")
        };
        let files = [log, snapshot.as_ref().unwrap()];
        let StepOutcome::CleanedUp { log, snapshot, .. } = &cleaned.steps[0].outcome else {
            panic!("{cleaned:?}")
        };
        let commits = [log, snapshot.as_ref().unwrap()];
        assert!(told.next_commits > 0 && told.next_files > 0, "round {round}: {told:?}");
        assert_eq!(told.next_commits, commits.map(|of| of.commits_removed).iter().sum::<u64>());
        assert_eq!(told.next_files, files.map(|of| of.paths.len() as u64).iter().sum::<u64>());
        let freed = files.map(|of| of.bytes_removed).iter().sum::<u64>();
        assert_eq!(told.next_bytes, freed + commits.map(|of| of.bytes_removed).iter().sum::<u64>());
        assert_eq!(told.readable_after.horizon, vacuumed.horizon, "round {round}");
        assert_eq!(told.readable_after.changes_after, vacuumed.expired_commit);
        let now = state.explain_retention().await.unwrap().readable;
        assert_eq!(now.horizon, told.readable_after.horizon, "round {round}");
        assert_eq!(now.log_version, told.readable_after.log_version, "round {round}");
        assert_eq!(now.snapshot_version, told.readable_after.snapshot_version, "round {round}");
        let earliest = now.horizon.unwrap().commit;
        at(&state, earliest).await;
        state.get(Point::at_commit(earliest - 1), "a").await.unwrap_err();
    }
}

fn parquet_bytes(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .filter(|path| !path.ends_with("_delta_log"))
        .map(|path| match path.is_dir() {
            true => parquet_bytes(&path),
            false if path.extension().is_some_and(|end| end == "parquet") => {
                path.metadata().unwrap().len()
            }
            false => 0,
        })
        .sum()
}

async fn keep_a_grid(state: &RawState, grid: &str) {
    let change = [("snapshot_grid".to_owned(), grid.to_owned())];
    state.set_maintenance(&change).await.unwrap();
}

/// What was known at the end of each day: the commit that the snapshot folds, and the rows.
async fn days_end(
    state: &RawState,
    clock: &ManualClock,
    range: std::ops::Range<i64>,
) -> Vec<(i64, Vec<Live>)> {
    let mut known = Vec::new();
    for day in range {
        for part in 1..=3 {
            let time = START + day * DAY + part * DAY / 4;
            clock.set(time);
            let n = day * 3 + part;
            state
                .append(&n_batch_at(&["a", "b"].map(|key| (key, n, Some(n))), &[time; 2]))
                .await
                .unwrap();
            state.materialize(false).await.unwrap();
        }
        let folded = state.snapshot().state().log_commit();
        known.push((folded, live(state, Point::LATEST).await));
        if day % 2 == 0 {
            clock.set(START + (day + 1) * DAY + DAY / 8);
            state.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
    }
    known
}

#[tokio::test(flavor = "multi_thread")]
async fn sav_07_the_snapshots_at_the_marks_of_a_grid_answer_long_after_the_window() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    let_expire(&state).await;
    state.set_maintenance(&[("as_of_window".to_owned(), "3d".to_owned())]).await.unwrap();
    keep_a_grid(&state, "12h:6d,1d:30d").await;
    let known = days_end(&state, &clock, 0..61).await;
    let grid = || home.folder.path().join("s/savepoints/grid").read_dir().unwrap().count();
    assert!((28..=44).contains(&grid()), "{} snapshots are kept", grid());
    let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
    // The last day's end is the mark at which day 61 begins.
    for (day, (commit, rows)) in known.iter().enumerate() {
        let outcome = fresh.get(Point::at_commit(*commit), "a").await;
        if day as i64 > 61 - 30 {
            outcome.unwrap();
            assert_eq!(at(&fresh, *commit).await, *rows, "day {day}");
        } else if (day as i64) < 61 - 32 {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::PointUnavailable, "day {day}");
        }
    }
    let kept = state.grid_snapshots().await.unwrap();
    assert_eq!(kept.len(), grid());
    let is_listed = |commit: i64| kept.iter().any(|kept| kept.log_commit == commit);
    assert!(known.iter().skip(61 - 29).all(|known| is_listed(known.0)), "{kept:?}");
    // A state without commits: what it was at all later marks is what it was last.
    clock.set(START + 85 * DAY);
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
    let again = state.maintain(&MaintainStep::ALL, true).await.unwrap();
    let StepOutcome::Grid(again) = again.steps[2].outcome else { panic!("{again:?}") };
    assert_eq!((again.added, again.released), (0, 0), "a second run finds nothing to do");
    let (commit, rows) = &known[60];
    assert_eq!(at(&state, *commit).await, *rows);
    assert!(known[58].0 < *commit && at(&state, known[58].0).await == known[58].1);
    clock.set(START + 400 * DAY);
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
    assert_eq!((grid(), at(&state, *commit).await), (1, rows.clone()));
    keep_a_grid(&state, "none").await;
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
    assert_eq!(grid(), 0);
    assert!(state.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn sav_08_the_job_killed_at_any_call_keeps_the_grid_whole() {
    let built = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open(&built, &clock).await, "s").await;
    let_expire(&state).await;
    keep_a_grid(&state, "1d:3d").await;
    let known = days_end(&state, &clock, 0..6).await;
    clock.set(START + 6 * DAY + DAY / 8);
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let (died, state) = maintain_to_death(&built, &clock, call, takes_place).await;
        for _ in 0..2 {
            for (commit, rows) in &known[3..] {
                assert_eq!(at(&state, *commit).await, *rows, "call {call}");
            }
            state.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
        let again = state.maintain(&MaintainStep::ALL, true).await.unwrap();
        let StepOutcome::Grid(grid) = again.steps[2].outcome else { panic!("{again:?}") };
        assert_eq!((grid.added, grid.released), (0, 0), "call {call}: {grid:?}");
        if !died {
            break;
        }
    }
}

#[test]
fn sav_06_savepoints_and_the_retention_by_the_program() {
    use super::program::{change, fail, lines, succeed};
    let home = Home::new();
    let input: String = (1..=3).map(|n| change("u1", n, n)).collect();
    succeed(&home, &["append", "users"], &input);
    succeed(&home, &["set", "users", "log_retention=30d"], "");
    let made =
        ["savepoint", "create", "users", "before-move", "--note", "the move", "--output", "jsonl"];
    assert_eq!(succeed(&home, &made, ""), "");
    fail(&home, &made, "", 2, &["before-move", "exists", "another name"]);
    let listed = lines(&succeed(&home, &["savepoint", "list", "users", "--output", "jsonl"], ""));
    assert_eq!(
        (&listed[0]["name"], &listed[0]["note"]),
        (&"before-move".into(), &"the move".into())
    );
    let commit = listed[0]["commit"].to_string();
    succeed(&home, &["append", "users"], &change("u1", 4, 4));
    let row = succeed(&home, &["get", "users", "u1", "--commit", &commit, "--output", "jsonl"], "");
    assert_eq!(lines(&row)[0]["value"]["n"], 3);

    let json = succeed(&home, &["retention", "explain", "--json"], "");
    let explained: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(explained[0]["state"], "users");
    assert_eq!(explained[0]["settings"]["log_retention"], "30d");
    assert_eq!(explained[0]["savepoints"][0]["log_commit"].to_string(), commit);
    assert_eq!(explained[0]["next_expire"]["days"], serde_json::json!([]));
    let told = succeed(&home, &["retention", "explain", "users", "--output", "table"], "");
    for name in [
        "users:",
        "as of every commit",
        "of days past log_retention",
        "before-move",
        "the next run",
    ] {
        assert!(told.contains(name), "no {name:?} in {told}");
    }
    fail(&home, &["savepoint", "release", "users", "after"], "", 3, &["after", "before-move"]);
    succeed(&home, &["savepoint", "release", "users", "before-move"], "");
    assert_eq!(succeed(&home, &["savepoint", "list", "users", "--output", "jsonl"], ""), "");
    fail(&home, &["savepoint", "list", "nobody"], "", 3, &["nobody"]);
    fail(&home, &["retention", "explain", "users", "--output", "csv"], "", 2, &["columns"]);
}
