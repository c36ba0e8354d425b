//! Which rows a read wants, by what the log is laid out for: key, commit, version, event time.

use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};

use crate::error::{Error, Result};
use crate::table::DataFile;

/// Which keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum KeyFilter {
    /// Every key.
    #[default]
    All,
    /// These keys, sorted and each once.
    Keys(Arc<[String]>),
    /// The keys from `from` (included) to `to` (excluded).
    Range {
        /// The least key wanted.
        from: Option<String>,
        /// The first key not wanted.
        to: Option<String>,
    },
}

impl KeyFilter {
    /// The filter for some keys.
    pub fn keys(keys: impl IntoIterator<Item = String>) -> Self {
        let mut keys: Vec<String> = keys.into_iter().collect();
        keys.sort_unstable();
        keys.dedup();
        Self::Keys(keys.into())
    }

    /// The filter for keys that begin with a text.
    pub fn prefix(prefix: &str) -> Self {
        if prefix.is_empty() {
            return Self::All;
        }
        Self::Range { from: Some(prefix.to_owned()), to: successor(prefix) }
    }

    /// Whether a key is wanted.
    pub fn matches(&self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Keys(keys) => keys.binary_search_by(|known| known.as_str().cmp(key)).is_ok(),
            Self::Range { from, to } => {
                from.as_deref().is_none_or(|from| from <= key)
                    && to.as_deref().is_none_or(|to| key < to)
            }
        }
    }

    /// Whether a wanted key may lie between two bounds, both included; an absent bound is unknown.
    pub fn may_match(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        match self {
            Self::All => true,
            Self::Keys(keys) => {
                let start = low.map_or(0, |low| keys.partition_point(|key| key.as_bytes() < low));
                keys.get(start).is_some_and(|key| high.is_none_or(|high| key.as_bytes() <= high))
            }
            Self::Range { from, to } => {
                let below = |from: &String| high.is_some_and(|high| high < from.as_bytes());
                let above = |to: &String| low.is_some_and(|low| low >= to.as_bytes());
                !from.as_ref().is_some_and(below) && !to.as_ref().is_some_and(above)
            }
        }
    }

    /// Whether every key between two bounds is wanted; an absent bound is unknown.
    fn matches_between(&self, low: Option<&str>, high: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Keys(_) => false,
            Self::Range { from, to } => {
                let above = |from: &String| low.is_some_and(|low| low >= from.as_str());
                let below = |to: &String| high.is_some_and(|high| high < to.as_str());
                from.as_ref().is_none_or(above) && to.as_ref().is_none_or(below)
            }
        }
    }

    /// The keys wanted by both; a list of keys stays a list.
    pub fn intersect(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::All, filter) | (filter, Self::All) => filter.clone(),
            (Self::Keys(keys), filter) | (filter, Self::Keys(keys)) => {
                Self::Keys(keys.iter().filter(|key| filter.matches(key)).cloned().collect())
            }
            (Self::Range { from: a, to: b }, Self::Range { from: c, to: d }) => {
                let to = match (b, d) {
                    (Some(b), Some(d)) => Some(b.min(d).clone()),
                    (bound, None) | (None, bound) => bound.clone(),
                };
                Self::Range { from: a.max(c).clone(), to }
            }
        }
    }
}

/// The least text greater than every text that begins with `prefix`.
fn successor(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        let next = match last {
            // The code points of surrogates are no characters.
            '\u{d7ff}' => Some('\u{e000}'),
            other => char::from_u32(u32::from(other) + 1),
        };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

/// Which rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowFilter {
    /// By key.
    pub keys: KeyFilter,
    /// Only rows of commits after this one.
    pub after_commit: Option<i64>,
    /// Only rows of commits up to this one.
    pub up_to_commit: Option<i64>,
    /// Only rows with versions up to this one.
    pub max_version: Option<i64>,
    /// Only rows with event times up to this one, in microseconds.
    pub max_event_time: Option<i64>,
}

impl RowFilter {
    /// Whether a file may hold a row that is wanted.
    pub fn may_match(&self, file: &DataFile) -> bool {
        let stats = &file.stats;
        let span = file.commits.span();
        let low = stats.min_key.as_deref().map(str::as_bytes);
        let high = stats.max_key.as_deref().map(str::as_bytes);
        self.keys.may_match(low, high)
            && self.after_commit.is_none_or(|after| span.high > after)
            && self.up_to_commit.is_none_or(|last| span.low <= last)
            && at_most(stats.min_version, self.max_version)
            && at_most(stats.min_event_time, self.max_event_time)
    }

    /// Whether a file's statistics show that all rows are wanted, so that rows need no look.
    pub(crate) fn matches_all(&self, file: &DataFile) -> bool {
        let stats = &file.stats;
        let span = file.commits.span();
        let low = stats.min_key.as_deref();
        let high = stats.max_key.as_deref();
        self.keys.matches_between(low, high)
            && self.after_commit.is_none_or(|after| span.low > after)
            && self.up_to_commit.is_none_or(|last| span.high <= last)
            && self.max_version.is_none_or(|max| stats.max_version.is_some_and(|v| v <= max))
            && self.max_event_time.is_none_or(|max| stats.max_event_time.is_some_and(|t| t <= max))
    }

    /// The wanted rows of a batch in fold shape.
    pub(crate) fn mask(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let column = |index: usize| batch.columns().get(index);
        let (Some(keys), Some(versions), Some(times), Some(commits)) =
            (column(0), column(1), column(2), column(4))
        else {
            return Err(Error::internal("a batch lacks the columns of a fold"));
        };
        let keys = keys.as_string::<i32>();
        let versions = versions.as_primitive::<Int64Type>().values();
        let times = times.as_primitive::<TimestampMicrosecondType>().values();
        let commits = commits.as_primitive::<Int64Type>().values();
        Ok((0..batch.num_rows())
            .map(|row| {
                Some(
                    self.max_version.is_none_or(|max| versions[row] <= max)
                        && self.max_event_time.is_none_or(|max| times[row] <= max)
                        && self.after_commit.is_none_or(|after| commits[row] > after)
                        && self.up_to_commit.is_none_or(|last| commits[row] <= last)
                        && self.keys.matches(keys.value(row)),
                )
            })
            .collect())
    }
}

/// Whether a least value leaves room for rows up to a greatest one.
pub(crate) fn at_most(least: Option<i64>, greatest: Option<i64>) -> bool {
    match (least, greatest) {
        (Some(least), Some(greatest)) => least <= greatest,
        _ => true,
    }
}
