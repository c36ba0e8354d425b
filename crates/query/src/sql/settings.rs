//! What a user may set about SQL: memory, parallelism, batches.

use alluvium_log::{Error, Result};
use serde::{Deserialize, Serialize};

/// Settings of a [`SqlSession`](super::SqlSession).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SqlSettings {
    /// Bytes that sorts, joins and aggregations of all queries of a session may hold together. What does not fit
    /// spills to temporary files; what can't spill ends with an error that says so. Reading has a budget of its own.
    pub memory_limit_bytes: usize,
    /// How many parts of a query run at the same time; 0 means one per processor.
    pub target_partitions: usize,
    /// Rows of a batch. More costs memory, fewer cost time.
    pub batch_rows: usize,
}

impl Default for SqlSettings {
    fn default() -> Self {
        Self { memory_limit_bytes: 512 << 20, target_partitions: 0, batch_rows: 8_192 }
    }
}

impl SqlSettings {
    /// The least of [`SqlSettings::memory_limit_bytes`] with which queries run: 16 MiB.
    pub const LEAST_MEMORY_BYTES: usize = 16 << 20;

    /// Checks that the settings can work.
    pub fn validate(&self) -> Result<()> {
        if self.memory_limit_bytes < Self::LEAST_MEMORY_BYTES {
            return Err(Error::invalid(format!(
                "memory_limit_bytes is {}: give at least {}",
                self.memory_limit_bytes,
                Self::LEAST_MEMORY_BYTES
            )));
        }
        if !(1..=1 << 20).contains(&self.batch_rows) {
            return Err(Error::invalid(format!(
                "batch_rows is {}: give 1 to {}",
                self.batch_rows,
                1 << 20
            )));
        }
        if self.target_partitions > 1_024 {
            return Err(Error::invalid(format!(
                "target_partitions is {}: give 0 (one per processor) to 1024",
                self.target_partitions
            )));
        }
        Ok(())
    }

    /// The number of parts that run at the same time.
    pub(super) fn partitions(&self) -> usize {
        match self.target_partitions {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            given => given,
        }
    }
}
