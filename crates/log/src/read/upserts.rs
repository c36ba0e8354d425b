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

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::AsArray;

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
