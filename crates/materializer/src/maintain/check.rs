//! The step of the job that looks whether the snapshot's files are as they were written, and makes the snapshot anew if one isn't.
//!
//! That all are there, with as many bytes as were written, is looked at in each run, by one listing. Every `check_every` they are read
//! whole and their sums compared; the snapshot's table says when that was last. Nobody has to ask for what can be derived from the log.

use std::collections::BTreeMap;

use alluvium_log::{Action, Attempt, Damage, Examination, Result, Table, duration_text};
use serde::Serialize;

use super::job::MaintainOptions;
use crate::materialize::{MaterializeOptions, materialize};
use crate::snapshot::{CHECK_APP_ID, Snapshot, SnapshotState};

/// What a look at the snapshot's files found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SnapshotCheck {
    /// Files of the snapshot.
    pub files: u64,
    /// Bytes that were read; 0 where files were only looked for.
    pub bytes_read: u64,
    /// Files that are damaged or gone.
    pub damaged: Vec<Damage>,
    /// Whether the snapshot was made anew.
    pub made_anew: bool,
    /// Why files were read, or were not.
    pub reason: String,
}

/// Looks at the snapshot's files, reads them when that is due, and makes the snapshot anew from the log where one is damaged.
///
/// # Errors
/// The snapshot is damaged and can't be made anew: its files are as they were.
#[tracing::instrument(level = "info", skip_all, fields(state = snapshot.log().name()), err(level = "debug"))]
pub async fn check(snapshot: &Snapshot, options: &MaintainOptions) -> Result<SnapshotCheck> {
    let mut report = SnapshotCheck::default();
    let current = snapshot.refresh().await?;
    let Some((table, state)) = current.table() else {
        report.reason = "there is no snapshot yet".to_owned();
        return Ok(report);
    };
    report.files = state.file_count() as u64;
    report.damaged = table.examine_sizes(state).await?;
    if report.damaged.is_empty() {
        let now_ms = snapshot.log().clock().now_ms();
        let every_ms = snapshot.log().maintenance_settings()?.check_every_ms;
        let (is_due, reason) = is_due(&current, every_ms, now_ms);
        report.reason = reason;
        if is_due {
            let files = state.files().map(|file| (file.add.clone(), file.commits.span().high));
            let mut found = Examination::default();
            table.examine_files(files.collect(), Some(state), &mut found).await?;
            (report.bytes_read, report.damaged) = (found.bytes, found.damages);
        }
        if is_due && report.damaged.is_empty() {
            note_sound(table, now_ms).await?;
        }
    } else {
        report.reason = "files are gone, or have another size than was written".to_owned();
    }
    if !report.damaged.is_empty() {
        report.made_anew = make_anew(snapshot, &report.damaged, options).await?;
    }
    Ok(report)
}

/// Whether the files are to be read, and why.
fn is_due(current: &SnapshotState, every_ms: i64, now_ms: i64) -> (bool, String) {
    let every = duration_text(every_ms);
    if current.files().next().is_none() {
        return (false, "there is nothing to read".to_owned());
    }
    match current.sound_at_ms() {
        None => (true, "nobody has read them so far".to_owned()),
        // A clock that was set back must not keep them unread.
        Some(at_ms) if now_ms.abs_diff(at_ms) >= every_ms.unsigned_abs() => {
            (true, format!("nobody has read them for {every} (check_every)"))
        }
        Some(_) => (false, format!("they were read or written within {every} (check_every)")),
    }
}

/// Records in the snapshot's table that its files were as they were written.
async fn note_sound(table: &Table, now_ms: i64) -> Result<()> {
    let note = BTreeMap::from([("step".to_owned(), serde_json::json!("check"))]);
    let action = Action::Transaction { app_id: CHECK_APP_ID.to_owned(), version: now_ms };
    table
        .commit("WRITE", Some(false), note, |_, _| Ok(Attempt::<()>::Write(vec![action.clone()])))
        .await?;
    Ok(())
}

/// Makes the snapshot anew, unless another process has by now; whether it was.
async fn make_anew(
    snapshot: &Snapshot,
    damaged: &[Damage],
    options: &MaintainOptions,
) -> Result<bool> {
    let current = snapshot.refresh().await?;
    let Some((table, _)) = current.table() else { return Ok(false) };
    let is_damaged = |path: &str| {
        let file = format!("{}/{path}", table.label());
        damaged.iter().any(|damage| damage.file == file)
    };
    if !current.files().any(|file| is_damaged(&file.add.path)) {
        return Ok(false);
    }
    let first = &damaged[0];
    let (state, more) = (snapshot.log().name(), damaged.len() - 1);
    tracing::warn!(
        state,
        file = first.file,
        problem = first.problem,
        more,
        "the snapshot is damaged"
    );
    let options = MaterializeOptions { rebuild: true, ..options.materialize.clone() };
    materialize(snapshot, &options).await?;
    metrics::counter!(crate::metrics::SNAPSHOTS_MADE_ANEW).increment(1);
    Ok(true)
}
