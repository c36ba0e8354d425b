//! Rows out, in the format that was asked for.
//!
//! A verb hands over batches of one schema. In text for machines and in columns they are written as they are; CSV and
//! tables show the fields of the column `value` as columns of their own.

mod cells;
mod columnar;
mod columns;
mod csv;
mod lines;
mod record;
mod table;

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

pub(crate) use columns::{rename, with_column};

use crate::args::OutputFormat;
use crate::failure::Failure;
use crate::terminal::Console;

type Result<T> = std::result::Result<T, Failure>;

/// Writes rows of one schema in one format.
trait RowWriter: Send {
    fn write(&mut self, out: &mut dyn Write, batch: &RecordBatch) -> Result<()>;

    /// Writes what is held back, and the end; gives a remark for the user.
    fn finish(&mut self, out: &mut dyn Write) -> Result<Option<String>>;

    /// Writes what is held back, because nothing more may come for a while.
    fn settle(&mut self, _out: &mut dyn Write) -> Result<()> {
        Ok(())
    }
}

/// How a table shows rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableStyle {
    /// A line per row.
    Rows,
    /// A line per field, for few rows.
    Records,
}

/// Where the rows of one verb go.
pub(crate) struct Rows {
    writer: Box<dyn RowWriter>,
    count: u64,
}

impl Rows {
    /// Begins to write rows.
    pub(crate) fn begin(
        console: &Console,
        format: OutputFormat,
        style: TableStyle,
        schema: &SchemaRef,
    ) -> Result<Self> {
        let writer: Box<dyn RowWriter> = match (format, style) {
            (OutputFormat::Table, TableStyle::Rows) => {
                Box::new(table::TableWriter::new(schema, console.width, console.has_color))
            }
            (OutputFormat::Table, TableStyle::Records) => {
                Box::new(record::RecordWriter::new(schema, console.has_color))
            }
            (OutputFormat::Jsonl, _) => Box::new(lines::LinesWriter::lines()),
            (OutputFormat::Json, _) => Box::new(lines::LinesWriter::array()),
            (OutputFormat::Csv, _) => Box::new(csv::CsvWriter::new(schema)),
            (OutputFormat::Parquet | OutputFormat::Arrow, _) if console.stdout_is_terminal => {
                return Err(Failure::usage(
                    "Parquet and Arrow are not for a terminal: send the output to a file or a pipe",
                ));
            }
            (OutputFormat::Parquet, _) => Box::new(columnar::ParquetWriter::new(schema)?),
            (OutputFormat::Arrow, _) => Box::new(columnar::ArrowWriter::new(schema)?),
        };
        Ok(Self { writer, count: 0 })
    }

    /// Writes some rows.
    pub(crate) fn write(&mut self, console: &mut Console, batch: &RecordBatch) -> Result<()> {
        self.count += batch.num_rows() as u64;
        self.writer.write(console.stdout.as_mut(), batch)
    }

    /// Brings everything written so far before the reader's eyes.
    pub(crate) fn settle(&mut self, console: &mut Console) -> Result<()> {
        self.writer.settle(console.stdout.as_mut())?;
        Ok(console.stdout.flush()?)
    }

    /// Ends the rows; gives their number, and a remark for the user.
    pub(crate) fn finish(mut self, console: &mut Console) -> Result<(u64, Option<String>)> {
        let remark = self.writer.finish(console.stdout.as_mut())?;
        console.stdout.flush()?;
        Ok((self.count, remark))
    }

    /// How many rows were written.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}
