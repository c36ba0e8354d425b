//! Races of real processes in real time: writers, keepers and another engine's `OPTIMIZE` on one state of a local disk.
//!
//! Each process notes what it set out to do, what it was told and when. Afterwards every acknowledged row has to be in the log once, no
//! operation may have failed (nothing was wrong but that others were at work), the histories of the registers have to be
//! linearizable ([`linear`]), and each epoch is in the log once, in order.

mod clock;
pub mod linear;
mod reader;
pub mod worker;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use alluvium::{KeyFilter, Point, RawState};
use alluvium_log::Archived;
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;

use linear::{Access, check_register};
use worker::{Noted, Role};

/// The state of all races.
pub const STATE: &str = "raced";

/// Under which a day is over, merged, archived and vacuumed within a race of minutes; every row stays readable.
const SETTINGS: [(&str, &str); 6] = [
    ("commit_retention", "1d"),
    ("file_retention", "6h"),
    ("orphan_grace", "6h"),
    ("as_of_window", "6h"),
    ("compact_after", "1h"),
    ("hot_days", "12h"),
];

/// How many race for how long.
#[derive(Debug, Clone)]
pub struct Race {
    /// An empty folder.
    pub folder: PathBuf,
    /// The program, which carries out [`worker::main`] when it is called with `race-worker`.
    pub program: PathBuf,
    /// Processes that write.
    pub writers: usize,
    /// Tasks of each of them.
    pub tasks: usize,
    /// For how long.
    pub time: Duration,
}

/// What was seen in a race.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RaceCounts {
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Reads.
    pub reads: u64,
    /// Epochs that were committed.
    pub epochs: u64,
    /// Times that all keys were counted, now and as of an earlier commit.
    pub scans: u64,
    /// Runs of the periodic job, and of the other engine's `OPTIMIZE`.
    pub upkeep: u64,
    /// Commits whose rows the archive has.
    pub archived: u64,
    /// Files that held rows a second time when it was over.
    pub doubled_files: u64,
    /// Commits of the log.
    pub commits: u64,
}

impl Race {
    fn spawn(&self, role: Role, number: usize) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.arg("race-worker").arg(role.name()).arg(&self.folder);
        command.arg(number.to_string()).arg(self.tasks.to_string()).spawn()
    }

    /// Runs it, and tells what does not hold.
    pub async fn run(&self) -> Result<RaceCounts, String> {
        clock::RaceClock::begin(&self.folder)?;
        let settings = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let state = worker::open(&self.folder).await?;
        let set = state.raw().set_maintenance(&settings).await;
        set.map_err(|error| error.to_string())?;
        let mut children = Vec::new();
        for number in 0..self.writers {
            children.push(self.spawn(Role::Writer, number).map_err(|error| error.to_string())?);
        }
        let others = [Role::Keeper, Role::Keeper, Role::Reader, Role::Reader, Role::Optimizer];
        for (number, role) in others.into_iter().enumerate() {
            children.push(self.spawn(role, number).map_err(|error| error.to_string())?);
        }
        let end = Instant::now() + self.time;
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let over = self.folder.join(worker::OVER);
        std::fs::write(over, "").map_err(|error| error.to_string())?;
        for mut child in children {
            let ended = child.wait().map_err(|error| error.to_string())?;
            if !ended.success() {
                return Err(format!("a process ended with {ended}"));
            }
        }
        let notes = read_notes(&self.folder)?;
        verify(worker::open(&self.folder).await?.raw(), &notes).await
    }
}

fn read_notes(folder: &Path) -> Result<Vec<Noted>, String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
            for line in text.lines() {
                let note = serde_json::from_str(line);
                all.push(note.map_err(|error| format!("{}: {error}: {line}", path.display()))?);
            }
        }
    }
    Ok(all)
}

/// The rows of the log by key: the number in each value, with its commit.
async fn rows_of(state: &RawState) -> Result<HashMap<String, Vec<(i64, i64)>>, String> {
    let basis = state.reader().basis().await.map_err(|error| error.to_string())?;
    let rows = state.reader().history_rows(&basis, KeyFilter::All, Point::LATEST).await;
    let mut rows = rows.map_err(|error| error.to_string())?;
    let mut all: HashMap<String, Vec<(i64, i64)>> = HashMap::new();
    while let Some(batch) = rows.try_next().await.map_err(|error| error.to_string())? {
        let keys = batch.column(0).as_string::<i32>();
        let values = batch.column_by_name("state_value").unwrap().as_struct();
        let ids = values.column_by_name("id").unwrap().as_primitive::<Int64Type>();
        let commits = batch.column_by_name("commit").unwrap().as_primitive::<Int64Type>();
        for row in 0..batch.num_rows() {
            let place = (ids.value(row), commits.value(row));
            all.entry(keys.value(row).to_owned()).or_default().push(place);
        }
    }
    Ok(all)
}

async fn verify(state: &RawState, notes: &[Noted]) -> Result<RaceCounts, String> {
    let mut counts = RaceCounts::default();
    let log = state.log().refresh().await.map_err(|error| error.to_string())?;
    counts.commits = log.version.unsigned_abs();
    counts.doubled_files = log.files().filter(|file| file.may_double_rows()).count() as u64;
    counts.archived = Archived::of(&log).map_or(0, |known| known.commit.unsigned_abs());
    let rows = rows_of(state).await?;
    let mut registers: BTreeMap<&str, Vec<Access>> = BTreeMap::new();
    for note in notes {
        match note {
            Noted::Failed { what, error, .. } => {
                return Err(format!("{what} failed, and a retry would have solved it: {error}"));
            }
            Noted::Wrote { key, id, commit, invoked, returned } => {
                counts.writes += 1;
                let found: Vec<i64> = rows
                    .get(key)
                    .into_iter()
                    .flatten()
                    .filter(|row| row.0 == *id)
                    .map(|row| row.1)
                    .collect();
                if found != [*commit] {
                    return Err(format!(
                        "{key} = {id} was acknowledged as commit {commit}, and is in the log as {found:?}"
                    ));
                }
                let access = Access {
                    id: Some(*id),
                    is_write: true,
                    invoked: *invoked,
                    returned: *returned,
                };
                registers.entry(key).or_default().push(access);
            }
            Noted::Read { key, id, invoked, returned } => {
                counts.reads += 1;
                let access =
                    Access { id: *id, is_write: false, invoked: *invoked, returned: *returned };
                registers.entry(key).or_default().push(access);
            }
            Noted::Wrong { what } => return Err(what.clone()),
            Noted::Scanned => counts.scans += 1,
            Noted::Epoch { .. } => counts.epochs += 1,
            Noted::Kept { .. } => counts.upkeep += 1,
        }
    }
    for (key, accesses) in &registers {
        check_register(accesses).map_err(|broken| format!("the register {key}: {broken}"))?;
    }
    epochs(notes, &rows)?;
    let report = state.verify().await.map_err(|error| error.to_string())?;
    if !report.is_sound() {
        return Err(format!("{report:?}"));
    }
    Ok(counts)
}

/// Each epoch is in the log once, later ones under later commits, and nobody was told otherwise.
fn epochs(notes: &[Noted], rows: &HashMap<String, Vec<(i64, i64)>>) -> Result<(), String> {
    let mut commits: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for (key, found) in rows {
        if let Some(number) = key.strip_prefix("epoch/").and_then(|text| text.parse().ok()) {
            commits.entry(number).or_default().extend(found.iter().map(|row| row.1));
        }
    }
    let mut last = -1;
    for (number, found) in &commits {
        let [commit] = found.as_slice() else {
            return Err(format!("epoch {number} is in the log under the commits {found:?}"));
        };
        if *commit <= last {
            return Err(format!("epoch {number} is commit {commit}, and the one before is {last}"));
        }
        last = *commit;
    }
    for note in notes {
        if let Noted::Epoch { number, commit } = note
            && commits.get(number) != Some(&vec![*commit])
        {
            return Err(format!(
                "epoch {number} was acknowledged as commit {commit}, and is {:?}",
                commits.get(number)
            ));
        }
    }
    Ok(())
}
