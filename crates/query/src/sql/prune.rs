//! Which files of a table a predicate needs, by their statistics and partitions alone.

use std::sync::Arc;

use alluvium_log::{COMMIT, DT, DataFile, EVENT_TIME, STATE_KEY, TIER, VERSION};
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, Volatility};
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;

/// Leaves out the files that hold no row for which all the filters are true.
///
/// `partition` is the column that partitions the table; `by_commit` says that the files' commits are those of the
/// column `commit`. A filter that can't be judged keeps every file.
pub(super) fn prune_files(
    session: &dyn Session,
    schema: &SchemaRef,
    partition: &str,
    by_commit: bool,
    filters: &[Expr],
    files: Vec<Arc<DataFile>>,
) -> Result<Vec<Arc<DataFile>>> {
    let files = prune_by_partition(session, partition, filters, files)?;
    let Some(predicate) = conjunction(filters.to_vec()) else { return Ok(files) };
    let columns = DFSchema::try_from(schema.clone())?;
    let predicate = session.create_physical_expr(predicate, &columns)?;
    let statistics = FileFacts { files: &files, partition, by_commit };
    let kept = match PruningPredicateBuilder::new()
        .with_file_schema(schema.clone())
        .try_build(predicate)
    {
        Ok(predicate) if !predicate.always_true() => predicate.prune(&statistics)?,
        _ => return Ok(files),
    };
    Ok(files.iter().zip(kept).filter(|(_, kept)| *kept).map(|(file, _)| file.clone()).collect())
}

/// Judges filters on the partition alone by evaluating them: so any form of them prunes, casts and functions included.
fn prune_by_partition(
    session: &dyn Session,
    partition: &str,
    filters: &[Expr],
    files: Vec<Arc<DataFile>>,
) -> Result<Vec<Arc<DataFile>>> {
    let schema = Arc::new(Schema::new(vec![Field::new(partition, DataType::Utf8, true)]));
    let values: StringArray = files.iter().map(|file| partition_of(file, partition)).collect();
    let rows = RecordBatch::try_new(schema.clone(), vec![Arc::new(values)])?;
    let columns = DFSchema::try_from(schema)?;
    let mut kept = vec![true; files.len()];
    for filter in filters.iter().filter(|filter| only_about(filter, partition)) {
        let evaluated = session
            .create_physical_expr(filter.clone(), &columns)
            .and_then(|predicate| predicate.evaluate(&rows)?.into_array(rows.num_rows()));
        // An error, of a cast say, is left to the evaluation on the rows, which tells it where it belongs.
        let Ok(evaluated) = evaluated else { continue };
        let Some(truth) = evaluated.as_boolean_opt() else { continue };
        for (index, kept) in kept.iter_mut().enumerate() {
            *kept &= truth.is_valid(index) && truth.value(index);
        }
    }
    Ok(files.into_iter().zip(kept).filter(|(_, kept)| *kept).map(|(file, _)| file).collect())
}

/// Whether a filter looks at the partition and at nothing else.
fn only_about(filter: &Expr, partition: &str) -> bool {
    let columns = filter.column_refs();
    let volatile = || {
        use datafusion::common::tree_node::TreeNode;
        filter.exists(|expr| {
            Ok(match expr {
                Expr::ScalarFunction(call) => {
                    call.func.signature().volatility == Volatility::Volatile
                }
                // What subqueries give is not known yet.
                Expr::ScalarSubquery(_)
                | Expr::InSubquery(_)
                | Expr::Exists(_)
                | Expr::OuterReferenceColumn(..) => true,
                _ => false,
            })
        })
    };
    columns.len() == 1
        && columns.iter().all(|column| column.name == partition)
        && !volatile().unwrap_or(true)
}

/// The value of a file's partition.
pub(super) fn partition_of<'a>(file: &'a DataFile, partition: &str) -> Option<&'a str> {
    file.add.partition.get(partition).and_then(Option::as_deref)
}

/// What is known of files without opening them.
struct FileFacts<'a> {
    files: &'a [Arc<DataFile>],
    partition: &'a str,
    by_commit: bool,
}

impl FileFacts<'_> {
    fn bound(&self, column: &Column, greatest: bool) -> Option<ArrayRef> {
        let integers = |value: &dyn Fn(&DataFile) -> Option<i64>| -> Int64Array {
            self.files.iter().map(|file| value(file)).collect()
        };
        let either = |low: Option<i64>, high: Option<i64>| if greatest { high } else { low };
        match column.name.as_str() {
            VERSION => Some(Arc::new(integers(&|file| {
                either(file.stats.min_version, file.stats.max_version)
            }))),
            EVENT_TIME => {
                let times =
                    integers(&|file| either(file.stats.min_event_time, file.stats.max_event_time));
                let times = TimestampMicrosecondArray::from_iter(times.iter());
                Some(Arc::new(times.with_timezone("UTC")))
            }
            COMMIT if self.by_commit => {
                let commit = |file: &DataFile| {
                    let span = file.commits.span();
                    either(Some(span.low), Some(span.high))
                };
                Some(Arc::new(integers(&commit)))
            }
            STATE_KEY => {
                let key = |file: &Arc<DataFile>| match greatest {
                    true => file.stats.max_key.clone(),
                    false => file.stats.min_key.clone(),
                };
                Some(Arc::new(self.files.iter().map(key).collect::<StringArray>()))
            }
            DT | TIER if column.name == self.partition => {
                let values: StringArray =
                    self.files.iter().map(|file| partition_of(file, self.partition)).collect();
                Some(Arc::new(values))
            }
            _ => None,
        }
    }
}

impl PruningStatistics for FileFacts<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.bound(column, false)
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.bound(column, true)
    }

    fn num_containers(&self) -> usize {
        self.files.len()
    }

    fn null_counts(&self, _: &Column) -> Option<ArrayRef> {
        None
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let rows: UInt64Array = self.files.iter().map(|file| file.stats.rows).collect();
        Some(Arc::new(rows))
    }

    fn contained(
        &self,
        _: &Column,
        _: &std::collections::HashSet<datafusion::common::ScalarValue>,
    ) -> Option<BooleanArray> {
        None
    }
}
