//! `append`: files of changes or records into a state.

use std::path::{Path, PathBuf};

use alluvium::format::{format_fields, parse_fields};
use alluvium::{Error, ErrorKind, Import, ImportInput, ImportOptions, ImportReport, Store};

use super::{Outcome, Session};
use crate::args::AppendArgs;
use crate::failure::{ExitCodes, Failure};
use crate::progress::{Progress, counted, thousands};

pub(super) async fn run(session: &mut Session<'_>, args: AppendArgs) -> Outcome {
    let options = options(&args)?;
    let inputs = inputs(session, &args.files)?;
    if let Some(durability) = args.durability {
        session.set_durability(durability.into());
    }
    let store = session.open_for_writing().await?;
    let progress = Progress::new(session.shows_progress());
    let bar = progress.clone();
    let mut import = Import::new(&store, &args.state, inputs)
        .options(options)
        .on_progress(move |at| bar.update(at))
        .stop_when(session.console.stop.wait());
    if let Some(rejects) = &args.rejects {
        import = import.rejects(rejects);
    }
    let outcome = import.run().await;
    progress.clear();
    store.close().await;
    let report = outcome.map_err(|error| with_tip(error, &args))?;
    if report.created {
        tell_created(session, &store, &args.state).await?;
    }
    let summary = summary(&args, &report, &session.elapsed());
    session.say(&summary);
    Ok(if report.stopped { ExitCodes::INTERRUPTED } else { ExitCodes::OK })
}

/// The error of an append, with the way to go on beside a bad row.
fn with_tip(error: Error, args: &AppendArgs) -> Error {
    let names_row = [": line ", ": row "].iter().any(|place| error.message().contains(place));
    if error.kind() != ErrorKind::InvalidInput || args.rejects.is_some() || !names_row {
        return error;
    }
    let text = format!("{}; --rejects FILE sets bad rows aside and goes on", error.message());
    Error::new(error.kind(), text).with_source(error)
}

fn options(args: &AppendArgs) -> Result<ImportOptions, Failure> {
    let epoch = args.app_id.clone().zip(args.epoch);
    Ok(ImportOptions {
        format: args.mapping.format.map(Into::into),
        mapping: args.mapping.mapping(&args.files),
        fields: args.schema.as_deref().map(parse_fields).transpose()?,
        order_by: args.order_by,
        delete_when: args.delete_when.clone(),
        batch_rows: args.batch_rows,
        epoch,
        after_line: args.after_line,
        ..ImportOptions::default()
    })
}

fn inputs(session: &mut Session<'_>, files: &[PathBuf]) -> Result<Vec<ImportInput>, Failure> {
    let is_stdin = |path: &Path| path.as_os_str() == "-";
    let stdin = [PathBuf::from("-")];
    let files = if files.is_empty() { &stdin } else { files };
    let mut inputs = Vec::with_capacity(files.len());
    for file in files {
        if !is_stdin(file) {
            inputs.push(ImportInput::File(file.clone()));
            continue;
        }
        let Some(read) = session.console.stdin.take() else {
            return Err(Failure::usage("standard input is named twice: it can be read once"));
        };
        if session.console.stdin_is_terminal {
            session.say("reading changes from the keyboard: one JSON object per line, Ctrl-D ends");
        }
        inputs.push(ImportInput::Stream { label: "stdin".to_owned(), read });
    }
    Ok(inputs)
}

async fn tell_created(session: &mut Session<'_>, store: &Store, name: &str) -> Result<(), Failure> {
    let definition = store.raw_state(name).await?.definition();
    let fields = format_fields(&definition.fields);
    session.say(&format!("created the state {name}, ordered by {}: {fields}", definition.order_by));
    Ok(())
}

/// What an append did, in one line.
fn summary(args: &AppendArgs, report: &ImportReport, elapsed: &str) -> String {
    let state = &args.state;
    if let Some(last) = report.already_applied {
        let (app_id, epoch) =
            (args.app_id.as_deref().unwrap_or_default(), args.epoch.unwrap_or_default());
        return format!(
            "nothing was appended: epoch {epoch} of {app_id:?} is not newer than {last}, the newest in {state}, so it counts as applied (epochs ascend), {elapsed}"
        );
    }
    let mut text = if report.stopped { "stopped: " } else { "" }.to_owned();
    text.push_str(&format!("appended {} to {state}", counted(report.rows, "row")));
    if report.deletes > 0 {
        text.push_str(&format!(" ({})", counted(report.deletes, "delete")));
    }
    match (report.first_commit, report.last_commit) {
        (Some(first), Some(last)) if first == last => text.push_str(&format!(" in commit {first}")),
        (Some(first), Some(last)) => text.push_str(&format!(" in commits {first} to {last}")),
        _ => {}
    }
    if let (true, Some(rejects)) = (report.rejected > 0, &args.rejects) {
        text.push_str(&format!(
            "; {} rejected, see {}",
            thousands(report.rejected),
            rejects.display()
        ));
    }
    if !report.fields_added.is_empty() {
        text.push_str(&format!("; fields added: {}", report.fields_added.join(", ")));
    }
    if !report.fields_left_out.is_empty() {
        text.push_str(&format!(
            "; left out, since no value tells their type yet (null, [] or {{}}): {}",
            report.fields_left_out.join(", ")
        ));
    }
    if let Some(place) = &report.stopped_after {
        text.push_str(&format!("; all up to {place} is in"));
    }
    text.push_str(&format!("; {elapsed}{}", rate(report)));
    text
}

fn rate(report: &ImportReport) -> String {
    let seconds = report.elapsed.as_secs_f64();
    if report.rows < 1_000 || seconds <= 0.0 {
        return String::new();
    }
    format!(" ({} rows/s)", thousands((report.rows as f64 / seconds) as u64))
}
