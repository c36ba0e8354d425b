//! One process of a race: what it does until it is told that the race is over, and what it notes of it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alluvium::{Durability, Error, MaintainStep, State, Store, StoreSettings};
use futures::future::join_all;
use rand::Rng;
use serde::{Deserialize, Serialize};

use super::clock::{RaceClock, machine_micros as now};
use super::{STATE, reader};

/// The file whose existence tells that the race is over.
pub const OVER: &str = "over";
/// Registers that all write and read.
const REGISTERS: i64 = 4;
/// Tasks of a process that send epochs, all of one application.
const EPOCH_APP: &str = "race";

/// A value: a number that nobody else writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The number.
    pub id: i64,
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It writes, reads, and sends epochs.
    Writer,
    /// It keeps the state small.
    Keeper,
    /// It reads all there is, now and as it was.
    Reader,
    /// It is another engine, which merges the log's files.
    Optimizer,
}

impl Role {
    /// Its name among the arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Keeper => "keeper",
            Self::Reader => "reader",
            Self::Optimizer => "optimizer",
        }
    }

    fn of(name: &str) -> Option<Self> {
        let all = [Self::Writer, Self::Keeper, Self::Reader, Self::Optimizer];
        all.into_iter().find(|role| role.name() == name)
    }
}

/// What a process did; times in microseconds of the machine's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Noted {
    /// A write was acknowledged.
    Wrote {
        /// Of this key.
        key: String,
        /// Of this number.
        id: i64,
        /// As this commit.
        commit: i64,
        /// When it began.
        invoked: i64,
        /// When it was told.
        returned: i64,
    },
    /// A key was read.
    Read {
        /// Which.
        key: String,
        /// What it held.
        id: Option<i64>,
        /// When it began.
        invoked: i64,
        /// When it was told.
        returned: i64,
    },
    /// An epoch was committed.
    Epoch {
        /// Which.
        number: i64,
        /// As this commit.
        commit: i64,
    },
    /// A run of upkeep ended.
    Kept {
        /// Whose.
        what: String,
    },
    /// All keys were counted, now and as of an earlier commit, and are as many as they must be.
    Scanned,
    /// An answer was wrong.
    Wrong {
        /// How.
        what: String,
    },
    /// Something failed.
    Failed {
        /// What.
        what: String,
        /// How.
        error: String,
    },
}

pub(super) struct Notes {
    folder: PathBuf,
    out: Mutex<BufWriter<File>>,
}

impl Notes {
    pub(super) fn note(&self, noted: &Noted) {
        let mut out = self.out.lock().unwrap();
        serde_json::to_writer(&mut *out, noted).unwrap();
        out.write_all(b"\n").unwrap();
    }

    pub(super) fn wrong(&self, what: &str) {
        self.note(&Noted::Wrong { what: what.to_owned() });
    }

    pub(super) fn failed(&self, what: &str, error: &impl std::fmt::Display) {
        self.note(&Noted::Failed { what: what.to_owned(), error: error.to_string() });
    }

    pub(super) fn is_over(&self) -> bool {
        self.folder.join(OVER).exists()
    }
}

/// The process: `race-worker ROLE FOLDER NUMBER TASKS`, the arguments after the first.
pub fn main(arguments: &[String]) -> Result<(), String> {
    let [role, folder, number, tasks] = arguments else {
        return Err(format!("race-worker ROLE FOLDER NUMBER TASKS, not {arguments:?}"));
    };
    let role = Role::of(role).ok_or_else(|| format!("no role {role}"))?;
    let number: usize = number.parse().map_err(|error| format!("{number}: {error}"))?;
    let tasks: usize = tasks.parse().map_err(|error| format!("{tasks}: {error}"))?;
    let folder = PathBuf::from(folder);
    let file = folder.join(format!("{}-{number}.jsonl", role.name()));
    let out = File::create(&file).map_err(|error| error.to_string())?;
    let notes = Notes { folder: folder.clone(), out: Mutex::new(BufWriter::new(out)) };
    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        match role {
            Role::Writer => writer(&folder, &notes, number, tasks).await,
            Role::Keeper => keeper(&folder, &notes).await,
            Role::Reader => {
                let state = open(&folder).await?;
                reader::read(state.raw(), &notes).await;
                Ok(())
            }
            Role::Optimizer => optimizer(&folder, &notes).await,
        }
    })?;
    notes.out.lock().unwrap().flush().map_err(|error| error.to_string())
}

/// The state of a race, by its clock.
pub(super) async fn open(folder: &Path) -> Result<State<Value>, String> {
    let settings = StoreSettings {
        durability: Durability::Os,
        // Often enough to be seen in a short race.
        tidy_after_commits: 64,
        ..StoreSettings::default()
    };
    let uri = folder.join("store").display().to_string();
    let builder = Store::builder(&uri).settings(settings).clock(Arc::new(RaceClock::of(folder)?));
    let store = builder.open().await.map_err(|error| error.to_string())?;
    store.state::<Value>(STATE).await.map_err(|error| error.to_string())
}

async fn writer(folder: &Path, notes: &Notes, number: usize, tasks: usize) -> Result<(), String> {
    let state = open(folder).await?;
    let state = &state;
    let all = (0..tasks).map(|task| async move {
        let mut sequence = 0;
        while !notes.is_over() {
            sequence += 1;
            let id = (((number * 1_000 + task) as i64) << 32) + sequence;
            step(state, notes, id, task).await;
            let pause = rand::rng().random_range(0..40);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    });
    join_all(all).await;
    state.raw().log().close().await;
    Ok(())
}

async fn step(state: &State<Value>, notes: &Notes, id: i64, task: usize) {
    let register = format!("register/{}", rand::rng().random_range(0..REGISTERS));
    let invoked = now();
    match rand::rng().random_range(0..10) {
        0..3 => write(state, notes, format!("own/{id}"), id).await,
        3..6 => write(state, notes, register, id).await,
        6 if task == 0 => epoch(state, notes, id).await,
        _ => match state.get(&register).await {
            Ok(value) => {
                let (id, returned) = (value.map(|value| value.id), now());
                notes.note(&Noted::Read { key: register, id, invoked, returned });
            }
            Err(error) => notes.failed(&format!("a read of {register}"), &error),
        },
    }
}

async fn write(state: &State<Value>, notes: &Notes, key: String, id: i64) {
    let invoked = now();
    match state.put(&key, &Value { id }).await {
        Ok(receipt) => {
            let (commit, returned) = (receipt.commit, now());
            notes.note(&Noted::Wrote { key, id, commit, invoked, returned });
        }
        Err(error) => notes.failed(&format!("a write of {key}"), &error),
    }
}

/// Sends the next epoch of an application that several processes take for theirs: who has been followed by another is fenced, which is
/// how it must be.
async fn epoch(state: &State<Value>, notes: &Notes, id: i64) {
    use alluvium::{EpochOutcome, ErrorKind};
    let number = match next_epoch(state).await {
        Ok(number) => number,
        Err(error) => return notes.failed("looking for the last epoch", &error),
    };
    let log = state.raw().log();
    let mut epoch = match state.raw().epoch(EPOCH_APP, number) {
        Ok(epoch) => epoch,
        Err(error) => return notes.failed("beginning an epoch", &error),
    };
    let outcome = match epoch.stage(&epoch_row(number, id, log.clock().now_micros())).await {
        Ok(_) => epoch.commit().await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(EpochOutcome::Committed(receipt)) => {
            notes.note(&Noted::Epoch { number, commit: receipt.commit });
        }
        Ok(EpochOutcome::AlreadyApplied { last }) if last >= number => {}
        Ok(other) => notes.failed(&format!("epoch {number}"), &format!("{other:?}")),
        Err(error) if error.kind() == ErrorKind::Fenced => {}
        Err(error) => notes.failed(&format!("epoch {number}"), &error),
    }
}

async fn next_epoch(state: &State<Value>) -> Result<i64, Error> {
    let log = state.raw().log();
    log.refresh().await?;
    Ok(log.table().transaction(EPOCH_APP).await?.map_or(0, |last| last + 1))
}

fn epoch_row(number: i64, id: i64, event_time: i64) -> arrow::array::RecordBatch {
    use arrow::array::{Int64Array, StructArray};
    use arrow::datatypes::{DataType, Field, Fields};
    let fields = Fields::from(vec![Field::new("id", DataType::Int64, false)]);
    let value = StructArray::new(fields, vec![Arc::new(Int64Array::from(vec![id]))], None);
    let key = format!("epoch/{number}");
    crate::rows::value_batch([key.as_str()], [number], &[event_time], Arc::new(value))
}

async fn keeper(folder: &Path, notes: &Notes) -> Result<(), String> {
    let state = open(folder).await?;
    while !notes.is_over() {
        match state.raw().maintain(&MaintainStep::ALL, false).await {
            Ok(_) => notes.note(&Noted::Kept { what: "maintain".to_owned() }),
            Err(error) => notes.failed("maintain", &error),
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}

async fn optimizer(folder: &Path, notes: &Notes) -> Result<(), String> {
    let log = folder.join("store").join(STATE).join("log");
    let url = url::Url::from_directory_path(log.canonicalize().map_err(|e| e.to_string())?);
    let url = url.map_err(|()| format!("{} is no folder", log.display()))?;
    while !notes.is_over() {
        // A failure of the other engine is its own: what counts is what it leaves.
        if let Ok(table) = deltalake_core::open_table(url.clone()).await {
            // It reads now, and commits later.
            let wait = rand::rng().random_range(0..1_500);
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let target = NonZeroU64::new(1 << 30).unwrap();
            let merged =
                table.optimize().with_target_size(target).with_max_concurrent_tasks(1).await;
            if merged.is_ok() {
                notes.note(&Noted::Kept { what: "optimize".to_owned() });
            }
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}
