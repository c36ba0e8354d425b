//! What of a state is kept, what keeps it, what it costs, and what the next run of the job would take away. Nothing is changed.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use alluvium_log::{
    Archived, DT, Error, Expired, MaintenanceSettings, Pins, ReaderLease, Result, Table,
    TableState, VacuumOptions, VacuumReport, VersionAt,
};
use serde::Serialize;

use super::archive::{ArchiveReport, archive};
use super::expire::{ExpireReport, expire};
use super::tombstones::{TombstonesReport, planned};
use super::unreadable::UnreadableVersions;
use crate::fork::SharedFiles;
use crate::snapshot::{Horizon, Savepoint, Snapshot};

/// What is kept of a state, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RetentionReport {
    /// The state.
    pub state: String,
    /// The settings by name.
    pub settings: BTreeMap<&'static str, String>,
    /// What can be asked now.
    pub readable: Readable,
    /// What could be asked after the next run.
    pub readable_after: Readable,
    /// What lies in the store, by what keeps it.
    pub kept: Vec<Kept>,
    /// The states that have some of these files too: forks of this one, or what it was made of.
    pub shared_with: BTreeSet<String>,
    /// The savepoints, the oldest commit first.
    pub savepoints: Vec<SavepointCost>,
    /// The leases of readers that count, those of the oldest reads first.
    pub leases: Vec<LeaseCost>,
    /// The commits that can't be read, of both tables, while checkpoints stand for them.
    pub unreadable_commits: Vec<UnreadableVersions>,
    /// The days that the next run would move to the archive, or why none.
    pub next_archive: ArchiveReport,
    /// The days that the next run would drop from the log, or why none.
    pub next_expire: ExpireReport,
    /// The deleted keys that the next run would forget, or why none.
    pub next_tombstones: TombstonesReport,
    /// Commits that the next run would remove, of both tables.
    pub next_commits: u64,
    /// Data files that the next run would remove, of both tables.
    pub next_files: u64,
    /// Bytes that the next run would free.
    pub next_bytes: u64,
}

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Readable {
    /// Changes and histories reach back to the commit after this one; with 0, to the beginning.
    pub changes_after: i64,
    /// The earliest points; nothing where every point can be asked for.
    pub horizon: Option<Horizon>,
    /// The newest commit.
    pub newest_commit: i64,
    /// The earliest time of which can be asked what was known then, in milliseconds since 1970: there is a commit that tells it, and a
    /// state as of that commit.
    pub known_since_ms: Option<i64>,
    /// The oldest version of the log's table that can be read by its number.
    pub log_version: i64,
    /// The same of the snapshot's table, if there is one.
    pub snapshot_version: Option<i64>,
}

/// What keeps files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptBy {
    /// They are part of the log.
    Log,
    /// They are of days past `log_retention` that can't go yet, see [`RetentionReport::next_expire`].
    LogPastRetention,
    /// They left the log: `file_retention`.
    LogFileRetention,
    /// They are part of the log, and lie in its archive.
    Archive,
    /// They are part of the snapshot.
    Snapshot,
    /// They are of earlier snapshots: `as_of_window` and `file_retention`.
    SnapshotWindow,
    /// They are of earlier snapshots that savepoints keep.
    Savepoints,
    /// They are of earlier versions of either table that readers hold.
    Leases,
    /// A commit that can't be read may have named them, see [`RetentionReport::unreadable_commits`].
    UnreadableCommit,
    /// No commit refers to them yet: `orphan_grace`.
    OrphanGrace,
    /// Nothing: the next vacuum takes them.
    Nothing,
}

/// Files that lie in the store for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// The reason.
    pub by: KeptBy,
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that other states have too: in a local folder the disk has them once. Of the archive it is not told.
    pub shared_bytes: u64,
}

/// A savepoint and what it costs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SavepointCost {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub note: Option<String>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// The commit as of which the state is kept.
    pub log_commit: i64,
    /// Its files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of those that nothing else keeps, not even another savepoint: what its release frees.
    pub own_bytes: u64,
}

/// What the reads of a process hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeaseCost {
    /// How the process is called.
    pub holder: String,
    /// When the oldest of the reads began, in milliseconds since 1970.
    pub since_ms: i64,
    /// When the lease ends unless it is renewed, in milliseconds since 1970.
    pub until_ms: i64,
    /// The versions of the log's table.
    pub log_versions: BTreeSet<i64>,
    /// The same of the snapshot's table.
    pub snapshot_versions: BTreeSet<i64>,
    /// The same of the archive's table.
    pub archive_versions: BTreeSet<i64>,
}

impl From<ReaderLease> for LeaseCost {
    fn from(lease: ReaderLease) -> Self {
        let ReaderLease { holder, since_ms, until_ms, log_versions, .. } = lease;
        let ReaderLease { snapshot_versions, archive_versions, .. } = lease;
        Self { holder, since_ms, until_ms, log_versions, snapshot_versions, archive_versions }
    }
}

/// Files by the reason that keeps them.
#[derive(Default)]
struct Ledger(BTreeMap<KeptBy, Kept>);

impl Ledger {
    fn note(&mut self, by: KeptBy, bytes: u64, is_shared: bool) {
        let none = Kept { by, files: 0, bytes: 0, shared_bytes: 0 };
        let kept = self.0.entry(by).or_insert(none);
        kept.files += 1;
        kept.bytes += bytes;
        kept.shared_bytes += if is_shared { bytes } else { 0 };
    }

    /// What the log says of its archive, which isn't opened for this.
    fn note_archive(&mut self, archived: Archived) {
        let number = |count: i64| u64::try_from(count).unwrap_or(0);
        let (files, bytes) = (number(archived.files), number(archived.bytes));
        self.0.insert(KeptBy::Archive, Kept { by: KeptBy::Archive, files, bytes, shared_bytes: 0 });
    }
}

/// Tells what of a state is kept, and what a run of all steps of the job would take away now.
#[tracing::instrument(level = "info", skip_all, fields(state = snapshot.log().name()), err(level = "debug"))]
pub async fn explain_retention(snapshot: &Snapshot) -> Result<RetentionReport> {
    let place = format!("explaining the retention of {}", snapshot.log().name());
    explain(snapshot).await.map_err(|error: Error| error.context(place))
}

async fn explain(snapshot: &Snapshot) -> Result<RetentionReport> {
    let log = snapshot.log();
    let log_state = log.refresh().await?;
    let current = snapshot.refresh().await?;
    let settings = log.maintenance_settings()?;
    let savepoints = snapshot.savepoints().await?;
    let leases = log.leases().alive(log.clock().now_ms()).await?;
    let next_archive = archive(snapshot, None, true).await?;
    let next_expire = expire(snapshot, true, true).await?;
    let orphan_grace_ms = settings.orphan_grace_ms;
    let vacuum =
        |file_retention_ms| VacuumOptions { file_retention_ms, orphan_grace_ms, dry_run: true };
    let of_log = log.table().vacuum(&vacuum(settings.file_retention_ms)).await?;
    let cleaned = log.table().clean_up(settings.commit_retention_ms, true).await?;
    let shared = SharedFiles::of(snapshot).await?;
    let mut ledger = Ledger::default();
    let past = past_retention(&log_state, &settings, log.clock().now_ms());
    let held: HashSet<&str> = of_log.held.iter().map(String::as_str).collect();
    let by_path = |path: &str, is_part: bool| match (is_part, past.contains(path)) {
        (true, true) => KeptBy::LogPastRetention,
        (true, false) => KeptBy::Log,
        (false, _) if held.contains(path) => KeptBy::Leases,
        (false, _) => KeptBy::LogFileRetention,
    };
    let is_shared = |path: &str| shared.has_of_log(path);
    note_files(&mut ledger, (log.table(), &log_state), &of_log, by_path, is_shared).await?;
    if let Some(archived) = Archived::of(&log_state) {
        ledger.note_archive(archived);
    }
    let expired = Expired::commit_of(&log_state);
    let mut readable = Readable {
        changes_after: expired,
        horizon: None,
        newest_commit: log_state.version,
        known_since_ms: None,
        log_version: log.table().oldest_version().await?,
        snapshot_version: None,
    };
    let mut readable_after = Readable {
        changes_after: next_expire.expired_commit,
        log_version: readable.log_version.max(cleaned.oldest_version),
        ..readable
    };
    let mut vacuumed = vec![of_log];
    let mut commits = vec![cleaned];
    let mut own_bytes = BTreeMap::new();
    if let Some((table, state)) = current.table() {
        readable.horizon = horizon(snapshot, expired, None).await?;
        let now_ms = log.clock().now_ms();
        let (pins, _) = snapshot.pins(now_ms, settings.file_retention_ms).await?;
        let options = vacuum(settings.snapshot_retention_ms());
        let of_snapshot = table.vacuum_beside(&options, now_ms, &pins).await?;
        // What no version of the retention has is kept by savepoints alone. The commits of older ones may be gone.
        let unpinned_by = Pins { longest_read_ms: pins.longest_read_ms, ..Pins::default() };
        let unpinned = table.vacuum_beside(&options, now_ms, &unpinned_by).await?;
        let unkept = unpinned.paths.iter().chain(&unpinned.kept_orphans).chain(&unpinned.held);
        let unkept = unkept.chain(&unpinned.doubtful);
        let unkept = unkept.map(String::as_str);
        let alone: HashSet<&str> = unkept.filter(|&path| pins.kept.contains(path)).collect();
        own_bytes = bytes_of_their_own(&savepoints, &alone);
        let held: HashSet<&str> = of_snapshot.held.iter().map(String::as_str).collect();
        let by_path = |path: &str, is_part: bool| match (is_part, alone.contains(path)) {
            (true, _) => KeptBy::Snapshot,
            (false, true) => KeptBy::Savepoints,
            (false, false) if held.contains(path) => KeptBy::Leases,
            (false, false) => KeptBy::SnapshotWindow,
        };
        let is_shared = |path: &str| shared.has_of_snapshot(path);
        note_files(&mut ledger, (table, state), &of_snapshot, by_path, is_shared).await?;
        let cleaned = table.clean_up(settings.commit_retention_ms, true).await?;
        let oldest = table.oldest_version().await?;
        readable.snapshot_version = Some(oldest);
        let after = oldest.max(cleaned.oldest_version).max(oldest_whole(&of_snapshot));
        readable_after.snapshot_version = Some(after);
        let whole_from = (of_snapshot.files_removed > 0).then_some(of_snapshot.oldest_version);
        readable_after.horizon = horizon(snapshot, next_expire.expired_commit, whole_from).await?;
        vacuumed.push(of_snapshot);
        commits.push(cleaned);
    }
    readable.known_since_ms = known_since(log.table(), &log_state, (0, &readable)).await?;
    let cleaned = &commits[0];
    let first_left = if cleaned.commits_removed > 0 { cleaned.oldest_version } else { 0 };
    readable_after.known_since_ms =
        known_since(log.table(), &log_state, (first_left, &readable_after)).await?;
    readable_after.log_version = readable_after.log_version.max(oldest_whole(&vacuumed[0]));
    let freed = |reports: &[VacuumReport]| reports.iter().map(|report| report.bytes_removed).sum();
    let next_bytes: u64 = freed(&vacuumed);
    Ok(RetentionReport {
        state: log.name().to_owned(),
        settings: settings.named(),
        readable,
        readable_after,
        kept: ledger.0.into_values().collect(),
        shared_with: shared.with,
        savepoints: savepoints
            .iter()
            .map(|savepoint| cost(savepoint, own_bytes.get(&savepoint.name).copied()))
            .collect(),
        leases: leases.into_iter().map(LeaseCost::from).collect(),
        unreadable_commits: UnreadableVersions::of(&vacuumed, &settings),
        next_archive,
        next_expire,
        next_tombstones: planned(snapshot).await?,
        next_commits: commits.iter().map(|report| report.commits_removed).sum(),
        next_files: vacuumed.iter().map(|report| report.paths.len() as u64).sum(),
        next_bytes: next_bytes + commits.iter().map(|report| report.bytes_removed).sum::<u64>(),
    })
}

/// The oldest version that has all its files after a vacuum; one that removes nothing changes none.
fn oldest_whole(report: &VacuumReport) -> i64 {
    if report.files_removed > 0 { report.oldest_version } else { 0 }
}

/// The earliest points beside a log of which rows up to a commit have expired, if a vacuum leaves only versions from one on whole.
async fn horizon(
    snapshot: &Snapshot,
    expired: i64,
    vacuumed: Option<i64>,
) -> Result<Option<Horizon>> {
    match expired {
        0 => Ok(None),
        _ => snapshot.horizon_after(&snapshot.state(), expired, vacuumed).await,
    }
}

/// The log's files of days that are past the retention.
fn past_retention<'a>(
    state: &'a TableState,
    settings: &MaintenanceSettings,
    now_ms: i64,
) -> BTreeSet<&'a str> {
    let Some(kept_ms) = settings.log_retention_ms else { return BTreeSet::new() };
    let is_past = |day: &str| {
        let end_ms = super::plan::end_of_day_ms(day);
        end_ms.is_some_and(|end_ms| end_ms.saturating_add(kept_ms) <= now_ms)
    };
    state
        .files()
        .filter(|file| {
            file.add.partition.get(DT).is_some_and(|day| day.as_deref().is_some_and(is_past))
        })
        .map(|file| file.add.path.as_str())
        .collect()
}

/// Notes the files that lie in a table's folder.
async fn note_files(
    ledger: &mut Ledger,
    (table, state): (&Table, &TableState),
    vacuum: &VacuumReport,
    kept_by: impl Fn(&str, bool) -> KeptBy,
    is_shared: impl Fn(&str) -> bool,
) -> Result<()> {
    let doomed: HashSet<&str> = vacuum.paths.iter().map(String::as_str).collect();
    let orphans: HashSet<&str> = vacuum.kept_orphans.iter().map(String::as_str).collect();
    let doubtful: HashSet<&str> = vacuum.doubtful.iter().map(String::as_str).collect();
    for (path, lies_as, bytes) in table.files_on_store(state).await? {
        let by = match &path {
            Some(path) => kept_by(path, true),
            None if doomed.contains(lies_as.as_str()) => KeptBy::Nothing,
            None if doubtful.contains(lies_as.as_str()) => KeptBy::UnreadableCommit,
            None if orphans.contains(lies_as.as_str()) => KeptBy::OrphanGrace,
            None => kept_by(&lies_as, false),
        };
        ledger.note(by, bytes, is_shared(&lies_as));
    }
    Ok(())
}

/// Of each savepoint the bytes of files that nothing else keeps.
fn bytes_of_their_own(
    savepoints: &[std::sync::Arc<Savepoint>],
    alone: &HashSet<&str>,
) -> BTreeMap<String, u64> {
    let mut holders: BTreeMap<&str, u32> = BTreeMap::new();
    for (path, _) in savepoints.iter().flat_map(|savepoint| savepoint.paths()) {
        *holders.entry(path).or_default() += 1;
    }
    let is_own = |path: &str| holders.get(path) == Some(&1) && alone.contains(path);
    savepoints
        .iter()
        .map(|savepoint| {
            let own = savepoint.paths().filter(|(path, _)| is_own(path)).map(|(_, bytes)| bytes);
            (savepoint.name.clone(), own.sum())
        })
        .collect()
}

/// When the oldest commit was made that tells its time and is `first_left` or later, and as of which the state can be asked for.
async fn known_since(
    table: &Table,
    newest: &TableState,
    (first_left, readable): (i64, &Readable),
) -> Result<Option<i64>> {
    let oldest = match table.version_at(newest, i64::MIN).await? {
        VersionAt::Before { version, .. } | VersionAt::Version(version) => version,
        VersionAt::Unreadable { version, next } => next.unwrap_or(version),
    };
    let horizon = readable.horizon.map_or(0, |horizon| horizon.commit);
    table.made_ms_from(oldest.max(first_left).max(horizon), newest).await
}

fn cost(savepoint: &Savepoint, own_bytes: Option<u64>) -> SavepointCost {
    SavepointCost {
        name: savepoint.name.clone(),
        note: savepoint.note.clone(),
        created_ms: savepoint.created_ms,
        log_commit: savepoint.log_commit,
        files: savepoint.files(),
        bytes: savepoint.bytes(),
        own_bytes: own_bytes.unwrap_or(0),
    }
}
