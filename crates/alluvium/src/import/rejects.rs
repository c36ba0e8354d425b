//! Rows that were refused, kept as JSON lines: `{"file","line","reason","text"}`.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use alluvium_log::{Error, ErrorKind, Result};
use arrow::array::BinaryArray;

use crate::format::{Reject, write_value};

/// A file that takes rejects; what it holds already stays.
pub(super) struct Rejects {
    path: PathBuf,
    file: BufWriter<File>,
    count: u64,
}

impl Rejects {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| failed(path, "can't be opened for writing", error))?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), count: 0 })
    }

    /// Writes rejects, and hands them to the system before the rows around them are appended.
    pub(super) fn write(&mut self, input: &str, rejects: &[Reject]) -> Result<()> {
        let mut lines = Vec::new();
        for reject in rejects {
            write_line(&mut lines, input, reject)?;
        }
        self.file
            .write_all(&lines)
            .and_then(|()| self.file.flush())
            .map_err(|error| failed(&self.path, "can't be written", error))?;
        self.count += rejects.len() as u64;
        Ok(())
    }

    /// Makes the rejects durable; gives their number.
    pub(super) fn finish(mut self) -> Result<u64> {
        self.file
            .flush()
            .and_then(|()| if self.count > 0 { self.file.get_ref().sync_all() } else { Ok(()) })
            .map_err(|error| failed(&self.path, "can't be written", error))?;
        Ok(self.count)
    }
}

fn failed(path: &Path, what: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Storage, format!("the file of rejects {} {what}", path.display()))
        .with_source(error)
}

fn write_line(out: &mut Vec<u8>, input: &str, reject: &Reject) -> Result<()> {
    let quoted = |text: &str| {
        serde_json::to_vec(text)
            .map_err(|error| Error::internal("a reject could not be written").with_source(error))
    };
    out.extend_from_slice(b"{\"file\":");
    out.extend(quoted(input)?);
    out.extend_from_slice(format!(",\"line\":{},\"reason\":", reject.line).as_bytes());
    out.extend(quoted(&reject.reason)?);
    match std::str::from_utf8(&reject.text) {
        Ok(text) => {
            out.extend_from_slice(b",\"text\":");
            out.extend(quoted(text)?);
        }
        // What is no text is kept as it is too.
        Err(_) => {
            out.extend_from_slice(b",\"base64\":");
            write_value(out, &BinaryArray::from(vec![reject.text.as_slice()]), 0)?;
        }
    }
    out.extend_from_slice(b"}\n");
    Ok(())
}
