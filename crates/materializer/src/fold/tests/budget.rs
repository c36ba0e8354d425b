//! The fold within a budget: gathering, spilling and passes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use alluvium_log::{Error, ErrorKind, OrderBy};
use arrow::record_batch::RecordBatch;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::super::{BatchStream, FoldInput, FoldSettings, fold};
use super::{
    ORDERS, Random, Row, assert_gives, batch_of, block_on, dealt, failure_of, model,
    random_batches, random_rows, row, schema, sorted, stream_of, with_seeds,
};

fn unsorted(batches: Vec<RecordBatch>) -> FoldInput {
    FoldInput::Unsorted { bytes: 1000, open: Box::new(move || stream_of(batches)) }
}

/// A sorted input that seems so large that it is streamed.
fn streamed(stream: BatchStream) -> FoldInput {
    FoldInput::Sorted { bytes: 1 << 40, open_bytes: 0, open: Box::new(move || stream) }
}

fn random_input(random: &mut Random, rows: Vec<Row>) -> FoldInput {
    match random.below(3) {
        0 => unsorted(random_batches(random, &rows)),
        1 => {
            let batches = random_batches(random, &sorted(rows));
            FoldInput::Sorted {
                bytes: 1,
                open_bytes: 0,
                open: Box::new(move || stream_of(batches)),
            }
        }
        _ => streamed(stream_of(random_batches(random, &sorted(rows)))),
    }
}

fn settings_in(folder: &Path, memory_budget_bytes: usize) -> FoldSettings {
    FoldSettings {
        memory_budget_bytes,
        fan_in: 2,
        spill_dir: Some(folder.to_owned()),
        ..FoldSettings::default()
    }
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn any_inputs_within_any_budget_fold_to_the_winner_of_each_key() {
    let folder = tempfile::tempdir().unwrap();
    with_seeds(150, |random| {
        let count = *random.pick(&[0, 10, 300]);
        let rows = random_rows(random, count);
        let inputs = 1 + random.below_one_of(&[1, 5, 30]);
        for order_by in ORDERS {
            let settings = FoldSettings {
                memory_budget_bytes: *random.pick(&[1, 10_000, 100_000, 1_000_000, 1 << 30]),
                batch_rows: *random.pick(&[1, 2, 7, 8192]),
                fan_in: *random.pick(&[2, 3, 64]),
                spill_dir: Some(folder.path().to_owned()),
            };
            let inputs = dealt(random, &rows, inputs)
                .into_iter()
                .map(|rows| random_input(random, rows))
                .collect();
            block_on(async {
                let folded = fold(order_by, schema(), inputs, &settings).await.unwrap();
                let batches = assert_gives(folded, &model(&rows, order_by)).await;
                assert!(batches.iter().all(|batch| batch.num_rows() <= settings.batch_rows));
            });
            assert_eq!(entries(folder.path()), 0, "something was left in the spill folder");
        }
    });
}

#[tokio::test]
async fn what_exceeds_the_budget_is_spilled_and_what_fits_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<Row> = (0..5000).map(|key| row(&format!("{:05}", key * 7 % 5000), 1)).collect();
    let batches: Vec<RecordBatch> = rows.chunks(100).map(batch_of).collect();
    for (budget, spills) in [(100_000, true), (100 << 20, false)] {
        let settings = settings_in(folder.path(), budget);
        let inputs = vec![unsorted(batches.clone())];
        let folded = fold(OrderBy::Version, schema(), inputs, &settings).await.unwrap();
        assert_eq!(entries(folder.path()) > 0, spills);
        assert_gives(folded, &sorted(rows.clone())).await;
        assert_eq!(entries(folder.path()), 0);
    }
}

#[tokio::test]
async fn many_changes_of_few_keys_are_folded_without_spilling() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<Row> = (0..30_000).map(|at| row(&format!("{}", at % 50), at)).collect();
    let batches: Vec<RecordBatch> = rows.chunks(200).map(batch_of).collect();
    let settings = settings_in(folder.path(), 500_000);
    let inputs = vec![unsorted(batches)];
    let folded = fold(OrderBy::Version, schema(), inputs, &settings).await.unwrap();
    assert_eq!(entries(folder.path()), 0);
    assert_gives(folded, &model(&rows, OrderBy::Version)).await;
}

#[tokio::test]
async fn a_fold_that_is_dropped_half_way_leaves_nothing_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<Row> = (0..2000).map(|key| row(&format!("{key:05}"), 1)).collect();
    let batches: Vec<RecordBatch> = rows.chunks(10).map(batch_of).collect();
    let settings = FoldSettings { batch_rows: 10, ..settings_in(folder.path(), 10_000) };
    let inputs = vec![unsorted(batches)];
    let mut folded = fold(OrderBy::Version, schema(), inputs, &settings).await.unwrap();
    folded.try_next().await.unwrap().unwrap();
    assert_eq!(entries(folder.path()), 1);
    drop(folded);
    assert_eq!(entries(folder.path()), 0);
}

#[tokio::test]
async fn a_fold_that_fails_after_spilling_leaves_nothing_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<Row> = (0..2000).map(|key| row(&format!("{key:05}"), 1)).collect();
    let batches: Vec<RecordBatch> = rows.chunks(10).map(batch_of).collect();
    let broken = stream_of(batches)
        .chain(stream::iter([Err(Error::new(ErrorKind::Storage, "the disk is gone"))]));
    let input = FoldInput::Unsorted { bytes: 1, open: Box::new(move || broken.boxed()) };
    let settings = settings_in(folder.path(), 10_000);
    let error = failure_of(fold(OrderBy::Version, schema(), vec![input], &settings).await).await;
    assert_eq!(error.message(), "the disk is gone");
    assert_eq!(entries(folder.path()), 0);
}

#[tokio::test]
async fn a_spill_folder_that_cannot_be_written_is_named_with_its_setting() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let settings = settings_in(&missing, 1);
    let inputs = vec![unsorted(vec![batch_of(&[row("a", 1)])])];
    let error = failure_of(fold(OrderBy::Version, schema(), inputs, &settings).await).await;
    assert_eq!(error.kind(), ErrorKind::Storage);
    for fact in [missing.to_str().unwrap(), "spill_dir", "memory_budget_bytes"] {
        assert!(error.message().contains(fact), "{error}");
    }
}

#[tokio::test]
async fn a_large_input_out_of_order_is_refused() {
    let input = streamed(stream_of(vec![batch_of(&[row("b", 1), row("a", 1)])]));
    let settings = FoldSettings::default();
    let error = failure_of(fold(OrderBy::Version, schema(), vec![input], &settings).await).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn no_more_large_inputs_are_open_at_once_than_the_fan_in() {
    most_open(5, 0, 5).await;
}

#[tokio::test]
async fn no_more_inputs_are_open_at_once_than_their_bytes_allow() {
    // A third of 1 MiB holds three of 100 kB. Two are merged however large they are.
    most_open(30, 100_000, 3).await;
    most_open(30, 1 << 30, 2).await;
}

async fn most_open(fan_in: usize, open_bytes: u64, expected: usize) {
    let folder = tempfile::tempdir().unwrap();
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let rows: Vec<Row> = (0..300).map(|key| row(&format!("{key:05}"), 1)).collect();
    let inputs = (0..30)
        .map(|part| {
            let own: Vec<Row> = rows.iter().skip(part).step_by(30).cloned().collect();
            let counted = Counted::new(&open, &most);
            FoldInput::Sorted {
                bytes: 1 << 40,
                open_bytes,
                open: Box::new(move || {
                    let guard = counted.enter();
                    stream::iter([Ok(batch_of(&own))]).inspect(move |_| guard.touch()).boxed()
                }),
            }
        })
        .collect();
    let settings = FoldSettings { fan_in, ..settings_in(folder.path(), 1 << 20) };
    let folded = fold(OrderBy::Version, schema(), inputs, &settings).await.unwrap();
    assert_gives(folded, &rows).await;
    assert_eq!(open.load(Ordering::Relaxed), 0);
    assert!(most.load(Ordering::Relaxed) <= expected, "{most:?}");
}

/// Counts how many are open, and the most there ever were.
struct Counted {
    open: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

struct Opened(Arc<AtomicUsize>);

impl Counted {
    fn new(open: &Arc<AtomicUsize>, most: &Arc<AtomicUsize>) -> Self {
        Self { open: open.clone(), most: most.clone() }
    }

    fn enter(self) -> Opened {
        let now = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        Opened(self.open)
    }
}

impl Opened {
    fn touch(&self) {}
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
