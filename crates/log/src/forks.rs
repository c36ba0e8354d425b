//! Which names of a store are taken by what is no whole state yet, and which states are forks of which.
//!
//! ```text
//! _alluvium/names/<state>.json    by put-if-absent: one maker of a state by this name
//!
//! create: the name -> the log's first commit -> the name is given back
//! fork:   the name -> everything but the gate -> the gate; the record stays for as long as the fork does
//! drop:   the record says so -> the gates go, the last one ends the state -> everything else -> the record
//! ```
//!
//! The *gate* of a log is the file without which nothing of it can be read: its first commit, or where that is cleaned up the
//! checkpoint that all kept versions begin with. While it is missing there is no state, whatever else lies there.

use std::sync::Arc;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};

use crate::checksum::{NO_SUM, seal_text};
use crate::error::{Error, ErrorKind, Result};
use crate::leases::{CLOCK_MARGIN_MS, LEASE_SPAN_MS};
use crate::record::{Record, SEED, read_record};
use crate::storage::Storage;
use crate::table::TableState;

/// The property of a fork's log that tells it from all other logs with the same id of the table.
pub const PROPERTY_FORK: &str = "alluvium.fork";
/// The property of a fork's log that names the state it was made of.
pub const PROPERTY_FORK_OF: &str = "alluvium.forkOf";

const FOLDER: &str = "_alluvium/names";
const FORMAT_VERSION: i64 = 1;
/// How often a name is tried that others take and give back.
const MAX_CLAIMS: u32 = 64;

/// A state that a fork comes from, directly or through other forks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ancestor {
    /// Its name when the fork was made.
    pub state: String,
    /// What it is, under whatever name: see [`identity_of`].
    pub id: String,
}

/// The versions of a snapshot that a fork began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkedVersions {
    /// The oldest one.
    pub oldest: i64,
    /// The newest one.
    pub newest: i64,
}

/// What a fork is, in the store as `_alluvium/names/<name>.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkRecord {
    /// The name of the fork.
    pub name: String,
    /// Tells it from another fork of the same name.
    pub id: String,
    /// The state it was made of, then the one that this one was made of, and so on.
    pub ancestors: Vec<Ancestor>,
    /// The commit that it was made at: up to it both have the same log.
    pub commit: i64,
    /// The versions of the snapshot that it began with; none where there was no snapshot.
    pub snapshot: Option<ForkedVersions>,
    /// Whether the newest of them is one that only a savepoint, or the grid of snapshots, had kept.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub is_kept: bool,
    /// Whether it began with that alone: the log could not be read as it was at the commit, so that of its rows up to there it has none.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub without_log: bool,
    /// The version of the archive that it began with; none where nothing was archived.
    pub archive_version: Option<i64>,
    /// When it was begun, in milliseconds since 1970.
    pub created_ms: i64,
    /// When whoever makes it was last known to be at work, in milliseconds since 1970.
    pub renewed_ms: i64,
    /// Where its archive lies, if not in the store.
    pub archive: Option<String>,
    /// When another process than the one that began it last went on with it, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub taken_over_ms: Option<i64>,
    /// Whether who made it, or could not, has said that he is through with it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub finished: bool,
    /// When it began to be dropped, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dropped_ms: Option<i64>,
}

impl ForkRecord {
    /// The name of the state that it was made of.
    pub fn parent(&self) -> &str {
        self.ancestors.first().map_or("", |parent| &parent.state)
    }

    /// Until when, in milliseconds since 1970, nothing else may have the name of one that was dropped: whoever may still be at work on
    /// it, because another process went on with it or because he has not said that he is through, gives up by then.
    pub fn name_is_kept_until_ms(&self) -> Option<i64> {
        let at_work = (!self.finished).then_some(self.renewed_ms);
        let last = self.taken_over_ms.max(at_work)?;
        Some(last.saturating_add(LEASE_SPAN_MS + CLOCK_MARGIN_MS))
    }

    /// Whether it comes from a state, directly or through other forks.
    pub fn comes_from(&self, identity: &str) -> bool {
        self.ancestors.iter().any(|ancestor| ancestor.id == identity)
    }
}

/// What tells a state from all others: the id of its log's table, which forks have in common, or of a fork its own id.
pub fn identity_of(state: &TableState) -> &str {
    state.metadata.properties.get(PROPERTY_FORK).unwrap_or(&state.metadata.id)
}

/// Who has taken a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NameClaim {
    /// A state that is being created.
    Create,
    /// A fork.
    Fork(ForkRecord),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sealed {
    #[serde(rename = "alluvium.sum")]
    sum: String,
    format_version: i64,
    #[serde(flatten)]
    claim: NameClaim,
}

impl Record for Sealed {
    const FORMAT_VERSION: i64 = FORMAT_VERSION;
    const DAMAGE: &'static str = "does not tell who has the name: put it back from a backup; without one the state can still be read, but is no fork to anybody";

    fn format_version(&self) -> i64 {
        self.format_version
    }
}

/// The names that are taken in a store, where they lie.
#[derive(Debug, Clone)]
pub struct NameFolder {
    store: Arc<dyn ObjectStore>,
}

impl NameFolder {
    /// Of a store.
    pub fn of(storage: &Storage) -> Self {
        Self { store: storage.object_store().clone() }
    }

    fn path(name: &str) -> Path {
        Path::from(format!("{FOLDER}/{name}.json"))
    }

    /// Takes a name; gives who has it already, if somebody has.
    ///
    /// # Errors
    /// Whether it was taken could not be learned ([`ErrorKind::Unknown`]): look at it again.
    pub async fn claim(&self, name: &str, claim: &NameClaim) -> Result<Option<NameClaim>> {
        let (path, bytes) = (Self::path(name), sealed(claim)?);
        for _ in 0..MAX_CLAIMS {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let put = self.store.put_opts(&path, bytes.clone().into(), options).await;
            let Err(error) = put else { return Ok(None) };
            let is_taken = matches!(error, object_store::Error::AlreadyExists { .. });
            match self.read(name).await {
                // The reply may be lost and the record written.
                Ok(Some(found)) if found == *claim && *claim != NameClaim::Create => {
                    return Ok(None);
                }
                Ok(Some(found)) => return Ok(Some(found)),
                // It was given back meanwhile.
                Ok(None) if is_taken => {}
                Ok(None) => return Err(Error::from(error).context(path)),
                Err(unread) if is_taken => return Err(unread),
                Err(_) => {
                    return Err(Error::new(
                        ErrorKind::Unknown,
                        format!(
                            "whether the name {name:?} was taken could not be learned: try again"
                        ),
                    )
                    .with_source(error));
                }
            }
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!("others took the name {name:?} and gave it back all the time: try again"),
        ))
    }

    /// Who has a name.
    pub async fn read(&self, name: &str) -> Result<Option<NameClaim>> {
        self.read_at(&Self::path(name)).await
    }

    /// The record of a fork, whole or not.
    pub async fn fork(&self, name: &str) -> Result<Option<ForkRecord>> {
        Ok(match self.read(name).await? {
            Some(NameClaim::Fork(record)) => Some(record),
            _ => None,
        })
    }

    async fn read_at(&self, path: &Path) -> Result<Option<NameClaim>> {
        let sealed: Option<Sealed> = read_record(self.store.as_ref(), path).await?;
        Ok(sealed.map(|sealed| sealed.claim))
    }

    /// All forks of the store, whole or not, in the order of their names.
    pub async fn forks(&self) -> Result<Vec<ForkRecord>> {
        let folder = Path::from(FOLDER);
        let listed: Vec<ObjectMeta> = self
            .store
            .list(Some(&folder))
            .try_collect()
            .await
            .map_err(|error| Error::from(error).context(&folder))?;
        let mut forks = Vec::new();
        for meta in listed {
            if let Some(NameClaim::Fork(record)) = self.read_at(&meta.location).await? {
                forks.push(record);
            }
        }
        forks.sort_by(|a: &ForkRecord, b| a.name.cmp(&b.name));
        Ok(forks)
    }

    /// Writes the record of a fork over: what it is about stays, how far it has come changes.
    pub async fn note(&self, record: &ForkRecord) -> Result<()> {
        let path = Self::path(&record.name);
        let bytes = sealed(&NameClaim::Fork(record.clone()))?;
        let put = self.store.put(&path, bytes.into()).await;
        put.map(drop).map_err(|error| Error::from(error).context(path))
    }

    /// Gives a name back.
    pub async fn give_back(&self, name: &str) -> Result<()> {
        let path = Self::path(name);
        match self.store.delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Error::from(error).context(path)),
        }
    }

    /// Gives a name back if it is that of this very fork.
    pub async fn give_back_own(&self, name: &str, id: &str) -> Result<()> {
        match self.fork(name).await? {
            Some(record) if record.id == id => self.give_back(name).await,
            _ => Ok(()),
        }
    }

    /// Takes a name for a state that is to be created.
    pub(crate) async fn claim_for_creation(&self, name: &str) -> Result<()> {
        match self.claim(name, &NameClaim::Create).await? {
            // Of several who create a state one is first, and the others find it there. One may have died on the way.
            None | Some(NameClaim::Create) => Ok(()),
            Some(NameClaim::Fork(record)) => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("{}; or use another name", told_unfinished(&record)),
            )),
        }
    }

    /// Gives back the name of a state that was created.
    pub(crate) async fn created(&self, name: &str) -> Result<()> {
        match self.read(name).await? {
            Some(NameClaim::Create) => self.give_back(name).await,
            _ => Ok(()),
        }
    }

    /// An error about a state that can't be opened, when it is a fork that is not whole.
    pub(crate) async fn explain(&self, storage: &Storage, name: &str, error: Error) -> Error {
        let Ok(Some(record)) = self.fork(name).await else { return error };
        let is_whole = storage.has_state(name).await.unwrap_or(true);
        match record.dropped_ms.is_none() && is_whole {
            true => error,
            false => Error::new(ErrorKind::NotFound, told_unfinished(&record)),
        }
    }
}

/// What is to be said of a fork that is not whole.
pub fn told_unfinished(record: &ForkRecord) -> String {
    let (name, parent) = (&record.name, record.parent());
    match record.dropped_ms {
        Some(_) if record.name_is_kept_until_ms().is_some() => format!(
            "the fork {name} of {parent} is being dropped, and who began it may still be at work: an hour and ten minutes later `alluvium fork drop {name}`, or `alluvium maintain`, gives the name back"
        ),
        Some(_) => format!(
            "the fork {name} of {parent} is being dropped: `alluvium fork drop {name}` brings it to an end"
        ),
        None => format!(
            "the fork {name} of {parent} at commit {commit} is not whole: it is being made, or that was cut off; `alluvium fork {parent} {name} --at commit:{commit}` brings it to an end",
            commit = record.commit
        ),
    }
}

fn sealed(claim: &NameClaim) -> Result<Vec<u8>> {
    let unsealed =
        Sealed { sum: NO_SUM.to_owned(), format_version: FORMAT_VERSION, claim: claim.clone() };
    let mut text = serde_json::to_vec_pretty(&unsealed)
        .map_err(|error| Error::internal("the record of a name").with_source(error))?;
    seal_text(SEED, &mut text);
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::storage::Durability;

    #[tokio::test]
    async fn a_name_is_taken_once_and_a_record_is_read_as_it_was_written() {
        let storage = Storage::open("memory://", Durability::Os).unwrap();
        let names = NameFolder::of(&storage);
        let ancestor =
            |state: &str| Ancestor { state: state.to_owned(), id: format!("{state}-id") };
        let record = ForkRecord {
            name: "b".to_owned(),
            id: "1".to_owned(),
            ancestors: vec![ancestor("a"), ancestor("z")],
            commit: 7,
            snapshot: Some(ForkedVersions { oldest: 1, newest: 2 }),
            is_kept: true,
            without_log: true,
            archive_version: None,
            created_ms: 5,
            renewed_ms: 5,
            archive: None,
            taken_over_ms: None,
            finished: false,
            dropped_ms: None,
        };
        let fork = NameClaim::Fork(record.clone());
        assert_eq!(names.claim("b", &fork).await.unwrap(), None);
        assert_eq!(names.claim("b", &fork).await.unwrap(), None, "the same one sent again");
        let other = NameClaim::Fork(ForkRecord { id: "2".to_owned(), ..record.clone() });
        assert_eq!(names.claim("b", &other).await.unwrap(), Some(fork));
        let error = names.claim_for_creation("b").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        names.claim_for_creation("c").await.unwrap();
        names.claim_for_creation("c").await.unwrap();
        assert_eq!(names.forks().await.unwrap(), std::slice::from_ref(&record));
        assert!(record.comes_from("z-id") && !record.comes_from("b-id"));
        names.created("c").await.unwrap();
        names.created("b").await.unwrap();
        assert_eq!((names.read("c").await.unwrap(), record.parent()), (None, "a"));
        assert!(names.fork("b").await.unwrap().is_some());
        let path = NameFolder::path("b");
        storage.object_store().put(&path, "{".into()).await.unwrap();
        assert_eq!(names.forks().await.unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
