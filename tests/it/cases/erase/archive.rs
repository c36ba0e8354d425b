//! An erase of a state whose days lie in an archive: in the store, and below a URI of its own.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::sync::Arc;

use alluvium::{
    ArchiveUnreachable, ErrorKind, MaintainStep, ManualClock, Point, RawState, StepOutcome,
};
use alluvium_log::{Archived, KeyFilter};
use futures::TryStreamExt;
use futures::future::join_all;
use object_store::ObjectStore;

use super::{KEY, LONG, VALUE, append_days, create_in, found, long_key, rest};
use crate::support::faults::{FaultyStore, Left, open_both, work_to_death};
use crate::support::search::{files_of, holding, objects_of};
use crate::support::stores::{DAY, Home, SECOND, START, assert_sound, commit_of, row_count};

const SETTINGS: [(&str, &str); 4] = [
    ("commit_retention", "8d"),
    ("file_retention", "2d"),
    ("as_of_window", "2d"),
    ("hot_days", "5d"),
];
/// Every step but those that remove something.
const STEPS: [MaintainStep; 3] =
    [MaintainStep::Materialize, MaintainStep::Compact, MaintainStep::Archive];

async fn let_archive(state: &RawState, place: Option<&str>) {
    let mut changes = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    changes.extend(place.map(|place| ("archive".to_owned(), place.to_owned())));
    state.set_maintenance(&changes).await.unwrap();
}

/// Days with the keys, of which the first ones are in an archive of several versions with a checkpoint, and the last one is in the log.
async fn fill(state: &RawState, clock: &ManualClock) {
    append_days(state, clock, 0..2).await;
    state.materialize(false).await.unwrap();
    clock.set(START + 8 * DAY);
    state.maintain(&STEPS, false).await.unwrap();
    append_days(state, clock, 8..9).await;
    state.materialize(false).await.unwrap();
    state.create_savepoint("one", None).await.unwrap();
    clock.set(START + 16 * DAY);
    state.maintain(&STEPS, false).await.unwrap();
    let table = state.log().open_archive(&state.log().maintenance_settings().unwrap()).await;
    table.unwrap().unwrap().checkpoint().await.unwrap();
    append_days(state, clock, 16..17).await;
    state.materialize(false).await.unwrap();
    assert_eq!(archived(state).unwrap().rows, 3 * 18, "three days");
}

fn archived(state: &RawState) -> Option<Archived> {
    Archived::of(&state.log().state())
}

fn erased() -> [String; 2] {
    [KEY.to_owned(), long_key()]
}

/// The files of both places that hold one of the keys, named as a receipt names them.
async fn found_in(home: &Home, cold: Option<(&Home, &str)>) -> BTreeSet<String> {
    let mut all = found(home).await;
    if let Some((cold, place)) = cold {
        let there = holding(&files_of(cold.folder.path()), &[KEY, VALUE, LONG]);
        all.extend(there.into_iter().map(|path| format!("{place}/{path}")));
    }
    all
}

fn pending(receipt: &alluvium::EraseReceipt) -> BTreeSet<String> {
    receipt.pending.iter().map(|file| file.path.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_archived_is_erased_too_and_all_else_is_as_it_was() {
    for (is_elsewhere, now) in [(false, false), (true, false), (true, true)] {
        let (home, far) = (Home::new(), Home::new());
        let clock = Arc::new(ManualClock::at(START));
        let store = home.open_at(&clock).await;
        let state = create_in(&store, alluvium::OrderBy::Version).await;
        let place = far.uri();
        let_archive(&state, is_elsewhere.then_some(place.as_str())).await;
        fill(&state, &clock).await;
        let cold = is_elsewhere.then_some((&far, place.as_str()));
        let newest = commit_of(&state).await;
        let before = rest(&state, newest, &erased()).await;
        let rows = row_count(&state).await;
        let folder = if is_elsewhere { &far } else { &home }.table("s", "archive");
        let in_archive = holding(&files_of(&folder), &[KEY, VALUE, LONG]);
        assert!(in_archive.iter().any(|path| path.ends_with("checkpoint.parquet")));
        assert!(in_archive.len() > 5, "{in_archive:?}");
        let held = archived(&state).unwrap();
        let old = state.reader().basis().await.unwrap();
        let receipt = state.erase(&erased(), now).await.unwrap();
        assert_eq!(receipt.rows_removed, 4 * 3 * 3, "{receipt:#?}");
        assert_eq!(receipt.unreadable.len() + receipt.set_aside.len(), 0);
        assert_eq!(found_in(&home, cold).await, pending(&receipt), "{receipt:#?}");
        assert!(receipt.files.iter().any(|file| file.path.contains("s/archive/dt=")));
        assert_eq!(archived(&state).unwrap().rows, 3 * 9, "half of the rows stay");
        assert!(archived(&state).unwrap().version > held.version);
        let reopened = home.open_at(&clock).await.raw_state("s").await.unwrap();
        for handle in [&state, &reopened] {
            assert_eq!(rest(handle, newest, &erased()).await, before);
            assert_eq!(row_count(handle).await, rows - 36);
            for point in [Point::LATEST, Point::at_commit(6), Point::at_version(9)] {
                assert!(handle.get(point, KEY).await.unwrap().found().is_none());
            }
        }
        // Who began before reads on, unless the files went at once.
        let rows_of_old = async || {
            let rows = state.reader().changes_rows(&old, 0).await?;
            let rows: Vec<_> = rows.try_collect().await?;
            Ok::<_, alluvium::Error>(rows.iter().map(|rows| rows.num_rows()).sum::<usize>())
        };
        match now {
            false => assert_eq!(rows_of_old().await.unwrap(), rows),
            true => drop(rows_of_old().await.unwrap_err()),
        }
        let deep = home.open_at(&clock).await.examine("s").await.unwrap();
        assert!(deep.is_sound(), "{deep:?}");
        assert_sound(&reopened).await;
        if let Some(until) = receipt.nothing_left_after_ms {
            clock.set(until * 1_000 + SECOND);
        }
        reopened.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
        assert_eq!(found_in(&home, cold).await, BTreeSet::new());
        let (commit, held) = (commit_of(&reopened).await, archived(&reopened));
        let again = reopened.erase(&erased(), false).await.unwrap();
        assert_eq!((again.pending.len(), again.files.len()), (0, 0), "{again:?}");
        assert_eq!((commit_of(&reopened).await, archived(&reopened)), (commit, held));
        clock.set(START + 40 * DAY);
        reopened.maintain(&MaintainStep::ALL, false).await.unwrap();
        assert_eq!(row_count(&reopened).await, rows - 36);
        assert_eq!(rest(&reopened, newest, &erased()).await, before);
        assert_sound(&reopened).await;
    }
}

/// The state of a store whose archives lie in another one.
async fn state_of(stores: &[Arc<FaultyStore>; 2], clock: &Arc<ManualClock>) -> RawState {
    open_both(stores, clock).await.raw_state("s").await.unwrap()
}

async fn create_both(stores: &[Arc<FaultyStore>; 2], clock: &Arc<ManualClock>) -> RawState {
    let store = open_both(stores, clock).await;
    let state = create_in(&store, alluvium::OrderBy::Version).await;
    let_archive(&state, Some("cold://far")).await;
    state
}

async fn held_in(stores: &[Arc<FaultyStore>; 2]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (store, place) in stores.iter().zip(["", "cold://far/"]) {
        let objects: Arc<dyn ObjectStore> = store.clone();
        let there = holding(&objects_of(&objects).await, &[KEY, VALUE, LONG]);
        all.extend(there.into_iter().map(|path| format!("{place}{path}")));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_out_of_reach_is_named_before_anything_is_done() {
    let stores = [FaultyStore::new(), FaultyStore::new()];
    let clock = Arc::new(ManualClock::at(START));
    let state = create_both(&stores, &clock).await;
    fill(&state, &clock).await;
    let reborn = [stores[0].reborn(), stores[1].reborn()];
    let state = state_of(&reborn, &clock).await;
    reborn[1].die_at(0, false);
    let commit = commit_of(&state).await;
    let error = state.erase(&erased(), false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
    let text = error.to_string();
    assert!(text.contains("cold://far/s/archive") && text.contains("nothing was erased"), "{text}");
    let cause = error.source().and_then(|cause| cause.downcast_ref::<ArchiveUnreachable>());
    assert_eq!(cause.unwrap().state, "s");
    assert_eq!(commit_of(&state).await, commit);
    assert!(state.log().erased().unwrap().is_none(), "no key is marked");
    append_days(&state, &clock, 17..18).await;
    let state = state_of(&[stores[0].reborn(), stores[1].reborn()], &clock).await;
    state.erase(&erased(), true).await.unwrap();
    assert_eq!(held_in(&stores).await, BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erase_killed_at_any_call_of_either_store_leaves_each_row_in_one_place() {
    let built = [FaultyStore::new(), FaultyStore::new()];
    let clock = Arc::new(ManualClock::at(START));
    let state = create_both(&built, &clock).await;
    // Two days in the archive, one in the log, each with a row of either key.
    for day in [0, 1] {
        append_days_of(&state, &clock, day, &[]).await;
        state.materialize(false).await.unwrap();
    }
    clock.set(START + 12 * DAY);
    state.maintain(&[MaintainStep::Materialize, MaintainStep::Archive], false).await.unwrap();
    append_days_of(&state, &clock, 16, &[]).await;
    state.materialize(false).await.unwrap();
    assert_eq!(archived(&state).unwrap().files, 2);
    let newest = commit_of(&state).await;
    let before = rest(&state, newest, &erased()).await;
    let others = row_count(&state).await - 6;
    let mut halfway = 0;
    for dying in [0, 1] {
        for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
            clock.set(START + 17 * DAY);
            let job = async |state: &RawState| state.erase(&erased(), call % 3 == 0).await;
            let left = work_to_death(&built, &clock, (dying, call, takes_place), job).await;
            let Left { died, stores: reborn, state } = left;
            let rows = row_count(&state).await;
            assert!((others..=others + 6).contains(&rows), "call {call}: {rows}");
            halfway += u64::from(rows > others && rows < others + 6);
            let is_thorough = call % 24 == 0 || !died;
            if is_thorough {
                assert_eq!(rest(&state, newest, &erased()).await, before, "call {call}");
            }
            // A job that comes before the next erase finds its way too.
            if call % 5 == 0 {
                state.maintain(&MaintainStep::ALL, false).await.unwrap();
            }
            let receipt = state.erase(&erased(), false).await.unwrap();
            assert_eq!(held_in(&reborn).await, pending(&receipt), "call {call}: {receipt:#?}");
            assert_eq!(row_count(&state).await, others, "call {call}");
            if is_thorough {
                assert_eq!(rest(&state, newest, &erased()).await, before, "call {call}");
                assert_sound(&state).await;
            }
            if let Some(until) = receipt.nothing_left_after_ms {
                clock.set(until * 1_000 + SECOND);
            }
            state.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
            assert_eq!(held_in(&reborn).await, BTreeSet::new(), "call {call}");
            if !died {
                break;
            }
        }
    }
    assert!(halfway > 0, "between the log and the archive");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_began_before_brings_no_key_back() {
    let stores = [FaultyStore::new(), FaultyStore::new()];
    let clock = Arc::new(ManualClock::at(START));
    let state = create_both(&stores, &clock).await;
    fill(&state, &clock).await;
    clock.set(START + 24 * DAY);
    state.materialize(false).await.unwrap();
    clock.set(START + 27 * DAY);
    let newest = commit_of(&state).await;
    let before = rest(&state, newest, &erased()).await;
    // Another process is about to copy a day that holds the keys.
    let slow = [stores[0].reborn(), stores[1].reborn()];
    let (reached, let_go) = slow[1].hold_next_data_file();
    let mover = state_of(&slow, &clock).await;
    let moving = tokio::spawn(async move { mover.maintain(&[MaintainStep::Archive], false).await });
    reached.await.unwrap();
    let receipt = state.erase(&erased(), false).await.unwrap();
    let_go.send(()).unwrap();
    let report = moving.await.unwrap().unwrap();
    let StepOutcome::Archived(report) = &report.steps[0].outcome else { panic!("{report:?}") };
    assert!(report.gave_way, "{report:?}");
    assert_eq!(held_in(&stores).await, pending(&receipt));
    assert_eq!(rest(&state, newest, &erased()).await, before);
    // What the window may begin with is only what the erase left.
    clock.set(START + 30 * DAY);
    state.maintain(&[MaintainStep::Archive], false).await.unwrap();
    assert_eq!(archived(&state).unwrap().rows, 4 * 9);
    assert_eq!(rest(&state, newest, &erased()).await, before);
    assert_eq!(held_in(&stores).await, pending(&receipt));
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_late_move_brings_back_for_a_moment_is_taken_out_and_no_version_that_is_named_has_it()
 {
    let stores = [FaultyStore::new(), FaultyStore::new()];
    let clock = Arc::new(ManualClock::at(START));
    let state = create_both(&stores, &clock).await;
    // The keys are in the archive and in the snapshot, and a day without them is to move.
    for (day, gone) in [(0, &[][..]), (1, &[][..]), (16, &erased()[..])] {
        append_days_of(&state, &clock, day, gone).await;
        state.materialize(false).await.unwrap();
        if day == 1 {
            clock.set(START + 12 * DAY);
            let steps = [MaintainStep::Materialize, MaintainStep::Archive];
            state.maintain(&steps, false).await.unwrap();
        }
    }
    clock.set(START + 27 * DAY);
    let newest = commit_of(&state).await;
    let before = rest(&state, newest, &erased()).await;
    let held = archived(&state).unwrap();
    let slow = [stores[0].reborn(), stores[1].reborn()];
    let (copying, copy) = slow[1].hold_next_data_file();
    let mover = state_of(&slow, &clock).await;
    let moving = tokio::spawn(async move { mover.maintain(&[MaintainStep::Archive], false).await });
    copying.await.unwrap();
    let others = [stores[0].reborn(), stores[1].reborn()];
    let eraser = state_of(&others, &clock).await;
    // Its first data file beside the archive's is one of the snapshot, when the log names another version already.
    let (rewriting, rewrite) = others[0].hold_next_data_file();
    let erasing = tokio::spawn(async move { eraser.erase(&erased(), false).await });
    rewriting.await.unwrap();
    state.log().refresh().await.unwrap();
    let named = archived(&state).unwrap();
    assert!(named.version > held.version);
    copy.send(()).unwrap();
    let report = moving.await.unwrap().unwrap();
    let StepOutcome::Archived(report) = &report.steps[0].outcome else { panic!("{report:?}") };
    assert!(report.gave_way, "{report:?}");
    rewrite.send(()).unwrap();
    let receipt = erasing.await.unwrap().unwrap();
    state.log().refresh().await.unwrap();
    assert!(archived(&state).unwrap().version > named.version, "it is named anew");
    assert_eq!(held_in(&stores).await, pending(&receipt));
    assert_eq!(rest(&state, newest, &erased()).await, before);
    clock.set(receipt.nothing_left_after_ms.unwrap() * 1_000 + SECOND);
    state.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
    assert_eq!(held_in(&stores).await, BTreeSet::new());
    assert_eq!(rest(&state, newest, &erased()).await, before);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn erases_and_moves_at_once_lose_and_double_nothing_and_leave_no_key() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = create_in(&home.open_at(&clock).await, alluvium::OrderBy::Version).await;
    let_archive(&state, None).await;
    let mut keys = vec![KEY.to_owned(), long_key()];
    keys.extend((0..4).map(|n| format!("u{n}")));
    let mut handles = Vec::new();
    for _ in 0..4 {
        handles.push(home.open_at(&clock).await.raw_state("s").await.unwrap());
    }
    let mut gone: Vec<String> = Vec::new();
    for (round, key) in keys.iter().enumerate() {
        let day = round as i64 * 4;
        for day in [day, day + 1] {
            append_days_of(&state, &clock, day, &gone).await;
            state.materialize(false).await.unwrap();
        }
        clock.set(START + (day + 9) * DAY);
        state.materialize(false).await.unwrap();
        let newest = commit_of(&state).await;
        gone.push(key.clone());
        let before = rest(&state, newest, &gone).await;
        let maintain = |index: usize, steps: &'static [MaintainStep]| {
            let state = handles[index].clone();
            async move { state.maintain(steps, false).await.map(drop) }
        };
        let movers = [
            maintain(0, &[MaintainStep::Archive]),
            maintain(1, &[MaintainStep::Archive, MaintainStep::Archive]),
            maintain(2, &[MaintainStep::Compact, MaintainStep::Archive]),
        ];
        let erasing = handles[3].erase(std::slice::from_ref(key), false);
        let (moved, receipt) = futures::join!(join_all(movers), erasing);
        for outcome in moved {
            if let Err(error) = outcome {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            }
        }
        let receipt = receipt.unwrap();
        assert!(receipt.rows_removed > 0, "{receipt:?}");
        state.snapshot().refresh().await.unwrap();
        assert_eq!(rest(&state, newest, &gone).await, before, "round {round}");
        let again = state.erase(std::slice::from_ref(key), false).await.unwrap();
        assert_eq!((again.files.len(), again.rows_removed), (0, 0), "{again:?}");
        // Who is killed between the two commits of a move leaves rows in the archive that nobody reads.
        state.maintain(&[MaintainStep::Archive], false).await.unwrap();
        assert_sound(&state).await;
    }
    // Right after an erase nothing moves: how much was moved by now is chance.
    clock.set(START + 60 * DAY);
    state.maintain(&[MaintainStep::Archive], false).await.unwrap();
    assert!(archived(&state).unwrap().rows > 15, "{:?}", archived(&state));
    let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
    let history = fresh.reader().basis().await.unwrap();
    let rows = fresh.reader().history_rows(&history, KeyFilter::All, Point::LATEST).await.unwrap();
    assert!(!rows.try_collect::<Vec<_>>().await.unwrap().is_empty());
    let last = state.erase(&keys, false).await.unwrap();
    clock.set(last.nothing_left_after_ms.unwrap_or(0).max(clock_ms(&clock)) * 1_000 + SECOND);
    state.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
    assert_eq!(found(&home).await, BTreeSet::new());
}

fn clock_ms(clock: &ManualClock) -> i64 {
    alluvium::Clock::now_micros(clock) / 1_000
}

/// Changes of a day of all keys that are not erased.
async fn append_days_of(state: &RawState, clock: &ManualClock, day: i64, gone: &[String]) {
    let time = START + day * DAY;
    clock.set(time + 5 * SECOND);
    let long = long_key();
    let others: Vec<String> = (0..6).map(|n| format!("u{n}")).collect();
    let keys = others.iter().map(String::as_str).chain([KEY, long.as_str()]);
    let rows: Vec<_> = keys
        .filter(|key| !gone.iter().any(|gone| gone == key))
        .map(|key| {
            let text = if key.len() > 2 { format!("{VALUE} {day}") } else { format!("n {day}") };
            (key, day + 1, Some(text))
        })
        .collect();
    state.append(&super::batch(&rows, time)).await.unwrap();
}
