//! The other side: delta-rs for writes, and DataFusion for reads.

use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::prelude::{ParquetReadOptions, SessionContext, col};
use deltalake_core::DeltaTable;
use deltalake_core::delta_datafusion::create_session;
use futures::TryStreamExt;
use url::Url;

use crate::Outcome;

fn url_of(folder: &Path) -> Outcome<Url> {
    std::fs::create_dir_all(folder)?;
    Url::from_directory_path(folder.canonicalize()?).map_err(|()| "the folder has no URL".into())
}

/// A handle on a Delta table that may not exist yet.
pub async fn table_at(folder: &Path) -> Outcome<DeltaTable> {
    Ok(DeltaTable::try_from_url(url_of(folder)?).await?)
}

/// Opens a Delta table.
pub async fn open_table(folder: &Path) -> Outcome<DeltaTable> {
    Ok(deltalake_core::open_table(url_of(folder)?).await?)
}

/// Appends rows by delta-rs.
pub async fn append_rows(table: DeltaTable, batches: Vec<RecordBatch>) -> Outcome<DeltaTable> {
    Ok(table.write(batches).await?)
}

/// Merges changes by delta-rs: matching keys take the change's columns, other keys are inserted.
pub async fn merge_rows(table: DeltaTable, changes: RecordBatch) -> Outcome<DeltaTable> {
    let context: SessionContext = create_session().into();
    let names: Vec<String> =
        changes.schema().fields().iter().map(|field| field.name().clone()).collect();
    let source = MemTable::try_new(changes.schema(), vec![vec![changes]])?;
    let source = context.read_table(Arc::new(source))?;
    let of_source = |name: &str| col(format!("source.{name}"));
    let (table, _) = table
        .merge(source, col("target.state_key").eq(col("source.state_key")))
        .with_source_alias("source")
        .with_target_alias("target")
        .when_matched_update(|update| {
            names.iter().fold(update, |update, name| update.update(name.as_str(), of_source(name)))
        })?
        .when_not_matched_insert(|insert| {
            names.iter().fold(insert, |insert, name| insert.set(name.as_str(), of_source(name)))
        })?
        .await?;
    Ok(table)
}

/// A session in which a Delta table has a name.
pub async fn table_session(name: &str, table: &DeltaTable) -> Outcome<SessionContext> {
    let context: SessionContext = create_session().into();
    context.register_table(name, table.table_provider().await?)?;
    Ok(context)
}

/// A session in which some Parquet files are a table.
pub async fn parquet_session(name: &str, files: Vec<String>) -> Outcome<SessionContext> {
    let context = SessionContext::new();
    let frame = context.read_parquet(files, ParquetReadOptions::default()).await?;
    context.register_table(name, frame.into_view())?;
    Ok(context)
}

/// The usual query for the newest row of each key, among the rows of `log` that a condition wants.
pub fn window_query(order: &str, condition: &str) -> String {
    format!(
        "SELECT state_key, version, event_time, op_type, state_value FROM (\
           SELECT *, ROW_NUMBER() OVER (PARTITION BY state_key ORDER BY {order}) AS place \
           FROM log WHERE {condition}) WHERE place = 1 AND op_type <> 'DELETE'"
    )
}

/// Runs a query to its end and counts its rows; nothing is kept.
pub async fn count_rows(context: &SessionContext, query: &str) -> Outcome<usize> {
    let mut rows = context.sql(query).await?.execute_stream().await?;
    let mut count = 0;
    while let Some(batch) = rows.try_next().await? {
        count += batch.num_rows();
    }
    Ok(count)
}
