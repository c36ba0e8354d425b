//! The floor of a state: the event time up to which nothing may be appended any more, so that tombstones below it can be let go of.
//!
//! A tombstone is kept because a change of its key that is older, and arrives later, must not bring the key back. Once such changes are
//! refused, the tombstone is needed no more. The floor is a transaction of the log's table: part of every state that a commit is
//! decided on, raised by a commit and never lowered.

use std::fmt;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, StringArray};
use arrow::datatypes::TimestampMicrosecondType;
use futures::TryStreamExt;

use crate::encode::MICROS_PER_DAY;
use crate::error::{Error, ErrorKind, Result};
use crate::log::Log;
use crate::read::{FooterCache, ReadSpec, RowFilter, read_file};
use crate::rows::{LogRows, row_name};
use crate::settings::MaintenanceSettings;
use crate::table::{Action, DataFile, TableState};

/// The application id under which the log's table records the floor, in microseconds since 1970. The snapshot's table records under it
/// the floor by which tombstones were left out of it.
pub const FLOOR_APP_ID: &str = "alluvium/floor";
/// The application id under which the log's table records the commit that raised the floor last.
pub const FLOOR_COMMIT_APP_ID: &str = "alluvium/floor/commit";

const MS_PER_DAY: i64 = MICROS_PER_DAY / 1_000;
/// The floor is raised in steps of this share of `tombstone_retention`, since files are rewritten each time.
const STEPS: i64 = 8;

/// Up to which event time nothing may be appended any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// Rows at or below this event time, in microseconds since 1970, are refused. It is the last instant of a UTC day, so that no file
    /// of ours lies on both sides of it.
    pub time: i64,
    /// The commit that raised it last: no later one has a row of ours at or below it.
    pub commit: i64,
}

/// A row at or below the floor was to be appended; the cause of an error of the kind [`ErrorKind::InvalidInput`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BelowFloor {
    /// The row, counted from 0 in what was appended at once or in a file of it, and its key.
    pub row: String,
    /// Its event time, in microseconds since 1970.
    pub time: i64,
    /// The floor, in microseconds since 1970.
    pub floor: i64,
}

impl fmt::Display for BelowFloor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: event_time {} is at or below the floor {}, up to which deleted keys may be forgotten already (tombstone_retention), so that an \
             older change could bring one back: leave the row out, or give it the time at which it is made known; nothing was written",
            self.row,
            shown(self.time),
            shown(self.floor)
        )
    }
}

impl std::error::Error for BelowFloor {}

impl BelowFloor {
    /// Whether this is why an append was refused.
    pub fn is_cause_of(error: &Error) -> bool {
        std::error::Error::source(error).is_some_and(|cause| cause.is::<Self>())
    }
}

/// A time for messages.
fn shown(time: i64) -> String {
    chrono::DateTime::from_timestamp_micros(time)
        .map_or_else(|| format!("{time} microseconds"), |time| time.to_rfc3339())
}

impl Floor {
    /// The floor of a state of the log's table; `None` where it was never raised.
    pub fn of(state: &TableState) -> Option<Self> {
        let time = state.transaction(FLOOR_APP_ID)?;
        // Without the second number no commit is known to be free of rows below it.
        Some(Self { time, commit: state.transaction(FLOOR_COMMIT_APP_ID).unwrap_or(0) })
    }

    /// The event time to which settings let the floor be raised at a time; `None` where tombstones are kept for ever.
    pub fn wanted(settings: &MaintenanceSettings, now_ms: i64) -> Option<i64> {
        let kept_ms = settings.tombstone_retention_ms?;
        let step_ms = (kept_ms / STEPS / MS_PER_DAY).max(1) * MS_PER_DAY;
        let first_kept_ms = now_ms.saturating_sub(kept_ms).div_euclid(step_ms) * step_ms;
        Some(first_kept_ms.saturating_mul(1_000).saturating_sub(1))
    }

    /// How it is recorded.
    pub fn actions(self) -> [Action; 2] {
        [(FLOOR_APP_ID, self.time), (FLOOR_COMMIT_APP_ID, self.commit)]
            .map(|(app_id, version)| Action::Transaction { app_id: app_id.to_owned(), version })
    }

    /// Whether a file may hold a row at or below it, by its bounds.
    pub fn may_exceed(self, file: &DataFile) -> bool {
        file.stats.min_event_time.is_none_or(|least| least <= self.time)
    }

    /// Refuses rows at or below it.
    pub(crate) fn check(self, rows: &LogRows) -> Result<()> {
        let times = rows.batch.column(2).as_primitive::<TimestampMicrosecondType>();
        self.check_times(rows.keys(), times.values())
    }

    /// The same for rows in the shape of a fold.
    pub(crate) fn check_folded(self, batch: &RecordBatch) -> Result<()> {
        let [keys, _, times, ..] = batch.columns() else {
            return Err(Error::internal("a batch lacks the columns of a fold"));
        };
        let times = times.as_primitive::<TimestampMicrosecondType>();
        self.check_times(keys.as_string(), times.values())
    }

    fn check_times(self, keys: &StringArray, times: &[i64]) -> Result<()> {
        let Some(row) = times.iter().position(|time| *time <= self.time) else { return Ok(()) };
        let cause = BelowFloor { row: row_name(keys, row), time: times[row], floor: self.time };
        Err(Error::new(ErrorKind::InvalidInput, cause.to_string()).with_source(cause))
    }
}

impl Log {
    /// Up to which event time nothing may be appended any more, as of the newest commit known here.
    pub fn floor(&self) -> Option<Floor> {
        Floor::of(&self.state())
    }

    /// Refuses files of which some row was brought in at or below the floor after it was raised, as only other engines do: a snapshot
    /// from which tombstones were left out can't tell whether such a row is older than a deletion.
    ///
    /// Who reads the log from its beginning, without a snapshot, has no need of this.
    pub(crate) async fn refuse_late(
        &self,
        state: &TableState,
        filter: &RowFilter,
        files: &[Arc<DataFile>],
    ) -> Result<()> {
        let (Some(floor), Some(after)) = (Floor::of(state), filter.after_commit) else {
            return Ok(());
        };
        let after = after.max(floor.commit);
        for file in files {
            if file.commits.span().high > after && floor.may_exceed(file) {
                self.refuse_late_rows(floor, file).await?;
            }
        }
        Ok(())
    }

    async fn refuse_late_rows(&self, floor: Floor, file: &Arc<DataFile>) -> Result<()> {
        let known = (file.add.path.clone(), floor.commit);
        if self.inner.above_floor.lock().contains(&known) {
            return Ok(());
        }
        let filter = RowFilter {
            after_commit: Some(floor.commit),
            max_event_time: Some(floor.time),
            ..RowFilter::default()
        };
        let spec = ReadSpec { payload: Vec::new(), filter };
        let mut rows = read_file(self.table(), file, &spec, &FooterCache::new(0)).await?;
        while let Some(batch) = rows.try_next().await? {
            if let Err(error) = floor.check_folded(&batch) {
                let cause = std::error::Error::source(&error);
                let cause = cause.and_then(|cause| cause.downcast_ref::<BelowFloor>());
                let (row, time) =
                    cause.map_or_else(Default::default, |cause| (cause.row.clone(), cause.time));
                return Err(Error::corrupt(format!(
                    "state {}: another engine wrote into {} what may bring a deleted key back, {row} of those with event_time {}: it is at or \
                     below the floor {}, which commit {} raised. Erase the key, forget it (erase, erase --forget), and append its row \
                     with a later event_time",
                    self.name(),
                    file.add.path,
                    shown(time),
                    shown(floor.time),
                    floor.commit
                )));
            }
        }
        self.inner.above_floor.lock().insert(known);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_floor_is_the_end_of_a_day_and_goes_in_steps() {
        let wanted = |retention: &str, now_ms: i64| {
            let settings = MaintenanceSettings::default().with("tombstone_retention", retention);
            Floor::wanted(&settings.unwrap(), now_ms)
        };
        assert_eq!(wanted("forever", i64::MAX), None);
        let day = |days: i64| days * MICROS_PER_DAY - 1;
        assert_eq!(wanted("7d", 100 * MS_PER_DAY), Some(day(93)));
        assert_eq!(wanted("7d", 100 * MS_PER_DAY + MS_PER_DAY / 2), Some(day(93)));
        assert_eq!(wanted("7d", 100 * MS_PER_DAY - 1), Some(day(92)));
        for offset in 0..8 {
            assert_eq!(wanted("64d", (1_000 + offset) * MS_PER_DAY), Some(day(936)));
        }
        assert_eq!(wanted("64d", 1_008 * MS_PER_DAY), Some(day(944)));
    }
}
