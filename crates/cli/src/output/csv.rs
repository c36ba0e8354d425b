//! Comma-separated values (RFC 4180): a header, then a record per row.
//!
//! Null is an empty cell; an empty text is a quoted one. Nested values are JSON.

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::cells::cell;
use super::columns::Flat;
use super::{Result, RowWriter};

pub(super) struct CsvWriter {
    flat: Flat,
    has_header: bool,
    line: String,
    scratch: Vec<u8>,
}

impl CsvWriter {
    pub(super) fn new(schema: &SchemaRef) -> Self {
        Self {
            flat: Flat::new(schema),
            has_header: false,
            line: String::new(),
            scratch: Vec::new(),
        }
    }

    fn header(&mut self, out: &mut dyn Write) -> Result<()> {
        if self.has_header {
            return Ok(());
        }
        self.has_header = true;
        self.line.clear();
        for (at, field) in self.flat.fields.iter().enumerate() {
            if at > 0 {
                self.line.push(',');
            }
            push_cell(&mut self.line, field.name());
        }
        self.line.push('\n');
        Ok(out.write_all(self.line.as_bytes())?)
    }
}

impl RowWriter for CsvWriter {
    fn write(&mut self, out: &mut dyn Write, batch: &RecordBatch) -> Result<()> {
        self.header(out)?;
        let columns = self.flat.columns(batch)?;
        for row in 0..batch.num_rows() {
            self.line.clear();
            for (at, column) in columns.iter().enumerate() {
                if at > 0 {
                    self.line.push(',');
                }
                if let Some(text) = cell(column, row, &mut self.scratch)? {
                    push_cell(&mut self.line, &text);
                }
            }
            self.line.push('\n');
            out.write_all(self.line.as_bytes())?;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut dyn Write) -> Result<Option<String>> {
        self.header(out)?;
        Ok(None)
    }
}

fn push_cell(line: &mut String, text: &str) {
    let needs_quotes = text.is_empty()
        || text.contains([',', '"', '\n', '\r'])
        || text.starts_with(char::is_whitespace)
        || text.ends_with(char::is_whitespace);
    if needs_quotes {
        line.push('"');
        line.push_str(&text.replace('"', "\"\""));
        line.push('"');
    } else {
        line.push_str(text);
    }
}
