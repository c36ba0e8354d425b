//! What a state promises whose log expires: which points must be answered, and what a refusal has to say.

use std::error::Error as _;

use alluvium::{Basis, Error, ErrorKind, HistoryExpired, Point};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::ledger::Row;
use super::run::World;
use crate::support::stores::DAY;

const MINUTE: i64 = 60_000_000;
/// Settings under which everything expires within days.
pub(crate) const SETTINGS: [(&str, &str); 4] = [
    ("commit_retention", "8d"),
    ("file_retention", "2d"),
    ("as_of_window", "2d"),
    ("log_retention", "3d"),
];
/// Settings under which days move to the archive before.
pub(crate) const ARCHIVE: [(&str, &str); 4] = [
    ("commit_retention", "8d"),
    ("file_retention", "2d"),
    ("as_of_window", "2d"),
    ("hot_days", "2d"),
];
/// A grid of one mark a day.
pub(crate) const GRID: (&str, &str) = ("snapshot_grid", "1d:20d");
/// So many marks there are at most.
pub(crate) const GRID_MARKS: i64 = 20;
/// What is promised of the window: all but what the longest read may take.
const WINDOW: i64 = 2 * 24 * 60 * MINUTE - 30 * MINUTE;

/// A version of the snapshot.
#[derive(Debug, Clone, Copy)]
struct Fold {
    made: i64,
    version: i64,
    log_commit: i64,
    /// Whether it came with a fork, whose own versions are counted anew.
    is_inherited: bool,
}

/// The versions of the snapshot that were seen after each step.
#[derive(Debug, Clone, Default)]
pub(crate) struct Folds(Vec<Fold>);

impl Folds {
    /// Notes a version if it is new.
    pub(crate) fn note(&mut self, made: i64, version: i64, log_commit: i64) {
        if self.0.last().is_none_or(|last| last.version < version) {
            self.0.push(Fold { made, version, log_commit, is_inherited: false });
        }
    }

    /// Nothing is promised any more by the versions before an erase.
    pub(crate) fn begin_anew(&mut self) {
        self.0.clear();
    }

    /// The snapshot of one commit, which is the newest.
    pub(crate) fn of(log_commit: i64) -> Self {
        Self(vec![Fold { made: i64::MIN, version: 0, log_commit, is_inherited: false }])
    }

    /// Only the newest is left.
    pub(crate) fn keep_last(&mut self) {
        self.0.drain(..self.0.len().saturating_sub(1));
    }

    /// That of a fork which has nothing else: the one of its commit.
    pub(crate) fn alone(commit: i64) -> Self {
        let fold = Fold { made: i64::MIN, version: -1, log_commit: commit, is_inherited: true };
        Self(vec![fold])
    }

    /// Those that a fork of a commit takes along.
    pub(crate) fn up_to(&self, commit: i64) -> Self {
        let taken = self.0.iter().filter(|fold| fold.log_commit <= commit);
        Self(taken.map(|fold| Fold { version: -1, is_inherited: true, ..*fold }).collect())
    }

    /// The versions that were the newest ones at some moment of the window, each with when it was replaced.
    fn of_window(&self, now: i64) -> impl Iterator<Item = (Fold, i64)> + '_ {
        let replaced = self.0.iter().skip(1).map(|next| next.made).chain([i64::MAX]);
        self.0.iter().copied().zip(replaced).filter(move |(_, replaced)| *replaced > now - WINDOW)
    }

    /// Those of them that were the newest at a mark of the grid, and not only made or replaced then: the mark, and the commit.
    pub(crate) fn at_marks(&self, now: i64) -> impl Iterator<Item = (i64, i64)> + '_ {
        let own = |fold: &Fold| !fold.is_inherited && fold.log_commit > 0;
        self.of_window(now).filter(move |(fold, _)| own(fold)).flat_map(move |(fold, replaced)| {
            let marks = (0..GRID_MARKS).map(move |days| (now.div_euclid(DAY) - days) * DAY);
            marks
                .filter(move |mark| fold.made < *mark && *mark < replaced)
                .map(move |mark| (mark, fold.log_commit))
        })
    }
}

/// Whether what came so long ago is sure to be there still.
pub(crate) fn is_of_window(replaced: i64, now: i64) -> bool {
    replaced > now - WINDOW
}

/// Whether some snapshot of the window, and the log rows after it, answer as of a point; or a savepoint alone.
pub(crate) fn is_promised(world: &World, point: Point) -> bool {
    let kept = world.kept().filter(|kept| point.commit == Some(*kept));
    let of_window = world.folds.of_window(world.now()).map(|(fold, _)| fold.log_commit);
    of_window.chain(kept).any(|commit| {
        let rows = || world.ledger.at(Point::at_commit(commit));
        point.commit.is_none_or(|bound| commit <= bound)
            && point.version.is_none_or(|bound| rows().all(|row| row.version <= bound))
            && point.event_time.is_none_or(|bound| rows().all(|row| row.event_time <= bound))
    })
}

/// A commit that a savepoint or the grid keeps, once in a while.
pub(crate) fn saved_point(world: &mut World) -> Option<Point> {
    let saved = *world.kept().collect::<Vec<_>>().choose(&mut world.rng)?;
    world.rng.random_bool(0.3).then(|| Point::at_commit(saved))
}

fn cause(error: &Error) -> &HistoryExpired {
    assert_eq!(error.kind(), ErrorKind::PointUnavailable, "{error}");
    error.source().and_then(|cause| cause.downcast_ref()).unwrap_or_else(|| panic!("{error}"))
}

/// The answer as of some points, unless it was refused, and rightly so.
pub(crate) fn answered<T>(
    world: &World,
    basis: &Basis,
    points: &[Point],
    outcome: Result<T, Error>,
) -> Option<T> {
    let error = match outcome {
        Ok(answer) => return Some(answer),
        Err(error) => error,
    };
    let cause = cause(&error);
    assert!(cause.expired_commit > 0 && cause.expired_commit == basis.expired_commit(), "{error}");
    let broken: Vec<Point> =
        points.iter().copied().filter(|point| !is_promised(world, *point)).collect();
    assert!(!broken.is_empty(), "{points:?} are promised: {error}");
    let horizon = cause.horizon;
    assert!(horizon.commit >= cause.expired_commit, "{error}");
    if let [point] = points {
        let before = |bound: Option<i64>, horizon: Option<i64>| {
            bound.is_some_and(|bound| horizon.is_some_and(|horizon| bound < horizon))
        };
        let alone = [point.commit, point.version, point.event_time];
        let is_kept = |commit: i64| cause.savepoints.iter().any(|saved| saved.1 == commit);
        assert!(
            alone.iter().flatten().count() > 1 || !point.commit.is_some_and(is_kept),
            "{error}"
        );
        let lies_before = before(point.commit, Some(horizon.commit))
            || before(point.version, horizon.version)
            || before(point.event_time, horizon.event_time);
        assert!(lies_before || alone.iter().flatten().count() > 1, "{point}: {error}");
    }
    None
}

/// The rows of the commits after one, unless some of them have expired.
pub(crate) fn told<T>(basis: &Basis, after: i64, outcome: Result<T, Error>) -> Option<T> {
    match outcome {
        Ok(rows) => {
            assert!(basis.expired_commit() <= after.max(0), "rows after {after} are gone");
            Some(rows)
        }
        Err(error) => {
            let cause = cause(&error);
            assert_eq!(cause.expired_commit, basis.expired_commit(), "{error}");
            assert!(cause.expired_commit > after.max(0), "after {after}: {error}");
            None
        }
    }
}

/// Whether what a history says of a row's lateness is right: nothing only where an expired row may have decided it.
pub(crate) fn is_late_told(
    world: &World,
    basis: &Basis,
    row: &Row,
    late: bool,
    seen: Option<bool>,
) {
    match seen {
        Some(seen) => assert_eq!(seen, late, "is_late of {row:?}"),
        None => {
            let expired = alluvium_log::Expired::of(basis.log()).unwrap_or_else(|| {
                panic!("nothing has expired, and it isn't told whether {row:?} is late")
            });
            assert!(world.ledger.order_of(row) <= expired.order, "is_late of {row:?}");
        }
    }
}
