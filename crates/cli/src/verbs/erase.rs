//! `erase`: keys leave a state for good, with a receipt.

use alluvium::{EraseReceipt, Error};

use super::maintain::{check_report_file, write_report};
use super::{Outcome, Session};
use crate::args::{EraseArgs, OutputFormat};
use crate::failure::{ExitCodes, Failure};
use crate::progress::counted;

pub(super) async fn run(session: &mut Session<'_>, args: EraseArgs) -> Outcome {
    if matches!(session.format(), OutputFormat::Csv | OutputFormat::Parquet | OutputFormat::Arrow) {
        return Err(Failure::usage("a receipt has no columns: use --output table, json or jsonl"));
    }
    if let Some(path) = &args.receipt {
        check_report_file(path)?;
    }
    // A state to erase from must be there already.
    drop(session.open().await?);
    let store = session.open_for_writing().await?;
    let state = store.raw_state(&args.state).await?;
    if args.forget {
        let forgotten = state.forget_erased(&args.keys).await?;
        store.close().await;
        session.say(&format!(
            "{}: {} may be appended again",
            args.state,
            counted(forgotten, "erased key")
        ));
        return Ok(ExitCodes::OK);
    }
    let receipt = state.erase(&args.keys, args.now).await?;
    store.close().await;
    write_report(args.receipt.as_deref(), &receipt)?;
    let text = match session.is_table() {
        true => serde_json::to_string_pretty(&receipt),
        false => serde_json::to_string(&receipt),
    };
    let text = text.map_err(|error| Error::internal("a receipt").with_source(error))?;
    writeln!(session.console.stdout, "{text}")?;
    session.console.stdout.flush()?;
    let elapsed = session.elapsed();
    session.say(&format!("{} ({elapsed})", tell(&receipt)));
    Ok(ExitCodes::OK)
}

fn tell(receipt: &EraseReceipt) -> String {
    let of_forks = receipt.forks.iter().map(|fork| fork.pending.len()).sum::<usize>();
    let pending = receipt.pending.len() + of_forks;
    let left = match receipt.nothing_left_after_ms.map(chrono::DateTime::from_timestamp_millis) {
        None => "nothing is left of them".to_owned(),
        Some(until) => format!(
            "{} still hold them: maintain removes these, the last one by {}",
            counted(pending as u64, "older file"),
            until.map_or_else(String::new, |at| at
                .to_rfc3339_opts(chrono::SecondsFormat::Secs, true))
        ),
    };
    let unreadable = match receipt.unreadable.len() as u64 {
        0 => String::new(),
        count => format!("; {} that belong to nothing can't be read", counted(count, "file")),
    };
    let set_aside = match receipt.set_aside.len() as u64 {
        0 => String::new(),
        count => format!(
            "; {} that were set aside as damaged may hold them too, see set_aside: remove these by hand",
            counted(count, "file")
        ),
    };
    let forks = match receipt.forks.len() as u64 {
        0 => String::new(),
        count => format!(", and in {} of it", counted(count, "fork")),
    };
    format!(
        "{}: {} erased, {} of the log, {} rewritten{forks}; {left}{unreadable}{set_aside}",
        receipt.state,
        counted(receipt.markers.len() as u64, "key"),
        counted(receipt.rows_removed, "row"),
        counted(receipt.files.len() as u64, "file"),
    )
}
