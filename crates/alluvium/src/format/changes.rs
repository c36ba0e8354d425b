//! Changes from files: JSON lines, CSV, Parquet and Arrow, as batches in the shape of the log.
//!
//! A [`ChangeReader`] takes one input and gives [`ChangeChunk`]s. It reads either *native* changes, which name
//! their key and operation themselves, or any records, of which a [`ChangeMapping`] says which columns are the key,
//! the event time and the version; the other columns are then the value. Nothing is written here, and
//! nothing of a bad row vanishes: it stops the read, or comes back as a [`Reject`].
//!
//! ```text
//! bytes -> uncompressed -> jsonl | csv | columnar -> chunk (required values checked) -> writer
//! ```

use std::io::Read;
use std::path::Path;

use alluvium_log::{Error, Result};
use arrow::datatypes::Fields;

use super::chunk::{ChangeChunk, Policy};
use super::columnar::ColumnarReader;
use super::csv_in::CsvReader;
use super::input::{Body, Input, InputFormat, Progress};
use super::jsonl::JsonlReader;

/// Which columns of a record are its key, its event time and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeMapping {
    /// The columns of the key, in order; none when the input holds native changes.
    ///
    /// One column is the key as its text. Several are encoded by [`encode_key`](super::encode_key), each part by its type
    /// as docs/formats.md §7 says: of a CSV cell, by how it is written. The key's columns are not part of the value.
    pub key: Vec<String>,
    /// Whether every part of a key of several columns is its text, integers too.
    pub text_key_parts: bool,
    /// The column of the event time (a TIMESTAMP, or RFC 3339 with an offset); it is not part of the value.
    pub event_time: Option<String>,
    /// The column of the version (an integer, or its digits); it is not part of the value.
    pub version: Option<String>,
    /// The cells of a CSV file that mean null, besides the empty one, quoted or not. An empty token makes `""`
    /// null too, which is the empty text otherwise.
    pub null_tokens: Vec<String>,
    /// What separates the cells of a CSV file.
    pub delimiter: u8,
}

impl Default for ChangeMapping {
    fn default() -> Self {
        Self {
            key: Vec::new(),
            text_key_parts: false,
            event_time: None,
            version: None,
            null_tokens: Vec::new(),
            delimiter: b',',
        }
    }
}

impl ChangeMapping {
    /// Whether the input names key and operation itself.
    pub fn is_native(&self) -> bool {
        self.key.is_empty()
    }

    /// What a column is other than a part of the value.
    pub(crate) fn role(&self, column: &str) -> Option<Role> {
        if let Some(place) = self.key.iter().position(|name| name == column) {
            return Some(Role::Key(place));
        }
        if self.event_time.as_deref() == Some(column) {
            return Some(Role::EventTime);
        }
        (self.version.as_deref() == Some(column)).then_some(Role::Version)
    }

    /// The columns with a role, each once.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &String> {
        self.key.iter().chain(&self.event_time).chain(&self.version)
    }

    /// Refuses what contradicts itself.
    fn validate(&self) -> Result<()> {
        let names: Vec<&String> = self.columns().collect();
        for (at, name) in names.iter().enumerate() {
            if names[..at].contains(name) {
                return Err(Error::invalid(format!(
                    "the column {name:?} is named twice: as a key, the event time or the version; a column is one of these"
                )));
            }
        }
        if self.is_native() && !names.is_empty() {
            return Err(Error::invalid(
                "an event-time or version column needs a key column: name the key as well",
            ));
        }
        Ok(())
    }
}

/// What a mapped column is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The part of the key at this place.
    Key(usize),
    EventTime,
    Version,
}

/// The fields that the values are read as.
#[derive(Debug, Clone, PartialEq)]
pub enum ReaderSchema {
    /// These, the state's own. Fields that the input has besides are inferred from the batch that first has a
    /// value for them, and appended.
    Fixed(Fields),
    /// Those of the first rows (at most [`SAMPLE_ROWS`]), grown in the same way afterwards.
    Infer,
}

/// How many rows a schema is inferred from.
pub const SAMPLE_ROWS: usize = 10_000;

/// What to do with a row that can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBad {
    /// Stop with an error that names file, line, field and remedy.
    #[default]
    Fail,
    /// Go on, and hand the row back as a [`Reject`](super::Reject).
    Collect,
}

/// How an input is read.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadOptions {
    /// How the input is written; found by itself when not given.
    pub format: Option<InputFormat>,
    /// What the columns are.
    pub mapping: ChangeMapping,
    /// The fields of the value.
    pub schema: ReaderSchema,
    /// The most rows of a chunk.
    pub batch_rows: usize,
    /// About the most bytes of a chunk, as text or as columns; one row may exceed it.
    pub batch_bytes: usize,
    /// What to do with bad rows.
    pub on_bad: OnBad,
    /// Whether chunks carry the mapped records with all their columns, for a predicate that tells
    /// deletes; then [`ChangeChunk::with_deletes`] must be called on each.
    pub want_records: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            format: None,
            mapping: ChangeMapping::default(),
            schema: ReaderSchema::Infer,
            batch_rows: 8_192,
            batch_bytes: 32 << 20,
            on_bad: OnBad::default(),
            want_records: false,
        }
    }
}

/// A reader of changes from one input.
pub struct ChangeReader {
    label: String,
    format: InputFormat,
    progress: Progress,
    source: Source,
    is_done: bool,
}

enum Source {
    Jsonl(Box<JsonlReader>),
    Csv(Box<CsvReader>),
    Columnar(Box<ColumnarReader>),
}

impl ChangeReader {
    /// Opens a file.
    ///
    /// # Errors
    /// The file can't be read, its format can't be told, or it lacks a column of the mapping.
    pub fn open(path: impl AsRef<Path>, options: ReadOptions) -> Result<Self> {
        Self::new(Input::open(path.as_ref(), options.format)?, options)
    }

    /// Takes an input that is open already. The label stands for it in messages.
    ///
    /// Parquet and Arrow files (not streams) are copied to a temporary file first, since they are read from their end.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_read(
        label: impl Into<String>,
        input: Box<dyn Read + Send>,
        options: ReadOptions,
    ) -> Result<Self> {
        Self::new(Input::from_read(label.into(), input, options.format)?, options)
    }

    fn new(input: Input, options: ReadOptions) -> Result<Self> {
        options.mapping.validate()?;
        if options.want_records && options.mapping.is_native() {
            return Err(Error::invalid(
                "native changes name their deletes themselves: a predicate for deletes needs a key column",
            ));
        }
        let Input { label, format, body, progress } = input;
        let unit = match format {
            InputFormat::Jsonl | InputFormat::Csv => "line",
            InputFormat::Parquet | InputFormat::Arrow => "row",
        };
        let policy = Policy { label: label.as_str().into(), unit, on_bad: options.on_bad };
        let source = match (format, body) {
            (InputFormat::Jsonl, Body::Stream(bytes)) => {
                Source::Jsonl(Box::new(JsonlReader::new(bytes, options, policy)))
            }
            (InputFormat::Csv, Body::Stream(bytes)) => {
                Source::Csv(Box::new(CsvReader::new(bytes, options, policy)?))
            }
            (_, body) => Source::Columnar(Box::new(ColumnarReader::new(
                format,
                body,
                options,
                policy,
                progress.clone(),
            )?)),
        };
        Ok(Self { label, format, progress, source, is_done: false })
    }

    /// The next chunk; none at the end of the input. After an error there are no more chunks.
    ///
    /// # Errors
    /// The input can't be read on, or a row is bad and [`OnBad::Fail`] was asked for.
    pub fn next_chunk(&mut self) -> Result<Option<ChangeChunk>> {
        if self.is_done {
            return Ok(None);
        }
        let chunk = match &mut self.source {
            Source::Jsonl(reader) => reader.next_chunk(),
            Source::Csv(reader) => reader.next_chunk(),
            Source::Columnar(reader) => reader.next_chunk(),
        };
        self.is_done = !matches!(chunk, Ok(Some(_)));
        chunk
    }

    /// What the input is called in messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// How the input is written.
    pub fn format(&self) -> InputFormat {
        self.format
    }

    /// How many bytes of the input, as it lies on disk, have been read.
    pub fn bytes_read(&self) -> u64 {
        self.progress.bytes_read()
    }

    /// How many bytes the input has, when that is known.
    pub fn total_bytes(&self) -> Option<u64> {
        self.progress.total()
    }
}

impl Iterator for ChangeReader {
    type Item = Result<ChangeChunk>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_chunk().transpose()
    }
}
