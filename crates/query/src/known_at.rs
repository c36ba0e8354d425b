//! Which commit was the newest at a time: what the store knew then, whenever it happened.

use std::sync::Arc;

use alluvium_log::{Error, ErrorKind, Result, TableState, VersionAt};

use crate::point::time_text;
use crate::reader::Reader;

impl Reader {
    /// The newest commit, among those up to `newest`, that had been made at a time, in microseconds since 1970 UTC; the time itself counts.
    ///
    /// Times are those that commits say themselves, so that a copy of a store answers the same; where clocks of writers stepped back, a
    /// commit counts as made a millisecond after the one before. A time after the last commit is answered by that one, up to now: what
    /// writers whose clocks are behind add later may still count as made before.
    ///
    /// # Errors
    /// [`ErrorKind::PointUnavailable`]: the time lies in the future, or before the first commit that is left to tell its time (of those
    /// before `commit_retention` only the rows are left). The error names it, and the nearest savepoint or snapshot of the grid before
    /// the time. [`ErrorKind::Corrupt`]: which commit it was depends on one that can't be read.
    pub async fn commit_known_at(&self, newest: &Arc<TableState>, micros: i64) -> Result<i64> {
        let log = &self.inner.log;
        let time_ms = micros.div_euclid(1_000);
        let refused = |why: String| {
            let message =
                format!("state {}: what was known at {} {why}", self.name(), time_text(micros));
            Err(Error::new(ErrorKind::PointUnavailable, message))
        };
        let now_ms = log.clock().now_ms().max(newest.timestamp_ms);
        if time_ms > now_ms {
            return refused(format!(
                "can't be told yet: it is {}, the newest commit is {} of {}",
                text_of(now_ms),
                newest.version,
                text_of(newest.timestamp_ms)
            ));
        }
        match log.table().version_at(newest, time_ms).await? {
            VersionAt::Version(commit) => Ok(commit),
            VersionAt::Unreadable { version, .. } => Err(Error::corrupt(format!(
                "state {}: what was known at {} can't be told: commit {version} ({version:020}.json) of the log can't be read, and tells when it was made; put the file back from a copy, or ask by --commit",
                self.name(),
                time_text(micros)
            ))),
            VersionAt::Before { version: 0, made_ms } => {
                refused(format!("is nothing: the state was made at {}", text_of(made_ms)))
            }
            VersionAt::Before { version, made_ms } => {
                let mut kept = self.inner.snapshot.savepoints().await?;
                kept.extend(self.inner.snapshot.grid_snapshots().await?);
                let nearest = kept
                    .iter()
                    .filter(|kept| kept.made_ms <= time_ms)
                    .max_by_key(|kept| (kept.log_commit, kept.made_ms));
                let nearest = nearest.map_or_else(String::new, |kept| {
                    format!(
                        "; of the time before, commit:{} is kept by {}, folded at {}",
                        kept.log_commit,
                        if kept.is_of_grid() { "the grid" } else { &kept.name },
                        text_of(kept.made_ms)
                    )
                });
                refused(format!(
                    "can't be told any more: the first commit that tells its time is {version} of {}{nearest}",
                    text_of(made_ms)
                ))
            }
        }
    }
}

fn text_of(ms: i64) -> String {
    time_text(ms.saturating_mul(1_000))
}
