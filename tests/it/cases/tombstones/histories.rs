//! Random histories beside a model that never forgets: whatever is done, every answer stays, or is refused by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::{
    BelowFloor, ErrorKind, Floor, HistoryExpired, LayoutSettings, MaintainStep, ManualClock, Point,
    RawState, StepOutcome, Store, StoreSettings,
};
use alluvium_log::KeyFilter;
use futures::TryStreamExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::let_forget;
use crate::support::stores::{
    DAY, Home, Live, START, by_time, live, live_of, n_batch_at, set, settings,
};

/// A row as the test knows it: key, time, version, commit, value.
type Row = (String, i64, i64, i64, Option<i64>);

/// The live rows by the definition of the fold.
fn fold(rows: &[Row], point: Point) -> Vec<Live> {
    let mut winners: BTreeMap<&str, &Row> = BTreeMap::new();
    let counts = |row: &&Row| {
        point.event_time.is_none_or(|time| row.1 <= time)
            && point.version.is_none_or(|version| row.2 <= version)
            && point.commit.is_none_or(|commit| row.3 <= commit)
    };
    for row in rows.iter().filter(counts) {
        let best = winners.entry(&row.0).or_insert(row);
        if (row.1, row.2) >= (best.1, best.2) {
            *best = row;
        }
    }
    let live = winners.into_values().filter(|row| row.4.is_some());
    live.map(|row| (row.0.clone(), row.2, row.4)).collect()
}

/// Keys whose newest change is a deletion after a time.
fn remembered(rows: &[Row], after: i64) -> u64 {
    let mut winners: BTreeMap<&str, (i64, i64, bool)> = BTreeMap::new();
    for row in rows {
        let own = (row.1, row.2, row.4.is_none());
        let best = winners.entry(&row.0).or_insert(own);
        *best = own.max(*best);
    }
    winners.values().filter(|(time, _, is_deleted)| *is_deleted && *time > after).count() as u64
}

fn tiny(rng: &mut StdRng) -> StoreSettings {
    StoreSettings {
        tail_bytes: *[0, 20_000, 1 << 28].choose(rng).unwrap(),
        partitions: rng.random_range(1..=3),
        batch_rows: *[1, 3, 8_192].choose(rng).unwrap(),
        layout: LayoutSettings {
            small_state_rows: *[0, 0, 10].choose(rng).unwrap(),
            file_rows: *[2, 7, 40].choose(rng).unwrap(),
            lookup_rows: *[0, 10, 16_384].choose(rng).unwrap(),
            compacted_file_rows: *[3, 11].choose(rng).unwrap(),
        },
        ..settings()
    }
}

/// The live rows at a point; `None` where rows that it needs have expired.
async fn asked(state: &RawState, point: Point) -> Option<Vec<Live>> {
    match state.scan(point, KeyFilter::All).await {
        Ok(rows) => {
            let rows: Vec<_> = rows.try_collect().await.unwrap();
            Some(rows.iter().flat_map(live_of).collect())
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
            let cause = std::error::Error::source(&error).unwrap();
            assert!(cause.is::<HistoryExpired>(), "{error}");
            None
        }
    }
}

/// A history of some weeks that is drawn at random, with late changes, and what the test knows of it.
struct History {
    rng: StdRng,
    rows: Vec<Row>,
    version: i64,
    refusals: u64,
}

impl History {
    async fn day(&mut self, state: &RawState, now: i64) {
        for _ in 0..self.rng.random_range(1..4) {
            let count = self.rng.random_range(1..6);
            let mut drawn = Vec::new();
            for _ in 0..count {
                let key = format!("k{:02}", self.rng.random_range(0..20));
                self.version += 1;
                let late = *[0, 0, DAY, 3 * DAY, 5 * DAY, 9 * DAY].choose(&mut self.rng).unwrap();
                let time = now - late - self.rng.random_range(0..DAY);
                let value = self.rng.random_bool(0.5).then_some(self.version);
                drawn.push((key, time, self.version, value));
            }
            let floor = state.log().refresh().await.map(|log| Floor::of(&log)).unwrap();
            let is_late = |time: i64| floor.is_some_and(|floor| time <= floor.time);
            let given: Vec<_> = drawn.iter().map(|row| (row.0.as_str(), row.2, row.3)).collect();
            let times: Vec<i64> = drawn.iter().map(|row| row.1).collect();
            let outcome = state.append(&n_batch_at(&given, &times)).await;
            if times.iter().any(|time| is_late(*time)) {
                assert!(BelowFloor::is_cause_of(&outcome.unwrap_err()));
                self.refusals += 1;
                continue;
            }
            let commit = outcome.unwrap().commit;
            self.rows.extend(drawn.into_iter().map(|row| (row.0, row.1, row.2, commit, row.3)));
        }
    }

    fn point(&mut self) -> Point {
        let commits = self.rows.last().unwrap().3;
        let mut point = Point::LATEST;
        if self.rng.random_bool(0.5) {
            point.commit = Some(self.rng.random_range(commits * 2 / 3..=commits));
        }
        if self.rng.random_bool(0.5) {
            point.event_time = self.rows.choose(&mut self.rng).map(|row| row.1);
        }
        if self.rng.random_bool(0.3) {
            point.version = self.rows.choose(&mut self.rng).map(|row| row.2);
        }
        point
    }

    async fn check(&mut self, state: &RawState, can_expire: bool) -> u64 {
        assert_eq!(live(state, Point::LATEST).await, fold(&self.rows, Point::LATEST));
        let mut answers = 0;
        for _ in 0..12 {
            let point = self.point();
            let found = asked(state, point).await;
            assert!(found.is_some() || can_expire, "{point}");
            if let Some(found) = found {
                assert_eq!(found, fold(&self.rows, point), "{point}");
                answers += 1;
            }
        }
        answers
    }
}

async fn histories(seed: u64, expires: bool) {
    let clock = Arc::new(ManualClock::at(START));
    let home = Home::new();
    let mut history =
        History { rng: StdRng::seed_from_u64(seed), rows: Vec::new(), version: 0, refusals: 0 };
    let state = by_time(&home.open_at(&clock).await, "s").await;
    let_forget(&state).await;
    if expires {
        set(&state, &[("log_retention", "4d")]).await;
    }
    drop(state);
    let (mut forgotten, mut answers) = (0, 0);
    for day in 0..30 {
        let now = START + day * DAY + DAY / 2;
        clock.set(now);
        let tiny = tiny(&mut history.rng);
        let builder = Store::builder(&home.uri()).settings(tiny).clock(clock.clone());
        let state = builder.open().await.unwrap().raw_state("s").await.unwrap();
        history.day(&state, now).await;
        if history.rng.random_bool(0.3) {
            state.materialize(false).await.unwrap();
        }
        answers += history.check(&state, expires).await;
        if history.rng.random_bool(0.7) {
            let before = live(&state, Point::LATEST).await;
            let report = state.maintain(&MaintainStep::ALL, false).await.unwrap();
            let StepOutcome::Forgot(done) = &report.steps[3].outcome else { panic!("{report:?}") };
            forgotten += done.forgotten;
            assert_eq!(live(&state, Point::LATEST).await, before, "seed {seed}, day {day}");
            let again = state.maintain(&MaintainStep::ALL, false).await.unwrap();
            assert_eq!(again.log_after.version, report.log_after.version, "{again:?}");
            assert_eq!(again.snapshot_after, report.snapshot_after, "{again:?}");
        }
        answers += history.check(&state, expires).await;
        if history.rng.random_bool(0.1) {
            drop(state.create_savepoint(&format!("s{day}"), None).await.unwrap());
        }
        assert!(state.verify().await.unwrap().is_sound(), "seed {seed}, day {day}");
    }
    // What the snapshot is made of, by increments and anew, is what the model says: also which deletions are remembered.
    let state = home.open_at(&clock).await.raw_state("s").await.unwrap();
    for rebuild in [false, true] {
        state.materialize(rebuild).await.unwrap();
        let snapshot = state.snapshot().state();
        let floor = snapshot.floor().unwrap();
        assert!(snapshot.least_tombstone().is_none_or(|least| least > floor));
        let report = state.verify().await.unwrap();
        assert!(report.is_sound(), "seed {seed}: {report:?}");
        assert_eq!(report.keys - report.live_keys, remembered(&history.rows, floor));
        assert_eq!(report.live_keys, fold(&history.rows, Point::LATEST).len() as u64);
        answers += history.check(&state, expires).await;
    }
    assert!(history.refusals > 5 && answers > 100, "{} {answers}", history.refusals);
    assert!(forgotten > 3, "seed {seed}: {forgotten}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tmb_01_any_history_answers_as_the_model_while_deleted_keys_are_forgotten() {
    for seed in 0..4 {
        histories(seed, false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tmb_02_the_same_where_the_log_expires_or_the_horizon_is_named() {
    for seed in 10..14 {
        histories(seed, true).await;
    }
}
