//! Which row groups and pages of a Parquet file a filter needs, from the footer alone.

use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::statistics::Statistics;

use super::filter::{RowFilter, at_most};
use crate::columns::{EVENT_TIME, STATE_KEY, VERSION};

/// What to read of a file.
#[derive(Debug)]
pub(crate) struct Pruned {
    pub(crate) row_groups: Vec<usize>,
    /// The rows of those row groups, when not all.
    pub(crate) selection: Option<RowSelection>,
}

/// Where the columns stand that pruning looks at.
struct Leaves {
    key: Option<usize>,
    version: Option<usize>,
    event_time: Option<usize>,
}

fn leaves(metadata: &ParquetMetaData) -> Leaves {
    let find = |name: &str| {
        metadata
            .file_metadata()
            .schema_descr()
            .columns()
            .iter()
            .position(|column| matches!(column.path().parts(), [only] if only == name))
    };
    Leaves { key: find(STATE_KEY), version: find(VERSION), event_time: find(EVENT_TIME) }
}

/// Prunes a file by its footer.
pub(crate) fn prune(metadata: &ParquetMetaData, filter: &RowFilter) -> Pruned {
    let leaves = leaves(metadata);
    let row_groups: Vec<usize> = metadata
        .row_groups()
        .iter()
        .enumerate()
        .filter(|(_, group)| group_may_match(group, &leaves, filter))
        .map(|(index, _)| index)
        .collect();
    let selection = select_pages(metadata, &row_groups, &leaves, filter);
    Pruned { row_groups, selection }
}

fn group_may_match(group: &RowGroupMetaData, leaves: &Leaves, filter: &RowFilter) -> bool {
    let statistics = |leaf: Option<usize>| leaf.and_then(|leaf| group.column(leaf).statistics());
    let keys = match statistics(leaves.key) {
        Some(s @ Statistics::ByteArray(_)) => {
            filter.keys.may_match(s.min_bytes_opt(), s.max_bytes_opt())
        }
        _ => true,
    };
    let least = |leaf: Option<usize>| match statistics(leaf) {
        Some(Statistics::Int64(values)) => values.min_opt().copied(),
        _ => None,
    };
    keys && at_most(least(leaves.version), filter.max_version)
        && at_most(least(leaves.event_time), filter.max_event_time)
}

/// The rows of pages that may match. Pages of different columns end at different rows, so each column gives a
/// selection of its own, and what all of them select is read.
fn select_pages(
    metadata: &ParquetMetaData,
    row_groups: &[usize],
    leaves: &Leaves,
    filter: &RowFilter,
) -> Option<RowSelection> {
    let columns = metadata.column_index()?;
    let offsets = metadata.offset_index()?;
    let mut selected: Option<RowSelection> = None;
    for leaf in [leaves.key, leaves.version, leaves.event_time].into_iter().flatten() {
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
                selectors.push(if page_may_match(index, page, leaf, leaves, filter) {
                    RowSelector::select(count)
                } else {
                    RowSelector::skip(count)
                });
            }
        }
        let by_column = RowSelection::from(selectors);
        selected = Some(match selected {
            None => by_column,
            Some(known) => known.intersection(&by_column),
        });
    }
    selected
}

fn page_may_match(
    index: &ColumnIndexMetaData,
    page: usize,
    leaf: usize,
    leaves: &Leaves,
    filter: &RowFilter,
) -> bool {
    match index {
        ColumnIndexMetaData::BYTE_ARRAY(keys) if leaves.key == Some(leaf) => {
            filter.keys.may_match(keys.min_value(page), keys.max_value(page))
        }
        ColumnIndexMetaData::INT64(values) if leaves.version == Some(leaf) => {
            at_most(values.min_value(page).copied(), filter.max_version)
        }
        ColumnIndexMetaData::INT64(values) if leaves.event_time == Some(leaf) => {
            at_most(values.min_value(page).copied(), filter.max_event_time)
        }
        _ => true,
    }
}
