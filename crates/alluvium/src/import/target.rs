//! Where an import goes: the state, created when it must be, and the appends in flight or the epoch.

use std::sync::Arc;

use alluvium_log::{
    EpochCommit, EpochOutcome, Error, ErrorKind, Receipt, Result, StateDefinition, StateSettings,
};
use arrow::array::RecordBatch;
use arrow::datatypes::Fields;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

use super::options::ImportOptions;
use crate::raw::RawState;
use crate::store::Store;

/// Appends that may be under way: one being encoded, one being committed.
const APPENDS_IN_FLIGHT: usize = 2;

/// A batch of an import, in the order of the inputs.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    /// Its place among all batches, from 0.
    pub(super) seq: u64,
    pub(super) input: Arc<str>,
    pub(super) first_line: u64,
    pub(super) last_line: u64,
    pub(super) rows: u64,
    pub(super) deletes: u64,
}

/// What became of a batch.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) batch: Batch,
    pub(super) outcome: Result<Receipt>,
}

/// The state, if it is there.
pub(super) async fn find_state(
    store: &Store,
    name: &str,
    options: &ImportOptions,
) -> Result<Option<RawState>> {
    match store.raw_state(name).await {
        Ok(state) => {
            check_order(&state, options)?;
            Ok(Some(state))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What a state with these fields will be, to check its first rows against before anything of it is there.
pub(super) fn plan_state(fields: &Fields, options: &ImportOptions) -> Result<StateDefinition> {
    StateDefinition::new(fields, settings(options))
}

/// Creates the state. If somebody else was faster and no fields were asked for, the import goes on with theirs.
pub(super) async fn create_state(
    store: &Store,
    name: &str,
    fields: &Fields,
    options: &ImportOptions,
) -> Result<(RawState, bool)> {
    match store.create_state(name, fields, settings(options)).await {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && options.fields.is_none() => {
            let Ok(state) = store.raw_state(name).await else { return Err(error) };
            check_order(&state, options)?;
            Ok((state, false))
        }
        other => other,
    }
}

fn settings(options: &ImportOptions) -> StateSettings {
    StateSettings { order_by: options.order_by.unwrap_or_default(), ..StateSettings::default() }
}

fn check_order(state: &RawState, options: &ImportOptions) -> Result<()> {
    let order_by = state.definition().order_by;
    match options.order_by {
        Some(wanted) if wanted != order_by => Err(Error::new(
            ErrorKind::AlreadyExists,
            format!(
                "the state {} exists and is ordered by {order_by}, which can't be changed: leave the order out, or use another state",
                state.name()
            ),
        )),
        _ => Ok(()),
    }
}

/// Takes batches, by appends or as one epoch.
pub(super) enum Sink {
    Appends { state: RawState, in_flight: FuturesUnordered<BoxFuture<'static, Settled>> },
    Epoch { epoch: Box<EpochCommit>, staged: Vec<Batch> },
}

impl Sink {
    pub(super) fn new(state: &RawState, options: &ImportOptions) -> Result<Self> {
        Ok(match &options.epoch {
            None => Self::Appends { state: state.clone(), in_flight: FuturesUnordered::new() },
            Some((app_id, number)) => {
                Self::Epoch { epoch: Box::new(state.epoch(app_id, *number)?), staged: Vec::new() }
            }
        })
    }

    /// Hands a batch over; gives what was settled meanwhile. Waits while too much is under way.
    ///
    /// A batch that is refused is settled at once, before a later one can be handed over.
    pub(super) async fn push(
        &mut self,
        batch: Batch,
        changes: RecordBatch,
    ) -> Result<Vec<Settled>> {
        match self {
            Self::Epoch { epoch, staged } => {
                epoch.stage(&changes).await?;
                staged.push(batch);
                Ok(Vec::new())
            }
            Self::Appends { state, in_flight } => {
                let state = state.clone();
                let append = async move {
                    let outcome = state.append(&changes).await;
                    Settled { batch, outcome }
                };
                in_flight.push(append.boxed());
                let mut settled = Vec::new();
                while in_flight.len() >= APPENDS_IN_FLIGHT {
                    settled.extend(in_flight.next().await);
                }
                while let Some(Some(next)) = in_flight.next().now_or_never() {
                    settled.push(next);
                }
                Ok(settled)
            }
        }
    }

    /// Waits for whatever is under way.
    pub(super) async fn drain(&mut self) -> Vec<Settled> {
        match self {
            Self::Appends { in_flight, .. } => in_flight.collect().await,
            Self::Epoch { .. } => Vec::new(),
        }
    }

    /// Commits the epoch, if it is one.
    pub(super) async fn commit(self) -> Result<Option<(EpochOutcome, Vec<Batch>)>> {
        match self {
            Self::Appends { .. } => Ok(None),
            Self::Epoch { epoch, staged } => {
                epoch.commit().await.map(|outcome| Some((outcome, staged)))
            }
        }
    }
}
