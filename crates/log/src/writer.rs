//! Group commit: appends that wait together share one file per day and one commit.
//!
//! ```text
//! append -> queue -> [ sort, encode, upload ] -> [ commit ] -> receipts
//!                     group k+1                   group k
//! ```
//!
//! Two tasks in a row: while one group is being committed the next one is encoded and uploaded.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use tokio::sync::{mpsc, oneshot};

use crate::definition::StateDefinition;
use crate::encode::MAX_DAYS_PER_APPEND;
use crate::erased::KeyErased;
use crate::error::{Error, ErrorKind, Result};
use crate::floor::BelowFloor;
use crate::log::{LogInner, Receipt, StagedFile};
use crate::rows::LogRows;

/// Appends that may wait in the queue before further callers wait for a place.
const QUEUE_APPENDS: usize = 4_096;
/// Appends of one group at most.
const GROUP_APPENDS: usize = 4_096;
/// Bytes of one group at most, about; one append may exceed it.
const GROUP_BYTES: usize = 64 * 1024 * 1024;

struct Waiting {
    rows: LogRows,
    reply: oneshot::Sender<Result<Receipt>>,
}

/// A group whose files lie in the store.
struct StagedGroup {
    files: Vec<StagedFile>,
    definition: Arc<StateDefinition>,
    append_id: String,
    rows: usize,
    /// The commit up to whose markers of erased keys all rows were checked.
    checked: i64,
    waiting: Vec<Waiting>,
}

/// The queue in front of a log.
#[derive(Debug)]
pub(crate) struct GroupCommitter {
    queue: mpsc::Sender<Waiting>,
}

impl GroupCommitter {
    /// Starts the two tasks; they end when the log's last handle is dropped.
    pub(crate) fn start(log: Weak<LogInner>, group_rows: usize) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_APPENDS);
        let (staged, to_commit) = mpsc::channel(1);
        tokio::spawn(stage_groups(log.clone(), waiting, staged, group_rows));
        tokio::spawn(commit_groups(log, to_commit));
        Self { queue }
    }

    /// Queues rows and waits until they are durable.
    pub(crate) async fn append(&self, rows: LogRows) -> Result<Receipt> {
        let (reply, receipt) = oneshot::channel();
        let gone = || {
            Error::new(
                ErrorKind::Unknown,
                "the writer's task has ended with its runtime: open the store again and look whether the rows are there",
            )
        };
        self.queue.send(Waiting { rows, reply }).await.map_err(|_| gone())?;
        receipt.await.map_err(|_| gone())?
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Unknown, "the store was closed while rows were being appended")
}

async fn stage_groups(
    log: Weak<LogInner>,
    mut queue: mpsc::Receiver<Waiting>,
    staged: mpsc::Sender<StagedGroup>,
    group_rows: usize,
) {
    while let Some(first) = queue.recv().await {
        // Wait for the committer to be free before closing the group: whoever arrives meanwhile joins it.
        let Ok(place) = staged.reserve().await else { return };
        let mut rows = first.rows.batch.num_rows();
        let mut bytes = first.rows.batch.get_array_memory_size();
        let mut group = vec![first];
        while rows < group_rows && bytes < GROUP_BYTES && group.len() < GROUP_APPENDS {
            match queue.try_recv() {
                Ok(more) => {
                    rows += more.rows.batch.num_rows();
                    bytes += more.rows.batch.get_array_memory_size();
                    group.push(more);
                }
                Err(_) => break,
            }
        }
        let Some(log) = log.upgrade() else {
            return answer_all(group, &closed());
        };
        let mut place = Some(place);
        for part in compatible_groups(group) {
            match stage_group(&log, &part).await {
                Ok(done) => {
                    let ready = done.of(part);
                    match place.take() {
                        Some(place) => place.send(ready),
                        None => {
                            if let Err(mpsc::error::SendError(group)) = staged.send(ready).await {
                                answer_all(group.waiting, &closed());
                            }
                        }
                    }
                }
                Err(error) => answer_all(part, &error),
            }
        }
    }
}

/// Splits a group where two appends add a field of one name with different types, or span too many days together:
/// each part stands for itself.
fn compatible_groups(group: Vec<Waiting>) -> Vec<Vec<Waiting>> {
    let mut parts: Vec<Part> = Vec::new();
    for waiting in group {
        let joined = parts.last().and_then(|part| part.joined(&waiting.rows));
        match (parts.last_mut(), joined) {
            (Some(part), Some(definition)) => {
                part.definition = definition;
                part.days.extend(&waiting.rows.days);
                part.waiting.push(waiting);
            }
            _ => parts.push(Part {
                definition: waiting.rows.definition.clone(),
                days: waiting.rows.days.iter().copied().collect(),
                waiting: vec![waiting],
            }),
        }
    }
    parts.into_iter().map(|part| part.waiting).collect()
}

/// Appends that become one commit.
struct Part {
    definition: Arc<StateDefinition>,
    days: BTreeSet<i64>,
    waiting: Vec<Waiting>,
}

impl Part {
    /// The definition of both together, if the rows can join.
    fn joined(&self, rows: &LogRows) -> Option<Arc<StateDefinition>> {
        let added = rows.days.iter().filter(|day| !self.days.contains(day)).count();
        if self.days.len() + added > MAX_DAYS_PER_APPEND {
            return None;
        }
        if self.definition.fields == rows.definition.fields {
            return Some(self.definition.clone());
        }
        merged(&self.definition, &rows.definition)
    }
}

/// The definition that holds the fields of both, if they agree.
fn merged(a: &StateDefinition, b: &StateDefinition) -> Option<Arc<StateDefinition>> {
    let ab = a.grown_by(&b.fields).ok()?;
    let ba = b.grown_by(&a.fields).ok()?;
    let agree = ab.fields.iter().all(|field| {
        ba.fields.iter().any(|other| {
            other.name() == field.name() && other.data_type().equals_datatype(field.data_type())
        })
    });
    agree.then(|| Arc::new(ab))
}

/// The files of a group, before they are joined with those who wait for it.
struct Staged {
    files: Vec<StagedFile>,
    definition: Arc<StateDefinition>,
    append_id: String,
    rows: usize,
}

impl Staged {
    fn of(self, waiting: Vec<Waiting>) -> StagedGroup {
        let Self { files, definition, append_id, rows } = self;
        let checked = waiting.iter().map(|waiting| waiting.rows.checked).min().unwrap_or(0);
        StagedGroup { files, definition, append_id, rows, checked, waiting }
    }
}

async fn stage_group(log: &Arc<LogInner>, group: &[Waiting]) -> Result<Staged> {
    let mut definition = match group.first() {
        Some(first) => first.rows.definition.clone(),
        None => return Err(Error::internal("an empty group")),
    };
    for waiting in group {
        if waiting.rows.definition.fields != definition.fields {
            definition = Arc::new(definition.grown_by(&waiting.rows.definition.fields)?);
        }
    }
    let batches: Vec<RecordBatch> = group
        .iter()
        .map(|waiting| waiting.rows.adapted_to(&definition).map(|rows| rows.batch))
        .collect::<Result<_>>()?;
    let batch = match batches.as_slice() {
        [one] => one.clone(),
        [first, ..] => concat_batches(first.schema_ref(), &batches)?,
        [] => return Err(Error::internal("an empty group")),
    };
    let rows = batch.num_rows();
    let append_id = log.next_append_id();
    // While another commit is made there is time to write; otherwise the commit does it, and nobody waits twice.
    let later = !log.table.is_committing();
    let (files, _) = log.stage(batch, &append_id, (0, 0), later).await?;
    metrics::counter!(crate::metrics::APPENDS).increment(group.len() as u64);
    Ok(Staged { files, definition, append_id, rows })
}

async fn commit_groups(log: Weak<LogInner>, mut groups: mpsc::Receiver<StagedGroup>) {
    while let Some(group) = groups.recv().await {
        match log.upgrade() {
            Some(log) => commit_group(&log, group).await,
            None => answer_all(group.waiting, &closed()),
        }
    }
}

async fn commit_group(log: &Arc<LogInner>, mut group: StagedGroup) {
    loop {
        let append = (group.append_id.as_str(), group.rows);
        let outcome =
            log.commit_append(&group.files, &group.definition, append, group.checked).await;
        match outcome {
            Err(error) if KeyErased::is_cause_of(&error) || BelowFloor::is_cause_of(&error) => {
                match without_refused(log, group.waiting).await {
                    Some(rest) => group = rest,
                    None => return,
                }
            }
            Err(error) => return answer_all(group.waiting, &error),
            Ok(commit) => return answer_receipts(group.waiting, commit),
        }
    }
}

fn answer_receipts(group: Vec<Waiting>, commit: i64) {
    for waiting in group {
        let (first_version, last_version) = waiting.rows.versions();
        let rows = waiting.rows.batch.num_rows() as u64;
        let receipt = Receipt { commit, rows, first_version, last_version };
        // A caller that went away does not need its receipt.
        waiting.reply.send(Ok(receipt)).ok();
    }
}

/// Refuses the appends of a group whose keys were erased meanwhile, or whose rows lie below a floor that was raised, and stages the
/// others anew; `None` when none is left.
async fn without_refused(log: &Arc<LogInner>, group: Vec<Waiting>) -> Option<StagedGroup> {
    let mut rest = Vec::with_capacity(group.len());
    for Waiting { rows, reply } in group {
        match log.admitted(rows) {
            Ok(rows) => rest.push(Waiting { rows, reply }),
            Err(error) => {
                reply.send(Err(error.context(format!("state {}", log.name)))).ok();
            }
        }
    }
    if rest.is_empty() {
        return None;
    }
    match stage_group(log, &rest).await {
        Ok(staged) => Some(staged.of(rest)),
        Err(error) => {
            answer_all(rest, &error);
            None
        }
    }
}

/// Tells every caller of a group what went wrong.
fn answer_all(group: Vec<Waiting>, error: &Error) {
    for waiting in group {
        let copy = Error::new(error.kind(), error.to_string());
        waiting.reply.send(Err(copy)).ok();
    }
}
