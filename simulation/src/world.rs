//! One run: processes on a disk, an order of calls, faults, and the checks after each step, all drawn from a seed.

mod branches;
mod end;
mod judge;
mod more;
mod shown;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use alluvium::{
    Basis, Clock, Lease, ManualClock, OrderBy, RawState, StateSettings, Storage, Store,
    StoreSettings,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::task::JoinHandle;

use self::shown::{outcome, shown, told};
use crate::actors::{Done, Intent, Kit, STATE, SkewedClock, act, open};
use crate::checks::{Attempt, Broken};
use crate::draw::{Pools, intent, keeping, settings};
use crate::fate::{Call, Fate, Fates, Rates};
use crate::forks::Branch;
use crate::leads::Leads;
use crate::ledger::Ledger;
use crate::promises::{Promises, Tending};
use crate::rows::{Shape, fields};
use crate::store::{Disk, SimStore};

/// Processes of a run.
pub const PROCESSES: usize = 5;
/// How long everybody may be at work without asking the store for anything.
const STUCK: Duration = Duration::from_secs(60);
/// Streams of epochs of a run.
const STREAMS: usize = 2;
const MINUTE: i64 = 60_000_000;
/// Beyond so many calls a run has run away.
const CALLS_PER_OPERATION: u64 = 2_000;

/// What was done in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations of processes.
    pub operations: u64,
    /// Calls of the store that were answered one by one.
    pub calls: u64,
    /// Of these, not as they should have been.
    pub faults: u64,
    /// Deaths of processes.
    pub deaths: u64,
    /// Commits of the log.
    pub commits: u64,
    /// Answers that were compared with the model.
    pub answers: u64,
    /// What was done with caches, streams, the lead, forks, the grid and repairs.
    pub more: More,
}

/// How often what was done that came late into the simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct More {
    /// Questions to caches.
    pub cached: u64,
    /// Looks of epochs of streams at keys.
    pub sights: u64,
    /// Beats that led.
    pub led: u64,
    /// Forks that came to be whole.
    pub forks: u64,
    /// Questions to forks.
    pub fork_answers: u64,
    /// Promotions that made a commit.
    pub promotions: u64,
    /// Questions about what the grid keeps.
    pub marks: u64,
    /// Files that repairs set aside.
    pub set_aside: u64,
}

impl std::ops::AddAssign for More {
    fn add_assign(&mut self, other: Self) {
        self.cached += other.cached;
        self.sights += other.sights;
        self.led += other.led;
        self.forks += other.forks;
        self.fork_answers += other.fork_answers;
        self.promotions += other.promotions;
        self.marks += other.marks;
        self.set_aside += other.set_aside;
    }
}

struct Running {
    task: JoinHandle<Done>,
    intent: Intent,
    faults_before: u64,
    before: Before,
}

/// What was known when an operation began, and whether the store had faults while it ran.
#[derive(Debug, Clone, Default)]
struct Before {
    had_faults: bool,
    /// When it began, in milliseconds.
    begun_ms: i64,
    acknowledged: i64,
    /// The same, or what any reader had seen.
    seen: i64,
    erased: BTreeSet<String>,
}

struct Process {
    store: Arc<SimStore>,
    incarnation: u64,
    clock: Arc<dyn Clock>,
    /// Kept so that what it does in the background goes on.
    opened: Option<(Store, RawState)>,
    running: Option<Running>,
    frozen_until: u64,
    /// A long read.
    held: Option<Basis>,
    /// Its part in the lease of the job, unless it is at work with it.
    lease: Option<Lease>,
    /// Hours have passed since it did anything.
    is_late: bool,
}

/// A run under way.
pub struct World {
    rng: StdRng,
    disk: Arc<Disk>,
    clock: Arc<ManualClock>,
    fates: Fates,
    processes: Vec<Process>,
    last: usize,
    /// The store as one sees it who meets no faults, and the state.
    outside: Store,
    onlooker: RawState,
    ledger: Ledger,
    promises: Promises,
    attempts: Vec<Attempt>,
    epochs: HashMap<(usize, i64), usize>,
    /// Of each stream the attempts that its epochs are, by their numbers.
    streams: [Vec<usize>; STREAMS],
    leads: Leads,
    branches: Vec<Branch>,
    pools: Pools,
    shape: Shape,
    /// The newest commit that the model knows, and the newest one that a writer was told of.
    newest: i64,
    acknowledged: i64,
    /// The newest one that a reader has seen: nobody goes back behind it.
    seen: i64,
    counts: Counts,
    /// What was done last, for whoever looks into a find.
    pub(crate) trace: Vec<String>,
}

impl World {
    /// A new store with one state, on an empty disk, and processes that are not started yet.
    pub async fn new(seed: u64, disk: Arc<Disk>) -> Result<Self, Broken> {
        let mut rng = StdRng::seed_from_u64(seed);
        let pools = Pools::new(&mut rng);
        let clock = Arc::new(ManualClock::at(pools.begin()));
        let order_by = *[OrderBy::EventTime, OrderBy::Version].choose(&mut rng).unwrap();
        let storage = Storage::from_object_store(disk.objects().clone(), "onlooker://");
        let builder = Store::builder("onlooker://").storage(storage).clock(clock.clone());
        let outside = builder.open().await.map_err(told)?;
        let definition = StateSettings { order_by, ..StateSettings::default() };
        let created = outside.create_state(STATE, &fields(Shape::default()), definition).await;
        let (onlooker, _) = created.map_err(told)?;
        let tending = Tending::draw(&mut rng);
        if let Some(tending) = tending {
            onlooker.set_maintenance(&tending.settings()).await.map_err(told)?;
        }
        let fates = Fates::new(seed, Rates::draw(&mut rng));
        let mut processes = Vec::new();
        for process in 0..PROCESSES {
            let skew_micros = rng.random_range(-2_000_000..2_000_000);
            processes.push(Process {
                store: SimStore::new(&disk, process, 0),
                incarnation: 0,
                clock: Arc::new(SkewedClock { base: clock.clone(), skew_micros }),
                opened: None,
                running: None,
                frozen_until: 0,
                held: None,
                lease: None,
                is_late: false,
            });
        }
        Ok(Self {
            rng,
            disk,
            clock,
            fates,
            processes,
            last: 0,
            outside,
            onlooker,
            ledger: Ledger::new(order_by),
            promises: Promises::of(tending),
            attempts: Vec::new(),
            epochs: HashMap::new(),
            streams: Default::default(),
            leads: Leads::default(),
            branches: Vec::new(),
            pools,
            shape: Shape::default(),
            newest: 0,
            acknowledged: 0,
            seen: 0,
            counts: Counts::default(),
            trace: Vec::new(),
        })
    }

    /// Lets processes carry out so many operations, and checks all the while and at the end.
    pub async fn run(&mut self, operations: u64) -> Result<Counts, Broken> {
        let mut is_resting = false;
        loop {
            let is_over = self.counts.operations >= operations;
            if !is_over && !is_resting {
                self.begin_some();
            }
            self.settle().await?;
            self.end_some().await?;
            let is_idle = self.processes.iter().all(|process| process.running.is_none());
            if is_idle && is_over {
                break;
            }
            if is_idle && is_resting {
                is_resting = false;
                self.rest();
            }
            if self.answer_one(is_over || is_resting) {
                // Seen before anything else happens, so that nothing of it can have gone since.
                self.settle().await?;
                self.look().await?;
            }
            let rests = if self.promises.tending.is_some() { 0.003 } else { 0.001 };
            is_resting |= self.rng.random_bool(rests);
            if self.counts.calls > operations.max(10) * CALLS_PER_OPERATION {
                return Err(format!("{} calls, and no end", self.counts.calls));
            }
        }
        self.end().await?;
        self.counts.commits = self.newest.unsigned_abs();
        Ok(self.counts)
    }

    /// Time passes while nobody reads, but those that hold what they read: a reader may count on its files for some time only.
    fn rest(&mut self) {
        let is_held = self.processes.iter().any(|process| process.held.is_some());
        let minutes = match is_held && self.rng.random_bool(0.8) {
            true => *[9, 20, 45].choose(&mut self.rng).unwrap(),
            false => 60 * *[1, 7, 26, 80].choose(&mut self.rng).unwrap(),
        };
        self.clock.set(self.clock.now_micros() + minutes * MINUTE);
        for process in &mut self.processes {
            process.is_late = true;
        }
        self.note(format!("{minutes} minutes pass"));
    }

    fn note(&mut self, text: String) {
        let number = self.counts.calls;
        self.trace.push(format!("{number:>6}  {text}"));
    }

    /// Gives some of those that have nothing to do something to do.
    fn begin_some(&mut self) {
        for number in 0..self.processes.len() {
            let is_free = self.processes[number].running.is_none();
            if is_free && self.rng.random_bool(0.5) {
                self.begin(number);
            }
        }
    }

    fn begin(&mut self, number: usize) {
        let opened = self.processes[number].opened.clone();
        let intent = match opened {
            None => Intent::Open,
            Some(_) if self.rng.random_bool(0.04) => {
                // It ends, as a process does that is stopped, and is started again.
                self.restart(number);
                Intent::Open
            }
            Some(_) => self.next_intent(number),
        };
        self.set_out(number, &intent);
        self.counts.operations += 1;
        self.note(format!("process {number} begins {}", shown(&intent)));
        let process = &mut self.processes[number];
        let (store, clock) = (process.store.clone(), process.clock.clone());
        let is_late = std::mem::take(&mut process.is_late);
        let held = match &intent {
            // It ends with the answer.
            Intent::ReadHeld(_) => process.held.take(),
            _ => None,
        };
        let lease = match &intent {
            Intent::Beat | Intent::LetGo => process.lease.take(),
            _ => None,
        };
        let (wanted, disk) = (intent.clone(), self.disk.clone());
        let settings: StoreSettings = settings(&mut self.rng);
        let task = async move {
            let done = match opened {
                Some((home, state)) if !matches!(wanted, Intent::Open) => {
                    act(Kit { store, home, lease, state, held, is_late }, wanted).await
                }
                _ => Done::Opened(open(store, clock, settings).await),
            };
            disk.changed.notify_one();
            done
        };
        let (faults_before, task) = (process.store.faults(), tokio::spawn(task));
        let before = Before {
            had_faults: false,
            begun_ms: self.clock.now_ms(),
            acknowledged: self.acknowledged,
            seen: self.known_before(&intent),
            erased: self.promises.erased.clone(),
        };
        self.processes[number].running = Some(Running { task, intent, faults_before, before });
    }

    fn next_intent(&mut self, number: usize) -> Intent {
        if let Some(more) = self.more(number) {
            return more;
        }
        let held = self.processes[number].held.as_ref().map(Basis::commit);
        let count = self.counts.operations;
        let (pools, promises) = (&self.pools, &self.promises);
        let kept = keeping(&mut self.rng, pools, promises, self.newest, count, held);
        if let Some(kept) = kept {
            match &kept {
                Intent::Restore(id, to) => self.promises.want_restore(id, *to),
                Intent::Release(name) => {
                    self.promises.savepoints.remove(name);
                }
                _ => {}
            }
            return kept;
        }
        let drawn =
            intent(&mut self.rng, &self.pools, &mut self.shape, self.newest, self.attempts.len());
        match drawn {
            Intent::Append { attempt, rows, shape, typed } => {
                self.attempts.push(Attempt::new(rows.clone(), None));
                Intent::Append { attempt, rows, shape, typed }
            }
            Intent::Epoch { app, rows, shape, .. } => self.epoch(&app, rows, shape),
            Intent::Optimize if self.promises.tending.is_some() => {
                Intent::Materialize { rebuild: false }
            }
            other => other,
        }
    }

    /// The next epoch of an application, or one that was sent before: whoever sends it, it has the same rows.
    fn epoch(&mut self, app: &str, rows: Vec<crate::rows::Change>, shape: Shape) -> Intent {
        let index = usize::from(app.ends_with('1'));
        let sent =
            (0..).take_while(|number| self.epochs.contains_key(&(index, *number))).count() as i64;
        let number = if sent > 0 && self.rng.random_bool(0.4) {
            (sent - 1 - self.rng.random_range(0..3)).max(0)
        } else {
            sent
        };
        let attempt = match self.epochs.get(&(index, number)) {
            Some(attempt) => *attempt,
            None => {
                self.attempts.push(Attempt::new(rows, Some((app.to_owned(), number))));
                self.epochs.insert((index, number), self.attempts.len() - 1);
                self.attempts.len() - 1
            }
        };
        let rows = self.attempts[attempt].rows.clone();
        let shape = crate::draw::shape_of(&rows, shape);
        Intent::Epoch { attempt, app: app.to_owned(), number, rows, shape }
    }

    fn restart(&mut self, number: usize) {
        let process = &mut self.processes[number];
        process.incarnation += 1;
        self.disk.forget(number);
        process.store.kill();
        process.store = SimStore::new(&self.disk, number, process.incarnation);
        process.opened = None;
        process.held = None;
        process.lease = None;
    }

    /// Waits until everybody has ended or waits for the store.
    async fn settle(&self) -> Result<(), Broken> {
        let begun = std::time::Instant::now();
        loop {
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            let is_still = |(number, process): (usize, &Process)| {
                let Some(running) = &process.running else { return true };
                running.task.is_finished() || self.disk.is_waiting(number)
            };
            if self.processes.iter().enumerate().all(is_still) {
                return Ok(());
            }
            if begun.elapsed() > STUCK {
                let stuck = self.processes.iter().enumerate().filter(|at| !is_still(*at));
                let stuck = stuck.map(|(number, process)| {
                    format!("{number}: {:?}", process.running.as_ref().map(|r| shown(&r.intent)))
                });
                return Err(format!("stuck: {:?}", stuck.collect::<Vec<_>>()));
            }
            // What is told between the look and the wait is not missed; the bound is for tasks that end without a word.
            let told = self.disk.changed.notified();
            drop(tokio::time::timeout(Duration::from_millis(2), told).await);
        }
    }

    /// Lets one call go on: often of the process that went on last, as a machine does that is faster than others.
    ///
    /// Gives whether the call may have made a commit of the log.
    fn answer_one(&mut self, is_calm: bool) -> bool {
        let mut waiting = self.disk.waiting();
        waiting
            .retain(|number| self.processes[*number].frozen_until <= self.counts.calls || is_calm);
        if waiting.is_empty() {
            waiting = self.disk.waiting();
        }
        let again = self.rng.random_bool(0.7) && waiting.contains(&self.last);
        let Some(number) =
            (if again { Some(self.last) } else { waiting.choose(&mut self.rng).copied() })
        else {
            return false;
        };
        self.last = number;
        if !is_calm && self.rng.random_bool(0.004) {
            // Nobody hears of it for a while; others may take it for dead.
            self.processes[number].frozen_until =
                self.counts.calls + self.rng.random_range(20..600);
            self.note(format!("process {number} is frozen"));
            return false;
        }
        let Some(call) = self.disk.take(number) else { return false };
        self.counts.calls += 1;
        self.clock.set(self.clock.now_micros() + self.rng.random_range(0..20_000));
        let fate = self.fates.draw(number, call.incarnation, call.call, &call.path);
        if fate != Fate::Answered {
            self.counts.faults += 1;
            self.note(format!("process {number}: {:?} of {} is {fate:?}", call.call, call.path));
        }
        if let Fate::Deadly(_) = fate {
            self.counts.deaths += 1;
            self.disk.forget(number);
        }
        let is_commit =
            matches!(call.call, Call::Put(true)) && call.path.contains("/log/_delta_log/");
        call.answer(fate);
        is_commit
    }

    /// Looks at what has ended.
    async fn end_some(&mut self) -> Result<(), Broken> {
        for number in 0..self.processes.len() {
            let running = &mut self.processes[number].running;
            let Some(ended) = running.take_if(|running| running.task.is_finished()) else {
                continue;
            };
            let done = ended.task.await.map_err(|error| {
                format!("process {number} broke down at {}: {error}", shown(&ended.intent))
            })?;
            let process = &self.processes[number];
            let (is_dead, faults) = (process.store.is_dead(), process.store.faults());
            let had_faults = is_dead || faults > ended.faults_before;
            self.note(format!(
                "process {number} ends {}: {}",
                shown(&ended.intent),
                outcome(&done)
            ));
            // What the dead have opened is theirs.
            let is_opened = matches!(done, Done::Opened(Ok(_)));
            let is_let_go = matches!(done, Done::Beaten(..) | Done::LetGo(..));
            let is_nothing = is_dead && (is_opened || is_let_go);
            let done = if is_nothing { Done::Kept(Ok(())) } else { done };
            if is_dead {
                self.restart(number);
            }
            let before = Before { had_faults, ..ended.before };
            self.judge(number, ended.intent, done, before).await?;
            if let Some(broken) = self.disk.broken().first() {
                return Err(broken.clone());
            }
        }
        Ok(())
    }
}
