//! Arguments of the verbs that write.

use std::path::PathBuf;

use alluvium::format::{ChangeMapping, InputFormat};
use alluvium::{Durability, KeyFilter, NamedPoint, OrderBy, Point, RestoreOptions};
use clap::{Args, ValueEnum};

/// How a file of changes is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InputFormatArg {
    /// One JSON object per line
    Jsonl,
    /// Comma-separated values with a header
    Csv,
    /// Apache Parquet
    Parquet,
    /// Apache Arrow IPC
    Arrow,
}

impl From<InputFormatArg> for InputFormat {
    fn from(format: InputFormatArg) -> Self {
        match format {
            InputFormatArg::Jsonl => Self::Jsonl,
            InputFormatArg::Csv => Self::Csv,
            InputFormatArg::Parquet => Self::Parquet,
            InputFormatArg::Arrow => Self::Arrow,
        }
    }
}

/// Which columns of records are what.
#[derive(Debug, Args)]
pub(crate) struct MappingArgs {
    /// The format of the input; found by its name and first bytes when not given
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<InputFormatArg>,
    /// The column of the key, or several with commas between; without it the input is native changes
    #[arg(long, value_name = "C[,C]", value_delimiter = ',')]
    pub(crate) key: Vec<String>,
    /// Take each part of a key of several columns as its text, also integers and booleans
    #[arg(long, requires = "key")]
    pub(crate) text_key: bool,
    /// The column of the event time
    #[arg(long, value_name = "C", requires = "key")]
    pub(crate) event_time: Option<String>,
    /// The column of the version
    #[arg(long, value_name = "C", requires = "key")]
    pub(crate) version: Option<String>,
    /// What means null in a CSV cell, besides nothing; may be repeated. "" is the empty text, unless --null '' is given
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) null: Vec<String>,
    /// What separates CSV cells, one character; a tab for files named .tsv, else a comma
    #[arg(long, value_name = "C", allow_hyphen_values = true, value_parser = delimiter)]
    pub(crate) delimiter: Option<u8>,
}

impl MappingArgs {
    pub(crate) fn mapping(&self, files: &[PathBuf]) -> ChangeMapping {
        let is_tsv = |path: &PathBuf| path.to_string_lossy().to_lowercase().contains(".tsv");
        let usual = if !files.is_empty() && files.iter().all(is_tsv) { b'\t' } else { b',' };
        ChangeMapping {
            key: self.key.clone(),
            text_key_parts: self.text_key,
            event_time: self.event_time.clone(),
            version: self.version.clone(),
            null_tokens: self.null.clone(),
            delimiter: self.delimiter.unwrap_or(usual),
        }
    }
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"\\t" => Ok(b'\t'),
        [one] if one.is_ascii() && !matches!(one, b'"' | b'\n' | b'\r') => Ok(*one),
        _ => Err("give one ASCII character, or \\t".to_owned()),
    }
}

fn order_by(text: &str) -> Result<OrderBy, String> {
    text.parse().map_err(|error: alluvium::Error| error.to_string())
}

/// What an acknowledged write means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// Synced to the disk: survives a power loss
    Fsync,
    /// With the operating system: survives a crash of the program
    Os,
}

impl From<DurabilityArg> for Durability {
    fn from(durability: DurabilityArg) -> Self {
        match durability {
            DurabilityArg::Fsync => Self::Fsync,
            DurabilityArg::Os => Self::Os,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium restore users --to commit:41 --dry-run               show what would change
  alluvium restore users --to time:2024-01-15T10:30:00Z
  alluvium restore users --to commit:41 --keys u1 u2
  alluvium restore users --to commit:41 --prefix eu/ --id incident-7

Changes that lead back are appended, in one commit; nothing is taken out of the log. It is undone by
a restore to the commit before it, which is told. Where nothing is different nothing is written, so
it may be repeated; with --id also after others have changed the keys again.")]
pub(crate) struct RestoreArgs {
    /// The state
    pub(crate) state: String,
    /// The point: commit:N, version:N, time:T, known_at:T, savepoint:NAME, or several with commas between
    #[arg(long, value_name = "POINT", value_parser = super::read::point)]
    pub(crate) to: NamedPoint,
    /// Only these keys
    #[arg(long, value_name = "KEY", num_args = 1.., conflicts_with = "prefix")]
    pub(crate) keys: Vec<String>,
    /// Only keys that begin with this
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    pub(crate) prefix: Option<String>,
    /// Show what would change, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// A name under which the restore is applied once at most
    #[arg(long, value_name = "NAME")]
    pub(crate) id: Option<String>,
    /// Show at most so many changes; all are made
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

impl RestoreArgs {
    pub(crate) fn options(&self, to: Point) -> RestoreOptions {
        let keys = match (&self.prefix, self.keys.is_empty()) {
            (Some(prefix), _) => KeyFilter::prefix(prefix),
            (None, true) => KeyFilter::All,
            (None, false) => KeyFilter::keys(self.keys.iter().cloned()),
        };
        RestoreOptions { to, keys, id: self.id.clone(), dry_run: self.dry_run }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium create users --schema 'login_count BIGINT, tags ARRAY<STRING>, home STRUCT<city: STRING>'
  alluvium create orders --like orders.csv --key id --event-time changed_at
  alluvium create ledger --order-by version --schema 'balance DECIMAL(18,2) NOT NULL'

The order is for ever: event_time, where a late change never overwrites a later one; or version,
for callers with a sequence of their own. Fields may be added later: append does it by itself.")]
pub(crate) struct CreateArgs {
    /// The state
    pub(crate) state: String,
    /// Its fields
    #[arg(long, value_name = "FIELDS", conflicts_with = "like")]
    pub(crate) schema: Option<String>,
    /// A file to infer the fields from; nothing of it is appended
    #[arg(long, value_name = "FILE")]
    pub(crate) like: Option<PathBuf>,
    /// event_time or version
    #[arg(long, value_name = "ORDER", value_parser = order_by, default_value_t = OrderBy::EventTime)]
    pub(crate) order_by: OrderBy,
    /// Refuse rows dated later than now plus so many milliseconds [default: 86400000, a day]
    #[arg(long, value_name = "MS")]
    pub(crate) max_future_ms: Option<i64>,
    #[command(flatten)]
    pub(crate) mapping: MappingArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  echo '{\"key\":\"u1\",\"value\":{\"logins\":1}}' | alluvium append users
  echo '{\"key\":\"u1\",\"op\":\"DELETE\"}' | alluvium append users
  alluvium append orders orders.csv.gz --key id --event-time changed_at --null NA
  alluvium append orders *.parquet --key region,id --version lsn --delete-when \"op = 'D'\"
  alluvium append orders batch-7.jsonl --app-id loader --epoch 7      exactly once
  alluvium append orders dirty.csv --key id --rejects rejects.jsonl   bad rows go there

A native change is a line {\"key\":..,\"op\":..,\"value\":{..},\"version\":..,\"event_time\":..}: op is UPSERT
when left out, or DELETE; version and event_time may be left out. With --key any records are taken:
the other columns are the value. In a key of several columns a part is an integer or a boolean where it is
one: in JSON and Parquet by its type, in CSV by how the cell is written (42 is, 007 is text); with
--text-key all parts are text. A state that doesn't exist is created with the fields found. gzip
and zstd files are read as they are. Each batch is in as a whole or not at all; with --app-id and
--epoch everything is. A pipe that goes on for ever is committed batch by batch: create the state
first, and give --batch-rows 1 to have each line committed as it comes.")]
pub(crate) struct AppendArgs {
    /// The state
    pub(crate) state: String,
    /// The files; - or none for standard input
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) mapping: MappingArgs,
    /// Records of which this SQL expression is true delete their key
    #[arg(long, value_name = "SQL", requires = "key")]
    pub(crate) delete_when: Option<String>,
    /// Add bad rows to this file as JSON lines, with the reason, and go on
    #[arg(long, value_name = "FILE")]
    pub(crate) rejects: Option<PathBuf>,
    /// Rows of one batch at most
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    pub(crate) batch_rows: usize,
    /// Whose epochs these are
    #[arg(long, value_name = "A", requires = "epoch")]
    pub(crate) app_id: Option<String>,
    /// The number of this epoch: applied once, as one commit
    #[arg(long, value_name = "N", requires = "app_id", allow_negative_numbers = true)]
    pub(crate) epoch: Option<i64>,
    /// Pass over the lines up to this one, to go on after an append that stopped
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) after_line: u64,
    /// The fields of a state that doesn't exist, instead of those found
    #[arg(long, value_name = "FIELDS")]
    pub(crate) schema: Option<String>,
    /// The order of a state that doesn't exist: event_time (the default) or version
    #[arg(long, value_name = "ORDER", value_parser = order_by)]
    pub(crate) order_by: Option<OrderBy>,
    /// What an acknowledged write on a local disk means: as the settings say, fsync by default
    #[arg(long, value_enum, hide_possible_values = true)]
    pub(crate) durability: Option<DurabilityArg>,
}
