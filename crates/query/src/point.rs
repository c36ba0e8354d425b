//! Which state is asked for: latest, or as of a commit, a version, an event time, or several of them together.

use std::fmt;
use std::str::FromStr;

use alluvium_log::{Error, MAX_EVENT_TIME, MIN_EVENT_TIME, Result, RowFilter};

/// A point in a state's past. The default is the latest state; each bound that is given counts.
///
/// Bounds are inclusive: as of time `t` a row that happened exactly at `t` counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Point {
    /// What the store knew with this log commit.
    pub commit: Option<i64>,
    /// Rows with versions up to this one.
    pub version: Option<i64>,
    /// Rows that happened up to this time, in microseconds since 1970 UTC.
    pub event_time: Option<i64>,
}

impl Point {
    /// The newest state.
    pub const LATEST: Self = Self { commit: None, version: None, event_time: None };

    /// What the store knew with a log commit.
    pub fn at_commit(commit: i64) -> Self {
        Self { commit: Some(commit), ..Self::LATEST }
    }

    /// Rows with versions up to one.
    pub fn at_version(version: i64) -> Self {
        Self { version: Some(version), ..Self::LATEST }
    }

    /// Rows that happened up to a time, in microseconds since 1970 UTC.
    pub fn at_time(event_time_micros: i64) -> Self {
        Self { event_time: Some(event_time_micros), ..Self::LATEST }
    }

    /// Both points' bounds; where both have one, the other's.
    pub fn and(self, other: Self) -> Self {
        Self {
            commit: other.commit.or(self.commit),
            version: other.version.or(self.version),
            event_time: other.event_time.or(self.event_time),
        }
    }

    /// Whether it is the newest state.
    pub fn is_latest(&self) -> bool {
        *self == Self::LATEST
    }

    /// The rows that count, as far as commits go up to `newest`.
    pub(crate) fn filter(&self, newest: i64) -> RowFilter {
        RowFilter {
            up_to_commit: Some(self.commit.map_or(newest, |commit| commit.min(newest))),
            max_version: self.version,
            max_event_time: self.event_time,
            ..RowFilter::default()
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_latest() {
            return f.write_str("latest");
        }
        let mut parts = Vec::new();
        parts.extend(self.commit.map(|commit| format!("commit:{commit}")));
        parts.extend(self.version.map(|version| format!("version:{version}")));
        parts.extend(self.event_time.map(|time| format!("time:{}", time_text(time))));
        f.write_str(&parts.join(","))
    }
}

impl FromStr for Point {
    type Err = Error;

    /// Reads `latest`, `commit:N`, `version:N`, `time:RFC3339`, or several of them with commas between.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |part: &str| {
            Error::invalid(format!(
                "{part:?} is not a point: write latest, commit:N, version:N, time:2024-01-15T10:30:00Z, known_at:2024-01-15T10:30:00Z, savepoint:NAME, or several with commas between"
            ))
        };
        let mut point = Self::LATEST;
        for part in text.split(',').map(str::trim) {
            if part == "latest" {
                continue;
            }
            let (kind, value) = part.split_once(':').ok_or_else(|| wrong(part))?;
            if matches!(kind.trim(), "savepoint" | "known_at") {
                return Err(Error::invalid(format!(
                    "{part:?} is a point of one state: read it as a NamedPoint, and ask the state's reader for the point"
                )));
            }
            let number = || value.trim().parse::<i64>().map_err(|_| wrong(part));
            let slot = match kind.trim() {
                "commit" => (&mut point.commit, number()?),
                "version" => (&mut point.version, number()?),
                "time" => (&mut point.event_time, parse_time(value.trim())?),
                _ => return Err(wrong(part)),
            };
            if slot.0.replace(slot.1).is_some() {
                return Err(Error::invalid(format!("{text:?} names {kind} twice")));
            }
        }
        Ok(point)
    }
}

/// A time, in microseconds since 1970, as it is written down.
pub(crate) fn time_text(micros: i64) -> String {
    chrono::DateTime::from_timestamp_micros(micros).map_or_else(
        || micros.to_string(),
        |time| time.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true),
    )
}

/// Reads a time with its offset; what is finer than a microsecond is refused rather than rounded.
pub fn parse_time(text: &str) -> Result<i64> {
    let wrong = |why: &str| {
        Error::invalid(format!(
            "{text:?} is not a time: {why}; write RFC 3339 with an offset, such as 2024-01-15T10:30:00Z or 2024-01-15T11:30:00+01:00"
        ))
    };
    if text.get(17..19) == Some("60") {
        return Err(wrong("leap seconds have no place in UTC microseconds"));
    }
    let time =
        chrono::DateTime::parse_from_rfc3339(text).map_err(|_| wrong(why_not_a_time(text)))?;
    if time.timestamp_subsec_nanos() % 1_000 != 0 {
        return Err(wrong("it is finer than a microsecond"));
    }
    let micros = time.timestamp_micros();
    if !(MIN_EVENT_TIME..=MAX_EVENT_TIME).contains(&micros) {
        return Err(wrong("it is outside of the years 0001 to 9999"));
    }
    Ok(micros)
}

/// What is missing from, or wrong with, a text that is not RFC 3339.
fn why_not_a_time(text: &str) -> &'static str {
    let local = text.replacen(' ', "T", 1);
    if chrono::NaiveDateTime::parse_from_str(&local, "%Y-%m-%dT%H:%M:%S%.f").is_ok()
        || chrono::NaiveDateTime::parse_from_str(&local, "%Y-%m-%dT%H:%M").is_ok()
    {
        "it has no offset, so the instant is not known"
    } else if chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d").is_ok() {
        "it is a day without a time of day"
    } else {
        "it is not written as one, or there is no such day or time of day"
    }
}
