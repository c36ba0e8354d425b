//! What all verbs share: the store, the format of rows, the summary.

use std::path::Path;
use std::time::Instant;

use alluvium::{Durability, Error, ErrorKind, NamedPoint, Point, ProcessSettings, RawState, Store};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::{Stream, StreamExt};

use crate::args::OutputFormat;
use crate::failure::Failure;
use crate::output::{Rows, TableStyle};
use crate::progress::{counted, duration};
use crate::terminal::Console;

/// One command being carried out.
pub(crate) struct Session<'a> {
    pub(crate) console: &'a mut Console,
    process: ProcessSettings,
    output: Option<OutputFormat>,
    is_quiet: bool,
    started: Instant,
}

impl<'a> Session<'a> {
    /// A command with the settings of its process, and what options say on top of them.
    pub(crate) fn new(
        console: &'a mut Console,
        store: Option<String>,
        config: Option<&Path>,
        output: Option<OutputFormat>,
        memory: Option<usize>,
        is_quiet: bool,
    ) -> Result<Self, Failure> {
        let file = config.or(console.config.as_deref());
        let mut process = ProcessSettings::load(file, console.environment.iter().cloned())?;
        if let Some(store) = store.or_else(|| console.store.clone()) {
            process = process.with("store", &store)?;
        }
        if let Some(bytes) = memory {
            process = process.with("memory_budget_bytes", &bytes.to_string())?;
        }
        Ok(Self { console, process, output, is_quiet, started: Instant::now() })
    }

    /// The settings of the process.
    pub(crate) fn process(&self) -> &ProcessSettings {
        &self.process
    }

    /// The store's URI, as it was given.
    fn uri(&self) -> Result<String, Failure> {
        let uri = self.process.store.clone().ok_or_else(|| {
            Failure::usage(
                "no store is named: give --store URI (a folder such as ./store), or set ALLUVIUM_STORE, or store in alluvium.toml",
            )
        })?;
        if uri.starts_with("memory://") {
            return Err(Failure::usage(format!(
                "{uri} would be gone when this command ends: give a folder; stores in memory are for programs that embed the library"
            )));
        }
        Ok(uri)
    }

    /// Opens the store to read it: one that isn't there is not made.
    pub(crate) async fn open(&mut self) -> Result<Store, Failure> {
        let uri = self.uri()?;
        if !uri.contains("://") && !uri.is_empty() && !Path::new(&uri).exists() {
            let message =
                format!("there is no store {uri}: name another one, or make it by appending");
            return Err(Error::new(ErrorKind::NotFound, message).into());
        }
        Ok(Store::builder(&uri).settings(self.process.settings.clone()).open().await?)
    }

    /// A state to read as of points, and these. One whose log is torn is read as of a commit before the hole, if the points name such.
    pub(crate) async fn state_at(
        &mut self,
        store: &Store,
        name: &str,
        named: &[&NamedPoint],
    ) -> Result<(RawState, Vec<Point>), Failure> {
        let error = match store.raw_state(name).await {
            Ok(state) => {
                let mut points = Vec::with_capacity(named.len());
                for named in named {
                    points.push(state.reader().point(named).await?);
                }
                return Ok((state, points));
            }
            Err(error) => error,
        };
        let points: Vec<Point> = named.iter().map(|named| named.point).collect();
        let commits: Option<Vec<i64>> = points.iter().map(|point| point.commit).collect();
        let newest = commits.and_then(|commits| commits.into_iter().max());
        if let (ErrorKind::Corrupt, Some(commit)) = (error.kind(), newest)
            && let Ok(state) = store.raw_state_up_to(name, commit).await
        {
            self.say(&format!("warning: only commits up to {commit} are read: {error}"));
            return Ok((state, points));
        }
        Err(error.into())
    }

    /// Opens the store to write to it.
    pub(crate) async fn open_for_writing(&mut self) -> Result<Store, Failure> {
        let settings = self.process.settings.clone();
        Ok(Store::builder(&self.uri()?).settings(settings).open().await?)
    }

    /// Lets an acknowledged write mean something else than the settings say.
    pub(crate) fn set_durability(&mut self, durability: Durability) {
        self.process.settings.durability = durability;
    }

    /// The format that was asked for, or the one that suits who reads.
    pub(crate) fn format(&self) -> OutputFormat {
        self.output.unwrap_or(if self.console.stdout_is_terminal {
            OutputFormat::Table
        } else {
            OutputFormat::Jsonl
        })
    }

    pub(crate) fn is_table(&self) -> bool {
        self.format() == OutputFormat::Table
    }

    pub(crate) fn shows_progress(&self) -> bool {
        self.console.stderr_is_terminal && !self.is_quiet
    }

    /// Tells the user something that is no row.
    pub(crate) fn say(&mut self, line: &str) {
        if !self.is_quiet {
            self.console.say(line);
        }
    }

    /// Tells of a failure while others go on.
    pub(crate) fn complain(&mut self, message: &str) {
        let line = format!("{} {message}", self.console.styled_error("error:"));
        self.console.say(&line);
    }

    /// Begins rows of a schema.
    pub(crate) fn begin(&self, style: TableStyle, schema: &SchemaRef) -> Result<Rows, Failure> {
        Rows::begin(self.console, self.format(), style, schema)
    }

    /// Writes all rows of a stream, or the first so many.
    pub(crate) async fn emit<S>(
        &mut self,
        schema: &SchemaRef,
        limit: Option<u64>,
        mut batches: S,
    ) -> Result<(u64, Option<String>), Failure>
    where
        S: Stream<Item = Result<RecordBatch, Failure>> + Unpin,
    {
        let mut rows = self.begin(TableStyle::Rows, schema)?;
        while limit.is_none_or(|limit| rows.count() < limit) {
            let Some(batch) = batches.next().await else { break };
            let batch = batch.inspect_err(|_| {
                // What came before the failure is shown before it is told.
                rows.settle(self.console).ok();
            })?;
            rows.write(self.console, &first_rows(batch, limit, rows.count()))?;
        }
        rows.finish(self.console)
    }

    /// Tells how many rows there were, how long it took, and as of what.
    pub(crate) fn summarize(
        &mut self,
        rows: u64,
        basis: Option<(i64, Point)>,
        remark: Option<String>,
    ) {
        let mut text = format!("({}, {}", counted(rows, "row"), duration(self.started.elapsed()));
        if let Some((commit, point)) = basis {
            match point.is_latest() {
                true => text.push_str(&format!(", as of commit {commit}")),
                false => text.push_str(&format!(", as of {point}")),
            }
        }
        if let Some(remark) = remark {
            text.push_str("; ");
            text.push_str(&remark);
        }
        text.push(')');
        self.say(&text);
    }

    pub(crate) fn elapsed(&self) -> String {
        duration(self.started.elapsed())
    }
}

/// The rows of a batch that a limit still allows.
pub(crate) fn first_rows(batch: RecordBatch, limit: Option<u64>, before: u64) -> RecordBatch {
    let Some(limit) = limit else { return batch };
    let room = usize::try_from(limit.saturating_sub(before)).unwrap_or(usize::MAX);
    if batch.num_rows() <= room { batch } else { batch.slice(0, room) }
}
