//! Arguments of the verb about forks.

use alluvium::NamedPoint;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  alluvium fork users trial                       as users is now
  alluvium fork users before --at commit:4120     as it was with a commit
  alluvium append trial changes.jsonl             goes to the fork only
  alluvium diff trial --from commit:4120 --to latest
  alluvium fork promote trial --dry-run           what users would get
  alluvium fork promote trial
  alluvium fork list
  alluvium fork drop trial

A fork is a state as any other. It begins with the files of the other one, under names of its own: on
a local folder these are links, an object store copies by itself. From then on neither needs the
other. Killed midway there is no fork; the same command again brings it to its end."
)]
pub(crate) struct ForkArgs {
    /// The state
    #[arg(required = true)]
    pub(crate) state: Option<String>,
    /// The name of the new state: 1 to 128 of a-z A-Z 0-9 _ -
    #[arg(required = true)]
    pub(crate) name: Option<String>,
    /// The commit that it begins at, as commit:N, known_at:TIME or savepoint:NAME [default: the newest one]
    #[arg(long, value_name = "POINT", value_parser = super::read::point, conflicts_with = "savepoint")]
    pub(crate) at: Option<NamedPoint>,
    /// The commit that a savepoint keeps
    #[arg(long, value_name = "NAME")]
    pub(crate) savepoint: Option<String>,
    /// Tell what it would have, and make nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(subcommand)]
    pub(crate) verb: Option<ForkVerb>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ForkVerb {
    /// List the forks of the store, and what they were made of
    List,
    /// Drop a fork with all that was appended to it
    Drop {
        /// The fork
        name: String,
    },
    /// Append what was changed in a fork to the state that it was made of, in one commit
    #[command(after_help = "\
Keys that were changed in the fork become in its parent what they are in the fork; keys that only
the parent has changed stay. Where both have changed a key nothing is written, unless with
--overwrite. It is undone by a restore of the parent to the commit that is told, and may be
repeated. The progress of streams is not moved.")]
    Promote {
        /// The fork
        name: String,
        /// Let the fork's values win where the parent has changed a key too
        #[arg(long)]
        overwrite: bool,
        /// Show what was changed in the fork, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Show at most so many changes; all are made
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
}
