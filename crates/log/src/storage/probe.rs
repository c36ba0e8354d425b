//! A look at one folder of the local disk without leaving the thread.
//!
//! A task that goes to another thread and back costs more than everything else that a cached read does; asking the
//! kernel whether a name exists in a folder that is held open costs one system call. A folder that is asked often is
//! watched ([`super::watch`]): then a cheaper call tells that nothing came to it at all. The path is followed anew whenever
//! its owner has made sure that it still leads to the table that it knows.

use std::io;
use std::path::PathBuf;

#[cfg(unix)]
use parking_lot::RwLock;

use super::warm::read_file_cached;
#[cfg(unix)]
use super::watch::LazyWatch;

/// Bytes of names that the kernel is asked for at once.
#[cfg(target_os = "linux")]
const LISTING_BYTES: usize = 128 * 1024;

/// A folder that can be asked for a name.
#[derive(Debug)]
pub(crate) struct FolderProbe {
    path: PathBuf,
    #[cfg(unix)]
    folder: RwLock<Option<OpenFolder>>,
}

#[cfg(unix)]
#[derive(Debug)]
struct OpenFolder {
    folder: std::os::fd::OwnedFd,
    /// Device and number.
    identity: (u64, u64),
    watch: LazyWatch,
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
        let about = rustix::fs::fstat(&opened)?;
        #[allow(clippy::useless_conversion)]
        let identity = (u64::from(about.st_dev), u64::from(about.st_ino));
        let is_same = |known: &OpenFolder| known.identity == identity;
        if !self.folder.read().as_ref().is_some_and(is_same) {
            let watch = LazyWatch::default();
            *self.folder.write() = Some(OpenFolder { folder: opened, identity, watch });
        }
        Ok(())
    }

    /// What a look at the folder tells, where nothing has come to the folder since an earlier look that told something;
    /// else what a new look tells, which is given up with `None`.
    ///
    /// `known` is asked in the first case, when nothing came until it was called; `look` in the second.
    #[cfg(unix)]
    pub(crate) fn settled<T>(
        &self,
        known: impl FnOnce() -> T,
        look: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let folder = self.folder.read();
        match folder.as_ref().and_then(|open| open.watch.of(&open.folder)) {
            Some(watch) if watch.is_quiet() => Some(known()),
            Some(watch) => watch.settle(look),
            None => look(),
        }
    }

    /// What a new look at the folder tells.
    #[cfg(not(unix))]
    pub(crate) fn settled<T>(
        &self,
        _: impl FnOnce() -> T,
        look: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        look()
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

    /// Whether nothing has come to the path's folder or gone from it since one of some files there got its name, or was last
    /// written. Names that are not there don't count; a folder whose own time was set back, as copies have it, is told the same.
    #[cfg(unix)]
    pub(crate) fn is_settled_since(&self, names: &[&str]) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let folder = self.path.metadata()?;
        for name in names {
            match self.path.join(name).metadata() {
                Ok(file)
                    if (file.ctime(), file.ctime_nsec())
                        >= (folder.mtime(), folder.mtime_nsec()) =>
                {
                    return Ok(true);
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(false)
    }

    /// Elsewhere folders don't tell.
    #[cfg(not(unix))]
    pub(crate) fn is_settled_since(&self, _: &[&str]) -> io::Result<bool> {
        Ok(false)
    }

    /// Tells the names of the files of the path's folder, in no order.
    ///
    /// They are taken from where the kernel puts them: there are ten thousands of them, which nobody keeps.
    #[cfg(target_os = "linux")]
    pub(crate) fn each_name(&self, mut note: impl FnMut(&str)) -> io::Result<()> {
        use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, openat};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, &self.path, flags, Mode::empty())?;
        let mut buffer = Vec::with_capacity(LISTING_BYTES);
        let mut entries = RawDir::new(&folder, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let is_file = match entry.file_type() {
                FileType::RegularFile => true,
                // A link counts as what it leads to; some file systems don't tell.
                FileType::Symlink | FileType::Unknown => self.path.join(name).is_file(),
                _ => false,
            };
            if is_file {
                note(name);
            }
        }
        Ok(())
    }

    /// Tells the names of the files of the path's folder, in no order.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn each_name(&self, mut note: impl FnMut(&str)) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            // A link counts as what it leads to.
            let is_file = kind.is_file() || (kind.is_symlink() && entry.path().is_file());
            if let (true, Ok(name)) = (is_file, entry.file_name().into_string()) {
                note(&name);
            }
        }
        Ok(())
    }

    /// The bytes of a file of the path's folder, if they are in memory.
    pub(crate) fn cached(&self, name: &str) -> Option<bytes::Bytes> {
        read_file_cached(&self.path.join(name))
    }

    /// Whether the folder that was opened last was removed. It lives on for whoever holds it open, and nothing ever comes
    /// to it.
    #[cfg(unix)]
    pub(crate) fn is_removed(&self) -> io::Result<bool> {
        match self.folder.read().as_ref() {
            Some(open) => Ok(rustix::fs::fstat(&open.folder)?.st_nlink == 0),
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
        // Also called within `settled`, which holds the same lock.
        let folder = self.folder.read_recursive();
        let Some(open) = folder.as_ref() else { return Ok(None) };
        match statat(&open.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
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

    #[test]
    #[cfg(unix)]
    fn a_folder_is_settled_until_something_comes_or_goes() {
        let root = tempfile::tempdir().unwrap();
        let probe = FolderProbe::at(root.path().to_owned());
        let path = |name: &str| root.path().join(name);
        let is_settled = |name: &str| probe.is_settled_since(&["none", name]).unwrap();
        // Times of files are coarse.
        let wait = || std::thread::sleep(std::time::Duration::from_millis(30));
        std::fs::write(path("early"), "").unwrap();
        wait();
        std::fs::write(path("temporary"), "").unwrap();
        std::fs::hard_link(path("temporary"), path("late")).unwrap();
        std::fs::remove_file(path("temporary")).unwrap();
        assert!(is_settled("late") && !is_settled("early") && !is_settled("none"));
        wait();
        std::fs::remove_file(path("early")).unwrap();
        assert!(!is_settled("late"));
        wait();
        std::fs::write(path("new"), "").unwrap();
        assert!(is_settled("new") && !is_settled("late"));
    }

    #[test]
    fn the_files_of_a_folder_are_named_whatever_else_lies_there() {
        let root = tempfile::tempdir().unwrap();
        let probe = FolderProbe::at(root.path().to_owned());
        // More names than fit at once.
        let mut expected: Vec<String> = (0..7_000).map(|n| format!("{n:020}.json")).collect();
        for name in &expected {
            std::fs::write(root.path().join(name), "").unwrap();
        }
        std::fs::create_dir(root.path().join("folder")).unwrap();
        #[cfg(unix)]
        {
            let link =
                |to: &str, name: &str| std::os::unix::fs::symlink(to, root.path().join(name));
            link("00000000000000000001.json", "link").unwrap();
            link("folder", "link to a folder").unwrap();
            link("nowhere", "link to nothing").unwrap();
            expected.push("link".to_owned());
        }
        let mut found = Vec::new();
        probe.each_name(|name| found.push(name.to_owned())).unwrap();
        found.sort();
        assert_eq!(found, expected);
        let gone = FolderProbe::at(root.path().join("none"));
        assert_eq!(gone.each_name(|_| {}).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
