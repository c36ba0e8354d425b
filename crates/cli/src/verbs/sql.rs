//! `sql`: a query over all states of the store.
//!
//! The query runs on a task of its own: an operator that computes for long, such as a join of everything with
//! everything, must not keep the program from noticing that its user wants to stop.

use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll};

use alluvium::datafusion::execution::SendableRecordBatchStream;
use alluvium::{Error, ErrorKind, sql_error};
use arrow::array::RecordBatch;
use futures::{FutureExt, Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Outcome, Session};
use crate::args::SqlArgs;
use crate::failure::{ExitCodes, Failure};

/// Batches that may wait to be written.
const WAITING_BATCHES: usize = 2;

pub(super) async fn run(session: &mut Session<'_>, args: SqlArgs) -> Outcome {
    let query = match args.query.as_str() {
        "-" => read_query(session)?,
        query => query.to_owned(),
    };
    let SqlArgs { timeout, limit, .. } = args;
    let Some(timeout) = timeout else { return answer(session, &query, limit).await };
    // A query that computes for long may keep all threads of the runtime busy, which then tell no time: one of its own does.
    let (over, is_over) = tokio::sync::oneshot::channel();
    let length = timeout.length;
    std::thread::spawn(move || {
        std::thread::sleep(length);
        over.send(()).ok();
    });
    tokio::select! {
        outcome = answer(session, &query, limit) => outcome,
        _ = is_over => Err(Error::new(
            ErrorKind::LimitExceeded,
            format!("the query took longer than --timeout {} and was ended: ask for less, or allow more", timeout.text),
        )
        .into()),
    }
}

async fn answer(session: &mut Session<'_>, query: &str, limit: Option<u64>) -> Outcome {
    let store = session.open().await?;
    let stream = store.sql(query).await?;
    let schema = stream.schema();
    let written = session.emit(&schema, limit, Query::start(stream)).await;
    store.close().await;
    let (rows, remark) = written?;
    session.summarize(rows, None, remark);
    Ok(ExitCodes::OK)
}

fn read_query(session: &mut Session<'_>) -> Result<String, Failure> {
    let mut query = String::new();
    if let Some(mut stdin) = session.console.stdin.take() {
        stdin.read_to_string(&mut query).map_err(|error| {
            Failure::usage(format!("the query can't be read from standard input: {error}"))
        })?;
    }
    Ok(query)
}

/// The batches of a query that runs on a task, which ends with this.
struct Query {
    batches: mpsc::Receiver<Result<RecordBatch, Error>>,
    task: Option<JoinHandle<()>>,
}

impl Query {
    fn start(mut stream: SendableRecordBatchStream) -> Self {
        let (sender, batches) = mpsc::channel(WAITING_BATCHES);
        let task = tokio::spawn(async move {
            while let Some(batch) = stream.next().await {
                if sender.send(batch.map_err(sql_error)).await.is_err() {
                    return;
                }
            }
        });
        Self { batches, task: Some(task) }
    }
}

impl Stream for Query {
    type Item = Result<RecordBatch, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.batches.poll_recv(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(batch)) => return Poll::Ready(Some(batch.map_err(Failure::from))),
            Poll::Ready(None) => {}
        }
        // A task that broke down must not look like the end of the rows.
        let Some(task) = &mut self.task else { return Poll::Ready(None) };
        let ended = std::task::ready!(task.poll_unpin(context));
        self.task = None;
        Poll::Ready(
            ended.err().map(|error| {
                Err(Error::internal("the query was aborted").with_source(error).into())
            }),
        )
    }
}

impl Drop for Query {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
