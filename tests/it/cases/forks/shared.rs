//! What a fork and its parent have in common is told as shared, by both.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use alluvium::{MaintainStep, ManualClock, Point, RawState};

use super::fork;
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{DAY, Home, START, by_version, n_batch_at};

async fn days(state: &RawState, clock: &ManualClock, range: std::ops::Range<i64>) {
    for day in range {
        clock.set(START + day * DAY + DAY / 2);
        let rows = ["a", "b"].map(|key| (key, day + 1, Some(day)));
        state.append(&n_batch_at(&rows, &[START + day * DAY; 2])).await.unwrap();
        state.materialize(false).await.unwrap();
    }
}

/// Bytes by what `retention explain` says of them: all, and those shared; what `stats` says of them; and with whom.
async fn told(state: &RawState) -> (u64, u64, u64, Vec<String>) {
    let report = state.explain_retention().await.unwrap();
    let sum = |of: fn(&alluvium::Kept) -> u64| report.kept.iter().map(of).sum::<u64>();
    assert!(report.kept.iter().all(|kept| kept.shared_bytes <= kept.bytes), "{report:?}");
    let stats = state.stats().await.unwrap();
    let newest = stats.log_shared_bytes + stats.snapshot_shared_bytes;
    let with = report.shared_with.into_iter().collect();
    (sum(|kept| kept.bytes), sum(|kept| kept.shared_bytes), newest, with)
}

/// The data files below a state's folder: their bytes, and how many of them the disk has under several names.
fn on_disk(folder: &Path, inodes: &mut HashMap<u64, u64>) -> (u64, u64) {
    let (mut all, mut linked) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("_delta_log") {
                let (more, shared) = on_disk(&path, inodes);
                (all, linked) = (all + more, linked + shared);
            }
        } else if path.extension().is_some_and(|end| end == "parquet") {
            let known = std::fs::metadata(&path).unwrap();
            inodes.insert(known.ino(), known.len());
            all += known.len();
            linked += if known.nlink() > 1 { known.len() } else { 0 };
        }
    }
    (all, linked)
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_the_disk_has_once_are_told_as_shared_by_both() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let store = home.open_at(&clock).await;
    let state = by_version(&store, "s").await;
    days(&state, &clock, 0..10).await;
    let (_, shared, newest, with) = told(&state).await;
    assert_eq!((shared, newest, with.len()), (0, 0, 0), "nothing is shared with nobody");
    by_version(&store, "unrelated").await;
    fork(&store, "s", "trial", Point::LATEST).await;
    let trial = store.raw_state("trial").await.unwrap();
    fork(&store, "trial", "grandchild", Point::LATEST).await;
    let grandchild = store.raw_state("grandchild").await.unwrap();
    let check = async |state: &RawState, name: &str| {
        let (bytes, shared, newest, with) = told(state).await;
        let found = on_disk(&home.folder.path().join(name), &mut HashMap::new());
        assert_eq!((bytes, shared), found, "{name}");
        assert!(newest <= shared, "{name}");
        (bytes, shared, with)
    };
    let (bytes, shared, with) = check(&trial, "trial").await;
    assert_eq!((bytes, with), (shared, vec!["grandchild".to_owned(), "s".to_owned()]));
    assert!(bytes > 0);
    check(&grandchild, "grandchild").await;
    let (_, of_parent, with) = check(&state, "s").await;
    assert_eq!((of_parent, with), (shared, vec!["grandchild".to_owned(), "trial".to_owned()]));
    // All together take as much as the disk has.
    let mut inodes = HashMap::new();
    on_disk(home.folder.path(), &mut inodes);
    let own = told(&state).await;
    assert_eq!(inodes.values().sum::<u64>(), own.0, "forks take nothing");

    // What is rewritten on one side is its own; what the other side has removed is nobody else's.
    days(&trial, &clock, 10..14).await;
    trial.maintain(&MaintainStep::ALL, false).await.unwrap();
    let (bytes, shared, _) = check(&trial, "trial").await;
    assert!(shared > 0 && shared < bytes, "{shared} of {bytes}");
    clock.set(START + 90 * DAY);
    for side in [&trial, &grandchild, &state] {
        side.maintain(&MaintainStep::ALL, false).await.unwrap();
    }
    for (side, name) in [(&trial, "trial"), (&grandchild, "grandchild"), (&state, "s")] {
        check(side, name).await;
    }
    store.drop_fork("grandchild").await.unwrap();
    store.drop_fork("trial").await.unwrap();
    let (_, shared, newest, with) = told(&state).await;
    assert_eq!((shared, newest, with.len()), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_that_a_service_made_are_told_as_shared_too() {
    let objects = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let store = open(&objects, &clock).await;
    let state = by_version(&store, "s").await;
    days(&state, &clock, 0..3).await;
    fork(&store, "s", "trial", Point::LATEST).await;
    let trial = store.raw_state("trial").await.unwrap();
    let (bytes, shared, newest, with) = told(&trial).await;
    assert_eq!((bytes, with), (shared, vec!["s".to_owned()]));
    assert!(newest > 0);
    assert_eq!(told(&state).await.1, shared);
}
