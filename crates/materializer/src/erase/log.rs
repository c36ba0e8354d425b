//! The log's part: each file with rows of the keys is replaced by one without them, in one commit.
//!
//! It is a rewriter like a compaction, and excludes others the same way. What stays of a file stays as it is: every row with its commit,
//! its place among ties and in its run. No row is new by it (`dataChange` is false), so whoever follows the log sees nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_log::{
    Action, Attempt, DataFile, ERASE_APP_ID, Error, ErrorKind, FileAdd, Outcome, REWRITER_APP_ID,
    ReadSpec, Result, RowFilter, TAG_CHECK, TAG_COMMIT, TAG_COMMITS, TAG_RUN, TAG_SORTED, Table,
    TableState, log_schema, random,
};
use futures::TryStreamExt;
use parking_lot::Mutex;

use super::{EraseReceipt, ErasedFile, MAX_ATTEMPTS, Rewritten, Work, check_count};
use crate::bounds::{FileBounds, chunks};
use crate::files::Encoders;
use crate::fold::sort_all;
use crate::inputs::file_stream;
use crate::maintain::compact::{Encoded, encode, payload};

impl Work<'_> {
    /// Takes the keys out of the log.
    pub(super) async fn erase_log(&self, receipt: &mut EraseReceipt) -> Result<()> {
        let log = self.log();
        let _alone = log.lock_for_rewriting().await;
        for _ in 0..MAX_ATTEMPTS {
            let state = log.refresh().await?;
            let mut holders = self.holders(log.table(), state.files()).await?;
            if holders.is_empty() {
                return Ok(());
            }
            if holders.iter().any(|file| file.may_double_rows()) {
                holders.retain(|file| file.may_double_rows());
            }
            if let Some(file) = holders.iter().find(|file| !file.commits.are_exact()) {
                return Err(untold(file));
            }
            let mut rewritten: Vec<(Arc<DataFile>, Rewritten)> = Vec::with_capacity(holders.len());
            for file in holders {
                let run = format!("run-{:016x}", random::<u64>());
                let done = self.rewrite_log_file(log.table(), &state, &file, &run).await?;
                rewritten.push((file, done));
            }
            match self.commit_log(&state, &rewritten).await? {
                Some(version) => receipt.note_log(log.table().label(), version, &rewritten),
                None => {
                    for file in rewritten.iter().flat_map(|(_, done)| &done.added) {
                        log.table().discard(&file.path).await;
                    }
                }
            }
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "others rewrote the log's files {MAX_ATTEMPTS} times meanwhile: the keys are marked, and still there; run it again"
            ),
        ))
    }

    /// Writes the rows of a file of the log, or of its archive, without those of the keys, as files with such a name.
    pub(super) async fn rewrite_log_file(
        &self,
        table: &Arc<Table>,
        state: &TableState,
        file: &Arc<DataFile>,
        name: &str,
    ) -> Result<Rewritten> {
        let (log, options) = (self.log(), &self.options.materialize);
        let definition = log.definition_at(state)?;
        let spec = ReadSpec { payload: payload(&definition), filter: RowFilter::default() };
        let rows = file_stream(table, file, &spec, &options.footers);
        let counts = Arc::new(Mutex::new((0, 0)));
        let mut rows = self.without(rows, &counts);
        if !file.is_sorted() {
            rows = sort_all(definition.order_by, spec.schema(), rows, &options.fold).await?;
        }
        let schema = log_schema(&definition.stored_fields());
        let folder = file.add.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let encoders = Encoders::default();
        let mut files = std::pin::pin!(chunks(rows, FileBounds::new(usize::MAX, &options.fold)));
        let mut added: Vec<FileAdd> = Vec::new();
        while let Some(batches) = files.try_next().await? {
            let (schema, part) = (schema.clone(), added.len());
            let encoded = encoders.run(part, move || encode(batches, &schema)).await?;
            let tags = tags(file, &encoded, part);
            let path = format!("{folder}/{name}-{part}.parquet");
            let path = path.trim_start_matches('/').to_owned();
            let size = encoded.parquet.bytes.content_length() as u64;
            table.put_new(&path, encoded.parquet.bytes).await?;
            added.push(FileAdd {
                path,
                size,
                partition: file.add.partition.clone(),
                modified_ms: log.clock().now_ms(),
                data_change: false,
                stats: Some(encoded.stats),
                tags,
            });
        }
        let counts = *counts.lock();
        check_count(file, counts)?;
        Ok(Rewritten { added, rows_removed: counts.1 })
    }

    /// Commits what was rewritten if nothing has happened to the files; `None` when another rewriter came first.
    async fn commit_log(
        &self,
        seen: &TableState,
        rewritten: &[(Arc<DataFile>, Rewritten)],
    ) -> Result<Option<i64>> {
        let log = self.log();
        let note = BTreeMap::from([("step".to_owned(), serde_json::json!("erase"))]);
        let removed_ms = log.clock().now_ms();
        let outcome = log
            .table()
            .commit("OPTIMIZE", Some(false), note, |state, version| {
                let is_there =
                    |file: &(Arc<DataFile>, Rewritten)| state.file(&file.0.add.path).is_some();
                if state.transaction(REWRITER_APP_ID) != seen.transaction(REWRITER_APP_ID)
                    || !rewritten.iter().all(is_there)
                {
                    return Ok(Attempt::Stop(()));
                }
                // Of rows that may be there twice the new files must say so too, which they do as those of others do.
                let is_marked = rewritten.iter().any(|(file, _)| file.may_double_rows());
                let raised = [Some(ERASE_APP_ID), (!is_marked).then_some(REWRITER_APP_ID)];
                let mut actions: Vec<Action> = raised
                    .into_iter()
                    .flatten()
                    .map(|app_id| Action::Transaction { app_id: app_id.to_owned(), version })
                    .collect();
                actions
                    .extend(rewritten.iter().map(|(file, _)| file.add.removal(removed_ms, false)));
                let added = rewritten.iter().flat_map(|(_, done)| &done.added);
                actions.extend(added.map(|file| Action::Add(Arc::new(file.clone()))));
                Ok(Attempt::Write(actions))
            })
            .await?;
        Ok(match outcome {
            Outcome::Committed(state) => Some(state.version),
            Outcome::Stopped(()) => None,
        })
    }
}

/// What is noted of a rewritten file: the same as before, and what another engine's file lacked.
fn tags(file: &DataFile, encoded: &Encoded, part: usize) -> BTreeMap<String, String> {
    let mut tags = file.add.tags.clone();
    tags.insert(TAG_SORTED.to_owned(), "true".to_owned());
    tags.insert(TAG_CHECK.to_owned(), encoded.parquet.check.clone());
    // A file that may have rows twice is known by having no tag of commits, also to who reads a checkpoint.
    if !tags.contains_key(TAG_COMMIT) && !file.may_double_rows() {
        tags.insert(TAG_COMMITS.to_owned(), encoded.commits.clone());
    }
    // Of a run each part stays in its place; of one that has become several, they follow each other.
    if let Some(run) = tags.get_mut(TAG_RUN).filter(|_| part > 0) {
        *run = format!("{run}-{part:06}");
    }
    tags
}

fn untold(file: &DataFile) -> Error {
    let span = file.commits.span();
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "the log's file {} was written by another engine, and to which commits of {} to {} its rows belong can't be told any more: it \
             can't be rewritten without changing answers as of these commits. Let its day expire (log_retention), then run it again; the keys are marked",
            file.add.path, span.low, span.high
        ),
    )
}

impl EraseReceipt {
    fn note_log(&mut self, table: &str, version: i64, rewritten: &[(Arc<DataFile>, Rewritten)]) {
        self.log_commits.push(version);
        for (file, done) in rewritten {
            self.rows_removed += done.rows_removed;
            self.files.push(ErasedFile::of(table, None, &file.add.path, done));
        }
    }
}

impl ErasedFile {
    pub(super) fn of(table: &str, savepoint: Option<&str>, path: &str, done: &Rewritten) -> Self {
        let place = |path: &str| format!("{table}/{path}");
        Self {
            path: place(path),
            savepoint: savepoint.map(str::to_owned),
            rewritten_as: done.added.iter().map(|file| place(&file.path)).collect(),
            rows_removed: done.rows_removed,
        }
    }
}
