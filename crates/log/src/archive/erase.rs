//! Files of the version of the archive that the log names are replaced by others: in an erase, where none may come back, and when they are
//! merged.
//!
//! ```text
//! one commit of the archive replaces the files -> one commit of the log names that version -> one of the archive says how far it follows
//! ```
//!
//! What is visible changes with the commit of the log alone, as in a move. A move that knows the log from before could bring a
//! replaced file back into the archive's newest version, where nobody reads it: the last commit takes it out again, and from then on
//! the archive refuses what begins with a state of the log before that (`alluvium/erase`).

use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::moves::{ArchiveOutcome, Move};
use super::{ArchiveUnreachable, Archived};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{Log, REWRITER_APP_ID};
use crate::settings::MaintenanceSettings;
use crate::table::{DataFile, FileAdd, Table, TableState};

/// The archive as a state of its log has it.
#[derive(Debug)]
pub struct ArchiveContents {
    /// Its table.
    pub table: Arc<Table>,
    /// The version that the log names; none while nothing was ever archived.
    pub version: Option<i64>,
    /// The files of that version which are part of the log.
    pub files: Vec<Arc<DataFile>>,
}

impl Log {
    /// The archive of a state of the log, with its files; `None` where there is none, nor anything that a first move has left.
    ///
    /// # Errors
    /// There may be one, and it can't be read ([`ArchiveUnreachable`]).
    pub fn archive_contents<'a>(
        &'a self,
        state: &'a TableState,
    ) -> BoxFuture<'a, Result<Option<ArchiveContents>>> {
        async move {
            let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
            let read = self.read_contents(state, &settings).await;
            read.map_err(|error| self.out_of_reach(&settings, error))
        }
        .boxed()
    }

    async fn read_contents(
        &self,
        state: &TableState,
        settings: &MaintenanceSettings,
    ) -> Result<Option<ArchiveContents>> {
        let known = Archived::of(state);
        let Some(table) = self.open_archive(settings).await? else {
            return match known {
                None => Ok(None),
                Some(_) => Err(Error::new(ErrorKind::NotFound, "there is no Delta table")),
            };
        };
        table.refresh().await?;
        let files = match known {
            None => Vec::new(),
            Some(known) => {
                let named = super::table_at(&table, known.version).await?;
                named.files().filter(|file| known.has(file)).cloned().collect()
            }
        };
        Ok(Some(ArchiveContents { table, version: known.map(|known| known.version), files }))
    }

    fn out_of_reach(&self, settings: &MaintenanceSettings, error: Error) -> Error {
        let kind = match error.kind() {
            ErrorKind::NotFound => ErrorKind::Storage,
            kind => kind,
        };
        let (state, place) = (self.name().to_owned(), self.archive_place(settings));
        let message = format!(
            "the archive of {state} at {place} can't be read, and what is erased has to leave it too: make it reachable again and repeat the call"
        );
        Error::new(kind, message).with_source(ArchiveUnreachable { state, place, cause: error })
    }

    /// Replaces files of the archive, by their paths, as of a state of the log: a commit of the archive, and one of the log that names it.
    ///
    /// Killed at any instant, each row is in exactly one place that is read; what is not named is taken out by the next call of any
    /// kind.
    pub fn replace_archived<'a>(
        &'a self,
        state: &'a TableState,
        replaced: &'a HashMap<String, Vec<FileAdd>>,
    ) -> BoxFuture<'a, Result<ArchiveOutcome>> {
        async move {
            let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
            let work = self.erasing_move(state, &settings).await?;
            self.replace(&work, state, replaced).await
        }
        .boxed()
    }

    /// The archive as [`Log::merge_archived`] may change it: that of a state of the log; `None` where nothing was ever archived.
    ///
    /// # Errors
    /// It can't be read ([`ArchiveUnreachable`]).
    pub fn archive_to_merge<'a>(
        &'a self,
        state: &'a TableState,
    ) -> BoxFuture<'a, Result<Option<ArchiveContents>>> {
        async move {
            let Some(known) = Archived::of(state) else { return Ok(None) };
            let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
            let read = self.read_contents(state, &settings).await;
            read.map_err(|error| self.unreachable(&settings, Some(known), error))
        }
        .boxed()
    }

    /// Replaces files of the archive, by their paths, by others with the same rows: as [`Log::replace_archived`], but that nobody has to
    /// drop what he has in memory. New files that can't be part of any state any more are removed.
    pub fn merge_archived<'a>(
        &'a self,
        state: &'a TableState,
        replaced: &'a HashMap<String, Vec<FileAdd>>,
    ) -> BoxFuture<'a, Result<ArchiveOutcome>> {
        async move {
            let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
            let work = Move { erases: false, ..self.erasing_move(state, &settings).await? };
            let outcome = self.replace(&work, state, replaced).await;
            if matches!(outcome, Ok(ArchiveOutcome::GaveWay)) {
                let newest = work.table.state();
                for add in replaced.values().flatten() {
                    // What a commit of the archive has is taken out by the next call of any kind.
                    if newest.file(&add.path).is_none() {
                        work.table.discard(&add.path).await;
                    }
                }
            }
            outcome
        }
        .boxed()
    }

    async fn replace(
        &self,
        work: &Move<'_>,
        state: &TableState,
        replaced: &HashMap<String, Vec<FileAdd>>,
    ) -> Result<ArchiveOutcome> {
        let mut target = work.named().await?;
        for (path, added) in replaced {
            target.remove(path);
            target.extend(added.iter().map(|add| (add.path.clone(), add.clone())));
        }
        match self.commit_archive(work, state, &target, None).await? {
            Some(after) => self.name_version(work, &after).await,
            None => Ok(ArchiveOutcome::GaveWay),
        }
    }

    /// Brings the archive's newest version to what a state of the log has of it, and records that it follows the erase with this number
    /// of the log: from then on no move that knows the log from before can change the archive. False when the log says otherwise by now.
    pub fn settle_erased<'a>(
        &'a self,
        state: &'a TableState,
        begun: i64,
    ) -> BoxFuture<'a, Result<bool>> {
        async move {
            let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
            let work = self.erasing_move(state, &settings).await?;
            let target = work.named().await?;
            if self.commit_archive(&work, state, &target, Some(begun)).await?.is_none() {
                return Ok(false);
            }
            Ok(Archived::of(&*self.refresh().await?) == work.known)
        }
        .boxed()
    }

    /// Lets the log name the archive's newest version, so that nobody begins with an earlier one.
    pub fn name_archive<'a>(
        &'a self,
        state: &'a TableState,
    ) -> BoxFuture<'a, Result<ArchiveOutcome>> {
        async move {
            let settings = MaintenanceSettings::from_metadata(&state.metadata)?;
            let work = Move { erases: false, ..self.erasing_move(state, &settings).await? };
            let target = work.named().await?;
            match self.commit_archive(&work, state, &target, None).await? {
                Some(after) => self.name_version(&work, &after).await,
                None => Ok(ArchiveOutcome::GaveWay),
            }
        }
        .boxed()
    }

    async fn erasing_move<'a>(
        &self,
        state: &TableState,
        settings: &'a MaintenanceSettings,
    ) -> Result<Move<'a>> {
        let opened = self.open_archive(settings).await;
        let found = opened.and_then(|table| {
            table.ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no Delta table"))
        });
        let table = found.map_err(|error| self.out_of_reach(settings, error))?;
        Ok(Move {
            settings,
            known: Archived::of(state),
            rewriter: state.transaction(REWRITER_APP_ID),
            files: &[],
            table,
            erases: true,
        })
    }
}
