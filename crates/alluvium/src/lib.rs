//! Alluvium: the state of your streams, kept as an immutable log that you can query.
//!
//! Every change of a state is appended to a Delta table; a snapshot table holds the newest value of each key; queries
//! ask what is, what was, and how it got there. State is a materialized view of the log.
//!
//! ```
//! use alluvium::{Point, Store};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
//! struct UserStatus {
//!     login_count: i64,
//!     source: Option<String>,
//! }
//!
//! # #[tokio::main(flavor = "multi_thread")]
//! # async fn main() -> alluvium::Result<()> {
//! let store = Store::open("memory://").await?;
//! let users = store.state::<UserStatus>("user_status").await?;
//! let first = users.put("u1", &UserStatus { login_count: 1, source: None }).await?;
//! users.update("u1", |user| user.map(|u| UserStatus { login_count: u.login_count + 1, ..u })).await?;
//! assert_eq!(users.get("u1").await?.map(|user| user.login_count), Some(2));
//! let before = users.as_of(Point::at_commit(first.commit)).get("u1").await?;
//! assert_eq!(before.map(|user| user.login_count), Some(1));
//!
//! let mut epoch = store.epoch("sessions", 1);
//! epoch.delete(&users, "u1").await?;
//! epoch.commit().await?;
//! assert_eq!(users.get("u1").await?, None);
//! # Ok(())
//! # }
//! ```

mod cache;
mod columns;
mod epoch;
mod epoch_part;
mod epoch_sealed;
mod epoch_stream;
mod forks;
pub mod format;
mod heap;
mod import;
pub mod metrics;
mod process;
mod promote;
mod raw;
mod repair;
mod restore;
mod row;
mod stats;
mod store;
mod typed;
mod upkeep;

pub use alluvium_log::{
    ArchiveUnreachable, BelowFloor, Clock, Damage, DataFile, Durability, EpochCommit, EpochOutcome,
    Error, ErrorKind, FileRole, Floor, Hold, HoldStatus, KeyErased, KeyFilter, Log,
    MaintenanceSettings, ManualClock, OrderBy, ReaderLease, Receipt, RemoteSettings, Result,
    SnapshotGrid, StagedReport, StateDefinition, StateSettings, Storage, StorageOptions,
    SystemClock, Table, VacuumReport, bytes_text, duration_text, parse_bytes, parse_duration,
    validate_state_name,
};
pub use alluvium_materializer::{
    ArchiveReport, ArchiveTotals, BatchStream, Change as SnapshotChange, CompactReport, DropReport,
    EraseReceipt, ErasedFile, ExpireReport, FailedSteps, Footprint, ForkOutcome, ForkReport,
    GridReport, Horizon, Kept, KeptBy, LayoutSettings, LeaseCost, LeftOut, LeftOutReason,
    MaintainReport, MaintainStep, MaterializeReport, PendingFile, Readable, ReportedError,
    RetentionReport, Savepoint, SavepointCost, SnapshotCheck, StepOutcome, StepReport, StopSignal,
    TombstonesReport, UnreadableVersions, VerifyReport, validate_savepoint_name,
};
pub use alluvium_query::{
    Basis, HistoryExpired, Lookup, NamedPoint, Point, Reader, ScanSources, SqlSession, SqlSettings,
    diff_schema, history_schema, parse_time, sql_error,
};
pub use arrow;
pub use cache::RowCacheStats;
pub use columns::fields_of;
pub use datafusion;
pub use epoch::Epoch;
pub use epoch_stream::{EPOCHS_IN_FLIGHT, EpochStream};
pub use forks::{Fork, ForkStatus};
pub use import::{
    Import, ImportInput, ImportOptions, ImportProgress, ImportReport, MAX_BATCH_ROWS,
};
pub use process::{NamedSetting, ProcessSettings, SETTINGS_FILE, SettingSource};
pub use promote::{PromoteOptions, PromoteOutcome, PromoteReport};
pub use raw::RawState;
pub use repair::{DeepReport, RepairReport, RepairStep, Unrepaired};
pub use restore::{RestoreOptions, RestoreOutcome, RestoreReport};
pub use stats::{DayStats, DepthStats, StateStats};
pub use store::{Store, StoreBuilder, StoreSettings};
pub use typed::{Change, Entry, State, StateAt, Value};
pub use upkeep::{
    FailedState, Leadership, Lease, MaintainEvent, MaintainRun, Maintainer, MaintainerOptions,
    RunReport,
};

/// The example of the README, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
