//! The snapshot's part: its files, and those that savepoints and the grid keep, are replaced by ones without the keys.
//!
//! Savepoints come first, because a snapshot may be made anew from one. Then a commit of the snapshot's table follows, also where no
//! file of it held the keys: a fold that read the log before it was rewritten finds that the snapshot has moved, and begins anew.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use alluvium_log::{
    Action, Attempt, DataFile, ERASE_APP_ID, Error, ErrorKind, FileAdd, Outcome, ReadSpec, Result,
    RowFilter, Table, VACUUM_APP_ID, random,
};
use parking_lot::Mutex;

use super::{EraseReceipt, ErasedFile, MAX_ATTEMPTS, Rewritten, Work, check_count};
use crate::bounds::{FileBounds, chunks};
use crate::files::{FileWriter, add_actions};
use crate::inputs::{file_stream, whole_value};
use crate::materialize::{MaterializeOptions, materialize};
use crate::snapshot::{BASE, RUN, TAG_LOG_COMMIT, is_base, snapshot_file_schema};

impl Work<'_> {
    /// Takes the keys out of savepoints and snapshot; gives the number of the log's erase that the snapshot follows.
    pub(super) async fn erase_snapshot(&self, receipt: &mut EraseReceipt) -> Result<i64> {
        let mut followed = None;
        for _ in 0..MAX_ATTEMPTS {
            let has_changed = self.erase_records(receipt).await?;
            if let Some(begun) = followed.filter(|_| !has_changed) {
                return Ok(begun);
            }
            // A record that came meanwhile is of a version before this commit; after it there can be no more.
            followed = self.erase_newest(receipt).await?;
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "others moved the snapshot {MAX_ATTEMPTS} times meanwhile: the keys are marked, and may still be in it; run it again"
            ),
        ))
    }

    /// Takes the keys out of what savepoints and the grid keep; tells whether there was anything to do.
    async fn erase_records(&self, receipt: &mut EraseReceipt) -> Result<bool> {
        let current = self.snapshot.refresh().await?;
        let Some((table, _)) = current.table() else { return Ok(false) };
        let mut has_changed = false;
        for record in self.snapshot.pinned_records().await? {
            let files = record.files(table);
            if record.is_released() {
                if files.iter().any(|file| self.spec.filter.may_match(file)) {
                    self.snapshot.forget_bounds(&record).await?;
                }
                continue;
            }
            let mut replaced: HashMap<String, Vec<FileAdd>> = HashMap::new();
            for file in self.holders(table, files.iter()).await? {
                let done = self.rewrite_snapshot_file(table, &file).await?;
                receipt.files.push(ErasedFile::of(
                    table.label(),
                    Some(record.name()),
                    &file.add.path,
                    &done,
                ));
                replaced.insert(file.add.path.clone(), done.added.clone());
            }
            if !replaced.is_empty() {
                has_changed = true;
                if self.snapshot.replace_pinned(&record, &replaced).await? {
                    receipt.savepoints.push(record.name().to_owned());
                }
            }
        }
        Ok(has_changed)
    }

    /// Takes the keys out of the newest snapshot, and ends the folds that began before; `None` when others moved it meanwhile.
    async fn erase_newest(&self, receipt: &mut EraseReceipt) -> Result<Option<i64>> {
        let log = self.log();
        let definition = log.definition_at(&*log.refresh().await?)?;
        if !self.snapshot.refresh().await?.is_ours() {
            // Files of another engine can't be relied on: the log, which is free of the keys, tells what they should hold.
            let options = MaterializeOptions { rebuild: true, ..self.options.materialize.clone() };
            materialize(self.snapshot, &options).await?;
        }
        let _alone = self.snapshot.lock_for_rewriting().await;
        let table = self.snapshot.table_or_create(&definition).await?;
        let state = table.refresh().await?;
        let holders = self.holders(&table, state.files()).await?;
        let mut begun = self.begun();
        let is_followed = state.transaction(ERASE_APP_ID) >= Some(begun);
        if holders.is_empty() && is_followed {
            return Ok(Some(begun));
        }
        if is_followed {
            begun = log.raise_erase().await?;
        }
        let mut rewritten = Vec::with_capacity(holders.len());
        for file in holders {
            let done = self.rewrite_snapshot_file(&table, &file).await?;
            rewritten.push((file, done));
        }
        let version = self.commit_snapshot(&table, state.version, &rewritten, begun).await?;
        let Some(version) = version else { return Ok(None) };
        receipt.snapshot_versions.push(version);
        for (file, done) in &rewritten {
            receipt.files.push(ErasedFile::of(table.label(), None, &file.add.path, done));
        }
        Ok(Some(begun))
    }

    async fn rewrite_snapshot_file(
        &self,
        table: &Arc<Table>,
        file: &Arc<DataFile>,
    ) -> Result<Arc<Rewritten>> {
        if let Some(known) = self.rewritten.lock().get(&file.add.path) {
            return Ok(known.clone());
        }
        let options = &self.options.materialize;
        let log = self.log();
        let definition = log.definition();
        let spec = ReadSpec { payload: whole_value(&definition), filter: RowFilter::default() };
        let counts = Arc::new(Mutex::new((0, 0)));
        let rows = self.without(file_stream(table, file, &spec, &options.footers), &counts);
        let log_commit = file.integer_tag(TAG_LOG_COMMIT).unwrap_or(0);
        let writer = FileWriter {
            table: table.clone(),
            log: log.clone(),
            schema: snapshot_file_schema(&definition.stored_fields()),
            tier: if is_base(file) { BASE } else { RUN },
            log_commit,
            run_id: format!("{log_commit:020}-{:016x}", random::<u64>()),
        };
        let mut added =
            writer.write(chunks(rows, FileBounds::new(usize::MAX, &options.fold))).await?;
        added.iter_mut().for_each(|file| file.data_change = false);
        let counts = *counts.lock();
        check_count(file, counts)?;
        let done = Arc::new(Rewritten { added, rows_removed: counts.1 });
        self.rewritten.lock().insert(file.add.path.clone(), done.clone());
        Ok(done)
    }

    async fn commit_snapshot(
        &self,
        table: &Arc<Table>,
        expected: i64,
        rewritten: &[(Arc<DataFile>, Arc<Rewritten>)],
        begun: i64,
    ) -> Result<Option<i64>> {
        let note = BTreeMap::from([("step".to_owned(), serde_json::json!("erase"))]);
        let removed_ms = self.log().clock().now_ms();
        let outcome = table
            .commit("OPTIMIZE", Some(false), note, |state, version| {
                if state.version != expected {
                    return Ok(Attempt::Stop(()));
                }
                let transaction = |app_id: &str, version| Action::Transaction {
                    app_id: app_id.to_owned(),
                    version,
                };
                let mut actions = vec![transaction(ERASE_APP_ID, begun)];
                if !rewritten.is_empty() {
                    // No answer, no fold and no savepoint may begin with a version that had the keys.
                    actions.push(transaction(VACUUM_APP_ID, version));
                }
                actions
                    .extend(rewritten.iter().map(|(file, _)| file.add.removal(removed_ms, false)));
                let added = rewritten.iter().flat_map(|(_, done)| done.added.clone());
                actions.extend(add_actions(added.collect()));
                Ok(Attempt::Write(actions))
            })
            .await?;
        Ok(match outcome {
            Outcome::Committed(state) => Some(state.version),
            Outcome::Stopped(()) => None,
        })
    }
}
