//! A stream of epochs: the next one is filled while earlier ones are encoded, synced and committed.
//!
//! ```text
//! fill k+2   | stage k+1 | commit k
//! ```
//!
//! Epochs are committed strictly in order, and none after one that failed. An epoch sees what the ones before it changed,
//! durable or not: if one fails, those after it, which may have been made from its changes, are not committed either, and the
//! stream is over. So what is durable is always a prefix of the stream, and exactly-once holds as with single epochs: after a
//! failure, open a new stream and send again from the last durable epoch on.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use alluvium_log::{EpochOutcome, Error, ErrorKind, Result};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::epoch::Epoch;
use crate::epoch_part::{Changes, Earlier, Part, Progress};
use crate::epoch_sealed::SealedPart;
use crate::typed::{State, Value};

/// Epochs that may be on their way into the log at the same time: one is committed while the next one is encoded.
pub const EPOCHS_IN_FLIGHT: usize = 2;

/// An epoch that gets no more changes, as later ones see it.
pub(crate) struct SealedEpoch {
    number: i64,
    parts: Vec<SealedView>,
}

struct SealedView {
    id: usize,
    changes: Arc<dyn Any + Send + Sync>,
    progress: watch::Receiver<Progress>,
}

impl SealedEpoch {
    fn of(number: i64, parts: &[Box<dyn SealedPart>]) -> Self {
        let view = |part: &dyn SealedPart| SealedView {
            id: part.id(),
            changes: part.changes(),
            progress: part.progress(),
        };
        Self { number, parts: parts.iter().map(|part| view(part.as_ref())).collect() }
    }

    /// Its changes of a state.
    pub(crate) fn changes_of<V: Value>(&self, state: &State<V>) -> Option<Earlier<V>> {
        let id = Part::<V>::id_of(state);
        let view = self.parts.iter().find(|view| view.id == id)?;
        let changes = view.changes.clone().downcast::<Changes<V>>().ok()?;
        Some(Earlier { number: self.number, changes, progress: view.progress.clone() })
    }
}

struct InFlight {
    epoch: Arc<SealedEpoch>,
    task: JoinHandle<Result<()>>,
}

/// Epochs of one application in a row; see [`crate::Store::epochs`].
///
/// Dropping it does not undo what was submitted. One stream per application id at a time: another one, here or in another
/// process, would be fenced or fence this one.
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Clone, Serialize, Deserialize)]
/// # struct Count { n: i64 }
/// # #[tokio::main(flavor = "multi_thread")]
/// # async fn main() -> alluvium::Result<()> {
/// let store = alluvium::Store::open("memory://").await?;
/// let counts = store.state::<Count>("counts").await?;
/// let mut stream = store.epochs("counter");
/// for number in 1..=3 {
///     let mut epoch = stream.begin(number).await?;
///     let n = epoch.get(&counts, "a").await?.map_or(0, |count| count.n);
///     epoch.put(&counts, "a", Count { n: n + 1 }).await?;
///     stream.submit(epoch).await?;
/// }
/// assert_eq!(stream.flush().await?, Some(3));
/// assert_eq!(counts.get("a").await?.map(|count| count.n), Some(3));
/// # Ok(())
/// # }
/// ```
pub struct EpochStream {
    app_id: Arc<str>,
    in_flight: VecDeque<InFlight>,
    /// Told when the last submitted epoch is committed.
    turn: Option<oneshot::Receiver<()>>,
    last: Option<i64>,
    last_micros: i64,
    durable: Option<i64>,
    is_over: bool,
}

impl std::fmt::Debug for EpochStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpochStream")
            .field("app_id", &self.app_id)
            .field("submitted", &self.last)
            .field("durable", &self.durable)
            .finish_non_exhaustive()
    }
}

impl EpochStream {
    pub(crate) fn new(app_id: &str) -> Self {
        Self {
            app_id: Arc::from(app_id),
            in_flight: VecDeque::new(),
            turn: None,
            last: None,
            last_micros: i64::MIN,
            durable: None,
            is_over: false,
        }
    }

    /// The greatest epoch of the stream that is known to be durable: a source may forget what came before.
    pub fn durable(&self) -> Option<i64> {
        self.durable
    }

    /// Begins the next epoch. It sees the changes of those that were submitted before.
    pub async fn begin(&mut self, number: i64) -> Result<Epoch> {
        self.check_open()?;
        if let Some(last) = self.last.filter(|last| *last >= number) {
            return Err(Error::invalid(format!(
                "epoch {number} of {:?} can't follow epoch {last}: numbers of a stream grow",
                self.app_id
            )));
        }
        while self.in_flight.front().is_some_and(|oldest| oldest.task.is_finished()) {
            self.wait_for_oldest().await?;
        }
        let earlier = self.in_flight.iter().rev().map(|flight| flight.epoch.clone()).collect();
        Ok(Epoch::after(self.app_id.clone(), number, earlier, self.last_micros))
    }

    /// Sends an epoch on its way; it is durable when [`EpochStream::durable`] says so, or [`EpochStream::flush`] returns.
    ///
    /// Waits while [`EPOCHS_IN_FLIGHT`] earlier ones are on their way. An error is that of an earlier epoch, or of this one: the
    /// stream is over then.
    pub async fn submit(&mut self, epoch: Epoch) -> Result<()> {
        self.check_open()?;
        let number = epoch.number();
        if epoch.app_id() != &*self.app_id || self.last.is_some_and(|last| last >= number) {
            return Err(Error::invalid(format!(
                "epoch {number} of {:?} was not begun last by this stream of {:?}",
                epoch.app_id(),
                self.app_id
            )));
        }
        while self.in_flight.len() >= EPOCHS_IN_FLIGHT {
            self.wait_for_oldest().await?;
        }
        let parts = epoch.into_sealed()?;
        let mut applied = Vec::with_capacity(parts.len());
        for part in &parts {
            self.last_micros = self.last_micros.max(part.event_time_micros());
            applied.push(part.is_applied().await?);
        }
        let sealed = Arc::new(SealedEpoch::of(number, &parts));
        let (done, turn) = oneshot::channel();
        let before = self.turn.replace(turn);
        let app_id = self.app_id.clone();
        let task = tokio::spawn(apply(app_id, number, parts, applied, before, done));
        self.in_flight.push_back(InFlight { epoch: sealed, task });
        self.last = Some(number);
        // A caller whose reads all hit the cache would not let the new task begin on a thread that they share.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Waits until everything that was submitted is durable; returns the greatest durable epoch.
    pub async fn flush(&mut self) -> Result<Option<i64>> {
        self.check_open()?;
        while !self.in_flight.is_empty() {
            self.wait_for_oldest().await?;
        }
        Ok(self.durable)
    }

    fn check_open(&self) -> Result<()> {
        match self.is_over {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "the stream of epochs of {:?} is over, since one of them failed: begin a new one after epoch {:?}",
                    self.app_id, self.durable
                ),
            )),
        }
    }

    async fn wait_for_oldest(&mut self) -> Result<()> {
        let Some(oldest) = self.in_flight.front_mut() else { return Ok(()) };
        let outcome = (&mut oldest.task)
            .await
            .map_err(|error| Error::internal("an epoch's task was aborted").with_source(error))
            .and_then(|outcome| outcome);
        let number = oldest.epoch.number;
        self.in_flight.pop_front();
        match outcome {
            Ok(()) => {
                self.durable = Some(number);
                Ok(())
            }
            Err(error) => {
                self.is_over = true;
                Err(error.context(format!("epoch {number} of {:?}", self.app_id)))
            }
        }
    }
}

/// Stages an epoch, waits for its turn, and commits it state by state.
async fn apply(
    app_id: Arc<str>,
    number: i64,
    mut parts: Vec<Box<dyn SealedPart>>,
    applied: Vec<bool>,
    before: Option<oneshot::Receiver<()>>,
    done: oneshot::Sender<()>,
) -> Result<()> {
    for part in &mut parts {
        part.stage().await?;
    }
    if let Some(before) = before
        && before.await.is_err()
    {
        return Err(Error::new(
            ErrorKind::Conflict,
            "an earlier epoch of the stream failed, and this one was made from its changes: it is not committed",
        ));
    }
    for (part, was_applied) in parts.into_iter().zip(applied) {
        let name = part.name().to_owned();
        if let EpochOutcome::AlreadyApplied { last } = part.commit().await?
            && !was_applied
        {
            return Err(Error::new(
                ErrorKind::Fenced,
                format!(
                    "state {name}: another process has applied epochs of {app_id:?} up to {last} while this one prepared epoch {number}: \
                     this process has been replaced and must stop"
                ),
            ));
        }
    }
    // The stream may be gone; then nobody waits for a turn.
    done.send(()).ok();
    Ok(())
}
