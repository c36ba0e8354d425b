//! The archive's part: as that of the log, whose state names the version of the archive that is read.

use std::collections::HashMap;
use std::sync::Arc;

use alluvium_log::{
    ArchiveOutcome, DataFile, Error, ErrorKind, FileAdd, Result, Table, TableState, random,
};

use super::{EraseReceipt, ErasedFile, MAX_ATTEMPTS, Rewritten, Work};

impl Work<'_> {
    /// Makes sure that the archive, if there is one, can be read: else nothing is begun.
    pub(super) async fn reach_archive(&self) -> Result<()> {
        let state = self.log().refresh().await?;
        let reached = self.log().archive_contents(&state).await;
        reached.map(drop).map_err(|error| error.context("nothing was erased"))
    }

    /// Takes the keys out of the archive.
    pub(super) async fn erase_archive(&self, receipt: &mut EraseReceipt) -> Result<()> {
        let log = self.log();
        let _alone = log.lock_for_rewriting().await;
        for _ in 0..MAX_ATTEMPTS {
            let state = log.refresh().await?;
            let Some(archive) = log.archive_contents(&state).await? else { return Ok(()) };
            let holders = self.holders(&archive.table, archive.files.iter()).await?;
            if holders.is_empty() {
                return Ok(());
            }
            let rewritten = self.rewrite_archived(&archive.table, &state, holders).await?;
            let replaced: HashMap<String, Vec<FileAdd>> = rewritten
                .iter()
                .map(|(file, done)| (file.add.path.clone(), done.added.clone()))
                .collect();
            if let ArchiveOutcome::Moved(named) = log.replace_archived(&state, &replaced).await? {
                receipt.log_commits.push(named.version);
                for (file, done) in &rewritten {
                    receipt.rows_removed += done.rows_removed;
                    let label = archive.table.label();
                    receipt.files.push(ErasedFile::of(label, None, &file.add.path, done));
                }
            }
            // Else another process changed the log meanwhile. What it left in the archive is part of no state, and goes when
            // the archive is settled.
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "others changed log or archive {MAX_ATTEMPTS} times meanwhile: the keys are marked, and still there; run it again"
            ),
        ))
    }

    async fn rewrite_archived(
        &self,
        table: &Arc<Table>,
        state: &TableState,
        holders: Vec<Arc<DataFile>>,
    ) -> Result<Vec<(Arc<DataFile>, Rewritten)>> {
        let mut rewritten = Vec::with_capacity(holders.len());
        for (index, file) in holders.into_iter().enumerate() {
            let name = format!("{:016x}-{index}", random::<u64>());
            let mut done = self.rewrite_log_file(table, state, &file, &name).await?;
            done.added.iter_mut().for_each(|add| add.data_change = true);
            rewritten.push((file, done));
        }
        Ok(rewritten)
    }

    /// Brings the archive's newest version to what the log says of it, and closes it to moves that began before the erase with this
    /// number; false when another process changed the log meanwhile.
    pub(super) async fn settle_archive(&self, begun: i64) -> Result<bool> {
        let log = self.log();
        let state = log.refresh().await?;
        match log.archive_contents(&state).await? {
            Some(_) => log.settle_erased(&state, begun).await,
            None => Ok(true),
        }
    }
}
