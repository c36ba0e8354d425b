//! What is left when no table has the keys any more: bounds in the Delta logs, and files that only older versions have.

use std::collections::HashSet;
use std::sync::Arc;

use alluvium_log::{DataFile, ErrorKind, Result, Stray, Table};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::{EraseReceipt, LOOK_CONCURRENCY, PendingFile, Work};

/// What a file that is part of nothing holds.
enum Found {
    Nothing,
    Keys(Stray),
    Unreadable(String),
}

impl Work<'_> {
    /// Takes the keys out of both Delta logs, and sees to the files that still hold them.
    pub(super) async fn sweep(&self, receipt: &mut EraseReceipt) -> Result<()> {
        self.sweep_table(self.log().table(), receipt).await?;
        if let Some((table, _)) = self.snapshot.state().table() {
            self.sweep_table(table, receipt).await?;
        }
        receipt.nothing_left_after_ms = receipt.pending.iter().map(|file| file.until_ms).max();
        Ok(())
    }

    async fn sweep_table(&self, table: &Arc<Table>, receipt: &mut EraseReceipt) -> Result<()> {
        let place = |path: &str| format!("{}/{path}", table.label());
        let strays = table.strays().await?;
        let mut looks = stream::iter(strays)
            .map(|stray| self.look(table, stray).boxed())
            .buffered(LOOK_CONCURRENCY);
        let mut holders: Vec<Stray> = Vec::new();
        while let Some(found) = looks.try_next().await? {
            match found {
                Found::Nothing => {}
                Found::Keys(stray) => holders.push(stray),
                Found::Unreadable(path) => receipt.unreadable.push(place(&path)),
            }
        }
        drop(looks);
        let paths: HashSet<String> = holders.iter().map(|stray| stray.path.clone()).collect();
        let redacted = table.redact(&self.list, &paths).await?;
        receipt.redacted.extend(redacted.iter().map(|path| place(path)));
        // Bounds of these files are gone, and soon they are: nobody may begin with a version that has one.
        if let Some(last) = holders.iter().filter_map(|stray| stray.last_version).max() {
            table.record_horizon(last + 1).await?;
        }
        let settings = self.log().maintenance_settings()?;
        let now_ms = self.log().clock().now_ms();
        for stray in holders {
            // What no version has was written by one of ours that can't commit it any more; another engine may still do so.
            let is_unknown = stray.last_version.is_none() && !self.is_pinned(&stray, table).await?;
            let is_over = if is_unknown { is_own(&stray.path) } else { self.options.now };
            if is_over {
                table.remove_stray(&stray.path).await?;
                receipt.removed.push(place(&stray.path));
                continue;
            }
            let stays_ms =
                if is_unknown { settings.orphan_grace_ms } else { settings.file_retention_ms };
            receipt.pending.push(PendingFile {
                path: place(&stray.path),
                bytes: stray.size,
                until_ms: now_ms.saturating_add(stays_ms),
            });
        }
        Ok(())
    }

    /// Whether a record keeps a file, which no version has, for the reads of a savepoint that are under way.
    async fn is_pinned(&self, stray: &Stray, table: &Arc<Table>) -> Result<bool> {
        if Arc::ptr_eq(table, self.log().table()) {
            return Ok(false);
        }
        let records = self.snapshot.pinned_records().await?;
        Ok(records.iter().any(|record| record.pins(&stray.path)))
    }

    async fn look(&self, table: &Table, stray: Stray) -> Result<Found> {
        let file = Arc::new(DataFile::stray(&stray.path, stray.size));
        match self.rows_in(table, &file).await {
            Ok(0) => Ok(Found::Nothing),
            Ok(_) => Ok(Found::Keys(stray)),
            Err(error) if error.is_of_missing_file() => Ok(Found::Nothing),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Found::Unreadable(stray.path)),
            Err(error) => Err(error),
        }
    }
}

/// Whether a file has a name such as we give: numbers and hexadecimal digits.
fn is_own(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let stem = name.strip_suffix(".parquet").unwrap_or(name);
    stem.strip_prefix("run-").unwrap_or(stem).chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}
