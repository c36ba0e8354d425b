//! Vacuum: what goes is what no kept version has, by the log and not by the age of files; what is listed is what goes.

mod beside;
mod staged;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use alluvium::{Clock, ErrorKind, ManualClock, Point, RawState, Store, SystemClock};
use alluvium_log::{Table, VacuumOptions};

use crate::support::answers::answers;
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{
    DAY, Home, START, assert_sound, by_version, commit_of, live, n_batch_at, n_of, settings,
};

const DAY_MS: i64 = DAY / 1_000;

fn after(days: i64) -> VacuumOptions {
    VacuumOptions { file_retention_ms: days * DAY_MS, orphan_grace_ms: 7 * DAY_MS, dry_run: false }
}

fn snapshot_table(state: &RawState) -> Arc<Table> {
    state.snapshot().state().table().unwrap().0.clone()
}

/// Days of appends, each followed by a materialization and a compaction.
async fn daily(state: &RawState, clock: &ManualClock, days: std::ops::Range<i64>) {
    for day in days {
        for part in 0..3 {
            clock.set(START + day * DAY + part);
            let n = commit_of(state).await + 1;
            let (a, b) = (format!("k{}", n % 5), format!("d{day}"));
            let rows = [(a.as_str(), n, Some(n)), (b.as_str(), n, Some(n))];
            state.append(&n_batch_at(&rows, &[START + day * DAY + part; 2])).await.unwrap();
        }
        state.materialize(false).await.unwrap();
        state.compact(false).await.unwrap();
    }
}

fn parquet_files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with("_delta_log") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|end| end == "parquet") {
                found.insert(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_state_answers_is_the_same_after_a_vacuum_of_both_tables() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    daily(&state, &clock, 0..20).await;
    let newest = commit_of(&state).await;
    let before = answers(&state, newest).await;
    let folder = home.table("s", "log");
    let on_disk = parquet_files(&folder);
    let dry = VacuumOptions { dry_run: true, ..after(5) };
    let planned = state.log().table().vacuum(&dry).await.unwrap();
    assert_eq!(parquet_files(&folder), on_disk, "a dry run removes nothing");
    assert_eq!(commit_of(&state).await, newest, "and commits nothing");
    let done = state.log().table().vacuum(&after(5)).await.unwrap();
    assert_eq!(done.paths, planned.paths);
    assert!(done.files_removed > 30 && done.orphans_removed == 0, "{done:?}");
    let gone: BTreeSet<String> = on_disk.difference(&parquet_files(&folder)).cloned().collect();
    assert_eq!(gone, done.paths.iter().cloned().collect(), "listed is what is gone");
    let snapshot = snapshot_table(&state).vacuum(&after(5)).await.unwrap();
    assert!(snapshot.files_removed > 5, "{snapshot:?}");
    let reopened = home.open_at(&clock).await.raw_state("s").await.unwrap();
    for handle in [&state, &reopened] {
        assert_eq!(answers(handle, newest).await, before);
        let table = snapshot_table(handle);
        table.state_at(snapshot.oldest_version).await.unwrap();
        let error = table.state_at(snapshot.oldest_version - 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
        assert!(error.to_string().contains("vacuum"), "{error}");
    }
    let again = state.log().table().vacuum(&after(5)).await.unwrap();
    assert_eq!(again.paths, Vec::<String>::new());
    assert_sound(&reopened).await;
    daily(&reopened, &clock, 20..22).await;
    assert_eq!(live(&state, Point::LATEST).await, live(&reopened, Point::LATEST).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kept_version_of_a_vacuumed_snapshot_has_all_its_files() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    daily(&state, &clock, 0..15).await;
    let table = snapshot_table(&state);
    let report = table.vacuum(&after(4)).await.unwrap();
    let folder = home.table("s", "snapshot");
    let left = parquet_files(&folder);
    let mut referenced = BTreeSet::new();
    for version in report.oldest_version..=table.state().version {
        let at = table.state_at(version).await.unwrap();
        referenced.extend(at.files().map(|file| file.add.path.clone()));
    }
    assert_eq!(left, referenced);
}

/// Ways to write the path of a store.
fn paths_of(home: &Home) -> Vec<String> {
    let path = home.uri();
    std::fs::create_dir(home.folder.path().join("x")).unwrap();
    let link = home.folder.path().join("x/link");
    std::os::unix::fs::symlink(home.folder.path(), &link).unwrap();
    let up =
        std::env::current_dir().unwrap().components().skip(1).map(|_| "../").collect::<String>();
    vec![
        format!("{path}/x/..//"),
        format!("{path}/"),
        link.to_str().unwrap().to_owned(),
        format!("{up}{}", path.trim_start_matches('/')),
        format!("file://{path}"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn cmp_05_left_overs_of_dead_writers_go_after_the_grace_and_nothing_else_does() {
    for form in 0..5 {
        let home = Home::new();
        let uri = paths_of(&home).remove(form);
        only_left_overs_go(&home, &uri).await;
    }
}

async fn only_left_overs_go(home: &Home, uri: &str) {
    let clock = Arc::new(ManualClock::at(START));
    let store = Store::builder(uri).settings(settings()).clock(clock.clone());
    let state = by_version(&store.open().await.unwrap(), "s").await;
    daily(&state, &clock, 0..2).await;
    clock.set(SystemClock.now_micros());
    let folder = home.table("s", "log");
    let live_files = parquet_files(&folder);
    let outside = home.folder.path().join("outside.parquet");
    let others = ["dt=2024-01-15/notes.txt", "_change_data/cdc.parquet", ".hidden/x.parquet"];
    for name in others {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    let orphans = ["dt=2024-01-15/dead-0.parquet", "dt=2024-01-15/dead-1.parquet"];
    let young = "dt=2024-01-16/in-flight-0.parquet";
    let old = SystemTime::now() - Duration::from_secs(30 * 86_400);
    let names = [orphans[0], orphans[1], young];
    for path in names.map(|name| folder.join(name)).into_iter().chain([outside.clone()]) {
        std::fs::write(&path, "x").unwrap();
        if !path.ends_with(young) {
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
        }
    }
    let report = state.log().table().vacuum(&after(365 * 100)).await.unwrap();
    assert_eq!((report.orphans_removed, report.files_removed, report.orphans_kept), (2, 0, 1));
    assert_eq!(report.paths, orphans);
    let mut expected = live_files;
    expected.extend([young.to_owned(), ".hidden/x.parquet".to_owned()]);
    expected.insert("_change_data/cdc.parquet".to_owned());
    assert_eq!(parquet_files(&folder), expected);
    assert!(outside.is_file() && folder.join(others[0]).is_file());
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_that_is_still_being_staged_survives_a_vacuum() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    let mut epoch = state.epoch("app", 1).unwrap();
    for n in 0..3 {
        epoch.stage(&n_batch_at(&[("a", n, Some(n))], &[START])).await.unwrap();
    }
    let report = state.log().table().vacuum(&after(0)).await.unwrap();
    assert_eq!((report.orphans_kept, report.paths.len()), (3, 0));
    epoch.commit().await.unwrap();
    assert_eq!(n_of(&state, Point::LATEST, "a").await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vacuum_killed_at_any_call_loses_nothing_that_is_needed() {
    let built = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open(&built, &clock).await, "s").await;
    daily(&state, &clock, 0..4).await;
    let newest = commit_of(&state).await;
    let before = answers(&state, newest).await;
    for snapshot in [false, true] {
        for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
            let faulty = built.forked();
            let state = open(&faulty, &clock).await.raw_state("s").await.unwrap();
            let table = match snapshot {
                true => snapshot_table(&state),
                false => state.log().table().clone(),
            };
            faulty.die_at(call, takes_place);
            let outcome = table.vacuum(&after(1)).await;
            let died = faulty.is_dead();
            assert_eq!(outcome.is_err(), died, "call {call}: {outcome:?}");
            let state = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
            if call % 4 == 0 || !died {
                assert_eq!(answers(&state, newest).await, before, "call {call}");
            }
            let table = match snapshot {
                true => snapshot_table(&state),
                false => state.log().table().clone(),
            };
            table.vacuum(&after(1)).await.unwrap();
            assert_eq!(table.vacuum(&after(1)).await.unwrap().paths, Vec::<String>::new());
            assert_eq!(n_of(&state, Point::at_commit(2), "k2").await, Some(2));
            if !died {
                assert_sound(&state).await;
                break;
            }
        }
    }
}
