//! Keeping the state small: checkpoints, clean-up, the periodic job, savepoints and the grid.

use alluvium::{ErrorKind, Floor, MaintainStep, RawState};
use rand::Rng;

use super::expiry::{self, GRID_MARKS};
use super::floors;
use super::plan::{Kind, Traits};
use super::run::World;
use super::{checks, held};
use crate::support::stores::DAY;

/// The settings of a sequence.
pub(super) fn settings(kind: Kind, traits: Traits) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    if kind.expires {
        settings.extend(expiry::SETTINGS);
    }
    if traits.archives {
        settings.extend(expiry::ARCHIVE);
    }
    if traits.forgets {
        settings.extend(floors::SETTINGS);
    }
    if traits.has_grid {
        settings.push(expiry::GRID);
    }
    settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

impl World {
    pub(super) async fn checkpoint(&mut self, handle: usize, snapshot: bool) {
        let state = &self.handles[handle];
        // One at a time: the background may be writing one that is due.
        state.log().close().await;
        if !snapshot {
            state.log().refresh().await.unwrap();
            // One may be being written in the background.
            while !state.log().table().checkpoint().await.unwrap() {
                tokio::task::yield_now().await;
            }
            return;
        }
        let snapshot = state.snapshot().refresh().await.unwrap();
        if let Some((table, _)) = snapshot.table() {
            assert!(table.checkpoint().await.unwrap());
        }
    }

    pub(super) async fn compact(&mut self, handle: usize) {
        // What is folded in the background meanwhile may be merged by a second run.
        for other in &self.handles {
            other.log().close().await;
        }
        let report = self.handles[handle].compact(false).await.unwrap();
        assert!(!report.gave_way, "nobody else was at work: {report:?}");
        self.newest += report.commits as i64;
        let again = self.handles[handle].compact(false).await.unwrap();
        assert_eq!(again.commits, 0, "a second run finds nothing to do: {again:?}");
    }

    /// The periodic job; a second run of it at the same time of the clock finds nothing to do.
    pub(super) async fn maintain(&mut self, handle: usize) {
        let state = self.handles[handle].clone();
        let raised = self.traits.forgets.then(|| self.floors.next(&self.ledger, self.now()));
        let report = state.maintain(&MaintainStep::ALL, false).await.unwrap();
        self.note_floor(&state, raised.flatten(), report.log_after.version);
        self.newest = report.log_after.version;
        let again = state.maintain(&MaintainStep::ALL, false).await.unwrap();
        assert_eq!(again.log_after.version, self.newest, "{again:?}");
        assert_eq!(again.snapshot_after, report.snapshot_after, "{again:?}");
        // Time has passed for everybody, while the waits in the readers go by the machine's clock.
        for other in &self.handles {
            other.snapshot().refresh().await.unwrap();
        }
        self.note_marks(&state).await;
        held::only_the_living_hold(self, &state).await;
        checks::sound(self).await;
    }

    /// The floor is where it was, or was raised as far as the model says.
    fn note_floor(&mut self, state: &RawState, raised: Option<i64>, newest: i64) {
        let found = state.log().floor();
        let Some(time) = raised else {
            assert_eq!(found.map(|floor| floor.time), self.floors.now());
            return;
        };
        let Some(Floor { commit, .. }) = found.filter(|floor| floor.time == time) else {
            panic!("the floor is {found:?}, and was to be raised to {time}")
        };
        assert!((self.newest + 1..=newest).contains(&commit), "{found:?}");
        self.floors.raise(Floor { time, commit });
    }

    /// What the grid keeps: for each mark the snapshot that was the newest then, which answers as long as the mark is looked at.
    async fn note_marks(&mut self, state: &RawState) {
        // Those of this step count as well.
        self.note().await;
        let kept = state.grid_snapshots().await.unwrap();
        self.marks = kept.iter().map(|snapshot| snapshot.log_commit).collect();
        if !self.traits.has_grid {
            assert!(self.marks.is_empty(), "{kept:?}");
            return;
        }
        assert!(self.marks.len() as i64 <= GRID_MARKS + 1, "{kept:?}");
        let now = self.now();
        self.owed.extend(self.folds.at_marks(now));
        self.owed.retain(|mark, _| *mark > now - GRID_MARKS * DAY);
        for (mark, commit) in &self.owed {
            assert!(
                self.marks.contains(commit),
                "commit {commit} was the newest at {mark}, and is not kept at {now}: {:?}",
                self.marks
            );
        }
    }

    pub(super) async fn savepoint(&mut self, handle: usize) {
        let state = &self.handles[handle];
        if self.saved.len() > 2 {
            let (name, _) = self.saved.remove(0);
            state.release_savepoint(&name).await.unwrap();
            return;
        }
        let name = format!("s{}", self.rng.random::<u64>());
        match state.create_savepoint(&name, None).await {
            Ok(made) => self.saved.push((name, made.log_commit)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                assert!(self.ledger.rows.is_empty(), "{error}");
            }
        }
    }

    /// Nothing but what the newest checkpoint holds is left to those who open the tables from now on.
    pub(super) async fn clean_up(&mut self, handle: usize, snapshot: bool) {
        if self.rng.random_bool(0.7) {
            self.checkpoint(handle, snapshot).await;
        }
        // What could be read by its number can't be any more.
        self.whole_since = self.newest;
        match snapshot {
            true => self.folds.begin_anew(),
            false => self.told_since = self.newest,
        }
        let state = &self.handles[handle];
        match snapshot {
            false => {
                state.log().table().clean_up(0, false).await.unwrap();
            }
            true => {
                if let Some((table, _)) = state.snapshot().state().table() {
                    table.clean_up(0, false).await.unwrap();
                }
            }
        }
    }
}
