//! The demo's folder: its data, its rejects, its store.

use std::fs;
use std::path::{Path, PathBuf};

use alluvium::{Error, ErrorKind};

use crate::failure::Failure;

/// Departures from New York in January and February 2013; see `data/README.md`.
static SAMPLE: &[u8] = include_bytes!("../../../../data/flights-2013-sample.csv.gz");
const SAMPLE_NAME: &str = "flights-2013-sample.csv.gz";
const MARKER: &str = "MADE-BY-ALLUVIUM-DEMO";
const MARKER_TEXT: &str =
    "This folder was made by `alluvium demo`, which replaces what it made when it is run again.\n";
/// What the demo makes, and may remove.
const STORE: &str = "store";
const REJECTS: &str = "rejects.jsonl";

/// A folder that is the demo's own.
pub(super) struct DemoFolder {
    dir: PathBuf,
}

impl DemoFolder {
    /// Makes the folder, or empties that of a former demo. Any other folder is left alone.
    pub(super) fn make(dir: &Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            let what = format!("the demo's folder {} can't be prepared", dir.display());
            Failure::from(Error::new(ErrorKind::Storage, what).with_source(error))
        };
        let is_ours = dir.join(MARKER).is_file();
        if dir.exists() && !is_ours {
            let is_empty = dir.is_dir() && fs::read_dir(dir).map_err(failed)?.next().is_none();
            if !is_empty {
                return Err(Failure::usage(format!(
                    "{} exists, and was not made by the demo: choose another folder with --dir",
                    dir.display()
                )));
            }
        }
        fs::create_dir_all(dir).map_err(failed)?;
        fs::write(dir.join(MARKER), MARKER_TEXT).map_err(failed)?;
        let folder = Self { dir: dir.to_owned() };
        let store = dir.join(STORE);
        if store.exists() {
            fs::remove_dir_all(&store).map_err(failed)?;
        }
        let rejects = dir.join(REJECTS);
        if rejects.exists() {
            fs::remove_file(&rejects).map_err(failed)?;
        }
        fs::write(dir.join(SAMPLE_NAME), SAMPLE).map_err(failed)?;
        Ok(folder)
    }

    pub(super) fn store(&self) -> String {
        self.dir.join(STORE).display().to_string()
    }

    pub(super) fn sample(&self) -> String {
        self.dir.join(SAMPLE_NAME).display().to_string()
    }

    pub(super) fn rejects(&self) -> String {
        self.dir.join(REJECTS).display().to_string()
    }
}
