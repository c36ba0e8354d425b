//! What lies in a state, told from the tables' metadata alone; and in depth, what only the rows tell.

mod depth;

use std::collections::BTreeMap;

use alluvium_log::{DT, DataFile, Floor, OrderBy};
use alluvium_materializer::{ArchiveTotals, CompactReport, SharedFiles, TombstonesReport};
use alluvium_query::Basis;
use serde::Serialize;

pub use depth::DepthStats;

/// Days of event time that are told one by one at most: the last ones that have rows.
const TOLD_DAYS: usize = 30;
/// Days of event time, up to today, that growth is the average of.
const GROWTH_DAYS: i64 = 7;

/// The rows of one day of event time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DayStats {
    /// The UTC day.
    pub day: String,
    /// Rows of the log.
    pub rows: u64,
    /// Files of the log.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Figures of one state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StateStats {
    /// The state.
    pub state: String,
    /// What it is ordered by.
    pub order_by: OrderBy,
    /// The newest log commit.
    pub commit: i64,
    /// When the newest commit was made, in milliseconds since 1970; 0 when it is only known from a checkpoint.
    pub commit_time_ms: i64,
    /// Rows of the log.
    pub log_rows: u64,
    /// Files of the log.
    pub log_files: u64,
    /// Bytes of the log's files.
    pub log_bytes: u64,
    /// Those of them that forks, or the state that this one is a fork of, have too.
    pub log_shared_bytes: u64,
    /// UTC days that the log has rows of.
    pub log_days: u64,
    /// The first of those days.
    pub first_day: Option<String>,
    /// The last of those days.
    pub last_day: Option<String>,
    /// The snapshot table's version; -1 without a snapshot.
    pub snapshot_version: i64,
    /// The log commit up to which the snapshot folds.
    pub snapshot_commit: i64,
    /// Keys with a value in the snapshot; not known while it has runs.
    pub snapshot_live_keys: Option<u64>,
    /// Deleted keys that the snapshot remembers.
    pub snapshot_tombstones: u64,
    /// Those of them that the next run of the job forgets.
    pub tombstones_to_forget: u64,
    /// Changes at or below this event time are refused, in milliseconds since 1970; none while every one is taken.
    pub floor_ms: Option<i64>,
    /// Rows of the snapshot's files.
    pub snapshot_rows: u64,
    /// Base files of the snapshot.
    pub base_files: u64,
    /// Run files of the snapshot.
    pub run_files: u64,
    /// Bytes of the snapshot's files.
    pub snapshot_bytes: u64,
    /// Those of them that forks, or the state that this one is a fork of, have too.
    pub snapshot_shared_bytes: u64,
    /// Commits that the snapshot does not fold yet.
    pub tail_commits: i64,
    /// Rows of those commits.
    pub tail_rows: u64,
    /// How long ago the oldest file of them was written, in milliseconds.
    pub tail_age_ms: Option<i64>,
    /// When a file of the snapshot was last written, in milliseconds since 1970.
    pub snapshot_written_ms: Option<i64>,
    /// The greatest event time of a row, or a little more, in milliseconds since 1970; not known if a file does not tell.
    pub newest_event_ms: Option<i64>,
    /// What of the log lies in its archive, and is not counted above; nothing while nothing was ever moved there.
    pub archive: Option<ArchiveTotals>,
    /// Files that a compaction would merge now.
    pub files_to_merge: u64,
    /// Their bytes.
    pub bytes_to_merge: u64,
    /// The days that they are of.
    pub days_to_merge: u64,
    /// Rows by day, on the average of the last seven days of event time up to today.
    pub rows_per_day: u64,
    /// Bytes of the log's files by day, on the same average.
    pub bytes_per_day: u64,
    /// The last days of event time that have rows, oldest first: 30 at most.
    pub days: Vec<DayStats>,
    /// What only the rows tell; none unless it was asked for.
    pub depth: Option<DepthStats>,
}

impl StateStats {
    pub(crate) fn of(
        state: &str,
        basis: &Basis,
        (debt, forgetting): (&CompactReport, &TombstonesReport),
        shared: &SharedFiles,
        now_ms: i64,
    ) -> Self {
        let (log, snapshot) = (basis.log(), basis.snapshot());
        let days = days_of(log.files());
        let (rows_per_day, bytes_per_day) = growth(&days, now_ms);
        let tail = || log.files_after(snapshot.log_commit());
        let oldest_in_tail = tail().map(|file| file.add.modified_ms).min();
        let newest = |file: &std::sync::Arc<DataFile>| file.stats.max_event_time;
        let newest_event = log.files().map(newest).try_fold(i64::MIN, |a, b| Some(a.max(b?)));
        Self {
            state: state.to_owned(),
            order_by: basis.definition().order_by,
            commit: basis.commit(),
            commit_time_ms: log.timestamp_ms,
            log_rows: days.values().map(|day| day.rows).sum(),
            log_files: log.file_count() as u64,
            log_bytes: log.files().map(|file| file.add.size).sum(),
            log_shared_bytes: bytes_of(log.files(), |path| shared.has_of_log(path)),
            log_days: days.len() as u64,
            first_day: days.keys().next().cloned(),
            last_day: days.keys().next_back().cloned(),
            snapshot_version: snapshot.version(),
            snapshot_commit: snapshot.log_commit(),
            snapshot_live_keys: snapshot.live_keys(),
            snapshot_tombstones: snapshot.tombstones(),
            tombstones_to_forget: forgetting.forgotten,
            floor_ms: Floor::of(log).map(|floor| floor.time.div_euclid(1_000)),
            snapshot_rows: snapshot.rows(),
            base_files: snapshot.base().len() as u64,
            run_files: snapshot.runs().len() as u64,
            snapshot_bytes: snapshot.bytes(),
            snapshot_shared_bytes: bytes_of(snapshot.files(), |path| shared.has_of_snapshot(path)),
            tail_commits: basis.commit() - snapshot.log_commit(),
            tail_rows: tail().map(|file| file.stats.rows.unwrap_or(0)).sum(),
            tail_age_ms: oldest_in_tail.map(|oldest| (now_ms - oldest).max(0)),
            snapshot_written_ms: snapshot.files().map(|file| file.add.modified_ms).max(),
            newest_event_ms: newest_event
                .filter(|time| *time > i64::MIN)
                .map(|time| time.div_euclid(1_000)),
            archive: ArchiveTotals::of(log),
            files_to_merge: debt.files_removed,
            bytes_to_merge: debt.bytes_before,
            days_to_merge: debt.days.len() as u64,
            rows_per_day,
            bytes_per_day,
            days: last_days(days),
            depth: None,
        }
    }
}

/// The bytes of some files, those of them whose paths count.
fn bytes_of<'a>(
    files: impl Iterator<Item = &'a std::sync::Arc<DataFile>>,
    counts: impl Fn(&str) -> bool,
) -> u64 {
    files.filter(|file| counts(&file.add.path)).map(|file| file.add.size).sum()
}

fn days_of<'a>(
    files: impl Iterator<Item = &'a std::sync::Arc<DataFile>>,
) -> BTreeMap<String, DayStats> {
    let mut days: BTreeMap<String, DayStats> = BTreeMap::new();
    for file in files {
        let Some(day) = file.add.partition.get(DT).cloned().flatten() else { continue };
        let known = days.entry(day).or_insert_with_key(|day| DayStats {
            day: day.clone(),
            rows: 0,
            files: 0,
            bytes: 0,
        });
        known.rows += file.stats.rows.unwrap_or(0);
        known.files += 1;
        known.bytes += file.add.size;
    }
    days
}

/// Rows and bytes by day, on the average of the last days up to today.
fn growth(days: &BTreeMap<String, DayStats>, now_ms: i64) -> (u64, u64) {
    let day_text = |ms: i64| {
        chrono::DateTime::from_timestamp_millis(ms)
            .map_or_else(String::new, |time| time.format("%Y-%m-%d").to_string())
    };
    let (first, last) = (day_text(now_ms - (GROWTH_DAYS - 1) * 86_400_000), day_text(now_ms));
    let (mut rows, mut bytes) = (0, 0);
    for day in days.range(first..=last).map(|(_, day)| day) {
        rows += day.rows;
        bytes += day.bytes;
    }
    (rows / GROWTH_DAYS as u64, bytes / GROWTH_DAYS as u64)
}

fn last_days(days: BTreeMap<String, DayStats>) -> Vec<DayStats> {
    let skipped = days.len().saturating_sub(TOLD_DAYS);
    days.into_values().skip(skipped).collect()
}
