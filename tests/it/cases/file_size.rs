//! Files of a compaction and of a materialization have about the size that a state's settings ask for, whoever writes them.

use std::sync::Arc;

use alluvium::{
    LayoutSettings, MaintainStep, ManualClock, OrderBy, Point, RawState, StepOutcome, StoreSettings,
};
use arrow::array::{RecordBatch, StringArray, StructArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Fields};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::support::delta;
use crate::support::stores::{
    DAY, Home, START, assert_sound, create, scan_rows, set, settings, value_batch,
};

const TARGET: u64 = 64 * 1024;

fn fields() -> Fields {
    Fields::from(vec![Field::new("text", DataType::Utf8, true)])
}

/// Rows that don't compress away, with keys all over.
fn changes(rng: &mut StdRng, rows: i64, first: i64) -> RecordBatch {
    let keys: Vec<String> = (0..rows).map(|_| format!("{:08x}", rng.random::<u32>())).collect();
    let text = |_| format!("{:016x}{:016x}", rng.random::<u64>(), rng.random::<u64>());
    let texts = Arc::new((0..rows).map(text).map(Some).collect::<StringArray>());
    let versions = (first..first + rows).collect::<Vec<_>>();
    let times = vec![START; keys.len()];
    let value = StructArray::new(fields(), vec![texts], None);
    value_batch(keys.iter().map(String::as_str), versions, &times, Arc::new(value))
}

fn sizes<'a>(files: impl Iterator<Item = &'a Arc<alluvium::DataFile>>) -> Vec<u64> {
    files.map(|file| file.add.size).collect()
}

/// Most files are about as large as they are to be, none is much larger.
fn assert_sized(what: &str, sizes: &[u64], target: u64) {
    let total: u64 = sizes.iter().sum();
    let (most, least) = (total / target + 1, total / (2 * target));
    assert!(sizes.iter().all(|size| *size < target * 3 / 2), "{what}: {sizes:?}");
    let count = sizes.len() as u64;
    assert!(least <= count && count <= 2 * most, "{what} of {total} bytes: {sizes:?}");
}

async fn rows(state: &RawState) -> usize {
    scan_rows(state, Point::LATEST).await.iter().map(RecordBatch::num_rows).sum()
}

/// Small files of the snapshot that a compaction by the job joins, and into how many.
async fn joined_files(state: &RawState) -> (u64, u64) {
    let report = state.maintain(&[MaintainStep::Compact], false).await.unwrap();
    let StepOutcome::Compacted(done) = &report.steps[0].outcome else { panic!("{report:?}") };
    (done.snapshot_files_removed, done.snapshot_files_added)
}

#[tokio::test(flavor = "multi_thread")]
async fn files_have_about_the_size_that_is_set() {
    let home = Home::new();
    let clock = Arc::new(ManualClock::at(START));
    let state = create(&home.open_at(&clock).await, "s", &fields(), OrderBy::Version).await;
    let mut rng = StdRng::seed_from_u64(1);
    for part in 0..12 {
        state.append(&changes(&mut rng, 1_000, part * 1_000)).await.unwrap();
    }
    state.materialize(false).await.unwrap();
    let snapshot = sizes(state.snapshot().state().files());
    assert_eq!(snapshot.len(), 1, "a small state lies in one file unless something else is set");
    set(&state, &[("target_file_size", "64KiB")]).await;
    // Another process obeys what was set by this one.
    let state = home.open_at(&clock).await.raw_state("s").await.unwrap();
    state.append(&changes(&mut rng, 1_000, 20_000)).await.unwrap();
    clock.set(START + 3 * DAY);
    let expected = rows(&state).await;
    state.maintain(&[MaintainStep::Materialize, MaintainStep::Compact], false).await.unwrap();
    assert_sized("log", &sizes(state.log().state().files()), TARGET);
    assert_sized("snapshot", &sizes(state.snapshot().state().files()), TARGET);
    assert_eq!(rows(&state).await, expected);
    let again = state.maintain(&[MaintainStep::Compact], false).await.unwrap();
    assert_eq!(again.log_before, again.log_after, "nothing is to gain by it");
    set(&state, &[("target_file_size", "256KiB")]).await;
    state.append(&changes(&mut rng, 6_000, 30_000)).await.unwrap();
    clock.set(START + 6 * DAY);
    state.maintain(&[MaintainStep::Materialize, MaintainStep::Compact], false).await.unwrap();
    assert_sized("log", &sizes(state.log().state().files()), 4 * TARGET);
    let small = state.snapshot().state().base().len();
    set(&state, &[("target_file_size", "default")]).await;
    let before = scan_rows(&state, Point::LATEST).await;
    let joined = joined_files(&state).await;
    assert_eq!(joined.0, small as u64);
    assert!(state.snapshot().state().base().len() < small, "{joined:?}");
    assert_eq!(joined_files(&state).await, (0, 0), "once");
    let (whole, schema) = (scan_rows(&state, Point::LATEST).await, before[0].schema());
    let [before, whole] = [before, whole].map(|rows| concat_batches(&schema, &rows).unwrap());
    assert_eq!(before, whole);
    set(&state, &[("target_file_size", "256KiB")]).await;
    let table = delta::open(&home.table("s", "log")).await;
    let properties = table.snapshot().unwrap().metadata().configuration().clone();
    assert_eq!(properties["delta.targetFileSize"], (4 * TARGET).to_string());
    assert_sound(&state).await;
}

/// Inserts all over a base of full files, again and again: as many files as the rows need, give or take.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_grows_everywhere_keeps_files_of_a_size() {
    let home = Home::new();
    let layout = LayoutSettings { file_rows: 500, ..LayoutSettings::default() };
    let store = home.open_with(StoreSettings { layout, ..settings() }).await;
    let state = create(&store, "s", &fields(), OrderBy::Version).await;
    let mut rng = StdRng::seed_from_u64(2);
    state.append(&changes(&mut rng, 10_000, 0)).await.unwrap();
    state.materialize(false).await.unwrap();
    for round in 1..=60 {
        state.append(&changes(&mut rng, 100, 100_000 * round)).await.unwrap();
        state.materialize(false).await.unwrap();
    }
    let snapshot = state.snapshot().state();
    let rows: Vec<u64> = snapshot.base().iter().map(|file| file.stats.rows.unwrap()).collect();
    let all: u64 = rows.iter().sum();
    assert!(rows.len() as u64 <= 2 * all / 500, "{} files of {all} rows: {rows:?}", rows.len());
    assert!(rows.iter().all(|rows| *rows <= 750), "{rows:?}");
    assert_sound(&state).await;
}
