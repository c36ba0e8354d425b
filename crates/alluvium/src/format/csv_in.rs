//! Changes from CSV files: a header row, records by a mapping.
//!
//! An empty cell is null, and so is each of the mapping's null tokens, quoted or not. `""` is the empty text where the
//! column holds texts, and null elsewhere. A key of one column is the text of its cell, so that `007` stays `007`; see [`super::key_part`] for several.

use std::borrow::Cow;

use alluvium_log::{Error, ErrorKind, Result};
use arrow::datatypes::{DataType, Field, Fields};
use csv::{ByteRecord, StringRecord};

use super::changes::{OnBad, ReadOptions, ReaderSchema, Role, SAMPLE_ROWS};
use super::chunk::{ChangeChunk, Policy, Reject, RowNotes};
use super::csv_bytes::{CsvBytes, csv_text};
use super::ddl::refuse_same_names;
use super::fault::{Fault, quote_name};
use super::infer::{CellInference, case_clash};
use super::input::{Bytes, read_error};
use super::key_part;
use super::lines::MAX_LINE_BYTES;
use super::rows::{Head, RowSink, find_roles, null_key, parse_event_time, parse_version};
use alluvium_log::encode_key;

pub(crate) struct CsvReader {
    reader: csv::Reader<CsvBytes>,
    options: ReadOptions,
    policy: Policy,
    header: Vec<String>,
    columns: Vec<Column>,
    fields: Fields,
    rows: Vec<Row>,
    next_row: usize,
    /// Rows that could not even be cut into cells.
    rejects: Vec<Reject>,
    is_sampled: bool,
}

impl Row {
    /// The cells, and of each whether it is an empty text.
    fn marked(&self) -> impl Iterator<Item = (&str, bool)> {
        self.cells.iter().enumerate().map(|(at, cell)| (cell, self.empty_texts.contains(&at)))
    }

    fn text(&self, delimiter: u8) -> Vec<u8> {
        csv_text(self.marked().map(|(cell, is_text)| (cell.as_bytes(), is_text)), delimiter)
    }
}

/// What a column of the file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Mapped(Role),
    /// The field of the value at this place.
    Field(usize),
    /// A field whose type no cell has told yet.
    Unknown,
}

struct Row {
    line: u64,
    cells: StringRecord,
    /// The places of the cells written `""`, in order.
    empty_texts: Vec<usize>,
    /// Why inference turned it down.
    refused: Option<String>,
}

impl CsvReader {
    pub(crate) fn new(bytes: Bytes, options: ReadOptions, policy: Policy) -> Result<Self> {
        if options.mapping.is_native() {
            return Err(policy
                .whole("a CSV file has no native form of changes: name its key column (--key)"));
        }
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(options.mapping.delimiter)
            .buffer_capacity(1 << 16)
            .from_reader(CsvBytes::new(bytes));
        let mut header = StringRecord::new();
        let found = reader.read_record(&mut header).map_err(|error| csv_error(&policy, error))?;
        if !found {
            return Err(
                policy.whole("the file is empty: a CSV file begins with a row of column names")
            );
        }
        let header: Vec<String> = header.iter().map(str::to_owned).collect();
        refuse_same_names(header.iter().map(String::as_str)).map_err(|(one, other)| {
            policy
                .whole(format!("the columns {one:?} and {other:?} have the same name: rename one"))
        })?;
        let roles =
            find_roles(header.iter().map(String::as_str), &options.mapping).map_err(|error| {
                policy.whole(format!("{}{}", error.message(), other_delimiter(&header)))
            })?;
        let fields = match &options.schema {
            ReaderSchema::Fixed(fields) => fields.clone(),
            ReaderSchema::Infer => Fields::empty(),
        };
        let columns: Result<Vec<Column>> = header
            .iter()
            .zip(roles)
            .map(|(name, role)| match role {
                Some(role) => Ok(Column::Mapped(role)),
                None => find_field(&fields, name).map_err(|fault| policy.whole(fault)),
            })
            .collect();
        Ok(Self {
            reader,
            options,
            columns: columns?,
            policy,
            header,
            fields,
            rows: Vec::new(),
            next_row: 0,
            rejects: Vec::new(),
            is_sampled: false,
        })
    }

    pub(crate) fn next_chunk(&mut self) -> Result<Option<ChangeChunk>> {
        if self.next_row >= self.rows.len() {
            self.read_rows()?;
        }
        if self.rows.is_empty() && self.rejects.is_empty() {
            return Ok(None);
        }
        let start = self.next_row;
        self.next_row = (start + self.options.batch_rows.max(1)).min(self.rows.len());
        self.build(start).map(Some)
    }

    /// Reads the rows of the next chunk, or of the first ones while there are columns to infer.
    fn read_rows(&mut self) -> Result<()> {
        let has_unknown = self.columns.contains(&Column::Unknown);
        let batch_rows = self.options.batch_rows.max(1);
        let wanted =
            if has_unknown && !self.is_sampled { batch_rows.max(SAMPLE_ROWS) } else { batch_rows };
        self.is_sampled = true;
        let mut spare = std::mem::take(&mut self.rows);
        self.next_row = 0;
        let mut bytes = 0;
        while self.rows.len() < wanted && bytes < self.options.batch_bytes {
            let start = self.reader.position().byte();
            self.reader.get_mut().begin_record(start);
            let mut record =
                spare.pop().map(|row| row.cells.into_byte_record()).unwrap_or_default();
            let found = self.reader.read_byte_record(&mut record);
            if !found.map_err(|error| csv_error(&self.policy, error))? {
                break;
            }
            bytes += record.as_slice().len();
            self.add_record(record)?;
        }
        if has_unknown {
            self.infer()?;
        }
        Ok(())
    }

    fn add_record(&mut self, record: ByteRecord) -> Result<()> {
        let start = record.position().map_or(0, csv::Position::byte);
        let line = self.reader.get_mut().line_at(start);
        let width = record.len();
        let delimiter = self.options.mapping.delimiter;
        // Few rows need the second look.
        let empty_texts = match record.iter().any(<[u8]>::is_empty) {
            true => self.reader.get_ref().quoted_empty_cells(start, delimiter),
            false => Vec::new(),
        };
        let fault = if width == self.header.len() {
            match StringRecord::from_byte_record(record) {
                Ok(cells) => {
                    self.rows.push(Row { line, cells, empty_texts, refused: None });
                    return Ok(());
                }
                Err(error) => {
                    let name = self.header.get(error.utf8_error().field());
                    let name = name.map_or("", String::as_str);
                    let fault = Fault::new("not valid UTF-8").in_field(name);
                    (fault, error.into_byte_record())
                }
            }
        } else {
            let columns = self.header.len();
            let why =
                format!("the row has {width} cells, but the header has {columns}: mend the row");
            (Fault::new(why), record)
        };
        let (fault, record) = fault;
        let cells = record.iter().enumerate().map(|(at, cell)| (cell, empty_texts.contains(&at)));
        self.policy.refuse(&mut self.rejects, line, fault, || csv_text(cells, delimiter))
    }

    /// Finds the types of the columns that have none, from the rows at hand.
    fn infer(&mut self) -> Result<()> {
        let mut grown: Vec<_> = self.fields.iter().cloned().collect();
        for at in 0..self.columns.len() {
            if self.columns.get(at) != Some(&Column::Unknown) {
                continue;
            }
            let name = self.header.get(at).map_or("", String::as_str);
            let mut inference = CellInference::default();
            let mut has_empty_text = false;
            for row in &mut self.rows {
                let cell = row.cells.get(at).unwrap_or("");
                if is_null(cell, &self.options.mapping.null_tokens, false) || row.refused.is_some()
                {
                    has_empty_text |= row.empty_texts.contains(&at);
                    continue;
                }
                let Err(fault) = inference.add(cell) else { continue };
                let fault = fault.in_field(name);
                match self.policy.on_bad {
                    OnBad::Fail => return Err(self.policy.error(row.line, fault)),
                    OnBad::Collect => row.refused = Some(fault.to_string()),
                }
            }
            let found =
                inference.finish().map_err(|fault| self.policy.whole(fault.in_field(name)))?;
            // Where other cells tell a type, an empty text is null or fits; where it stands alone, it is a text.
            if let Some(data_type) = found.or(has_empty_text.then_some(DataType::Utf8)) {
                if let Some(column) = self.columns.get_mut(at) {
                    *column = Column::Field(grown.len());
                }
                grown.push(Field::new(name, data_type, true).into());
            }
        }
        self.fields = grown.into();
        Ok(())
    }

    fn build(&mut self, start: usize) -> Result<ChangeChunk> {
        let mapping = &self.options.mapping;
        let key_parts = if self.options.want_records { mapping.key.len() } else { 0 };
        let mut sink = RowSink::new(&self.fields, key_parts)?;
        let mut rejects = std::mem::take(&mut self.rejects);
        let rows = self.rows.get(start..self.next_row).unwrap_or_default();
        let mut lines = Vec::with_capacity(rows.len());
        let mut texts = self.policy.needs_texts(&self.fields).then(Vec::new);
        let mut key = vec![Cow::Borrowed(""); mapping.key.len()];
        for row in rows {
            let pushed = match &row.refused {
                Some(reason) => Err(Fault::new(reason)),
                None => self.push_row(&mut sink, row, &mut key),
            };
            match pushed {
                Ok(()) => {
                    lines.push(row.line);
                    if let Some(texts) = &mut texts {
                        texts.push(row.text(mapping.delimiter));
                    }
                }
                Err(fault) => {
                    sink.truncate(lines.len());
                    let text = || row.text(mapping.delimiter);
                    self.policy.refuse(&mut rejects, row.line, fault, text)?;
                }
            }
        }
        rejects.sort_by_key(|reject| reject.line);
        let unknown = self.header.iter().zip(&self.columns).filter(|(_, c)| **c == Column::Unknown);
        let left_out = unknown.map(|(name, _)| quote_name(name)).collect();
        let notes = RowNotes { lines, texts, rejects, left_out };
        let (columns, records) = sink.finish(mapping)?;
        ChangeChunk::new(columns, records, self.fields.clone(), notes, self.policy.clone())
    }

    /// Whether an empty text is a value of the field at this place.
    fn holds_texts(&self, place: usize) -> bool {
        let data_type = self.fields.get(place).map(|field| field.data_type());
        matches!(data_type, Some(DataType::Utf8 | DataType::Binary))
    }

    fn push_row<'a>(
        &'a self,
        sink: &mut RowSink,
        row: &'a Row,
        key: &mut [Cow<'a, str>],
    ) -> Result<(), Fault> {
        let mapping = &self.options.mapping;
        let style = mapping.part_style();
        let mut head = Head { key: "".into(), is_delete: false, version: None, event_time: None };
        for (((cell, is_text), column), name) in row.marked().zip(&self.columns).zip(&self.header) {
            let holds_texts = match column {
                Column::Field(place) => self.holds_texts(*place),
                Column::Mapped(role) => matches!(role, Role::Key(_)),
                Column::Unknown => false,
            };
            let is_null = is_null(cell, &mapping.null_tokens, is_text && holds_texts);
            match column {
                Column::Field(place) => {
                    let cell = (!is_null).then_some(cell);
                    if let Some(value) = sink.value() {
                        value
                            .push_cell(*place, cell)
                            .map_err(|fault| fault.in_field(alluvium_log::STATE_VALUE))?;
                    }
                }
                Column::Mapped(Role::Key(place)) => {
                    if is_null {
                        return Err(null_key(name));
                    }
                    sink.push_key_part(*place, cell)?;
                    if let Some(part) = key.get_mut(*place) {
                        *part = key_part::cell(cell, style);
                    }
                }
                _ if is_null => {}
                Column::Mapped(Role::Version) => {
                    let version = parse_version(cell).map_err(|fault| fault.in_field(name))?;
                    head.version = Some(version);
                }
                Column::Mapped(Role::EventTime) => {
                    let time = parse_event_time(cell).map_err(|fault| fault.in_field(name))?;
                    head.event_time = Some(time);
                }
                Column::Unknown => {}
            }
        }
        sink.close_value();
        head.key = match key {
            [single] => single.clone(),
            parts => {
                let texts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
                encode_key(&texts).into()
            }
        };
        sink.push_head(&head)
    }
}

/// What may be wrong with a header of one column only.
fn other_delimiter(header: &[String]) -> String {
    let [only] = header else { return String::new() };
    match only.chars().find(|c| matches!(c, ';' | '\t' | '|' | ',')) {
        Some(found) => {
            format!("; if {found:?} separates the cells, name it as the delimiter (--delimiter)")
        }
        None => String::new(),
    }
}

fn find_field(fields: &Fields, name: &str) -> Result<Column, Fault> {
    if let Some((place, _)) = fields.find(name) {
        return Ok(Column::Field(place));
    }
    let folded = name.to_lowercase();
    match fields.iter().find(|field| field.name().to_lowercase() == folded) {
        Some(near) => Err(case_clash(name, near.name())),
        None => Ok(Column::Unknown),
    }
}

/// Whether a cell means null; `is_text` is whether it is an empty text where there are texts.
fn is_null(cell: &str, tokens: &[String], is_text: bool) -> bool {
    (cell.is_empty() && !is_text) || tokens.iter().any(|token| token == cell)
}

fn csv_error(policy: &Policy, error: csv::Error) -> Error {
    let line = error.position().map_or(0, csv::Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(error) if error.kind() == std::io::ErrorKind::FileTooLarge => {
            Error::new(
                ErrorKind::LimitExceeded,
                format!(
                    "{}: a row is longer than {} MiB, the most that is read: is a quote left open?",
                    policy.label,
                    MAX_LINE_BYTES >> 20
                ),
            )
        }
        csv::ErrorKind::Io(error) => read_error(&policy.label, error),
        csv::ErrorKind::Utf8 { .. } => policy.error(line, "not valid UTF-8"),
        other => policy.whole(format!("{other:?}")),
    }
}
