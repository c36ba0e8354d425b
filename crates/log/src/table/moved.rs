//! Files whose rows a rewriting has put elsewhere, remembered for an engine that read the table before it and commits after it.
//!
//! Such an engine's commit removes files that are gone already and adds a file with their rows, which lie in another one by then. What
//! the files that went had said of their rows is needed to tell the commits of these, and that they may be there twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::{HashMap, OrdSet};

use super::data_file::DataFile;
use super::model::FileAdd;

/// Files that a followed table remembers. A rewriting that removes files which went before these is looked up in the log.
const REMEMBERED: usize = 8_192;

/// A file that is gone, and the version that took it away.
#[derive(Debug, Clone)]
pub(super) struct Moved {
    pub(super) file: Arc<DataFile>,
    pub(super) removed_at: i64,
}

/// The files that rewritings have removed, the last ones.
#[derive(Debug, Clone)]
pub(super) struct MovedFiles {
    files: HashMap<Arc<str>, Moved>,
    order: OrdSet<(i64, Arc<str>)>,
    limit: usize,
}

impl MovedFiles {
    pub(super) fn new() -> Self {
        Self { files: HashMap::new(), order: OrdSet::new(), limit: REMEMBERED }
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

    pub(super) fn note(&mut self, removed_at: i64, file: Arc<DataFile>) {
        let path: Arc<str> = Arc::from(file.add.path.as_str());
        let earlier = self.files.insert(path.clone(), Moved { file, removed_at });
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
    pub(super) present: Vec<Arc<DataFile>>,
    /// Those that a rewriting had removed before.
    pub(super) gone: Vec<Moved>,
    /// The partitions of others, of which nothing is known.
    pub(super) unknown: Vec<BTreeMap<String, Option<String>>>,
}

impl Removals {
    /// The files of a partition that went, now or before.
    pub(super) fn of<'a>(&'a self, add: &'a FileAdd) -> impl Iterator<Item = &'a Arc<DataFile>> {
        let all = self.present.iter().chain(self.gone.iter().map(|moved| &moved.file));
        all.filter(|file| file.add.partition == add.partition)
    }

    /// Whether rows of the partition's files may lie elsewhere already.
    pub(super) fn doubles(&self, add: &FileAdd) -> bool {
        self.of(add).any(|file| file.may_double)
            || self.first_gone(add).is_some()
            || self.is_unknown(add)
    }

    /// The first version that took away one of the files that were gone already.
    pub(super) fn first_gone(&self, add: &FileAdd) -> Option<i64> {
        let gone = self.gone.iter().filter(|moved| moved.file.add.partition == add.partition);
        gone.map(|moved| moved.removed_at).min()
    }

    pub(super) fn is_unknown(&self, add: &FileAdd) -> bool {
        self.unknown.contains(&add.partition)
    }
}
