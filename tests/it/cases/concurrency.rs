//! CON-*: handles stand for processes; each has its own view of the tables, as a process would.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use alluvium::{ErrorKind, LayoutSettings, ManualClock, OrderBy, Point, RawState, StoreSettings};
use alluvium_log::KeyFilter;
use arrow::datatypes::{DataType, Field, Fields};
use futures::TryStreamExt;
use futures::future::join_all;

use crate::support::delta;
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{
    Change, Home, START, assert_sound, by_version, commit_of, live, live_of, n_batch, n_fields,
    n_of, ordered_by, settings,
};

async fn append_one(state: &RawState, key: &str, version: i64) -> alluvium::Result<i64> {
    Ok(state.append(&n_batch(&[(key, version, Some(version))])).await?.commit)
}

/// The commits of a log, read as files.
fn commit_files(home: &Home) -> Vec<String> {
    let folder = home.table("s", "log").join("_delta_log");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        // Of a checkpoint in the background a checksum may lie beside them.
        .filter(|name| name.ends_with(".json") && !name.ends_with(".alluvium.json"))
        .collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn con_01_appends_optimize_and_materialize_go_on_at_the_same_time_and_none_fails() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    let done = Arc::new(AtomicBool::new(false));
    let mut appenders = tokio::task::JoinSet::new();
    for appender in 0..2_i64 {
        let state = home.open().await.raw_state("s").await.unwrap();
        appenders.spawn(async move {
            for n in 0..60_i64 {
                append_one(&state, &format!("k{}", n % 17), n * 2 + appender).await.unwrap();
            }
        });
    }
    let upkeep = {
        let (done, folder) = (done.clone(), home.table("s", "log"));
        let state = home.open().await.raw_state("s").await.unwrap();
        tokio::spawn(async move {
            let mut rounds = 0;
            while !done.load(Ordering::SeqCst) || rounds == 0 {
                state.materialize(false).await.unwrap();
                delta::optimize(&folder, 1 << 20).await;
                state.compact(false).await.unwrap();
                assert!(state.verify().await.unwrap().is_sound());
                rounds += 1;
            }
            rounds
        })
    };
    while appenders.join_next().await.transpose().unwrap().is_some() {}
    done.store(true, Ordering::SeqCst);
    assert!(upkeep.await.unwrap() >= 1);
    let expected: Vec<_> = (0..17_i64)
        .map(|key| (format!("k{key}"), (0..60_i64).rfind(|n| n % 17 == key).unwrap() * 2 + 1))
        .collect::<std::collections::BTreeMap<_, _>>()
        .into_iter()
        .map(|(key, n)| (key, n, Some(n)))
        .collect();
    assert_eq!(live(&state, Point::LATEST).await, expected);
    assert_eq!(state.stats().await.unwrap().log_rows, 120);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn con_02_ten_writers_lose_no_acknowledged_append() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..10_i64 {
        let own = home.open().await.raw_state("s").await.unwrap();
        tasks.spawn(async move {
            for n in 0..50_i64 {
                append_one(&own, &format!("w{writer}/{n}"), 1).await.unwrap();
            }
        });
    }
    while tasks.join_next().await.transpose().unwrap().is_some() {}
    assert_eq!(live(&state, Point::LATEST).await.len(), 500);
    assert_eq!(commit_of(&state).await, 500, "each append was a commit of its own");
    assert_eq!(commit_files(&home).len(), 501);
}

#[tokio::test(flavor = "multi_thread")]
async fn con_03_success_means_visible_and_an_error_means_not() {
    let home = Home::new();
    by_version(&home.open().await, "s").await;
    let first = home.open().await.raw_state("s").await.unwrap();
    let second = home.open().await.raw_state("s").await.unwrap();
    let (a, b) = futures::join!(append_one(&first, "a", 1), append_one(&second, "b", 1));
    assert_eq!(BTreeSet::from([a.unwrap(), b.unwrap()]), BTreeSet::from([1, 2]));
    second.append(&n_batch(&[("a", 2, None)])).await.unwrap();
    // A checkpoint that can't be written is no failure of the append that it was due after.
    let log = home.table("s", "log").join("_delta_log");
    std::fs::create_dir(log.join("00000000000000000103.checkpoint.parquet")).unwrap();
    for n in 3..110 {
        append_one(&first, "c", n).await.unwrap();
    }
    first.log().close().await;
    for state in [&first, &second, &home.open().await.raw_state("s").await.unwrap()] {
        assert_eq!(
            live(state, Point::LATEST).await,
            [("b".into(), 1, Some(1)), ("c".into(), 109, Some(109))]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn con_04_materializers_at_the_same_time_neither_lose_nor_double_a_row() {
    let home = Home::new();
    let first = by_version(&home.open().await, "s").await;
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(home.open().await.raw_state("s").await.unwrap());
    }
    let mut progress = 0;
    for round in 0..12_i64 {
        let rows: Vec<String> = (0..20).map(|n| format!("k{:03}", (round * 7 + n) % 60)).collect();
        let rows: Vec<_> = rows
            .iter()
            .map(|key| (key.as_str(), round, (round % 5 != 3).then_some(round)))
            .collect();
        first.append(&n_batch(&rows)).await.unwrap();
        let rebuilds = round % 3 == 0;
        for outcome in join_all(others.iter().map(|state| state.materialize(rebuilds))).await {
            match outcome {
                Ok(report) => assert_eq!(report.to_commit, round + 1),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
            }
        }
        let report = first.verify().await.unwrap();
        assert!(report.is_sound() && report.log_commit > progress, "{report:?}");
        progress = report.log_commit;
        let stats = first.stats().await.unwrap();
        assert_eq!(stats.snapshot_rows, report.keys, "one row per key");
    }
    assert_sound(&first).await;
}

/// One is asleep while it writes what it has folded; another one folds more and is done before it wakes.
#[tokio::test(flavor = "multi_thread")]
async fn con_04_a_materializer_that_wakes_up_late_takes_nothing_back() {
    for rebuilds in [false, true] {
        let objects = FaultyStore::new();
        let clock = Arc::new(ManualClock::at(START));
        let first = by_version(&open(&objects, &clock).await, "s").await;
        first.append(&n_batch(&[("a", 1, Some(1)), ("b", 1, Some(1))])).await.unwrap();
        first.materialize(false).await.unwrap();
        first.append(&n_batch(&[("a", 2, Some(2)), ("c", 2, Some(2))])).await.unwrap();
        let (is_asleep, wake) = objects.hold_next_data_file();
        let sleeper = {
            let state = first.clone();
            tokio::spawn(async move { state.materialize(rebuilds).await })
        };
        is_asleep.await.unwrap();
        let second = open(&objects.reborn(), &clock).await.raw_state("s").await.unwrap();
        second.append(&n_batch(&[("b", 3, None), ("d", 3, Some(3))])).await.unwrap();
        assert_eq!(second.materialize(rebuilds).await.unwrap().to_commit, 3);
        wake.send(()).unwrap();
        match sleeper.await.unwrap() {
            Ok(report) => assert_eq!(report.to_commit, 3, "{report:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
        }
        let fresh = open(&objects.reborn(), &clock).await.raw_state("s").await.unwrap();
        for state in [&first, &second, &fresh] {
            assert_eq!(state.snapshot().refresh().await.unwrap().log_commit(), 3);
            let expected = [("a", 2), ("c", 2), ("d", 3)].map(|(k, n)| (k.to_owned(), n, Some(n)));
            assert_eq!(live(state, Point::LATEST).await, expected);
            let report = state.verify().await.unwrap();
            assert!(report.is_sound() && report.keys == 4, "{report:?}");
        }
        assert_sound(&first).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn con_08_first_writers_that_race_to_create_a_state_all_get_in() {
    for _ in 0..20 {
        let home = Home::new();
        let mut stores = Vec::new();
        for _ in 0..8 {
            stores.push(home.open().await);
        }
        let creations = stores.iter().enumerate().map(|(n, store)| async move {
            let (state, created) =
                store.create_state("s", &n_fields(), ordered_by(OrderBy::Version)).await.unwrap();
            append_one(&state, &format!("k{n}"), 1).await.unwrap();
            (created, state.log().state().metadata.id.clone())
        });
        let outcomes = join_all(creations).await;
        assert_eq!(
            outcomes.iter().filter(|outcome| outcome.0).count(),
            1,
            "one of them created it"
        );
        let ids: BTreeSet<_> = outcomes.into_iter().map(|outcome| outcome.1).collect();
        assert_eq!(ids.len(), 1);
        let state = stores[3].raw_state("s").await.unwrap();
        assert_eq!(live(&state, Point::LATEST).await.len(), 8);
    }
    let home = Home::new();
    by_version(&home.open().await, "s").await;
    let other = Fields::from(vec![Field::new("n", DataType::Utf8, true)]);
    let error = home
        .open()
        .await
        .create_state("s", &other, ordered_by(OrderBy::Version))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    let error = home
        .open()
        .await
        .create_state("S", &n_fields(), ordered_by(OrderBy::Version))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn con_09_no_commit_is_written_twice_and_numbers_have_no_gap() {
    let home = Home::new();
    by_version(&home.open().await, "s").await;
    let folder = home.table("s", "log").join("_delta_log");
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..2 {
        let state = home.open().await.raw_state("s").await.unwrap();
        let folder = folder.clone();
        tasks.spawn(async move {
            let mut seen = Vec::new();
            for n in 0..100 {
                let commit = append_one(&state, &format!("w{writer}/{n}"), 1).await.unwrap();
                let path = folder.join(format!("{commit:020}.json"));
                seen.push((path.clone(), std::fs::read(path).unwrap()));
            }
            seen
        });
    }
    let mut known: Vec<(std::path::PathBuf, Vec<u8>)> = Vec::new();
    while let Some(seen) = tasks.join_next().await {
        known.extend(seen.unwrap());
    }
    let paths: BTreeSet<_> = known.iter().map(|(path, _)| path.clone()).collect();
    assert_eq!(paths.len(), 200, "two appends were told the same commit");
    for (path, content) in known {
        assert_eq!(std::fs::read(&path).unwrap(), content, "{} was written again", path.display());
    }
    let expected: Vec<String> = (0..=200).map(|n| format!("{n:020}.json")).collect();
    assert_eq!(commit_files(&home), expected);
    let state = home.open().await.raw_state("s").await.unwrap();
    assert_eq!(live(&state, Point::LATEST).await.len(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn con_10_a_state_that_was_dropped_and_made_again_is_noticed_by_an_old_handle() {
    for newer in [3, 9] {
        let home = Home::new();
        let store = home.open().await;
        let old = by_version(&store, "s").await;
        for n in 1..=7 {
            append_one(&old, "old", n).await.unwrap();
        }
        old.materialize(false).await.unwrap();
        assert_eq!(n_of(&old, Point::LATEST, "old").await, Some(7));
        let snapshot = home.table("s", "snapshot");
        let kept = home.folder.path().join("kept");
        std::fs::rename(&snapshot, &kept).unwrap();
        std::fs::remove_dir_all(home.folder.path().join("s")).unwrap();
        let new = by_version(&home.open().await, "s").await;
        for n in 1..=newer {
            append_one(&new, "new", n).await.unwrap();
        }
        let kinds = [
            old.get(Point::LATEST, "old").await.map(|_| ()),
            append_one(&old, "more", 1).await.map(|_| ()),
            old.materialize(false).await.map(|_| ()),
            old.verify().await.map(|_| ()),
        ];
        for outcome in kinds {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::IdentityChanged, "{error}");
        }
        assert_eq!(live(&new, Point::LATEST).await, [("new".into(), newer, Some(newer))]);
        assert_eq!(commit_of(&new).await, newer);
        // A snapshot of the former state is not taken for one of this.
        std::fs::rename(&kept, &snapshot).unwrap();
        let error = home.open().await.raw_state("s").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IdentityChanged, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn con_06_a_scan_ends_whole_beside_a_rebuild_and_with_an_error_when_its_files_are_removed() {
    let home = Home::new();
    let layout = LayoutSettings {
        small_state_rows: 0,
        file_rows: 200,
        lookup_rows: 200,
        ..Default::default()
    };
    let store = home.open_with(StoreSettings { layout, batch_rows: 100, ..settings() }).await;
    let state = by_version(&store, "s").await;
    let keys: Vec<String> = (0..10_000).map(|n| format!("k{n:05}")).collect();
    let rows = |version: i64| -> Vec<Change<'_>> {
        keys.iter().map(|key| (key.as_str(), version, Some(version))).collect()
    };
    state.append(&n_batch(&rows(1))).await.unwrap();
    state.materialize(false).await.unwrap();
    assert!(state.stats().await.unwrap().base_files >= 50);
    for is_vacuumed in [false, true] {
        let version = state.stats().await.unwrap().commit;
        let mut scan = state.scan(Point::LATEST, KeyFilter::All).await.unwrap();
        let mut query = store.sql("SELECT state_key, n FROM s").await.unwrap();
        let mut seen = scan.try_next().await.unwrap().unwrap().num_rows();
        let mut answered = query.try_next().await.unwrap().unwrap().num_rows();
        state.append(&n_batch(&rows(version + 1))).await.unwrap();
        state.materialize(true).await.unwrap();
        if is_vacuumed {
            delta::vacuum(&home.table("s", "snapshot")).await;
        }
        let scanned: alluvium::Result<()> = async {
            while let Some(batch) = scan.try_next().await? {
                assert!(live_of(&batch).iter().all(|row| row.1 == version), "one basis");
                seen += batch.num_rows();
            }
            Ok(())
        }
        .await;
        let queried: alluvium::Result<()> = async {
            while let Some(batch) = query.try_next().await.map_err(alluvium::sql_error)? {
                answered += batch.num_rows();
            }
            Ok(())
        }
        .await;
        for (outcome, rows) in [(scanned, seen), (queried, answered)] {
            match outcome {
                Ok(()) => assert_eq!(rows, 10_000),
                Err(error) => {
                    assert!(is_vacuumed, "{error}");
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    assert!(error.to_string().contains(".parquet"), "{error}");
                }
            }
        }
        assert_eq!(live(&state, Point::LATEST).await.len(), 10_000);
    }
    assert_sound(&state).await;
}
