//! The two Delta tables of a state as they lie: every log row, every row of the snapshot.

use std::sync::Arc;

use alluvium_log::{
    COMMIT, DT, DataFile, EVENT_TIME, Error, ReadSpec, Result, RowFilter, STATE_KEY, TIER, Table,
    VERSION, read_file,
};
use alluvium_materializer::BatchStream;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result as DataFusionResult;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::bounds::RowBounds;
use super::columns::Columns;
use super::errors::to_datafusion;
use super::exec::{Estimate, RowSource, ScanExec};
use super::keys::key_filter;
use super::live::{describe_keys, from_archive, parts, support};
use super::prune::{partition_of, prune_files};
use crate::basis::Basis;
use crate::reader::Reader;

/// Files of a part that are opened at the same time.
const OPEN_CONCURRENCY: usize = 8;

/// Which of the two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Log,
    Snapshot,
}

/// The log or the snapshot of a state, at a basis.
#[derive(Debug)]
pub(super) struct RawTable {
    kind: Kind,
    reader: Reader,
    /// Absent while there is no snapshot.
    table: Option<Arc<Table>>,
    basis: Basis,
    columns: Columns,
}

impl RawTable {
    pub(super) fn log(reader: Reader, basis: Basis) -> Self {
        let table = Some(reader.log_table().clone());
        let columns = Columns::log(basis.definition());
        Self { kind: Kind::Log, reader, table, basis, columns }
    }

    pub(super) fn snapshot(reader: Reader, basis: Basis) -> Self {
        let table = basis.snapshot().table().map(|(table, _)| table.clone());
        let columns = Columns::snapshot(basis.definition());
        Self { kind: Kind::Snapshot, reader, table, basis, columns }
    }

    fn partition(&self) -> &'static str {
        match self.kind {
            Kind::Log => DT,
            Kind::Snapshot => TIER,
        }
    }

    /// The files that may hold rows which a filter wants, and how many were looked at.
    async fn files(&self, filter: &RowFilter) -> Result<(Vec<Arc<DataFile>>, usize)> {
        if self.kind == Kind::Log {
            let archive = self.reader.archived(&self.basis, filter).await?;
            let archived = archive.map_or(0, |archive| archive.files.len());
            let files = self.reader.log_files(&self.basis, filter).await?;
            return Ok((files, self.basis.log().file_count() + archived));
        }
        let all: Vec<_> = self.basis.snapshot().files().cloned().collect();
        let count = all.len();
        Ok((all.into_iter().filter(|file| filter.may_match(file)).collect(), count))
    }

    /// The rows that filters want, as far as reading a file can be told; a snapshot's commits are not those of its files.
    fn row_filter(&self, filters: &[Expr]) -> RowFilter {
        let bounds = RowBounds::of(filters);
        let in_log = self.kind == Kind::Log;
        RowFilter {
            keys: key_filter(filters),
            after_commit: bounds
                .commit
                .least
                .filter(|_| in_log)
                .and_then(|least| least.checked_sub(1)),
            up_to_commit: bounds.commit.greatest.filter(|_| in_log),
            max_version: bounds.version.greatest,
            max_event_time: bounds.event_time.greatest,
        }
    }

    fn describe(&self, filter: &RowFilter, files: &[Arc<DataFile>], pruned: usize) -> String {
        let (what, version) = match self.kind {
            Kind::Log => ("log", self.basis.commit()),
            Kind::Snapshot => ("snapshot", self.basis.snapshot_version()),
        };
        format!(
            "{what} of {} at version {version}, {} files ({pruned} pruned){}{}",
            self.reader.name(),
            files.len(),
            from_archive(&self.basis, files),
            describe_keys(&filter.keys)
        )
    }
}

#[async_trait]
impl TableProvider for RawTable {
    fn schema(&self) -> SchemaRef {
        self.columns.schema().clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        let prunes = [STATE_KEY, VERSION, EVENT_TIME, COMMIT, self.partition()];
        let useful = |filter: &&Expr| {
            filter.column_refs().iter().any(|column| prunes.contains(&column.name.as_str()))
        };
        Ok(filters.iter().map(|filter| support(useful(filter))).collect())
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let columns = self.columns.project(projection).map_err(to_datafusion)?;
        let filter = self.row_filter(filters);
        let (matching, count) = self.files(&filter).await.map_err(to_datafusion)?;
        let by_commit = self.kind == Kind::Log;
        let files = prune_files(
            session,
            self.columns.schema(),
            self.partition(),
            by_commit,
            filters,
            matching,
        )?;
        let rows = files.iter().map(|file| file.stats.rows.unwrap_or(0)).sum();
        let estimate = Estimate {
            rows: Some(rows),
            exact: false,
            files: files.len(),
            pruned: count - files.len(),
        };
        let described = self.describe(&filter, &files, count - files.len());
        let schema = columns.schema().clone();
        let source = RawRows {
            table: self.table.clone(),
            reader: self.reader.clone(),
            spec: ReadSpec { payload: columns.payload(), filter },
            partition: self.partition(),
            files,
            columns: Arc::new(columns),
            described,
        };
        let parts = parts(session, rows);
        Ok(Arc::new(ScanExec::new(Arc::new(source), schema, parts, None, estimate).limited(limit)))
    }
}

/// The rows of a [`RawTable`].
#[derive(Debug)]
struct RawRows {
    table: Option<Arc<Table>>,
    reader: Reader,
    spec: ReadSpec,
    partition: &'static str,
    files: Vec<Arc<DataFile>>,
    columns: Arc<Columns>,
    described: String,
}

impl RawRows {
    /// Files one after the other, the next ones being opened meanwhile.
    fn part(&self, table: &Arc<Table>, files: Vec<Arc<DataFile>>) -> BatchStream {
        let (table, spec, footers) =
            (table.clone(), self.spec.clone(), self.reader.footers().clone());
        let (columns, partition) = (self.columns.clone(), self.partition);
        stream::iter(files)
            .map(move |file| {
                let (table, spec, footers) = (table.clone(), spec.clone(), footers.clone());
                let columns = columns.clone();
                async move {
                    let rows = read_file(&table, &file, &spec, &footers).await?;
                    Ok::<_, Error>(
                        rows.map(move |batch| {
                            columns.show(&batch?, partition_of(&file, partition))
                        }),
                    )
                }
            })
            .buffered(OPEN_CONCURRENCY)
            .try_flatten()
            .boxed()
    }
}

impl RowSource for RawRows {
    fn describe(&self) -> String {
        self.described.clone()
    }

    fn open(&self, partitions: usize) -> BoxFuture<'_, Result<Vec<BatchStream>>> {
        let streams = match &self.table {
            None => Vec::new(),
            Some(table) => split(&self.files, partitions)
                .into_iter()
                .map(|files| self.part(table, files))
                .collect(),
        };
        std::future::ready(Ok(streams)).boxed()
    }
}

/// Spreads files so that parts have about as many rows each.
fn split(files: &[Arc<DataFile>], parts: usize) -> Vec<Vec<Arc<DataFile>>> {
    let weight = |file: &Arc<DataFile>| file.stats.rows.unwrap_or(1).max(1);
    let total: u64 = files.iter().map(weight).sum();
    let share = total.div_ceil(parts.max(1) as u64).max(1);
    let mut out: Vec<Vec<Arc<DataFile>>> = vec![Vec::new()];
    let mut rows = 0;
    for file in files {
        if rows >= share * out.len() as u64 {
            out.push(Vec::new());
        }
        rows += weight(file);
        if let Some(last) = out.last_mut() {
            last.push(file.clone());
        }
    }
    out
}
