//! Answers about Alluvium's states: what is, what was, and how it got there.
//!
//! This crate promises:
//!
//! * **One basis per question** ([`Reader::basis`]): the pair (snapshot version, log commit) that everything in it is read at.
//! * **Latest is fresh**: the snapshot merged with the log's tail, whether or not anything was materialized.
//! * **The past by commit, version and event time, alone or together** ([`Point`]): the answer doesn't depend on which snapshot it
//!   starts from, nor on materialization or compaction having run.
//! * **What can't be answered is refused**, with the range that can be.
//! * **Cost follows the question**: a lookup reads pages of a file or two; a scan streams in order of keys, and never sorts or hashes the table.
//!
//! It writes nothing. SQL is [`SqlSession`]; its tables and functions are described in `docs/sql.md`.
//!
//! ```
//! use std::sync::Arc;
//! use alluvium_log::{Durability, Log, LogOptions, StateDefinition, StateSettings, Storage};
//! use alluvium_materializer::Snapshot;
//! use alluvium_query::{Lookup, Point, Reader, ReaderOptions};
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, StructArray};
//! use arrow::datatypes::{DataType, Field, Fields};
//!
//! # #[tokio::main(flavor = "multi_thread")]
//! # async fn main() -> alluvium_log::Result<()> {
//! let storage = Storage::open("memory://", Durability::Fsync)?;
//! let fields = Fields::from(vec![Field::new("login_count", DataType::Int64, true)]);
//! let definition = StateDefinition::new(&fields, StateSettings::default())?;
//! let (log, _) = Log::create(&storage, "user_status", &definition, LogOptions::default()).await?;
//! for count in [1, 2] {
//!     let value = StructArray::new(fields.clone(), vec![Arc::new(Int64Array::from(vec![count]))], None);
//!     let changes = RecordBatch::try_from_iter([
//!         ("state_key", Arc::new(StringArray::from(vec!["u1"])) as ArrayRef),
//!         ("state_value", Arc::new(value)),
//!     ])?;
//!     log.append(&changes).await?;
//! }
//! let snapshot = Snapshot::open(&storage, &log).await?;
//! let reader = Reader::new(log, snapshot, ReaderOptions::default());
//! let basis = reader.basis().await?;
//! assert!(matches!(reader.get(&basis, Point::LATEST, "u1").await?, Lookup::Found(_)));
//! assert!(matches!(reader.get(&basis, Point::at_commit(0), "u1").await?, Lookup::Absent));
//! # Ok(())
//! # }
//! ```

mod anew;
mod basis;
mod diff;
mod distinct;
mod feed;
mod held;
mod history;
mod horizon;
mod known;
mod known_at;
mod layout;
pub mod metrics;
mod named;
mod point;
mod reader;
mod scan;
mod sql;
mod tail;

pub use basis::Basis;
pub use diff::diff_schema;
pub use history::history_schema;
pub use horizon::HistoryExpired;
pub use named::NamedPoint;
pub use point::{Point, parse_time};
pub use reader::{Lookup, Reader, ReaderOptions};
pub use scan::ScanSources;
pub use sql::{SqlSession, SqlSettings, sql_error};
