//! What the log promises, on the smallest examples. The model tests of the whole are in the package of integration tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, StructArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, Fields, Int64Type};
use futures::TryStreamExt;

use crate::{
    Durability, EpochOutcome, ErrorKind, FooterCache, Log, LogOptions, ManualClock, OrderBy,
    ReadSpec, Receipt, RowFilter, StateDefinition, StateSettings, Storage, read_file,
};

fn fields() -> Fields {
    Fields::from(vec![Field::new("n", DataType::Int64, true)])
}

fn changes(rows: &[(&str, i64, i64)]) -> RecordBatch {
    let keys = StringArray::from_iter_values(rows.iter().map(|row| row.0));
    let versions = Int64Array::from_iter_values(rows.iter().map(|row| row.1));
    let times =
        TimestampMicrosecondArray::from_iter_values(rows.iter().map(|row| row.1 * 1_000_000))
            .with_timezone("UTC");
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2)));
    RecordBatch::try_from_iter([
        ("state_key", Arc::new(keys) as ArrayRef),
        ("version", Arc::new(versions)),
        ("event_time", Arc::new(times)),
        ("state_value", Arc::new(StructArray::new(fields(), vec![values], None))),
    ])
    .unwrap()
}

async fn new_log(storage: &Storage) -> Log {
    let settings = StateSettings { order_by: OrderBy::Version, ..Default::default() };
    let definition = StateDefinition::new(&fields(), settings).unwrap();
    Log::create(storage, "s", &definition, LogOptions::default()).await.unwrap().0
}

async fn read_all(log: &Log, filter: RowFilter) -> Vec<(String, i64, i64)> {
    let state = log.refresh().await.unwrap();
    let footers = FooterCache::new(1 << 20);
    let spec = ReadSpec { payload: vec![], filter };
    let mut rows = Vec::new();
    for file in state.files() {
        let batches: Vec<_> = read_file(log.table(), file, &spec, &footers)
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        for batch in batches {
            for row in 0..batch.num_rows() {
                rows.push((
                    batch.column(0).as_string::<i32>().value(row).to_owned(),
                    batch.column(1).as_primitive::<Int64Type>().value(row),
                    batch.column(4).as_primitive::<Int64Type>().value(row),
                ));
            }
        }
    }
    rows.sort();
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn appended_rows_are_read_back_with_their_commit_also_after_reopening_and_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::open(folder.path().to_str().unwrap(), Durability::Os).unwrap();
    let log = new_log(&storage).await;
    let first = log.append(&changes(&[("b", 2, 1), ("a", 1, 1)])).await.unwrap();
    assert_eq!((first.commit, first.rows), (1, 2));
    assert_eq!(log.append(&changes(&[("a", 3, 2)])).await.unwrap().commit, 2);
    let expected = vec![("a".to_owned(), 1, 1), ("a".to_owned(), 3, 2), ("b".to_owned(), 2, 1)];
    assert_eq!(read_all(&log, RowFilter::default()).await, expected);
    assert!(log.table().checkpoint().await.unwrap());
    let reopened = Log::open(&storage, "s", LogOptions::default()).await.unwrap().unwrap();
    assert_eq!(reopened.definition(), log.definition());
    assert_eq!(read_all(&reopened, RowFilter::default()).await, expected);
    let up_to = RowFilter { up_to_commit: Some(1), ..Default::default() };
    assert_eq!(read_all(&reopened, up_to).await.len(), 2);
    assert_eq!(storage.state_names().await.unwrap(), ["s"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_is_applied_once_by_whoever_sends_it_and_an_older_owner_is_fenced() {
    let storage = Storage::open("memory://", Durability::Fsync).unwrap();
    let old = new_log(&storage).await;
    let new = Log::open(&storage, "s", LogOptions::default()).await.unwrap().unwrap();
    async fn send(log: &Log, number: i64) -> crate::Result<EpochOutcome> {
        let mut epoch = log.epoch("p1", number)?;
        epoch.stage(&changes(&[("k", number, number)])).await?;
        epoch.commit().await
    }
    let sent = send(&old, 5).await.unwrap();
    let is_told = |r: Receipt| (r.commit, r.rows, r.first_version, r.last_version) == (1, 1, 5, 5);
    assert!(matches!(sent, EpochOutcome::Committed(receipt) if is_told(receipt)), "{sent:?}");
    assert_eq!(send(&old, 5).await.unwrap(), EpochOutcome::AlreadyApplied { last: 5 });
    assert_eq!(send(&old, 3).await.unwrap(), EpochOutcome::AlreadyApplied { last: 5 });
    assert_eq!(send(&new, 5).await.unwrap(), EpochOutcome::AlreadyApplied { last: 5 });
    assert!(matches!(send(&new, 6).await.unwrap(), EpochOutcome::Committed(_)));
    assert_eq!(send(&old, 7).await.unwrap_err().kind(), ErrorKind::Fenced);
    old.table().checkpoint().await.unwrap();
    let third = Log::open(&storage, "s", LogOptions::default()).await.unwrap().unwrap();
    assert_eq!(send(&third, 6).await.unwrap(), EpochOutcome::AlreadyApplied { last: 6 });
    assert_eq!(read_all(&third, RowFilter::default()).await.len(), 2);
}

/// So that versions are told apart by the time at which they were the newest.
#[tokio::test(flavor = "multi_thread")]
async fn each_commit_is_later_than_the_one_before_also_by_a_clock_that_stands_still_or_steps_back()
{
    let storage = Storage::open("memory://", Durability::Os).unwrap();
    let clock = Arc::new(ManualClock::at(1_000_000_000));
    let options = LogOptions { clock: clock.clone(), ..LogOptions::default() };
    let definition = StateDefinition::new(&fields(), StateSettings::default()).unwrap();
    let log = Log::create(&storage, "s", &definition, options).await.unwrap().0;
    let mut before = log.state().timestamp_ms;
    for shown_ms in [1_000_000, 1_000_000, 500_000, 500_000, 2_500_000] {
        clock.set(shown_ms * 1_000);
        log.append(&changes(&[("k", 1, 1)])).await.unwrap();
        let now = log.state().timestamp_ms;
        assert_eq!(now, shown_ms.max(before + 1));
        before = now;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_appends_share_commits_and_none_is_lost() {
    let storage = Storage::open("memory://", Durability::Fsync).unwrap();
    let log = new_log(&storage).await;
    let other = Log::open(&storage, "s", LogOptions::default()).await.unwrap().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..64_i64 {
        let log = if n % 2 == 0 { log.clone() } else { other.clone() };
        tasks
            .spawn(async move { log.append(&changes(&[(&format!("k{n}"), n, n)])).await.unwrap() });
    }
    while tasks.join_next().await.transpose().unwrap().is_some() {}
    assert_eq!(read_all(&log, RowFilter::default()).await.len(), 64);
    assert!(log.state().version < 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_that_wait_together_may_span_more_days_than_one_append() {
    let storage = Storage::open("memory://", Durability::Os).unwrap();
    let log = new_log(&storage).await;
    let days = |first: i64| {
        let rows: Vec<_> = (first..first + 513).map(|day| ("k", day * 86_400, day)).collect();
        changes(&rows)
    };
    let parts: Vec<_> = (0..3).map(|part| days(part * 513)).collect();
    let receipts = futures::future::join_all(parts.iter().map(|rows| log.append(rows))).await;
    assert!(receipts.into_iter().all(|receipt| receipt.unwrap().rows == 513));
    let rows: Vec<_> = (0..1_025).map(|day| ("k", day * 86_400, day)).collect();
    let error = log.append(&changes(&rows)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(read_all(&log, RowFilter::default()).await.len(), 1_539);
}
