//! Which snapshots stay beyond the as-of window: the ones that were the newest at the marks of a grid of times.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{duration_text, parse_duration};
use crate::error::{Error, Result};

/// Levels of a grid at most.
const LEVELS: usize = 4;
/// Snapshots that a grid keeps at most: each one is a record and files of its own.
const MOST_MARKS: i64 = 2_000;
const LEAST_STEP_MS: i64 = 60_000;
const NONE: &str = "none";

/// One density of a grid: a mark each `every_ms`, for the last `for_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GridLevel {
    /// The time between two marks, in milliseconds; marks lie at multiples of it since 1970.
    pub every_ms: i64,
    /// For how long marks are kept, in milliseconds.
    pub for_ms: i64,
}

/// Up to four levels of marks, the densest first; written `10m:1d,1h:7d,1d:365d`, or `none`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotGrid {
    levels: [Option<GridLevel>; LEVELS],
}

impl SnapshotGrid {
    /// The levels, the densest first.
    pub fn levels(&self) -> impl Iterator<Item = GridLevel> + '_ {
        self.levels.iter().flatten().copied()
    }

    /// Whether it keeps nothing.
    pub fn is_none(&self) -> bool {
        self.levels().next().is_none()
    }

    /// Of snapshots that were made at these times, in ascending order, whether each was the newest one at some mark.
    pub fn marks(&self, made_ms: &[i64], now_ms: i64) -> Vec<bool> {
        let replaced = made_ms.iter().skip(1).copied().chain([i64::MAX]);
        let is_marked = |made: i64, replaced: i64| {
            self.levels().any(|level| {
                let from = made.max(now_ms.saturating_sub(level.for_ms).saturating_add(1));
                let past = from.rem_euclid(level.every_ms);
                let mark =
                    if past == 0 { from } else { from.saturating_add(level.every_ms - past) };
                mark < replaced && mark <= now_ms
            })
        };
        made_ms.iter().zip(replaced).map(|(made, replaced)| is_marked(*made, replaced)).collect()
    }

    /// Refuses a grid whose levels contradict each other.
    pub(super) fn validate(&self) -> Result<()> {
        let wrong = |why: String| Err(Error::invalid(format!("snapshot_grid ({self}): {why}")));
        let mut before: Option<GridLevel> = None;
        let mut marks: i64 = 0;
        for level in self.levels() {
            let GridLevel { every_ms, for_ms } = level;
            if every_ms < LEAST_STEP_MS {
                return wrong(format!("the least step is {}", duration_text(LEAST_STEP_MS)));
            }
            if for_ms < every_ms {
                return wrong(format!(
                    "no mark each {} lies within {}",
                    duration_text(every_ms),
                    duration_text(for_ms)
                ));
            }
            if before.is_some_and(|before| before.every_ms >= every_ms || before.for_ms >= for_ms) {
                return wrong(
                    "each level has longer steps, and is kept longer, than the one before"
                        .to_owned(),
                );
            }
            marks = marks.saturating_add(for_ms / every_ms);
            before = Some(level);
        }
        match marks > MOST_MARKS {
            true => wrong(format!("it keeps {marks} snapshots, at most {MOST_MARKS}")),
            false => Ok(()),
        }
    }
}

impl fmt::Display for SnapshotGrid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str(NONE);
        }
        let levels: Vec<String> = self
            .levels()
            .map(|level| {
                format!("{}:{}", duration_text(level.every_ms), duration_text(level.for_ms))
            })
            .collect();
        f.write_str(&levels.join(","))
    }
}

impl FromStr for SnapshotGrid {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut grid = Self::default();
        if text.trim() == NONE {
            return Ok(grid);
        }
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        if parts.len() > LEVELS {
            return Err(Error::invalid(format!("{text:?} has more than {LEVELS} levels")));
        }
        for (level, part) in grid.levels.iter_mut().zip(parts) {
            let (every, span) = part.split_once(':').ok_or_else(|| {
                Error::invalid(format!(
                    "{part:?} is no level of a grid: write STEP:SPAN, like 1h:7d, with commas between; or {NONE}"
                ))
            })?;
            let (every_ms, for_ms) = (parse_duration(every)?, parse_duration(span)?);
            *level = Some(GridLevel { every_ms, for_ms });
        }
        Ok(grid)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const MINUTE: i64 = 60_000;

    fn grid(text: &str) -> SnapshotGrid {
        text.parse().unwrap()
    }

    #[test]
    fn the_newest_snapshot_at_each_mark_is_kept() {
        let grid = grid("10m:1h,1h:1d");
        let minutes = [1, 8, 12, 25, 61, 119, 121, 170, 179];
        let made: Vec<i64> = minutes.iter().map(|minute| minute * MINUTE).collect();
        // At 180 minutes: marks each 10 minutes after 120, and each hour.
        let kept = grid.marks(&made, 180 * MINUTE);
        let kept: Vec<i64> =
            minutes.iter().zip(kept).filter(|(_, kept)| *kept).map(|(minute, _)| *minute).collect();
        assert_eq!(kept, [25, 119, 121, 170, 179]);
    }

    #[test]
    fn a_snapshot_of_long_ago_is_kept_while_it_is_the_newest_at_a_mark() {
        let grid = grid("1d:30d");
        let day = 24 * 60 * MINUTE;
        assert_eq!(grid.marks(&[5 * MINUTE], 400 * day), [true]);
        assert_eq!(grid.marks(&[5 * MINUTE, 371 * day + MINUTE], 400 * day), [true, true]);
        assert_eq!(grid.marks(&[5 * MINUTE, 370 * day], 400 * day), [false, true]);
        assert_eq!(SnapshotGrid::default().marks(&[1, 2], 9), [false, false]);
    }

    #[test]
    fn what_is_written_is_read_and_contradictions_are_refused() {
        for text in ["none", "1h:7d", "10m:1d,1h:7d,1d:365d"] {
            assert_eq!(grid(text).to_string(), text);
            grid(text).validate().unwrap();
        }
        for (text, rule) in [
            ("1s:1d", "the least step is 1m"),
            ("2d:1d", "no mark each 2d"),
            ("1h:7d,10m:1d", "each level"),
            ("1h:7d,1d:7d", "each level"),
            ("1m:7d", "at most 2000"),
        ] {
            let error = grid(text).validate().unwrap_err().to_string();
            assert!(error.contains(rule), "{text}: {error}");
        }
        for wrong in ["", "1h", "1h:", "1h:x", "1h:1d;2h:2d", "1m:1d,2m:2d,3m:3d,4m:4d,5m:5d"] {
            assert!(wrong.parse::<SnapshotGrid>().is_err(), "{wrong}");
        }
    }
}
