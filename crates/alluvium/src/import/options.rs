//! What is imported, and how.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use alluvium_log::{Error, OrderBy, Result};
use arrow::datatypes::Fields;

use crate::format::{ChangeMapping, InputFormat};

/// The most rows that one batch of an import may have.
pub const MAX_BATCH_ROWS: usize = 1 << 20;

/// One input of an import.
pub enum ImportInput {
    /// A file.
    File(PathBuf),
    /// Something that is open already.
    Stream {
        /// What it is called in messages.
        label: String,
        /// Its bytes.
        read: Box<dyn Read + Send>,
    },
}

impl ImportInput {
    /// What it is called in messages.
    pub fn label(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stream { label, .. } => label.clone(),
        }
    }
}

impl fmt::Debug for ImportInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ImportInput").field(&self.label()).finish()
    }
}

/// How an import is done.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportOptions {
    /// How the inputs are written; found by itself when not given.
    pub format: Option<InputFormat>,
    /// Which columns are key, event time and version; none for native changes.
    pub mapping: ChangeMapping,
    /// The fields of the state, if it doesn't exist; inferred from the first rows when not given.
    pub fields: Option<Fields>,
    /// The order of the state, if it doesn't exist; by event time when not given.
    pub order_by: Option<OrderBy>,
    /// A SQL expression over the columns of the records: where it is true, the record deletes its key.
    pub delete_when: Option<String>,
    /// The most rows of a batch, each of which is appended as a whole or not at all: 65,536.
    pub batch_rows: usize,
    /// About the most bytes of a batch: 32 MiB.
    pub batch_bytes: usize,
    /// Application id and number, to have everything applied exactly once and by one commit.
    pub epoch: Option<(String, i64)>,
    /// The lines (or rows) of the first input up to this one are passed over, to go on after an import that stopped.
    pub after_line: u64,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            format: None,
            mapping: ChangeMapping::default(),
            fields: None,
            order_by: None,
            delete_when: None,
            batch_rows: 65_536,
            batch_bytes: 32 << 20,
            epoch: None,
            after_line: 0,
        }
    }
}

impl ImportOptions {
    /// Refuses what can't work or contradicts itself.
    ///
    /// # Errors
    /// Says which setting, and what it may be.
    pub fn validate(&self) -> Result<()> {
        if !(1..=MAX_BATCH_ROWS).contains(&self.batch_rows) {
            return Err(Error::invalid(format!(
                "a batch of {} rows: give 1 to {MAX_BATCH_ROWS}",
                self.batch_rows
            )));
        }
        if self.delete_when.is_some() && self.mapping.is_native() {
            return Err(Error::invalid(
                "an expression that tells deletes needs records: name their key; native changes say DELETE themselves",
            ));
        }
        if self.epoch.is_some() && self.after_line > 0 {
            return Err(Error::invalid(
                "an epoch is applied as a whole or not at all: it can't go on after a line",
            ));
        }
        Ok(())
    }
}
