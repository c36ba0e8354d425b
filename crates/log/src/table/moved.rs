//! Files whose rows a rewriting has put elsewhere, remembered for an engine that read the table before it and commits after it.
//!
//! Such an engine's commit removes files that are gone already and adds a file with their rows, which lie in another one by then. What
//! the files that went had said of their rows is needed to tell the commits of these, and that they may be there twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::{HashMap, OrdSet};

use super::data_file::{DataFile, FileCommits};
use super::model::{FileAdd, TAG_APPEND};

/// Files that a followed table remembers. A rewriting that removes files which went before these is looked up in the log.
const REMEMBERED: usize = 8_192;

type Partition = BTreeMap<String, Option<String>>;

/// What a file that went had said of its rows. A process that goes on for long keeps thousands of them for each table, so there is nothing
/// else in it: neither statistics nor tags.
#[derive(Debug)]
pub(super) struct Origin {
    partition: Arc<Partition>,
    pub(super) commits: FileCommits,
    /// The append id that all rows have, if they have one.
    pub(super) append: Option<String>,
    /// Whether the file said itself which commits its rows have.
    pub(super) tells_commits: bool,
    pub(super) since: i64,
    pub(super) may_double: bool,
}

/// A file that is gone, and the version that took it away.
#[derive(Debug, Clone)]
pub(super) struct Moved {
    pub(super) origin: Arc<Origin>,
    pub(super) removed_at: i64,
}

/// The files that rewritings have removed, the last ones.
#[derive(Debug, Clone)]
pub(super) struct MovedFiles {
    files: HashMap<Arc<str>, Moved>,
    order: OrdSet<(i64, Arc<str>)>,
    limit: usize,
    /// The partition of the last one: files of a day go together.
    partition: Arc<Partition>,
}

impl MovedFiles {
    pub(super) fn new() -> Self {
        let (files, order) = (HashMap::new(), OrdSet::new());
        Self { files, order, limit: REMEMBERED, partition: Arc::default() }
    }

    /// Remembers all of them.
    pub(super) fn unlimited(self) -> Self {
        Self { limit: usize::MAX, ..self }
    }

    /// Remembers the last ones only.
    pub(super) fn limited(mut self) -> Self {
        self.limit = REMEMBERED;
        self.trim();
        self
    }

    pub(super) fn get(&self, path: &str) -> Option<&Moved> {
        self.files.get(path)
    }

    /// What is to be known of a file that goes.
    pub(super) fn origin(&mut self, file: &DataFile) -> Arc<Origin> {
        if *self.partition != file.add.partition {
            self.partition = Arc::new(file.add.partition.clone());
        }
        Arc::new(Origin {
            partition: self.partition.clone(),
            commits: file.commits.clone(),
            append: file.add.tags.get(TAG_APPEND).cloned(),
            tells_commits: file.tells_commits(),
            since: file.since,
            may_double: file.may_double,
        })
    }

    pub(super) fn note(&mut self, removed_at: i64, path: &str, origin: Arc<Origin>) {
        let path: Arc<str> = Arc::from(path);
        let earlier = self.files.insert(path.clone(), Moved { origin, removed_at });
        if let Some(earlier) = earlier {
            self.order.remove(&(earlier.removed_at, path.clone()));
        }
        self.order.insert((removed_at, path));
        self.trim();
    }

    fn trim(&mut self) {
        while self.files.len() > self.limit {
            let Some(oldest) = self.order.get_min().cloned() else { return };
            self.order.remove(&oldest);
            self.files.remove(&oldest.1);
        }
    }
}

/// The files that a commit removes.
#[derive(Default)]
pub(super) struct Removals {
    /// Those that were there.
    pub(super) present: Vec<Arc<Origin>>,
    /// Those that a rewriting had removed before.
    pub(super) gone: Vec<Moved>,
    /// The partitions of others, of which nothing is known.
    pub(super) unknown: Vec<Partition>,
}

impl Removals {
    /// The files of a partition that went, now or before.
    pub(super) fn of<'a>(&'a self, add: &'a FileAdd) -> impl Iterator<Item = &'a Arc<Origin>> {
        let all = self.present.iter().chain(self.gone.iter().map(|moved| &moved.origin));
        all.filter(|origin| *origin.partition == add.partition)
    }

    /// Whether rows of the partition's files may lie elsewhere already.
    pub(super) fn doubles(&self, add: &FileAdd) -> bool {
        self.of(add).any(|origin| origin.may_double)
            || self.first_gone(add).is_some()
            || self.is_unknown(add)
    }

    /// The first version that took away one of the files that were gone already.
    pub(super) fn first_gone(&self, add: &FileAdd) -> Option<i64> {
        let gone = self.gone.iter().filter(|moved| *moved.origin.partition == add.partition);
        gone.map(|moved| moved.removed_at).min()
    }

    pub(super) fn is_unknown(&self, add: &FileAdd) -> bool {
        self.unknown.contains(&add.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, day: &str) -> Arc<DataFile> {
        Arc::new(DataFile::uncommitted(FileAdd {
            path: name.to_owned(),
            size: 1,
            partition: BTreeMap::from([("dt".to_owned(), Some(day.to_owned()))]),
            modified_ms: 0,
            data_change: true,
            stats: Some(format!("{{\"minValues\":{{\"state_key\":\"{}\"}}}}", "k".repeat(4_096))),
            tags: BTreeMap::from([(TAG_APPEND.to_owned(), format!("append-of-{name}"))]),
        }))
    }

    #[test]
    fn of_a_file_that_went_nothing_is_kept_but_what_tells_of_its_rows() {
        let mut moved = MovedFiles::new();
        let mut gone = Vec::new();
        for n in 0..REMEMBERED + 100 {
            let file = file(&format!("{n}.parquet"), "2024-01-15");
            gone.push(Arc::downgrade(&file));
            let origin = moved.origin(&file);
            moved.note(n as i64, &file.add.path, origin);
        }
        assert!(gone.iter().all(|file| file.upgrade().is_none()), "the file itself is let go of");
        assert!(moved.get("99.parquet").is_none(), "the oldest are forgotten");
        let kept: Vec<_> =
            ["100.parquet", "8291.parquet"].iter().flat_map(|path| moved.get(path)).collect();
        assert_eq!(kept.iter().map(|moved| moved.removed_at).collect::<Vec<_>>(), [100, 8_291]);
        let (first, last) = (&kept[0].origin, &kept[1].origin);
        assert_eq!(first.append.as_deref(), Some("append-of-100.parquet"));
        assert!(Arc::ptr_eq(&first.partition, &last.partition), "a day is told once");
        let same = first.partition.clone();
        assert_ne!(moved.origin(&file("other", "2024-01-16")).partition, same);
    }
}
