//! Doing a sequence of steps to store and model alike.

use std::sync::Arc;

use alluvium::{
    Clock, EpochOutcome, ErrorKind, KeyErased, KeyFilter, MaintainStep, ManualClock, OrderBy,
    Point, RawState, RestoreOptions, RestoreOutcome, Store, StoreSettings, SystemClock,
};
use arrow::array::RecordBatch;
use futures::TryStreamExt;
use futures::future::join_all;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::checks;
use super::expiry::{self, Folds};
use super::ledger::Ledger;
use super::plan::{APPS, HANDLES, Kind, Pools, Step, handle_settings, step};
use crate::support::delta;
use crate::support::rows::{Change, Seen, Shape, batch, fields, seen};
use crate::support::stores::{DAY, Home, START, ordered_by, settings as plain};

/// The state of all sequences.
pub(crate) const STATE: &str = "things";

/// What the model knows of an application that sends epochs.
#[derive(Debug, Default, Clone)]
struct App {
    last: Option<i64>,
    owner: i64,
    owned: [Option<i64>; HANDLES],
}

/// A store, its model, and everything that is drawn at random.
pub(crate) struct World {
    pub(crate) home: Home,
    pub(crate) handles: Vec<RawState>,
    pub(crate) stores: Vec<Store>,
    pub(crate) settings: Vec<StoreSettings>,
    pub(crate) ledger: Ledger,
    pub(crate) pools: Pools,
    pub(crate) rng: StdRng,
    /// The newest commit of the log.
    pub(crate) newest: i64,
    /// The versions of the snapshot, as they came.
    pub(crate) folds: Folds,
    /// The commits that savepoints keep, the oldest first.
    pub(crate) saved: Vec<(String, i64)>,
    clock: Arc<dyn Clock>,
    pub(crate) months: Arc<ManualClock>,
    kind: Kind,
    shape: Shape,
    apps: [App; APPS],
    has_foreign_rows: bool,
    given: Vec<Change>,
}

/// Tells how to replay a sequence that failed.
struct Replay {
    seed: u64,
    steps: u64,
    done: Vec<Step>,
}

impl Drop for Replay {
    #[allow(clippy::print_stderr)]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let steps = self.done.len().max(1) as u64;
            let last = &self.done[self.done.len().saturating_sub(12)..];
            eprintln!("the last steps: {last:?}");
            eprintln!(
                "replay with ALLUVIUM_SEED={} ALLUVIUM_STEPS={}",
                self.seed,
                steps.min(self.steps)
            );
        }
    }
}

/// Runs one sequence.
pub(crate) async fn sequence(kind: Kind, seed: u64, steps: u64) {
    let mut replay = Replay { seed, steps, done: Vec::new() };
    let mut world = World::new(kind, seed).await;
    for _ in 0..steps {
        let next = step(&mut world.rng, kind);
        replay.done.push(next);
        world.take(next).await;
        world.note_fold().await;
        checks::some(&mut world).await;
    }
    let last = Step::Materialize { handle: 0, rebuild: false };
    replay.done.push(last);
    world.take(last).await;
    checks::everything(&mut world).await;
    world.take(Step::Materialize { handle: 1, rebuild: true }).await;
    checks::everything(&mut world).await;
}

async fn open(home: &Home, settings: &StoreSettings, clock: &Arc<dyn Clock>) -> (Store, RawState) {
    let builder = Store::builder(&home.uri()).settings(settings.clone()).clock(clock.clone());
    let store = builder.open().await.unwrap();
    let state = store.raw_state(STATE).await.unwrap();
    (store, state)
}

impl World {
    pub(crate) async fn new(kind: Kind, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let home = Home::new();
        // In the model of months all days of the rows are over when it begins.
        let months = Arc::new(ManualClock::at(START + 10 * DAY));
        let clock: Arc<dyn Clock> = match kind.months {
            true => months.clone(),
            false => Arc::new(SystemClock),
        };
        let creator = Store::builder(&home.uri()).settings(plain()).clock(clock.clone());
        let creator = creator.open().await.unwrap();
        let (created, _) = creator
            .create_state(STATE, &fields(Shape::default()), ordered_by(kind.order_by))
            .await
            .unwrap();
        if kind.expires {
            let changes = expiry::SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned()));
            created.set_maintenance(&changes).await.unwrap();
        }
        // Every other sequence of months moves its days to an archive: no answer may differ.
        let archives = kind.months && seed.is_multiple_of(2);
        if archives {
            let changes = expiry::ARCHIVE.map(|(name, value)| (name.to_owned(), value.to_owned()));
            created.set_maintenance(&changes).await.unwrap();
        }
        let pools = Pools::new(&mut rng);
        let (mut handles, mut stores, mut all_settings) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..HANDLES {
            let settings = handle_settings(&mut rng, kind);
            let (store, state) = open(&home, &settings, &clock).await;
            handles.push(state);
            stores.push(store);
            all_settings.push(settings);
        }
        Self {
            home,
            handles,
            stores,
            settings: all_settings,
            ledger: Ledger::new(kind.order_by),
            pools,
            rng,
            newest: i64::from(kind.expires) + i64::from(archives),
            folds: Folds::default(),
            saved: Vec::new(),
            clock,
            months,
            kind,
            shape: Shape::default(),
            apps: Default::default(),
            has_foreign_rows: false,
            given: Vec::new(),
        }
    }

    async fn note_fold(&mut self) {
        let snapshot = self.handles[0].snapshot().refresh().await.unwrap();
        self.folds.note(self.months.now_micros(), snapshot.version(), snapshot.log_commit());
    }

    /// A shape that the state knows by now, or less.
    fn known_shape(&mut self) -> Shape {
        Shape {
            grown: self.shape.grown && self.rng.random_bool(0.7),
            b: self.shape.b && self.rng.random_bool(0.7),
        }
    }

    fn draw(&mut self, shape: Shape) -> Vec<Change> {
        let changes = self.pools.changes(&mut self.rng, shape, &self.given);
        self.given.extend(changes.iter().take(20).cloned());
        changes
    }

    pub(crate) async fn take(&mut self, step: Step) {
        match step {
            Step::Append { handle } => {
                let shape = self.known_shape();
                self.append(handle, shape).await;
            }
            Step::Grow => {
                match self.rng.random_bool(0.5) {
                    true => self.shape.grown = true,
                    false => self.shape.b = true,
                }
                let handle = self.rng.random_range(0..HANDLES);
                self.append(handle, self.shape).await;
            }
            Step::Together => self.together().await,
            Step::Epoch { handle, app, repeat, parts } => {
                self.epoch(handle, app, repeat, parts).await
            }
            Step::Materialize { handle, rebuild } => {
                let report = self.handles[handle].materialize(rebuild).await.unwrap();
                assert_eq!(report.to_commit, self.newest, "{report:?}");
                checks::sound(self).await;
            }
            Step::Checkpoint { handle, snapshot } => self.checkpoint(handle, snapshot).await,
            Step::CleanUp { handle, snapshot } => self.clean_up(handle, snapshot).await,
            Step::Maintain { handle } => self.maintain(handle).await,
            Step::Savepoint { handle } => self.savepoint(handle).await,
            Step::Wait { days } => self.months.set(self.months.now_micros() + days * DAY),
            Step::Compact { handle } => {
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
            Step::Restore { handle } => self.restore(handle).await,
            Step::Erase { handle } => self.erase(handle).await,
            Step::Reopen { handle } => {
                self.settings[handle] = handle_settings(&mut self.rng, self.kind);
                (self.stores[handle], self.handles[handle]) =
                    open(&self.home, &self.settings[handle], &self.clock).await;
                self.apps.iter_mut().for_each(|app| app.owned[handle] = None);
            }
            Step::Optimize => {
                let target = *[2_000, 20_000, 1 << 30].choose(&mut self.rng).unwrap();
                let made = delta::optimize(&self.home.table(STATE, "log"), target).await;
                self.newest += i64::from(made);
            }
            Step::ForeignAppend => self.foreign_append().await,
        }
    }

    async fn append(&mut self, handle: usize, shape: Shape) {
        let changes = self.draw(shape);
        let receipt = self.handles[handle].append(&batch(&changes, shape)).await.unwrap();
        self.newest += 1;
        assert_eq!((receipt.commit, receipt.rows), (self.newest, changes.len() as u64));
        assert_eq!(receipt.first_version, changes[0].version);
        assert_eq!(receipt.last_version, changes[changes.len() - 1].version);
        self.ledger.add(receipt.commit, &changes, None);
    }

    /// Appends of all handles at once, two of them by one handle, while others materialize and compact.
    async fn together(&mut self) {
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
        let mut commits = std::collections::BTreeSet::new();
        for (receipt, (_, _, changes)) in receipts.into_iter().zip(&parts) {
            let receipt = receipt.unwrap();
            commits.insert(receipt.commit);
            self.ledger.add(receipt.commit, changes, None);
        }
        self.newest = self.handles[0].log().refresh().await.unwrap().version;
        let others = self.newest - before - commits.len() as i64;
        assert_eq!(others, rewrites as i64, "commits without a gap: {commits:?}");
    }

    async fn epoch(&mut self, handle: usize, app: usize, repeat: bool, parts: usize) {
        let last = self.apps[app].last;
        let number = match (repeat, last) {
            (true, Some(last)) => self.rng.random_range(0..=last),
            _ => last.unwrap_or(-1) + self.rng.random_range(1..3),
        };
        let app_id = format!("app/{app}");
        let mut epoch = self.handles[handle].epoch(&app_id, number).unwrap();
        let mut rows = Vec::new();
        for _ in 0..parts {
            let shape = self.known_shape();
            let changes = self.draw(shape);
            epoch.stage(&batch(&changes, shape)).await.unwrap();
            rows.extend(changes);
        }
        let outcome = epoch.commit().await;
        let known = &mut self.apps[app];
        if let Some(last) = last.filter(|last| *last >= number) {
            assert_eq!(outcome.unwrap(), EpochOutcome::AlreadyApplied { last });
            return;
        }
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
        assert_eq!((receipt.commit, receipt.rows), (self.newest, rows.len() as u64));
        self.ledger.add(receipt.commit, &rows, Some((app_id, number)));
    }

    /// A restore: one row for each key that is different, which has the point's value and wins.
    async fn restore(&mut self, handle: usize) {
        let to = self.pools.point(&mut self.rng, self.newest);
        let keys = match self.rng.random_range(0..3) {
            0 => KeyFilter::prefix("a/"),
            1 => KeyFilter::keys((0..9).map(|_| self.pools.key(&mut self.rng))),
            _ => KeyFilter::All,
        };
        let options = RestoreOptions { to, keys, ..RestoreOptions::default() };
        let state = self.handles[handle].clone();
        let report = state.restore(&options).await.unwrap();
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
        let basis = state.reader().basis().await.unwrap();
        let rows = state.reader().changes_rows(&basis, self.newest - 1).await.unwrap();
        let rows: Vec<RecordBatch> = rows.try_collect().await.unwrap();
        let rows: Vec<Seen> = rows.iter().flat_map(seen).collect();
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
        let change = |row: Seen| Change {
            key: row.key,
            version: row.version,
            event_time: row.event_time,
            value: row.value,
        };
        let rows: Vec<Change> = rows.into_iter().map(change).collect();
        let epoch = (format!("restore/{}", report.id), 0);
        self.ledger.add(self.newest, &rows, Some(epoch));
    }

    /// Erases one or two keys for good, and lets them come back.
    async fn erase(&mut self, handle: usize) {
        let keys: Vec<String> =
            (0..self.rng.random_range(1..=2)).map(|_| self.pools.key(&mut self.rng)).collect();
        let now = self.rng.random_bool(0.5);
        let state = self.handles[handle].clone();
        match state.erase(&keys, now).await {
            Ok(receipt) => {
                let before = self.ledger.rows.len();
                self.ledger.rows.retain(|row| !keys.contains(&row.key));
                let lost = (before - self.ledger.rows.len()) as u64;
                // Of a log that expires some may be in the snapshot only.
                assert!(receipt.rows_removed == lost || self.kind.expires, "{receipt:?}");
                assert!(!now || receipt.pending.is_empty(), "{receipt:?}");
                self.folds.begin_anew();
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
        let error = other.append(&batch(&[row], Shape::default())).await.unwrap_err();
        assert!(KeyErased::is_cause_of(&error), "{error}");
        state.forget_erased(&keys).await.unwrap();
        self.newest = self.handles[0].log().refresh().await.unwrap().version;
    }

    async fn checkpoint(&mut self, handle: usize, snapshot: bool) {
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

    /// The periodic job; a second run of it at the same time of the clock finds nothing to do.
    async fn maintain(&mut self, handle: usize) {
        let state = self.handles[handle].clone();
        let report = state.maintain(&MaintainStep::ALL, false).await.unwrap();
        self.newest = report.log_after.version;
        let again = state.maintain(&MaintainStep::ALL, false).await.unwrap();
        assert_eq!(again.log_after.version, self.newest, "{again:?}");
        assert_eq!(again.snapshot_after, report.snapshot_after, "{again:?}");
        // Time has passed for everybody, while the waits in the readers go by the machine's clock.
        for other in &self.handles {
            other.snapshot().refresh().await.unwrap();
        }
        checks::sound(self).await;
    }

    async fn savepoint(&mut self, handle: usize) {
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
    async fn clean_up(&mut self, handle: usize, snapshot: bool) {
        if self.rng.random_bool(0.7) {
            self.checkpoint(handle, snapshot).await;
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

    /// Rows of another engine, without any bookkeeping. Once in a sequence: two such commits in one file of an `OPTIMIZE`
    /// can't be told apart any more.
    async fn foreign_append(&mut self) {
        if std::mem::replace(&mut self.has_foreign_rows, true) {
            return;
        }
        let mut changes = self.draw(Shape::default());
        let mut seen = std::collections::HashSet::new();
        changes.retain(|change| {
            seen.insert((
                change.key.clone(),
                change.version,
                change.event_time,
                change.value.is_none(),
            ))
        });
        delta::append(&self.home.table(STATE, "log"), &batch(&changes, Shape::default())).await;
        self.newest += 1;
        self.ledger.add(self.newest, &changes, None);
    }
}
