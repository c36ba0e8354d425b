//! Writing: appends, epochs, and rows of another engine.

use std::collections::{BTreeSet, HashSet};

use alluvium::{EpochOutcome, ErrorKind};
use futures::future::join_all;
use rand::Rng;

use super::run::World;
use crate::support::delta;
use crate::support::rows::{Change, Shape, batch};

impl World {
    /// A shape that the state knows by now, or less.
    pub(super) fn known_shape(&mut self) -> Shape {
        Shape {
            grown: self.shape.grown && self.rng.random_bool(0.7),
            b: self.shape.b && self.rng.random_bool(0.7),
        }
    }

    fn draw(&mut self, shape: Shape) -> Vec<Change> {
        self.pools.today = self.traits.forgets.then(|| self.now());
        let changes = self.pools.changes(&mut self.rng, shape, &self.given);
        self.given.extend(changes.iter().take(20).cloned());
        changes
    }

    pub(super) async fn append(&mut self, handle: usize, shape: Shape) {
        let changes = self.draw(shape);
        let outcome = self.handles[handle].append(&batch(&changes, shape)).await;
        let Some(receipt) = self.floors.admitted(&changes, outcome) else { return };
        self.newest += 1;
        assert_eq!((receipt.commit, receipt.rows), (self.newest, changes.len() as u64));
        assert_eq!(receipt.first_version, changes[0].version);
        assert_eq!(receipt.last_version, changes[changes.len() - 1].version);
        self.ledger.add(receipt.commit, &changes, None);
    }

    /// Appends of all handles at once, two of them by one handle, while others materialize and compact.
    pub(super) async fn together(&mut self) {
        let mut parts = Vec::new();
        for handle in [0, 1, 2, 0] {
            let shape = self.known_shape();
            let changes = self.draw(shape);
            parts.push((handle, batch(&changes, shape), changes));
        }
        let appends =
            join_all(parts.iter().map(|(handle, batch, _)| self.handles[*handle].append(batch)));
        let materializes = self.rng.random_bool(0.5);
        let materialize = async {
            if materializes {
                self.handles[1].materialize(false).await.unwrap();
            }
        };
        let compactors = self.rng.random_range(0..=2);
        let compact = join_all((0..compactors).map(|handle| self.handles[handle].compact(false)));
        let (receipts, (), compacted) = futures::join!(appends, materialize, compact);
        let rewrites: u64 = compacted.into_iter().map(|report| report.unwrap().commits).sum();
        let before = self.newest;
        let mut commits = BTreeSet::new();
        for (receipt, (_, _, changes)) in receipts.into_iter().zip(&parts) {
            let Some(receipt) = self.floors.admitted(changes, receipt) else { continue };
            commits.insert(receipt.commit);
            self.ledger.add(receipt.commit, changes, None);
        }
        self.newest = self.handles[0].log().refresh().await.unwrap().version;
        let others = self.newest - before - commits.len() as i64;
        assert_eq!(others, rewrites as i64, "commits without a gap: {commits:?}");
    }

    pub(super) async fn epoch(&mut self, handle: usize, app: usize, repeat: bool, parts: usize) {
        let last = self.apps[app].last;
        let number = match (repeat, last) {
            (true, Some(last)) => self.rng.random_range(0..=last),
            _ => last.unwrap_or(-1) + self.rng.random_range(1..3),
        };
        let app_id = format!("app/{app}");
        let mut epoch = self.handles[handle].epoch(&app_id, number).unwrap();
        let applied = last.filter(|last| *last >= number);
        let mut rows = Vec::new();
        for _ in 0..parts {
            let shape = self.known_shape();
            let changes = self.draw(shape);
            let staged = epoch.stage(&batch(&changes, shape)).await;
            rows.extend(changes);
            // Who knows of the floor refuses at once, unless the epoch is in the log already.
            if staged.is_err() && applied.is_none() {
                assert!(self.floors.admitted(&rows, staged).is_none());
                return;
            }
            staged.unwrap();
        }
        let outcome = epoch.commit().await;
        if let Some(last) = applied {
            assert_eq!(outcome.unwrap(), EpochOutcome::AlreadyApplied { last });
            return;
        }
        if self.floors.refuse(&rows) {
            assert!(self.floors.admitted(&rows, outcome).is_none());
            return;
        }
        let known = &mut self.apps[app];
        let generation = known.owned[handle].unwrap_or(known.owner + 1);
        if known.owner > generation {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Fenced);
            return;
        }
        let EpochOutcome::Committed(receipt) = outcome.unwrap() else {
            panic!("epoch {number} was not applied")
        };
        known.owner = generation;
        known.owned[handle] = Some(generation);
        known.last = Some(number);
        self.newest += 1;
        self.epochs.push((self.newest, app, number, generation));
        assert_eq!((receipt.commit, receipt.rows), (self.newest, rows.len() as u64));
        self.ledger.add(receipt.commit, &rows, Some((app_id, number)));
    }

    /// Rows of another engine, without any bookkeeping. Once in a sequence: two such commits in one file of an `OPTIMIZE`
    /// can't be told apart any more.
    pub(super) async fn foreign_append(&mut self) {
        if std::mem::replace(&mut self.has_foreign_rows, true) {
            return;
        }
        let mut changes = self.draw(Shape::default());
        let mut seen = HashSet::new();
        changes.retain(|change| {
            seen.insert((
                change.key.clone(),
                change.version,
                change.event_time,
                change.value.is_none(),
            ))
        });
        delta::append(&self.home.table(&self.name, "log"), &batch(&changes, Shape::default()))
            .await;
        self.newest += 1;
        self.ledger.add(self.newest, &changes, None);
    }
}
