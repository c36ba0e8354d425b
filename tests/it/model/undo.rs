//! What takes changes back: restores, and erasing.

use alluvium::{
    ErrorKind, KeyErased, KeyFilter, OrderBy, Point, RawState, RestoreOptions, RestoreOutcome,
};
use arrow::array::RecordBatch;
use futures::future::LocalBoxFuture;
use futures::{FutureExt, TryStreamExt};
use rand::Rng;

use super::expiry::answered;
use super::held;
use super::plan::HANDLES;
use super::run::World;
use crate::support::rows::{Change, Seen, Shape, batch, seen};

impl World {
    /// A restore: one row for each key that is different, which has the point's value and wins.
    pub(super) async fn restore(&mut self, handle: usize) {
        let to = self.pools.point(&mut self.rng, self.newest);
        let keys = match self.rng.random_range(0..3) {
            0 => KeyFilter::prefix("a/"),
            1 => KeyFilter::keys((0..9).map(|_| self.pools.key(&mut self.rng))),
            _ => KeyFilter::All,
        };
        let options = RestoreOptions { to, keys, ..RestoreOptions::default() };
        let state = self.handles[handle].clone();
        let basis = state.reader().basis().await.unwrap();
        let report = state.restore(&options).await;
        let Some(report) = answered(self, &basis, &[to], report) else { return };
        let mut expected = self.ledger.diff(Point::LATEST, to);
        expected.retain(|difference| options.keys.matches(&difference.key));
        let counts = report.brought_back + report.set_back + report.removed;
        assert_eq!(counts, expected.len() as u64, "{report:?}");
        if expected.is_empty() {
            assert_eq!(report.outcome, RestoreOutcome::NothingToDo);
            return;
        }
        self.newest += 1;
        assert_eq!((report.commit, report.before_commit), (Some(self.newest), self.newest - 1));
        let rows = self.rows_of_newest(&state).await;
        let winners = self.ledger.fold(Point::LATEST);
        assert_eq!(rows.len(), expected.len());
        for (row, difference) in rows.iter().zip(&expected) {
            assert_eq!((&row.key, &row.value), (&difference.key, &difference.after));
            let winner = winners[row.key.as_str()];
            assert!(row.event_time > winner.event_time, "{row:?} over {winner:?}");
            if self.kind.order_by == OrderBy::Version {
                assert_eq!(row.version, winner.version, "a caller's next version must win");
            }
        }
        let epoch = (format!("restore/{}", report.id), 0);
        self.ledger.add(self.newest, &changes_of(&rows), Some(epoch));
    }

    /// The rows of the newest commit.
    pub(super) async fn rows_of_newest(&self, state: &RawState) -> Vec<Seen> {
        let basis = state.reader().basis().await.unwrap();
        let rows = state.reader().changes_rows(&basis, self.newest - 1).await.unwrap();
        let rows: Vec<RecordBatch> = rows.try_collect().await.unwrap();
        rows.iter().flat_map(seen).collect()
    }

    /// Erases one or two keys for good, and lets them come back.
    pub(super) async fn erase(&mut self, handle: usize) {
        let keys: Vec<String> =
            (0..self.rng.random_range(1..=2)).map(|_| self.pools.key(&mut self.rng)).collect();
        let now = self.rng.random_bool(0.5);
        let state = self.handles[handle].clone();
        match state.erase(&keys, now).await {
            Ok(receipt) => {
                let before = self.ledger.rows.len();
                self.note_erased(&keys);
                if now {
                    // Reads that are under way may fail.
                    held::let_go_of_all(self).await;
                }
                let lost = (before - self.ledger.rows.len()) as u64;
                // Of a log that expires some may be in the snapshot only.
                assert!(receipt.rows_removed == lost || self.kind.expires, "{receipt:?}");
                // A file that no commit tells of may still be committed by another engine.
                let is_kept = self.kind.foreign || !now;
                assert!(is_kept || receipt.pending.is_empty(), "{receipt:?}");
                let again = state.erase(&keys, false).await.unwrap();
                assert_eq!((again.files.len(), again.marker_commit), (0, None), "{again:?}");
            }
            // What can't be told of another engine's files must not be lost either.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(self.kind.foreign, "{error}");
            }
        }
        let other = &self.handles[self.rng.random_range(0..HANDLES)];
        let mut row = self.pools.changes(&mut self.rng, Shape::default(), &[]).remove(0);
        row.key = keys[0].clone();
        let row = [row];
        let error = other.append(&batch(&row, Shape::default())).await.unwrap_err();
        // Who has not heard of the erase yet may know of a floor.
        assert!(KeyErased::is_cause_of(&error) || self.floors.refuse(&row), "{error}");
        self.forget_erased(&keys).await;
    }

    /// Keys were erased, here and in all forks that come from it.
    fn note_erased(&mut self, keys: &[String]) {
        self.ledger.rows.retain(|row| !keys.contains(&row.key));
        self.folds.begin_anew();
        self.whole_since = i64::MAX;
        for branch in &mut self.branches {
            branch.world.note_erased(keys);
        }
    }

    /// Lets keys come back, in each fork by itself.
    pub(super) fn forget_erased<'a>(&'a mut self, keys: &'a [String]) -> LocalBoxFuture<'a, ()> {
        async move {
            let state = &self.handles[self.rng.random_range(0..HANDLES)];
            state.forget_erased(keys).await.unwrap();
            let newest = state.log().refresh().await.unwrap().version;
            self.marked.push((self.newest + 1..newest, keys.to_vec()));
            self.newest = newest;
            self.whole_since = self.newest;
            for branch in &mut self.branches {
                branch.world.forget_erased(keys).await;
            }
        }
        .boxed_local()
    }
}

/// Rows as they were given.
pub(super) fn changes_of(rows: &[Seen]) -> Vec<Change> {
    rows.iter()
        .map(|row| Change {
            key: row.key.clone(),
            version: row.version,
            event_time: row.event_time,
            value: row.value.clone(),
        })
        .collect()
}
