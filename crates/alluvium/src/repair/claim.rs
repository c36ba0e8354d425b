//! Who repairs a state: one process at a time.
//!
//! A repair looks at a file and moves it then. Between the look and the move another repair could set the file aside and a writer put a
//! new one in its place, which would be moved instead. So whoever repairs holds `_alluvium/repairs/<state>.json`, by put-if-absent, and
//! says again and again that he is at work. Who says nothing for [`SILENT_MS`] may be followed by another one, which he finds out before the next file.

use std::sync::Arc;

use alluvium_log::{CLOCK_MARGIN_MS, Clock, Error, ErrorKind, Result};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};

use crate::store::Store;

const FOLDER: &str = "_alluvium/repairs";
/// How long one may be silent, by clocks that agree within [`CLOCK_MARGIN_MS`].
const SILENT_MS: i64 = 2 * 60 * 1_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    id: String,
    begun_ms: i64,
    renewed_ms: i64,
}

/// The right to move files of a state aside.
#[derive(Debug)]
pub(super) struct Claim {
    store: Arc<dyn ObjectStore>,
    clock: Arc<dyn Clock>,
    path: Path,
    record: Record,
}

impl Claim {
    /// Takes it.
    ///
    /// # Errors
    /// Another process has it ([`ErrorKind::Conflict`]).
    pub(super) async fn take(store: &Store, state: &str) -> Result<Self> {
        let clock = store.clock().clone();
        let now_ms = clock.now_ms();
        let id = format!("{:032x}", alluvium_log::random::<u128>());
        let mut claim = Self {
            store: store.storage().object_store().clone(),
            clock,
            path: Path::from(format!("{FOLDER}/{state}.json")),
            record: Record { id, begun_ms: now_ms, renewed_ms: now_ms },
        };
        if claim.put(PutMode::Create).await? || claim.is_own().await? {
            return Ok(claim);
        }
        let Some(other) = claim.read().await? else { return Err(claim.taken("ended just now")) };
        let over_ms = other.renewed_ms.saturating_add(SILENT_MS + CLOCK_MARGIN_MS);
        if over_ms > now_ms {
            let minutes = (over_ms - now_ms) / 60_000 + 1;
            return Err(claim.taken(&format!(
                "has begun at {}. If it was killed, remove {}, or run this again in {minutes} minutes",
                chrono::DateTime::from_timestamp_millis(other.begun_ms).unwrap_or_default(),
                claim.path
            )));
        }
        // Of several who follow a silent one the last to write has it, and the others find that out before they move anything.
        claim.put(PutMode::Overwrite).await?;
        claim.renew().await?;
        Ok(claim)
    }

    /// Makes sure that this process still has it, and says that it is at work. To be called before each file that is moved.
    ///
    /// # Errors
    /// It was silent for too long, and another process has followed it ([`ErrorKind::Conflict`]).
    pub(super) async fn renew(&mut self) -> Result<()> {
        let now_ms = self.clock.now_ms();
        if !self.is_own().await? {
            return Err(self.taken("follows this one, which was silent for too long"));
        }
        if now_ms - self.record.renewed_ms > SILENT_MS / 4 {
            self.record.renewed_ms = now_ms;
            self.put(PutMode::Overwrite).await?;
            // Who has looked at many files was silent, and may be followed at this very moment.
            if !self.is_own().await? {
                return Err(self.taken("follows this one, which was silent for too long"));
            }
        }
        Ok(())
    }

    /// Gives it back.
    pub(super) async fn release(self) -> Result<()> {
        if !self.is_own().await? {
            return Ok(());
        }
        match self.store.delete(&self.path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Error::from(error).context(self.path.as_ref())),
        }
    }

    /// Writes it; false if there is one already.
    async fn put(&self, mode: PutMode) -> Result<bool> {
        let text = serde_json::to_vec(&self.record)
            .map_err(|error| Error::internal("a claim to repair").with_source(error))?;
        let options = PutOptions { mode, ..PutOptions::default() };
        match self.store.put_opts(&self.path, text.into(), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(Error::from(error).context(self.path.as_ref())),
        }
    }

    async fn read(&self) -> Result<Option<Record>> {
        let bytes = match self.store.get(&self.path).await {
            Ok(found) => found.bytes().await,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => Err(error),
        };
        let bytes = bytes.map_err(|error| Error::from(error).context(self.path.as_ref()))?;
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let what =
                format!("{} can't be read: remove it if nobody repairs the state", self.path);
            Error::corrupt(what).with_source(error)
        })
    }

    async fn is_own(&self) -> Result<bool> {
        Ok(self.read().await?.is_some_and(|found| found.id == self.record.id))
    }

    fn taken(&self, what: &str) -> Error {
        Error::new(ErrorKind::Conflict, format!("another repair of the state {what}"))
    }
}
