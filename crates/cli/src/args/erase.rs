//! Arguments of `erase`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium erase users u7 --receipt /var/lib/alluvium/erased-4711.json
  alluvium erase users u7 u8 u9          in one pass
  alluvium erase users u7 --now          nothing is left when it returns
  alluvium erase users u7 --forget       the key may be appended again
  alluvium erase users -- -u7            a key that begins with a hyphen

All rows of the keys leave log, archive, snapshot and savepoints, and the keys can't be appended again.
Files that only older versions have go with a vacuum when no read can need them (file_retention): run
maintain. With --now they go at once, and reads under way may fail. The receipt names every file, and
the keys by their keyed hashes only. It may be killed at any moment and run again; run again after the
vacuum, its receipt shows that nothing is pending.")]
pub(crate) struct EraseArgs {
    /// The state
    pub(crate) state: String,
    /// The keys
    #[arg(value_name = "KEY", required = true)]
    pub(crate) keys: Vec<String>,
    /// Remove the files that held the keys at once: reads under way may fail
    #[arg(long)]
    pub(crate) now: bool,
    /// Erase nothing: let erased keys be appended again
    #[arg(long, conflicts_with_all = ["now", "receipt"])]
    pub(crate) forget: bool,
    /// Write the receipt to this file too
    #[arg(long, value_name = "FILE")]
    pub(crate) receipt: Option<PathBuf>,
}
