//! A lease: which one of several processes does a job.
//!
//! It needs nothing of a store but put-if-absent. Below `_alluvium/leases/<job>/` lie numbered files; the one with the greatest
//! number says who leads. The leader writes the next number again and again; whoever finds that no new number has come for a whole
//! span *that it has watched by its own clock* takes over by writing the next number itself. So no clocks are compared, two that
//! take over at once can't both succeed, and a leader that was only asleep finds another one's number above its own.
//!
//! A leader that is cut off may go on for a moment beside the next one. What a lease is for must be safe then, as maintenance is:
//! it saves work, and protects nothing.

use std::sync::Arc;

use alluvium_log::{Clock, Error, ErrorKind, Result};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};

use crate::store::Store;

/// The folder of leases below a store's root; no state can have this name.
const FOLDER: &str = "_alluvium/leases";

/// Whether this process does the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leadership {
    /// It does.
    Leading,
    /// Another one does, or did a short while ago: the name that it gave itself.
    Following(String),
}

/// What a numbered file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// Of one holder, and no other.
    id: String,
    /// How the holder is called in messages.
    holder: String,
    /// It may be taken over when no later number has come for so long.
    span_ms: i64,
    /// It may be taken over at once.
    released: bool,
}

/// A number that was seen, and since when.
#[derive(Debug, Clone, Copy)]
struct Seen {
    number: u64,
    since_ms: i64,
}

/// One process's part in a job's lease. [`Lease::beat`] must be called three times in a span at least to keep it.
#[derive(Debug)]
pub struct Lease {
    store: Arc<dyn ObjectStore>,
    clock: Arc<dyn Clock>,
    folder: Path,
    /// How it is called in messages.
    label: String,
    record: Record,
    seen: Option<Seen>,
}

impl Store {
    /// A lease on a job of this store. `holder` is how this process is called in messages; a leader that shows no sign of life for
    /// `span_ms` is taken over. Nothing is written before the first [`Lease::beat`].
    ///
    /// # Errors
    /// The job's name is no name of a folder, or the span is shorter than a second.
    pub fn lease(&self, job: &str, holder: &str, span_ms: i64) -> Result<Lease> {
        let is_legal = |c: char| c.is_ascii_alphanumeric() || "_-+.".contains(c);
        if job.is_empty() || job.len() > 200 || !job.chars().all(is_legal) {
            return Err(Error::invalid(format!(
                "{job:?} can't name a job: use 1 to 200 of a-z A-Z 0-9 _ - + ."
            )));
        }
        if span_ms < 1_000 {
            return Err(Error::invalid(format!(
                "a leader can't be taken over after {span_ms} ms: a second is the least, and half a minute is usual"
            )));
        }
        Ok(Lease {
            store: self.storage().object_store().clone(),
            clock: self.clock().clone(),
            folder: Path::from(format!("{FOLDER}/{job}")),
            label: format!("the lease {FOLDER}/{job} of {}", self.label()),
            record: Record {
                id: format!("{:032x}", rand::random::<u128>()),
                holder: holder.to_owned(),
                span_ms,
                released: false,
            },
            seen: None,
        })
    }
}

impl Lease {
    /// For how long a leader may show no sign of life.
    pub fn span_ms(&self) -> i64 {
        self.record.span_ms
    }

    /// Looks who leads. Shows a sign of life when it is this process, and takes the lead when nobody has it.
    ///
    /// # Errors
    /// The store failed: then it is not known who leads, and the next call tells.
    pub async fn beat(&mut self) -> Result<Leadership> {
        let Some((number, record)) = self.newest().await? else { return self.take(0).await };
        if record.id == self.record.id || record.released || self.is_silent(number, &record) {
            return self.take(number.saturating_add(1)).await;
        }
        Ok(Leadership::Following(record.holder))
    }

    /// Gives the lead to whoever asks next, if this process has it.
    pub async fn release(&mut self) -> Result<()> {
        let Some((number, record)) = self.newest().await? else { return Ok(()) };
        if record.id != self.record.id || record.released {
            return Ok(());
        }
        let released = Record { released: true, ..self.record.clone() };
        // That the number is taken means that somebody else has the lead already.
        self.put(number.saturating_add(1), &released).await.map(drop)
    }

    /// Whether the leader has shown no sign of life for as long as it must.
    fn is_silent(&mut self, number: u64, record: &Record) -> bool {
        let now = self.clock.now_ms();
        match self.seen {
            Some(seen) if seen.number == number && seen.since_ms <= now => {
                now - seen.since_ms >= record.span_ms.max(self.record.span_ms)
            }
            _ => {
                self.seen = Some(Seen { number, since_ms: now });
                false
            }
        }
    }

    /// Takes the lead under a number, or keeps it, unless another one was faster.
    async fn take(&mut self, number: u64) -> Result<Leadership> {
        self.put(number, &self.record).await?;
        // Also the loser of a race, and one that was asleep and wrote a number long gone by, learn here who leads.
        let Some((newest, record)) = self.newest().await? else {
            return Err(self.placed(Error::new(ErrorKind::Conflict, "it was removed meanwhile")));
        };
        if record.id != self.record.id {
            self.seen = Some(Seen { number: newest, since_ms: self.clock.now_ms() });
            return Ok(Leadership::Following(record.holder));
        }
        self.seen = None;
        self.remove_before(newest).await;
        Ok(Leadership::Leading)
    }

    /// Writes a number; false when it is taken.
    async fn put(&self, number: u64, record: &Record) -> Result<bool> {
        let text = serde_json::to_string(record)
            .map_err(|error| Error::internal("a lease").with_source(error))?;
        let options = PutOptions { mode: PutMode::Create, ..Default::default() };
        match self.store.put_opts(&self.path(number), text.into(), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(self.placed(error.into())),
        }
    }

    /// The greatest number, and what is said under it.
    async fn newest(&self) -> Result<Option<(u64, Record)>> {
        loop {
            let Some(number) = self.numbers().await?.into_iter().max() else { return Ok(None) };
            match self.store.get(&self.path(number)).await {
                Ok(found) => {
                    let bytes = found.bytes().await.map_err(|error| self.placed(error.into()))?;
                    let record = serde_json::from_slice(&bytes).map_err(|error| {
                        let what = format!("{} can't be read: remove it", self.path(number));
                        self.placed(Error::corrupt(what).with_source(error))
                    })?;
                    return Ok(Some((number, record)));
                }
                // A later number has come, and this one was removed.
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(self.placed(error.into())),
            }
        }
    }

    async fn numbers(&self) -> Result<Vec<u64>> {
        let listing: Vec<_> = self
            .store
            .list(Some(&self.folder))
            .try_collect()
            .await
            .map_err(|error| self.placed(error.into()))?;
        let number = |path: &Path| path.filename()?.strip_suffix(".json")?.parse().ok();
        Ok(listing.iter().filter_map(|entry| number(&entry.location)).collect())
    }

    /// Removes numbers that are gone by. What stays is removed the next time.
    async fn remove_before(&self, number: u64) {
        let Ok(numbers) = self.numbers().await else { return };
        for old in numbers.into_iter().filter(|old| *old < number) {
            if let Err(error) = self.store.delete(&self.path(old)).await {
                tracing::debug!(lease = %self.label, old, %error, "a number that is gone by stays");
            }
        }
    }

    fn path(&self, number: u64) -> Path {
        self.folder.clone().join(format!("{number:020}.json"))
    }

    fn placed(&self, error: Error) -> Error {
        error.context(self.label.clone())
    }
}
