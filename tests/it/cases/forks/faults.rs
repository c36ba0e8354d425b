//! Forks whose maker or dropper dies at any call, and forks that are raced.

use std::sync::Arc;

use alluvium::{
    ErrorKind, ForkOutcome, ForkStatus, MaintainStep, Maintainer, MaintainerOptions, ManualClock,
    Point, Storage, Store,
};
use futures::future::join_all;

use super::advance;
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{
    DAY, Live, START, assert_sound, by_time, by_version, commit_of, live, n_batch, n_batch_at, n_of,
};

/// A state with a snapshot, a merged day and, if so wished, no first commit any more.
pub(super) async fn built(clock: &Arc<ManualClock>, is_cleaned_up: bool) -> Arc<FaultyStore> {
    let faulty = FaultyStore::new();
    let state = by_version(&open(&faulty, clock).await, "s").await;
    for n in 1..=3 {
        state.append(&n_batch(&[("a", n, Some(n)), ("b", n, Some(-n))])).await.unwrap();
    }
    state.materialize(false).await.unwrap();
    state.compact(false).await.unwrap();
    if is_cleaned_up {
        state.log().table().checkpoint().await.unwrap();
        advance(clock, 60 * DAY);
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
        assert!(state.log().table().read_commit(0).await.unwrap().is_none());
    }
    let time = START + 60 * DAY;
    state.append(&n_batch_at(&[("c", 9, Some(9))], &[time])).await.unwrap();
    faulty
}

/// A store is as if nothing had been done, or has the whole fork.
async fn check(store: &Store, parent: &[Live], about: &str) -> bool {
    let names = store.state_names().await.unwrap();
    let state = store.raw_state("s").await.unwrap();
    assert_eq!(live(&state, Point::LATEST).await, parent, "{about}");
    if names == ["s"] {
        let missing = store.raw_state("f").await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound, "{about}: {missing}");
        return false;
    }
    assert_eq!(names, ["f", "s"], "{about}");
    let forked = store.raw_state("f").await.unwrap();
    assert_eq!(live(&forked, Point::LATEST).await, parent, "{about}");
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_maker_that_dies_at_any_call_leaves_no_fork_or_a_whole_one() {
    for is_cleaned_up in [false, true] {
        let clock = Arc::new(ManualClock::at(START + 60 * DAY));
        let built = built(&clock, is_cleaned_up).await;
        let parent = open(&built, &clock).await.raw_state("s").await.unwrap();
        let expected = live(&parent, Point::LATEST).await;
        let (mut whole, mut cut) = (0, 0);
        for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
            let about = format!("call {call}, {takes_place}, {is_cleaned_up}");
            let faulty = built.forked();
            let store = open(&faulty, &clock).await;
            store.raw_state("s").await.unwrap();
            faulty.die_at(call, takes_place);
            let outcome = store.fork("s", "f", Point::LATEST, false).await;
            let died = faulty.is_dead();
            assert!(outcome.is_err() || !died, "{about}: {outcome:?}");
            let store = open(&faulty.reborn(), &clock).await;
            let was_there = check(&store, &expected, &about).await;
            let status = store.forks().await.unwrap().first().map(|fork| fork.status);
            match status {
                Some(ForkStatus::Whole) => assert!(was_there, "{about}"),
                Some(ForkStatus::Unfinished) => {
                    cut += 1;
                    let error = by_name_taken(&store).await;
                    assert!(error.contains("fork f of s"), "{about}: {error}");
                    let error = store.drop_fork("f").await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Conflict, "{about}: {error}");
                }
                other => assert_eq!(other, None, "{about}"),
            }
            if was_there {
                whole += 1;
                let again = store.fork("s", "f", Point::LATEST, false).await.unwrap_err();
                assert_eq!(again.kind(), ErrorKind::AlreadyExists, "{about}: {again}");
            } else if call % 3 == 0 && status.is_some() {
                // Nobody went on with it.
                advance(&clock, DAY);
                store.drop_fork("f").await.unwrap();
                assert_eq!(store.forks().await.unwrap(), [], "{about}");
                store.fork("s", "f", Point::LATEST, false).await.unwrap();
            } else {
                // The parent may go on meanwhile.
                let parent = store.raw_state("s").await.unwrap();
                parent.materialize(true).await.unwrap();
                let at = parent.log().state().version;
                let finished = store.fork("s", "f", Point::at_commit(at), false).await.unwrap();
                let wanted = match status {
                    Some(_) => ForkOutcome::Finished,
                    None => ForkOutcome::Made,
                };
                assert_eq!(finished.outcome, wanted, "{about}");
            }
            assert!(check(&store, &expected, &about).await, "{about}");
            let forked = store.raw_state("f").await.unwrap();
            forked.append(&n_batch(&[("a", 100, Some(100))])).await.unwrap();
            assert_eq!(n_of(&forked, Point::LATEST, "a").await, Some(100), "{about}");
            let parent = store.raw_state("s").await.unwrap();
            assert_eq!(n_of(&parent, Point::LATEST, "a").await, Some(3), "{about}");
            assert_sound(&forked).await;
            if !died {
                break;
            }
        }
        assert!(whole > 2 && cut > 10, "{whole} whole, {cut} cut off");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_fork_goes_with_the_job_once_its_grace_is_over() {
    let clock = Arc::new(ManualClock::at(START + 60 * DAY));
    let faulty = built(&clock, false).await;
    let store = open(&faulty, &clock).await;
    let expected = live(&store.raw_state("s").await.unwrap(), Point::LATEST).await;
    for is_dropped in [false, true] {
        if is_dropped {
            store.fork("s", "f", Point::LATEST, false).await.unwrap();
        }
        for call in 0.. {
            let dying = faulty.reborn();
            let broken = open(&dying, &clock).await;
            broken.raw_state("s").await.unwrap();
            dying.die_at(call, false);
            let cut = match is_dropped {
                true => broken.drop_fork("f").await.map(drop),
                false => broken.fork("s", "f", Point::LATEST, false).await.map(drop),
            };
            cut.unwrap_err();
            let is_begun = !store.forks().await.unwrap().is_empty();
            if is_begun && store.state_names().await.unwrap() == ["s"] {
                break;
            }
        }
        assert!(!check(&store, &expected, "cut off").await);
        let job = Maintainer::new(&store, MaintainerOptions::default());
        let run = job.run().await.unwrap().report;
        assert!(run.forks_removed.is_empty() && store.forks().await.unwrap().len() == 1, "{run:?}");
        advance(&clock, 9 * DAY);
        let run = job.run().await.unwrap().report;
        assert_eq!(run.forks_removed, ["f"]);
        assert_eq!(store.forks().await.unwrap(), []);
        let objects = crate::support::search::objects_of(store_of(&faulty).as_ref()).await;
        assert!(objects.iter().all(|(name, _)| !name.starts_with("f/")));
    }
    assert!(!check(&store, &expected, "at the end").await);
}

/// The error about a state that is to be created by the name.
async fn by_name_taken(store: &Store) -> String {
    let fields = crate::support::stores::n_fields();
    let created = store.create_state("f", &fields, alluvium::StateSettings::default()).await;
    created.unwrap_err().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropper_that_dies_at_any_call_leaves_a_whole_fork_or_none() {
    for is_cleaned_up in [false, true] {
        let clock = Arc::new(ManualClock::at(START + 60 * DAY));
        let built = built(&clock, is_cleaned_up).await;
        let store = open(&built, &clock).await;
        store.fork("s", "f", Point::LATEST, false).await.unwrap();
        let forked = store.raw_state("f").await.unwrap();
        let expected = live(&forked, Point::LATEST).await;
        forked.materialize(false).await.unwrap();
        forked.create_savepoint("kept", None).await.unwrap();
        forked.log().table().checkpoint().await.unwrap();
        let (mut whole, mut gone) = (0, 0);
        for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
            let about = format!("call {call}, {takes_place}, {is_cleaned_up}");
            let faulty = built.forked();
            let store = open(&faulty, &clock).await;
            faulty.die_at(call, takes_place);
            let outcome = store.drop_fork("f").await;
            let died = faulty.is_dead();
            assert!(outcome.is_err() || !died, "{about}: {outcome:?}");
            let store = open(&faulty.reborn(), &clock).await;
            let is_there = check(&store, &expected, &about).await;
            *(if is_there { &mut whole } else { &mut gone }) += 1;
            if store.forks().await.unwrap().is_empty() {
                assert!(!is_there, "{about}");
            } else {
                let begun = store.fork("s", "f", Point::LATEST, false).await.unwrap_err();
                assert_eq!(begun.kind(), ErrorKind::AlreadyExists, "{about}: {begun}");
                store.drop_fork("f").await.unwrap();
            }
            assert!(!check(&store, &expected, &about).await, "{about}");
            assert_eq!(store.forks().await.unwrap(), [], "{about}");
            let names = crate::support::search::objects_of(store_of(&faulty).as_ref()).await;
            assert!(names.iter().all(|(name, _)| !name.starts_with("f/")), "{about}");
            by_time(&store, "f").await;
            if !died {
                break;
            }
        }
        assert!(whole > 2 && gone > 5, "{whole} whole, {gone} gone");
    }
}

pub(super) fn store_of(faulty: &Arc<FaultyStore>) -> Arc<Arc<dyn object_store::ObjectStore>> {
    Arc::new(faulty.reborn())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_goes_through_what_makes_sure_of_an_object_store() {
    let clock = Arc::new(ManualClock::at(START + 60 * DAY));
    let faulty = built(&clock, true).await;
    let storage = Storage::from_remote_store(faulty.clone(), "remote://forks");
    let builder = Store::builder("remote://forks").storage(storage).clock(clock.clone());
    let store = builder.open().await.unwrap();
    let expected = live(&store.raw_state("s").await.unwrap(), Point::LATEST).await;
    // The first commit of the state is cleaned up, and is not written again by who would create it.
    let state = by_version(&open(&faulty, &clock).await, "s").await;
    assert_eq!(live(&state, Point::LATEST).await, expected);
    assert!(state.log().table().read_commit(0).await.unwrap().is_none());
    store.fork("s", "f", Point::LATEST, false).await.unwrap();
    assert!(check(&store, &expected, "made").await);
    faulty.lost_data_replies.store(1, std::sync::atomic::Ordering::SeqCst);
    faulty.lost_commit_replies.store(1, std::sync::atomic::Ordering::SeqCst);
    store.fork("f", "g", Point::LATEST, false).await.unwrap();
    let child = store.raw_state("g").await.unwrap();
    assert_eq!(live(&child, Point::LATEST).await, expected);
    assert_sound(&child).await;
    for name in ["f", "g"] {
        store.drop_fork(name).await.unwrap();
    }
    assert!(!check(&store, &expected, "dropped").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_who_take_one_name_one_has_it() {
    let clock = Arc::new(ManualClock::at(START + 60 * DAY));
    for _ in 0..10 {
        let faulty = built(&clock, false).await;
        let store = open(&faulty, &clock).await;
        let other = by_time(&store, "t").await;
        other.append(&n_batch(&[("x", 1, Some(1))])).await.unwrap();
        let handles = join_all((0..6).map(|_| open(&faulty, &clock))).await;
        let made = join_all(handles.iter().enumerate().map(|(index, store)| async move {
            let parent = if index % 2 == 0 { "s" } else { "t" };
            match index {
                4 | 5 => {
                    let fields = crate::support::stores::n_fields();
                    let settings = alluvium::StateSettings::default();
                    store.create_state("f", &fields, settings).await.map(|_| "created")
                }
                _ => store.fork(parent, "f", Point::LATEST, false).await.map(|_| parent),
            }
        }))
        .await;
        let mut winners: Vec<&str> = made.iter().flatten().copied().collect();
        winners.dedup();
        assert_eq!(winners.len(), 1, "{made:?}");
        for error in made.iter().filter_map(|made| made.as_ref().err()) {
            let is_told = matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::Conflict);
            assert!(is_told && error.to_string().contains('f'), "{error}");
        }
        let fresh = open(&faulty, &clock).await;
        let found = live(&fresh.raw_state("f").await.unwrap(), Point::LATEST).await;
        let expected = match winners[0] {
            "created" => Vec::new(),
            parent => live(&fresh.raw_state(parent).await.unwrap(), Point::LATEST).await,
        };
        assert_eq!(found, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_made_beside_appends_and_maintenance_is_as_its_parent_was_at_its_commit() {
    let clock = Arc::new(ManualClock::at(START + 60 * DAY));
    let faulty = FaultyStore::new();
    let store = open(&faulty, &clock).await;
    let state = by_version(&store, "s").await;
    state.append(&n_batch(&[("k0", 1, Some(1))])).await.unwrap();
    let other = open(&faulty, &clock).await.raw_state("s").await.unwrap();
    for round in 0..20_i64 {
        advance(&clock, DAY);
        let time = START + (60 + round) * DAY;
        let append = async {
            for part in 0..4 {
                let version = 10 * round + part + 2;
                let key = format!("k{}", version % 7);
                state
                    .append(&n_batch_at(&[(&key, version, Some(version))], &[time]))
                    .await
                    .unwrap();
            }
        };
        let maintain = async { other.maintain(&MaintainStep::ALL, false).await.unwrap() };
        let name = format!("f{round}");
        let maker = open(&faulty, &clock).await;
        let make = maker.fork("s", &name, Point::LATEST, false);
        let ((), _, made) = futures::join!(append, maintain, make);
        let made = match made {
            Ok(made) => made,
            // A vacuum was faster: that is told, and nothing is left of it.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
                assert_eq!(
                    store.forks().await.unwrap().iter().filter(|f| f.name == name).count(),
                    0
                );
                continue;
            }
        };
        let forked = store.raw_state(&name).await.unwrap();
        // A handle looks for newer snapshots by the real clock, and this one goes a day at a time.
        let fresh = maker.raw_state("s").await.unwrap();
        let then = live(&fresh, Point::at_commit(made.commit)).await;
        assert_eq!(live(&forked, Point::LATEST).await, then, "round {round}");
        assert!(commit_of(&forked).await > made.commit);
        forked.append(&n_batch_at(&[("k1", 5_000, Some(5_000))], &[time])).await.unwrap();
        assert!(forked.verify().await.unwrap().is_sound(), "round {round}");
    }
    assert_sound(&state).await;
}
