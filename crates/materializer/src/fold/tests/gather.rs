//! What a fold holds while it gathers, and which runs it merges before the last merge.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use alluvium_log::OrderBy;
use arrow::array::Array;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;

use super::super::bytes::Footprint;
use super::super::memory::INDEX_BYTES_PER_ROW;
use super::super::{FoldInput, FoldSettings, fold};
use super::{Row, assert_gives, batch_of, row, schema};

fn settings_in(folder: &Path, memory_budget_bytes: usize, fan_in: usize) -> FoldSettings {
    let spill_dir = Some(folder.to_owned());
    FoldSettings { memory_budget_bytes, fan_in, spill_dir, ..FoldSettings::default() }
}

/// A sixth of the budget is gathered, with the index of its rows, and let go of once it is folded.
#[tokio::test]
async fn as_many_batches_are_held_while_gathering_as_a_sixth_of_the_budget_has_room_for() {
    const BATCHES: usize = 60;
    const ROWS: usize = 1_000;
    let rows: Vec<Row> =
        (0..(BATCHES * ROWS) as i64).map(|key| row(&format!("{key:06}"), key)).collect();
    let of_one = {
        let mut footprint = Footprint::default();
        footprint.add(&batch_of(&rows[..ROWS]));
        footprint.bytes() + ROWS * INDEX_BYTES_PER_ROW
    };
    let budget = of_one * 10 * 6;
    let held = Arc::new(Mutex::new((Vec::<Weak<dyn Array>>::new(), Vec::new())));
    let (given, noted) = (rows.clone(), held.clone());
    let stream = stream::iter(0..BATCHES).map(move |number| {
        let batch = batch_of(&given[number * ROWS..(number + 1) * ROWS]);
        let mut held = noted.lock();
        let now = held.0.iter().filter(|batch| batch.strong_count() > 0).count();
        held.1.push(now);
        held.0.push(Arc::downgrade(batch.column(0)));
        Ok(batch)
    });
    let input = FoldInput::Unsorted { bytes: 1, open: Box::new(move || stream.boxed()) };
    let folder = tempfile::tempdir().unwrap();
    let settings = settings_in(folder.path(), budget, 64);
    let folded = fold(OrderBy::Version, schema(), vec![input], &settings).await.unwrap();
    assert!(std::fs::read_dir(folder.path()).unwrap().count() > 0, "nothing was spilled");
    assert_gives(folded, &rows).await;
    let counts = held.lock().1.clone();
    let most = *counts.iter().max().unwrap();
    assert!((9..=11).contains(&most), "{most} of {counts:?}");
    // What was folded leaves room for as much again, instead of being folded anew with each batch.
    let mean = counts.iter().sum::<usize>() / counts.len();
    assert!(mean >= 3, "{mean} of {counts:?}");
}

/// Which of some sorted inputs, the smallest first, were read before the last merge, each with how many runs lay on disk by then.
async fn merged_before(inputs: usize, open_bytes: u64, fan_in: usize) -> Vec<(usize, usize)> {
    let folder = tempfile::tempdir().unwrap();
    let first_reads = Arc::new(Mutex::new(Vec::new()));
    let reading = Arc::new(AtomicUsize::new(0));
    let rows: Vec<Row> = (0..inputs as i64).map(|key| row(&format!("{key:05}"), 1)).collect();
    let given = (0..inputs).map(|input| {
        let (reads, reading) = (first_reads.clone(), reading.clone());
        let (batch, folder) = (batch_of(&rows[input..=input]), folder.path().to_owned());
        let opened = stream::once(async move {
            reading.fetch_add(1, Ordering::Relaxed);
            let spilled = std::fs::read_dir(folder).unwrap().flatten();
            let runs = spilled.flat_map(|entry| std::fs::read_dir(entry.path()).unwrap()).count();
            reads.lock().push((input, runs));
            Ok(batch)
        });
        let open = Box::new(move || opened.boxed());
        FoldInput::Sorted { bytes: (input as u64 + 1) << 40, open_bytes, open }
    });
    // The largest first, so that the order is not the one they are merged in.
    let given: Vec<FoldInput> = given.collect::<Vec<_>>().into_iter().rev().collect();
    // A third of it is 1,000,000 bytes.
    let settings = settings_in(folder.path(), 3_000_000, fan_in);
    let folded = fold(OrderBy::Version, schema(), given, &settings).await.unwrap();
    let mut before = first_reads.lock().clone();
    before.sort_unstable();
    assert_gives(folded, &rows).await;
    assert_eq!(reading.load(Ordering::Relaxed), inputs);
    before
}

#[tokio::test]
async fn the_smallest_runs_are_merged_before_the_rest_and_no_more_than_it_takes() {
    assert_eq!(merged_before(3, 0, 3).await, []);
    assert_eq!(merged_before(4, 0, 3).await, [(0, 1), (1, 1)]);
    assert_eq!(merged_before(5, 0, 3).await, [(0, 1), (1, 1), (2, 1)]);
    assert_eq!(merged_before(7, 0, 3).await, [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)]);
}

#[tokio::test]
async fn runs_that_are_too_large_to_be_open_together_are_merged_before_by_what_they_take() {
    assert_eq!(merged_before(2, 1 << 40, 30).await, []);
    assert_eq!(merged_before(3, 333_333, 30).await, []);
    assert_eq!(merged_before(4, 250_000, 30).await, []);
    assert_eq!(merged_before(4, 300_000, 30).await, [(0, 1), (1, 1)]);
    assert_eq!(merged_before(4, 400_000, 30).await, [(0, 1), (1, 1)]);
    assert_eq!(merged_before(6, 300_000, 30).await, [(0, 1), (1, 1), (2, 1)]);
    assert_eq!(merged_before(6, 250_000, 30).await, [(0, 1), (1, 1)]);
    assert_eq!(merged_before(8, 250_000, 30).await, [(0, 1), (1, 1), (2, 1), (3, 1)]);
}
