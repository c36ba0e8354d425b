//! One state's share of an epoch once it gets no more changes: encoded and uploaded, then committed, then put into the row cache.

use std::any::Any;
use std::sync::Arc;

use alluvium_log::{EpochCommit, EpochOutcome, Error, HybridClock, Rank, Result};
use arrow::array::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::epoch_part::{Changes, Progress, rows_of};
use crate::typed::{Shared, Value};

/// Changes from which building their columns leaves the async thread.
const INLINE_CHANGES: usize = 1_024;

/// A part that gets no more changes, on its way into the log.
pub(crate) trait SealedPart: Send + Sync {
    fn id(&self) -> usize;
    fn name(&self) -> &str;
    /// When its changes happen, in microseconds.
    fn event_time_micros(&self) -> i64;
    /// Its changes, as [`Changes`] of its type of values.
    fn changes(&self) -> Arc<dyn Any + Send + Sync>;
    fn progress(&self) -> watch::Receiver<Progress>;
    /// Whether its state has this epoch, or a later one, already.
    fn is_applied(&self) -> BoxFuture<'_, Result<bool>>;
    /// Encodes and uploads what is still in memory; nothing is visible yet.
    fn stage(&mut self) -> BoxFuture<'_, Result<()>>;
    /// Makes it visible, exactly once, and puts it into the row cache.
    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<EpochOutcome>>;
}

/// The changes of a part, complete, as they get into the log.
pub(crate) struct Sealed<V> {
    pub(crate) state: Arc<Shared<V>>,
    pub(crate) app_id: Arc<str>,
    pub(crate) number: i64,
    pub(crate) changes: Arc<Changes<V>>,
    pub(crate) commit: Option<EpochCommit>,
    pub(crate) first_version: i64,
    pub(crate) event_time_micros: i64,
    pub(crate) progress: watch::Sender<Progress>,
}

impl<V: Value> Sealed<V> {
    async fn columns(&self) -> Result<RecordBatch> {
        let (state, changes) = (self.state.clone(), self.changes.clone());
        let (first, time) = (self.first_version, self.event_time_micros);
        let build = move || state.columns.numbered(rows_of(&changes.pending), first, time);
        in_turn(self.changes.pending.len(), build).await?
    }

    /// The cache takes the rows in as they are in the log by now.
    async fn put_through(&self, commit: i64) -> Result<()> {
        if !self.changes.files.is_empty() {
            return Ok(());
        }
        let (state, changes) = (self.state.clone(), self.changes.clone());
        let (first, event_time) = (self.first_version, self.event_time_micros);
        let put = move || {
            let order_by = state.raw().definition().order_by;
            let rows = rows_of(&changes.pending).zip(0_i64..).map(|((key, value), row)| {
                let rank = Rank {
                    version: first.saturating_add(row.saturating_mul(HybridClock::STEP)),
                    event_time,
                    is_delete: value.is_none(),
                    commit,
                    append_seq: 0,
                };
                (key, value, rank)
            });
            state.cache.put_through(commit - 1, commit, order_by, rows);
        };
        in_turn(self.changes.pending.len(), put).await
    }

    async fn apply(&mut self) -> Result<EpochOutcome> {
        let commit =
            self.commit.take().ok_or_else(|| Error::internal("an epoch is committed twice"))?;
        let outcome = commit.commit().await?;
        if let EpochOutcome::Committed(receipt) = outcome {
            self.progress.send_replace(Progress::Committed(receipt.commit));
            self.put_through(receipt.commit).await?;
            self.state.raw().tidy_when_due();
        }
        Ok(outcome)
    }
}

/// Runs work here, or, when it is long, on a thread for such.
async fn in_turn<T: Send + 'static>(
    changes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if changes <= INLINE_CHANGES {
        return Ok(work());
    }
    let aborted = |error| Error::internal("an epoch's work was aborted").with_source(error);
    tokio::task::spawn_blocking(work).await.map_err(aborted)
}

impl<V: Value> SealedPart for Sealed<V> {
    fn id(&self) -> usize {
        Arc::as_ptr(&self.state).cast::<()>() as usize
    }

    fn name(&self) -> &str {
        self.state.raw().name()
    }

    fn event_time_micros(&self) -> i64 {
        self.event_time_micros
    }

    fn changes(&self) -> Arc<dyn Any + Send + Sync> {
        self.changes.clone()
    }

    fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    fn is_applied(&self) -> BoxFuture<'_, Result<bool>> {
        async move {
            let last = self.state.raw().log().last_epoch(&self.app_id).await?;
            Ok(last.is_some_and(|last| last >= self.number))
        }
        .boxed()
    }

    fn stage(&mut self) -> BoxFuture<'_, Result<()>> {
        async move {
            if self.changes.pending.is_empty() {
                return Ok(());
            }
            let batch = self.columns().await?;
            match self.commit.as_mut() {
                Some(commit) => commit.stage(&batch).await.map(drop),
                None => Err(Error::internal("an epoch is staged after its commit")),
            }
        }
        .boxed()
    }

    fn commit(mut self: Box<Self>) -> BoxFuture<'static, Result<EpochOutcome>> {
        async move {
            let outcome = self.apply().await;
            self.progress.send_if_modified(|seen| {
                let open = *seen == Progress::Open;
                if open {
                    *seen = Progress::Ended;
                }
                open
            });
            outcome
        }
        .boxed()
    }
}
