//! Arguments of the verbs that keep a store small.

use std::path::PathBuf;

use alluvium::{MaintainStep, parse_duration};
use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium maintain                                  all states, all steps, once
  alluvium maintain users --dry-run                  tell what it would do
  alluvium maintain --steps compact,vacuum
  alluvium maintain --every 10m --report /var/lib/alluvium/report.json

Steps, in this order: materialize folds the log into the snapshot; compact merges the log's files of
days that are over; expire drops days past log_retention, if that is set; checkpoint makes opening
fast; cleanup removes commits that no kept version needs; vacuum removes files that no kept version
has. Answers are the same before and after, but for points before what has expired, which are refused.
It may be killed at any moment and run again. How long what is kept: alluvium set.")]
pub(crate) struct MaintainArgs {
    /// The states; all of them when none is given
    #[arg(value_name = "STATE")]
    pub(crate) states: Vec<String>,
    /// Only these steps
    #[arg(long, value_name = "STEP[,STEP]", value_delimiter = ',', value_parser = step)]
    pub(crate) steps: Vec<MaintainStep>,
    /// Tell what would be done, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do it again and again, so long after the end of the last time, until stopped
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(crate) every: Option<i64>,
    /// Write the report of each run to this file, as one JSON array with an object for each state
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  alluvium set users                                 show the settings
  alluvium set users commit_retention=90d as_of_window=30d

A span is a number and a unit: 90s, 15m, 36h, 30d or 4w. Every process that opens the state obeys.
Settings that contradict each other are refused, and nothing is changed.")]
pub(crate) struct SetArgs {
    /// The state
    pub(crate) state: String,
    /// A setting and its value
    #[arg(value_name = "NAME=VALUE", value_parser = assignment)]
    pub(crate) changes: Vec<(String, String)>,
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
