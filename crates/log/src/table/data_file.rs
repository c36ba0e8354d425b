//! A file of a table, and which log commits its rows belong to.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Table;
use super::file_stats::FileStats;
use super::model::{FileAdd, TAG_COMMIT, TAG_COMMITS, TAG_SORTED};
use super::vacuum::Stray;
use crate::checksum::TAG_CHECK;

/// A span of commits, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitSpan {
    /// The least commit that a row may have.
    pub low: i64,
    /// The greatest.
    pub high: i64,
}

impl CommitSpan {
    pub(super) fn one(commit: i64) -> Self {
        Self { low: commit, high: commit }
    }

    /// Any commit up to this one: the first one creates the table, and has no rows.
    pub(super) fn up_to(commit: i64) -> Self {
        Self { low: commit.min(1), high: commit }
    }

    pub(super) fn join(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    /// Whether it is one commit.
    pub fn is_exact(self) -> bool {
        self.low == self.high
    }
}

/// Which commits the rows of a file belong to, for rows that do not say it themselves.
#[derive(Debug, Clone, PartialEq)]
pub enum FileCommits {
    /// All rows have this commit; a span wider than one when it can't be known any more.
    All(CommitSpan),
    /// Every row carries its commit; all of them lie in this span.
    Stamped(CommitSpan),
    /// Another engine merged files: each row's commit is found by its append id.
    ByAppend {
        /// The commit of each append id.
        known: Arc<BTreeMap<String, i64>>,
        /// What rows without a known append id may have; `None` when there are no such rows.
        rest: Option<CommitSpan>,
        /// All of the above together.
        span: CommitSpan,
    },
}

impl FileCommits {
    /// The span of commits of the file's rows.
    pub fn span(&self) -> CommitSpan {
        match self {
            Self::All(span) | Self::Stamped(span) => *span,
            Self::ByAppend { span, .. } => *span,
        }
    }

    /// Whether the commit of each row is known.
    pub fn are_exact(&self) -> bool {
        match self {
            Self::All(span) => span.is_exact(),
            Self::Stamped(_) => true,
            Self::ByAppend { rest, .. } => rest.is_none_or(CommitSpan::is_exact),
        }
    }
}

/// A file of a table.
#[derive(Debug, Clone)]
pub struct DataFile {
    /// What the log says about it.
    pub add: Arc<FileAdd>,
    /// The commits of its rows.
    pub commits: FileCommits,
    /// The table version whose commit told this much of it; of a table loaded from a checkpoint, that checkpoint's.
    pub(super) since: i64,
    /// Whether another engine wrote it in such a way that some of its rows may lie in other files of the day too, or in it twice.
    pub(super) may_double: bool,
    /// Statistics, read from the log once.
    pub stats: FileStats,
    /// The table that the file lies in, where it is not the one that is read.
    pub(super) home: Option<Arc<Table>>,
}

impl DataFile {
    /// The same file, to be read from this table whichever is named with it.
    pub(crate) fn lying_in(&self, table: &Arc<Table>) -> Self {
        Self { home: Some(table.clone()), ..self.clone() }
    }

    /// Whether the file lies in the archive.
    pub fn is_archived(&self) -> bool {
        self.home.is_some()
    }

    /// The table that the file is read from, among files of this one.
    pub(crate) fn home<'a>(&'a self, table: &'a Table) -> &'a Table {
        self.home.as_deref().unwrap_or(table)
    }

    /// A file of ours that no commit refers to yet.
    pub(crate) fn uncommitted(add: FileAdd) -> Self {
        let stats = FileStats::parse(add.stats.as_deref(), true);
        Self {
            add: Arc::new(add),
            commits: FileCommits::All(CommitSpan::one(i64::MAX)),
            since: i64::MAX,
            may_double: false,
            stats,
            home: None,
        }
    }

    /// A file that lies in a table's folder without being part of the table: nothing is known of it but this.
    pub fn stray(stray: &Stray) -> Self {
        let check = stray.check.iter().map(|check| (TAG_CHECK.to_owned(), check.clone()));
        Self::uncommitted(FileAdd {
            path: stray.path.clone(),
            size: stray.size,
            partition: BTreeMap::new(),
            modified_ms: 0,
            data_change: false,
            stats: None,
            tags: check.collect(),
        })
    }

    /// Whether rows of this file may be there a second time, in other files of its day or in itself: another engine merged files
    /// that somebody else had merged already. Rows that are the same in everything are one row then.
    pub fn may_double_rows(&self) -> bool {
        self.may_double
    }

    /// Whether all rows are of the one commit that the file's tag names: it was appended, and never rewritten.
    pub fn is_as_appended(&self) -> bool {
        self.add.tags.contains_key(TAG_COMMIT)
    }

    /// Whether the rows are known to be sorted by key and order.
    pub fn is_sorted(&self) -> bool {
        self.add.tags.get(TAG_SORTED).is_some_and(|value| value == "true")
    }

    /// Whether the file's own tags say which commits its rows have, so that it is known also from a checkpoint.
    pub fn tells_commits(&self) -> bool {
        tagged_commits(&self.add).is_some()
    }

    /// The value of a tag that holds an integer.
    pub fn integer_tag(&self, name: &str) -> Option<i64> {
        self.add.tags.get(name).and_then(|value| value.parse().ok())
    }

    /// Whether a row with this key may be in the file.
    pub fn may_hold_key(&self, key: &str) -> bool {
        self.stats.min_key.as_deref().is_none_or(|min| min <= key)
            && self.stats.max_key.as_deref().is_none_or(|max| key <= max)
    }
}

/// What a file's tags say of the commits of its rows.
pub(super) fn tagged_commits(add: &FileAdd) -> Option<FileCommits> {
    if let Some(commit) = add.tags.get(TAG_COMMIT) {
        return commit.parse().ok().map(|commit| FileCommits::All(CommitSpan::one(commit)));
    }
    let (low, high) = add.tags.get(TAG_COMMITS)?.split_once('-')?;
    Some(FileCommits::Stamped(CommitSpan { low: low.parse().ok()?, high: high.parse().ok()? }))
}
