//! `maintain` and `set`: keeping states small, and saying how small.

use std::path::Path;
use std::time::Duration;

use alluvium::{Durability, Error, ExpireReport, MaintainReport, MaintainStep, StepOutcome, Store};

use super::{Outcome, Session, reports};
use crate::args::{MaintainArgs, OutputFormat, SetArgs};
use crate::failure::{ExitCodes, Failure};
use crate::progress::{bytes, counted, duration};

pub(super) async fn run(session: &mut Session<'_>, args: MaintainArgs) -> Outcome {
    if matches!(session.format(), OutputFormat::Csv | OutputFormat::Parquet | OutputFormat::Arrow) {
        return Err(Failure::usage(
            "a report of maintenance has no columns: use --output table, json or jsonl",
        ));
    }
    // A store to maintain must be there already.
    drop(session.open().await?);
    let store = session.open_for_writing(Durability::Fsync).await?;
    let Some(every_ms) = args.every else {
        let failure = once(session, &store, &args).await?;
        store.close().await;
        return failure.map_or(Ok(ExitCodes::OK), Err);
    };
    loop {
        // One state that fails must not keep the others from being maintained, now or the next time.
        if let Some(failure) = once(session, &store, &args).await? {
            for line in failure.lines() {
                session.console.say(&line);
            }
        }
        session.console.stdout.flush()?;
        tokio::time::sleep(jittered(every_ms)).await;
    }
}

/// The span, up to a tenth longer, so that jobs which were started together part.
fn jittered(every_ms: i64) -> Duration {
    let every_ms = u64::try_from(every_ms).unwrap_or(0);
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::from(since.subsec_nanos()));
    Duration::from_millis(every_ms + every_ms / 10 * (nanos % 1_000) / 1_000)
}

/// Maintains each state once; gives the first failure after all states had their turn.
async fn once(
    session: &mut Session<'_>,
    store: &Store,
    args: &MaintainArgs,
) -> Result<Option<Failure>, Failure> {
    let steps = match args.steps.is_empty() {
        true => MaintainStep::ALL.to_vec(),
        false => args.steps.clone(),
    };
    let names = match args.states.is_empty() {
        true => store.state_names().await?,
        false => args.states.clone(),
    };
    let (mut lines, mut failure) = (Vec::new(), None);
    for name in names {
        let maintained = match store.raw_state(&name).await {
            Ok(state) => state.maintain(&steps, args.dry_run).await,
            Err(error) => Err(error),
        };
        match maintained {
            Ok(done) => {
                if session.is_table() {
                    session.console.stdout.write_all(tell(&done).as_bytes())?;
                }
                let line = serde_json::to_string(&done);
                lines.push(line.map_err(|error| Error::internal("a report").with_source(error))?);
            }
            Err(error) => {
                failure.get_or_insert(Failure::from(error));
            }
        }
    }
    if let Some(path) = &args.report {
        write_report(path, &lines)?;
    }
    match session.format() {
        OutputFormat::Table => {}
        OutputFormat::Json => writeln!(session.console.stdout, "{}", array(&lines))?,
        _ => {
            for line in &lines {
                writeln!(session.console.stdout, "{line}")?;
            }
        }
    }
    Ok(failure)
}

fn array(lines: &[String]) -> String {
    format!("[{}]", lines.join(",\n "))
}

/// Replaces the file at once, so that whoever reads it never sees half of it.
fn write_report(path: &Path, lines: &[String]) -> Result<(), Failure> {
    let mut staged = path.as_os_str().to_owned();
    staged.push(".tmp");
    let write = || {
        std::fs::write(&staged, array(lines) + "\n")?;
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
        text.push_str(&format!("  {:<12}{}\n", step.step.name(), tell_step(&step.outcome)));
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

fn tell_step(outcome: &StepOutcome) -> String {
    match outcome {
        StepOutcome::Materialized(done) => format!(
            "{} folded, {} written, up to commit {}",
            counted(done.rows_folded, "row"),
            counted(done.rows_written, "row"),
            done.to_commit
        ),
        StepOutcome::ToMaterialize { commits, rows } => format!(
            "{} of {} to fold",
            counted(*rows, "row"),
            counted(u64::try_from(*commits).unwrap_or(0), "commit")
        ),
        StepOutcome::Compacted(done) if done.files_removed == 0 && !done.gave_way => {
            "nothing to gain".to_owned()
        }
        StepOutcome::Compacted(done) => {
            let merged = format!(
                "{} of {} ({})",
                counted(done.files_removed, "file"),
                counted(done.days.len() as u64, "day"),
                bytes(done.bytes_before)
            );
            let gave_way = if done.gave_way { "; another rewriter is at work" } else { "" };
            match done.files_added {
                0 => format!("{merged} to merge{gave_way}"),
                added => format!(
                    "{merged} merged into {} ({}){gave_way}",
                    counted(added, "file"),
                    bytes(done.bytes_after)
                ),
            }
        }
        StepOutcome::Expired(done) => tell_expired(done),
        StepOutcome::Checkpointed { log_version, snapshot_version } => {
            let told = |version: &Option<i64>| {
                version
                    .map_or_else(|| "not due".to_owned(), |version| format!("of version {version}"))
            };
            format!("log {}, snapshot {}", told(log_version), told(snapshot_version))
        }
        StepOutcome::CleanedUp { log, snapshot } => {
            let other = snapshot.as_ref().map_or(0, |snapshot| snapshot.commits_removed);
            format!(
                "{} of the log, {other} of the snapshot removed; {}",
                counted(log.commits_removed, "commit"),
                log.reason
            )
        }
        StepOutcome::Vacuumed { log, snapshot } => {
            let all = [Some(log), snapshot.as_ref()];
            let sum = |of: fn(&alluvium::VacuumReport) -> u64| -> u64 {
                all.iter().flatten().map(|report| of(report)).sum()
            };
            format!(
                "{} and {} removed ({}); {} may still be committed",
                counted(sum(|report| report.files_removed), "old file"),
                counted(sum(|report| report.orphans_removed), "left-over"),
                bytes(sum(|report| report.bytes_removed)),
                counted(sum(|report| report.orphans_kept), "file")
            )
        }
    }
}

pub(super) async fn set(session: &mut Session<'_>, args: SetArgs) -> Outcome {
    let store = match args.changes.is_empty() {
        true => session.open().await?,
        false => {
            drop(session.open().await?);
            session.open_for_writing(Durability::Fsync).await?
        }
    };
    let state = store.raw_state(&args.state).await?;
    let settings = match args.changes.is_empty() {
        true => state.maintenance_settings().await?,
        false => state.set_maintenance(&args.changes).await?,
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
