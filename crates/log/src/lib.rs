//! The log of Alluvium: every change of every key of a state, appended to a Delta table and never changed.
//!
//! This crate promises:
//!
//! * **An append is all or nothing, and durable when it returns.** The rows of a batch become visible with one Delta
//!   commit. Appends of concurrent callers share a commit ([`Log::append`]).
//! * **Losing a race costs a retry, never a row.** A commit is a put-if-absent of the next number; nothing is listed or
//!   reloaded per commit.
//! * **An epoch is applied exactly once** ([`Log::epoch`]), however often it is sent, and a replaced process is fenced.
//! * **The rows of commits `(a, b]` can be read for as long as the files are there** ([`read_file`] with a
//!   [`RowFilter`]), also after checkpoints, log clean-up and another engine's `OPTIMIZE`.
//!
//! It does not fold rows into states: that is `alluvium-materializer`; nor answer questions: that is `alluvium-query`.
//!
//! ```
//! use std::sync::Arc;
//! use alluvium_log::{Durability, Log, LogOptions, StateDefinition, StateSettings, Storage};
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, StructArray};
//! use arrow::datatypes::{DataType, Field, Fields};
//!
//! # #[tokio::main(flavor = "multi_thread")]
//! # async fn main() -> alluvium_log::Result<()> {
//! let storage = Storage::open("memory://", Durability::Fsync)?;
//! let fields = Fields::from(vec![Field::new("login_count", DataType::Int64, true)]);
//! let definition = StateDefinition::new(&fields, StateSettings::default())?;
//! let (log, _) = Log::create(&storage, "user_status", &definition, LogOptions::default()).await?;
//!
//! let counts: ArrayRef = Arc::new(Int64Array::from(vec![1, 7]));
//! let changes = RecordBatch::try_from_iter([
//!     ("state_key", Arc::new(StringArray::from(vec!["u1", "u2"])) as ArrayRef),
//!     ("state_value", Arc::new(StructArray::new(fields, vec![counts], None))),
//! ])?;
//! let receipt = log.append(&changes).await?;
//! assert_eq!((receipt.commit, receipt.rows), (1, 2));
//! # Ok(())
//! # }
//! ```

mod archive;
mod checksum;
mod clock;
mod columns;
mod compression;
mod conform;
mod definition;
mod encode;
mod epoch;
mod erased;
mod error;
mod expired;
mod floor;
mod forks;
mod key;
mod leases;
mod log;
pub mod metrics;
mod order;
mod random;
mod read;
mod record;
mod required;
mod rows;
mod settings;
mod storage;
mod table;
#[cfg(test)]
mod tests;
mod writer;

pub use archive::{
    ARCHIVE_APP_ID, ArchiveContents, ArchiveOutcome, ArchivePlaces, ArchiveUnreachable, Archived,
    ArchivedFiles, archive_path, day_of, examine_archive,
};
pub use checksum::{NO_SUM, SUM_ENTRY, TAG_CHECK, check_text, seal_text};
pub use clock::{Clock, HLC_LOW_BITS, HybridClock, ManualClock, SystemClock};
pub use columns::{
    APPEND_ID, APPEND_SEQ, COMMIT, DELETE, DT, EVENT_TIME, FOLD_COLUMNS, OP_TYPE, STATE_KEY,
    STATE_VALUE, TIER, UPSERT, VERSION, event_time_type, fold_schema, log_schema, value_field,
};
pub use definition::{DEFAULT_MAX_FUTURE_MS, MAX_NESTING, StateDefinition, StateSettings};
pub use encode::{
    EncodedParquet, EncodedParts, MAX_DAYS_PER_APPEND, PAGE_ROWS, ROW_GROUP_ROWS, encode_parquet,
    encode_parquet_parts, statistics, statistics_of, writer_properties,
};
pub use epoch::{EpochCommit, MAX_APP_ID_BYTES, OWNER_PREFIX};
pub use erased::{ERASE_APP_ID, ERASED_APP_ID, Erased, KeyErased, MAX_ERASED_KEYS};
pub use error::{Error, ErrorKind, Result};
pub use expired::{EXPIRE_APP_ID, EXPIRE_ORDER_APP_ID, Expired};
pub use floor::{BelowFloor, FLOOR_APP_ID, FLOOR_COMMIT_APP_ID, Floor};
pub use forks::{
    Ancestor, ForkRecord, ForkedVersions, NameClaim, NameFolder, PROPERTY_FORK, PROPERTY_FORK_OF,
    identity_of, told_unfinished,
};
pub use key::{decode_key, encode_key, integer_key_part};
pub use leases::{
    CLOCK_MARGIN_MS, HeldVersion, Hold, HoldStatus, LEASE_AFTER_MS, LEASE_SPAN_MS, LeaseFolder,
    LeasedTable, ReaderLease,
};
pub use log::{EpochOutcome, Log, LogOptions, Marked, REWRITER_APP_ID, Receipt, log_path};
pub use order::{OrderBy, Rank};
pub use random::{random, seed_randomness};
pub use read::{
    BATCH_ROWS, DEFAULT_FOOTER_CACHE_BYTES, DEFAULT_PAGE_CACHE_BYTES, DEFAULT_PAGE_SPILL_BYTES,
    FieldBounds, FieldValue, FooterCache, KeyFilter, KnownRow, LookupFile, PageCache,
    PageCacheStats, ReadHints, ReadSpec, RowFilter, RowStream, holds_only_upserts,
    is_upsert_column, read_file, read_file_with, read_keys, unread_column, upsert_column,
};
pub use rows::{MAX_EVENT_TIME, MIN_EVENT_TIME, check_changes};
pub use settings::{
    GridLevel, LEAST_COMMIT_RETENTION_MS, LEAST_FILE_RETENTION_MS, MaintenanceSettings,
    SnapshotGrid, duration_text, parse_duration,
};
pub use storage::{
    Durability, RemoteSettings, StagedReport, Storage, StorageOptions, validate_state_name,
};
pub use table::{
    Action, Attempt, CHECKPOINT_INTERVAL, CleanUpReport, CommitInfo, CommitSpan, Damage, DataFile,
    EARLIER_COMMITS, Examination, FileAdd, FileCommits, FileRemove, FileRole, FileStats, LinkPlan,
    Linked, Linking, MAX_COMMIT_ATTEMPTS, MAX_UNKNOWN_RETRIES, Outcome, Pins, Protocol, Stray,
    TAG_APPEND, TAG_COMMIT, TAG_COMMITS, TAG_RUN, TAG_SORTED, Table, TableMetadata, TableState,
    VACUUM_APP_ID, VacuumOptions, VacuumReport, VersionAt,
};
