//! The pages of the key in one row group, as the index at the end of the file tells them.

use std::ops::Range;

use parquet::file::metadata::ParquetMetaData;
use parquet::file::page_index::column_index::{ByteArrayColumnIndex, ColumnIndexMetaData};

use super::key_leaf;

/// Whether every row group has an index of its pages with bounds of their keys.
pub(super) fn has_pages(metadata: &ParquetMetaData) -> bool {
    let Some(leaf) = key_leaf(metadata) else { return false };
    (0..metadata.num_row_groups()).all(|group| KeyPages::of(metadata, group, leaf).is_some())
}

/// The pages of the key in one row group.
pub(super) struct KeyPages<'a> {
    bounds: &'a ByteArrayColumnIndex,
    first_rows: Vec<usize>,
    rows: usize,
}

impl<'a> KeyPages<'a> {
    pub(super) fn of(metadata: &'a ParquetMetaData, group: usize, leaf: usize) -> Option<Self> {
        let locations = metadata.offset_index()?.get(group)?.get(leaf)?.page_locations();
        let ColumnIndexMetaData::BYTE_ARRAY(bounds) =
            metadata.column_index()?.get(group)?.get(leaf)?
        else {
            return None;
        };
        let pages = usize::try_from(bounds.num_pages()).ok()?;
        let known = |page| bounds.min_value(page).is_some() && bounds.max_value(page).is_some();
        if pages != locations.len() || pages == 0 || !(0..pages).all(known) {
            return None;
        }
        let first_rows = locations.iter().map(|page| usize::try_from(page.first_row_index));
        Some(Self {
            bounds,
            first_rows: first_rows.collect::<Result<_, _>>().ok()?,
            rows: usize::try_from(metadata.row_group(group).num_rows()).ok()?,
        })
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Bounds of the keys of all pages.
    pub(super) fn bounds(&self) -> (&[u8], &[u8]) {
        let last = self.count().saturating_sub(1);
        let least = self.bounds.min_value(0).unwrap_or_default();
        (least, self.bounds.max_value(last).unwrap_or_default())
    }

    pub(super) fn count(&self) -> usize {
        self.first_rows.len()
    }

    pub(super) fn rows_of(&self, page: usize) -> Range<usize> {
        let end = self.first_rows.get(page + 1).copied().unwrap_or(self.rows);
        self.first_rows.get(page).copied().unwrap_or(end)..end
    }

    /// The first page from `from` on whose greatest key is not less than a key.
    pub(super) fn seek(&self, from: usize, key: &[u8]) -> usize {
        let less = |page: usize| self.bounds.max_value(page).is_some_and(|max| max < key);
        let (mut low, mut high) = (from, self.count());
        while low < high {
            let middle = low + (high - low) / 2;
            match less(middle) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    pub(super) fn begins_after(&self, page: usize, key: &[u8]) -> bool {
        self.bounds.min_value(page).is_some_and(|min| min > key)
    }
}
