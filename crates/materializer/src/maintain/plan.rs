//! Which of a day's files are worth merging: a pure choice from what the log's metadata says.
//!
//! Files that one merge has written are a *run*: sorted by key across all of them, and treated as one. Runs are taken from the
//! smallest up, each as long as it is not much larger than what has been taken so far. So a row is rewritten only when
//! the run that it is in grows by a fixed share, and the bytes written over a long time are in proportion to those appended. Sizes are
//! counted in rows, which a merge does not change: what was merged once is not taken again before more has come.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_log::{DT, DataFile, PAGE_ROWS, TAG_RUN};

use crate::inputs::open_bytes;

/// In a day that is over, a run is rewritten when there is at least this share of it to merge: one fourth.
const CLOSED_GROWTH: u64 = 4;
/// While a day is written, runs only ever double.
const OPEN_GROWTH: u64 = 1;
/// Runs that a day which is still written may have before any are merged.
const OPEN_RUNS: usize = 64;
/// Decoded bytes per byte of a file, about.
const EXPANSION: u64 = 6;
/// Decoded bytes of an open input of another engine's at most, about: a batch and a page.
const OPEN_INPUT_BYTES: u64 = 16 * 1024 * 1024;
const DAY_MS: i64 = 86_400_000;

/// Files with one sorted sequence of rows.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// In the order of their keys.
    pub(crate) files: Vec<Arc<DataFile>>,
    pub(crate) rows: u64,
}

impl Run {
    fn input_bytes(&self) -> u64 {
        let open = |file: &Arc<DataFile>| match file.is_sorted() {
            // So much when it is read a page at a time.
            true => open_bytes(file, Some(PAGE_ROWS)),
            false => (file.add.size * EXPANSION).min(OPEN_INPUT_BYTES),
        };
        self.files.iter().map(open).max().unwrap_or(0)
    }
}

/// What to merge of one day.
#[derive(Debug, Clone)]
pub(crate) struct DayPlan {
    /// The value of the partition.
    pub(crate) day: String,
    pub(crate) runs: Vec<Run>,
    /// Rows may be there twice, and are to be there once afterwards.
    pub(crate) doubles: bool,
}

/// When merging is worth it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) now_ms: i64,
    /// A day is over so long after its end.
    pub(crate) compact_after_ms: i64,
    /// Only rows of commits up to this one: later ones are still to be folded, and are found faster in small files.
    pub(crate) up_to_commit: i64,
    /// Decoded bytes of all open inputs at most.
    pub(crate) input_bytes: u64,
}

/// The next merge of each day of some files that is worth one, oldest day first.
pub(crate) fn plan<'a>(
    all: impl Iterator<Item = &'a Arc<DataFile>>,
    rules: &Rules,
) -> Vec<DayPlan> {
    let mut days: BTreeMap<&str, Vec<Arc<DataFile>>> = BTreeMap::new();
    for file in all {
        if let Some(Some(day)) = file.add.partition.get(DT)
            && file.stats.rows.is_some()
        {
            days.entry(day).or_default().push(file.clone());
        }
    }
    days.into_iter().filter_map(|(day, files)| plan_day(day, files, rules)).collect()
}

fn plan_day(day: &str, files: Vec<Arc<DataFile>>, rules: &Rules) -> Option<DayPlan> {
    let is_over = is_over(day, rules)?;
    let is_settled = |file: &Arc<DataFile>| {
        file.commits.are_exact() && file.commits.span().high <= rules.up_to_commit
    };
    let is_doubled = files.iter().any(|file| file.may_double_rows());
    let (mut settled, unsettled): (Vec<_>, Vec<_>) = files.into_iter().partition(is_settled);
    let (runs, doubles) = if !is_doubled {
        (choose(runs_of(settled), is_over, rules.input_bytes), false)
    } else if unsettled.iter().all(|file| file.is_as_appended()) {
        // What was appended and never rewritten is nowhere else.
        settled.retain(|file| !file.is_as_appended());
        choose_doubled(runs_of(settled), rules.input_bytes)
    } else {
        settled.retain(|file| !file.may_double_rows());
        (choose(runs_of(settled), is_over, rules.input_bytes), false)
    };
    (!runs.is_empty()).then(|| DayPlan { day: day.to_owned(), runs, doubles })
}

/// When a day of the log's partitions is over; `None` when it is no day.
pub(super) fn end_of_day_ms(day: &str) -> Option<i64> {
    let date = chrono::NaiveDate::parse_from_str(day, "%Y-%m-%d").ok()?;
    Some(date.and_hms_opt(0, 0, 0)?.and_utc().timestamp_millis() + DAY_MS)
}

/// Whether a day is over; `None` when it is no day.
fn is_over(day: &str, rules: &Rules) -> Option<bool> {
    Some(end_of_day_ms(day)?.saturating_add(rules.compact_after_ms) <= rules.now_ms)
}

/// Files by the run that they are part of, smallest run first.
fn runs_of(files: Vec<Arc<DataFile>>) -> Vec<Run> {
    let mut parts: BTreeMap<(String, String), Arc<DataFile>> = BTreeMap::new();
    for file in files {
        let path = file.add.path.clone();
        let place = match file.add.tags.get(TAG_RUN).and_then(|tag| tag.split_once('/')) {
            Some((run, part)) => (run.to_owned(), part.to_owned()),
            None => (path, String::new()),
        };
        parts.insert(place, file);
    }
    let mut runs: Vec<(String, Run)> = Vec::new();
    for ((name, _), file) in parts {
        let rows = file.stats.rows.unwrap_or(0);
        match runs.last_mut() {
            Some((known, run)) if *known == name => {
                run.rows += rows;
                run.files.push(file);
            }
            _ => runs.push((name, Run { files: vec![file], rows })),
        }
    }
    runs.sort_by_key(|(_, run)| run.rows);
    runs.into_iter().map(|(_, run)| run).collect()
}

/// The runs to merge, from the smallest up; none when it is not worth it.
fn choose(runs: Vec<Run>, is_over: bool, input_bytes: u64) -> Vec<Run> {
    if !is_over && runs.len() < OPEN_RUNS {
        return Vec::new();
    }
    let growth = if is_over { CLOSED_GROWTH } else { OPEN_GROWTH };
    let (mut taken, mut rows, mut bytes): (Vec<Run>, u64, u64) = (Vec::new(), 0, 0);
    for run in runs {
        let more = run.input_bytes();
        let is_too_large = run.rows > rows.saturating_mul(growth) || bytes + more > input_bytes;
        if !taken.is_empty() && is_too_large && (taken.len() > 1 || run.rows > rows * growth) {
            break;
        }
        rows += run.rows;
        bytes += more;
        taken.push(run);
    }
    let tells = |run: &Run| run.files.iter().all(|file| file.tells_commits());
    // A file of another engine is rewritten alone too, so that it says itself what only old commits tell.
    if taken.len() > 1 || (is_over && !taken.iter().all(tells)) { taken } else { Vec::new() }
}

/// The runs to merge of a day in which rows may be twice: all of them at once. Where these are more than fit into memory, first some
/// of those that hold each row once.
fn choose_doubled(runs: Vec<Run>, input_bytes: u64) -> (Vec<Run>, bool) {
    let all: u64 = runs.iter().map(Run::input_bytes).sum();
    let once = |run: &Run| !run.files.iter().any(|file| file.may_double_rows());
    let single = runs.iter().filter(|run| once(run)).count();
    if all <= input_bytes || single < 2 {
        return (runs, true);
    }
    let mut bytes = 0;
    let mut taken = Vec::new();
    for run in runs.into_iter().filter(once) {
        bytes += run.input_bytes();
        if taken.len() > 1 && bytes > input_bytes {
            break;
        }
        taken.push(run);
    }
    (taken, false)
}

#[cfg(test)]
mod tests;
