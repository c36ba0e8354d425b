//! EXP-*: days leave the log when snapshots hold what they came to; what is promised is answered as before, what is gone is refused
//! with the horizon.

use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;

use alluvium::{
    Error, ErrorKind, HistoryExpired, MaintainStep, ManualClock, Point, RawState, StepOutcome,
};
use alluvium_log::{Expired, KeyFilter};
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use futures::future::join_all;

use super::program::{fail, lines, succeed};
use crate::support::delta;
use crate::support::faults::{FaultyStore, maintain_to_death, open};
use crate::support::stores::{
    DAY, Home, Live, START, by_time, by_version, commit_of, live, n_batch_at, n_of, sql,
    sql_numbers,
};

/// Days of the as-of window of these states.
pub(super) const WINDOW: i64 = 2;
/// Days for which their logs are kept.
const RETENTION: i64 = 10;

pub(super) async fn let_expire(state: &RawState) {
    let spans = [
        ("commit_retention", "8d"),
        ("file_retention", "2d"),
        ("as_of_window", "2d"),
        ("log_retention", "10d"),
    ];
    let spans = spans.map(|(name, value)| (name.to_owned(), value.to_owned()));
    state.set_maintenance(&spans).await.unwrap();
}

/// A change a day of a key that all days share and of one of its own; in the beginning of keys that never change again.
async fn day_of(state: &RawState, clock: &ManualClock, day: i64) {
    let time = START + day * DAY;
    clock.set(time + DAY / 2);
    let own = format!("d{day:04}");
    let mut rows = vec![("daily", day, Some(day)), (own.as_str(), day, Some(day))];
    if day == 0 {
        rows.extend([("deleted", -1, None), ("quiet", -1, Some(7))]);
    }
    let times: Vec<i64> = rows.iter().map(|_| time).collect();
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
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
        known.push((commit_of(state).await, live(state, Point::LATEST).await));
    }
    known
}

pub(super) fn expired(state: &RawState) -> i64 {
    Expired::commit_of(&state.log().state())
}

/// Why a question was refused.
fn cause(error: &Error) -> HistoryExpired {
    assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
    let cause = error.source().and_then(|cause| cause.downcast_ref::<HistoryExpired>());
    cause.unwrap_or_else(|| panic!("{error}")).clone()
}

fn parquet_files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_data = |path: &Path| path.extension().is_some_and(|end| end == "parquet");
    let hidden = |path: &Path| path.ends_with("_delta_log");
    entries
        .filter(|path| !hidden(path))
        .map(|path| if path.is_dir() { parquet_files(&path) } else { usize::from(is_data(&path)) })
        .sum()
}

/// The live rows at a point, or why there is no answer.
pub(super) async fn asked(state: &RawState, point: Point) -> Result<Vec<Live>, HistoryExpired> {
    let got = state.get(point, "quiet").await.map(drop);
    match state.scan(point, KeyFilter::All).await {
        Ok(_) => {
            got.unwrap();
            Ok(live(state, point).await)
        }
        Err(error) => {
            assert_eq!(cause(&got.unwrap_err()), cause(&error), "get and scan agree");
            Err(cause(&error))
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exp_01_promised_points_answer_as_without_expiry_and_older_ones_name_the_horizon() {
    const DAYS: i64 = 60;
    let clock = Arc::new(ManualClock::at(START));
    let homes = [Home::new(), Home::new()];
    let tended = by_time(&homes[0].open_at(&clock).await, "s").await;
    let whole = by_time(&homes[1].open_at(&clock).await, "s").await;
    let_expire(&tended).await;
    for day in 0..DAYS {
        day_of(&whole, &clock, day).await;
    }
    let known = days(&tended, &clock, 0..DAYS).await;
    assert!(expired(&tended) > 0);
    let left = parquet_files(&homes[0].table("s", "log")) as i64;
    // A vacuum takes what has expired when no read can last so long; a file that was merged goes as late.
    assert!(left < RETENTION + 2 * WINDOW + 6, "{left} files are left on the disk");
    assert_eq!(live(&tended, Point::LATEST).await, live(&whole, Point::LATEST).await);
    assert_eq!(n_of(&tended, Point::LATEST, "quiet").await, Some(7));

    // As of commits: all of the window, none before the horizon.
    let horizon = asked(&tended, Point::at_commit(1)).await.unwrap_err().horizon;
    for (day, (commit, rows)) in known.iter().enumerate() {
        let outcome = asked(&tended, Point::at_commit(*commit)).await;
        let is_promised = day as i64 >= DAYS - WINDOW;
        match outcome {
            Ok(found) => assert!(*commit >= horizon.commit && found == *rows, "commit {commit}"),
            Err(cause) => {
                assert!(*commit < horizon.commit && !is_promised, "commit {commit}: {cause}");
                assert_eq!(cause.horizon, horizon);
            }
        }
    }
    // As of times and versions: the horizon's own is answered, the one before is not.
    let (time, version) = (horizon.event_time.unwrap(), horizon.version.unwrap());
    assert!(time <= START + (DAYS - WINDOW) * DAY, "{horizon:?}");
    for (at, before) in [
        (Point::at_time(time), Point::at_time(time - 1)),
        (Point::at_version(version), Point::at_version(version - 1)),
    ] {
        assert_eq!(asked(&tended, at).await.unwrap(), live(&whole, at).await, "{at}");
        let cause = asked(&tended, before).await.unwrap_err();
        assert_eq!(cause.horizon, horizon);
        assert!(cause.to_string().contains(&Point::at_version(version).to_string()), "{cause}");
    }
    assert!(tended.verify().await.unwrap().is_sound());
    let rebuilt = tended.materialize(true).await.unwrap();
    assert!(rebuilt.from_commit >= expired(&tended), "{rebuilt:?}");
    assert_eq!(live(&tended, Point::LATEST).await, live(&whole, Point::LATEST).await);
    assert!(tended.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn exp_02_nothing_goes_unless_asked_for_and_held_by_every_snapshot_of_the_window() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    let expire = || async {
        let report = state.maintain(&[MaintainStep::Expire], false).await.unwrap();
        let Some(StepOutcome::Expired(report)) =
            report.steps.into_iter().map(|step| step.outcome).next()
        else {
            panic!("no report of the step")
        };
        report
    };
    day_of(&state, &clock, 0).await;
    clock.set(START + 1_000 * DAY);
    let report = expire().await;
    assert!(report.days.is_empty() && report.reason.contains("log_retention"), "{report:?}");
    let_expire(&state).await;
    let report = expire().await;
    assert!(report.days.is_empty() && report.reason.contains("no snapshot"), "{report:?}");
    state.materialize(false).await.unwrap();
    let report = expire().await;
    assert!(report.days.is_empty() && report.reason.contains("as_of_window"), "{report:?}");
    clock.set(START + (1_000 + WINDOW) * DAY);
    // A late change of the same day, which the snapshots of the window do not hold.
    state.append(&n_batch_at(&[("late", 5, Some(5))], &[START])).await.unwrap();
    state.materialize(false).await.unwrap();
    let report = expire().await;
    assert_eq!((report.days.len(), report.days_kept), (0, 1), "{report:?}");
    let before = live(&state, Point::LATEST).await;
    clock.set(START + (1_000 + 2 * WINDOW) * DAY);
    let dry = state.maintain(&[MaintainStep::Expire], true).await.unwrap();
    assert_eq!(expired(&state), 0);
    let report = expire().await;
    assert_eq!((report.days.as_slice(), report.rows), (&["2024-01-15".to_owned()][..], 5));
    let StepOutcome::Expired(dry) = &dry.steps[0].outcome else { panic!("{dry:?}") };
    assert_eq!((&dry.days, dry.bytes), (&report.days, report.bytes));
    assert_eq!(state.log().state().file_count(), 0);
    assert_eq!(live(&state, Point::LATEST).await, before);
    let commit = commit_of(&state).await;
    assert!(expire().await.days.is_empty());
    assert_eq!(commit_of(&state).await, commit, "a second run makes no commit");
}

#[tokio::test(flavor = "multi_thread")]
async fn exp_03_a_state_without_commits_for_months_answers_as_of_its_last_commit() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let_expire(&state).await;
    let known = days(&state, &clock, 0..3).await;
    for months in 1..=4 {
        clock.set(START + months * 30 * DAY);
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
        let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
        for handle in [&state, &fresh] {
            let (commit, rows) = known.last().unwrap();
            assert_eq!(asked(handle, Point::at_commit(*commit)).await.as_ref(), Ok(rows));
            assert_eq!(live(handle, Point::LATEST).await, *rows);
            let now = Point::at_time(START + months * 30 * DAY - DAY);
            assert_eq!(asked(handle, now).await.as_ref(), Ok(rows));
        }
    }
    assert_eq!(state.log().state().file_count(), 0);
    asked(&state, Point::at_time(START)).await.unwrap_err();
    // It goes on as if nothing had been.
    let known = days(&state, &clock, 130..133).await;
    assert_eq!(known.last().unwrap().1.len(), 8);
    assert!(state.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn exp_04_the_job_killed_at_any_call_while_days_expire_is_made_good_by_the_next_run() {
    let built = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open(&built, &clock).await, "s").await;
    let_expire(&state).await;
    days(&state, &clock, 0..4).await;
    day_of(&state, &clock, 20).await;
    state.maintain(&[MaintainStep::Materialize, MaintainStep::Vacuum], false).await.unwrap();
    assert_eq!(expired(&state), 0);
    clock.set(START + 24 * DAY);
    let expected = live(&state, Point::LATEST).await;
    let last = commit_of(&state).await;
    let (mut found, mut refusals) = (0, 0);
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let (died, state) = maintain_to_death(&built, &clock, call, takes_place).await;
        for round in 0..2 {
            assert_eq!(live(&state, Point::LATEST).await, expected, "call {call}");
            assert_eq!(asked(&state, Point::at_commit(last)).await.as_ref(), Ok(&expected));
            match asked(&state, Point::at_commit(2)).await {
                Ok(rows) => {
                    assert!(round == 0 && rows.len() == 3, "call {call}, round {round}: {rows:?}");
                    found += 1;
                }
                Err(cause) => {
                    assert!(cause.horizon.commit >= cause.expired_commit, "{cause}");
                    refusals += 1;
                }
            }
            assert!(state.verify().await.unwrap().is_sound(), "call {call}");
            state.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
        assert!(expired(&state) > 0, "call {call}");
        if !died {
            break;
        }
    }
    assert!(found > 10 && refusals > 10, "{found} answers and {refusals} refusals");
}

#[tokio::test(flavor = "multi_thread")]
async fn exp_05_expirers_compactors_appenders_and_materializers_at_once_lose_nothing() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    let_expire(&state).await;
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(home.open_at(&clock).await.raw_state("s").await.unwrap());
    }
    let mut expected = Vec::new();
    for day in 0..40 {
        day_of(&state, &clock, day).await;
        expected.push(format!("d{day:04}"));
        let n = 100_000 + day;
        let key = format!("late{day:04}");
        let row = n_batch_at(&[(&key, n, Some(n))], &[START + (day / 3) * DAY]);
        let maintain = |index: usize, step| {
            let state = others[index].clone();
            async move { state.maintain(&[step], false).await.unwrap() }
        };
        let expirers = join_all([0, 1].map(|index| maintain(index, MaintainStep::Expire)));
        let compactor = maintain(2, MaintainStep::Compact);
        let materializer = maintain(3, MaintainStep::Materialize);
        let append = state.append(&row);
        let (_, _, _, receipt) = futures::join!(expirers, compactor, materializer, append);
        receipt.unwrap();
        expected.push(key);
        maintain(0, MaintainStep::Vacuum).await;
    }
    assert!(expired(&others[0]) > 0);
    expected.extend(["daily", "quiet"].map(str::to_owned));
    expected.sort();
    for handle in others.iter().chain([&state]) {
        let found = live(handle, Point::LATEST).await;
        assert_eq!(found.into_iter().map(|row| row.0).collect::<Vec<_>>(), expected);
    }
    assert!(state.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn exp_06_a_snapshot_that_another_engine_rewrote_or_removed_is_never_made_from_half_a_log() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let_expire(&state).await;
    let known = days(&state, &clock, 0..30).await;
    let rows = &known.last().unwrap().1;
    // Two files, so that there is something to merge.
    let folder = home.table("s", "snapshot");
    let table = state.snapshot().state().table().unwrap().0.clone();
    let adds: Vec<_> = table.state().files().map(|file| file.add.path.clone()).collect();
    let foreign = delta::rewrite(&folder).await;
    assert!(foreign, "{adds:?}");
    let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
    assert!(!fresh.snapshot().state().is_ours());
    assert_eq!(live(&fresh, Point::LATEST).await, *rows, "an older snapshot answers");
    let healed = fresh.materialize(false).await.unwrap();
    assert!(healed.from_commit >= expired(&fresh), "{healed:?}");
    assert!(fresh.snapshot().state().is_ours());
    assert_eq!(live(&fresh, Point::LATEST).await, *rows);
    assert!(fresh.verify().await.unwrap().is_sound());

    std::fs::remove_dir_all(&folder).unwrap();
    let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
    let outcomes = [
        fresh.get(Point::LATEST, "quiet").await.map(drop).unwrap_err(),
        fresh.materialize(false).await.map(drop).unwrap_err(),
        fresh.materialize(true).await.map(drop).unwrap_err(),
        fresh.verify().await.map(drop).unwrap_err(),
    ];
    for error in outcomes {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("from a backup"), "{error}");
    }
    assert!(!folder.exists(), "nothing was made in its place");
}

#[tokio::test(flavor = "multi_thread")]
async fn exp_07_late_changes_of_expired_days_meet_the_winners_that_were_kept() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let_expire(&state).await;
    days(&state, &clock, 0..20).await;
    assert!(expired(&state) > 0);
    let late = [
        ("quiet", -2, Some(1)),
        ("deleted", -1, Some(1)),
        ("d0001", 1, None),
        ("d0002", 2, Some(22)),
        ("new", 0, Some(3)),
    ];
    let times = [START, START, START + DAY, START + 2 * DAY, START];
    state.append(&n_batch_at(&late, &times)).await.unwrap();
    for round in 0..2 {
        let seen = |key| n_of(&state, Point::LATEST, key);
        assert_eq!(seen("quiet").await, Some(7), "an older version loses");
        assert_eq!(seen("deleted").await, None, "a tie with a DELETE loses");
        assert_eq!(seen("d0001").await, None, "a DELETE wins a tie");
        assert_eq!(seen("d0002").await, Some(22), "of two values the later commit wins");
        assert_eq!(seen("new").await, Some(3));
        if round == 0 {
            state.materialize(false).await.unwrap();
        }
    }
    let basis = state.reader().basis().await.unwrap();
    let key = KeyFilter::keys(["quiet".to_owned()]);
    let rows = state.reader().history_rows_after(&basis, key, Point::LATEST, expired(&state));
    let rows: Vec<_> = rows.await.unwrap().try_collect().await.unwrap();
    let late = rows[0].column_by_name("is_late").unwrap();
    assert_eq!((rows[0].num_rows(), late.null_count()), (1, 1), "what made it late is gone");
    assert!(state.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn exp_08_handles_and_bases_from_before_neither_lose_rows_nor_miss_the_horizon() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let idle = by_time(&home.open_at(&clock).await, "s").await;
    let_expire(&idle).await;
    let busy = home.open_at(&clock).await.raw_state("s").await.unwrap();
    days(&busy, &clock, 0..14).await;
    let basis = busy.reader().basis().await.unwrap();
    let pinned = basis.expired_commit();
    let commit = pinned.max(3) + 1;
    let before = asked(&busy, Point::at_commit(1)).await.is_ok();
    days(&busy, &clock, 14..15).await;
    assert!(expired(&busy) > pinned);
    // What the basis has is there until a vacuum that is due only when no read can last so long.
    let rows = busy.reader().changes_rows(&basis, commit).await.unwrap();
    let rows: Vec<_> = rows.try_collect().await.unwrap();
    assert!(!rows.is_empty() && !before);
    days(&busy, &clock, 15..40).await;
    busy.log().table().checkpoint().await.unwrap();
    busy.log().table().clean_up(3_600_000, false).await.unwrap();
    let error = asked(&idle, Point::at_commit(2)).await.unwrap_err();
    assert_eq!(error.expired_commit, expired(&busy));
    assert_eq!(live(&idle, Point::LATEST).await, live(&busy, Point::LATEST).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn exp_09_histories_and_feeds_are_refused_unless_they_begin_after_what_is_gone() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let store = home.open_at(&clock).await;
    let state = by_time(&store, "s").await;
    let_expire(&state).await;
    let known = days(&state, &clock, 0..20).await;
    let gone = expired(&state);
    for query in [
        "SELECT version FROM history('s')".to_owned(),
        "SELECT count(*) FROM history('s', 'quiet')".to_owned(),
        format!("SELECT commit FROM history('s') WHERE commit >= {gone}"),
        format!("SELECT commit FROM changes('s', {})", gone - 1),
    ] {
        let error = sql(&store, &query).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{query}: {error}");
        assert!(error.to_string().contains(&format!("after commit {gone}")), "{error}");
    }
    let later: Vec<i64> = known.iter().map(|known| known.0).filter(|n| *n > gone).collect();
    let counted = |from: &str| format!("SELECT count(*) FROM {from}");
    for query in [
        counted(&format!("history('s', 'daily') WHERE commit > {gone}")),
        counted(&format!("changes('s', {gone}) WHERE state_key = 'daily'")),
    ] {
        let rows = sql_numbers(&store, &query).await;
        assert!(rows[0] >= RETENTION && rows[0] as usize <= later.len() + 1, "{query}: {rows:?}");
    }
    // A difference whose states are there is told, whichever changes are gone.
    let horizon = asked(&state, Point::at_commit(1)).await.unwrap_err().horizon;
    let query = format!("SELECT count(*) FROM diff('s', 'commit:{}', 'latest')", horizon.commit);
    assert!(sql_numbers(&store, &query).await[0] > 1);
    let query =
        format!("SELECT count(*) FROM diff('s', 'commit:{}', 'latest')", horizon.commit - 1);
    assert_eq!(sql(&store, &query).await.unwrap_err().kind(), ErrorKind::PointUnavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn exp_10_another_engine_reads_and_appends_to_a_log_whose_days_have_expired() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let_expire(&state).await;
    days(&state, &clock, 0..20).await;
    let folder = home.table("s", "log");
    let rows: u64 = state.log().state().files().map(|file| file.stats.rows.unwrap()).sum();
    let table = delta::open(&folder).await;
    let context = delta::session(&[("log", &table)]).await;
    let seen = delta::query(&context, "SELECT count(*) FROM log").await;
    assert_eq!(seen[0].column(0).as_primitive::<Int64Type>().value(0) as u64, rows);
    // A late row of an expired day, and one of today.
    let changes = n_batch_at(
        &[("quiet", -5, Some(1)), ("foreign", 20, Some(20))],
        &[START, START + 20 * DAY],
    );
    delta::append(&folder, &changes).await;
    for round in 0..2 {
        assert_eq!(n_of(&state, Point::LATEST, "quiet").await, Some(7));
        assert_eq!(n_of(&state, Point::LATEST, "foreign").await, Some(20));
        if round == 0 {
            days(&state, &clock, 21..40).await;
        }
    }
    assert!(state.verify().await.unwrap().is_sound());
    // It may not take rows away itself.
    let error = table.delete().with_predicate("version = 39").await.map(drop).unwrap_err();
    assert!(error.to_string().to_lowercase().contains("append"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_changes_of_a_key_are_told_where_older_ones_have_expired_and_no_fewer() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let_expire(&state).await;
    days(&state, &clock, 0..40).await;
    assert!(expired(&state) > 0);
    let told = lines(&succeed(&home, &["history", "s", "daily", "--last", "3"], ""));
    let versions: Vec<i64> = told.iter().map(|row| row["version"].as_i64().unwrap()).collect();
    assert_eq!(versions, [37, 38, 39]);
    fail(&home, &["history", "s", "daily", "--last", "39"], "", 4, &["expired", "commit"]);
    fail(&home, &["history", "s", "daily"], "", 4, &["expired", "commit"]);
}
