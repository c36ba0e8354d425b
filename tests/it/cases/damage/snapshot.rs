//! A damaged file of the snapshot is found by the job, though there is nothing new to fold, and the snapshot is made anew from the log.

use std::sync::Arc;

use alluvium::{
    ErrorKind, MaintainStep, ManualClock, Point, RawState, SnapshotCheck, StepOutcome, Store,
};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};

use super::harm::{HARMS, Harm, harmed};
use super::small_files;
use crate::support::faults::{FaultyStore, maintain_to_death};
use crate::support::stores::{
    DAY, Live, START, assert_sound, by_version, commit_of, live, n_batch, n_of, set, tended,
};

async fn open(objects: &Arc<FaultyStore>, clock: &Arc<ManualClock>) -> Store {
    let storage = alluvium::Storage::from_object_store(objects.clone(), "faulty://");
    let builder = Store::builder("faulty://").storage(storage).clock(clock.clone());
    builder.settings(small_files()).open().await.unwrap()
}

/// State `s` with a base, runs beside it and nothing that is not folded.
async fn built(clock: &Arc<ManualClock>) -> (Arc<FaultyStore>, RawState) {
    let objects = FaultyStore::new();
    let state = by_version(&open(&objects, clock).await, "s").await;
    let keys: Vec<String> = (0..500).map(|key| format!("k{key:04}")).collect();
    let rows: Vec<_> = keys.iter().map(|key| (key.as_str(), 1, Some(1))).collect();
    state.append(&n_batch(&rows)).await.unwrap();
    state.materialize(false).await.unwrap();
    for n in 2..=3 {
        state.append(&n_batch(&[("k0001", n, Some(n)), ("new", n, Some(n))])).await.unwrap();
        state.materialize(false).await.unwrap();
    }
    assert!(!state.snapshot().state().runs().is_empty(), "no runs beside the base");
    (objects, state)
}

fn files(state: &RawState) -> Vec<Path> {
    let snapshot = state.snapshot().state();
    let paths = snapshot.files().map(|file| format!("s/snapshot/{}", file.add.path));
    paths.map(Path::from).collect()
}

async fn harm(objects: &Arc<FaultyStore>, file: &Path, harm: Harm) {
    let bytes = objects.get(file).await.unwrap().bytes().await.unwrap();
    match harmed(bytes.to_vec(), harm) {
        Some(bytes) => objects.put(file, PutPayload::from(bytes)).await.map(drop).unwrap(),
        None => objects.delete(file).await.unwrap(),
    }
}

async fn checked(state: &RawState, dry_run: bool) -> SnapshotCheck {
    let report = state.maintain(&[MaintainStep::Check], dry_run).await.unwrap();
    let StepOutcome::Checked(done) = &report.steps[0].outcome else { panic!("{report:?}") };
    done.clone()
}

async fn all(state: &RawState) -> Vec<Live> {
    live(state, Point::LATEST).await
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_harms_a_file_of_the_snapshot_is_found_and_made_good() {
    let clock = Arc::new(ManualClock::at(START));
    let (objects, state) = built(&clock).await;
    let expected = all(&state).await;
    for (file, kind) in files(&state).iter().flat_map(|file| HARMS.map(|kind| (file, kind))) {
        clock.set(START);
        let objects = objects.forked();
        harm(&objects, file, kind).await;
        let state = open(&objects, &clock).await.raw_state("s").await.unwrap();
        let is_seen = !matches!(kind, Harm::Flip(_) | Harm::FlipEnd(_) | Harm::Zero);
        let early = checked(&state, true).await;
        assert_eq!((early.bytes_read, early.made_anew), (0, is_seen), "{file} {kind:?}: {early:?}");
        clock.set(START + 7 * DAY);
        let version = state.snapshot().state().version();
        let dry = checked(&state, true).await;
        assert_eq!(state.snapshot().state().version(), version, "{file} {kind:?}");
        let done = checked(&state, false).await;
        assert_eq!(done, dry, "{file} {kind:?}");
        assert!(done.made_anew && done.damaged.len() == 1, "{file} {kind:?}: {done:?}");
        assert_eq!(done.damaged[0].file, file.as_ref());
        assert_eq!(all(&state).await, expected, "{file} {kind:?}");
        let again = checked(&state, false).await;
        assert!(!again.made_anew && again.bytes_read == 0, "{file} {kind:?}: {again:?}");
        assert_sound(&state).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_snapshot_is_read_once_in_each_span() {
    let clock = Arc::new(ManualClock::at(START));
    let (objects, state) = built(&clock).await;
    set(&state, &[("check_every", "3d")]).await;
    let bytes: u64 = state.snapshot().state().files().map(|file| file.add.size).sum();
    let mut read = Vec::new();
    for day in 1..=12 {
        clock.set(START + day * DAY);
        let state = open(&objects, &clock).await.raw_state("s").await.unwrap();
        for _ in 0..2 {
            let before = state.snapshot().refresh().await.unwrap().version();
            objects.counts.take_data();
            let done = checked(&state, false).await;
            assert!(done.damaged.is_empty() && done.files == 2, "{done:?}");
            let of_data = objects.counts.take_data();
            assert_eq!(done.bytes_read > 0, of_data.bytes_read >= bytes, "{done:?}");
            assert_eq!(of_data.bytes_written, 0);
            let commits = state.snapshot().state().version() - before;
            assert_eq!(commits, i64::from(done.bytes_read > 0), "{done:?}");
            read.extend((done.bytes_read > 0).then_some(day));
        }
    }
    assert_eq!(read, [3, 6, 9, 12]);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_call_a_damaged_snapshot_is_made_good_by_the_next_run() {
    let clock = Arc::new(ManualClock::at(START));
    let (objects, state) = built(&clock).await;
    let expected = all(&state).await;
    harm(&objects, &files(&state)[0], Harm::Flip(512)).await;
    clock.set(START + 7 * DAY);
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let (died, state) = maintain_to_death(&objects, &clock, call, takes_place).await;
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
        assert_eq!(all(&state).await, expected, "call {call}");
        assert!(state.verify().await.unwrap().is_sound(), "call {call}");
        if !died {
            break;
        }
    }
}

/// What the log doesn't have any more can't be made anew: nothing is changed, and the file is named.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_snapshot_of_expired_rows_is_an_error_until_its_file_is_back() {
    let clock = Arc::new(ManualClock::at(START));
    let objects = FaultyStore::new();
    let state = by_version(&open(&objects, &clock).await, "s").await;
    let spans = [("commit_retention", "8d"), ("file_retention", "2d"), ("as_of_window", "2d")];
    set(&state, &spans).await;
    set(&state, &[("log_retention", "10d")]).await;
    tended(&state, &clock, 0..40).await;
    let expected = all(&state).await;
    let damaged = files(&state);
    let mut kept = Vec::new();
    for file in &damaged {
        kept.push(objects.get(file).await.unwrap().bytes().await.unwrap());
    }
    clock.set(START + 80 * DAY);
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
    for file in &damaged {
        harm(&objects, file, Harm::Flip(300)).await;
    }
    clock.set(START + 90 * DAY);
    let (version, commit) = (state.snapshot().state().version(), commit_of(&state).await);
    let state = open(&objects, &clock).await.raw_state("s").await.unwrap();
    let error = state.maintain(&MaintainStep::ALL, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let names = |file: &Path| file.filename().is_some_and(|name| error.to_string().contains(name));
    assert!(damaged.iter().any(names), "{error}");
    assert_eq!((state.snapshot().state().version(), commit_of(&state).await), (version, commit));
    for (file, bytes) in damaged.iter().zip(kept) {
        objects.put(file, bytes.into()).await.unwrap();
    }
    let state = open(&objects, &clock).await.raw_state("s").await.unwrap();
    assert!(checked(&state, false).await.bytes_read > 0);
    assert_eq!(all(&state).await, expected);
    assert_eq!(n_of(&state, Point::LATEST, "d0000").await, Some(0));
}
