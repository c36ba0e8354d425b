//! What is typed for `repair`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium verify --deep users          what is damaged
  alluvium repair users --dry-run       what can be made again, and what can't
  alluvium repair users

Run one at a time; others may write meanwhile, unless the snapshot can't be opened. Nothing is
removed: damaged files are moved to <state>/damaged/. The exit code is 6 where something can't be
repaired.")]
pub(crate) struct RepairArgs {
    /// The state
    pub(crate) state: String,
    /// Tell what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}
