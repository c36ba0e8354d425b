//! What a Delta commit holds, in our own terms: so that only `delta.rs` knows another library's types.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;

/// The tag that carries the log commit of a file's rows.
pub const TAG_COMMIT: &str = "alluvium.commit";
/// The tag of a file whose rows carry their commits themselves: the least and the greatest of them, `<low>-<high>`.
pub const TAG_COMMITS: &str = "alluvium.commits";
/// The tag that says which sorted run a file is part of, and which part: `<run>/<part>`, the parts ordered by their text.
pub const TAG_RUN: &str = "alluvium.run";
/// The tag that carries the append id of a file's rows.
pub const TAG_APPEND: &str = "alluvium.append";
/// The tag that says that a file's rows are sorted by key and order.
pub const TAG_SORTED: &str = "alluvium.sorted";

/// A table's identity, schema and properties.
#[derive(Debug, Clone, PartialEq)]
pub struct TableMetadata {
    /// The table's id: another one means another table.
    pub id: String,
    /// All columns, partition columns included.
    pub schema: SchemaRef,
    /// The columns that partition the table.
    pub partition_columns: Vec<String>,
    /// The table's properties.
    pub properties: BTreeMap<String, String>,
    /// When the table was created, in milliseconds since 1970.
    pub created_ms: Option<i64>,
}

/// A file that a commit adds.
#[derive(Debug, Clone, PartialEq)]
pub struct FileAdd {
    /// The path relative to the table.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// Partition values by column.
    pub partition: BTreeMap<String, Option<String>>,
    /// When it was written, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Whether rows appear by it (false: they only move).
    pub data_change: bool,
    /// Statistics as Delta's JSON.
    pub stats: Option<String>,
    /// Facts about the file.
    pub tags: BTreeMap<String, String>,
}

impl FileAdd {
    /// What removes the file; `data_change` says whether its rows leave (false: they only move).
    pub fn removal(&self, removed_ms: i64, data_change: bool) -> Action {
        Action::Remove(FileRemove {
            path: self.path.clone(),
            size: Some(self.size),
            partition: self.partition.clone(),
            removed_ms,
            data_change,
        })
    }
}

/// A file that a commit removes.
#[derive(Debug, Clone, PartialEq)]
pub struct FileRemove {
    /// The path relative to the table.
    pub path: String,
    /// Its size in bytes, when known.
    pub size: Option<u64>,
    /// Partition values by column.
    pub partition: BTreeMap<String, Option<String>>,
    /// When it was removed, in milliseconds since 1970.
    pub removed_ms: i64,
    /// Whether rows vanish by it (false: they only move).
    pub data_change: bool,
}

/// One fact of a commit.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// When, by whom and why.
    Info(CommitInfo),
    /// The protocol: reader version, writer version, features.
    Protocol(Protocol),
    /// The table's identity, schema and properties.
    Metadata(TableMetadata),
    /// An application's progress.
    Transaction {
        /// The application.
        app_id: String,
        /// Its last applied number.
        version: i64,
    },
    /// A file that is now part of the table.
    Add(Arc<FileAdd>),
    /// A file that is no longer.
    Remove(FileRemove),
}

/// Who may read and write a table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Protocol {
    /// The least reader version.
    pub reader: i32,
    /// The least writer version.
    pub writer: i32,
    /// Features named by the protocol (reader 3, writer 7).
    pub features: Vec<String>,
}

/// The provenance of a commit.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CommitInfo {
    /// When, in milliseconds since 1970.
    pub timestamp_ms: Option<i64>,
    /// Delta's name of the operation.
    pub operation: String,
    /// Whether the commit read nothing.
    pub blind_append: Option<bool>,
    /// What we note about our own commits; `id` in it is unique to the commit.
    pub note: BTreeMap<String, serde_json::Value>,
}

impl CommitInfo {
    /// The unique id that we gave to this commit, if it is one of ours.
    pub fn id(&self) -> Option<&str> {
        self.note.get("id").and_then(|id| id.as_str())
    }
}
