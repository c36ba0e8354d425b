//! `maintain` and `set`: keeping states small, once or again and again, and saying how small.

use std::path::Path;
use std::time::Duration;

use alluvium::format::format_timestamp;
use alluvium::{
    ArchiveReport, CompactReport, Error, ExpireReport, MaintainEvent, MaintainReport, MaintainRun,
    MaintainStep, Maintainer, SnapshotCheck, StepOutcome, Storage, Store, TombstonesReport,
};

use super::{Outcome, Session, reports};
use crate::args::{MaintainArgs, OutputFormat, SetArgs};
use crate::exporter;
use crate::failure::{ExitCodes, Failure};
use crate::progress::{bytes, counted, duration, thousands};

/// After how long without a sign of life a leader is taken over.
const TAKEOVER_MS: i64 = 30_000;

pub(super) async fn run(session: &mut Session<'_>, args: MaintainArgs) -> Outcome {
    if matches!(session.format(), OutputFormat::Csv | OutputFormat::Parquet | OutputFormat::Arrow) {
        return Err(Failure::usage(
            "a report of maintenance has no columns: use --output table, json or jsonl",
        ));
    }
    if let Some(path) = &args.report {
        check_report_file(path)?;
    }
    if let Some(address) = args.metrics_listen {
        let address = exporter::start(address)?;
        session.say(&format!("metrics at http://{address}/metrics"));
    }
    // A store to maintain must be there already.
    drop(session.open().await?);
    let store = session.open_for_writing().await?;
    let maintainer = Maintainer::new(&store, args.options());
    let (stop, signal) = (session.console.stop.clone(), maintainer.stop_signal().clone());
    let asked = tokio::spawn(async move {
        stop.wait().await;
        signal.stop();
    });
    let outcome = match args.every {
        Some(every_ms) => repeat(session, &store, &maintainer, &args, every_ms).await,
        None => once(session, &maintainer, &args).await,
    };
    asked.abort();
    store.close().await;
    outcome
}

async fn once(session: &mut Session<'_>, maintainer: &Maintainer, args: &MaintainArgs) -> Outcome {
    let run = maintainer.run().await?;
    show(session, &run)?;
    write_report(args.report.as_deref(), &run.report)?;
    match run.errors.into_iter().next() {
        Some(error) => Err(error.into()),
        None if maintainer.stop_signal().is_told() && run.report.is_cut_short() => {
            Ok(ExitCodes::INTERRUPTED)
        }
        None => Ok(ExitCodes::OK),
    }
}

async fn repeat(
    session: &mut Session<'_>,
    store: &Store,
    maintainer: &Maintainer,
    args: &MaintainArgs,
    every_ms: i64,
) -> Outcome {
    let span_ms = args.takeover.unwrap_or(TAKEOVER_MS);
    let mut lease = store.lease(&maintainer.name(), &holder(), span_ms)?;
    let every = Duration::from_millis(u64::try_from(every_ms).unwrap_or(0));
    let mut failure = None;
    let stop = maintainer.stop_signal();
    let released = maintainer
        .run_every(every, &mut lease, |event| match event {
            MaintainEvent::Leads => session.say("this process does the maintenance"),
            MaintainEvent::Follows(holder) => session
                .say(&format!("{holder} does the maintenance; this process waits to take over")),
            // What fails now is tried again the next time.
            MaintainEvent::Failed(error) => session.console.tell(&error.into()),
            MaintainEvent::Ran(run) => {
                if let Err(error) = show(session, &run) {
                    failure = Some(error);
                    stop.stop();
                }
                for error in run.errors {
                    session.console.tell(&error.into());
                }
                if let Err(error) = write_report(args.report.as_deref(), &run.report) {
                    session.console.tell(&error);
                }
            }
        })
        .await;
    match failure {
        Some(failure) => Err(failure),
        None => Ok(released.map(|()| ExitCodes::OK)?),
    }
}

/// How this process is called by others that wait for it.
fn holder() -> String {
    let host = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
    let host = host.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    let host = host.map_or_else(|| "an unknown host".to_owned(), |name| name.trim().to_owned());
    format!("process {} on {host}", std::process::id())
}

/// Writes what a run did, state by state.
fn show(session: &mut Session<'_>, run: &MaintainRun) -> Result<(), Failure> {
    let mut lines = Vec::with_capacity(run.report.states.len());
    for done in &run.report.states {
        if session.is_table() {
            session.console.stdout.write_all(tell(done).as_bytes())?;
        }
        lines.push(json(done)?);
    }
    match session.format() {
        OutputFormat::Table => {}
        OutputFormat::Json => writeln!(session.console.stdout, "[{}]", lines.join(",\n "))?,
        _ => {
            for line in &lines {
                writeln!(session.console.stdout, "{line}")?;
            }
        }
    }
    if !run.report.left_out.is_empty() {
        session.say(&format!("not begun: {}", run.report.left_out.join(", ")));
    }
    Ok(session.console.stdout.flush()?)
}

fn json(report: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(report)
        .map_err(|error| Error::internal("a report").with_source(error).into())
}

/// Refuses a file that can't be written before anything is done that it would tell.
pub(super) fn check_report_file(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
        return Err(Failure::usage(format!(
            "the report {} can't be written: name a file in a folder that is there",
            path.display()
        )));
    }
    Ok(())
}

/// Replaces the file at once, so that whoever reads it never sees half of it.
pub(super) fn write_report(
    path: Option<&Path>,
    report: &impl serde::Serialize,
) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let mut staged = path.as_os_str().to_owned();
    staged.push(".tmp");
    let text = json(report)? + "\n";
    let write = || {
        std::fs::write(&staged, text)?;
        std::fs::rename(&staged, path)
    };
    write().map_err(|error| {
        let message = format!("the report {} could not be written", path.display());
        Error::new(alluvium::ErrorKind::Storage, message).with_source(error).into()
    })
}

fn tell(done: &MaintainReport) -> String {
    let would = if done.dry_run { ", only told what would be done" } else { "" };
    let took = duration(Duration::from_millis(done.elapsed_ms));
    let mut text = format!(
        "{}: log {} in {}, was {} in {}; {took}{would}\n",
        done.state,
        bytes(done.log_after.bytes),
        counted(done.log_after.files, "file"),
        bytes(done.log_before.bytes),
        counted(done.log_before.files, "file"),
    );
    for step in &done.steps {
        let told = match &step.failed {
            None => tell_step(&step.outcome),
            Some(error) if step.step == MaintainStep::Archive || step.is_unfinished() => {
                format!("failed: {}", error.message)
            }
            Some(_) => format!("{}; the archive can't be reached", tell_step(&step.outcome)),
        };
        text.push_str(&format!("  {:<12}{told}\n", step.step.name()));
    }
    for left in &done.left_out {
        text.push_str(&format!("  {:<12}not begun: {}\n", left.step.name(), left.reason));
    }
    for commit in &done.unreadable_commits {
        text.push_str(&format!("  {}\n", super::retention::tell_unreadable(commit)));
    }
    text.push_str(&format!(
        "  readable    versions {} to {} of the log",
        done.log_after.oldest_version, done.log_after.version
    ));
    if let Some(snapshot) = &done.snapshot_after {
        let span = (snapshot.oldest_version, snapshot.version);
        text.push_str(&format!(", {} to {} of the snapshot", span.0, span.1));
    }
    text.push_str(&match &done.horizon {
        None => "; every commit, version and event time\n".to_owned(),
        Some(horizon) => format!("; as of {}\n", super::retention::tell_horizon(horizon)),
    });
    text
}

fn tell_archived(done: &ArchiveReport) -> String {
    let kept = match done.days_kept {
        0 => String::new(),
        days => format!("; {} past hot_days stay for now", counted(days, "day")),
    };
    let merged = match done.merged.files_removed {
        0 => String::new(),
        files => format!(
            "; {} of {} there merged",
            counted(files, "file"),
            counted(done.merged.days.len() as u64, "day")
        ),
    };
    match (done.days.first(), done.days.last()) {
        (Some(first), Some(last)) => format!(
            "{} of {}, {first} to {last} ({}), to {}{kept}{merged}",
            counted(done.rows, "row"),
            counted(done.days.len() as u64, "day"),
            bytes(done.bytes),
            done.place
        ),
        _ => format!("nothing to move{kept}: {}{merged}", done.reason),
    }
}

fn tell_forgot(done: &TombstonesReport) -> String {
    let floor = done.floor.map_or_else(String::new, |floor| {
        format!("; changes up to {} are refused", format_timestamp(floor))
    });
    match done.forgotten {
        0 => format!("no deleted key to forget: {}{floor}", done.reason),
        count => format!(
            "{} of {} forgotten{floor}",
            counted(count, "deleted key"),
            thousands(done.tombstones)
        ),
    }
}

fn tell_expired(done: &ExpireReport) -> String {
    let kept = match done.days_kept {
        0 => String::new(),
        days => format!("; {} past the retention stay for now", counted(days, "day")),
    };
    match done.days.as_slice() {
        [] => format!("nothing to drop{kept}: {}", done.reason),
        [first, .., last] => format!(
            "{} of {}, {first} to {last} ({}){kept}",
            counted(done.rows, "row"),
            counted(done.days.len() as u64, "day"),
            bytes(done.bytes)
        ),
        [day] => {
            format!("{} of {day} ({}){kept}", counted(done.rows, "row"), bytes(done.bytes))
        }
    }
}

fn tell_compacted(done: &CompactReport) -> String {
    let joined = match done.snapshot_files_removed {
        0 => String::new(),
        removed => format!(
            "; {} of the snapshot joined into {}",
            counted(removed, "small file"),
            thousands(done.snapshot_files_added)
        ),
    };
    let gave_way = if done.gave_way { "; another rewriter is at work" } else { "" };
    if done.files_removed == 0 {
        return format!("nothing to gain in the log{joined}{gave_way}");
    }
    format!(
        "{} of {} ({}) merged into {} ({}){joined}{gave_way}",
        counted(done.files_removed, "file"),
        counted(done.days.len() as u64, "day"),
        bytes(done.bytes_before),
        counted(done.files_added, "file"),
        bytes(done.bytes_after)
    )
}

fn tell_checked(done: &SnapshotCheck) -> String {
    let Some(first) = done.damaged.first() else {
        return match done.bytes_read {
            0 => format!("{} there; {}", counted(done.files, "file"), done.reason),
            read => {
                format!("{} sound ({}); {}", counted(done.files, "file"), bytes(read), done.reason)
            }
        };
    };
    let anew = if done.made_anew { "snapshot made anew" } else { "others changed it meanwhile" };
    format!(
        "{} damaged, {anew}: {} ({})",
        counted(done.damaged.len() as u64, "file"),
        first.file,
        first.problem
    )
}

fn tell_step(outcome: &StepOutcome) -> String {
    match outcome {
        StepOutcome::Unfinished => "not done".to_owned(),
        StepOutcome::Materialized(done) => format!(
            "{} folded, {} written, up to commit {}",
            counted(done.rows_folded, "row"),
            counted(done.rows_written, "row"),
            done.to_commit
        ),
        StepOutcome::Checked(done) => tell_checked(done),
        StepOutcome::Compacted(done) => tell_compacted(done),
        StepOutcome::Grid(done) => match (done.kept, done.released) {
            (0, 0) => "no snapshots to keep".to_owned(),
            (kept, released) => format!(
                "{} kept, {} of them now; {released} released",
                counted(kept, "snapshot"),
                done.added
            ),
        },
        StepOutcome::Forgot(done) => tell_forgot(done),
        StepOutcome::Archived(done) => tell_archived(done),
        StepOutcome::NotArchived { .. } => "left alone: every day stays where it is".to_owned(),
        StepOutcome::Expired(done) => tell_expired(done),
        StepOutcome::Checkpointed { log_version, snapshot_version, archive_version } => {
            let told = |version: &Option<i64>| {
                version
                    .map_or_else(|| "not due".to_owned(), |version| format!("of version {version}"))
            };
            let archive = archive_version
                .map_or_else(String::new, |version| format!(", archive of version {version}"));
            format!("log {}, snapshot {}{archive}", told(log_version), told(snapshot_version))
        }
        StepOutcome::CleanedUp { log, snapshot, archive } => {
            let other = snapshot.as_ref().map_or(0, |snapshot| snapshot.commits_removed);
            let cold = archive.as_ref().map_or_else(String::new, |archive| {
                format!(", {} of the archive", archive.commits_removed)
            });
            format!(
                "{} of the log, {other} of the snapshot{cold} removed; {}",
                counted(log.commits_removed, "commit"),
                log.reason
            )
        }
        StepOutcome::Vacuumed { log, snapshot, archive, staged } => {
            let all = [Some(log), snapshot.as_ref(), archive.as_ref()];
            let sum = |of: fn(&alluvium::VacuumReport) -> u64| -> u64 {
                all.iter().flatten().map(|report| of(report)).sum()
            };
            format!(
                "{} and {} removed ({}); {} may still be committed",
                counted(sum(|report| report.files_removed), "old file"),
                counted(sum(|report| report.orphans_removed) + staged.files_removed, "left-over"),
                bytes(sum(|report| report.bytes_removed) + staged.bytes_removed),
                counted(sum(|report| report.orphans_kept) + staged.files_kept, "file")
            )
        }
    }
}

pub(super) async fn set(session: &mut Session<'_>, args: SetArgs) -> Outcome {
    let store = match args.changes.is_empty() {
        true => session.open().await?,
        false => {
            drop(session.open().await?);
            session.open_for_writing().await?
        }
    };
    let state = store.raw_state(&args.state).await?;
    let settings = match args.changes.is_empty() {
        true => state.maintenance_settings().await?,
        false => {
            for (_, uri) in args.changes.iter().filter(|(name, _)| name == "archive") {
                // Only a program that opens the archive by other means than its URI knows better.
                Storage::check_scheme(uri)
                    .map_err(|error| error.context("archive can't be set"))?;
            }
            state.set_maintenance(&args.changes).await?
        }
    };
    let named = settings.named();
    if session.is_table() {
        for (name, value) in &named {
            writeln!(session.console.stdout, "{name} = {value}")?;
        }
    } else {
        let line = serde_json::to_string(&named);
        let line = line.map_err(|error| Error::internal("settings").with_source(error))?;
        reports::write(session, &[line])?;
    }
    store.close().await;
    Ok(ExitCodes::OK)
}
