//! The materialized view of Alluvium's log: state = a fold of the log, kept in a snapshot table.
//!
//! This crate promises:
//!
//! * **The fold is a pure function of the rows** ([`fold`]): any order, any batching, any layout of files gives the same
//!   winners. It streams, holds a budget of memory and spills what does not fit.
//! * **Progress and data are one commit** ([`materialize`]): killed at any moment, run twice or raced, the snapshot is
//!   the fold of a prefix of the log, and says of which.
//! * **Work follows the change**: changes become sorted runs beside the base, and are merged into it range by range when they
//!   have grown enough to pay for it.
//! * **The view can be proved** ([`verify`]): the fold of the log is recomputed and compared row by row.
//!
//! It neither writes the log (`alluvium-log`) nor answers questions (`alluvium-query`).
//!
//! ```
//! use alluvium_log::{OrderBy, fold_schema};
//! use alluvium_materializer::fold_batches;
//! use arrow::array::{ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
//! use std::sync::Arc;
//!
//! # fn main() -> alluvium_log::Result<()> {
//! // Two changes of one key; the one that happened later wins, although it came first.
//! let columns: Vec<ArrayRef> = vec![
//!     Arc::new(StringArray::from(vec!["u1", "u1"])),
//!     Arc::new(Int64Array::from(vec![8, 9])),
//!     Arc::new(TimestampMicrosecondArray::from(vec![2_000_000, 1_000_000]).with_timezone("UTC")),
//!     Arc::new(StringArray::from(vec!["UPSERT", "UPSERT"])),
//!     Arc::new(Int64Array::from(vec![1, 2])),
//!     Arc::new(Int32Array::from(vec![0, 0])),
//! ];
//! let schema = fold_schema(&[]);
//! let winners = fold_batches(OrderBy::EventTime, &schema, &[RecordBatch::try_new(schema.clone(), columns)?])?;
//! assert_eq!(winners[0].num_rows(), 1);
//! assert_eq!(winners[0].column(1).as_primitive::<arrow::datatypes::Int64Type>().value(0), 8);
//! # Ok(())
//! # }
//! ```

mod bounds;
mod effect;
mod erase;
mod files;
mod fold;
mod fork;
mod hash;
mod inputs;
mod layout;
mod maintain;
mod materialize;
pub mod metrics;
mod ranges;
mod snapshot;
mod thread;
mod tombstones;
mod verify;

pub use bounds::FILE_ROWS;
pub use effect::rank;
pub use erase::{EraseOptions, EraseReceipt, ErasedFile, MAX_KEYS, PendingFile, erase};
pub use fold::{
    BatchStream, FoldInput, FoldSettings, Ranking, SortedInput, fold, fold_batches, merge,
    merge_partly,
};
pub use fork::{
    DropReport, ForkOptions, ForkOutcome, ForkReport, SharedFiles, drop_fork, fork, is_left_over,
};
pub use hash::{RowsHash, hash_rows};
pub use inputs::{file_input, file_stream, file_stream_with, snapshot_inputs, whole_value};
pub use layout::LayoutSettings;
pub use maintain::{
    ArchiveReport, ArchiveTotals, COMPACTED_FILE_ROWS, CompactOptions, CompactReport, ExpireReport,
    FailedSteps, Footprint, Kept, KeptBy, LeaseCost, LeftOut, LeftOutReason, MaintainOptions,
    MaintainReport, MaintainStep, Readable, ReportedError, RetentionReport, SavepointCost,
    SnapshotCheck, StepOutcome, StepReport, StopSignal, TombstonesReport, UnreadableVersions,
    archive, check, compact, compaction_debt, expire, explain_retention, forget_tombstones,
    maintain, tombstones_to_forget,
};
pub use materialize::{
    BASE_PER_RUN_ROWS, Change, LOOKUP_ROWS, MaterializeOptions, MaterializeReport,
    SMALL_STATE_ROWS, join_small_files, materialize,
};
pub use snapshot::{
    BASE, BaseBounds, GridReport, Horizon, MATERIALIZER_APP_ID, RUN, Savepoint, Snapshot,
    SnapshotState, examine_savepoints, least_key, snapshot_path, supersede,
    validate_savepoint_name,
};
pub use verify::{Difference, VerifyOptions, VerifyReport, verify};
