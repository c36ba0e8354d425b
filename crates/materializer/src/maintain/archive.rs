//! Archiving: whole days that are over for long move from the log to its archive, where they are read as before.
//!
//! ```text
//! days past hot_days -> only those folded by every snapshot of the window -> moved by the log crate, killable at any instant
//! ```
//!
//! Only such days move that every snapshot holds which an answer of the as-of window may begin with: so reads of the newest state and
//! of that window never open the archive. A late row of an archived day stays in the log until its day is looked at again.
//!
//! What moved there at different times is merged afterwards, as the log's files of a day are (`merge.rs`).

mod merge;

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_log::{
    ArchiveOutcome, Archived, DT, DataFile, FileCommits, Log, MaintenanceSettings, Result,
    TableState,
};
use serde::{Deserialize, Serialize};

use super::compact::{CompactOptions, CompactReport};
use super::expire::foundation;
use super::plan::end_of_day_ms;
use crate::snapshot::Snapshot;

/// What an archiving moved, or would move.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveReport {
    /// Where the archive lies.
    pub place: String,
    /// The days, as the log's partitions name them.
    pub days: Vec<String>,
    /// Files moved.
    pub files: u64,
    /// Their rows.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Days past `hot_days` that stay in the log for now.
    pub days_kept: u64,
    /// Rows of commits up to this one may lie in the archive; 0 while every row is in the log.
    pub archived_commit: i64,
    /// Whether another process changed the log meanwhile, so that nothing was moved.
    pub gave_way: bool,
    /// Why no more was moved.
    pub reason: String,
    /// What was merged of the archive's files; `retention explain` does not open the archive, and tells nothing here.
    pub merged: CompactReport,
}

/// What is to move.
struct Choice {
    days: Vec<String>,
    files: Vec<Arc<DataFile>>,
    days_kept: u64,
}

/// Moves the days past `hot_days` that all snapshots of the as-of window hold, and merges the archive's files of each day where that is
/// asked for; with `dry_run`, only tells which.
#[tracing::instrument(level = "info", skip_all, fields(state = snapshot.log().name()), err(level = "debug"))]
pub async fn archive(
    snapshot: &Snapshot,
    merging: Option<&CompactOptions>,
    dry_run: bool,
) -> Result<ArchiveReport> {
    let log = snapshot.log();
    let _alone = log.lock_for_rewriting().await;
    let state = log.refresh().await?;
    let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
    let mut report = ArchiveReport { place: log.archive_place(&settings), ..Default::default() };
    let now_ms = log.clock().now_ms();
    let choice = match settings.hot_days_ms {
        None => Err("hot_days is not set: every day stays in the log".to_owned()),
        Some(hot_ms) => {
            let founded = foundation(snapshot, now_ms).await?;
            founded.map(|folded| (choose(&state, now_ms, hot_ms, folded), folded))
        }
    };
    let files = match choice {
        Ok((choice, folded)) => {
            report.count(&choice, folded);
            choice.files
        }
        Err(reason) => {
            report.reason = reason;
            Vec::new()
        }
    };
    report.archived_commit = archived_commit(&state);
    if dry_run {
        let commits = files.iter().map(|file| file.commits.span().high);
        report.archived_commit = commits.fold(report.archived_commit, i64::max);
        if let Some(options) = merging {
            report.merged = merge::merge(log, options, true).await?;
        }
        return Ok(report);
    }
    match settle(log, &state, &files).await? {
        ArchiveOutcome::Moved(state) => {
            report.archived_commit = archived_commit(&state);
            metrics::counter!(crate::metrics::ROWS_ARCHIVED).increment(report.rows);
        }
        ArchiveOutcome::GaveWay => {
            let (place, gave_way) = (report.place, true);
            let archived_commit = report.archived_commit;
            let reason =
                "another process changed the log meanwhile: it is tried again the next time";
            let reason = reason.to_owned();
            report =
                ArchiveReport { place, gave_way, archived_commit, reason, ..Default::default() };
        }
        ArchiveOutcome::Nothing => {}
    }
    if let Some(options) = merging.filter(|_| !report.gave_way) {
        report.merged = merge::merge(log, options, false).await?;
    }
    Ok(report)
}

/// Moves files, or only sees to it that the archive has what the log says, where there is or may be one.
pub(super) async fn settle(
    log: &Log,
    state: &TableState,
    files: &[Arc<DataFile>],
) -> Result<ArchiveOutcome> {
    let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
    match Archived::of(state).is_some() || settings.hot_days_ms.is_some() {
        true => log.move_to_archive(state, files).await,
        false => Ok(ArchiveOutcome::Nothing),
    }
}

fn archived_commit(state: &TableState) -> i64 {
    Archived::of(state).filter(|archived| archived.files > 0).map_or(0, |archived| archived.commit)
}

/// The days that are over for long, and of which a fold up to a commit has every row.
fn choose(state: &TableState, now_ms: i64, hot_ms: i64, folded: i64) -> Choice {
    let mut choice = Choice { days: Vec::new(), files: Vec::new(), days_kept: 0 };
    let mut days: BTreeMap<&str, Vec<Arc<DataFile>>> = BTreeMap::new();
    for file in state.files() {
        if let Some(Some(day)) = file.add.partition.get(DT) {
            days.entry(day).or_default().push(file.clone());
        }
    }
    for (day, files) in days {
        let Some(end_ms) = end_of_day_ms(day) else { continue };
        if end_ms.saturating_add(hot_ms) > now_ms {
            continue;
        }
        let may_move = |file: &Arc<DataFile>| {
            file.commits.span().high <= folded && tells_commits_anywhere(file)
        };
        if files.iter().all(may_move) {
            choice.days.push(day.to_owned());
            choice.files.extend(files);
        } else {
            choice.days_kept += 1;
        }
    }
    choice
}

/// Whether the commits of a file's rows are still known when it is part of another table. Where another engine has merged files they
/// are told by old commits of the log, until a compaction stamps the rows.
fn tells_commits_anywhere(file: &DataFile) -> bool {
    match &file.commits {
        FileCommits::All(span) => span.is_exact(),
        FileCommits::Stamped(_) => file.tells_commits(),
        FileCommits::ByAppend { .. } => false,
    }
}

impl ArchiveReport {
    fn count(&mut self, choice: &Choice, folded: i64) {
        self.days.clone_from(&choice.days);
        self.files = choice.files.len() as u64;
        self.rows = choice.files.iter().filter_map(|file| file.stats.rows).sum();
        self.bytes = choice.files.iter().map(|file| file.add.size).sum();
        self.days_kept = choice.days_kept;
        self.reason = match choice.days_kept {
            0 => "all other days are within hot_days".to_owned(),
            _ => format!(
                "of the days kept, some rows are of commits after {folded}, which the snapshots of the as_of_window do not all hold, or lie in files of another engine that are to be merged first"
            ),
        };
    }
}
