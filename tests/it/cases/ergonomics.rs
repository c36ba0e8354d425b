//! ERG-*, through the library: keys and paths of every kind, exact numbers, and empty answers.

use alluvium::{ErrorKind, Lookup, OrderBy, Point, SnapshotChange, Store, parse_time};
use alluvium_log::KeyFilter;
use arrow::datatypes::{DataType, Field, Fields};
use futures::TryStreamExt;
use serde::{Deserialize, Serialize};

use crate::support::delta;
use crate::support::stores::{
    Home, START, assert_sound, by_time, by_version, commit_of, create, live, lookup, n_batch, n_of,
    scan_rows, settings, sql, sql_numbers,
};

#[tokio::test(flavor = "multi_thread")]
async fn erg_01_what_a_scan_lists_can_be_asked_for_key_by_key() {
    let home = Home::new();
    let store = home.open().await;
    let state = by_version(&store, "s").await;
    let keys = [
        "a/b", "a%2Fb", "/", "..", ".", "a?b", "a#b", "a b", "a+b", "é", "", "latest", "history",
        "a'b", "a\"b", "a\\b", "\n",
    ];
    let rows: Vec<_> = keys.iter().enumerate().map(|(n, key)| (*key, 1, Some(n as i64))).collect();
    state.append(&n_batch(&rows)).await.unwrap();
    for _ in 0..2 {
        let listed = live(&state, Point::LATEST).await;
        assert_eq!(listed.len(), keys.len());
        for (key, _, n) in listed {
            assert_eq!(n_of(&state, Point::LATEST, &key).await, n, "{key:?}");
        }
        state.materialize(false).await.unwrap();
    }
    let error = store.raw_state("no such state").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let error = store.raw_state("other").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.to_string().contains("\"other\"") && error.to_string().contains("it has s"),
        "{error}"
    );
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Exact {
    n: i64,
    text: Option<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn erg_02_integers_of_64_bits_are_exact_as_versions_and_as_values() {
    let home = Home::new();
    let store = home.open().await;
    let state = store.state::<Exact>("typed").await.unwrap();
    let numbers = [9_007_199_254_740_993, i64::MAX, i64::MIN];
    for (index, n) in numbers.into_iter().enumerate() {
        let change = alluvium::Change::upsert(format!("k{index}"), Exact { n, text: None })
            .version(n)
            .at(START);
        state.append(&[change]).await.unwrap();
    }
    for _ in 0..2 {
        for (index, n) in numbers.into_iter().enumerate() {
            let key = format!("k{index}");
            assert_eq!(state.get(&key).await.unwrap(), Some(Exact { n, text: None }));
            assert_eq!(
                sql_numbers(
                    &store,
                    &format!("SELECT n FROM typed WHERE n = {n} AND version = {n}")
                )
                .await,
                [n]
            );
            let entries: Vec<_> = state.scan(&key).await.unwrap().try_collect().await.unwrap();
            assert_eq!((entries[0].version, entries[0].event_time_micros), (n, START));
        }
        state.raw().materialize(false).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn erg_03_a_folder_of_any_name_is_that_one_folder() {
    let home = tempfile::tempdir().unwrap();
    let names = [
        "my table",
        "a%20b",
        "com~apple",
        "日本/é",
        "x#y",
        "q?r",
        "[b]",
        "a&b=c",
        "trailing.",
        "~",
        "100%",
    ];
    for name in names {
        let folder = home.path().join(name);
        let literal = folder.to_str().unwrap().to_owned();
        let store = Store::builder(&literal).settings(settings()).open().await.unwrap();
        let state = by_version(&store, "s").await;
        state.append(&n_batch(&[("a", 1, Some(1)), ("b", 1, Some(1))])).await.unwrap();
        state.append(&n_batch(&[("b", 2, None)])).await.unwrap();
        state.materialize(false).await.unwrap();
        state.log().table().checkpoint().await.unwrap();
        let url = url::Url::from_directory_path(&folder).unwrap().to_string();
        let link = home.path().join("a link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        for uri in [format!("{literal}/"), url, link.to_str().unwrap().to_owned()] {
            let store = Store::builder(&uri).settings(settings()).open().await.unwrap();
            assert_eq!(store.state_names().await.unwrap(), ["s"], "{uri}");
            let state = store.raw_state("s").await.unwrap();
            assert_eq!(live(&state, Point::LATEST).await, [("a".into(), 1, Some(1))], "{uri}");
            assert!(state.verify().await.unwrap().is_sound());
        }
        std::fs::remove_file(link).unwrap();
        assert!(folder.join("s/log/_delta_log").is_dir(), "{name}");
        // delta-rs itself does not find checkpoints below a folder with a percent sign in its name.
        if !name.contains('%') {
            delta::optimize(&folder.join("s/log"), 1 << 20).await;
        }
        assert_sound(&state).await;
    }
    let mut made: Vec<String> = std::fs::read_dir(home.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    made.sort();
    let mut expected: Vec<String> =
        names.iter().map(|name| name.split('/').next().unwrap().to_owned()).collect();
    expected.sort();
    assert_eq!(made, expected, "no other folder was made");
    for wrong in ["", "hdfs://name/x", "file://relative"] {
        assert!(Store::open(wrong).await.is_err(), "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn erg_04_what_matches_nothing_is_an_empty_answer_with_its_columns() {
    let home = Home::new();
    let store = home.open().await;
    let state = by_version(&store, "s").await;
    let queries = [
        "SELECT * FROM s",
        "SELECT * FROM s WHERE state_key = 'x' ORDER BY n",
        "SELECT n, count(*) FROM s GROUP BY n",
        "SELECT * FROM log.s WHERE dt = '1999-01-01'",
        "SELECT * FROM as_of('s', version => -5)",
        "SELECT * FROM history('s', 'nobody')",
        "SELECT * FROM diff('s', 'latest', 'latest')",
    ];
    for step in 0..4 {
        for query in queries {
            let rows = sql(&store, query)
                .await
                .unwrap_or_else(|error| panic!("step {step}: {query}: {error}"));
            assert_eq!(rows.num_rows(), 0, "step {step}: {query}");
            assert!(rows.num_columns() > 0);
        }
        assert_eq!(sql_numbers(&store, "SELECT count(*) FROM s").await, [0]);
        assert!(scan_rows(&state, Point::LATEST).await.is_empty());
        assert!(matches!(lookup(&state, "x").await, Lookup::Absent));
        match step {
            // An empty log, an empty batch, and a log of which every key is deleted.
            0 => {
                assert_eq!(state.materialize(false).await.unwrap().change, SnapshotChange::UpToDate)
            }
            1 => {
                let receipt = state.append(&n_batch(&[])).await.unwrap();
                assert_eq!((receipt.commit, receipt.rows), (0, 0));
                state.materialize(true).await.unwrap();
                assert!(state.verify().await.unwrap().is_sound());
            }
            2 => {
                state.append(&n_batch(&[("gone", 1, Some(1)), ("gone", 2, None)])).await.unwrap();
                assert!(matches!(lookup(&state, "gone").await, Lookup::Deleted(_)));
                state.materialize(false).await.unwrap();
                assert!(matches!(lookup(&state, "gone").await, Lookup::Deleted(_)));
            }
            _ => assert_sound(&state).await,
        }
    }
    assert_eq!(commit_of(&state).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_of_typed_states_are_seen_by_themselves_first_and_applied_once() {
    let home = Home::new();
    let store = home.open().await;
    let users = store.state::<Exact>("users").await.unwrap();
    let value = |n| Exact { n, text: Some("x".to_owned()) };
    users.put("a", &value(1)).await.unwrap();
    for _ in 0..2 {
        let mut epoch = store.epoch("app", 1);
        epoch.put(&users, "a", value(2)).await.unwrap();
        epoch.put(&users, "b", value(2)).await.unwrap();
        epoch.delete(&users, "b").await.unwrap();
        assert_eq!(epoch.get(&users, "a").await.unwrap(), Some(value(2)));
        assert_eq!(epoch.get(&users, "b").await.unwrap(), None);
        epoch.commit().await.unwrap();
        assert_eq!(users.get("a").await.unwrap(), Some(value(2)));
    }
    assert_eq!(commit_of(users.raw()).await, 2);
    let receipt =
        users.update("a", |user| user.map(|user| Exact { n: user.n + 1, ..user })).await.unwrap();
    let basis = home
        .open()
        .await
        .raw_state("users")
        .await
        .unwrap()
        .reader()
        .basis_at_least(receipt.commit)
        .await
        .unwrap();
    assert_eq!(basis.commit(), receipt.commit);
    let updates =
        (0..20).map(|_| users.update("a", |user| user.map(|user| Exact { n: user.n + 1, ..user })));
    futures::future::try_join_all(updates).await.unwrap();
    assert_eq!(users.get("a").await.unwrap(), Some(value(23)), "no update of one handle is lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_definition_of_a_state_is_kept_and_unknown_columns_are_refused() {
    let home = Home::new();
    let store = home.open().await;
    let fields = Fields::from(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("at", DataType::Date32, true),
    ]);
    let state = create(&store, "s", &fields, OrderBy::Version).await;
    let reopened = home.open().await.raw_state("s").await.unwrap();
    assert_eq!(reopened.definition(), state.definition());
    assert_eq!(reopened.definition().fields, fields);
    for name in ["", "a b", "-a", "a/b", "é", &"x".repeat(129), "..", "log.s"] {
        let refused = store.create_state(name, &fields, alluvium::StateSettings::default()).await;
        assert_eq!(
            refused.map_err(|error| error.kind()).unwrap_err(),
            ErrorKind::InvalidInput,
            "{name:?}"
        );
    }
    assert_eq!(store.state_names().await.unwrap(), ["s"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_and_a_history_longer_than_their_windows_are_whole_and_in_order() {
    let home = Home::new();
    let state = by_time(&home.open().await, "s").await;
    let start = parse_time("2024-01-15T00:00:00Z").unwrap();
    let keys: Vec<String> = (0..60_000).map(|n| format!("k{n:06}")).collect();
    for commit in 0..6_i64 {
        let rows: Vec<_> = keys.iter().map(|key| (key.as_str(), commit, Some(commit))).collect();
        let times = vec![start + commit; rows.len()];
        state.append(&crate::support::stores::n_batch_at(&rows, &times)).await.unwrap();
    }
    delta::optimize(&home.table("s", "log"), 1 << 30).await;
    let reader = state.reader();
    let basis = reader.basis().await.unwrap();
    for after in [0, 2] {
        let feed: Vec<_> =
            reader.changes_rows(&basis, after).await.unwrap().try_collect().await.unwrap();
        let mut last = (0, String::new());
        let mut rows = 0;
        for batch in &feed {
            for seen in crate::support::stores::live_of(batch).into_iter().map(|row| (row.1, row.0))
            {
                assert!(last < seen, "{last:?} before {seen:?}");
                last = seen;
                rows += 1;
            }
        }
        assert_eq!(rows, (6 - after as usize) * 60_000);
    }
    let mut rows = 0;
    let mut last = (String::new(), 0);
    let mut history = reader.history_rows(&basis, KeyFilter::All, Point::LATEST).await.unwrap();
    while let Some(batch) = history.try_next().await.unwrap() {
        for row in crate::support::stores::live_of(&batch) {
            let seen = (row.0, row.1 + 1);
            assert!(last < seen, "{last:?} before {seen:?}");
            last = seen;
            rows += 1;
        }
    }
    assert_eq!(rows, 360_000);
}
