//! Arguments of the verbs that keep a store small.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use alluvium::{MaintainStep, MaintainerOptions, parse_duration};
use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium maintain                                  all states, all steps, once
  alluvium maintain users --dry-run                  tell what it would do
  alluvium maintain --steps compact,vacuum
  alluvium maintain --max-seconds 300                what is left is done the next time
  alluvium maintain --every 10m --report /var/lib/alluvium/report.json
  alluvium maintain --every 10m --metrics-listen 127.0.0.1:9464

Steps, in this order: materialize folds the log into the snapshot; check looks whether the
snapshot's files are as they were written, and makes it anew if not; grid keeps the snapshots that
snapshot_grid asks for, if it is set; tombstones forgets deleted keys past tombstone_retention, if
that is set; compact merges the log's files of days that are over; archive moves days past hot_days
to the archive, if that is set; expire drops days past log_retention, if that is set; checkpoint
makes opening fast; cleanup removes commits that no kept version needs; vacuum removes files that no
kept version has. Answers are the same before and after, but for points before what has expired,
which are refused.
It may be killed at any moment and run again; at Ctrl-C or SIGTERM it brings the step at work to its
end. How long what is kept: alluvium set.

With --every, one of all processes with the same states and steps does the work, and the others
wait to take over.")]
pub(crate) struct MaintainArgs {
    /// The states; all of them when none is given
    #[arg(value_name = "STATE")]
    pub(crate) states: Vec<String>,
    /// Only these steps
    #[arg(long, value_name = "STEP[,STEP]", value_delimiter = ',', value_parser = step)]
    pub(crate) steps: Vec<MaintainStep>,
    /// Leave archives alone: every day stays where it is
    #[arg(long)]
    pub(crate) no_archive: bool,
    /// Tell what a run does, and change nothing: it takes as long, and room in spill_dir
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do it again and again, so long after the end of the last time, until stopped
    #[arg(long, value_name = "SPAN", value_parser = span, conflicts_with = "dry_run")]
    pub(crate) every: Option<i64>,
    /// Take over when the process that does it has shown no sign of life for so long [default: 30s]
    #[arg(long, value_name = "SPAN", value_parser = span, requires = "every")]
    pub(crate) takeover: Option<i64>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics
    #[arg(long, value_name = "ADDRESS:PORT", requires = "every")]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Begin no further step of a run after so many seconds; the one at work is brought to its end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_seconds: Option<u64>,
    /// Write the report of each run to this file, as one JSON object
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

impl MaintainArgs {
    pub(crate) fn options(&self) -> MaintainerOptions {
        MaintainerOptions {
            states: self.states.clone(),
            steps: match self.steps.is_empty() {
                true => MaintainStep::ALL.to_vec(),
                false => self.steps.clone(),
            },
            with_archive: !self.no_archive,
            dry_run: self.dry_run,
            time_limit: self.max_seconds.map(Duration::from_secs),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium set users                                 show the settings
  alluvium set users commit_retention=90d as_of_window=30d
  alluvium set users hot_days=30d archive=/mnt/cold      older days move there

A span is a number and a unit: 90s, 15m, 36h, 30d or 4w. log_retention, hot_days and
tombstone_retention may be forever. target_file_size is a number of bytes like 128MiB, or default;
archive is a URI, an absolute folder, or default for the store itself; snapshot_grid is none, or
levels like 10m:1d,1h:7d,1d:365d. Every process that opens the state obeys. Settings that
contradict each other are refused, and nothing is changed.")]
pub(crate) struct SetArgs {
    /// The state
    pub(crate) state: String,
    /// A setting and its value
    #[arg(value_name = "NAME=VALUE", value_parser = assignment)]
    pub(crate) changes: Vec<(String, String)>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium stats users
  alluvium stats users --deep             also keys, late changes and ties: reads the whole log
  alluvium stats --json | jq '.[].tail_age_ms'
  alluvium stats --output jsonl | jq .log_bytes    all states

The tail is what the snapshot does not fold yet: reads merge it in. Files to merge are what a
compaction would take now; alluvium maintain does both.")]
pub(crate) struct StatsArgs {
    /// The state; all of them when not given
    pub(crate) state: Option<String>,
    /// Read the whole log, and tell also what only the rows tell
    #[arg(long)]
    pub(crate) deep: bool,
    /// One JSON array: the same as --output json
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

fn step(text: &str) -> Result<MaintainStep, String> {
    text.parse().map_err(|error: alluvium::Error| error.to_string())
}

fn span(text: &str) -> Result<i64, String> {
    match parse_duration(text) {
        Ok(ms) if ms > 0 => Ok(ms),
        Ok(_) => Err("give a span of more than nothing".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err("write NAME=VALUE, like commit_retention=90d".to_owned()),
    }
}
