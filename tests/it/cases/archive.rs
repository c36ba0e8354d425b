//! ARC-*: days move to the archive; every answer stays, each row is in one place, and nothing recent ever opens the archive.

mod merge;
mod unreachable;

use std::error::Error as _;
use std::sync::Arc;

use alluvium::{
    ArchiveReport, ArchiveUnreachable, ErrorKind, MaintainStep, ManualClock, Point, RawState,
    StepOutcome,
};
use alluvium_log::{Archived, Expired, KeyFilter};
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use futures::future::join_all;

use crate::support::delta;
use crate::support::faults::{
    FaultyStore, Left, maintain_to_death, open, open_both, work_to_death,
};
use crate::support::stores::{
    DAY, Home, Live, START, assert_sound, by_time, by_version, commit_of, live, n_batch_at, n_of,
    refused, row_count, set, sql, sql_numbers, sql_texts,
};

/// Days of the as-of window of these states.
const WINDOW: usize = 2;

async fn let_archive(state: &RawState) {
    let spans = [
        ("commit_retention", "8d"),
        ("file_retention", "2d"),
        ("as_of_window", "2d"),
        ("hot_days", "5d"),
    ];
    set(state, &spans).await;
}

/// A change a day of a key that all days share and of one of its own, and a late one of some days before.
async fn day_of(state: &RawState, clock: &ManualClock, day: i64) {
    let time = START + day * DAY;
    clock.set(time + DAY / 2);
    let (own, late) = (format!("d{day:04}"), format!("late{day:04}"));
    let rows = [
        ("daily", day, Some(day)),
        (own.as_str(), day, Some(day)),
        (late.as_str(), 100_000 + day, Some(day)),
    ];
    let times = [time, time, START + (day / 2) * DAY];
    state.append(&n_batch_at(&rows, &times)).await.unwrap();
}

/// What the commits of some days came to.
async fn days(
    state: &RawState,
    clock: &ManualClock,
    days: std::ops::Range<i64>,
) -> Vec<(i64, Vec<Live>)> {
    let mut known = Vec::new();
    for day in days {
        day_of(state, clock, day).await;
        known.push((commit_of(state).await, live(state, Point::LATEST).await));
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
    }
    known
}

fn archived(state: &RawState) -> Option<Archived> {
    Archived::of(&state.log().state())
}

fn parquet_files(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_data = |path: &std::path::Path| path.extension().is_some_and(|end| end == "parquet");
    entries
        .filter(|path| !path.ends_with("_delta_log"))
        .map(|path| if path.is_dir() { parquet_files(&path) } else { usize::from(is_data(&path)) })
        .sum()
}

async fn archive(state: &RawState) -> ArchiveReport {
    let report = state.maintain(&[MaintainStep::Archive], false).await.unwrap();
    match report.steps.into_iter().map(|step| step.outcome).next() {
        Some(StepOutcome::Archived(report)) => report,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arc_01_every_point_is_answered_as_before_and_plans_say_what_comes_from_the_archive() {
    let (home, cold) = (Home::new(), Home::new());
    // On a bucket each day takes a second.
    let all = if home.is_remote() { 14 } else { 40 };
    let clock = Arc::new(ManualClock::at(START));
    let store = home.open_at(&clock).await;
    let state = by_time(&store, "s").await;
    let_archive(&state).await;
    set(&state, &[("archive", &cold.uri())]).await;
    let known = days(&state, &clock, 0..all).await;
    let totals = archived(&state).unwrap();
    let hot: u64 = state.log().state().files().filter_map(|file| file.stats.rows).sum();
    assert_eq!(totals.rows as u64 + hot, 3 * all as u64, "{totals:?}");
    let is_there = |(path, _): &(String, _)| path.starts_with("s/archive/_delta_log/");
    assert!(hot < 3 * 12 && cold.files().await.iter().any(is_there), "{hot}");
    let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
    for (day, (commit, rows)) in known.iter().enumerate() {
        for handle in [&state, &fresh] {
            assert_eq!(live(handle, Point::at_commit(*commit)).await, *rows, "commit {commit}");
            let at = Point::at_commit(*commit);
            assert_eq!(n_of(handle, at, "daily").await, Some(day as i64));
        }
    }
    for state in [&state, &fresh] {
        assert_eq!(row_count(state).await as i64, 3 * all);
        assert!(live(state, Point::at_time(START - 1)).await.is_empty());
        assert_eq!(live(state, Point::at_version(0)).await.len(), 2);
    }
    let count = |from: &str| format!("SELECT count(*) FROM {from}");
    for (query, rows) in [
        (count("history('s')"), 3 * all),
        (count("history('s', 'daily')"), all),
        (count("changes('s', 0)"), 3 * all),
        (count("log.s"), 3 * all),
        (count("log.s WHERE commit <= 8"), count_up_to(&known, 8)),
        (count("diff('s', 'commit:0', 'latest')"), 2 * all + 1),
    ] {
        assert_eq!(sql_numbers(&store, &query).await, [rows], "{query}");
    }
    for (query, is_old) in [
        ("SELECT * FROM changes('s', 0)".to_owned(), true),
        ("SELECT * FROM history('s', 'daily')".to_owned(), true),
        ("SELECT * FROM log.s".to_owned(), true),
        (format!("SELECT * FROM as_of('s', 'commit:{}')", known[3].0), true),
        ("SELECT * FROM s".to_owned(), false),
        (format!("SELECT * FROM changes('s', {})", totals.commit), false),
    ] {
        let plan = sql(&store, &format!("EXPLAIN {query}")).await.unwrap();
        let plan = format!("{plan:?}");
        assert_eq!(plan.contains("from the archive at version"), is_old, "{query}: {plan}");
    }
    assert!(sql_texts(&store, "SELECT op_type FROM log.s LIMIT 1").await.len() == 1);
    assert_sound(&state).await;
}

fn count_up_to(known: &[(i64, Vec<Live>)], commit: i64) -> i64 {
    3 * known.iter().filter(|known| known.0 <= commit).count() as i64
}

#[tokio::test(flavor = "multi_thread")]
async fn arc_02_nothing_recent_opens_the_archive_and_what_needs_it_names_it_when_it_is_gone() {
    let (hot, cold) = (FaultyStore::new(), FaultyStore::new());
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open_both(&[hot.clone(), cold.clone()], &clock).await, "s").await;
    let_archive(&state).await;
    set(&state, &[("archive", "cold://far/away")]).await;
    let known = days(&state, &clock, 0..20).await;
    assert!(archived(&state).unwrap().files > 0);
    let (hot, cold) = (hot.reborn(), cold.reborn());
    let store = open_both(&[hot.clone(), cold.clone()], &clock).await;
    let state = store.raw_state("s").await.unwrap();
    let calls = || cold.counts.take().iter().sum::<u64>();
    let (newest, rows) = known.last().unwrap();
    assert_eq!(live(&state, Point::LATEST).await, *rows);
    for (commit, rows) in &known[known.len() - WINDOW..] {
        assert_eq!(live(&state, Point::at_commit(*commit)).await, *rows);
        n_of(&state, Point::at_commit(*commit), "daily").await;
    }
    state.append(&n_batch_at(&[("new", 500_000, Some(1))], &[START + 19 * DAY])).await.unwrap();
    state.materialize(false).await.unwrap();
    let basis = state.reader().basis().await.unwrap();
    let recent = state.reader().changes_rows(&basis, *newest).await.unwrap();
    assert_eq!(recent.try_collect::<Vec<_>>().await.unwrap().len(), 1);
    state.stats().await.unwrap();
    assert_eq!(calls(), 0, "the archive was opened for nothing");
    assert_eq!(live(&state, Point::at_commit(known[2].0)).await, known[2].1);
    assert!(calls() > 0);

    // What isn't there is named; everything else goes on.
    let (hot, cold) = (hot.reborn(), cold.reborn());
    let store = open_both(&[hot.clone(), cold.clone()], &clock).await;
    let state = store.raw_state("s").await.unwrap();
    cold.die_at(0, false);
    for _ in 0..2 {
        let old = Point::at_commit(known[2].0);
        let errors = [
            state.get(old, "daily").await.map(drop).unwrap_err(),
            state.scan(old, KeyFilter::All).await.map(drop).unwrap_err(),
            sql(&store, "SELECT count(*) FROM history('s')").await.map(drop).unwrap_err(),
            state.materialize(true).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
            assert!(error.to_string().contains("cold://far/away/s/archive"), "{error}");
        }
        let error = state.get(old, "daily").await.map(drop).unwrap_err();
        let cause = error.source().and_then(|cause| cause.downcast_ref::<ArchiveUnreachable>());
        assert_eq!(cause.unwrap().state, "s");
        assert_eq!(n_of(&state, Point::LATEST, "daily").await, Some(19));
        assert!(n_of(&state, Point::at_commit(*newest), "daily").await.is_some());
        state.append(&n_batch_at(&[("x", 500_001, Some(1))], &[START + 19 * DAY])).await.unwrap();
        state.materialize(false).await.unwrap();
        state.maintain(&MaintainStep::ALL, false).await.unwrap_err();
        let stop = alluvium::StopSignal::default();
        let report = state.maintain_hot(&MaintainStep::ALL, false, &stop).await.unwrap();
        assert_eq!(report.steps.len(), MaintainStep::ALL.len());
    }
    let state = open_both(&[hot.reborn(), cold.reborn()], &clock).await;
    let state = state.raw_state("s").await.unwrap();
    assert_eq!(live(&state, Point::at_commit(known[2].0)).await, known[2].1);
}

#[tokio::test(flavor = "multi_thread")]
async fn arc_03_the_job_killed_at_any_call_of_the_store_leaves_each_row_in_one_place() {
    let built = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open(&built, &clock).await, "s").await;
    let_archive(&state).await;
    let mut known = days(&state, &clock, 0..8).await;
    day_of(&state, &clock, 14).await;
    known.push((commit_of(&state).await, live(&state, Point::LATEST).await));
    state.maintain(&[MaintainStep::Materialize, MaintainStep::Vacuum], false).await.unwrap();
    // There is an archive already, and more is to move.
    let before = archived(&state).unwrap();
    clock.set(START + 18 * DAY);
    let rows = row_count(&state).await;
    let mut moved = 0;
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let (died, state) = maintain_to_death(&built, &clock, call, takes_place).await;
        moved += u64::from(archived(&state) != Some(before));
        for _ in 0..2 {
            for (commit, rows) in [&known[1], &known[6], &known[8]] {
                let at = Point::at_commit(*commit);
                assert_eq!(live(&state, at).await, *rows, "call {call}, commit {commit}");
            }
            assert_eq!(row_count(&state).await, rows, "call {call}");
            state.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
        let after = archived(&state).unwrap();
        assert!(after.rows > before.rows, "call {call}");
        let commit = commit_of(&state).await;
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
        assert_eq!((commit_of(&state).await, archived(&state)), (commit, Some(after)));
        assert!(state.verify().await.unwrap().is_sound(), "call {call}");
        if !died {
            break;
        }
    }
    assert!(moved > 10, "{moved}");
}

#[tokio::test(flavor = "multi_thread")]
async fn arc_04_a_first_move_killed_at_any_call_of_either_store_is_made_good() {
    let built = [FaultyStore::new(), FaultyStore::new()];
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open_both(&built, &clock).await, "s").await;
    let known = days(&state, &clock, 0..6).await;
    let_archive(&state).await;
    set(&state, &[("archive", "cold://far")]).await;
    clock.set(START + 14 * DAY);
    let steps = [MaintainStep::Archive, MaintainStep::Cleanup, MaintainStep::Vacuum];
    for dying in [0, 1] {
        for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
            let job = async |state: &RawState| state.maintain(&steps, false).await;
            let left = work_to_death(&built, &clock, (dying, call, takes_place), job).await;
            let Left { died, state, .. } = left;
            for _ in 0..2 {
                for (commit, rows) in [&known[0], &known[5]] {
                    assert_eq!(live(&state, Point::at_commit(*commit)).await, *rows, "{call}");
                }
                assert_eq!(row_count(&state).await, 18, "call {call}");
                state.maintain(&steps, false).await.unwrap();
            }
            assert_eq!(archived(&state).unwrap().rows, 18, "call {call}");
            if !died {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arc_05_archivers_compactors_appenders_and_materializers_at_once_lose_and_double_nothing() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    let_archive(&state).await;
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(home.open_at(&clock).await.raw_state("s").await.unwrap());
    }
    let mut known = Vec::new();
    for day in 0..30 {
        day_of(&state, &clock, day).await;
        let n = 200_000 + day;
        let key = format!("more{day:04}");
        let row = n_batch_at(&[(&key, n, Some(n))], &[START + (day / 3) * DAY]);
        let maintain = |index: usize, step| {
            let state = others[index].clone();
            async move { state.maintain(&[step], false).await.unwrap() }
        };
        let archivers = join_all([0, 1].map(|index| maintain(index, MaintainStep::Archive)));
        let compactor = maintain(2, MaintainStep::Compact);
        let materializer = maintain(3, MaintainStep::Materialize);
        let (_, _, _, receipt) =
            futures::join!(archivers, compactor, materializer, state.append(&row));
        receipt.unwrap();
        maintain(0, MaintainStep::Vacuum).await;
        // A day has passed for everybody, while the waits in the readers go by the machine's clock.
        for handle in others.iter().chain([&state]) {
            handle.snapshot().refresh().await.unwrap();
        }
        known.push((commit_of(&state).await, live(&state, Point::LATEST).await));
    }
    assert!(archived(&others[0]).unwrap().rows > 30);
    let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
    for handle in others.iter().chain([&state, &fresh]) {
        assert_eq!(row_count(handle).await, 120);
        for (commit, rows) in [&known[2], &known[15], &known[29]] {
            assert_eq!(live(handle, Point::at_commit(*commit)).await, *rows, "commit {commit}");
        }
    }
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arc_06_archived_days_expire_from_the_archive_and_those_that_stay_hot_do_not() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    let_archive(&state).await;
    set(&state, &[("log_retention", "10d")]).await;
    let mut known = days(&state, &clock, 0..11).await;
    assert_eq!(Expired::commit_of(&state.log().state()), 0);
    // Left alone, days neither move nor go.
    let stop = alluvium::StopSignal::default();
    let held = archived(&state);
    for day in 11..30 {
        day_of(&state, &clock, day).await;
        known.push((commit_of(&state).await, live(&state, Point::LATEST).await));
        state.maintain_hot(&MaintainStep::ALL, false, &stop).await.unwrap();
    }
    assert_eq!(archived(&state), held);
    assert_eq!(Expired::commit_of(&state.log().state()), 0);
    assert_eq!(row_count(&state).await, 90);
    assert_eq!(live(&state, Point::at_commit(known[0].0)).await, known[0].1);
    known.extend(days(&state, &clock, 30..60).await);
    let expired = Expired::commit_of(&state.log().state());
    let totals = archived(&state).unwrap();
    assert!(expired > 0 && totals.rows < 3 * 16, "{expired}, {totals:?}");
    for (commit, rows) in known.iter().rev() {
        let at = Point::at_commit(*commit);
        match state.scan(at, KeyFilter::All).await {
            Ok(_) => assert_eq!(live(&state, at).await, *rows, "commit {commit}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}"),
        }
    }
    let (last, rows) = known.last().unwrap();
    assert_eq!(live(&state, Point::at_commit(*last)).await, *rows);
    assert!(state.verify().await.unwrap().is_sound());
    // What has gone is gone from the disk too.
    let left = parquet_files(&home.table("s", "archive"));
    assert!(left < 40, "{left} files");
}

#[tokio::test(flavor = "multi_thread")]
async fn arc_07_contradictions_are_refused_and_an_archive_that_holds_rows_stays_where_it_is() {
    let (home, cold) = (Home::new(), Home::new());
    let clock = Arc::new(ManualClock::at(START));
    let store = home.open_at(&clock).await;
    let state = by_version(&store, "s").await;
    let no = |changes: &[(&str, &str)]| {
        let changes: Vec<(String, String)> =
            changes.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let state = state.clone();
        async move { state.set_maintenance(&changes).await }
    };
    for (changes, names) in [
        (vec![("hot_days", "3d")], ["hot_days (3d)", "as_of_window (7d)"]),
        (vec![("hot_days", "30d"), ("log_retention", "20d")], ["log_retention (20d)", "hot_days"]),
        (vec![("hot_days", "8d"), ("compact_after", "9d")], ["hot_days (8d)", "compact_after"]),
        (vec![("archive", "memory://x")], ["archive", "ends with the process"]),
        (vec![("archive", "some/folder")], ["some/folder", "absolute"]),
    ] {
        refused(&state, no(&changes), ErrorKind::InvalidInput, &names).await;
    }
    let_archive(&state).await;
    set(&state, &[("archive", &cold.uri())]).await;
    set(&state, &[("archive", "default")]).await;
    days(&state, &clock, 0..12).await;
    assert!(archived(&state).unwrap().rows > 0);
    let names = ["s/archive", "another place"];
    refused(&state, no(&[("archive", &cold.uri())]), ErrorKind::InvalidInput, &names).await;
    // Two logs never share one.
    let (first, second) = (Home::new(), Home::new());
    for (index, home) in [&first, &second].into_iter().enumerate() {
        let clock = Arc::new(ManualClock::at(START));
        let other = by_version(&home.open_at(&clock).await, "s").await;
        let_archive(&other).await;
        set(&other, &[("archive", &cold.uri())]).await;
        if index == 0 {
            days(&other, &clock, 0..12).await;
            continue;
        }
        day_of(&other, &clock, 0).await;
        other.materialize(false).await.unwrap();
        clock.set(START + 20 * DAY);
        let error = other.maintain(&[MaintainStep::Archive], false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert!(error.to_string().contains("set another archive"), "{error}");
        assert_eq!(row_count(&other).await, 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arc_08_another_engine_finds_all_rows_in_log_and_archive_together() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let_archive(&state).await;
    days(&state, &clock, 0..10).await;
    // Its own rows move too, with the commit that brought them.
    let foreign = n_batch_at(&[("foreign", 900_000, Some(9))], &[START + 9 * DAY]);
    delta::append(&home.table("s", "log"), &foreign).await;
    let commit = commit_of(&state).await;
    days(&state, &clock, 11..24).await;
    let (log, cold) = (home.table("s", "log"), home.table("s", "archive"));
    let tables = [delta::open(&log).await, delta::open(&cold).await];
    let context = delta::session(&[("log", &tables[0]), ("archive", &tables[1])]).await;
    let union =
        "SELECT state_key, version FROM log UNION ALL SELECT state_key, version FROM archive";
    let count = format!(
        "SELECT count(*), count(DISTINCT concat(CAST(version AS VARCHAR), ' ', state_key)) FROM ({union})"
    );
    let seen = delta::query(&context, &count).await;
    for column in [0, 1] {
        assert_eq!(seen[0].column(column).as_primitive::<Int64Type>().value(0), 3 * 23 + 1);
    }
    let inside = delta::query(&context, "SELECT count(*) FROM archive WHERE state_key = 'foreign'");
    assert_eq!(inside.await[0].column(0).as_primitive::<Int64Type>().value(0), 1);
    assert_eq!(n_of(&state, Point::at_commit(commit), "foreign").await, Some(9));
    assert_eq!(n_of(&state, Point::at_commit(commit - 1), "foreign").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn arc_09_a_basis_pinned_before_a_move_reads_on_and_a_dry_run_moves_nothing() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    let_archive(&state).await;
    days(&state, &clock, 0..10).await;
    clock.set(START + 20 * DAY);
    let basis = state.reader().basis().await.unwrap();
    let commit = commit_of(&state).await;
    let dry = state.maintain(&[MaintainStep::Archive], true).await.unwrap();
    let StepOutcome::Archived(dry) = &dry.steps[0].outcome else { panic!("{dry:?}") };
    assert_eq!(commit_of(&state).await, commit);
    let real = archive(&state).await;
    assert_eq!((&dry.days, dry.rows, dry.bytes), (&real.days, real.rows, real.bytes));
    assert!(real.rows > 0 && commit_of(&state).await == commit + 1);
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
    let rows = state.reader().changes_rows(&basis, 0).await.unwrap();
    let rows: Vec<_> = rows.try_collect().await.unwrap();
    assert_eq!(rows.iter().map(arrow::array::RecordBatch::num_rows).sum::<usize>(), 30);
    assert_eq!(archive(&state).await.files, 0, "a second run moves nothing");
}
