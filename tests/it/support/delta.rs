//! Another Delta engine on our tables: delta-rs, as a plain reader, appender and optimizer.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Schema, TimestampMicrosecondType};
use datafusion::prelude::SessionContext;
use deltalake_core::DeltaTable;
use deltalake_core::delta_datafusion::create_session;
use deltalake_core::logstore::{StorageConfig, default_logstore};
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::prefix::PrefixStore;

/// Opens a table by the URL of its folder.
pub(crate) async fn open(folder: &Path) -> DeltaTable {
    let url = url::Url::from_directory_path(folder.canonicalize().unwrap()).unwrap();
    deltalake_core::open_table(url).await.unwrap()
}

/// Opens a table as of one of its versions.
pub(crate) async fn open_at(folder: &Path, version: i64) -> DeltaTable {
    let url = url::Url::from_directory_path(folder.canonicalize().unwrap()).unwrap();
    deltalake_core::open_table_with_version(url, u64::try_from(version).unwrap()).await.unwrap()
}

/// Bin-packs the small files of a table by delta-rs; true when that made a commit.
pub(crate) async fn optimize(folder: &Path, target_bytes: u64) -> bool {
    optimize_from(open(folder).await, target_bytes).await
}

/// The same by a handle that may have read the table some time ago.
pub(crate) async fn optimize_from(table: DeltaTable, target_bytes: u64) -> bool {
    let before = table.version();
    let target = NonZeroU64::new(target_bytes).unwrap();
    let (table, _) =
        table.optimize().with_target_size(target).with_max_concurrent_tasks(1).await.unwrap();
    table.version() != before
}

/// Bin-packs all files of a table in an object store.
pub(crate) async fn optimize_in(store: Arc<dyn ObjectStore>, table: &str) {
    let url = url::Url::parse(&format!("memory:///{table}/")).unwrap();
    let prefixed = PrefixStore::new(store.clone(), table);
    let log_store = default_logstore(Arc::new(prefixed), store, &url, &StorageConfig::default());
    let mut table = DeltaTable::new(log_store);
    table.load().await.unwrap();
    assert!(optimize_from(table, 1 << 30).await, "it made a commit");
}

/// Removes the files that a table no longer refers to, however young they are, by delta-rs.
pub(crate) async fn vacuum(folder: &Path) {
    let table = open(folder).await;
    let vacuum = table.vacuum().with_retention_period(chrono::Duration::zero());
    vacuum.with_enforce_retention_duration(false).with_dry_run(false).await.unwrap();
}

/// Appends changes (as of `Log::append`, complete) by delta-rs: the bookkeeping columns stay null.
pub(crate) async fn append(folder: &Path, changes: &RecordBatch) {
    let table = open(folder).await;
    let times =
        changes.column_by_name("event_time").unwrap().as_primitive::<TimestampMicrosecondType>();
    let days: StringArray = times
        .values()
        .iter()
        .map(|&time| {
            chrono::DateTime::from_timestamp_micros(time)
                .map(|time| time.format("%Y-%m-%d").to_string())
        })
        .collect();
    let mut fields: Vec<_> = changes.schema().fields().iter().cloned().collect();
    fields.push(Arc::new(arrow::datatypes::Field::new("dt", DataType::Utf8, true)));
    let mut columns = changes.columns().to_vec();
    columns.push(Arc::new(days));
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    table
        .write(vec![batch])
        .with_schema_mode(deltalake_core::operations::write::SchemaMode::Merge)
        .await
        .unwrap();
}

/// A session of delta-rs with tables by name.
pub(crate) async fn session(tables: &[(&str, &DeltaTable)]) -> SessionContext {
    let context: SessionContext = create_session().into();
    for (name, table) in tables {
        context.register_table(*name, table.table_provider().await.unwrap()).unwrap();
    }
    context
}

/// The rows of a query.
pub(crate) async fn query(context: &SessionContext, sql: &str) -> Vec<RecordBatch> {
    let frame = context.sql(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    frame.execute_stream().await.unwrap().try_collect().await.unwrap()
}

/// Puts all rows of a table into new files by delta-rs, which know nothing of our tags.
pub(crate) async fn rewrite(folder: &Path) -> bool {
    use deltalake_core::operations::optimize::OptimizeType;
    let table = open(folder).await;
    let before = table.version();
    let order = OptimizeType::ZOrder(vec!["state_key".to_owned()]);
    let (table, _) = table.optimize().with_type(order).await.unwrap();
    table.version() != before
}
