//! How tables are laid out: when a snapshot has runs, and how large files are. The answers never depend on it.

use alluvium_log::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::bounds::FILE_ROWS;
use crate::maintain::COMPACTED_FILE_ROWS;
use crate::materialize::{LOOKUP_ROWS, SMALL_STATE_ROWS};

/// How a materialization lays out the snapshot, and a compaction the log. The defaults suit states of any size; tests make them small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LayoutSettings {
    /// A state with no more rows than this is kept as base only: [`SMALL_STATE_ROWS`].
    pub small_state_rows: u64,
    /// Rows of one snapshot file: [`FILE_ROWS`]; up to half as many again where little would be left for the next. Fewer make smaller merges and more files.
    pub file_rows: usize,
    /// Changes up to this many are checked against the snapshot before anything is written: [`LOOKUP_ROWS`].
    pub lookup_rows: u64,
    /// The same of a compacted day of the log: [`COMPACTED_FILE_ROWS`].
    pub compacted_file_rows: usize,
}

impl Default for LayoutSettings {
    fn default() -> Self {
        Self {
            small_state_rows: SMALL_STATE_ROWS,
            file_rows: FILE_ROWS,
            lookup_rows: LOOKUP_ROWS,
            compacted_file_rows: COMPACTED_FILE_ROWS,
        }
    }
}

impl LayoutSettings {
    /// Refuses settings with which nothing can be written.
    pub fn validate(&self) -> Result<()> {
        if self.file_rows == 0 || self.compacted_file_rows == 0 {
            return Err(Error::invalid(
                "file_rows or compacted_file_rows is 0: a file holds at least one row",
            ));
        }
        Ok(())
    }
}
