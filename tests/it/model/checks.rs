//! Comparing every kind of read with the model, at points drawn at random.

use alluvium::{Basis, ErrorKind, Lookup, NamedPoint, Point, RawState};
use alluvium_log::KeyFilter;
use alluvium_materializer::whole_value;
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use futures::TryStreamExt;
use rand::Rng;
use rand::seq::IndexedRandom;

use super::expiry::{answered, is_late_told, saved_point, told};
use super::floors::is_forgotten;
use super::ledger::{Difference, Row};
use super::run::World;
use crate::support::rows::{Value, flags, seen, values};
use crate::support::stores;

/// A few reads by some handle.
pub(crate) async fn some(world: &mut World) {
    let handle = world.rng.random_range(0..world.handles.len());
    let (state, basis) = pin(world, handle).await;
    let point = match saved_point(world) {
        Some(point) => point,
        None => world.pools.point(&mut world.rng, world.newest),
    };
    get(world, &state, &basis, point).await;
    match world.rng.random_range(0..5) {
        4 => sql(world, handle, &basis, point).await,
        0 => scan(world, &state, &basis, point).await,
        1 => history(world, &state, &basis, point).await,
        2 => diff(world, &state, &basis, point).await,
        _ => changes(world, &state, &basis).await,
    }
    known_at(world, &state).await;
}

/// What was known a while after some commit, before the clock went on by days: the last one of then, where its commit is left.
async fn known_at(world: &mut World, state: &RawState) {
    let Some((_, made)) = world.commits.choose(&mut world.rng).copied() else { return };
    let time = made + stores::DAY / 24;
    if !world.kind.months || time > world.now() {
        return;
    }
    let newest = world.commits.iter().filter(|known| known.1 == made).map(|known| known.0).max();
    match state.reader().point(&NamedPoint::known_at(time)).await {
        Ok(point) => assert_eq!((point.commit, point.version), (newest, None), "known at {time}"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
            assert!(!newest.is_some_and(|commit| world.is_told_at(commit)), "{error}");
        }
    }
}

/// Every kind of read by every handle, and the latest state by all of them.
pub(crate) async fn everything(world: &mut World) {
    sound(world).await;
    for handle in 0..world.handles.len() {
        let (state, basis) = pin(world, handle).await;
        let points = (0..3).map(|_| world.pools.point(&mut world.rng, world.newest));
        for point in points.chain([Point::LATEST]).collect::<Vec<_>>() {
            as_of(world, &state, &basis, point).await;
            sql(world, handle, &basis, point).await;
        }
    }
}

/// Every kind of read at one basis.
pub(crate) async fn as_of(world: &mut World, state: &RawState, basis: &Basis, point: Point) {
    get(world, state, basis, point).await;
    scan(world, state, basis, point).await;
    history(world, state, basis, point).await;
    diff(world, state, basis, point).await;
    changes(world, state, basis).await;
}

/// The snapshot is the fold of the log up to its commit.
pub(crate) async fn sound(world: &mut World) {
    let handle = world.rng.random_range(0..world.handles.len());
    let report = world.handles[handle].verify().await.unwrap();
    assert!(report.is_sound(), "{report:?}");
    let mut winners = world.ledger.fold(Point::at_commit(report.log_commit));
    let floor = world.floors.at(report.log_commit);
    winners.retain(|_, row| !is_forgotten(row, floor));
    assert_eq!(report.keys, winners.len() as u64);
    assert_eq!(report.live_keys, winners.values().filter(|row| row.value.is_some()).count() as u64);
    if let Some(live) = world.handles[handle].snapshot().state().live_keys() {
        assert_eq!(live, report.live_keys);
    }
}

async fn pin(world: &World, handle: usize) -> (RawState, Basis) {
    let state = world.handles[handle].clone();
    let basis = state.reader().basis().await.unwrap();
    assert_eq!(basis.commit(), world.newest);
    (state, basis)
}

async fn get(world: &mut World, state: &RawState, basis: &Basis, point: Point) {
    let mut keys: Vec<String> = (0..6).map(|_| world.pools.key(&mut world.rng)).collect();
    keys.insert(2, "no such key".to_owned());
    let wanted: Vec<&str> = keys.iter().map(String::as_str).collect();
    let found = state.reader().multi_get(basis, point, &wanted).await;
    let Some(found) = answered(world, basis, &[point], found) else { return };
    assert_eq!(found.len(), keys.len());
    let winners = world.ledger.fold(point);
    for (key, lookup) in wanted.iter().zip(&found) {
        check_lookup(world, basis, winners.get(key).copied(), lookup, (key, point));
    }
    let single = state.reader().get(basis, point, wanted[0]).await.unwrap();
    let first = winners.get(wanted[0]).copied();
    check_lookup(world, basis, first, &single, (wanted[0], point));
}

fn check_lookup(
    world: &World,
    basis: &Basis,
    winner: Option<&Row>,
    lookup: &Lookup,
    (key, point): (&str, Point),
) {
    let row = match (winner, lookup) {
        (None, Lookup::Absent) => return,
        // Whether it is forgotten or was never there can't be told.
        (Some(winner), Lookup::Absent) if is_forgotten(winner, world.floors.at(basis.commit())) => {
            return;
        }
        (Some(winner), Lookup::Deleted(row)) if winner.value.is_none() => row,
        (Some(winner), Lookup::Found(row)) if winner.value.is_some() => row,
        (winner, lookup) => {
            panic!("{key:?} at {point}: the model has {winner:?}, the store {lookup:?}")
        }
    };
    let seen = seen(row);
    assert_eq!(seen.len(), 1);
    let winner = winner.unwrap();
    assert!(
        world.ledger.is_row(winner, &seen[0]),
        "{key:?} at {point}: the model has {winner:?}, the store {seen:?}"
    );
}

/// Some keys: all, a prefix, a range (which may be empty), or a list.
fn some_keys(world: &mut World) -> KeyFilter {
    let rng = &mut world.rng;
    match rng.random_range(0..6) {
        0 => KeyFilter::prefix(
            ["a", "a/", "b", "é", "long", "", "\u{10ffff}", "zz"].choose(rng).unwrap(),
        ),
        1 => KeyFilter::Range { from: Some(world.pools.key(rng)), to: Some(world.pools.key(rng)) },
        2 => KeyFilter::Range { from: Some(world.pools.key(rng)), to: None },
        3 => KeyFilter::Range { from: None, to: Some(world.pools.key(rng)) },
        4 => KeyFilter::keys((0..5).map(|_| world.pools.key(rng)).collect::<Vec<_>>()),
        _ => KeyFilter::All,
    }
}

async fn scan(world: &mut World, state: &RawState, basis: &Basis, point: Point) {
    let keys = some_keys(world);
    let partitions = *[1, 3].choose(&mut world.rng).unwrap();
    let payload = whole_value(basis.definition());
    let streams = state.reader().scan(basis, point, keys.clone(), payload, partitions).await;
    let Some(streams) = answered(world, basis, &[point], streams) else { return };
    assert!((1..=partitions).contains(&streams.len()));
    let mut rows = Vec::new();
    for stream in streams {
        let batches: Vec<RecordBatch> = stream.try_collect().await.unwrap();
        rows.extend(batches.iter().flat_map(seen));
    }
    let winners = world.ledger.fold(point);
    let expected: Vec<&Row> =
        winners.into_values().filter(|row| row.value.is_some() && keys.matches(&row.key)).collect();
    let read: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
    let wanted: Vec<&str> = expected.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(
        read, wanted,
        "the keys of a scan of {keys:?} at {point} in {partitions} partitions"
    );
    for (row, seen) in expected.iter().zip(&rows) {
        assert!(
            world.ledger.is_row(row, seen),
            "scan at {point}: the model has {row:?}, the store {seen:?}"
        );
    }
    let bare = state.reader().scan(basis, point, keys, Vec::new(), 1).await.unwrap().pop().unwrap();
    let bare: Vec<RecordBatch> = bare.try_collect().await.unwrap();
    assert_eq!(
        bare.iter().map(RecordBatch::num_rows).sum::<usize>(),
        rows.len(),
        "a scan without values"
    );
}

async fn history(world: &mut World, state: &RawState, basis: &Basis, point: Point) {
    let keys = some_keys(world);
    let whole = state.reader().history_rows(basis, keys.clone(), point).await;
    let (rows, after) = match told(basis, 0, whole) {
        Some(rows) => (rows, 0),
        None => {
            let after = basis.expired_commit();
            let rows = state.reader().history_rows_after(basis, keys.clone(), point, after).await;
            (rows.unwrap(), after)
        }
    };
    let batches: Vec<RecordBatch> = rows.try_collect().await.unwrap();
    let mut expected = world.ledger.history(point, |key| keys.matches(key));
    expected.retain(|(row, _)| row.commit > after);
    let read: Vec<_> = batches.iter().flat_map(provenance).collect();
    assert_eq!(read.len(), expected.len(), "rows of the history of {keys:?} at {point}");
    for ((row, late), (seen, is_late)) in expected.iter().zip(&read) {
        check_row(row, seen);
        is_late_told(world, basis, row, *late, *is_late);
    }
}

async fn changes(world: &mut World, state: &RawState, basis: &Basis) {
    let after = world.rng.random_range(0..=world.newest);
    let rows = state.reader().changes_rows(basis, after).await;
    let Some(rows) = told(basis, after, rows) else { return };
    let batches: Vec<RecordBatch> = rows.try_collect().await.unwrap();
    let expected = world.ledger.changes(after);
    let read: Vec<_> = batches.iter().flat_map(provenance).collect();
    assert_eq!(read.len(), expected.len(), "rows of the changes after {after}");
    for (row, (seen, is_late)) in expected.iter().zip(&read) {
        check_row(row, seen);
        assert_eq!(*is_late, None);
    }
}

fn check_row(row: &Row, seen: &Row) {
    let seen = Row { seq: row.seq, ..seen.clone() };
    assert_eq!(*row, seen);
}

/// Rows of a history, as the model has them, and whether each is late.
fn provenance(batch: &RecordBatch) -> Vec<(Row, Option<bool>)> {
    let named = |name: &str| batch.column_by_name(name).unwrap();
    let apps = named("app_id").as_string::<i32>();
    let epochs = named("epoch").as_primitive::<Int64Type>();
    let late = flags(named("is_late"));
    seen(batch)
        .into_iter()
        .enumerate()
        .map(|(index, seen)| {
            let epoch =
                apps.is_valid(index).then(|| (apps.value(index).to_owned(), epochs.value(index)));
            let row = Row {
                key: seen.key,
                version: seen.version,
                event_time: seen.event_time,
                value: seen.value,
                commit: seen.commit,
                seq: 0,
                epoch,
            };
            (row, late[index])
        })
        .collect()
}

async fn diff(world: &mut World, state: &RawState, basis: &Basis, from: Point) {
    let mut to = world.pools.point(&mut world.rng, world.newest);
    if world.rng.random_bool(0.5) {
        // Points that differ by commit only are answered by another path.
        to = Point { commit: to.commit, ..from };
    }
    let keys = some_keys(world);
    let rows = state.reader().diff_rows(basis, from, to, keys.clone()).await;
    let Some(rows) = answered(world, basis, &[from, to], rows) else { return };
    let batches: Vec<RecordBatch> = rows.try_collect().await.unwrap();
    let read: Vec<Difference> = batches.iter().flat_map(differences).collect();
    let mut expected = world.ledger.diff(from, to);
    expected.retain(|difference| keys.matches(&difference.key));
    assert_eq!(read, expected, "the difference of {from} and {to} in {keys:?}");
    let (before, after) = (world.ledger.fold(from), world.ledger.fold(to));
    let orders = batches.iter().flat_map(|batch| {
        let versions = batch.column_by_name("version").unwrap().as_primitive::<Int64Type>();
        let times =
            batch.column_by_name("event_time").unwrap().as_primitive::<TimestampMicrosecondType>();
        (0..batch.num_rows()).map(|row| (versions.value(row), times.value(row))).collect::<Vec<_>>()
    });
    for (difference, order) in expected.iter().zip(orders) {
        let side = if difference.after.is_some() { &after } else { &before };
        let row = side[difference.key.as_str()];
        assert_eq!((row.version, row.event_time), order, "{difference:?}");
    }
}

fn differences(batch: &RecordBatch) -> Vec<Difference> {
    let named = |name: &str| batch.column_by_name(name).unwrap();
    let keys = named("state_key").as_string::<i32>();
    let kinds = named("change").as_string::<i32>();
    let (before, after) = (values(named("before")), values(named("after")));
    before
        .into_iter()
        .zip(after)
        .enumerate()
        .map(|(row, (before, after))| Difference {
            key: keys.value(row).to_owned(),
            change: ["inserted", "updated", "deleted"]
                .into_iter()
                .find(|kind| *kind == kinds.value(row))
                .unwrap(),
            before,
            after,
        })
        .collect()
}

/// The same by SQL, in as many partitions as the handle has.
async fn sql(world: &World, handle: usize, basis: &Basis, point: Point) {
    if point.event_time.is_some_and(|time| time < alluvium_log::MIN_EVENT_TIME) {
        return; // Not to be written as text.
    }
    let query = format!(
        "SELECT state_key, version, event_time, n, text, object['a'] AS a FROM as_of('{}', '{point}') ORDER BY state_key",
        world.name
    );
    let rows = stores::sql(&world.stores[handle], &query).await;
    let Some(rows) = answered(world, basis, &[point], rows) else { return };
    let named = |name: &str| rows.column_by_name(name).unwrap();
    let (keys, texts) = (named("state_key").as_string::<i32>(), named("text").as_string::<i32>());
    let number = |name: &str, row: usize| {
        let numbers = named(name).as_primitive::<Int64Type>();
        numbers.is_valid(row).then(|| numbers.value(row))
    };
    let times = named("event_time").as_primitive::<TimestampMicrosecondType>();
    let winners = world.ledger.fold(point);
    let expected: Vec<(&Row, &Value)> =
        winners.into_values().filter_map(|row| Some((row, row.value.as_ref()?))).collect();
    assert_eq!(rows.num_rows(), expected.len(), "{query}");
    for (index, (row, value)) in expected.into_iter().enumerate() {
        assert_eq!(keys.value(index), row.key, "{query}");
        let seen =
            (number("version", index), times.value(index), number("n", index), number("a", index));
        let a = value.object.as_ref().and_then(|object| object.0);
        assert_eq!(
            seen,
            (Some(row.version), row.event_time, Some(value.n), a),
            "{query}: {:?}",
            row.key
        );
        assert_eq!(texts.is_valid(index).then(|| texts.value(index)), value.text.as_deref());
    }
}
