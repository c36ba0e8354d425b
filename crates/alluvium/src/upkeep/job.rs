//! The periodic job over all states: one run and its report, and runs that repeat while this process leads.

use std::time::{Duration, Instant};

use alluvium_log::{Error, ErrorKind, Result};
use alluvium_materializer::{
    FailedSteps, Footprint, LeftOut, LeftOutReason, MaintainReport, MaintainStep, ReportedError,
    StopSignal,
};
use rand::Rng;
use serde::Serialize;

use super::lease::{Leadership, Lease};
use crate::metrics;
use crate::store::Store;

/// What the job is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintainerOptions {
    /// The states; all of the store, also those that come later, when none is named.
    pub states: Vec<String>,
    /// The steps; their order doesn't matter.
    pub steps: Vec<MaintainStep>,
    /// Whether archives are looked at and changed; without, every day stays where it is.
    pub with_archive: bool,
    /// Only tell what would be done.
    pub dry_run: bool,
    /// A run begins no further step after this time. What is begun is brought to its end.
    pub time_limit: Option<Duration>,
}

impl Default for MaintainerOptions {
    fn default() -> Self {
        let steps = MaintainStep::ALL.to_vec();
        Self { states: Vec::new(), steps, with_archive: true, dry_run: false, time_limit: None }
    }
}

/// A state on which a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailedState {
    /// The state.
    pub state: String,
    /// What kind of error it is.
    pub kind: ErrorKind,
    /// Why.
    pub error: String,
    /// What to do about errors of this kind.
    pub remedy: &'static str,
}

impl FailedState {
    fn new(state: String, error: &Error) -> Self {
        let ReportedError { kind, message, remedy } = ReportedError::from(error);
        Self { state, kind, error: message, remedy }
    }
}

/// What one run of the job did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunReport {
    /// When it began, in milliseconds since 1970.
    pub started_ms: i64,
    /// Nothing was changed; this is what would have been.
    pub dry_run: bool,
    /// What was done, state by state.
    pub states: Vec<MaintainReport>,
    /// The states on which it failed; the others were maintained all the same. One that failed at a step, or whose archive can't be
    /// reached, is among [`RunReport::states`] too, with what was done.
    pub failed: Vec<FailedState>,
    /// The states that it did not come to, because it was to stop.
    pub left_out: Vec<String>,
    /// Forks whose making or dropping was cut off long ago, of which the rest was removed; only by a run over all states with a vacuum.
    pub forks_removed: Vec<String>,
    /// Files beside the states that killed processes had begun to write, in a local folder; those of states are told with each state.
    pub staged_removed: Vec<String>,
    /// How long it took.
    pub elapsed_ms: u64,
}

impl RunReport {
    /// Whether something was left out because the run was to stop.
    pub fn is_cut_short(&self) -> bool {
        let is_stopped = |left: &LeftOut| left.reason == LeftOutReason::Stopped;
        !self.left_out.is_empty()
            || self.states.iter().any(|state| state.left_out.iter().any(is_stopped))
    }
}

/// A run of the job: its report, and the errors in it.
#[derive(Debug)]
pub struct MaintainRun {
    /// What was done.
    pub report: RunReport,
    /// The errors, in the order of [`RunReport::failed`].
    pub errors: Vec<Error>,
}

/// What happens while the job repeats.
#[derive(Debug)]
pub enum MaintainEvent {
    /// This process leads from now on.
    Leads,
    /// Another one does, of this name: this one waits.
    Follows(String),
    /// A run has ended.
    Ran(MaintainRun),
    /// Who leads, or which states there are, could not be learned; it is tried again.
    Failed(Error),
}

/// Does the periodic job for the states of a store. Clones are one job, and stop together.
#[derive(Debug, Clone)]
pub struct Maintainer {
    store: Store,
    options: MaintainerOptions,
    stop: StopSignal,
}

impl Maintainer {
    /// The job with these options; [`Maintainer::run`] does it once.
    pub fn new(store: &Store, options: MaintainerOptions) -> Self {
        Self { store: store.clone(), options, stop: StopSignal::default() }
    }

    /// Ends it: what is begun is brought to its end, and nothing further is begun.
    pub fn stop_signal(&self) -> &StopSignal {
        &self.stop
    }

    /// The job's name among processes: two jobs are the same when they are about the same states and steps.
    pub fn name(&self) -> String {
        let joined = |mut names: Vec<&str>| {
            names.sort_unstable();
            names.dedup();
            names.join("+")
        };
        let states = match self.options.states.is_empty() {
            // No state has this name.
            true => ".all".to_owned(),
            false => joined(self.options.states.iter().map(String::as_str).collect()),
        };
        let steps = joined(self.options.steps.iter().map(|step| step.name()).collect());
        let hot = if self.options.with_archive { "" } else { ".hot" };
        let name = format!("maintain.{states}.{steps}{hot}");
        match name.len() {
            0..=200 => name,
            _ => format!("maintain.{:032x}", fingerprint(name.as_bytes())),
        }
    }

    /// Does the job once, for each state. One that fails does not keep the others from it.
    ///
    /// # Errors
    /// Which states there are could not be learned. What goes wrong with a state is in the run.
    pub async fn run(&self) -> Result<MaintainRun> {
        let clock = Instant::now();
        let options = &self.options;
        let stop = match options.time_limit {
            Some(limit) => self.stop.within(limit),
            None => self.stop.clone(),
        };
        let mut run = MaintainRun {
            report: RunReport {
                started_ms: self.store.clock().now_ms(),
                dry_run: options.dry_run,
                states: Vec::new(),
                failed: Vec::new(),
                left_out: Vec::new(),
                forks_removed: Vec::new(),
                staged_removed: Vec::new(),
                elapsed_ms: 0,
            },
            errors: Vec::new(),
        };
        let names = match options.states.is_empty() {
            true => self.store.state_names().await?,
            false => options.states.clone(),
        };
        for name in names {
            if stop.is_wanted() {
                run.report.left_out.push(name);
                continue;
            }
            let maintained = match self.store.raw_state(&name).await {
                Ok(state) if options.with_archive => {
                    state.maintain_until(&options.steps, options.dry_run, &stop).await
                }
                Ok(state) => state.maintain_hot(&options.steps, options.dry_run, &stop).await,
                Err(error) => Err(error),
            };
            match maintained {
                Ok(done) => {
                    self.measure(&done);
                    run.report.states.push(done);
                }
                Err(error) => {
                    if let Some(done) = FailedSteps::report_of(&error) {
                        self.measure(done);
                        run.report.states.push(done.clone());
                    }
                    if error.kind() == ErrorKind::IdentityChanged {
                        // A state that was replaced under a job of months is another one from now on.
                        self.store.forget(&name).await;
                    }
                    ::metrics::counter!(metrics::MAINTAIN_FAILURES, "state" => name.clone())
                        .increment(1);
                    run.report.failed.push(FailedState::new(name, &error));
                    run.errors.push(error);
                }
            }
        }
        let has_vacuum = options.steps.contains(&MaintainStep::Vacuum);
        if options.states.is_empty() && has_vacuum && !stop.is_wanted() {
            let left = self.store.remove_left_overs(options.dry_run).await;
            run.report.forks_removed = left.removed;
            run.report.staged_removed = left.staged;
            for (state, error) in left.failed {
                run.report.failed.push(FailedState::new(state, &error));
                run.errors.push(error);
            }
        }
        ::metrics::counter!(metrics::MAINTAIN_RUNS).increment(1);
        run.report.elapsed_ms = u64::try_from(clock.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(run)
    }

    fn measure(&self, done: &MaintainReport) {
        let state = || done.state.clone();
        for step in &done.steps {
            ::metrics::gauge!(metrics::MAINTAIN_STEP_SECONDS, "state" => state(), "step" => step.step.name())
                .set(step.elapsed_ms as f64 / 1_000.0);
        }
        let table = |name: &'static str, table: &Footprint| {
            ::metrics::gauge!(metrics::TABLE_FILES, "state" => state(), "table" => name)
                .set(table.files as f64);
            ::metrics::gauge!(metrics::TABLE_BYTES, "state" => state(), "table" => name)
                .set(table.bytes as f64);
        };
        table("log", &done.log_after);
        if let Some(snapshot) = &done.snapshot_after {
            table("snapshot", snapshot);
        }
        if done.is_complete() && !done.dry_run {
            ::metrics::gauge!(metrics::MAINTAIN_DONE_AT, "state" => state())
                .set((self.store.clock().now_ms() / 1_000) as f64);
        }
    }

    /// Does the job again and again, `every` so long after the end of the last time and up to a tenth more, while this process has the
    /// lease; else it waits for it. Ends when it is told to stop, and releases the lease.
    ///
    /// # Errors
    /// Only the lease could not be released: it is taken over when its span has passed.
    pub async fn run_every(
        &self,
        every: Duration,
        lease: &mut Lease,
        mut tell: impl FnMut(MaintainEvent),
    ) -> Result<()> {
        let beat = Duration::from_millis(u64::try_from(lease.span_ms() / 3).unwrap_or(1));
        let mut known = None;
        while !self.stop.is_told() {
            if !self.leads(lease, &mut known, &mut tell).await {
                self.sleep(beat).await;
                continue;
            }
            match self.run_with(lease, beat, &mut known, &mut tell).await {
                Ok(run) => tell(MaintainEvent::Ran(run)),
                Err(error) => tell(MaintainEvent::Failed(error)),
            }
            let next = Instant::now() + jittered(every);
            while !self.stop.is_told() {
                let left = next.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                self.sleep(left.min(beat)).await;
                if !self.stop.is_told()
                    && !self.leads(lease, &mut known, &mut tell).await
                    && is_follower(known.as_ref())
                {
                    break;
                }
            }
        }
        ::metrics::gauge!(metrics::MAINTAIN_LEADING).set(0.0);
        lease.release().await
    }

    /// Whether this process leads; a change is told.
    async fn leads(
        &self,
        lease: &mut Lease,
        known: &mut Option<Leadership>,
        tell: &mut impl FnMut(MaintainEvent),
    ) -> bool {
        let now = match lease.beat().await {
            Ok(now) => now,
            Err(error) => {
                tell(MaintainEvent::Failed(error));
                return false;
            }
        };
        let is_leading = now == Leadership::Leading;
        ::metrics::gauge!(metrics::MAINTAIN_LEADING).set(if is_leading { 1.0 } else { 0.0 });
        if known.as_ref() != Some(&now) {
            tell(match &now {
                Leadership::Leading => MaintainEvent::Leads,
                Leadership::Following(holder) => MaintainEvent::Follows(holder.clone()),
            });
            *known = Some(now);
        }
        is_leading
    }

    /// One run, with signs of life beside it. When another process has taken the lead, it ends with the step at work.
    async fn run_with(
        &self,
        lease: &mut Lease,
        beat: Duration,
        known: &mut Option<Leadership>,
        tell: &mut impl FnMut(MaintainEvent),
    ) -> Result<MaintainRun> {
        let mut this = self.clone();
        // A signal of its own: to lose the lead ends this run and not the job.
        this.stop = StopSignal::default();
        let ends = this.stop.clone();
        let mut run = Box::pin(this.run());
        loop {
            tokio::select! {
                run = &mut run => return run,
                () = self.stop.told(), if !ends.is_told() => ends.stop(),
                () = tokio::time::sleep(beat) => {
                    let is_leading = self.leads(lease, known, tell).await;
                    if !is_leading && is_follower(known.as_ref()) {
                        ends.stop();
                    }
                }
            }
        }
    }

    async fn sleep(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.stop.told() => {}
        }
    }
}

/// Whether another process is known to lead; not so while the store doesn't tell.
fn is_follower(known: Option<&Leadership>) -> bool {
    matches!(known, Some(Leadership::Following(_)))
}

/// The time, up to a tenth longer, so that jobs which were started together part.
fn jittered(every: Duration) -> Duration {
    every + every.mul_f64(rand::rng().random_range(0.0..0.1))
}

/// A number for a long name: FNV-1a of 128 bits.
fn fingerprint(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_were_started_together_part_within_a_tenth() {
        let every = Duration::from_secs(600);
        let times: Vec<Duration> = (0..50).map(|_| jittered(every)).collect();
        assert!(times.iter().all(|time| (every..=every.mul_f64(1.1)).contains(time)), "{times:?}");
        assert!(times.iter().any(|time| *time != times[0]));
    }
}
