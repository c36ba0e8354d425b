//! Forks: a new state that begins as another one was at a commit, with the same files, and goes its own way from there.
//!
//! ```text
//! the name is taken -> archive, snapshot and log are linked, but for the gate of the log -> the gate
//!                      dead here: a name and files that nobody sees; a second run goes on from there
//! ```
//!
//! Nothing is copied through this process: a file of a local folder gets a second name (a hard link), and an object store copies by
//! itself. From the gate on nothing of the fork hangs on its parent, nor the other way round: a vacuum of either removes its own names.
//! While the fork is being made, a lease holds what it is made of.

mod dropping;
mod plan;
mod shared;

use alluvium_log::{
    Action, Ancestor, ERASE_APP_ID, ERASED_APP_ID, Error, ErrorKind, ForkRecord, LEASE_SPAN_MS,
    Linking, Log, NameClaim, NameFolder, PROPERTY_FORK, PROPERTY_FORK_OF, Result, TableState,
    archive_path, identity_of, log_path, told_unfinished, validate_state_name,
};
use futures::FutureExt;
use serde::Serialize;
use serde_json::json;

use crate::snapshot::{Snapshot, snapshot_path};
pub use dropping::{DropReport, drop_fork, is_left_over};
use plan::Plan;
pub use shared::SharedFiles;

/// Whoever makes a fork says so this often.
const RENEWED_AFTER_MS: i64 = LEASE_SPAN_MS / 12;
/// Who has not said so for this long gives up: others may take the fork for a left-over soon.
const GIVEN_UP_AFTER_MS: i64 = LEASE_SPAN_MS / 2;

/// What is to be forked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkOptions {
    /// The name of the new state.
    pub name: String,
    /// The commit that it begins at; the newest one when not given.
    pub at: Option<i64>,
    /// Only tell what it would have.
    pub dry_run: bool,
}

/// What came of making a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForkOutcome {
    /// It was made.
    Made,
    /// One that was begun before was brought to its end.
    Finished,
    /// Nothing was written.
    DryRun,
}

/// What a fork was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForkReport {
    /// The state.
    pub parent: String,
    /// The fork.
    pub name: String,
    /// What came of it.
    pub outcome: ForkOutcome,
    /// The commit that it begins at: up to it both have the same log.
    pub commit: i64,
    /// The version of the parent's snapshot that it begins with; none when it has to be made anew.
    pub snapshot_version: Option<i64>,
    /// Snapshots that savepoints and the grid keep: it keeps them as well.
    pub kept: u64,
    /// Whether it begins with a kept snapshot alone: of the log's rows up to its commit it has none, nor does it know how far
    /// applications had come.
    pub without_log: bool,
    /// Files that both have.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Makes a new state that begins as this one was at a commit. A fork of the name that was begun before, of the same state and commit, is brought
/// to its end.
///
/// # Errors
/// The name is taken ([`ErrorKind::AlreadyExists`]); the tables can't be read as they were at the commit any more
/// ([`ErrorKind::PointUnavailable`]), and no savepoint keeps it: fork the newest one and restore it; keys were erased after the commit, or are being erased.
#[tracing::instrument(level = "info", skip_all, fields(state = snapshot.log().name(), fork = options.name), err(level = "debug"))]
pub async fn fork(snapshot: &Snapshot, options: &ForkOptions) -> Result<ForkReport> {
    validate_state_name(&options.name)?;
    let work = Work::new(snapshot, &options.name);
    let context = |error: Error| {
        error.context(format!("forking {} as {}", snapshot.log().name(), options.name))
    };
    work.run(options).boxed().await.map_err(context)
}

struct Work<'a> {
    snapshot: &'a Snapshot,
    name: &'a str,
    names: NameFolder,
}

impl<'a> Work<'a> {
    fn new(snapshot: &'a Snapshot, name: &'a str) -> Self {
        Self { snapshot, name, names: NameFolder::of(snapshot.storage()) }
    }

    fn log(&self) -> &Log {
        self.snapshot.log()
    }

    fn now_ms(&self) -> i64 {
        self.log().clock().now_ms()
    }

    async fn run(&self, options: &ForkOptions) -> Result<ForkReport> {
        match self.names.read(self.name).await? {
            Some(NameClaim::Fork(record)) => return self.go_on(record, options).await,
            Some(NameClaim::Create) => return Err(being_created(self.name)),
            None => self.check_name().await?,
        }
        let (record, plan) = self.chosen(options.at).await?;
        if options.dry_run {
            return Ok(plan.report(&record, ForkOutcome::DryRun));
        }
        match self.names.claim(self.name, &NameClaim::Fork(record.clone())).await? {
            None => {}
            Some(NameClaim::Fork(other)) => return self.go_on(other, options).await,
            Some(NameClaim::Create) => return Err(being_created(self.name)),
        }
        // Who erases keys looks for forks after the keys are marked: so that one of both sees the other.
        let made = match self.check_claimed(&plan).await {
            Ok(()) => self.make(record.clone(), &plan).await,
            Err(error) => Err(error),
        };
        if let Err(error) = made {
            // Without its gate there is nothing of it that anybody could see.
            if error.kind() != ErrorKind::Storage && error.kind() != ErrorKind::Unknown {
                dropping::clear_up(self.snapshot, &record).await?;
            }
            return Err(error);
        }
        Ok(plan.report(&record, ForkOutcome::Made))
    }

    /// Nobody else may have the name, nor one that differs from it only in case.
    async fn check_name(&self) -> Result<()> {
        let known = self.snapshot.storage().state_names().await?;
        match known.iter().find(|known| known.eq_ignore_ascii_case(self.name)) {
            None => Ok(()),
            Some(known) => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("the state {known:?} exists, and is no fork: use another name"),
            )),
        }
    }

    async fn check_claimed(&self, plan: &Plan) -> Result<()> {
        self.check_name().await?;
        let newest = self.log().refresh().await?;
        check_erased(&plan.log_state, &newest)
    }

    /// Brings a fork to its end that was begun before.
    async fn go_on(&self, record: ForkRecord, options: &ForkOptions) -> Result<ForkReport> {
        let is_same = record.ancestors == self.ancestors().await?
            && options.at.is_none_or(|commit| commit == record.commit);
        let is_whole = self.snapshot.storage().has_state(self.name).await?;
        if record.dropped_ms.is_some() {
            return Err(Error::new(ErrorKind::AlreadyExists, told_unfinished(&record)));
        }
        if is_whole || !is_same {
            let what = if is_whole { "is there already" } else { "is being made" };
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "the fork {} of {} at commit {} {what}: use another name, or drop it",
                    record.name,
                    record.parent(),
                    record.commit
                ),
            ));
        }
        let cut = |error: Error| {
            error.context(format!(
                "the fork was begun before and can't be brought to its end: `alluvium fork drop {}` removes what there is of it",
                self.name
            ))
        };
        let plan = self.plan(&record).await.map_err(cut)?;
        // Keys that were erased before the name was taken are known to nobody else.
        check_erased(&plan.log_state, &self.log().state()).map_err(cut)?;
        if options.dry_run {
            return Ok(plan.report(&record, ForkOutcome::DryRun));
        }
        let now_ms = self.now_ms();
        let record = ForkRecord { renewed_ms: now_ms, taken_over_ms: Some(now_ms), ..record };
        self.names.note(&record).await?;
        if let Err(error) = self.make(record.clone(), &plan).await {
            if error.kind() == ErrorKind::Conflict {
                dropping::clear_up_late(self.snapshot, &record).await?;
            }
            return Err(cut(error));
        }
        Ok(plan.report(&record, ForkOutcome::Finished))
    }

    async fn ancestors(&self) -> Result<Vec<Ancestor>> {
        let log = self.log();
        let identity = identity_of(&log.state()).to_owned();
        let own = Ancestor { state: log.name().to_owned(), id: identity };
        let of_parent = self.names.fork(log.name()).await?.map(|record| record.ancestors);
        Ok([own].into_iter().chain(of_parent.into_iter().flatten()).collect())
    }

    /// Links everything and puts the gate last.
    async fn make(&self, mut record: ForkRecord, plan: &Plan) -> Result<()> {
        let store = self.snapshot.storage().object_store();
        if let Some(archive) = &plan.archive {
            let home = self.log().archive_storage(&self.log().maintenance_settings()?)?;
            let path = archive_path(self.name);
            let linking = Linking::begin(home.object_store(), archive, &path).await?;
            self.fill(&linking, &mut record, Vec::new()).await?;
            linking.open().await?;
        }
        if let Some(snapshot) = &plan.snapshot {
            let linking = Linking::begin(store, snapshot, &snapshot_path(self.name)).await?;
            self.fill(&linking, &mut record, Vec::new()).await?;
            linking.open().await?;
        }
        // Their files are there by now, also those of records that whoever began it has found.
        self.snapshot.put_kept(self.name, &plan.kept).await?;
        self.renew(&mut record).await?;
        let linking = Linking::begin(store, &plan.log, &log_path(self.name)).await?;
        let mut metadata = (*plan.log_state.metadata).clone();
        metadata.properties.insert(PROPERTY_FORK.to_owned(), record.id.clone());
        metadata.properties.insert(PROPERTY_FORK_OF.to_owned(), record.parent().to_owned());
        self.fill(&linking, &mut record, vec![Action::Metadata(metadata)]).await?;
        let gate = linking.open().await?;
        // Whoever took the fork for a left-over and dropped it meanwhile has the record first.
        let found = self.names.fork(self.name).await?;
        let found = match found {
            Some(found) if found.id == record.id && found.dropped_ms.is_none() => found,
            // The gate is that of another fork by now.
            Some(other) if other.id != record.id => return Err(dropped_meanwhile(self.name)),
            _ => {
                linking.close(&gate).await?;
                return Err(dropped_meanwhile(self.name));
            }
        };
        // From now on its name is free as soon as it is dropped.
        let noted = self.names.note(&ForkRecord { finished: true, ..found }).await;
        noted.map_err(|error| error.context("the fork is made, but that could not be noted"))?;
        let (storage, options) = (self.snapshot.storage(), self.log().options());
        let identity = dropping::state_of_name(storage, &record, options).await?;
        if identity.as_ref() != Some(&record.id) {
            dropping::clear_up(self.snapshot, &record).await?;
            return Err(dropped_meanwhile(self.name));
        }
        metrics::counter!(crate::metrics::FORKS_MADE).increment(1);
        Ok(())
    }

    /// Links all of a table but its gate.
    async fn fill(
        &self,
        linking: &Linking<'_>,
        record: &mut ForkRecord,
        actions: Vec<Action>,
    ) -> Result<()> {
        for part in 0..linking.parts() {
            linking.link_part(part).await?;
            self.renew(record).await?;
        }
        let note = json!({
            "id": record.id,
            "of": record.parent(),
            "commit": record.commit,
            "name": record.name,
        });
        linking.put_own_commit(&record.id, note, actions, record.created_ms).await?;
        self.renew(record).await
    }

    /// Says that this process is still at work on the fork, if it still is the fork that it began with.
    async fn renew(&self, record: &mut ForkRecord) -> Result<()> {
        let now_ms = self.now_ms();
        let silent_ms = now_ms.saturating_sub(record.renewed_ms);
        let found = self.names.fork(self.name).await?;
        let is_ours = |found: &ForkRecord| found.id == record.id && found.dropped_ms.is_none();
        let Some(found) = found.filter(is_ours) else { return Err(dropped_meanwhile(self.name)) };
        if silent_ms < RENEWED_AFTER_MS {
            return Ok(());
        }
        if silent_ms > GIVEN_UP_AFTER_MS {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "the fork {} was not worked on for so long that it may be dropped as a left-over: run it again",
                    self.name
                ),
            ));
        }
        *record = ForkRecord { renewed_ms: now_ms, ..found };
        self.names.note(record).await
    }
}

fn dropped_meanwhile(name: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("the fork {name} was dropped while it was made"))
}

fn being_created(name: &str) -> Error {
    Error::new(
        ErrorKind::AlreadyExists,
        format!(
            "a state {name:?} is being created, or that was cut off: use another name, or create it"
        ),
    )
}

/// A fork must not have files of before an erase that its parent has not any more.
fn check_erased(at: &TableState, newest: &TableState) -> Result<()> {
    let Some(begun) = newest.transaction(ERASE_APP_ID) else { return Ok(()) };
    let ended = newest.transaction(ERASED_APP_ID).unwrap_or(-1);
    if ended < begun {
        return Err(Error::new(
            ErrorKind::Conflict,
            "keys are being erased, or that was cut off: bring the erase to its end (run it again), then fork",
        ));
    }
    if at.version < ended {
        return Err(Error::new(
            ErrorKind::PointUnavailable,
            format!("keys were erased up to commit {ended}: earlier commits may hold them"),
        ));
    }
    Ok(())
}
