//! Doing a sequence of steps to store and model alike.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use alluvium::{Clock, ManualClock, RawState, Store, StoreSettings, SystemClock};
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::branches::{self, Branch};
use super::expiry::{Folds, is_of_window};
use super::floors::Floors;
use super::held::{self, Held};
use super::ledger::Ledger;
use super::plan::{APPS, HANDLES, Kind, Pools, Step, Traits, handle_settings, step};
use super::{checks, tending};
use crate::support::delta;
use crate::support::rows::{Change, Shape, fields};
use crate::support::stores::{DAY, Home, START, ordered_by, settings as plain};

/// The state of all sequences.
const STATE: &str = "things";

/// What the model knows of an application that sends epochs.
#[derive(Debug, Default, Clone)]
pub(super) struct App {
    pub(super) last: Option<i64>,
    pub(super) owner: i64,
    pub(super) owned: [Option<i64>; HANDLES],
}

/// A state, its model, and everything that is drawn at random. A fork of it is a world of its own, in the same store.
pub(crate) struct World {
    pub(crate) home: Arc<Home>,
    /// The state's name.
    pub(crate) name: String,
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
    /// The commits that the grid keeps.
    pub(crate) marks: Vec<i64>,
    /// The commits that were the newest at marks of the grid, by the marks.
    pub(super) owed: BTreeMap<i64, i64>,
    /// Keys that were marked as erased, and the commits as of which they were.
    pub(super) marked: Vec<(Range<i64>, Vec<String>)>,
    /// Up to which event times changes are refused.
    pub(crate) floors: Floors,
    /// Its forks.
    pub(crate) branches: Vec<Branch>,
    /// How many forks of it there ever were.
    pub(crate) forked: u32,
    /// The first commit that has the settings of the sequence.
    pub(crate) first: i64,
    /// From this commit on the tables are whole: nothing was erased or cleaned up at once since.
    pub(crate) whole_since: i64,
    /// From this commit on all are there to tell when they were made, but for those of long ago.
    pub(crate) told_since: i64,
    /// What readers hold.
    pub(crate) held: Vec<Held>,
    pub(super) clock: Arc<dyn Clock>,
    pub(crate) months: Arc<ManualClock>,
    pub(super) kind: Kind,
    pub(super) traits: Traits,
    pub(super) shape: Shape,
    pub(super) apps: [App; APPS],
    /// The epochs that were applied: commit, application, number and generation of the owner.
    pub(super) epochs: Vec<(i64, usize, i64, i64)>,
    pub(super) has_foreign_rows: bool,
    pub(super) given: Vec<Change>,
    /// The newest commits that there were, and since when.
    pub(super) commits: Vec<(i64, i64)>,
    /// The steps of the whole sequence.
    pub(super) done: Done,
}

/// Steps that were taken, with the state that they were taken in.
pub(super) type Done = Arc<Mutex<Vec<(String, Step)>>>;

/// Tells how to replay a sequence that failed.
struct Replay {
    seed: u64,
    steps: u64,
    done: Done,
}

impl Drop for Replay {
    #[allow(clippy::print_stderr)]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let done = self.done.lock().unwrap();
            let own = done.iter().filter(|(name, _)| name == STATE).count().max(1) as u64;
            let last = &done[done.len().saturating_sub(12)..];
            eprintln!("the last steps: {last:?}");
            eprintln!(
                "replay with ALLUVIUM_SEED={} ALLUVIUM_STEPS={}",
                self.seed,
                own.min(self.steps)
            );
        }
    }
}

/// Runs one sequence.
pub(crate) async fn sequence(kind: Kind, seed: u64, steps: u64) {
    let mut world = World::new(kind, seed).await;
    let _replay = Replay { seed, steps, done: world.done.clone() };
    for _ in 0..steps {
        let next = step(&mut world.rng, kind, world.traits);
        world.go(next).await;
    }
    world.end().await;
}

pub(super) async fn open(
    home: &Home,
    settings: &StoreSettings,
    clock: &Arc<dyn Clock>,
    name: &str,
) -> (Store, RawState) {
    let builder = Store::builder(&home.uri()).settings(settings.clone()).clock(clock.clone());
    let store = builder.open().await.unwrap();
    let state = store.raw_state(name).await.unwrap();
    (store, state)
}

impl World {
    pub(crate) async fn new(kind: Kind, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let traits = Traits::draw(kind, seed);
        let home = Arc::new(Home::new());
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
        let changes = tending::settings(kind, traits);
        created.set_maintenance(&changes).await.unwrap();
        let pools = Pools::new(&mut rng);
        let newest = i64::from(!changes.is_empty());
        let mut world = Self {
            home,
            name: STATE.to_owned(),
            handles: Vec::new(),
            stores: Vec::new(),
            settings: Vec::new(),
            ledger: Ledger::new(kind.order_by),
            pools,
            rng,
            newest,
            folds: Folds::default(),
            saved: Vec::new(),
            marks: Vec::new(),
            owed: BTreeMap::new(),
            marked: Vec::new(),
            floors: Floors::default(),
            branches: Vec::new(),
            forked: 0,
            first: newest,
            whole_since: newest,
            told_since: newest,
            held: Vec::new(),
            clock,
            months,
            kind,
            traits,
            shape: Shape::default(),
            apps: Default::default(),
            epochs: Vec::new(),
            has_foreign_rows: false,
            given: Vec::new(),
            commits: Vec::new(),
            done: Done::default(),
        };
        world.open_handles().await;
        world
    }

    /// The commits that savepoints and the grid keep.
    pub(crate) fn kept(&self) -> impl Iterator<Item = i64> + '_ {
        self.saved.iter().map(|saved| saved.1).chain(self.marks.iter().copied())
    }

    /// A fork of a commit, which was made just now: it begins with what the model has of that, without rows of the log or with them.
    pub(super) async fn forked_at(&mut self, name: &str, commit: i64, without_log: bool) -> Self {
        let mut ledger = self.ledger.clone();
        ledger.rows.retain(|row| row.commit <= commit);
        // Without a log it isn't known how far applications had come.
        let known = |epoch: &&(i64, usize, i64, i64)| epoch.0 <= commit && !without_log;
        let epochs: Vec<_> = self.epochs.iter().filter(known).copied().collect();
        let mut apps: [App; APPS] = Default::default();
        for (_, app, number, generation) in &epochs {
            let owned = Default::default();
            apps[*app] = App { last: Some(*number), owner: *generation, owned };
        }
        let mut world = Self {
            home: self.home.clone(),
            name: name.to_owned(),
            handles: Vec::new(),
            stores: Vec::new(),
            settings: Vec::new(),
            ledger,
            pools: self.pools.clone(),
            rng: StdRng::seed_from_u64(self.rng.random()),
            // Its own first commit adds no rows.
            newest: commit + 1,
            folds: match without_log {
                true => Folds::alone(commit),
                false => self.folds.up_to(commit),
            },
            saved: self.saved.iter().filter(|saved| saved.1 <= commit).cloned().collect(),
            marks: self.marks.iter().filter(|mark| **mark <= commit).copied().collect(),
            owed: BTreeMap::new(),
            marked: Vec::new(),
            floors: self.floors.up_to(commit),
            branches: Vec::new(),
            forked: 0,
            first: commit + 1,
            whole_since: commit + 1,
            told_since: if without_log { commit + 1 } else { self.told_since },
            held: Vec::new(),
            clock: self.clock.clone(),
            months: self.months.clone(),
            kind: self.kind,
            traits: self.traits.of_fork(),
            shape: self.shape,
            apps,
            epochs,
            has_foreign_rows: self.has_foreign_rows,
            given: self.given.clone(),
            commits: self.commits.iter().filter(|known| known.0 <= commit).copied().collect(),
            done: self.done.clone(),
        };
        world.open_handles().await;
        if without_log {
            let found = world.handles[0].log().floor();
            world.floors = self.floors.left(found, commit);
        }
        if world.handles[0].reader().basis().await.unwrap().expired_commit() == 0 {
            // The log answers all, and of the snapshot it has one version.
            world.folds.keep_last();
        }
        for (commits, keys) in &self.marked {
            // Without a log it has the markers of now.
            if commits.contains(&commit) && !without_log {
                world.forget_erased(keys).await;
                world.marked.push((commit + 1..commit + 2, keys.clone()));
            }
        }
        world.note().await;
        world
    }

    async fn open_handles(&mut self) {
        for _ in 0..HANDLES {
            let settings = handle_settings(&mut self.rng, self.kind);
            let (store, state) = open(&self.home, &settings, &self.clock, &self.name).await;
            self.handles.push(state);
            self.stores.push(store);
            self.settings.push(settings);
        }
    }

    /// What time it is where months pass.
    pub(crate) fn now(&self) -> i64 {
        self.months.now_micros()
    }

    /// Notes the version of the snapshot, and the newest commit.
    pub(super) async fn note(&mut self) {
        let snapshot = self.handles[0].snapshot().refresh().await.unwrap();
        self.folds.note(self.now(), snapshot.version(), snapshot.log_commit());
        if self.commits.last().is_none_or(|last| last.0 < self.newest) {
            self.commits.push((self.newest, self.now()));
        }
    }

    /// Whether the tables are sure to be readable still as they were at a commit.
    pub(super) fn is_whole_at(&self, commit: i64) -> bool {
        let next = self.commits.iter().find(|known| known.0 > commit);
        let replaced = next.map_or(i64::MAX, |next| next.1);
        commit >= self.whole_since && is_of_window(replaced, self.now())
    }

    /// Whether commits are sure to tell still when a commit was made.
    pub(super) fn is_told_at(&self, commit: i64) -> bool {
        let next = self.commits.iter().find(|known| known.0 > commit);
        let replaced = next.map_or(i64::MAX, |next| next.1);
        commit >= self.told_since && is_of_window(replaced, self.now())
    }

    /// Takes a step, and compares a few answers.
    pub(super) fn go(&mut self, step: Step) -> LocalBoxFuture<'_, ()> {
        self.done.lock().unwrap().push((self.name.clone(), step));
        async move {
            self.take(step).await;
            self.note().await;
            checks::some(self).await;
        }
        .boxed_local()
    }

    /// Folds all that is left, and compares every kind of answer, by increments and made anew; in forks, too.
    pub(super) fn end(&mut self) -> LocalBoxFuture<'_, ()> {
        async move {
            for rebuild in [false, true] {
                self.go(Step::Materialize { handle: usize::from(rebuild), rebuild }).await;
                checks::everything(self).await;
            }
            held::end(self).await;
            for branch in &mut self.branches {
                branch.world.end().await;
            }
        }
        .boxed_local()
    }

    async fn take(&mut self, step: Step) {
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
            Step::Wait { days } => held::pass(self, days).await,
            Step::Compact { handle } => self.compact(handle).await,
            Step::Restore { handle } => self.restore(handle).await,
            Step::Erase { handle } => self.erase(handle).await,
            Step::Reopen { handle } => {
                self.settings[handle] = handle_settings(&mut self.rng, self.kind);
                (self.stores[handle], self.handles[handle]) =
                    open(&self.home, &self.settings[handle], &self.clock, &self.name).await;
                self.apps.iter_mut().for_each(|app| app.owned[handle] = None);
            }
            Step::Optimize => {
                let target = *[2_000, 20_000, 1 << 30].choose(&mut self.rng).unwrap();
                let made = delta::optimize(&self.home.table(&self.name, "log"), target).await;
                self.newest += i64::from(made);
            }
            Step::ForeignAppend => self.foreign_append().await,
            Step::Fork { handle } => branches::make(self, handle).await,
            Step::InFork => branches::go_on(self).await,
            Step::Promote { handle } => branches::promote(self, handle).await,
            Step::DropFork { handle } => branches::drop_one(self, handle).await,
            Step::Hold => held::begin(self).await,
            Step::ReadHeld => held::read(self).await,
        }
    }
}
