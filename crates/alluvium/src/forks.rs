//! Forks: states that begin as another one was at a commit, with the same files, and go their own way from there.
//!
//! Making and dropping them is `alluvium_materializer::fork`; here is what an application calls. Bringing a fork's changes back to its
//! parent is in `promote.rs`. Why it is so: `docs/decisions/033-forks.md`.

use alluvium_log::{ErrorKind, ForkRecord, MaintenanceSettings, NameFolder};
use alluvium_materializer::{DropReport, ForkOptions, ForkReport, drop_fork, fork, is_left_over};
use alluvium_query::Point;
use serde::Serialize;

use crate::raw::RawState;
use crate::store::Store;
use crate::{Error, Result};

/// What has become of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForkStatus {
    /// It is a state as any other.
    Whole,
    /// It is being made, or that was cut off: nobody sees it.
    Unfinished,
    /// It is being dropped, or that was cut off.
    Dropping,
}

/// A fork of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fork {
    /// Its name, which is that of a state.
    pub name: String,
    /// The state that it was made of, by the name that this had then.
    pub parent: String,
    /// The commit that it was made at.
    pub commit: i64,
    /// When, in milliseconds since 1970.
    pub created_ms: i64,
    /// What has become of it.
    pub status: ForkStatus,
}

/// What the store keeps beside its states.
const STORE_FOLDER: &str = "_alluvium";

/// What was left of forks by those who died.
#[derive(Debug, Default)]
pub(crate) struct LeftOvers {
    /// Those that were removed.
    pub(crate) removed: Vec<String>,
    /// Files of the store's own folder that killed processes had begun to write.
    pub(crate) staged: Vec<String>,
    /// Those that could not be.
    pub(crate) failed: Vec<(String, Error)>,
}

impl Store {
    /// Makes a new state that begins as `parent` was at a point, with the same files: nothing is copied through this process. Both go
    /// their own way from there. The point is the newest commit, or any one that the tables can still be read at.
    ///
    /// ```
    /// use alluvium::{ForkOutcome, Point, Store};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    /// struct Item {
    ///     count: i64,
    /// }
    ///
    /// # #[tokio::main(flavor = "multi_thread")]
    /// # async fn main() -> alluvium::Result<()> {
    /// let store = Store::open("memory://").await?;
    /// let stock = store.state::<Item>("stock").await?;
    /// stock.put("bolt", &Item { count: 7 }).await?;
    ///
    /// let made = store.fork("stock", "what-if", Point::LATEST, false).await?;
    /// assert_eq!((made.outcome, made.commit), (ForkOutcome::Made, 1));
    /// let trial = store.state::<Item>("what-if").await?;
    /// trial.put("bolt", &Item { count: 3 }).await?;
    /// assert_eq!(stock.get("bolt").await?.map(|item| item.count), Some(7));
    ///
    /// store.promote_fork("what-if", &Default::default()).await?;
    /// assert_eq!(stock.get("bolt").await?.map(|item| item.count), Some(3));
    /// store.drop_fork("what-if").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The name is taken; the point is no single commit, or the tables can't be read as they were at it any more and no savepoint keeps
    /// it: fork the newest commit and restore it to the point, if the parent still answers as of it, which the error tells; keys were
    /// erased since.
    pub async fn fork(
        &self,
        parent: &str,
        name: &str,
        at: Point,
        dry_run: bool,
    ) -> Result<ForkReport> {
        let state = self.raw_state(parent).await?;
        if at.version.is_some() || at.event_time.is_some() {
            let why = Error::invalid(format!("{at} is no single commit of {parent}"));
            return Err(remedied(&state, name, at, why).await);
        }
        let options = ForkOptions { name: name.to_owned(), at: at.commit, dry_run };
        match fork(state.snapshot(), &options).await {
            Err(error) if error.kind() == ErrorKind::PointUnavailable => {
                Err(remedied(&state, name, at, error).await)
            }
            made => made,
        }
    }

    /// The forks of the store, in the order of their names.
    pub async fn forks(&self) -> Result<Vec<Fork>> {
        let mut forks = Vec::new();
        for record in NameFolder::of(self.storage()).forks().await? {
            let is_whole = self.storage().has_state(&record.name).await?;
            let status = match (record.dropped_ms, is_whole) {
                (Some(_), _) => ForkStatus::Dropping,
                (None, true) => ForkStatus::Whole,
                (None, false) => ForkStatus::Unfinished,
            };
            forks.push(Fork {
                parent: record.parent().to_owned(),
                commit: record.commit,
                created_ms: record.created_ms,
                name: record.name,
                status,
            });
        }
        Ok(forks)
    }

    /// Drops a fork with all that was appended to it. Its parent is not touched, nor are forks that were made of it. Reads of it that are
    /// under way fail.
    ///
    /// # Errors
    /// The state is no fork, or somebody is at work making it. Killed midway the fork is gone, or whole; run again it removes the rest.
    pub async fn drop_fork(&self, name: &str) -> Result<DropReport> {
        self.forget(name).await;
        drop_fork(self.storage(), name, &self.log_options()).await
    }

    /// Removes what is left of forks whose maker, or dropper, died longer ago than what no version has stays, and of writes beside
    /// the states.
    pub(crate) async fn remove_left_overs(&self, dry_run: bool) -> LeftOvers {
        let mut found = LeftOvers::default();
        let grace_ms = MaintenanceSettings::default().orphan_grace_ms;
        let cutoff_ms = self.clock().now_ms().saturating_sub(grace_ms);
        match self.storage().remove_staged(STORE_FOLDER, cutoff_ms, dry_run).await {
            Ok(report) => found.staged = report.paths,
            Err(error) => found.failed.push((format!("({STORE_FOLDER})"), error)),
        }
        let forks = match NameFolder::of(self.storage()).forks().await {
            Ok(forks) => forks,
            Err(error) => {
                found.failed.push(("(forks)".to_owned(), error));
                return found;
            }
        };
        for record in forks {
            match self.remove_left_over(&record, dry_run).await {
                Ok(true) => found.removed.push(record.name),
                Ok(false) => {}
                Err(error) => found.failed.push((record.name, error)),
            }
        }
        found
    }

    async fn remove_left_over(&self, record: &ForkRecord, dry_run: bool) -> Result<bool> {
        let grace_ms = MaintenanceSettings::default().orphan_grace_ms;
        let is_old = is_left_over(record, grace_ms, self.clock().now_ms());
        if !is_old || record.dropped_ms.is_none() && self.storage().has_state(&record.name).await? {
            return Ok(false);
        }
        if !dry_run {
            self.drop_fork(&record.name).await?;
        }
        Ok(true)
    }

    /// The record of a fork that is whole.
    pub(crate) async fn fork_record(&self, name: &str) -> Result<ForkRecord> {
        let names = NameFolder::of(self.storage());
        if let Some(record) = names.fork(name).await? {
            return Ok(record);
        }
        let known: Vec<String> = names.forks().await?.into_iter().map(|fork| fork.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(Error::new(
            ErrorKind::NotFound,
            format!("{name:?} is no fork of the store {}: there is {known}", self.label()),
        ))
    }
}

/// What helps where a state can't be forked at a point. A fork of the newest commit answers about the past what the state does: so it can
/// be brought back to the point exactly if the state answers as of it.
async fn remedied(state: &RawState, name: &str, at: Point, error: Error) -> Error {
    let (reader, parent) = (state.reader(), state.name());
    let asked = async {
        let basis = reader.basis().await?;
        if at.commit.is_some_and(|commit| commit > basis.commit()) {
            return Ok(false);
        }
        reader.get(&basis, at, "").await.map(|_| at != Point::LATEST)
    };
    match asked.await {
        Ok(true) => error.context(format!(
            "fork the newest commit, and bring it back: `alluvium fork {parent} {name}`, then `alluvium restore {name} --to {at}`"
        )),
        Ok(false) => error,
        Err(gone) if gone.kind() == ErrorKind::PointUnavailable => gone.context(format!(
            "{parent} can't be forked at {at}, nor does it tell any more what it was then"
        )),
        Err(other) => other,
    }
}
