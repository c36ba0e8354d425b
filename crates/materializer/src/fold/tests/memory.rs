//! The fold of unsorted batches in memory.

use alluvium_log::OrderBy;

use super::super::bytes::batch_bytes;
use super::super::memory::fold_batches_bounded;
use super::super::{Bounds, fold_batches};
use super::{
    ORDERS, assert_are, batch_of, model, random_batches, random_rows, row, schema, with_seeds,
};

#[test]
fn any_rows_in_any_order_fold_to_the_winner_of_each_key() {
    with_seeds(300, |random| {
        let count = *random.pick(&[0, 1, 10, 300]);
        let mut rows = random_rows(random, count);
        for order_by in ORDERS {
            let expected = model(&rows, order_by);
            random.shuffle(&mut rows);
            let batches = random_batches(random, &rows);
            assert_are(&fold_batches(order_by, &schema(), &batches).unwrap(), &expected);
        }
    });
}

#[test]
fn folding_a_fold_again_changes_nothing() {
    with_seeds(20, |random| {
        let batches = {
            let rows = random_rows(random, 300);
            random_batches(random, &rows)
        };
        let once = fold_batches(OrderBy::Version, &schema(), &batches).unwrap();
        let twice = fold_batches(OrderBy::Version, &schema(), &once).unwrap();
        assert_eq!(once, twice);
    });
}

#[test]
fn the_batches_of_a_fold_in_memory_are_bounded_by_rows_and_bytes() {
    let mut rows: Vec<_> = (0..100).map(|key| row(&format!("{key:03}"), 1)).collect();
    rows[50].key.push_str(&"x".repeat(5000));
    let bounds = Bounds { rows: 30, bytes: 2000 };
    let folded =
        fold_batches_bounded(&OrderBy::Version.into(), &schema(), &[batch_of(&rows)], bounds)
            .unwrap();
    assert_are(&folded, &rows);
    for batch in folded {
        assert!(batch.num_rows() == 1 || batch_bytes(&batch) <= 4000);
        assert!(batch.num_rows() <= 30);
    }
}
