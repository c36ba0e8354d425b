//! Folding the tail of the log into the snapshot: work by what changed, progress and data in one commit.

mod plan;
mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::bounds::are_scattered;
use crate::files::add_actions;
use crate::fold::Ranking;
use crate::inputs::{check_not_ahead, whole_value};
use crate::snapshot::{
    CHECK_APP_ID, FORGOTTEN_TIME_APP_ID, FORGOTTEN_VERSION_APP_ID, MATERIALIZER_APP_ID, Snapshot,
    SnapshotState, snapshot_path, table_schema,
};
use crate::tombstones::Forgetting;
use alluvium_log::{
    Action, Attempt, DataFile, ERASE_APP_ID, Error, ErrorKind, Expired, FLOOR_APP_ID, FileAdd,
    Floor, Log, Outcome, ReadSpec, Result, RowFilter, StateDefinition, Table, TableState,
};
use plan::{bounds_of, plan_increment, plan_join, plan_rebuild, tail_rows};
pub use report::{Change, MaterializeOptions, MaterializeReport};

/// A state with no more rows than this is kept as base only.
pub const SMALL_STATE_ROWS: u64 = 65_536;
/// Runs are merged into the base when their rows exceed the base's divided by this.
pub const BASE_PER_RUN_ROWS: u64 = 5;
/// Changes up to this many are checked against the snapshot before anything is written.
pub const LOOKUP_ROWS: u64 = 16_384;
/// How often what was joined is looked at again.
const MAX_JOINS: u32 = 4;
/// How often a materialization starts over when another process was faster.
const MAX_RACES: u32 = 20;

/// Everything that one attempt works on.
struct Work {
    definition: Arc<StateDefinition>,
    now_ms: i64,
    log: Log,
    before: SnapshotState,
    /// The erase that the log was read after, where nothing else than the log is folded.
    erase: Option<i64>,
    /// What the tail is folded onto: the snapshot itself, or where it is made anew an older one that has all expired rows.
    base: SnapshotState,
    table: Arc<Table>,
    expected_version: i64,
    spec: ReadSpec,
    ranking: Ranking,
    tail: Vec<Arc<DataFile>>,
    from: i64,
    to: i64,
    /// Up to which event time the log refuses rows.
    floor: Option<i64>,
    /// What leaves tombstones out, where there may be some to leave out.
    forgetting: Option<Forgetting>,
    started: Instant,
}

/// What an attempt wants to commit.
struct Plan {
    change: Change,
    added: Vec<FileAdd>,
    removed: Vec<Arc<DataFile>>,
    stale_keys: Option<u64>,
}

/// Folds the tail of the log into the snapshot.
///
/// Files and progress are one commit: killed at any moment, the snapshot is as before or as after. When another
/// process has moved the snapshot meanwhile, what was prepared is dropped and the work begins anew.
#[tracing::instrument(level = "info", skip_all, fields(state = snapshot.log().name(), rebuild = options.rebuild, basis = tracing::field::Empty, commit = tracing::field::Empty), err(level = "debug"))]
pub async fn materialize(
    snapshot: &Snapshot,
    options: &MaterializeOptions,
) -> Result<MaterializeReport> {
    options.fold.validate()?;
    options.layout.validate()?;
    let _alone = snapshot.lock_for_rewriting().await;
    let name = snapshot.log().name().to_owned();
    let mut has_begun_anew = false;
    for _ in 0..MAX_RACES {
        let outcome = match attempt(snapshot, options).await {
            // A vacuum has taken the older snapshot that this began with, and said so: another one is begun with.
            Err(error) if options.rebuild && error.is_of_missing_file() && !has_begun_anew => {
                has_begun_anew = true;
                Ok(None)
            }
            // What is derived is made anew from what it is derived from.
            Err(error) if error.kind() == ErrorKind::Corrupt && !options.rebuild => {
                tracing::warn!(state = %name, %error, "the snapshot can't be gone on from: it is made anew");
                let anew = MaterializeOptions { rebuild: true, ..options.clone() };
                let made = attempt(snapshot, &anew).await;
                // What may be tried again is told; else what is wrong is the damage.
                made.map_err(|other| if other.kind().is_retryable() { other } else { error })
            }
            other => other,
        };
        match outcome.map_err(|error| error.context(format!("materializing {name}")))? {
            Some(report) => {
                let span = tracing::Span::current();
                span.record("basis", report.from_commit).record("commit", report.to_commit);
                tracing::info!(
                    change = ?report.change,
                    from_commit = report.from_commit,
                    to_commit = report.to_commit,
                    rows_folded = report.rows_folded,
                    rows_written = report.rows_written,
                    "materialized"
                );
                return Ok(report);
            }
            None => metrics::counter!(crate::metrics::RACES_LOST).increment(1),
        }
    }
    Err(Error::new(
        ErrorKind::Conflict,
        format!(
            "materializing {name}: other processes moved the snapshot {MAX_RACES} times meanwhile; run one materializer per state"
        ),
    ))
}

async fn attempt(
    snapshot: &Snapshot,
    options: &MaterializeOptions,
) -> Result<Option<MaterializeReport>> {
    let started = Instant::now();
    let log = snapshot.log();
    // The snapshot first, so that the log is at least as new as what the snapshot folds.
    let before = snapshot.refresh().await?;
    let log_state = log.refresh().await?;
    check_not_ahead(&before, &log_state)?;
    let definition = log.definition();
    let rebuild = options.rebuild || !before.is_ours();
    if rebuild && !options.rebuild {
        tracing::warn!(state = log.name(), "another engine rewrote the snapshot: it is made anew");
    }
    let base = base_of_fold(snapshot, &before, &log_state, rebuild).await?;
    let now_ms = log.clock().now_ms();
    let _held = snapshot.hold((&log_state, now_ms), &[(&before, now_ms), (&base, now_ms)]);
    let from = base.log_commit();
    let to = log_state.version;
    let filter =
        RowFilter { after_commit: Some(from), up_to_commit: Some(to), ..RowFilter::default() };
    let tail = log.files(&log_state, &filter).await?;
    let floor = Floor::of(&log_state);
    let forgetting = floor
        .filter(|floor| rebuild || has_to_forget(&before, &tail, *floor))
        .map(|floor| Forgetting::below(floor.time));
    if tail.is_empty() && !rebuild && forgetting.is_none() {
        return Ok(Some(up_to_date(&before, from, to, started)));
    }
    let table = snapshot.table_or_create(&definition).await?;
    // A table that was created just now has no rows: its first state is as good as none.
    let before = match before.table() {
        Some(_) => before,
        None => {
            let found = snapshot.state();
            // An erase makes a commit too, and what was read of the log before it may hold what is erased.
            if found.version() > 0 {
                // Another process was first: begin anew on what it made.
                return Ok(None);
            }
            found
        }
    };
    let work = Work {
        expected_version: before.version(),
        spec: ReadSpec { payload: whole_value(&definition), filter },
        ranking: Ranking::from(definition.order_by),
        definition,
        now_ms: log.clock().now_ms(),
        erase: log_state.transaction(ERASE_APP_ID).filter(|_| base.files().next().is_none()),
        log: log.clone(),
        before,
        base,
        table,
        tail,
        from,
        to,
        floor: floor.map(|floor| floor.time),
        forgetting,
        started,
    };
    let plan = if rebuild {
        plan_rebuild(log, &work, options).await?
    } else {
        plan_increment(log, &work, options).await?
    };
    commit(&work, plan).await
}

/// Makes small files of the base one with their neighbours, where a quarter of its files or more is gone by it. No row changes, and
/// nothing is folded; a snapshot that another process changes meanwhile stays as that made it.
pub async fn join_small_files(
    snapshot: &Snapshot,
    options: &MaterializeOptions,
) -> Result<MaterializeReport> {
    let _alone = snapshot.lock_for_rewriting().await;
    let started = Instant::now();
    let before = snapshot.refresh().await?;
    let folded = before.log_commit();
    let mut report = up_to_date(&before, folded, folded, started);
    // One file is smaller than many with the same rows, so that it may have room for another neighbour.
    for _ in 0..MAX_JOINS {
        let Some(joined) = join_once(snapshot, options).await? else { break };
        report = MaterializeReport {
            rows_written: report.rows_written + joined.rows_written,
            bytes_written: report.bytes_written + joined.bytes_written,
            files_added: report.files_added + joined.files_added,
            files_removed: report.files_removed + joined.files_removed,
            elapsed: started.elapsed(),
            ..joined
        };
    }
    Ok(report)
}

/// Joins what is small now; nothing where too little is to gain, or another process was first.
async fn join_once(
    snapshot: &Snapshot,
    options: &MaterializeOptions,
) -> Result<Option<MaterializeReport>> {
    let (started, log) = (Instant::now(), snapshot.log());
    let before = snapshot.state();
    let folded = before.log_commit();
    let Some((table, _)) = before.table().filter(|_| before.is_ours()) else { return Ok(None) };
    if !are_scattered(before.base(), &bounds_of(log, &before, &[], options)?) {
        return Ok(None);
    }
    let (definition, now_ms) = (log.definition(), log.clock().now_ms());
    let _held = snapshot.hold((&log.state(), now_ms), &[(&before, now_ms)]);
    let work = Work {
        expected_version: before.version(),
        spec: ReadSpec { payload: whole_value(&definition), filter: RowFilter::default() },
        ranking: Ranking::from(definition.order_by),
        table: table.clone(),
        base: before.clone(),
        log: log.clone(),
        definition,
        now_ms,
        before,
        started,
        erase: None,
        tail: Vec::new(),
        from: folded,
        to: folded,
        floor: None,
        forgetting: None,
    };
    let plan = plan_join(log, &work, options).await?;
    commit(&work, plan).await
}

fn up_to_date(before: &SnapshotState, from: i64, to: i64, started: Instant) -> MaterializeReport {
    MaterializeReport {
        change: Change::UpToDate,
        from_commit: from,
        to_commit: to,
        snapshot_version: before.version(),
        rows_folded: 0,
        stale_keys: Some(0),
        conflicting_ties: 0,
        tombstones_forgotten: 0,
        rows_written: 0,
        bytes_written: 0,
        files_added: 0,
        files_removed: 0,
        elapsed: started.elapsed(),
    }
}

/// Whether there may be tombstones that the snapshot is not to have any more.
fn has_to_forget(before: &SnapshotState, tail: &[Arc<DataFile>], floor: Floor) -> bool {
    let in_tail = || tail.iter().any(|file| floor.may_exceed(file));
    before.least_tombstone().is_some_and(|least| least <= floor.time)
        || before.floor() < Some(floor.time) && in_tail()
}

/// The snapshot that the fold goes on from: the one that there is; where it is made anew none at all, or once days of the log have
/// expired the oldest one that has their rows.
async fn base_of_fold(
    snapshot: &Snapshot,
    before: &SnapshotState,
    log: &TableState,
    rebuild: bool,
) -> Result<SnapshotState> {
    let expired = Expired::commit_of(log);
    match (rebuild, expired) {
        (false, _) if before.log_commit() >= expired => Ok(before.clone()),
        (true, 0) => Ok(SnapshotState::none()),
        (true, _) => {
            let oldest = snapshot.oldest_base(before, expired).await?;
            oldest.ok_or_else(|| lost_rows(snapshot, expired))
        }
        (false, _) => Err(lost_rows(snapshot, expired)),
    }
}

/// Rows that are neither in the log nor in a snapshot.
pub(crate) fn lost_rows(snapshot: &Snapshot, expired: i64) -> Error {
    let name = snapshot.log().name();
    Error::corrupt(format!(
        "rows of commits up to {expired} have expired from the log of {name}, and no snapshot in {} that holds what they came to can be read: put that folder back from a backup; nothing was changed",
        snapshot_path(name)
    ))
}

impl Work {
    /// Whether every file that the snapshot will have was written just now.
    fn is_all_new(&self, plan: &Plan) -> bool {
        plan.removed.len() == self.before.files().count()
    }

    /// Up to which event time the snapshot is without tombstones, and bounds of all that it was ever made without: as of a point before
    /// one of these it is no base.
    fn notes_of_tombstones(&self) -> Vec<Action> {
        let Some(floor) = self.floor else { return Vec::new() };
        let mut notes = vec![(FLOOR_APP_ID, floor)];
        if let Some((version, time)) = self.forgetting.as_ref().and_then(Forgetting::bounds) {
            let known = self.base.forgotten();
            let (version, time) =
                known.map_or((version, time), |known| (version.max(known.0), time.max(known.1)));
            notes.extend([(FORGOTTEN_VERSION_APP_ID, version), (FORGOTTEN_TIME_APP_ID, time)]);
        }
        let note = |(app_id, version): (&str, i64)| Action::Transaction {
            app_id: app_id.to_owned(),
            version,
        };
        notes.into_iter().map(note).collect()
    }
}

/// Commits a plan if the snapshot is still the one it was made on; `None` when it is not.
async fn commit(work: &Work, plan: Plan) -> Result<Option<MaterializeReport>> {
    let rows_written = plan.added.iter().map(added_rows).sum();
    let bytes_written = plan.added.iter().map(|file| file.size).sum();
    let report = MaterializeReport {
        change: plan.change,
        from_commit: work.from,
        to_commit: work.to,
        snapshot_version: -1,
        rows_folded: tail_rows(work),
        stale_keys: plan.stale_keys,
        conflicting_ties: work.ranking.conflicting_ties(),
        tombstones_forgotten: work.forgetting.as_ref().map_or(0, Forgetting::count),
        rows_written,
        bytes_written,
        files_added: plan.added.len() as u64,
        files_removed: plan.removed.len() as u64,
        elapsed: Duration::ZERO,
    };
    let note = [
        ("logCommit".to_owned(), serde_json::json!(work.to)),
        ("change".to_owned(), serde_json::json!(plan.change)),
        ("rowsFolded".to_owned(), serde_json::json!(report.rows_folded)),
    ];
    let now_ms = work.now_ms;
    let outcome = work
        .table
        .commit("WRITE", Some(false), note.into_iter().collect(), |state, _| {
            if state.version != work.expected_version {
                return Ok(Attempt::Stop(()));
            }
            let mut actions = vec![Action::Transaction {
                app_id: MATERIALIZER_APP_ID.to_owned(),
                version: work.to,
            }];
            if let Some(version) = work.erase.filter(|_| work.from == 0) {
                let app_id = ERASE_APP_ID.to_owned();
                actions.push(Action::Transaction { app_id, version });
            }
            actions.extend(work.notes_of_tombstones());
            if work.is_all_new(&plan) {
                let app_id = CHECK_APP_ID.to_owned();
                actions.push(Action::Transaction { app_id, version: now_ms });
            }
            actions.extend(grown_metadata(state, &work.definition));
            actions.extend(plan.removed.iter().map(|file| file.add.removal(now_ms, true)));
            actions.extend(add_actions(plan.added.clone()));
            Ok(Attempt::Write(actions))
        })
        .await?;
    match outcome {
        Outcome::Committed(state) => {
            metrics::counter!(crate::metrics::MATERIALIZATIONS).increment(1);
            metrics::counter!(crate::metrics::ROWS_FOLDED).increment(report.rows_folded);
            metrics::counter!(crate::metrics::ROWS_WRITTEN).increment(rows_written);
            metrics::counter!(crate::metrics::CONFLICTING_TIES).increment(report.conflicting_ties);
            work.table.checkpoint_if_due(work.log.maintenance_settings()).await;
            Ok(Some(MaterializeReport {
                snapshot_version: state.version,
                elapsed: work.started.elapsed(),
                ..report
            }))
        }
        Outcome::Stopped(()) => {
            for file in &plan.added {
                work.table.discard(&file.path).await;
            }
            Ok(None)
        }
    }
}

fn added_rows(file: &FileAdd) -> u64 {
    alluvium_log::FileStats::parse(file.stats.as_deref(), true).rows.unwrap_or(0)
}

fn grown_metadata(state: &TableState, definition: &StateDefinition) -> Option<Action> {
    let schema = table_schema(&definition.stored_fields());
    if schema.fields().len() == state.metadata.schema.fields().len()
        && schema
            .fields()
            .iter()
            .zip(state.metadata.schema.fields())
            .all(|(a, b)| a.name() == b.name() && a.data_type().equals_datatype(b.data_type()))
    {
        return None;
    }
    let mut metadata = (*state.metadata).clone();
    metadata.schema = schema;
    Some(Action::Metadata(metadata))
}
