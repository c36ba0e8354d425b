//! What is left when no table has the keys any more: bounds in the Delta logs, and files that only older versions have.

use std::sync::Arc;

use alluvium_log::{DataFile, Error, ErrorKind, Result, Stray, Table};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::{EraseReceipt, LOOK_CONCURRENCY, MAX_ATTEMPTS, PendingFile, Work};

/// What a file that is part of nothing holds.
enum Found {
    Nothing,
    Keys(Stray),
    Unreadable(String),
}

/// What lies in a table's folder without being part of it.
#[derive(Default)]
struct Strays {
    holders: Vec<Stray>,
    unreadable: Vec<String>,
}

impl Strays {
    /// The last version that has one with rows of the keys.
    fn last_version(&self) -> Option<i64> {
        self.holders.iter().filter_map(|stray| stray.last_version).max()
    }
}

impl Work<'_> {
    /// Takes the keys out of all Delta logs, and sees to the files that still hold them.
    pub(super) async fn sweep(&self, receipt: &mut EraseReceipt) -> Result<()> {
        self.sweep_table(self.log().table(), receipt).await?;
        self.sweep_archive(receipt).await?;
        if let Some((table, _)) = self.snapshot.state().table() {
            self.sweep_table(table, receipt).await?;
        }
        receipt.set_aside.extend(self.snapshot.set_aside().await?);
        receipt.nothing_left_after_ms = receipt.pending.iter().map(|file| file.until_ms).max();
        Ok(())
    }

    async fn sweep_table(&self, table: &Arc<Table>, receipt: &mut EraseReceipt) -> Result<()> {
        let strays = self.find_strays(table).await?;
        // Bounds of these files are gone soon, and so are they: nobody may begin with a version that has one.
        if let Some(last) = strays.last_version() {
            table.record_horizon(last + 1).await?;
        }
        self.clear(table, strays, receipt).await
    }

    /// The same in the archive, where the version that the log names stays readable, and the one before for those who read it.
    async fn sweep_archive(&self, receipt: &mut EraseReceipt) -> Result<()> {
        let log = self.log();
        for _ in 0..MAX_ATTEMPTS {
            let state = log.refresh().await?;
            let Some(archive) = log.archive_contents(&state).await? else { return Ok(()) };
            let strays = self.find_strays(&archive.table).await?;
            let last = strays.last_version();
            if archive.version.is_some() && last >= archive.version {
                // A move that knew nothing of the erase had a file in it for a while.
                log.name_archive(&state).await?;
                continue;
            }
            if let Some(last) = last.filter(|_| self.options.now) {
                archive.table.record_horizon(last + 1).await?;
            }
            return self.clear(&archive.table, strays, receipt).await;
        }
        Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "others changed the archive {MAX_ATTEMPTS} times meanwhile: older files and versions of it may hold the keys; run it again"
            ),
        ))
    }

    async fn find_strays(&self, table: &Arc<Table>) -> Result<Strays> {
        let strays = table.strays().await?;
        let mut looks = stream::iter(strays)
            .map(|stray| self.look(table, stray).boxed())
            .buffered(LOOK_CONCURRENCY);
        let mut found = Strays::default();
        while let Some(one) = looks.try_next().await? {
            match one {
                Found::Nothing => {}
                Found::Keys(stray) => found.holders.push(stray),
                Found::Unreadable(path) => found.unreadable.push(path),
            }
        }
        Ok(found)
    }

    async fn clear(
        &self,
        table: &Arc<Table>,
        strays: Strays,
        receipt: &mut EraseReceipt,
    ) -> Result<()> {
        let place = |path: &str| format!("{}/{path}", table.label());
        receipt.unreadable.extend(strays.unreadable.iter().map(|path| place(path)));
        let paths = strays.holders.iter().map(|stray| stray.path.clone()).collect();
        let redacted = table.redact(&self.list, &paths).await?;
        receipt.redacted.extend(redacted.iter().map(|path| place(path)));
        receipt.set_aside.extend(table.damaged_checkpoints().await?.iter().map(|path| place(path)));
        let settings = self.log().maintenance_settings()?;
        let now_ms = self.log().clock().now_ms();
        for stray in strays.holders {
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
        let snapshot = self.snapshot.state();
        if !snapshot.table().is_some_and(|(of_snapshot, _)| Arc::ptr_eq(table, of_snapshot)) {
            return Ok(false);
        }
        let records = self.snapshot.pinned_records().await?;
        Ok(records.iter().any(|record| record.pins(&stray.path)))
    }

    async fn look(&self, table: &Table, stray: Stray) -> Result<Found> {
        let file = Arc::new(DataFile::stray(&stray));
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
