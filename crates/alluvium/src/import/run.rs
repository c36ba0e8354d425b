//! The import itself: pieces in, batches out, and the account of what is in.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use alluvium_log::{EpochOutcome, Erased, Error, Log, Result, StateDefinition, check_changes};
use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Fields};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::check::{check_rows, count_deletes, skip_lines};
use super::feed::{self, Piece, Pieces};
use super::ledger::Ledger;
use super::options::{ImportInput, ImportOptions};
use super::rejects::Rejects;
use super::report::{ImportProgress, ImportReport, added_fields};
use super::spool::Spool;
use super::target::{Batch, Settled, Sink, create_state, find_state, plan_state};
use crate::format::ChangeChunk;
use crate::raw::RawState;
use crate::store::Store;

type OnProgress = Box<dyn FnMut(&ImportProgress) + Send>;

/// An import of some inputs into one state.
pub struct Import {
    store: Store,
    state: String,
    inputs: Vec<ImportInput>,
    options: ImportOptions,
    rejects: Option<PathBuf>,
    on_progress: Option<OnProgress>,
    stop: BoxFuture<'static, ()>,
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Import")
            .field("state", &self.state)
            .field("inputs", &self.inputs)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Import {
    /// An import of inputs, one after the other, into a state, which is created when it doesn't exist.
    pub fn new(store: &Store, state: &str, inputs: Vec<ImportInput>) -> Self {
        Self {
            store: store.clone(),
            state: state.to_owned(),
            inputs,
            options: ImportOptions::default(),
            rejects: None,
            on_progress: None,
            stop: std::future::pending().boxed(),
        }
    }

    /// How it is done.
    pub fn options(mut self, options: ImportOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets bad rows aside in a file, to which they are added as JSON lines `{"file","line","reason","text"}`, instead of
    /// stopping at the first one. A text that isn't UTF-8 is there as `base64`.
    pub fn rejects(mut self, path: impl Into<PathBuf>) -> Self {
        self.rejects = Some(path.into());
        self
    }

    /// Is called after each batch that was read or became durable.
    pub fn on_progress(
        mut self,
        on_progress: impl FnMut(&ImportProgress) + Send + 'static,
    ) -> Self {
        self.on_progress = Some(Box::new(on_progress));
        self
    }

    /// Stops the import when a future resolves: no more is read, what is under way is waited for, and the report says
    /// what is in. An epoch that is stopped is not applied.
    pub fn stop_when(mut self, stop: impl Future<Output = ()> + Send + 'static) -> Self {
        self.stop = stop.boxed();
        self
    }

    /// Runs the import.
    ///
    /// # Errors
    /// The first thing that can't be taken, with its input, line, field and remedy; and which rows are in. Each batch is in
    /// as a whole or not at all, and so is an epoch.
    pub async fn run(self) -> Result<ImportReport> {
        let started = Instant::now();
        self.options.validate()?;
        if self.inputs.is_empty() {
            return Err(Error::invalid("there is no input to import"));
        }
        let found = find_state(&self.store, &self.state, &self.options).await?;
        if let (Some(state), Some((app_id, number))) = (&found, &self.options.epoch) {
            // A batch that was applied before needs not be read.
            state.log().refresh().await?;
            let last = state.log().last_epoch(app_id).await?;
            if let Some(last) = last.filter(|last| last >= number) {
                let elapsed = started.elapsed();
                return Ok(ImportReport {
                    already_applied: Some(last),
                    elapsed,
                    ..Default::default()
                });
            }
        }
        let rejects = self.rejects.as_deref().map(Rejects::open).transpose()?;
        let total_bytes = total_bytes(&self.inputs);
        let known = match &found {
            Some(state) => Some(state.definition().fields.clone()),
            None => self.options.fields.clone(),
        };
        let pieces = feed::start(self.inputs, &self.options, known, rejects.is_some());
        let mut run = Run {
            store: self.store,
            name: self.state,
            options: self.options,
            rejects,
            on_progress: self.on_progress,
            target: None,
            spool: None,
            ledger: Ledger::default(),
            report: ImportReport::default(),
            left_out: BTreeSet::new(),
            next_seq: 0,
            input: String::new(),
            bytes_read: 0,
            total_bytes,
        };
        if let Some(state) = found {
            run.aim(state, false)?;
        }
        let mut report = run.all(pieces, self.stop).await?;
        report.elapsed = started.elapsed();
        Ok(report)
    }
}

/// The bytes of the inputs, if all are files.
fn total_bytes(inputs: &[ImportInput]) -> Option<u64> {
    inputs
        .iter()
        .map(|input| match input {
            ImportInput::File(path) => std::fs::metadata(path)
                .ok()
                .filter(std::fs::Metadata::is_file)
                .map(|file| file.len()),
            ImportInput::Stream { .. } => None,
        })
        .sum()
}

/// The state that is written to.
struct Target {
    state: RawState,
    /// Its fields before.
    fields: Fields,
    sink: Sink,
}

struct Run {
    store: Store,
    name: String,
    options: ImportOptions,
    rejects: Option<Rejects>,
    on_progress: Option<OnProgress>,
    target: Option<Target>,
    /// An epoch for a state that isn't there yet.
    spool: Option<Spool>,
    ledger: Ledger,
    report: ImportReport,
    left_out: BTreeSet<String>,
    next_seq: u64,
    input: String,
    bytes_read: u64,
    total_bytes: Option<u64>,
}

impl Run {
    fn aim(&mut self, state: RawState, created: bool) -> Result<()> {
        self.report.created = created;
        let fields = state.definition().fields.clone();
        let sink = Sink::new(&state, &self.options)?;
        self.target = Some(Target { state, fields, sink });
        Ok(())
    }

    async fn all(mut self, pieces: Pieces, stop: BoxFuture<'static, ()>) -> Result<ImportReport> {
        let pumped = self.pump(pieces, stop).await;
        let drained = self.drain().await;
        match pumped.and(drained) {
            Ok(()) => self.finish().await,
            Err(error) => Err(self.explain(error)),
        }
    }

    async fn pump(&mut self, mut pieces: Pieces, mut stop: BoxFuture<'static, ()>) -> Result<()> {
        loop {
            let piece = tokio::select! {
                biased;
                () = &mut stop => {
                    self.report.stopped = true;
                    return Ok(());
                }
                piece = pieces.next() => piece?,
            };
            match piece {
                None => return Ok(()),
                Some(piece) => self.take(piece).await?,
            }
        }
    }

    async fn take(&mut self, piece: Piece) -> Result<()> {
        let Piece { input, index, mut chunk, bytes_read } = piece;
        self.input = input.to_string();
        self.bytes_read = bytes_read;
        let definition = self.definition(&chunk)?;
        if let Some(definition) = &definition {
            let refused = match &self.target {
                Some(target) => {
                    let log = target.state.log();
                    (newest_markers(log).await?, log.floor())
                }
                None => (None, None),
            };
            check_rows(&mut chunk, definition, refused, self.store.clock().now_micros())?;
        }
        if index == 0 && self.options.after_line > 0 {
            skip_lines(&mut chunk, self.options.after_line)?;
        }
        self.left_out.extend(std::mem::take(&mut chunk.left_out));
        if let Some(rejects) = self.rejects.as_mut().filter(|_| !chunk.rejects.is_empty()) {
            self.report.rejected += chunk.rejects.len() as u64;
            rejects.write(&input, &chunk.rejects)?;
        }
        let (Some(definition), Some(&first_line), Some(&last_line)) =
            (definition, chunk.lines.first(), chunk.lines.last())
        else {
            self.tell();
            return Ok(());
        };
        if self.target.is_none() {
            let planned = check_changes(&chunk.changes, &definition, self.store.clock()).map_err(
                |error| error.context(format!("{input}, lines {first_line} to {last_line}")),
            )?;
            if self.options.epoch.is_none() {
                self.create(&planned.fields).await?;
            } else if let Some(spool) = &mut self.spool {
                spool.definition = planned;
            } else {
                self.spool = Some(Spool::new(planned)?);
            }
        }
        let batch = Batch {
            seq: self.next_seq,
            input,
            first_line,
            last_line,
            rows: chunk.len() as u64,
            deletes: count_deletes(&chunk.changes),
        };
        self.next_seq += 1;
        self.push(batch, chunk.changes).await
    }

    /// Hands a batch over to the state, or sets it aside until there is one.
    async fn push(&mut self, batch: Batch, changes: RecordBatch) -> Result<()> {
        if let Some(target) = &mut self.target {
            let settled = target.sink.push(batch, changes).await?;
            return self.settle(settled);
        }
        if let Some(spool) = self.spool.take() {
            self.spool = Some(spool.push(batch, changes).await?);
        }
        self.tell();
        Ok(())
    }

    /// What the state is, or will be when it is created for the rows of a chunk; none while there are no rows.
    fn definition(&self, chunk: &ChangeChunk) -> Result<Option<Arc<StateDefinition>>> {
        match &self.target {
            Some(target) => Ok(Some(target.state.definition())),
            None if chunk.is_empty() => Ok(None),
            None => {
                if let Some(spool) = &self.spool {
                    return Ok(Some(spool.definition.clone()));
                }
                let fields = self.options.fields.as_ref().unwrap_or(chunk.fields());
                plan_state(fields, &self.options).map(|planned| Some(Arc::new(planned)))
            }
        }
    }

    /// Creates the state, once it is known that its log takes the rows: what is refused leaves nothing behind.
    async fn create(&mut self, fields: &Fields) -> Result<()> {
        let (state, created) = create_state(&self.store, &self.name, fields, &self.options).await?;
        self.aim(state, created)
    }

    /// Notes what became of batches; the first error counts.
    fn settle(&mut self, settled: Vec<Settled>) -> Result<()> {
        let mut first = Ok(());
        for Settled { batch, outcome } in settled {
            match outcome {
                Ok(receipt) => self.ledger.land(&batch, &receipt),
                Err(error) => {
                    self.ledger.fail(&batch, error.kind());
                    let place = format!(
                        "{}, lines {} to {}",
                        batch.input, batch.first_line, batch.last_line
                    );
                    first = first.and(Err(error.context(place)));
                }
            }
        }
        self.tell();
        first
    }

    async fn drain(&mut self) -> Result<()> {
        match &mut self.target {
            None => Ok(()),
            Some(target) => {
                let settled = target.sink.drain().await;
                self.settle(settled)
            }
        }
    }

    fn tell(&mut self) {
        if let Some(on_progress) = &mut self.on_progress {
            on_progress(&ImportProgress {
                input: self.input.clone(),
                rows: self.ledger.rows,
                rejected: self.report.rejected,
                bytes_read: self.bytes_read,
                total_bytes: self.total_bytes,
                commit: self.ledger.last_commit,
            });
        }
    }

    async fn finish(mut self) -> Result<ImportReport> {
        if let Some(rejects) = self.rejects.take() {
            rejects.finish()?;
        }
        if self.target.is_none() && !self.report.stopped {
            self.create_at_the_end().await.map_err(|error| explain_epoch(error, &self.options))?;
        }
        let Some(target) = self.target.take() else { return Ok(self.report) };
        let Target { state, fields, sink } = target;
        if !self.report.stopped || self.options.epoch.is_none() {
            match sink.commit().await {
                Err(error) => return Err(explain_epoch(error, &self.options)),
                Ok(Some((EpochOutcome::AlreadyApplied { last }, _))) => {
                    self.report.already_applied = Some(last);
                }
                Ok(Some((EpochOutcome::Committed(receipt), batches))) => {
                    batches.iter().for_each(|batch| self.ledger.land(batch, &receipt));
                }
                Ok(None) => {}
            }
        }
        let now = state.definition();
        let mut report = self.report;
        report.rows = self.ledger.rows;
        report.deletes = self.ledger.deletes;
        report.commits = self.ledger.commits;
        report.first_commit = self.ledger.first_commit;
        report.last_commit = self.ledger.last_commit;
        report.fields_added = added_fields(&fields, &now.fields);
        report.fields_left_out =
            self.left_out.into_iter().filter(|path| !has_path(&now.fields, path)).collect();
        if report.stopped {
            report.stopped_after = self.ledger.place();
        }
        Ok(report)
    }

    /// Creates the state at the end of the inputs, where all is known: for an epoch that was set aside, or, without a row
    /// that can be taken, if its fields are given.
    async fn create_at_the_end(&mut self) -> Result<()> {
        if let Some(spool) = self.spool.take() {
            self.create(&spool.definition.fields).await?;
            let mut rest = spool.read()?;
            while let (left, Some((batch, changes))) = rest.next().await? {
                self.push(batch, changes).await?;
                rest = left;
            }
            return Ok(());
        }
        let name = &self.name;
        if self.report.rejected > 0 {
            return Err(Error::invalid(format!(
                "the state {name} doesn't exist, and was not created: every row was rejected ({}); mend them and append again",
                self.report.rejected
            )));
        }
        let Some(fields) = self.options.fields.clone() else {
            return Err(Error::invalid(format!(
                "the state {name} doesn't exist, and was not created: the input has no rows to tell its fields; give its schema"
            )));
        };
        self.create(&fields).await
    }

    fn explain(&self, error: Error) -> Error {
        let error = match &self.options.epoch {
            Some(_) => explain_epoch(error, &self.options),
            None => self.ledger.explain(error),
        };
        if self.target.is_some() {
            return error;
        }
        let text = format!("{}, and the state {} was not created", error.message(), self.name);
        Error::new(error.kind(), text).with_source(error)
    }
}

/// An error of an epoch, with what that means for its rows.
fn explain_epoch(error: Error, options: &ImportOptions) -> Error {
    let Some((app_id, number)) = &options.epoch else { return error };
    let what = if error.kind() == alluvium_log::ErrorKind::Unknown {
        "whether it was applied is not known: send it again, it is applied once"
    } else {
        "nothing of it was applied"
    };
    Error::new(error.kind(), format!("{error}; epoch {number} of {app_id:?}: {what}"))
        .with_source(error)
}

/// Whether fields hold a path of plain names.
fn has_path(fields: &Fields, path: &str) -> bool {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    match (fields.iter().find(|field| field.name() == name), rest) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(field), Some(rest)) => match field.data_type() {
            DataType::Struct(fields) => has_path(fields, rest),
            _ => false,
        },
    }
}

/// The markers of erased keys, which another process may have lifted: looked for only where there are any.
async fn newest_markers(log: &Log) -> Result<Option<Arc<Erased>>> {
    if log.erased()?.is_some_and(|erased| !erased.is_empty()) {
        log.refresh().await?;
    }
    log.erased()
}
