//! What the log says about the rows of a file.

use std::borrow::Cow;

use serde::Deserialize;

/// Bounds of a file's rows. A bound that is not there is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileStats {
    /// How many rows.
    pub rows: Option<u64>,
    /// No key is less.
    pub min_key: Option<String>,
    /// No key is greater.
    pub max_key: Option<String>,
    /// No version is less.
    pub min_version: Option<i64>,
    /// No version is greater.
    pub max_version: Option<i64>,
    /// No event time is less, in microseconds.
    pub min_event_time: Option<i64>,
    /// No event time is greater, in microseconds.
    pub max_event_time: Option<i64>,
}

impl FileStats {
    /// Reads Delta's statistics; what is not understood is not known.
    ///
    /// `trusted` says that the file is ours, so that a long maximum key is whole or left out, never cut.
    pub fn parse(json: Option<&str>, trusted: bool) -> Self {
        let Some(json) = json else { return Self::default() };
        // Ours are as they should be, which is read fast; of others each value is looked at for itself.
        match serde_json::from_str::<Statistics<'_>>(json) {
            Ok(known) => Self::of(known, trusted),
            Err(_) => serde_json::from_str(json)
                .map(|value: serde_json::Value| Self::of(Statistics::of(&value), trusted))
                .unwrap_or_default(),
        }
    }

    fn of(known: Statistics<'_>, trusted: bool) -> Self {
        let (min, max) = (known.min_values, known.max_values);
        Self {
            rows: known.num_records,
            min_key: min.state_key.map(Cow::into_owned),
            // Engines cut long strings down; only some of them mark a cut maximum with a last character
            // that sorts high. A maximum that may have been cut is not a bound for us.
            max_key: max.state_key.filter(|key| trusted || key.len() < 32).map(Cow::into_owned),
            min_version: min.version,
            max_version: max.version,
            // Times in statistics are cut to milliseconds by some writers, so widen by one.
            min_event_time: min.event_time.as_deref().and_then(time),
            max_event_time: max.event_time.as_deref().and_then(time).map(|t| t.saturating_add(999)),
        }
    }
}

/// Delta's statistics as far as they are of use here.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Statistics<'a> {
    num_records: Option<u64>,
    #[serde(borrow)]
    min_values: Bounds<'a>,
    #[serde(borrow)]
    max_values: Bounds<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Bounds<'a> {
    #[serde(borrow)]
    state_key: Option<Cow<'a, str>>,
    version: Option<i64>,
    #[serde(borrow)]
    event_time: Option<Cow<'a, str>>,
}

impl<'a> Statistics<'a> {
    /// What is understood of statistics that have something else than expected in them.
    fn of(value: &'a serde_json::Value) -> Self {
        let bounds = |values: &'a serde_json::Value| Bounds {
            state_key: values[crate::STATE_KEY].as_str().map(Cow::Borrowed),
            version: values[crate::VERSION].as_i64(),
            event_time: values[crate::EVENT_TIME].as_str().map(Cow::Borrowed),
        };
        Self {
            num_records: value["numRecords"].as_u64(),
            min_values: bounds(&value["minValues"]),
            max_values: bounds(&value["maxValues"]),
        }
    }
}

fn time(text: &str) -> Option<i64> {
    chrono::DateTime::parse_from_rfc3339(text).ok().map(|t| t.timestamp_micros())
}
