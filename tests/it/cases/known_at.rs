//! TT-*, times of commits: what was known at a time is told by the times that commits say themselves, exactly, and by the same rule
//! everywhere.

use std::process::Command;
use std::sync::Arc;

use alluvium::{ErrorKind, MaintainStep, ManualClock, NamedPoint, Point, RawState, parse_time};
use chrono::{DateTime, SecondsFormat};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::cases::program::{fail, lines, succeed};
use crate::support::delta;
use crate::support::stores::{
    DAY, Home, SECOND, START, by_time, by_version, live, n_batch_at, set, sql, sql_numbers,
};

const MILLI: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;

fn text_of(micros: i64) -> String {
    DateTime::from_timestamp_micros(micros).unwrap().to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

/// A change of one key of which each commit adds one.
async fn append(state: &RawState, n: i64) {
    state.append(&n_batch_at(&[("a", n, Some(n))], &[START])).await.unwrap();
}

/// The commit that was the newest at a time, or what the refusal says.
async fn known_at(state: &RawState, micros: i64) -> Result<i64, String> {
    match state.reader().point(&NamedPoint::known_at(micros)).await {
        Ok(point) => {
            assert_eq!(Point { commit: None, ..point }, Point::LATEST);
            Ok(point.commit.unwrap())
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
            Err(error.to_string())
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tt_01_a_copy_whose_files_have_other_times_tells_the_same_of_every_time() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    for n in 1..=5 {
        clock.set(START + n * MINUTE);
        append(&state, n).await;
    }
    let copy = Home::new();
    let files = format!("{}/.", home.uri());
    assert!(Command::new("cp").args(["-r", &files, &copy.uri()]).status().unwrap().success());
    for commit in 0..=5 {
        let file = copy.commit_file("s", commit);
        let file = std::fs::File::options().append(true).open(file).unwrap();
        let time = std::time::SystemTime::now() - std::time::Duration::from_secs(commit as u64);
        file.set_modified(time).unwrap();
    }
    for home in [&home, &copy] {
        let store = home.open_at(&clock).await;
        let state = store.raw_state("s").await.unwrap();
        for n in 0..=5 {
            let time = START + n * MINUTE;
            assert_eq!(known_at(&state, time).await, Ok(n));
            let text = text_of(time);
            for point in [format!("known_at => '{text}'"), format!("'known_at:{text}'")] {
                let rows = sql_numbers(&store, &format!("SELECT n FROM as_of('s', {point})")).await;
                assert_eq!(
                    rows,
                    (1..=n).skip(n.max(1) as usize - 1).collect::<Vec<_>>(),
                    "{point}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tt_03_commits_of_one_second_are_told_apart() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START + 100 * MILLI));
    let store = home.open_at(&clock).await;
    let state = by_version(&store, "s").await;
    for (n, milli) in [(1, 500), (2, 900)] {
        clock.set(START + milli * MILLI);
        append(&state, n).await;
    }
    for (milli, commit) in [(100, 0), (499, 0), (500, 1), (899, 1), (900, 2)] {
        let time = START + milli * MILLI;
        assert_eq!(known_at(&state, time).await, Ok(commit), "{milli}");
        // Commits are made within a millisecond: what is finer counts to the one that it lies in.
        assert_eq!(known_at(&state, time + 999).await, Ok(commit), "{milli}");
        let text = text_of(time);
        let count = format!("SELECT count(*) FROM history('s', 'a', known_at => '{text}')");
        assert_eq!(sql_numbers(&store, &count).await, [commit]);
        let told = format!("get s a --known-at {text} --output jsonl");
        let args: Vec<&str> = told.split(' ').collect();
        if commit == 0 {
            fail(&home, &args, "", 3, &["no key"]);
        } else {
            assert_eq!(lines(&succeed(&home, &args, ""))[0]["value"]["n"], commit, "{text}");
        }
    }
    let at =
        |milli: i64| format!("as_of('s', known_at => TIMESTAMP '2024-01-15 00:00:00.{milli}')");
    let both =
        format!("SELECT a.n + 10 * b.n FROM {} a JOIN {} b USING (state_key)", at(500), at(900));
    assert_eq!(sql_numbers(&store, &both).await, [21], "several times of one statement");
    let ago = "TIMESTAMP '2024-01-16 00:00:00.6Z' - INTERVAL '1 day'";
    let ago = format!("SELECT count(*) FROM history('s', known_at => {ago})");
    assert_eq!(sql_numbers(&store, &ago).await, [1]);
    let before = known_at(&state, START + 99 * MILLI).await.unwrap_err();
    assert!(before.contains("the state was made at 2024-01-15T00:00:00.100Z"), "{before}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tt_06_a_time_after_the_last_commit_is_answered_up_to_now_and_before_the_first_one_refused()
{
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let store = home.open_at(&clock).await;
    let state = by_version(&store, "s").await;
    clock.set(START + MINUTE);
    append(&state, 1).await;
    clock.set(START + 3_600 * SECOND);
    assert_eq!(known_at(&state, START + MINUTE + SECOND).await, Ok(1));
    assert_eq!(known_at(&state, START + 3_600 * SECOND).await, Ok(1));
    let future = START + 7_200 * SECOND;
    let refusals = [
        (future, "it is 2024-01-15T01:00:00Z, the newest commit is 1 of 2024-01-15T00:01:00Z"),
        (START - MILLI, "is nothing: the state was made at 2024-01-15T00:00:00Z"),
    ];
    for (time, why) in refusals {
        let told = known_at(&state, time).await.unwrap_err();
        assert!(told.contains(why) && told.contains(&text_of(time)), "{told}");
        for call in ["as_of('s', known_at => 'T')", "diff('s', 'known_at:T')"] {
            let query = format!("SELECT * FROM {}", call.replace('T', &text_of(time)));
            let error = sql(&store, &query).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().contains(why)),
                (ErrorKind::PointUnavailable, true),
                "{error}"
            );
        }
    }
    // The clock of another process may be behind that of whoever made the newest commit.
    clock.set(START);
    assert_eq!(known_at(&state, START + MINUTE).await, Ok(1));
    for wrong in ["2026-02-30T00:00:00Z", "yesterday", "2026-01-01"] {
        let query = format!("SELECT * FROM as_of('s', known_at => '{wrong}')");
        let error = sql(&store, &query).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::InvalidInput && error.to_string().contains("is not a time"),
            "{error}"
        );
        fail(&home, &["get", "s", "a", "--known-at", wrong], "", 2, &["is not a time"]);
    }
    fail(
        &home,
        &["get", "s", "a", "--known-at", &text_of(START), "--commit", "1"],
        "",
        2,
        &["--commit"],
    );
    let error =
        sql(&store, "SELECT * FROM as_of('s', commit => 1, known_at => '2024-01-15T00:01:00Z')");
    assert!(error.await.unwrap_err().to_string().contains("sets a bound twice"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tt_07_a_later_time_never_tells_an_earlier_commit_whatever_the_clocks_did() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    // Each commit that does not lie after the one before counts as made a millisecond later.
    for (n, second) in [(1, 10), (2, 5), (3, 5), (4, 11)] {
        clock.set(START + second * SECOND);
        append(&state, n).await;
    }
    let at = |second: i64, milli: i64| START + second * SECOND + milli * MILLI;
    let expected = [
        (at(4, 0), 0),
        (at(7, 0), 0),
        (at(10, 0), 1),
        (at(10, 1), 2),
        (at(10, 2), 3),
        (at(10, 999), 3),
        (at(11, 0), 4),
    ];
    for (time, commit) in expected {
        assert_eq!(known_at(&state, time).await, Ok(commit), "{}", text_of(time));
    }
}

/// Commits of several handles and of another engine, by clocks that step back and forth, cleaned up meanwhile: every time between is
/// told as the states said it when they were new, or refused with the first commit that is left.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_known_at_any_time_is_told_by_any_handle_whoever_made_the_commits() {
    for seed in 0..6 {
        let mut rng = StdRng::seed_from_u64(seed);
        let home = Home::new();
        // The other engine goes by the machine's clock: these ones are behind it or ahead of it.
        let mut now = [START, parse_time("2090-01-01T00:00:00Z").unwrap()][seed as usize % 2];
        let clock = Arc::new(ManualClock::at(now));
        let mut state = by_version(&home.open_at(&clock).await, "s").await;
        let mut made = vec![state.log().state().timestamp_ms];
        let mut oldest = 0;
        for n in 1..40 {
            match rng.random_range(0..12) {
                0..3 => {
                    delta::append(
                        &home.table("s", "log"),
                        &n_batch_at(&[("f", n, Some(n))], &[START]),
                    )
                    .await;
                }
                3 => state = home.open_at(&clock).await.raw_state("s").await.unwrap(),
                4 => {
                    state.log().refresh().await.unwrap();
                    state.log().close().await;
                    state.log().table().checkpoint().await.unwrap();
                    oldest = state.log().table().clean_up(0, false).await.unwrap().oldest_version;
                }
                _ => append(&state, n).await,
            }
            now += [0, 0, MILLI, 3 * MILLI, MINUTE, -7 * SECOND][rng.random_range(0..6)];
            clock.set(now);
            let state = state.log().refresh().await.unwrap();
            if state.version as usize == made.len() {
                made.push(state.timestamp_ms);
            }
        }
        assert!(made.is_sorted_by(|a, b| a < b), "{made:?}");
        for handle in [&state, &home.open_at(&clock).await.raw_state("s").await.unwrap()] {
            for (commit, ms) in made.iter().enumerate() {
                for (time, expected) in [(ms - 1, commit as i64 - 1), (*ms, commit as i64)] {
                    match known_at(handle, time * MILLI).await {
                        Ok(told) => assert_eq!(told, expected, "seed {seed}: {time} of {made:?}"),
                        Err(error) => {
                            assert!(
                                expected < oldest,
                                "seed {seed}: {oldest}, {expected}: {error}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_whose_commits_are_cleaned_up_is_refused_with_what_the_grid_kept_of_the_time_before()
{
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let spans = [
        ("commit_retention", "8d"),
        ("file_retention", "2d"),
        ("as_of_window", "2d"),
        ("log_retention", "3d"),
        ("snapshot_grid", "1d:90d"),
    ];
    set(&state, &spans).await;
    let mut rows = Vec::new();
    for day in 0..30 {
        let time = START + day * DAY;
        clock.set(time + DAY / 2);
        state.append(&n_batch_at(&[("a", day, Some(day))], &[time])).await.unwrap();
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
        rows.push(live(&state, Point::LATEST).await);
    }
    let midnight = |day: i64| START + (day + 1) * DAY;
    // Within the window by the commits themselves, from there on by what the refusal names.
    for (day, rows) in rows.iter().enumerate() {
        let commit =
            match known_at(&state, midnight(day as i64).min(START + 29 * DAY + DAY / 2)).await {
                Ok(commit) => commit,
                Err(told) => {
                    assert!(day < 22, "day {day}: {told}");
                    let named = told.split("commit:").nth(1).unwrap_or_else(|| panic!("{told}"));
                    named.split(' ').next().unwrap().parse().unwrap()
                }
            };
        let outcome = state.get(Point::at_commit(commit), "a").await;
        match outcome {
            Ok(_) => assert_eq!(live(&state, Point::at_commit(commit)).await, *rows, "day {day}"),
            // The log tells the commit, and has its rows no more: so does the grid, by another number.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
                assert!(error.to_string().contains("savepoint list s --grid"), "{error}");
            }
        }
    }
    let told = state.explain_retention().await.unwrap().readable;
    let since = told.known_since_ms.unwrap();
    let kept = state.grid_snapshots().await.unwrap();
    for (ms, is_told) in [(since, true), (since - 1, false)] {
        match known_at(&state, ms * MILLI).await {
            // The grid may keep the one before, too.
            Ok(commit) if is_told || !kept.iter().any(|kept| kept.log_commit == commit) => {
                let answer = state.get(Point::at_commit(commit), "a").await;
                assert_eq!(answer.is_ok(), is_told, "{told:?}: {answer:?}");
            }
            Ok(_) => {}
            Err(refusal) => assert!(!is_told, "{told:?}: {refusal}"),
        }
    }
}
