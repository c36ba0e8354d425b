//! Changes from Parquet and Arrow: native ones, or records by a mapping, a batch of columns at a time.

use std::collections::VecDeque;
use std::io::BufReader;
use std::sync::Arc;

use alluvium_log::{
    APPEND_ID, APPEND_SEQ, COMMIT, DT, EVENT_TIME, Error, ErrorKind, OP_TYPE, Result, STATE_KEY,
    STATE_VALUE, TIER, UPSERT, VERSION, decode, decode_all,
};
use arrow::array::{
    Array, ArrayRef, AsArray, RecordBatch, RecordBatchReader, StringArray, StructArray,
    new_null_array,
};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::{FileReader, StreamReader};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::canonical::{Caster, grow_fields};
use super::changes::{ReadOptions, ReaderSchema, Role};
use super::chunk::{ChangeChunk, Columns, Policy, RowNotes, parse_op};
use super::columnar_head::{event_times, keys, versions};
use super::ddl::refuse_same_names;
use super::fault::{Fault, quote_name};
use super::input::{Body, InputFormat, Progress};
use super::json_out::write_row;
use super::required;
use super::rows::find_roles;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

pub(crate) struct ColumnarReader {
    batches: Batches,
    /// Pieces of the last batch that are still to be given.
    pieces: VecDeque<RecordBatch>,
    roles: Vec<Column>,
    options: ReadOptions,
    policy: Policy,
    fields: Fields,
    rows: u64,
    total_rows: Option<u64>,
    progress: Progress,
}

/// What a column of the file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Key(usize),
    Op,
    Version,
    EventTime,
    /// The whole value, of a native change.
    Value,
    /// A field of the value.
    Field,
    /// Bookkeeping of the log, which an append makes anew.
    Ignored,
}

impl ColumnarReader {
    pub(crate) fn new(
        format: InputFormat,
        body: Body,
        options: ReadOptions,
        policy: Policy,
        progress: Progress,
    ) -> Result<Self> {
        let opened = decode(|| open(format, body, options.batch_rows.max(1)));
        let (schema, batches, total_rows) = opened.map_err(|error| {
            let text = format!("{} can't be read as {format:?}", policy.label);
            Error::new(ErrorKind::InvalidInput, text).with_source(error)
        })?;
        let roles = roles(&schema, &options, &policy)?;
        let fields = match &options.schema {
            ReaderSchema::Fixed(fields) => fields.clone(),
            ReaderSchema::Infer => Fields::empty(),
        };
        Ok(Self {
            batches,
            pieces: VecDeque::new(),
            roles,
            options,
            policy,
            fields,
            rows: 0,
            total_rows,
            progress,
        })
    }

    pub(crate) fn next_chunk(&mut self) -> Result<Option<ChangeChunk>> {
        while self.pieces.is_empty() {
            let Some(batch) = self.batches.next() else { return Ok(None) };
            let batch = batch.map_err(|error| {
                let text =
                    format!("{}: the rows after {} can't be read", self.policy.label, self.rows);
                Error::new(ErrorKind::InvalidInput, text).with_source(error)
            })?;
            self.pieces = cut(&batch, self.options.batch_rows, self.options.batch_bytes)?;
        }
        let Some(batch) = self.pieces.pop_front() else { return Ok(None) };
        let first_row = self.rows + 1;
        self.rows += batch.num_rows() as u64;
        if let Some(total_rows) = self.total_rows {
            self.progress.set_fraction(self.rows, total_rows);
        }
        self.build(&batch, first_row).map(Some)
    }

    fn build(&mut self, batch: &RecordBatch, first_row: u64) -> Result<ChangeChunk> {
        let mut caster = Caster::default();
        let mut left_out = Vec::new();
        let mut columns: Vec<Option<ArrayRef>> = Vec::with_capacity(batch.num_columns());
        for ((field, array), role) in
            batch.schema_ref().fields().iter().zip(batch.columns()).zip(&self.roles)
        {
            if *role == Column::Ignored {
                columns.push(None);
                continue;
            }
            let mut own = Caster::default();
            let column = own.canonical(array).map_err(|error| {
                error.context(format!("{}: {}", self.policy.label, quote_name(field.name())))
            })?;
            for (row, fault) in own.into_bad() {
                caster.note(row, fault.in_field(field.name()));
            }
            if column.is_none() && *role == Column::Field {
                left_out.push(quote_name(field.name()));
            }
            columns.push(column);
        }
        let value = self.value(batch, &columns, &mut caster)?;
        let head = self.head(batch, &columns, &mut caster)?;
        let records = match self.options.want_records {
            true => Some(records(batch, &columns)?),
            false => None,
        };
        let bad = caster.into_bad();
        let needs_texts = !bad.is_empty() || self.policy.needs_texts(&self.fields);
        let texts = needs_texts.then(|| row_texts(batch)).transpose()?;
        let lines = (first_row..).take(batch.num_rows()).collect();
        let notes = RowNotes { lines, texts, rejects: Vec::new(), left_out };
        let (key, op, version, event_time) = head;
        let columns = Columns { key, op, version, event_time, value };
        let policy = self.policy.clone();
        ChangeChunk::with_bad(columns, records, self.fields.clone(), notes, policy, bad)
    }

    /// The value in the shape of the fields, after these have grown by what the input has besides.
    fn value(
        &mut self,
        batch: &RecordBatch,
        columns: &[Option<ArrayRef>],
        caster: &mut Caster,
    ) -> Result<ArrayRef> {
        let whole = self.roles.iter().position(|role| *role == Column::Value);
        let offered: ArrayRef = match whole.and_then(|at| columns.get(at)).cloned().flatten() {
            Some(value) => value,
            None => {
                let is_field = |at: &usize| self.roles.get(*at) == Some(&Column::Field);
                let places = (0..columns.len()).filter(is_field);
                let (fields, arrays): (Vec<_>, Vec<_>) = places
                    .filter_map(|at| {
                        let array = columns.get(at)?.clone()?;
                        let field = batch.schema_ref().field(at);
                        let data_type = array.data_type().clone();
                        Some((arrow::datatypes::Field::new(field.name(), data_type, true), array))
                    })
                    .unzip();
                // A native change without any typed value has none at all.
                let nulls = whole.map(|_| arrow::buffer::NullBuffer::new_null(batch.num_rows()));
                let rows = batch.num_rows();
                Arc::new(StructArray::try_new_with_length(fields.into(), arrays, nulls, rows)?)
            }
        };
        let DataType::Struct(offered_fields) = offered.data_type() else {
            return Err(self.policy.whole(format!(
                "the value of native changes is a STRUCT, not {}: for other records name their key column",
                super::ddl::format_type(offered.data_type())
            )));
        };
        let offered_fields = offered_fields.clone();
        self.fields = grow_fields(&self.fields, &offered_fields)
            .map_err(|fault| self.policy.whole(fault.in_field(STATE_VALUE)))?;
        let target = DataType::Struct(required::relax_fields(&self.fields));
        let mut own = Caster::default();
        let value = own.conform(&offered, &target);
        let value = value
            .map_err(|error| error.context(format!("{}: {STATE_VALUE}", self.policy.label)))?;
        for (row, fault) in own.into_bad() {
            caster.note(row, fault.in_field(STATE_VALUE));
        }
        Ok(value)
    }

    /// Key, operation, version and event time.
    fn head(
        &self,
        batch: &RecordBatch,
        columns: &[Option<ArrayRef>],
        caster: &mut Caster,
    ) -> Result<(ArrayRef, ArrayRef, ArrayRef, ArrayRef)> {
        let find = |wanted: Column| {
            let at = self.roles.iter().position(|role| *role == wanted)?;
            let array = columns.get(at)?.clone()?;
            Some((batch.schema_ref().field(at).name().as_str(), array))
        };
        let rows = batch.num_rows();
        let mut parts = Vec::new();
        for place in 0..self.options.mapping.key.len().max(1) {
            let name = self.options.mapping.key.get(place).map_or(STATE_KEY, String::as_str);
            let absent = || (name, new_null_array(&DataType::Utf8, rows));
            parts.push(find(Column::Key(place)).unwrap_or_else(absent));
        }
        let whole = |fault: Fault| self.policy.whole(fault);
        let style = self.options.mapping.part_style();
        let key = keys(&parts, style, caster).map_err(whole)?;
        let version = versions(find(Column::Version), rows, caster).map_err(whole)?;
        let event_time = event_times(find(Column::EventTime), rows, caster).map_err(whole)?;
        let op = match find(Column::Op) {
            Some((name, array)) => operations(name, &array, caster).map_err(whole)?,
            None => Arc::new(StringArray::from(vec![UPSERT; rows])),
        };
        if self.options.mapping.is_native() {
            check_values(&op, columns, &self.roles, caster);
        }
        Ok((key, op, version, event_time))
    }
}

/// The columns of a file, its batches, and how many rows it says it has.
fn open(
    format: InputFormat,
    body: Body,
    batch_rows: usize,
) -> Result<(SchemaRef, Batches, Option<u64>)> {
    Ok(match (format, body) {
        (InputFormat::Parquet, Body::File(file)) => {
            let builder = ParquetRecordBatchReaderBuilder::try_new(file)?;
            let rows = builder.metadata().file_metadata().num_rows();
            let reader = builder.with_batch_size(batch_rows).build()?;
            (reader.schema(), Box::new(decode_all(reader, unread)), u64::try_from(rows).ok())
        }
        (_, Body::File(file)) => {
            let reader = FileReader::try_new_buffered(file, None).map_err(unread)?;
            (reader.schema(), Box::new(decode_all(reader, unread)), None)
        }
        (_, Body::Stream(bytes)) => {
            let reader = StreamReader::try_new(BufReader::new(bytes), None).map_err(unread)?;
            (reader.schema(), Box::new(decode_all(reader, unread)), None)
        }
    })
}

fn unread(error: ArrowError) -> Error {
    Error::new(ErrorKind::InvalidInput, error.to_string())
}

fn operations(name: &str, array: &ArrayRef, caster: &mut Caster) -> Result<ArrayRef, Fault> {
    let Some(texts) = array.as_string_opt::<i32>() else {
        return Err(Fault::new("an operation is a STRING, UPSERT or DELETE").in_field(name));
    };
    for (row, text) in texts.iter().enumerate() {
        if let Some(Err(fault)) = text.map(parse_op) {
            caster.note(row, fault.in_field(name));
        }
    }
    let filled: StringArray = texts.iter().map(|text| Some(text.unwrap_or(UPSERT))).collect();
    Ok(Arc::new(filled))
}

/// A native UPSERT has a value and a DELETE has none.
fn check_values(
    op: &ArrayRef,
    columns: &[Option<ArrayRef>],
    roles: &[Column],
    caster: &mut Caster,
) {
    let at = roles.iter().position(|role| *role == Column::Value);
    let value = at.and_then(|at| columns.get(at)).and_then(Option::as_ref);
    let ops = op.as_string::<i32>();
    for row in 0..ops.len() {
        let has_value = value.is_some_and(|value| value.is_valid(row));
        let is_delete = ops.value(row) == alluvium_log::DELETE;
        if is_delete == has_value {
            let why = if is_delete {
                "a DELETE has no value: make it null"
            } else {
                "an UPSERT needs its value; to remove the key set the operation to DELETE"
            };
            caster.note(row, Fault::new(why).in_field(STATE_VALUE));
        }
    }
}

/// The columns of a batch in their stored types.
fn records(batch: &RecordBatch, columns: &[Option<ArrayRef>]) -> Result<RecordBatch> {
    let schema = batch.schema_ref();
    let kept = columns.iter().enumerate().filter_map(|(at, column)| {
        let column = column.as_ref()?;
        Some((schema.field(at).name(), Arc::clone(column), true))
    });
    Ok(RecordBatch::try_from_iter_with_nullable(kept)?)
}

fn row_texts(batch: &RecordBatch) -> Result<Vec<Vec<u8>>> {
    (0..batch.num_rows())
        .map(|row| {
            let mut text = Vec::new();
            write_row(&mut text, batch, row)?;
            Ok(text)
        })
        .collect()
}

/// What each column is: by the mapping, or by the names of native changes and of our own log.
fn roles(schema: &Schema, options: &ReadOptions, policy: &Policy) -> Result<Vec<Column>> {
    let names = || schema.fields().iter().map(|field| field.name().as_str());
    refuse_same_names(names()).map_err(|(one, other)| {
        policy.whole(format!("the columns {one:?} and {other:?} have the same name: rename one"))
    })?;
    if !options.mapping.is_native() {
        let roles =
            find_roles(names(), &options.mapping).map_err(|error| policy.whole(error.message()))?;
        let column = |role| match role {
            Some(Role::Key(place)) => Column::Key(place),
            Some(Role::EventTime) => Column::EventTime,
            Some(Role::Version) => Column::Version,
            None => Column::Field,
        };
        return Ok(roles.into_iter().map(column).collect());
    }
    let is_log = names().any(|name| name == STATE_KEY);
    let column = |name: &str| match name {
        STATE_KEY if is_log => Some(Column::Key(0)),
        OP_TYPE if is_log => Some(Column::Op),
        STATE_VALUE if is_log => Some(Column::Value),
        APPEND_ID | APPEND_SEQ | COMMIT | DT | TIER if is_log => Some(Column::Ignored),
        "key" if !is_log => Some(Column::Key(0)),
        "op" if !is_log => Some(Column::Op),
        "value" if !is_log => Some(Column::Value),
        VERSION => Some(Column::Version),
        EVENT_TIME => Some(Column::EventTime),
        _ => None,
    };
    let roles: Option<Vec<Column>> = names().map(column).collect();
    roles.filter(|roles| roles.contains(&Column::Key(0))).ok_or_else(|| {
        let all: Vec<&str> = names().collect();
        policy.whole(format!(
            "the columns {} are not those of changes (key, op, value, version, event_time): name the key column",
            all.join(", ")
        ))
    })
}

/// A batch in pieces that are within the bounds; each is copied, so as not to hold on to the whole.
fn cut(batch: &RecordBatch, max_rows: usize, max_bytes: usize) -> Result<VecDeque<RecordBatch>> {
    let rows = batch.num_rows();
    let by_bytes = batch.get_array_memory_size().div_ceil(max_bytes.max(1)).max(1);
    let piece_rows = rows.div_ceil(by_bytes).min(max_rows).max(1);
    if rows <= piece_rows {
        return Ok(if rows == 0 { VecDeque::new() } else { VecDeque::from([batch.clone()]) });
    }
    let mut pieces = VecDeque::new();
    let mut start = 0;
    while start < rows {
        let end = (start + piece_rows).min(rows);
        let places = arrow::array::UInt64Array::from_iter_values(start as u64..end as u64);
        pieces.push_back(take_record_batch(batch, &places)?);
        start = end;
    }
    Ok(pieces)
}
