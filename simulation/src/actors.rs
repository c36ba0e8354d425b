//! What processes do: one operation each at a time, as a task that returns what came of it.

use std::num::NonZeroU64;
use std::sync::Arc;

use alluvium::{
    Basis, Clock, DropReport, EpochOutcome, EraseReceipt, Error, ForkReport, HoldStatus, KeyFilter,
    Leadership, Lease, Lookup, MaintainStep, ManualClock, Point, PromoteOptions, PromoteReport,
    RawState, Receipt, RepairReport, RestoreOptions, RestoreReport, Result, Savepoint, Storage,
    Store, StoreSettings,
};
use alluvium_materializer::whole_value;
use arrow::array::{AsArray, RecordBatch};
use deltalake_core::logstore::{StorageConfig, default_logstore};
use deltalake_core::{DeltaResult, DeltaTable};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::prefix::PrefixStore;

use crate::ledger::Difference;
use crate::rows::{Change, Seen, Shape, Value, batch, seen, values};
use crate::store::SimStore;
use crate::typed::{self, Asked, Sent, Streamed};

/// The state of all runs.
pub const STATE: &str = "things";

/// A clock of the machine that a process runs on: it goes with all others, and is off by some seconds.
#[derive(Debug)]
pub struct SkewedClock {
    /// What all clocks go with.
    pub base: Arc<ManualClock>,
    /// By how much it is off.
    pub skew_micros: i64,
}

impl Clock for SkewedClock {
    fn now_micros(&self) -> i64 {
        self.base.now_micros() + self.skew_micros
    }
}

/// What a reader asks.
#[derive(Debug, Clone)]
pub enum Question {
    /// Some keys at a point.
    Get(Vec<String>, Point),
    /// All live rows at a point.
    Scan(Point),
    /// The history of all keys at a point.
    History(Point),
    /// What came after a commit.
    Changes(i64),
    /// What is different between two points.
    Diff(Point, Point),
}

/// What a reader was told.
#[derive(Debug)]
pub enum Answer {
    /// Of each key the winner, also a DELETE.
    Winners(Vec<Option<Seen>>),
    /// Rows.
    Rows(Vec<Seen>),
    /// Differences.
    Differences(Vec<Difference>),
}

/// What a process sets out to do.
#[derive(Debug, Clone)]
pub enum Intent {
    /// Opens the store.
    Open,
    /// Appends the rows of an attempt.
    Append {
        /// Which attempt.
        attempt: usize,
        /// Its rows.
        rows: Vec<Change>,
        /// The fields that it gives.
        shape: Shape,
        /// Through the cache, as values of a type.
        typed: bool,
    },
    /// Commits an epoch.
    Epoch {
        /// Which attempt.
        attempt: usize,
        /// The application.
        app: String,
        /// The epoch.
        number: i64,
        /// Its rows, the same whoever sends it.
        rows: Vec<Change>,
        /// The fields that it gives.
        shape: Shape,
    },
    /// Folds the tail, or all of the log.
    Materialize {
        /// All of it.
        rebuild: bool,
    },
    /// Carries out steps of the periodic job.
    Maintain(Vec<MaintainStep>),
    /// Merges the log's files, as another engine that knows nothing of ours.
    Optimize,
    /// Asks.
    Read(Question),
    /// Asks for what a savepoint keeps.
    ReadSaved(Question, String),
    /// Keeps the newest state under a name.
    Save(String),
    /// Lets go of a savepoint.
    Release(String),
    /// Brings the state back to a point, under a name.
    Restore(String, Point),
    /// Takes all rows of a key out of the state.
    Erase {
        /// The key.
        key: String,
        /// Whether the files go at once.
        now: bool,
    },
    /// Begins a long read: holds the newest basis.
    Hold,
    /// Renews the lease of what is held, as a task of the process does every minute.
    Renew,
    /// Asks what is held, perhaps much later.
    ReadHeld(Question),
    /// Asks for what a mark of the grid keeps, by its commit.
    ReadMark(Question, i64),
    /// Asks the process's cache for the newest values of keys.
    Cached(Vec<String>, Asked),
    /// Sends epochs as one stream.
    Stream {
        /// The application.
        app: String,
        /// The epochs.
        epochs: Vec<Sent>,
    },
    /// Shows a sign of life, and takes the lead of the job if nobody has it.
    Beat,
    /// Lets go of the lead.
    LetGo,
    /// Looks at every file, and repairs.
    Repair,
    /// Makes a fork, or goes on with one.
    Fork {
        /// Its name.
        name: String,
        /// The commit that it begins at; the newest if none is given.
        at: Option<i64>,
    },
    /// Does something with a fork that can be done with any state.
    OnFork(String, Box<Intent>),
    /// Brings a fork's changes to its parent.
    Promote {
        /// Its name.
        name: String,
        /// Whether keys may be overwritten that the parent has changed.
        overwrite: bool,
    },
    /// Drops a fork.
    Drop(String),
}

impl Intent {
    /// What is asked, of those that ask the state as it is.
    pub fn question(&self) -> Option<&Question> {
        match self {
            Self::Read(question) | Self::ReadSaved(question, _) | Self::ReadMark(question, _) => {
                Some(question)
            }
            _ => None,
        }
    }
}

/// What a process has beside its state.
#[derive(Debug)]
pub struct Kit {
    /// Its store.
    pub store: Arc<SimStore>,
    /// The same, opened.
    pub home: Store,
    /// Its part in the lease of the job.
    pub lease: Option<Lease>,
    /// Its handle.
    pub state: RawState,
    /// What it holds.
    pub held: Option<Basis>,
    /// Whether hours may have passed since it last looked at the snapshot, which a real process looks at each second.
    pub is_late: bool,
}

/// What came of it.
#[derive(Debug)]
pub enum Done {
    /// The store is open.
    Opened(Result<(Store, RawState)>),
    /// An append ended.
    Appended(Result<Receipt>),
    /// An epoch ended.
    Epoch(Result<EpochOutcome>),
    /// Something that changes no answer ended.
    Kept(Result<()>),
    /// Another engine ended, however: what counts is what it left.
    Foreign(String),
    /// A reader was told; with the basis of it.
    Told(Result<(Basis, Result<Answer>)>),
    /// A savepoint was made.
    Saved(Result<Savepoint>),
    /// A savepoint was let go of.
    Released(Result<Savepoint>),
    /// A restore ended.
    Restored(Result<RestoreReport>),
    /// An erase ended.
    Erased(Result<EraseReceipt>),
    /// A basis is held.
    Held(Result<Basis>),
    /// A long reader was told; with the basis of it, and whether that was held all the while.
    ToldHeld(Box<Basis>, Result<Answer>, bool),
    /// A cache was asked.
    Cached(Result<Vec<Option<Value>>>),
    /// A stream ended.
    Streamed(Streamed),
    /// Who leads was told.
    Beaten(Box<Lease>, Result<Leadership>),
    /// The lead was let go of.
    LetGo(Box<Lease>, Result<()>),
    /// A repair ended.
    Repaired(Result<RepairReport>),
    /// A fork was made.
    Forked(Result<ForkReport>),
    /// What was to be done with a fork ended.
    OnFork(Box<Done>),
    /// A fork was promoted.
    Promoted(Result<PromoteReport>),
    /// A fork was dropped.
    Dropped(Result<DropReport>),
}

/// Opens a store as a process does that has just been started.
pub async fn open(
    store: Arc<SimStore>,
    clock: Arc<dyn Clock>,
    settings: StoreSettings,
) -> Result<(Store, RawState)> {
    let storage = Storage::from_object_store(store, "simulated://");
    let builder = Store::builder("simulated://").storage(storage);
    let store = builder.settings(settings).clock(clock).open().await?;
    let state = store.raw_state(STATE).await?;
    Ok((store, state))
}

/// Does what a process has set out to do; opening is [`open`].
pub async fn act(kit: Kit, intent: Intent) -> Done {
    let Kit { store, home, lease, state, held, is_late } = kit;
    if is_late && let Err(error) = state.snapshot().refresh().await {
        return Done::Kept(Err(error));
    }
    match intent {
        Intent::Open => Done::Kept(Ok(())),
        Intent::Append { rows, typed: true, .. } => {
            Done::Appended(typed::append(&home, &rows).await)
        }
        Intent::Append { rows, shape, .. } => {
            Done::Appended(state.append(&batch(&rows, shape)).await)
        }
        Intent::Epoch { app, number, rows, shape, .. } => {
            Done::Epoch(epoch(&state, &app, number, &rows, shape).await)
        }
        Intent::Materialize { rebuild } => Done::Kept(state.materialize(rebuild).await.map(drop)),
        Intent::Maintain(steps) => Done::Kept(state.maintain(&steps, false).await.map(drop)),
        Intent::Optimize => Done::Foreign(optimize(store).await),
        Intent::Read(question) | Intent::ReadSaved(question, _) | Intent::ReadMark(question, _) => {
            Done::Told(ask(&state, question).await)
        }
        Intent::Save(name) => Done::Saved(state.create_savepoint(&name, None).await),
        Intent::Release(name) => Done::Released(state.release_savepoint(&name).await),
        Intent::Restore(id, to) => {
            let options = RestoreOptions { to, id: Some(id), ..RestoreOptions::default() };
            Done::Restored(state.restore(&options).await)
        }
        Intent::Erase { key, now } => Done::Erased(state.erase(&[key], now).await),
        Intent::Hold => Done::Held(state.reader().hold().await),
        Intent::Renew => Done::Kept(state.log().keep_leases().await),
        Intent::ReadHeld(question) => match held {
            None => Done::Kept(Ok(())),
            Some(basis) => {
                let told = answer(&state, &basis, question).await;
                Done::ToldHeld(Box::new(basis.clone()), told, is_held(&basis))
            }
        },
        Intent::Cached(keys, asked) => Done::Cached(typed::cached(&home, &keys, asked).await),
        Intent::Stream { app, epochs } => Done::Streamed(typed::stream(&home, &app, &epochs).await),
        Intent::Beat | Intent::LetGo => lead(lease, matches!(intent, Intent::Beat)).await,
        Intent::Repair => Done::Repaired(home.repair(STATE, false).await),
        Intent::Fork { name, at } => {
            let at = Point { commit: at, ..Point::LATEST };
            Done::Forked(home.fork(STATE, &name, at, false).await)
        }
        Intent::OnFork(name, what) => {
            // What a real process does each second; here hours may have passed since.
            let opened = async {
                let state = home.raw_state(&name).await?;
                state.snapshot().refresh().await?;
                Ok(state)
            };
            let done = match opened.await {
                Err(error) => Done::Kept(Err(error)),
                Ok(state) => {
                    let kit = Kit { store, home, lease, state, held, is_late: false };
                    Box::pin(act(kit, *what)).await
                }
            };
            Done::OnFork(Box::new(done))
        }
        Intent::Promote { name, overwrite } => {
            let options = PromoteOptions { overwrite, dry_run: false };
            Done::Promoted(home.promote_fork(&name, &options).await)
        }
        Intent::Drop(name) => Done::Dropped(home.drop_fork(&name).await),
    }
}

/// Shows a sign of life, or lets go.
async fn lead(lease: Option<Lease>, beats: bool) -> Done {
    let Some(mut lease) = lease else { return Done::Kept(Ok(())) };
    if beats {
        let told = lease.beat().await;
        return Done::Beaten(Box::new(lease), told);
    }
    let told = lease.release().await;
    Done::LetGo(Box::new(lease), told)
}

/// Whether nothing of a basis can have been removed.
fn is_held(basis: &Basis) -> bool {
    let status = basis.hold().map(alluvium::Hold::status);
    !matches!(status, None | Some(HoldStatus::Unheld { .. }))
}

async fn epoch(
    state: &RawState,
    app: &str,
    number: i64,
    rows: &[Change],
    shape: Shape,
) -> Result<EpochOutcome> {
    let mut epoch = state.epoch(app, number)?;
    for part in rows.chunks(rows.len().div_ceil(2).max(1)) {
        epoch.stage(&batch(part, shape)).await?;
    }
    epoch.commit().await
}

async fn ask(state: &RawState, question: Question) -> Result<(Basis, Result<Answer>)> {
    let basis = state.reader().basis().await?;
    let answer = answer(state, &basis, question).await;
    Ok((basis, answer))
}

/// Runs delta-rs on threads of its own, which it needs; its calls wait for the driver as all others do.
async fn optimize(store: Arc<SimStore>) -> String {
    let outcome = tokio::task::spawn_blocking(move || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime.block_on(optimize_here(store)).map_err(|error| error.to_string())
    });
    match outcome.await {
        Ok(Ok(version)) => format!("{version:?}"),
        Ok(Err(error)) => error,
        Err(error) => error.to_string(),
    }
}

async fn optimize_here(store: Arc<SimStore>) -> DeltaResult<Option<u64>> {
    let table = format!("{STATE}/log");
    let url = url::Url::parse(&format!("memory:///{table}/")).unwrap();
    let prefixed = PrefixStore::new(store.clone(), Path::from(table));
    let log_store = default_logstore(Arc::new(prefixed), store, &url, &StorageConfig::default());
    let mut table = DeltaTable::new(log_store);
    table.load().await?;
    let target = NonZeroU64::new(1 << 30).unwrap();
    let (table, _) = table.optimize().with_target_size(target).with_max_concurrent_tasks(1).await?;
    Ok(table.version())
}

/// Answers a question at a basis.
pub async fn answer(state: &RawState, basis: &Basis, question: Question) -> Result<Answer> {
    let reader = state.reader();
    Ok(match question {
        Question::Get(keys, point) => {
            let wanted: Vec<&str> = keys.iter().map(String::as_str).collect();
            let found = reader.multi_get(basis, point, &wanted).await?;
            Answer::Winners(found.iter().map(row_of).collect())
        }
        Question::Scan(point) => {
            let payload = whole_value(basis.definition());
            let mut rows = Vec::new();
            for stream in reader.scan(basis, point, KeyFilter::All, payload, 2).await? {
                let batches: Vec<RecordBatch> = stream.try_collect().await?;
                rows.extend(batches.iter().flat_map(seen));
            }
            Answer::Rows(rows)
        }
        Question::History(point) => {
            let rows = reader.history_rows(basis, KeyFilter::All, point).await?;
            let batches: Vec<RecordBatch> = rows.try_collect().await?;
            Answer::Rows(batches.iter().flat_map(seen).collect())
        }
        Question::Changes(after) => {
            let rows = reader.changes_rows(basis, after).await?;
            let batches: Vec<RecordBatch> = rows.try_collect().await?;
            Answer::Rows(batches.iter().flat_map(seen).collect())
        }
        Question::Diff(from, to) => {
            let rows = reader.diff_rows(basis, from, to, KeyFilter::All).await?;
            let batches: Vec<RecordBatch> = rows.try_collect().await?;
            Answer::Differences(batches.iter().flat_map(differences).collect())
        }
    })
}

fn row_of(lookup: &Lookup) -> Option<Seen> {
    match lookup {
        Lookup::Absent => None,
        Lookup::Deleted(row) | Lookup::Found(row) => seen(row).pop(),
    }
}

fn differences(batch: &RecordBatch) -> Vec<Difference> {
    let named = |name: &str| batch.column_by_name(name).unwrap();
    let keys = named("state_key").as_string::<i32>();
    let kinds = named("change").as_string::<i32>();
    let (before, after) = (values(named("before")), values(named("after")));
    let rows = before.into_iter().zip(after).enumerate();
    rows.map(|(row, (before, after))| Difference {
        key: keys.value(row).to_owned(),
        change: ["inserted", "updated", "deleted"]
            .into_iter()
            .find(|kind| *kind == kinds.value(row))
            .unwrap(),
        before,
        after,
    })
    .collect()
}

/// Whether an error says that nobody can know whether a write took place.
pub fn is_unknown(error: &Error) -> bool {
    error.kind() == alluvium::ErrorKind::Unknown
}
