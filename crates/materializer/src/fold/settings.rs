//! What a fold may use.

use std::path::PathBuf;

use alluvium_log::{Error, Result};

/// How much memory, how many open inputs and which folder a fold may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldSettings {
    /// The bytes of decoded rows that a fold keeps in memory: 256 MiB.
    ///
    /// What does not fit is spilled to disk. On top of it come one batch of each sorted input that is streamed, and
    /// what the allocator keeps after it is freed. A budget below a few batches is as good as a few batches.
    pub memory_budget_bytes: usize,
    /// The most rows of a batch that comes out: 8192. Wide rows make smaller batches, of at most 64 MiB.
    pub batch_rows: usize,
    /// How many sorted inputs are merged at once: 64. More of them are first merged in groups to files on disk.
    pub fan_in: usize,
    /// The folder for what is spilled; `None` for the system's own. It should be on a disk, not in memory.
    ///
    /// A fold makes a folder of its own in it when it first spills, and removes that when it ends, however it ends.
    pub spill_dir: Option<PathBuf>,
}

impl Default for FoldSettings {
    fn default() -> Self {
        Self { memory_budget_bytes: 256 << 20, batch_rows: 8192, fan_in: 64, spill_dir: None }
    }
}

impl FoldSettings {
    /// What the files of a merge may hold together while they are open.
    pub(crate) fn open_bytes(&self) -> u64 {
        (self.memory_budget_bytes / 3) as u64
    }

    /// Refuses settings with which nothing can be folded.
    pub fn validate(&self) -> Result<()> {
        if self.memory_budget_bytes == 0 {
            return Err(Error::invalid("memory_budget_bytes is 0: a fold needs some memory"));
        }
        if self.batch_rows == 0 {
            return Err(Error::invalid("batch_rows is 0: a batch holds at least one row"));
        }
        if self.fan_in < 2 {
            return Err(Error::invalid(format!(
                "fan_in is {}: a merge needs at least two inputs at once",
                self.fan_in
            )));
        }
        Ok(())
    }
}
