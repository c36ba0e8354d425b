//! What must come of an operation: whether its outcome, and what lies in the log after it, is what was promised.

use alluvium::{Basis, Clock, EpochOutcome, ErrorKind};

use super::shown::{shown, told};
use super::{Before, World};
use crate::actors::{Answer, Done, Intent, Question, answer, is_unknown};
use crate::checks::{self, Broken, Told};

impl World {
    /// Compares what came of an operation with what must come of it.
    pub(super) async fn judge(
        &mut self,
        number: usize,
        intent: Intent,
        done: Done,
        before: Before,
    ) -> Result<(), Broken> {
        let had_faults = before.had_faults;
        let unexcused = |error: &alluvium::Error| match had_faults {
            true => Ok(()),
            false => Err(format!(
                "{} failed without a fault: {error} ({:?})",
                shown(&intent),
                error.kind()
            )),
        };
        match done {
            Done::Opened(Ok(opened)) => {
                self.processes[number].opened = Some(opened);
            }
            // Who folds at the same time as several others is told so; nothing was changed.
            Done::Kept(Err(error)) if error.kind() == ErrorKind::Conflict => {}
            Done::Opened(Err(error)) | Done::Kept(Err(error)) => unexcused(&error)?,
            Done::Saved(_)
            | Done::Released(_)
            | Done::Restored(_)
            | Done::Erased(_)
            | Done::Held(_)
            | Done::ToldHeld(..) => {
                self.judge_kept(number, intent, done, before).await?;
            }
            Done::Kept(Ok(())) if matches!(intent, Intent::Maintain(_)) => {
                let marks = self.onlooker.grid_snapshots().await.map_err(told)?;
                self.promises.marks = marks.iter().map(|mark| mark.log_commit).collect();
            }
            Done::Kept(Ok(())) | Done::Foreign(_) => {}
            Done::Cached(_)
            | Done::Streamed(_)
            | Done::Beaten(..)
            | Done::LetGo(..)
            | Done::Repaired(_)
            | Done::Forked(_)
            | Done::OnFork(_)
            | Done::Promoted(_)
            | Done::Dropped(_) => {
                self.judge_more(number, &intent, done, before).await?;
            }
            Done::Appended(outcome) => {
                let Intent::Append { attempt, rows, .. } = &intent else { return Ok(()) };
                let attempt = *attempt;
                let (promises, ledger) = (&self.promises, &self.ledger);
                let may_refuse =
                    |error: &alluvium::Error| promises.may_refuse_write(ledger, rows, error);
                self.attempts[attempt].told = match outcome {
                    Ok(receipt) => {
                        self.acknowledged = self.acknowledged.max(receipt.commit);
                        Told::Durable(Some(receipt.commit))
                    }
                    Err(error) if may_refuse(&error) => Told::Refused,
                    Err(error) => {
                        unexcused(&error)?;
                        if had_faults && is_unknown(&error) { Told::Nothing } else { Told::Refused }
                    }
                };
                self.look().await?;
            }
            Done::Epoch(outcome) => {
                let Intent::Epoch { attempt, app, number, rows, .. } = &intent else {
                    return Ok(());
                };
                match outcome {
                    Ok(EpochOutcome::Committed(receipt)) => {
                        self.acknowledged = self.acknowledged.max(receipt.commit);
                        self.attempts[*attempt].told = Told::Durable(Some(receipt.commit));
                    }
                    Ok(EpochOutcome::AlreadyApplied { last }) if last >= *number => {}
                    Ok(other) => {
                        return Err(format!("invariant 3: epoch {number} of {app}: {other:?}"));
                    }
                    Err(error) if error.kind() == ErrorKind::Fenced => {}
                    Err(error) if self.promises.may_refuse_write(&self.ledger, rows, &error) => {}
                    Err(error) => unexcused(&error)?,
                }
                self.look().await?;
            }
            Done::Told(Err(error)) => unexcused(&error)?,
            Done::Told(Ok((basis, told))) => {
                self.judge_read(&intent, &basis, told, before).await?;
            }
        }
        Ok(())
    }

    /// The same of a read.
    async fn judge_read(
        &mut self,
        intent: &Intent,
        basis: &Basis,
        told: alluvium::Result<Answer>,
        before: Before,
    ) -> Result<(), Broken> {
        let Before { had_faults, seen, erased, .. } = before;
        let Some(question) = intent.question() else { return Ok(()) };
        let pinned = match intent {
            Intent::ReadSaved(_, name) => Some(name.as_str()),
            _ => None,
        };
        checks::fresh(basis, seen)?;
        self.seen = self.seen.max(basis.commit());
        self.look().await?;
        match told {
            // A fault is told as one: it makes no refusal of an answer.
            Err(error) if had_faults && error.kind() != ErrorKind::PointUnavailable => Ok(()),
            // An erase takes files at once.
            Err(error) if error.is_of_missing_file() && self.promises.ends_reads => Ok(()),
            Err(error) if self.is_kept_mark(intent).await? => {
                Err(format!("invariant 25: the grid keeps what {intent:?} asks for: {error}"))
            }
            Err(error) => {
                let now = self.clock.now_micros();
                self.promises.hold_refusal(question, &error, pinned, now)
            }
            Ok(told) => {
                self.counts.answers += 1;
                self.counts.more.marks += u64::from(matches!(intent, Intent::ReadMark(..)));
                checks::answer(&self.ledger, basis.commit(), question, &told)?;
                self.promises.hold_erased_in(&erased, &told)
            }
        }
    }

    /// Whether a read is of a mark that the grid still keeps.
    async fn is_kept_mark(&self, intent: &Intent) -> Result<bool, Broken> {
        let Intent::ReadMark(_, commit) = intent else { return Ok(false) };
        let marks = self.onlooker.grid_snapshots().await.map_err(told)?;
        Ok(marks.iter().any(|mark| mark.log_commit == *commit))
    }

    /// The same of what has to do with what is kept of the past.
    async fn judge_kept(
        &mut self,
        number: usize,
        intent: Intent,
        done: Done,
        before: Before,
    ) -> Result<(), Broken> {
        let Before { had_faults, acknowledged, .. } = before;
        let unexcused =
            |error: &alluvium::Error| match had_faults || error.kind() == ErrorKind::Conflict {
                true => Ok(()),
                false => Err(format!(
                    "{} failed without a fault: {error} ({:?})",
                    shown(&intent),
                    error.kind()
                )),
            };
        match (&intent, done) {
            (Intent::Save(name), Done::Saved(Ok(saved))) => {
                if saved.log_commit < acknowledged {
                    return Err(format!(
                        "invariant 25: savepoint {name} is of commit {}, and {acknowledged} was acknowledged before",
                        saved.log_commit
                    ));
                }
                self.promises.savepoints.insert(name.clone(), saved.log_commit);
            }
            // There is nothing to keep of a state without rows.
            (Intent::Save(_), Done::Saved(Err(error)))
                if acknowledged == 0 && error.kind() == ErrorKind::NotFound => {}
            (Intent::Restore(id, to), Done::Restored(outcome)) => {
                self.look().await?;
                match outcome {
                    Ok(report) => self.promises.hold_restore(id, report.commit)?,
                    Err(error) if had_faults || error.kind() == ErrorKind::Conflict => {}
                    Err(error) => {
                        let now = self.clock.now_micros();
                        let question = Question::Scan(*to);
                        self.promises.hold_refusal(&question, &error, None, now)?;
                    }
                }
            }
            (Intent::Erase { key, .. }, Done::Erased(Ok(_))) => {
                self.promises.erased.insert(key.clone());
            }
            (_, Done::Held(Ok(basis))) => self.processes[number].held = Some(basis),
            (Intent::ReadHeld(question), Done::ToldHeld(basis, told, is_held)) => match told {
                Ok(told) => {
                    self.counts.answers += 1;
                    checks::answer(&self.ledger, basis.commit(), question, &told)?;
                }
                // What it holds is held however long it takes; what it asks as of an earlier point was not.
                Err(_) if had_faults || !is_held => {}
                Err(error) if error.is_of_missing_file() && self.promises.ends_reads => {}
                Err(error) => {
                    let now = self.clock.now_micros();
                    let refused = self.promises.hold_refusal(question, &error, None, now);
                    refused.map_err(|broken| format!("invariant 30, a held read: {broken}"))?;
                }
            },
            (_, Done::Saved(Err(error)) | Done::Released(Err(error)) | Done::Held(Err(error))) => {
                unexcused(&error)?;
            }
            // The key may come back with a fork that is not whole: it is told, and the erase run again.
            (_, Done::Erased(Err(_))) if self.has_unfinished_fork() => {}
            (_, Done::Erased(Err(error))) => unexcused(&error)?,
            _ => {}
        }
        Ok(())
    }

    /// Takes over what has come to lie in the log, by one who sees no faults.
    pub(super) async fn look(&mut self) -> Result<(), Broken> {
        self.advance_branches().await?;
        let basis = self.onlooker.reader().basis().await.map_err(told)?;
        if basis.commit() > self.newest {
            let question = Question::Changes(self.newest);
            let found = answer(&self.onlooker, &basis, question).await.map_err(told)?;
            let Answer::Rows(rows) = found else { return Ok(()) };
            let (ledger, attempts) = (&mut self.ledger, &mut self.attempts);
            let (promises, branches) = (&mut self.promises, &mut self.branches);
            checks::take_over(ledger, attempts, promises, branches, None, &rows)?;
            promises.note_commits(self.newest + 1..=basis.commit(), self.clock.now_micros());
            self.newest = basis.commit();
            for (index, numbers) in self.streams.iter().enumerate() {
                checks::stream(&format!("stream/{index}"), &self.attempts, numbers)?;
            }
        }
        self.adopt_branches().await?;
        checks::writes(checks::of_state(&self.attempts, None), self.newest)
    }
}
