//! Arguments of the verbs about what is kept.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium savepoint create users before-migration --note 'ticket 4711'
  alluvium savepoint list users
  alluvium scan users --commit 4120        as of the commit that the list shows
  alluvium savepoint release users before-migration

A savepoint keeps the state as of its commit readable, whatever expires or is cleaned up, until it is
released. What it costs: alluvium retention explain.")]
pub(crate) struct SavepointArgs {
    #[command(subcommand)]
    pub(crate) verb: SavepointVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SavepointVerb {
    /// Keep the newest state under a name
    Create {
        /// The state
        state: String,
        /// The name: 1 to 128 of a-z A-Z 0-9 _ -
        name: String,
        /// What it is for
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
    /// List the savepoints of a state
    List {
        /// The state
        state: String,
        /// List the snapshots that snapshot_grid keeps instead
        #[arg(long)]
        grid: bool,
    },
    /// Let go of what a savepoint keeps
    Release {
        /// The state
        state: String,
        /// The name
        name: String,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium retention explain users
  alluvium retention explain --json | jq '.[].next_bytes'    all states")]
pub(crate) struct RetentionArgs {
    #[command(subcommand)]
    pub(crate) verb: RetentionVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RetentionVerb {
    /// Tell what can be asked, what keeps it, what it costs, and what the next run of maintain would take away
    Explain {
        /// The states; all of them when none is given
        #[arg(value_name = "STATE")]
        states: Vec<String>,
        /// Write JSON: an array with an object for each state
        #[arg(long)]
        json: bool,
    },
}
