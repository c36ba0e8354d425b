//! The leaf of a physical plan: the rows of a source, in parts that run at the same time.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use alluvium_log::Error;
use alluvium_materializer::BatchStream;
use arrow::compute::SortOptions;
use arrow::datatypes::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics, internal_err};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::limit::LimitStream;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet,
};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
    ReplaceChildrenOptions, SendableRecordBatchStream,
};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

/// Where rows come from.
pub(super) trait RowSource: fmt::Debug + Send + Sync {
    /// What is read, for a reader of a plan.
    fn describe(&self) -> String;

    /// Opens the rows in at most so many parts. All have the schema given to the scan.
    fn open(&self, partitions: usize) -> BoxFuture<'_, alluvium_log::Result<Vec<BatchStream>>>;
}

/// What is known of a scan before it runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Estimate {
    /// About how many rows come.
    pub(super) rows: Option<u64>,
    /// Whether it is that many precisely.
    pub(super) exact: bool,
    /// Files that are read.
    pub(super) files: usize,
    /// Files that need not be read.
    pub(super) pruned: usize,
}

/// The streams of each part that were opened and not yet taken.
type Opened = Arc<tokio::sync::Mutex<Vec<VecDeque<BatchStream>>>>;

/// The rows of a source.
#[derive(Debug)]
pub(super) struct ScanExec {
    source: Arc<dyn RowSource>,
    properties: Arc<PlanProperties>,
    estimate: Estimate,
    fetch: Option<usize>,
    opened: OpenedParts,
    metrics: ExecutionPlanMetricsSet,
}

/// All parts are opened by the one that runs first: a source finds out for all of them at once what to read.
#[derive(Clone)]
struct OpenedParts(Opened);

impl fmt::Debug for OpenedParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenedParts")
    }
}

impl OpenedParts {
    fn new(partitions: usize) -> Self {
        let parts = (0..partitions).map(|_| VecDeque::new()).collect();
        Self(Arc::new(tokio::sync::Mutex::new(parts)))
    }

    /// The stream of a part. A part that is run again is opened again.
    async fn take(
        &self,
        source: &dyn RowSource,
        partition: usize,
    ) -> alluvium_log::Result<BatchStream> {
        let mut parts = self.0.lock().await;
        let count = parts.len();
        let nowhere = || Error::internal(format!("a scan has no part {partition}"));
        if parts.get(partition).ok_or_else(nowhere)?.is_empty() {
            let mut streams = source.open(count).await?.into_iter();
            for (index, part) in parts.iter_mut().enumerate() {
                let stream = match streams.next() {
                    None => stream::empty().boxed(),
                    // Parts are ascending: should there be more than asked for, the last one takes them all.
                    Some(first) if index + 1 == count => {
                        let rest: Vec<_> = streams.by_ref().collect();
                        stream::iter(std::iter::once(first).chain(rest)).flatten().boxed()
                    }
                    Some(stream) => stream,
                };
                part.push_back(stream);
            }
        }
        parts.get_mut(partition).and_then(VecDeque::pop_front).ok_or_else(nowhere)
    }
}

impl ScanExec {
    /// A scan in so many parts. `order` is the column by which each part ascends, if any.
    pub(super) fn new(
        source: Arc<dyn RowSource>,
        schema: SchemaRef,
        partitions: usize,
        order: Option<&str>,
        estimate: Estimate,
    ) -> Self {
        let shown = order.and_then(|name| schema.column_with_name(name));
        let column = shown.map(|(index, field)| Column::new(field.name(), index));
        let mut equivalence = EquivalenceProperties::new(schema);
        if let Some(column) = column {
            let options = SortOptions { descending: false, nulls_first: false };
            equivalence.add_ordering([PhysicalSortExpr::new(Arc::new(column), options)]);
        }
        let partitions = partitions.max(1);
        let properties = PlanProperties::new(
            equivalence,
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        let metrics = ExecutionPlanMetricsSet::new();
        MetricBuilder::new(&metrics).global_counter("files").add(estimate.files);
        MetricBuilder::new(&metrics).global_counter("files_pruned").add(estimate.pruned);
        Self {
            source,
            properties: Arc::new(properties),
            estimate,
            fetch: None,
            opened: OpenedParts::new(partitions),
            metrics,
        }
    }

    /// The same scan, ended after so many rows of each part.
    pub(super) fn limited(&self, fetch: Option<usize>) -> Self {
        Self { fetch, ..self.fresh() }
    }

    fn fresh(&self) -> Self {
        Self {
            source: self.source.clone(),
            properties: self.properties.clone(),
            estimate: self.estimate.clone(),
            fetch: self.fetch,
            opened: OpenedParts::new(self.properties.partitioning.partition_count()),
            metrics: self.metrics.clone(),
        }
    }
}

impl DisplayAs for ScanExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(format, DisplayFormatType::TreeRender) {
            return writeln!(f, "{}", self.source.describe());
        }
        let names: Vec<&str> = self
            .properties
            .eq_properties
            .schema()
            .fields()
            .iter()
            .map(|field| field.name().as_str())
            .collect();
        write!(f, "ScanExec: {}, columns=[{}]", self.source.describe(), names.join(", "))?;
        match self.fetch {
            Some(fetch) => write!(f, ", limit={fetch}"),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for ScanExec {
    fn name(&self) -> &'static str {
        "ScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.is_empty() { Ok(self) } else { internal_err!("a scan has no children") }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.is_empty() { Ok(self) } else { internal_err!("a scan has no children") }
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.fresh()))
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (opened, source) = (self.opened.clone(), self.source.clone());
        let rows = async move { opened.take(source.as_ref(), partition).await }
            .into_stream()
            .try_flatten()
            .map_err(|error| DataFusionError::External(Box::new(error)));
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let stream = Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows));
        // With no limit of its own the stream only counts its rows.
        let limit = self.fetch.unwrap_or(usize::MAX);
        let counted = LimitStream::new(stream, 0, Some(limit), baseline);
        Ok(Box::pin(cooperative(counted)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        let share = match args.partition() {
            Some(_) => self.properties.partitioning.partition_count() as u64,
            None => 1,
        };
        if let Some(rows) = self.estimate.rows.and_then(|rows| usize::try_from(rows / share).ok()) {
            let exact = self.estimate.exact && self.fetch.is_none() && args.partition().is_none();
            statistics.num_rows = match exact {
                true => Precision::Exact(rows),
                false => Precision::Inexact(rows.min(self.fetch.unwrap_or(usize::MAX))),
            };
        }
        Ok(Arc::new(statistics))
    }

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        Some(Arc::new(self.limited(limit)))
    }
}
