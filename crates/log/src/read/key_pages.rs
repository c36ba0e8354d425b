//! The pages of the key in each row group, as the index at the end of a file tells them.

use std::ops::Range;

use parquet::file::metadata::ParquetMetaData;
use parquet::file::page_index::column_index::{ByteArrayColumnIndex, ColumnIndexMetaData};

use super::key_leaf;

/// Where the pages of the key begin in each row group: kept with the footer, so that no lookup goes through all of them.
#[derive(Debug)]
pub(super) struct KeyPageIndex {
    leaf: usize,
    /// The first rows of the pages by row group; none at all if not every one has an index of its pages with bounds of their keys.
    first_rows: Option<Vec<Vec<usize>>>,
}

impl KeyPageIndex {
    pub(super) fn of(metadata: &ParquetMetaData) -> Self {
        let Some(leaf) = key_leaf(metadata) else { return Self { leaf: 0, first_rows: None } };
        let groups = 0..metadata.num_row_groups();
        let first_rows = groups.map(|group| first_rows(metadata, group, leaf)).collect();
        Self { leaf, first_rows }
    }

    /// Whether pages can be told by their keys in all row groups.
    pub(super) fn is_indexed(&self) -> bool {
        self.first_rows.is_some()
    }

    /// The pages of one row group.
    pub(super) fn of_group<'a>(
        &'a self,
        metadata: &'a ParquetMetaData,
        group: usize,
    ) -> Option<KeyPages<'a>> {
        Some(KeyPages {
            bounds: bounds(metadata, group, self.leaf)?,
            first_rows: self.first_rows.as_ref()?.get(group)?,
            rows: usize::try_from(metadata.row_group(group).num_rows()).ok()?,
        })
    }
}

fn bounds(metadata: &ParquetMetaData, group: usize, leaf: usize) -> Option<&ByteArrayColumnIndex> {
    match metadata.column_index()?.get(group)?.get(leaf)? {
        ColumnIndexMetaData::BYTE_ARRAY(bounds) => Some(bounds),
        _ => None,
    }
}

fn first_rows(metadata: &ParquetMetaData, group: usize, leaf: usize) -> Option<Vec<usize>> {
    let bounds = bounds(metadata, group, leaf)?;
    let locations = metadata.offset_index()?.get(group)?.get(leaf)?.page_locations();
    let pages = usize::try_from(bounds.num_pages()).ok()?;
    let known = |page| bounds.min_value(page).is_some() && bounds.max_value(page).is_some();
    if pages != locations.len() || pages == 0 || !(0..pages).all(known) {
        return None;
    }
    locations.iter().map(|page| usize::try_from(page.first_row_index).ok()).collect()
}

/// The pages of the key in one row group.
pub(super) struct KeyPages<'a> {
    bounds: &'a ByteArrayColumnIndex,
    first_rows: &'a [usize],
    rows: usize,
}

impl KeyPages<'_> {
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
