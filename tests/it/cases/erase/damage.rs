//! An erase among checksums: what it writes over is whole again, what is damaged is named, and a repair brings nothing back.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alluvium::{ErrorKind, ManualClock, OrderBy, Point, RawState};

use super::{KEY, LONG, VALUE, create_in, fill, found, long_key, rest};
use crate::support::delta;
use crate::support::search::{files_of, holding};
use crate::support::stores::{DAY, Home, START, assert_sound};

async fn filled() -> (Home, Arc<ManualClock>, RawState) {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = create_in(&home.open_at(&clock).await, OrderBy::Version).await;
    fill(&state, &clock).await;
    (home, clock, state)
}

fn erased() -> [String; 2] {
    [KEY.to_owned(), long_key()]
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_erase_every_file_is_whole_and_there_is_nothing_to_repair() {
    for now in [false, true] {
        let (home, clock, state) = filled().await;
        let notes = |folder: &Path| {
            let files = files_of(&folder.join("_delta_log"));
            files.iter().filter(|(path, _)| path.ends_with(".alluvium.json")).count()
        };
        let tables = ["log", "snapshot"].map(|name| home.table("s", name));
        let before = tables.each_ref().map(|folder| notes(folder));
        let receipt = state.erase(&erased(), now).await.unwrap();
        assert!(receipt.redacted.iter().any(|path| path.ends_with(".checkpoint.parquet")));
        assert!(receipt.redacted.iter().any(|path| path.ends_with(".json")));
        for (folder, before) in tables.iter().zip(before) {
            assert!(notes(folder) >= before, "each checkpoint has its checksum");
        }
        for folder in &tables {
            for (path, text) in files_of(&folder.join("_delta_log")) {
                let Some(number) = path.strip_suffix(".json") else { continue };
                let number = number.trim_end_matches(".alluvium");
                let seed: u64 = number.parse().unwrap();
                assert_eq!(alluvium_log::check_text(seed, &text), Some(true), "{path}");
            }
        }
        let store = home.open_at(&clock).await;
        let deep = store.examine("s").await.unwrap();
        assert!(deep.is_sound() && deep.unchecked_files == 0, "{deep:?}");
        let repair = store.repair("s", true).await.unwrap();
        assert_eq!((repair.steps.len(), repair.unrepaired.len()), (0, 0), "{repair:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_named_and_never_sealed_as_if_it_were_whole() {
    let (home, clock, state) = filled().await;
    let log = home.table("s", "log");
    let newest = state.log().state();
    drop(state);
    let before = files_of(home.folder.path());
    let data = holding(&files_of(&log), &[KEY]);
    let data = data.iter().find(|path| newest.file(path).is_some()).unwrap();
    let checkpoint = holding(&files_of(&log.join("_delta_log")), &[KEY]);
    let checkpoint = checkpoint.iter().find(|path| path.ends_with(".parquet")).unwrap();
    let commit = home.commit_file("s", 3);
    let text = String::from_utf8(std::fs::read(&commit).unwrap()).unwrap();
    for (path, at) in [
        (log.join(data), 100),
        (log.join("_delta_log").join(checkpoint), 200),
        (commit, text.find("numRecords").unwrap()),
    ] {
        flip(&path, at);
        let damaged = std::fs::read(&path).unwrap();
        let state = home.open_at(&clock).await.raw_state("s").await.unwrap();
        let error = state.erase(&erased(), false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(error.to_string().contains(name), "{name}: {error}");
        assert_eq!(std::fs::read(&path).unwrap(), damaged, "{name}");
        // Put back as it was, it is no obstacle any more.
        for (path, _) in files_of(home.folder.path()) {
            std::fs::remove_file(home.folder.path().join(path)).unwrap();
        }
        for (path, bytes) in &before {
            let path = home.folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }
    let state = home.open_at(&clock).await.raw_state("s").await.unwrap();
    state.erase(&erased(), true).await.unwrap();
    assert_eq!(found(&home).await, BTreeSet::new());
    assert_sound(&state).await;
}

fn newest_base(home: &Home, state: &RawState) -> PathBuf {
    let snapshot = state.snapshot().state();
    let file = snapshot.files().next().unwrap().add.path.clone();
    home.table("s", "snapshot").join(file)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_brings_nothing_back_and_what_it_set_aside_is_told() {
    let (home, clock, state) = filled().await;
    let before = rest(&state, 16, &erased()).await;
    // A damaged file with the keys, which a repair set aside: nobody can tell what it holds.
    flip(&newest_base(&home, &state), 50);
    let store = home.open_at(&clock).await;
    let repair = store.repair("s", false).await.unwrap();
    assert!(repair.unrepaired.is_empty() && !repair.steps.is_empty(), "{repair:?}");
    let state = home.open_at(&clock).await.raw_state("s").await.unwrap();
    let receipt = state.erase(&erased(), true).await.unwrap();
    let [aside] = receipt.set_aside.as_slice() else { panic!("{receipt:?}") };
    assert!(aside.starts_with("s/damaged/"), "{aside}");
    std::fs::remove_dir_all(home.folder.path().join("s/damaged")).unwrap();
    assert_eq!(found(&home).await, BTreeSet::new());
    // Made anew after the erase, the snapshot has no more than the log.
    flip(&newest_base(&home, &state), 50);
    let store = home.open_at(&clock).await;
    assert!(!store.examine("s").await.unwrap().is_sound());
    store.repair("s", false).await.unwrap();
    assert!(store.examine("s").await.unwrap().is_sound());
    std::fs::remove_dir_all(home.folder.path().join("s/damaged")).unwrap();
    assert_eq!(found(&home).await, BTreeSet::new());
    let state = home.open_at(&clock).await.raw_state("s").await.unwrap();
    assert_eq!(rest(&state, 16, &erased()).await, before);
    assert!(state.get(Point::LATEST, KEY).await.unwrap().found().is_none());
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_another_engine_brought_in_twice_are_erased_twice_and_the_others_stay_one() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = create_in(&home.open_at(&clock).await, OrderBy::EventTime).await;
    super::append_days(&state, &clock, 0..2).await;
    clock.set(START + 9 * DAY);
    state.materialize(false).await.unwrap();
    let before = rest(&state, 6, &erased()).await;
    let late = delta::open(&home.table("s", "log")).await;
    state.compact(false).await.unwrap();
    assert!(delta::optimize_from(late, 1 << 30).await);
    let reopened = async || home.open_at(&clock).await.raw_state("s").await.unwrap();
    assert_eq!(rest(&reopened().await, 6, &erased()).await, before, "the rows lie there twice");
    let receipt = reopened().await.erase(&erased(), true).await.unwrap();
    assert_eq!(receipt.rows_removed, 2 * 18, "{receipt:?}");
    assert_eq!(holding(&files_of(home.folder.path()), &[KEY, VALUE, LONG]), BTreeSet::new());
    state.log().refresh().await.unwrap();
    for handle in [&state, &reopened().await] {
        assert_eq!(rest(handle, 6, &erased()).await, before);
    }
    state.log().table().checkpoint().await.unwrap();
    let fresh = reopened().await;
    assert_eq!(rest(&fresh, 6, &erased()).await, before, "from a checkpoint");
    assert_sound(&fresh).await;
    fresh.compact(false).await.unwrap();
    let rows: u64 = fresh.log().state().files().map(|file| file.stats.rows.unwrap()).sum();
    assert_eq!(rows, 18, "each of the others once");
    assert_eq!(rest(&reopened().await, 6, &erased()).await, before);
}
