//! A Parquet file in an object store, read by byte ranges.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::ObjectStore;
use object_store::path::Path;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};

/// Bytes at the end of a file that are fetched with the first request: most footers and page indexes fit.
const TAIL_BYTES: usize = 64 * 1024;

/// A file of known size.
#[derive(Debug, Clone)]
pub(crate) struct RangeReader {
    store: Arc<dyn ObjectStore>,
    path: Path,
    size: u64,
}

impl RangeReader {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, path: Path, size: u64) -> Self {
        Self { store, path, size }
    }

    /// Reads the footer and the page index.
    pub(crate) async fn load_metadata(&mut self) -> Result<Arc<ParquetMetaData>> {
        let size = self.size;
        let metadata = ParquetMetaDataReader::new()
            .with_page_index_policy(PageIndexPolicy::Optional)
            .with_prefetch_hint(Some(TAIL_BYTES))
            .load_and_finish(self, size)
            .await?;
        Ok(Arc::new(metadata))
    }
}

fn external(error: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl AsyncFileReader for RangeReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            // Of one range too: a local store answers these from memory where it can.
            let mut bytes = self.store.get_ranges(&self.path, &[range]).await.map_err(external)?;
            bytes.pop().ok_or_else(|| ParquetError::General("no bytes for a range".to_owned()))
        }
        .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move { self.store.get_ranges(&self.path, &ranges).await.map_err(external) }.boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        self.load_metadata().boxed()
    }
}
