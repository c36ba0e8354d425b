//! A text input line by line, in blocks that one batch is built from.

use std::io::{BufRead, BufReader, Read};
use std::ops::Range;

use alluvium_log::{Error, ErrorKind, Result};

use super::input::{Bytes, read_error};

/// The longest line of a file of changes.
pub const MAX_LINE_BYTES: usize = 64 << 20;

/// Lines that lie one after the other in memory.
#[derive(Default)]
pub(crate) struct Block {
    bytes: Vec<u8>,
    lines: Vec<(u64, Range<usize>)>,
}

impl Block {
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// A line's number and its bytes, without the line end.
    pub(crate) fn get(&self, at: usize) -> (u64, &[u8]) {
        let (number, range) = self.lines.get(at).map_or((0, 0..0), |(n, r)| (*n, r.clone()));
        (number, self.bytes.get(range).unwrap_or_default())
    }
}

/// The lines of an input that are not blank.
pub(crate) struct Lines {
    label: String,
    reader: BufReader<Bytes>,
    number: u64,
}

impl Lines {
    pub(crate) fn new(label: String, bytes: Bytes) -> Self {
        Self { label, reader: BufReader::with_capacity(1 << 16, bytes), number: 0 }
    }

    /// The next lines, at least one unless the input is at its end: up to so many, or a few more bytes than given.
    pub(crate) fn block(&mut self, max_lines: usize, max_bytes: usize) -> Result<Block> {
        let mut block = Block::default();
        while block.lines.len() < max_lines.max(1) {
            let start = block.bytes.len();
            if start >= max_bytes && !block.lines.is_empty() {
                break;
            }
            if self.read_line(&mut block.bytes)? == 0 {
                break;
            }
            self.number += 1;
            let line = block.bytes.get(start..).unwrap_or_default();
            let kept = line.strip_suffix(b"\n").unwrap_or(line);
            let kept = kept.strip_suffix(b"\r").unwrap_or(kept);
            if kept.trim_ascii().is_empty() {
                block.bytes.truncate(start);
            } else {
                block.lines.push((self.number, start..start + kept.len()));
            }
        }
        Ok(block)
    }

    fn read_line(&mut self, bytes: &mut Vec<u8>) -> Result<usize> {
        let mut limited = self.reader.by_ref().take(MAX_LINE_BYTES as u64 + 2);
        let count =
            limited.read_until(b'\n', bytes).map_err(|error| read_error(&self.label, error))?;
        if count > MAX_LINE_BYTES && bytes.last() != Some(&b'\n') {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                format!(
                    "{}: line {} is longer than {} MiB, the most that is read: is it one object per line?",
                    self.label,
                    self.number + 1,
                    MAX_LINE_BYTES >> 20
                ),
            ));
        }
        Ok(count)
    }
}
