//! Few rows, a line per field.

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::cells::{cell, printable};
use super::columns::Flat;
use super::{Result, RowWriter};

pub(super) struct RecordWriter {
    flat: Flat,
    has_color: bool,
    rows: u64,
}

impl RecordWriter {
    pub(super) fn new(schema: &SchemaRef, has_color: bool) -> Self {
        Self { flat: Flat::new(schema), has_color, rows: 0 }
    }
}

impl RowWriter for RecordWriter {
    fn write(&mut self, out: &mut dyn Write, batch: &RecordBatch) -> Result<()> {
        let columns = self.flat.columns(batch)?;
        let names: Vec<String> =
            self.flat.fields.iter().map(|field| printable(field.name())).collect();
        let width = names.iter().map(|name| console::measure_text_width(name)).max().unwrap_or(0);
        let (bold, faint, plain) =
            if self.has_color { ("\u{1b}[1m", "\u{1b}[2m", "\u{1b}[0m") } else { ("", "", "") };
        let mut scratch = Vec::new();
        for row in 0..batch.num_rows() {
            if self.rows > 0 {
                writeln!(out)?;
            }
            self.rows += 1;
            for (name, column) in names.iter().zip(&columns) {
                let padding = " ".repeat(width - console::measure_text_width(name));
                write!(out, "{bold}{name}{plain}{padding}  ")?;
                match cell(column, row, &mut scratch)? {
                    Some(text) => writeln!(out, "{}", printable(&text))?,
                    None => writeln!(out, "{faint}null{plain}")?,
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self, _out: &mut dyn Write) -> Result<Option<String>> {
        Ok(None)
    }
}
