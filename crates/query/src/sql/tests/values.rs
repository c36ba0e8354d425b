//! Filters on the value's fields leave out what can't match, and nothing else.

use std::sync::Arc;

use alluvium_log::OrderBy;
use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Field, Fields, Int64Type};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fixture::{Commit, LAYOUTS, session, state, storage};
use super::slt::collect;

const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Each commit has values of its own, so that whole files can be left out by them.
const VALUES_OF_COMMIT: i64 = 10;

/// A change of every key, at random times: some are late.
fn commit(rng: &mut StdRng, number: i64) -> Commit {
    let rows = KEYS.iter().map(|key| (*key, rng.random_range(0..100), rng.random_range(0..50)));
    let rows: Vec<_> = rows.collect();
    let first = number * VALUES_OF_COMMIT;
    let value = |_| rng.random_range(first..first + VALUES_OF_COMMIT);
    let values: Int64Array = KEYS.iter().map(value).collect();
    let deleted = if number == 1 { vec!["c"] } else { Vec::new() };
    Commit { rows, deleted, value: vec![Arc::new(values) as ArrayRef] }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_row_does_not_come_up_because_the_newer_one_beneath_was_left_out() {
    let fields = Fields::from(vec![Field::new("n", DataType::Int64, true)]);
    for seed in 0..3 {
        for (order_by, layout) in [OrderBy::EventTime, OrderBy::Version]
            .into_iter()
            .flat_map(|order_by| LAYOUTS.map(|layout| (order_by, layout)))
        {
            let mut rng = StdRng::seed_from_u64(seed);
            let commits: Vec<_> = (0..3).map(|number| commit(&mut rng, number)).collect();
            let storage = storage();
            let reader = state(&storage, "late", order_by, fields.clone(), &commits, layout).await;
            let session = session(vec![reader]);
            for value in (0..3 * VALUES_OF_COMMIT).step_by(4) {
                let count = |filter: String| {
                    let sql = format!("SELECT count(*) FROM late WHERE {filter}");
                    let session = &session;
                    async move {
                        let rows = collect(session, &sql).await.unwrap();
                        rows[0].column(0).as_primitive::<Int64Type>().value(0)
                    }
                };
                for operator in ["=", "<", ">="] {
                    // The sum hides the field from what is pushed down.
                    let pushed = count(format!("n {operator} {value}")).await;
                    let looked_at = count(format!("n + 0 {operator} {value}")).await;
                    assert_eq!(
                        pushed, looked_at,
                        "seed {seed}, {order_by:?}, {layout:?}: n {operator} {value}"
                    );
                }
            }
        }
    }
}
