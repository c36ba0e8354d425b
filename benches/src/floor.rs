//! The least that a durable one-row commit on a local disk costs: a Parquet file, a log entry, and their syncs.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use parquet::arrow::ArrowWriter;

use crate::Outcome;

/// About what a commit's entry weighs.
const ENTRY_BYTES: usize = 900;

/// Two folders like a table's, and the number of the next commit.
#[derive(Debug)]
pub struct Floor {
    data: PathBuf,
    log: PathBuf,
    next: u64,
}

impl Floor {
    /// Makes the folders.
    pub fn new(folder: &Path) -> Outcome<Self> {
        let (data, log) = (folder.join("dt=2024-01-15"), folder.join("_delta_log"));
        fs::create_dir_all(&data)?;
        fs::create_dir_all(&log)?;
        Ok(Self { data, log, next: 0 })
    }

    /// One commit: encode in memory, write and sync the file and its folder, then the entry by hard link.
    pub fn commit(&mut self, row: &RecordBatch) -> Outcome<()> {
        let mut writer = ArrowWriter::try_new(Vec::new(), row.schema(), None)?;
        writer.write(row)?;
        let bytes = writer.into_inner()?;
        write_synced(&self.data.join(format!("{:020}.parquet", self.next)), &bytes)?;
        sync(&self.data)?;
        let entry = self.log.join(format!("{:020}.json", self.next));
        let staged = self.log.join(format!("{:020}.tmp", self.next));
        write_synced(&staged, &[b'x'; ENTRY_BYTES])?;
        fs::hard_link(&staged, &entry)?;
        fs::remove_file(&staged)?;
        sync(&self.log)?;
        self.next += 1;
        Ok(())
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}
