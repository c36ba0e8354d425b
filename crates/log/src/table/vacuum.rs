//! Removing data files that no kept version of a table has: by what the log says of each file.
//!
//! A file that some version of the retention has is kept. One that only older versions have goes. One that no version has is a
//! left-over of a writer that died, or the work of one that has yet to commit: it goes when it is older than the longest write.
//! What older versions lose is recorded in the log, as a transaction, before the first file goes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};

use super::listing::{LogListing, Origin};
use super::load::MAX_LOADS;
use super::state::TableState;
use super::walk::{Between, UnreadableCommit};
use super::{Action, Attempt, FileAdd, Table};
use crate::checksum::TAG_CHECK;
use crate::error::{Error, Result};

/// The application id under which a table records its oldest version whose files are all there.
pub const VACUUM_APP_ID: &str = "alluvium/vacuum";
/// Files that are removed at the same time.
const REMOVE_CONCURRENCY: usize = 16;

/// What a vacuum may remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VacuumOptions {
    /// Files that a version had which was the newest within this span stay.
    pub file_retention_ms: i64,
    /// Files that no version has stay for this long after they were written.
    pub orphan_grace_ms: i64,
    /// Tell what would be removed, and remove nothing.
    pub dry_run: bool,
}

/// Files that are kept, or not kept any more, for another reason than the versions of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    /// The paths of files that stay.
    pub kept: HashSet<String>,
    /// The paths of files that such a reason kept, and that need stay for it no longer.
    pub let_go: HashSet<String>,
    /// How long the longest read takes, in milliseconds: what only versions have that nobody may begin with any more, by what is
    /// recorded under [`VACUUM_APP_ID`], stays for no longer than this.
    pub longest_read_ms: Option<i64>,
}

/// A data file in a table's folder that is not part of its newest state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// Where it lies.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// The last version that had it; `None` when no version that can be read did.
    pub last_version: Option<i64>,
    /// The checksum that a version had with it.
    pub check: Option<String>,
}

/// What a vacuum removed, or would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VacuumReport {
    /// The oldest version whose files are all there afterwards.
    pub oldest_version: i64,
    /// Files removed that only older versions have.
    pub files_removed: u64,
    /// Files removed that no version has.
    pub orphans_removed: u64,
    /// Bytes of both.
    pub bytes_removed: u64,
    /// Files that no version has and that may still be committed.
    pub orphans_kept: u64,
    /// The paths of the files removed, in order.
    pub paths: Vec<String>,
    /// The paths of the files that no version has and that may still be committed.
    pub kept_orphans: Vec<String>,
    /// The paths of the files that only leases of readers keep.
    pub held: Vec<String>,
    /// The paths of the files that are kept because a commit that can't be read may have named them.
    pub doubtful: Vec<String>,
    /// The commits that can't be read, while checkpoints stand for them. What any of them may have named stays for as long as its versions
    /// are kept.
    pub unreadable: Vec<UnreadableCommit>,
}

/// Which files the versions of a table have.
#[derive(Default)]
struct Census {
    /// Of a version of the retention.
    kept: HashSet<String>,
    /// Of any version that can be read.
    known: HashSet<String>,
    /// Of a version that a reader holds.
    held: HashSet<String>,
    /// The oldest version of the retention.
    oldest_kept: i64,
    /// Whether the retention has begun with a version that was walked over.
    has_begun: bool,
    /// The commits that can't be read.
    unreadable: Vec<UnreadableCommit>,
    /// Whether a kept version may have files that no commit tells which can be read.
    is_partial: bool,
}

impl Table {
    /// Removes the data files that no version of the retention has.
    pub async fn vacuum(&self, options: &VacuumOptions) -> Result<VacuumReport> {
        self.vacuum_beside(options, self.clock.now_ms(), &Pins::default()).await
    }

    /// The same as of a time, leaving files that are kept for another reason. These were asked for after that time, so that what
    /// was pinned later is part of the retention.
    pub async fn vacuum_beside(
        &self,
        options: &VacuumOptions,
        now_ms: i64,
        pins: &Pins,
    ) -> Result<VacuumReport> {
        let names = |paths: &HashSet<String>| -> HashSet<String> {
            paths.iter().flat_map(|path| names_of(path)).collect()
        };
        let (pinned, let_go) = (names(&pins.kept), names(&pins.let_go));
        let _alone = self.cleaning.lock().await;
        // Files first, then the log: a file that is committed in between is known by then. The leases after the time was taken.
        let mut files = self.data_files().await?;
        files.sort_unstable_by(|a, b| a.location.cmp(&b.location));
        let held = self.held_versions(now_ms).await?;
        self.refresh().await?;
        let cutoff_ms = now_ms.saturating_sub(options.file_retention_ms);
        let longest_read_ms = pins.longest_read_ms.unwrap_or(options.file_retention_ms);
        let read_cutoff_ms = now_ms.saturating_sub(longest_read_ms);
        let census = self.census(cutoff_ms, read_cutoff_ms, &held).await?;
        let (mut doomed, mut report) = (Vec::new(), VacuumReport::default());
        report.oldest_version = census.oldest_kept;
        report.unreadable = census.unreadable;
        for meta in files {
            let path = meta.location.as_ref();
            if census.kept.contains(path) || pinned.contains(path) {
                continue;
            }
            if census.held.contains(path) {
                report.held.push(path.to_owned());
                continue;
            }
            let is_told = census.known.contains(path);
            if census.is_partial && !is_told {
                report.doubtful.push(path.to_owned());
                continue;
            }
            let is_known = is_told || let_go.contains(path);
            let age_ms = now_ms.saturating_sub(meta.last_modified.timestamp_millis());
            if is_known || age_ms > options.orphan_grace_ms {
                doomed.push((meta, is_known));
            } else {
                report.orphans_kept += 1;
                report.kept_orphans.push(path.to_owned());
            }
        }
        if !options.dry_run && doomed.iter().any(|(_, is_known)| *is_known) {
            self.record_horizon(census.oldest_kept).await?;
        }
        let mut removals = stream::iter(doomed)
            .map(|(meta, is_known)| {
                async move {
                    let is_gone = !options.dry_run && !self.remove(&meta).await?;
                    Ok::<_, Error>((!is_gone).then_some((meta, is_known)))
                }
                .boxed()
            })
            .buffered(REMOVE_CONCURRENCY);
        while let Some(removed) = removals.try_next().await? {
            let Some((meta, is_known)) = removed else { continue };
            let counter = match is_known {
                true => &mut report.files_removed,
                false => &mut report.orphans_removed,
            };
            *counter += 1;
            report.bytes_removed += meta.size;
            report.paths.push(meta.location.as_ref().to_owned());
        }
        if !options.dry_run {
            metrics::counter!(crate::metrics::FILES_VACUUMED).increment(report.paths.len() as u64);
        }
        Ok(report)
    }

    /// The first of a state's files that does not lie in the store, if any: what relies on the state asks before it gives up anything
    /// else.
    pub async fn missing_file(&self, state: &TableState) -> Result<Option<String>> {
        let files = self.data_files().await?;
        let there: HashSet<&str> = files.iter().map(|meta| meta.location.as_ref()).collect();
        let is_there = |path: &str| names_of(path).any(|name| there.contains(name.as_str()));
        let missing = state.files().find(|file| !is_there(&file.add.path));
        Ok(missing.map(|file| file.add.path.clone()))
    }

    /// The data files that lie in the table's folder: the path that a state has each under, if it is part of it; where it lies; its
    /// bytes.
    pub async fn files_on_store(
        &self,
        state: &TableState,
    ) -> Result<Vec<(Option<String>, String, u64)>> {
        let mut parts: BTreeMap<String, &str> = BTreeMap::new();
        for file in state.files() {
            parts.extend(names_of(&file.add.path).map(|name| (name, file.add.path.as_str())));
        }
        let files = self.data_files().await?.into_iter().map(|meta| {
            let lies_as = meta.location.as_ref().to_owned();
            (parts.get(&lies_as).map(|&path| path.to_owned()), lies_as, meta.size)
        });
        Ok(files.collect())
    }

    /// The Parquet files of the table's folder, but for those of the log and of other engines' own folders.
    pub(super) async fn data_files(&self) -> Result<Vec<ObjectMeta>> {
        let is_data = |meta: &ObjectMeta| {
            let hidden = |part: &str| part.starts_with('_') || part.starts_with('.');
            let in_hidden = meta.location.parts().any(|part| hidden(part.as_ref()));
            !in_hidden && meta.location.as_ref().ends_with(".parquet")
        };
        let listing = self.store.list(None);
        let all: Vec<ObjectMeta> =
            listing.try_collect().await.map_err(|e| self.placed(e.into()))?;
        Ok(all.into_iter().filter(is_data).collect())
    }

    /// The data files in the table's folder that are not part of the newest state. Whatever is committed before this is called is known
    /// to it.
    pub async fn strays(&self) -> Result<Vec<Stray>> {
        let files = self.data_files().await?;
        self.refresh().await?;
        let (mut newest, mut listing) = self.newest_listed().await?;
        for _ in 1..MAX_LOADS {
            let error = match self.strays_among(&files, &newest, &listing).await {
                Ok(strays) => return Ok(strays),
                Err(error) => error,
            };
            (newest, listing) = self.listed_anew(&listing).await?.ok_or(error)?;
        }
        self.strays_among(&files, &newest, &listing).await
    }

    /// The newest version that is known, and the log as it is listed after that: with all commits up to this one, whatever is committed
    /// meanwhile by this process too.
    pub(super) async fn newest_listed(&self) -> Result<(Arc<TableState>, LogListing)> {
        let newest = self.state();
        Ok((newest, self.list_log().await?))
    }

    /// The same by now, if the log is another one than it was: a process may have cleaned up what was listed.
    pub(super) async fn listed_anew(
        &self,
        before: &LogListing,
    ) -> Result<Option<(Arc<TableState>, LogListing)>> {
        Ok(Some(self.newest_listed().await?).filter(|(_, listing)| listing != before))
    }

    async fn strays_among(
        &self,
        files: &[ObjectMeta],
        newest: &TableState,
        listing: &LogListing,
    ) -> Result<Vec<Stray>> {
        let oldest = self.oldest_state(listing, newest.version).await?;
        let mut last: HashMap<String, i64> =
            files_of(&oldest).map(|name| (name, oldest.version)).collect();
        let mut checks: HashMap<String, String> = HashMap::new();
        let mut note = |add: &FileAdd| {
            if let Some(check) = add.tags.get(TAG_CHECK) {
                checks.extend(names_of(&add.path).map(|name| (name, check.clone())));
            }
        };
        oldest.files().for_each(|file| note(&file.add));
        let mut commits = self.commits(oldest.version + 1, newest.version);
        while let Some((version, actions)) = commits.try_next().await? {
            for action in &actions {
                let (path, version) = match action {
                    Action::Add(add) => {
                        note(add);
                        (&add.path, version)
                    }
                    Action::Remove(remove) => (&remove.path, version - 1),
                    _ => continue,
                };
                last.extend(names_of(path).map(|name| (name, version)));
            }
        }
        let parts: HashSet<String> = files_of(newest).collect();
        let strays = files.iter().filter(|meta| !parts.contains(meta.location.as_ref()));
        Ok(strays
            .map(|meta| {
                let path = meta.location.as_ref().to_owned();
                let (last_version, check) = (last.get(&path).copied(), checks.remove(&path));
                Stray { path, size: meta.size, last_version, check }
            })
            .collect())
    }

    /// Removes a data file that is not part of the newest state; nothing if it is gone already.
    pub async fn remove_stray(&self, path: &str) -> Result<()> {
        match self.store.delete(&Path::from(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.placed(error.into())),
        }
    }

    /// The oldest version from which on all can be read.
    pub(super) async fn oldest_state(
        &self,
        listing: &LogListing,
        newest: i64,
    ) -> Result<TableState> {
        let origin = listing.origins(newest).pop().ok_or_else(|| {
            self.placed(Error::corrupt(
                "the Delta log has a gap: nothing can be told of its files; restore the missing commit",
            ))
        })?;
        match origin {
            Origin::First => Ok(TableState::empty()),
            Origin::Checkpoint(at) => self.load_origin(origin, at).await,
        }
    }

    /// Reads all versions that can be made, and tells which files they have. Those are kept that a version has which was the newest
    /// after `cutoff_ms`; if nobody may begin with the version any more, after `read_cutoff_ms`.
    async fn census(
        &self,
        cutoff_ms: i64,
        read_cutoff_ms: i64,
        held: &BTreeMap<i64, String>,
    ) -> Result<Census> {
        let retention = (cutoff_ms, read_cutoff_ms);
        let (mut newest, mut listing) = self.newest_listed().await?;
        for _ in 1..MAX_LOADS {
            let error = match self.census_of(&newest, &listing, retention, held).await {
                Ok(census) => return Ok(census),
                Err(error) => error,
            };
            (newest, listing) = self.listed_anew(&listing).await?.ok_or(error)?;
        }
        self.census_of(&newest, &listing, retention, held).await
    }

    async fn census_of(
        &self,
        newest: &TableState,
        listing: &LogListing,
        (cutoff_ms, read_cutoff_ms): (i64, i64),
        held: &BTreeMap<i64, String>,
    ) -> Result<Census> {
        let whole_from = newest.transaction(VACUUM_APP_ID).unwrap_or(0);
        let oldest = self.oldest_state(listing, newest.version).await?;
        let mut census = Census::begun_with(&oldest, held);
        self.walk(listing, oldest, newest.version, |before, after, between| {
            let is_kept = |last: i64, replaced_ms: i64| {
                let is_young = replaced_ms > cutoff_ms && last >= whole_from;
                is_young || replaced_ms > read_cutoff_ms
            };
            let is_of_retention = match between {
                Between::Commit(_) => is_kept(before.version, after.timestamp_ms),
                Between::Hole(hole) => {
                    let mut versions = hole.versions(after.version);
                    let is_held = versions.any(|version| held.contains_key(&version));
                    is_held || is_kept(after.version - 1, hole.over_ms)
                }
            };
            census.note(before, after, between, is_of_retention);
            census.note_held(after, held);
        })
        .await?;
        if !census.has_begun {
            census.begin(newest);
        }
        Ok(census)
    }

    /// Notes in the log that versions before this one lose files; nothing when that is known.
    pub async fn record_horizon(&self, version: i64) -> Result<()> {
        let decide = |state: &TableState, _| {
            if state.transaction(VACUUM_APP_ID) >= Some(version) {
                return Ok(Attempt::Stop(()));
            }
            let app_id = VACUUM_APP_ID.to_owned();
            Ok(Attempt::Write(vec![Action::Transaction { app_id, version }]))
        };
        self.commit("VACUUM START", Some(false), BTreeMap::new(), decide).await?;
        Ok(())
    }
}

impl Census {
    fn begun_with(oldest: &TableState, held: &BTreeMap<i64, String>) -> Self {
        let known = files_of(oldest).collect();
        let mut census = Self { known, oldest_kept: -1, ..Self::default() };
        census.note_held(oldest, held);
        census
    }

    /// The retention begins with a version.
    fn begin(&mut self, state: &TableState) {
        self.has_begun = true;
        self.oldest_kept = state.version.max(0);
        self.kept.extend(files_of(state));
    }

    fn note(&mut self, before: &TableState, after: &TableState, between: &Between, is_young: bool) {
        if is_young && !self.has_begun {
            // The version before was the newest one when the retention began.
            self.begin(before);
        }
        match between {
            Between::Commit(actions) => {
                let added: Vec<String> = names_in(actions, false).collect();
                self.known.extend(added.iter().cloned());
                if self.has_begun {
                    self.kept.extend(added);
                }
            }
            Between::Hole(hole) => {
                let named: Vec<String> =
                    names_in(&hole.actions, true).chain(files_of(after)).collect();
                if self.has_begun && !hole.versions(after.version).is_empty() {
                    self.is_partial = true;
                    if hole.unreadable.len() > 1 {
                        // One may have brought back what another one took away again.
                        self.kept.extend(self.known.iter().cloned());
                    }
                }
                self.known.extend(named.iter().cloned());
                if self.has_begun {
                    self.kept.extend(named);
                }
                self.unreadable.extend(hole.unreadable.iter().cloned());
            }
        }
    }

    fn note_held(&mut self, state: &TableState, held: &BTreeMap<i64, String>) {
        if held.contains_key(&state.version) {
            self.held.extend(files_of(state));
        }
    }
}

/// The names of the files that actions add, and those that they remove where these count too.
fn names_in(actions: &[Action], removed: bool) -> impl Iterator<Item = String> + '_ {
    let path = move |action: &'_ Action| match action {
        Action::Add(add) => Some(add.path.clone()),
        Action::Remove(remove) if removed => Some(remove.path.clone()),
        _ => None,
    };
    actions.iter().filter_map(path).flat_map(|path| names_of(&path))
}

fn files_of(state: &TableState) -> impl Iterator<Item = String> + '_ {
    state.files().flat_map(|file| names_of(&file.add.path))
}

/// The names under which a file of the log may lie in the store: as it is, and with what is encoded in it decoded.
pub(super) fn names_of(path: &str) -> impl Iterator<Item = String> + use<> {
    let plain = Path::from(path).as_ref().to_owned();
    let decoded = Path::from_url_path(path).ok().map(|path| path.as_ref().to_owned());
    [Some(plain), decoded].into_iter().flatten()
}
