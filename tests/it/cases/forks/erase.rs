//! An erase goes through all forks of the state, and nothing of the store holds the key afterwards.

use std::collections::BTreeSet;
use std::sync::Arc;

use alluvium::{
    ErrorKind, KeyErased, KeyFilter, MaintainStep, ManualClock, NamedPoint, Point, RestoreOptions,
};

use super::{advance, fork};
use crate::support::faults::{FaultyStore, open};
use crate::support::search::{holding, objects_of};
use crate::support::stores::{
    DAY, Home, START, assert_sound, by_version, live, n_batch, n_batch_at, n_of,
};

const KEY: &str = "u7-marie-7391";

async fn found(home: &Home) -> BTreeSet<String> {
    holding(&home.files().await, &[KEY])
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_key_is_in_no_fork_and_no_fork_of_a_fork() {
    for now in [true, false] {
        let clock = Arc::new(ManualClock::at(START));
        let home = Home::new();
        let store = home.open_at(&clock).await;
        let state = by_version(&store, "s").await;
        for day in 0..4 {
            clock.set(START + day * DAY + DAY / 2);
            let rows = [(KEY, day + 1, Some(day)), ("other", day + 1, Some(day))];
            state.append(&n_batch_at(&rows, &[START + day * DAY; 2])).await.unwrap();
            state.materialize(false).await.unwrap();
            if day == 1 {
                state.create_savepoint("early", None).await.unwrap();
            }
        }
        state.log().table().checkpoint().await.unwrap();
        fork(&store, "s", "f", Point::LATEST).await;
        let forked = store.raw_state("f").await.unwrap();
        forked.append(&n_batch(&[(KEY, 50, Some(50)), ("own", 50, Some(50))])).await.unwrap();
        forked.create_savepoint("kept", None).await.unwrap();
        fork(&store, "f", "g", Point::LATEST).await;
        fork(&store, "s", "h", Point::at_commit(2)).await;
        let before: Vec<_> = [("f", 50), ("g", 50), ("h", 1)].into();
        for (name, n) in &before {
            let state = store.raw_state(name).await.unwrap();
            assert_eq!(n_of(&state, Point::LATEST, KEY).await, Some(*n), "{name}");
        }
        let receipt = state.erase(&[KEY.to_owned()], now).await.unwrap();
        let names: Vec<&str> = receipt.forks.iter().map(|fork| fork.state.as_str()).collect();
        assert_eq!(names, ["f", "g", "h"]);
        assert!(receipt.forks.iter().all(|fork| fork.rows_removed > 0), "{receipt:?}");
        assert_eq!(receipt.savepoints, ["early"]);
        let of_forks: Vec<_> = receipt.forks.iter().map(|fork| fork.savepoints.clone()).collect();
        assert_eq!(of_forks, [vec!["early", "kept"], vec!["early", "kept"], vec!["early"]]);
        if !now {
            assert!(receipt.nothing_left_after_ms.is_some());
            advance(&clock, 40 * DAY);
            for name in ["s", "f", "g", "h"] {
                let state = store.raw_state(name).await.unwrap();
                state.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
            }
        }
        assert_eq!(found(&home).await, BTreeSet::new());
        for name in ["s", "f", "g", "h"] {
            let state = store.raw_state(name).await.unwrap();
            let rest = live(&state, Point::LATEST).await;
            assert!(rest.iter().any(|row| row.0 == "other"), "{name}: {rest:?}");
            assert!(rest.iter().all(|row| row.0 != KEY), "{name}: {rest:?}");
            let refused = state.append(&n_batch(&[(KEY, 99, Some(1))])).await.unwrap_err();
            assert!(KeyErased::is_cause_of(&refused), "{refused}");
            assert_sound(&state).await;
        }
        let again = state.erase(&[KEY.to_owned()], now).await.unwrap();
        assert!(again.forks.iter().all(|fork| fork.rows_removed == 0), "{again:?}");
        // Commits from before can't be forked, those from after can.
        let error = store.fork("s", "old", Point::at_commit(3), false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
        fork(&store, "s", "new", Point::LATEST).await;
        let newest = store.raw_state("new").await.unwrap();
        let refused = newest.append(&n_batch(&[(KEY, 99, Some(1))])).await.unwrap_err();
        assert!(KeyErased::is_cause_of(&refused), "{refused}");
        assert_sound(&newest).await;
        // What the savepoint keeps is there without the key, and is come to by the two commands that the error names.
        assert!(error.to_string().contains("`alluvium restore old --to commit:3`"), "{error}");
        for state in [&state, &newest] {
            let kept = NamedPoint::at_savepoint("early");
            let point = state.reader().point(&kept).await.unwrap();
            assert_eq!(live(state, point).await, [("other".to_owned(), 2, Some(1))]);
        }
        let early = RestoreOptions {
            to: Point::at_commit(2),
            keys: KeyFilter::All,
            id: None,
            dry_run: false,
        };
        newest.restore(&early).await.unwrap();
        assert_eq!(n_of(&newest, Point::LATEST, "other").await, Some(1));
        // An erase in a fork is its own.
        newest.erase(&["other".to_owned()], true).await.unwrap();
        assert_eq!(n_of(&state, Point::LATEST, "other").await, Some(3));
        assert_eq!(n_of(&newest, Point::LATEST, "other").await, None);
        assert_sound(&newest).await;
        assert_sound(&state).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_that_is_not_whole_keeps_an_erase_from_its_end() {
    let clock = Arc::new(ManualClock::at(START + DAY));
    let built = FaultyStore::new();
    let state = by_version(&open(&built, &clock).await, "s").await;
    state.append(&n_batch(&[(KEY, 1, Some(1)), ("other", 1, Some(1))])).await.unwrap();
    state.materialize(false).await.unwrap();
    state.create_savepoint("early", None).await.unwrap();
    let (mut refused, mut through) = (0, 0);
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let faulty = built.forked();
        let store = open(&faulty, &clock).await;
        faulty.die_at(call, takes_place);
        let made = store.fork("s", "f", Point::LATEST, false).await;
        let died = faulty.is_dead();
        assert!(made.is_err() || !died, "call {call}");
        let storage = faulty.reborn();
        let store = open(&storage, &clock).await;
        let state = store.raw_state("s").await.unwrap();
        let is_begun = !store.forks().await.unwrap().is_empty();
        let is_whole = store.state_names().await.unwrap().len() == 2;
        match state.erase(&[KEY.to_owned()], true).await {
            Ok(receipt) => {
                assert_eq!(is_begun, is_whole, "call {call}");
                assert_eq!(receipt.forks.len(), usize::from(is_whole), "call {call}");
                through += 1;
            }
            Err(error) => {
                assert!(is_begun && !is_whole, "call {call}: {error}");
                assert_eq!(error.kind(), ErrorKind::Conflict, "call {call}: {error}");
                assert!(error.to_string().contains("fork f of s"), "call {call}: {error}");
                refused += 1;
                // What it was made of is gone: it can only be dropped.
                store.fork("s", "f", Point::LATEST, false).await.unwrap_err();
                advance(&clock, DAY);
                store.drop_fork("f").await.unwrap();
                state.erase(&[KEY.to_owned()], true).await.unwrap();
            }
        }
        let objects = objects_of(&(storage as Arc<dyn object_store::ObjectStore>)).await;
        assert_eq!(holding(&objects, &[KEY]), BTreeSet::new(), "call {call}");
        if !died {
            break;
        }
    }
    assert!(refused > 5 && through > 2, "{refused} refused, {through} through");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erase_beside_a_fork_at_any_call_of_it_leaves_nothing_of_the_key() {
    let clock = Arc::new(ManualClock::at(START + DAY));
    let built = FaultyStore::new();
    let state = by_version(&open(&built, &clock).await, "s").await;
    state.append(&n_batch(&[(KEY, 1, Some(1)), ("other", 1, Some(1))])).await.unwrap();
    state.materialize(false).await.unwrap();
    state.create_savepoint("early", None).await.unwrap();
    for call in 0.. {
        let faulty = built.forked();
        let store = open(&faulty, &clock).await;
        store.raw_state("s").await.unwrap();
        let (reached, let_go) = faulty.hold_call(call);
        let forking = tokio::spawn({
            let store = store.clone();
            async move { store.fork("s", "f", Point::LATEST, false).await.map(drop) }
        });
        let is_over = tokio::select! {
            reached = reached => reached.is_err(),
            () = async { while !forking.is_finished() { tokio::task::yield_now().await } } => true,
        };
        let erasing = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
        let first = erasing.erase(&[KEY.to_owned()], true).await;
        if !is_over {
            let_go.send(()).unwrap();
        }
        let made = forking.await.unwrap();
        if let Err(error) = &first {
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            let unfinished = store.forks().await.unwrap();
            if !unfinished.is_empty() && store.state_names().await.unwrap().len() == 1 {
                advance(&clock, DAY);
                store.drop_fork("f").await.unwrap();
            }
            erasing.erase(&[KEY.to_owned()], true).await.unwrap();
        }
        let storage: Arc<dyn object_store::ObjectStore> = faulty.reborn();
        let left = holding(&objects_of(&storage).await, &[KEY]);
        assert_eq!(left, BTreeSet::new(), "call {call}: {made:?} {first:?}");
        if is_over {
            break;
        }
    }
}
