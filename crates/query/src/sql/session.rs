//! A session: readers of states in, answers to SQL out.

use std::num::NonZeroUsize;
use std::sync::Arc;

use alluvium_log::{Error, Result};
use arrow::record_batch::RecordBatch;
use datafusion::catalog::{CatalogProviderList, MemoryCatalogProviderList};
use datafusion::common::Result as DataFusionResult;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{
    SendableRecordBatchStream, SessionState, SessionStateBuilder, TaskContext,
};
use datafusion::physical_plan::stream::{
    RecordBatchReceiverStreamBuilder, RecordBatchStreamAdapter,
};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, execute_stream};
use datafusion::prelude::{SQLOptions, SessionConfig, SessionContext};
use futures::StreamExt;

use super::catalog::{CATALOG, Pins, STATES, StateCatalog};
use super::errors::{planning_error, sql_error};
use super::functions::{Function, StateFunction};
use super::settings::SqlSettings;
use super::statement::parse;
use crate::reader::Reader;

/// Consumers that an error about memory names.
const NAMED_CONSUMERS: usize = 5;

/// Batches that the parts of an answer may be ahead of whoever reads it, beside one of each. With these alone, as DataFusion gathers
/// parts, one stands still whenever the reader waits for its turn behind another one, which is in the middle of a batch.
const BATCHES_AHEAD: usize = 8;
/// Batches that take more than this don't run ahead.
const LARGE_BATCH_BYTES: usize = 1 << 20;

/// SQL over a set of states. Cheap to clone; clones share memory limit and temporary files.
///
/// Every statement is answered as of one basis per state, pinned when it begins.
#[derive(Clone)]
pub struct SqlSession {
    readers: Arc<[Reader]>,
    base: Arc<SessionState>,
}

impl std::fmt::Debug for SqlSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.readers.iter().map(Reader::name).collect();
        f.debug_struct("SqlSession").field("states", &names).finish_non_exhaustive()
    }
}

impl SqlSession {
    /// A session over some states; no two may have one name.
    pub fn new(readers: Vec<Reader>, settings: &SqlSettings) -> Result<Self> {
        settings.validate()?;
        let mut names: Vec<&str> = readers.iter().map(Reader::name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!("the state {} is given twice", twice[0])));
        }
        let pool = FairSpillPool::new(settings.memory_limit_bytes);
        let named = NonZeroUsize::new(NAMED_CONSUMERS).unwrap_or(NonZeroUsize::MIN);
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(TrackConsumersPool::new(pool, named)))
            .with_disk_manager_builder(DiskManagerBuilder::default())
            .build_arc()
            .map_err(sql_error)?;
        let mut config = SessionConfig::new()
            .with_default_catalog_and_schema(CATALOG, STATES)
            .with_create_default_catalog_and_schema(false)
            .with_information_schema(true)
            .with_batch_size(settings.batch_rows)
            .with_target_partitions(settings.partitions());
        // Names of fields are the user's: they keep their case without quotes.
        config.options_mut().sql_parser.enable_ident_normalization = false;
        // Few rows stay in one part, and so in their order.
        config.options_mut().execution.use_row_number_estimates_to_optimize_partitioning = true;
        let base = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(runtime)
            .with_default_features()
            .build();
        Ok(Self { readers: readers.into(), base: Arc::new(base) })
    }

    /// Runs one statement that reads. Its errors while rows come are told by [`sql_error`](super::sql_error).
    ///
    /// `name => value` works in the table functions here.
    #[tracing::instrument(name = "sql", level = "debug", skip_all, fields(state = tracing::field::Empty, basis = tracing::field::Empty), err(level = "debug"))]
    pub async fn query(&self, sql: &str) -> Result<SendableRecordBatchStream> {
        let pins = Pins::new(&self.readers);
        let context = self.context_over(&pins);
        let state = context.state();
        let parsed = parse(&state, sql)?;
        pins.pin(&parsed.states).await?;
        if parsed.names_savepoint {
            pins.find_savepoints(&parsed.states).await;
        }
        // Which times a statement names is known when it is planned, and planning does not wait: so it is planned again with their commits.
        let plan = loop {
            match state.statement_to_plan(parsed.statement.clone()).await {
                Ok(plan) => break plan,
                Err(_) if pins.find_commits().await => {}
                Err(error) => return Err(planning_error(error, &pins.names())),
            }
        };
        pins.tell();
        let only_reads = SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false)
            .with_allow_statements(false);
        only_reads.verify_plan(&plan).map_err(sql_error)?;
        let frame = context.execute_logical_plan(plan).await.map_err(sql_error)?;
        let work = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await.map_err(sql_error)?;
        let rows = gathered(plan, work).map_err(sql_error)?;
        // What the statement reads is held until its rows have come, whatever of its plan is left by then.
        let schema = rows.schema();
        let held = rows.map(move |batch| {
            let _ = &pins;
            batch
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, held)))
    }

    /// A DataFusion context with every state pinned now, for its other interfaces (data frames, plans).
    ///
    /// It goes on answering as of the basis of this moment, and holds it: give it up when it is not needed any more. Arguments of table functions come by position there, and
    /// nothing keeps its user from registering tables of their own, or writing files by COPY.
    pub async fn context(&self) -> Result<SessionContext> {
        let pins = Pins::new(&self.readers);
        pins.pin(&pins.names()).await?;
        pins.find_savepoints(&pins.names()).await;
        Ok(self.context_over(&pins))
    }

    fn context_over(&self, pins: &Arc<Pins>) -> SessionContext {
        let catalogs = MemoryCatalogProviderList::new();
        catalogs.register_catalog(CATALOG.to_owned(), Arc::new(StateCatalog::new(pins.clone())));
        let mut state = SessionStateBuilder::new_from_existing(self.base.as_ref().clone())
            .with_catalog_list(Arc::new(catalogs))
            .build();
        for function in Function::ALL {
            state.register_udtf(
                function.name(),
                Arc::new(StateFunction { function, pins: pins.clone() }),
            );
        }
        SessionContext::new_with_state(state)
    }
}

/// The rows of all parts of a plan, as they come.
fn gathered(
    plan: Arc<dyn ExecutionPlan>,
    work: Arc<TaskContext>,
) -> DataFusionResult<SendableRecordBatchStream> {
    let parts = plan.output_partitioning().partition_count();
    if parts < 2 {
        return execute_stream(plan, work);
    }
    let mut rows = RecordBatchReceiverStreamBuilder::new(plan.schema(), parts + BATCHES_AHEAD);
    for part in 0..parts {
        let mut batches = plan.execute(part, work.clone())?;
        let out = rows.tx();
        rows.spawn(async move {
            while let Some(batch) = batches.next().await {
                let is_large =
                    |batch: &RecordBatch| batch.get_array_memory_size() > LARGE_BATCH_BYTES;
                let room = match &batch {
                    Ok(batch) if is_large(batch) => BATCHES_AHEAD + 1,
                    _ => 1,
                };
                let has_failed = batch.is_err();
                match out.reserve_many(room).await {
                    Ok(mut free) => {
                        if let Some(place) = free.next() {
                            place.send(batch);
                        }
                    }
                    // Nobody reads on.
                    Err(_) => break,
                }
                if has_failed {
                    break;
                }
            }
            Ok(())
        });
    }
    Ok(rows.build())
}
