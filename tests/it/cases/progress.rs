//! REC-08, REC-11: what has been applied is not forgotten, and what a killed fold had done is done by the next one, or was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alluvium::{
    EpochOutcome, LayoutSettings, ManualClock, Point, RawState, Receipt, SnapshotChange, Storage,
    Store, StoreSettings,
};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::processes::{run_and_kill, seed};
use super::program::{change, lines, succeed};
use crate::support::delta;
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{
    DAY, Home, START, assert_sound, by_version, commit_of, live, n_batch, n_batch_at, row_count,
    settings,
};

async fn send(state: &RawState, app: &str, number: i64) -> EpochOutcome {
    let mut epoch = state.epoch(app, number).unwrap();
    epoch.stage(&n_batch_at(&[("k", number, Some(number))], &[START])).await.unwrap();
    epoch.commit().await.unwrap()
}

fn committed(outcome: EpochOutcome) -> Receipt {
    match outcome {
        EpochOutcome::Committed(receipt) => receipt,
        other => panic!("{other:?}"),
    }
}

/// Commits of the state's tables that set a table property, as another engine's `ALTER TABLE` makes them.
fn set_property(home: &Home, table: &str, name: &str, value: &str) {
    let folder = home.table("s", table).join("_delta_log");
    let first = std::fs::read_to_string(folder.join(format!("{:020}.json", 0))).unwrap();
    let mut metadata = first
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .find(|action| action.get("metaData").is_some())
        .unwrap();
    metadata["metaData"]["configuration"][name] = json!(value);
    let next = (0..).find(|n| !folder.join(format!("{n:020}.json")).exists()).unwrap();
    std::fs::write(folder.join(format!("{next:020}.json")), format!("{metadata}\n")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn rec_08_an_epoch_is_remembered_for_ever_and_a_repeated_row_changes_nothing() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&home.open_at(&clock).await, "s").await;
    committed(send(&state, "p1", 5).await);
    state.materialize(false).await.unwrap();
    for table in ["log", "snapshot"] {
        set_property(&home, table, "delta.setTransactionRetentionDuration", "interval 1 seconds");
    }
    // Whoever makes the checkpoints, and whatever is cleaned up: years later it is applied already.
    std::thread::sleep(Duration::from_millis(1_100));
    for table in ["log", "snapshot"] {
        let table = delta::open(&home.table("s", table)).await;
        deltalake_core::checkpoints::create_checkpoint(&table, None).await.unwrap();
    }
    for year in [1, 2] {
        clock.set(START + year * 366 * DAY);
        let state = home.open_at(&clock).await.raw_state("s").await.unwrap();
        state.append(&n_batch(&[("other", year, Some(year))])).await.unwrap();
        state.maintain(&alluvium::MaintainStep::ALL, false).await.unwrap();
        state.log().table().checkpoint().await.unwrap();
        let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
        for handle in [&state, &fresh] {
            let before = commit_of(handle).await;
            assert_eq!(send(handle, "p1", 5).await, EpochOutcome::AlreadyApplied { last: 5 });
            assert_eq!(commit_of(handle).await, before);
            assert_eq!(handle.materialize(false).await.unwrap().change, SnapshotChange::UpToDate);
        }
    }
    // A program that has forgotten its name sends the rows once more: they lie in the log twice, and change nothing.
    let state = home.open_at(&clock).await.raw_state("s").await.unwrap();
    let (before, rows) = (live(&state, Point::LATEST).await, row_count(&state).await);
    committed(send(&state, "p1-again", 5).await);
    assert_eq!(row_count(&state).await, rows + 1);
    let report = state.materialize(false).await.unwrap();
    assert_eq!((report.change, report.stale_keys), (SnapshotChange::ProgressOnly, Some(1)));
    assert_eq!(live(&state, Point::LATEST).await, before);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rec_08_ten_thousand_applications_cost_an_opening_no_more_requests() {
    let counting = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open(&counting, &clock).await, "s").await;
    committed(send(&state, "p", 1).await);
    state.log().table().checkpoint().await.unwrap();
    let reopen = async || {
        let counted = counting.reborn();
        let state = open(&counted, &clock).await.raw_state("s").await.unwrap();
        (counted.counts.take(), state)
    };
    let (few, _) = reopen().await;
    let applications: String = (0..10_000)
        .map(|n| format!("{}\n", json!({"txn": {"appId": format!("app-{n}"), "version": n}})))
        .collect();
    let path = Path::from(format!("s/log/_delta_log/{:020}.json", 2));
    counting.put(&path, PutPayload::from(applications)).await.unwrap();
    state.log().refresh().await.unwrap();
    state.log().table().checkpoint().await.unwrap();
    let (many, reopened) = reopen().await;
    assert_eq!(many, few, "requests of an opening");
    let before = commit_of(&reopened).await;
    for n in [1, 4_711, 9_999] {
        let outcome = send(&reopened, &format!("app-{n}"), n).await;
        assert_eq!(outcome, EpochOutcome::AlreadyApplied { last: n });
    }
    assert_eq!(commit_of(&reopened).await, before);
}

/// A fold that takes its rows by a few dozen, spills, and writes many files.
fn tiny() -> StoreSettings {
    let layout = LayoutSettings { small_state_rows: 0, file_rows: 100, ..Default::default() };
    StoreSettings { memory_budget_bytes: 1, batch_rows: 32, layout, ..settings() }
}

async fn open_tiny(objects: &Arc<FaultyStore>) -> RawState {
    let storage = Storage::from_object_store(objects.clone(), "faulty://");
    let store = Store::builder("faulty://").settings(tiny()).storage(storage).open().await.unwrap();
    store.raw_state("s").await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn rec_11_a_fold_killed_at_any_call_has_folded_whole_commits_and_the_next_one_goes_on() {
    let built = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_version(&open(&built, &clock).await, "s").await;
    let mut expected = BTreeMap::new();
    // The last of them, of a thousand rows, is many batches by itself.
    let commits: [(i64, i64); 6] = [(0, 50), (30, 70), (60, 10), (0, 5), (90, 40), (0, 1_000)];
    let mut states = Vec::new();
    for (n, (first, rows)) in commits.into_iter().enumerate() {
        let version = n as i64 + 1;
        let keys: Vec<String> = (first..first + rows).map(|key| format!("k{key:04}")).collect();
        let rows: Vec<_> = keys.iter().map(|key| (key.as_str(), version, Some(version))).collect();
        state.append(&n_batch(&rows)).await.unwrap();
        expected.extend(keys.into_iter().map(|key| (key, version)));
        states.push(expected.clone());
        if version == 1 {
            open_tiny(&built.reborn()).await.materialize(false).await.unwrap();
        }
    }
    let newest = commits.len() as i64;
    let (mut before, mut after) = (0, 0);
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let dying = built.forked();
        let state = open_tiny(&dying).await;
        dying.die_at(call, takes_place);
        let outcome = state.materialize(false).await;
        let died = dying.is_dead();
        assert!(outcome.is_err() || !died, "call {call}: {outcome:?}");
        let alive = dying.reborn();
        let state = open_tiny(&alive).await;
        let folded = state.snapshot().refresh().await.unwrap().log_commit();
        assert!(folded == 1 || folded == newest, "call {call}: {folded} is half a fold");
        before += usize::from(folded == 1);
        after += usize::from(folded == newest);
        for (commit, wanted) in (1..).zip(&states) {
            let found: BTreeMap<_, _> = live(&state, Point::at_commit(commit))
                .await
                .into_iter()
                .map(|(key, _, n)| (key, n.unwrap()))
                .collect();
            assert_eq!(found, *wanted, "call {call}, as of commit {commit}");
        }
        let report = state.materialize(false).await.unwrap();
        assert_eq!(report.to_commit, newest, "call {call}");
        let verified = state.verify().await.unwrap();
        assert!(verified.is_sound() && verified.keys == 1_000, "call {call}: {verified:?}");
        if !died {
            break;
        }
    }
    assert!(before > 20 && after > 0, "{before} before, {after} after");
}

#[test]
#[allow(clippy::print_stderr)]
fn rec_11_processes_killed_while_they_fold_go_on_where_the_last_whole_commit_was() {
    let home = Home::new();
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    succeed(&home, &["create", "s", "--schema", "n BIGINT", "--order-by", "version"], "");
    let mut expected = BTreeMap::new();
    let (mut killed, mut round) = (0, 0);
    while killed < 20 {
        round += 1;
        assert!(round < 1_000, "seed {seed}: {killed} folds of {round} were killed");
        // Five batches, or one of a thousand rows.
        let is_large = round % 4 == 3;
        let keys: Vec<i64> = match is_large {
            true => (0..1_000).collect(),
            false => (0..100).map(|n| (round * 37 + n * 7) % 1_000).collect(),
        };
        let version = round;
        let input: String =
            keys.iter().map(|key| change(&format!("k{key:03}"), version, version)).collect();
        let rows = if is_large { "1000" } else { "20" };
        succeed(&home, &["append", "s", "--batch-rows", rows], &input);
        expected.extend(keys.iter().map(|key| (format!("k{key:03}"), version)));
        let after = rng.random_range(0..80);
        let fold = ["materialize", "s", "--memory", "1"];
        killed += usize::from(!run_and_kill(&home, &fold, "", after));
        let found: BTreeMap<String, i64> = lines(&succeed(&home, &["scan", "s"], ""))
            .iter()
            .map(|row| {
                (row["key"].as_str().unwrap().to_owned(), row["value"]["n"].as_i64().unwrap())
            })
            .collect();
        assert_eq!(found, expected, "seed {seed}, round {round}");
        succeed(&home, &["verify", "s"], "");
    }
    succeed(&home, &["materialize", "s"], "");
    succeed(&home, &["verify", "s"], "");
    eprintln!("seed {seed}: {killed} of {round} were killed");
}
