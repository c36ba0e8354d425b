//! `verify --deep` and `repair`: every file of a state looked at, and what can be made again made again.

use std::time::Duration;

use alluvium::{DeepReport, RepairReport};

use super::upkeep::{Wanted, report};
use super::{Outcome, Session};
use crate::args::RepairArgs;
use crate::failure::ExitCodes;
use crate::progress::{bytes, counted, duration};

/// Reads every file of the states, and complains about what is damaged.
pub(super) async fn verify_deep(session: &mut Session<'_>, state: Option<String>) -> Outcome {
    let store = session.open().await?;
    let mut lines = Vec::new();
    let mut wanted = Wanted::new(&store, state).await?;
    for name in wanted.names.clone() {
        let outcome = store.examine(&name).await;
        let Some(found) = wanted.done(session, outcome)? else { continue };
        if session.is_table() {
            let line = tell_examined(&name, &found);
            writeln!(session.console.stdout, "{line}")?;
        } else {
            let figures = DeepReport { elapsed: Duration::ZERO, ..found.clone() };
            lines.push(report(&name, serde_json::to_string(&figures), found.elapsed)?);
        }
        if !found.is_sound() {
            wanted.note(ExitCodes::CORRUPT);
            for damage in &found.damaged {
                session.complain(&format!("{}: {}", damage.file, damage.problem));
            }
            if found.damaged.is_empty() {
                session.complain(&found.failure.unwrap_or_default());
            }
            session.say(&format!("alluvium repair {name} --dry-run tells what can be made again"));
        }
    }
    // Lists of objects as they are: rows would need one schema.
    for line in lines {
        writeln!(session.console.stdout, "{line}")?;
    }
    Ok(wanted.code)
}

fn tell_examined(state: &str, found: &DeepReport) -> String {
    let verdict = match found.damaged.len() {
        0 if found.is_sound() => "no file is damaged".to_owned(),
        0 => "it can't be opened".to_owned(),
        count => format!("{} DAMAGED", counted(count as u64, "file")),
    };
    let unchecked = match found.unchecked_files {
        0 => String::new(),
        count => {
            format!(", {} without a checksum, which other engines wrote", counted(count, "file"))
        }
    };
    format!(
        "{state}: {verdict}: {} read ({}){unchecked}, {}",
        counted(found.files, "file"),
        bytes(found.bytes),
        duration(found.elapsed)
    )
}

/// Repairs one state.
pub(super) async fn run(session: &mut Session<'_>, args: RepairArgs) -> Outcome {
    drop(session.open().await?);
    let store = session.open_for_writing().await?;
    let done = store.repair(&args.state, args.dry_run).await?;
    store.close().await;
    if session.is_table() {
        let text = tell_repaired(&args.state, &done);
        session.console.stdout.write_all(text.as_bytes())?;
    } else {
        let figures = RepairReport { elapsed: Duration::ZERO, ..done.clone() };
        let line = report(&args.state, serde_json::to_string(&figures), done.elapsed)?;
        writeln!(session.console.stdout, "{line}")?;
    }
    for left in &done.unrepaired {
        session.complain(&format!("{}: {}: {}", left.file, left.problem, left.consequence));
    }
    Ok(if done.unrepaired.is_empty() { ExitCodes::OK } else { ExitCodes::CORRUPT })
}

fn tell_repaired(state: &str, done: &RepairReport) -> String {
    let mut text = String::new();
    for step in &done.steps {
        let moved =
            step.moved_to.as_ref().map_or_else(String::new, |to| format!(" (moved to {to})"));
        text.push_str(&format!("{}: {}\n  {}{moved}\n", step.file, step.problem, step.remedy));
    }
    let steps = counted(done.steps.len() as u64, "step");
    let verdict = match (done.steps.is_empty(), done.unrepaired.is_empty(), done.dry_run) {
        (true, true, _) => "nothing is damaged".to_owned(),
        (_, _, true) => format!("{steps} would be taken; nothing was changed"),
        (_, true, false) => format!("repaired, {steps}"),
        (_, false, false) => format!("{steps} taken; not all can be repaired"),
    };
    text.push_str(&format!("{state}: {verdict}, {}\n", duration(done.elapsed)));
    text
}
