//! What a repair does about each damaged file, and what it tells of those that can't be made again.

use alluvium_log::{Damage, Examination, Expired, FileRole};
use alluvium_materializer::MATERIALIZER_APP_ID;

use super::{Examined, RepairStep, Unrepaired};

/// What a repair is going to do.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<RepairStep>,
    pub(super) unrepaired: Vec<Unrepaired>,
    /// Files to move, in order.
    pub(super) moves: Vec<(String, String)>,
    /// Moved once the snapshot has been made anew.
    pub(super) late_moves: Vec<(String, String)>,
    pub(super) rebuilds: bool,
    pub(super) checkpoints: bool,
    /// Those of the archive.
    pub(super) checkpoints_archive: bool,
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
    pub(super) fn of_archive(&mut self, examined: &Examined, path: &str, aside: &str) {
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

    pub(super) fn of_log(&mut self, examined: &Examined, aside: &str) {
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
                    format!("a checkpoint stands for it, so that all answers are as before; the versions of the table from {version} up to the next checkpoint can't be read by their number, and what was known at its time can't be told, until the file is put back from a copy. What it may have named is kept, and it is cleaned up when it is as old as commit_retention"),
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

    pub(super) fn of_snapshot(&mut self, examined: &Examined, aside: &str, files: Vec<String>) {
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
                    "a checkpoint stands for it; the versions of the snapshot from it up to the next checkpoint are no base of answers, until the file is put back from a copy. What it may have named is kept, and it is cleaned up when it is as old as commit_retention".to_owned(),
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
