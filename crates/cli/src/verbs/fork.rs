//! `fork`: a state that begins as another one was; listing, dropping and promoting such states.

use alluvium::{
    Error, Fork, ForkOutcome, ForkReport, NamedPoint, Point, PromoteOptions, PromoteOutcome,
    PromoteReport, Store,
};
use serde::Serialize;
use serde_json::json;

use super::diff::{Counts, show};
use super::{Outcome, Session, reports};
use crate::args::{ForkArgs, ForkVerb};
use crate::failure::{ExitCodes, Failure};
use crate::output::TableStyle;
use crate::progress::{bytes, counted, thousands};

pub(super) async fn run(session: &mut Session<'_>, args: ForkArgs) -> Outcome {
    // A store with a state must be there already.
    let store = session.open().await?;
    match args.verb {
        None => make(session, &store, args).await?,
        Some(ForkVerb::List) => {
            let forks = store.forks().await?;
            let lines = forks.iter().map(line).collect::<Result<Vec<_>, Failure>>()?;
            reports::write_as(session, &lines, TableStyle::Rows)?;
        }
        Some(ForkVerb::Drop { name }) => {
            let store = session.open_for_writing().await?;
            let dropped = store.drop_fork(&name).await?;
            session.say(&format!(
                "{name}, a fork of {} at commit {}, is dropped ({})",
                dropped.parent,
                dropped.commit,
                counted(dropped.files, "file")
            ));
        }
        Some(ForkVerb::Promote { name, overwrite, dry_run, limit }) => {
            let options = PromoteOptions { overwrite, dry_run };
            promote(session, &store, &name, options, limit).await?;
        }
    }
    Ok(ExitCodes::OK)
}

async fn make(session: &mut Session<'_>, store: &Store, args: ForkArgs) -> Result<(), Failure> {
    let (Some(state), Some(name)) = (&args.state, &args.name) else {
        return Err(Failure::usage("give the state and the name of its fork"));
    };
    let at = match &args.savepoint {
        None => args.at.clone().unwrap_or_default(),
        Some(wanted) => NamedPoint::at_savepoint(wanted),
    };
    let at = match at.plain() {
        Some(point) => point,
        None => store.raw_state(state).await?.reader().point(&at).await?,
    };
    let report = match args.dry_run {
        true => store.fork(state, name, at, true).await?,
        false => {
            let store = session.open_for_writing().await?;
            let report = store.fork(state, name, at, false).await?;
            store.close().await;
            report
        }
    };
    if !session.is_table() {
        write(session, &report)?;
    }
    let elapsed = session.elapsed();
    session.say(&format!("{} ({elapsed})", tell(&report)));
    Ok(())
}

async fn promote(
    session: &mut Session<'_>,
    store: &Store,
    name: &str,
    options: PromoteOptions,
    limit: Option<u64>,
) -> Result<(), Failure> {
    if options.dry_run || session.is_table() {
        let told = store.promote_fork(name, &PromoteOptions { dry_run: true, ..options }).await?;
        let fork = store.raw_state(name).await?;
        let basis = fork.reader().basis().await?;
        let since = Point::at_commit(told.since_commit);
        let keys = alluvium::KeyFilter::All;
        let differences = fork.reader().diff_rows(&basis, since, Point::LATEST, keys).await?;
        let mut counts = Counts::default();
        show(session, &basis, differences, limit, &mut counts).await?;
        session.console.stdout.flush()?;
    }
    let report = match options.dry_run {
        true => store.promote_fork(name, &options).await?,
        false => {
            let store = session.open_for_writing().await?;
            let report = store.promote_fork(name, &options).await?;
            store.close().await;
            report
        }
    };
    if !options.dry_run && !session.is_table() {
        write(session, &report)?;
    }
    let elapsed = session.elapsed();
    session.say(&format!("{} ({elapsed})", tell_promoted(&report)));
    Ok(())
}

fn write(session: &mut Session<'_>, report: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(report);
    let line = line.map_err(|error| Error::internal("a report").with_source(error))?;
    reports::write(session, &[line]).map(drop)
}

fn line(fork: &Fork) -> Result<String, Failure> {
    let time = chrono::DateTime::from_timestamp_millis(fork.created_ms);
    let line = json!({
        "name": fork.name,
        "parent": fork.parent,
        "commit": fork.commit,
        "created": time.map(|at| at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)),
        "status": fork.status,
    });
    serde_json::to_string(&line)
        .map_err(|error| Error::internal("a fork").with_source(error).into())
}

fn tell(report: &ForkReport) -> String {
    let ForkReport { parent, name, commit, .. } = report;
    let mut shared = format!("{} of {}", counted(report.files, "file"), bytes(report.bytes));
    if report.without_log {
        shared += ": the kept snapshot alone, as the log of then is gone; what was before is to be asked of ";
        shared += parent;
    }
    match report.outcome {
        ForkOutcome::DryRun => {
            format!(
                "{name} would begin as {parent} at commit {commit}, with {shared}; nothing was made"
            )
        }
        ForkOutcome::Made => format!("{name} begins as {parent} at commit {commit}, with {shared}"),
        ForkOutcome::Finished => format!(
            "{name}, begun before, is whole: it begins as {parent} at commit {commit}, with {shared}"
        ),
    }
}

fn tell_promoted(report: &PromoteReport) -> String {
    let PromoteReport { fork, parent, fork_commit, .. } = report;
    let also = match report.overwritten {
        0 => String::new(),
        count => format!(", of them {} that {parent} had changed too", thousands(count)),
    };
    let counts = format!(
        "{} set, {} deleted{also}",
        counted(report.upserted, "key"),
        thousands(report.deleted)
    );
    match (report.outcome, report.commit) {
        (PromoteOutcome::DryRun, _) => format!("{fork} to {parent}: {counts}; nothing was written"),
        (PromoteOutcome::AlreadyApplied, _) => format!(
            "{fork} was promoted to {parent} up to its commit {fork_commit} before; nothing was written"
        ),
        (PromoteOutcome::Promoted, Some(commit)) => format!(
            "{fork} to {parent}: {counts}, by commit {commit}; to undo it, restore {parent} to commit:{}",
            report.before_commit
        ),
        _ => format!("{parent} has all that was changed in {fork}: nothing to do"),
    }
}
