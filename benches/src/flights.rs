//! Departures of a year, hour by hour in the order of time, as a state's changes.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use alluvium::format::{ChangeMapping, InputFormat, parse_fields};
use alluvium::{Import, ImportInput, ImportOptions, Store, parse_time};

use crate::Outcome;

/// The name of the state.
pub const AIRCRAFT: &str = "aircraft";
/// The columns of `nycflights13`, key and event time apart.
const FIELDS: &str = "year BIGINT, month BIGINT, day BIGINT, dep_time BIGINT, sched_dep_time BIGINT, dep_delay BIGINT, \
    arr_time BIGINT, sched_arr_time BIGINT, arr_delay BIGINT, carrier STRING, flight BIGINT, origin STRING, \
    dest STRING, air_time BIGINT, distance BIGINT, hour BIGINT, minute BIGINT";
const KEY_COLUMN: usize = 11;
const NULL: &str = "NA";

/// The departures of one hour.
#[derive(Debug, Clone)]
pub struct Hour {
    /// The hour, in microseconds since 1970.
    pub micros: i64,
    /// How many departures.
    pub rows: usize,
    csv: String,
}

/// Reads a file as `data/README.md` describes it, `.csv` or `.csv.gz`. Departures without a tail number have no key and
/// are left out.
pub fn read_hours(path: &Path) -> Outcome<Vec<Hour>> {
    let place = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = std::fs::File::open(path).map_err(place)?;
    let mut text = String::new();
    match path.extension().is_some_and(|extension| extension == "gz") {
        true => flate2::read::GzDecoder::new(file).read_to_string(&mut text).map_err(place)?,
        false => std::io::BufReader::new(file).read_to_string(&mut text).map_err(place)?,
    };
    let mut lines = text.lines();
    let header = lines.next().ok_or_else(|| format!("{} is empty", path.display()))?;
    let mut hours: BTreeMap<&str, (usize, String)> = BTreeMap::new();
    for (index, line) in lines.enumerate() {
        let mut cells = line.split(',');
        let key = cells.nth(KEY_COLUMN);
        let (Some(key), Some(time)) = (key, cells.next_back()) else {
            return Err(format!("{}: line {} has too few cells", path.display(), index + 2).into());
        };
        if key == NULL {
            continue;
        }
        let (rows, csv) = hours.entry(time).or_insert_with(|| (0, format!("{header}\n")));
        *rows += 1;
        csv.push_str(line);
        csv.push('\n');
    }
    // Times are written alike, so that their order is that of their texts.
    let hour = |(time, (rows, csv)): (&str, (usize, String))| {
        Ok(Hour { micros: parse_time(time)?, rows, csv })
    };
    hours.into_iter().map(hour).collect()
}

/// Appends the departures of an hour; the commit.
pub async fn append_hour(store: &Store, hour: &Hour) -> Outcome<i64> {
    let mapping = ChangeMapping {
        key: vec!["tailnum".to_owned()],
        event_time: Some("time_hour".to_owned()),
        null_tokens: vec![NULL.to_owned()],
        ..ChangeMapping::default()
    };
    let options = ImportOptions {
        format: Some(InputFormat::Csv),
        mapping,
        fields: Some(parse_fields(FIELDS)?),
        ..ImportOptions::default()
    };
    let read = Box::new(std::io::Cursor::new(hour.csv.clone()));
    let input = ImportInput::Stream { label: "an hour of departures".to_owned(), read };
    let report = Import::new(store, AIRCRAFT, vec![input]).options(options).run().await?;
    match report.last_commit.filter(|_| report.rows == hour.rows as u64 && report.commits == 1) {
        Some(commit) => Ok(commit),
        None => Err(format!("{} departures came in as {report:?}", hour.rows).into()),
    }
}
