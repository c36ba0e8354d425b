//! The model: all rows, the order of `docs/formats.md` §3 word by word, and the naive fold.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use alluvium::{OrderBy, Point};

use crate::rows::{Change, Seen, Value};

/// A row of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: String,
    /// The version.
    pub version: i64,
    /// When it happened, in microseconds.
    pub event_time: i64,
    /// The value; none for a DELETE.
    pub value: Option<Value>,
    /// The commit.
    pub commit: i64,
    /// The place among the rows of the commit.
    pub seq: usize,
    /// The epoch that brought it.
    pub epoch: Option<(String, i64)>,
}

/// A difference of two points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: String,
    /// `inserted`, `updated` or `deleted`.
    pub change: &'static str,
    /// The value before.
    pub before: Option<Value>,
    /// The value after.
    pub after: Option<Value>,
}

/// Every row of a state.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// What the state is ordered by.
    pub order_by: OrderBy,
    /// Its rows, in the order of commits.
    pub rows: Vec<Row>,
    /// Keys whose erase has begun: what is read of them depends on how far it has come, and is compared with nothing.
    pub erased: BTreeSet<String>,
}

impl Ledger {
    /// An empty state.
    pub fn new(order_by: OrderBy) -> Self {
        Self { order_by, rows: Vec::new(), erased: BTreeSet::new() }
    }

    /// Notes the rows of a commit; later calls with the same commit come later in it.
    pub fn add(&mut self, commit: i64, changes: &[Change], epoch: Option<(String, i64)>) {
        let first = self.rows.iter().filter(|row| row.commit == commit).count();
        let erased = &self.erased;
        let known = changes.iter().enumerate().filter(|(_, change)| !erased.contains(&change.key));
        self.rows.extend(known.map(|(index, change)| Row {
            key: change.key.clone(),
            version: change.version,
            event_time: change.event_time,
            value: change.value.clone(),
            commit,
            seq: first + index,
            epoch: epoch.clone(),
        }));
    }

    /// Forgets all rows of a key, which is being erased.
    pub fn erase(&mut self, key: &str) {
        self.rows.retain(|row| row.key != key);
        self.erased.insert(key.to_owned());
    }

    /// What keys have a value at a point, and which.
    pub fn values(&self, point: Point) -> BTreeMap<&str, &Value> {
        let winners = self.fold(point).into_iter();
        winners.filter_map(|(key, row)| Some((key, row.value.as_ref()?))).collect()
    }

    /// The order of rows of one key.
    pub fn compare(&self, a: &Row, b: &Row) -> Ordering {
        let by = |row: &Row| match self.order_by {
            OrderBy::EventTime => (row.event_time, row.version),
            OrderBy::Version => (row.version, row.event_time),
        };
        by(a)
            .cmp(&by(b))
            .then_with(|| a.value.is_none().cmp(&b.value.is_none()))
            .then_with(|| a.commit.cmp(&b.commit))
            .then_with(|| a.seq.cmp(&b.seq))
    }

    /// What rows are ordered by first.
    pub fn order_of(&self, row: &Row) -> i64 {
        match self.order_by {
            OrderBy::EventTime => row.event_time,
            OrderBy::Version => row.version,
        }
    }

    /// The rows that count at a point.
    pub fn at(&self, point: Point) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| {
            point.commit.is_none_or(|commit| row.commit <= commit)
                && point.version.is_none_or(|version| row.version <= version)
                && point.event_time.is_none_or(|time| row.event_time <= time)
        })
    }

    /// The winner of each key at a point, tombstones included.
    pub fn fold(&self, point: Point) -> BTreeMap<&str, &Row> {
        let mut winners: BTreeMap<&str, &Row> = BTreeMap::new();
        for row in self.at(point) {
            let wins =
                winners.get(row.key.as_str()).is_none_or(|known| self.compare(row, known).is_gt());
            if wins {
                winners.insert(&row.key, row);
            }
        }
        winners
    }

    /// Whether a row that was read is this one. A row that was given several times is one row: its commit may be that of
    /// any of them.
    pub fn is_row(&self, row: &Row, seen: &Seen) -> bool {
        let same = |other: &Row| {
            other.key == seen.key
                && other.version == seen.version
                && other.event_time == seen.event_time
                && other.value == seen.value
        };
        same(row)
            && seen.is_delete == row.value.is_none()
            && (seen.commit == row.commit
                || self.rows.iter().any(|other| same(other) && other.commit == seen.commit))
    }

    /// What changed from one point to another.
    pub fn diff(&self, from: Point, to: Point) -> Vec<Difference> {
        let live = |point: Point| -> BTreeMap<String, Value> {
            let winners = self.fold(point).into_iter();
            winners.filter_map(|(key, row)| Some((key.to_owned(), row.value.clone()?))).collect()
        };
        let (before, after) = (live(from), live(to));
        let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
        keys.sort();
        keys.dedup();
        keys.into_iter()
            .filter_map(|key| {
                let (old, new) = (before.get(key).cloned(), after.get(key).cloned());
                let change = match (&old, &new) {
                    (None, _) => "inserted",
                    (_, None) => "deleted",
                    (Some(old), Some(new)) if old == new => return None,
                    _ => "updated",
                };
                Some(Difference { key: key.clone(), change, before: old, after: new })
            })
            .collect()
    }

    /// The rows of a history: by key, commit and order, with whether each came late.
    pub fn history(&self, point: Point, wanted: impl Fn(&str) -> bool) -> Vec<(Row, bool)> {
        let mut rows: Vec<Row> = self.at(point).filter(|row| wanted(&row.key)).cloned().collect();
        rows.sort_by(|a, b| {
            a.key.cmp(&b.key).then(a.commit.cmp(&b.commit)).then_with(|| self.compare(a, b))
        });
        let late = |row: &Row| {
            rows.iter().any(|other| {
                other.key == row.key
                    && other.commit < row.commit
                    && self.compare(other, row).is_gt()
            })
        };
        let flags: Vec<bool> = rows.iter().map(late).collect();
        rows.into_iter().zip(flags).collect()
    }

    /// The rows of the commits after one, in the order of commits.
    pub fn changes(&self, after: i64) -> Vec<Row> {
        let mut rows: Vec<Row> =
            self.rows.iter().filter(|row| row.commit > after).cloned().collect();
        rows.sort_by(|a, b| {
            a.commit.cmp(&b.commit).then_with(|| a.key.cmp(&b.key)).then_with(|| self.compare(a, b))
        });
        rows
    }
}
