//! What was changed in a fork is appended to its parent, once, and nothing else is.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::{
    ErrorKind, MaintainStep, ManualClock, OrderBy, Point, PromoteOptions, PromoteOutcome, RawState,
    RestoreOptions, Store,
};
use arrow::array::{ArrayRef, Int64Array};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{advance, fork};
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{
    DAY, Home, SECOND, START, assert_sound, by_time, by_version, commit_of, create, live, n_batch,
    n_batch_at, n_fields, n_of, upserts,
};

const OVERWRITE: PromoteOptions = PromoteOptions { overwrite: true, dry_run: false };
const PLAIN: PromoteOptions = PromoteOptions { overwrite: false, dry_run: false };

async fn values(state: &RawState, point: Point) -> BTreeMap<String, Option<i64>> {
    live(state, point).await.into_iter().map(|(key, _, n)| (key, n)).collect()
}

async fn change(state: &RawState, clock: &ManualClock, rng: &mut StdRng, next: &mut i64) {
    for _ in 0..rng.random_range(0..4) {
        *next += 1;
        advance(clock, SECOND);
        let n = rng.random_bool(0.7).then(|| rng.random_range(0..3));
        let key = format!("k{}", rng.random_range(0..10));
        let time = START + 10 * DAY + *next * SECOND;
        state.append(&n_batch_at(&[(&key, *next, n)], &[time])).await.unwrap();
        if rng.random_bool(0.2) {
            state.materialize(false).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_parent_becomes_what_the_fork_is_where_the_fork_was_changed() {
    for seed in 0..30 {
        let mut rng = StdRng::seed_from_u64(seed);
        let clock = Arc::new(ManualClock::at(START + 11 * DAY));
        let home = Home::new();
        let store = home.open_at(&clock).await;
        let order_by = if seed % 2 == 0 { OrderBy::EventTime } else { OrderBy::Version };
        let parent = create(&store, "s", &n_fields(), order_by).await;
        let mut next = 0;
        for _ in 0..4 {
            change(&parent, &clock, &mut rng, &mut next).await;
        }
        fork(&store, "s", "f", Point::LATEST).await;
        let forked = store.raw_state("f").await.unwrap();
        let mut base = values(&forked, Point::LATEST).await;
        for round in 0..4 {
            let about = format!("seed {seed}, round {round}");
            change(&forked, &clock, &mut rng, &mut next).await;
            change(&parent, &clock, &mut rng, &mut next).await;
            change(&forked, &clock, &mut rng, &mut next).await;
            let theirs = values(&forked, Point::LATEST).await;
            let ours = values(&parent, Point::LATEST).await;
            let keys = (0..10).map(|n| format!("k{n}"));
            let changed: Vec<String> =
                keys.filter(|key| base.get(key) != theirs.get(key)).collect();
            let both = changed
                .iter()
                .filter(|key| {
                    ours.get(*key) != base.get(*key) && ours.get(*key) != theirs.get(*key)
                })
                .count() as u64;
            let mut expected = ours.clone();
            for key in &changed {
                match theirs.get(key) {
                    Some(n) => drop(expected.insert(key.clone(), *n)),
                    None => drop(expected.remove(key)),
                }
            }
            let commit = commit_of(&parent).await;
            let dry = PromoteOptions { dry_run: true, ..PLAIN };
            let told = store.promote_fork("f", &dry).await.unwrap();
            assert_eq!(told.overwritten, both, "{about}");
            assert_eq!(commit_of(&parent).await, commit, "{about}");
            let plain = store.promote_fork("f", &PLAIN).await;
            let report = match both {
                0 => plain.unwrap(),
                _ => {
                    let error = plain.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Conflict, "{about}: {error}");
                    assert!(error.to_string().contains(&told.conflicts[0]), "{about}: {error}");
                    assert_eq!(commit_of(&parent).await, commit, "{about}");
                    store.promote_fork("f", &OVERWRITE).await.unwrap()
                }
            };
            let counts = (report.upserted, report.deleted);
            assert_eq!((told.upserted, told.deleted), counts, "{about}");
            assert_eq!(values(&parent, Point::LATEST).await, expected, "{about}");
            assert_eq!(values(&forked, Point::LATEST).await, theirs, "{about}");
            match report.outcome {
                PromoteOutcome::Promoted => assert_eq!(report.commit, Some(commit + 1), "{about}"),
                PromoteOutcome::NothingToDo => assert_eq!(expected, ours, "{about}"),
                PromoteOutcome::AlreadyApplied => assert!(changed.is_empty(), "{about}"),
                PromoteOutcome::DryRun => panic!("{about}"),
            }
            // Again at the same commits, also when the parent has gone on.
            let was_promoted = report.outcome == PromoteOutcome::Promoted;
            if was_promoted {
                change(&parent, &clock, &mut rng, &mut next).await;
                let before = commit_of(&parent).await;
                let again = store.promote_fork("f", &OVERWRITE).await.unwrap();
                assert_eq!(again.outcome, PromoteOutcome::AlreadyApplied, "{about}");
                assert_eq!(commit_of(&parent).await, before, "{about}");
                base = theirs;
                if rng.random_bool(0.2) {
                    let to = Point::at_commit(report.before_commit);
                    let undo = RestoreOptions { to, ..RestoreOptions::default() };
                    parent.restore(&undo).await.unwrap();
                    assert_eq!(values(&parent, Point::LATEST).await, ours, "{about}");
                }
            }
        }
        assert_sound(&parent).await;
        assert_sound(&forked).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn promoting_killed_at_any_call_and_sent_again_is_applied_once() {
    let clock = Arc::new(ManualClock::at(START + 10 * DAY));
    let built = FaultyStore::new();
    let store = open(&built, &clock).await;
    let parent = by_version(&store, "s").await;
    parent.append(&n_batch(&[("a", 1, Some(1)), ("b", 1, Some(1))])).await.unwrap();
    store.fork("s", "f", Point::LATEST, false).await.unwrap();
    let forked = store.raw_state("f").await.unwrap();
    forked.append(&n_batch(&[("a", 2, Some(2)), ("b", 2, None), ("c", 2, Some(3))])).await.unwrap();
    let (before, after) =
        (values(&parent, Point::LATEST).await, values(&forked, Point::LATEST).await);
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let faulty = built.forked();
        let store = open(&faulty, &clock).await;
        faulty.die_at(call, takes_place);
        let outcome = store.promote_fork("f", &PLAIN).await;
        let died = faulty.is_dead();
        assert!(outcome.is_err() || !died, "call {call}: {outcome:?}");
        let store = open(&faulty.reborn(), &clock).await;
        let parent = store.raw_state("s").await.unwrap();
        let now = values(&parent, Point::LATEST).await;
        assert!(now == before || now == after, "call {call}: {now:?}");
        let again = store.promote_fork("f", &PLAIN).await.unwrap();
        let expected = match now == after {
            true => PromoteOutcome::AlreadyApplied,
            false => PromoteOutcome::Promoted,
        };
        assert_eq!(again.outcome, expected, "call {call}");
        assert_eq!(values(&parent, Point::LATEST).await, after, "call {call}");
        assert_eq!(commit_of(&parent).await, 2, "call {call}");
        if !died {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_change_in_the_parent_meanwhile_is_taken_into_it() {
    let clock = Arc::new(ManualClock::at(START + 10 * DAY));
    for (key, is_conflict) in [("b", true), ("z", false)] {
        let faulty = FaultyStore::new();
        let store = open(&faulty, &clock).await;
        let parent = by_time(&store, "s").await;
        parent.append(&n_batch(&[("a", 1, Some(1)), ("b", 1, Some(1))])).await.unwrap();
        store.fork("s", "f", Point::LATEST, false).await.unwrap();
        let forked = store.raw_state("f").await.unwrap();
        forked.append(&n_batch(&[("a", 2, Some(2)), ("b", 2, Some(2))])).await.unwrap();
        let (reached, let_go) = faulty.hold_next_data_file();
        let promoting: tokio::task::JoinHandle<_> = tokio::spawn({
            let store: Store = store.clone();
            async move { store.promote_fork("f", &PLAIN).await }
        });
        reached.await.unwrap();
        let other = open(&faulty, &clock).await.raw_state("s").await.unwrap();
        let time = START + 10 * DAY + 60 * SECOND;
        other.append(&n_batch_at(&[(key, 3, Some(3))], &[time])).await.unwrap();
        let_go.send(()).unwrap();
        let outcome = promoting.await.unwrap();
        assert_eq!(n_of(&other, Point::LATEST, key).await, Some(3));
        match is_conflict {
            true => {
                let error = outcome.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                assert!(error.to_string().contains("\"b\""), "{error}");
                assert_eq!(n_of(&other, Point::LATEST, "a").await, Some(1));
            }
            false => {
                assert_eq!(outcome.unwrap().outcome, PromoteOutcome::Promoted);
                assert_eq!(n_of(&other, Point::LATEST, "a").await, Some(2));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_that_either_side_has_gained_are_kept() {
    let home = Home::new();
    let store = home.open().await;
    let parent = by_version(&store, "s").await;
    parent
        .append(&n_batch(&[("a", 1, Some(1)), ("b", 1, Some(1)), ("c", 1, Some(1))]))
        .await
        .unwrap();
    fork(&store, "s", "f", Point::LATEST).await;
    let forked = store.raw_state("f").await.unwrap();
    let numbers = |n: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![n])) };
    let of_fork = vec![("n", numbers(2)), ("m", numbers(20))];
    forked.append(&upserts(&["a"], 2, of_fork)).await.unwrap();
    let of_parent = vec![("n", numbers(3)), ("p", numbers(30))];
    parent.append(&upserts(&["b"], 2, of_parent)).await.unwrap();
    let report = store.promote_fork("f", &PLAIN).await.unwrap();
    assert_eq!((report.upserted, report.deleted, report.overwritten), (1, 0, 0));
    let rows = crate::support::stores::sql(
        &store,
        "SELECT state_key, state_value['n'], state_value['m'], state_value['p'] FROM s ORDER BY state_key",
    )
    .await;
    let rows = match rows {
        Ok(rows) => rows,
        Err(_) => crate::support::stores::sql(
            &store,
            "SELECT state_key, n, m, p FROM s ORDER BY state_key",
        )
        .await
        .unwrap(),
    };
    let texts = crate::support::search::texts(&rows);
    assert_eq!(texts, ["a|2|20|NULL|", "b|3|NULL|30|", "c|1|NULL|NULL|"]);
    // A sequence of the caller's own goes on where the fork left it.
    parent.append(&n_batch(&[("a", 3, Some(7))])).await.unwrap();
    assert_eq!(n_of(&parent, Point::LATEST, "a").await, Some(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_of_a_fork_goes_back_to_that_and_not_to_another_state_of_its_name() {
    let home = Home::new();
    let store = home.open().await;
    let parent = by_version(&store, "s").await;
    parent.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap();
    fork(&store, "s", "f", Point::LATEST).await;
    fork(&store, "f", "g", Point::LATEST).await;
    let child = store.raw_state("g").await.unwrap();
    child.append(&n_batch(&[("a", 2, Some(2))])).await.unwrap();
    let report = store.promote_fork("g", &PLAIN).await.unwrap();
    assert_eq!(report.parent, "f");
    let forked = store.raw_state("f").await.unwrap();
    assert_eq!(n_of(&forked, Point::LATEST, "a").await, Some(2));
    assert_eq!(n_of(&parent, Point::LATEST, "a").await, Some(1));
    store.drop_fork("f").await.unwrap();
    let error = store.promote_fork("g", &PLAIN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    fork(&store, "s", "f", Point::LATEST).await;
    child.append(&n_batch(&[("a", 3, Some(3))])).await.unwrap();
    let error = store.promote_fork("g", &PLAIN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityChanged, "{error}");
    let error = store.promote_fork("s", &PLAIN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_that_outlives_the_window_is_promoted_from_a_savepoint_of_its_beginning() {
    for is_kept in [true, false] {
        let clock = Arc::new(ManualClock::at(START));
        let home = Home::new();
        let store = home.open_at(&clock).await;
        let parent = by_version(&store, "s").await;
        let settings = [("log_retention", "10d"), ("as_of_window", "2d")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        parent.set_maintenance(&settings).await.unwrap();
        parent
            .append(&n_batch_at(&[("a", 1, Some(1)), ("b", 1, Some(1))], &[START; 2]))
            .await
            .unwrap();
        fork(&store, "s", "f", Point::LATEST).await;
        let forked = store.raw_state("f").await.unwrap();
        if is_kept {
            forked.create_savepoint("begin", None).await.unwrap();
        }
        for day in 1..40 {
            let time = START + day * DAY;
            clock.set(time + DAY / 2);
            forked.append(&n_batch_at(&[("a", 1 + day, Some(day))], &[time])).await.unwrap();
            forked.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
        let outcome = store.promote_fork("f", &PLAIN).await;
        match is_kept {
            true => {
                let report = outcome.unwrap();
                assert_eq!((report.upserted, report.deleted), (1, 0), "{report:?}");
                assert_eq!(n_of(&parent, Point::LATEST, "a").await, Some(39));
            }
            false => {
                let error = outcome.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
                assert_eq!(n_of(&parent, Point::LATEST, "a").await, Some(1));
            }
        }
        assert_eq!(n_of(&parent, Point::LATEST, "b").await, Some(1));
    }
}
