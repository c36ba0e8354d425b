//! Rows on their way into files: encoded and uploaded, so that a commit only has to name them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::LogInner;
use crate::checksum::TAG_CHECK;
use crate::columns::DT;
use crate::encode::{EncodedFile, encode_rows};
use crate::error::{Error, Result};
use crate::storage::Unsynced;
use crate::table::{Action, FileAdd, TAG_APPEND, TAG_COMMIT, TAG_SORTED};

/// Files written at the same time by one append.
const UPLOAD_CONCURRENCY: usize = 16;
/// Rows from which encoding leaves the async thread.
const ENCODE_INLINE_ROWS: usize = 4_096;

/// Files of one append or epoch that become durable with its commit, at most.
const UNSYNCED_FILES: usize = 4;
/// Larger ones are made durable at once, while other work goes on.
const UNSYNCED_BYTES: usize = 1024 * 1024;

/// A file that lies in the store, and that no commit refers to yet.
#[derive(Debug, Clone)]
pub(crate) struct StagedFile {
    pub(crate) add: FileAdd,
    /// What the commit has to make durable.
    unsynced: Option<Arc<Unsynced>>,
}

impl LogInner {
    /// Sorts, encodes and uploads rows; nothing refers to the files yet. With `later` the first small ones may be left to the commit to
    /// write.
    pub(crate) async fn stage(
        &self,
        rows: RecordBatch,
        append_id: &str,
        (first_file, first_seq): (usize, i32),
        later: bool,
    ) -> Result<(Vec<StagedFile>, i32)> {
        let order_by = self.definition.read().1.order_by;
        let (files, greatest_seq) = if rows.num_rows() <= ENCODE_INLINE_ROWS {
            encode_rows(&rows, order_by, append_id, first_seq)?
        } else {
            let append_id = append_id.to_owned();
            tokio::task::spawn_blocking(move || encode_rows(&rows, order_by, &append_id, first_seq))
                .await
                .map_err(|error| Error::internal("encoding was aborted").with_source(error))??
        };
        let staged = stream::iter(files.into_iter().enumerate())
            .map(|(index, file)| self.upload(file, append_id, first_file + index, later).boxed())
            .buffered(UPLOAD_CONCURRENCY)
            .try_collect()
            .await?;
        Ok((staged, greatest_seq))
    }

    async fn upload(
        &self,
        file: EncodedFile,
        append_id: &str,
        index: usize,
        later: bool,
    ) -> Result<StagedFile> {
        let stem = append_id.split('/').next().unwrap_or(append_id);
        let path = format!("{DT}={}/{stem}-{index}.parquet", file.dt);
        let (bytes, size) = (file.parquet.bytes.clone(), file.parquet.bytes.len() as u64);
        let unsynced = if index < UNSYNCED_FILES && bytes.len() <= UNSYNCED_BYTES {
            self.table.put_new_unsynced(&path, bytes, later).await?
        } else {
            self.table.put_new(&path, bytes).await?;
            None
        };
        metrics::counter!(crate::metrics::BYTES_WRITTEN).increment(size);
        Ok(StagedFile {
            unsynced,
            add: FileAdd {
                path,
                size,
                partition: BTreeMap::from([(DT.to_owned(), Some(file.dt))]),
                modified_ms: self.options.clock.now_ms(),
                data_change: true,
                stats: Some(file.stats),
                tags: BTreeMap::from([
                    (TAG_APPEND.to_owned(), append_id.to_owned()),
                    (TAG_CHECK.to_owned(), file.parquet.check),
                    (TAG_SORTED.to_owned(), "true".to_owned()),
                ]),
            },
        })
    }

    /// Removes files that no commit refers to, nor ever will.
    pub(super) async fn discard(&self, files: &[StagedFile]) {
        for file in files {
            self.table.discard(&file.add.path).await;
        }
    }

    /// What of staged files is not durable yet.
    pub(super) fn unsynced(files: &[StagedFile]) -> Vec<Arc<Unsynced>> {
        files.iter().filter_map(|file| file.unsynced.clone()).collect()
    }

    /// The actions that make staged files part of the table as the given commit.
    pub(super) fn adds(files: &[StagedFile], commit: i64) -> impl Iterator<Item = Action> + '_ {
        files.iter().map(move |file| {
            let mut add = file.add.clone();
            add.tags.insert(TAG_COMMIT.to_owned(), commit.to_string());
            Action::Add(Arc::new(add))
        })
    }
}
