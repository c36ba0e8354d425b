//! Which row groups and pages of a Parquet file a filter needs, from the footer alone.

use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::statistics::Statistics;

use super::filter::{KeyFilter, RowFilter, at_most};
use super::hints::FieldBounds;
use crate::columns::{EVENT_TIME, STATE_KEY, STATE_VALUE, VERSION};

/// What a column must hold for its rows to be wanted.
enum Wanted<'a> {
    Keys(&'a KeyFilter),
    AtMost(Option<i64>),
    Within(&'a FieldBounds),
}

impl Wanted<'_> {
    fn in_group(&self, statistics: Option<&Statistics>) -> bool {
        match (self, statistics) {
            (Self::Keys(keys), Some(s @ Statistics::ByteArray(_))) => {
                keys.may_match(s.min_bytes_opt(), s.max_bytes_opt())
            }
            (Self::AtMost(most), Some(Statistics::Int64(values))) => {
                at_most(values.min_opt().copied(), *most)
            }
            (Self::Within(bounds), Some(Statistics::Int64(values))) => {
                bounds.may_hold_integers(values.min_opt().copied(), values.max_opt().copied())
            }
            (Self::Within(bounds), Some(Statistics::Int32(values))) => bounds.may_hold_integers(
                values.min_opt().copied().map(i64::from),
                values.max_opt().copied().map(i64::from),
            ),
            (Self::Within(bounds), Some(Statistics::Double(values))) => {
                bounds.may_hold_floats(values.min_opt().copied())
            }
            (Self::Within(bounds), Some(s @ Statistics::ByteArray(_))) => {
                bounds.may_hold_texts(s.min_bytes_opt(), s.max_bytes_opt())
            }
            _ => true,
        }
    }

    fn in_page(&self, index: &ColumnIndexMetaData, page: usize) -> bool {
        match (self, index) {
            (Self::Keys(keys), ColumnIndexMetaData::BYTE_ARRAY(values)) => {
                keys.may_match(values.min_value(page), values.max_value(page))
            }
            (Self::AtMost(most), ColumnIndexMetaData::INT64(values)) => {
                at_most(values.min_value(page).copied(), *most)
            }
            (Self::Within(bounds), ColumnIndexMetaData::INT64(values)) => bounds.may_hold_integers(
                values.min_value(page).copied(),
                values.max_value(page).copied(),
            ),
            (Self::Within(bounds), ColumnIndexMetaData::INT32(values)) => bounds.may_hold_integers(
                values.min_value(page).copied().map(i64::from),
                values.max_value(page).copied().map(i64::from),
            ),
            (Self::Within(bounds), ColumnIndexMetaData::DOUBLE(values)) => {
                bounds.may_hold_floats(values.min_value(page).copied())
            }
            (Self::Within(bounds), ColumnIndexMetaData::BYTE_ARRAY(values)) => {
                bounds.may_hold_texts(values.min_value(page), values.max_value(page))
            }
            _ => true,
        }
    }
}

/// Which rows of a file are wanted, by what its footer says of the columns that decide.
pub(crate) struct Pruner<'a> {
    metadata: &'a ParquetMetaData,
    wanted: Vec<(usize, Wanted<'a>)>,
}

impl<'a> Pruner<'a> {
    /// For rows that `filter` wants, and whose value does not lie outside of `bounds`.
    pub(crate) fn new(
        metadata: &'a ParquetMetaData,
        filter: &'a RowFilter,
        bounds: &'a [FieldBounds],
    ) -> Self {
        let columns = metadata.file_metadata().schema_descr().columns();
        let mut wanted = Vec::new();
        let mut add = |path: &[&str], of_column: Wanted<'a>| {
            let leaf = columns.iter().position(|column| column.path().parts() == path);
            wanted.extend(leaf.map(|leaf| (leaf, of_column)));
        };
        if filter.keys != KeyFilter::All {
            add(&[STATE_KEY], Wanted::Keys(&filter.keys));
        }
        if filter.max_version.is_some() {
            add(&[VERSION], Wanted::AtMost(filter.max_version));
        }
        if filter.max_event_time.is_some() {
            add(&[EVENT_TIME], Wanted::AtMost(filter.max_event_time));
        }
        for of_field in bounds {
            add(&[STATE_VALUE, &of_field.field], Wanted::Within(of_field));
        }
        Self { metadata, wanted }
    }

    /// The row groups that may hold wanted rows.
    pub(crate) fn row_groups(&self) -> Vec<usize> {
        let may_match = |group: &RowGroupMetaData| {
            self.wanted
                .iter()
                .all(|(leaf, wanted)| wanted.in_group(group.column(*leaf).statistics()))
        };
        let groups = self.metadata.row_groups().iter().enumerate();
        groups.filter(|(_, group)| may_match(group)).map(|(index, _)| index).collect()
    }

    /// The rows of the pages of some row groups that may hold wanted rows; `None` when all may.
    pub(crate) fn rows(&self, row_groups: &[usize]) -> Option<RowSelection> {
        let mut selected: Option<RowSelection> = None;
        // Pages of different columns end at different rows, so each column gives a selection of its own, and what all of
        // them select is read.
        for (leaf, wanted) in &self.wanted {
            let by_column = select_pages(self.metadata, row_groups, *leaf, wanted)?;
            selected = Some(match selected {
                None => by_column,
                Some(known) => known.intersection(&by_column),
            });
        }
        selected
    }
}

/// The rows of one column's pages that may match; `None` without an index of the pages.
fn select_pages(
    metadata: &ParquetMetaData,
    row_groups: &[usize],
    leaf: usize,
    wanted: &Wanted<'_>,
) -> Option<RowSelection> {
    let (columns, offsets) = (metadata.column_index()?, metadata.offset_index()?);
    let mut selectors = Vec::new();
    for &group in row_groups {
        let rows = usize::try_from(metadata.row_group(group).num_rows()).ok()?;
        let index = columns.get(group)?.get(leaf)?;
        let pages = offsets.get(group)?.get(leaf)?.page_locations();
        if pages.is_empty() {
            selectors.push(RowSelector::select(rows));
            continue;
        }
        for (page, location) in pages.iter().enumerate() {
            let first = usize::try_from(location.first_row_index).ok()?;
            let end = match pages.get(page + 1) {
                Some(next) => usize::try_from(next.first_row_index).ok()?,
                None => rows,
            };
            let count = end.checked_sub(first)?;
            selectors.push(match wanted.in_page(index, page) {
                true => RowSelector::select(count),
                false => RowSelector::skip(count),
            });
        }
    }
    Some(RowSelection::from(selectors))
}
