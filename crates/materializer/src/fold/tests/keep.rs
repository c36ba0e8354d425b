//! The merge and the sort that keep every row, and the step that leaves each row once, against sorting a list.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use alluvium_log::{ErrorKind, OrderBy};
use arrow::array::StringArray;
use arrow::compute::concat_batches;
use arrow::record_batch::RecordBatch;
use futures::TryStreamExt;

use super::super::{BatchStream, FoldSettings, distinct, merge_all, sort_all};
use super::{
    ORDERS, Row, assert_gives, batch_of, block_on, dealt, failure_of, random_batches, random_rows,
    row, schema, stream_of, with_seeds,
};

/// All rows by key and rank; of rows equal in both all columns are.
fn in_order(mut rows: Vec<Row>, order_by: OrderBy) -> Vec<Row> {
    rows.sort_by(|a, b| {
        let keys = a.key.as_bytes().cmp(b.key.as_bytes());
        keys.then_with(|| a.rank.compare(&b.rank, order_by))
    });
    rows
}

fn stream_of_rows(rows: &[Row]) -> BatchStream {
    stream_of(vec![batch_of(rows)])
}

#[test]
fn sorted_inputs_are_merged_to_all_their_rows() {
    with_seeds(200, |random| {
        let count = *random.pick(&[0, 1, 10, 300]);
        let rows = random_rows(random, count);
        let inputs = 1 + random.below_one_of(&[1, 3, 40]);
        for order_by in ORDERS {
            let inputs = dealt(random, &rows, inputs)
                .into_iter()
                .map(|rows| stream_of(random_batches(random, &in_order(rows, order_by))))
                .collect();
            let batch_rows = *random.pick(&[1, 2, 7, 8192]);
            let merged = merge_all(order_by, schema(), inputs, batch_rows);
            let batches = block_on(assert_gives(merged, &in_order(rows.clone(), order_by)));
            assert!(batches.iter().all(|batch| batch.num_rows() <= batch_rows));
            let full = batches.iter().rev().skip(1).all(|batch| batch.num_rows() == batch_rows);
            assert!(full, "a batch came out before it was full");
        }
    });
}

#[tokio::test]
async fn an_input_that_is_not_sorted_is_refused_and_named() {
    let good = [row("a", 1), row("b", 1), row("b", 2), row("c", 1)];
    let within: &[&[Row]] = &[&[row("a", 1), row("c", 1), row("b", 1)]];
    let by_rank: &[&[Row]] = &[&[row("a", 2), row("a", 1)]];
    let over_batches: &[&[Row]] = &[&[row("a", 1), row("c", 1)], &[], &[row("b", 1)]];
    for bad in [within, by_rank, over_batches] {
        let bad = stream_of(bad.iter().map(|rows| batch_of(rows)).collect());
        let inputs = vec![stream_of_rows(&good), bad];
        let error = failure_of(Ok(merge_all(OrderBy::EventTime, schema(), inputs, 8192))).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("input 1 of a merge"), "{error}");
    }
    let twice = vec![stream_of_rows(&[row("a", 1), row("a", 1)])];
    let merged = merge_all(OrderBy::EventTime, schema(), twice, 8192);
    assert_gives(merged, &[row("a", 1), row("a", 1)]).await;
}

#[test]
fn rows_in_any_order_are_sorted_within_any_budget() {
    let folder = tempfile::tempdir().unwrap();
    let spilled = || std::fs::read_dir(folder.path()).unwrap().count();
    with_seeds(60, |random| {
        let count = *random.pick(&[0, 1, 10, 300]);
        let rows = random_rows(random, count);
        for order_by in ORDERS {
            let settings = FoldSettings {
                memory_budget_bytes: *random.pick(&[1, 10_000, 1 << 30]),
                batch_rows: *random.pick(&[1, 7, 8192]),
                spill_dir: Some(folder.path().to_owned()),
                ..FoldSettings::default()
            };
            let given = stream_of(random_batches(random, &rows));
            block_on(async {
                let sorted = sort_all(order_by, schema(), given, &settings).await.unwrap();
                if settings.memory_budget_bytes == 1 << 30 {
                    assert_eq!(spilled(), 0);
                }
                let batches = assert_gives(sorted, &in_order(rows.clone(), order_by)).await;
                assert!(batches.iter().all(|batch| batch.num_rows() <= settings.batch_rows));
            });
            assert_eq!(spilled(), 0);
        }
    });
}

/// A third of the budget is gathered before it is written.
#[tokio::test]
async fn what_is_sorted_is_spilled_once_it_takes_a_third_of_the_budget() {
    let rows: Vec<Row> = (0..100).rev().map(|key| row(&format!("{key:03}"), 1)).collect();
    let batches: Vec<RecordBatch> = rows.chunks(10).map(batch_of).collect();
    let bytes: usize = batches.iter().map(super::super::bytes::batch_bytes).sum();
    for (memory_budget_bytes, spills) in [(3 * bytes, true), (3 * bytes + 3, false)] {
        let folder = tempfile::tempdir().unwrap();
        let spill_dir = Some(folder.path().to_owned());
        let settings = FoldSettings { memory_budget_bytes, spill_dir, ..FoldSettings::default() };
        let given = stream_of(batches.clone());
        let sorted = sort_all(OrderBy::Version, schema(), given, &settings).await.unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count() > 0, spills);
        assert_gives(sorted, &in_order(rows.clone(), OrderBy::Version)).await;
    }
}

#[test]
fn of_rows_that_are_the_same_in_everything_one_is_left() {
    with_seeds(100, |random| {
        let rows = in_order(random_rows(random, 60), OrderBy::Version);
        let mut once = rows.clone();
        once.dedup();
        let left_out = Arc::new(AtomicU64::new(0));
        let given = stream_of(random_batches(random, &rows));
        let kept = distinct(given, schema(), left_out.clone());
        let batches: Vec<RecordBatch> = block_on(kept.try_collect()).unwrap();
        assert_eq!(concat_batches(&schema(), &batches).unwrap(), batch_of(&once));
        assert_eq!(left_out.load(Ordering::Relaxed) as usize, rows.len() - once.len());
    });
}

#[tokio::test]
async fn rows_that_differ_in_what_does_not_decide_are_all_left() {
    let one = batch_of(&[row("a", 1)]);
    let mut columns = one.columns().to_vec();
    columns[6] = Arc::new(StringArray::from(vec!["another"]));
    let other = RecordBatch::try_new(schema(), columns).unwrap();
    let given = [&one, &other, &one, &other, &one].map(Clone::clone).to_vec();
    let left_out = Arc::new(AtomicU64::new(0));
    let kept = distinct(stream_of(given), schema(), left_out.clone());
    let batches: Vec<RecordBatch> = kept.try_collect().await.unwrap();
    let expected = concat_batches(&schema(), [&one, &other]).unwrap();
    assert_eq!(concat_batches(&schema(), &batches).unwrap(), expected);
    assert_eq!(left_out.load(Ordering::Relaxed), 3);
}
