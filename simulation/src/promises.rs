//! What a state promises beside its rows: which points of the past are kept, what savepoints keep, that erased keys are gone, and that
//! a restore is exact.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;

use alluvium::{Error, ErrorKind, HistoryExpired, KeyErased, Point};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::actors::{Answer, Question};
use crate::checks::Broken;
use crate::ledger::Ledger;
use crate::rows::{Change, Seen};

const HOUR: i64 = 3_600_000_000;

/// How a state is kept small in a run, and what else is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tending {
    /// For how long the state can be asked for as of its commits.
    pub window_hours: i64,
    /// Whether days leave the log.
    pub expires: bool,
    /// Whether days move to the archive.
    pub archives: bool,
    /// Whether keys are erased.
    pub erases: bool,
    /// Whether snapshots are kept beyond the window, by a grid of times.
    pub has_grid: bool,
}

impl Tending {
    /// What one seed has; none: everything is kept as it is by default, and another engine merges files.
    ///
    /// Another engine's merge leaves files of which it can't be told any more, once their commits are cleaned up, what commits their rows
    /// have, and brings rows of erased keys back, as is documented; so the two don't meet.
    pub fn draw(rng: &mut StdRng) -> Option<Self> {
        rng.random_bool(0.6).then(|| Self {
            window_hours: *[6, 12, 30].choose(rng).unwrap(),
            expires: rng.random_bool(0.5),
            archives: rng.random_bool(0.5),
            erases: rng.random_bool(0.5),
            has_grid: rng.random_bool(0.5),
        })
    }

    /// Its settings.
    pub fn settings(self) -> Vec<(String, String)> {
        let Self { window_hours, expires, archives, has_grid, .. } = self;
        let hours = |hours: i64| format!("{hours}h");
        let mut settings = vec![
            ("commit_retention", hours(window_hours + 6)),
            ("file_retention", hours(2)),
            ("orphan_grace", hours(2)),
            ("as_of_window", hours(window_hours)),
            ("compact_after", hours(2)),
        ];
        if expires {
            settings.push(("log_retention", hours(window_hours + 48)));
        }
        if has_grid {
            settings.push(("snapshot_grid", "6h:7d".to_owned()));
        }
        if archives {
            settings.push(("hot_days", hours(window_hours + 12)));
        }
        settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// A restore that somebody set out to do.
#[derive(Debug)]
struct Wanted {
    to: Point,
    found: Option<i64>,
}

/// All that was promised in a run.
#[derive(Debug, Default)]
pub struct Promises {
    /// How the state is kept small.
    pub tending: Option<Tending>,
    /// What savepoints keep, by their names; those that are being released are not here.
    pub savepoints: BTreeMap<String, i64>,
    /// Commits that the grid was seen to keep.
    pub marks: Vec<i64>,
    /// Keys whose erase was acknowledged.
    pub erased: BTreeSet<String>,
    /// An erase has begun that removes files at once, which ends reads under way.
    pub ends_reads: bool,
    restores: BTreeMap<String, Wanted>,
    /// When each commit was made, in microseconds.
    times: BTreeMap<i64, i64>,
}

impl Promises {
    /// Nothing yet.
    pub fn of(tending: Option<Tending>) -> Self {
        Self { tending, ..Self::default() }
    }

    /// Notes that a restore may come.
    pub fn want_restore(&mut self, id: &str, to: Point) {
        self.restores.insert(id.to_owned(), Wanted { to, found: None });
    }

    /// Notes when commits came to be.
    pub fn note_commits(&mut self, commits: std::ops::RangeInclusive<i64>, now_micros: i64) {
        for commit in commits {
            self.times.entry(commit).or_insert(now_micros);
        }
    }

    /// 30: nothing of an erased key is committed or read again.
    pub fn hold_erased(&self, rows: &[Seen]) -> Result<(), Broken> {
        match rows.iter().find(|row| self.erased.contains(&row.key)) {
            None => Ok(()),
            Some(row) => Err(format!("invariant 30: the erased key {} is there: {row:?}", row.key)),
        }
    }

    /// 30: an answer to a question that was asked after keys were erased has nothing of them.
    pub fn hold_erased_in(&self, erased: &BTreeSet<String>, answer: &Answer) -> Result<(), Broken> {
        let keys: Vec<&String> = match answer {
            Answer::Winners(rows) => rows.iter().flatten().map(|row| &row.key).collect(),
            Answer::Rows(rows) => rows.iter().map(|row| &row.key).collect(),
            Answer::Differences(rows) => rows.iter().map(|row| &row.key).collect(),
        };
        match keys.into_iter().find(|key| erased.contains(*key)) {
            None => Ok(()),
            Some(key) => Err(format!("invariant 30: the erased key {key} is told: {answer:?}")),
        }
    }

    /// 22 and 3: the commit of a restore leaves the state as it was at the point, and there is one.
    pub fn take_over_restore(
        &mut self,
        ledger: &mut Ledger,
        id: &str,
        commit: i64,
        rows: &[Seen],
    ) -> Result<(), Broken> {
        let Some(wanted) = self.restores.get_mut(id) else {
            return Err(format!(
                "invariant 22: commit {commit} is of restore {id}, which nobody made"
            ));
        };
        if let Some(earlier) = wanted.found.replace(commit) {
            return Err(format!("invariant 3: restore {id} is commit {earlier} and {commit}"));
        }
        let changes: Vec<Change> = rows
            .iter()
            .map(|row| Change {
                key: row.key.clone(),
                version: row.version,
                event_time: row.event_time,
                value: row.value.clone(),
            })
            .collect();
        ledger.add(commit, &changes, Some((format!("restore/{id}"), 0)));
        let before = wanted.to.commit.map_or(commit - 1, |asked| asked.min(commit - 1));
        let then = ledger.values(Point { commit: Some(before), ..wanted.to });
        let now = ledger.values(Point::at_commit(commit));
        match then == now {
            true => Ok(()),
            false => Err(format!(
                "invariant 22: restore {id} to {} came to {now:?} in commit {commit}, and not to {then:?}",
                wanted.to
            )),
        }
    }

    /// Whether a restore that was acknowledged is the commit that was told.
    pub fn hold_restore(&self, id: &str, told: Option<i64>) -> Result<(), Broken> {
        let found = self.restores.get(id).and_then(|wanted| wanted.found);
        match told.is_none() || told == found {
            true => Ok(()),
            false => Err(format!("invariant 1: restore {id} is commit {found:?}, not {told:?}")),
        }
    }

    /// Whether keys may be erased, which takes what is kept of the past beyond the log.
    pub fn may_erase(&self) -> bool {
        self.tending.is_some_and(|tending| tending.erases)
    }

    /// Whether a writer may be refused so: a key of its rows is being erased.
    pub fn may_refuse_write(&self, ledger: &Ledger, rows: &[Change], error: &Error) -> bool {
        KeyErased::is_cause_of(error) && rows.iter().any(|row| ledger.erased.contains(&row.key))
    }

    /// 20 and 25: a question may be refused because rows have expired, unless it needs none of them or a savepoint keeps the point.
    pub fn hold_refusal(
        &self,
        question: &Question,
        error: &Error,
        pinned: Option<&str>,
        now_micros: i64,
    ) -> Result<(), Broken> {
        let Some(cause) = expired_by(error) else {
            return Err(format!(
                "{question:?} failed without a fault: {error} ({:?})",
                error.kind()
            ));
        };
        if !self.tending.is_some_and(|tending| tending.expires) {
            return Err(format!("invariant 20: nothing may expire, and {question:?}: {error}"));
        }
        if pinned.is_some_and(|name| self.savepoints.contains_key(name)) {
            return Err(format!("invariant 25: {question:?} is kept by {pinned:?}: {error}"));
        }
        let is_kept = match question {
            Question::Changes(after) => *after >= cause.expired_commit,
            Question::Get(_, point) | Question::Scan(point) => {
                point.is_latest() || self.is_promised(*point, cause, now_micros)
            }
            Question::Diff(from, to) => {
                let is_promised = |point: &Point| self.is_promised(*point, cause, now_micros);
                is_promised(from) && is_promised(to)
            }
            Question::History(_) => cause.expired_commit == 0,
        };
        match is_kept {
            true => Err(format!("invariant 20: {question:?} is refused: {error}")),
            false => Ok(()),
        }
    }

    /// Whether a point by its commit alone lies within the window, or after the horizon that was told.
    fn is_promised(&self, point: Point, cause: &HistoryExpired, now_micros: i64) -> bool {
        let Point { commit: Some(commit), version: None, event_time: None } = point else {
            return false;
        };
        let window = self.tending.map_or(0, |tending| tending.window_hours);
        // Clocks are off by some seconds, and who was told what has expired may have been so for a while.
        let since = now_micros - (window - 1) * HOUR;
        // After an erase the log alone answers as of earlier points, and not all of it may be there.
        let erases = self.tending.is_some_and(|tending| tending.erases);
        let is_young = !erases && self.times.get(&commit).is_some_and(|made| *made >= since);
        commit >= cause.horizon.commit || is_young
    }
}

/// Why a question about the past has no answer.
fn expired_by(error: &Error) -> Option<&HistoryExpired> {
    if error.kind() != ErrorKind::PointUnavailable {
        return None;
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(expired) = cause.downcast_ref::<HistoryExpired>() {
            return Some(expired);
        }
        source = cause.source();
    }
    None
}
