//! Files that a killed process had begun to write in a local folder and never gave their names: `name#digits`.
//!
//! Listings leave them out, so nobody reads them, and no vacuum that goes by listings finds them. A write that goes on gives its file
//! the name within moments; so what was last written longer ago than any write takes is nobody's. Should a process that slept for so
//! long wake up, its write fails, since what it is to name is gone.

use std::fs;
use std::io;
use std::path::{Path as FsPath, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::Storage;
use crate::error::{Error, ErrorKind, Result};

/// What files that are named when they are whole end with.
const ENDS: [&str; 3] = [".json", ".parquet", "_last_checkpoint"];
/// Where a repair puts what it sets aside: nothing of it is removed.
const SET_ASIDE: &str = "damaged";

/// What was removed of writes that never came to their end, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedReport {
    /// How many files.
    pub files_removed: u64,
    /// Their bytes.
    pub bytes_removed: u64,
    /// Files that a writer may still be at work on.
    pub files_kept: u64,
    /// The paths of the files removed, in the store, in order.
    pub paths: Vec<String>,
}

impl StagedReport {
    /// Both together.
    pub fn join(mut self, other: Self) -> Self {
        self.files_removed += other.files_removed;
        self.bytes_removed += other.bytes_removed;
        self.files_kept += other.files_kept;
        self.paths.extend(other.paths);
        self
    }
}

impl Storage {
    /// Removes what writes of killed processes have left below a folder of the store and was last written before a time, in
    /// milliseconds since 1970; with `dry_run`, only tells what. There is nothing of the kind but in a local folder.
    pub async fn remove_staged(
        &self,
        below: &str,
        cutoff_ms: i64,
        dry_run: bool,
    ) -> Result<StagedReport> {
        if let Some(store) = &self.rehearses {
            return Box::pin(store.remove_staged(below, cutoff_ms, true)).await;
        }
        let Some(root) = self.local.as_ref().map(|local| local.root().to_owned()) else {
            return Ok(StagedReport::default());
        };
        let below = below.to_owned();
        let work = move || sweep(&root, &below, cutoff_ms, dry_run);
        let swept = tokio::task::spawn_blocking(work).await;
        swept.map_err(|error| Error::internal("a sweep was aborted").with_source(error))?
    }
}

fn sweep(root: &FsPath, below: &str, cutoff_ms: i64, dry_run: bool) -> Result<StagedReport> {
    let mut report = StagedReport::default();
    let mut found = Vec::new();
    let folder = match root.join(below).canonicalize() {
        Ok(folder) if folder.starts_with(root) => folder,
        // Behind a link that leads out of the store nothing is removed.
        Ok(_) => return Ok(report),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(report),
        Err(source) => return Err(failed(&root.join(below), source)),
    };
    walk(&folder, &mut found).map_err(|source| failed(&folder, source))?;
    found.sort_unstable();
    for path in found {
        match remove(&path, cutoff_ms, dry_run).map_err(|source| failed(&path, source))? {
            Found::Removed(bytes) => {
                report.files_removed += 1;
                report.bytes_removed += bytes;
                let inside = path.strip_prefix(root).unwrap_or(&path);
                report.paths.push(inside.to_string_lossy().into_owned());
            }
            Found::Young => report.files_kept += 1,
            Found::Gone => {}
        }
    }
    Ok(report)
}

/// What became of a file.
enum Found {
    Removed(u64),
    Young,
    Gone,
}

fn remove(path: &FsPath, cutoff_ms: i64, dry_run: bool) -> io::Result<Found> {
    let known = match fs::symlink_metadata(path) {
        Ok(known) => known,
        // Its writer has given it its name.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Gone),
        Err(error) => return Err(error),
    };
    let written = known.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let written_ms = i64::try_from(written.as_millis()).unwrap_or(i64::MAX);
    if written_ms >= cutoff_ms {
        return Ok(Found::Young);
    }
    if !dry_run {
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Gone),
            other => other?,
        }
    }
    Ok(Found::Removed(known.len()))
}

/// Finds the files below a folder that have no name yet. Links are not followed.
fn walk(folder: &FsPath, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        let kind = match entry.file_type() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        if kind.is_dir() && entry.file_name() != SET_ASIDE {
            walk(&entry.path(), found)?;
        } else if kind.is_file() && entry.file_name().to_str().is_some_and(is_staged) {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// Whether a file has a name that a write gives it until it is whole.
fn is_staged(name: &str) -> bool {
    let Some((name, digits)) = name.rsplit_once('#') else { return false };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number && ENDS.iter().any(|end| name.ends_with(end))
}

fn failed(path: &FsPath, source: io::Error) -> Error {
    Error::new(
        ErrorKind::Storage,
        format!("what killed processes left in {} can't be removed", path.display()),
    )
    .with_source(source)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::storage::Durability;

    #[test]
    fn only_names_of_unfinished_writes_are_taken_for_such() {
        for name in [
            "00000000000000000007.json#1",
            "_last_checkpoint#18446744073709551615",
            "00000000000000000010.checkpoint.parquet#3",
        ] {
            assert!(is_staged(name), "{name}");
        }
        for name in ["7.json", "7.json#", "7.json#a", "#7", "notes#7", "a#7.json", "7.json#7#"] {
            assert!(!is_staged(name), "{name}");
        }
    }

    #[tokio::test]
    async fn what_is_old_goes_wherever_it_lies_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let outside = elsewhere.path().join("9.json#9");
        fs::write(&outside, "kept").unwrap();
        let storage = Storage::open(folder.path().to_str().unwrap(), Durability::Os).unwrap();
        for path in [
            "s/log/_delta_log/7.json#5",
            "s/log/_delta_log/7.json",
            "s/log/dt=2024-01-15/a.parquet#6",
            "s/notes#7",
            "s/damaged/1/8.json#8",
            "other/log/_delta_log/7.json#5",
        ] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "twelve bytes").unwrap();
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(elsewhere.path(), folder.path().join("s/linked")).unwrap();
        let young = storage.remove_staged("s", 0, false).await.unwrap();
        assert_eq!((young.files_removed, young.files_kept), (0, 2));
        let dry = storage.remove_staged("s", i64::MAX, true).await.unwrap();
        assert_eq!(dry.bytes_removed, 24);
        assert_eq!(storage.remove_staged("s", i64::MAX, false).await.unwrap(), dry);
        assert_eq!(dry.paths, ["s/log/_delta_log/7.json#5", "s/log/dt=2024-01-15/a.parquet#6"]);
        let again = storage.remove_staged("s", i64::MAX, false).await.unwrap();
        assert_eq!(again, StagedReport::default());
        assert!(folder.path().join("s/log/_delta_log/7.json").exists() && outside.exists());
        assert_eq!(storage.remove_staged("gone", i64::MAX, false).await.unwrap(), again);
        assert_eq!(storage.remove_staged("s/linked", i64::MAX, false).await.unwrap(), again);
        assert!(outside.exists());
    }
}
