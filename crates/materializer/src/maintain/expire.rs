//! Expiry of the log: rows of days past their retention leave it, when every promised answer has a snapshot that holds them.
//!
//! ```text
//! days past log_retention -> only those folded by every snapshot of the window -> one commit: removals, how far it went
//! ```
//!
//! What is chosen is decided on the very state that the commit follows, so nothing can come in between. Readers at an older state
//! go on reading the files until a vacuum.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_log::{
    Action, Archived, Attempt, DT, DataFile, Expired, MaintenanceSettings, OrderBy, Outcome,
    REWRITER_APP_ID, Result, TableState, day_of,
};
use serde::{Deserialize, Serialize};

use super::archive::settle;
use super::plan::end_of_day_ms;
use crate::snapshot::Snapshot;

/// Bounds of event times in a file's statistics are rounded up by less than this, in microseconds.
const ROUNDED_UP: i64 = 1_000;

/// What an expiry dropped, or would drop.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpireReport {
    /// The days, as the log's partitions name them.
    pub days: Vec<String>,
    /// Files that left the log.
    pub files_removed: u64,
    /// Their rows.
    pub rows: u64,
    /// Their bytes, which a vacuum frees later.
    pub bytes: u64,
    /// Days past the retention that stay for now.
    pub days_kept: u64,
    /// Rows of commits up to this one may be gone, by this expiry or an earlier one; 0 while every row is there.
    pub expired_commit: i64,
    /// Why no more was dropped.
    pub reason: String,
}

/// What may go.
#[derive(Debug)]
struct Choice {
    days: Vec<String>,
    files: Vec<Arc<DataFile>>,
    /// Of the archive: the days up to this one, and what stays.
    archived: Option<(i64, Vec<Arc<DataFile>>)>,
    archived_files: Vec<Arc<DataFile>>,
    days_kept: u64,
}

impl Choice {
    /// What goes, wherever it lies.
    fn all(&self) -> impl Iterator<Item = &Arc<DataFile>> {
        self.files.iter().chain(&self.archived_files)
    }
}

/// Drops the rows of days past `log_retention` that all snapshots of the as-of window hold; with `dry_run`, only tells which.
///
/// Where days are archived they leave the archive, unless that is to be left alone; those that are not archived yet stay.
#[tracing::instrument(level = "info", skip_all, fields(state = snapshot.log().name()), err(level = "debug"))]
pub async fn expire(
    snapshot: &Snapshot,
    with_archive: bool,
    dry_run: bool,
) -> Result<ExpireReport> {
    let log = snapshot.log();
    let _alone = log.lock_for_rewriting().await;
    let known = log.refresh().await?;
    let mut report =
        ExpireReport { expired_commit: Expired::commit_of(&known), ..ExpireReport::default() };
    if log.maintenance_settings()?.log_retention_ms.is_none() {
        report.reason = "log_retention is not set: the log is kept for ever".to_owned();
        return Ok(report);
    }
    let now_ms = log.clock().now_ms();
    let folded = match foundation(snapshot, now_ms).await? {
        Ok(folded) => folded,
        Err(reason) => {
            report.reason = reason;
            return Ok(report);
        }
    };
    let archive = match with_archive {
        true => log.archived(&known, -1).await?,
        false => None,
    };
    let archive = archive.as_ref().map(|archive| archive.files.as_slice()).unwrap_or_default();
    if dry_run {
        let choice = choose(&known, archive, now_ms, folded)?;
        let commits = choice.all().map(|file| file.commits.span().high);
        report.expired_commit = commits.fold(report.expired_commit, i64::max);
        report.count(&choice, folded);
        return Ok(report);
    }
    let order_by = log.definition().order_by;
    let note = BTreeMap::from([("step".to_owned(), serde_json::json!("expire"))]);
    let mut chosen = None;
    let outcome = log
        .table()
        .commit("DELETE", Some(false), note, |state, version| {
            // Whoever moved days meanwhile has begun anew what the archive has: then only the log's own days go now.
            let is_same = Archived::of(state) == Archived::of(&known);
            let choice = choose(state, if is_same { archive } else { &[] }, now_ms, folded)?;
            let actions = match choice.all().next().is_none() {
                true => None,
                false => Some(actions(state, &choice, order_by, version, now_ms)),
            };
            chosen = Some(choice);
            Ok(actions.map_or(Attempt::Stop(()), Attempt::Write))
        })
        .await
        .map_err(|error| error.context(format!("expiring days of {}", log.name())))?;
    if let Some(choice) = chosen {
        report.count(&choice, folded);
    }
    if let Outcome::Committed(state) = outcome {
        report.expired_commit = Expired::commit_of(&state);
        metrics::counter!(crate::metrics::ROWS_EXPIRED).increment(report.rows);
    }
    if with_archive {
        // The archive gives up what the log has let go of; also what an earlier run didn't come to.
        settle(log, &log.state(), &[]).await?;
    }
    Ok(report)
}

/// The log commit that every snapshot folds which an answer of the as-of window may begin with; or why nothing may be built on
/// them.
pub(super) async fn foundation(snapshot: &Snapshot, now_ms: i64) -> Result<Result<i64, String>> {
    let current = snapshot.refresh().await?;
    let Some((table, state)) = current.table() else {
        return Ok(Err("there is no snapshot that holds what the rows came to".to_owned()));
    };
    if !current.is_ours() {
        return Ok(Err(
            "another engine rewrote the snapshot: materialize makes it anew first".to_owned()
        ));
    }
    // The rows are about to be held by nothing but these files.
    if let Some(path) = table.missing_file(state).await? {
        return Ok(Err(format!(
            "the snapshot's file {path} is missing: materialize with rebuild first"
        )));
    }
    let oldest = snapshot.newest_at(&current, now_ms.saturating_sub(snapshot.kept_ms()?)).await?;
    Ok(match oldest.filter(|oldest| oldest.is_ours()) {
        Some(oldest) => Ok(oldest.log_commit()),
        None => Err(
            "the snapshot has no version as old as the as_of_window yet: answers as of then need the log"
                .to_owned(),
        ),
    })
}

/// The days that are past the retention of a state of the log, and of which a fold up to a commit has every row.
fn choose(
    state: &TableState,
    archive: &[Arc<DataFile>],
    now_ms: i64,
    folded: i64,
) -> Result<Choice> {
    let mut choice = Choice {
        days: Vec::new(),
        files: Vec::new(),
        archived: None,
        archived_files: Vec::new(),
        days_kept: 0,
    };
    let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
    let Some(kept_ms) = settings.log_retention_ms else { return Ok(choice) };
    let is_past = |end_ms: i64| end_ms.saturating_add(kept_ms) <= now_ms;
    for (day, end_ms, files) in by_days(state.files()).filter(|(_, end_ms, _)| is_past(*end_ms)) {
        // Where days are archived, they go from there.
        if settings.hot_days_ms.is_none() && may_go(&files, end_ms, folded) {
            choice.days.push(day.to_owned());
            choice.files.extend(files);
        } else {
            choice.days_kept += 1;
        }
    }
    choice.take_archived(archive, is_past, folded);
    Ok(choice)
}

/// Files by days, oldest day first, each with its end.
fn by_days<'a>(
    files: impl Iterator<Item = &'a Arc<DataFile>>,
) -> impl Iterator<Item = (&'a str, i64, Vec<Arc<DataFile>>)> {
    let mut days: BTreeMap<&str, Vec<Arc<DataFile>>> = BTreeMap::new();
    for file in files {
        if let Some(Some(day)) = file.add.partition.get(DT) {
            days.entry(day).or_default().push(file.clone());
        }
    }
    days.into_iter().filter_map(|(day, files)| Some((day, end_of_day_ms(day)?, files)))
}

/// Whether a fold up to a commit has every row of a day's files.
fn may_go(files: &[Arc<DataFile>], end_ms: i64, folded: i64) -> bool {
    // Another engine may have put rows of other days here.
    let latest = end_ms.saturating_mul(1_000).saturating_add(ROUNDED_UP);
    files.iter().all(|file| {
        file.commits.span().high <= folded
            && file.stats.max_event_time.is_some_and(|greatest| greatest <= latest)
    })
}

impl Choice {
    /// Takes the archive's oldest days, up to the first one that has to stay.
    fn take_archived(
        &mut self,
        archive: &[Arc<DataFile>],
        is_past: impl Fn(i64) -> bool,
        folded: i64,
    ) {
        let (mut last, mut left) = (None, Vec::new());
        for (day, end_ms, files) in by_days(archive.iter()) {
            if left.is_empty() && is_past(end_ms) && may_go(&files, end_ms, folded) {
                last = files.first().and_then(|file| day_of(file));
                self.days.push(day.to_owned());
                self.archived_files.extend(files);
            } else {
                self.days_kept += u64::from(is_past(end_ms));
                left.extend(files);
            }
        }
        self.archived = last.map(|last| (last, left));
        self.days.sort_unstable();
        self.days.dedup();
    }
}

/// One commit that drops what was chosen and says how far it went.
fn actions(
    state: &TableState,
    choice: &Choice,
    order_by: OrderBy,
    version: i64,
    now_ms: i64,
) -> Vec<Action> {
    let order = |file: &Arc<DataFile>| match order_by {
        OrderBy::EventTime => file.stats.max_event_time,
        OrderBy::Version => file.stats.max_version,
    };
    let greatest = |of: &dyn Fn(&Arc<DataFile>) -> i64| choice.all().map(of).max();
    let expired = Expired {
        commit: greatest(&|file| file.commits.span().high).unwrap_or(0),
        order: greatest(&|file| order(file).unwrap_or(i64::MAX)).unwrap_or(i64::MAX),
    };
    // Whoever merges files of the same days at the same time gives way.
    let mut actions = vec![Action::Transaction { app_id: REWRITER_APP_ID.to_owned(), version }];
    actions.extend(expired.join(Expired::of(state)).actions());
    if let (Some((day, left)), Some(archived)) = (&choice.archived, Archived::of(state)) {
        actions.extend(archived.dropping(*day, left.iter()).actions());
    }
    actions.extend(choice.files.iter().map(|file| file.add.removal(now_ms, true)));
    actions
}

impl ExpireReport {
    fn count(&mut self, choice: &Choice, folded: i64) {
        self.days.clone_from(&choice.days);
        self.files_removed = choice.all().count() as u64;
        self.rows = choice.all().filter_map(|file| file.stats.rows).sum();
        self.bytes = choice.all().map(|file| file.add.size).sum();
        self.days_kept = choice.days_kept;
        self.reason = match choice.days_kept {
            0 => "all other days are within log_retention".to_owned(),
            _ => format!(
                "of the days kept, some rows are of commits after {folded}, which the snapshots of the as_of_window do not all hold, or are dated outside of their day, or are not archived yet"
            ),
        };
    }
}
