//! A Parquet file in an object store, read by byte ranges; what is read of a file with checksums is checked before it is used.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};

use super::fetched::Fetched;
use super::{claims, reader_options};
use crate::checksum::{BlockSums, FileCheck};
use crate::error::{Error, Result};
use crate::table::{DataFile, FileAdd, Table};

/// A file of known size.
#[derive(Debug, Clone)]
pub(crate) struct RangeReader {
    store: Arc<dyn ObjectStore>,
    path: Path,
    size: u64,
    check: Option<FileCheck>,
    blocks: Option<Arc<BlockSums>>,
    /// As many as the log says.
    rows: Option<u64>,
}

/// A file's footer and page index, and the sums of its blocks if it has any.
pub(crate) type Metadata = (ArrowReaderMetadata, Option<Arc<BlockSums>>);

impl RangeReader {
    pub(crate) fn new(table: &Table, file: &DataFile) -> Result<Self> {
        Ok(Self { rows: file.stats.rows, ..Self::of(table, &file.add)? })
    }

    /// The file that an `add` names.
    pub(crate) fn of(table: &Table, add: &FileAdd) -> Result<Self> {
        Ok(Self {
            store: table.store().clone(),
            path: Path::from(add.path.as_str()),
            size: add.size,
            check: FileCheck::of(add)?,
            blocks: None,
            rows: None,
        })
    }

    /// The same with the sums of blocks that are known by now.
    pub(crate) fn with_blocks(self, blocks: Option<Arc<BlockSums>>) -> Self {
        Self { blocks, ..self }
    }

    /// Reads the footer and the page index.
    pub(crate) async fn load_metadata(&mut self) -> Result<Metadata> {
        let Some(check) = self.check else {
            let metadata = self.load_unchecked().await?;
            return Ok((ArrowReaderMetadata::try_new(metadata, reader_options())?, None));
        };
        let end = self.fetch_one(check.start..self.size).await?;
        check.verify(&end)?;
        let fetched = Fetched::parts(self.size, [(check.start, end.clone())].into_iter());
        let metadata = ParquetMetaDataReader::new()
            .with_page_index_policy(PageIndexPolicy::Optional)
            .parse_and_finish(&fetched)?;
        let blocks = Arc::new(BlockSums::of(&metadata, &end)?);
        self.blocks = Some(blocks.clone());
        let metadata = ArrowReaderMetadata::try_new(Arc::new(metadata), reader_options())?;
        Ok((metadata, Some(blocks)))
    }

    /// The same of a file of another writer, which says of itself how it is to be read.
    async fn load_unchecked(&self) -> Result<Arc<ParquetMetaData>> {
        let metadata = claims::load(self, self.size).await?;
        claims::check_rows(&metadata, self.rows)?;
        Ok(Arc::new(metadata))
    }

    /// Reads the whole file, and what it is read by unless that is known.
    pub(crate) async fn load_whole(&self, known: Option<Metadata>) -> Result<(Bytes, Metadata)> {
        let bytes = match self.store.get(&self.path).await {
            Ok(found) => found.bytes().await?,
            Err(error) => return Err(error.into()),
        };
        if bytes.len() as u64 != self.size {
            return Err(self.of_other_size(bytes.len() as u64));
        }
        if let Some((metadata, blocks)) = known {
            match &blocks {
                Some(blocks) => blocks.verify(0, &bytes)?,
                None => claims::check_all_pages(metadata.metadata(), &bytes)?,
            }
            return Ok((bytes, (metadata, blocks)));
        }
        let Some(check) = &self.check else {
            let metadata = claims::of_whole(&bytes)?;
            claims::check_rows(&metadata, self.rows)?;
            let metadata = ArrowReaderMetadata::try_new(Arc::new(metadata), reader_options())?;
            return Ok((bytes, (metadata, None)));
        };
        let end = bytes.slice(usize::try_from(check.start).unwrap_or(bytes.len())..);
        check.verify(&end)?;
        let metadata = ArrowReaderMetadata::load(&bytes, reader_options())?;
        let blocks = BlockSums::of(metadata.metadata(), &end)?;
        blocks.verify(0, &bytes)?;
        Ok((bytes, (metadata, Some(Arc::new(blocks)))))
    }

    /// Reads ranges of whole pages.
    pub(crate) async fn fetch_pages(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let fetched = self.fetch(ranges).await?;
        if self.check.is_none() {
            fetched.iter().try_for_each(|pages| claims::check_pages(pages))?;
        }
        Ok(fetched)
    }

    /// Reads ranges, checked if the sums of their blocks are known.
    pub(crate) async fn fetch(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let Some(blocks) = &self.blocks else { return self.fetch_all(ranges).await };
        let mut wide: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        // Of each range: which wide one it lies in.
        let mut places = Vec::with_capacity(ranges.len());
        for range in ranges {
            let widened = BlockSums::widened(range, self.size);
            match wide.last_mut() {
                Some(last) if last.start <= widened.start && widened.start <= last.end => {
                    last.end = last.end.max(widened.end);
                }
                _ => wide.push(widened),
            }
            places.push(wide.len() - 1);
        }
        let fetched = self.fetch_all(&wide).await?;
        for (range, bytes) in wide.iter().zip(&fetched) {
            blocks.verify(range.start, bytes)?;
        }
        let part = |(range, place): (&Range<u64>, usize)| {
            let offset = |at: u64| usize::try_from(at - wide[place].start).unwrap_or(usize::MAX);
            fetched[place].slice(offset(range.start)..offset(range.end))
        };
        Ok(ranges.iter().zip(places).map(part).collect())
    }

    pub(super) async fn fetch_one(&self, range: Range<u64>) -> Result<Bytes> {
        let mut bytes = self.fetch_all(&[range]).await?;
        bytes.pop().ok_or_else(|| Error::internal("no bytes for a range"))
    }

    async fn fetch_all(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let is_outside = |range: &Range<u64>| range.start > range.end || range.end > self.size;
        if let Some(range) = ranges.iter().find(|range| is_outside(range)) {
            return Err(Error::corrupt(format!(
                "the file's indexes name its bytes {} to {}, and it has {}",
                range.start, range.end, self.size
            )));
        }
        // Of one range too: a local store answers these from memory where it can.
        let found = self.store.get_ranges(&self.path, ranges).await;
        let is_whole = |found: &Vec<Bytes>| {
            let pairs = ranges.iter().zip(found);
            pairs.into_iter().all(|(range, bytes)| bytes.len() as u64 == range.end - range.start)
        };
        let error = match found {
            Ok(found) if is_whole(&found) => return Ok(found),
            Ok(_) => None,
            Err(error @ object_store::Error::NotFound { .. }) => return Err(error.into()),
            Err(error) => Some(error),
        };
        // A file that was cut fails to give what lies beyond: that is no failure of the storage.
        match (self.store.head(&self.path).await, error) {
            (Ok(meta), _) if meta.size != self.size => Err(self.of_other_size(meta.size)),
            (_, Some(error)) | (Err(error), None) => Err(error.into()),
            (Ok(_), None) => Err(Error::corrupt("the storage gave fewer bytes than the file has")),
        }
    }

    fn of_other_size(&self, found: u64) -> Error {
        Error::corrupt(format!(
            "the file is damaged: it has {found} bytes of {}; restore it from a copy, or run alluvium repair",
            self.size
        ))
    }
}

fn external(error: Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl AsyncFileReader for RangeReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        async move {
            let mut bytes = self.fetch(&[range]).await.map_err(external)?;
            bytes.pop().ok_or_else(|| ParquetError::General("no bytes for a range".to_owned()))
        }
        .boxed()
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        // What is asked for so are pages; a bloom filter is asked for alone.
        async move { self.fetch_pages(&ranges).await.map_err(external) }.boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        async move { self.load_unchecked().await.map_err(external) }.boxed()
    }
}
