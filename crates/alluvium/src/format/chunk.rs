//! One batch of changes, and what becomes of the rows that are bad.

use std::sync::Arc;

use alluvium_log::{
    DELETE, EVENT_TIME, Error, OP_TYPE, Result, STATE_KEY, STATE_VALUE, UPSERT, VERSION,
    event_time_type,
};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, StringArray, StructArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Fields, Schema};

use super::changes::OnBad;
use super::fault::Fault;
use super::required;

/// A row that could not be read, as it stood in the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    /// Its line (or row, of a Parquet or Arrow input), from 1.
    pub line: u64,
    /// The bytes of its line; the record written anew for CSV; the row as JSON for Parquet and Arrow.
    pub text: Vec<u8>,
    /// What is wrong with it, and the remedy.
    pub reason: String,
}

/// Some changes of one input.
#[derive(Debug, Clone)]
pub struct ChangeChunk {
    /// `state_key, op_type, version, event_time, state_value`; version and event time may be null.
    pub changes: RecordBatch,
    /// The mapped records, row for row, when they were asked for: the fields of the value, then the columns of
    /// the key as text, of the event time and of the version.
    pub records: Option<RecordBatch>,
    /// The line (or row, of a Parquet or Arrow input) of each change, from 1.
    pub lines: Vec<u64>,
    /// The rows that could not be read.
    pub rejects: Vec<Reject>,
    /// The fields that are only null or empty so far, so that they have no type and are left out.
    pub left_out: Vec<String>,
    fields: Fields,
    texts: Option<Vec<Vec<u8>>>,
    policy: Policy,
}

/// Where an input's rows are, and what to do with the bad ones.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    pub(crate) label: Arc<str>,
    pub(crate) unit: &'static str,
    pub(crate) on_bad: OnBad,
}

impl Policy {
    /// Whether the texts of good rows must be kept, since one may be refused once its columns are there.
    pub(crate) fn needs_texts(&self, fields: &Fields) -> bool {
        self.on_bad == OnBad::Collect && fields.iter().any(|field| required::has_required(field))
    }

    /// An error that names the place.
    pub(crate) fn error(&self, line: u64, fault: impl std::fmt::Display) -> Error {
        Error::invalid(format!("{}: {} {line}: {fault}", self.label, self.unit))
    }

    /// An error about the whole input.
    pub(crate) fn whole(&self, message: impl std::fmt::Display) -> Error {
        Error::invalid(format!("{}: {message}", self.label))
    }

    /// Stops the read at a bad row, or keeps the row as a reject.
    pub(crate) fn refuse(
        &self,
        rejects: &mut Vec<Reject>,
        line: u64,
        fault: impl std::fmt::Display,
        text: impl FnOnce() -> Vec<u8>,
    ) -> Result<()> {
        match self.on_bad {
            OnBad::Fail => Err(self.error(line, fault)),
            OnBad::Collect => {
                rejects.push(Reject { line, text: text(), reason: fault.to_string() });
                Ok(())
            }
        }
    }
}

/// The columns of the changes before their required values are checked.
pub(crate) struct Columns {
    pub(crate) key: ArrayRef,
    pub(crate) op: ArrayRef,
    pub(crate) version: ArrayRef,
    pub(crate) event_time: ArrayRef,
    /// The value, with everything in it nullable.
    pub(crate) value: ArrayRef,
}

/// What a chunk knows of its rows besides their columns.
pub(crate) struct RowNotes {
    pub(crate) lines: Vec<u64>,
    /// The text of each row, when bad ones are to be kept.
    pub(crate) texts: Option<Vec<Vec<u8>>>,
    pub(crate) rejects: Vec<Reject>,
    pub(crate) left_out: Vec<String>,
}

impl ChangeChunk {
    /// Puts a chunk together; without records its required values are checked at once.
    pub(crate) fn new(
        columns: Columns,
        records: Option<RecordBatch>,
        fields: Fields,
        notes: RowNotes,
        policy: Policy,
    ) -> Result<Self> {
        Self::with_bad(columns, records, fields, notes, policy, Vec::new())
    }

    /// As [`Self::new`], of which some rows are bad already.
    pub(crate) fn with_bad(
        columns: Columns,
        records: Option<RecordBatch>,
        fields: Fields,
        notes: RowNotes,
        policy: Policy,
        bad: Vec<(usize, Fault)>,
    ) -> Result<Self> {
        let Columns { key, op, version, event_time, value } = columns;
        let schema = changes_schema(value.data_type().clone());
        let changes = RecordBatch::try_new(schema, vec![key, op, version, event_time, value])?;
        let RowNotes { lines, texts, rejects, left_out } = notes;
        let is_settled = records.is_none();
        let mut chunk = Self { changes, records, lines, rejects, left_out, fields, texts, policy };
        chunk.drop_bad(bad)?;
        if is_settled { chunk.settle() } else { Ok(chunk) }
    }

    /// How many changes it holds.
    pub fn len(&self) -> usize {
        self.changes.num_rows()
    }

    /// Whether it holds no change (there may be rejects).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The line of the first change.
    pub fn first_line(&self) -> Option<u64> {
        self.lines.first().copied()
    }

    /// The fields of the value: those of the reader's schema, then those that the input added.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Makes DELETEs of the rows where the mask is true (null is false), and then checks the values that are
    /// required of the others. It must be called, if only with a mask of false, when records were asked for.
    ///
    /// # Errors
    /// The mask has another length; or a row lacks a required value and bad rows stop the read.
    pub fn with_deletes(mut self, deletes: &BooleanArray) -> Result<Self> {
        if deletes.len() != self.len() {
            return Err(Error::invalid(format!(
                "a mask of {} rows was given for {} changes",
                deletes.len(),
                self.len()
            )));
        }
        let is_delete = |row: usize| deletes.is_valid(row) && deletes.value(row);
        let op = self.column(OP_TYPE)?;
        let old_ops = op.as_string::<i32>();
        let ops: StringArray = (0..self.len())
            .map(|row| Some(if is_delete(row) { DELETE } else { old_ops.value(row) }))
            .collect();
        let value = self.column(STATE_VALUE)?;
        let value = value.as_struct();
        let kept = BooleanBuffer::collect_bool(self.len(), |row| !is_delete(row));
        let nulls = NullBuffer::union(Some(&NullBuffer::new(kept)), value.nulls());
        let value = StructArray::try_new_with_length(
            value.fields().clone(),
            value.columns().to_vec(),
            nulls,
            value.len(),
        )?;
        self.replace(OP_TYPE, Arc::new(ops))?;
        self.replace(STATE_VALUE, Arc::new(value))?;
        self.settle()
    }

    fn column(&self, name: &str) -> Result<ArrayRef> {
        self.changes
            .column_by_name(name)
            .cloned()
            .ok_or_else(|| Error::internal(format!("changes without the column {name}")))
    }

    fn replace(&mut self, name: &str, column: ArrayRef) -> Result<()> {
        let schema = self.changes.schema();
        let mut columns = self.changes.columns().to_vec();
        let place = schema.index_of(name)?;
        if let Some(old) = columns.get_mut(place) {
            *old = column;
        }
        let schema = match name {
            STATE_VALUE => changes_schema(columns[place].data_type().clone()),
            _ => schema,
        };
        self.changes = RecordBatch::try_new(schema, columns)?;
        Ok(())
    }

    /// Refuses the rows that lack a required value, and gives the value its true type.
    fn settle(mut self) -> Result<Self> {
        let true_type = DataType::Struct(self.fields.clone());
        if self.fields.iter().any(|field| required::has_required(field)) {
            let value = self.column(STATE_VALUE)?;
            let mut bad = Vec::new();
            for row in (0..value.len()).filter(|row| value.is_valid(*row)) {
                if let Some(fault) = required::missing_below(value.as_ref(), &true_type, row) {
                    bad.push((row, fault.in_field(STATE_VALUE)));
                }
            }
            self.drop_bad(bad)?;
        }
        let value = required::retype(&self.column(STATE_VALUE)?, &true_type)?;
        self.replace(STATE_VALUE, value)?;
        Ok(self)
    }

    /// Refuses these rows, in the order of their places.
    pub(crate) fn drop_bad(&mut self, bad: Vec<(usize, Fault)>) -> Result<()> {
        if bad.is_empty() {
            return Ok(());
        }
        let mut keep = vec![true; self.len()];
        for (row, fault) in bad {
            let Some(kept) = keep.get_mut(row) else { continue };
            let line = self.lines.get(row).copied().unwrap_or(0);
            let text = self.texts.as_ref().and_then(|texts| texts.get(row)).cloned();
            if *kept {
                self.policy.refuse(&mut self.rejects, line, fault, || text.unwrap_or_default())?;
            }
            *kept = false;
        }
        let mask = BooleanArray::from(keep.clone());
        self.changes = filter_record_batch(&self.changes, &mask)?;
        self.records =
            self.records.take().map(|records| filter_record_batch(&records, &mask)).transpose()?;
        retain(&mut self.lines, &keep);
        if let Some(texts) = &mut self.texts {
            retain(texts, &keep);
        }
        Ok(())
    }
}

fn retain<T>(items: &mut Vec<T>, keep: &[bool]) {
    let mut kept = keep.iter();
    items.retain(|_| kept.next().copied().unwrap_or(true));
}

fn changes_schema(value: DataType) -> Arc<Schema> {
    Arc::new(Schema::new(vec![
        Field::new(STATE_KEY, DataType::Utf8, true),
        Field::new(OP_TYPE, DataType::Utf8, true),
        Field::new(VERSION, DataType::Int64, true),
        Field::new(EVENT_TIME, event_time_type(), true),
        Field::new(STATE_VALUE, value, true),
    ]))
}

/// The operation of a change by its name.
pub(crate) fn parse_op(text: &str) -> Result<bool, Fault> {
    match text {
        UPSERT => Ok(false),
        DELETE => Ok(true),
        other => Err(Fault::new(format!(
            "the operation is {}: use UPSERT or DELETE",
            super::fault::excerpt(other)
        ))),
    }
}
