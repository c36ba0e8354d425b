//! Parts of a file that were fetched, as a file of which only these can be read.

use std::sync::Arc;

use bytes::buf::Reader;
use bytes::{Buf, Bytes};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// Parts of a file, or all of it.
#[derive(Debug, Clone)]
pub(super) struct Fetched {
    size: u64,
    /// In order of their first bytes.
    parts: Arc<[(u64, Bytes)]>,
}

impl Fetched {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self { size: bytes.len() as u64, parts: Arc::from([(0, bytes)]) }
    }

    /// Parts of a file of some size, each with the place of its first byte.
    pub(super) fn parts(size: u64, parts: impl Iterator<Item = (u64, Bytes)>) -> Self {
        let mut parts: Vec<(u64, Bytes)> = parts.collect();
        parts.sort_unstable_by_key(|(start, _)| *start);
        Self { size, parts: parts.into() }
    }

    /// What was fetched from a place on.
    fn from(&self, start: u64) -> Result<Bytes> {
        let after = self.parts.partition_point(|(first, _)| *first <= start);
        let found =
            after.checked_sub(1).and_then(|at| self.parts.get(at)).and_then(|(first, part)| {
                let skipped = usize::try_from(start - first).ok()?;
                (skipped <= part.len()).then(|| part.slice(skipped..))
            });
        found
            .ok_or_else(|| ParquetError::EOF(format!("the bytes from {start} on were not fetched")))
    }
}

impl Length for Fetched {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Fetched {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let bytes = self.from(start)?;
        match bytes.len() >= length {
            true => Ok(bytes.slice(..length)),
            false => {
                Err(ParquetError::EOF(format!("{length} bytes from {start} on were not fetched")))
            }
        }
    }
}
