//! Looking at every file of a state, and repairing what can be made again of what is left.
//!
//! Nothing is removed: what is damaged is moved to `<state>/damaged/<time>/`, where it lay before. What can't be made again is told with what
//! it means (decision 27).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use alluvium_log::{
    Archived, Attempt, Damage, Error, Examination, Expired, FileRole, Result, Table, VACUUM_APP_ID,
    archive_path, examine_archive, log_path, validate_state_name,
};
use alluvium_materializer::{MATERIALIZER_APP_ID, examine_savepoints, snapshot_path};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use serde::Serialize;

use crate::store::Store;

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

/// What a repair is going to do.
#[derive(Default)]
struct Plan {
    steps: Vec<RepairStep>,
    unrepaired: Vec<Unrepaired>,
    /// Files to move, in order.
    moves: Vec<(String, String)>,
    /// Moved once the snapshot has been made anew.
    late_moves: Vec<(String, String)>,
    rebuilds: bool,
    checkpoints: bool,
    /// Those of the archive.
    checkpoints_archive: bool,
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
    /// before: what somebody has just written is left where it is, and the next run looks at it. Let one process repair a state at a
    /// time. A snapshot that can't be opened is moved wholly: let nobody fold meanwhile.
    pub async fn repair(&self, name: &str, dry_run: bool) -> Result<RepairReport> {
        let started = Instant::now();
        validate_state_name(name)?;
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
        if !dry_run {
            self.carry_out(name, &examined, &mut plan, &listed).await?;
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
    ) -> Result<()> {
        let table = &examined.log.0;
        for (from, to) in std::mem::take(&mut plan.moves) {
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

fn moved(file: &str, aside: &str) -> String {
    let rest = file.split_once('/').map_or(file, |(_, rest)| rest);
    format!("{aside}/{rest}")
}

impl Plan {
    fn set_aside(&mut self, damage: &Damage, aside: &str, remedy: &str) {
        let to = moved(&damage.file, aside);
        self.moves.push((damage.file.clone(), to.clone()));
        self.step(damage, remedy, Some(to));
    }

    fn step(&mut self, damage: &Damage, remedy: &str, moved_to: Option<String>) {
        let (file, problem) = (damage.file.clone(), damage.problem.clone());
        self.steps.push(RepairStep { file, problem, remedy: remedy.to_owned(), moved_to });
    }

    fn give_up(&mut self, damage: &Damage, consequence: String) {
        let (file, problem) = (damage.file.clone(), damage.problem.clone());
        self.unrepaired.push(Unrepaired { file, problem, consequence });
    }

    /// What stands beside the facts of a table: hints, checksums, checkpoints; true if it was one of these.
    fn of_derived(&mut self, damage: &Damage, aside: &str) -> bool {
        let is_derived = self.sets_derived_aside(damage, aside);
        self.checkpoints |= is_derived;
        is_derived
    }

    fn sets_derived_aside(&mut self, damage: &Damage, aside: &str) -> bool {
        match damage.role {
            FileRole::Pointer => {
                self.set_aside(damage, aside, "set aside; checkpoints are found without it");
            }
            FileRole::Checksum => {
                self.set_aside(
                    damage,
                    aside,
                    "set aside; a new checkpoint is written with its own",
                );
            }
            FileRole::Checkpoint if !damage.is_needed => {
                self.set_aside(damage, aside, "set aside; a new one is made of the commits");
                if let Some(version) = damage.version {
                    let folder = damage.file.rsplit_once('/').map_or("", |(folder, _)| folder);
                    let note = format!("{folder}/{version:020}.alluvium.json");
                    self.moves.push((note.clone(), moved(&note, aside)));
                }
            }
            _ => return false,
        }
        true
    }

    /// Rows that were moved are nowhere else. What is derived of an archive elsewhere is left to its next checkpoint.
    fn of_archive(&mut self, examined: &Examined, path: &str, aside: &str) {
        let Some((_, found)) = &examined.archive else { return };
        for damage in &found.damages {
            let lies_here = damage.file.starts_with(&format!("{path}/"));
            if lies_here && self.sets_derived_aside(damage, aside) {
                self.checkpoints_archive = true;
                continue;
            }
            let text = match damage.role {
                _ if damage.is_needed => format!(
                    "rows of commits up to {} lie in the archive and nowhere else: put it back from a copy; until then what asks for \
                     them fails, and later commits and the latest state are answered without it",
                    examined.archived_commit()
                ),
                FileRole::Data => "no version that the log names has it: nothing asks for it".to_owned(),
                _ => "the archive's other commits and checkpoints stand for it, so that all answers are as before".to_owned(),
            };
            self.give_up(damage, text);
        }
    }

    fn of_log(&mut self, examined: &Examined, aside: &str) {
        let (_, found) = &examined.log;
        let newest = found.commits.as_ref().map(|commits| *commits.end());
        let folded = examined.snapshot.1.newest.as_ref();
        let folded = folded.and_then(|state| state.transaction(MATERIALIZER_APP_ID)).unwrap_or(0);
        let needed = |damage: &&Damage| damage.role == FileRole::Commit && damage.is_needed;
        let is_only = found.damages.iter().filter(needed).count() == 1;
        for damage in &found.damages {
            if self.of_derived(damage, aside) {
                continue;
            }
            let version = damage.version.unwrap_or(0);
            match damage.role {
                FileRole::Commit if !damage.is_needed => self.give_up(
                    damage,
                    format!("a checkpoint stands for it, so that all answers are as before; versions of the table up to {version} can't be read by their number"),
                ),
                FileRole::Commit
                    if is_only && Some(version) == newest && version > 0 && folded < version && damage.problem != "it is missing" =>
                {
                    self.set_aside(damage, aside, &format!(
                        "set aside: it is the last commit, and nothing relies on it. The log ends with commit {}. A commit that is torn was never acknowledged; if this one was damaged later, its changes are lost: send them again",
                        version - 1
                    ));
                }
                FileRole::Commit => self.give_up(
                    damage,
                    format!("the state can't be opened until the file is put back from a copy; what was known up to commit {} can be read with --commit", version - 1),
                ),
                FileRole::Checkpoint => self.give_up(
                    damage,
                    "the commits before it are cleaned up, so that the state can't be opened until the file is put back from a copy".to_owned(),
                ),
                _ => self.give_up(damage, consequence_of_rows(version, folded)),
            }
        }
    }

    fn of_snapshot(&mut self, examined: &Examined, aside: &str, files: Vec<String>) {
        let (_, found) = &examined.snapshot;
        let log = &examined.log.1;
        let expired = log.newest.as_ref().map_or(0, |state| Expired::commit_of(state));
        // The newest log commit being set aside, the log can be opened.
        let log_opens =
            !self.unrepaired.iter().any(|left| left.consequence.contains("can't be opened"));
        let mut archive = examined.archive.iter().flat_map(|(_, found)| &found.damages);
        let has_all_rows = expired == 0
            && log_opens
            && !archive.any(|damage| damage.is_needed)
            && !log.damages.iter().any(|damage| damage.role == FileRole::Data && damage.is_needed);
        let newest = found.commits.as_ref().map(|commits| *commits.end());
        let commits = found.damages.iter().filter(|damage| damage.role == FileRole::Commit);
        let needed: Vec<_> = commits.filter(|damage| damage.is_needed).collect();
        let only_last = match needed.as_slice() {
            [only] => only.version == newest && newest > Some(0) && only.problem != "it is missing",
            _ => false,
        };
        let unreadable = (found.failure.is_some() && !only_last)
            || found
                .damages
                .iter()
                .any(|damage| damage.role == FileRole::Checkpoint && damage.is_needed);
        if unreadable {
            return self.of_unreadable_snapshot(found, has_all_rows, aside, files);
        }
        for damage in &found.damages {
            if self.of_derived(damage, aside) {
                continue;
            }
            match damage.role {
                FileRole::Commit if damage.is_needed => {
                    self.set_aside(damage, aside, "set aside; what it folded is folded again");
                    self.rebuilds = true;
                }
                FileRole::Commit => self.give_up(
                    damage,
                    "a checkpoint stands for it; earlier versions of the snapshot can't be read by their number".to_owned(),
                ),
                FileRole::Data if has_all_rows => {
                    let is_there = damage.problem != "it is missing";
                    let to = moved(&damage.file, aside);
                    self.step(damage, "the snapshot is made anew from the log", is_there.then(|| to.clone()));
                    if is_there {
                        self.late_moves.push((damage.file.clone(), to));
                    }
                    self.rebuilds = true;
                }
                FileRole::Savepoint if damage.version.is_some() => self.give_up(
                    damage,
                    "the state as of its commit is answered from the log, for as long as this has the rows; put the file back from a copy, or release the savepoint".to_owned(),
                ),
                FileRole::Savepoint => self.give_up(
                    damage,
                    "what it keeps can't be told, and nothing of the snapshot is vacuumed while it is there: put it back from a copy, or remove it to give up what it keeps".to_owned(),
                ),
                _ => self.give_up(
                    damage,
                    "the log has not all that the file's rows were made of: put it back from a copy".to_owned(),
                ),
            }
        }
    }

    /// A snapshot whose own log can't be read is wholly moved aside, if all of it can be made again.
    fn of_unreadable_snapshot(
        &mut self,
        found: &Examination,
        has_all_rows: bool,
        aside: &str,
        files: Vec<String>,
    ) {
        if !has_all_rows {
            for damage in &found.damages {
                self.give_up(damage, "the snapshot can't be opened, and the log has not all that it was made of: put the file back from a copy".to_owned());
            }
            return;
        }
        for damage in &found.damages {
            let to = moved(&damage.file, aside);
            let is_there = damage.problem != "it is missing" && damage.role != FileRole::Savepoint;
            let remedy = "the snapshot is wholly set aside, and made anew from the log";
            self.step(damage, remedy, is_there.then_some(to));
        }
        self.moves.extend(files.into_iter().map(|file| {
            let to = moved(&file, aside);
            (file, to)
        }));
        self.rebuilds = true;
    }
}

fn consequence_of_rows(commit: i64, folded: i64) -> String {
    let latest = match folded >= commit {
        true => format!(
            "the latest state is answered by the snapshot, which folds commits up to {folded}; don't rebuild it"
        ),
        false => "reads of keys in it fail, and nothing is materialized".to_owned(),
    };
    format!(
        "its rows, of commits up to {commit}, can't be made again: put it back from a copy; until then {latest}, and what asks for these rows fails"
    )
}
