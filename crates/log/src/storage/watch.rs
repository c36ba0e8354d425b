//! Whether anything has come to a folder, asked of the kernel's own notice of it.
//!
//! On the file systems of this machine the kernel queues a notice (inotify) before the call that makes an entry returns, whoever
//! makes it. So an empty queue says that nothing was added since it was last emptied, for half the price of a look for
//! a name. File systems that others can write to behind this kernel's back are never watched.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) use elsewhere::FolderWatch;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::FolderWatch;

/// Looks at a folder before it is watched: a watch costs milliseconds when its owner goes.
const LOOKS_BEFORE_WATCH: u32 = 1_000;

/// A watch that begins when a folder is looked at often.
#[derive(Debug, Default)]
pub(crate) struct LazyWatch {
    looks: AtomicU32,
    watch: OnceLock<Option<FolderWatch>>,
}

impl LazyWatch {
    /// The watch of a folder, if there is one by now.
    pub(crate) fn of(&self, folder: &OwnedFd) -> Option<&FolderWatch> {
        if let Some(begun) = self.watch.get() {
            return begun.as_ref();
        }
        if self.looks.fetch_add(1, Ordering::Relaxed) < LOOKS_BEFORE_WATCH {
            return None;
        }
        self.watch.get_or_init(|| FolderWatch::on(folder)).as_ref()
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::sync::atomic::{AtomicBool, Ordering};

    use parking_lot::Mutex;
    use rustix::fs::{fstatfs, inotify};
    use rustix::io::{Errno, ioctl_fionread, read};

    /// ext2 to ext4, XFS, Btrfs, F2FS, and memory.
    const WATCHED_FILE_SYSTEMS: [u64; 5] =
        [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x0102_1994];

    /// The notices of one folder.
    #[derive(Debug)]
    pub(crate) struct FolderWatch {
        notices: OwnedFd,
        settling: Mutex<()>,
        /// Whether a look told something after the queue was last emptied. Unset before the queue is emptied: who finds it
        /// empty and this set knows that a look came after whatever was in it.
        is_settled: AtomicBool,
    }

    impl FolderWatch {
        /// Watches an open folder; `None` where the kernel's notices don't tell all, or it gives no more of them.
        pub(crate) fn on(folder: &OwnedFd) -> Option<Self> {
            #[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions)]
            let kind = u64::try_from(fstatfs(folder).ok()?.f_type).ok()?;
            if !WATCHED_FILE_SYSTEMS.contains(&kind) {
                return None;
            }
            let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
            let notices = inotify::init(flags).ok()?;
            // By its descriptor, so that it is this folder and not what lies at its path by now.
            let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
            let arrivals = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
            inotify::add_watch(&notices, path, arrivals).ok()?;
            Some(Self { notices, settling: Mutex::new(()), is_settled: AtomicBool::new(false) })
        }

        /// Whether nothing came since the last look that told something.
        pub(crate) fn is_quiet(&self) -> bool {
            // In this order: see `is_settled`.
            matches!(ioctl_fionread(&self.notices), Ok(0)) && self.is_settled.load(Ordering::SeqCst)
        }

        /// Looks; what comes later is noticed.
        pub(crate) fn settle<T>(&self, look: impl FnOnce() -> Option<T>) -> Option<T> {
            // Whoever doesn't get the lock looks for itself, and waits for nobody.
            let Some(_settling) = self.settling.try_lock() else { return look() };
            self.is_settled.store(false, Ordering::SeqCst);
            let is_empty = self.drop_notices();
            let told = look();
            self.is_settled.store(is_empty && told.is_some(), Ordering::SeqCst);
            told
        }

        /// Empties the queue; false when that failed.
        fn drop_notices(&self) -> bool {
            let mut notices = [0_u8; 4_096];
            loop {
                match read(&self.notices, &mut notices) {
                    Ok(0) | Err(Errno::AGAIN) => return true,
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(_) => return false,
                }
            }
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod elsewhere {
    use std::os::fd::OwnedFd;

    /// No watch.
    #[derive(Debug)]
    pub(crate) enum FolderWatch {}

    impl FolderWatch {
        pub(crate) fn on(_: &OwnedFd) -> Option<Self> {
            None
        }

        pub(crate) fn is_quiet(&self) -> bool {
            match *self {}
        }

        pub(crate) fn settle<T>(&self, _: impl FnOnce() -> Option<T>) -> Option<T> {
            match *self {}
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn watched() -> Option<(tempfile::TempDir, FolderWatch)> {
        let folder = tempfile::tempdir().unwrap();
        let open = std::fs::File::open(folder.path()).unwrap();
        Some((folder, FolderWatch::on(&open.into())?))
    }

    #[test]
    fn what_comes_to_a_folder_is_noticed_until_a_look_tells_something() {
        // Nothing to test on a file system that is not watched.
        let Some((folder, watch)) = watched() else { return };
        assert!(!watch.is_quiet(), "before the first look");
        assert_eq!(watch.settle(|| Some(1)), Some(1));
        assert!(watch.is_quiet());
        std::fs::write(folder.path().join("a"), "").unwrap();
        assert!(!watch.is_quiet());
        assert_eq!(watch.settle(|| None::<i32>), None);
        assert!(!watch.is_quiet(), "the look told nothing");
        assert_eq!(watch.settle(|| Some(2)), Some(2));
        assert!(watch.is_quiet());
        std::fs::hard_link(folder.path().join("a"), folder.path().join("b")).unwrap();
        assert!(!watch.is_quiet(), "a link");
        assert_eq!(watch.settle(|| Some(3)), Some(3));
        std::fs::rename(folder.path().join("b"), folder.path().join("c")).unwrap();
        assert!(!watch.is_quiet(), "a new name");
    }

    #[test]
    fn what_comes_during_a_look_is_noticed_after_it() {
        let Some((folder, watch)) = watched() else { return };
        let during = || {
            std::fs::write(folder.path().join("a"), "").unwrap();
            assert!(!watch.is_quiet(), "while it looks");
            Some(())
        };
        assert_eq!(watch.settle(during), Some(()));
        assert!(!watch.is_quiet());
    }

    #[test]
    fn a_folder_is_watched_when_it_is_looked_at_often() {
        let folder = tempfile::tempdir().unwrap();
        let open: OwnedFd = std::fs::File::open(folder.path()).unwrap().into();
        let lazy = LazyWatch::default();
        assert!(lazy.of(&open).is_none());
        for _ in 0..LOOKS_BEFORE_WATCH {
            lazy.of(&open);
        }
        assert_eq!(lazy.of(&open).is_some(), FolderWatch::on(&open).is_some());
    }

    #[test]
    fn a_look_sees_every_entry_that_was_made_before_it() {
        let Some((folder, watch)) = watched() else { return };
        let (made, seen) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=2_000_u32 {
                    std::fs::write(folder.path().join(n.to_string()), "").unwrap();
                    made.store(n, Ordering::SeqCst);
                }
            });
            for reader in 0..2 {
                let (watch, made, seen, folder) = (&watch, &made, &seen, folder.path());
                scope.spawn(move || {
                    while made.load(Ordering::SeqCst) < 2_000 {
                        let before = made.load(Ordering::SeqCst);
                        let told = if watch.is_quiet() {
                            Some(seen.load(Ordering::SeqCst))
                        } else {
                            // As a table does: it is behind, reads what is new, and looks again.
                            watch.settle(|| {
                                let known = seen.load(Ordering::SeqCst);
                                let next = folder.join((known + 1).to_string());
                                if !next.exists() {
                                    return Some(known);
                                }
                                seen.fetch_max(known + 1, Ordering::SeqCst);
                                None
                            })
                        };
                        if let Some(told) = told {
                            assert!(told >= before, "reader {reader}: {told} < {before}");
                        }
                    }
                });
            }
        });
    }
}
