//! Which version was the newest at a time, by the times that commits say themselves.
//!
//! Times of files are not asked: a copy of a table has others. As everywhere, a commit whose time does not lie after the one before it
//! counts as made a millisecond later, so that times increase with the versions. Commits of ours are written like that; only those of
//! other engines are looked at together with their predecessors.

use super::Table;
use super::model::Action;
use super::state::TableState;
use crate::error::{ErrorKind, Result};

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
    /// It can't be told: a commit that lies around this time can't be read.
    Unreadable {
        /// The version of that commit.
        version: i64,
        /// The first version after it that tells when it was made; none where none does.
        next: Option<i64>,
    },
}

impl Table {
    /// The version that was the newest one at a time, in milliseconds since 1970, among those up to a state's: about two commits are
    /// read for each doubling of how far it lies back.
    pub async fn version_at(&self, newest: &TableState, time_ms: i64) -> Result<VersionAt> {
        // A state whose own commit can't be read has no time.
        let is_dated = newest.timestamp_ms > 0;
        if is_dated && newest.timestamp_ms <= time_ms {
            return Ok(VersionAt::Version(newest.version));
        }
        let mut above = newest.version + i64::from(!is_dated);
        let mut above_ms = is_dated.then_some(newest.timestamp_ms);
        let (mut below, mut is_told) = (-1, false);
        let mut step = 1;
        while above - below > 1 {
            // By steps that double until it is passed, by halves from then on.
            let mid = match below {
                -1 if !is_told => (above - step).max(0),
                _ => below + (above - below) / 2,
            };
            step *= 2;
            let Some((mid, made_ms)) = self.dated_near(mid, below, above).await? else {
                return Ok(VersionAt::Unreadable {
                    version: above - 1,
                    next: above_ms.map(|_| above),
                });
            };
            match made_ms {
                Some(made_ms) if made_ms > time_ms => (above, above_ms) = (mid, Some(made_ms)),
                made_ms => (below, is_told) = (mid, made_ms.is_some()),
            }
        }
        Ok(match (is_told, above_ms) {
            (true, _) => VersionAt::Version(below),
            (false, Some(made_ms)) => VersionAt::Before { version: above, made_ms },
            (false, None) => VersionAt::Unreadable { version: newest.version, next: None },
        })
    }

    /// The version nearest to one, between two others, of which can be told when it was made, or that its commit is gone; `None` where
    /// none of their commits can be read.
    async fn dated_near(
        &self,
        version: i64,
        below: i64,
        above: i64,
    ) -> Result<Option<(i64, Option<i64>)>> {
        for version in (below + 1..=version).rev().chain(version + 1..above) {
            match self.made_ms(version).await {
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                made_ms => return Ok(Some((version, made_ms?))),
            }
        }
        Ok(None)
    }

    /// When the first version from one on was made of which that can be told, in milliseconds since 1970.
    pub async fn made_ms_from(&self, version: i64, newest: &TableState) -> Result<Option<i64>> {
        let next = self.dated_near(version, version - 1, newest.version + 1).await?;
        Ok(next.and_then(|(_, made_ms)| made_ms))
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
