//! The batches of an epoch for a state that isn't there yet: set aside on the disk until it is known that all of them can be
//! taken, so that an epoch that is refused leaves no state behind.

use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, Write};
use std::sync::Arc;

use alluvium_log::{Error, ErrorKind, Result, StateDefinition};
use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;

use super::target::Batch;

/// Batches in a file without a name, each an Arrow IPC stream of its own, because fields are added on the way.
pub(super) struct Spool {
    file: BufWriter<File>,
    batches: Vec<Batch>,
    /// What the state will be, with the fields of all batches.
    pub(super) definition: Arc<StateDefinition>,
}

impl Spool {
    pub(super) fn new(definition: Arc<StateDefinition>) -> Result<Self> {
        let file = tempfile::tempfile().map_err(|error| failed("made", error.into()))?;
        Ok(Self { file: BufWriter::new(file), batches: Vec::new(), definition })
    }

    /// Sets a batch aside.
    pub(super) async fn push(mut self, batch: Batch, changes: RecordBatch) -> Result<Self> {
        on_a_thread(move || {
            let write = |file: &mut BufWriter<File>| -> Result<(), ArrowError> {
                let mut writer = StreamWriter::try_new(file, &changes.schema())?;
                writer.write(&changes)?;
                writer.finish()
            };
            write(&mut self.file).map_err(|error| failed("written", error))?;
            self.batches.push(batch);
            Ok(self)
        })
        .await
    }

    /// The batches, in order.
    pub(super) fn read(mut self) -> Result<SpooledBatches> {
        self.file.flush().map_err(|error| failed("written", error.into()))?;
        let file =
            self.file.into_inner().map_err(|error| failed("written", error.into_error().into()));
        let mut file = file?;
        file.rewind().map_err(|error| failed("read", error.into()))?;
        Ok(SpooledBatches { file: BufReader::new(file), batches: self.batches.into_iter() })
    }
}

/// The batches of a spool that were not read yet.
pub(super) struct SpooledBatches {
    file: BufReader<File>,
    batches: std::vec::IntoIter<Batch>,
}

impl SpooledBatches {
    /// The next batch; none after the last one.
    pub(super) async fn next(mut self) -> Result<(Self, Option<(Batch, RecordBatch)>)> {
        let Some(batch) = self.batches.next() else { return Ok((self, None)) };
        on_a_thread(move || {
            let read = |file: &mut BufReader<File>| -> Result<Option<RecordBatch>, ArrowError> {
                let mut reader = StreamReader::try_new(file, None)?;
                let changes = reader.next().transpose()?;
                // The end of the stream is read too, so that the next one begins where this one ends.
                reader.next().transpose()?;
                Ok(changes)
            };
            let changes = read(&mut self.file).map_err(|error| failed("read", error))?;
            let changes =
                changes.ok_or_else(|| Error::internal("a batch without rows was set aside"))?;
            Ok((self, Some((batch, changes))))
        })
        .await
    }
}

async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::internal("setting batches aside was aborted").with_source(error))?
}

fn failed(what: &str, error: ArrowError) -> Error {
    let folder = std::env::temp_dir();
    let message = format!(
        "a temporary file in {} can't be {what}: an epoch for a state that doesn't exist is set aside there; free space, or create the state first",
        folder.display()
    );
    Error::new(ErrorKind::Storage, message).with_source(error)
}
