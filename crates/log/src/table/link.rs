//! A table that begins as another one was at a version, with the same files: links on a local folder, copies that the
//! service makes by itself on an object store.
//!
//! ```text
//! data files -> commits and what belongs to them -> a commit of its own -> the gate
//! ```
//!
//! The gate is the file that every reading begins with: the first commit, or the oldest checkpoint that is taken along. Without it
//! nothing can be read of the rest, so that there is no table until everything is there. Whoever finds part of it goes on from there.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};

use super::listing::{LogListing, Origin};
use super::state::TableState;
use super::vacuum::names_of;
use super::{Action, CommitInfo, Table, VACUUM_APP_ID, commit_path, delta};
use crate::checksum::checkpoint_note;
use crate::error::{Error, ErrorKind, Result};

/// Files that are linked at the same time.
const LINK_CONCURRENCY: usize = 16;
/// Files after which the maker of a table says that it is still at work.
const CHUNK: usize = 256;
/// Commits that are taken along for their times alone, at most: each is a link, or a request.
pub const EARLIER_COMMITS: i64 = 10_000;

/// What another table is to begin with.
#[derive(Debug, Clone, Copy)]
pub struct Linked<'a> {
    /// Versions of the table: it begins as the newest of them, and has the files of all.
    pub versions: &'a [Arc<TableState>],
    /// Other states whose files it has, too: what names them is put in place by others.
    pub beside: &'a [Arc<TableState>],
    /// How many commits before those that it is read from it has as well, if they are there.
    pub earlier_commits: i64,
}

/// What of a table another one is to begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkPlan {
    /// Where the table lies, below the root of its store.
    from: Path,
    /// The version that the new table begins with.
    pub version: i64,
    /// The oldest version whose files are taken along, unless all that can be read are whole.
    whole_from: Option<i64>,
    timestamp_ms: i64,
    /// Data files, by where they lie in the table's folder, with their bytes.
    data: BTreeMap<String, u64>,
    /// Files of the log folder but for the gate, which have to be there before it.
    log: Vec<Path>,
    gate: Path,
    /// A newer checkpoint, which spares readers commits.
    after: Vec<Path>,
    /// The checkpoint that is the gate, where it is made for the new table.
    founded: Option<Bytes>,
}

impl LinkPlan {
    /// How many data files.
    pub fn files(&self) -> u64 {
        self.data.len() as u64
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.data.values().sum()
    }
}

impl Table {
    /// What a table needs that is to begin as this one was at the newest of some versions, and to have the files of all of them.
    ///
    /// # Errors
    /// A file is gone, or commits are ([`ErrorKind::PointUnavailable`]).
    pub async fn link_plan(&self, linked: Linked<'_>, from: &str) -> Result<LinkPlan> {
        let by_version = |state: &&Arc<TableState>| state.version;
        let versions = linked.versions.iter();
        let (Some(newest), Some(oldest)) =
            (versions.clone().max_by_key(by_version), versions.min_by_key(by_version))
        else {
            return Err(Error::internal("a table is to be linked at no version"));
        };
        let data = self.lying_files(linked.versions.iter().chain(linked.beside)).await?;
        // What no checkpoint tells must be read from the commits that do.
        let telling = newest.oldest_telling_commit().map_or(i64::MAX, |commit| commit - 1);
        let least = oldest.version.min(telling.max(0));
        let listing = self.list_log().await?;
        let Some(read_from) = ReadFrom::of(&listing, newest.version, least) else {
            return Err(self.placed(Error::new(
                ErrorKind::PointUnavailable,
                format!("the commits that version {} is made of are cleaned up", oldest.version),
            )));
        };
        let read_from = read_from.and_earlier(&listing, linked.earlier_commits);
        let is_whole =
            read_from.first == oldest.version && self.state().transaction(VACUUM_APP_ID).is_none();
        Ok(LinkPlan {
            from: Path::from(from),
            version: newest.version,
            whole_from: (!is_whole).then_some(oldest.version),
            timestamp_ms: newest.timestamp_ms,
            data,
            log: read_from.log,
            gate: read_from.gate,
            after: read_from.after,
            founded: None,
        })
    }

    /// What a table needs that is to begin with a state which need not be a version of this one that can still be read: its log begins
    /// with a checkpoint of it.
    ///
    /// # Errors
    /// A file is gone ([`ErrorKind::PointUnavailable`]).
    pub async fn founding_plan(
        &self,
        state: &Arc<TableState>,
        beside: &[Arc<TableState>],
        from: &str,
    ) -> Result<LinkPlan> {
        let data = self.lying_files([state].into_iter().chain(beside)).await?;
        let checkpoint = delta::founding_checkpoint(&state.actions()).await;
        let checkpoint = checkpoint.map_err(|error| self.placed(error))?;
        Ok(LinkPlan {
            from: Path::from(from),
            version: state.version,
            whole_from: Some(state.version),
            timestamp_ms: state.timestamp_ms,
            data,
            log: Vec::new(),
            gate: checkpoint_path(state.version),
            after: Vec::new(),
            founded: Some(checkpoint),
        })
    }

    /// Where the files of some states lie.
    async fn lying_files(
        &self,
        states: impl Iterator<Item = &Arc<TableState>>,
    ) -> Result<BTreeMap<String, u64>> {
        let lying: BTreeMap<String, u64> = self
            .data_files()
            .await?
            .into_iter()
            .map(|meta| (meta.location.as_ref().to_owned(), meta.size))
            .collect();
        let mut wanted: BTreeSet<&str> = BTreeSet::new();
        for state in states {
            wanted.extend(state.files().map(|file| file.add.path.as_str()));
        }
        let mut found = BTreeMap::new();
        for path in wanted {
            let name = names_of(path).find(|name| lying.contains_key(name));
            let Some((name, size)) = name.and_then(|name| lying.get_key_value(&name)) else {
                return Err(self.placed(gone(path)));
            };
            found.insert(name.clone(), *size);
        }
        Ok(found)
    }
}

fn checkpoint_path(version: i64) -> Path {
    Path::from(format!("_delta_log/{version:020}.checkpoint.parquet"))
}

fn note_path(version: i64) -> Path {
    Path::from(format!("_delta_log/{}", delta::note_name(version)))
}

/// What of a log folder a version is read from that goes back to another one at least.
struct ReadFrom {
    /// The oldest version that can be read by it.
    first: i64,
    /// What has to be there before the gate.
    log: Vec<Path>,
    gate: Path,
    /// What may come after it.
    after: Vec<Path>,
}

impl ReadFrom {
    /// `None` where that is cleaned up.
    fn of(listing: &LogListing, version: i64, least: i64) -> Option<Self> {
        let there: HashSet<&Path> = listing.files.iter().map(|file| &file.meta.location).collect();
        let noted = |at: i64| Some(note_path(at)).filter(|note| there.contains(note));
        let origin = listing.origins(version).into_iter().find(|origin| match origin {
            // Of a checkpoint in several files none is the last one to come.
            Origin::Checkpoint(at) => *at <= least && there.contains(&checkpoint_path(*at)),
            Origin::First => true,
        })?;
        let (first, gate) = match origin {
            Origin::Checkpoint(at) => (at, checkpoint_path(at)),
            Origin::First => (0, commit_path(0)),
        };
        let mut log: Vec<Path> = (first..=version).map(commit_path).collect();
        log.retain(|path| *path != gate && there.contains(path));
        if let Origin::Checkpoint(at) = origin {
            log.extend(noted(at));
        }
        let nearest = listing.checkpoints.range(..=version).next_back().copied();
        let nearest = nearest.filter(|at| *at > first && there.contains(&checkpoint_path(*at)));
        let after = nearest.iter().flat_map(|&at| [noted(at), Some(checkpoint_path(at))]);
        Some(Self { first, log, gate, after: after.flatten().collect() })
    }

    /// The same with commits before those, as far as there are so many: they tell their times. With the first one of all the log is read
    /// from that.
    fn and_earlier(self, listing: &LogListing, most: i64) -> Self {
        if most == 0 || self.first == 0 {
            return self;
        }
        let known = listing.first_of_run(self.first);
        let earliest = known.max(self.first.saturating_sub(most));
        let earlier = (earliest..self.first).map(commit_path);
        if earliest > 0 {
            let log = self.log.into_iter().chain(earlier).collect();
            return Self { log, ..self };
        }
        let earlier = earlier.filter(|path| *path != commit_path(0));
        let is_note = |path: &Path| path.as_ref().ends_with(".alluvium.json");
        let (notes, commits): (Vec<Path>, Vec<Path>) = self.log.into_iter().partition(is_note);
        let after = notes.into_iter().chain([self.gate]).chain(self.after);
        Self {
            first: 0,
            log: commits.into_iter().chain(earlier).collect(),
            gate: commit_path(0),
            after: after.collect(),
        }
    }
}

fn gone(path: &str) -> Error {
    Error::new(
        ErrorKind::PointUnavailable,
        format!("the file {path} is gone: a vacuum removed it, or it is lost"),
    )
}

/// A table that is being made of another one's files, in the same object store.
#[derive(Debug)]
pub struct Linking<'a> {
    store: &'a Arc<dyn ObjectStore>,
    plan: &'a LinkPlan,
    to: Path,
    /// What lies there already.
    there: HashSet<String>,
}

impl<'a> Linking<'a> {
    /// Of a table below another path.
    ///
    /// # Errors
    /// Commits of another table lie there.
    pub async fn begin(
        store: &'a Arc<dyn ObjectStore>,
        plan: &'a LinkPlan,
        to: &str,
    ) -> Result<Self> {
        let to = Path::from(to);
        let there = list(store, &to).await?;
        let linking = Self { store, plan, to, there };
        linking.check_log_folder()?;
        Ok(linking)
    }

    /// What others have left in the log folder would become part of the new table some day.
    fn check_log_folder(&self) -> Result<()> {
        let (plan, own) = (self.plan, commit_path(self.plan.version + 1));
        let note = note_path(plan.version);
        let note = plan.founded.as_ref().map(|_| &note);
        let of_plan = plan.log.iter().chain(&plan.after).chain([&plan.gate, &own]).chain(note);
        let known: HashSet<String> =
            of_plan.map(|path| joined(&self.to, path).as_ref().to_owned()).collect();
        let folder = joined(&self.to, &Path::from("_delta_log"));
        let is_strange = |path: &&String| {
            Path::from(path.as_str()).prefix_matches(&folder) && !known.contains(*path)
        };
        match self.there.iter().find(is_strange) {
            None => Ok(()),
            Some(path) => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "{path} lies there and is not of this fork: use another name, or remove it"
                ),
            )),
        }
    }

    /// In how many parts everything but the gate is linked.
    pub fn parts(&self) -> usize {
        self.needed().len().div_ceil(CHUNK)
    }

    /// Links one part.
    pub async fn link_part(&self, part: usize) -> Result<()> {
        let needed = self.needed();
        self.link(needed.chunks(CHUNK).nth(part).unwrap_or_default()).await
    }

    /// What has to be there before the gate.
    fn needed(&self) -> Vec<Path> {
        let data = self.plan.data.keys().map(|path| Path::from(path.as_str()));
        data.chain(self.plan.log.iter().cloned()).collect()
    }

    /// Puts the gate in place: from now on there is a table. Then what spares readers commits. Gives the gate's bytes.
    ///
    /// # Errors
    /// Something of it is missing: somebody else removes files there.
    pub async fn open(&self) -> Result<Bytes> {
        let there = list(self.store, &self.to).await?;
        let needed = self.needed().into_iter().map(|path| joined(&self.to, &path));
        if let Some(missing) = needed.into_iter().find(|path| !there.contains(path.as_ref())) {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("{missing} was removed while the fork was made: run it again"),
            ));
        }
        if let Some(founded) = &self.plan.founded {
            return self.found(founded).await;
        }
        let bytes = self.bytes_of(&self.plan.gate).await?;
        self.put(&self.plan.gate, &bytes, |found| *found == bytes).await?;
        self.link(&self.plan.after).await?;
        Ok(bytes)
    }

    /// Puts a checkpoint in place that is made for the table, or leaves the one that was made before, and its checksum beside it.
    async fn found(&self, founded: &Bytes) -> Result<Bytes> {
        let gate = &self.plan.gate;
        self.put(gate, founded, |found| delta::tell_the_same(found, founded)).await?;
        let path = joined(&self.to, gate);
        let read = async { self.store.get(&path).await?.bytes().await };
        let bytes = read.await.map_err(|error| Error::from(error).context(&path))?;
        let note = joined(&self.to, &note_path(self.plan.version));
        let text = checkpoint_note(self.plan.version, &bytes);
        let put = self.store.put(&note, text.into()).await;
        put.map_err(|error| Error::from(error).context(note))?;
        Ok(bytes)
    }

    /// Takes the gate away again, if what lies there has its bytes, and is not of another table by now.
    pub async fn close(&self, gate: &Bytes) -> Result<()> {
        let path = joined(&self.to, &self.plan.gate);
        let closed = async {
            match self.store.get(&path).await?.bytes().await? == *gate {
                true => self.store.delete(&path).await,
                false => Ok(()),
            }
        };
        match closed.await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Error::from(error).context(&self.to)),
        }
    }

    async fn link(&self, paths: &[Path]) -> Result<()> {
        let pairs: Vec<(Path, Path)> = paths
            .iter()
            .map(|path| (joined(&self.plan.from, path), joined(&self.to, path)))
            .filter(|(_, to)| !self.there.contains(to.as_ref()))
            .collect();
        let mut links = stream::iter(pairs)
            .map(|(from, to)| {
                async move {
                    match self.store.copy(&from, &to).await {
                        Ok(()) => Ok(()),
                        Err(object_store::Error::NotFound { .. }) => Err(gone(from.as_ref())),
                        Err(error) => {
                            Err(Error::from(error).context(format!("linking {from} as {to}")))
                        }
                    }
                }
                .boxed()
            })
            .buffer_unordered(LINK_CONCURRENCY);
        while let Some(()) = links.try_next().await? {}
        Ok(())
    }

    /// Writes the first commit after those that both tables have, which tells them apart; it says which files of older versions are not
    /// there.
    pub async fn put_own_commit(
        &self,
        id: &str,
        note: serde_json::Value,
        actions: Vec<Action>,
        now_ms: i64,
    ) -> Result<()> {
        let version = self.plan.version + 1;
        let info = CommitInfo {
            timestamp_ms: Some(now_ms.max(self.plan.timestamp_ms + 1)),
            operation: "CLONE".to_owned(),
            blind_append: Some(false),
            note: BTreeMap::from([
                ("id".to_owned(), serde_json::Value::String(id.to_owned())),
                ("fork".to_owned(), note),
            ]),
        };
        let whole = self
            .plan
            .whole_from
            .map(|version| Action::Transaction { app_id: VACUUM_APP_ID.to_owned(), version });
        let all: Vec<Action> =
            [Action::Info(info)].into_iter().chain(whole).chain(actions).collect();
        let bytes = delta::encode(version, &all)?;
        let is_ours = |found: &Bytes| {
            delta::decode(version, found).is_ok_and(|actions| {
                let mut infos = actions.iter();
                infos.any(|action| matches!(action, Action::Info(info) if info.id() == Some(id)))
            })
        };
        self.put(&commit_path(version), &bytes, is_ours).await
    }

    async fn bytes_of(&self, path: &Path) -> Result<Bytes> {
        let from = joined(&self.plan.from, path);
        match self.store.get(&from).await {
            Ok(found) => found.bytes().await.map_err(|error| Error::from(error).context(&from)),
            Err(object_store::Error::NotFound { .. }) => Err(gone(from.as_ref())),
            Err(error) => Err(Error::from(error).context(from)),
        }
    }

    /// Writes a file if there is none; what is there must be the same one.
    async fn put(
        &self,
        path: &Path,
        bytes: &Bytes,
        is_same: impl Fn(&Bytes) -> bool,
    ) -> Result<()> {
        let to = joined(&self.to, path);
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let Err(error) = self.store.put_opts(&to, bytes.clone().into(), options).await else {
            return Ok(());
        };
        // The reply may be lost and the file written.
        let found = match self.store.get(&to).await {
            Ok(found) => found.bytes().await.ok(),
            Err(_) => None,
        };
        match found {
            Some(found) if is_same(&found) => Ok(()),
            Some(_) => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("{to} is there, and not of this fork: use another name"),
            )),
            None => Err(Error::from(error).context(to)),
        }
    }
}

async fn list(store: &Arc<dyn ObjectStore>, folder: &Path) -> Result<HashSet<String>> {
    let listed = store.list(Some(folder)).map_ok(|meta| meta.location.as_ref().to_owned());
    listed.try_collect().await.map_err(|error| Error::from(error).context(folder))
}

fn joined(folder: &Path, path: &Path) -> Path {
    folder.parts().chain(path.parts()).collect()
}
