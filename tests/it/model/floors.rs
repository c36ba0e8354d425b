//! Up to which event time changes are refused, and deleted keys forgotten, as the model has it.

use alluvium::{BelowFloor, Error, ErrorKind, Floor};

use super::ledger::{Ledger, Row};
use crate::support::rows::Change;
use crate::support::stores::DAY;

/// Settings under which deleted keys are forgotten within days.
pub(crate) const SETTINGS: [(&str, &str); 4] = [
    ("commit_retention", "8d"),
    ("file_retention", "2d"),
    ("as_of_window", "2d"),
    ("tombstone_retention", "3d"),
];
const KEPT: i64 = 3 * DAY;

/// The floors that a state had, in the order of their commits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Floors(Vec<Floor>);

impl Floors {
    /// The floor that a commit has, if any.
    pub(crate) fn at(&self, commit: i64) -> Option<i64> {
        self.0.iter().rev().find(|floor| floor.commit <= commit).map(|floor| floor.time)
    }

    /// That of the newest commit.
    pub(crate) fn now(&self) -> Option<i64> {
        self.at(i64::MAX)
    }

    pub(crate) fn raise(&mut self, floor: Floor) {
        assert!(self.now() < Some(floor.time), "a floor that sinks: {floor:?}, {self:?}");
        self.0.push(floor);
    }

    /// Those of a fork of a commit.
    pub(crate) fn up_to(&self, commit: i64) -> Self {
        Self(self.0.iter().copied().filter(|floor| floor.commit <= commit).collect())
    }

    /// That of a fork of a commit which has a snapshot of it alone: the one by which tombstones were left out of that.
    pub(crate) fn left(&self, found: Option<Floor>, commit: i64) -> Self {
        assert!(found.map(|floor| floor.time) <= self.at(commit), "{found:?}, {self:?}");
        Self(found.into_iter().collect())
    }

    /// To what a run of the job at a time raises it: only where a key that was deleted before is remembered.
    pub(crate) fn next(&self, ledger: &Ledger, now: i64) -> Option<i64> {
        let wanted = (now - KEPT).div_euclid(DAY) * DAY - 1;
        let is_to_forget = |row: &&Row| {
            row.value.is_none() && row.event_time <= wanted && !is_forgotten(row, self.now())
        };
        let winners = ledger.fold(alluvium::Point::LATEST);
        (Some(wanted) > self.now() && winners.into_values().any(|row| is_to_forget(&row)))
            .then_some(wanted)
    }

    /// What was appended, unless a change is at or below the floor: then it was refused by that, and nothing else.
    pub(crate) fn admitted<T: std::fmt::Debug>(
        &self,
        changes: &[Change],
        outcome: Result<T, Error>,
    ) -> Option<T> {
        if !self.refuse(changes) {
            return Some(outcome.unwrap());
        }
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let cause = std::error::Error::source(&error);
        let cause: &BelowFloor = cause.and_then(|cause| cause.downcast_ref()).unwrap();
        assert_eq!(Some(cause.floor), self.now(), "{error}");
        let is_named = |change: &Change| {
            let key: String = change.key.chars().take(60).collect();
            change.event_time == cause.time && cause.row.contains(&format!("(key {key:?}"))
        };
        assert!(cause.time <= cause.floor && changes.iter().any(is_named), "{error}");
        None
    }

    /// Whether some change is at or below the floor.
    pub(crate) fn refuse(&self, changes: &[Change]) -> bool {
        changes.iter().any(|change| Some(change.event_time) <= self.now())
    }
}

/// Whether a key is forgotten of which this is the newest row.
pub(crate) fn is_forgotten(winner: &Row, floor: Option<i64>) -> bool {
    winner.value.is_none() && Some(winner.event_time) <= floor
}
