//! What was wanted and what came of it, as words for whoever looks into a find.

use crate::actors::{Done, Intent};
use crate::checks::Broken;
use crate::typed::Streamed;

/// An error with all that it comes of.
pub(super) fn told(error: alluvium::Error) -> Broken {
    let mut text = format!("{error} ({:?})", error.kind());
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// What a process sets out to do.
pub(super) fn shown(intent: &Intent) -> String {
    match intent {
        Intent::Append { attempt, rows, .. } => format!("attempt {attempt} of {} rows", rows.len()),
        Intent::Epoch { attempt, app, number, .. } => {
            format!("attempt {attempt}, epoch {number} of {app}")
        }
        Intent::Stream { app, epochs } => {
            let numbers: Vec<i64> = epochs.iter().map(|sent| sent.number).collect();
            format!("epochs {numbers:?} of {app}")
        }
        Intent::OnFork(name, what) => format!("on fork {name} {}", shown(what)),
        other => format!("{other:?}"),
    }
}

/// What came of it.
pub(super) fn outcome(done: &Done) -> String {
    let of = |outcome: Result<String, &alluvium::Error>| match outcome {
        Ok(text) => text,
        Err(error) => format!("{error} ({:?})", error.kind()),
    };
    match done {
        Done::Opened(opened) => of(opened.as_ref().map(|_| "opened".to_owned())),
        Done::Appended(receipt) => {
            of(receipt.as_ref().map(|receipt| format!("commit {}", receipt.commit)))
        }
        Done::Epoch(epoch) => of(epoch.as_ref().map(|epoch| format!("{epoch:?}"))),
        Done::Foreign(text) => text.clone(),
        Done::Kept(kept) => of(kept.as_ref().map(|()| "done".to_owned())),
        Done::Told(Err(error)) | Done::Told(Ok((_, Err(error)))) => of(Err(error)),
        Done::Told(Ok((basis, Ok(_)))) => format!("told as of {}", basis.commit()),
        Done::Saved(saved) | Done::Released(saved) => {
            of(saved.as_ref().map(|saved| format!("savepoint of commit {}", saved.log_commit)))
        }
        Done::Restored(report) => of(report.as_ref().map(|report| format!("{report:?}"))),
        Done::Erased(receipt) => of(receipt.as_ref().map(|_| "erased".to_owned())),
        Done::Held(basis) => of(basis.as_ref().map(|basis| format!("holds {}", basis.commit()))),
        Done::ToldHeld(basis, told, is_held) => {
            let told = told.as_ref().map(|_| format!("told as of {}", basis.commit()));
            format!("{} (held: {is_held})", of(told))
        }
        Done::Cached(found) => of(found.as_ref().map(|found| format!("{found:?}"))),
        Done::Streamed(Streamed { durable, outcome, .. }) => {
            format!("durable {durable:?}, {}", of(outcome.as_ref().map(|()| "flushed".to_owned())))
        }
        Done::Beaten(_, told) => of(told.as_ref().map(|told| format!("{told:?}"))),
        Done::LetGo(_, told) => of(told.as_ref().map(|()| "let go".to_owned())),
        Done::Repaired(report) => of(report.as_ref().map(|report| format!("{report:?}"))),
        Done::Forked(report) => of(report.as_ref().map(|report| format!("{report:?}"))),
        Done::OnFork(done) => outcome(done),
        Done::Promoted(report) => of(report.as_ref().map(|report| format!("{report:?}"))),
        Done::Dropped(report) => of(report.as_ref().map(|_| "dropped".to_owned())),
    }
}
