//! A table at one version: which files it has, and which log commits their rows belong to. Cheap to clone, and
//! never changed once handed out: a reader keeps the one it began with.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::{HashMap, OrdMap};

use super::data_file::{CommitSpan, DataFile, FileCommits, tagged_commits};
use super::delta::Loaded;
use super::file_stats::FileStats;
use super::model::{Action, FileAdd, FileRemove, Protocol, TAG_SORTED, TableMetadata};
use super::moved::{MovedFiles, Removals};
use crate::error::{Error, ErrorKind, Result};
use crate::log::REWRITER_APP_ID;

type FileKey = (i64, Arc<str>);

/// A table at one version.
#[derive(Debug, Clone)]
pub struct TableState {
    /// The Delta version.
    pub version: i64,
    /// Identity, schema, properties.
    pub metadata: Arc<TableMetadata>,
    /// Who may read and write.
    pub protocol: Protocol,
    /// The greatest commit time seen, in milliseconds since 1970.
    pub timestamp_ms: i64,
    files: OrdMap<FileKey, Arc<DataFile>>,
    places: HashMap<Arc<str>, i64>,
    transactions: HashMap<Arc<str>, i64>,
    /// Whether there is no transaction but those.
    has_all_transactions: bool,
    moved: MovedFiles,
    /// When another engine last rewrote files, as far as the commits read here tell.
    rewritten_elsewhere_ms: Option<i64>,
    /// Whether a commit removed files of which nothing is known any more, while it moved their rows.
    is_puzzled: bool,
}

/// What is known of a file beside what its commit says of it.
struct Told {
    commits: FileCommits,
    since: i64,
    may_double: bool,
}

impl TableState {
    /// The state before the first commit.
    pub(super) fn empty() -> Self {
        Self {
            version: -1,
            metadata: Arc::new(TableMetadata {
                id: String::new(),
                schema: Arc::new(arrow::datatypes::Schema::empty()),
                partition_columns: Vec::new(),
                properties: BTreeMap::new(),
                created_ms: None,
            }),
            protocol: Protocol::default(),
            timestamp_ms: 0,
            files: OrdMap::new(),
            places: HashMap::new(),
            transactions: HashMap::new(),
            moved: MovedFiles::new(),
            rewritten_elsewhere_ms: None,
            is_puzzled: false,
            has_all_transactions: true,
        }
    }

    /// The same, remembering all files that are rewritten.
    pub(super) fn remembering(self) -> Self {
        Self { moved: self.moved.unlimited(), ..self }
    }

    /// The same, remembering only the last ones of them.
    pub(super) fn forgetting(self) -> Self {
        Self { moved: self.moved.limited(), ..self }
    }

    /// The state that a checkpoint and the commits after it gave.
    pub(super) fn loaded(loaded: Loaded) -> Self {
        let Loaded { version, metadata, protocol, files, transactions, has_all_transactions } =
            loaded;
        let mut state = Self { version, protocol, has_all_transactions, ..Self::empty() };
        state.metadata = Arc::new(metadata);
        for (app_id, last) in transactions {
            state.transactions.insert(Arc::from(app_id), last);
        }
        for add in files {
            let tagged = tagged_commits(&add);
            let may_double = tagged.is_none();
            let commits = tagged.unwrap_or(FileCommits::All(CommitSpan::up_to(version)));
            state.insert(Arc::new(add), Told { commits, since: version, may_double });
        }
        state
    }

    /// A version of the same table as another state's, made of what is known of it elsewhere.
    pub fn of_files(
        version: i64,
        of: &Self,
        files: Vec<FileAdd>,
        transactions: Vec<(String, i64)>,
        timestamp_ms: i64,
    ) -> Self {
        let state = Self::loaded(Loaded {
            version,
            metadata: (*of.metadata).clone(),
            protocol: of.protocol.clone(),
            files,
            transactions,
            has_all_transactions: false,
        });
        Self { timestamp_ms, ..state }
    }

    /// What a first commit would have to say for a table to be in this state.
    pub(super) fn actions(&self) -> Vec<Action> {
        let mut transactions: Vec<(String, i64)> =
            self.transactions.iter().map(|(app_id, last)| (app_id.to_string(), *last)).collect();
        transactions.sort_unstable();
        let transactions = transactions
            .into_iter()
            .map(|(app_id, version)| Action::Transaction { app_id, version });
        let fixed = [Action::Protocol(self.protocol.clone())];
        let fixed = fixed.into_iter().chain([Action::Metadata((*self.metadata).clone())]);
        let files = self.files().map(|file| Action::Add(file.add.clone()));
        fixed.chain(transactions).chain(files).collect()
    }

    /// The state with the time of its newest commit, if that is known.
    pub(super) fn made_at(self, timestamp_ms: Option<i64>) -> Self {
        Self { timestamp_ms: timestamp_ms.unwrap_or(self.timestamp_ms), ..self }
    }

    /// The oldest version whose commit tells what no checkpoint does: which commits the rows of another engine's file have.
    pub(super) fn oldest_telling_commit(&self) -> Option<i64> {
        let told = |file: &&Arc<DataFile>| match &file.commits {
            FileCommits::All(span) => span.is_exact() && !file.tells_commits(),
            FileCommits::Stamped(_) => !file.tells_commits(),
            FileCommits::ByAppend { .. } => true,
        };
        self.files.values().filter(told).map(|file| file.since).min()
    }

    /// Whether the commits of some file's rows are not known.
    pub(super) fn has_unknown_commits(&self) -> bool {
        self.files.values().any(|file| !file.commits.are_exact())
    }

    /// Whether commits were applied that move rows of files of which nothing is known here.
    pub(super) fn is_puzzled(&self) -> bool {
        self.is_puzzled
    }

    /// The same, as the beginning of what is to be applied.
    pub(super) fn unpuzzled(self) -> Self {
        Self { is_puzzled: false, ..self }
    }

    /// When another engine last rewrote files of the table, in milliseconds since 1970, as far as the commits read here tell.
    pub fn rewritten_elsewhere_ms(&self) -> Option<i64> {
        self.rewritten_elsewhere_ms
    }

    /// The files, those of the oldest commits first.
    pub fn files(&self) -> impl Iterator<Item = &Arc<DataFile>> {
        self.files.values()
    }

    /// How many files there are.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// The files that may hold rows of commits after `after`.
    pub fn files_after(&self, after: i64) -> impl Iterator<Item = &Arc<DataFile>> {
        self.files.range((after.saturating_add(1), Arc::from(""))..).map(|(_, file)| file)
    }

    /// The file at a path.
    pub fn file(&self, path: &str) -> Option<&Arc<DataFile>> {
        let high = *self.places.get(path)?;
        self.files.get(&(high, Arc::from(path)))
    }

    /// An application's last number, as far as the commits read here tell.
    pub fn transaction(&self, app_id: &str) -> Option<i64> {
        self.transactions.get(app_id).copied()
    }

    /// Whether an application that is not known here has made no progress at all.
    pub(super) fn has_all_transactions(&self) -> bool {
        self.has_all_transactions
    }

    /// The applications whose progress is known.
    pub(super) fn application_ids(&self) -> impl Iterator<Item = &str> {
        self.transactions.keys().map(|id| &**id)
    }

    fn insert(&mut self, add: Arc<FileAdd>, told: Told) {
        let path: Arc<str> = Arc::from(add.path.as_str());
        if let Some(high) = self.places.get(&path).copied() {
            self.files.remove(&(high, path.clone()));
        }
        let Told { commits, since, may_double } = told;
        let high = commits.span().high;
        let stats = FileStats::parse(add.stats.as_deref(), add.tags.contains_key(TAG_SORTED));
        let file = DataFile { add, commits, since, may_double, stats, home: None };
        self.places.insert(path.clone(), high);
        self.files.insert((high, path), Arc::new(file));
    }

    fn take(&mut self, path: &str) -> Option<Arc<DataFile>> {
        let high = self.places.remove(path)?;
        self.files.remove(&(high, Arc::from(path)))
    }

    /// The state after one more commit.
    pub(super) fn apply(&self, version: i64, actions: &[Action]) -> Result<Self> {
        let mut next = self.clone();
        next.version = version;
        let (mut timestamp, mut is_ours, mut moves) = (None, false, false);
        let mut removals = Removals::default();
        for action in actions {
            match action {
                Action::Info(info) => timestamp = info.timestamp_ms,
                Action::Protocol(protocol) => next.protocol = protocol.clone(),
                Action::Metadata(metadata) => next.replace_metadata(metadata)?,
                Action::Transaction { app_id, version } => {
                    is_ours |= app_id == REWRITER_APP_ID;
                    next.transactions.insert(Arc::from(app_id.as_str()), *version);
                }
                Action::Remove(remove) => {
                    moves |= !remove.data_change;
                    next.remove(remove, &mut removals);
                }
                Action::Add(_) => {}
            }
        }
        for action in actions {
            if let Action::Add(add) = action {
                next.insert(add.clone(), self.told(version, add, &removals, is_ours));
                next.is_puzzled |= !is_ours && !add.data_change && removals.is_unknown(add);
            }
        }
        // Effective commit times strictly increase with the version, whatever the clocks of the writers say.
        let floor = self.timestamp_ms.saturating_add(1);
        next.timestamp_ms = timestamp.map_or(floor, |given| given.max(floor));
        if moves && !is_ours {
            next.rewritten_elsewhere_ms = Some(next.timestamp_ms);
        }
        Ok(next)
    }

    fn remove(&mut self, remove: &FileRemove, removals: &mut Removals) {
        if let Some(file) = self.take(&remove.path) {
            let origin = self.moved.origin(&file);
            if !remove.data_change {
                self.moved.note(self.version, &remove.path, origin.clone());
            }
            removals.present.push(origin);
            return;
        }
        match self.moved.get(&remove.path) {
            Some(moved) => removals.gone.push(moved.clone()),
            None => removals.unknown.push(remove.partition.clone()),
        }
    }

    /// What is known of a file that a commit adds.
    fn told(&self, version: i64, add: &FileAdd, removals: &Removals, is_ours: bool) -> Told {
        let may_double = match self.file(&add.path) {
            Some(same) => same.may_double,
            // Ours are added only if all the files that they replace are there, and hold each row once.
            None => !is_ours && !add.data_change && removals.doubles(add),
        };
        Told {
            commits: self.commits_of(version, add, removals),
            since: self.since(version, add, removals),
            may_double,
        }
    }

    fn replace_metadata(&mut self, metadata: &TableMetadata) -> Result<()> {
        if !self.metadata.id.is_empty() && self.metadata.id != metadata.id {
            return Err(Error::new(
                ErrorKind::IdentityChanged,
                format!(
                    "the table's identity changed from {} to {}: it was replaced; reopen the store",
                    self.metadata.id, metadata.id
                ),
            ));
        }
        self.metadata = Arc::new(metadata.clone());
        Ok(())
    }

    /// From which version on the log must be read for [`Self::told`] to know what it does.
    fn since(&self, version: i64, add: &FileAdd, removals: &Removals) -> i64 {
        if let Some(same) = self.file(&add.path) {
            return same.since;
        }
        if add.data_change {
            return version;
        }
        let untagged = removals.of(add).filter(|origin| !origin.tells_commits);
        let origins = untagged.map(|origin| origin.since).chain(removals.first_gone(add));
        origins.fold(version, i64::min)
    }

    /// The commits of an added file's rows: its tag; else the commit that brings the rows; else, for rows that only
    /// moved here, what the files they came from say.
    fn commits_of(&self, version: i64, add: &FileAdd, removals: &Removals) -> FileCommits {
        if let Some(commits) = tagged_commits(add) {
            return commits;
        }
        if let Some(same) = self.file(&add.path) {
            return same.commits.clone();
        }
        if add.data_change {
            return FileCommits::All(CommitSpan::one(version));
        }
        let origins: Vec<_> = removals.of(add).collect();
        let spans = origins.iter().map(|origin| origin.commits.span());
        let span = spans.reduce(CommitSpan::join).filter(|_| !removals.is_unknown(add));
        let Some(span) = span else {
            return FileCommits::All(CommitSpan::up_to(version));
        };
        let mut known = BTreeMap::new();
        let mut rest: Option<CommitSpan> = None;
        let join =
            |rest: Option<CommitSpan>, span| Some(rest.map_or(span, |known| known.join(span)));
        for origin in origins {
            match (&origin.commits, &origin.append) {
                (FileCommits::All(span), Some(append)) if span.is_exact() => {
                    known.insert(append.clone(), span.high);
                }
                (FileCommits::ByAppend { known: more, rest: other, .. }, _) => {
                    known.extend(more.iter().map(|(append, commit)| (append.clone(), *commit)));
                    if let Some(other) = *other {
                        rest = join(rest, other);
                    }
                }
                (FileCommits::All(span), _) => rest = join(rest, *span),
                // These rows go on saying it themselves.
                (FileCommits::Stamped(_), _) => {}
            }
        }
        match rest {
            None if known.is_empty() => return FileCommits::Stamped(span),
            Some(rest) if known.is_empty() && rest == span => return FileCommits::All(span),
            _ => {}
        }
        FileCommits::ByAppend { known: Arc::new(known), rest, span }
    }
}
