//! BAS-*: which snapshot an answer begins with. As of every point that can be named, a state whose days expire tells what a plain fold of
//! all its rows does, or names the horizon; what is promised is answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium::{MaintainStep, ManualClock, OrderBy, Point, RawState};
use alluvium_log::Archived;

use super::expire::{WINDOW, asked, expired, let_expire};
use crate::support::stores::{DAY, Home, Live, START, create, live, n_batch_at, n_fields, set};

/// What happens to the snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upkeep {
    /// None was ever vacuumed.
    Unvacuumed,
    /// They are kept for the window.
    Vacuumed,
    /// The same, and some by savepoints.
    Saved,
    /// They were kept for the window, and from some day on are kept for longer.
    KeptLonger,
    /// They are kept for the window, and days expire from the archive.
    Archived,
}

const DAYS: i64 = 26;
/// Before this day snapshots are kept for the window.
const LONGER_FROM: i64 = 20;
/// Days after which a late change comes, longer than the log is kept.
const LATE: i64 = 12;
/// The last day on which late changes come, so that later on savepoints hold what has expired.
const LAST_LATE: i64 = 16;

/// A row, with the commit that it came with.
struct Row {
    commit: i64,
    key: String,
    version: i64,
    time: i64,
    n: Option<i64>,
}

/// A state that is kept small, and all its rows.
struct Kept {
    state: RawState,
    order_by: OrderBy,
    upkeep: Upkeep,
    /// How many days after it happened a late change comes.
    late: i64,
    rows: Vec<Row>,
    /// The two commits of each day.
    commits: Vec<i64>,
    savepoints: Vec<i64>,
}

impl Kept {
    fn new(state: RawState, order_by: OrderBy, upkeep: Upkeep, late: i64) -> Self {
        let (rows, commits, savepoints) = (Vec::new(), Vec::new(), Vec::new());
        Self { state, order_by, upkeep, late, rows, commits, savepoints }
    }

    /// The live rows as of a point.
    fn fold(&self, point: Point) -> Vec<Live> {
        let within = |bound: Option<i64>, value| bound.is_none_or(|bound| value <= bound);
        let is_known = |row: &&Row| {
            within(point.commit, row.commit)
                && within(point.version, row.version)
                && within(point.event_time, row.time)
        };
        let order = |row: &Row| match self.order_by {
            OrderBy::EventTime => (row.time, row.version),
            OrderBy::Version => (row.version, row.time),
        };
        let mut winners: BTreeMap<&str, &Row> = BTreeMap::new();
        for row in self.rows.iter().filter(is_known) {
            let winner = winners.entry(&row.key).or_insert(row);
            if order(row) > order(winner) {
                *winner = row;
            }
        }
        let live = winners.into_values().filter(|row| row.n.is_some());
        live.map(|row| (row.key.clone(), row.version, row.n)).collect()
    }

    async fn append(&mut self, rows: Vec<(String, i64, Option<i64>)>) {
        let times: Vec<i64> = rows.iter().map(|row| START + row.1 * DAY).collect();
        let changes: Vec<_> =
            rows.iter().map(|(key, version, n)| (key.as_str(), *version, *n)).collect();
        let commit = self.state.append(&n_batch_at(&changes, &times)).await.unwrap().commit;
        self.commits.push(commit);
        let rows = rows.into_iter().zip(times);
        let stored = rows.map(|((key, version, n), time)| Row { commit, key, version, time, n });
        self.rows.extend(stored);
    }

    /// A key that changes each day, and one that may never do so again; then one more, and two changes that come late; then the job,
    /// so that no snapshot folds the first commit of a day alone.
    async fn day(&mut self, clock: &ManualClock, day: i64) {
        let old = day - self.late;
        clock.set(START + day * DAY + DAY / 2);
        let own = format!("d{day:04}");
        self.append(vec![("daily".to_owned(), day, Some(day)), (own, day, Some(day))]).await;
        let mut rows = vec![("second".to_owned(), day, Some(day))];
        if day <= LAST_LATE {
            let is_deleted = day % 3 == 0;
            rows.push((format!("late{day:04}"), old, Some(-day)));
            rows.push((format!("d{old:04}"), old + 1, (!is_deleted).then_some(-day)));
        }
        self.append(rows).await;
        if self.upkeep == Upkeep::KeptLonger && day == LONGER_FROM {
            set(&self.state, &[("as_of_window", "8d"), ("file_retention", "8d")]).await;
            self.agrees().await;
        }
        let is_wanted = |step: &MaintainStep| {
            self.upkeep != Upkeep::Unvacuumed || *step != MaintainStep::Vacuum
        };
        let steps: Vec<_> = MaintainStep::ALL.into_iter().filter(is_wanted).collect();
        self.state.maintain(&steps, false).await.unwrap();
        if self.upkeep == Upkeep::Saved && day % 5 == 2 {
            let saved = self.state.create_savepoint(&format!("day-{day}"), None).await.unwrap();
            self.savepoints.push(saved.log_commit);
        }
    }

    /// Asks for each point that there is; how many were answered, and how many refused.
    async fn agrees(&self) -> (usize, usize) {
        let days = self.commits.len() as i64 / 2;
        let (mut answered, mut refused) = (0, 0);
        for (nth, commit) in (0..).zip(&self.commits) {
            let (day, commit) = (nth / 2, Point::at_commit(*commit));
            let (version, time) = (Point::at_version(day), Point::at_time(START + day * DAY));
            for point in [commit, version, time, commit.and(version), commit.and(time)] {
                let place = || format!("{:?}, {point} on day {days}", self.upkeep);
                match asked(&self.state, point).await {
                    Ok(found) => {
                        assert_eq!(found, self.fold(point), "{}", place());
                        answered += 1;
                    }
                    Err(cause) => {
                        let is_promised = point == commit && day >= days - WINDOW;
                        assert!(!is_promised, "{}: {cause}", place());
                        refused += 1;
                    }
                }
            }
        }
        (answered, refused)
    }

    /// Each bound of the horizon is answered, the commit before it is not, and all tell the same horizon.
    async fn has_its_horizon(&self) {
        let horizon = asked(&self.state, Point::at_commit(1)).await.unwrap_err().horizon;
        let (version, time) = (horizon.version.unwrap(), horizon.event_time.unwrap());
        let commit = Point::at_commit(horizon.commit);
        for point in [commit, Point::at_version(version), Point::at_time(time)] {
            let found = asked(&self.state, point).await;
            assert_eq!(found.unwrap(), self.fold(point), "{:?}: {point}", self.upkeep);
        }
        let before = Point::at_commit(horizon.commit - 1);
        assert_eq!(asked(&self.state, before).await.unwrap_err().horizon, horizon);
        let told = self.state.explain_retention().await.unwrap();
        assert_eq!(told.readable.horizon, Some(horizon), "{:?}", self.upkeep);
    }

    /// The fold is made anew from the oldest snapshot that holds what has expired, whatever keeps it.
    async fn is_made_anew(&self) {
        let verified = self.state.verify().await.unwrap();
        assert!(verified.is_sound(), "{:?}: {verified:?}", self.upkeep);
        let gone = expired(&self.state);
        let saved = self.savepoints.iter().find(|saved| **saved >= gone);
        assert_eq!(saved.is_some(), self.upkeep == Upkeep::Saved);
        assert_eq!(verified.from_commit, *saved.unwrap_or(&verified.from_commit), "{gone}");
        let rebuilt = self.state.materialize(true).await.unwrap();
        assert_eq!(rebuilt.from_commit, verified.from_commit, "{:?}", self.upkeep);
        assert_eq!(live(&self.state, Point::LATEST).await, self.fold(Point::LATEST));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bas_01_every_point_is_told_as_by_all_rows_or_refused_whatever_snapshots_are_kept() {
    for order_by in [OrderBy::EventTime, OrderBy::Version] {
        for upkeep in [
            Upkeep::Unvacuumed,
            Upkeep::Vacuumed,
            Upkeep::Saved,
            Upkeep::KeptLonger,
            Upkeep::Archived,
        ] {
            let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START)));
            let state = create(&home.open_at(&clock).await, "s", &n_fields(), order_by).await;
            let_expire(&state).await;
            if upkeep == Upkeep::Archived {
                set(&state, &[("hot_days", "5d")]).await;
            }
            let mut kept = Kept::new(state, order_by, upkeep, LATE);
            for day in 0..DAYS {
                kept.day(&clock, day).await;
                if day == LAST_LATE {
                    kept.agrees().await;
                }
            }
            let (answered, refused) = kept.agrees().await;
            assert!(answered > 10 && refused > 10, "{upkeep:?}: {answered} and {refused}");
            kept.has_its_horizon().await;
            kept.is_made_anew().await;
        }
    }
}

/// All snapshots of the window hold what goes to the archive. Once the window grows, older ones belong to it that do not.
#[tokio::test(flavor = "multi_thread")]
async fn bas_02_what_is_archived_does_not_expire_before_a_window_that_grew_holds_it() {
    let (home, clock) = (Home::new(), Arc::new(ManualClock::at(START)));
    let order_by = OrderBy::Version;
    let state = create(&home.open_at(&clock).await, "s", &n_fields(), order_by).await;
    let_expire(&state).await;
    set(&state, &[("hot_days", "8d")]).await;
    // A late change is archived two days after it came, and past the retention after two more.
    let mut kept = Kept::new(state, order_by, Upkeep::Unvacuumed, 7);
    for day in 0..LONGER_FROM {
        kept.day(&clock, day).await;
    }
    let before = expired(&kept.state);
    set(&kept.state, &[("as_of_window", "8d")]).await;
    let last_late = 2 * LAST_LATE as usize;
    let point = Point::at_commit(kept.commits[last_late]);
    assert_eq!(asked(&kept.state, point).await.unwrap(), kept.fold(point));
    kept.day(&clock, LONGER_FROM).await;
    assert!(before > 0 && Archived::of(&kept.state.log().state()).is_some());
    assert_eq!(asked(&kept.state, point).await.unwrap(), kept.fold(point));
    assert_eq!(expired(&kept.state), before);
    assert!(before < kept.commits[last_late + 1]);
}
