//! A process of a race that only reads: the latest state, the past, and now and then whether the snapshot is the fold of the log.

use std::collections::VecDeque;
use std::time::Duration;

use alluvium::{Error, KeyFilter, Point, RawState};
use futures::TryStreamExt;

use super::worker::{Noted, Notes};

/// How many answers are remembered, to be asked for again.
const REMEMBERED: usize = 12;
/// Every so often everything is folded anew.
const VERIFIED_EVERY: u64 = 40;

/// Reads until the race is over.
pub(super) async fn read(state: &RawState, notes: &Notes) {
    let mut remembered: VecDeque<(i64, usize)> = VecDeque::new();
    for turn in 1_u64.. {
        if notes.is_over() {
            break;
        }
        match look(state, &mut remembered, turn).await {
            Ok(None) => notes.note(&Noted::Scanned),
            Ok(Some(wrong)) => notes.wrong(&wrong),
            Err(error) => notes.failed("a scan", &error),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Tells what is not as it was: keys are never deleted, and what a commit held it holds for ever.
async fn look(
    state: &RawState,
    remembered: &mut VecDeque<(i64, usize)>,
    turn: u64,
) -> Result<Option<String>, Error> {
    let commit = state.log().refresh().await?.version;
    let keys = keys_at(state, commit).await?;
    if let Some((before, fewer)) = remembered.back()
        && (commit < *before || keys < *fewer)
    {
        return Ok(Some(format!(
            "{keys} keys at commit {commit}, after {fewer} keys at commit {before}"
        )));
    }
    remembered.push_back((commit, keys));
    // The oldest of those that are remembered: its day may have been merged, or have moved to the archive, since.
    let (then, known) = remembered[0];
    let found = keys_at(state, then).await?;
    if found != known {
        return Ok(Some(format!("{found} keys as of commit {then}, where there were {known}")));
    }
    if remembered.len() > REMEMBERED {
        // Some are kept for long.
        remembered.remove(if turn.is_multiple_of(8) { 0 } else { 1 });
    }
    match turn.is_multiple_of(VERIFIED_EVERY) && !state.verify().await?.is_sound() {
        true => Ok(Some("the snapshot is not the fold of the log".to_owned())),
        false => Ok(None),
    }
}

async fn keys_at(state: &RawState, commit: i64) -> Result<usize, Error> {
    let rows = state.scan(Point::at_commit(commit), KeyFilter::All).await?;
    rows.try_fold(0, |keys, batch| std::future::ready(Ok(keys + batch.num_rows()))).await
}
