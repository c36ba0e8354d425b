//! `restore`: the latest state becomes what it was at a point, by changes that win and take nothing away.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::{
    ErrorKind, ManualClock, OrderBy, Point, RawState, RestoreOptions, RestoreOutcome, RestoreReport,
};
use alluvium_log::KeyFilter;
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, Decimal128Array, Float64Array, Int64Array, Int64Builder,
    ListArray, MapBuilder, RecordBatch, StringArray, StringBuilder, StructArray,
};
use arrow::datatypes::{DataType, Field, Fields, Int64Type};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::program::{change, fail, lines, succeed};
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{
    DAY, Home, SECOND, START, assert_sound, by_time, by_version, commit_of, create, live, n_batch,
    n_batch_at, n_fields, n_of, refused, scan_rows, upserts, value_batch,
};

/// Values by key, whatever their versions are.
async fn values(state: &RawState, point: Point) -> BTreeMap<String, Option<i64>> {
    live(state, point).await.into_iter().map(|(key, _, n)| (key, n)).collect()
}

fn to(point: Point) -> RestoreOptions {
    RestoreOptions { to: point, ..RestoreOptions::default() }
}

async fn restored(state: &RawState, options: &RestoreOptions) -> RestoreReport {
    let report = state.restore(options).await.unwrap();
    assert_eq!(report.outcome, RestoreOutcome::Restored, "{report:?}");
    report
}

/// A history of late, tied, future and deleted changes, materialized now and then.
async fn any_history(state: &RawState, clock: &ManualClock, rng: &mut StdRng) {
    for commit in 0..12 {
        let now = START + (100 + commit) * DAY;
        clock.set(now);
        let count = rng.random_range(1..5);
        let rows: Vec<(String, i64, Option<i64>, i64)> = (0..count)
            .map(|_| {
                let version = match rng.random_range(0..20) {
                    0 => i64::MAX,
                    _ => rng.random_range(0..30),
                };
                let n = rng.random_bool(0.7).then(|| rng.random_range(0..1_000));
                let time = now + rng.random_range(-9 * DAY..DAY - SECOND) / DAY * DAY / 2;
                (format!("k{}", rng.random_range(0..8)), version, n, time)
            })
            .collect();
        let times: Vec<i64> = rows.iter().map(|row| row.3).collect();
        let rows: Vec<_> = rows.iter().map(|row| (row.0.as_str(), row.1, row.2)).collect();
        state.append(&n_batch_at(&rows, &times)).await.unwrap();
        match rng.random_range(0..6) {
            0 => drop(state.materialize(false).await.unwrap()),
            1 => drop(state.compact(false).await.unwrap()),
            _ => {}
        }
    }
}

fn any_point(rng: &mut StdRng, newest: i64) -> Point {
    let mut point = Point::LATEST;
    if rng.random_bool(0.5) {
        point.commit = Some(rng.random_range(0..=newest));
    }
    if rng.random_bool(0.3) {
        point.version = Some(rng.random_range(0..30));
    }
    if rng.random_bool(0.4) {
        point.event_time = Some(START + rng.random_range(95..114) * DAY);
    }
    point
}

fn any_keys(rng: &mut StdRng) -> KeyFilter {
    match rng.random_range(0..4) {
        0 => KeyFilter::keys(["k1".to_owned(), "k4".to_owned(), "nobody".to_owned()]),
        1 => KeyFilter::Range { from: Some("k2".to_owned()), to: Some("k6".to_owned()) },
        _ => KeyFilter::All,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_point_is_restored_whatever_wins_now_and_undone_again() {
    for seed in 0..40 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START)));
        let order_by = if seed % 2 == 0 { OrderBy::EventTime } else { OrderBy::Version };
        let store = home.open_at(&clock).await;
        let state = create(&store, "s", &n_fields(), order_by).await;
        any_history(&state, &clock, &mut rng).await;
        let newest = commit_of(&state).await;
        let point = any_point(&mut rng, newest);
        let options = RestoreOptions { keys: any_keys(&mut rng), ..to(point) };
        let about = format!("seed {seed}: {options:?}");
        let before = values(&state, Point::LATEST).await;
        let wanted = values(&state, point).await;
        let mut expected = before.clone();
        expected.retain(|key, _| !options.keys.matches(key));
        expected.extend(wanted.into_iter().filter(|(key, _)| options.keys.matches(key)));

        let dry = RestoreOptions { dry_run: true, ..options.clone() };
        let told = state.restore(&dry).await.unwrap();
        assert_eq!(commit_of(&state).await, newest, "{about}");
        let mut past = Vec::new();
        for commit in 0..=newest {
            past.push(live(&state, Point::at_commit(commit)).await);
        }
        let report = state.restore(&options).await.unwrap();
        assert_eq!(
            (told.brought_back, told.set_back, told.removed),
            (report.brought_back, report.set_back, report.removed),
            "{about}"
        );
        assert_eq!(report.outcome == RestoreOutcome::NothingToDo, before == expected, "{about}");
        assert_eq!(values(&state, Point::LATEST).await, expected, "{about}");
        let other = home.open_at(&clock).await.raw_state("s").await.unwrap();
        assert_eq!(values(&other, Point::LATEST).await, expected, "{about}");
        for (commit, known) in past.into_iter().enumerate() {
            let again = live(&state, Point::at_commit(commit as i64)).await;
            assert_eq!(again, known, "{about}, as of commit {commit}");
        }
        let commit = commit_of(&state).await;
        let again = other.restore(&options).await.unwrap();
        assert_eq!(again.outcome, RestoreOutcome::NothingToDo, "{about}");
        assert_eq!(commit_of(&state).await, commit, "{about}");
        let undo = to(Point::at_commit(report.before_commit));
        state.restore(&undo).await.unwrap();
        assert_eq!(values(&state, Point::LATEST).await, before, "{about}");
        assert_sound(&state).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_change_of_the_callers_own_sequence_wins_over_a_restore() {
    let clock = Arc::new(ManualClock::at(START + 10 * DAY));
    let home = Home::new();
    let state = by_version(&home.open_at(&clock).await, "s").await;
    state.append(&n_batch(&[("a", 3, Some(1)), ("b", 5_000, Some(1))])).await.unwrap();
    state.append(&n_batch(&[("a", 4, Some(2)), ("b", 5_001, None)])).await.unwrap();
    restored(&state, &to(Point::at_commit(1))).await;
    // It happened before the restore and comes after it: the sequence decides.
    state.append(&n_batch(&[("a", 5, Some(3)), ("b", 5_002, Some(3))])).await.unwrap();
    assert_eq!(
        live(&state, Point::LATEST).await,
        [("a".to_owned(), 5, Some(3)), ("b".to_owned(), 5_002, Some(3))]
    );
}

/// A value with a field of every kind.
fn rich(rows: i64, seed: i64) -> StructArray {
    let mut numbers = Int64Builder::new();
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for row in 0..rows {
        numbers.append_value(seed + row);
        map.keys().append_value(format!("{seed}"));
        map.values().append_option((row % 2 == 0).then_some(row));
        map.append(row % 3 != 0).unwrap();
    }
    let floats = [f64::NAN, -0.0, f64::INFINITY, 5e-324];
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("n", Arc::new(numbers.finish())),
        ("d", Arc::new(Float64Array::from_iter((0..rows).map(|row| floats[row as usize % 4])))),
        (
            "t",
            Arc::new(StringArray::from_iter((0..rows).map(|row| (row % 2 == 0).then_some("é\0")))),
        ),
        ("x", Arc::new(BinaryArray::from_iter_values((0..rows).map(|row| [0, 255, row as u8])))),
        (
            "dec",
            Arc::new(
                Decimal128Array::from_iter_values(
                    (0..rows).map(|row| i128::from(i64::MAX) * 9 + i128::from(row)),
                )
                .with_precision_and_scale(38, 9)
                .unwrap(),
            ),
        ),
        (
            "l",
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(
                (0..rows).map(|row| (row % 2 == 1).then(|| vec![Some(row), None, Some(seed)])),
            )),
        ),
        ("m", Arc::new(map.finish())),
        (
            "s",
            Arc::new(StructArray::from(vec![(
                Arc::new(Field::new("in", DataType::Int64, true)),
                Arc::new(Int64Array::from_iter((0..rows).map(|row| (row != 2).then_some(seed))))
                    as ArrayRef,
            )])),
        ),
    ];
    StructArray::try_from(columns).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_every_type_come_back_exactly() {
    const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let home = Home::new();
    let store = home.open().await;
    let nullable = |field: &Arc<Field>| field.as_ref().clone().with_nullable(true);
    let fields: Fields = rich(6, 0).fields().iter().map(nullable).collect();
    let state = create(&store, "s", &fields, OrderBy::EventTime).await;
    let append = async |seed: i64, version: i64| {
        let times = [START + version * SECOND; 6];
        let batch = value_batch(KEYS, [version; 6], &times, Arc::new(rich(6, seed)));
        state.append(&batch).await.unwrap().commit
    };
    let first = append(1, 1).await;
    let whole = async |point: Point| -> Vec<RecordBatch> { scan_rows(&state, point).await };
    let value = |rows: &[RecordBatch]| {
        let rows = arrow::compute::concat_batches(&rows[0].schema(), rows).unwrap();
        (rows.column(0).clone(), rows.column_by_name("state_value").unwrap().clone())
    };
    let wanted = value(&whole(Point::LATEST).await);
    append(2, 2).await;
    state.materialize(false).await.unwrap();
    let grown: ArrayRef = Arc::new(Int64Array::from(vec![7]));
    state.append(&upserts(&["a"], 3, vec![("grown", grown)])).await.unwrap();
    let gone =
        value_batch(["b"], [4], &[START + 4 * SECOND], Arc::new(StructArray::new_null(fields, 1)));
    state.append(&gone).await.unwrap();
    let report = restored(&state, &to(Point::at_commit(first))).await;
    assert_eq!((report.brought_back, report.set_back, report.removed), (1, 5, 0));
    let (keys, values) = value(&whole(Point::LATEST).await);
    assert_eq!(keys.as_ref(), wanted.0.as_ref());
    for (name, column) in wanted.1.as_struct().fields().iter().zip(wanted.1.as_struct().columns()) {
        let again = values.as_struct().column_by_name(name.name()).unwrap();
        assert_eq!(again.as_ref(), column.as_ref(), "{}", name.name());
    }
    assert_eq!(values.as_struct().column_by_name("grown").unwrap().null_count(), 6);
    assert_sound(&state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_change_while_the_difference_is_worked_out_is_taken_into_it() {
    let clock = Arc::new(ManualClock::at(START + 10 * DAY));
    for (other_key, expected_puts) in [("k1", 3), ("z", 2)] {
        let faulty = FaultyStore::new();
        let state = by_time(&open(&faulty, &clock).await, "s").await;
        state.append(&n_batch(&[("k1", 1, Some(1)), ("k2", 1, Some(1))])).await.unwrap();
        state.append(&n_batch(&[("k1", 2, Some(2)), ("k2", 2, None)])).await.unwrap();
        let (reached, let_go) = faulty.hold_next_data_file();
        let options = RestoreOptions { keys: KeyFilter::prefix("k"), ..to(Point::at_commit(1)) };
        let restoring = tokio::spawn({
            let (state, options) = (state.clone(), options.clone());
            async move { state.restore(&options).await.unwrap() }
        });
        reached.await.unwrap();
        let other = open(&faulty, &clock).await.raw_state("s").await.unwrap();
        let time = START + 10 * DAY + 60 * SECOND;
        other.append(&n_batch_at(&[(other_key, 3, Some(3))], &[time])).await.unwrap();
        faulty.counts.take();
        let_go.send(()).unwrap();
        let report = restoring.await.unwrap();
        assert_eq!((report.outcome, report.commit), (RestoreOutcome::Restored, Some(4)));
        assert_eq!(report.before_commit, 3);
        let mut now = values(&other, Point::LATEST).await;
        assert_eq!(now.remove("z").is_some(), other_key == "z");
        assert_eq!(now, values(&other, Point::at_commit(1)).await, "{other_key}");
        let [_, _, _, puts, _] = faulty.counts.take();
        // The commit that lost the race, a new file if it was about the same keys, and the commit.
        assert_eq!(puts, expected_puts, "{other_key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_killed_at_any_call_and_sent_again_is_applied_once() {
    let clock = Arc::new(ManualClock::at(START + 10 * DAY));
    let built = FaultyStore::new();
    let state = by_version(&open(&built, &clock).await, "s").await;
    for version in 1..=3 {
        let rows: Vec<_> = (0..5).map(|n| (format!("k{n}"), version, (version + n) % 4)).collect();
        let rows: Vec<_> = rows
            .iter()
            .map(|(key, version, n)| (key.as_str(), *version, (*n > 0).then_some(*n)))
            .collect();
        state.append(&n_batch(&rows)).await.unwrap();
    }
    state.materialize(false).await.unwrap();
    let (before, after) =
        (values(&state, Point::LATEST).await, values(&state, Point::at_commit(1)).await);
    let options = RestoreOptions { id: Some("r1".to_owned()), ..to(Point::at_commit(1)) };
    for (takes_place, call) in (0..).flat_map(|call| [(false, call), (true, call)]) {
        let faulty = built.forked();
        let state = open(&faulty, &clock).await.raw_state("s").await.unwrap();
        faulty.die_at(call, takes_place);
        let outcome = state.restore(&options).await;
        let died = faulty.is_dead();
        assert!(outcome.is_err() || !died, "call {call}: {outcome:?}");
        let state = open(&faulty.reborn(), &clock).await.raw_state("s").await.unwrap();
        let now = values(&state, Point::LATEST).await;
        assert!(now == before || now == after, "call {call}: {now:?}");
        let was_applied = now == after;
        let again = state.restore(&options).await.unwrap();
        let expected = match was_applied {
            true => RestoreOutcome::AlreadyApplied,
            false => RestoreOutcome::Restored,
        };
        assert_eq!(again.outcome, expected, "call {call}");
        assert_eq!(values(&state, Point::LATEST).await, after, "call {call}");
        assert_eq!(commit_of(&state).await, 4, "call {call}");
        state.append(&n_batch(&[("k1", 9, Some(9))])).await.unwrap();
        let late = state.restore(&options).await.unwrap();
        assert_eq!(late.outcome, RestoreOutcome::AlreadyApplied);
        assert_eq!(n_of(&state, Point::LATEST, "k1").await, Some(9));
        if !died {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_restored_is_refused_and_nothing_is_written() {
    let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START + 3_000 * DAY)));
    let ahead = by_time(&home.open_at(&clock).await, "s").await;
    ahead.append(&n_batch(&[("a", 1, Some(1)), ("b", 1, Some(1))])).await.unwrap();
    let time = START + 3_000 * DAY;
    ahead.append(&n_batch_at(&[("a", 2, Some(2))], &[time])).await.unwrap();
    ahead.append(&n_batch(&[("b", 2, Some(2))])).await.unwrap();
    clock.set(START + DAY);
    let state = home.open_at(&clock).await.raw_state("s").await.unwrap();
    let names = ["\"a\"", "can't be won over", "nothing was written"];
    let options = to(Point::at_commit(1));
    refused(&state, state.restore(&options), ErrorKind::InvalidInput, &names).await;
    let options = RestoreOptions { keys: KeyFilter::keys(["b".to_owned()]), ..options };
    restored(&state, &options).await;
    assert_eq!(n_of(&state, Point::LATEST, "b").await, Some(1));
    let options = to(Point::at_commit(99));
    refused(&state, state.restore(&options), ErrorKind::PointUnavailable, &["99"]).await;
    let options = RestoreOptions { id: Some(String::new()), ..to(Point::at_commit(1)) };
    refused(&state, state.restore(&options), ErrorKind::InvalidInput, &["name a restore"]).await;
}

#[test]
fn the_program_shows_the_difference_restores_and_says_how_to_undo() {
    let home = Home::new();
    succeed(&home, &["append", "s"], &(change("a/1", 1, 1) + &change("b", 1, 1)));
    let deletion = r#"{"key":"b","op":"DELETE","version":2,"event_time":"2024-01-15T10:30:01Z"}"#;
    let more = format!("{}{}{deletion}\n", change("a/1", 2, 2), change("a/2", 1, 1));
    succeed(&home, &["append", "s"], &more);
    let changes = |arguments: &[&str]| -> Vec<(String, String)> {
        let rows = lines(&succeed(&home, arguments, ""));
        let text = |row: &serde_json::Value, name: &str| row[name].as_str().unwrap().to_owned();
        rows.iter().map(|row| (text(row, "key"), text(row, "change"))).collect()
    };
    let pair = |key: &str, change: &str| (key.to_owned(), change.to_owned());
    let dry = changes(&["restore", "s", "--to", "commit:1", "--dry-run"]);
    assert_eq!(dry, [pair("a/1", "updated"), pair("a/2", "deleted"), pair("b", "inserted")]);
    let dry = changes(&["restore", "s", "--to", "commit:1", "--dry-run", "--prefix", "a/"]);
    assert_eq!(dry, [pair("a/1", "updated"), pair("a/2", "deleted")]);
    let done =
        lines(&succeed(&home, &["restore", "s", "--to", "commit:1", "--keys", "b", "a/1"], ""));
    assert_eq!(done[0]["outcome"], "restored");
    assert_eq!((&done[0]["commit"], &done[0]["before_commit"]), (&3.into(), &2.into()));
    assert_eq!((&done[0]["brought_back"], &done[0]["set_back"]), (&1.into(), &1.into()));
    assert!(changes(&["diff", "s", "commit:1", "latest"]) == [pair("a/2", "inserted")]);
    let table = succeed(&home, &["--output", "table", "restore", "s", "--to", "commit:2"], "");
    assert!(table.contains("a/1") && table.contains("n: 1 → 2"), "{table}");
    assert!(changes(&["diff", "s", "commit:2", "latest"]).is_empty());
    let again = lines(&succeed(&home, &["restore", "s", "--to", "commit:2"], ""));
    assert_eq!(again[0]["outcome"], "nothing_to_do");
    fail(&home, &["restore", "s", "--to", "commit:77"], "", 4, &["77"]);
    fail(&home, &["restore", "s", "--to", "latest"], "", 2, &["latest"]);
    fail(&home, &["restore", "s"], "", 2, &["--to"]);
    fail(&home, &["restore", "nobody", "--to", "commit:1"], "", 3, &["nobody"]);
}
