//! Forks of a state whose days have expired: a fork answers what its parent did when it was made, by savepoints and the grid too, and what
//! was known at a time; where that is all that is left of a commit a fork begins with it; and what refuses names what helps, which does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alluvium::{
    ErrorKind, MaintainStep, ManualClock, NamedPoint, OrderBy, Point, PromoteOptions, RawState,
    RestoreOptions, Store,
};
use alluvium_log::KeyFilter;

use super::{advance, fork};
use crate::cases::expire::{asked, expired};
use crate::support::faults::{FaultyStore, open};
use crate::support::stores::{
    DAY, Home, Live, START, assert_sound, commit_of, create, live, n_batch_at, n_fields, n_of, set,
};

const DAYS: i64 = 24;
const HOUR: i64 = DAY / 24;

/// A row, with the commit that it came with.
struct Row {
    commit: i64,
    key: String,
    version: i64,
    time: i64,
    n: Option<i64>,
}

/// All rows that a state ever had, and when its commits were made.
#[derive(Default)]
struct Told {
    rows: Vec<Row>,
    /// When each commit was made, by the clock.
    made: BTreeMap<i64, i64>,
    savepoints: BTreeMap<String, i64>,
}

/// What is answered of some points: nothing where it was refused.
type Answers = BTreeMap<String, Option<Vec<Live>>>;

impl Told {
    fn fold(&self, order_by: OrderBy, point: Point) -> Vec<Live> {
        let within = |bound: Option<i64>, value| bound.is_none_or(|bound| value <= bound);
        let mut winners: BTreeMap<&str, &Row> = BTreeMap::new();
        for row in self.rows.iter().filter(|row| {
            within(point.commit, row.commit)
                && within(point.version, row.version)
                && within(point.event_time, row.time)
        }) {
            let order = |row: &Row| match order_by {
                OrderBy::EventTime => (row.time, row.version),
                OrderBy::Version => (row.version, row.time),
            };
            let winner = winners.entry(&row.key).or_insert(row);
            if order(row) > order(winner) {
                *winner = row;
            }
        }
        let alive = winners.into_values().filter(|row| row.n.is_some());
        alive.map(|row| (row.key.clone(), row.version, row.n)).collect()
    }

    /// Every nth point up to a commit that there is a reason to ask for.
    fn points(&self, up_to: i64, nth: usize) -> Vec<Point> {
        let at = Point::at_commit(up_to);
        let mut points: Vec<Point> = (0..=up_to).step_by(nth).map(Point::at_commit).collect();
        for day in (0..DAYS).step_by(nth) {
            points.push(at.and(Point::at_version(day)));
            points.push(at.and(Point::at_time(START + day * DAY)));
        }
        points
    }

    /// What a state answers; each answer is that of all rows.
    async fn answers(&self, state: &RawState, up_to: i64, about: &str) -> Answers {
        self.some_answers(state, (up_to, 1), about).await
    }

    async fn some_answers(
        &self,
        state: &RawState,
        (up_to, nth): (i64, usize),
        about: &str,
    ) -> Answers {
        let order_by = state.log().definition().order_by;
        let mut answers = Answers::new();
        for point in self.points(up_to, nth) {
            let found = asked(state, point).await.ok();
            if let Some(found) = &found {
                assert_eq!(*found, self.fold(order_by, point), "{about}: {point}");
            }
            answers.insert(point.to_string(), found);
        }
        answers
    }

    /// The commit that was the newest at a time.
    fn known_at(&self, time: i64) -> Option<i64> {
        self.made.iter().filter(|(_, made)| **made <= time).map(|(commit, _)| *commit).max()
    }
}

/// What a state tells of what was known after each of its parent's commits, up to one.
async fn known(told: &Told, state: &RawState, up_to: i64) -> BTreeMap<i64, Option<i64>> {
    let mut known = BTreeMap::new();
    let times: BTreeSet<i64> = told.made.range(..=up_to).map(|(_, made)| *made).collect();
    for time in times {
        let found = match state.reader().point(&NamedPoint::known_at(time + 1_000_000)).await {
            Ok(point) => point.commit,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
                None
            }
        };
        if let Some(found) = found {
            assert_eq!(Some(found), told.known_at(time + 1_000_000), "known at {time}");
        }
        known.insert(time, found);
    }
    known
}

fn answered(answers: &Answers) -> BTreeSet<&str> {
    let answered = answers.iter().filter(|(_, found)| found.is_some());
    answered.map(|(point, _)| point.as_str()).collect()
}

/// A state whose days expire, with savepoints and a grid; and all that it ever was.
async fn built(store: &Store, clock: &ManualClock, order_by: OrderBy, is_vacuumed: bool) -> Told {
    let state = create(store, "s", &n_fields(), order_by).await;
    let spans = [
        ("log_retention", "5d"),
        ("as_of_window", "2d"),
        ("file_retention", "2d"),
        ("commit_retention", "8d"),
        ("snapshot_grid", "2d:14d"),
    ];
    set(&state, &spans).await;
    if order_by == OrderBy::EventTime {
        // Days expire from the archive.
        set(&state, &[("hot_days", "3d")]).await;
    }
    let mut told = Told::default();
    let is_wanted = |step: &MaintainStep| is_vacuumed || *step != MaintainStep::Vacuum;
    let steps: Vec<_> = MaintainStep::ALL.into_iter().filter(is_wanted).collect();
    for day in 0..DAYS {
        let time = START + day * DAY;
        clock.set(time + DAY / 2);
        note_commits(&state, &mut told, clock).await;
        let rows = [
            ("daily".to_owned(), day, Some(day)),
            (format!("d{day:02}"), day, Some(day)),
            (format!("d{:02}", (day + 5) % DAYS), day, (day % 3 > 0).then_some(-day)),
        ];
        for part in rows.chunks(2) {
            let changes: Vec<_> = part.iter().map(|(key, v, n)| (key.as_str(), *v, *n)).collect();
            let times = vec![time; changes.len()];
            let commit = state.append(&n_batch_at(&changes, &times)).await.unwrap().commit;
            let kept = part.iter().map(|(key, version, n)| Row {
                commit,
                key: key.clone(),
                version: *version,
                time,
                n: *n,
            });
            told.rows.extend(kept);
            note_commits(&state, &mut told, clock).await;
            clock.set(time + DAY / 2 + HOUR);
        }
        state.maintain(&steps, false).await.unwrap();
        note_commits(&state, &mut told, clock).await;
        if day % 7 == 3 {
            let name = format!("day-{day}");
            let saved = state.create_savepoint(&name, None).await.unwrap();
            told.savepoints.insert(name, saved.log_commit);
        }
    }
    assert!(expired(&state) > 0);
    told
}

async fn note_commits(state: &RawState, told: &mut Told, clock: &ManualClock) {
    let newest = commit_of(state).await;
    for commit in told.made.last_key_value().map_or(0, |(last, _)| last + 1)..=newest {
        told.made.insert(commit, super::clock_micros(clock));
    }
}

/// The points that savepoints and the grid keep alone.
async fn kept_commits(state: &RawState) -> BTreeSet<i64> {
    let mut kept = state.savepoints().await.unwrap();
    kept.extend(state.grid_snapshots().await.unwrap());
    kept.iter().map(|kept| kept.log_commit).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_answers_all_that_its_parent_answered_whatever_kept_it() {
    for (order_by, is_vacuumed) in
        [(OrderBy::Version, true), (OrderBy::EventTime, true), (OrderBy::Version, false)]
    {
        let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START)));
        let store = home.open_at(&clock).await;
        let told = built(&store, &clock, order_by, is_vacuumed).await;
        let about = format!("{order_by}, {is_vacuumed}");
        let state = store.raw_state("s").await.unwrap();
        let newest = commit_of(&state).await;
        let before = told.answers(&state, newest, &about).await;
        let known_before = known(&told, &state, newest).await;
        assert!(known_before.values().any(Option::is_some));
        assert!(!is_vacuumed || answered(&before).len() < before.len() / 2, "{about}");
        let made = fork(&store, "s", "f", Point::LATEST).await;
        fork(&store, "f", "g", Point::at_commit(newest)).await;
        let kept =
            state.savepoints().await.unwrap().len() + state.grid_snapshots().await.unwrap().len();
        assert_eq!((made.kept, made.without_log), (kept as u64, false));

        // The parent gives up what it had, savepoints too.
        for name in told.savepoints.keys() {
            state.release_savepoint(name).await.unwrap();
        }
        let later = Arc::new(ManualClock::at(START + 90 * DAY));
        let of_parent = home.open_at(&later).await.raw_state("s").await.unwrap();
        for _ in 0..3 {
            of_parent.maintain(&MaintainStep::ALL, false).await.unwrap();
            advance(&later, 3 * DAY);
        }
        let of_parent = told.answers(&of_parent, newest, &about).await;
        assert!(answered(&of_parent).len() < answered(&before).len() / 2, "{about}");
        for name in ["f", "g"] {
            let about = format!("{about}, {name}");
            let forked = home.open_at(&clock).await.raw_state(name).await.unwrap();
            let left = told.answers(&forked, newest, &about).await;
            assert_eq!(answered(&left), answered(&before), "{about}");
            assert_eq!(known(&told, &forked, newest).await, known_before, "{about}");
            let found = forked.savepoints().await.unwrap();
            let found = found.iter().map(|kept| (kept.name.clone(), kept.log_commit)).collect();
            assert_eq!(told.savepoints, found, "{about}");
            let looked = store.examine(name).await.unwrap();
            assert!(looked.is_sound(), "{about}: {looked:?}");
            assert_sound(&forked).await;
        }

        // The fork keeps what its own settings promise: savepoints, and marks of the grid.
        for name in ["f", "g"] {
            let about = format!("{about}, {name} later");
            let later = Arc::new(ManualClock::at(START + DAYS * DAY));
            let forked = home.open_at(&later).await.raw_state(name).await.unwrap();
            forked
                .append(&n_batch_at(&[("own", DAYS, Some(1))], &[START + DAYS * DAY]))
                .await
                .unwrap();
            forked.maintain(&MaintainStep::ALL, false).await.unwrap();
            let marks = forked.grid_snapshots().await.unwrap();
            assert!(marks.iter().any(|mark| mark.log_commit < newest - 20), "{about}: {marks:?}");
            for mark in marks.iter().filter(|mark| mark.log_commit <= newest) {
                let point = Point::at_commit(mark.log_commit);
                assert_eq!(
                    asked(&forked, point).await.unwrap(),
                    told.fold(order_by, point),
                    "{about}"
                );
            }
            later.set(START + 90 * DAY);
            for _ in 0..3 {
                forked.maintain(&MaintainStep::ALL, false).await.unwrap();
                advance(&later, 3 * DAY);
            }
            assert!(forked.grid_snapshots().await.unwrap().len() < 9, "{about}");
            for (savepoint, commit) in &told.savepoints {
                let point = Point::at_commit(*commit);
                let named = NamedPoint::at_savepoint(savepoint);
                assert_eq!(forked.reader().point(&named).await.unwrap(), point);
                assert_eq!(
                    asked(&forked, point).await.unwrap(),
                    told.fold(order_by, point),
                    "{about}"
                );
            }
            let looked = store.examine(name).await.unwrap();
            assert!(looked.is_sound(), "{about}: {looked:?}");
            assert_sound(&forked).await;
        }
        // What one lets go of the other one keeps.
        let (f, g) = (store.raw_state("f").await.unwrap(), store.raw_state("g").await.unwrap());
        f.release_savepoint("day-3").await.unwrap();
        assert_eq!(g.savepoints().await.unwrap().len(), told.savepoints.len());
        assert_eq!(f.savepoints().await.unwrap().len(), told.savepoints.len() - 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_begins_with_whatever_the_parent_keeps_and_else_the_error_leads_there() {
    for order_by in [OrderBy::Version, OrderBy::EventTime] {
        let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START)));
        let store = home.open_at(&clock).await;
        let told = built(&store, &clock, order_by, true).await;
        let state = store.raw_state("s").await.unwrap();
        let newest = commit_of(&state).await;
        let kept = kept_commits(&state).await;
        assert!(told.savepoints.values().all(|commit| kept.contains(commit)));
        let (mut whole, mut alone, mut restored, mut refused) = (0, 0, 0, 0);
        for commit in 0..=newest {
            let (point, name) = (Point::at_commit(commit), format!("f{commit}"));
            let about = format!("{order_by}, {name}");
            let is_answered = asked(&state, point).await.is_ok();
            let expected = told.fold(order_by, point);
            match store.fork("s", &name, point, false).await {
                Ok(made) => {
                    let forked = store.raw_state(&name).await.unwrap();
                    assert_eq!(live(&forked, Point::LATEST).await, expected, "{about}");
                    let answers = told.some_answers(&forked, (commit, 5), &about).await;
                    let of_parent = told.some_answers(&state, (commit, 5), &about).await;
                    if made.without_log {
                        alone += 1;
                        assert!(kept.contains(&commit) && made.commit == commit, "{about}");
                        assert_eq!(expired(&forked), commit, "{about}");
                        for kept in kept.range(..=commit) {
                            let point = Point::at_commit(*kept);
                            let found = asked(&forked, point).await.unwrap();
                            assert_eq!(found, told.fold(order_by, point), "{about}: {kept}");
                        }
                    } else {
                        whole += 1;
                        assert!(answered(&answers).is_superset(&answered(&of_parent)), "{about}");
                    }
                    goes_on(&store, &forked, commit, &about).await;
                }
                Err(error) => {
                    assert!(!kept.contains(&commit), "{about}: {error}");
                    assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{about}: {error}");
                    let text = error.to_string();
                    let remedy = format!("`alluvium restore {name} --to commit:{commit}`");
                    assert_eq!(text.contains(&remedy), is_answered, "{about}: {text}");
                    let to = match is_answered {
                        true => commit,
                        // The horizon that it names.
                        false => asked(&state, point).await.unwrap_err().horizon.commit,
                    };
                    assert!(text.contains(&format!("commit:{to}")), "{about}: {text}");
                    *(if is_answered { &mut restored } else { &mut refused }) += 1;
                    if is_answered || refused % 8 == 1 {
                        fork(&store, "s", &name, Point::LATEST).await;
                        leads_to(&store, &name, to, &told).await;
                    }
                }
            }
            if store.state_names().await.unwrap().contains(&name) {
                store.drop_fork(&name).await.unwrap();
            }
        }
        let counts = (whole, alone, restored, refused);
        assert!(whole > 2 && alone > 4 && restored > 2 && refused > 10, "{counts:?}");
        // Neither a version nor a time that is not told any more leads to a second refusal.
        for point in [Point::at_version(2), Point::at_time(START + 2 * DAY)] {
            let error = store.fork("s", "x", point, false).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
            assert!(error.to_string().contains("nor does it tell any more"), "{error}");
        }
    }
}

/// What was said to help does.
async fn leads_to(store: &Store, name: &str, commit: i64, told: &Told) {
    let forked = store.raw_state(name).await.unwrap();
    let to = Point::at_commit(commit);
    let options = RestoreOptions { to, keys: KeyFilter::All, id: None, dry_run: false };
    forked.restore(&options).await.unwrap();
    let values = |rows: Vec<Live>| -> Vec<(String, Option<i64>)> {
        rows.into_iter().map(|(key, _, n)| (key, n)).collect()
    };
    let expected = told.fold(forked.log().definition().order_by, to);
    assert_eq!(values(live(&forked, Point::LATEST).await), values(expected), "{name}");
}

/// A fork is appended to, maintained, made anew and promoted as any state.
async fn goes_on(store: &Store, forked: &RawState, commit: i64, about: &str) {
    let before = live(forked, Point::LATEST).await;
    let time = START + DAYS * DAY;
    forked.append(&n_batch_at(&[("own", 10_000, Some(7))], &[time])).await.unwrap();
    let mut expected = before.clone();
    expected.push(("own".to_owned(), 10_000, Some(7)));
    expected.sort();
    for rebuild in [false, true] {
        forked.materialize(rebuild).await.unwrap();
        assert_eq!(live(forked, Point::LATEST).await, expected, "{about}");
    }
    forked.maintain(&MaintainStep::ALL, false).await.unwrap();
    assert_eq!(live(forked, Point::at_commit(commit)).await, before, "{about}");
    assert_sound(forked).await;
    let looked = store.examine(forked.name()).await.unwrap();
    assert!(looked.is_sound(), "{about}: {looked:?}");
    let told =
        store.promote_fork(forked.name(), &PromoteOptions { dry_run: true, overwrite: false });
    let told = told.await.unwrap();
    assert_eq!((told.upserted, told.deleted), (1, 0), "{about}");
}

/// A stream's progress is not known where there is no log of then: what it sends is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_of_a_savepoint_alone_takes_the_first_epoch_of_each_stream() {
    let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START)));
    let store = home.open_at(&clock).await;
    let told = built(&store, &clock, OrderBy::Version, true).await;
    let made = fork(&store, "s", "f", Point::at_commit(told.savepoints["day-3"])).await;
    assert!(made.without_log && made.kept > 0, "{made:?}");
    let forked = store.raw_state("f").await.unwrap();
    let mut epoch = forked.epoch("stream", 1).unwrap();
    epoch.stage(&n_batch_at(&[("streamed", 99, Some(1))], &[START + DAYS * DAY])).await.unwrap();
    epoch.commit().await.unwrap();
    assert_eq!(n_of(&forked, Point::LATEST, "streamed").await, Some(1));
    // Other engines open it, and those who would create it find it.
    let fresh = home.open_at(&clock).await.raw_state("f").await.unwrap();
    assert_eq!(n_of(&fresh, Point::LATEST, "daily").await, Some(3));
    for name in ["log", "snapshot"] {
        crate::support::delta::open(&home.table("f", name)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_maker_that_dies_at_any_call_leaves_no_fork_of_a_savepoint_or_a_whole_one() {
    let clock = Arc::new(ManualClock::at(START));
    let parent = FaultyStore::new();
    let told = built(&open(&parent, &clock).await, &clock, OrderBy::Version, true).await;
    let saved = told.savepoints["day-10"];
    let newest = commit_of(&open(&parent, &clock).await.raw_state("s").await.unwrap()).await;
    for at in [saved, newest] {
        let point = Point::at_commit(at);
        let kept = kept_commits(&open(&parent, &clock).await.raw_state("s").await.unwrap()).await;
        let kept: Vec<i64> = kept.range(..=at).copied().collect();
        let (mut cut, mut whole) = (0, 0);
        for call in 0.. {
            let takes_place = call % 2 == 0;
            let about = format!("call {call}, at {at}");
            let faulty = parent.forked();
            let store = open(&faulty, &clock).await;
            store.raw_state("s").await.unwrap();
            faulty.die_at(call, takes_place);
            let outcome = store.fork("s", "f", point, false).await;
            let died = faulty.is_dead();
            assert!(outcome.is_err() || !died, "{about}");
            let store = open(&faulty.reborn(), &clock).await;
            match store.state_names().await.unwrap().len() {
                1 => {
                    cut += usize::from(!store.forks().await.unwrap().is_empty());
                    // Meanwhile the parent lets go of some.
                    let state = store.raw_state("s").await.unwrap();
                    if call % 3 == 0 {
                        state.release_savepoint("day-3").await.unwrap();
                    }
                    store.fork("s", "f", point, false).await.unwrap();
                }
                _ => whole += 1,
            }
            let forked = store.raw_state("f").await.unwrap();
            assert_eq!(live(&forked, Point::LATEST).await, told.fold(OrderBy::Version, point));
            for commit in kept.iter().filter(|kept| **kept != told.savepoints["day-3"]) {
                let point = Point::at_commit(*commit);
                let found = asked(&forked, point).await.unwrap();
                assert_eq!(found, told.fold(OrderBy::Version, point), "{about}: {commit}");
            }
            if call % 5 == 0 {
                assert_sound(&forked).await;
                let looked = store.examine("f").await.unwrap();
                assert!(looked.is_sound(), "{about}: {looked:?}");
            }
            if !died {
                break;
            }
        }
        assert!(cut > 10 && whole > 1, "{cut} and {whole}");
    }
}
