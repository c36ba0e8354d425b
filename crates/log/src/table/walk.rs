//! A walk over all versions of a table that can be made, oldest first, also past commits that can't be read.
//!
//! A commit that is damaged is no harm to the newest version while a later checkpoint stands for it. The versions from it up to that
//! checkpoint can't be made then: they are a *hole*. What is told of a hole is what its other commits say, and since when it is over at the
//! latest; whoever walks decides what that means for what may depend on it.

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use super::listing::{LogListing, Origin};
use super::load::{MAX_LOADS, is_of_log};
use super::state::TableState;
use super::{Action, Table, commit_path};
use crate::error::{Error, ErrorKind, Result};

/// How many commits are read at the same time.
const WALK_CONCURRENCY: usize = 32;

/// A commit that can't be read, while a later checkpoint stands for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableCommit {
    /// Its file, with the table that it is of.
    pub file: String,
    /// Its version.
    pub version: i64,
    /// The first version after it that can be made, of the checkpoint that stands for it.
    pub whole_from: i64,
    /// When the versions before that one ceased to be the newest, at the latest, in milliseconds since 1970; none where no commit tells
    /// yet. When these are as old as `commit_retention`, a clean-up removes the file.
    pub over_ms: Option<i64>,
    /// What is wrong with it.
    pub problem: String,
}

impl UnreadableCommit {
    /// Whether there are versions that can't be made without it; none where a checkpoint of its own version stands for it.
    pub fn makes_a_hole(&self) -> bool {
        self.version < self.whole_from
    }
}

/// Versions that can't be made, because commits can't be read.
pub(super) struct Hole {
    /// The commits that can't be read, in order.
    pub(super) unreadable: Vec<UnreadableCommit>,
    /// What the others say, those of the version that can be made again included.
    pub(super) actions: Vec<Action>,
    /// When it was over, at the latest.
    pub(super) over_ms: i64,
}

impl Hole {
    /// The versions that can't be made.
    pub(super) fn versions(&self, whole_from: i64) -> std::ops::Range<i64> {
        self.unreadable.first().map_or(whole_from, |first| first.version)..whole_from
    }
}

/// What lies between a version and the next one that can be made.
pub(super) enum Between {
    /// One commit.
    Commit(Vec<Action>),
    /// Commits of which some can't be read.
    Hole(Hole),
}

/// When a commit of ours was made: no earlier than any before it, which writers of other kinds don't see to.
fn raised_time(actions: &[Action]) -> Option<i64> {
    actions.iter().find_map(|action| match action {
        Action::Info(info) => info.id().and(info.timestamp_ms),
        _ => None,
    })
}

impl Table {
    /// Walks over the versions from one on up to the newest: `visit` is told each, the one before it, and what lies between. Where the
    /// commit of the first one can't be read, that is told as a hole before the same version.
    pub(super) async fn walk(
        &self,
        listing: &LogListing,
        from: TableState,
        newest: i64,
        mut visit: impl FnMut(&TableState, &TableState, &Between) + Send,
    ) -> Result<()> {
        let mut before = from;
        if before.version >= 0
            && before.timestamp_ms == 0
            && matches!(self.read_commit(before.version).await, Err(error) if error.kind() == ErrorKind::Corrupt)
        {
            // A checkpoint is what there is of the version, and the next commit tells until when it was the newest.
            let version = before.version;
            let (dated, hole) = self.hole_before(before.clone(), version, newest).await?;
            visit(&before, &dated, &Between::Hole(hole));
            before = dated;
        }
        while before.version < newest {
            let mut commits = self.commits_or_damage(before.version + 1, newest);
            let mut damaged = None;
            while let Some((version, read)) = commits.try_next().await? {
                let actions = match read {
                    Ok(actions) => actions,
                    Err(error) => {
                        damaged = Some((version, error));
                        break;
                    }
                };
                let after = before.apply(version, &actions).map_err(|e| self.placed(e))?;
                visit(&before, &after, &Between::Commit(actions));
                before = after;
            }
            drop(commits);
            if let Some((version, error)) = damaged {
                let (after, hole) = self.over_hole(listing, version, newest, error).await?;
                visit(&before, &after, &Between::Hole(hole));
                before = after;
            }
        }
        Ok(())
    }

    /// The commits of a range, in order, each with its actions, or why it is no commit; one that is missing is an error.
    fn commits_or_damage(
        &self,
        first: i64,
        last: i64,
    ) -> impl futures::Stream<Item = Result<(i64, Result<Vec<Action>>)>> + Unpin + Send + '_ {
        stream::iter(first..=last)
            .map(move |version| {
                async move { Ok((version, self.commit_or_damage(version).await?)) }.boxed()
            })
            .buffered(WALK_CONCURRENCY)
    }

    async fn commit_or_damage(&self, version: i64) -> Result<Result<Vec<Action>>> {
        match self.read_commit(version).await {
            Ok(Some(actions)) => Ok(Ok(actions)),
            Ok(None) => Err(self.missing_commit(version)),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Err(error)),
            Err(error) => Err(error),
        }
    }

    /// The first version after a damaged commit that can be made, and what is told of those before it.
    ///
    /// # Errors
    /// No checkpoint stands for the commit: then the newest version needs it.
    async fn over_hole(
        &self,
        listing: &LogListing,
        version: i64,
        newest: i64,
        error: Error,
    ) -> Result<(TableState, Hole)> {
        for &at in listing.checkpoints.range(version..=newest) {
            match self.load_origin(Origin::Checkpoint(at), at).await {
                Ok(after) => return self.hole_before(after, version, newest).await,
                Err(error) if is_of_log(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(error)
    }

    async fn hole_before(
        &self,
        after: TableState,
        first: i64,
        newest: i64,
    ) -> Result<(TableState, Hole)> {
        let whole_from = after.version;
        let (mut unreadable, mut all, mut over) = (Vec::new(), Vec::new(), None);
        let mut commits = self.commits_or_damage(first, whole_from);
        while let Some((version, read)) = commits.try_next().await? {
            match read {
                Ok(actions) => {
                    over = raised_time(&actions).filter(|_| version == whole_from);
                    all.extend(actions);
                }
                Err(error) => unreadable.push(UnreadableCommit {
                    file: format!("{}/{}", self.label(), commit_path(version)),
                    version,
                    whole_from,
                    over_ms: None,
                    problem: error.message().to_owned(),
                }),
            }
        }
        for version in whole_from + 1..=newest {
            if over.is_some() {
                break;
            }
            if let Ok(actions) = self.commit_or_damage(version).await? {
                over = raised_time(&actions);
            }
        }
        unreadable.iter_mut().for_each(|commit| commit.over_ms = over);
        // The version is as young as it can be where its own commit doesn't tell.
        let made_ms = if after.timestamp_ms > 0 { None } else { over.map(|over| over - 1) };
        let hole = Hole { unreadable, actions: all, over_ms: over.unwrap_or(i64::MAX) };
        Ok((after.made_at(made_ms), hole))
    }

    /// The commits of the table that can't be read, while checkpoints stand for them, oldest first.
    pub async fn unreadable_commits(&self) -> Result<Vec<UnreadableCommit>> {
        let (mut newest, mut listing) = self.newest_listed().await?;
        for _ in 1..MAX_LOADS {
            let error = match self.unreadable_among(&newest, &listing).await {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            (newest, listing) = self.listed_anew(&listing).await?.ok_or(error)?;
        }
        self.unreadable_among(&newest, &listing).await
    }

    async fn unreadable_among(
        &self,
        newest: &TableState,
        listing: &LogListing,
    ) -> Result<Vec<UnreadableCommit>> {
        let oldest = self.oldest_state(listing, newest.version).await?;
        let mut found = Vec::new();
        self.walk(listing, oldest, newest.version, |_, _, between| {
            if let Between::Hole(hole) = between {
                found.extend(hole.unreadable.iter().cloned());
            }
        })
        .await?;
        Ok(found)
    }
}
