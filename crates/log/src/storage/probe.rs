//! A look at one folder of the local disk without leaving the thread.
//!
//! A task that goes to another thread and back costs more than everything else that a cached read does; asking the
//! kernel whether a name exists in a folder that is held open costs one system call. The folder is opened anew whenever
//! its owner has made sure that the path still leads to the table that it knows.

use std::io;
use std::path::PathBuf;

#[cfg(unix)]
use parking_lot::RwLock;

/// A folder that can be asked for a name.
#[derive(Debug)]
pub(crate) struct FolderProbe {
    path: PathBuf,
    #[cfg(unix)]
    folder: RwLock<Option<std::os::fd::OwnedFd>>,
}

impl FolderProbe {
    /// A probe of the folder at a path, which need not exist yet.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self {
            path,
            #[cfg(unix)]
            folder: RwLock::new(None),
        }
    }

    /// Follows the path again: the folder there may be another one by now.
    #[cfg(unix)]
    pub(crate) fn renew(&self) -> io::Result<()> {
        use rustix::fs::{CWD, Mode, OFlags, openat};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, &self.path, flags, Mode::empty())?;
        *self.folder.write() = Some(opened);
        Ok(())
    }

    /// Follows the path again: the folder there may be another one by now.
    #[cfg(not(unix))]
    pub(crate) fn renew(&self) -> io::Result<()> {
        self.path.metadata().map(drop)
    }

    /// What tells a file of the path's folder from any other that may come to lie in its place; `None` if there is none.
    pub(crate) fn mark(&self, name: &str) -> io::Result<Option<String>> {
        let about = match self.path.join(name).metadata() {
            // A folder of that name, say, is no commit.
            Ok(about) if !about.is_file() => return Ok(None),
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let modified = about.modified()?.duration_since(std::time::UNIX_EPOCH);
        let nanoseconds = modified.map_or(0, |since| since.as_nanos());
        Ok(Some(format!("{:x}-{nanoseconds:x}-{:x}", number_of(&about), about.len())))
    }

    /// Whether the folder that was opened last was removed. It lives on for whoever holds it open, and nothing ever comes
    /// to it.
    #[cfg(unix)]
    pub(crate) fn is_removed(&self) -> io::Result<bool> {
        match self.folder.read().as_ref() {
            Some(folder) => Ok(rustix::fs::fstat(folder)?.st_nlink == 0),
            None => Ok(false),
        }
    }

    /// Whether the folder is gone.
    #[cfg(not(unix))]
    pub(crate) fn is_removed(&self) -> io::Result<bool> {
        Ok(!self.path.try_exists()?)
    }

    /// Whether there is something under a name in the folder that was opened last; `None` before the first time.
    #[cfg(unix)]
    pub(crate) fn holds(&self, name: &str) -> io::Result<Option<bool>> {
        use rustix::fs::{AtFlags, statat};
        let folder = self.folder.read();
        let Some(folder) = folder.as_ref() else { return Ok(None) };
        match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(Some(true)),
            Err(rustix::io::Errno::NOENT) => Ok(Some(false)),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there is something under a name in the folder that was opened last; `None` before the first time.
    #[cfg(not(unix))]
    pub(crate) fn holds(&self, name: &str) -> io::Result<Option<bool>> {
        match self.path.join(name).symlink_metadata() {
            Ok(_) => Ok(Some(true)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(false)),
            Err(error) => Err(error),
        }
    }
}

/// The number that the file system gives a file.
#[cfg(unix)]
fn number_of(about: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(about)
}

/// Elsewhere times and lengths must do.
#[cfg(not(unix))]
fn number_of(_: &std::fs::Metadata) -> u64 {
    0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_probe_sees_names_come_and_follows_the_path_when_it_is_renewed() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("log");
        let probe = FolderProbe::at(path.clone());
        assert!(probe.renew().is_err());
        std::fs::create_dir(&path).unwrap();
        probe.renew().unwrap();
        assert_eq!(probe.holds("1.json").unwrap(), Some(false));
        std::fs::write(path.join("1.json"), "").unwrap();
        assert_eq!(probe.holds("1.json").unwrap(), Some(true));
        assert!(!probe.is_removed().unwrap());
        std::fs::remove_dir_all(&path).unwrap();
        assert!(probe.is_removed().unwrap());
        std::fs::create_dir(&path).unwrap();
        probe.renew().unwrap();
        assert_eq!(probe.holds("1.json").unwrap(), Some(false));
    }
}
