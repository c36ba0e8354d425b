//! What must come of caches, streams, the lead of the job, repairs and forks.

use alluvium::{Basis, Clock, ErrorKind, ForkStatus, Leadership};
use alluvium_log::NameFolder;

use super::shown::{shown, told};
use super::{Before, World};
use crate::actors::{Answer, Done, Intent, Question, answer, is_unknown};
use crate::checks::{self, Broken, Told};
use crate::forks::{Stage, may_fail};
use crate::typed::{Sent, Streamed};

impl World {
    /// Compares what came of an operation of these with what must come of it.
    pub(super) async fn judge_more(
        &mut self,
        number: usize,
        intent: &Intent,
        done: Done,
        before: Before,
    ) -> Result<(), Broken> {
        self.look().await?;
        let unexcused = |error: &alluvium::Error| match before.had_faults {
            true => Ok(()),
            false => Err(format!("{} failed without a fault: {}", shown(intent), told_of(error))),
        };
        match (intent, done) {
            (Intent::Cached(keys, asked), Done::Cached(found)) => match found {
                Ok(found) => {
                    self.counts.answers += 1;
                    self.counts.more.cached += 1;
                    let gone = keys
                        .iter()
                        .zip(&found)
                        .find(|(key, value)| before.erased.contains(*key) && value.is_some());
                    if let Some((key, value)) = gone {
                        return Err(format!("invariant 30: a cache has {value:?} of {key}"));
                    }
                    let is_together = *asked != crate::typed::Asked::Each;
                    let commits = before.seen..=self.newest;
                    let seen = checks::cached(&self.ledger, keys, &found, is_together, commits)?;
                    self.seen = self.seen.max(seen);
                    Ok(())
                }
                Err(error) if error.is_of_missing_file() && self.promises.ends_reads => Ok(()),
                Err(error) => unexcused(&error),
            },
            (Intent::Stream { epochs, .. }, Done::Streamed(streamed)) => {
                self.judge_stream(epochs, streamed, &before, unexcused)
            }
            (Intent::Beat, Done::Beaten(lease, led)) => {
                self.processes[number].lease = Some(*lease);
                match led {
                    // A listing that lacks what came last may name one who led before.
                    Ok(_) if before.had_faults => Ok(()),
                    Ok(Leadership::Leading) => {
                        self.counts.more.led += 1;
                        let (holder, now_ms) = (self.holder(number), self.clock.now_ms());
                        self.leads.note(&holder, before.begun_ms, now_ms)
                    }
                    Ok(Leadership::Following(_)) => Ok(()),
                    Err(error) => unexcused(&error),
                }
            }
            (Intent::LetGo, Done::LetGo(lease, outcome)) => {
                self.processes[number].lease = Some(*lease);
                outcome.or_else(|error| unexcused(&error))
            }
            (_, Done::Repaired(Ok(report))) => {
                let moved = report.steps.iter().filter(|step| step.moved_to.is_some());
                self.counts.more.set_aside += moved.count() as u64;
                match report.unrepaired.first() {
                    None => Ok(()),
                    Some(left) => Err(format!("invariant 27: {left:?} can't be repaired")),
                }
            }
            (_, Done::Repaired(Err(error))) if error.kind() == ErrorKind::Conflict => Ok(()),
            (_, Done::Repaired(Err(error))) => unexcused(&error),
            (_, done) => self.judge_fork(intent, done, before).await,
        }
    }

    /// 21: what a stream told is durable is in the log, and its epochs saw what they must.
    fn judge_stream(
        &mut self,
        epochs: &[Sent],
        streamed: Streamed,
        before: &Before,
        unexcused: impl Fn(&alluvium::Error) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let Streamed { durable, sights, outcome } = streamed;
        for sent in epochs.iter().filter(|sent| Some(sent.number) <= durable) {
            let attempt = &mut self.attempts[sent.attempt];
            attempt.told = Told::Durable(None);
            self.acknowledged = self.acknowledged.max(attempt.found.unwrap_or(0));
        }
        checks::writes(checks::of_state(&self.attempts, None), self.newest)?;
        let first = epochs.first().map_or(0, |sent| sent.attempt);
        let known = self.attempts[..first].iter().filter(|attempt| {
            let of_stream = |epoch: &Option<(String, i64)>| epoch.as_ref().map(|at| at.0.clone());
            of_stream(&attempt.epoch) == of_stream(&self.attempts[first].epoch)
        });
        let known = known.filter_map(|attempt| attempt.found).max().unwrap_or(0);
        let commits = before.seen.max(known)..=self.newest;
        self.counts.answers += sights.len() as u64;
        self.counts.more.sights += sights.len() as u64;
        checks::sights(&self.ledger, &self.attempts, epochs, &sights, commits)?;
        match outcome {
            // Another process has sent the same epochs, or later ones.
            Err(error) if error.kind() == ErrorKind::Fenced => Ok(()),
            Err(error) if error.is_of_missing_file() && self.promises.ends_reads => Ok(()),
            Err(error) => unexcused(&error),
            Ok(()) if durable == epochs.last().map(|sent| sent.number) => Ok(()),
            Ok(()) => Err(format!("invariant 21: a flushed stream is durable up to {durable:?}")),
        }
    }

    /// 31 to 33.
    async fn judge_fork(
        &mut self,
        intent: &Intent,
        done: Done,
        before: Before,
    ) -> Result<(), Broken> {
        let (Intent::Fork { name, .. }
        | Intent::OnFork(name, _)
        | Intent::Promote { name, .. }
        | Intent::Drop(name)) = intent
        else {
            return Ok(());
        };
        let Some(branch) = self.branch(name) else { return Ok(()) };
        let (stage, commit) = (branch.stage, branch.commit);
        let excused = |error: &alluvium::Error| match before.had_faults
            || may_fail(stage, &self.promises, error)
        {
            true => Ok(()),
            false => Err(format!("{} failed without a fault: {}", shown(intent), told_of(error))),
        };
        match (intent, done) {
            (Intent::Fork { .. }, Done::Forked(Ok(report))) => {
                let is_here =
                    stage != Stage::Making && (stage != Stage::Whole || commit == report.commit);
                match is_here {
                    true => Ok(()),
                    false => Err(format!("invariant 31: {stage:?} at {commit} after {report:?}")),
                }
            }
            // Another one was faster; or the tables can't be read as of the commit any more; or keys were erased meanwhile.
            (Intent::Fork { at, .. }, Done::Forked(Err(error))) => {
                let is_refused = match error.kind() {
                    ErrorKind::AlreadyExists => stage == Stage::Whole,
                    ErrorKind::PointUnavailable => at.is_some() || self.promises.may_erase(),
                    _ => false,
                };
                if is_refused { Ok(()) } else { excused(&error) }
            }
            (Intent::Promote { .. }, Done::Promoted(Ok(report))) => {
                self.acknowledged = self.acknowledged.max(report.commit.unwrap_or(0));
                self.counts.more.promotions += u64::from(report.commit.is_some());
                let branch = self.branch(name);
                match branch.is_none_or(|branch| branch.holds_promotion(&report)) {
                    true => Ok(()),
                    false => {
                        Err(format!("invariant 33: {report:?}, and the log has no such commit"))
                    }
                }
            }
            (_, Done::Promoted(Err(error))) if alluvium::KeyErased::is_cause_of(&error) => Ok(()),
            (_, Done::Promoted(Err(error)) | Done::Dropped(Err(error))) => excused(&error),
            (Intent::Drop(_), Done::Dropped(Ok(_))) => {
                let forks = self.outside.forks().await.map_err(told)?;
                // Its name is kept while somebody may be at work on it.
                let stage = match forks.iter().find(|fork| fork.name == *name) {
                    None => Stage::Gone,
                    Some(fork) if fork.status == ForkStatus::Dropping => Stage::Dropping,
                    Some(_) => {
                        let broken = "is dropped, and listed";
                        return Err(format!("invariant 31: {name} {broken}: {forks:?}"));
                    }
                };
                self.disk.forget_commits(name);
                if let Some(branch) = self.branch_mut(name) {
                    branch.stage = stage;
                }
                Ok(())
            }
            (Intent::OnFork(_, what), Done::OnFork(done)) => {
                self.judge_on_fork(name, what, *done, before).await
            }
            _ => Ok(()),
        }
    }

    async fn judge_on_fork(
        &mut self,
        name: &str,
        what: &Intent,
        done: Done,
        before: Before,
    ) -> Result<(), Broken> {
        let Some(branch) = self.branches.iter_mut().find(|branch| branch.name == name) else {
            return Ok(());
        };
        let (promises, stage) = (&self.promises, branch.stage);
        let placed = |broken: Broken| format!("fork {name}: {broken}");
        let excused =
            |error: &alluvium::Error| match before.had_faults || may_fail(stage, promises, error) {
                true => Ok(()),
                false => Err(format!(
                    "fork {name}: {} failed without a fault: {}",
                    shown(what),
                    told_of(error)
                )),
            };
        match (what, done) {
            (Intent::Append { attempt, rows, .. }, Done::Appended(outcome)) => {
                let told = match outcome {
                    Ok(receipt) => {
                        branch.acknowledged = branch.acknowledged.max(receipt.commit);
                        Told::Durable(Some(receipt.commit))
                    }
                    Err(error) if promises.may_refuse_write(&branch.ledger, rows, &error) => {
                        Told::Refused
                    }
                    Err(error) => {
                        excused(&error)?;
                        let is_told = stage == Stage::Whole && !is_unknown(&error);
                        if is_told { Told::Refused } else { Told::Nothing }
                    }
                };
                self.attempts[*attempt].told = told;
                self.look().await
            }
            (_, Done::Told(Ok((basis, told)))) if stage == Stage::Whole => {
                let Some(question) = what.question() else { return Ok(()) };
                checks::fresh(&basis, before.seen).map_err(placed)?;
                match told {
                    Ok(told) => {
                        self.counts.answers += 1;
                        self.counts.more.fork_answers += 1;
                        checks::answer(&branch.ledger, basis.commit(), question, &told)
                            .map_err(placed)?;
                        self.promises.hold_erased_in(&before.erased, &told).map_err(placed)
                    }
                    Err(error) if error.is_of_missing_file() && self.promises.ends_reads => Ok(()),
                    Err(error) => excused(&error),
                }
            }
            (_, Done::Told(Err(error)) | Done::Kept(Err(error))) => excused(&error),
            _ => Ok(()),
        }
    }

    /// Whether somebody has set out to make or drop a fork, and not told that it is done.
    pub(super) fn has_unfinished_fork(&self) -> bool {
        let mut stages = self.branches.iter().map(|branch| branch.stage);
        stages.any(|stage| matches!(stage, Stage::Making | Stage::Dropping))
    }

    /// Takes over the forks that are whole by now.
    pub(super) async fn adopt_branches(&mut self) -> Result<(), Broken> {
        if !self.branches.iter().any(|branch| branch.stage == Stage::Making) {
            return Ok(());
        }
        let forks = self.outside.forks().await.map_err(told)?;
        let names = NameFolder::of(self.onlooker.log().storage());
        for branch in self.branches.iter_mut().filter(|branch| branch.stage == Stage::Making) {
            let is_whole = |fork: &&alluvium::Fork| {
                fork.name == branch.name && fork.status == ForkStatus::Whole
            };
            if let Some(fork) = forks.iter().find(is_whole) {
                let record = names.fork(&fork.name).await.map_err(told)?;
                let app = record.map(|record| format!("promote/{}", record.id));
                branch.begin(&self.ledger, fork.commit, app.unwrap_or_default());
                self.counts.more.forks += 1;
            }
        }
        Ok(())
    }

    /// Takes over what has come to lie in the logs of forks.
    pub(super) async fn advance_branches(&mut self) -> Result<(), Broken> {
        for index in 0..self.branches.len() {
            let branch = &self.branches[index];
            if branch.stage != Stage::Whole {
                continue;
            }
            let (name, newest) = (branch.name.clone(), branch.newest);
            let placed = |broken: Broken| format!("fork {name}: {broken}");
            let state = self.outside.raw_state(&name).await.map_err(|e| placed(told(e)))?;
            let basis: Basis = state.reader().basis().await.map_err(|e| placed(told(e)))?;
            if basis.commit() <= newest {
                continue;
            }
            // Its first own commit has no rows, and nothing before it is new.
            let after = newest.max(branch.commit);
            let found = answer(&state, &basis, Question::Changes(after)).await;
            let Answer::Rows(rows) = found.map_err(|e| placed(told(e)))? else { continue };
            let mut ledger = self.branches[index].ledger.clone();
            let (attempts, promises) = (&mut self.attempts, &mut self.promises);
            let taken =
                checks::take_over(&mut ledger, attempts, promises, &mut [], Some(&name), &rows);
            taken.map_err(placed)?;
            let branch = &mut self.branches[index];
            (branch.ledger, branch.newest) = (ledger, basis.commit());
            let of_fork = checks::of_state(&self.attempts, Some(&name));
            checks::writes(of_fork, basis.commit()).map_err(placed)?;
        }
        Ok(())
    }
}

fn told_of(error: &alluvium::Error) -> String {
    format!("{error} ({:?})", error.kind())
}
