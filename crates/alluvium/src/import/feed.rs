//! The thread that reads and decodes: inputs one after the other, chunks in their order.

use std::sync::Arc;

use alluvium_log::{Error, Result};
use arrow::datatypes::Fields;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::options::{ImportInput, ImportOptions};
use super::predicate::DeletePredicate;
use crate::format::{ChangeChunk, ChangeReader, OnBad, ReadOptions, ReaderSchema};

/// Chunks that may wait to be taken.
const WAITING_CHUNKS: usize = 1;

/// One chunk and where it is from.
pub(super) struct Piece {
    pub(super) input: Arc<str>,
    /// The place of the input among all, from 0.
    pub(super) index: usize,
    pub(super) chunk: ChangeChunk,
    /// Bytes of all inputs read so far.
    pub(super) bytes_read: u64,
}

/// The pieces of the inputs, in order.
pub(super) struct Pieces {
    pieces: mpsc::Receiver<Result<Piece>>,
    thread: Option<JoinHandle<()>>,
}

impl Pieces {
    /// The next piece; none at the end of the last input. An error is the last that comes.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>> {
        if let Some(piece) = self.pieces.recv().await {
            return piece.map(Some);
        }
        // A thread that broke down must not look like the end of the inputs.
        match self.thread.take() {
            None => Ok(None),
            Some(thread) => thread.await.map(|()| None).map_err(|error| {
                Error::internal("reading the inputs was aborted").with_source(error)
            }),
        }
    }
}

/// Starts reading.
pub(super) fn start(
    inputs: Vec<ImportInput>,
    options: &ImportOptions,
    known: Option<Fields>,
    collects: bool,
) -> Pieces {
    let (sender, pieces) = mpsc::channel(WAITING_CHUNKS);
    let mut feed = Feed {
        read: ReadOptions {
            format: options.format,
            mapping: options.mapping.clone(),
            schema: ReaderSchema::Infer,
            batch_rows: options.batch_rows,
            batch_bytes: options.batch_bytes,
            on_bad: if collects { OnBad::Collect } else { OnBad::Fail },
            want_records: options.delete_when.is_some(),
        },
        predicate: options.delete_when.as_deref().map(DeletePredicate::new),
        fields: known,
        bytes_before: 0,
        sender,
    };
    let thread = tokio::task::spawn_blocking(move || feed.read_all(inputs));
    Pieces { pieces, thread: Some(thread) }
}

struct Feed {
    read: ReadOptions,
    predicate: Option<DeletePredicate>,
    /// The fields of the value, once any are known: a file goes on with those of the one before.
    fields: Option<Fields>,
    bytes_before: u64,
    sender: mpsc::Sender<Result<Piece>>,
}

impl Feed {
    fn read_all(&mut self, inputs: Vec<ImportInput>) {
        for (index, input) in inputs.into_iter().enumerate() {
            match self.read_one(index, input) {
                Ok(true) => {}
                // Nobody waits for more.
                Ok(false) => return,
                Err(error) => {
                    self.sender.blocking_send(Err(error)).ok();
                    return;
                }
            }
        }
    }

    /// Reads one input; false when nobody takes the pieces any more.
    fn read_one(&mut self, index: usize, input: ImportInput) -> Result<bool> {
        let label: Arc<str> = input.label().into();
        let mut options = self.read.clone();
        if let Some(fields) = &self.fields {
            options.schema = ReaderSchema::Fixed(fields.clone());
        }
        let mut reader = match input {
            ImportInput::File(path) => ChangeReader::open(path, options)?,
            ImportInput::Stream { label, read } => ChangeReader::from_read(label, read, options)?,
        };
        while let Some(mut chunk) = reader.next_chunk()? {
            self.fields = Some(chunk.fields().clone());
            if let Some(predicate) = &mut self.predicate {
                let place = chunk.first_line().unwrap_or(0);
                chunk = predicate.apply(chunk).map_err(|error| located(error, &label, place))?;
            }
            let piece = Piece {
                input: Arc::clone(&label),
                index,
                chunk,
                bytes_read: self.bytes_before + reader.bytes_read(),
            };
            if self.sender.blocking_send(Ok(piece)).is_err() {
                return Ok(false);
            }
        }
        self.bytes_before += reader.bytes_read();
        Ok(true)
    }
}

/// An error of a predicate, with the batch that it was met in; an error of a row names its line itself.
fn located(error: Error, input: &str, first_line: u64) -> Error {
    if error.message().starts_with(input) {
        return error;
    }
    error.context(format!("{input}, in the rows from line {first_line}"))
}
