//! A state as a table: its live rows at a point, the value's fields as columns.

use std::sync::Arc;

use alluvium_log::{Archived, DataFile, KeyFilter, ReadHints, Result, RowFilter, STATE_KEY};
use alluvium_materializer::BatchStream;
use arrow::datatypes::{FieldRef, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result as DataFusionResult;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};

use super::columns::Columns;
use super::errors::to_datafusion;
use super::exec::{Estimate, RowSource, ScanExec};
use super::keys::{key_filter, narrows_keys};
use super::values::value_bounds;
use crate::basis::Basis;
use crate::point::Point;
use crate::reader::Reader;

/// Fewer rows than this are not worth a second part.
pub(super) const ROWS_PER_PART: u64 = 32_768;
/// The tag of a snapshot file that counts its tombstones; files without it were not written by us.
const TAG_TOMBSTONES: &str = "alluvium.tombstones";

/// The live rows of a state at a point of a basis.
#[derive(Debug)]
pub(super) struct LiveTable {
    reader: Reader,
    basis: Basis,
    point: Point,
    columns: Columns,
}

impl LiveTable {
    pub(super) fn new(reader: Reader, basis: Basis, point: Point) -> Self {
        let columns = Columns::live(basis.definition());
        Self { reader, basis, point, columns }
    }

    /// The number of live rows, when the snapshot's files tell it exactly.
    fn exact_rows(&self, keys: &KeyFilter) -> Option<u64> {
        let snapshot = self.basis.snapshot();
        let folded = snapshot.log_commit() >= self.basis.commit();
        let counted = |file: &Arc<DataFile>| {
            file.stats.rows.is_some() && file.integer_tag(TAG_TOMBSTONES).is_some()
        };
        (self.point.is_latest()
            && *keys == KeyFilter::All
            && folded
            && snapshot.files().all(counted))
        .then(|| snapshot.live_keys())
        .flatten()
    }

    /// About how many rows there are, never too few by much: deleted and overwritten ones are counted too.
    fn estimated_rows(&self, keys: &KeyFilter) -> u64 {
        let snapshot = self.basis.snapshot();
        let wanted = RowFilter { keys: keys.clone(), ..RowFilter::default() };
        let tail = self.basis.log().files_after(snapshot.log_commit());
        let rows: u64 = snapshot
            .files()
            .chain(tail)
            .filter(|file| wanted.may_match(file))
            .map(|file| file.stats.rows.unwrap_or(0))
            .sum();
        match keys {
            KeyFilter::Keys(keys) => rows.min(keys.len() as u64),
            _ => rows,
        }
    }
}

#[async_trait]
impl TableProvider for LiveTable {
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
        let useful = |filter: &Expr| {
            narrows_keys(filter)
                || !value_bounds(std::slice::from_ref(filter), &self.columns).is_empty()
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
        let keys = key_filter(filters);
        let sources = self
            .reader
            .scan_sources(&self.basis, self.point, &keys)
            .await
            .map_err(to_datafusion)?;
        let columns = self.columns.project(projection).map_err(to_datafusion)?;
        let bounds = value_bounds(filters, &self.columns);
        let exact = if bounds.is_empty() { self.exact_rows(&keys) } else { None };
        let rows = exact.unwrap_or_else(|| self.estimated_rows(&keys));
        let files = sources.base_files + sources.run_files + sources.log_files;
        let estimate = Estimate { rows: Some(rows), exact: exact.is_some(), files, pruned: 0 };
        let described = format!(
            "{} {}: basis (snapshot {}, commit {}), base {} files, runs {}, log {} files{}{}",
            self.point,
            self.reader.name(),
            sources.snapshot_version,
            self.basis.commit(),
            sources.base_files,
            sources.run_files,
            sources.log_files,
            archive_part(&self.basis, sources.archived_files),
            describe_keys(&keys),
        );
        let schema = columns.schema().clone();
        let hints = ReadHints {
            unread: columns.unread(),
            bounds: value_bounds(filters, &self.columns),
            ..ReadHints::default()
        };
        let source = LiveRows {
            hints,
            reader: self.reader.clone(),
            basis: self.basis.clone(),
            point: self.point,
            keys,
            payload: columns.payload(),
            columns: Arc::new(columns),
            described,
        };
        let parts = parts(session, rows);
        Ok(Arc::new(
            ScanExec::new(Arc::new(source), schema, parts, Some(STATE_KEY), estimate)
                .limited(limit),
        ))
    }
}

pub(super) fn support(useful: bool) -> TableProviderFilterPushDown {
    // What is read is a superset of what a filter wants, so the filter is evaluated again above.
    if useful {
        TableProviderFilterPushDown::Inexact
    } else {
        TableProviderFilterPushDown::Unsupported
    }
}

/// In how many parts so many rows are read.
pub(super) fn parts(session: &dyn Session, rows: u64) -> usize {
    let most = session.config().target_partitions();
    usize::try_from(rows / ROWS_PER_PART).unwrap_or(usize::MAX).clamp(1, most.max(1))
}

/// How many of a plan's files lie in the archive, if any do.
pub(super) fn from_archive(basis: &Basis, files: &[Arc<DataFile>]) -> String {
    archive_part(basis, files.iter().filter(|file| file.is_archived()).count())
}

fn archive_part(basis: &Basis, files: usize) -> String {
    match (files, Archived::of(basis.log())) {
        (1.., Some(archived)) => {
            format!(", {files} of them from the archive at version {}", archived.version)
        }
        _ => String::new(),
    }
}

pub(super) fn describe_keys(keys: &KeyFilter) -> String {
    match keys {
        KeyFilter::All => String::new(),
        KeyFilter::Keys(keys) if keys.len() == 1 => format!(", key {:?}", keys[0]),
        KeyFilter::Keys(keys) => format!(", {} keys", keys.len()),
        KeyFilter::Range { from, to } => {
            let shown = |bound: &Option<String>| {
                bound.as_ref().map_or(String::new(), |key| format!("{key:?}"))
            };
            format!(", keys {}..{}", shown(from), shown(to))
        }
    }
}

/// The rows of a [`LiveTable`].
#[derive(Debug)]
struct LiveRows {
    reader: Reader,
    basis: Basis,
    point: Point,
    keys: KeyFilter,
    payload: Vec<FieldRef>,
    hints: ReadHints,
    columns: Arc<Columns>,
    described: String,
}

impl RowSource for LiveRows {
    fn describe(&self) -> String {
        self.described.clone()
    }

    fn open(&self, partitions: usize) -> BoxFuture<'_, Result<Vec<BatchStream>>> {
        async move {
            let (keys, payload) = (self.keys.clone(), self.payload.clone());
            let streams = self
                .reader
                .scan_with(&self.basis, self.point, keys, payload, &self.hints, partitions)
                .await?;
            let shown = streams.into_iter().map(|rows| {
                let columns = self.columns.clone();
                rows.map(move |batch| columns.show(&batch?, None)).boxed()
            });
            Ok(shown.collect())
        }
        .boxed()
    }
}
