//! What an import did, and how far it is.

use std::time::Duration;

use arrow::datatypes::{DataType, Fields};
use serde::Serialize;

/// How far an import is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportProgress {
    /// The input being read.
    pub input: String,
    /// Rows that are durable.
    pub rows: u64,
    /// Rows that were refused.
    pub rejected: u64,
    /// Bytes of the inputs read, as they lie on disk.
    pub bytes_read: u64,
    /// Bytes of all inputs, when that is known.
    pub total_bytes: Option<u64>,
    /// The newest commit of this import.
    pub commit: Option<i64>,
}

/// What an import did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImportReport {
    /// Whether the state was created.
    pub created: bool,
    /// Rows appended, deletes included.
    pub rows: u64,
    /// Deletes appended.
    pub deletes: u64,
    /// Rows refused, and written to the rejects.
    pub rejected: u64,
    /// Commits that hold the rows.
    pub commits: u64,
    /// The first of those commits.
    pub first_commit: Option<i64>,
    /// The last of those commits.
    pub last_commit: Option<i64>,
    /// The paths of fields that the state did not have before.
    pub fields_added: Vec<String>,
    /// Fields of the inputs that held only nulls, and so have no type.
    pub fields_left_out: Vec<String>,
    /// The greatest epoch applied, when it shows that this one was applied before and nothing was to do.
    pub already_applied: Option<i64>,
    /// Whether it was stopped before the end of the inputs; what is told here is in.
    pub stopped: bool,
    /// The place up to which everything is in, when it was stopped.
    pub stopped_after: Option<String>,
    /// How long it took.
    #[serde(skip)]
    pub elapsed: Duration,
}

/// The paths of the fields of `new` that `old` lacks.
pub(super) fn added_fields(old: &Fields, new: &Fields) -> Vec<String> {
    let mut added = Vec::new();
    collect_added(old, new, "", &mut added);
    added
}

fn collect_added(old: &Fields, new: &Fields, prefix: &str, added: &mut Vec<String>) {
    for field in new {
        let path = format!("{prefix}{}", field.name());
        match old.iter().find(|known| known.name() == field.name()) {
            None => added.push(path),
            Some(known) => {
                if let (DataType::Struct(old), DataType::Struct(new)) =
                    (known.data_type(), field.data_type())
                {
                    collect_added(old, new, &format!("{path}."), added);
                }
            }
        }
    }
}
