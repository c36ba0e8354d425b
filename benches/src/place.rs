//! Where a bench works: a folder of its own below `target/`, our store in it, and the files of a table.

use std::path::{Path, PathBuf};

use alluvium::{KeyFilter, OrderBy, Point, RawState, StateSettings, Store, StoreSettings};
use alluvium_materializer::{BatchStream, whole_value};
use arrow::array::RecordBatch;
use futures::TryStreamExt;
use tempfile::TempDir;

use crate::Outcome;
use crate::data::value_fields;

/// The name of the state that benches use.
pub const STATE: &str = "user_status";

/// A folder that is removed when the bench ends.
#[derive(Debug)]
pub struct Place {
    folder: TempDir,
}

impl Place {
    /// A new folder below another one.
    pub fn below(parent: &Path, bench: &str) -> Outcome<Self> {
        std::fs::create_dir_all(parent)?;
        let folder =
            tempfile::Builder::new().prefix(&format!("bench-{bench}-")).tempdir_in(parent)?;
        Ok(Self { folder })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A new store in it, with one state. Durable, as by default.
    pub async fn new_state(&self, name: &str, order_by: OrderBy) -> Outcome<(Store, RawState)> {
        let store = open_quiet(&self.path(name)).await?;
        create(store, order_by).await
    }

    /// The same as applications have it: what is due is done in the background.
    pub async fn new_default_state(
        &self,
        name: &str,
        order_by: OrderBy,
    ) -> Outcome<(Store, RawState)> {
        let store = Store::open(&self.path(name).display().to_string()).await?;
        create(store, order_by).await
    }

    /// The store's state, opened anew as another process would.
    pub async fn reopen(&self, name: &str) -> Outcome<(Store, RawState)> {
        open_state(&self.path(name)).await
    }

    /// The folder of the log table of a store's state.
    pub fn log(&self, store: &str) -> PathBuf {
        self.path(store).join(STATE).join("log")
    }

    /// The folder of the snapshot table of a store's state.
    pub fn snapshot(&self, store: &str) -> PathBuf {
        self.path(store).join(STATE).join("snapshot")
    }

    /// A new state that holds these batches, materialized.
    pub async fn loaded_state(
        &self,
        name: &str,
        order_by: OrderBy,
        batches: &[RecordBatch],
    ) -> Outcome<(Store, RawState)> {
        let (store, state) = self.new_state(name, order_by).await?;
        for batch in batches {
            state.append(batch).await?;
        }
        state.materialize(false).await?;
        store.close().await;
        Ok((store, state))
    }
}

/// Opens a store that does nothing in the background: what is measured is what is asked for.
async fn open_quiet(folder: &Path) -> Outcome<Store> {
    let settings = StoreSettings {
        materialize_after_rows: 0,
        tidy_after_commits: 0,
        ..StoreSettings::default()
    };
    Ok(Store::builder(&folder.display().to_string()).settings(settings).open().await?)
}

async fn create(store: Store, order_by: OrderBy) -> Outcome<(Store, RawState)> {
    let settings = StateSettings { order_by, ..StateSettings::default() };
    let (state, _) = store.create_state(STATE, &value_fields(), settings).await?;
    Ok((store, state))
}

/// Opens the store in a folder, and its state; nothing is done in the background.
pub async fn open_state(folder: &Path) -> Outcome<(Store, RawState)> {
    let store = open_quiet(folder).await?;
    let state = store.raw_state(STATE).await?;
    Ok((store, state))
}

/// The Parquet files below a table's folder, its log apart.
pub fn data_files(table: &Path) -> Outcome<Vec<String>> {
    let mut files = Vec::new();
    for partition in std::fs::read_dir(table)? {
        let partition = partition?.path();
        if !partition.is_dir() || partition.ends_with("_delta_log") {
            continue;
        }
        for file in std::fs::read_dir(partition)? {
            let file = file?.path();
            if file.extension().is_some_and(|extension| extension == "parquet") {
                files.push(file.display().to_string());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The bytes of all files in a folder and those below it.
pub fn folder_bytes(folder: &Path) -> Outcome<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        bytes += if about.is_dir() { folder_bytes(&entry.path())? } else { about.len() };
    }
    Ok(bytes)
}

/// Copies a folder by hard links: files of tables are never changed in place, so that each copy can go its own way.
pub fn link_folder(source: &Path, target: &Path) -> Outcome<()> {
    std::fs::create_dir_all(target)?;
    for entry in std::fs::read_dir(source)? {
        let entry = entry?;
        let copy = target.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => link_folder(&entry.path(), &copy)?,
            false => std::fs::hard_link(entry.path(), copy)?,
        }
    }
    Ok(())
}

/// Refuses to go on where a folder's disk has less than so many bytes free.
pub fn need_free(folder: &Path, bytes: u64) -> Outcome<()> {
    std::fs::create_dir_all(folder)?;
    let disk = rustix::fs::statvfs(folder)?;
    let free = disk.f_bavail * disk.f_frsize;
    match free >= bytes {
        true => Ok(()),
        false => Err(format!(
            "{} has {:.1} GB free and {:.1} GB are needed: free some, name another folder with --dir, or ask for less \
             with --max-keys",
            folder.display(),
            free as f64 / 1e9,
            bytes as f64 / 1e9
        )
        .into()),
    }
}

/// Reads streams to their ends at the same time, and counts their rows.
pub async fn drain(streams: Vec<BatchStream>) -> Outcome<usize> {
    let tasks: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            tokio::spawn(async move {
                let mut rows = 0;
                while let Some(batch) = stream.try_next().await? {
                    rows += batch.num_rows();
                }
                Ok::<_, alluvium::Error>(rows)
            })
        })
        .collect();
    let mut rows = 0;
    for task in tasks {
        rows += task.await??;
    }
    Ok(rows)
}

/// Reads the state at a point to its end, on all cores, and counts its rows.
pub async fn scan_rows(state: &RawState, point: Point) -> Outcome<usize> {
    let reader = state.reader();
    let basis = reader.basis().await?;
    let payload = whole_value(basis.definition());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    drain(reader.scan(&basis, point, KeyFilter::All, payload, cores).await?).await
}
