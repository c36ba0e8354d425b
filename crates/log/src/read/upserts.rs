//! The operation column of rows that are all UPSERTs, as nearly all are: one column shared by all batches.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, StringArray};

use super::BATCH_ROWS;
use crate::columns::UPSERT;

static SHARED: LazyLock<StringArray> = LazyLock::new(|| upserts(BATCH_ROWS));

fn upserts(rows: usize) -> StringArray {
    std::iter::repeat_n(Some(UPSERT), rows).collect()
}

/// So many UPSERTs, without a copy for batches of the usual size.
pub fn upsert_column(rows: usize) -> ArrayRef {
    match rows <= BATCH_ROWS {
        true => Arc::new(SHARED.slice(0, rows)),
        false => Arc::new(upserts(rows)),
    }
}

/// Whether a column is known to hold UPSERTs alone, without looking at its rows.
pub fn is_upsert_column(column: &dyn Array) -> bool {
    column
        .as_any()
        .downcast_ref::<StringArray>()
        .is_some_and(|texts| std::ptr::eq(texts.values().as_ptr(), SHARED.values().as_ptr()))
}

/// Whether a column holds UPSERTs alone: known without a look at its rows, or else read off its bytes, which costs far less than
/// to compare row by row.
pub fn holds_only_upserts(column: &dyn Array) -> bool {
    if is_upsert_column(column) {
        return true;
    }
    let Some(texts) = column.as_any().downcast_ref::<StringArray>() else { return false };
    let offsets = texts.value_offsets();
    let is_as_long = |pair: &[i32]| pair[1] - pair[0] == UPSERT.len() as i32;
    if texts.null_count() > 0 || !offsets.windows(2).all(is_as_long) {
        return false;
    }
    let ends = offsets.first().zip(offsets.last());
    let (start, end) = ends.map_or((0, 0), |(start, end)| (*start as usize, *end as usize));
    let mut each = texts.value_data()[start..end].chunks_exact(UPSERT.len());
    each.all(|text| text == UPSERT.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::DELETE;
    use arrow::array::AsArray;

    #[test]
    fn a_column_that_is_not_shared_holds_only_upserts_if_each_row_is_one() {
        let holds = |texts: Vec<Option<&str>>| holds_only_upserts(&StringArray::from(texts));
        let up = Some(UPSERT);
        assert!(holds(vec![]) && holds(vec![up]) && holds(vec![up; 9]));
        assert!(!holds(vec![up, Some(DELETE), up]) && !holds(vec![up, None]));
        // As many bytes, cut elsewhere.
        assert!(!holds(vec![Some("UPSERTUPS"), Some("ERT")]) && !holds(vec![Some("upsert")]));
        let mixed = StringArray::from(vec![DELETE, UPSERT, UPSERT, DELETE]);
        assert!(holds_only_upserts(&mixed.slice(1, 2)) && !holds_only_upserts(&mixed.slice(1, 3)));
        assert!(holds_only_upserts(upsert_column(3).as_ref()));
        assert!(!holds_only_upserts(&arrow::array::Int64Array::from(vec![1])));
    }

    #[test]
    fn a_shared_column_is_known_by_its_bytes_and_a_copy_is_not() {
        for rows in [0, 1, BATCH_ROWS] {
            let shared = upsert_column(rows);
            assert!(is_upsert_column(shared.as_ref()) && shared.len() == rows);
            assert!(shared.as_string::<i32>().iter().all(|op| op == Some(UPSERT)));
        }
        let large = upsert_column(BATCH_ROWS + 1);
        assert_eq!(
            large.as_string::<i32>().iter().flatten().filter(|op| *op == UPSERT).count(),
            BATCH_ROWS + 1
        );
        assert!(!is_upsert_column(&StringArray::from(vec![UPSERT])));
        assert!(!is_upsert_column(&arrow::array::Int64Array::from(vec![1])));
    }
}
