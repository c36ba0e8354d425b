//! What a fork begins with: the tables as they were at its commit, or where they can't be read any more, what a savepoint has kept.

use std::sync::Arc;

use alluvium_log::{
    Archived, EARLIER_COMMITS, Error, ErrorKind, ForkRecord, ForkedVersions, Hold, LinkPlan,
    Linked, Result, TableState, archive_path, log_path,
};

use super::{ForkOutcome, ForkReport, Work, check_erased};
use crate::snapshot::{Savepoint, SnapshotState, snapshot_path};

/// What a fork is made of.
pub(super) struct Plan {
    pub(super) log: LinkPlan,
    pub(super) log_state: Arc<TableState>,
    pub(super) snapshot: Option<LinkPlan>,
    pub(super) archive: Option<LinkPlan>,
    pub(super) kept: Vec<Arc<Savepoint>>,
    /// Keeps all of it where it is.
    _hold: Hold,
}

impl Plan {
    pub(super) fn report(&self, record: &ForkRecord, outcome: ForkOutcome) -> ForkReport {
        let plans = [Some(&self.log), self.snapshot.as_ref(), self.archive.as_ref()];
        let plans = || plans.into_iter().flatten();
        ForkReport {
            parent: record.parent().to_owned(),
            name: record.name.clone(),
            outcome,
            commit: record.commit,
            snapshot_version: record.snapshot.map(|versions| versions.newest),
            kept: self.kept.len() as u64,
            without_log: record.without_log,
            files: plans().map(LinkPlan::files).sum(),
            bytes: plans().map(LinkPlan::bytes).sum(),
        }
    }
}

impl Work<'_> {
    /// What the fork begins with: the tables as they were at a commit, or what is kept of them.
    pub(super) async fn chosen(&self, at: Option<i64>) -> Result<(ForkRecord, Plan)> {
        let newest = self.log().refresh().await?;
        let commit = at.unwrap_or(newest.version);
        if !(0..=newest.version).contains(&commit) {
            return Err(Error::new(
                ErrorKind::PointUnavailable,
                format!("there is no commit {commit}: the log ends at {}", newest.version),
            ));
        }
        let error = match self.chosen_at(commit, &newest, false).await {
            Err(error) if error.kind() == ErrorKind::PointUnavailable => error,
            other => return other,
        };
        let kept = self.snapshot.kept_up_to(commit).await?;
        match kept.iter().any(|kept| kept.log_commit == commit) {
            true => self.chosen_at(commit, &newest, true).await,
            false => Err(error),
        }
    }

    async fn chosen_at(
        &self,
        commit: i64,
        newest: &Arc<TableState>,
        without_log: bool,
    ) -> Result<(ForkRecord, Plan)> {
        let kept = self.snapshot.kept_up_to(commit).await?;
        let state = self.log_at(commit, &kept, without_log).await?;
        check_erased(&state, newest)?;
        let begun = self.snapshot.versions_for(&state, &kept).await?;
        let settings = self.log().maintenance_settings()?;
        let now_ms = self.now_ms();
        let record = ForkRecord {
            name: self.name.to_owned(),
            id: format!("{:032x}", alluvium_log::random::<u128>()),
            ancestors: self.ancestors().await?,
            commit,
            snapshot: begun.map(|begun| begun.versions),
            is_kept: begun.is_some_and(|begun| begun.is_kept),
            without_log,
            archive_version: Archived::of(&state).map(|known| known.version),
            created_ms: now_ms,
            renewed_ms: now_ms,
            archive: settings.archive,
            taken_over_ms: None,
            finished: false,
            dropped_ms: None,
        };
        let plan = self.plan(&record).await?;
        Ok((record, plan))
    }

    /// The log as it was at a commit, or without rows up to there.
    async fn log_at(
        &self,
        commit: i64,
        kept: &[Arc<Savepoint>],
        without_log: bool,
    ) -> Result<Arc<TableState>> {
        let newest = self.log().state();
        if !without_log {
            return match commit == newest.version {
                true => Ok(newest),
                false => self.log().table().state_at(commit).await.map(Arc::new),
            };
        }
        let Some(kept) = kept.iter().rev().find(|kept| kept.log_commit == commit) else {
            return Err(Error::new(
                ErrorKind::PointUnavailable,
                format!("the snapshot of commit {commit} was kept, and is released"),
            ));
        };
        let table = self.snapshot.forked_table().await?;
        self.snapshot.log_without_rows(kept, &table).map(Arc::new)
    }

    pub(super) async fn plan(&self, record: &ForkRecord) -> Result<Plan> {
        let log = self.log();
        let newest = log.refresh().await?;
        let kept = self.snapshot.kept_up_to(record.commit).await?;
        let log_state = self.log_at(record.commit, &kept, record.without_log).await?;
        let pinned_ms = self.now_ms();
        let (snapshot, held) = match record.snapshot {
            None => (None, Vec::new()),
            Some(versions) => {
                let (plan, states) =
                    self.snapshot_plan(record, versions, &log_state, &kept).await?;
                (Some(plan), states)
            }
        };
        let held: Vec<(&SnapshotState, i64)> =
            held.iter().map(|state| (state, pinned_ms)).collect();
        let of_log = if record.without_log { &newest } else { &log_state };
        let hold = self.snapshot.hold((of_log, pinned_ms), &held);
        let archive = match record.archive_version {
            None => None,
            Some(version) => Some(self.archive_plan(version).await?),
        };
        let from = log_path(log.name());
        let plan = match record.without_log {
            true => log.table().founding_plan(&log_state, &[], &from).await?,
            false => {
                let versions = std::slice::from_ref(&log_state);
                let linked = Linked { versions, beside: &[], earlier_commits: EARLIER_COMMITS };
                log.table().link_plan(linked, &from).await?
            }
        };
        Ok(Plan { log: plan, log_state, snapshot, archive, kept, _hold: hold })
    }

    /// What of the snapshot's table is linked, and the states that it needs until it is.
    async fn snapshot_plan(
        &self,
        record: &ForkRecord,
        versions: ForkedVersions,
        log: &TableState,
        kept: &[Arc<Savepoint>],
    ) -> Result<(LinkPlan, Vec<SnapshotState>)> {
        let table = self.snapshot.forked_table().await?;
        let mut held: Vec<SnapshotState> = kept.iter().map(|kept| kept.state(&table)).collect();
        let of = |state: &SnapshotState| state.table().map(|(_, state)| state.clone());
        let beside: Vec<Arc<TableState>> = held.iter().filter_map(of).collect();
        let from = snapshot_path(self.log().name());
        if record.is_kept {
            let state = self.snapshot.kept_state(&table, kept, versions.newest, log)?;
            return Ok((table.founding_plan(&state, &beside, &from).await?, held));
        }
        let states = self.snapshot.forked_states(&table, versions).await?;
        let linked = Linked { versions: &states, beside: &beside, earlier_commits: 0 };
        let plan = table.link_plan(linked, &from).await?;
        held.push(SnapshotState::of(&table, states.last().cloned()));
        Ok((plan, held))
    }

    async fn archive_plan(&self, version: i64) -> Result<LinkPlan> {
        let log = self.log();
        let settings = log.maintenance_settings()?;
        let Some(table) = log.open_archive(&settings).await? else {
            return Err(Error::new(
                ErrorKind::PointUnavailable,
                format!(
                    "the archive at {} can't be read: make it reachable again",
                    log.archive_place(&settings)
                ),
            ));
        };
        table.refresh().await?;
        let state = match table.state().version == version {
            true => table.state(),
            false => Arc::new(table.state_at(version).await?),
        };
        let linked = Linked { versions: &[state], beside: &[], earlier_commits: 0 };
        table.link_plan(linked, &archive_path(log.name())).await
    }
}
