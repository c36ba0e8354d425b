//! Merging the archive's files: what came to a day there at different times becomes one sorted run, with every row and its commit.
//!
//! ```text
//! files of the version that the log names -> merged, a day at a time -> one commit of the archive -> one of the log names that version
//! ```
//!
//! It is a move without files: nothing that is read changes before the commit of the log, and whoever moves, erases or drops days
//! meanwhile makes it give way.

use std::collections::HashMap;

use alluvium_log::{ArchiveContents, ArchiveOutcome, Archived, FileAdd, Log, Result};

use crate::maintain::compact::{CompactOptions, CompactReport, merge_day, rules};
use crate::maintain::plan::{DayPlan, Rules, plan};

/// Days whose files are replaced by one commit of the archive, and of the log.
const DAYS_AT_ONCE: usize = 16;
/// Commits in one run of the job at most.
const MAX_PASSES: usize = 1_000;

/// Merges the files of archived days that are worth it; makes no commit where there is nothing to gain. Whoever calls it is the only
/// rewriter of this process.
pub(super) async fn merge(
    log: &Log,
    options: &CompactOptions,
    dry_run: bool,
) -> Result<CompactReport> {
    let mut report = CompactReport::default();
    for _ in 0..MAX_PASSES {
        let state = log.refresh().await?;
        if Archived::of(&state).is_none() {
            break;
        }
        let Some(archive) = log.archive_to_merge(&state).await? else { break };
        // Every row there is folded, and every day over.
        let rules = Rules { up_to_commit: i64::MAX, ..rules(log, options)? };
        let plans = plan(archive.files.iter(), &rules);
        if dry_run {
            plans.iter().for_each(|day| report.count(day, &[]));
            break;
        }
        let Some(days) = plans.get(..plans.len().min(DAYS_AT_ONCE)).filter(|days| !days.is_empty())
        else {
            break;
        };
        let mut merged = Vec::with_capacity(days.len());
        for day in days {
            let added = merge_day(log, &archive.table, &state, day, options).await;
            match added {
                Ok(added) => merged.push((day, added)),
                Err(error) => {
                    discard(&archive, &merged).await;
                    let place = format!("merging {} of the archive of {}", day.day, log.name());
                    return Err(error.context(place));
                }
            }
        }
        match log.merge_archived(&state, &replaced(&merged)).await? {
            ArchiveOutcome::Moved(_) => {
                merged.iter().for_each(|(day, added)| report.count(day, added));
                // One for all of these days.
                report.commits = report.commits.saturating_sub(merged.len() as u64) + 1;
            }
            // Another process changed log or archive meanwhile: it is tried again the next time.
            ArchiveOutcome::GaveWay | ArchiveOutcome::Nothing => {
                report.gave_way = true;
                break;
            }
        }
    }
    Ok(report)
}

/// The files that come in place of others: of each run all new ones in place of its first file, and nothing in place of the rest.
fn replaced(merged: &[(&DayPlan, Vec<FileAdd>)]) -> HashMap<String, Vec<FileAdd>> {
    let mut replaced = HashMap::new();
    for (day, added) in merged {
        let mut added = added.clone();
        added.iter_mut().for_each(|add| add.data_change = true);
        for file in day.runs.iter().flat_map(|run| &run.files) {
            replaced.insert(file.add.path.clone(), std::mem::take(&mut added));
        }
    }
    replaced
}

async fn discard(archive: &ArchiveContents, merged: &[(&DayPlan, Vec<FileAdd>)]) {
    for file in merged.iter().flat_map(|(_, added)| added) {
        archive.table.discard(&file.path).await;
    }
}
