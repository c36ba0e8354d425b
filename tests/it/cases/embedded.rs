//! The store inside of an application: what cached reads, epochs and streams of epochs promise, each on its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use alluvium::{Change, EpochOutcome, ErrorKind, KeyFilter, Point, State, Store, StoreSettings};
use arrow::array::RecordBatch;
use futures::TryStreamExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::support::stores::{Home, assert_sound, commit_of, settings};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Count {
    n: i64,
}

async fn counts(store: &Store) -> State<Count> {
    store.state::<Count>("counts").await.unwrap()
}

async fn put(state: &State<Count>, key: &str, n: i64) {
    state.put(key, &Count { n }).await.unwrap();
}

async fn n_of(state: &State<Count>, key: &str) -> Option<i64> {
    state.get(key).await.unwrap().map(|count| count.n)
}

#[tokio::test(flavor = "multi_thread")]
async fn emb_01_a_cached_read_sees_what_another_process_has_committed() {
    let home = Home::new();
    let (ours, theirs) = (home.open().await, home.open().await);
    let (ours, theirs) = (counts(&ours).await, counts(&theirs).await);
    for n in 0..30 {
        put(&theirs, "a", n).await;
        assert_eq!(n_of(&ours, "a").await, Some(n));
        assert_eq!(n_of(&ours, "a").await, Some(n));
        assert_eq!(n_of(&ours, "b").await, None);
    }
    theirs.delete("a").await.unwrap();
    assert_eq!(n_of(&ours, "a").await, None);
    let stats = ours.row_cache_stats();
    assert!(stats.hits >= 30, "{stats:?}");
    // A point of the past is never answered by the cache.
    for n in 0..30 {
        let commit = Point::at_commit(n + 1);
        assert_eq!(ours.as_of(commit).get("a").await.unwrap(), Some(Count { n }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn emb_02_reads_that_race_commits_never_go_back_and_never_miss_what_was_acknowledged() {
    const KEYS: usize = 8;
    let seed = 11;
    let home = Home::new();
    let acknowledged: Arc<Vec<AtomicI64>> =
        Arc::new((0..KEYS).map(|_| AtomicI64::new(-1)).collect());
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for reader in 0..2_u64 {
        let tiny = StoreSettings { row_cache_bytes: 4_000 * (1 + reader), ..settings() };
        let state = counts(&home.open_with(tiny).await).await;
        let (acknowledged, over) = (acknowledged.clone(), over.clone());
        tasks.spawn(async move {
            let mut rng = StdRng::seed_from_u64(seed + reader);
            let mut last = [-1; KEYS];
            while !over.load(Ordering::SeqCst) {
                let key = rng.random_range(0..KEYS);
                let least = acknowledged[key].load(Ordering::SeqCst).max(last[key]);
                let seen = n_of(&state, &key.to_string()).await.unwrap_or(-1);
                assert!(seen >= least, "key {key}: {seen} after {least}");
                last[key] = seen;
            }
        });
    }
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..2_usize {
        let store = home.open().await;
        let state = counts(&store).await;
        let acknowledged = acknowledged.clone();
        writers.spawn(async move {
            let mut rng = StdRng::seed_from_u64(seed + 10 + writer as u64);
            for n in 0..150 {
                // Each writer has keys of its own, so that the newest value is the greatest.
                let key = 2 * rng.random_range(0..KEYS / 2) + writer;
                if n % 3 == 0 {
                    let mut epoch = store.epoch(&format!("app/{writer}"), n);
                    epoch.put(&state, &key.to_string(), Count { n }).await.unwrap();
                    epoch.commit().await.unwrap();
                } else {
                    put(&state, &key.to_string(), n).await;
                }
                acknowledged[key].store(n, Ordering::SeqCst);
                if n % 50 == 49 {
                    state.raw().materialize(false).await.unwrap();
                }
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn emb_03_an_epoch_reads_one_basis_however_much_is_committed_meanwhile() {
    let home = Home::new();
    let (store, other) = (home.open().await, home.open().await);
    let (state, theirs) = (counts(&store).await, counts(&other).await);
    put(&state, "a", 1).await;
    put(&state, "b", 1).await;
    let mut epoch = store.epoch("app", 1);
    assert_eq!(epoch.get(&state, "a").await.unwrap(), Some(Count { n: 1 }));
    for key in ["a", "b", "c"] {
        put(&theirs, key, 2).await;
        assert_eq!(n_of(&state, key).await, Some(2));
    }
    for (key, seen) in [("a", Some(1)), ("b", Some(1)), ("c", None)] {
        assert_eq!(epoch.get(&state, key).await.unwrap().map(|count| count.n), seen, "{key}");
    }
    let mut next = store.epoch("app", 2);
    assert_eq!(next.get(&state, "c").await.unwrap(), Some(Count { n: 2 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn emb_04_an_epoch_larger_than_its_budget_is_read_back_and_visible_at_once() {
    let home = Home::new();
    let small = StoreSettings { epoch_bytes: 2_000, ..settings() };
    let store = home.open_with(small).await;
    let state = counts(&store).await;
    for key in 0..50 {
        put(&state, &format!("k{key:03}"), -1).await;
    }
    let before = commit_of(state.raw()).await;
    let mut epoch = store.epoch("app", 1);
    for round in 0..3 {
        for key in 0..100 {
            epoch
                .put(&state, &format!("k{key:03}"), Count { n: round * 1_000 + key })
                .await
                .unwrap();
        }
    }
    for key in 0..10 {
        epoch.delete(&state, &format!("k{key:03}")).await.unwrap();
    }
    let expected = |key: i64| (10..100).contains(&key).then_some(2_000 + key);
    for key in 0..110 {
        let name = format!("k{key:03}");
        let seen = epoch.get(&state, &name).await.unwrap().map(|count| count.n);
        assert_eq!(seen, expected(key), "{name}");
        assert_eq!(n_of(&state, &name).await, (key < 50).then_some(-1), "{name} before the commit");
    }
    let outcomes = epoch.commit().await.unwrap();
    assert!(matches!(outcomes["counts"], EpochOutcome::Committed(_)));
    assert_eq!(commit_of(state.raw()).await, before + 1);
    for key in 0..110 {
        assert_eq!(n_of(&state, &format!("k{key:03}")).await, expected(key));
    }
    let mut again = store.epoch("app", 1);
    for key in 0..100 {
        again.put(&state, &format!("k{key:03}"), Count { n: 0 }).await.unwrap();
    }
    let outcomes = again.commit().await.unwrap();
    assert!(matches!(outcomes["counts"], EpochOutcome::AlreadyApplied { last: 1 }));
    assert_eq!(n_of(&state, "k050").await, expected(50));
    assert_sound(state.raw()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn emb_05_a_stream_that_was_replaced_is_fenced_and_commits_nothing_more() {
    let home = Home::new();
    let (store, other) = (home.open().await, home.open().await);
    let (state, theirs) = (counts(&store).await, counts(&other).await);
    let mut stream = store.epochs("app");
    let mut epoch = stream.begin(1).await.unwrap();
    epoch.put(&state, "a", Count { n: 1 }).await.unwrap();
    stream.submit(epoch).await.unwrap();
    assert_eq!(stream.flush().await.unwrap(), Some(1));
    let mut epoch = other.epoch("app", 2);
    epoch.put(&theirs, "a", Count { n: 2 }).await.unwrap();
    epoch.commit().await.unwrap();
    let mut epoch = stream.begin(3).await.unwrap();
    epoch.put(&state, "a", Count { n: 3 }).await.unwrap();
    stream.submit(epoch).await.unwrap();
    let mut epoch = stream.begin(4).await.unwrap();
    epoch.put(&state, "a", Count { n: 4 }).await.unwrap();
    stream.submit(epoch).await.ok();
    let error = stream.flush().await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Conflict), "{error}");
    assert_eq!(stream.durable(), Some(1));
    assert!(stream.begin(5).await.is_err());
    assert_eq!(n_of(&theirs, "a").await, Some(2));
    assert_eq!(n_of(&state, "a").await, Some(2));
    assert_eq!(commit_of(state.raw()).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn emb_06_a_stream_that_is_sent_again_after_a_restart_applies_only_what_is_missing() {
    let home = Home::new();
    for (first, last) in [(1, 4), (3, 7)] {
        let store = home.open().await;
        let state = counts(&store).await;
        state.raw().log().table().checkpoint().await.unwrap();
        let mut stream = store.epochs("app");
        for number in first..=last {
            let mut epoch = stream.begin(number).await.unwrap();
            let n = epoch.get(&state, "a").await.unwrap().map_or(0, |count| count.n);
            epoch.put(&state, "a", Count { n: n + 1 }).await.unwrap();
            stream.submit(epoch).await.unwrap();
        }
        assert_eq!(stream.flush().await.unwrap(), Some(last));
        assert_eq!(n_of(&state, "a").await, Some(last));
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn emb_07_a_store_that_is_removed_under_a_running_process_is_noticed_by_cached_reads() {
    let home = Home::new();
    let state = counts(&home.open().await).await;
    put(&state, "a", 1).await;
    assert_eq!(n_of(&state, "a").await, Some(1));
    std::fs::remove_dir_all(home.folder.path().join("counts")).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(80)).await;
    assert_eq!(state.get("a").await.unwrap_err().kind(), ErrorKind::IdentityChanged);
}

#[tokio::test(flavor = "multi_thread")]
async fn emb_08_the_tail_of_a_long_stream_is_materialized_in_the_background() {
    let home = Home::new();
    let often = StoreSettings { materialize_after_rows: 100, ..settings() };
    let store = home.open_with(often).await;
    let state = counts(&store).await;
    let mut stream = store.epochs("app");
    for number in 0..30 {
        let mut epoch = stream.begin(number).await.unwrap();
        for key in 0..20 {
            epoch.put(&state, &format!("k{key}"), Count { n: number }).await.unwrap();
        }
        stream.submit(epoch).await.unwrap();
    }
    stream.flush().await.unwrap();
    store.close().await;
    assert!(state.raw().snapshot().state().log_commit() >= 5);
    assert_eq!(n_of(&state, "k7").await, Some(29));
    assert_sound(state.raw()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn emb_10_many_small_commits_leave_few_files_and_every_row() {
    let home = Home::new();
    let often = StoreSettings { tidy_after_commits: 16, ..settings() };
    let store = home.open_with(often).await;
    let state = counts(&store).await;
    for n in 0..400 {
        put(&state, &format!("k{}", n % 7), n).await;
    }
    store.close().await;
    let raw = state.raw();
    let files = raw.log().refresh().await.unwrap().file_count();
    assert!(files < 200, "{files} files of 400 commits");
    assert!(raw.snapshot().state().log_commit() > 100);
    for n in 393..400 {
        assert_eq!(n_of(&state, &format!("k{}", n % 7)).await, Some(n));
    }
    let basis = raw.reader().basis().await.unwrap();
    let history = raw.reader().history_rows(&basis, KeyFilter::All, Point::LATEST).await.unwrap();
    let batches: Vec<RecordBatch> = history.try_collect().await.unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 400);
    assert_sound(raw).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn emb_09_a_warm_state_is_read_without_files_and_a_delete_before_it_still_wins() {
    let home = Home::new();
    let state = counts(&home.open().await).await;
    for n in 0..100 {
        put(&state, &format!("k{n}"), n).await;
    }
    // A DELETE of tomorrow: what is put today loses against it.
    let tomorrow = chrono::Utc::now().timestamp_micros() + 12 * 3_600_000_000;
    state.append(&[Change::delete("later").at(tomorrow)]).await.unwrap();
    let store = home.open().await;
    let warm = counts(&store).await;
    assert!(warm.warm().await.unwrap());
    let before = warm.row_cache_stats();
    for n in 0..200 {
        assert_eq!(n_of(&warm, &format!("k{n}")).await, (n < 100).then_some(n));
    }
    assert_eq!(warm.row_cache_stats().misses, before.misses);
    let mut epoch = store.epoch("app", 1);
    epoch.put(&warm, "later", Count { n: 1 }).await.unwrap();
    epoch.put(&warm, "new", Count { n: 2 }).await.unwrap();
    epoch.commit().await.unwrap();
    assert_eq!((n_of(&warm, "later").await, n_of(&warm, "new").await), (None, Some(2)));
    assert_eq!(n_of(&state, "later").await, None);
    // The same where the two happened at one moment, and another process tells of the later arrival.
    // In whole milliseconds, as statistics are.
    let moment = (tomorrow / 1_000 + 1) * 1_000;
    state.append(&[Change::delete("equal").at(moment).version(10)]).await.unwrap();
    let warm = counts(&home.open().await).await;
    assert!(warm.warm().await.unwrap());
    let loses = Change::upsert("equal", Count { n: 3 }).at(moment).version(5);
    state.append(&[loses]).await.unwrap();
    assert_eq!(n_of(&warm, "equal").await, None);
    let tiny = StoreSettings { row_cache_bytes: 3_000, ..settings() };
    let small = counts(&home.open_with(tiny).await).await;
    assert!(!small.warm().await.unwrap());
    assert_eq!(n_of(&small, "k7").await, Some(7));
    assert_eq!(n_of(&small, "none").await, None);
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Place {
    street: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zip: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Customer {
    home: Option<Place>,
    others: Vec<Place>,
    named: std::collections::BTreeMap<String, Place>,
}

/// The type of a release before, which knows no `zip`.
mod before {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub(super) struct Place {
        pub(super) street: Option<String>,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub(super) struct Customer {
        pub(super) home: Option<Place>,
        pub(super) others: Vec<Place>,
        pub(super) named: std::collections::BTreeMap<String, Place>,
    }
}

/// A field that a type gets inside of another one, or inside of a list or a map, is stored like one beside them.
#[tokio::test(flavor = "multi_thread")]
async fn emb_11_a_field_that_a_type_gets_at_any_depth_is_stored_and_never_dropped() {
    let home = Home::new();
    let store = home.open().await;
    let old = store.state::<before::Customer>("customers").await.unwrap();
    let street = || before::Place { street: Some("old".to_owned()) };
    let named = [("work".to_owned(), street())].into();
    let first = before::Customer { home: Some(street()), others: vec![street()], named };
    old.put("a", &first).await.unwrap();
    let place = |n: i32| Place { street: None, zip: (n > 0).then(|| format!("zip {n}")) };
    let customer = |n: i32| Customer {
        home: Some(place(n)),
        others: vec![place(n + 1), place(0)],
        named: [("work".to_owned(), place(n + 2))].into(),
    };
    let new = home.open().await;
    let state = new.state::<Customer>("customers").await.unwrap();
    // The first one has nothing in the new fields, so that they come later.
    state.put("none", &customer(-9)).await.unwrap();
    state.put("b", &customer(1)).await.unwrap();
    state.append(&[Change::upsert("c", customer(2)), Change::delete("none")]).await.unwrap();
    let mut epoch = new.epoch("app", 1);
    epoch.put(&state, "d", customer(3)).await.unwrap();
    epoch.commit().await.unwrap();
    state.raw().materialize(false).await.unwrap();
    let late = home.open().await.state::<Customer>("customers").await.unwrap();
    for state in [&state, &late] {
        for (key, n) in [("b", 1), ("c", 2), ("d", 3)] {
            assert_eq!(state.get(key).await.unwrap(), Some(customer(n)), "{key}");
        }
        let old = state.get("a").await.unwrap().unwrap();
        assert_eq!(old.home, Some(Place { street: Some("old".to_owned()), zip: None }));
    }
    // Who knows the fields of before only reads on, and writes.
    old.put("e", &first).await.unwrap();
    assert_eq!(old.get("b").await.unwrap().unwrap().others.len(), 2);
    assert_sound(state.raw()).await;
}
