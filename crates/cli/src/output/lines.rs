//! JSON: one object per line, or one array of them.

use std::io::Write;

use alluvium::format::write_row;
use arrow::array::RecordBatch;

use super::{Result, RowWriter};

pub(super) struct LinesWriter {
    is_array: bool,
    rows: u64,
    buffer: Vec<u8>,
}

impl LinesWriter {
    pub(super) fn lines() -> Self {
        Self { is_array: false, rows: 0, buffer: Vec::new() }
    }

    pub(super) fn array() -> Self {
        Self { is_array: true, rows: 0, buffer: Vec::new() }
    }
}

impl RowWriter for LinesWriter {
    fn write(&mut self, out: &mut dyn Write, batch: &RecordBatch) -> Result<()> {
        for row in 0..batch.num_rows() {
            self.buffer.clear();
            if self.is_array {
                self.buffer.extend_from_slice(if self.rows == 0 { b"[\n" } else { b",\n" });
            }
            write_row(&mut self.buffer, batch, row)?;
            if !self.is_array {
                self.buffer.push(b'\n');
            }
            out.write_all(&self.buffer)?;
            self.rows += 1;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut dyn Write) -> Result<Option<String>> {
        if self.is_array {
            out.write_all(if self.rows == 0 { b"[]\n" } else { b"\n]\n" })?;
        }
        Ok(None)
    }
}
