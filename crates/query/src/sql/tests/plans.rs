//! What a statement reads, what it is pinned to, and how it fails.

use std::sync::Arc;

use alluvium_log::{Error, ErrorKind, OrderBy};
use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Fields, Int64Type};
use futures::TryStreamExt;
use object_store::ObjectStoreExt;

use super::fixture::{Commit, Layout, all_states, integers, session, state, storage, user_status};
use super::slt::{collect, lines};
use crate::sql::{SqlSession, SqlSettings, sql_error};

fn numbers(values: &[i64]) -> Vec<ArrayRef> {
    vec![Arc::new(Int64Array::from(values.to_vec()))]
}

async fn text(session: &SqlSession, sql: &str) -> String {
    lines(&collect(session, sql).await.unwrap()).join("\n")
}

/// The physical plan as text.
async fn plan(session: &SqlSession, sql: &str) -> String {
    let batches = collect(session, &format!("EXPLAIN {sql}")).await.unwrap();
    let column = batches[0].column_by_name("plan").unwrap().as_string::<i32>();
    column.value(column.len() - 1).to_owned()
}

async fn kind(session: &SqlSession, sql: &str) -> ErrorKind {
    failure(session, sql).await.kind()
}

async fn failure(session: &SqlSession, sql: &str) -> Error {
    collect(session, sql).await.unwrap_err()
}

async fn number(session: &SqlSession, sql: &str) -> i64 {
    collect(session, sql).await.unwrap()[0].column(0).as_primitive::<Int64Type>().value(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_says_what_is_read() {
    let session = all_states(Layout::Partly).await;
    let latest = plan(&session, "SELECT name FROM user_status WHERE state_key LIKE 'u%'").await;
    assert!(
        latest.contains("latest user_status: basis (snapshot 1, commit 3), base 1 files, runs 0, log 1 files, keys \"u\"..\"v\""),
        "{latest}"
    );
    assert!(latest.contains("columns=[state_key, name]"), "{latest}");
    let earlier = plan(
        &session,
        "SELECT * FROM as_of('user_status', commit => 1, time => '2024-01-15T10:30:00Z')",
    )
    .await;
    assert!(earlier.contains("commit:1,time:2024-01-15T10:30:00Z user_status: basis"), "{earlier}");
    let history =
        plan(&session, "SELECT * FROM history('user_status', 'u1') WHERE commit < 2").await;
    assert!(history.contains("history of user_status at commit:1: basis (snapshot 1, commit 3), 1 files (2 pruned), key \"u1\""), "{history}");
    let feed = plan(&session, "SELECT * FROM changes('user_status') WHERE commit > 2").await;
    assert!(feed.contains("changes of user_status after commit 2"), "{feed}");
    assert!(!feed.contains("Repartition"), "{feed}");
    let analyzed =
        text(&session, "EXPLAIN ANALYZE SELECT * FROM log.user_status WHERE commit = 3").await;
    assert!(analyzed.contains("output_rows=3"), "{analyzed}");
    assert!(analyzed.contains("files=1"), "{analyzed}");
    assert!(analyzed.contains("files_pruned=2"), "{analyzed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn counting_reads_no_column_and_of_a_folded_state_nothing_at_all() {
    let session = all_states(Layout::Partly).await;
    let counted = plan(&session, "SELECT count(*) FROM user_status").await;
    assert!(counted.contains("columns=[]"), "{counted}");
    let session = all_states(Layout::Whole).await;
    let counted = plan(&session, "SELECT count(*) FROM user_status").await;
    assert!(!counted.contains("ScanExec"), "{counted}");
    assert_eq!(number(&session, "SELECT count(*) FROM user_status").await, 4);
    let some = plan(&session, "SELECT count(*) FROM user_status WHERE state_key > 'a'").await;
    assert!(some.contains("ScanExec"), "{some}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_come_in_order_of_keys_without_a_sort() {
    let session = all_states(Layout::Partly).await;
    for table in [
        "user_status",
        "as_of('user_status', 'commit:2')",
        "history('user_status')",
        "diff('user_status', 'commit:1')",
    ] {
        let plan =
            plan(&session, &format!("SELECT state_key FROM {table} ORDER BY state_key LIMIT 2"))
                .await;
        assert!(!plan.contains("Sort"), "{table}: {plan}");
        assert!(plan.contains("limit=2") || plan.contains("fetch=2"), "{table}: {plan}");
    }
}

/// PERF-04: whatever the form of a condition on days, only their files are read.
#[tokio::test(flavor = "multi_thread")]
async fn files_are_pruned_whatever_the_type_of_the_literal() {
    const DAY: i64 = 24 * 60;
    let storage = storage();
    let commit = |day: i64| Commit {
        rows: vec![("a", 10 * day, day * DAY), ("b", 10 * day + 1, day * DAY + 1)],
        deleted: vec![],
        value: numbers(&[day, day]),
    };
    // Twenty days with two files each; the first day is 2024-01-15.
    let commits: Vec<Commit> = (0..20).flat_map(|day| [commit(day), commit(day)]).collect();
    let session = session(vec![integers(&storage, "days", &commits, Layout::LogOnly).await]);
    let forms = [
        ("dt = '2024-01-20'", 2),
        ("dt = DATE '2024-01-20'", 2),
        ("DATE '2024-01-20' = dt", 2),
        ("CAST(dt AS DATE) = DATE '2024-01-20'", 2),
        ("dt IN ('2024-01-20', '2024-01-21')", 4),
        ("dt IN ('2024-01-16', '2024-01-17', '2024-01-20', '2024-01-21', '1999-12-31')", 8),
        ("dt BETWEEN '2024-01-20' AND '2024-01-22'", 6),
        ("dt BETWEEN DATE '2024-01-20' AND DATE '2024-01-22'", 6),
        ("dt LIKE '2024-01-2%'", 20),
        ("substr(dt, 9, 2) = '20'", 2),
        ("dt = '2024-01-20' AND state_value['n'] > 0", 2),
        ("dt = '2024-01-20' OR dt = '2024-01-21'", 4),
        ("event_time >= '2024-01-20T00:00:00Z' AND event_time < '2024-01-21T00:00:00Z'", 2),
        (
            "event_time BETWEEN TIMESTAMP '2024-01-20 00:00:00' AND TIMESTAMP '2024-01-20 23:00:00'",
            2,
        ),
        ("event_time >= DATE '2024-02-01'", 6),
        ("event_time < '2024-01-16'", 2),
        ("version = 50", 2),
        ("version > 180.5", 4),
        ("version IN (10, 20)", 4),
        ("commit = 7", 1),
        ("commit > 38", 2),
        ("state_key = 'c'", 0),
    ];
    for (form, files) in forms {
        let sql = format!("SELECT * FROM log.days WHERE {form}");
        let plan = plan(&session, &sql).await;
        let wanted = format!("{files} files ({} pruned)", 40 - files);
        assert!(plan.contains(&wanted), "{form}: wanted {wanted}: {plan}");
        // The same rows as without any pruning.
        let unpruned = sql.replace("FROM log.days", "FROM (SELECT * FROM log.days OFFSET 0)");
        assert_eq!(
            number(&session, &sql.replace("*", "count(*)")).await,
            number(&session, &unpruned.replacen('*', "count(*)", 1)).await,
            "{form}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_sees_one_basis_from_start_to_end() {
    let storage = storage();
    let one = |n: i64| Commit { rows: vec![("a", n, n)], deleted: vec![], value: numbers(&[n]) };
    let reader = integers(&storage, "s", &[one(1)], Layout::LogOnly).await;
    let log = reader.inner.log.clone();
    let session = session(vec![reader]);
    let pinned = session.context().await.unwrap();
    let rows = session.query("SELECT n, (SELECT max(version) FROM log.s) FROM s").await.unwrap();
    log.append(&super::fixture::changes(&log.definition().fields, &one(2))).await.unwrap();
    let rows: Vec<RecordBatch> = rows.try_collect().await.unwrap();
    assert_eq!(lines(&rows), ["1 1"]);
    assert_eq!(text(&session, "SELECT n, (SELECT max(version) FROM log.s) FROM s").await, "2 2");
    // A context goes on with the basis that it was made with, and knows the functions.
    let old = pinned.sql("SELECT n FROM s").await.unwrap().collect().await.unwrap();
    assert_eq!(lines(&old), ["1"]);
    let old =
        pinned.sql("SELECT n FROM as_of('s', 'commit', 1)").await.unwrap().collect().await.unwrap();
    assert_eq!(lines(&old), ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_snapshot_is_shown_as_it_lies() {
    let storage = storage();
    let session = session(vec![user_status(&storage, Layout::Whole).await]);
    let sql = "SELECT state_key, version, op_type, commit, tier, state_value['name'] FROM snapshot.user_status ORDER BY state_key";
    let rows = text(&session, sql).await;
    assert_eq!(
        rows,
        "u1 20 UPSERT 2 base Ann\nu2 30 DELETE 3 base NULL\nu3 32 UPSERT 3 base Cid\nu4 21 UPSERT 2 base Dan\nx9 13 UPSERT 1 base Xen"
    );
    let none = plan(&session, "SELECT * FROM snapshot.user_status WHERE tier = 'run'").await;
    assert!(none.contains("0 files (1 pruned)"), "{none}");
    assert_eq!(
        number(&session, "SELECT count(*) FROM snapshot.user_status WHERE commit = 2").await,
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_added_later_is_null_in_earlier_rows() {
    let storage = storage();
    let one = Commit { rows: vec![("a", 1, 0)], deleted: vec![], value: numbers(&[1]) };
    let reader = integers(&storage, "s", &[one], Layout::Whole).await;
    let log = reader.inner.log.clone();
    let session = session(vec![reader]);
    let more = Fields::from(vec![
        Field::new("n", DataType::Int64, true),
        Field::new("More", DataType::Int64, true),
    ]);
    let value = [numbers(&[2]), numbers(&[7])].concat();
    let grown = Commit { rows: vec![("b", 2, 1)], deleted: vec![], value };
    log.append(&super::fixture::changes(&more, &grown)).await.unwrap();
    assert_eq!(
        text(&session, "SELECT state_key, n, More FROM s ORDER BY 1").await,
        "a 1 NULL\nb 2 7"
    );
    assert_eq!(text(&session, "SELECT n, More FROM as_of('s', 'commit:1')").await, "1 NULL");
    assert_eq!(
        text(&session, "SELECT state_value.More FROM history('s') ORDER BY 1").await,
        "7\nNULL"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_keep_their_kind_through_datafusion() {
    let session = all_states(Layout::LogOnly).await;
    assert_eq!(kind(&session, "SELECT * FROM nowhere").await, ErrorKind::NotFound);
    assert_eq!(
        kind(&session, "SELECT * FROM as_of('nowhere', 'latest')").await,
        ErrorKind::NotFound
    );
    assert_eq!(
        kind(&session, "SELECT * FROM as_of('orders', commit => 99)").await,
        ErrorKind::PointUnavailable
    );
    assert_eq!(
        kind(&session, "SELECT * FROM diff('orders', 'commit:99')").await,
        ErrorKind::PointUnavailable
    );
    assert_eq!(kind(&session, "DROP TABLE orders").await, ErrorKind::InvalidInput);
    assert_eq!(kind(&session, "SELECT nothing FROM orders").await, ErrorKind::InvalidInput);
    assert_eq!(kind(&session, "SELECT CAST('x' AS INT)").await, ErrorKind::InvalidInput);
    let state = failure(&session, "SELECT * FROM as_of(lower('orders'), 'latest')").await;
    assert!(state.to_string().contains("as a 'text' in quotes"), "{state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_file_is_told_as_damage() {
    let storage = storage();
    let one = Commit { rows: vec![("a", 1, 0)], deleted: vec![], value: numbers(&[1]) };
    let reader = integers(&storage, "s", &[one], Layout::LogOnly).await;
    let file = reader.inner.log.state().files().next().unwrap().add.path.clone();
    reader
        .log_table()
        .store()
        .delete(&object_store::path::Path::from(file.as_str()))
        .await
        .unwrap();
    let session = session(vec![reader]);
    for sql in ["SELECT * FROM log.s", "SELECT count(*) FROM s", "SELECT * FROM s ORDER BY n"] {
        let error = failure(&session, sql).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{sql}: {error}");
        assert!(error.to_string().contains(&file), "{sql}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_memory_than_allowed_is_an_error_that_says_so() {
    let settings =
        SqlSettings { memory_limit_bytes: 16 << 20, target_partitions: 1, batch_rows: 8_192 };
    let session = SqlSession::new(Vec::new(), &settings).unwrap();
    let sorted = "SELECT max(place) FROM (SELECT row_number() OVER (ORDER BY -value) AS place FROM generate_series(1, 400000))";
    assert_eq!(collect(&session, sorted).await.unwrap()[0].num_rows(), 1);
    let wide = "(SELECT repeat('x', 1000) || value AS w FROM generate_series(1, 40000))";
    let joined = format!("SELECT count(*) FROM {wide} a JOIN {wide} b ON a.w = b.w");
    assert_eq!(kind(&session, &joined).await, ErrorKind::OutOfMemory);
}

#[test]
fn settings_that_can_not_work_are_refused() {
    let wrong = [
        SqlSettings { memory_limit_bytes: 1, ..SqlSettings::default() },
        SqlSettings { batch_rows: 0, ..SqlSettings::default() },
        SqlSettings { target_partitions: 1_000_000, ..SqlSettings::default() },
    ];
    for settings in wrong {
        assert_eq!(
            SqlSession::new(Vec::new(), &settings).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_can_be_run_twice() {
    let session = all_states(Layout::Partly).await;
    let context = session.context().await.unwrap();
    let frame = context.sql("SELECT state_key FROM user_status").await.unwrap();
    let plan = frame.create_physical_plan().await.unwrap();
    for _ in 0..2 {
        let rows = datafusion::physical_plan::collect(plan.clone(), context.task_ctx())
            .await
            .map_err(sql_error);
        assert_eq!(lines(&rows.unwrap()), ["u1", "u3", "u4", "x9"]);
    }
    let repeated = "WITH RECURSIVE r AS (SELECT 'u1' AS k, 1 AS n UNION ALL SELECT s.state_key, r.n + 1 FROM r JOIN user_status s ON s.state_key > r.k WHERE r.n < 3) SELECT count(*) FROM r";
    assert_eq!(number(&session, repeated).await, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_large_state_make_up_the_whole() {
    let storage = storage();
    let keys: Vec<&'static str> = (0..100_000).map(|n| &*format!("k{n:06}").leak()).collect();
    let rows = keys.iter().zip(1..).map(|(key, version)| (*key, version, 0)).collect();
    let values: Vec<i64> = (0..100_000).collect();
    let first = Commit { rows, deleted: vec![], value: numbers(&values) };
    let last = Commit {
        rows: vec![("k000001", 200_000, 1), ("new", 200_001, 1)],
        deleted: vec![],
        value: numbers(&[-1, -2]),
    };
    let fields = Fields::from(vec![Field::new("n", DataType::Int64, true)]);
    let reader =
        state(&storage, "large", OrderBy::Version, fields, &[first, last], Layout::Partly).await;
    let session = session(vec![reader]);
    assert_eq!(number(&session, "SELECT count(*) FROM large").await, 100_001);
    assert_eq!(
        number(&session, "SELECT sum(n) FROM large").await,
        (0..100_000).sum::<i64>() - 1 - 1 - 2
    );
    assert_eq!(number(&session, "SELECT count(*) FROM log.large").await, 100_002);
    let ordered = text(&session, "SELECT state_key, n FROM large ORDER BY state_key LIMIT 3").await;
    assert_eq!(ordered, "k000000 0\nk000001 -1\nk000002 2");
    assert_eq!(
        number(&session, "SELECT count(*) FROM (SELECT * FROM large LIMIT 70000)").await,
        70_000
    );
}
