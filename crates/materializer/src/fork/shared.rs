//! What a state and others that have begun as it, or as which it has begun, have in common: files under the same paths.
//!
//! A file's name is drawn at random when it is written, so the same path in two states is the same file: in a local folder one that the
//! disk has once, on an object store a copy that the service made.

use std::collections::{BTreeSet, HashSet};

use alluvium_log::{Error, NameFolder, Result, log_path};
use futures::TryStreamExt;
use object_store::path::Path;

use crate::snapshot::{Snapshot, snapshot_path};

/// Files of a state that other states have too.
#[derive(Debug, Default)]
pub struct SharedFiles {
    /// The states that have some of them.
    pub with: BTreeSet<String>,
    log: HashSet<String>,
    snapshot: HashSet<String>,
}

impl SharedFiles {
    /// Those of a state; nothing is listed where neither it is a fork nor forks were made of it.
    pub async fn of(state: &Snapshot) -> Result<Self> {
        let (storage, log) = (state.storage(), state.log());
        let mut family = BTreeSet::new();
        let root = log.state().metadata.id.clone();
        for fork in NameFolder::of(storage).forks().await? {
            // All forks, and forks of forks, have the id of the state that the first of them was made of.
            if fork.comes_from(&root) {
                family.extend(fork.ancestors.iter().map(|ancestor| ancestor.state.clone()));
                family.insert(fork.name);
            }
        }
        family.remove(log.name());
        let mut shared = Self::default();
        if family.is_empty() {
            return Ok(shared);
        }
        let own_log = files(state, &log_path(log.name())).await?;
        let own_snapshot = files(state, &snapshot_path(log.name())).await?;
        for other in family {
            let log = files(state, &log_path(&other)).await?;
            let snapshot = files(state, &snapshot_path(&other)).await?;
            if log.is_disjoint(&own_log) && snapshot.is_disjoint(&own_snapshot) {
                continue;
            }
            shared.log.extend(log.intersection(&own_log).cloned());
            shared.snapshot.extend(snapshot.intersection(&own_snapshot).cloned());
            shared.with.insert(other);
        }
        Ok(shared)
    }

    /// Whether another state has this file of the log's folder.
    pub fn has_of_log(&self, path: &str) -> bool {
        self.log.contains(path)
    }

    /// Whether another state has this file of the snapshot's folder.
    pub fn has_of_snapshot(&self, path: &str) -> bool {
        self.snapshot.contains(path)
    }
}

/// The paths of a table's data files, as they lie in its folder.
async fn files(state: &Snapshot, table: &str) -> Result<HashSet<String>> {
    let folder = Path::from(table);
    let listing = state.storage().object_store().list(Some(&folder));
    let all: Vec<_> =
        listing.try_collect().await.map_err(|error| Error::from(error).context(&folder))?;
    let inside = |path: &Path| {
        let parts: Option<Vec<String>> = path
            .prefix_match(&folder)
            .map(|parts| parts.map(|part| part.as_ref().to_owned()).collect());
        parts.map(|parts| parts.join("/"))
    };
    let is_data = |path: &String| path.ends_with(".parquet") && !path.starts_with('_');
    Ok(all.iter().filter_map(|meta| inside(&meta.location)).filter(is_data).collect())
}
