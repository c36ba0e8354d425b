//! The settings of a state's maintenance: kept in the log table's properties, so that every process obeys them.

mod archive;
mod bytes;
mod grid;
mod spans;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::table::TableMetadata;
pub use bytes::{bytes_text, parse_bytes};
pub use grid::{GridLevel, SnapshotGrid};
use spans::parse_interval;
pub use spans::{duration_text, parse_duration};

use spans::{DAY_MS, HOUR_MS};

/// Commits are kept at least this long: a handle that has not looked at the table for a sixth of it looks again before it
/// trusts what it knows.
pub const LEAST_COMMIT_RETENTION_MS: i64 = HOUR_MS;
/// Files are kept at least this long after their removal: the longest read and the longest write are shorter.
pub const LEAST_FILE_RETENTION_MS: i64 = HOUR_MS;

/// How long what is kept of a state. All spans are in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MaintenanceSettings {
    /// Versions of both tables can be read by their own number for this long: 30 days. Their commits stay that long.
    pub commit_retention_ms: i64,
    /// Files that are no longer part of a table stay for this long: 7 days. Longer than the longest read.
    pub file_retention_ms: i64,
    /// Files that no commit refers to stay for this long: 7 days. Longer than the longest epoch or import takes to commit.
    pub orphan_grace_ms: i64,
    /// Snapshots stay readable for this long, as bases of answers as of the past: 7 days.
    pub as_of_window_ms: i64,
    /// A day's files are merged into one sorted run when the day has been over for this long: 1 day.
    pub compact_after_ms: i64,
    /// The snapshot's files are read whole, whether they are as they were written, this often: every 7 days.
    pub check_every_ms: i64,
    /// Rows of whole days leave the log when the day has been over for this long and a snapshot holds what they came to; `None`:
    /// the log is kept for ever.
    pub log_retention_ms: Option<i64>,
    /// Snapshots that stay readable beyond the as-of window: none.
    pub snapshot_grid: SnapshotGrid,
    /// Whole days move to the archive when they have been over for this long and a snapshot holds what their rows came to; `None`:
    /// every day stays in the log.
    pub hot_days_ms: Option<i64>,
    /// Deleted keys are remembered for this long after their deletion happened, and changes that come later than that are refused;
    /// `None`: both for ever.
    pub tombstone_retention_ms: Option<i64>,
    /// Bytes of a file that a compaction or a materialization writes, about and at most; `None`: as many rows as the process puts into one.
    pub target_file_bytes: Option<u64>,
    /// The URI under which archives lie, this one in `<state>/archive`; `None`: the store itself.
    pub archive: Option<String>,
}

impl Default for MaintenanceSettings {
    fn default() -> Self {
        Self {
            commit_retention_ms: 30 * DAY_MS,
            file_retention_ms: 7 * DAY_MS,
            orphan_grace_ms: 7 * DAY_MS,
            as_of_window_ms: 7 * DAY_MS,
            compact_after_ms: DAY_MS,
            check_every_ms: 7 * DAY_MS,
            log_retention_ms: None,
            snapshot_grid: SnapshotGrid::default(),
            hot_days_ms: None,
            tombstone_retention_ms: None,
            target_file_bytes: None,
            archive: None,
        }
    }
}

/// A setting: its name for people, and the table property that carries it.
///
/// The first two are Delta's own, so that other engines on the table obey them too.
const NAMES: [(&str, &str); 6] = [
    ("commit_retention", "delta.logRetentionDuration"),
    ("file_retention", "delta.deletedFileRetentionDuration"),
    ("orphan_grace", "alluvium.orphanGrace"),
    ("as_of_window", "alluvium.asOfWindow"),
    ("compact_after", "alluvium.compactAfter"),
    ("check_every", "alluvium.checkEvery"),
];
/// The setting that may be without an end, and how that is written.
const LOG_RETENTION: (&str, &str) = ("log_retention", "alluvium.logRetention");
const FOREVER: &str = "forever";
/// The other one.
const HOT_DAYS: (&str, &str) = ("hot_days", "alluvium.hotDays");
/// A third one.
const TOMBSTONE_RETENTION: (&str, &str) = ("tombstone_retention", "alluvium.tombstoneRetention");
/// How large files are, and how it is written that nothing says so. Delta's own, so that another engine's `OPTIMIZE` obeys it too.
const TARGET_FILE_SIZE: (&str, &str) = ("target_file_size", "delta.targetFileSize");
const ANY_SIZE: &str = "default";
/// Smaller ones cost more in requests and footers than they save.
const LEAST_FILE_BYTES: u64 = 64 * 1024;
/// Where archives lie, and how the store itself is written.
const ARCHIVE: (&str, &str) = ("archive", "alluvium.archive");
const IN_THE_STORE: &str = "default";
/// The setting that is no span.
const SNAPSHOT_GRID: (&str, &str) = ("snapshot_grid", "alluvium.snapshotGrid");

impl MaintenanceSettings {
    fn fields(&mut self) -> [&mut i64; 6] {
        [
            &mut self.commit_retention_ms,
            &mut self.file_retention_ms,
            &mut self.orphan_grace_ms,
            &mut self.as_of_window_ms,
            &mut self.compact_after_ms,
            &mut self.check_every_ms,
        ]
    }

    /// The settings by name, each as it would be given to [`MaintenanceSettings::with`].
    pub fn named(&self) -> BTreeMap<&'static str, String> {
        let mut copy = self.clone();
        let values = copy.fields().map(|value| duration_text(*value));
        let mut named: BTreeMap<_, _> = NAMES.iter().map(|(name, _)| *name).zip(values).collect();
        let kept = self.log_retention_ms.map_or_else(|| FOREVER.to_owned(), duration_text);
        named.insert(LOG_RETENTION.0, kept);
        named.insert(SNAPSHOT_GRID.0, self.snapshot_grid.to_string());
        let hot = self.hot_days_ms.map_or_else(|| FOREVER.to_owned(), duration_text);
        named.insert(HOT_DAYS.0, hot);
        let kept = self.tombstone_retention_ms.map_or_else(|| FOREVER.to_owned(), duration_text);
        named.insert(TOMBSTONE_RETENTION.0, kept);
        let size = self.target_file_bytes.map_or_else(|| ANY_SIZE.to_owned(), bytes_text);
        named.insert(TARGET_FILE_SIZE.0, size);
        let place = self.archive.clone().unwrap_or_else(|| IN_THE_STORE.to_owned());
        named.insert(ARCHIVE.0, place);
        named
    }

    /// The settings with one of them changed by name; a span is written `90s`, `15m`, `36h`, `30d` or `4w`, and for
    /// `log_retention`, `hot_days` and `tombstone_retention` also `forever`; `archive` is a URI or `default`; for `snapshot_grid` see [`SnapshotGrid`].
    pub fn with(mut self, name: &str, value: &str) -> Result<Self> {
        let span = |value: &str| {
            parse_duration(value).map_err(|error| error.context(format!("{name} can't be set")))
        };
        let endless = |value: &str| match value.trim() == FOREVER {
            true => Ok(None),
            false => span(value).map(Some),
        };
        if name == LOG_RETENTION.0 {
            self.log_retention_ms = endless(value)?;
            return Ok(self);
        }
        if name == HOT_DAYS.0 {
            self.hot_days_ms = endless(value)?;
            return Ok(self);
        }
        if name == TOMBSTONE_RETENTION.0 {
            self.tombstone_retention_ms = endless(value)?;
            return Ok(self);
        }
        if name == TARGET_FILE_SIZE.0 {
            let size = |value| {
                parse_bytes(value).map_err(|error| error.context(format!("{name} can't be set")))
            };
            self.target_file_bytes = match value.trim() {
                ANY_SIZE => None,
                value => Some(size(value)?),
            };
            return Ok(self);
        }
        if name == ARCHIVE.0 {
            let value = value.trim().trim_end_matches('/');
            self.archive = (value != IN_THE_STORE).then(|| value.to_owned());
            return Ok(self);
        }
        if name == SNAPSHOT_GRID.0 {
            self.snapshot_grid = value.parse()?;
            return Ok(self);
        }
        let known = NAMES.iter().position(|(known, _)| *known == name);
        match known.and_then(|index| self.fields().into_iter().nth(index)) {
            Some(field) => *field = span(value)?,
            None => {
                let mut names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
                names.extend([
                    LOG_RETENTION.0,
                    SNAPSHOT_GRID.0,
                    HOT_DAYS.0,
                    TOMBSTONE_RETENTION.0,
                    TARGET_FILE_SIZE.0,
                    ARCHIVE.0,
                ]);
                return Err(Error::invalid(format!(
                    "there is no setting {name:?}: the settings are {}",
                    names.join(", ")
                )));
            }
        }
        Ok(self)
    }

    /// Refuses settings that contradict each other, naming the rule that they break.
    pub fn validate(&self) -> Result<()> {
        let text = duration_text;
        let least = |name: &str, value: i64, least: i64, why: &str| match value < least {
            true => Err(Error::invalid(format!(
                "{name} is {}: at least {}, because {why}",
                text(value),
                text(least)
            ))),
            false => Ok(()),
        };
        let within_commits = |name: &str, value: i64| match value > self.commit_retention_ms {
            true => Err(Error::invalid(format!(
                "{name} ({}) is longer than commit_retention ({}): which files a version has is known only while its commit is kept",
                text(value),
                text(self.commit_retention_ms)
            ))),
            false => Ok(()),
        };
        let idle = "idle handles look again within that time";
        least("commit_retention", self.commit_retention_ms, LEAST_COMMIT_RETENTION_MS, idle)?;
        let longest = "a read or a write may take that long";
        least("file_retention", self.file_retention_ms, LEAST_FILE_RETENTION_MS, longest)?;
        least("orphan_grace", self.orphan_grace_ms, LEAST_FILE_RETENTION_MS, longest)?;
        least("as_of_window", self.as_of_window_ms, 0, "it is a span")?;
        least("compact_after", self.compact_after_ms, 0, "it is a span")?;
        least("check_every", self.check_every_ms, 0, "it is a span")?;
        within_commits("file_retention", self.file_retention_ms)?;
        within_commits("as_of_window", self.as_of_window_ms)?;
        if let Some(bytes) = self.target_file_bytes.filter(|bytes| *bytes < LEAST_FILE_BYTES) {
            return Err(Error::invalid(format!(
                "target_file_size is {}: at least {}, because each file is a request and a footer of its own",
                bytes_text(bytes),
                bytes_text(LEAST_FILE_BYTES)
            )));
        }
        self.snapshot_grid.validate()?;
        self.validate_archive()?;
        self.validate_tombstone_retention()?;
        self.validate_log_retention()
    }

    fn validate_tombstone_retention(&self) -> Result<()> {
        let Some(kept_ms) = self.tombstone_retention_ms else { return Ok(()) };
        let needed = [
            (
                "as_of_window",
                self.as_of_window_ms,
                "a deletion is remembered for as long as the state before it is promised",
            ),
            (
                "compact_after",
                self.compact_after_ms,
                "changes of a day are still expected until it is merged, and would be refused",
            ),
        ];
        match needed.into_iter().find(|(_, span, _)| kept_ms < *span) {
            Some((name, span, why)) => Err(Error::invalid(format!(
                "tombstone_retention ({}) is shorter than {name} ({}): {why}",
                duration_text(kept_ms),
                duration_text(span)
            ))),
            None => Ok(()),
        }
    }

    fn validate_log_retention(&self) -> Result<()> {
        let Some(kept_ms) = self.log_retention_ms else { return Ok(()) };
        let needed = [
            (
                "as_of_window",
                self.as_of_window_ms,
                "answers as of its points are a snapshot and the log rows after it",
            ),
            ("file_retention", self.file_retention_ms, "the longest read may need its rows"),
            ("compact_after", self.compact_after_ms, "a day would go before it is merged"),
        ];
        match needed.into_iter().find(|(_, span, _)| kept_ms < *span) {
            Some((name, span, why)) => Err(Error::invalid(format!(
                "log_retention ({}) is shorter than {name} ({}): {why}",
                duration_text(kept_ms),
                duration_text(span)
            ))),
            None => Ok(()),
        }
    }

    /// How long the files of a snapshot stay after it has been replaced: as long as either reason asks for.
    pub fn snapshot_retention_ms(&self) -> i64 {
        self.file_retention_ms.max(self.as_of_window_ms)
    }

    /// Reads the settings of a table; a property that isn't there has its default.
    pub fn from_metadata(metadata: &TableMetadata) -> Result<Self> {
        let mut settings = Self::default();
        for ((_, property), field) in NAMES.iter().zip(settings.fields()) {
            if let Some(span) = interval(metadata, property)? {
                *field = span;
            }
        }
        settings.log_retention_ms = interval(metadata, LOG_RETENTION.1)?;
        settings.hot_days_ms = interval(metadata, HOT_DAYS.1)?;
        settings.tombstone_retention_ms = interval(metadata, TOMBSTONE_RETENTION.1)?;
        settings.target_file_bytes = file_size(metadata)?;
        settings.archive = metadata.properties.get(ARCHIVE.1).cloned();
        if let Some(text) = metadata.properties.get(SNAPSHOT_GRID.1) {
            settings.snapshot_grid = text.parse().map_err(|error: Error| {
                Error::corrupt(format!("the property {}", SNAPSHOT_GRID.1)).with_source(error)
            })?;
        }
        Ok(settings)
    }

    /// Puts the settings that differ from the defaults into a table's metadata; takes the others out.
    pub fn write_to(mut self, metadata: &mut TableMetadata) {
        let mut defaults = Self::default();
        for (((_, property), value), default) in
            NAMES.iter().zip(self.fields()).zip(defaults.fields())
        {
            put_interval(metadata, property, (value != default).then_some(*value));
        }
        put_interval(metadata, LOG_RETENTION.1, self.log_retention_ms);
        put_interval(metadata, HOT_DAYS.1, self.hot_days_ms);
        put_interval(metadata, TOMBSTONE_RETENTION.1, self.tombstone_retention_ms);
        match self.target_file_bytes {
            None => metadata.properties.remove(TARGET_FILE_SIZE.1),
            Some(bytes) => {
                metadata.properties.insert(TARGET_FILE_SIZE.1.to_owned(), bytes.to_string())
            }
        };
        match self.archive.take() {
            None => metadata.properties.remove(ARCHIVE.1),
            Some(uri) => metadata.properties.insert(ARCHIVE.1.to_owned(), uri),
        };
        let (_, property) = SNAPSHOT_GRID;
        match self.snapshot_grid.is_none() {
            true => metadata.properties.remove(property),
            false => {
                metadata.properties.insert(property.to_owned(), self.snapshot_grid.to_string())
            }
        };
    }
}

/// The size of files that a table's properties hold, if one is there; other engines may write it with a unit.
fn file_size(metadata: &TableMetadata) -> Result<Option<u64>> {
    let Some(text) = metadata.properties.get(TARGET_FILE_SIZE.1) else { return Ok(None) };
    parse_bytes(text).map(Some).map_err(|error| {
        Error::corrupt(format!("the property {}", TARGET_FILE_SIZE.1)).with_source(error)
    })
}

/// The span that a property holds, if it is there.
fn interval(metadata: &TableMetadata, property: &str) -> Result<Option<i64>> {
    let Some(text) = metadata.properties.get(property) else { return Ok(None) };
    parse_interval(text).map(Some).ok_or_else(|| {
        Error::corrupt(format!(
            "the property {property} is {text:?}, not an interval like \"interval 30 days\""
        ))
    })
}

fn put_interval(metadata: &mut TableMetadata, property: &str, span_ms: Option<i64>) {
    match span_ms {
        None => metadata.properties.remove(property),
        Some(span_ms) => metadata
            .properties
            .insert(property.to_owned(), format!("interval {span_ms} milliseconds")),
    };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;
    use crate::error::ErrorKind;

    fn metadata() -> TableMetadata {
        TableMetadata {
            id: "t".to_owned(),
            schema: Arc::new(arrow::datatypes::Schema::empty()),
            partition_columns: Vec::new(),
            properties: BTreeMap::from([("delta.appendOnly".to_owned(), "true".to_owned())]),
            created_ms: None,
        }
    }

    #[test]
    fn settings_survive_the_properties_of_a_table() {
        let mut table = metadata();
        let settings = MaintenanceSettings::default()
            .with("commit_retention", "90d")
            .and_then(|settings| settings.with("compact_after", "36h"))
            .and_then(|settings| settings.with("log_retention", "52w"))
            .and_then(|settings| settings.with("snapshot_grid", "1h:7d,1d:52w"))
            .and_then(|settings| settings.with("hot_days", "30d"))
            .and_then(|settings| settings.with("tombstone_retention", "90d"))
            .and_then(|settings| settings.with("target_file_size", "128 MiB"))
            .and_then(|settings| settings.with("archive", "/cold/"))
            .unwrap();
        settings.clone().write_to(&mut table);
        assert_eq!(MaintenanceSettings::from_metadata(&table).unwrap(), settings);
        assert_eq!(settings.named()["commit_retention"], "90d");
        assert_eq!(settings.named()["compact_after"], "36h");
        assert_eq!(settings.named()["log_retention"], "364d");
        assert_eq!(settings.named()["archive"], "/cold");
        assert_eq!(settings.named()["target_file_size"], "128MiB");
        assert_eq!(settings.named()["tombstone_retention"], "90d");
        let endless = settings.with("log_retention", "forever").unwrap();
        assert_eq!(endless.named()["log_retention"], "forever");
        endless.clone().write_to(&mut table);
        assert_eq!(MaintenanceSettings::from_metadata(&table).unwrap(), endless);
        MaintenanceSettings::default().write_to(&mut table);
        assert_eq!(table, metadata(), "defaults are not written, and nothing else is touched");
    }

    #[test]
    fn intervals_of_other_engines_are_read() {
        let mut table = metadata();
        for (text, ms) in [("interval 30 days", 30 * DAY_MS), ("INTERVAL 1 week", 7 * DAY_MS)] {
            table.properties.insert("delta.logRetentionDuration".to_owned(), text.to_owned());
            assert_eq!(MaintenanceSettings::from_metadata(&table).unwrap().commit_retention_ms, ms);
        }
        table.properties.insert("delta.logRetentionDuration".to_owned(), "for ever".to_owned());
        assert_eq!(
            MaintenanceSettings::from_metadata(&table).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
    }

    #[test]
    fn contradictions_are_refused_with_the_rule_that_they_break() {
        let broken = [
            ("commit_retention", "5m", "idle handles"),
            ("commit_retention", "1d", "file_retention (7d) is longer than commit_retention (1d)"),
            ("file_retention", "60d", "file_retention (60d)"),
            ("file_retention", "1m", "a read or a write"),
            ("orphan_grace", "0s", "a read or a write"),
            ("as_of_window", "5w", "as_of_window (35d)"),
            ("snapshot_grid", "1h:7d,10m:1d", "each level"),
            ("log_retention", "6d", "log_retention (6d) is shorter than as_of_window (7d)"),
            ("hot_days", "6d", "hot_days (6d) is shorter than as_of_window (7d)"),
            (
                "tombstone_retention",
                "6d",
                "tombstone_retention (6d) is shorter than as_of_window (7d)",
            ),
            ("target_file_size", "63KiB", "at least 64KiB"),
            ("archive", "memory://a", "what lies in memory"),
            ("archive", "cold", "give an absolute path"),
        ];
        for (name, value, rule) in broken {
            let settings = MaintenanceSettings::default().with(name, value).unwrap();
            let error = settings.validate().unwrap_err().to_string();
            assert!(error.contains(rule), "{name}={value}: {error}");
        }
        MaintenanceSettings::default().validate().unwrap();
        assert!(MaintenanceSettings::default().with("retention_of_commits", "1d").is_err());
        for wrong in ["", "7", "d", "-1d", "1.5d", "9999999999999999999d", "7 fortnights"] {
            assert!(MaintenanceSettings::default().with("file_retention", wrong).is_err());
            assert!(MaintenanceSettings::default().with("log_retention", wrong).is_err());
        }
    }
}
