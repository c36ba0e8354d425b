//! Points as they are written down: bounds, and what stands for a commit: the name of a savepoint, or the time at which something was
//! known.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use alluvium_log::{Error, ErrorKind, Result};
use alluvium_materializer::{Savepoint, validate_savepoint_name};

use crate::point::{Point, parse_time, time_text};
use crate::reader::Reader;

/// What leads the name of a savepoint.
const SAVEPOINT: &str = "savepoint:";
/// What leads the time at which something was known.
const KNOWN_AT: &str = "known_at:";

/// A point that may name a commit of the state that it is of by something else than its number: `savepoint:NAME` is the commit that a
/// savepoint keeps, `known_at:TIME` the newest one that had been made at a time. Either goes with bounds of versions and event times.
/// [`Reader::point`] tells which point that is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct NamedPoint {
    /// The bounds that are given as such.
    pub point: Point,
    /// The name of a savepoint whose commit is the bound of commits.
    pub savepoint: Option<String>,
    /// The time at which the bound of commits was the newest one, in microseconds since 1970 UTC.
    pub known_at: Option<i64>,
}

impl NamedPoint {
    /// What a savepoint keeps.
    pub fn at_savepoint(name: &str) -> Self {
        Self { savepoint: Some(name.to_owned()), ..Self::default() }
    }

    /// What the store knew at a time, in microseconds since 1970 UTC, whenever it happened.
    pub fn known_at(time_micros: i64) -> Self {
        Self { known_at: Some(time_micros), ..Self::default() }
    }

    /// Whether it is the newest state.
    pub fn is_latest(&self) -> bool {
        self.plain().is_some_and(|point| point.is_latest())
    }

    /// The point, where it names no commit by something else than its number: it is the same one in every state.
    pub fn plain(&self) -> Option<Point> {
        (self.savepoint.is_none() && self.known_at.is_none()).then_some(self.point)
    }

    /// Both points' bounds.
    ///
    /// # Errors
    /// A bound is set by both; a savepoint and a time at which something was known are bounds of commits.
    pub fn and(self, other: Self) -> Result<Self> {
        let twice = |a: Option<i64>, b: Option<i64>| a.is_some() && b.is_some();
        let has_commit = |named: &Self| named.plain().is_none_or(|point| point.commit.is_some());
        if has_commit(&self) && has_commit(&other)
            || twice(self.point.version, other.point.version)
            || twice(self.point.event_time, other.point.event_time)
        {
            return Err(Error::invalid("the point sets a bound twice"));
        }
        Ok(Self {
            point: self.point.and(other.point),
            savepoint: self.savepoint.or(other.savepoint),
            known_at: self.known_at.or(other.known_at),
        })
    }

    /// The point that it is, by the savepoints of a state.
    ///
    /// # Errors
    /// There is no such savepoint: the error names those that there are.
    pub(crate) fn among(&self, state: &str, savepoints: &[Arc<Savepoint>]) -> Result<Point> {
        let Some(name) = &self.savepoint else { return Ok(self.point) };
        let found = savepoints.iter().find(|savepoint| savepoint.name == *name);
        let found = found.ok_or_else(|| {
            let known: Vec<String> = savepoints
                .iter()
                .map(|savepoint| format!("{} (commit {})", savepoint.name, savepoint.log_commit))
                .collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Error::new(
                ErrorKind::NotFound,
                format!("{state} has no savepoint {name:?}: there is {known}"),
            )
        })?;
        Ok(self.point.and(Point::at_commit(found.log_commit)))
    }
}

impl From<Point> for NamedPoint {
    fn from(point: Point) -> Self {
        Self { point, ..Self::default() }
    }
}

impl fmt::Display for NamedPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.savepoint.as_ref().map(|name| format!("{SAVEPOINT}{name}")));
        parts.extend(self.known_at.map(|time| format!("{KNOWN_AT}{}", time_text(time))));
        if parts.is_empty() || !self.point.is_latest() {
            parts.push(self.point.to_string());
        }
        f.write_str(&parts.join(","))
    }
}

impl FromStr for NamedPoint {
    type Err = Error;

    /// Reads what [`Point`] reads, and one of `savepoint:NAME` and `known_at:TIME` among it; these are bounds of commits, so `commit:N`
    /// doesn't go with them.
    fn from_str(text: &str) -> Result<Self> {
        let is_named = |part: &&str| part.starts_with(SAVEPOINT) || part.starts_with(KNOWN_AT);
        let (named, bounds): (Vec<&str>, Vec<&str>) =
            text.split(',').map(str::trim).partition(is_named);
        let point = match bounds.is_empty() {
            true => Point::LATEST,
            false => bounds.join(",").parse()?,
        };
        let named = match named.as_slice() {
            [] => return Ok(point.into()),
            [one] => *one,
            _ => {
                return Err(Error::invalid(format!(
                    "{text:?} names a commit twice: leave all but one of savepoint:NAME and known_at:TIME out"
                )));
            }
        };
        if point.commit.is_some() {
            return Err(Error::invalid(format!(
                "{text:?} names a commit twice: {named} stands for one, leave it or commit:N out"
            )));
        }
        match named.strip_prefix(SAVEPOINT) {
            Some(name) => {
                let name = name.trim();
                validate_savepoint_name(name)?;
                Ok(Self { point, ..Self::at_savepoint(name) })
            }
            None => {
                let time = parse_time(named[KNOWN_AT.len()..].trim())?;
                Ok(Self { point, ..Self::known_at(time) })
            }
        }
    }
}

impl Reader {
    /// The point that a written one is of this state: the savepoint or the commit that it stands for is looked for now.
    ///
    /// # Errors
    /// There is no such savepoint: the error names those that there are. Or what was known at the time can't be told: see
    /// [`Reader::commit_known_at`].
    pub async fn point(&self, named: &NamedPoint) -> Result<Point> {
        match named {
            NamedPoint { savepoint: Some(_), .. } => {
                named.among(self.name(), &self.inner.snapshot.savepoints().await?)
            }
            NamedPoint { known_at: Some(time), point, .. } => {
                let newest = self.inner.log.refresh().await?;
                let commit = self.commit_known_at(&newest, *time).await?;
                Ok(point.and(Point::at_commit(commit)))
            }
            NamedPoint { point, .. } => Ok(*point),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn written_points_are_read_as_they_are_told() {
        let read = |text: &str| text.parse::<NamedPoint>();
        for text in [
            "latest",
            "commit:5",
            "savepoint:a-b_1",
            "savepoint:x,time:2024-01-15T10:30:00Z",
            "known_at:2024-01-15T10:30:00.000001Z",
            "known_at:2024-01-15T10:30:00Z,version:3",
        ] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
        let both = read("version:3, savepoint:x").unwrap();
        assert_eq!(both.point, Point::at_version(3));
        assert_eq!(both.savepoint.as_deref(), Some("x"));
        assert!(!both.is_latest() && read("latest").unwrap().is_latest());
        for (text, why) in [
            ("savepoint:", "name of a savepoint"),
            ("savepoint:a b", "name of a savepoint"),
            ("savepoint:a,savepoint:b", "twice"),
            ("savepoint:a,commit:3", "leave it or commit:N out"),
            ("known_at:2024-01-15T10:30:00Z,commit:3", "leave it or commit:N out"),
            ("known_at:2024-01-15T10:30:00Z,savepoint:a", "twice"),
            ("known_at:2024-01-15", "is not a time"),
            ("savepoints:a", "savepoint:NAME"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let missing = NamedPoint::at_savepoint("x").among("users", &[]).unwrap_err();
        assert!(missing.to_string().contains("users has no savepoint \"x\": there is none"));
    }
}
