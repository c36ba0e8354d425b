//! `changes`: the feed of what was committed, once or for ever.

use std::time::Duration;

use alluvium::{Basis, RawState, Reader, history_schema};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::TryStreamExt;

use super::session::first_rows;
use super::{Outcome, Session};
use crate::args::{ChangesArgs, OutputFormat};
use crate::failure::{ExitCodes, Failure};
use crate::output::{Rows, TableStyle, rename};
use crate::terminal::Stop;

/// How often a feed that is followed looks for commits.
const POLL: Duration = Duration::from_millis(200);

const COLUMNS: [(&str, &str); 6] = [
    ("state_key", "key"),
    ("op_type", "op"),
    ("state_value", "value"),
    ("version", "version"),
    ("event_time", "event_time"),
    ("commit", "commit"),
];

pub(super) async fn run(session: &mut Session<'_>, args: ChangesArgs) -> Outcome {
    let format = session.format();
    if args.follow && !matches!(format, OutputFormat::Jsonl | OutputFormat::Table) {
        return Err(Failure::usage(
            "a feed that goes on is written as jsonl or table: choose one of these",
        ));
    }
    let store = session.open().await?;
    let state: RawState = store.raw_state(&args.state).await?;
    let reader = state.reader();
    let basis = reader.basis().await?;
    let columns = if args.as_input { &COLUMNS[..COLUMNS.len() - 1] } else { &COLUMNS[..] };
    let mut feed = Feed { rows: None, columns, limit: args.limit, written: 0 };
    let stop = if args.follow { session.console.stop.clone() } else { Stop::never() };
    tokio::select! {
        outcome = feed.all(session, reader, basis.clone(), &args) => outcome?,
        () = stop.wait() => {}
    }
    store.close().await;
    let (rows, remark) = feed.finish(session)?;
    session.summarize(
        rows,
        Some((basis.commit(), alluvium::Point::LATEST)).filter(|_| !args.follow),
        remark,
    );
    Ok(ExitCodes::OK)
}

struct Feed {
    rows: Option<(SchemaRef, Rows)>,
    columns: &'static [(&'static str, &'static str)],
    limit: Option<u64>,
    written: u64,
}

impl Feed {
    async fn all(
        &mut self,
        session: &mut Session<'_>,
        reader: &Reader,
        mut basis: Basis,
        args: &ChangesArgs,
    ) -> Result<(), Failure> {
        let mut seen = args.from_commit;
        loop {
            if basis.commit() > seen || self.rows.is_none() {
                self.part(session, reader, &basis, seen).await?;
                seen = basis.commit().max(seen);
            }
            if !args.follow || self.is_full() {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
            basis = reader.basis().await?;
        }
    }

    fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.written >= limit)
    }

    /// Writes the commits after one, up to a basis.
    async fn part(
        &mut self,
        session: &mut Session<'_>,
        reader: &Reader,
        basis: &Basis,
        after: i64,
    ) -> Result<(), Failure> {
        self.begin(session, basis)?;
        let mut changes = reader.changes_rows(basis, after).await?;
        while !self.is_full() {
            let Some(batch) = changes.try_next().await? else { break };
            let batch = first_rows(rename(&batch, self.columns)?, self.limit, self.written);
            self.written += batch.num_rows() as u64;
            if let Some((_, rows)) = &mut self.rows {
                rows.write(session.console, &batch)?;
            }
        }
        match &mut self.rows {
            Some((_, rows)) => rows.settle(session.console),
            None => Ok(()),
        }
    }

    /// Begins rows anew where the state has grown.
    fn begin(&mut self, session: &mut Session<'_>, basis: &Basis) -> Result<(), Failure> {
        let empty = RecordBatch::new_empty(history_schema(basis.definition()));
        let schema = rename(&empty, self.columns)?.schema();
        if self.rows.as_ref().is_some_and(|(known, _)| *known == schema) {
            return Ok(());
        }
        if let Some((_, rows)) = self.rows.take() {
            rows.finish(session.console)?;
        }
        self.rows = Some((schema.clone(), session.begin(TableStyle::Rows, &schema)?));
        Ok(())
    }

    fn finish(self, session: &mut Session<'_>) -> Result<(u64, Option<String>), Failure> {
        match self.rows {
            Some((_, rows)) => {
                rows.finish(session.console).map(|(_, remark)| (self.written, remark))
            }
            None => Ok((0, None)),
        }
    }
}
