//! placeholder
mod basis;
mod diff;
mod history;
pub mod metrics;
mod point;
mod reader;
mod scan;
mod sql;
mod tail;

pub use basis::Basis;
pub use diff::diff_schema;
pub use history::history_schema;
pub use point::{Point, parse_time};
pub use reader::{Lookup, Reader, ReaderOptions};
pub use scan::ScanSources;
pub use sql::{SqlSession, SqlSettings, sql_error};

