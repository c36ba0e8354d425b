//! An erase that is killed, and beside which others write, fold, compact and erase.

use std::collections::BTreeSet;
use std::sync::Arc;

use alluvium::{
    ErrorKind, KeyErased, MaintainStep, ManualClock, Point, RawState, RestoreOptions,
    RestoreOutcome, Store,
};
use alluvium_log::KeyFilter;
use arrow::array::RecordBatch;
use futures::TryStreamExt;
use futures::future::join_all;
use object_store::ObjectStore;

use super::{KEY, LONG, VALUE, append_days, batch, create_in, erase, fill, found, long_key, rest};
use crate::support::faults::{FaultyStore, open};
use crate::support::search::{holding, objects_of, texts};
use crate::support::stores::{DAY, Home, SECOND, START, assert_sound, settings};

#[tokio::test(flavor = "multi_thread")]
async fn an_append_that_was_on_its_way_is_refused_alone() {
    let faulty = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let store = open(&faulty, &clock).await;
    let state = create_in(&store, alluvium::OrderBy::Version).await;
    let (reached, let_go) = faulty.hold_next_data_file();
    let append = |key: &'static str, n: i64| {
        let state = state.clone();
        tokio::spawn(
            async move { state.append(&batch(&[(key, n, Some("x".to_owned()))], START)).await },
        )
    };
    let first = append("u1", 1);
    reached.await.unwrap();
    // These wait together, and were checked before the key was erased.
    let waiting = [append("u2", 2), append(KEY, 3), append("u4", 4)];
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    // As another process does, which knows nothing of what waits here.
    let eraser = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
    erase(&eraser, KEY, false).await;
    let_go.send(()).unwrap();
    first.await.unwrap().unwrap();
    let [second, third, fourth] = waiting;
    second.await.unwrap().unwrap();
    fourth.await.unwrap().unwrap();
    let error = third.await.unwrap().unwrap_err();
    assert!(KeyErased::is_cause_of(&error), "{error}");
    let rows = state.scan(Point::LATEST, KeyFilter::All).await.unwrap();
    let rows: Vec<RecordBatch> = rows.try_collect().await.unwrap();
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 3);
    let objects: Arc<dyn ObjectStore> = faulty.reborn();
    assert_eq!(holding(&objects_of(&objects).await, &[KEY]), BTreeSet::new());
}

/// The same of an epoch, which was checked when it was staged.
#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_that_was_on_its_way_is_refused_too() {
    let faulty = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = create_in(&open(&faulty, &clock).await, alluvium::OrderBy::Version).await;
    append_days(&state, &clock, 0..1).await;
    let rows = |key: &'static str| batch(&[(key, 90, Some("x".to_owned()))], START);
    let [mut with, mut without] = [1, 2].map(|n| state.epoch(&format!("app/{n}"), 1).unwrap());
    with.stage(&rows(KEY)).await.unwrap();
    without.stage(&rows("u2")).await.unwrap();
    let eraser = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
    eraser.erase(&[KEY.to_owned()], false).await.unwrap();
    let error = with.commit().await.unwrap_err();
    assert!(KeyErased::is_cause_of(&error), "{error}");
    without.commit().await.unwrap();
    assert!(state.get(Point::LATEST, KEY).await.unwrap().found().is_none());
    assert!(state.get(Point::LATEST, "u2").await.unwrap().found().is_some());
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erase_killed_at_any_call_is_made_good_by_the_next_one() {
    let built = FaultyStore::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = create_in(&open(&built, &clock).await, alluvium::OrderBy::Version).await;
    fill(&state, &clock).await;
    let erased = [KEY.to_owned(), long_key()];
    let before = rest(&state, 16, &erased).await;
    let begun = clock.clone();
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        begun.set(START + 5 * DAY);
        let faulty = built.forked();
        let state = open(&faulty, &clock).await.raw_state("s").await.unwrap();
        faulty.die_at(call, takes_place);
        let outcome = state.erase(&erased, call % 2 == 0).await;
        let died = faulty.is_dead();
        assert!(outcome.is_err() || !died, "call {call}: {outcome:?}");
        let reborn = faulty.reborn();
        let state = open(&reborn, &clock).await.raw_state("s").await.unwrap();
        let receipt = state.erase(&erased, false).await.unwrap();
        let objects: Arc<dyn ObjectStore> = reborn.clone();
        let files = objects_of(&objects).await;
        let left = holding(&files, &[KEY, VALUE, LONG]);
        let pending: BTreeSet<String> =
            receipt.pending.iter().map(|file| file.path.clone()).collect();
        assert_eq!(left, pending, "call {call}: {receipt:#?}");
        if call % 16 == 0 || !died {
            assert_eq!(rest(&state, 16, &erased).await, before, "call {call}");
            assert_sound(&state).await;
        }
        if let Some(until) = receipt.nothing_left_after_ms {
            clock.set(until * 1_000 + SECOND);
        }
        state.maintain(&[MaintainStep::Vacuum], false).await.unwrap();
        let files = objects_of(&objects).await;
        assert_eq!(holding(&files, &[KEY, VALUE, LONG]), BTreeSet::new(), "call {call}");
        if !died {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erase_beside_appends_folds_and_compactions_leaves_nothing_and_loses_nothing() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = create_in(&home.open_at(&clock).await, alluvium::OrderBy::Version).await;
    append_days(&state, &clock, 0..3).await;
    clock.set(START + 6 * DAY);
    let mut tasks = Vec::new();
    for worker in 0..4_i64 {
        let state = home.open_at(&clock).await.raw_state("s").await.unwrap();
        tasks.push(tokio::spawn(async move {
            let mut appended = 0;
            for n in 0..12 {
                let version = 100 + worker * 100 + n;
                let key = format!("w{version}");
                let own = batch(&[(&key, version, Some("mine".to_owned()))], START + DAY);
                state.append(&own).await.unwrap();
                let both =
                    batch(&[(KEY, version, Some(VALUE.to_owned())), ("u1", version, None)], START);
                match state.append(&both).await {
                    Ok(_) => appended += 1,
                    Err(error) => assert!(KeyErased::is_cause_of(&error), "{error}"),
                }
                let steps =
                    [MaintainStep::Materialize, MaintainStep::Compact, MaintainStep::Checkpoint];
                match state.maintain(&steps[..1 + (n as usize + worker as usize) % 3], false).await
                {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
                }
            }
            appended
        }));
    }
    let eraser = home.open_at(&clock).await.raw_state("s").await.unwrap();
    let erased = [KEY.to_owned(), long_key()];
    let receipt = eraser.erase(&erased, false).await.unwrap();
    assert!(receipt.rows_removed > 0);
    let appended: i32 = join_all(tasks).await.into_iter().map(Result::unwrap).sum();
    assert!(appended < 48, "some came too late");
    let receipt = eraser.erase(&erased, false).await.unwrap();
    assert_eq!(receipt.rows_removed, 0, "nothing came after the marker");
    let pending: BTreeSet<String> = receipt.pending.iter().map(|file| file.path.clone()).collect();
    assert_eq!(found(&home).await, pending);
    let rows = eraser.scan(Point::LATEST, KeyFilter::prefix("w")).await.unwrap();
    let rows: Vec<RecordBatch> = rows.try_collect().await.unwrap();
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 48);
    assert_sound(&eraser).await;
    assert!(eraser.get(Point::LATEST, KEY).await.unwrap().found().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn several_erases_at_once_leave_none_of_their_keys() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = create_in(&home.open_at(&clock).await, alluvium::OrderBy::EventTime).await;
    fill(&state, &clock).await;
    let keys = [KEY.to_owned(), long_key(), "t".to_owned(), "u1".to_owned()];
    let erases = keys.clone().map(|key| {
        let (home, clock) = (home.uri(), clock.clone());
        async move {
            let builder = Store::builder(&home).settings(settings()).clock(clock);
            let state = builder.open().await.unwrap().raw_state("s").await.unwrap();
            state.erase(&[key], false).await.unwrap()
        }
    });
    join_all(erases).await;
    let receipt = state.erase(&keys, false).await.unwrap();
    assert_eq!((receipt.rows_removed, receipt.marker_commit), (0, None), "{receipt:?}");
    for key in &keys {
        assert!(state.get(Point::LATEST, key).await.unwrap().found().is_none());
    }
    assert_eq!(state.log().erased().unwrap().unwrap().len(), 4);
    assert_sound(&state).await;
}

/// What a state's key has, by a handle that sees no faults.
async fn text_of(state: &RawState, key: &str) -> Option<String> {
    let row = state.get(Point::LATEST, key).await.unwrap().found()?;
    texts(&row).pop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_leaves_out_keys_that_are_erased_before_it_or_meanwhile() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = create_in(&open(&built, &clock).await, alluvium::OrderBy::Version).await;
    let text = |text: &str| Some(text.to_owned());
    for (n, word) in [(1, "first"), (2, "second")] {
        state.append(&batch(&[(KEY, n, text(VALUE)), ("u", n, text(word))], START)).await.unwrap();
    }
    state.append(&batch(&[(KEY, 3, None)], START)).await.unwrap();
    let options = RestoreOptions { to: Point::at_commit(1), ..RestoreOptions::default() };
    for (is_whole, call) in
        [true, false].into_iter().flat_map(|whole| (-1..40).map(move |n| (whole, n)))
    {
        let faulty = built.forked();
        let state = open(&faulty, &clock).await.raw_state("s").await.unwrap();
        let eraser = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
        let gone = async || match is_whole {
            true => drop(erase(&eraser, KEY, false).await),
            false => drop(eraser.log().mark_erased(&[KEY.to_owned()]).await.unwrap()),
        };
        let outcome = if call < 0 {
            gone().await;
            state.restore(&options).await
        } else {
            let (mut reached, let_go) = faulty.hold_call(call as u64);
            let (restored, options) = (state.clone(), options.clone());
            let mut restoring = tokio::spawn(async move { restored.restore(&options).await });
            tokio::select! {
                _ = &mut reached => {
                    gone().await;
                    let_go.send(()).unwrap();
                    restoring.await.unwrap()
                }
                outcome = &mut restoring => outcome.unwrap(),
            }
        };
        let report = outcome.unwrap_or_else(|error| panic!("call {call}, {is_whole}: {error}"));
        assert_eq!(report.outcome, RestoreOutcome::Restored, "call {call}: {report:?}");
        let after = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
        let restored = text_of(&after, "u").await.unwrap();
        assert!(restored.contains("first"), "call {call}: {restored}");
        let is_marked = after.log().erased().unwrap().is_some_and(|erased| erased.contains(KEY));
        let marked = eraser.log().state().version;
        let basis = after.reader().basis().await.unwrap();
        let after_marker = if is_marked { marked.min(basis.commit()) } else { basis.commit() };
        let later = after.reader().changes_rows(&basis, after_marker).await.unwrap();
        let later: Vec<RecordBatch> = later.try_collect().await.unwrap();
        let rows: Vec<String> = later.iter().flat_map(texts).collect();
        assert!(!rows.iter().any(|row| row.contains(KEY)), "call {call}: {rows:?}");
        if is_whole && is_marked {
            assert_eq!(text_of(&after, KEY).await, None, "call {call}");
        }
    }
}

/// A checkpoint is made of the one before, which an erase writes over; whoever reads it in parts may get some of either.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_is_made_while_an_erase_writes_over_the_one_before_is_whole() {
    let (built, clock) = (FaultyStore::new(), Arc::new(ManualClock::at(START)));
    let state = create_in(&open(&built, &clock).await, alluvium::OrderBy::Version).await;
    append_days(&state, &clock, 0..1).await;
    state.materialize(false).await.unwrap();
    state.log().table().checkpoint().await.unwrap();
    append_days(&state, &clock, 1..2).await;
    let erased = [KEY.to_owned(), long_key()];
    let before = rest(&state, 6, &erased).await;
    for call in 0.. {
        let faulty = built.forked();
        let state = open(&faulty, &clock).await.raw_state("s").await.unwrap();
        let eraser = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
        let (mut reached, let_go) = faulty.hold_call(call);
        let table = state.log().table().clone();
        let mut writing = tokio::spawn(async move { table.checkpoint().await });
        let is_reached = tokio::select! {
            _ = &mut reached => true,
            outcome = &mut writing => { outcome.unwrap().unwrap(); false }
        };
        if !is_reached {
            break;
        }
        eraser.erase(&erased, false).await.unwrap();
        let_go.send(()).unwrap();
        let outcome = writing.await.unwrap();
        assert!(outcome.is_ok(), "call {call}: {outcome:?}");
        let store = open(&faulty.reborn(), &clock).await;
        let report = store.examine("s").await.unwrap();
        assert!(report.is_sound(), "call {call}: {report:?}");
        let after = store.raw_state("s").await.unwrap();
        assert_eq!(rest(&after, 6, &erased).await, before, "call {call}");
    }
}
