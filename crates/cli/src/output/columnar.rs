//! Parquet and Arrow IPC.

use std::io::Write;

use alluvium::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::writer::StreamWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::{Result, RowWriter};
use crate::terminal::Capture;

pub(super) struct ParquetWriter {
    bytes: Capture,
    writer: Option<parquet::arrow::ArrowWriter<Capture>>,
}

impl ParquetWriter {
    pub(super) fn new(schema: &SchemaRef) -> Result<Self> {
        let bytes = Capture::default();
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        let writer =
            parquet::arrow::ArrowWriter::try_new(bytes.clone(), schema.clone(), Some(properties))
                .map_err(Error::from)?;
        Ok(Self { bytes, writer: Some(writer) })
    }
}

impl RowWriter for ParquetWriter {
    fn write(&mut self, out: &mut dyn Write, batch: &RecordBatch) -> Result<()> {
        if let Some(writer) = &mut self.writer {
            writer.write(batch).map_err(Error::from)?;
        }
        Ok(out.write_all(&self.bytes.take())?)
    }

    fn finish(&mut self, out: &mut dyn Write) -> Result<Option<String>> {
        if let Some(writer) = self.writer.take() {
            writer.close().map_err(Error::from)?;
        }
        out.write_all(&self.bytes.take())?;
        Ok(None)
    }
}

pub(super) struct ArrowWriter {
    bytes: Capture,
    writer: StreamWriter<Capture>,
}

impl ArrowWriter {
    pub(super) fn new(schema: &SchemaRef) -> Result<Self> {
        let bytes = Capture::default();
        let writer = StreamWriter::try_new(bytes.clone(), schema)?;
        Ok(Self { bytes, writer })
    }
}

impl RowWriter for ArrowWriter {
    fn write(&mut self, out: &mut dyn Write, batch: &RecordBatch) -> Result<()> {
        self.writer.write(batch)?;
        Ok(out.write_all(&self.bytes.take())?)
    }

    fn finish(&mut self, out: &mut dyn Write) -> Result<Option<String>> {
        self.writer.finish()?;
        out.write_all(&self.bytes.take())?;
        Ok(None)
    }
}
