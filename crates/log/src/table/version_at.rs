//! Which version was the newest at a time, by the times that commits say themselves.
//!
//! Times of files are not asked: a copy of a table has others. As everywhere, a commit whose time does not lie after the one before it
//! counts as made a millisecond later, so that times increase with the versions. Commits of ours are written like that; only those of
//! other engines are looked at together with their predecessors.

use super::Table;
use super::model::Action;
use super::state::TableState;
use crate::error::Result;

/// The newest version at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionAt {
    /// This version was.
    Version(i64),
    /// It lies before the oldest commit that is left to tell its time.
    Before {
        /// The version of that commit.
        version: i64,
        /// Its time, in milliseconds since 1970.
        made_ms: i64,
    },
}

impl Table {
    /// The version that was the newest one at a time, in milliseconds since 1970, among those up to a state's: about two commits are
    /// read for each doubling of how far it lies back.
    pub async fn version_at(&self, newest: &TableState, time_ms: i64) -> Result<VersionAt> {
        if newest.timestamp_ms <= time_ms {
            return Ok(VersionAt::Version(newest.version));
        }
        let (mut above, mut above_ms) = (newest.version, newest.timestamp_ms);
        let (mut below, mut is_told) = (-1, false);
        let mut step = 1;
        while above - below > 1 {
            // By steps that double until it is passed, by halves from then on.
            let mid = match below {
                -1 if !is_told => (above - step).max(0),
                _ => below + (above - below) / 2,
            };
            step *= 2;
            match self.made_ms(mid).await? {
                Some(made_ms) if made_ms > time_ms => (above, above_ms) = (mid, made_ms),
                made_ms => (below, is_told) = (mid, made_ms.is_some()),
            }
        }
        Ok(match is_told {
            true => VersionAt::Version(below),
            false => VersionAt::Before { version: above, made_ms: above_ms },
        })
    }

    /// When a version was made, in milliseconds since 1970; none where its commit has been cleaned up, or never was.
    pub async fn made_ms(&self, version: i64) -> Result<Option<i64>> {
        let mut times = Vec::new();
        for version in (0..=version).rev() {
            let Some(actions) = self.read_commit(version).await? else { break };
            let info = actions.iter().find_map(|action| match action {
                Action::Info(info) => Some(info),
                _ => None,
            });
            times.push(info.and_then(|info| info.timestamp_ms));
            if info.is_some_and(|info| info.id().is_some()) {
                break;
            }
        }
        let effective = times.into_iter().rev().reduce(|before, given| {
            let floor = before.map(|before| before.saturating_add(1));
            given.max(floor)
        });
        Ok(effective.map(|made_ms| made_ms.unwrap_or(0)))
    }
}
