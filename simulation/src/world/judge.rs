//! What must come of an operation: whether its outcome, and what lies in the log after it, is what was promised.

use alluvium::{EpochOutcome, ErrorKind};

use super::{World, shown, told};
use crate::actors::{Answer, Done, Intent, Question, answer, is_unknown};
use crate::checks::{self, Broken, Told};

impl World {
    /// Compares what came of an operation with what must come of it.
    pub(super) async fn judge(
        &mut self,
        number: usize,
        intent: Intent,
        done: Done,
        had_faults: bool,
        acknowledged: i64,
    ) -> Result<(), Broken> {
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
            Done::Kept(Ok(())) | Done::Foreign(_) => {}
            Done::Appended(outcome) => {
                let Intent::Append { attempt, .. } = intent else { return Ok(()) };
                self.attempts[attempt].told = match outcome {
                    Ok(receipt) => {
                        self.acknowledged = self.acknowledged.max(receipt.commit);
                        Told::Durable(Some(receipt.commit))
                    }
                    Err(error) => {
                        unexcused(&error)?;
                        if had_faults && is_unknown(&error) { Told::Nothing } else { Told::Refused }
                    }
                };
                self.look().await?;
            }
            Done::Epoch(outcome) => {
                let Intent::Epoch { attempt, app, number, .. } = &intent else { return Ok(()) };
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
                    Err(error) => unexcused(&error)?,
                }
                self.look().await?;
            }
            Done::Told(Err(error)) => unexcused(&error)?,
            Done::Told(Ok((basis, told))) => {
                let Intent::Read(question) = &intent else { return Ok(()) };
                checks::fresh(&basis, acknowledged)?;
                self.look().await?;
                match told {
                    Err(error) => unexcused(&error)?,
                    Ok(told) => {
                        self.counts.answers += 1;
                        checks::answer(&self.ledger, basis.commit(), question, &told)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes over what has come to lie in the log, by one who sees no faults.
    pub(super) async fn look(&mut self) -> Result<(), Broken> {
        let basis = self.onlooker.reader().basis().await.map_err(told)?;
        if basis.commit() > self.newest {
            let question = Question::Changes(self.newest);
            let found = answer(&self.onlooker, &basis, question).await.map_err(told)?;
            let Answer::Rows(rows) = found else { return Ok(()) };
            checks::take_over(&mut self.ledger, &mut self.attempts, &rows)?;
            self.newest = basis.commit();
        }
        checks::writes(&self.attempts, self.newest)
    }
}
