//! Forks: a state that begins as another one was, with the same files, and of which neither needs the other afterwards.

mod archive;
mod erase;
mod faults;
mod kept;
mod program;
mod promote;
mod shared;
mod sleepers;

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::{
    ErrorKind, ForkOutcome, ForkReport, ForkStatus, MaintainStep, ManualClock, OrderBy, Point,
    RawState, Store,
};
use alluvium_log::KeyFilter;
use arrow::array::RecordBatch;
use futures::TryStreamExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::support::delta;
use crate::support::search::{files_of, texts};
use crate::support::stores::{
    DAY, Home, Live, SECOND, START, assert_sound, by_time, by_version, commit_of, live, n_batch,
    n_batch_at, n_fields, n_of, ordered_by,
};

async fn fork(store: &Store, parent: &str, name: &str, at: Point) -> ForkReport {
    let report = store.fork(parent, name, at, false).await.unwrap();
    assert_eq!(report.outcome, ForkOutcome::Made, "{report:?}");
    report
}

/// A change as it was committed: commit, key, version, `n`, event time.
type Row = (i64, String, i64, Option<i64>, i64);

/// A state and every change of it. Versions are unique, so that the greatest one wins.
#[derive(Clone)]
struct Side {
    state: RawState,
    rows: Vec<Row>,
}

impl Side {
    async fn append(&mut self, clock: &ManualClock, versions: &mut i64, rng: &mut StdRng) {
        let now = clock_micros(clock);
        let rows: Vec<(String, i64, Option<i64>, i64)> = (0..rng.random_range(1..6))
            .map(|_| {
                *versions += 1;
                // Half of them come late, after greater versions of the same keys.
                let late = if rng.random_bool(0.5) { rng.random_range(0..40) * 1_000 } else { 0 };
                let version = *versions * 1_000 - late * 1_000 + *versions;
                let n = rng.random_bool(0.8).then(|| rng.random_range(0..1_000));
                let time = now - rng.random_range(0..5 * DAY) / SECOND * SECOND;
                (format!("k{}", rng.random_range(0..12)), version, n, time)
            })
            .collect();
        let times: Vec<i64> = rows.iter().map(|row| row.3).collect();
        let changes: Vec<_> = rows.iter().map(|row| (row.0.as_str(), row.1, row.2)).collect();
        let commit = self.state.append(&n_batch_at(&changes, &times)).await.unwrap().commit;
        self.rows.extend(
            rows.into_iter().map(|(key, version, n, time)| (commit, key, version, n, time)),
        );
    }

    fn expected(&self, point: Point) -> Vec<Live> {
        let mut winners: BTreeMap<&str, &Row> = BTreeMap::new();
        let within = |row: &&Row| {
            point.commit.is_none_or(|commit| row.0 <= commit)
                && point.version.is_none_or(|version| row.2 <= version)
                && point.event_time.is_none_or(|time| row.4 <= time)
        };
        for row in self.rows.iter().filter(within) {
            let winner = winners.entry(row.1.as_str()).or_insert(row);
            if row.2 > winner.2 {
                *winner = row;
            }
        }
        let alive = winners.into_values().filter(|row| row.3.is_some());
        alive.map(|row| (row.1.clone(), row.2, row.3)).collect()
    }

    fn any_point(&self, newest: i64, rng: &mut StdRng) -> Point {
        let any = |rng: &mut StdRng| rng.random_range(0..self.rows.len());
        let mut point = Point::LATEST;
        if rng.random_bool(0.5) {
            point.commit = Some(rng.random_range(0..=newest));
        }
        if rng.random_bool(0.3) {
            point.version = Some(self.rows[any(rng)].2);
        }
        if rng.random_bool(0.3) {
            point.event_time = Some(self.rows[any(rng)].4);
        }
        point
    }

    async fn check(&self, about: &str, rng: &mut StdRng) {
        let newest = commit_of(&self.state).await;
        let mut points = vec![Point::LATEST];
        points.extend((0..6).map(|_| self.any_point(newest, rng)));
        for point in points {
            let found = live(&self.state, point).await;
            assert_eq!(found, self.expected(point), "{about}: {} at {point}", self.state.name());
        }
    }

    /// The state at every commit, and every change in the order in which it came.
    async fn check_all(&self, about: &str) {
        for commit in 0..=commit_of(&self.state).await {
            let point = Point::at_commit(commit);
            assert_eq!(live(&self.state, point).await, self.expected(point), "{about}: {point}");
        }
        let mut expected: Vec<(i64, String, i64)> =
            self.rows.iter().map(|row| (row.0, row.1.clone(), row.2)).collect();
        expected.sort();
        let mut changes: Vec<(i64, String, i64)> = Vec::new();
        for batch in changes_of(&self.state).await {
            changes.extend(rows_of(&batch));
        }
        changes.sort();
        assert_eq!(changes, expected, "{about}: changes of {}", self.state.name());
    }
}

fn rows_of(batch: &RecordBatch) -> Vec<(i64, String, i64)> {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;
    let integers = |name: &str| {
        batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().values().to_vec()
    };
    let keys = batch.column_by_name("state_key").unwrap().as_string::<i32>();
    let keys = keys.iter().map(|key| key.unwrap().to_owned());
    let (commits, versions) = (integers("commit"), integers("version"));
    commits.into_iter().zip(keys).zip(versions).map(|((c, k), v)| (c, k, v)).collect()
}

async fn changes_of(state: &RawState) -> Vec<RecordBatch> {
    let basis = state.reader().basis().await.unwrap();
    let rows = state.reader().changes_rows(&basis, 0).await.unwrap();
    rows.try_collect().await.unwrap()
}

fn clock_micros(clock: &ManualClock) -> i64 {
    use alluvium::Clock;
    clock.now_ms() * 1_000
}

fn advance(clock: &ManualClock, micros: i64) {
    clock.set(clock_micros(clock) + micros);
}

async fn tidy(state: &RawState, rng: &mut StdRng) {
    match rng.random_range(0..8) {
        0 | 1 => drop(state.materialize(false).await.unwrap()),
        2 => drop(state.compact(false).await.unwrap()),
        3 => drop(state.maintain(&MaintainStep::ALL, false).await.unwrap()),
        4 => drop(state.log().table().checkpoint().await.unwrap()),
        5 => drop(state.materialize(true).await.unwrap()),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_what_its_parent_was_and_both_go_their_own_way() {
    for seed in 0..6 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START + 30 * DAY)));
        let store = home.open_at(&clock).await;
        let state = by_version(&store, "s").await;
        let mut sides = vec![Side { state, rows: Vec::new() }];
        let mut versions = 100;
        sides[0].append(&clock, &mut versions, &mut rng).await;
        for step in 0..40 {
            let about = format!("seed {seed}, step {step}");
            advance(&clock, rng.random_range(0..DAY / 4));
            let which = rng.random_range(0..sides.len());
            if step % 10 == 9 {
                let side = sides[which].clone();
                let newest = commit_of(&side.state).await;
                // As far back as its own part of the log reaches, and the versions of the tables do.
                let oldest = side.state.log().table().oldest_version().await.unwrap();
                let at = rng.random_range(oldest.max(newest - 6)..=newest);
                let name = format!("f{step}");
                let point = if rng.random_bool(0.3) { Point::LATEST } else { Point::at_commit(at) };
                let at = point.commit.unwrap_or(newest);
                let report = fork(&store, side.state.name(), &name, point).await;
                assert_eq!(report.commit, at, "{about}");
                let rows = side.rows.into_iter().filter(|row| row.0 <= at).collect();
                let state = store.raw_state(&name).await.unwrap();
                sides.push(Side { state, rows });
                sides.last().unwrap().check_all(&about).await;
            } else {
                sides[which].append(&clock, &mut versions, &mut rng).await;
                tidy(&sides[which].state, &mut rng).await;
            }
            for side in &sides {
                side.check(&about, &mut rng).await;
            }
        }
        let fresh = home.open_at(&clock).await;
        for side in &sides {
            let about = format!("seed {seed}, at the end");
            let state = fresh.raw_state(side.state.name()).await.unwrap();
            let side = Side { state, rows: side.rows.clone() };
            side.check_all(&about).await;
            // What old versions had is gone from the one, and the others don't miss it.
            advance(&clock, 40 * DAY);
            side.state.maintain(&MaintainStep::ALL, false).await.unwrap();
        }
        for side in &sides {
            side.check_all(&format!("seed {seed}, vacuumed")).await;
            assert_sound(&side.state).await;
            let looked = fresh.examine(side.state.name()).await.unwrap();
            assert!(looked.is_sound(), "seed {seed}: {looked:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_of_a_log_whose_days_have_expired_answers_what_its_parent_did() {
    let clock = Arc::new(ManualClock::at(START));
    let home = Home::new();
    let store = home.open_at(&clock).await;
    let state = by_version(&store, "s").await;
    let settings = ["log_retention=10d", "as_of_window=5d", "file_retention=6d"];
    let settings = settings.map(|text| {
        let (name, value) = text.split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    });
    state.set_maintenance(&settings).await.unwrap();
    for day in 0..40 {
        let time = START + day * DAY;
        clock.set(time + DAY / 2);
        let quiet = format!("quiet-{day}");
        let rows = [("a", day + 1, Some(day)), (quiet.as_str(), 1, Some(day))];
        state.append(&n_batch_at(&rows, &[time; 2])).await.unwrap();
        state.maintain(&MaintainStep::ALL, false).await.unwrap();
    }
    let newest = commit_of(&state).await;
    let answers = async |state: &RawState| {
        let mut found = BTreeMap::new();
        for commit in 0..=newest {
            let scan = state.scan(Point::at_commit(commit), KeyFilter::All).await;
            let Ok(rows) = scan else {
                assert_eq!(scan.err().unwrap().kind(), ErrorKind::PointUnavailable);
                continue;
            };
            let rows: Vec<RecordBatch> = rows.try_collect().await.unwrap();
            found.insert(commit, rows.iter().flat_map(texts).collect::<Vec<_>>());
        }
        found
    };
    let known = answers(&state).await;
    assert!(known.len() > 8 && known.len() < newest as usize - 8, "{:?}", known.keys());
    fork(&store, "s", "f", Point::LATEST).await;
    let forked = store.raw_state("f").await.unwrap();
    assert!(answers(&forked).await == known, "{:?}", known.keys());
    // The parent goes on, and gives up what it had then.
    let later = Arc::new(ManualClock::at(START + 90 * DAY));
    let of_parent = home.open_at(&later).await.raw_state("s").await.unwrap();
    for _ in 0..2 {
        of_parent.maintain(&MaintainStep::ALL, false).await.unwrap();
        advance(&later, DAY);
    }
    assert!(answers(&of_parent).await.len() < 5);
    let left = answers(&home.open_at(&clock).await.raw_state("f").await.unwrap()).await;
    assert!(left == known, "{:?} of {:?}", left.keys(), known.keys());
    clock.set(START + 91 * DAY);
    assert!(forked.verify().await.unwrap().is_sound());
    forked.append(&n_batch_at(&[("a", 1_000, Some(1_000))], &[START + 91 * DAY])).await.unwrap();
    forked.maintain(&MaintainStep::ALL, false).await.unwrap();
    assert_eq!(n_of(&forked, Point::LATEST, "a").await, Some(1_000));
    assert_eq!(n_of(&forked, Point::LATEST, "quiet-3").await, Some(3));
    assert!(forked.verify().await.unwrap().is_sound());
    // A commit that the parent tells nothing of any more is refused with the horizon.
    let error = store.fork("s", "g", Point::at_commit(2), false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PointUnavailable);
    assert!(error.to_string().contains("can be asked for as of commit:"), "{error}");
    assert_eq!(store.state_names().await.unwrap(), ["f", "s"]);
    assert_eq!(store.forks().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_against_the_fork_at_its_own_epoch() {
    let home = Home::new();
    let store = home.open().await;
    let state = by_time(&store, "s").await;
    let send = async |state: &RawState, number: i64| {
        let mut epoch = state.epoch("stream", number).unwrap();
        epoch.stage(&n_batch(&[("k", number, Some(number))])).await.unwrap();
        epoch.commit().await.unwrap()
    };
    for number in 1..=3 {
        send(&state, number).await;
    }
    state.log().table().checkpoint().await.unwrap();
    fork(&store, "s", "f", Point::LATEST).await;
    for number in 4..=5 {
        send(&state, number).await;
    }
    let forked = store.raw_state("f").await.unwrap();
    assert_eq!(forked.log().last_epoch("stream").await.unwrap(), Some(3));
    let again = send(&forked, 3).await;
    assert!(matches!(again, alluvium::EpochOutcome::AlreadyApplied { last: 3 }), "{again:?}");
    send(&forked, 4).await;
    assert_eq!(n_of(&forked, Point::LATEST, "k").await, Some(4));
    assert_eq!(n_of(&state, Point::LATEST, "k").await, Some(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_that_begins_with_a_checkpoint_is_there_for_who_would_create_it() {
    let home = Home::new();
    let store = home.open().await;
    let state = by_version(&store, "s").await;
    for n in 1..=3 {
        state.append(&n_batch(&[("a", n, Some(n))])).await.unwrap();
    }
    state.log().table().checkpoint().await.unwrap();
    state.log().table().clean_up(0, false).await.unwrap();
    fork(&store, "s", "f", Point::LATEST).await;
    assert!(!home.commit_file("f", 0).exists());
    let settings = || ordered_by(OrderBy::Version);
    let (found, is_new) =
        home.open().await.create_state("f", &n_fields(), settings()).await.unwrap();
    assert!(!is_new && !home.commit_file("f", 0).exists());
    assert_eq!(n_of(&found, Point::LATEST, "a").await, Some(3));
    found.append(&n_batch(&[("a", 4, Some(4))])).await.unwrap();
    let fresh = home.open().await.raw_state("f").await.unwrap();
    assert_eq!(n_of(&fresh, Point::LATEST, "a").await, Some(4));
    assert_sound(&fresh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_copied_and_savepoints_come_along_while_leases_stay_behind() {
    let home = Home::new();
    let store = home.open().await;
    let state = by_version(&store, "s").await;
    for n in 1..=5 {
        state.append(&n_batch(&[("a", n, Some(n)), ("b", n, Some(-n))])).await.unwrap();
    }
    state.create_savepoint("one", None).await.unwrap();
    let told = store.fork("s", "f", Point::LATEST, true).await.unwrap();
    assert_eq!(told.outcome, ForkOutcome::DryRun);
    assert_eq!(store.state_names().await.unwrap(), ["s"]);
    let made = fork(&store, "s", "f", Point::LATEST).await;
    assert_eq!((made.files, made.bytes), (told.files, told.bytes));
    let folder = home.folder.path();
    for (path, _) in files_of(&folder.join("f")) {
        let (own, parents) = (folder.join("f").join(&path), folder.join("s").join(&path));
        if !path.ends_with(".parquet") || path.contains("_delta_log") {
            continue;
        }
        use std::os::unix::fs::MetadataExt;
        let inode = |path: &std::path::Path| std::fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&own), inode(&parents), "{path}");
    }
    let forked = store.raw_state("f").await.unwrap();
    assert_eq!(forked.savepoints().await.unwrap(), state.savepoints().await.unwrap());
    assert!(!folder.join("f/leases").exists());
    let listed = store.forks().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].name.as_str(), listed[0].parent.as_str(), listed[0].commit, listed[0].status),
        ("f", "s", 5, ForkStatus::Whole)
    );
    // Another engine reads both tables of it.
    for (name, rows) in [("log", 10), ("snapshot", 2)] {
        let table = delta::open(&home.table("f", name)).await;
        let context = delta::session(&[("t", &table)]).await;
        let counted = delta::query(&context, "SELECT count(*) FROM t").await;
        assert!(format!("{counted:?}").contains(&format!("[\n  {rows},\n]")), "{counted:?}");
    }
    assert_sound(&forked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_points_that_make_no_fork_are_refused() {
    let home = Home::new();
    let store = home.open().await;
    let state = by_time(&store, "s").await;
    by_time(&store, "other").await;
    state.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap();
    let refuse = async |name: &str, at: Point, kind: ErrorKind, words: &[&str]| {
        let error = store.fork("s", name, at, false).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "no {word:?} in {error}");
        }
    };
    refuse("other", Point::LATEST, ErrorKind::AlreadyExists, &["other", "no fork"]).await;
    refuse("Other", Point::LATEST, ErrorKind::AlreadyExists, &["other"]).await;
    refuse("s", Point::LATEST, ErrorKind::AlreadyExists, &["\"s\""]).await;
    refuse("../x", Point::LATEST, ErrorKind::InvalidInput, &["../x"]).await;
    refuse("f", Point::at_commit(2), ErrorKind::PointUnavailable, &["commit 2", "ends at 1"]).await;
    refuse("f", Point::at_time(START), ErrorKind::InvalidInput, &["restore f --to time:"]).await;
    refuse("f", Point::at_version(1), ErrorKind::InvalidInput, &["restore f --to version:1"]).await;
    assert_eq!(store.forks().await.unwrap(), []);
    fork(&store, "s", "f", Point::at_commit(0)).await;
    refuse("f", Point::LATEST, ErrorKind::AlreadyExists, &["the fork f of s at commit 0"]).await;
    let error = store.fork("nobody", "g", Point::LATEST, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = store.drop_fork("s").await.unwrap_err();
    assert!(error.to_string().contains("s is no fork"), "{error}");
    let error = store.drop_fork("g").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("there is f"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_fork_is_gone_and_its_name_is_free() {
    let home = Home::new();
    let store = home.open().await;
    let state = by_version(&store, "s").await;
    state.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap();
    state.materialize(false).await.unwrap();
    fork(&store, "s", "f", Point::LATEST).await;
    let forked = store.raw_state("f").await.unwrap();
    forked.append(&n_batch(&[("a", 2, Some(2))])).await.unwrap();
    fork(&store, "f", "g", Point::LATEST).await;
    let other = home.open().await.raw_state("f").await.unwrap();
    assert_eq!(n_of(&other, Point::LATEST, "a").await, Some(2));
    store.drop_fork("f").await.unwrap();
    assert_eq!(store.state_names().await.unwrap(), ["g", "s"]);
    assert!(files_of(&home.folder.path().join("f")).is_empty());
    assert_eq!(store.raw_state("f").await.unwrap_err().kind(), ErrorKind::NotFound);
    // What had it open is told, and doesn't take the next one of the name for it.
    let error = other.append(&n_batch(&[("a", 3, Some(3))])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityChanged, "{error}");
    fork(&store, "s", "f", Point::LATEST).await;
    let error = other.append(&n_batch(&[("a", 3, Some(3))])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::IdentityChanged, "{error}");
    let again = store.raw_state("f").await.unwrap();
    assert_eq!(n_of(&again, Point::LATEST, "a").await, Some(1));
    let child = store.raw_state("g").await.unwrap();
    assert_eq!(n_of(&child, Point::LATEST, "a").await, Some(2));
    assert_eq!(n_of(&state, Point::LATEST, "a").await, Some(1));
    store.drop_fork("f").await.unwrap();
    by_time(&store, "f").await;
    assert_eq!(store.drop_fork("f").await.unwrap_err().kind(), ErrorKind::InvalidInput);
}
