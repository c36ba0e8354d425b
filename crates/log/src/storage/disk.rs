//! The few calls to the file system that durability rests on, each in one place, so that tests can see which were made and in
//! what order: what a power loss leaves is decided by that alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use object_store::PutPayload;

#[cfg(test)]
pub(super) use record::{Step, steps_below};

/// Notes a step, where there are tests to look at it.
macro_rules! note {
    ($step:ident($($path:expr),+)) => {
        #[cfg(test)]
        record::note(record::Step::$step($($path.to_path_buf()),+));
        #[cfg(not(test))]
        let _ = ($($path,)+);
    };
}

/// Makes a folder and those above it; `missing` are the ones that are not there, the innermost first.
pub(super) fn create_folders(folder: &Path, missing: &[&Path]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for created in missing.iter().rev() {
        note!(Made(created));
    }
    Ok(())
}

/// Makes an empty file under a name that is free.
pub(super) fn create_new(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    note!(Made(path));
    Ok(file)
}

/// Gives bytes to the operating system.
pub(super) fn write(path: &Path, file: &mut File, payload: &PutPayload) -> io::Result<()> {
    note!(Written(path));
    for part in payload.iter() {
        file.write_all(part)?;
    }
    Ok(())
}

/// Makes what was written durable.
pub(super) fn sync(path: &Path, file: &File) -> io::Result<()> {
    file.sync_all()?;
    note!(Synced(path));
    Ok(())
}

/// Makes the entries of a folder durable.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()?;
    note!(FolderSynced(folder));
    Ok(())
}

/// Gives a file a second name, if that is free.
pub(super) fn link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)?;
    note!(Linked(from, to));
    Ok(())
}

/// Gives a file another name, in place of whatever has it.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    note!(Linked(from, to));
    note!(Removed(from));
    Ok(())
}

/// Takes a name away.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    note!(Removed(path));
    Ok(())
}

#[cfg(test)]
mod record {
    use std::path::{Path, PathBuf};

    use parking_lot::Mutex;

    /// What was done.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(in super::super) enum Step {
        Made(PathBuf),
        Written(PathBuf),
        Synced(PathBuf),
        FolderSynced(PathBuf),
        Linked(PathBuf, PathBuf),
        Removed(PathBuf),
    }

    impl Step {
        fn path(&self) -> &Path {
            match self {
                Self::Made(path)
                | Self::Written(path)
                | Self::Synced(path)
                | Self::FolderSynced(path)
                | Self::Linked(path, _)
                | Self::Removed(path) => path,
            }
        }
    }

    /// Of all tests of this process.
    static STEPS: Mutex<Vec<Step>> = Mutex::new(Vec::new());

    pub(super) fn note(step: Step) {
        STEPS.lock().push(step);
    }

    /// What was done in a folder and below it.
    pub(in super::super) fn steps_below(folder: &Path) -> Vec<Step> {
        let all = STEPS.lock();
        all.iter().filter(|step| step.path().starts_with(folder)).cloned().collect()
    }
}
