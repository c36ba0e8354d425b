//! Looking at an archive: whether each of its files is as it was written, and whether all rows are there that the log says were
//! moved.

use std::collections::HashSet;
use std::sync::Arc;

use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::{APP_IDS, Archived, archive_path, is_missing_folder, table_at};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::settings::MaintenanceSettings;
use crate::storage::{Durability, Storage};
use crate::table::{Damage, DataFile, Examination, FileRole, Table, TableState};

/// Files whose footers are read at the same time.
const READ_CONCURRENCY: usize = 4;

/// Where the archive of a state may lie.
#[derive(Debug, Clone)]
pub struct ArchivePlaces<'a> {
    /// The store of the state.
    pub store: &'a Storage,
    /// Where archives are that are set to lie elsewhere, if not where the setting says.
    pub given: Option<&'a Storage>,
    /// What writes there survive.
    pub durability: Durability,
}

impl ArchivePlaces<'_> {
    /// The storage that settings name, and how the table is called there; no storage where its folder isn't there.
    fn of(&self, settings: &MaintenanceSettings, state: &str) -> Result<(Option<Storage>, String)> {
        let path = archive_path(state);
        let Some(uri) = &settings.archive else { return Ok((Some(self.store.clone()), path)) };
        let label = format!("{uri}/{path}");
        if let Some(given) = self.given {
            return Ok((Some(given.clone()), label));
        }
        match is_missing_folder(uri) {
            true => Ok((None, label)),
            false => Ok((Some(Storage::open(uri, self.durability)?), label)),
        }
    }
}

/// Looks at all files of the archive that a state of a log names; `None` where nothing was ever archived.
///
/// # Errors
/// The place can't be reached.
pub async fn examine_archive(
    places: &ArchivePlaces<'_>,
    state: &str,
    log: &TableState,
    clock: Arc<dyn Clock>,
) -> Result<Option<(Option<Table>, Examination)>> {
    let Some(known) = Archived::of(log) else { return Ok(None) };
    let settings = MaintenanceSettings::from_metadata(&log.metadata)?;
    let (storage, label) = places.of(&settings, state)?;
    let context = |error: Error| {
        error.context(format!("the archive of {state} at {label} could not be looked at"))
    };
    let Some(storage) = storage else {
        let mut found = Examination::default();
        note(&mut found, &label, known, "the folder of the archive is missing".to_owned());
        return Ok(Some((None, found)));
    };
    let path = archive_path(state);
    let looked = Table::examine_as(&storage, &path, label.clone(), clock, &APP_IDS).await;
    let (table, mut found) = looked.map_err(context)?;
    compare(&table, known, &mut found).await.map_err(context)?;
    Ok(Some((Some(table), found)))
}

fn note(found: &mut Examination, label: &str, known: Archived, problem: String) {
    found.damages.push(Damage {
        file: label.to_owned(),
        role: FileRole::Archive,
        version: Some(known.commit),
        is_needed: known.files > 0,
        problem,
    });
}

/// Compares the version that the log names with what the log says of it.
async fn compare(table: &Table, known: Archived, found: &mut Examination) -> Result<()> {
    let failure = found.failure.take();
    let has_failed = failure.is_some();
    let is_told = |found: &Examination| found.damages.iter().any(|damage| damage.is_needed);
    if let Some(error) = failure.filter(|_| !is_told(found)) {
        note(found, table.label(), known, format!("it can't be opened: {error}"));
    }
    if has_failed {
        return Ok(());
    }
    if found.newest.is_none() {
        note(found, table.label(), known, "there is no Delta table".to_owned());
        return Ok(());
    }
    let named = match table_at(table, known.version).await {
        Ok(named) => named,
        Err(error) if error.kind() == ErrorKind::Storage => return Err(error),
        Err(error) => {
            let version = known.version;
            let text = format!("version {version}, which the log names, can't be read: {error}");
            note(found, table.label(), known, text);
            return Ok(());
        }
    };
    let files: Vec<Arc<DataFile>> = named.files().filter(|file| known.has(file)).cloned().collect();
    let needed: HashSet<String> =
        files.iter().map(|file| format!("{}/{}", table.label(), file.add.path)).collect();
    for damage in found.damages.iter_mut().filter(|damage| damage.role == FileRole::Data) {
        damage.is_needed = needed.contains(&damage.file);
    }
    if found.damages.iter().any(|damage| damage.role == FileRole::Data && damage.is_needed) {
        // What can't be read can't be counted; that is told.
        return Ok(());
    }
    let rows = rows_of(table, &files).await?;
    let bytes: u64 = files.iter().map(|file| file.add.size).sum();
    let there = [files.len() as u64, rows, bytes];
    let said = [known.files, known.rows, known.bytes].map(i64::unsigned_abs);
    if there != said {
        let told = |[files, rows, bytes]: [u64; 3]| {
            format!("{files} files with {rows} rows and {bytes} bytes")
        };
        let (there, said) = (told(there), told(said));
        let text = format!("the log says that {said} lie there, and there are {there}");
        note(found, table.label(), known, text);
    }
    found.rows = rows;
    Ok(())
}

/// The rows of files as their own footers count them.
async fn rows_of(table: &Table, files: &[Arc<DataFile>]) -> Result<u64> {
    let counts = stream::iter(files.to_vec())
        .map(|file| async move { table.rows_stored(&file.add).await }.boxed())
        .buffered(READ_CONCURRENCY);
    counts.try_fold(0_u64, |sum, rows| async move { Ok(sum.saturating_add(rows)) }).await
}
