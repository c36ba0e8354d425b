//! What a reader may leave out of what it reads.

use crate::columns::{APPEND_SEQ, COMMIT, EVENT_TIME, STATE_KEY, VERSION};
use crate::table::DataFile;

use super::filter::RowFilter;

/// What a reader does not need: files of our own are then read faster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadHints {
    /// Those of `state_key`, `version`, `event_time`, `commit` and `append_seq` that nobody looks at: they come as empty texts
    /// and zeros, unless rows must be told apart by them.
    pub unread: Vec<&'static str>,
    /// Rows whose value lies outside of any of these may be left out; none needs to be.
    pub bounds: Vec<FieldBounds>,
    /// About how many rows of a file that we wrote are fetched and decoded at a time; a row group when not given. Fewer rows
    /// take less memory and more requests.
    pub window_rows: Option<usize>,
}

/// What a field of the value must lie within, both ends included. A null lies within nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldBounds {
    /// The field's name, at the top of the value.
    pub field: String,
    /// The least value.
    pub low: Option<FieldValue>,
    /// The greatest value.
    pub high: Option<FieldValue>,
}

/// A value that statistics can be compared with.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue {
    /// An integer, a date in days, a timestamp in microseconds.
    Integer(i64),
    /// A floating-point number, which is not NaN.
    Float(f64),
    /// A text.
    Text(String),
}

impl FieldBounds {
    pub(super) fn may_hold_integers(&self, least: Option<i64>, greatest: Option<i64>) -> bool {
        let above = |low: &FieldValue| match (low, greatest) {
            (FieldValue::Integer(low), Some(greatest)) => *low <= greatest,
            _ => true,
        };
        let below = |high: &FieldValue| match (high, least) {
            (FieldValue::Integer(high), Some(least)) => least <= *high,
            _ => true,
        };
        self.low.as_ref().is_none_or(above) && self.high.as_ref().is_none_or(below)
    }

    /// By the least value alone: a NaN, which SQL orders above all others, is not in the statistics.
    pub(super) fn may_hold_floats(&self, least: Option<f64>) -> bool {
        match (&self.high, least) {
            (Some(FieldValue::Float(high)), Some(least)) => least <= *high,
            _ => true,
        }
    }

    pub(super) fn may_hold_texts(&self, least: Option<&[u8]>, greatest: Option<&[u8]>) -> bool {
        let above = |low: &FieldValue| match (low, greatest) {
            (FieldValue::Text(low), Some(greatest)) => low.as_bytes() <= greatest,
            _ => true,
        };
        let below = |high: &FieldValue| match (high, least) {
            (FieldValue::Text(high), Some(least)) => least <= high.as_bytes(),
            _ => true,
        };
        self.low.as_ref().is_none_or(above) && self.high.as_ref().is_none_or(below)
    }
}

/// The leading columns that are read for a spec.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leading {
    pub(super) key: bool,
    pub(super) version: bool,
    pub(super) event_time: bool,
    pub(super) commit: bool,
    pub(super) append_seq: bool,
}

impl Leading {
    /// All but what may stay unread. Rows of a file that a filter looks at have all that it may ask for.
    pub(super) fn of(hints: &ReadHints, filter: &RowFilter, file: &DataFile) -> Self {
        let exact = filter.matches_all(file) && file.is_sorted();
        let read = |name: &str| !exact || !hints.unread.contains(&name);
        Self {
            key: read(STATE_KEY),
            version: read(VERSION),
            event_time: read(EVENT_TIME),
            commit: read(COMMIT),
            append_seq: read(APPEND_SEQ),
        }
    }

    pub(super) fn reads(self, name: &str) -> bool {
        match name {
            STATE_KEY => self.key,
            VERSION => self.version,
            EVENT_TIME => self.event_time,
            COMMIT => self.commit,
            APPEND_SEQ => self.append_seq,
            _ => false,
        }
    }
}
