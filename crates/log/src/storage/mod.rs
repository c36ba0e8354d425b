//! Where a store lies: from a URI to an object store.

mod cloud;
mod disk;
mod guard;
mod local;
mod options;
mod probe;
mod rehearsal;
#[cfg(any(feature = "s3", feature = "azure", feature = "gcs"))]
mod requests;
mod scratch;
mod staged;
mod view;
mod warm;
#[cfg(unix)]
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::prefix::PrefixStore;

pub(crate) use guard::GuardedStore;
pub use local::Durability;
use local::{LocalStore, local_store};
pub(crate) use local::{LocalTable, Unpublished, Unsynced};
pub use options::{RemoteSettings, StorageOptions};
pub(crate) use probe::FolderProbe;
pub(crate) use scratch::{read_in_memory, write_at};
pub use staged::StagedReport;

use crate::error::{Error, ErrorKind, Result};
use crate::forks::{NameClaim, NameFolder};

/// The root of a store: any number of states lie in it.
#[derive(Debug, Clone)]
pub struct Storage {
    root: Arc<dyn ObjectStore>,
    label: String,
    /// The store again, when it is a folder of this machine.
    local: Option<Arc<LocalStore>>,
    /// The store again, when it has to be made sure of before it is written to.
    guard: Option<Arc<GuardedStore>>,
    /// The store that is read in place of being changed, when this is only a rehearsal.
    rehearses: Option<Arc<Storage>>,
}

impl Storage {
    /// Opens the store at a URI: a folder (`./dir`, `/dir`, `file:///dir`, made when it doesn't exist), `memory://` (new and empty), or
    /// a folder of an object store (`s3://bucket/dir`, `az://container/dir`, `gs://bucket/dir`, each behind the feature `s3`, `azure` or
    /// `gcs`), which is reached by the environment's variables (`AWS_*`, `AZURE_*`, `GOOGLE_*`).
    ///
    /// A text without `scheme://` is a path taken literally: spaces, `%`, `#` and `?` stand for themselves.
    pub fn open(uri: &str, durability: Durability) -> Result<Self> {
        let options = || StorageOptions::from_process(RemoteSettings::default());
        Self::open_by(uri, durability, options)
    }

    /// The same with options of how object stores are reached. Durability is a matter of local disks: a write that an object store
    /// acknowledges is durable.
    pub fn open_with(uri: &str, durability: Durability, options: &StorageOptions) -> Result<Self> {
        Self::open_by(uri, durability, || options.clone())
    }

    fn open_by(
        uri: &str,
        durability: Durability,
        options: impl FnOnce() -> StorageOptions,
    ) -> Result<Self> {
        if uri.is_empty() {
            return Err(Error::invalid("the store's URI is empty: give a folder or memory://"));
        }
        match uri.split_once("://") {
            None => Self::open_folder(PathBuf::from(uri), durability),
            Some(("memory", _)) => Ok(Self::from_object_store(Arc::new(InMemory::new()), uri)),
            Some(("file", _)) => {
                let path = url::Url::parse(uri)
                    .ok()
                    .filter(|url| url.query().is_none() && url.fragment().is_none())
                    .and_then(|url| url.to_file_path().ok())
                    .ok_or_else(|| {
                        Error::invalid(format!(
                            "{uri} is not a file URL: write file:///absolute/path, with %23 for # and %3F for ?"
                        ))
                    })?;
                Self::open_folder(path, durability)
            }
            Some((scheme, _)) => match cloud::Service::of_scheme(scheme) {
                Some(service) => {
                    let (root, label) = cloud::open(service, uri, &options())?;
                    Ok(Self { guard: Some(root.clone()), ..Self::plain(root, label) })
                }
                None => Err(unknown(scheme)),
            },
        }
    }

    /// Refuses a URI with a scheme that no store is opened by; looks at nothing else.
    pub fn check_scheme(uri: &str) -> Result<()> {
        match uri.split_once("://") {
            None | Some(("file" | "memory", _)) => Ok(()),
            Some((scheme, _)) => match cloud::Service::of_scheme(scheme) {
                Some(_) => Ok(()),
                None => Err(unknown(scheme)),
            },
        }
    }

    fn open_folder(path: PathBuf, durability: Durability) -> Result<Self> {
        if path.exists() && !path.is_dir() {
            return Err(Error::invalid(format!("{} is a file: give a folder", path.display())));
        }
        let label = path.display().to_string();
        let root = local_store(&path, durability)
            .map_err(|error| Error::from(error).context(format!("the store {label}")))?;
        Ok(Self { local: Some(root.clone()), ..Self::plain(root, label) })
    }

    /// A store over any object store, which must support put-if-absent. It is taken as it is.
    pub fn from_object_store(root: Arc<dyn ObjectStore>, label: &str) -> Self {
        Self::plain(root, label.to_owned())
    }

    fn plain(root: Arc<dyn ObjectStore>, label: String) -> Self {
        Self { root, label, local: None, guard: None, rehearses: None }
    }

    /// The same store as if what is written to it from now on were written: it goes to a temporary folder below another one, and
    /// nothing of this store is changed.
    pub fn rehearsal(&self, spill_dir: &std::path::Path) -> Result<Self> {
        let root = rehearsal::RehearsedStore::over(self.root.clone(), spill_dir);
        let root = root.map_err(|error| {
            let place = spill_dir.display();
            Error::from(error).context(format!("a folder for a dry run can't be made in {place}"))
        })?;
        let rehearses = Some(Arc::new(self.clone()));
        Ok(Self { rehearses, ..Self::plain(Arc::new(root), self.label.clone()) })
    }

    /// An empty store in memory, as one where nothing was made yet.
    pub(crate) fn empty(label: &str) -> Self {
        Self::from_object_store(Arc::new(InMemory::new()), label)
    }

    /// A store over an object store across a network, as one that [`Storage::open`] makes of a URI: before the first write
    /// put-if-absent is tried, and a store that doesn't keep it is refused; a lost reply is no failure; large files go in parts.
    pub fn from_remote_store(root: Arc<dyn ObjectStore>, label: &str) -> Self {
        let root = Arc::new(GuardedStore::new(root, guard::guard_for(label)));
        Self { guard: Some(root.clone()), ..Self::plain(root, label.to_owned()) }
    }

    /// The same store to read, as it was when the log of a state ended with this commit: what lies before a commit that is
    /// gone can be read so. It takes no writes.
    pub fn up_to_commit(&self, state: &str, commit: i64) -> Self {
        let log = Path::from(crate::log::log_path(state));
        let view = view::LogView::new(self.root.clone(), &log, commit);
        let label = format!("{} (up to commit {commit} of {state})", self.label);
        Self::plain(Arc::new(view), label)
    }

    /// The same store to read, as if a table were not there.
    pub fn without_table(&self, table: &str) -> Self {
        let view = view::LogView::new(self.root.clone(), &Path::from(table), -1);
        Self::plain(Arc::new(view), self.label.clone())
    }

    /// The object store of the whole store.
    pub fn object_store(&self) -> &Arc<dyn ObjectStore> {
        &self.root
    }

    /// How the store is named in messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Whether a look at a file's metadata costs microseconds rather than a request.
    pub(crate) fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// What has to be made sure of before the store is written to.
    pub(crate) fn guard(&self) -> Option<Arc<GuardedStore>> {
        self.guard.clone()
    }

    /// A probe of the folder of a table's commits, where the store is a folder.
    pub(crate) fn commit_probe(&self, table: &str) -> Option<FolderProbe> {
        let folder = self.local.as_ref()?.root();
        Some(FolderProbe::at(folder.join(table).join("_delta_log")))
    }

    /// The folder of one table, where the store is a folder.
    pub(crate) fn local_table(&self, table: &Path) -> Option<LocalTable> {
        self.local.clone().map(|store| LocalTable::new(store, table))
    }

    /// The store of one table, with paths relative to the table.
    pub(crate) fn table_store(&self, table: &Path) -> Arc<dyn ObjectStore> {
        Arc::new(PrefixStore::new(self.root.clone(), table.clone()))
    }

    /// The names of the states of the store, in order.
    pub async fn state_names(&self) -> Result<Vec<String>> {
        let listing = self.root.list_with_delimiter(None).await?;
        let mut names = Vec::new();
        for prefix in listing.common_prefixes {
            let name = prefix.filename().unwrap_or_default().to_owned();
            if validate_state_name(&name).is_ok() && self.has_state(&name).await? {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Whether there is a state of this name.
    pub async fn has_state(&self, name: &str) -> Result<bool> {
        let log = Path::from(name).join("log").join("_delta_log");
        let first = log.clone().join("00000000000000000000.json");
        match object_store::ObjectStoreExt::head(&self.root, &first).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => self.has_log(name, &log).await,
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a state's log has any commit or checkpoint left, its first one being cleaned away.
    async fn has_log(&self, state: &str, log: &Path) -> Result<bool> {
        use futures::StreamExt;
        let mut listing = self.root.list(Some(log));
        let mut may_be_part = false;
        while let Some(entry) = listing.next().await {
            let name = entry?.location.filename().unwrap_or_default().to_owned();
            if name.len() <= 20 || !name.as_bytes()[..20].iter().all(u8::is_ascii_digit) {
                continue;
            }
            if name[20..].starts_with(".checkpoint.") {
                return Ok(true);
            }
            if may_be_part {
                continue;
            }
            let is_commit = name.ends_with(".json");
            // Commits before any checkpoint are what is left of a log, or a fork that is not whole.
            may_be_part = is_commit
                && match NameFolder::of(self).read(state).await {
                    Ok(claim) => matches!(claim, Some(NameClaim::Fork(_))),
                    // A record that is damaged keeps nobody from reading the state.
                    Err(error) if error.kind() == ErrorKind::Corrupt => false,
                    Err(error) => return Err(error),
                };
            if !may_be_part {
                return Ok(is_commit || name.ends_with(".parquet"));
            }
        }
        Ok(false)
    }
}

/// Checks that a text may name a state.
pub fn validate_state_name(name: &str) -> Result<()> {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let starts_well = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if starts_well && name.len() <= 128 && name.chars().all(legal) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{name:?} can't name a state: use 1 to 128 of a-z A-Z 0-9 _ -, beginning with a letter or digit"
    )))
}

fn unknown(scheme: &str) -> Error {
    let text = format!(
        "there is no store for {scheme}://; use a folder, file://, memory://, s3://, az:// or gs://"
    );
    Error::new(ErrorKind::Unsupported, text)
}
