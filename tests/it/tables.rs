//! What a plain Delta reader sees: log and snapshot opened by delta-rs, the documented SQL, and its MERGE as an oracle.

use std::path::Path;
use std::sync::Arc;

use alluvium::{LayoutSettings, OrderBy, Point, RawState, StoreSettings};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::datasource::MemTable;
use datafusion::prelude::col;
use deltalake_core::DeltaTable;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::support::delta::{open, open_at, query, session};
use crate::support::stores::{
    Change, Home, Live, SECOND, START, by_time, by_version, create, live, n_batch, n_batch_at,
    n_fields, settings,
};

/// The documented statement for the newest state: see `docs/engines.md`.
fn fold_sql(table: &str, order_by: OrderBy, condition: &str) -> String {
    let order = match order_by {
        OrderBy::EventTime => "event_time DESC, version DESC",
        OrderBy::Version => "version DESC, event_time DESC",
    };
    format!(
        "SELECT state_key, version, state_value['n'] AS n FROM (
           SELECT *, row_number() OVER (
             PARTITION BY state_key
             ORDER BY {order}, op_type, commit DESC NULLS FIRST, append_seq DESC NULLS LAST
           ) AS place FROM {table} {condition}
         ) AS ranked WHERE place = 1 AND op_type = 'UPSERT' ORDER BY state_key"
    )
}

/// Rows of key, version and `n`.
fn rows(batches: &[RecordBatch]) -> Vec<Live> {
    let mut out = Vec::new();
    for batch in batches {
        let keys = arrow::compute::cast(batch.column(0), &DataType::Utf8).unwrap();
        let versions = batch.column(1).as_primitive::<Int64Type>();
        let n = batch.column(2).as_primitive::<Int64Type>();
        out.extend((0..batch.num_rows()).map(|row| {
            (
                keys.as_string::<i32>().value(row).to_owned(),
                versions.value(row),
                n.is_valid(row).then(|| n.value(row)),
            )
        }));
    }
    out
}

async fn count(tables: &[(&str, &DeltaTable)], what: &str) -> i64 {
    let context = session(tables).await;
    query(&context, &format!("SELECT count(*) FROM {what}")).await[0]
        .column(0)
        .as_primitive::<Int64Type>()
        .value(0)
}

/// Random rows over some days; no two of one key have the same version.
async fn fill(state: &RawState, rng: &mut StdRng, first: i64, count: i64) -> Vec<RecordBatch> {
    let mut batches = Vec::new();
    let mut versions: Vec<i64> = (first..first + count).collect();
    rand::seq::SliceRandom::shuffle(&mut versions[..], rng);
    for part in versions.chunks(50) {
        let keys: Vec<String> =
            part.iter().map(|_| format!("k{:03}", rng.random_range(0..150))).collect();
        let changes: Vec<Change<'_>> = part
            .iter()
            .zip(&keys)
            .map(|(version, key)| {
                (key.as_str(), *version, (!rng.random_bool(0.2)).then_some(*version * 10))
            })
            .collect();
        let times: Vec<i64> =
            part.iter().map(|_| START + rng.random_range(0..400_000) * SECOND).collect();
        let batch = n_batch_at(&changes, &times);
        state.append(&batch).await.unwrap();
        batches.push(batch);
    }
    batches
}

#[tokio::test(flavor = "multi_thread")]
async fn another_engine_reads_both_tables_and_the_documented_sql_gives_the_same_states() {
    for order_by in [OrderBy::EventTime, OrderBy::Version] {
        let home = Home::new();
        let layout =
            LayoutSettings { small_state_rows: 0, file_rows: 40, ..LayoutSettings::default() };
        let store = home.open_with(StoreSettings { layout, ..settings() }).await;
        let state = create(&store, "s", &n_fields(), order_by).await;
        let mut rng = StdRng::seed_from_u64(11);
        fill(&state, &mut rng, 1, 600).await;
        state.materialize(false).await.unwrap();
        fill(&state, &mut rng, 601, 20).await;
        state.materialize(false).await.unwrap();
        let stats = state.stats().await.unwrap();
        assert!(stats.run_files > 0 && stats.base_files > 1, "{stats:?}");
        let log = open(&home.table("s", "log")).await;
        let snapshot = open(&home.table("s", "snapshot")).await;
        let tables = [("log", &log), ("snapshot", &snapshot)];
        assert_eq!(count(&tables, "log").await, 620);
        assert_eq!(count(&tables, "snapshot").await, i64::try_from(stats.snapshot_rows).unwrap());
        let context = session(&tables).await;
        let latest = live(&state, Point::LATEST).await;
        for table in ["log", "snapshot"] {
            assert_eq!(
                rows(&query(&context, &fold_sql(table, order_by, "")).await),
                latest,
                "{table}"
            );
        }
        for version in [0, 17, 300, 615] {
            let sql = fold_sql("log", order_by, &format!("WHERE version <= {version}"));
            assert_eq!(
                rows(&query(&context, &sql).await),
                live(&state, Point::at_version(version)).await
            );
        }
        let time = START + 200_000 * SECOND;
        let text = chrono::DateTime::from_timestamp_micros(time).unwrap().to_rfc3339();
        let condition =
            format!("WHERE event_time <= TIMESTAMPTZ '{text}' AND dt <= '{}'", &text[..10]);
        let as_of = rows(&query(&context, &fold_sql("log", order_by, &condition)).await);
        assert_eq!(as_of, live(&state, Point::at_time(time)).await);
        for commit in [1, 5, 13] {
            let past = open_at(&home.table("s", "log"), commit).await;
            let context = session(&[("log", &past)]).await;
            assert_eq!(
                rows(&query(&context, &fold_sql("log", order_by, "")).await),
                live(&state, Point::at_commit(commit)).await
            );
        }
        state.materialize(true).await.unwrap();
        let snapshot = open(&home.table("s", "snapshot")).await;
        let context = session(&[("snapshot", &snapshot)]).await;
        let base = "SELECT state_key, version, state_value['n'] FROM snapshot
                    WHERE tier = 'base' AND op_type = 'UPSERT' ORDER BY state_key";
        assert_eq!(rows(&query(&context, base).await), latest);
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            std::fs::copy(&path, &to).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn merging_the_folded_tail_by_another_engine_gives_the_snapshot_that_materialize_gives() {
    let home = Home::new();
    let state = by_version(&home.open().await, "s").await;
    let mut rng = StdRng::seed_from_u64(5);
    fill(&state, &mut rng, 1_000, 500).await;
    state.materialize(false).await.unwrap();
    let merged = home.folder.path().join("merged");
    copy(&home.table("s", "snapshot"), &merged);
    // Some of the tail is late: its versions lie below and among those of the snapshot.
    let mut tail = fill(&state, &mut rng, 500, 100).await;
    tail.extend(fill(&state, &mut rng, 2_000, 100).await);
    state.materialize(false).await.unwrap();

    let context = datafusion::prelude::SessionContext::new();
    let table = MemTable::try_new(tail[0].schema(), vec![tail]).unwrap();
    context.register_table("tail", Arc::new(table)).unwrap();
    let folded = context
        .sql(
            "SELECT state_key, version, event_time, op_type, state_value FROM (
               SELECT *, row_number() OVER (PARTITION BY state_key ORDER BY version DESC) AS place FROM tail
             ) AS ranked WHERE place = 1",
        )
        .await
        .unwrap();
    let columns = ["state_key", "version", "event_time", "op_type", "state_value"];
    let (table, metrics) = open(&merged)
        .await
        .merge(folded, col("target.state_key").eq(col("source.state_key")))
        .with_source_alias("source")
        .with_target_alias("target")
        .when_matched_update(|update| {
            let update = update.predicate("source.version > target.version");
            columns
                .iter()
                .fold(update, |update, name| update.update(*name, format!("source.{name}")))
        })
        .unwrap()
        .when_not_matched_insert(|insert| {
            let insert = insert.set("tier", "'base'").set("append_seq", "0").set("commit", "0");
            columns.iter().fold(insert, |insert, name| insert.set(*name, format!("source.{name}")))
        })
        .unwrap()
        .await
        .unwrap();
    assert!(metrics.num_target_rows_updated > 0);
    let ours = open(&home.table("s", "snapshot")).await;
    let context = session(&[("merged", &table), ("ours", &ours)]).await;
    let all = |table: &str| {
        format!(
            "SELECT state_key, version, state_value['n'], CAST(event_time AS BIGINT) AS time, op_type
             FROM {table} ORDER BY state_key"
        )
    };
    let (theirs, ours) =
        (query(&context, &all("merged")).await, query(&context, &all("ours")).await);
    assert_eq!(rows(&theirs), rows(&ours));
    assert_eq!(concat(&theirs).columns(), concat(&ours).columns());
}

fn concat(batches: &[RecordBatch]) -> RecordBatch {
    arrow::compute::concat_batches(&batches[0].schema(), batches).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_another_engine_appends_are_rows_like_any_other_and_invalid_ones_stop_the_fold() {
    let home = Home::new();
    let state = by_time(&home.open().await, "s").await;
    state.append(&n_batch(&[("a", 1, Some(1))])).await.unwrap();
    let folder = home.table("s", "log");
    crate::support::delta::append(
        &folder,
        &n_batch(&[("a", 2, Some(2)), ("b", 1, Some(1)), ("b", 3, None)]),
    )
    .await;
    for _ in 0..2 {
        assert_eq!(live(&state, Point::LATEST).await, [("a".into(), 2, Some(2))]);
        assert_eq!(live(&state, Point::at_commit(1)).await, [("a".into(), 1, Some(1))]);
        state.materialize(false).await.unwrap();
    }
    let receipt = state.append(&n_batch(&[("c", 4, Some(4))])).await.unwrap();
    assert_eq!(receipt.commit, 3);
    assert!(state.verify().await.unwrap().is_sound());
    // An operation that is none: reported with the file, and never skipped.
    let valid = n_batch(&[("d", 5, Some(5))]);
    let mut columns = valid.columns().to_vec();
    columns[3] = Arc::new(arrow::array::StringArray::from(vec!["REPLACE"]));
    let invalid = RecordBatch::try_new(valid.schema(), columns).unwrap();
    crate::support::delta::append(&folder, &invalid).await;
    for outcome in [
        state.materialize(false).await.map(|_| ()),
        state.get(Point::LATEST, "d").await.map(|_| ()),
    ] {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), alluvium::ErrorKind::Corrupt, "{error}");
        assert!(
            error.to_string().contains("REPLACE") && error.to_string().contains(".parquet"),
            "{error}"
        );
    }
    assert_eq!(live(&state, Point::at_commit(3)).await.len(), 2);
}
