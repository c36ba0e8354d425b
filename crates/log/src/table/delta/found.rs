//! Checkpoints that tables begin with which no commit tells of.

use std::sync::Arc;

use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::super::model::Action;
use super::read::read_checkpoint;
use super::{DeltaAccess, checkpoint_name, encode};
use crate::error::{Error, Result};

/// The checkpoint of a table that begins with some actions: nothing in it tells of which version it is.
pub(in super::super) async fn founding_checkpoint(actions: &[Action]) -> Result<Bytes> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let access = DeltaAccess::new(store, Path::from("founded"), None);
    let first = access.log_file(&format!("{:020}.json", 0));
    access.root.put(&first, encode(0, actions)?.into()).await?;
    access.write_checkpoint(0).await?;
    let made = access.read_log_file(&checkpoint_name(0)).await?;
    made.ok_or_else(|| Error::internal("a checkpoint was written and is not there"))
}

/// Whether two checkpoints tell the same: nothing says in which order.
pub(in super::super) fn tell_the_same(one: &Bytes, other: &Bytes) -> bool {
    let told = |bytes: &Bytes| {
        let mut told = read_checkpoint(0, bytes.clone()).ok().flatten()?;
        told.files.sort_by(|a, b| a.path.cmp(&b.path));
        told.transactions.sort();
        Some((told.metadata, told.protocol, told.files, told.transactions))
    };
    one == other || told(one).is_some_and(|told_by_one| Some(told_by_one) == told(other))
}
