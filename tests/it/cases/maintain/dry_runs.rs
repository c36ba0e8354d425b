//! A dry run prints what the run does: the same steps, decisions, reasons and figures, each step on what those before it make. It writes
//! nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use alluvium::{MaintainStep, ManualClock, RawState};

use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::reports::{busy, check_that_all_is_done, listed, opened};
use crate::support::faults::{FaultyStore, open, open_both};
use crate::support::reports::{dry_then_real, plain, told};
use crate::support::stores::{DAY, Home, START, by_time, by_version, n_batch_at, set};

/// Puts and removals that a store was asked for.
fn writes(objects: &FaultyStore) -> (u64, u64) {
    let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::SeqCst);
    (count(&objects.counts.puts), count(&objects.counts.deletes))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_any_steps_tells_what_the_run_does_and_writes_nothing() {
    let (built, clock) = busy().await;
    let singles = MaintainStep::ALL.map(|step| vec![step]);
    let beginnings = (2..=MaintainStep::ALL.len()).map(|end| MaintainStep::ALL[..end].to_vec());
    let endings = (1..MaintainStep::ALL.len()).map(|begin| MaintainStep::ALL[begin..].to_vec());
    for steps in singles.into_iter().chain(beginnings).chain(endings) {
        let about = format!("{steps:?}");
        let objects = built.forked();
        let state = opened(&objects, &clock).await;
        let before = writes(&objects);
        objects.read_only.store(true, Ordering::SeqCst);
        let first = state.maintain(&steps, true).await.unwrap();
        assert_eq!(writes(&objects), before, "{about}");
        let again = state.maintain(&steps, true).await.unwrap();
        assert_eq!(plain(&first), plain(&again), "{about}");
        assert_eq!(writes(&objects), before, "{about}");
        objects.read_only.store(false, Ordering::SeqCst);
        let (report, error) = dry_then_real(&state, &steps, &about).await;
        assert_eq!(error, None, "{about}");
        if steps == MaintainStep::ALL {
            check_that_all_is_done(&report);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_fails_where_the_run_does_with_the_same_report() {
    let (built, clock) = busy().await;
    for table in ["log", "snapshot", "archive"] {
        // A commit that a checkpoint stands for.
        let listed = listed(&built, &format!("s/{table}/_delta_log")).await;
        let is_checkpoint = |path: &&Path| path.as_ref().ends_with(".checkpoint.parquet");
        let checkpoint = listed.iter().rfind(is_checkpoint).unwrap().as_ref();
        let path = Path::from(checkpoint.replace(".checkpoint.parquet", ".json"));
        let objects = built.forked();
        objects.put(&path, "{".into()).await.unwrap();
        let state = opened(&objects, &clock).await;
        dry_then_real(&state, &MaintainStep::ALL, path.as_ref()).await;
    }
    let objects = built.forked();
    let path = Path::from("s/leases/somebody-1.json");
    objects.put(&path, "{".into()).await.unwrap();
    let state = opened(&objects, &clock).await;
    let (_, error) = dry_then_real(&state, &MaintainStep::ALL, path.as_ref()).await;
    assert!(error.unwrap().contains("step cleanup"));
}

/// Days whose rows move to an archive in another place.
async fn days(state: &RawState, clock: &ManualClock, days: std::ops::Range<i64>) {
    for day in days {
        clock.set(START + day * DAY + DAY / 2);
        let own = format!("d{day:03}");
        let rows = [("daily", day, Some(day)), (own.as_str(), day, Some(day))];
        let times = [START + day * DAY, START + day * DAY];
        state.append(&n_batch_at(&rows, &times)).await.unwrap();
        state.materialize(false).await.unwrap();
    }
}

const HOT: [(&str, &str); 4] = [
    ("commit_retention", "8d"),
    ("file_retention", "2d"),
    ("as_of_window", "2d"),
    ("hot_days", "3d"),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_in_another_place_is_neither_made_nor_written_by_a_dry_run() {
    let (hot, cold) = (FaultyStore::new(), FaultyStore::new());
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open_both(&[hot.clone(), cold.clone()], &clock).await, "s").await;
    set(&state, &HOT).await;
    set(&state, &[("archive", "cold://far/away")]).await;
    for begin in [0, 8, 16] {
        days(&state, &clock, begin..begin + 8).await;
        let before = (writes(&hot), writes(&cold));
        let dry = told(state.maintain(&MaintainStep::ALL, true).await).0;
        assert_eq!((writes(&hot), writes(&cold)), before, "{begin}");
        assert!(dry.archive.unwrap().files > 0, "{dry:?}");
        dry_then_real(&state, &MaintainStep::ALL, &format!("from day {begin}")).await;
    }
    // A folder that isn't there yet.
    let (home, cold) = (Home::new(), tempfile::tempdir().unwrap());
    let place = cold.path().join("not/there");
    let state = by_time(&home.open_at(&clock).await, "s").await;
    set(&state, &HOT).await;
    set(&state, &[("archive", place.to_str().unwrap())]).await;
    days(&state, &clock, 0..8).await;
    let before = home.files().await;
    let dry = told(state.maintain(&MaintainStep::ALL, true).await).0;
    assert!(dry.archive.unwrap().files > 0, "{dry:?}");
    assert!(!place.exists() && home.files().await == before);
    dry_then_real(&state, &MaintainStep::ALL, "a folder").await;
    assert!(place.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dry_run_would_write_is_gone_with_it() {
    let (objects, clock) = busy().await;
    let spill = tempfile::tempdir().unwrap();
    let storage = alluvium::Storage::from_object_store(objects.clone(), "faulty://");
    let settings = alluvium::StoreSettings {
        spill_dir: Some(spill.path().to_owned()),
        ..alluvium::StoreSettings::default()
    };
    let store = alluvium::Store::builder("faulty://").storage(storage).settings(settings);
    let store = store.clock(clock.clone()).open().await.unwrap();
    let state = store.raw_state("s").await.unwrap();
    check_that_all_is_done(&state.maintain(&MaintainStep::ALL, true).await.unwrap());
    assert_eq!(spill.path().read_dir().unwrap().count(), 0);
    // The same store, opened anew, has heard nothing of it.
    let state = open(&objects, &clock).await.raw_state("s").await.unwrap();
    dry_then_real(&state, &MaintainStep::ALL, "afterwards").await;
}
