//! The log's part in an erase: markers are set and lifted, and rows of marked keys, as those below the floor, are refused until the
//! moment of their commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::AsArray;
use futures::TryStreamExt;
use serde_json::json;

use super::{Log, LogInner, StagedFile};
use crate::erased::{ERASE_APP_ID, ERASED_APP_ID, Erased, KeyErased};
use crate::error::{Error, Result};
use crate::floor::{BelowFloor, Floor};
use crate::read::{FooterCache, ReadSpec, RowFilter, read_file};
use crate::rows::LogRows;
use crate::table::{Action, Attempt, DataFile, Outcome, TableState};

/// What setting markers, or lifting them, came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// The commit that changed markers; none when all was as wanted already.
    pub commit: Option<i64>,
    /// The marker of each key, in the order given.
    pub markers: Vec<String>,
    /// How many of them were changed.
    pub changed: u64,
}

impl Log {
    /// Marks keys as erased: from the commit on that this makes, no row of them can be committed by a writer of ours.
    ///
    /// # Errors
    /// There are too many markers; nothing was changed.
    pub async fn mark_erased(&self, keys: &[String]) -> Result<Marked> {
        self.change_markers(keys, true, Erased::insert).await
    }

    /// Lifts the markers of keys, which may be appended again.
    pub async fn forget_erased(&self, keys: &[String]) -> Result<Marked> {
        self.change_markers(keys, false, |erased, key| Ok(erased.remove(key))).await
    }

    async fn change_markers(
        &self,
        keys: &[String],
        is_begun: bool,
        change: fn(&mut Erased, &str) -> Result<bool>,
    ) -> Result<Marked> {
        self.refresh().await?;
        let secret: [u8; 32] = crate::random::random();
        let note = BTreeMap::from([("step".to_owned(), json!("erase"))]);
        let mut marked = Marked { commit: None, markers: Vec::new(), changed: 0 };
        let outcome = self
            .inner
            .table
            .commit("SET TBLPROPERTIES", Some(false), note, |state, version| {
                let mut erased = Erased::of(state)?.unwrap_or_else(|| Erased::under(secret));
                marked.markers = keys.iter().map(|key| erased.marker(key)).collect();
                marked.changed = 0;
                for key in keys {
                    marked.changed += u64::from(change(&mut erased, key)?);
                }
                if marked.changed == 0 {
                    return Ok(Attempt::Stop(()));
                }
                let mut metadata = (*state.metadata).clone();
                erased.write_to(&mut metadata);
                let mut actions = vec![Action::Metadata(metadata)];
                // Lifting a marker takes out nothing that anybody would have to follow.
                if is_begun {
                    let app_id = ERASE_APP_ID.to_owned();
                    actions.push(Action::Transaction { app_id, version });
                }
                Ok(Attempt::Write(actions))
            })
            .await
            .map_err(|error| error.context(format!("state {}", self.name())))?;
        if let Outcome::Committed(state) = outcome {
            self.inner.note_definition(&state)?;
            marked.commit = Some(state.version);
        }
        Ok(marked)
    }

    /// Records that log and snapshot are free of what was erased, if no other erase has come since the state of the log that
    /// `begun` is the number of; false if one has. With `is_needed` also when it is recorded already.
    pub async fn note_erased(&self, begun: i64, is_needed: bool) -> Result<bool> {
        let note = BTreeMap::from([("step".to_owned(), json!("erase"))]);
        let outcome = self
            .inner
            .table
            .commit("WRITE", Some(false), note, |state, version| {
                let newest = state.transaction(ERASE_APP_ID).unwrap_or(0);
                if newest > begun {
                    return Ok(Attempt::Stop(false));
                }
                if !is_needed && state.transaction(ERASED_APP_ID) >= Some(newest) {
                    return Ok(Attempt::Stop(true));
                }
                let app_id = ERASED_APP_ID.to_owned();
                Ok(Attempt::Write(vec![Action::Transaction { app_id, version }]))
            })
            .await?;
        Ok(match outcome {
            Outcome::Committed(_) => true,
            Outcome::Stopped(is_noted) => is_noted,
        })
    }

    /// Raises the number under which an erase is recorded, so that it is seen to be at work again; gives the new one.
    pub async fn raise_erase(&self) -> Result<i64> {
        let note = BTreeMap::from([("step".to_owned(), json!("erase"))]);
        let outcome = self
            .inner
            .table
            .commit::<()>("WRITE", Some(false), note, |_, version| {
                let app_id = ERASE_APP_ID.to_owned();
                Ok(Attempt::Write(vec![Action::Transaction { app_id, version }]))
            })
            .await?;
        match outcome {
            Outcome::Committed(state) => Ok(state.version),
            Outcome::Stopped(()) => Err(Error::internal("a commit stopped without a reason")),
        }
    }

    /// The markers of the newest commit known here; `None` where nothing was ever erased.
    pub fn erased(&self) -> Result<Option<Arc<Erased>>> {
        self.inner.erased_in(&self.state()).map(|(_, erased)| erased)
    }
}

impl LogInner {
    /// The markers that a state has, and the commit that added one last, or later. It costs a look where nothing was ever erased.
    pub(crate) fn erased_in(&self, state: &TableState) -> Result<(i64, Option<Arc<Erased>>)> {
        let Some(commit) = state.transaction(ERASE_APP_ID) else { return Ok((0, None)) };
        if let Some((metadata, erased)) = self.erased.read().as_ref()
            && Arc::ptr_eq(metadata, &state.metadata)
        {
            return Ok((commit, erased.clone()));
        }
        let erased = Erased::of(state)?.map(Arc::new);
        *self.erased.write() = Some((state.metadata.clone(), erased.clone()));
        Ok((commit, erased))
    }

    /// Refuses rows of erased keys, and rows at or below the floor, as of the newest commit known here.
    pub(crate) fn admitted(&self, rows: LogRows) -> Result<LogRows> {
        let state = self.table.state();
        let (checked, erased) = self.erased_in(&state)?;
        if let Some(erased) = erased {
            erased.check(rows.keys())?;
        }
        if let Some(floor) = Floor::of(&state) {
            floor.check(&rows)?;
        }
        Ok(LogRows { checked, ..rows })
    }

    /// Whether staged files have to be looked into before they are committed: markers were changed after those by which their keys
    /// were checked, or the floor was raised above some of their rows.
    pub(super) fn is_to_recheck(state: &TableState, files: &[StagedFile], checked: i64) -> bool {
        let is_newer = |commit| commit > checked;
        state.transaction(ERASE_APP_ID).is_some_and(is_newer)
            || Floor::of(state).is_some_and(|floor| files_below(floor, files))
    }

    /// Checks the rows of staged files by the newest markers and the floor; gives the commit of the markers. Where a row is refused
    /// the files are removed.
    pub(super) async fn recheck(&self, files: &[StagedFile]) -> Result<i64> {
        let state = self.table.state();
        let (commit, erased) = self.erased_in(&state)?;
        let floor = Floor::of(&state).filter(|floor| files_below(*floor, files));
        if erased.is_none() && floor.is_none() {
            return Ok(commit);
        }
        self.table.ensure_written(Self::unsynced(files)).await?;
        let spec = ReadSpec { payload: Vec::new(), filter: RowFilter::default() };
        for file in files {
            let file = Arc::new(DataFile::uncommitted(file.add.clone()));
            let checked = match self.check_file(&file, &spec, erased.as_deref(), floor).await {
                // An erase removes what holds its keys and is not committed yet.
                Err(error) if error.is_of_missing_file() => Err(KeyErased::error(format!(
                    "rows that were staged in {}, which an erase removed",
                    file.add.path
                ))),
                other => other,
            };
            if let Err(error) = checked {
                if KeyErased::is_cause_of(&error) || BelowFloor::is_cause_of(&error) {
                    self.discard(files).await;
                }
                return Err(error.context(format!("state {}", self.name)));
            }
        }
        match floor {
            None => Ok(commit),
            Some(_) => Err(Error::internal("rows below the floor by their bounds only")),
        }
    }

    async fn check_file(
        &self,
        file: &Arc<DataFile>,
        spec: &ReadSpec,
        erased: Option<&Erased>,
        floor: Option<Floor>,
    ) -> Result<()> {
        let mut rows = read_file(&self.table, file, spec, &FooterCache::new(0)).await?;
        while let Some(batch) = rows.try_next().await? {
            if let Some(erased) = erased {
                erased.check(batch.column(0).as_string())?;
            }
            if let Some(floor) = floor {
                floor.check_folded(&batch)?;
            }
        }
        Ok(())
    }
}

/// Whether some staged rows lie at or below the floor. Bounds may be cut to milliseconds, which a floor is never within.
fn files_below(floor: Floor, files: &[StagedFile]) -> bool {
    files.iter().any(|file| floor.may_exceed(&DataFile::uncommitted(file.add.clone())))
}
