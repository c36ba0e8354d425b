//! Small records of a store that carry the sum of their own text: reading one of them.

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use serde::de::DeserializeOwned;

use crate::checksum::check_text;
use crate::error::{Error, ErrorKind, Result};

/// Of the sums of records.
pub(crate) const SEED: u64 = 0;

/// What a kind of record is like.
pub(crate) trait Record: DeserializeOwned {
    /// The format that this version writes, and knows.
    const FORMAT_VERSION: i64;
    /// What a damaged one does not do any more, and what to do about it, after its path.
    const DAMAGE: &'static str;

    /// The format that it says it has.
    fn format_version(&self) -> i64;
}

/// A record; `None` when it is not there. What it says is known only if all of it can be read.
pub(crate) async fn read_record<R: Record>(
    store: &dyn ObjectStore,
    path: &Path,
) -> Result<Option<R>> {
    let bytes = match store.get(path).await {
        Ok(found) => found.bytes().await.map_err(|error| Error::from(error).context(path))?,
        Err(object_store::Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(Error::from(error).context(path)),
    };
    let damaged = || Error::corrupt(format!("{path} {}", R::DAMAGE));
    if check_text(SEED, &bytes) == Some(false) {
        return Err(damaged());
    }
    let record: R = serde_json::from_slice(&bytes).map_err(|error| damaged().with_source(error))?;
    match record.format_version() == R::FORMAT_VERSION {
        true => Ok(Some(record)),
        false => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{path} has the format {}, which this version does not know: use a newer one",
                record.format_version()
            ),
        )),
    }
}
