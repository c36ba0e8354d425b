//! What the log says about the rows of a file.

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
        let Some(value) =
            json.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok())
        else {
            return Self::default();
        };
        let (min, max) = (&value["minValues"], &value["maxValues"]);
        let text = |v: &serde_json::Value| v.as_str().map(str::to_owned);
        Self {
            rows: value["numRecords"].as_u64(),
            min_key: text(&min[crate::STATE_KEY]),
            // Engines cut long strings down; only some of them mark a cut maximum with a last character
            // that sorts high. A maximum that may have been cut is not a bound for us.
            max_key: text(&max[crate::STATE_KEY]).filter(|key| trusted || key.len() < 32),
            min_version: min[crate::VERSION].as_i64(),
            max_version: max[crate::VERSION].as_i64(),
            // Times in statistics are cut to milliseconds by some writers, so widen by one.
            min_event_time: time(&min[crate::EVENT_TIME]),
            max_event_time: time(&max[crate::EVENT_TIME]).map(|t| t.saturating_add(999)),
        }
    }
}

fn time(value: &serde_json::Value) -> Option<i64> {
    let text = value.as_str()?;
    chrono::DateTime::parse_from_rfc3339(text).ok().map(|t| t.timestamp_micros())
}
