//! Records of savepoints and of the grid whose files lose the rows of erased keys.
//!
//! A record is written over as a whole, with its files replaced. The files that it had go on being pinned for the longest read, by a
//! record like that of a released savepoint.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use alluvium_log::{DataFile, Error, FileAdd, Result, Table, random};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};

use super::Snapshot;
use super::savepoints::{PinnedFile, Savepoint};

/// A record, and where it lies.
pub(crate) struct PinnedRecord {
    path: Path,
    savepoint: Arc<Savepoint>,
}

impl PinnedRecord {
    /// The name of the savepoint.
    pub(crate) fn name(&self) -> &str {
        &self.savepoint.name
    }

    /// Whether it only pins for the longest read.
    pub(crate) fn is_released(&self) -> bool {
        self.savepoint.is_released()
    }

    /// Whether it pins a file.
    pub(crate) fn pins(&self, path: &str) -> bool {
        self.savepoint.paths().any(|(pinned, _)| pinned == path)
    }

    /// What it pins.
    pub(crate) fn files(&self, table: &Arc<Table>) -> Vec<Arc<DataFile>> {
        self.savepoint.state(table).files().cloned().collect()
    }
}

/// A file of which only the path counts.
fn bare(file: &PinnedFile) -> PinnedFile {
    PinnedFile { stats: None, tags: BTreeMap::new(), ..file.clone() }
}

impl Snapshot {
    /// All records, those of the grid and of released savepoints too.
    pub(crate) async fn pinned_records(&self) -> Result<Vec<PinnedRecord>> {
        let records = self.records().await?.into_iter();
        Ok(records
            .map(|record| PinnedRecord { path: record.meta.location, savepoint: record.savepoint })
            .collect())
    }

    /// Replaces files that a record pins; those go on being pinned for the longest read. False when others have changed the record
    /// since it was read.
    pub(crate) async fn replace_pinned(
        &self,
        record: &PinnedRecord,
        replaced: &HashMap<String, Vec<FileAdd>>,
    ) -> Result<bool> {
        let now_ms = self.log().clock().now_ms();
        let files = &record.savepoint.files;
        let going = files.iter().filter(|file| replaced.contains_key(&file.path)).map(bare);
        let released = Savepoint {
            id: format!("{:032x}", random::<u128>()),
            released_ms: Some(now_ms),
            files: going.collect(),
            ..(*record.savepoint).clone()
        };
        self.put_record(&self.released_path(&released), &released).await?;
        let stays = files.iter().flat_map(|file| match replaced.get(&file.path) {
            Some(added) => added.iter().map(PinnedFile::of_add).collect(),
            None => vec![file.clone()],
        });
        let erased = Savepoint {
            // Another erase that has read the record before must see that it is another one by now.
            id: format!("{:032x}", random::<u128>()),
            erased_ms: Some(now_ms),
            files: stays.collect(),
            ..(*record.savepoint).clone()
        };
        // One that was released meanwhile must not come back.
        match self.read_record(&record.path).await? {
            Some(known) if known.id == record.savepoint.id => {
                self.put_over(&record.path, &erased).await.map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// The files of the state that a repair set aside, by their paths in the store.
    pub(crate) async fn set_aside(&self) -> Result<Vec<String>> {
        let folder = Path::from(format!("{}/damaged", self.log().name()));
        let store = self.inner.storage.object_store();
        let listed: Vec<ObjectMeta> = store
            .list(Some(&folder))
            .try_collect()
            .await
            .map_err(|error| Error::from(error).context(&folder))?;
        Ok(listed.into_iter().map(|meta| meta.location.to_string()).collect())
    }

    /// Takes all that is known of its files but their paths out of a record that only pins them.
    pub(crate) async fn forget_bounds(&self, record: &PinnedRecord) -> Result<()> {
        if record.savepoint.files.iter().all(|file| *file == bare(file)) {
            return Ok(());
        }
        let files = record.savepoint.files.iter().map(bare).collect();
        let savepoint = Savepoint { files, ..(*record.savepoint).clone() };
        self.put_over(&record.path, &savepoint).await
    }

    async fn put_over(&self, path: &Path, savepoint: &Savepoint) -> Result<()> {
        let bytes = savepoint.sealed()?;
        let store = self.inner.storage.object_store();
        let put = store.put(path, PutPayload::from(bytes)).await;
        put.map(drop).map_err(|error| Error::from(error).context(path))
    }
}
