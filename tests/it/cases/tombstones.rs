//! TMB-*: deleted keys are forgotten when nothing older may come any more; every answer stays, and no key comes back.

mod histories;

use std::sync::Arc;

use alluvium::{
    BelowFloor, EpochOutcome, ErrorKind, Floor, MaintainStep, ManualClock, Point, RawState,
    RestoreOptions, StepOutcome, TombstonesReport,
};
use alluvium_log::KeyFilter;
use futures::TryStreamExt;

use crate::cases::program::{change, fail, lines, succeed};
use crate::support::delta;
use crate::support::faults::{FaultyStore, maintain_to_death, open};
use crate::support::stores::{
    DAY, Home, START, by_time, by_version, commit_of, live, n_batch_at, n_of, refused, set,
};

/// Deleted keys are remembered for three days, and so are snapshots.
async fn let_forget(state: &RawState) {
    let spans = [("as_of_window", "2d"), ("file_retention", "2d"), ("commit_retention", "8d")];
    set(state, &spans).await;
    set(state, &[("tombstone_retention", "3d")]).await;
}

async fn forget(state: &RawState, dry_run: bool) -> TombstonesReport {
    let report = state.maintain(&[MaintainStep::Tombstones], dry_run).await.unwrap();
    match report.steps.into_iter().map(|step| step.outcome).next() {
        Some(StepOutcome::Forgot(report)) => report,
        other => panic!("{other:?}"),
    }
}

async fn append(state: &RawState, rows: &[(&str, i64, Option<i64>)], time: i64) {
    let times: Vec<i64> = rows.iter().map(|_| time).collect();
    state.append(&n_batch_at(rows, &times)).await.unwrap();
}

/// A key that stays and one that is deleted, on two days; then so much time that the deletion may be forgotten.
async fn deleted(state: &RawState, clock: &ManualClock) {
    append(state, &[("gone", 1, Some(1)), ("kept", 2, Some(2))], START).await;
    clock.set(START + DAY);
    append(state, &[("gone", 3, None), ("other", 4, Some(4))], START + DAY).await;
    state.materialize(false).await.unwrap();
    assert_eq!(state.snapshot().state().tombstones(), 1);
    clock.set(START + 6 * DAY);
}

#[tokio::test(flavor = "multi_thread")]
async fn tmb_03_changes_at_the_floor_are_refused_by_name_and_later_ones_are_taken() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let other = home.open_at(&clock).await.raw_state("s").await.unwrap();
    let_forget(&state).await;
    deleted(&state, &clock).await;
    // An epoch that begins before the floor is raised, and comes after.
    let mut epoch = other.epoch("app", 1).unwrap();
    epoch
        .stage(&n_batch_at(
            &[("fine", 5, Some(5)), ("gone", 6, Some(6))],
            &[START + 5 * DAY, START],
        ))
        .await
        .unwrap();
    let dry = forget(&state, true).await;
    let commit = commit_of(&state).await;
    assert!(dry.is_raised && dry.forgotten == 1 && state.log().floor().is_none(), "{dry:?}");
    let stats = state.stats().await.unwrap();
    assert_eq!(
        (stats.snapshot_tombstones, stats.tombstones_to_forget, stats.floor_ms),
        (1, 1, None)
    );
    let told = state.explain_retention().await.unwrap();
    assert_eq!(told.next_tombstones, dry);
    let done = forget(&state, false).await;
    assert_eq!(done, dry, "what was told is what was done");
    assert_eq!(commit_of(&state).await, commit + 1);
    let again = forget(&state, false).await;
    assert!(again.forgotten == 0 && !again.is_raised, "{again:?}");
    assert_eq!(commit_of(&state).await, commit + 1, "a second run makes no commit");
    let floor = state.log().floor().unwrap();
    assert_eq!((floor.time, floor.commit), (START + 3 * DAY - 1, commit + 1));
    assert_eq!(state.snapshot().state().tombstones(), 0);
    let stats = state.stats().await.unwrap();
    assert_eq!((stats.snapshot_tombstones, stats.tombstones_to_forget), (0, 0));
    assert_eq!(stats.floor_ms, Some(floor.time.div_euclid(1_000)));

    let names = [
        "\"gone\"",
        "2024-01-15T00:00:00+00:00",
        "2024-01-17T23:59:59.999999+00:00",
        "leave the row out",
    ];
    let error = refused(&state, epoch.commit(), ErrorKind::InvalidInput, &names).await;
    assert!(BelowFloor::is_cause_of(&error));
    for handle in [&state, &other] {
        for time in [START, floor.time] {
            let row =
                n_batch_at(&[("fine", 7, Some(7)), ("gone", 8, Some(8))], &[START + 5 * DAY, time]);
            refused(handle, handle.append(&row), ErrorKind::InvalidInput, &["\"gone\"", "floor"])
                .await;
        }
        assert_eq!(n_of(handle, Point::LATEST, "gone").await, None);
        assert_eq!(n_of(handle, Point::LATEST, "fine").await, None, "all of it or nothing");
    }
    append(&other, &[("gone", 9, Some(9))], floor.time + 1).await;
    assert_eq!(n_of(&state, Point::LATEST, "gone").await, Some(9));
    assert_eq!(n_of(&state, Point::at_commit(commit), "gone").await, None);
    assert_eq!(n_of(&state, Point::at_time(START), "gone").await, Some(1));
    assert!(state.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn tmb_04_the_job_killed_at_any_call_while_keys_are_forgotten_is_made_good_by_the_next_run() {
    let built = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&open(&built, &clock).await, "s").await;
    let_forget(&state).await;
    deleted(&state, &clock).await;
    let expected = live(&state, Point::LATEST).await;
    let last = commit_of(&state).await;
    let (mut taken, mut late) = (0, 0);
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let (died, state) = maintain_to_death(&built, &clock, call, takes_place).await;
        for _ in 0..2 {
            assert_eq!(live(&state, Point::LATEST).await, expected, "call {call}");
            assert_eq!(live(&state, Point::at_commit(last)).await, expected, "call {call}");
            assert_eq!(n_of(&state, Point::at_time(START), "gone").await, Some(1), "call {call}");
            assert!(state.verify().await.unwrap().is_sound(), "call {call}");
            // A late change of the deleted key never wins, whether it is taken or not.
            let floor = state.log().refresh().await.map(|log| Floor::of(&log)).unwrap();
            let row = n_batch_at(&[("gone", 2, Some(5))], &[START + DAY / 2]);
            match state.append(&row).await {
                Ok(_) => {
                    assert!(floor.is_none());
                    taken += 1;
                }
                Err(error) => {
                    assert!(floor.is_some() && BelowFloor::is_cause_of(&error), "{error}");
                    late += 1;
                }
            }
            state.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
        assert_eq!(live(&state, Point::LATEST).await, expected, "call {call}");
        assert_eq!(state.snapshot().state().tombstones(), 0, "call {call}");
        assert!(state.verify().await.unwrap().is_sound(), "call {call}");
        if !died {
            break;
        }
    }
    assert!(taken > 10 && late > 10, "{taken} taken and {late} refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn tmb_05_a_change_on_its_way_when_the_floor_is_raised_is_taken_before_it_or_refused() {
    let built = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&open(&built, &clock).await, "s").await;
    let_forget(&state).await;
    deleted(&state, &clock).await;
    let row = || n_batch_at(&[("gone", 2, Some(5))], &[START + DAY / 2]);
    let expected = live(&state, Point::LATEST).await;
    let (mut taken, mut late) = (0, 0);
    for (call, as_epoch) in (0..).flat_map(|call| [(call, false), (call, true)]) {
        let faulty = built.forked();
        let writer = open(&faulty, &clock).await.raw_state("s").await.unwrap();
        let job = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
        let (mut reached, let_go) = faulty.hold_call(call);
        let (own, rows) = (writer.clone(), row());
        let mut writing = tokio::spawn(async move {
            if !as_epoch {
                // One that shares the commit, and may go on alone.
                let fine = n_batch_at(&[("fine", 9, Some(9))], &[START + 5 * DAY]);
                let (late, fine) = futures::join!(own.append(&rows), own.append(&fine));
                fine.unwrap();
                return late.map(drop);
            }
            let mut epoch = own.epoch("app", 1).unwrap();
            epoch.stage(&rows).await?;
            epoch.commit().await.map(|outcome| {
                assert!(matches!(outcome, EpochOutcome::Committed(_)), "{outcome:?}");
            })
        });
        let is_reached = tokio::select! {
            _ = &mut reached => true,
            outcome = &mut writing => { outcome.unwrap().unwrap(); false }
        };
        if !is_reached {
            break;
        }
        assert_eq!(forget(&job, false).await.forgotten, 1);
        let_go.send(()).unwrap();
        match writing.await.unwrap() {
            Ok(()) => taken += 1,
            Err(error) => {
                assert!(
                    error.to_string().contains("\"gone\"") && error.to_string().contains("floor"),
                    "{error}"
                );
                late += 1;
            }
        }
        let after = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
        for handle in [&after, &writer] {
            let mut found = live(handle, Point::LATEST).await;
            found.retain(|row| row.0 != "fine");
            assert_eq!(found, expected, "call {call}");
            assert_eq!(n_of(handle, Point::LATEST, "fine").await, (!as_epoch).then_some(9));
        }
        after.materialize(false).await.unwrap();
        assert_eq!(n_of(&after, Point::LATEST, "gone").await, None);
        assert!(after.verify().await.unwrap().is_sound(), "call {call}");
    }
    assert!(late > 2, "{taken} taken and {late} refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn tmb_06_rows_of_another_engine_below_the_floor_stop_the_fold_by_name_and_bring_nothing_back()
 {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let_forget(&state).await;
    deleted(&state, &clock).await;
    forget(&state, false).await;
    let expected = live(&state, Point::LATEST).await;
    let folded = commit_of(&state).await;
    let folder = home.table("s", "log");
    let fine = n_batch_at(&[("fine", 9, Some(9))], &[START + 5 * DAY]);
    delta::append(&folder, &fine).await;
    state.log().refresh().await.unwrap();
    assert_eq!(n_of(&state, Point::LATEST, "fine").await, Some(9), "what is later is taken");
    let good = commit_of(&state).await;
    delta::append(&folder, &n_batch_at(&[("gone", 2, Some(5))], &[START + DAY / 2])).await;
    let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
    for handle in [&state, &fresh] {
        handle.log().refresh().await.unwrap();
        for rebuild in [false, true] {
            let error = handle.materialize(rebuild).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            for name in
                ["dt=2024-01-15/", "\"gone\"", "2024-01-15T12:00:00+00:00", "floor", "erase"]
            {
                assert!(error.to_string().contains(name), "{name}: {error}");
            }
        }
        handle.get(Point::LATEST, "gone").await.unwrap_err();
        assert!(handle.scan(Point::LATEST, KeyFilter::All).await.is_err());
        // What tells rows as they lie tells this one too.
        let basis = handle.reader().basis().await.unwrap();
        let told = handle.reader().changes_rows(&basis, good).await.unwrap();
        let told: Vec<_> = told.try_collect().await.unwrap();
        assert_eq!(told.iter().map(arrow::array::RecordBatch::num_rows).sum::<usize>(), 1);
        assert_eq!(live(handle, Point::at_commit(folded)).await, expected);
        assert_eq!(n_of(handle, Point::at_commit(good), "fine").await, Some(9));
    }
    // The way out that the error names.
    let keys = ["gone".to_owned()];
    fresh.erase(&keys, false).await.unwrap();
    fresh.forget_erased(&keys).await.unwrap();
    append(&fresh, &[("gone", 10, Some(10))], START + 6 * DAY).await;
    fresh.materialize(false).await.unwrap();
    assert_eq!(n_of(&fresh, Point::LATEST, "gone").await, Some(10));
    assert!(fresh.verify().await.unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn tmb_07_restores_forks_and_savepoints_know_what_is_forgotten() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let store = home.open_at(&clock).await;
    let state = by_time(&store, "s").await;
    let_forget(&state).await;
    append(&state, &[("gone", 1, Some(1)), ("kept", 2, Some(2))], START).await;
    let first = commit_of(&state).await;
    deleted(&state, &clock).await;
    let before = commit_of(&state).await;
    forget(&state, false).await;
    // The newest change of all is one that is forgotten: an answer before it must not begin with what is without it.
    state.create_savepoint("later", None).await.unwrap();
    let fork = store.fork("s", "trial", Point::LATEST, false).await.unwrap();
    assert_eq!(fork.name, "trial");
    let old = store.fork("s", "old", Point::at_commit(before), false).await;
    let forked = store.raw_state("trial").await.unwrap();
    assert_eq!(forked.log().floor(), state.log().floor());
    let late = || n_batch_at(&[("gone", 2, Some(5))], &[START + DAY / 2]);
    refused(&forked, forked.append(&late()), ErrorKind::InvalidInput, &["floor"]).await;
    assert_eq!(live(&forked, Point::LATEST).await, live(&state, Point::LATEST).await);
    assert_eq!(n_of(&forked, Point::at_time(START), "gone").await, Some(1));
    // A fork of a commit before the floor takes late changes, and remembers what they must not bring back.
    old.unwrap();
    let old = store.raw_state("old").await.unwrap();
    assert_eq!(old.log().floor(), None);
    old.append(&late()).await.unwrap();
    assert_eq!(n_of(&old, Point::LATEST, "gone").await, None);
    old.materialize(false).await.unwrap();
    assert_eq!(n_of(&old, Point::LATEST, "gone").await, None);

    let options = RestoreOptions { to: Point::at_commit(first), ..RestoreOptions::default() };
    let report = state.restore(&options).await.unwrap();
    assert_eq!((report.brought_back, report.removed), (1, 1), "{report:?}");
    assert_eq!(n_of(&state, Point::LATEST, "gone").await, Some(1));
    let undone =
        RestoreOptions { to: Point::at_commit(report.before_commit), ..RestoreOptions::default() };
    state.restore(&undone).await.unwrap();
    assert_eq!(n_of(&state, Point::LATEST, "gone").await, None);
    for handle in [&state, &forked, &old] {
        handle.materialize(false).await.unwrap();
        assert!(handle.verify().await.unwrap().is_sound());
    }
}

#[test]
fn tmb_09_the_program_sets_late_changes_aside_and_tells_of_the_floor() {
    let home = Home::new();
    let delete = "{\"key\":\"gone\",\"op\":\"DELETE\",\"version\":2,\"event_time\":\"2024-01-16T00:00:00Z\"}\n";
    succeed(&home, &["append", "s"], &change("gone", 1, 1));
    succeed(&home, &["append", "s"], delete);
    succeed(&home, &["set", "s", "tombstone_retention=30d"], "");
    fail(&home, &["set", "s", "tombstone_retention=1h"], "", 2, &["as_of_window (7d)"]);
    succeed(&home, &["materialize", "s"], "");
    let told = succeed(&home, &["stats", "s", "--output", "table"], "");
    assert!(told.contains("1 tombstone (1 to be forgotten)"), "{told}");
    let told = succeed(&home, &["retention", "explain", "s", "--output", "table"], "");
    assert!(told.contains("forgets 1 deleted key of 1"), "{told}");
    let told = succeed(&home, &["maintain", "s", "--output", "table"], "");
    assert!(told.contains("1 deleted key of 1 forgotten; changes up to 20"), "{told}");
    let rejects = home.folder.path().join("rejects.jsonl");
    let late = change("gone", 3, 3);
    fail(&home, &["append", "s"], &late, 2, &["line 1", "event_time", "at or below the floor"]);
    let both = late + "{\"key\":\"fine\",\"value\":{\"n\":4}}\n";
    succeed(&home, &["append", "s", "--rejects", rejects.to_str().unwrap()], &both);
    let aside = std::fs::read_to_string(&rejects).unwrap();
    assert!(
        aside.contains("gone") && aside.contains("floor") && !aside.contains("fine"),
        "{aside}"
    );
    let rows = lines(&succeed(&home, &["scan", "s", "--output", "jsonl"], ""));
    assert_eq!((rows.len(), &rows[0]["key"]), (1, &"fine".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn tmb_08_what_can_not_hold_is_refused_and_a_floor_stays_when_the_setting_goes() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let store = home.open_at(&clock).await;
    let change = |name: &str, value: &str| [(name.to_owned(), value.to_owned())];
    let numbered = by_version(&store, "numbered").await;
    let call = numbered.set_maintenance(&change("tombstone_retention", "30d")).await;
    assert!(call.unwrap_err().to_string().contains("ordered by event_time"));
    let state = by_time(&store, "s").await;
    let short = state.set_maintenance(&change("tombstone_retention", "6d")).await;
    assert!(short.unwrap_err().to_string().contains("shorter than as_of_window (7d)"));
    let_forget(&state).await;
    // Nothing is refused for nothing: without tombstones to forget late changes are taken.
    append(&state, &[("a", 1, Some(1))], START).await;
    state.materialize(false).await.unwrap();
    clock.set(START + 20 * DAY);
    assert!(!forget(&state, false).await.is_raised);
    append(&state, &[("a", 2, None)], START + 1).await;
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
    let floor = state.log().floor().unwrap();
    assert_eq!(state.snapshot().state().files().count(), 0, "no key is left");
    assert!(live(&state, Point::LATEST).await.is_empty());
    assert!(state.verify().await.unwrap().is_sound());
    set(&state, &[("tombstone_retention", "forever")]).await;
    clock.set(START + 100 * DAY);
    append(&state, &[("b", 3, None)], floor.time + 1).await;
    state.maintain(&MaintainStep::ALL, false).await.unwrap();
    assert_eq!(state.log().floor(), Some(floor));
    assert_eq!(state.snapshot().state().tombstones(), 1);
    let late = n_batch_at(&[("a", 4, Some(4))], &[floor.time]);
    refused(&state, state.append(&late), ErrorKind::InvalidInput, &["floor"]).await;
    // As of a time before what was forgotten, the snapshot without it is no base.
    assert_eq!(n_of(&state, Point::at_time(START), "a").await, Some(1));
    assert_eq!(n_of(&state, Point::at_version(1), "a").await, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn tmb_10_what_is_not_folded_when_the_floor_is_raised_again_is_folded_without_it_or_keeps_it()
{
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let_forget(&state).await;
    deleted(&state, &clock).await;
    // A deletion that is in the log, and not in the snapshot, when the floor goes above it.
    append(&state, &[("other", 5, None)], START + 2 * DAY).await;
    assert_eq!(forget(&state, false).await.forgotten, 2);
    assert_eq!(state.snapshot().state().tombstones(), 0);
    let floor = state.log().floor().unwrap();
    assert!(state.verify().await.unwrap().is_sound());

    append(&state, &[("kept", 6, None)], START + 4 * DAY).await;
    state.materialize(false).await.unwrap();
    let late = n_batch_at(&[("gone", 2, Some(5))], &[START + DAY / 2]);
    delta::append(&home.table("s", "log"), &late).await;
    clock.set(START + 20 * DAY);
    let report = forget(&state, false).await;
    assert!(!report.is_raised && report.reason.contains("not folded yet"), "{report:?}");
    assert_eq!(state.log().floor(), Some(floor), "a higher floor would hide what came in below");
    assert_eq!(state.materialize(false).await.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[tokio::test(flavor = "multi_thread")]
async fn tmb_11_an_epoch_that_is_sent_again_was_applied_however_old_its_rows_are_by_now() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let_forget(&state).await;
    let rows = n_batch_at(&[("first", 1, Some(1)), ("erased", 2, Some(2))], &[START; 2]);
    let mut epoch = state.epoch("app", 7).unwrap();
    epoch.stage(&rows).await.unwrap();
    assert!(matches!(epoch.commit().await.unwrap(), EpochOutcome::Committed(_)));
    deleted(&state, &clock).await;
    forget(&state, false).await;
    state.erase(&["erased".to_owned()], false).await.unwrap();
    let commit = commit_of(&state).await;
    // One that knows of it and one that has yet to look.
    let fresh = home.open_at(&clock).await.raw_state("s").await.unwrap();
    for handle in [&state, &fresh] {
        for number in [7, 3] {
            let mut again = handle.epoch("app", number).unwrap();
            assert_eq!(again.stage(&rows).await.unwrap().num_rows(), 2);
            let outcome = again.commit().await.unwrap();
            assert_eq!(outcome, EpochOutcome::AlreadyApplied { last: 7 });
        }
        let mut next = handle.epoch("app", 8).unwrap();
        let error = next.stage(&rows.slice(0, 1)).await.unwrap_err();
        assert!(BelowFloor::is_cause_of(&error), "{error}");
    }
    assert_eq!(commit_of(&state).await, commit);
    assert_eq!(n_of(&state, Point::LATEST, "first").await, Some(1));
    assert_eq!(n_of(&state, Point::LATEST, "erased").await, None);
}
