//! The merge of sorted inputs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use alluvium_log::{Error, ErrorKind, OrderBy, Rank};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::super::bytes::batch_bytes;
use super::super::merge::merge_bounded;
use super::super::{Bounds, SortedInput, merge};
use super::{
    ORDERS, Random, Row, assert_gives, batch_of, block_on, dealt, failure_of, model,
    random_batches, random_rows, row, schema, sorted, stream_of, with_seeds,
};

fn input(batches: Vec<RecordBatch>, random: &mut Random) -> SortedInput {
    match random.below(3) {
        0 => SortedInput::Batches(batches),
        1 => SortedInput::Stream(stream_of(batches)),
        // One that is never ready at the first call.
        _ => SortedInput::Stream(
            stream_of(batches)
                .then(|batch| async {
                    tokio::task::yield_now().await;
                    batch
                })
                .boxed(),
        ),
    }
}

fn in_memory(rows: &[&[Row]]) -> SortedInput {
    SortedInput::Batches(rows.iter().map(|rows| batch_of(rows)).collect())
}

async fn failure(inputs: Vec<SortedInput>) -> Error {
    failure_of(Ok(merge(OrderBy::EventTime, schema(), inputs, 8192))).await
}

#[test]
fn any_rows_in_any_inputs_and_batches_merge_to_the_winner_of_each_key() {
    with_seeds(400, |random| {
        let count = *random.pick(&[0, 1, 10, 300]);
        let rows = random_rows(random, count);
        let inputs = 1 + random.below_one_of(&[1, 3, 40]);
        for order_by in ORDERS {
            let inputs: Vec<SortedInput> = dealt(random, &rows, inputs)
                .into_iter()
                .map(|rows| {
                    let batches = random_batches(random, &sorted(rows));
                    input(batches, random)
                })
                .collect();
            let batch_rows = *random.pick(&[1, 2, 7, 8192]);
            let merged = merge(order_by, schema(), inputs, batch_rows);
            let batches = block_on(assert_gives(merged, &model(&rows, order_by)));
            assert!(batches.iter().all(|batch| batch.num_rows() <= batch_rows));
        }
    });
}

#[test]
fn a_beaten_input_gives_the_keys_that_no_other_has_whatever_its_ranks_are() {
    with_seeds(300, |random| {
        let count = *random.pick(&[1, 10, 300]);
        let rows = random_rows(random, count);
        for order_by in ORDERS {
            let base = model(&random_rows(random, count), order_by);
            let mut expected = model(&rows, order_by);
            let has_key = |row: &Row| rows.iter().any(|other| other.key == row.key);
            expected.extend(base.iter().filter(|row| !has_key(row)).cloned());
            let count = 1 + random.below(3);
            let mut inputs: Vec<SortedInput> = dealt(random, &rows, count)
                .into_iter()
                .map(|rows| {
                    let batches = random_batches(random, &sorted(rows));
                    input(batches, random)
                })
                .collect();
            let place = random.below(inputs.len() + 1);
            let base = random_batches(random, &sorted(base));
            inputs.insert(place, SortedInput::Beaten(stream_of(base)));
            let batch_rows = *random.pick(&[1, 2, 7, 8192]);
            let merged = merge(order_by, schema(), inputs, batch_rows);
            block_on(assert_gives(merged, &sorted(expected)));
        }
    });
}

#[test]
fn large_inputs_of_unique_keys_merge_in_runs_and_row_by_row() {
    with_seeds(12, |random| {
        let mut rows: Vec<Row> =
            (0..20_000).map(|key| row(&format!("customer-{key:09}"), 1)).collect();
        // Some inputs own a stretch of keys, others take any.
        let mut inputs = vec![Vec::new(); 5];
        let mut owner = 0;
        for row in &rows {
            if random.below(300) == 0 {
                owner = random.below(3);
            }
            inputs[owner].push(row.clone());
        }
        for version in 0..4_000 {
            let changed = row(&format!("customer-{:09}", random.below(21_000)), version - 2000);
            inputs[3 + random.below(2)].push(changed.clone());
            rows.push(changed);
        }
        let inputs = inputs
            .into_iter()
            .map(|rows| {
                let batches = random_batches(random, &sorted(rows));
                input(batches, random)
            })
            .collect();
        let merged = merge(OrderBy::Version, schema(), inputs, 1000);
        block_on(assert_gives(merged, &model(&rows, OrderBy::Version)));
    });
}

#[tokio::test]
async fn each_level_of_the_rank_decides_between_rows_equal_in_those_above() {
    let rank = Rank { version: 1, event_time: 1, is_delete: false, commit: 1, append_seq: 0 };
    let greater = [
        Rank { append_seq: 1, ..rank },
        Rank { commit: 2, append_seq: -1, ..rank },
        Rank { is_delete: true, commit: 0, ..rank },
    ];
    let by_time = [Rank { version: 2, ..rank }, Rank { event_time: 2, version: 0, ..rank }];
    let by_version = [Rank { event_time: 2, ..rank }, Rank { version: 2, event_time: 0, ..rank }];
    for (order_by, last) in [(OrderBy::EventTime, by_time), (OrderBy::Version, by_version)] {
        for winner in greater.into_iter().chain(last) {
            let (loser, winner) =
                (Row { key: "key".into(), rank }, Row { key: "key".into(), rank: winner });
            for rows in [[loser.clone(), winner.clone()], [winner.clone(), loser.clone()]] {
                let one_input = vec![in_memory(&[&rows])];
                let two_batches = vec![in_memory(&[&rows[..1], &rows[1..]])];
                let two_inputs = vec![in_memory(&[&rows[..1]]), in_memory(&[&rows[1..]])];
                for inputs in [one_input, two_batches, two_inputs] {
                    let merged = merge(order_by, schema(), inputs, 8192);
                    assert_gives(merged, std::slice::from_ref(&winner)).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_key_that_goes_on_over_many_batches_is_one_row() {
    let batches: Vec<Vec<Row>> = vec![
        vec![row("a", 1), row("b", 7)],
        vec![row("b", 9), row("b", 3)],
        vec![],
        vec![row("b", 8)],
        vec![row("b", 2), row("c", 1)],
    ];
    let rows = batches.concat();
    let batches = batches.iter().map(|rows| batch_of(rows)).collect();
    let merged = merge(OrderBy::EventTime, schema(), vec![SortedInput::Batches(batches)], 1);
    assert_gives(merged, &model(&rows, OrderBy::EventTime)).await;
}

#[tokio::test]
async fn an_input_out_of_order_is_refused_and_named() {
    let ordered: &[Row] = &[row("a", 1), row("d", 1)];
    let within = in_memory(&[&[row("a", 1), row("c", 1), row("b", 1)]]);
    let after_repeats = in_memory(&[&[row("b", 1), row("b", 2), row("c", 1), row("a", 1)]]);
    let over_batches = in_memory(&[&[row("a", 1), row("c", 1)], &[], &[row("b", 1)]]);
    for bad in [within, after_repeats, over_batches] {
        let error = failure(vec![in_memory(&[ordered]), bad]).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("input 1 of a merge"), "{error}");
    }
}

#[tokio::test]
async fn rows_out_of_order_are_told_by_their_keys_long_ones_cut_short() {
    for (length, shown) in [(80, "é".repeat(80)), (81, format!("{}…", "é".repeat(80)))] {
        let rows = [row(&"é".repeat(length), 1), row("b", 1)];
        let error = failure(vec![in_memory(&[&rows])]).await;
        let told = format!("\"b\" comes after \"{shown}\"");
        assert!(error.message().contains(&told), "{error}");
    }
}

#[tokio::test]
async fn an_error_of_an_input_ends_the_merge_with_it() {
    let broken = stream::iter([
        Ok(batch_of(&[row("a", 1)])),
        Err(Error::new(ErrorKind::Storage, "the disk is gone")),
    ]);
    let inputs = vec![in_memory(&[&[row("b", 1)]]), SortedInput::Stream(broken.boxed())];
    let error = failure(inputs).await;
    assert_eq!((error.kind(), error.message()), (ErrorKind::Storage, "the disk is gone"));
}

#[tokio::test]
async fn no_inputs_and_empty_inputs_give_an_empty_stream() {
    for inputs in [vec![], vec![in_memory(&[])], vec![in_memory(&[&[], &[]]), in_memory(&[])]] {
        let merged = merge(OrderBy::EventTime, schema(), inputs, 8192);
        assert!(assert_gives(merged, &[]).await.is_empty());
    }
}

#[tokio::test]
async fn a_single_input_of_unique_keys_passes_through_without_a_copy() {
    let rows: Vec<Row> = (0..90).map(|key| row(&format!("{key:03}"), 1)).collect();
    let batches: Vec<RecordBatch> = rows.chunks(10).map(batch_of).collect();
    let merged =
        merge(OrderBy::EventTime, schema(), vec![SortedInput::Batches(batches.clone())], 10);
    let passed = assert_gives(merged, &rows).await;
    assert_eq!(passed.len(), batches.len());
    for (passed, batch) in passed.iter().zip(&batches) {
        assert!(passed.columns().iter().zip(batch.columns()).all(|(a, b)| shares_memory(a, b)));
    }
}

fn shares_memory(one: &arrow::array::ArrayRef, other: &arrow::array::ArrayRef) -> bool {
    let (one, other) = (one.to_data(), other.to_data());
    one.buffers().iter().zip(other.buffers()).all(|(a, b)| a.as_ptr() == b.as_ptr())
}

#[tokio::test]
async fn batches_of_a_base_that_no_overlay_touches_pass_through_without_a_copy() {
    let mut rows: Vec<Row> = (0..10_000).map(|key| row(&format!("{key:06}"), 1)).collect();
    let base: Vec<RecordBatch> = rows.chunks(100).map(batch_of).collect();
    let overlay = vec![row("000150", 2), row("005000x", 2), row("009999", 2)];
    rows.extend(overlay.iter().cloned());
    let inputs = vec![in_memory(&[&overlay]), SortedInput::Batches(base.clone())];
    let merged = merge(OrderBy::Version, schema(), inputs, 100);
    let merged = assert_gives(merged, &model(&rows, OrderBy::Version)).await;
    let passed = merged
        .iter()
        .filter(|batch| base.iter().any(|base| shares_memory(batch.column(0), base.column(0))))
        .count();
    assert!(passed >= 90, "only {passed} of 100 batches were passed through");
}

#[test]
fn a_base_under_small_overlays_gives_the_winner_of_each_key() {
    with_seeds(60, |random| {
        let count = *random.pick(&[50, 700]);
        let base: Vec<Row> = (0..count).map(|key| row(&format!("{key:06}"), 1)).collect();
        let mut rows = base.clone();
        let mut inputs = vec![unique(random, &base)];
        for overlay in 0..1 + random.below(3) {
            let mut changes = std::collections::BTreeMap::new();
            for _ in 0..random.below_one_of(&[3, 30, 200]) {
                let new = if random.below(20) == 0 { "x" } else { "" };
                let mut changed = row(&format!("{:06}{new}", random.below(count)), overlay as i64);
                changed.rank.is_delete = random.below(10) == 0;
                changes.insert(changed.key.clone(), changed);
            }
            let changes: Vec<Row> = changes.into_values().collect();
            inputs.push(unique(random, &changes));
            rows.extend(changes);
        }
        let batch_rows = *random.pick(&[16, 64, 100]);
        let merged = merge(OrderBy::Version, schema(), inputs, batch_rows);
        let batches = block_on(assert_gives(merged, &model(&rows, OrderBy::Version)));
        assert!(batches.iter().all(|batch| batch.num_rows() <= batch_rows));
    });
}

/// An input of unique keys whose batches nobody else holds, or whose batches are parts of one.
fn unique(random: &mut Random, rows: &[Row]) -> SortedInput {
    let size = *random.pick(&[16, 64, 100]);
    let batches: Vec<RecordBatch> = match random.below(2) {
        0 => rows.chunks(size).map(batch_of).collect(),
        _ => {
            let whole = batch_of(rows);
            let starts = (0..rows.len()).step_by(size);
            starts.map(|start| whole.slice(start, size.min(rows.len() - start))).collect()
        }
    };
    SortedInput::Unique(stream_of(batches))
}

#[tokio::test]
async fn keys_of_a_base_that_is_only_updated_are_not_copied() {
    let mut rows: Vec<Row> = (0..10_000).map(|key| row(&format!("{key:06}"), 1)).collect();
    let base: Vec<RecordBatch> = rows.chunks(100).map(batch_of).collect();
    let overlay: Vec<Row> =
        (0..10_000).step_by(37).map(|key| row(&format!("{key:06}"), 2)).collect();
    rows.extend(overlay.iter().cloned());
    let inputs = vec![in_memory(&[&overlay]), SortedInput::Unique(stream_of(base.clone()))];
    let merged = merge(OrderBy::Version, schema(), inputs, 100);
    let merged = assert_gives(merged, &model(&rows, OrderBy::Version)).await;
    let kept = merged
        .iter()
        .filter(|batch| base.iter().any(|base| shares_memory(batch.column(0), base.column(0))))
        .count();
    assert_eq!(kept, 100);
}

#[test]
fn batches_are_bounded_by_bytes_as_well() {
    with_seeds(30, |random| {
        let mut rows = random_rows(random, 200);
        for row in &mut rows {
            row.key.push_str(&"wide".repeat(random.below_one_of(&[1, 200, 2000])));
        }
        let inputs = dealt(random, &rows, 4)
            .into_iter()
            .map(|rows| {
                let batches = random_batches(random, &sorted(rows));
                input(batches, random)
            })
            .collect();
        let bounds = Bounds { rows: 1000, bytes: 10_000 };
        let merged = merge_bounded(OrderBy::EventTime.into(), schema(), inputs, bounds);
        let batches = block_on(assert_gives(merged, &model(&rows, OrderBy::EventTime)));
        for batch in batches {
            let bytes = batch_bytes(&batch);
            // Rows of batches too light to be weighed row by row may be off by the bound together.
            assert!(batch.num_rows() == 1 || bytes <= 2 * bounds.bytes, "{bytes}");
        }
    });
}

#[tokio::test]
async fn a_batch_without_a_key_or_of_another_schema_is_refused() {
    let good = batch_of(&[row("a", 1)]);
    let nullable: Vec<Field> = good
        .schema()
        .fields()
        .iter()
        .map(|field| field.as_ref().clone().with_nullable(true))
        .collect();
    let mut columns = good.columns().to_vec();
    columns[0] = arrow::array::new_null_array(&arrow::datatypes::DataType::Utf8, 1);
    let keyless = RecordBatch::try_new(Arc::new(Schema::new(nullable)), columns).unwrap();
    let error = failure(vec![SortedInput::Batches(vec![keyless])]).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");

    let narrow = good.project(&[0, 1, 2, 3, 4, 5]).unwrap();
    let error = failure(vec![SortedInput::Batches(vec![narrow.clone()])]).await;
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");

    let no_fold = narrow.project(&[1, 0]).unwrap().schema();
    let error = failure_of(Ok(merge(OrderBy::EventTime, no_fold, vec![], 1))).await;
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
}

#[tokio::test]
async fn a_schema_that_lacks_a_column_or_has_another_name_or_type_is_refused() {
    let own = schema();
    let changed = |change: fn(&mut Vec<Field>)| {
        let mut fields: Vec<Field> = own.fields().iter().map(|f| f.as_ref().clone()).collect();
        change(&mut fields);
        Arc::new(Schema::new(fields))
    };
    let others = [
        changed(|fields| fields.truncate(5)),
        changed(|fields| fields.swap(0, 1)),
        changed(|fields| fields[1] = fields[1].clone().with_name("number")),
        changed(|fields| fields[5] = Field::new(fields[5].name(), DataType::Int64, false)),
    ];
    for other in others {
        let error = failure_of(Ok(merge(OrderBy::EventTime, other, vec![], 1))).await;
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
        assert!(error.message().contains("columns that are not its own"), "{error}");
    }
    // Batches are held against the schema of their fold in the same way.
    let of = |column: usize, field: Field| {
        let mut fields: Vec<Field> = own.fields().iter().map(|f| f.as_ref().clone()).collect();
        fields[column] = field;
        let array = arrow::array::new_empty_array(fields[column].data_type());
        let mut columns = batch_of(&[]).columns().to_vec();
        columns[column] = array;
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
    };
    let whole = [
        of(6, Field::new("other", DataType::Utf8, true)),
        of(6, Field::new("label", DataType::Int64, true)),
    ];
    for batch in whole {
        let error = super::super::batch::KeyedBatch::try_new(batch, &own).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    }
}

#[tokio::test]
async fn a_row_without_what_decides_is_refused_where_the_schema_would_allow_it() {
    let good = batch_of(&[row("a", 1), row("b", 1)]);
    let own = schema();
    let nullable = own.fields().iter().map(|f| f.as_ref().clone().with_nullable(true));
    let nullable = Arc::new(Schema::new(nullable.collect::<Vec<_>>()));
    for column in 0..alluvium_log::FOLD_COLUMNS {
        let mut columns = good.columns().to_vec();
        columns[column] = arrow::array::new_null_array(columns[column].data_type(), 2);
        let batch = RecordBatch::try_new(nullable.clone(), columns).unwrap();
        let inputs = vec![SortedInput::Batches(vec![batch])];
        let merged = merge(OrderBy::EventTime, nullable.clone(), inputs, 8192);
        let error = failure_of(Ok(merged)).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let name = nullable.field(column).name();
        assert!(error.message().contains(&format!("a row has no {name}")), "{error}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_long_merge_lets_other_tasks_run() {
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = turns.clone();
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    // All of one key, so that nothing comes out that the reader could wait for.
    let batch = batch_of(&(0..8192).map(|version| row("key", version)).collect::<Vec<_>>());
    let batches = SortedInput::Batches(vec![batch; 20]);
    let merged = merge(OrderBy::EventTime, schema(), vec![batches], 8192);
    let rows = merged.try_collect::<Vec<_>>().await.unwrap();
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
    assert!(turns.load(Ordering::Relaxed) >= 5);
    other.abort();
}
