//! Drawing what a process sets out to do with caches, streams, the lead of the job, the grid, and forks; and what is known from then on.

use alluvium::{Clock, MaintainStep};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::{STREAMS, World};
use crate::actors::{Intent, Question};
use crate::checks::{Attempt, mark};
use crate::draw::{shape_of, value};
use crate::forks::{Branch, Stage};
use crate::leads::{JOB, SPAN_MS};
use crate::rows::{Change, Shape, Value};
use crate::typed::{Asked, Sent};

/// Forks that there are at the same time at most.
const FORKS: usize = 2;

impl World {
    /// What a process does next of all this; most often nothing.
    pub(super) fn more(&mut self, number: usize) -> Option<Intent> {
        match self.rng.random_range(0..100) {
            0..10 => {
                let count = self.rng.random_range(1..5);
                let keys = (0..count).map(|_| self.pools.key(&mut self.rng)).collect();
                let asked = [Asked::Each, Asked::Each, Asked::Together, Asked::Warmed];
                Some(Intent::Cached(keys, *asked.choose(&mut self.rng).unwrap()))
            }
            10..14 => Some(self.stream()),
            14..18 => {
                self.take_part(number);
                Some(Intent::Beat)
            }
            18..19 => self.processes[number].lease.is_some().then_some(Intent::LetGo),
            // One at a time, as it asks for.
            19..20 => (!self.is_repairing()).then_some(Intent::Repair),
            20..21 => {
                let commit = *self.promises.marks.choose(&mut self.rng)?;
                let point = alluvium::Point::at_commit(commit);
                let keys = (0..3).map(|_| self.pools.key(&mut self.rng)).collect();
                let question = match self.rng.random_bool(0.5) {
                    true => Question::Get(keys, point),
                    false => Question::Scan(point),
                };
                Some(Intent::ReadMark(question, commit))
            }
            21..30 => self.forking(),
            _ => None,
        }
    }

    fn is_repairing(&self) -> bool {
        let mut running = self.processes.iter().filter_map(|process| process.running.as_ref());
        running.any(|running| matches!(running.intent, Intent::Repair))
    }

    /// A process takes part in the lease of the job from its first beat on.
    fn take_part(&mut self, number: usize) {
        let holder = self.holder(number);
        let process = &mut self.processes[number];
        if process.lease.is_none()
            && let Some((home, _)) = &process.opened
        {
            process.lease = Some(home.lease(JOB, &holder, SPAN_MS).unwrap());
        }
    }

    /// What a process is called as a holder of the lease.
    pub(super) fn holder(&self, number: usize) -> String {
        format!("{number}/{}", self.processes[number].incarnation)
    }

    /// Some epochs of a stream: those after what is known to lie in the log, or some of them once more.
    fn stream(&mut self) -> Intent {
        let index = self.rng.random_range(0..STREAMS);
        let app = format!("stream/{index}");
        let is_there = |attempt: &&usize| self.attempts[**attempt].found.is_some();
        let durable = self.streams[index].iter().take_while(is_there).count();
        let again = if self.rng.random_bool(0.3) { self.rng.random_range(0..3) } else { 0 };
        let from = durable.saturating_sub(again);
        let mut epochs = Vec::new();
        for number in from..from + self.rng.random_range(1..6) {
            if number == self.streams[index].len() {
                let attempt = self.attempts.len();
                let rows = self.rows_of_stream(index, attempt);
                let epoch = (app.clone(), number as i64);
                let attempt = Attempt { is_clocked: true, ..Attempt::new(rows, Some(epoch)) };
                self.streams[index].push(self.attempts.len());
                self.attempts.push(attempt);
            }
            let attempt = self.streams[index][number];
            let rows = self.attempts[attempt].rows.clone();
            epochs.push(Sent { number: number as i64, attempt, rows });
        }
        Intent::Stream { app, epochs }
    }

    /// Rows of keys that nobody else writes, each once; the clock of who sends them makes versions and times.
    fn rows_of_stream(&mut self, index: usize, attempt: usize) -> Vec<Change> {
        let row =
            |key: String, value: Option<Value>| Change { key, version: 0, event_time: 0, value };
        let mut rows = Vec::new();
        for n in 0..3 {
            if self.rng.random_bool(0.6) {
                let is_upsert = self.rng.random_bool(0.8);
                let value = is_upsert.then(|| value(&mut self.rng, Shape::default()));
                rows.push(row(format!("stream{index}/{n}"), value));
            }
        }
        let value = Value { n: attempt as i64, ..Value::default() };
        rows.push(row(mark(attempt), Some(value)));
        rows
    }

    /// Something with a fork.
    fn forking(&mut self) -> Option<Intent> {
        let is_here = |branch: &&Branch| matches!(branch.stage, Stage::Making | Stage::Whole);
        let here: Vec<&Branch> = self.branches.iter().filter(is_here).collect();
        if here.is_empty() || here.len() < FORKS && self.rng.random_bool(0.1) {
            let newest = self.newest;
            let at = self.rng.random_bool(0.3).then(|| self.rng.random_range(0..=newest));
            let name = format!("fork{}", self.branches.len());
            return Some(Intent::Fork { name, at });
        }
        let branch = *here.choose(&mut self.rng)?;
        let name = branch.name.clone();
        if branch.stage == Stage::Making {
            return Some(Intent::Fork { name, at: branch.asked });
        }
        let newest = branch.newest;
        Some(match self.rng.random_range(0..20) {
            0..7 => {
                let attempt = self.attempts.len();
                let rows = self.pools.rows(&mut self.rng, self.shape, attempt);
                let shape = shape_of(&rows, self.shape);
                let fork = Some(name.clone());
                self.attempts.push(Attempt { fork, ..Attempt::new(rows.clone(), None) });
                let append = Intent::Append { attempt, rows, shape, typed: false };
                Intent::OnFork(name, Box::new(append))
            }
            7..13 => {
                let question = self.pools.question(&mut self.rng, newest);
                Intent::OnFork(name, Box::new(Intent::Read(question)))
            }
            13..15 => {
                let steps = MaintainStep::ALL.to_vec();
                Intent::OnFork(name, Box::new(Intent::Maintain(steps)))
            }
            15..16 => Intent::OnFork(name, Box::new(Intent::Materialize { rebuild: false })),
            16..19 => Intent::Promote { name, overwrite: self.rng.random_bool(0.5) },
            _ => Intent::Drop(name),
        })
    }

    /// Notes what may be so from now on, because somebody has set out for it.
    pub(super) fn set_out(&mut self, number: usize, intent: &Intent) {
        match intent {
            Intent::Erase { key, now } => {
                self.ledger.erase(key);
                for branch in &mut self.branches {
                    branch.ledger.erase(key);
                }
                self.promises.ends_reads |= now;
            }
            Intent::LetGo => self.leads.release(&self.holder(number), self.clock.now_ms()),
            Intent::Fork { name, at } if self.branch(name).is_none() => {
                self.branches.push(Branch::new(name.clone(), *at, &self.ledger));
            }
            Intent::Promote { name, overwrite } => {
                if let Some(branch) = self.branch_mut(name) {
                    branch.overwrites |= overwrite;
                }
            }
            Intent::Drop(name) => {
                if let Some(branch) = self.branch_mut(name) {
                    branch.stage = Stage::Dropping;
                }
            }
            _ => {}
        }
    }

    /// The newest commit that a reader must see, of the state that an operation is about.
    pub(super) fn known_before(&self, intent: &Intent) -> i64 {
        match intent {
            Intent::OnFork(name, _) => self.branch(name).map_or(0, |branch| branch.acknowledged),
            _ => self.acknowledged.max(self.seen),
        }
    }

    /// The fork of a name.
    pub(super) fn branch(&self, name: &str) -> Option<&Branch> {
        self.branches.iter().find(|branch| branch.name == name)
    }

    pub(super) fn branch_mut(&mut self, name: &str) -> Option<&mut Branch> {
        self.branches.iter_mut().find(|branch| branch.name == name)
    }
}
