//! `savepoint`: keeping a state as it is under a name, and letting go of it.

use alluvium::{Error, Savepoint};
use serde_json::json;

use super::{Outcome, Session, reports};
use crate::args::SavepointVerb;
use crate::failure::{ExitCodes, Failure};
use crate::output::TableStyle;
use crate::progress::{bytes, counted};

pub(super) async fn run(session: &mut Session<'_>, verb: SavepointVerb) -> Outcome {
    // A store with a state must be there already.
    let store = session.open().await?;
    match verb {
        SavepointVerb::Create { state, name, note } => {
            let store = session.open_for_writing().await?;
            let made = store.raw_state(&state).await?;
            let made = made.create_savepoint(&name, note.as_deref()).await?;
            session.say(&format!(
                "{state}: kept as of commit {} under {name} ({} in {})",
                made.log_commit,
                bytes(made.bytes()),
                counted(made.files(), "file")
            ));
            store.close().await;
        }
        SavepointVerb::List { state, grid } => {
            let state = store.raw_state(&state).await?;
            let found = match grid {
                true => state.grid_snapshots().await?,
                false => state.savepoints().await?,
            };
            let lines =
                found.iter().map(|found| line(found)).collect::<Result<Vec<_>, Failure>>()?;
            reports::write_as(session, &lines, TableStyle::Rows)?;
        }
        SavepointVerb::Release { state, name } => {
            let store = session.open_for_writing().await?;
            let released = store.raw_state(&state).await?.release_savepoint(&name).await?;
            session.say(&format!(
                "{state}: {name}, as of commit {}, is released; its files go with a vacuum when no read can last so long",
                released.log_commit
            ));
            store.close().await;
        }
    }
    Ok(ExitCodes::OK)
}

fn line(savepoint: &Savepoint) -> Result<String, Failure> {
    let time = |ms| {
        let time = chrono::DateTime::from_timestamp_millis(ms);
        time.map(|at| at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true))
    };
    let line = json!({
        "name": savepoint.name,
        "commit": savepoint.log_commit,
        "snapshot_of": time(savepoint.made_ms),
        "created": time(savepoint.created_ms),
        "note": savepoint.note,
        "files": savepoint.files(),
        "bytes": savepoint.bytes(),
    });
    serde_json::to_string(&line)
        .map_err(|error| Error::internal("a savepoint").with_source(error).into())
}
