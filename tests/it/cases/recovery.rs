//! REC-*: left-overs, gaps, lost files and lost replies.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use alluvium::{EpochOutcome, ErrorKind, Point, RawState, Result, Storage, Store};
use alluvium_log::KeyFilter;
use futures::TryStreamExt;

use crate::support::faults::FaultyStore;
use crate::support::stores::{
    Home, START, assert_sound, by_version, commit_of, live, n_batch, n_batch_at, n_of,
};

async fn with_commits(home: &Home, count: i64) -> RawState {
    let state = by_version(&home.open().await, "s").await;
    for n in 1..=count {
        state.append(&n_batch(&[(&format!("k{n}"), n, Some(n))])).await.unwrap();
    }
    state
}

#[tokio::test(flavor = "multi_thread")]
async fn rec_02_left_over_files_in_the_log_folder_neither_make_nor_break_a_state() {
    let home = Home::new();
    let log = home.table("s", "log").join("_delta_log");
    std::fs::create_dir_all(&log).unwrap();
    std::fs::write(log.join("_commit_x.json.tmp"), "{").unwrap();
    let store = home.open().await;
    assert!(store.state_names().await.unwrap().is_empty());
    assert_eq!(store.raw_state("s").await.unwrap_err().kind(), ErrorKind::NotFound);
    let state = with_commits(&home, 3).await;
    for name in [
        ".00000000000000000003.json.crc",
        "00000000000000000001.json~",
        "00000000000000000009.json.tmp",
        "_commit_y.json.tmp",
        "00000000000000000004.json#17",
        "junk",
        "000000000000000000004.json",
    ] {
        std::fs::write(log.join(name), "{").unwrap();
    }
    std::fs::create_dir(log.join("00000000000000000007.json")).unwrap();
    let reopened = home.open().await.raw_state("s").await.unwrap();
    for handle in [&state, &reopened] {
        assert_eq!(live(handle, Point::LATEST).await.len(), 3);
    }
    for n in 4..=6 {
        reopened.append(&n_batch(&[(&format!("k{n}"), n, Some(n))])).await.unwrap();
    }
    assert_eq!(live(&state, Point::LATEST).await.len(), 6);
    // The folder has the name that the next commit needs: that is told, and goes away with it.
    let next = n_batch(&[("k7", 7, Some(7))]);
    let error = reopened.append(&next).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("00000000000000000007.json"), "{error}");
    std::fs::remove_dir(log.join("00000000000000000007.json")).unwrap();
    reopened.append(&next).await.unwrap();
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rec_04_a_hint_of_a_checkpoint_that_is_gone_or_garbage_does_not_matter() {
    for variant in ["deleted", "older one left", "garbage hint", "torn checkpoint"] {
        let home = Home::new();
        let state = with_commits(&home, 10).await;
        let log = home.table("s", "log").join("_delta_log");
        if variant == "older one left" {
            state.log().table().checkpoint().await.unwrap();
        }
        for n in 11..=20 {
            state.append(&n_batch(&[(&format!("k{n}"), n, Some(n))])).await.unwrap();
        }
        state.log().table().checkpoint().await.unwrap();
        for n in 21..=25 {
            state.append(&n_batch(&[(&format!("k{n}"), n, Some(n))])).await.unwrap();
        }
        let checkpoint = log.join("00000000000000000020.checkpoint.parquet");
        assert!(checkpoint.is_file());
        match variant {
            "garbage hint" => std::fs::write(log.join("_last_checkpoint"), "no json").unwrap(),
            "torn checkpoint" => std::fs::write(&checkpoint, "PAR1").unwrap(),
            _ => std::fs::remove_file(&checkpoint).unwrap(),
        }
        let reopened = home
            .open()
            .await
            .raw_state("s")
            .await
            .unwrap_or_else(|error| panic!("{variant}: {error}"));
        assert_eq!(live(&reopened, Point::LATEST).await.len(), 25, "{variant}");
        assert_eq!(live(&reopened, Point::at_commit(7)).await.len(), 7, "{variant}");
        reopened.append(&n_batch(&[("more", 1, Some(1))])).await.unwrap();
        assert_sound(&reopened).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rec_05_a_missing_commit_is_named_and_nothing_goes_on_past_it() {
    let home = Home::new();
    let state = with_commits(&home, 4).await;
    state.materialize(false).await.unwrap();
    let behind = home.open().await.raw_state("s").await.unwrap();
    for n in 5..=9 {
        state.append(&n_batch(&[(&format!("k{n}"), n, Some(n))])).await.unwrap();
    }
    let gap = home.commit_file("s", 5);
    let content = std::fs::read(&gap).unwrap();
    std::fs::remove_file(&gap).unwrap();
    let error = home.open().await.raw_state("s").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("commit 5 (00000000000000000005.json)"), "{error}");
    // A handle from before the hole neither steps over it nor fills it, and says the same.
    let torn = |error: alluvium::Error| {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("00000000000000000005.json"), "{error}");
    };
    torn(behind.append(&n_batch(&[("filled", 1, Some(1))])).await.unwrap_err());
    torn(send(&behind, "p", 1).await.unwrap_err());
    torn(behind.get(Point::LATEST, "k1").await.unwrap_err());
    torn(behind.materialize(false).await.unwrap_err());
    assert!(!gap.exists(), "the hole was filled");
    // What was known before the hole can be read, and nothing can be written there.
    let before = home.open().await.raw_state_up_to("s", 4).await.unwrap();
    assert_eq!(live(&before, Point::LATEST).await.len(), 4);
    assert_eq!(live(&before, Point::at_commit(3)).await.len(), 3);
    let error = before.get(Point::at_commit(6), "k1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
    assert!(before.append(&n_batch(&[("k", 1, Some(1))])).await.is_err());
    assert!(before.materialize(true).await.is_err());
    torn(home.open().await.raw_state_up_to("s", 7).await.unwrap_err());
    assert!(!gap.exists());
    std::fs::write(&gap, content).unwrap();
    let reopened = home.open().await.raw_state("s").await.unwrap();
    assert_eq!(live(&reopened, Point::LATEST).await.len(), 9);
    assert_sound(&reopened).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rec_05_a_hole_of_any_width_is_named_and_never_filled() {
    let home = Home::new();
    let state = with_commits(&home, 80).await;
    state.log().table().checkpoint().await.unwrap();
    let newest = 160;
    for n in 81..=newest {
        state.append(&n_batch(&[(&format!("k{n}"), n, Some(n))])).await.unwrap();
    }
    let log = home.table("s", "log").join("_delta_log");
    let folder = std::fs::File::open(&log).unwrap();
    // Where it is opened without a listing, this is what it is opened to.
    let whole = home.open().await.raw_state("s").await.unwrap();
    assert_eq!(live(&whole, Point::LATEST).await.len(), usize::try_from(newest).unwrap());
    // The widest are beyond what an opening looks at.
    for (first, width) in [(81, 1), (81, 79), (95, 64), (90, 65), (100, 3), (159, 1)] {
        let gap: Vec<_> = (first..first + width).map(|n| home.commit_file("s", n)).collect();
        let kept: Vec<_> = gap.iter().map(|path| std::fs::read(path).unwrap()).collect();
        gap.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        let name = format!("{first:020}.json");
        let torn = |error: alluvium::Error| {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{first} {width}: {error}");
            assert!(error.to_string().contains(&name), "{first} {width}: {error}");
        };
        torn(home.open().await.raw_state("s").await.unwrap_err());
        // A copy has the time of its folder from before.
        folder.set_modified(std::time::UNIX_EPOCH).unwrap();
        match home.open().await.raw_state("s").await {
            Err(error) => torn(error),
            Ok(_) if width < 65 => panic!("{first} {width}: opened in spite of a hole"),
            Ok(state) => {
                torn(state.append(&n_batch(&[("filled", 1, Some(1))])).await.unwrap_err());
                torn(send(&state, "p", 1).await.unwrap_err());
                torn(state.append(&n_batch(&[("filled", 1, Some(1))])).await.unwrap_err());
            }
        }
        for (path, content) in gap.iter().zip(kept) {
            assert!(!path.exists(), "{first} {width}: the hole was filled");
            std::fs::write(path, content).unwrap();
        }
    }
    // The folder tells that something came to it, and then its listing agrees with what was read.
    let reopened = home.open().await.raw_state("s").await.unwrap();
    assert_eq!(live(&reopened, Point::LATEST).await.len(), usize::try_from(newest).unwrap());
    assert_sound(&reopened).await;
}

/// The data files below a table, in order.
fn data_files(home: &Home, table: &str) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for folder in std::fs::read_dir(home.table("s", table)).unwrap() {
        let folder = folder.unwrap().path();
        if !folder.ends_with("_delta_log") {
            files.extend(std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()));
        }
    }
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn rec_06_a_lost_data_file_is_named_with_its_partition_and_commit_and_other_keys_still_answer()
 {
    let home = Home::new();
    let state = with_commits(&home, 2).await;
    let lost = data_files(&home, "log").remove(0);
    let bytes = std::fs::read(&lost).unwrap();
    std::fs::remove_file(&lost).unwrap();
    let state = {
        drop(state);
        home.open().await.raw_state("s").await.unwrap()
    };
    let name = lost.file_name().unwrap().to_str().unwrap();
    let reader = state.reader();
    let basis = reader.basis().await.unwrap();
    // Past points are read from the files that may hold the key alone.
    let at = Point::at_version(5);
    let (mut found, mut failed) = (0, 0);
    for key in ["k1", "k2"] {
        match reader.get(&basis, at, key).await {
            Ok(row) => found += usize::from(row.found().is_some()),
            Err(error) => {
                failed += 1;
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                for part in [name, "dt", "2024-01-15", "commits"] {
                    assert!(error.to_string().contains(part), "no {part}: {error}");
                }
            }
        }
    }
    assert_eq!((found, failed), (1, 1));
    assert_eq!(state.materialize(false).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(state.stats().await.unwrap().snapshot_commit, 0);
    std::fs::write(&lost, bytes).unwrap();
    state.materialize(false).await.unwrap();
    // A lost file of the snapshot: named, and a rebuild from the log brings it back.
    let lost = data_files(&home, "snapshot").remove(0);
    std::fs::remove_file(&lost).unwrap();
    let fresh = home.open().await.raw_state("s").await.unwrap();
    let error = fresh.get(Point::LATEST, "k1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains(lost.file_name().unwrap().to_str().unwrap()), "{error}");
    fresh.materialize(true).await.unwrap();
    assert_eq!(live(&fresh, Point::LATEST).await.len(), 2);
    assert_sound(&fresh).await;
}

async fn send(state: &RawState, app: &str, number: i64) -> Result<EpochOutcome> {
    let mut epoch = state.epoch(app, number)?;
    epoch
        .stage(&n_batch_at(&[(&format!("{app}/{number}"), number, Some(number))], &[START]))
        .await?;
    epoch.commit().await
}

#[tokio::test(flavor = "multi_thread")]
async fn rec_07_an_epoch_sent_again_or_sent_late_writes_nothing() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    let already = |last| EpochOutcome::AlreadyApplied { last };
    assert!(matches!(send(&state, "p1", 5).await.unwrap(), EpochOutcome::Committed(_)));
    assert_eq!(send(&state, "p1", 5).await.unwrap(), already(5));
    assert_eq!(send(&state, "p1", 3).await.unwrap(), already(5));
    assert!(matches!(send(&state, "p1", 6).await.unwrap(), EpochOutcome::Committed(_)));
    assert!(matches!(send(&state, "p2", 1).await.unwrap(), EpochOutcome::Committed(_)));
    let before = home.open().await.raw_state("s").await.unwrap();
    let (one, two) = (home.open().await, home.open().await);
    let (one, two) = (one.raw_state("s").await.unwrap(), two.raw_state("s").await.unwrap());
    let (a, b) = futures::join!(send(&one, "p1", 7), send(&two, "p1", 7));
    let outcomes = [a.unwrap(), b.unwrap()];
    assert_eq!(
        outcomes.iter().filter(|outcome| **outcome == already(7)).count(),
        1,
        "{outcomes:?}"
    );
    // A handle that has not looked since is told what the log holds now.
    assert_eq!(send(&before, "p1", 2).await.unwrap(), already(7));
    before.log().table().checkpoint().await.unwrap();
    let reopened = home.open().await.raw_state("s").await.unwrap();
    for (app, number, last) in [("p1", 7, 7), ("p1", 6, 7), ("p2", 1, 1)] {
        assert_eq!(send(&reopened, app, number).await.unwrap(), already(last));
    }
    assert_eq!(live(&reopened, Point::LATEST).await.len(), 4);
    assert_eq!(commit_of(&reopened).await, 4);
    assert_eq!(send(&state, "p1", 8).await.unwrap_err().kind(), ErrorKind::Fenced);
    let wrong = [("", 1), ("alluvium/materializer", 1), ("p1", -1)];
    for (app, number) in wrong {
        assert_eq!(send(&reopened, app, number).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(commit_of(&reopened).await, 4);
}

async fn faulty() -> (Arc<FaultyStore>, Store) {
    let faults = FaultyStore::new();
    let store = open_faulty(&faults).await;
    (faults, store)
}

async fn open_faulty(faults: &Arc<FaultyStore>) -> Store {
    let storage = Storage::from_object_store(faults.clone(), "faulty://");
    Store::builder("faulty://").storage(storage).open().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn rec_10_a_commit_whose_reply_is_lost_counts_once_and_its_files_stay() {
    let (faults, store) = faulty().await;
    faults.lost_commit_replies.store(1, Ordering::SeqCst);
    let state = by_version(&store, "s").await;
    for lost in [1, 2, 4] {
        faults.lost_commit_replies.store(lost, Ordering::SeqCst);
        let receipt =
            state.append(&n_batch(&[(&format!("k{lost}"), 1, Some(lost))])).await.unwrap();
        assert_eq!(
            n_of(&state, Point::at_commit(receipt.commit), &format!("k{lost}")).await,
            Some(lost)
        );
        // Nothing is left to be lost by the next write.
        faults.lost_commit_replies.store(0, Ordering::SeqCst);
    }
    assert_eq!(commit_of(&state).await, 3);
    faults.lost_commit_replies.store(1, Ordering::SeqCst);
    assert!(matches!(send(&state, "p", 1).await.unwrap(), EpochOutcome::Committed(_)));
    assert_eq!(send(&state, "p", 1).await.unwrap(), EpochOutcome::AlreadyApplied { last: 1 });
    faults.lost_commit_replies.store(2, Ordering::SeqCst);
    state.materialize(false).await.unwrap();
    faults.lost_commit_replies.store(0, Ordering::SeqCst);
    let reopened = open_faulty(&faults).await.raw_state("s").await.unwrap();
    assert_eq!(live(&reopened, Point::LATEST).await.len(), 4);
    assert_sound(&reopened).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rec_10_a_commit_that_never_gets_through_is_an_unknown_outcome_that_a_retry_resolves() {
    let (faults, store) = faulty().await;
    let state = by_version(&store, "s").await;
    faults.failed_commits.store(100, Ordering::SeqCst);
    let error = send(&state, "p", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(error.kind().is_retryable());
    faults.failed_commits.store(0, Ordering::SeqCst);
    assert_eq!(live(&state, Point::LATEST).await, []);
    assert!(matches!(send(&state, "p", 1).await.unwrap(), EpochOutcome::Committed(_)));
    // Every reply is lost, also those of the repeated writes: the log tells that it is ours.
    faults.lost_commit_replies.store(100, Ordering::SeqCst);
    assert!(matches!(send(&state, "p", 2).await.unwrap(), EpochOutcome::Committed(_)));
    faults.lost_commit_replies.store(0, Ordering::SeqCst);
    faults.lost_data_replies.store(1, Ordering::SeqCst);
    let before = commit_of(&state).await;
    if let Err(error) = send(&state, "p", 3).await {
        assert!(error.kind().is_retryable(), "{error}");
        assert_eq!(commit_of(&state).await, before);
        assert!(matches!(send(&state, "p", 3).await.unwrap(), EpochOutcome::Committed(_)));
    }
    let basis = state.reader().basis().await.unwrap();
    let rows: Vec<_> = state
        .reader()
        .history_rows(&basis, KeyFilter::All, Point::LATEST)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), 3);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_writes_nothing_and_a_failed_materialization_changes_nothing() {
    let (faults, store) = faulty().await;
    let state = by_version(&store, "s").await;
    state.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap();
    faults.read_only.store(true, Ordering::SeqCst);
    let reader = open_faulty(&faults).await.raw_state("s").await.unwrap();
    assert_eq!(n_of(&reader, Point::LATEST, "a").await, Some(1));
    assert!(reader.materialize(false).await.unwrap_err().kind().is_retryable());
    assert_eq!(n_of(&reader, Point::LATEST, "a").await, Some(1));
    faults.read_only.store(false, Ordering::SeqCst);
    reader.materialize(false).await.unwrap();
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_materialization_killed_at_any_call_leaves_the_snapshot_as_before_or_as_after() {
    let (built, store) = faulty().await;
    let state = by_version(&store, "s").await;
    state.append(&n_batch(&[("a", 1, Some(1)), ("b", 1, Some(1))])).await.unwrap();
    state.materialize(false).await.unwrap();
    state.append(&n_batch(&[("a", 2, Some(2)), ("c", 2, Some(2))])).await.unwrap();
    let mut found = [0, 0];
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let faults = built.forked();
        let state = open_faulty(&faults).await.raw_state("s").await.unwrap();
        faults.die_at(call, takes_place);
        let outcome = state.materialize(false).await;
        let died = faults.is_dead();
        assert!(outcome.is_err() || !died, "call {call}: {outcome:?}");
        let state = open_faulty(&faults.reborn()).await.raw_state("s").await.unwrap();
        // What the snapshot holds is the fold of what it says that it folds, and nothing beyond.
        let report = state.verify().await.unwrap();
        assert!(report.is_sound(), "call {call}: {report:?}");
        let folded = state.snapshot().refresh().await.unwrap().log_commit();
        assert!([1, 2].contains(&folded), "call {call}: {folded}");
        found[folded as usize - 1] += 1;
        assert_eq!(n_of(&state, Point::at_commit(1), "a").await, Some(1), "call {call}");
        assert_eq!(n_of(&state, Point::LATEST, "a").await, Some(2), "call {call}");
        if !died {
            break;
        }
    }
    assert!(found[0] > 3 && found[1] > 0, "{found:?}");
}
