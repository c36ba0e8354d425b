//! The command line: what can be typed, and the help for it.

mod erase;
#[cfg(test)]
mod examples;
mod fork;
mod maintain;
mod read;
mod repair;
mod retention;
mod write;

use std::path::PathBuf;

use alluvium::parse_bytes;
use clap::{Parser, Subcommand, ValueEnum};

pub(crate) use erase::EraseArgs;
pub(crate) use fork::{ForkArgs, ForkVerb};
pub(crate) use maintain::{MaintainArgs, SetArgs, StatsArgs};
pub(crate) use read::{ChangesArgs, DiffArgs, GetArgs, HistoryArgs, ScanArgs, SqlArgs};
pub(crate) use repair::RepairArgs;
pub(crate) use retention::{RetentionArgs, RetentionVerb, SavepointArgs, SavepointVerb};
pub(crate) use write::{AppendArgs, CreateArgs, RestoreArgs};

const GLOBAL: &str = "Options of every verb";
const AFTER_HELP: &str = "\
Examples:
  alluvium demo                       real flights, from append to SQL, in a minute
  export ALLUVIUM_STORE=./store
  echo '{\"key\":\"u1\",\"value\":{\"logins\":1}}' | alluvium append users
  alluvium get users u1
  alluvium sql 'SELECT count(*) FROM users'

Exit codes:
  0  it worked (also when the reader of a pipe went away)
  1  any other failure
  2  bad usage, or bad input: nothing was written, or the message says what was
  3  a state, key or file was not found
  4  the point asked for can't be answered: history expired, or not there yet
  5  conflict: somebody else was faster or took over, or the outcome is not known
  6  stored data is damaged, or verify found a difference
  7  the storage failed
  8  the memory that may be used (--memory) does not suffice
  130  stopped by Ctrl-C or SIGTERM before it was done";

/// The state of your streams, kept as an immutable log that you can query.
#[derive(Debug, Parser)]
#[command(name = "alluvium", version, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Cli {
    /// The store: a folder, file:///folder, s3://bucket/folder, az:// or gs:// [env: ALLUVIUM_STORE]
    #[arg(long, global = true, value_name = "URI", help_heading = GLOBAL)]
    pub(crate) store: Option<String>,
    /// The file of settings; ./alluvium.toml if it is there [env: ALLUVIUM_CONFIG]
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub(crate) config: Option<PathBuf>,
    /// How rows are written: by default a table on a terminal, and JSON lines in a pipe
    #[arg(long, short, global = true, value_name = "FORMAT", help_heading = GLOBAL)]
    pub(crate) output: Option<OutputFormat>,
    /// Memory of a query, a fold or a materialization, such as 512MiB or 2GiB; more is spilled to disk [default: 256MiB]
    #[arg(long, global = true, value_name = "BYTES", value_parser = byte_count, help_heading = GLOBAL)]
    pub(crate) memory: Option<usize>,
    /// Write nothing but rows and errors
    #[arg(long, short, global = true, help_heading = GLOBAL)]
    pub(crate) quiet: bool,
    /// Tell what happens inside; twice for more
    #[arg(long, short, global = true, action = clap::ArgAction::Count, help_heading = GLOBAL)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// A number of bytes, with a unit or without.
fn byte_count(text: &str) -> Result<usize, String> {
    parse_bytes(text)
        .ok()
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "give a number of bytes such as 512MiB, 2GiB or 1000000000".to_owned())
}

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Aligned columns, for people
    Table,
    /// One JSON object per line
    Jsonl,
    /// One JSON array
    Json,
    /// Comma-separated values with a header, the fields of the value as columns
    Csv,
    /// Apache Parquet
    Parquet,
    /// Apache Arrow IPC, as a stream
    Arrow,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Create a state
    Create(CreateArgs),
    /// Append changes, or any records, to a state
    Append(AppendArgs),
    /// Look keys up
    Get(GetArgs),
    /// List live keys and their values, in order of keys
    Scan(ScanArgs),
    /// List every change of a key
    History(HistoryArgs),
    /// List what is different at two points
    Diff(DiffArgs),
    /// Ask by SQL
    Sql(SqlArgs),
    /// List changes in the order in which they were committed
    Changes(ChangesArgs),
    /// Bring a state, or some of its keys, back to what it was at a point
    Restore(RestoreArgs),
    /// Make a state that begins as another one was, with the same files, and goes its own way
    Fork(ForkArgs),
    /// Take all rows of keys out of a state for good, so that they can't come back
    Erase(EraseArgs),
    /// Fold the log into the snapshot
    #[command(after_help = "\
Examples:
  alluvium materialize users
  alluvium materialize                    all states
  alluvium materialize users --rebuild    fold the whole log anew

Answers are the same before and after; reads become faster. It may be killed at any moment.")]
    Materialize {
        /// The state; all of them when not given
        state: Option<String>,
        /// Fold the whole log anew, instead of what was added since
        #[arg(long)]
        rebuild: bool,
    },
    /// Keep states small: fold, merge files, remove what nothing needs any more
    Maintain(MaintainArgs),
    /// Show or change how long what is kept of a state
    Set(SetArgs),
    /// Keep a state as it is under a name, until it is released
    Savepoint(SavepointArgs),
    /// Tell what is kept of states, and why
    Retention(RetentionArgs),
    /// Prove that the snapshot is the fold of the log
    #[command(after_help = "\
Examples:
  alluvium verify users
  alluvium verify || echo 'a snapshot is wrong'    all states
  alluvium verify --deep                           read every file, and name those that are damaged

Where a snapshot differs from its log the exit code is 6; the first key that differs is named.
With --deep it is 6 where a file is damaged or gone, also where the state can't be opened.")]
    Verify {
        /// The state; all of them when not given
        state: Option<String>,
        /// Read every file and check its checksum, instead of comparing the snapshot with the log
        #[arg(long)]
        deep: bool,
    },
    /// Make damaged files anew where that can be done, and tell what can't
    Repair(RepairArgs),
    /// Write one report for whoever is to help: versions, settings, tables, checks, errors; no data
    #[command(after_help = "\
Example:
  alluvium doctor > report.json

Keys, values and passwords are not in it.")]
    Doctor,
    /// Tell what lies in log and snapshot, how it grows, and what maintenance is due
    Stats(StatsArgs),
    /// Show the settings of this process, and where they come from
    #[command(after_help = "\
Examples:
  alluvium config
  ALLUVIUM_TAIL_BYTES=1GiB alluvium config --output jsonl

An option counts before the environment, the environment before the file, the file before the
defaults. In alluvium.toml a setting is written as it is shown, such as tail_bytes = \"1GiB\"; in
the environment in capitals, such as ALLUVIUM_TAIL_BYTES=1GiB.")]
    Config,
    /// List the states of the store
    #[command(after_help = "\
Example:
  alluvium states --store ./store")]
    States,
    /// Show everything on real data: departures of aircraft from New York in 2013
    #[command(after_help = "\
Examples:
  alluvium demo
  alluvium demo --dir /tmp/flights

Each step is shown as the command that you could type. It needs no network, and leaves the store
to play with.")]
    Demo {
        /// The folder for the demo's data and store; a former demo in it is replaced
        #[arg(long, default_value = "flights-demo", value_name = "FOLDER")]
        dir: PathBuf,
    },
    /// Write completions for a shell
    #[command(after_help = "\
Examples:
  alluvium completions bash > ~/.local/share/bash-completion/completions/alluvium
  alluvium completions fish > ~/.config/fish/completions/alluvium.fish")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn bytes_are_read_with_their_unit() {
        let read = |text: &str| super::byte_count(text).ok();
        assert_eq!(
            [read("512MiB"), read("2 GiB"), read("7"), read("1kb")],
            [Some(512 << 20), Some(2 << 30), Some(7), Some(1_000)]
        );
        assert_eq!([read("0"), read("x"), read("1QB"), read("1.5GiB"), read("-1")], [None; 5]);
    }

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
