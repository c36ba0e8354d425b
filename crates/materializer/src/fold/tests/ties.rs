//! Conflicting ties are counted, and nothing else is.

use std::sync::Arc;

use alluvium_log::{OrderBy, Rank, fold_schema, value_field};
use arrow::array::{ArrayRef, Int64Array, StructArray};
use arrow::datatypes::{DataType, Field, Fields, SchemaRef};
use arrow::record_batch::RecordBatch;
use futures::TryStreamExt;

use super::super::{Ranking, SortedInput, fold_batches, merge};
use super::{Row, batch_of, block_on};

fn fields() -> Fields {
    vec![Field::new("number", DataType::Int64, true)].into()
}

fn with_values() -> SchemaRef {
    fold_schema(&[value_field(&fields())])
}

/// A row of one key with a value.
fn valued(rank: Rank, number: i64) -> RecordBatch {
    let row = Row { key: "key".to_owned(), rank };
    let mut columns: Vec<ArrayRef> = batch_of(&[row]).columns()[..6].to_vec();
    let number: ArrayRef = Arc::new(Int64Array::from(vec![number]));
    columns.push(Arc::new(StructArray::new(fields(), vec![number], None)));
    RecordBatch::try_new(with_values(), columns).unwrap()
}

fn counted(rows: [RecordBatch; 2]) -> u64 {
    let ranking = Ranking::from(OrderBy::EventTime);
    let schema = rows[0].schema();
    fold_batches(ranking.clone(), &schema, &rows).unwrap();
    let folded = ranking.conflicting_ties();
    let ranking = Ranking::from(OrderBy::EventTime);
    let inputs = rows.into_iter().map(|row| SortedInput::Batches(vec![row])).collect();
    let merged = merge(ranking.clone(), schema, inputs, 8192);
    block_on(merged.try_collect::<Vec<_>>()).unwrap();
    assert_eq!(ranking.conflicting_ties(), folded, "the merge counts as the fold in memory does");
    folded
}

#[test]
fn rows_equal_in_version_and_event_time_conflict_if_operation_or_value_differ() {
    let rank = Rank { version: 1, event_time: 2, is_delete: false, commit: 3, append_seq: 0 };
    let later = Rank { commit: 4, append_seq: 1, ..rank };
    let deleted = Rank { is_delete: true, ..later };
    assert_eq!(counted([valued(rank, 1), valued(later, 2)]), 1);
    assert_eq!(counted([valued(rank, 1), valued(later, 1)]), 0);
    assert_eq!(counted([valued(rank, 1), valued(deleted, 1)]), 1);
    assert_eq!(counted([valued(deleted, 1), valued(deleted, 1)]), 0);
    assert_eq!(counted([valued(rank, 1), valued(Rank { version: 2, ..later }, 2)]), 0);
    assert_eq!(counted([valued(rank, 1), valued(Rank { event_time: 3, ..later }, 2)]), 0);
    assert_eq!(counted([valued(rank, 1), valued(Rank { version: 3, ..deleted }, 2)]), 0);
}

#[test]
fn rows_that_are_folded_without_their_values_conflict_by_their_operations_alone() {
    let rank = Rank { version: 1, event_time: 2, is_delete: false, commit: 3, append_seq: 0 };
    let of = |rank: Rank| batch_of(&[Row { key: "key".to_owned(), rank }]);
    // What follows the deciding columns here are no values of a state.
    assert_eq!(counted([of(rank), of(Rank { commit: 4, ..rank })]), 0);
    assert_eq!(counted([of(rank), of(Rank { is_delete: true, ..rank })]), 1);
}
