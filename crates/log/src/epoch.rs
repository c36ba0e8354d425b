//! Epochs: batches that are written exactly once, however often they are sent.

use std::sync::Arc;

use arrow::array::RecordBatch;

use crate::definition::StateDefinition;
use crate::erased::KeyErased;
use crate::error::{Error, Result};
use crate::floor::BelowFloor;
use crate::log::{EpochOutcome, Log, Receipt, StagedFile};
use crate::table::{DataFile, TableState};

/// The prefix of the transaction that carries an application's owner generation.
pub const OWNER_PREFIX: &str = "alluvium/owner/";
/// Longest application id, in bytes.
pub const MAX_APP_ID_BYTES: usize = 256;

/// An epoch of one state in the making: rows are staged as files, and become visible by one commit or never.
///
/// Rows are in files as soon as [`EpochCommit::stage`] returns, so an epoch may be larger than memory, and durable with the commit. Dropping
/// it leaves those files unreferenced: invisible, to be removed by a vacuum.
#[derive(Debug)]
pub struct EpochCommit {
    log: Log,
    app_id: String,
    number: i64,
    append_id: String,
    files: Vec<StagedFile>,
    next_seq: i32,
    definition: Option<StateDefinition>,
    rows: u64,
    first_version: Option<i64>,
    last_version: i64,
    /// The least of the commits up to whose markers the rows were checked.
    checked: i64,
}

impl EpochCommit {
    pub(crate) fn new(log: Log, app_id: &str, number: i64) -> Result<Self> {
        validate_app_id(app_id)?;
        if number < 0 {
            return Err(Error::invalid(format!(
                "epoch {number} of {app_id:?}: epochs are counted from 0 up"
            )));
        }
        let append_id = format!("{}/{number}/{app_id}", log.inner.next_append_id());
        Ok(Self {
            log,
            app_id: app_id.to_owned(),
            number,
            append_id,
            files: Vec::new(),
            next_seq: 0,
            definition: None,
            rows: 0,
            first_version: None,
            last_version: 0,
            checked: i64::MAX,
        })
    }

    /// Adds rows to the epoch; the columns are those of [`Log::append`]. Later rows win ties over earlier ones.
    ///
    /// Returns the rows as they will be in the log, in the order given: `state_key, version, event_time, op_type, state_value`. Rows that
    /// would be refused by now, because a key was erased or the floor was raised, are taken of an epoch that was applied before.
    pub async fn stage(&mut self, changes: &RecordBatch) -> Result<RecordBatch> {
        let inner = self.log.inner.clone();
        let mut rows = match inner.check(changes).await {
            // What is sent again is in the log already, however old its rows are by now.
            Err(error) if is_refused_by_now(&error) && self.is_applied().await? => {
                return inner.complete(changes).map(|rows| rows.batch);
            }
            rows => rows?,
        };
        if changes.num_rows() == 0 {
            return Ok(rows.batch);
        }
        if let Some(known) = &self.definition {
            let grown = known.grown_by(&rows.definition.fields)?;
            rows = rows.adapted_to(&Arc::new(grown))?;
        }
        self.checked = self.checked.min(rows.checked);
        let (first, last) = rows.versions();
        let (files, greatest_seq) = inner
            .stage(rows.batch.clone(), &self.append_id, (self.files.len(), self.next_seq), false)
            .await?;
        self.next_seq = greatest_seq
            .checked_add(1)
            .ok_or_else(|| Error::invalid("an epoch has more than 2^31 tied rows"))?;
        self.files.extend(files);
        self.definition = Some((*rows.definition).clone());
        self.rows += rows.batch.num_rows() as u64;
        self.first_version.get_or_insert(first);
        self.last_version = last;
        Ok(rows.batch)
    }

    /// Whether this epoch, or a later one of the application, is in the log.
    async fn is_applied(&self) -> Result<bool> {
        self.log.refresh().await?;
        let last = self.log.last_epoch(&self.app_id).await?;
        Ok(last.is_some_and(|last| last >= self.number))
    }

    /// What the state is for the rows staged so far: with the fields that they add.
    pub fn definition(&self) -> Option<&StateDefinition> {
        self.definition.as_ref()
    }

    /// The files that hold the rows staged so far, oldest first, for the epoch's own reads: nothing refers to them yet.
    /// Their rows have the greatest commit there is, so that they come after everything that is committed.
    pub fn staged_files(&self) -> Vec<Arc<DataFile>> {
        self.files.iter().map(|file| Arc::new(DataFile::uncommitted(file.add.clone()))).collect()
    }

    /// Makes the epoch's rows visible, unless this epoch or a later one of the application was applied before.
    pub async fn commit(self) -> Result<EpochOutcome> {
        let outcome = self.commit_if(|_| true).await?;
        outcome.ok_or_else(|| Error::internal("an epoch without a condition was held back"))
    }

    /// The same, but only if a condition holds on the state of the table that precedes the commit. Where it does not, nothing is
    /// written, the staged files are removed, and the answer is `None`.
    #[tracing::instrument(
        name = "epoch", level = "debug", skip_all, err(level = "debug"),
        fields(state = self.log.name(), app = %self.app_id, epoch = self.number, rows = self.rows, basis = self.log.state().version, commit = tracing::field::Empty)
    )]
    pub async fn commit_if(
        self,
        holds: impl Fn(&TableState) -> bool + Send + Sync,
    ) -> Result<Option<EpochOutcome>> {
        let receipt = Receipt {
            commit: -1,
            rows: self.rows,
            first_version: self.first_version.unwrap_or(0),
            last_version: self.last_version,
        };
        let outcome = self
            .log
            .inner
            .commit_epoch(
                &self.files,
                self.definition.as_ref(),
                (&self.app_id, self.number),
                (receipt, self.checked),
                &holds,
            )
            .await?;
        if let Some(EpochOutcome::Committed(receipt)) = &outcome {
            tracing::Span::current().record("commit", receipt.commit);
        }
        Ok(outcome)
    }
}

/// Whether rows are refused for what has come about since they may have been appended: a key was erased, or the floor was raised.
fn is_refused_by_now(error: &Error) -> bool {
    KeyErased::is_cause_of(error) || BelowFloor::is_cause_of(error)
}

fn validate_app_id(app_id: &str) -> Result<()> {
    if app_id.is_empty() || app_id.len() > MAX_APP_ID_BYTES || app_id.starts_with("alluvium/") {
        return Err(Error::invalid(format!(
            "{app_id:?} can't be an application id: use 1 to {MAX_APP_ID_BYTES} bytes that do not begin with \"alluvium/\""
        )));
    }
    Ok(())
}
