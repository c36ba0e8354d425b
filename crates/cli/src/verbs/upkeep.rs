//! `materialize`, `verify`, `states`: the verbs of an operator.

use std::time::Duration;

use alluvium::format::format_fields;
use alluvium::{Error, MaterializeReport, SnapshotChange, Store, VerifyReport};

use super::{Outcome, Session, reports};
use crate::failure::{ExitCodes, Failure};
use crate::output::TableStyle;
use crate::progress::{bytes, counted, duration, thousands};

/// The states of a verb: the one that is named, or all of them. What is wrong with one of all does not keep the verb from
/// the others.
pub(super) struct Wanted {
    pub(super) names: Vec<String>,
    is_all: bool,
    /// The exit code of the first failure.
    pub(super) code: u8,
}

impl Wanted {
    pub(super) async fn new(store: &Store, state: Option<String>) -> Result<Self, Failure> {
        let is_all = state.is_none();
        let names = match state {
            Some(name) => vec![name],
            None => store.state_names().await?,
        };
        Ok(Self { names, is_all, code: ExitCodes::OK })
    }

    /// What was done with a state; nothing when it failed and the others go on.
    pub(super) fn done<T>(
        &mut self,
        session: &mut Session<'_>,
        outcome: Result<T, Error>,
    ) -> Result<Option<T>, Failure> {
        match outcome {
            Ok(done) => Ok(Some(done)),
            Err(error) if !self.is_all => Err(error.into()),
            Err(error) => {
                let failure = Failure::from(error);
                session.console.tell(&failure);
                self.note(failure.exit_code());
                Ok(None)
            }
        }
    }

    pub(super) fn note(&mut self, code: u8) {
        if self.code == ExitCodes::OK {
            self.code = code;
        }
    }
}

/// A report as JSON: which state, its figures, and the milliseconds it took.
pub(super) fn report(
    state: &str,
    figures: Result<String, serde_json::Error>,
    elapsed: Duration,
) -> Result<String, Failure> {
    let figures = figures.map_err(|error| Error::internal("a report").with_source(error))?;
    // The figures were written with no time elapsed.
    let millis = format!("\"elapsed_ms\":{:.3}", elapsed.as_secs_f64() * 1_000.0);
    let figures = figures.replace("\"elapsed\":{\"secs\":0,\"nanos\":0}", &millis);
    let name = serde_json::Value::from(state);
    Ok(figures.replacen('{', &format!("{{\"state\":{name},"), 1))
}

pub(super) async fn materialize(
    session: &mut Session<'_>,
    state: Option<String>,
    rebuild: bool,
) -> Outcome {
    // A store to materialize must be there already.
    drop(session.open().await?);
    let store = session.open_for_writing().await?;
    let mut lines = Vec::new();
    let mut wanted = Wanted::new(&store, state).await?;
    for name in wanted.names.clone() {
        let outcome = async { store.raw_state(&name).await?.materialize(rebuild).await }.await;
        let Some(done) = wanted.done(session, outcome)? else { continue };
        if session.is_table() {
            let line = tell_materialized(&name, &done);
            writeln!(session.console.stdout, "{line}")?;
        } else {
            let figures = MaterializeReport { elapsed: Duration::ZERO, ..done.clone() };
            lines.push(report(&name, serde_json::to_string(&figures), done.elapsed)?);
        }
    }
    store.close().await;
    reports::write(session, &lines)?;
    Ok(wanted.code)
}

fn tell_materialized(state: &str, done: &MaterializeReport) -> String {
    let took = match done.conflicting_ties {
        0 => duration(done.elapsed),
        ties => format!(
            "{} decided by the last rules (DELETE, commit, row), {}",
            counted(ties, "conflicting tie"),
            duration(done.elapsed)
        ),
    };
    let folded = format!(
        "folded {} of commits {} to {}",
        counted(done.rows_folded, "row"),
        done.from_commit.saturating_add(1).max(0),
        done.to_commit
    );
    let wrote = format!(
        "wrote {} in {} ({})",
        counted(done.rows_written, "row"),
        counted(done.files_added, "file"),
        bytes(done.bytes_written)
    );
    match done.change {
        SnapshotChange::UpToDate => {
            format!("{state}: up to date at commit {}, {took}", done.to_commit)
        }
        SnapshotChange::ProgressOnly => format!("{state}: {folded}: no value changed, {took}"),
        SnapshotChange::Run => format!("{state}: {folded}: {wrote} beside the base, {took}"),
        SnapshotChange::Joined => format!("{state}: small files joined: {wrote}, {took}"),
        SnapshotChange::Merged => format!("{state}: {folded}: {wrote}, {took}"),
        SnapshotChange::Rebuilt => {
            format!(
                "{state}: folded {} anew, all up to commit {}: {wrote}, {took}",
                counted(done.rows_folded, "row"),
                done.to_commit
            )
        }
    }
}

pub(super) async fn verify(session: &mut Session<'_>, state: Option<String>) -> Outcome {
    let store = session.open().await?;
    let mut lines = Vec::new();
    let mut wanted = Wanted::new(&store, state).await?;
    for name in wanted.names.clone() {
        let outcome = async { store.raw_state(&name).await?.verify().await }.await;
        let Some(found) = wanted.done(session, outcome)? else { continue };
        if session.is_table() {
            writeln!(session.console.stdout, "{}", tell_verified(&name, &found))?;
        } else {
            let figures = VerifyReport { elapsed: Duration::ZERO, ..found.clone() };
            lines.push(report(&name, serde_json::to_string(&figures), found.elapsed)?);
        }
        if !found.is_sound() {
            wanted.note(ExitCodes::CORRUPT);
            for message in complaints(&name, &found) {
                session.complain(&message);
            }
        }
    }
    reports::write(session, &lines)?;
    Ok(wanted.code)
}

fn tell_verified(state: &str, found: &VerifyReport) -> String {
    let took = duration(found.elapsed);
    if found.snapshot_version < 0 {
        return format!("{state}: nothing to verify: it has no snapshot yet");
    }
    let from = match found.from_commit {
        0 => "0".to_owned(),
        base => format!("{} onto the oldest snapshot, of commit {base},", base + 1),
    };
    let verdict = if found.is_sound() { "sound" } else { "NOT SOUND" };
    format!(
        "{state}: {verdict}: {} ({} live) compared with the fold of commits {} to {}, hash {}, {took}",
        counted(found.keys, "key"),
        thousands(found.live_keys),
        from,
        found.log_commit,
        found.hash
    )
}

/// What is wrong with a snapshot, and what to do.
fn complaints(state: &str, found: &VerifyReport) -> Vec<String> {
    let mut messages = Vec::new();
    if let Some(difference) = &found.first_difference {
        messages.push(format!(
            "the snapshot of {state} differs from its log, first at the key {:?}: the log says {}, the snapshot {}; \
             alluvium materialize {state} --rebuild makes it anew",
            difference.key, difference.in_log, difference.in_snapshot
        ));
    }
    if let Some(file) = &found.damaged_file {
        messages.push(format!(
            "the snapshot file {file} of {state} does not hold what was written; alluvium materialize {state} --rebuild makes it anew"
        ));
    }
    messages
}

pub(super) async fn states(session: &mut Session<'_>) -> Outcome {
    let store = session.open().await?;
    let mut lines = Vec::new();
    let mut wanted = Wanted::new(&store, None).await?;
    for name in wanted.names.clone() {
        let opened = store.raw_state(&name).await;
        let Some(state) = wanted.done(session, opened)? else { continue };
        let definition = state.definition();
        let fields = serde_json::Value::from(format_fields(&definition.fields));
        lines.push(format!(
            "{{\"state\":\"{name}\",\"order_by\":\"{}\",\"commit\":{},\"fields\":{fields}}}",
            definition.order_by,
            state.log().state().version
        ));
    }
    let label = store.label().to_owned();
    if wanted.names.is_empty() {
        session.say(&format!("the store {label} has no states"));
    }
    reports::write_as(session, &lines, TableStyle::Rows)?;
    Ok(wanted.code)
}
