//! The order of a state's rows: which of two rows of one key is the winner.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// What a state is ordered by. Declared when the state is created, and immutable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderBy {
    /// The greatest (`event_time`, `version`) wins: a late event never overwrites a later one.
    #[default]
    EventTime,
    /// The greatest (`version`, `event_time`) wins: for callers with a sequence of their own.
    Version,
}

impl fmt::Display for OrderBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EventTime => "event_time",
            Self::Version => "version",
        })
    }
}

impl FromStr for OrderBy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "event_time" => Ok(Self::EventTime),
            "version" => Ok(Self::Version),
            other => Err(Error::invalid(format!(
                "a state can't be ordered by {other:?}: use event_time or version"
            ))),
        }
    }
}

/// Everything of a row that its place in the order depends on.
///
/// Two ranks of one key compare as the rows do; the row with the greatest rank is the winner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rank {
    /// The row's version.
    pub version: i64,
    /// The row's event time, in microseconds since 1970 UTC.
    pub event_time: i64,
    /// Whether the row is a DELETE.
    pub is_delete: bool,
    /// The log commit that wrote the row.
    pub commit: i64,
    /// The row's place among the equal rows of its commit.
    pub append_seq: i32,
}

impl Rank {
    /// Compares two rows of one key under a state's order.
    pub fn compare(&self, other: &Self, order_by: OrderBy) -> Ordering {
        let first = match order_by {
            OrderBy::EventTime => {
                (self.event_time, self.version).cmp(&(other.event_time, other.version))
            }
            OrderBy::Version => {
                (self.version, self.event_time).cmp(&(other.version, other.event_time))
            }
        };
        first
            .then_with(|| self.is_delete.cmp(&other.is_delete))
            .then_with(|| self.commit.cmp(&other.commit))
            .then_with(|| self.append_seq.cmp(&other.append_seq))
    }
}
