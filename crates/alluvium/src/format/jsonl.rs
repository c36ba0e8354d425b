//! Changes from JSON lines: native ones, or records by a mapping.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use alluvium_log::{Error, Result};
use arrow::datatypes::Fields;

use super::changes::{ChangeMapping, OnBad, ReadOptions, ReaderSchema, Role, SAMPLE_ROWS};
use super::chunk::{ChangeChunk, Policy, RowNotes, parse_op};
use super::fault::{Fault, quote_name};
use super::infer::Inference;
use super::input::Bytes;
use super::json::{Json, parse_json};
use super::key_part::{self, PartStyle};
use super::lines::{Block, Lines};
use super::rows::{Head, RowSink, null_key, parse_event_time, parse_version};
use alluvium_log::encode_key;

type Entries<'a> = [(Cow<'a, str>, Json<'a>)];

/// Rows of the block at hand that inference turned down, and why.
type Refused = HashMap<usize, String>;

/// What became of some rows.
enum Built {
    Chunk(Box<ChangeChunk>),
    /// They have fields that the schema lacks; the rows that are bad whatever the schema, and why.
    Unseen(Vec<(usize, String)>),
}

pub(crate) struct JsonlReader {
    lines: Lines,
    options: ReadOptions,
    policy: Policy,
    /// The fields known so far; none before the first rows were looked at.
    fields: Option<Fields>,
    block: Block,
    next_row: usize,
    refused: Refused,
}

impl JsonlReader {
    pub(crate) fn new(bytes: Bytes, options: ReadOptions, policy: Policy) -> Self {
        let fields = match &options.schema {
            ReaderSchema::Fixed(fields) => Some(fields.clone()),
            ReaderSchema::Infer => None,
        };
        Self {
            lines: Lines::new(policy.label.to_string(), bytes),
            options,
            policy,
            fields,
            block: Block::default(),
            next_row: 0,
            refused: Refused::new(),
        }
    }

    pub(crate) fn next_chunk(&mut self) -> Result<Option<ChangeChunk>> {
        if self.next_row >= self.block.len() {
            let rows = self.options.batch_rows;
            let rows = if self.fields.is_none() { rows.max(SAMPLE_ROWS) } else { rows };
            self.block = self.lines.block(rows, self.options.batch_bytes)?;
            self.next_row = 0;
            self.refused.clear();
        }
        if self.block.len() == 0 {
            return Ok(None);
        }
        let mut fields = match self.fields.take() {
            Some(fields) => fields,
            None => self.grow(&Fields::empty(), 0..self.block.len())?,
        };
        let rows =
            self.next_row..(self.next_row + self.options.batch_rows.max(1)).min(self.block.len());
        let mut built = self.build(&fields, rows.clone())?;
        if let Built::Unseen(failed) = built {
            self.refused.extend(failed);
            fields = self.grow(&fields, rows.clone())?;
            built = self.build(&fields, rows.clone())?;
        }
        self.next_row = rows.end;
        self.fields = Some(fields);
        match built {
            Built::Chunk(chunk) => Ok(Some(*chunk)),
            Built::Unseen(_) => Err(Error::internal("a schema was grown and still lacks a field")),
        }
    }

    /// The fields grown by what the rows have besides.
    fn grow(&mut self, fields: &Fields, rows: Range<usize>) -> Result<Fields> {
        let mut inference = Inference::new(fields);
        let refused_before = self.refused.len();
        for row in rows.clone() {
            self.infer_row(&mut inference, row)?;
        }
        if self.refused.len() > refused_before {
            // What a refused row added before its fault must not stay.
            inference = Inference::new(fields);
            for row in rows {
                self.infer_row(&mut inference, row)?;
            }
        }
        Ok(inference.finish())
    }

    fn infer_row(&mut self, inference: &mut Inference, row: usize) -> Result<()> {
        let (line, bytes) = self.block.get(row);
        if self.refused.contains_key(&row) {
            return Ok(());
        }
        // A row that can't be read tells nothing here; its fault is told when it is built.
        let Ok(Json::Object(entries)) = parse_line(bytes) else { return Ok(()) };
        let mapping = &self.options.mapping;
        let head = match mapping.is_native() {
            true => native_head(&entries),
            false => mapped_head(&entries, mapping, |_, _| Ok(())),
        };
        let value = match head {
            Err(_) => return Ok(()),
            Ok(head) if head.is_delete => return Ok(()),
            Ok(_) if mapping.is_native() => native_value(&entries),
            Ok(_) => Some(&*entries),
        };
        let Some(value) = value else { return Ok(()) };
        let is_native = mapping.is_native();
        let fields = value
            .iter()
            .filter(|(name, _)| is_native || mapping.role(name).is_none())
            .map(|(name, value)| (name.as_ref(), value));
        let Err(fault) = inference.add(fields) else { return Ok(()) };
        let fault = fault.in_field(alluvium_log::STATE_VALUE);
        match self.policy.on_bad {
            OnBad::Fail => Err(self.policy.error(line, fault)),
            OnBad::Collect => {
                self.refused.insert(row, fault.to_string());
                Ok(())
            }
        }
    }

    fn build(&self, fields: &Fields, rows: Range<usize>) -> Result<Built> {
        let mapping = &self.options.mapping;
        let key_parts = if self.options.want_records { mapping.key.len() } else { 0 };
        let mut sink = RowSink::new(fields, key_parts)?;
        let mut lines = Vec::with_capacity(rows.len());
        let mut texts = self.policy.needs_texts(fields).then(Vec::new);
        let mut rejects = Vec::new();
        let mut failed = Vec::new();
        for row in rows {
            let (line, bytes) = self.block.get(row);
            let pushed = match self.refused.get(&row) {
                Some(reason) => Err(Fault::new(reason)),
                None => push_line(&mut sink, bytes, mapping),
            };
            match pushed {
                Ok(()) => {
                    lines.push(line);
                    if let Some(texts) = &mut texts {
                        texts.push(bytes.to_vec());
                    }
                }
                Err(fault) => {
                    sink.truncate(lines.len());
                    failed.push((row, fault.to_string()));
                    self.policy.refuse(&mut rejects, line, fault, || bytes.to_vec())?;
                }
            }
        }
        if sink.has_unseen() {
            return Ok(Built::Unseen(failed));
        }
        let notes = RowNotes { lines, texts, rejects, left_out: sink.left_out() };
        let (columns, records) = sink.finish(mapping)?;
        let chunk = ChangeChunk::new(columns, records, fields.clone(), notes, self.policy.clone())?;
        Ok(Built::Chunk(Box::new(chunk)))
    }
}

fn parse_line(bytes: &[u8]) -> Result<Json<'_>, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Fault::new(format!("not valid UTF-8 at byte {} of the line", error.valid_up_to() + 1))
    })?;
    parse_json(text).map_err(|error| Fault::new(error.message()))
}

fn native_value<'a, 'b>(entries: &'b Entries<'a>) -> Option<&'b Entries<'a>> {
    entries.iter().find_map(|(name, value)| match value {
        Json::Object(fields) if name == "value" => Some(fields.as_slice()),
        _ => None,
    })
}

fn push_line(sink: &mut RowSink, bytes: &[u8], mapping: &ChangeMapping) -> Result<(), Fault> {
    let value = parse_line(bytes)?;
    let Json::Object(entries) = &value else {
        return Err(Fault::new(format!("a line holds one JSON object, not {}", value.describe())));
    };
    if mapping.is_native() {
        let head = native_head(entries)?;
        let value = if head.is_delete { None } else { native_value(entries) };
        sink.push_value(value, |_| true)?;
        sink.push_head(&head)
    } else {
        let head = mapped_head(entries, mapping, |place, text| sink.push_key_part(place, text))?;
        sink.push_value(Some(entries), |name| mapping.role(name).is_none())?;
        sink.push_head(&head)
    }
}

fn native_head<'a>(entries: &'a Entries<'_>) -> Result<Head<'a>, Fault> {
    let mut key = None;
    let mut head =
        Head { key: Cow::Borrowed(""), is_delete: false, version: None, event_time: None };
    let mut value = &Json::Null;
    for (name, given) in entries {
        match name.as_ref() {
            "key" => match given {
                Json::String(text) => key = Some(text.as_ref()),
                Json::Null => return Err(null_key("key")),
                other => {
                    let why = format!("a key is a string, not {}", other.describe());
                    return Err(Fault::new(why).in_field("key"));
                }
            },
            "op" => match given {
                Json::String(op) => {
                    head.is_delete = parse_op(op).map_err(|fault| fault.in_field("op"))?;
                }
                Json::Null => {}
                other => {
                    let why =
                        format!("the operation is {}: use UPSERT or DELETE", other.describe());
                    return Err(Fault::new(why).in_field("op"));
                }
            },
            "value" => value = given,
            "version" => head.version = json_version(given, "version")?,
            "event_time" => head.event_time = json_event_time(given, "event_time")?,
            "commit" => {
                return Err(Fault::new(
                    "a change has no field commit: this is a line of a feed or a history, which tells where a change is stored; \
                     write the feed with changes --as-input, which leaves that out",
                ));
            }
            other => {
                return Err(Fault::new(format!(
                    "a change has no field {}: it has key, op, value, version and event_time; for records of another \
                     shape name their key column",
                    quote_name(other)
                )));
            }
        }
    }
    head.key = Cow::Borrowed(key.ok_or_else(|| null_key("key"))?);
    match (head.is_delete, value) {
        (true, Json::Null) | (false, Json::Object(_)) => Ok(head),
        (true, other) => Err(Fault::new(format!(
            "a DELETE has no value, but this one has {}: leave it out",
            other.describe()
        ))
        .in_field("value")),
        (false, Json::Null) => Err(Fault::new(
            "an UPSERT needs its value, an object; to remove the key set op to DELETE",
        )
        .in_field("value")),
        (false, other) => {
            let why = format!("the value of a change is an object, not {}", other.describe());
            Err(Fault::new(why).in_field("value"))
        }
    }
}

/// The head of a record; each part of its key is also handed on as the plain text it has in the record.
fn mapped_head<'a>(
    entries: &'a Entries<'_>,
    mapping: &ChangeMapping,
    mut each_part: impl FnMut(usize, &str) -> Result<(), Fault>,
) -> Result<Head<'a>, Fault> {
    let mut parts: Vec<Option<Cow<'a, str>>> = vec![None; mapping.key.len()];
    let mut head =
        Head { key: Cow::Borrowed(""), is_delete: false, version: None, event_time: None };
    let style = mapping.part_style();
    for (name, given) in entries {
        match mapping.role(name) {
            None => {}
            Some(Role::Version) => head.version = json_version(given, name)?,
            Some(Role::EventTime) => head.event_time = json_event_time(given, name)?,
            Some(Role::Key(place)) => {
                let part = json_key(given, name, style)?;
                each_part(place, plain_key(given).unwrap_or(&part))?;
                if let Some(slot) = parts.get_mut(place) {
                    *slot = Some(part);
                }
            }
        }
    }
    let mut texts = Vec::with_capacity(parts.len());
    for (name, part) in mapping.key.iter().zip(parts) {
        texts.push(part.ok_or_else(|| null_key(name))?);
    }
    head.key = if texts.len() > 1 {
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        Cow::Owned(encode_key(&texts))
    } else {
        texts.pop().unwrap_or_default()
    };
    Ok(head)
}

/// A part of a key: strings and integers as they are, integers of a composite key in their ordered form.
fn json_key<'a>(given: &'a Json<'_>, name: &str, style: PartStyle) -> Result<Cow<'a, str>, Fault> {
    match given {
        Json::String(text) => Ok(Cow::Borrowed(text)),
        Json::Null => Err(null_key(name)),
        Json::Number(text) => match text.parse::<i64>() {
            Ok(number) => Ok(Cow::Owned(key_part::integer(number, style))),
            Err(_) => Err(Fault::new(format!(
                "a key is a string or a BIGINT, not {}: give it as a string",
                given.describe()
            ))
            .in_field(name)),
        },
        Json::Bool(value) => Ok(Cow::Borrowed(key_part::boolean(*value, style))),
        other => {
            let why = format!("a key is a string or a BIGINT, not {}", other.describe());
            Err(Fault::new(why).in_field(name))
        }
    }
}

/// The part of a key as a predicate over the records sees it.
fn plain_key<'a>(given: &'a Json<'_>) -> Option<&'a str> {
    match given {
        Json::String(text) => Some(text),
        Json::Number(text) => Some(text),
        Json::Bool(value) => Some(if *value { "true" } else { "false" }),
        _ => None,
    }
}

fn json_version(given: &Json<'_>, name: &str) -> Result<Option<i64>, Fault> {
    let parsed = match given {
        Json::Null => return Ok(None),
        Json::Number(text) => parse_version(text),
        Json::String(text) => parse_version(text),
        other => Err(Fault::new(format!("a version is an integer, not {}", other.describe()))),
    };
    parsed.map(Some).map_err(|fault| fault.in_field(name))
}

fn json_event_time(given: &Json<'_>, name: &str) -> Result<Option<i64>, Fault> {
    let parsed = match given {
        Json::Null => return Ok(None),
        Json::String(text) => parse_event_time(text),
        other => Err(Fault::new(format!(
            "an event time is a string such as \"2024-01-15T10:30:00Z\", not {}",
            other.describe()
        ))),
    };
    parsed.map(Some).map_err(|fault| fault.in_field(name))
}
