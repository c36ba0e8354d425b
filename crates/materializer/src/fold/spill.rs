//! Sorted runs on disk: Arrow IPC streams in a folder that goes away with the last run.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alluvium_log::{Error, ErrorKind, Result};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use futures::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tempfile::{TempDir, TempPath};

use super::BatchStream;
use super::bytes::batch_bytes;
use crate::thread::OwnThread;

/// Where a fold spills to; makes its folder when it first does.
#[derive(Debug)]
pub(super) struct SpillArea {
    parent: PathBuf,
    folder: Mutex<Option<Arc<TempDir>>>,
    /// What reads and writes.
    disk: Arc<OwnThread>,
}

/// A sorted run on disk, removed when it is dropped or has been read.
#[derive(Debug)]
pub(super) struct SpilledRun {
    /// About the bytes of its rows in memory.
    pub(super) bytes: u64,
    file: SpillFile,
    disk: Arc<OwnThread>,
}

/// The fields are dropped in this order: the file, then the folder with the last file.
#[derive(Debug)]
struct SpillFile {
    path: TempPath,
    folder: Arc<TempDir>,
}

impl SpillFile {
    fn failure(&self, verb: &str, cause: impl Into<ArrowError>) -> Error {
        failure(self.folder.path(), verb, cause.into())
    }
}

fn failure(folder: &Path, verb: &str, cause: ArrowError) -> Error {
    let message = format!(
        "a fold that does not fit its memory_budget_bytes could not {verb} a temporary file in {}: \
         free space there, or set spill_dir to a folder on a larger disk",
        folder.display()
    );
    Error::new(ErrorKind::Storage, message).with_source(cause)
}

impl SpillArea {
    pub(super) fn new(parent: Option<PathBuf>) -> Self {
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let disk = Arc::new(OwnThread::new("alluvium-spill"));
        Self { parent, folder: Mutex::new(None), disk }
    }

    fn folder(&self) -> Result<Arc<TempDir>> {
        let mut folder = self.folder.lock();
        if let Some(folder) = folder.as_ref() {
            return Ok(folder.clone());
        }
        let made = tempfile::Builder::new()
            .prefix("alluvium-fold-")
            .tempdir_in(&self.parent)
            .map_err(|error| failure(&self.parent, "make a folder for", error.into()))?;
        Ok(folder.insert(Arc::new(made)).clone())
    }

    /// Writes a sorted stream to a run.
    pub(super) async fn spill(
        self: &Arc<Self>,
        schema: &SchemaRef,
        mut sorted: BatchStream,
    ) -> Result<SpilledRun> {
        let disk = self.disk.clone();
        let (area, schema) = (self.clone(), schema.clone());
        let mut writer = disk.run(move || RunWriter::create(&area, &schema)).await?;
        while let Some(batch) = sorted.try_next().await? {
            writer = disk.run(move || writer.write(&batch)).await?;
        }
        let (bytes, file) = disk.run(move || writer.finish()).await?;
        Ok(SpilledRun { bytes, file, disk })
    }
}

struct RunWriter {
    bytes: u64,
    // The file is closed before it is removed, should this be dropped half-way.
    stream: StreamWriter<BufWriter<File>>,
    file: SpillFile,
}

impl RunWriter {
    fn create(area: &SpillArea, schema: &SchemaRef) -> Result<Self> {
        let folder = area.folder()?;
        let (handle, path) = tempfile::Builder::new()
            .prefix("run-")
            .suffix(".arrows")
            .tempfile_in(folder.path())
            .map_err(|error| failure(folder.path(), "make", error.into()))?
            .into_parts();
        let file = SpillFile { path, folder };
        let stream = StreamWriter::try_new(BufWriter::with_capacity(1 << 18, handle), schema)
            .map_err(|error| file.failure("write", error))?;
        Ok(Self { bytes: 0, stream, file })
    }

    fn write(mut self, batch: &RecordBatch) -> Result<Self> {
        self.bytes += batch_bytes(batch) as u64;
        self.stream.write(batch).map_err(|error| self.file.failure("write", error))?;
        Ok(self)
    }

    fn finish(mut self) -> Result<(u64, SpillFile)> {
        self.stream
            .finish()
            .and_then(|()| Ok(self.stream.get_mut().flush()?))
            .map_err(|error| self.file.failure("write", error))?;
        Ok((self.bytes, self.file))
    }
}

impl SpilledRun {
    /// Reads the run from its beginning; opens it with the first batch.
    pub(super) fn read(self) -> BatchStream {
        let reader = RunReader { open: None, file: self.file };
        stream::try_unfold((reader, self.disk), |(reader, disk)| async move {
            let (batch, reader) = disk.run(move || reader.next()).await?;
            Ok(batch.map(|batch| (batch, (reader, disk))))
        })
        .boxed()
    }
}

struct RunReader {
    open: Option<StreamReader<BufReader<File>>>,
    file: SpillFile,
}

impl RunReader {
    fn next(mut self) -> Result<(Option<RecordBatch>, Self)> {
        let open = match self.open.take() {
            Some(open) => Ok(open),
            None => File::open(&self.file.path)
                .map_err(ArrowError::from)
                .and_then(|file| StreamReader::try_new(BufReader::new(file), None)),
        };
        let read = open.and_then(|mut open| {
            let batch = open.next().transpose()?;
            Ok((batch, open))
        });
        let (batch, open) = read.map_err(|error| self.file.failure("read", error))?;
        self.open = Some(open);
        Ok((batch, self))
    }
}

/// Runs what blocks, on disk or on the processor, off the threads that others wait on.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::internal("the work of a fold was aborted").with_source(error)),
    }
}
