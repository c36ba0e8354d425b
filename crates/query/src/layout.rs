//! A snapshot's files as lookups need them: in order of keys, with the names that their footers are kept under.

use std::sync::Arc;

use alluvium_log::{DataFile, KeyFilter, LookupFile};
use alluvium_materializer::{SnapshotState, least_key};

use crate::reader::Reader;

/// A snapshot's files, arranged for lookups.
pub(crate) struct Layout {
    version: i64,
    base: Vec<LookupFile>,
    runs: Vec<LookupFile>,
    pub(crate) is_ours: bool,
}

impl Reader {
    pub(crate) fn layout(&self, snapshot: &SnapshotState) -> Arc<Layout> {
        if let Some(known) = self.inner.layout.read().as_ref()
            && known.version == snapshot.version()
        {
            return known.clone();
        }
        let table = snapshot.table().map(|(table, _)| table);
        let lookups = |files: Vec<Arc<DataFile>>| -> Vec<LookupFile> {
            let of_table = |file| table.map(|table| LookupFile::new(table, file));
            files.iter().filter_map(of_table).collect()
        };
        let layout = Arc::new(Layout {
            version: snapshot.version(),
            base: lookups(snapshot.base()),
            runs: lookups(snapshot.runs()),
            is_ours: snapshot.is_ours(),
        });
        *self.inner.layout.write() = Some(layout.clone());
        layout
    }
}

impl Layout {
    /// The files that may hold one of the keys.
    pub(crate) fn candidates(&self, keys: &KeyFilter) -> Vec<Arc<DataFile>> {
        let KeyFilter::Keys(wanted) = keys else {
            return self.base.iter().chain(&self.runs).map(|file| file.file().clone()).collect();
        };
        let mut files: Vec<Arc<DataFile>> = Vec::new();
        for file in wanted.iter().filter_map(|key| self.base_of(key)) {
            if files.last().is_none_or(|last| last.add.path != file.file().add.path) {
                files.push(file.file().clone());
            }
        }
        let run = |file: &&LookupFile| wanted.iter().any(|key| file.file().may_hold_key(key));
        files.extend(self.runs.iter().filter(run).map(|file| file.file().clone()));
        files
    }

    /// The files that may hold a key.
    pub(crate) fn files_of<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a LookupFile> {
        let runs = self.runs.iter().filter(move |file| file.file().may_hold_key(key));
        self.base_of(key).into_iter().chain(runs)
    }

    /// Ranges of base files do not overlap, so a key has at most one.
    fn base_of(&self, key: &str) -> Option<&LookupFile> {
        let is_not_after =
            |file: &LookupFile| least_key(file.file()).is_none_or(|least| least <= key);
        let after = self.base.partition_point(is_not_after);
        let file = after.checked_sub(1).and_then(|at| self.base.get(at))?;
        file.file().may_hold_key(key).then_some(file)
    }
}
