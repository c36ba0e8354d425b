//! The end of a run: everything is asked once more, of the store as it was left, folded, rebuilt, maintained and erased.

use alluvium::{Clock, Leadership, Point, RawState, Storage, Store};
use alluvium_log::{Archived, Expired};
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;

use super::World;
use super::shown::told;
use crate::actors::{Question, STATE, answer};
use crate::checks::{self, Broken};
use crate::forks::{Branch, Stage, may_fail};
use crate::leads::{JOB, SPAN_MS};

const HOUR: i64 = 3_600_000_000;

/// Whether a fork is there, or is being made or dropped.
async fn is_listed(store: &Store, branch: &Branch) -> Result<bool, Broken> {
    let forks = store.forks().await.map_err(told)?;
    Ok(forks.iter().any(|fork| fork.name == branch.name))
}

impl World {
    /// After all: a new process finds everything as it must be, and so do a fold of the rest, a rebuild, and a maintained store.
    pub(super) async fn end(&mut self) -> Result<(), Broken> {
        self.look().await?;
        // Who was making a fork is taken for dead.
        self.clock.set(self.clock.now_micros() + 2 * HOUR);
        let objects = self.disk.copied().await.map_err(|error| error.to_string())?;
        let storage = Storage::from_object_store(objects, "end://");
        let builder = Store::builder("end://").storage(storage).clock(self.clock.clone());
        let store = builder.open().await.map_err(told)?;
        let state = store.raw_state(STATE).await.map_err(told)?;
        for branch in &self.branches {
            if matches!(branch.stage, Stage::Making | Stage::Dropping)
                && is_listed(&store, branch).await?
            {
                store.drop_fork(&branch.name).await.map_err(told)?;
            }
        }
        self.end_of_leads(&store).await?;
        // An erase that was killed is to be run again: until then log and snapshot may differ by its keys.
        let begun: Vec<String> = self.ledger.erased.iter().cloned().collect();
        if self.promises.erased.len() < begun.len() {
            state.erase(&begun, false).await.map_err(told)?;
        }
        self.everything(&state, "opened anew").await?;
        state.materialize(false).await.map_err(told)?;
        self.everything(&state, "materialized").await?;
        state.materialize(true).await.map_err(told)?;
        self.everything(&state, "rebuilt").await?;
        let steps = alluvium::MaintainStep::ALL;
        state.maintain(&steps, false).await.map_err(told)?;
        let again = state.maintain(&steps, false).await.map_err(told)?;
        if again.log_before != again.log_after || again.snapshot_before != again.snapshot_after {
            return Err(format!(
                "invariant 18: a second run of the job changes something: {again:?}"
            ));
        }
        self.everything(&state, "maintained").await?;
        self.end_of_promises(&state).await?;
        self.end_of_branches(&store).await?;
        self.everything(&state, "erased once more").await?;
        let log = state.log().state();
        let hot: u64 = log.files().filter_map(|file| file.stats.rows).sum();
        let archived = Archived::of(&log).map_or(0, |archived| archived.rows.unsigned_abs());
        let (stored, known) = (hot + archived, self.ledger.rows.len() as u64);
        // What has expired is in neither.
        let is_right = match Expired::commit_of(&log) {
            0 => stored == known,
            _ => stored < known,
        };
        match is_right {
            true => Ok(()),
            false => Err(format!(
                "invariants 16 and 29: {hot} rows lie in the log and {archived} in the archive instead of {known}"
            )),
        }
    }

    /// 14, 17, 25 and 30, at the end: each kept version of the tables can be read, each savepoint answers, and of keys whose erase had
    /// begun nothing is left once it is carried out again.
    async fn end_of_promises(&mut self, state: &RawState) -> Result<(), Broken> {
        let snapshot = state.snapshot().refresh().await.map_err(told)?;
        let tables = [Some(state.log().table()), snapshot.table().map(|(table, _)| table)];
        for table in tables.into_iter().flatten() {
            let oldest = table.oldest_version().await.map_err(told)?;
            for version in oldest..=table.state().version {
                let read = table.state_at(version).await;
                let read = read.map_err(|error| format!("invariant 14: {}", told(error)))?;
                if let Some(path) = table.missing_file(&read).await.map_err(told)? {
                    return Err(format!("invariant 17: version {version} lacks {path}"));
                }
            }
        }
        let basis = state.reader().basis().await.map_err(told)?;
        for (name, commit) in self.promises.savepoints.clone() {
            let question = Question::Scan(Point::at_commit(commit));
            let found = answer(state, &basis, question.clone()).await;
            let found = found.map_err(|error| format!("invariant 25: {name}: {}", told(error)))?;
            self.counts.answers += 1;
            checks::answer(&self.ledger, basis.commit(), &question, &found)?;
        }
        let keys: Vec<String> = self.ledger.erased.iter().cloned().collect();
        if !keys.is_empty() {
            state.erase(&keys, true).await.map_err(told)?;
            self.promises.erased.extend(keys);
        }
        Ok(())
    }

    /// 23: whoever led, somebody else leads a span later, and one only.
    async fn end_of_leads(&mut self, store: &Store) -> Result<(), Broken> {
        let mut leases = [1, 2].map(|n| store.lease(JOB, &format!("end {n}"), SPAN_MS).unwrap());
        let mut leading = 0;
        for _ in 0..2 {
            leading = 0;
            for lease in &mut leases {
                let told = lease.beat().await.map_err(told)?;
                leading += i32::from(told == Leadership::Leading);
            }
            self.clock.set(self.clock.now_micros() + SPAN_MS * 1_000);
        }
        match leading {
            1 => Ok(()),
            _ => Err(format!("invariant 23: {leading} lead at the end")),
        }
    }

    /// 31 and 32: each fork answers as its model, folded and made anew, and has nothing of erased keys; dropped, nothing is left of it.
    async fn end_of_branches(&mut self, store: &Store) -> Result<(), Broken> {
        for branch in self.branches.iter().filter(|branch| branch.stage == Stage::Whole) {
            let name = &branch.name;
            let placed = |broken: Broken| format!("fork {name}, at the end: {broken}");
            let state = store.raw_state(name).await.map_err(|e| placed(told(e)))?;
            for rebuild in [None, Some(false), Some(true)] {
                if let Some(rebuild) = rebuild {
                    state.materialize(rebuild).await.map_err(|e| placed(told(e)))?;
                    let report = state.verify().await.map_err(|e| placed(told(e)))?;
                    if !report.is_sound() {
                        return Err(placed(format!("invariant 5: {report:?}")));
                    }
                }
                let basis = state.reader().basis().await.map_err(|e| placed(told(e)))?;
                let at_begin = Point::at_commit(branch.newest);
                for point in [Point::LATEST, at_begin] {
                    let question = Question::Scan(point);
                    let found = match answer(&state, &basis, question.clone()).await {
                        Err(error)
                            if !point.is_latest()
                                && may_fail(branch.stage, &self.promises, &error) =>
                        {
                            continue;
                        }
                        found => found.map_err(|e| placed(told(e)))?,
                    };
                    self.counts.answers += 1;
                    checks::answer(&branch.ledger, basis.commit(), &question, &found)
                        .map_err(placed)?;
                    self.promises.hold_erased_in(&self.promises.erased, &found).map_err(placed)?;
                }
            }
            store.drop_fork(name).await.map_err(|e| placed(told(e)))?;
            let folder = Path::from(name.as_str());
            let left: Vec<_> = self.disk_left(store, &folder).await?;
            if !left.is_empty() {
                return Err(placed(format!("invariant 31: {left:?} is left of it")));
            }
        }
        Ok(())
    }

    async fn disk_left(&self, store: &Store, folder: &Path) -> Result<Vec<String>, Broken> {
        let objects = store.raw_state(STATE).await.map_err(told)?;
        let objects = objects.log().storage().object_store().clone();
        let listed: Result<Vec<_>, _> = objects.list(Some(folder)).try_collect().await;
        let listed = listed.map_err(|error| error.to_string())?;
        Ok(listed.into_iter().map(|meta| meta.location.to_string()).collect())
    }

    /// 5, 6, 8 and 9: the snapshot is the fold of the log, and every kind of read is the model's.
    async fn everything(&mut self, state: &RawState, when: &str) -> Result<(), Broken> {
        let placed = |broken: Broken| format!("{when}: {broken}");
        let report = state.verify().await.map_err(|error| placed(told(error)))?;
        if !report.is_sound() {
            return Err(placed(format!("invariant 5: {report:?}")));
        }
        let basis = state.reader().basis().await.map_err(told)?;
        let mut questions = vec![
            Question::Scan(Point::LATEST),
            Question::History(Point::LATEST),
            Question::Changes(0),
        ];
        questions.extend((0..4).map(|_| self.pools.question(&mut self.rng, self.newest)));
        for question in questions {
            self.counts.answers += 1;
            let found = match answer(state, &basis, question.clone()).await {
                Ok(found) => found,
                Err(error) => {
                    let now = self.clock.now_micros();
                    let refused = self.promises.hold_refusal(&question, &error, None, now);
                    refused.map_err(placed)?;
                    continue;
                }
            };
            checks::answer(&self.ledger, basis.commit(), &question, &found).map_err(placed)?;
            self.promises.hold_erased_in(&self.promises.erased, &found).map_err(placed)?;
        }
        Ok(())
    }
}
