//! Which versions of the snapshot may be the base of an answer, or of a fold: those whose files are all there, that a
//! materializer wrote, and that hold whatever has expired from the log.

use std::ops::ControlFlow;

use alluvium_log::{LEAST_FILE_RETENTION_MS, Result, VACUUM_APP_ID};

use super::{Snapshot, SnapshotState};

/// What an answer asks of its base.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BaseBounds {
    /// Nothing of a later commit.
    pub commit: Option<i64>,
    /// Nothing of a greater version.
    pub version: Option<i64>,
    /// Nothing that happened later, in microseconds.
    pub event_time: Option<i64>,
    /// The commit up to which rows have expired from the log: the base must hold them.
    pub expired: i64,
}

/// The earliest points that can be answered once days of the log have expired, each bound alone. What has none is answered
/// however far it goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Horizon {
    /// As of commits from this one on.
    pub commit: i64,
    /// As of versions from this one on.
    pub version: Option<i64>,
    /// As of event times from this one on, in microseconds.
    pub event_time: Option<i64>,
}

impl BaseBounds {
    /// Whether a snapshot holds nothing beyond the bounds, and the log has all that it lacks.
    fn admit(&self, snapshot: &SnapshotState) -> bool {
        let folded = snapshot.log_commit();
        // Nothing of the log is needed as of the very commit that a snapshot folds.
        let completes = folded >= self.expired || self.commit == Some(folded);
        completes
            && snapshot.lies_within(self.commit, self.version, self.event_time)
            && snapshot.is_ours()
    }
}

impl Snapshot {
    /// For how long a version of the snapshot is sure to keep its files after the next one has come, the longest read taken off.
    pub(crate) fn kept_ms(&self) -> Result<i64> {
        let settings = self.inner.log.maintenance_settings()?;
        Ok(settings.snapshot_retention_ms() - LEAST_FILE_RETENTION_MS / 2)
    }

    /// The newest snapshot that holds nothing beyond a point and all that has expired from the log; none when there is no such.
    ///
    /// Each given bound counts. The current snapshot is looked at first; earlier ones are read from the table's
    /// history, as far as it reaches back.
    pub async fn within(
        &self,
        current: &SnapshotState,
        bounds: &BaseBounds,
    ) -> Result<SnapshotState> {
        if bounds.admit(current) {
            return Ok(current.clone());
        }
        let mut found = SnapshotState::none();
        self.visit(current, |known| match bounds.admit(known) {
            true => {
                found = known.clone();
                ControlFlow::Break(())
            }
            false => ControlFlow::Continue(()),
        })
        .await?;
        if found.table().is_some() || bounds.expired == 0 {
            return Ok(found);
        }
        let saved = self.saved_of(current).await?;
        Ok(saved.into_iter().find(|saved| bounds.admit(saved)).unwrap_or(found))
    }

    /// The snapshots that savepoints keep, the newest first.
    async fn saved_of(&self, current: &SnapshotState) -> Result<Vec<SnapshotState>> {
        match current.table() {
            Some((table, _)) => self.saved_states(table).await,
            None => Ok(Vec::new()),
        }
    }

    /// The oldest snapshot that holds what has expired from the log: from it the fold can be made anew.
    pub(crate) async fn oldest_base(
        &self,
        current: &SnapshotState,
        expired: i64,
    ) -> Result<Option<SnapshotState>> {
        let bounds = BaseBounds { expired, ..BaseBounds::default() };
        let mut oldest = None;
        self.visit(current, |known| {
            if bounds.admit(known) {
                oldest = Some(known.clone());
            }
            ControlFlow::Continue(())
        })
        .await?;
        for saved in self.saved_of(current).await? {
            let is_older = oldest.as_ref().is_none_or(|other| saved.version() < other.version());
            if is_older && bounds.admit(&saved) {
                oldest = Some(saved);
            }
        }
        Ok(oldest)
    }

    /// The earliest points that can be answered beside a log of which rows up to a commit have expired; `None` when no snapshot holds
    /// them.
    pub async fn horizon(&self, current: &SnapshotState, expired: i64) -> Result<Option<Horizon>> {
        self.horizon_after(current, expired, None).await
    }

    /// The same once a vacuum will have left only versions from this one on whole.
    pub(crate) async fn horizon_after(
        &self,
        current: &SnapshotState,
        expired: i64,
        vacuumed: Option<i64>,
    ) -> Result<Option<Horizon>> {
        let bounds = BaseBounds { expired, ..BaseBounds::default() };
        let mut horizon: Option<Horizon> = None;
        let mut note = |known: &SnapshotState| {
            if bounds.admit(known) {
                let own = Horizon {
                    commit: known.log_commit(),
                    version: known.max_version(),
                    event_time: known.max_event_time(),
                };
                horizon = Some(horizon.map_or(own, |other| other.earliest(own)));
            }
            ControlFlow::Continue(())
        };
        self.visit_after(current, vacuumed, &mut note).await?;
        for saved in self.saved_of(current).await? {
            if note(&saved).is_break() {
                break;
            }
        }
        Ok(horizon)
    }

    /// The snapshot that was the newest at a time, if that can still be told.
    pub(crate) async fn newest_at(
        &self,
        current: &SnapshotState,
        time_ms: i64,
    ) -> Result<Option<SnapshotState>> {
        let mut found = None;
        self.visit(current, |known| match known.made_ms().is_some_and(|made| made <= time_ms) {
            true => {
                found = Some(known.clone());
                ControlFlow::Break(())
            }
            false => ControlFlow::Continue(()),
        })
        .await?;
        Ok(found)
    }

    /// Shows versions, the newest first, from the current one back to the last one whose files are sure to be there for the longest
    /// read.
    pub(super) async fn visit(
        &self,
        current: &SnapshotState,
        show: impl FnMut(&SnapshotState) -> ControlFlow<()>,
    ) -> Result<()> {
        self.visit_after(current, None, show).await
    }

    /// The same as if a vacuum had left only versions from one on whole.
    async fn visit_after(
        &self,
        current: &SnapshotState,
        next_vacuum: Option<i64>,
        mut show: impl FnMut(&SnapshotState) -> ControlFlow<()>,
    ) -> Result<()> {
        let Some((table, state)) = current.table() else { return Ok(()) };
        let mut history = self.inner.history.lock().await;
        if history.last().is_none_or(|last| last.version() < state.version) {
            let states = table.states().await?;
            *history = states
                .into_iter()
                .map(|state| SnapshotState { table: Some(table.clone()), state: Some(state) })
                .collect();
        }
        // Once a vacuum has run, the next one may come at any moment: what it may take then is not begun with. Who asks may stand on a
        // version of long ago, which knows nothing of vacuums since.
        let newest = table.state();
        let recorded = newest.transaction(VACUUM_APP_ID).max(state.transaction(VACUUM_APP_ID));
        let vacuumed = recorded.max(next_vacuum);
        let kept_after = match vacuumed {
            None => i64::MIN,
            Some(_) => self.inner.log.clock().now_ms().saturating_sub(self.kept_ms()?),
        };
        let whole_from = vacuumed.unwrap_or(0);
        let mut replaced_ms = i64::MAX;
        for known in history.iter().rev().filter(|known| known.version() <= state.version) {
            if known.version() < whole_from || replaced_ms <= kept_after {
                break;
            }
            if show(known).is_break() {
                break;
            }
            replaced_ms = known.made_ms().unwrap_or(i64::MIN);
        }
        Ok(())
    }
}

impl Horizon {
    fn earliest(self, other: Self) -> Self {
        Self {
            commit: self.commit.min(other.commit),
            version: self.version.min(other.version),
            event_time: self.event_time.min(other.event_time),
        }
    }
}
