//! Forks of a state of which days are archived.

use std::sync::Arc;

use alluvium::{ErrorKind, MaintainStep, ManualClock, Point, RawState, Storage, Store};

use super::fork;
use crate::support::faults::{FaultyStore, open};
use crate::support::search::{holding, objects_of};
use crate::support::stores::{DAY, START, by_version, commit_of, live, n_batch_at, n_of};

async fn days(state: &RawState, clock: &ManualClock, range: std::ops::Range<i64>) {
    for day in range {
        clock.set(START + day * DAY + DAY / 2);
        let rows = ["a", "b"].map(|key| (key, day + 1, Some(day)));
        state.append(&n_batch_at(&rows, &[START + day * DAY; 2])).await.unwrap();
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
    }
}

async fn check(state: &RawState, newest: i64) {
    for commit in 0..=commit_of(state).await {
        let rows = live(state, Point::at_commit(commit)).await;
        let n = rows.first().and_then(|row| row.2);
        assert!(rows.len() == 2 || n.is_none(), "{commit}: {rows:?}");
        assert!(n.is_none_or(|n| n <= newest), "{commit}: {rows:?}");
    }
    assert_eq!(n_of(state, Point::LATEST, "b").await, Some(newest));
    for day in 0..newest {
        let point = Point::at_version(day + 1);
        assert_eq!(n_of(state, point, "a").await, Some(day), "{point}");
    }
    assert!(state.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn archived_days_are_part_of_the_fork() {
    for is_elsewhere in [false, true] {
        let clock = Arc::new(ManualClock::at(START));
        let (hot, cold) = (FaultyStore::new(), FaultyStore::new());
        let store: Store = match is_elsewhere {
            false => open(&hot, &clock).await,
            true => {
                let storage = Storage::from_object_store(hot.clone(), "hot://");
                let archive = Storage::from_object_store(cold.clone(), "cold://");
                let builder = Store::builder("hot://").storage(storage).archive_storage(archive);
                builder.clock(clock.clone()).open().await.unwrap()
            }
        };
        let state = by_version(&store, "s").await;
        let mut settings = vec![("hot_days".to_owned(), "8d".to_owned())];
        settings.extend(is_elsewhere.then(|| ("archive".to_owned(), "cold://x".to_owned())));
        state.set_maintenance(&settings).await.unwrap();
        days(&state, &clock, 0..20).await;
        let home: Arc<dyn object_store::ObjectStore> =
            if is_elsewhere { cold.clone() } else { hot.clone() };
        let cold_files = async |name: &str| {
            let all = objects_of(&home).await;
            let folder = format!("{name}/archive/");
            all.iter().filter(|(path, _)| path.starts_with(&folder)).count()
        };
        assert!(cold_files("s").await > 5);
        let made = fork(&store, "s", "f", Point::LATEST).await;
        assert!(made.files > 20, "{made:?}");
        let forked = store.raw_state("f").await.unwrap();
        check(&forked, 19).await;
        days(&state, &clock, 20..40).await;
        check(&state, 39).await;
        check(&forked, 19).await;
        days(&forked, &clock, 40..45).await;
        clock.set(START + 90 * DAY);
        for state in [&state, &forked] {
            state.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
        check(&state, 39).await;
        assert_eq!(n_of(&forked, Point::LATEST, "a").await, Some(44));
        assert_eq!(n_of(&forked, Point::at_version(7), "a").await, Some(6));
        assert!(forked.verify().await.unwrap().is_sound());
        fork(&store, "f", "g", Point::LATEST).await;
        store.drop_fork("f").await.unwrap();
        assert_eq!(cold_files("f").await, 0);
        assert_eq!(n_of(&state, Point::at_version(7), "a").await, Some(6));
        let child = store.raw_state("g").await.unwrap();
        assert_eq!(n_of(&child, Point::at_version(7), "a").await, Some(6));
        assert!(child.verify().await.unwrap().is_sound());
        assert_eq!(store.raw_state("f").await.unwrap_err().kind(), ErrorKind::NotFound);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erase_goes_through_the_archives_of_forks_too() {
    let clock = Arc::new(ManualClock::at(START));
    let (hot, cold) = (FaultyStore::new(), FaultyStore::new());
    let storage = Storage::from_object_store(hot.clone(), "hot://");
    let archive = Storage::from_object_store(cold.clone(), "cold://");
    let builder = Store::builder("hot://").storage(storage).archive_storage(archive);
    let store = builder.clock(clock.clone()).open().await.unwrap();
    let state = by_version(&store, "s").await;
    let settings = [("hot_days", "8d"), ("archive", "cold://x")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    state.set_maintenance(&settings).await.unwrap();
    for day in 0..20 {
        clock.set(START + day * DAY + DAY / 2);
        let rows = ["other", "u7-marie-7391"].map(|key| (key, day + 1, Some(day)));
        state.append(&n_batch_at(&rows, &[START + day * DAY; 2])).await.unwrap();
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
    }
    fork(&store, "s", "f", Point::LATEST).await;
    let stores: [Arc<dyn object_store::ObjectStore>; 2] = [hot.clone(), cold.clone()];
    let left = async || {
        let mut left = Vec::new();
        for store in &stores {
            left.extend(holding(&objects_of(store).await, &["u7-marie-7391"]));
        }
        left
    };
    assert!(left().await.iter().any(|path| path.starts_with("f/archive")));
    let receipt = state.erase(&["u7-marie-7391".to_owned()], true).await.unwrap();
    assert!(receipt.forks[0].files.iter().any(|file| file.path.contains("archive")), "{receipt:?}");
    assert_eq!(left().await, Vec::<String>::new());
    for name in ["s", "f"] {
        let state = store.raw_state(name).await.unwrap();
        for day in 0..20 {
            assert_eq!(n_of(&state, Point::at_version(day + 1), "other").await, Some(day));
        }
        assert!(state.verify().await.unwrap().is_sound());
    }
}
