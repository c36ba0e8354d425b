//! The row of one key in a file, where all that tells it lies in memory or was spilled: no task, nothing that waits.
//!
//! It finds what [`read_keys`](super::read_keys) finds. Where a footer, a bloom filter or a page is not in memory it says so, and
//! that one reads them.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;

use super::pages::{PageCache, PageId};
use super::{FooterCache, cache_key};
use crate::columns::STATE_KEY;
use crate::table::{DataFile, Table};

/// A file of ours that keys are looked up in: one row per key, sorted, every row wanted.
#[derive(Debug, Clone)]
pub struct LookupFile {
    file: Arc<DataFile>,
    /// What its footer is kept under, made once.
    footer: String,
}

/// What is known of a key in a file.
#[derive(Debug, Clone)]
pub enum KnownRow {
    /// The file has no row of it.
    Absent,
    /// The row of a batch, most often of a decoded page.
    At(Arc<RecordBatch>, usize),
    /// Something has to be read to tell.
    Unread,
}

impl LookupFile {
    /// A file of a table, whose rows each have another key.
    pub fn new(table: &Table, file: &Arc<DataFile>) -> Self {
        Self { file: file.clone(), footer: cache_key(table, file) }
    }

    /// The file itself.
    pub fn file(&self) -> &Arc<DataFile> {
        &self.file
    }

    /// The row of a key in the columns of `schema`, if that can be told from memory.
    pub fn known_row(
        &self,
        key: &str,
        schema: &SchemaRef,
        footers: &FooterCache,
        pages: &PageCache,
    ) -> KnownRow {
        let Some(footer) = footers.entries.get(self.footer.as_str()) else {
            return KnownRow::Unread;
        };
        if !self.file.is_sorted() {
            return KnownRow::Unread;
        }
        let metadata = footer.metadata.metadata();
        for group in 0..metadata.num_row_groups() {
            let Some(index) = footer.key_pages.of_group(metadata, group) else {
                return KnownRow::Unread;
            };
            let (least, greatest) = index.bounds();
            if key.as_bytes() < least || greatest < key.as_bytes() {
                continue;
            }
            let bloom =
                footer.blooms.get().and_then(|blooms| blooms.get(group)).and_then(Option::as_ref);
            if bloom.is_some_and(|bloom| !bloom.check(&key)) {
                continue;
            }
            let first = index.seek(0, key.as_bytes());
            let reaches = |page: &usize| !index.begins_after(*page, key.as_bytes());
            for page in (first..index.count()).take_while(reaches) {
                let id = PageId { footer: footer.id, group, page };
                if let Some(rows) = pages.known(id, schema) {
                    if let Some(row) = place_of(&rows, key) {
                        return KnownRow::At(rows, row);
                    }
                    continue;
                }
                return match pages.spilled(id, key, schema) {
                    Some(row) => KnownRow::At(Arc::new(row), 0),
                    None => KnownRow::Unread,
                };
            }
        }
        KnownRow::Absent
    }
}

/// The place of a key in a page that is sorted by it.
fn place_of(rows: &RecordBatch, key: &str) -> Option<usize> {
    let keys: &StringArray = rows.column_by_name(STATE_KEY)?.as_string_opt()?;
    let (mut low, mut high) = (0, keys.len());
    while low < high {
        let middle = low + (high - low) / 2;
        match keys.value(middle).cmp(key) {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Equal => return Some(middle),
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    None
}
