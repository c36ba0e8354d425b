//! `restore`: the latest state, or some of its keys, as at a point; what would change is shown first.

use alluvium::{Error, Point, RestoreOutcome, RestoreReport};

use super::diff::{Counts, show};
use super::{Outcome, Session, reports};
use crate::args::RestoreArgs;
use crate::failure::{ExitCodes, Failure};
use crate::progress::{counted, thousands};

pub(super) async fn run(session: &mut Session<'_>, args: RestoreArgs) -> Outcome {
    if args.to.is_latest() {
        return Err(Failure::usage(
            "to restore to latest is to change nothing: name a point of the past, such as commit:7",
        ));
    }
    let store = match args.dry_run {
        true => session.open().await?,
        false => {
            drop(session.open().await?);
            session.open_for_writing().await?
        }
    };
    let state = store.raw_state(&args.state).await?;
    let to = state.reader().point(&args.to).await?;
    let options = args.options(to);
    if args.dry_run || session.is_table() {
        let reader = state.reader();
        let basis = reader.basis().await?;
        let keys = options.keys.clone();
        let differences = reader.diff_rows(&basis, Point::LATEST, to, keys).await?;
        let mut counts = Counts::default();
        show(session, &basis, differences, args.limit, &mut counts).await?;
        session.console.stdout.flush()?;
    }
    let report = state.restore(&options).await?;
    store.close().await;
    if !args.dry_run && !session.is_table() {
        let line = serde_json::to_string(&report);
        let line = line.map_err(|error| Error::internal("a report").with_source(error))?;
        reports::write(session, &[line])?;
    }
    let elapsed = session.elapsed();
    session.say(&format!("{} ({elapsed})", tell(&report)));
    Ok(ExitCodes::OK)
}

fn tell(report: &RestoreReport) -> String {
    let counts = format!(
        "{} brought back, {} set back, {} removed",
        counted(report.brought_back, "key"),
        thousands(report.set_back),
        thousands(report.removed)
    );
    let (state, to) = (&report.state, &report.to);
    match (report.outcome, report.commit) {
        (RestoreOutcome::DryRun, _) => {
            format!("{state} to {to}: {counts}; nothing was written")
        }
        (RestoreOutcome::AlreadyApplied, _) => {
            format!("{state}: the restore {} was applied before; nothing was written", report.id)
        }
        (RestoreOutcome::Restored, Some(commit)) => format!(
            "{state} to {to}: {counts}, by commit {commit}; to undo it, restore to commit:{}",
            report.before_commit
        ),
        _ => format!("{state} is as it was at {to}: nothing to do"),
    }
}
