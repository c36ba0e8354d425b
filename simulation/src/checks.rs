//! The checkers: each compares one thing that was seen with what must be so, and names the invariant (of `docs/invariants.md`) that
//! does not hold.

use std::ops::RangeInclusive;

use alluvium::{Basis, Point};

use crate::actors::{Answer, Question};
use crate::forks::{Branch, take_over_promotion};
use crate::ledger::{Difference, Ledger, Row};
use crate::promises::Promises;
use crate::rows::{Change, Seen, Value};
use crate::typed::{Sent, Sight};

/// What is known of one set of rows that somebody wanted to write.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The rows.
    pub rows: Vec<Change>,
    /// The epoch, if it is one.
    pub epoch: Option<(String, i64)>,
    /// What the writers were told.
    pub told: Told,
    /// The commit under which it lies in the log.
    pub found: Option<i64>,
    /// The fork that it is written to; none is the state itself.
    pub fork: Option<String>,
    /// Versions and times are those of the writer's clock: they are known once it is found.
    pub is_clocked: bool,
}

impl Attempt {
    /// One to write these rows to the state.
    pub fn new(rows: Vec<Change>, epoch: Option<(String, i64)>) -> Self {
        let (fork, is_clocked) = (None, false);
        Self { rows, epoch, told: Told::Nothing, found: None, fork, is_clocked }
    }

    /// Takes over the versions and times that the rows got.
    fn take_clock(&mut self, rows: &[Seen]) {
        for change in self.rows.iter_mut().filter(|_| self.is_clocked) {
            if let Some(row) = rows.iter().find(|row| row.key == change.key) {
                (change.version, change.event_time) = (row.version, row.event_time);
            }
        }
    }
}

/// What a writer was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Nothing, or that it isn't known.
    Nothing,
    /// That it is durable; with the commit where that was told.
    Durable(Option<i64>),
    /// That it was not written.
    Refused,
}

/// Attempts to write to one state, with their numbers: to the fork of a name, or to what it was made of.
pub fn of_state<'a>(
    attempts: &'a [Attempt],
    fork: Option<&'a str>,
) -> impl Iterator<Item = (usize, &'a Attempt)> {
    attempts.iter().enumerate().filter(move |(_, attempt)| attempt.fork.as_deref() == fork)
}

/// A thing that is not as it must be.
pub type Broken = String;

/// 1 and 3: what was acknowledged is in the log, under the commit that was told; what was refused is not; nothing is there twice.
pub fn writes<'a>(
    attempts: impl Iterator<Item = (usize, &'a Attempt)>,
    newest: i64,
) -> Result<(), Broken> {
    for (number, attempt) in attempts {
        match (attempt.told, attempt.found) {
            (Told::Durable(Some(commit)), found) if commit <= newest && found != Some(commit) => {
                return Err(format!(
                    "invariant 1: attempt {number} was acknowledged as commit {commit}, and is in the log as {found:?}"
                ));
            }
            (Told::Durable(None), None) => {
                return Err(format!(
                    "invariant 1: attempt {number} ({:?}) was said to be applied, and isn't in the log",
                    attempt.epoch
                ));
            }
            (Told::Refused, Some(commit)) if attempt.epoch.is_none() => {
                return Err(format!(
                    "invariant 1: attempt {number} was refused, and is in the log as commit {commit}"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Takes the rows of new commits over into the ledger: each commit holds the rows of one attempt, which is in no other, or is a restore.
pub fn take_over(
    ledger: &mut Ledger,
    attempts: &mut [Attempt],
    promises: &mut Promises,
    branches: &mut [Branch],
    fork: Option<&str>,
    rows: &[Seen],
) -> Result<(), Broken> {
    let mut left = rows;
    while let Some(first) = left.first() {
        let commit = first.commit;
        let count = left.iter().take_while(|row| row.commit == commit).count();
        let (of_commit, later) = left.split_at(count);
        left = later;
        promises.hold_erased(of_commit)?;
        if let Some(id) = of_commit.iter().find_map(restore_of) {
            promises.take_over_restore(ledger, &id, commit, of_commit)?;
            continue;
        }
        if let Some(app) = of_commit.iter().find_map(promotion_of) {
            take_over_promotion(ledger, branches, app, commit, of_commit)?;
            continue;
        }
        let marks: Vec<usize> = of_commit.iter().filter_map(mark_of).collect();
        let [number] = marks.as_slice() else {
            return Err(format!("invariant 1: commit {commit} holds the attempts {marks:?}"));
        };
        let attempt = attempts
            .get_mut(*number)
            .ok_or_else(|| format!("commit {commit} holds attempt {number}, which nobody made"))?;
        if attempt.fork.as_deref() != fork {
            return Err(format!(
                "invariant 31: commit {commit} of {fork:?} holds attempt {number}, which was made to write to {:?}",
                attempt.fork
            ));
        }
        if let Some(earlier) = attempt.found.replace(commit) {
            return Err(format!(
                "invariant 3: attempt {number} is in the log twice: commits {earlier} and {commit}"
            ));
        }
        attempt.take_clock(of_commit);
        ledger.add(commit, &attempt.rows, attempt.epoch.clone());
        let expected = ledger.changes(commit - 1);
        same_rows(&expected.iter().collect::<Vec<_>>(), &without(ledger, of_commit))
            .map_err(|broken| format!("invariant 11: commit {commit}: {broken}"))?;
    }
    Ok(())
}

/// The row by which an attempt is known.
pub fn mark(number: usize) -> String {
    format!("mark/{number:06}")
}

/// The name of the restore that brought a row.
fn restore_of(row: &Seen) -> Option<String> {
    row.app.as_deref()?.strip_prefix("restore/").map(str::to_owned)
}

/// The application of the promotion that brought a row.
fn promotion_of(row: &Seen) -> Option<&str> {
    row.app.as_deref().filter(|app| app.starts_with("promote/"))
}

/// Rows without those of keys whose erase has begun.
fn without(ledger: &Ledger, rows: &[Seen]) -> Vec<Seen> {
    rows.iter().filter(|row| !ledger.erased.contains(&row.key)).cloned().collect()
}

fn mark_of(row: &Seen) -> Option<usize> {
    row.key.strip_prefix("mark/")?.parse().ok()
}

fn same_rows(expected: &[&Row], found: &[Seen]) -> Result<(), Broken> {
    if expected.len() != found.len() {
        return Err(format!("{} rows instead of {}", found.len(), expected.len()));
    }
    for (row, seen) in expected.iter().zip(found) {
        let same = row.key == seen.key
            && row.version == seen.version
            && row.event_time == seen.event_time
            && row.value == seen.value
            && row.commit == seen.commit;
        if !same {
            return Err(format!("{seen:?} instead of {row:?}"));
        }
    }
    Ok(())
}

/// 1 and 19: a read sees what was acknowledged before it began.
pub fn fresh(basis: &Basis, acknowledged: i64) -> Result<(), Broken> {
    match basis.commit() >= acknowledged {
        true => Ok(()),
        false => Err(format!(
            "invariant 19: a read is of commit {}, and {acknowledged} was acknowledged before it began",
            basis.commit()
        )),
    }
}

/// 19: values that a cache gave are those of a commit, all of one if they were read together, that is none before what was known when
/// the read began; gives the earliest that it may be.
pub fn cached(
    ledger: &Ledger,
    keys: &[String],
    found: &[Option<Value>],
    is_together: bool,
    commits: RangeInclusive<i64>,
) -> Result<i64, Broken> {
    let known: Vec<_> =
        keys.iter().zip(found).filter(|(key, _)| !ledger.erased.contains(*key)).collect();
    let parts: Vec<&[(&String, &Option<Value>)]> =
        if is_together { vec![&known] } else { known.chunks(1).collect() };
    let (mut from, newest) = commits.into_inner();
    for part in parts {
        let is_of = |commit: &i64| {
            let live = ledger.values(Point::at_commit(*commit));
            part.iter().all(|(key, value)| live.get(key.as_str()).copied() == value.as_ref())
        };
        from = (from..=newest).find(is_of).ok_or_else(|| {
            format!("invariant 19: a cache gives {part:?}, which is of no commit from {from} to {newest}")
        })?;
    }
    Ok(from)
}

/// 21: an epoch of a stream sees its own rows, then those of the epochs that were sent before it, then the state as of a commit.
pub fn sights(
    ledger: &Ledger,
    attempts: &[Attempt],
    epochs: &[Sent],
    sights: &[Sight],
    commits: RangeInclusive<i64>,
) -> Result<(), Broken> {
    let (from, newest) = commits.into_inner();
    for sight in sights {
        let of_key = |rows: &[Change]| rows.iter().rev().find(|row| row.key == sight.key).cloned();
        let own = epochs.iter().find(|sent| sent.number == sight.number);
        let own = own.and_then(|sent| of_key(&sent.rows[..sight.puts]));
        let mut before = epochs.iter().rev().filter(|sent| sent.number < sight.number);
        let sent = before.find_map(|sent| Some((sent, of_key(&sent.rows)?)));
        let mut as_of = |from: i64| {
            (from..=newest).any(|commit| {
                let live = ledger.values(Point::at_commit(commit));
                live.get(sight.key.as_str()).copied() == sight.value.as_ref()
            })
        };
        let is_right = match (&own, &sent) {
            (Some(row), _) => row.value == sight.value,
            // Once it is applied, the state tells; an epoch that another process has sent since may be in it.
            (None, Some((sent, row))) => {
                row.value == sight.value || attempts[sent.attempt].found.is_some_and(&mut as_of)
            }
            (None, None) => as_of(from),
        };
        if !is_right {
            return Err(format!(
                "invariant 21: {sight:?}, and its own row is {own:?}, the one sent before {sent:?}, the commits {from} to {newest}"
            ));
        }
    }
    Ok(())
}

/// 21: of a stream a prefix lies in the log, in its order.
pub fn stream(app: &str, attempts: &[Attempt], numbers: &[usize]) -> Result<(), Broken> {
    let found: Vec<Option<i64>> = numbers.iter().map(|number| attempts[*number].found).collect();
    let is_prefix = found.windows(2).all(|pair| match (pair[0], pair[1]) {
        (Some(first), Some(second)) => first < second,
        (None, Some(_)) => false,
        (_, None) => true,
    });
    match is_prefix {
        true => Ok(()),
        false => Err(format!("invariant 21: the epochs of {app} lie in the commits {found:?}")),
    }
}

/// 8 and 9: an answer is the model's at the basis.
pub fn answer(
    ledger: &Ledger,
    newest: i64,
    question: &Question,
    answer: &Answer,
) -> Result<(), Broken> {
    let at = |point: Point| Point {
        commit: Some(point.commit.map_or(newest, |commit| commit.min(newest))),
        ..point
    };
    let told = match (question, answer) {
        (Question::Get(keys, point), Answer::Winners(rows)) => {
            let winners = ledger.fold(at(*point));
            let mut all = keys.iter().zip(rows).filter(|(key, _)| !ledger.erased.contains(*key));
            all.try_for_each(|(key, seen)| {
                same_winner(ledger, winners.get(key.as_str()).copied(), seen)
            })
        }
        (Question::Scan(point), Answer::Rows(rows)) => {
            let winners = ledger.fold(at(*point)).into_values();
            let live: Vec<&Row> = winners.filter(|row| row.value.is_some()).collect();
            same_live(ledger, &live, &without(ledger, rows))
        }
        (Question::History(point), Answer::Rows(rows)) => {
            let expected = ledger.history(at(*point), |_| true);
            let expected: Vec<&Row> = expected.iter().map(|(row, _)| row).collect();
            same_rows(&expected, &without(ledger, rows))
        }
        (Question::Changes(after), Answer::Rows(rows)) => {
            let mut expected = ledger.changes(*after);
            expected.retain(|row| row.commit <= newest);
            same_rows(&expected.iter().collect::<Vec<_>>(), &without(ledger, rows))
        }
        (Question::Diff(from, to), Answer::Differences(found)) => {
            let expected = ledger.diff(at(*from), at(*to));
            let is_known = |difference: &&Difference| !ledger.erased.contains(&difference.key);
            match found.iter().filter(is_known).eq(&expected) {
                true => Ok(()),
                false => Err(format!("{found:?} instead of {expected:?}")),
            }
        }
        _ => Err("an answer to another question".to_owned()),
    };
    told.map_err(|broken| {
        format!("invariant 9: {question:?} at basis {newest} is answered wrongly: {broken}")
    })
}

fn same_winner(ledger: &Ledger, winner: Option<&Row>, seen: &Option<Seen>) -> Result<(), Broken> {
    match (winner, seen) {
        (None, None) => Ok(()),
        (Some(row), Some(seen)) if ledger.is_row(row, seen) => Ok(()),
        _ => Err(format!("{seen:?} instead of {winner:?}")),
    }
}

fn same_live(ledger: &Ledger, expected: &[&Row], found: &[Seen]) -> Result<(), Broken> {
    if expected.len() != found.len() {
        return Err(format!("{} live rows instead of {}", found.len(), expected.len()));
    }
    let mut pairs = expected.iter().zip(found);
    match pairs.find(|(row, seen)| !ledger.is_row(row, seen)) {
        None => Ok(()),
        Some((row, seen)) => Err(format!("{seen:?} instead of {row:?}")),
    }
}
