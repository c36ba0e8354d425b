//! Points as they are written down: bounds, and the name of a savepoint, which stands for the commit that it keeps.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use alluvium_log::{Error, ErrorKind, Result};
use alluvium_materializer::{Savepoint, validate_savepoint_name};

use crate::point::Point;
use crate::reader::Reader;

/// What leads the name of a savepoint.
const SAVEPOINT: &str = "savepoint:";

/// A point that may name a savepoint of the state that it is of: `savepoint:NAME` is the commit that it keeps, alone or with other
/// bounds. [`Reader::point`] tells which point that is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct NamedPoint {
    /// The bounds that are given as such.
    pub point: Point,
    /// The name of a savepoint whose commit is the bound of commits.
    pub savepoint: Option<String>,
}

impl NamedPoint {
    /// What a savepoint keeps.
    pub fn at_savepoint(name: &str) -> Self {
        Self { point: Point::LATEST, savepoint: Some(name.to_owned()) }
    }

    /// Whether it is the newest state.
    pub fn is_latest(&self) -> bool {
        self.savepoint.is_none() && self.point.is_latest()
    }

    /// The point that it is, by the savepoints of a state.
    ///
    /// # Errors
    /// There is no such savepoint: the error names those that there are.
    pub fn among(&self, state: &str, savepoints: &[Arc<Savepoint>]) -> Result<Point> {
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
        Self { point, savepoint: None }
    }
}

impl fmt::Display for NamedPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.savepoint {
            None => self.point.fmt(f),
            Some(name) if self.point.is_latest() => write!(f, "{SAVEPOINT}{name}"),
            Some(name) => write!(f, "{SAVEPOINT}{name},{}", self.point),
        }
    }
}

impl FromStr for NamedPoint {
    type Err = Error;

    /// Reads what [`Point`] reads, and `savepoint:NAME` among it; a savepoint is a bound of commits, so `commit:N` doesn't go with it.
    fn from_str(text: &str) -> Result<Self> {
        let (named, bounds): (Vec<&str>, Vec<&str>) =
            text.split(',').map(str::trim).partition(|part| part.starts_with(SAVEPOINT));
        let point = match bounds.is_empty() {
            true => Point::LATEST,
            false => bounds.join(",").parse()?,
        };
        let savepoint = match named.as_slice() {
            [] => None,
            [one] => Some(one[SAVEPOINT.len()..].trim().to_owned()),
            _ => return Err(Error::invalid(format!("{text:?} names a savepoint twice"))),
        };
        if let Some(name) = &savepoint {
            validate_savepoint_name(name)?;
            if point.commit.is_some() {
                return Err(Error::invalid(format!(
                    "{text:?} names a savepoint and a commit: a savepoint is the commit that it keeps, leave one of them out"
                )));
            }
        }
        Ok(Self { point, savepoint })
    }
}

impl Reader {
    /// The point that a written one is of this state: the savepoint that it names is looked for now.
    ///
    /// # Errors
    /// There is no such savepoint: the error names those that there are.
    pub async fn point(&self, named: &NamedPoint) -> Result<Point> {
        match named.savepoint {
            None => Ok(named.point),
            Some(_) => named.among(self.name(), &self.inner.snapshot.savepoints().await?),
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
        for text in
            ["latest", "commit:5", "savepoint:a-b_1", "savepoint:x,time:2024-01-15T10:30:00Z"]
        {
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
            ("savepoint:a,commit:3", "leave one of them out"),
            ("savepoints:a", "savepoint:NAME"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let missing = NamedPoint::at_savepoint("x").among("users", &[]).unwrap_err();
        assert!(missing.to_string().contains("users has no savepoint \"x\": there is none"));
    }
}
