//! 31 to 33: forks of the state. Each is a state with a model of its own, which begins as its parent's was at a commit.

use std::collections::{BTreeMap, BTreeSet};

use alluvium::{ErrorKind, Point, PromoteOutcome, PromoteReport};

use crate::checks::Broken;
use crate::ledger::Ledger;
use crate::promises::Promises;
use crate::rows::{Change, Seen, Value};

/// What is known of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Somebody set out to make it, and it is not there yet.
    Making,
    /// It is a state as any other.
    Whole,
    /// Somebody set out to drop it: it may be gone at any moment.
    Dropping,
    /// It was dropped, or given up.
    Gone,
}

/// A fork, and what it must hold.
#[derive(Debug)]
pub struct Branch {
    /// Its name.
    pub name: String,
    /// What has become of it.
    pub stage: Stage,
    /// The commit it was asked to begin at; the newest where none is given.
    pub asked: Option<i64>,
    /// The commit that it begins at.
    pub commit: i64,
    /// Its rows, those of its parent up to the commit included.
    pub ledger: Ledger,
    /// Its newest commit that the model knows.
    pub newest: i64,
    /// The newest one that a writer was told of.
    pub acknowledged: i64,
    /// What the parent's promotions of it are called there, once that is known.
    pub app: Option<String>,
    /// The commit that it was promoted as of last.
    promoted: i64,
    /// Somebody set out to promote it over what the parent has.
    pub overwrites: bool,
}

impl Branch {
    /// A fork that somebody sets out to make.
    pub fn new(name: String, asked: Option<i64>, parent: &Ledger) -> Self {
        let ledger = Ledger::new(parent.order_by);
        Self {
            name,
            stage: Stage::Making,
            asked,
            commit: 0,
            ledger,
            newest: 0,
            acknowledged: 0,
            app: None,
            promoted: 0,
            overwrites: false,
        }
    }

    /// Whether a promotion that was told of is one that was found.
    pub fn holds_promotion(&self, report: &PromoteReport) -> bool {
        let is_found = self.promoted >= report.fork_commit;
        report.outcome != PromoteOutcome::Promoted || is_found || self.stage != Stage::Whole
    }

    /// It is there, and begins at a commit.
    pub fn begin(&mut self, parent: &Ledger, commit: i64, app: String) {
        if self.stage != Stage::Making {
            return;
        }
        let rows = parent.rows.iter().filter(|row| row.commit <= commit).cloned().collect();
        self.ledger = Ledger { rows, ..parent.clone() };
        self.app = Some(app);
        // Its first own commit has no rows.
        (self.commit, self.newest, self.acknowledged) = (commit, commit, commit);
        self.promoted = commit;
        self.stage = Stage::Whole;
    }
}

fn values(ledger: &Ledger, commit: i64) -> BTreeMap<String, Value> {
    let all = ledger.values(Point::at_commit(commit)).into_iter();
    all.map(|(key, value)| (key.to_owned(), value.clone())).collect()
}

/// 33: the commit of a promotion changes those keys that the fork has changed, to what it has; and no key that the parent has changed
/// otherwise, unless it was told to.
pub fn take_over_promotion(
    ledger: &mut Ledger,
    branches: &mut [Branch],
    app: &str,
    commit: i64,
    rows: &[Seen],
) -> Result<(), Broken> {
    let Some(branch) = branches.iter_mut().find(|branch| branch.app.as_deref() == Some(app)) else {
        return Err(format!(
            "invariant 33: commit {commit} is of {app}, and there is no such fork"
        ));
    };
    let Some(at) = rows.iter().find_map(|row| row.epoch) else {
        return Err(format!("invariant 33: commit {commit} of {app} tells no epoch"));
    };
    if at <= branch.promoted && branch.promoted > branch.commit {
        return Err(format!(
            "invariant 33: {} is promoted as of {at} in commit {commit}, and was as of {} before",
            branch.name, branch.promoted
        ));
    }
    let changes = rows.iter().map(|row| Change {
        key: row.key.clone(),
        version: row.version,
        event_time: row.event_time,
        value: row.value.clone(),
    });
    ledger.add(commit, &changes.collect::<Vec<_>>(), Some((app.to_owned(), at)));
    if branch.stage != Stage::Whole {
        // It is being dropped, and not looked at any more.
        return Ok(());
    }
    let (base, theirs) = (values(&branch.ledger, branch.promoted), values(&branch.ledger, at));
    let (before, after) = (values(ledger, commit - 1), values(ledger, commit));
    let keys: BTreeSet<&String> = base.keys().chain(theirs.keys()).chain(before.keys()).collect();
    for key in keys.into_iter().filter(|key| !ledger.erased.contains(*key)) {
        let (was, is, had) = (base.get(key), theirs.get(key), before.get(key));
        let wanted = if was == is { had } else { is };
        if after.get(key) != wanted {
            return Err(format!(
                "invariant 33: commit {commit} promotes {} as of {at} and leaves {key} {:?}: it was {was:?} at {}, is {is:?}, and the parent had {had:?}",
                branch.name,
                after.get(key),
                branch.promoted
            ));
        }
        if was != is && had != was && had != is && !branch.overwrites {
            return Err(format!(
                "invariant 33: commit {commit} promotes {} over {key}, which the parent had changed from {was:?} to {had:?}",
                branch.name
            ));
        }
    }
    branch.promoted = at;
    Ok(())
}

/// Whether something about a fork may have failed without a fault: it was not there any more, others were faster, or the past that it
/// needs has expired.
pub fn may_fail(stage: Stage, promises: &Promises, error: &alluvium::Error) -> bool {
    let expires = promises.tending.is_some_and(|tending| tending.expires || tending.erases);
    match error.kind() {
        ErrorKind::Conflict => true,
        ErrorKind::PointUnavailable => expires || stage != Stage::Whole,
        _ => stage != Stage::Whole,
    }
}
