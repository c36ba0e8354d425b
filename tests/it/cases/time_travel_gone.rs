//! TT-04, TT-08: what a vacuum or an expiry took is told as such before anything is read or written; the rest answers as before.

use std::sync::Arc;

use alluvium::{ErrorKind, ManualClock, Point, RawState, RestoreOptions, RestoreOutcome};
use alluvium_log::Table;

use crate::support::stores::{
    DAY, Home, Live, SECOND, START, assert_sound, by_time, by_version, commit_of, live, n_batch_at,
    refused, set,
};

/// Two commits each day, one too old to count and one that replaces each key's value and adds a key, with the job after them; what
/// the state was after each day.
async fn overwritten(state: &RawState, clock: &ManualClock, days: i64) -> Vec<(i64, Vec<Live>)> {
    let mut known = Vec::new();
    for day in 0..days {
        clock.set(START + day * DAY + DAY / 2);
        let keys: Vec<String> = (0..=day).map(|key| format!("k{key:02}")).collect();
        let rows: Vec<_> = keys.iter().map(|key| (key.as_str(), day, Some(day))).collect();
        let times = vec![START + day * DAY; rows.len()];
        state.append(&n_batch_at(&[("k00", -1, None)], &times[..1])).await.unwrap();
        let commit = state.append(&n_batch_at(&rows, &times)).await.unwrap().commit;
        known.push((commit, live(state, Point::LATEST).await));
        state.materialize(true).await.unwrap();
        state.maintain(&alluvium::MaintainStep::ALL, false).await.unwrap();
    }
    known
}

/// Every version whose commit lies there is read whole or refused up front, and which is which is what is told of them.
async fn versions_are_told(folder: &std::path::Path, table: &Table, oldest: i64) {
    let newest = table.state().version;
    let mut refused = 0;
    for version in 0..=newest {
        assert!(folder.join(format!("_delta_log/{version:020}.json")).is_file(), "{version}");
        match table.state_at(version).await {
            Ok(state) => {
                assert!(version >= oldest, "{version} lost files, and is read");
                for file in state.files() {
                    assert!(folder.join(&file.add.path).is_file(), "{version}: {}", file.add.path);
                }
            }
            Err(error) => {
                assert!(version < oldest, "{version}: {error}");
                assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
                let range = format!("{oldest} to {newest} can be read");
                for part in [&format!("version {version} "), "vacuum", &range] {
                    assert!(error.to_string().contains(part), "no {part:?}: {error}");
                }
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && oldest < newest, "{refused} refused, {oldest} to {newest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tt_04_versions_whose_files_a_vacuum_took_are_told_and_refused_before_they_are_read() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    // Commits are kept for much longer than files.
    let spans = [("commit_retention", "30d"), ("as_of_window", "2d"), ("file_retention", "1d")];
    set(&state, &spans).await;
    let known = overwritten(&state, &clock, 12).await;
    let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
    for handle in [&state, &fresh] {
        let readable = handle.explain_retention().await.unwrap().readable;
        versions_are_told(&home.table("s", "log"), handle.log().table(), readable.log_version)
            .await;
        let snapshot = handle.snapshot().state();
        let (table, _) = snapshot.table().unwrap();
        let oldest = readable.snapshot_version.unwrap();
        versions_are_told(&home.table("s", "snapshot"), table, oldest).await;
        // The state as of each commit is made of rows, not of versions: none is lost.
        assert_eq!(readable.horizon, None);
        for (commit, wanted) in &known {
            assert_eq!(live(handle, Point::at_commit(*commit)).await, *wanted, "commit {commit}");
        }
    }
    assert_sound(&state).await;
    // Commits that are kept for less long than files could not tell of these.
    let wrong = [("commit_retention".to_owned(), "12h".to_owned())];
    let error = state.set_maintenance(&wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("file_retention"), "{error}");
}

fn to(commit: i64) -> RestoreOptions {
    RestoreOptions { to: Point::at_commit(commit), ..RestoreOptions::default() }
}

/// Keys and values, without the versions, which are those of the restore.
fn values(rows: &[Live]) -> Vec<(String, Option<i64>)> {
    rows.iter().map(|(key, _, n)| (key.clone(), *n)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn tt_08_a_restore_past_a_vacuum_is_exact_and_the_next_fold_goes_on_from_it() {
    for materialized in [false, true] {
        let home = Home::new();
        let clock = Arc::new(ManualClock::at(START));
        let state = by_time(&home.open_at(&clock).await, "s").await;
        set(&state, &[("as_of_window", "1d"), ("file_retention", "1d")]).await;
        let known = overwritten(&state, &clock, 10).await;
        // Nothing that only older versions have is left.
        clock.set(START + 30 * DAY);
        state.maintain(&alluvium::MaintainStep::ALL, false).await.unwrap();
        for (index, later) in [(3, 1), (8, 2)] {
            let (commit, wanted) = &known[index];
            let report = state.restore(&to(*commit)).await.unwrap();
            assert_eq!(report.outcome, RestoreOutcome::Restored, "{report:?}");
            assert_eq!(values(&live(&state, Point::LATEST).await), values(wanted));
            if materialized {
                state.materialize(false).await.unwrap();
            }
            // What comes after the restore is folded on top of it, neither left out nor lost.
            clock.set(START + (30 + later) * DAY);
            let n = 100 + later;
            let rows = [("k00", n, Some(n)), ("new", n, Some(n))];
            let times = [START + (30 + later) * DAY - SECOND; 2];
            state.append(&n_batch_at(&rows, &times)).await.unwrap();
            let report = state.materialize(false).await.unwrap();
            assert_eq!(report.to_commit, commit_of(&state).await);
            let mut expected = values(wanted);
            expected[0].1 = Some(n);
            expected.push(("new".to_owned(), Some(n)));
            let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
            for handle in [&state, &fresh] {
                assert_eq!(values(&live(handle, Point::LATEST).await), expected);
                for (commit, wanted) in &known {
                    assert_eq!(live(handle, Point::at_commit(*commit)).await, *wanted);
                }
            }
            assert_sound(&state).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tt_08_a_restore_to_what_is_gone_is_refused_before_any_commit() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let spans = [("as_of_window", "3d"), ("file_retention", "1d"), ("log_retention", "5d")];
    set(&state, &spans).await;
    let known = overwritten(&state, &clock, 16).await;
    let before = live(&state, Point::LATEST).await;
    let horizon = state.explain_retention().await.unwrap().readable.horizon.unwrap();
    let named = format!("commit:{}", horizon.commit);
    let gone = refused(
        &state,
        state.restore(&to(known[3].0)),
        ErrorKind::PointUnavailable,
        &["expired", &named],
    )
    .await;
    assert_eq!(live(&state, Point::LATEST).await, before, "{gone}");
    let (commit, wanted) = &known[14];
    state.restore(&to(*commit)).await.unwrap();
    assert_eq!(values(&live(&state, Point::LATEST).await), values(wanted));
    state.materialize(false).await.unwrap();
    assert_sound(&state).await;
    // A file that the point needs was removed by hand: its name is told, and nothing is half restored.
    let home = Home::new();
    let state = by_time(&home.open_at(&clock).await, "s").await;
    for n in 1..=5 {
        state
            .append(&n_batch_at(&[("a", n, Some(n)), ("b", n, Some(n))], &[START; 2]))
            .await
            .unwrap();
    }
    let lost = state.log().table().state_at(2).await.unwrap();
    let before = state.log().table().state_at(1).await.unwrap();
    let path = lost
        .files()
        .map(|file| file.add.path.clone())
        .find(|path| before.files().all(|file| file.add.path != *path))
        .unwrap();
    std::fs::remove_file(home.table("s", "log").join(&path)).unwrap();
    let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
    refused(&fresh, fresh.restore(&to(2)), ErrorKind::Corrupt, &[&path]).await;
}
