//! Looking at every file of a state, and repairing what can be made again of what is left.
//!
//! Nothing is removed: what is damaged is moved to `<state>/damaged/<time>/`, where it lay before. What can't be made again is told with what
//! it means (decision 27).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use alluvium_log::{
    Archived, Attempt, Damage, Error, Examination, Result, Table, VACUUM_APP_ID, archive_path,
    examine_archive, log_path, validate_state_name,
};
use alluvium_materializer::{MATERIALIZER_APP_ID, examine_savepoints, snapshot_path};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use serde::Serialize;

use crate::store::Store;

mod claim;
mod plan;

use claim::Claim;
use plan::Plan;

/// What was found in all files of a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeepReport {
    /// Files that were read.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files of other engines without a checksum: they were decoded, which finds most damage but not all.
    pub unchecked_files: u64,
    /// Rows that were counted in the archive, and are as many as the log says.
    pub archived_rows: u64,
    /// Everything that is damaged, or gone.
    pub damaged: Vec<Damage>,
    /// Why the state can't be opened, if it can't.
    pub failure: Option<String>,
    /// How long it took.
    pub elapsed: Duration,
}

impl DeepReport {
    /// Whether nothing is damaged.
    pub fn is_sound(&self) -> bool {
        self.damaged.is_empty() && self.failure.is_none()
    }
}

/// What was done, or would be done, about a damaged file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RepairStep {
    /// The file; or the snapshot's folder.
    pub file: String,
    /// What is wrong with it.
    pub problem: String,
    /// What is done.
    pub remedy: String,
    /// Where the file is moved to, if it is.
    pub moved_to: Option<String>,
}

/// A damaged file that can't be made again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unrepaired {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub problem: String,
    /// What it means, and what to do.
    pub consequence: String,
}

/// What a repair did, or with a dry run would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RepairReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// What was done, in this order.
    pub steps: Vec<RepairStep>,
    /// What can't be repaired.
    pub unrepaired: Vec<Unrepaired>,
    /// How long it took.
    pub elapsed: Duration,
}

struct Examined {
    log: (Table, Examination),
    snapshot: (Table, Examination),
    /// The table is missing where its place is.
    archive: Option<(Option<Table>, Examination)>,
}

impl Examined {
    /// No archived row is of a later commit.
    fn archived_commit(&self) -> i64 {
        let archived = self.log.1.newest.as_ref().and_then(|state| Archived::of(state));
        archived.map_or(0, |archived| archived.commit)
    }

    fn all(&self) -> impl Iterator<Item = &Examination> {
        let archive = self.archive.as_ref().map(|(_, found)| found);
        [&self.log.1, &self.snapshot.1].into_iter().chain(archive)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Examination> {
        let archive = self.archive.as_mut().map(|(_, found)| found);
        [&mut self.log.1, &mut self.snapshot.1].into_iter().chain(archive)
    }
}

impl Store {
    /// Reads every file of a state and tells what is damaged or gone, also where the state can't be opened.
    pub async fn examine(&self, name: &str) -> Result<DeepReport> {
        let started = Instant::now();
        let examined = self.examine_tables(name).await?;
        let sum = |of: fn(&Examination) -> u64| examined.all().map(of).sum();
        Ok(DeepReport {
            files: sum(|found| found.files),
            bytes: sum(|found| found.bytes),
            unchecked_files: sum(|found| found.unchecked_files),
            archived_rows: sum(|found| found.rows),
            damaged: examined.all().flat_map(|found| found.damages.clone()).collect(),
            failure: examined.all().find_map(|found| found.failure.as_ref().map(Error::to_string)),
            elapsed: started.elapsed(),
        })
    }

    async fn examine_tables(&self, name: &str) -> Result<Examined> {
        validate_state_name(name)?;
        let (storage, clock) = (self.storage(), self.clock());
        let log = Table::examine(storage, &log_path(name), clock.clone(), &[]).await?;
        if log.1.commits.is_none() && log.1.newest.is_none() && log.1.failure.is_none() {
            // As everybody else says it.
            self.raw_state(name).await?;
        }
        let apps = [MATERIALIZER_APP_ID];
        let mut snapshot =
            Table::examine(storage, &snapshot_path(name), clock.clone(), &apps).await?;
        examine_savepoints(storage, name, &snapshot.0, &mut snapshot.1).await?;
        let places = self.archive_places();
        let archive = match &log.1.newest {
            Some(state) => examine_archive(&places, name, state, clock.clone()).await?,
            None => None,
        };
        Ok(Examined { log, snapshot, archive })
    }

    /// Repairs what can be made again: hints, checkpoints, and the snapshot; sets a torn last commit aside; tells what can't be repaired.
    ///
    /// Others may go on reading and writing. What is damaged was found to be so twice, and is moved only if it is the file that was there
    /// before: what somebody has just written is left where it is, and the next run looks at it. A snapshot that can't be opened is moved
    /// wholly: let nobody fold meanwhile.
    ///
    /// # Errors
    /// Another process repairs the state ([`crate::ErrorKind::Conflict`]).
    pub async fn repair(&self, name: &str, dry_run: bool) -> Result<RepairReport> {
        validate_state_name(name)?;
        if dry_run {
            return self.repair_as(name, None).await;
        }
        let mut claim = Claim::take(self, name).await?;
        let repaired = self.repair_as(name, Some(&mut claim)).await;
        // Who could not repair says why, whatever becomes of the claim.
        let released = claim.release().await;
        let report = repaired?;
        released.map(|()| report)
    }

    async fn repair_as(&self, name: &str, claim: Option<&mut Claim>) -> Result<RepairReport> {
        let (started, dry_run) = (Instant::now(), claim.is_none());
        let listed = self.files_below(name).await?;
        let examined = self.examine_twice(name).await?;
        let now =
            chrono::DateTime::from_timestamp_millis(self.clock().now_ms()).unwrap_or_default();
        let aside = format!("{name}/damaged/{}", now.format("%Y%m%dT%H%M%S%3fZ"));
        let mut plan = Plan::default();
        plan.of_log(&examined, &aside);
        let folder = format!("{}/", snapshot_path(name));
        let files = listed.keys().filter(|file| file.starts_with(&folder)).cloned().collect();
        plan.of_snapshot(&examined, &aside, files);
        plan.of_archive(&examined, &archive_path(name), &aside);
        if let Some(claim) = claim {
            self.carry_out(name, &examined, &mut plan, &listed, claim).await?;
        }
        Ok(RepairReport {
            dry_run,
            steps: plan.steps,
            unrepaired: plan.unrepaired,
            elapsed: started.elapsed(),
        })
    }

    /// The files of a state by their names.
    async fn files_below(&self, folder: &str) -> Result<Files> {
        let store = self.storage().object_store();
        let listed: Vec<ObjectMeta> = store.list(Some(&Path::from(folder))).try_collect().await?;
        Ok(listed.into_iter().map(|meta| (meta.location.to_string(), meta)).collect())
    }

    /// What is damaged. Whoever looks while others write may find a file at odds with one that has come since: so what is found is looked
    /// for once more, and counts if it is still so.
    async fn examine_twice(&self, name: &str) -> Result<Examined> {
        let first = self.examine_tables(name).await?;
        let is_found =
            first.all().any(|found| !found.damages.is_empty() || found.failure.is_some());
        if !is_found {
            return Ok(first);
        }
        let mut again = self.examine_tables(name).await?;
        let known: Vec<(String, String)> =
            first.all().flat_map(|found| &found.damages).map(told).collect();
        for found in again.all_mut() {
            found.damages.retain(|damage| known.contains(&told(damage)));
        }
        Ok(again)
    }

    async fn carry_out(
        &self,
        name: &str,
        examined: &Examined,
        plan: &mut Plan,
        listed: &Files,
        claim: &mut Claim,
    ) -> Result<()> {
        let table = &examined.log.0;
        for (from, to) in std::mem::take(&mut plan.moves) {
            claim.renew().await?;
            self.set_aside(table, plan, listed, (from, to)).await?;
        }
        self.forget(name).await;
        if plan.rebuilds {
            let state = self.raw_state(name).await?;
            state.materialize(true).await?;
            if let Some((snapshot, _)) = state.snapshot().refresh().await?.table() {
                begin_anew(snapshot).await?;
            }
        }
        for (from, to) in std::mem::take(&mut plan.late_moves) {
            claim.renew().await?;
            self.set_aside(table, plan, listed, (from, to)).await?;
        }
        if plan.checkpoints {
            let state = self.raw_state(name).await?;
            state.log().table().checkpoint().await?;
            if let Some((snapshot, _)) = state.snapshot().state().table() {
                snapshot.checkpoint().await?;
            }
        }
        if plan.checkpoints_archive {
            let state = self.raw_state(name).await?;
            let settings = state.log().maintenance_settings()?;
            if let Some(archive) = state.log().open_archive(&settings).await? {
                archive.checkpoint().await?;
            }
        }
        self.forget(name).await;
        Ok(())
    }

    /// Moves a file; what was not there when the repair began, or is another one by now, stays, which its step tells.
    async fn set_aside(
        &self,
        table: &Table,
        plan: &mut Plan,
        listed: &Files,
        (from, to): (String, String),
    ) -> Result<()> {
        let is_moved = match listed.get(&from) {
            Some(file) => table.set_aside(file, &Path::from(to), self.storage()).await?,
            None => false,
        };
        let steps = plan.steps.iter_mut().filter(|step| step.file == from && !is_moved);
        for step in steps {
            step.moved_to = None;
            step.remedy = "left where it is: somebody has written it over, or removed it, since it was looked at; run it again".to_owned();
        }
        Ok(())
    }
}

/// The files of a state by their names, as they were listed.
type Files = BTreeMap<String, ObjectMeta>;

/// By what a damage is known again.
fn told(damage: &Damage) -> (String, String) {
    (damage.file.clone(), damage.problem.clone())
}

/// Notes that earlier versions of a snapshot have lost files, so that no answer begins with them.
async fn begin_anew(table: &Table) -> Result<()> {
    let note = [("step".to_owned(), serde_json::json!("repair"))].into();
    let decide = |_: &alluvium_log::TableState, version| {
        let app_id = VACUUM_APP_ID.to_owned();
        let action = alluvium_log::Action::Transaction { app_id, version };
        Ok::<_, Error>(Attempt::<()>::Write(vec![action]))
    };
    table.commit("VACUUM START", Some(false), note, decide).await.map(drop)
}
