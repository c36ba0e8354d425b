//! Staged files into the table: by an append, or by an epoch exactly once.

use std::collections::BTreeMap;

use serde_json::json;

use super::{EpochOutcome, LogInner, Receipt, StagedFile};
use crate::definition::StateDefinition;
use crate::epoch::OWNER_PREFIX;
use crate::error::{Error, ErrorKind, Result};
use crate::settings::MaintenanceSettings;
use crate::table::{Action, Attempt, Outcome, TableState};

impl LogInner {
    /// Commits staged files if none of their keys was erased, which is known up to the commit `checked`, and none of their rows lies
    /// at or below the floor.
    pub(crate) async fn commit_append(
        &self,
        files: &[StagedFile],
        definition: &StateDefinition,
        (append_id, rows): (&str, usize),
        mut checked: i64,
    ) -> Result<i64> {
        let unsynced = Self::unsynced(files);
        loop {
            let note = BTreeMap::from([
                ("appendId".to_owned(), json!(append_id)),
                ("rows".to_owned(), json!(rows)),
            ]);
            let outcome = self
                .table
                .commit_with::<()>("WRITE", Some(true), note, &unsynced, |state, commit| {
                    if Self::is_to_recheck(state, files, checked) {
                        return Ok(Attempt::Stop(()));
                    }
                    let mut actions: Vec<Action> =
                        Self::growth(state, definition)?.into_iter().collect();
                    actions.extend(Self::adds(files, commit));
                    Ok(Attempt::Write(actions))
                })
                .await
                .map_err(|error| error.context(format!("state {}", self.name)))?;
            match outcome {
                Outcome::Committed(state) => {
                    self.after_commit(&state, rows)?;
                    return Ok(state.version);
                }
                // Keys were erased, or the floor was raised, since the rows were checked.
                Outcome::Stopped(()) => checked = self.recheck(files).await?,
            }
        }
    }

    fn after_commit(&self, state: &TableState, rows: usize) -> Result<()> {
        self.note_definition(state)?;
        metrics::counter!(crate::metrics::COMMITS).increment(1);
        metrics::counter!(crate::metrics::ROWS_APPENDED).increment(rows as u64);
        if self.options.background_checkpoints
            && let Some(task) = self
                .table
                .checkpoint_in_background(MaintenanceSettings::from_metadata(&state.metadata))
        {
            self.keep(task);
        }
        Ok(())
    }

    pub(super) fn keep(&self, task: tokio::task::JoinHandle<()>) {
        let mut background = self.background.lock();
        background.retain(|task| !task.is_finished());
        background.push(task);
    }

    /// Commits staged files under an epoch, exactly once; `None` if the condition did not hold on the state before the commit.
    /// None of their keys was erased up to the commit `checked`.
    pub(crate) async fn commit_epoch(
        &self,
        files: &[StagedFile],
        definition: Option<&StateDefinition>,
        epoch: (&str, i64),
        (receipt, mut checked): (Receipt, i64),
        holds: &(dyn Fn(&TableState) -> bool + Send + Sync),
    ) -> Result<Option<EpochOutcome>> {
        loop {
            let outcome =
                self.commit_checked(files, definition, epoch, (receipt, checked), holds).await?;
            match outcome {
                EpochAttempt::Done(outcome) => return Ok(outcome),
                EpochAttempt::ToRecheck => checked = self.recheck(files).await?,
            }
        }
    }

    async fn commit_checked(
        &self,
        files: &[StagedFile],
        definition: Option<&StateDefinition>,
        (app_id, number): (&str, i64),
        (receipt, checked): (Receipt, i64),
        holds: &(dyn Fn(&TableState) -> bool + Send + Sync),
    ) -> Result<EpochAttempt> {
        let owner_id = format!("{OWNER_PREFIX}{app_id}");
        let known_last = self.table.transaction(app_id).await?;
        let known_owner = self.table.transaction(&owner_id).await?;
        let owned = self.owned.lock().get(app_id).copied();
        let note = BTreeMap::from([
            ("appId".to_owned(), json!(app_id)),
            ("epoch".to_owned(), json!(number)),
            ("rows".to_owned(), json!(receipt.rows)),
        ]);
        let mut generation = None;
        let outcome = self
            .table
            .commit_with("WRITE", Some(true), note, &Self::unsynced(files), |state, commit| {
                let last = state.transaction(app_id).max(known_last);
                if let Some(last) = last.filter(|last| *last >= number) {
                    return Ok(Attempt::Stop(Held::Applied(last)));
                }
                if !holds(state) {
                    return Ok(Attempt::Stop(Held::Condition));
                }
                if Self::is_to_recheck(state, files, checked) {
                    return Ok(Attempt::Stop(Held::ToRecheck));
                }
                let owner = state.transaction(&owner_id).max(known_owner).unwrap_or(0);
                // The first epoch of a handle makes it the owner; from then on a newer owner ends it.
                let mine = owned.unwrap_or(owner + 1);
                if owner > mine {
                    return Err(fenced(app_id, owner, mine));
                }
                generation = Some(mine);
                let mut actions = Vec::with_capacity(files.len() + 3);
                if let Some(definition) = definition {
                    actions.extend(Self::growth(state, definition)?);
                }
                actions.push(Action::Transaction { app_id: app_id.to_owned(), version: number });
                actions.push(Action::Transaction { app_id: owner_id.clone(), version: mine });
                actions.extend(Self::adds(files, commit));
                Ok(Attempt::Write(actions))
            })
            .await
            .map_err(|error| error.context(format!("state {}", self.name)))?;
        match outcome {
            Outcome::Stopped(Held::ToRecheck) => Ok(EpochAttempt::ToRecheck),
            Outcome::Stopped(Held::Condition) => {
                self.discard(files).await;
                Ok(EpochAttempt::Done(None))
            }
            Outcome::Stopped(Held::Applied(known)) => {
                self.discard(files).await;
                // What stopped it may be old knowledge: tell what the log holds now.
                let newest = self.table.refresh().await?.transaction(app_id);
                Ok(EpochAttempt::Done(Some(EpochOutcome::AlreadyApplied {
                    last: newest.map_or(known, |last| last.max(known)),
                })))
            }
            Outcome::Committed(state) => {
                if let Some(generation) = generation {
                    self.owned.lock().insert(app_id.to_owned(), generation);
                }
                self.after_commit(&state, usize::try_from(receipt.rows).unwrap_or(usize::MAX))?;
                let receipt = Receipt { commit: state.version, ..receipt };
                Ok(EpochAttempt::Done(Some(EpochOutcome::Committed(receipt))))
            }
        }
    }
}

/// Why the commit of an epoch was not made.
enum Held {
    Applied(i64),
    Condition,
    ToRecheck,
}

/// What one attempt at the commit of an epoch came to.
enum EpochAttempt {
    Done(Option<EpochOutcome>),
    /// Keys were erased, or the floor was raised, since the rows were checked.
    ToRecheck,
}

fn fenced(app_id: &str, owner: i64, mine: i64) -> Error {
    Error::new(
        ErrorKind::Fenced,
        format!(
            "the application {app_id:?} has a newer owner (generation {owner}, this one has {mine}): \
             this process has been replaced and must stop"
        ),
    )
}
