//! Arguments of the verbs that read.

use alluvium::{KeyFilter, NamedPoint, Point, parse_time};
use clap::Args;

/// The point that is asked about; the latest state when nothing is given.
#[derive(Debug, Clone, Args)]
pub(crate) struct PointArgs {
    /// As the store knew it with this commit
    #[arg(long, value_name = "N", help_heading = "Point (several together: all count)")]
    commit: Option<i64>,
    /// Up to this version
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        help_heading = "Point (several together: all count)"
    )]
    version: Option<i64>,
    /// Up to this event time, such as 2024-01-15T10:30:00Z
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = "Point (several together: all count)")]
    time: Option<i64>,
    /// As the store knew it with the commit that this savepoint keeps
    #[arg(long, value_name = "NAME", value_parser = savepoint, conflicts_with = "commit", help_heading = "Point (several together: all count)")]
    savepoint: Option<String>,
    /// As the store knew it at this time, whenever it happened
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["commit", "savepoint"], help_heading = "Point (several together: all count)")]
    known_at: Option<i64>,
}

impl PointArgs {
    pub(crate) fn point(&self) -> NamedPoint {
        let point = Point { commit: self.commit, version: self.version, event_time: self.time };
        NamedPoint { point, savepoint: self.savepoint.clone(), known_at: self.known_at }
    }
}

fn time(text: &str) -> Result<i64, String> {
    parse_time(text).map_err(|error| error.to_string())
}

fn savepoint(text: &str) -> Result<String, String> {
    alluvium::validate_savepoint_name(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

pub(super) fn point(text: &str) -> Result<NamedPoint, String> {
    text.parse().map_err(|error: alluvium::Error| error.to_string())
}

/// Which keys.
#[derive(Debug, Clone, Args)]
pub(crate) struct RangeArgs {
    /// Keys that begin with this
    #[arg(long, value_name = "P", allow_hyphen_values = true, conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    /// Keys from this one on
    #[arg(long, value_name = "A", allow_hyphen_values = true)]
    from: Option<String>,
    /// Keys before this one
    #[arg(long, value_name = "B", allow_hyphen_values = true)]
    to: Option<String>,
}

impl RangeArgs {
    pub(crate) fn filter(&self) -> KeyFilter {
        match (&self.prefix, &self.from, &self.to) {
            (Some(prefix), _, _) => KeyFilter::prefix(prefix),
            (None, None, None) => KeyFilter::All,
            (None, from, to) => KeyFilter::Range { from: from.clone(), to: to.clone() },
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium get users u1
  alluvium get users u1 u2 --time 2024-01-15T10:30:00Z
  alluvium get users u1 --savepoint before-migration
  alluvium get users u1 --known-at 2024-01-16T03:12:00Z          what was known then
  alluvium get users u1 --commit 7 --time 2024-01-15T10:30:00Z    what was known then about then
  alluvium get users -- --odd-key
  alluvium get orders --composite '[\"eu\", 42]'                    a key of two columns

When a key has no value the exit code is 3, and the message says whether it was deleted or
never there.")]
pub(crate) struct GetArgs {
    /// The state
    pub(crate) state: String,
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    /// Each KEY is a JSON array of the parts of a composite key
    #[arg(long)]
    pub(crate) composite: bool,
    #[command(flatten)]
    pub(crate) point: PointArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium scan users --prefix eu/ --limit 10
  alluvium scan users --from a --to b --output csv > a.csv
  alluvium scan users --time 2024-01-15T00:00:00Z > then.jsonl
  alluvium scan users | alluvium append copy_of_users      what scan writes, append reads")]
pub(crate) struct ScanArgs {
    /// The state
    pub(crate) state: String,
    #[command(flatten)]
    pub(crate) keys: RangeArgs,
    /// At most so many rows
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) point: PointArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium history users u1
  alluvium history users u1 --last 5
  alluvium history users u1 --commit 7

Changes come in the order of their commits. `late` marks a change that was older than what was
there already when it was committed, so that it never became the state.")]
pub(crate) struct HistoryArgs {
    /// The state
    pub(crate) state: String,
    /// The key
    pub(crate) key: String,
    /// The KEY is a JSON array of the parts of a composite key
    #[arg(long)]
    pub(crate) composite: bool,
    /// The last so many changes only; an error where some of them have expired
    #[arg(long, value_name = "N")]
    pub(crate) last: Option<u64>,
    /// Changes of the commits after this one only: where older ones have expired
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) from_commit: i64,
    #[command(flatten)]
    pub(crate) point: PointArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium diff users commit:5 latest
  alluvium diff users time:2024-01-15T00:00:00Z time:2024-01-16T00:00:00Z
  alluvium diff users savepoint:before-migration latest
  alluvium diff users commit:5,time:2024-01-15T00:00:00Z latest

A point is latest, commit:N, version:N, time:T, known_at:T, savepoint:NAME, or several with commas between. A key whose value
is the same at both points is not listed.")]
pub(crate) struct DiffArgs {
    /// The state
    pub(crate) state: String,
    /// The first point
    #[arg(value_name = "POINT", value_parser = point, id = "from_point")]
    pub(crate) from: NamedPoint,
    /// The second point
    #[arg(value_name = "POINT", value_parser = point, id = "to_point")]
    pub(crate) to: NamedPoint,
    #[command(flatten)]
    pub(crate) keys: RangeArgs,
    /// At most so many rows
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium sql 'SELECT count(*) FROM users'
  alluvium sql \"SELECT * FROM as_of('users', time => '2024-01-15T10:30:00Z') WHERE logins > 3\"
  alluvium sql \"SELECT * FROM history('users', 'u1')\"
  alluvium sql \"SELECT change, count(*) FROM diff('users', 'commit:5', 'latest') GROUP BY change\"
  alluvium sql 'SHOW TABLES'
  alluvium sql - < query.sql

Each state is a table: state_key, version, event_time, and the fields of its value. log.STATE and
snapshot.STATE are the raw tables.")]
pub(crate) struct SqlArgs {
    /// The query; - reads it from standard input
    #[arg(value_name = "QUERY", allow_hyphen_values = true)]
    pub(crate) query: String,
    /// End the query with an error when it takes longer than this, such as 30s or 5m
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(crate) timeout: Option<Span>,
    /// At most so many rows
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

/// A span of time, and how it was written.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) length: std::time::Duration,
    pub(crate) text: String,
}

fn span(text: &str) -> Result<Span, String> {
    let ms = alluvium::parse_duration(text).map_err(|error| error.to_string())?;
    let ms = u64::try_from(ms).map_err(|_| "a span is not negative".to_owned())?;
    Ok(Span { length: std::time::Duration::from_millis(ms), text: text.to_owned() })
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium changes users
  alluvium changes users --from-commit 7            the commits after 7
  alluvium changes users --follow | my-consumer     goes on as commits come, until Ctrl-C
  alluvium changes users --as-input | alluvium --store other append users     a whole copy

Lines are changes as append reads them, and the commit; --as-input leaves the commit out.")]
pub(crate) struct ChangesArgs {
    /// The state
    pub(crate) state: String,
    /// Changes of the commits after this one; all when not given
    #[arg(long, value_name = "N", default_value_t = -1, hide_default_value = true, allow_negative_numbers = true)]
    pub(crate) from_commit: i64,
    /// Wait for further commits
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Leave the commit out, so that append takes the lines as they are
    #[arg(long)]
    pub(crate) as_input: bool,
    /// At most so many rows
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}
