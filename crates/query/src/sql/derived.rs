//! The tables that functions give beside `as_of`: a history, a difference, a feed of changes.

use std::sync::Arc;

use alluvium_log::{COMMIT, EVENT_TIME, KeyFilter, Result, RowFilter, STATE_KEY, VERSION};
use alluvium_materializer::BatchStream;
use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result as DataFusionResult;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};

use super::bounds::RowBounds;
use super::errors::to_datafusion;
use super::exec::{Estimate, RowSource, ScanExec};
use super::keys::{key_filter, narrows_keys};
use super::live::{describe_keys, from_archive, support};
use crate::basis::Basis;
use crate::diff::diff_schema;
use crate::history::history_schema;
use crate::point::Point;
use crate::reader::Reader;

/// The column of a history that looks at other rows than its own.
const IS_LATE: &str = "is_late";

/// What a derived table shows.
#[derive(Debug, Clone)]
pub(super) enum Question {
    /// Every change that counts at a point, of some keys, of the commits after one.
    History(KeyFilter, Point, i64),
    /// What differs between two points.
    Diff(Point, Point),
    /// The changes after a commit.
    Changes(i64),
}

/// The answer to a question about a state, at a basis.
#[derive(Debug)]
pub(super) struct DerivedTable {
    reader: Reader,
    basis: Basis,
    question: Question,
    schema: SchemaRef,
}

impl DerivedTable {
    pub(super) fn new(reader: Reader, basis: Basis, question: Question) -> Self {
        let schema = match question {
            Question::History(..) | Question::Changes(_) => history_schema(basis.definition()),
            Question::Diff(..) => diff_schema(basis.definition()),
        };
        Self { reader, basis, question, schema }
    }

    /// The question with what filters say put into it, and the keys that it is about.
    fn narrowed(&self, schema: &SchemaRef, filters: &[Expr]) -> (Question, KeyFilter) {
        let keys = key_filter(filters);
        let bounds = RowBounds::of(filters);
        let newest = self.basis.commit();
        let after = |from: i64| {
            let least = bounds.commit.least;
            from.max(least.map_or(from, |first| first.saturating_sub(1).clamp(-1, newest)))
        };
        match &self.question {
            Question::History(own, point, from) => {
                // Lateness is decided by earlier commits, so later ones may be left out. Greater versions and times may
                // only be left out when nobody asks whether they made another row late.
                let commit = bounds.commit.greatest.map(|last| last.clamp(0, newest));
                let mut point = Point { commit: least(point.commit, commit), ..*point };
                if schema.field_with_name(IS_LATE).is_err() {
                    point.version = least(point.version, bounds.version.greatest);
                    point.event_time = least(point.event_time, bounds.event_time.greatest);
                }
                let keys = own.intersect(&keys);
                (Question::History(keys.clone(), point, after(*from)), keys)
            }
            Question::Changes(from) => (Question::Changes(after(*from)), KeyFilter::All),
            Question::Diff(from, to) => (Question::Diff(*from, *to), keys),
        }
    }

    async fn describe(&self, question: &Question, keys: &KeyFilter) -> Result<(String, Estimate)> {
        let filter = match question {
            Question::History(keys, point, _) => {
                RowFilter { keys: keys.clone(), ..point.filter(self.basis.commit()) }
            }
            Question::Changes(from) => {
                RowFilter { after_commit: Some(*from), ..RowFilter::default() }
            }
            Question::Diff(..) => RowFilter { keys: keys.clone(), ..RowFilter::default() },
        };
        let (files, archive) = match question {
            // What it reads are two scans, each with a base of its own.
            Question::Diff(..) => {
                let hot = self.basis.log().files().filter(|file| filter.may_match(file));
                (hot.cloned().collect(), None)
            }
            _ => {
                let archive = self.reader.archived(&self.basis, &filter).await?;
                (self.reader.log_files(&self.basis, &filter).await?, archive)
            }
        };
        let looked_at = self.basis.log().file_count()
            + archive.as_ref().map_or(0, |archive| archive.files.len());
        let pruned = looked_at - files.len();
        let what = match question {
            Question::History(_, point, _) => {
                format!("history of {} at {point}", self.reader.name())
            }
            Question::Changes(from) => {
                format!("changes of {} after commit {from}", self.reader.name())
            }
            Question::Diff(from, to) => {
                format!("difference of {} from {from} to {to}", self.reader.name())
            }
        };
        let basis = format!(
            "basis (snapshot {}, commit {})",
            self.basis.snapshot_version(),
            self.basis.commit()
        );
        let counted = match question {
            Question::Diff(..) => String::new(),
            _ => format!(
                ", {} files ({pruned} pruned){}",
                files.len(),
                from_archive(&self.basis, &files)
            ),
        };
        let rows = files.iter().map(|file| file.stats.rows.unwrap_or(0)).sum();
        let estimate = Estimate { rows: Some(rows), exact: false, files: files.len(), pruned };
        Ok((format!("{what}: {basis}{counted}{}", describe_keys(keys)), estimate))
    }
}

fn least(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (bound, None) | (None, bound) => bound,
    }
}

#[async_trait]
impl TableProvider for DerivedTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        let bounds = match self.question {
            Question::History(..) => vec![COMMIT, VERSION, EVENT_TIME],
            Question::Changes(_) => vec![COMMIT],
            Question::Diff(..) => Vec::new(),
        };
        let useful = |filter: &Expr| {
            let bounded = !RowBounds::of(std::slice::from_ref(filter)).is_open();
            let about =
                || filter.column_refs().iter().any(|column| bounds.contains(&column.name.as_str()));
            let by_key = !matches!(self.question, Question::Changes(_)) && narrows_keys(filter);
            by_key || (bounded && about())
        };
        Ok(filters.iter().map(|filter| support(useful(filter))).collect())
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            None => self.schema.clone(),
            Some(projection) => Arc::new(self.schema.project(projection)?),
        };
        let (question, keys) = self.narrowed(&schema, filters);
        let points = match question {
            Question::History(_, point, _) => vec![point],
            Question::Diff(from, to) => vec![from, to],
            Question::Changes(_) => Vec::new(),
        };
        for point in points {
            self.basis.check(point).map_err(to_datafusion)?;
        }
        let (described, estimate) = self.describe(&question, &keys).await.map_err(to_datafusion)?;
        let order = if matches!(question, Question::Changes(_)) { COMMIT } else { STATE_KEY };
        let source = DerivedRows {
            reader: self.reader.clone(),
            basis: self.basis.clone(),
            question,
            keys,
            projection: projection.cloned(),
            schema: schema.clone(),
            described,
        };
        Ok(Arc::new(
            ScanExec::new(Arc::new(source), schema, 1, Some(order), estimate).limited(limit),
        ))
    }
}

/// The rows of a [`DerivedTable`].
#[derive(Debug)]
struct DerivedRows {
    reader: Reader,
    basis: Basis,
    question: Question,
    keys: KeyFilter,
    projection: Option<Vec<usize>>,
    schema: SchemaRef,
    described: String,
}

impl RowSource for DerivedRows {
    fn describe(&self) -> String {
        self.described.clone()
    }

    fn open(&self, _: usize) -> BoxFuture<'_, Result<Vec<BatchStream>>> {
        async move {
            let (reader, basis) = (&self.reader, &self.basis);
            let rows = match &self.question {
                Question::History(keys, point, after) => {
                    reader.history_rows_after(basis, keys.clone(), *point, *after).await?
                }
                Question::Diff(from, to) => {
                    reader.diff_rows(basis, *from, *to, self.keys.clone()).await?
                }
                Question::Changes(from) => reader.changes_rows(basis, *from).await?,
            };
            let (projection, schema) = (self.projection.clone(), self.schema.clone());
            let shown = rows.map(move |batch| project(&batch?, projection.as_deref(), &schema));
            Ok(vec![shown.boxed()])
        }
        .boxed()
    }
}

fn project(
    batch: &RecordBatch,
    projection: Option<&[usize]>,
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let Some(projection) = projection else { return Ok(batch.clone()) };
    let columns =
        projection.iter().filter_map(|&index| batch.columns().get(index).cloned()).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}
