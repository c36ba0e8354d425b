//! The forks' part: whatever was forked from the state, directly or through other forks, has files of its own with the same rows.

use alluvium_log::{
    Error, ErrorKind, ForkRecord, Log, LogOptions, NameFolder, Result, identity_of, told_unfinished,
};

use super::{EraseOptions, EraseReceipt, erase_alone};
use crate::snapshot::Snapshot;

/// The forks that come from a state.
///
/// Whoever makes a fork takes its name first and looks then whether keys are marked that were not before: so this is asked
/// when the keys are marked.
///
/// # Errors
/// One is not whole: what it is made of may hold the keys.
pub(super) async fn forks_of(snapshot: &Snapshot) -> Result<Vec<ForkRecord>> {
    let names = NameFolder::of(snapshot.storage());
    let state = snapshot.log().state();
    let mut forks = names.forks().await?;
    forks.retain(|fork| fork.comes_from(identity_of(&state)));
    for fork in &forks {
        if fork.dropped_ms.is_some() {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "{}; its files may hold the keys, which are marked: run the erase again then",
                    told_unfinished(fork)
                ),
            ));
        }
        let is_whole = snapshot.storage().has_state(&fork.name).await?;
        if !is_whole {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "the fork {name} of {} at commit {} is not whole, and its files may hold the keys, which are marked: bring it to its end if it is being made, else drop it (`alluvium fork drop {name}`), and run the erase again",
                    fork.parent(),
                    fork.commit,
                    name = fork.name
                ),
            ));
        }
    }
    Ok(forks)
}

/// Takes keys out of a fork.
pub(super) async fn erase_fork(
    snapshot: &Snapshot,
    fork: &ForkRecord,
    keys: &[String],
    options: &EraseOptions,
) -> Result<Option<EraseReceipt>> {
    let storage = snapshot.storage();
    let own = LogOptions { background_checkpoints: false, ..snapshot.log().options().clone() };
    let Some(log) = Log::open(storage, &fork.name, own).await? else {
        // It was dropped meanwhile.
        return Ok(None);
    };
    let of_fork = Snapshot::open(storage, &log).await?;
    let receipt = erase_alone(&of_fork, keys, options).await?;
    log.close().await;
    Ok(Some(receipt))
}
