//! `history`: every change of a key.

use std::collections::VecDeque;

use alluvium::{KeyFilter, history_schema};
use arrow::array::RecordBatch;
use futures::TryStreamExt;

use super::live::composite_key;
use super::{Outcome, Session};
use crate::args::HistoryArgs;
use crate::failure::ExitCodes;
use crate::output::rename;

/// The columns of a change with its provenance: there, and here.
const COLUMNS: [(&str, &str); 10] = [
    ("state_key", "key"),
    ("op_type", "op"),
    ("state_value", "value"),
    ("version", "version"),
    ("event_time", "event_time"),
    ("commit", "commit"),
    ("writer", "writer"),
    ("app_id", "app_id"),
    ("epoch", "epoch"),
    ("is_late", "late"),
];

pub(super) async fn run(session: &mut Session<'_>, args: HistoryArgs) -> Outcome {
    let key = if args.composite { composite_key(&args.key)? } else { args.key.clone() };
    let store = session.open().await?;
    let state = store.raw_state(&args.state).await?;
    let reader = state.reader();
    let basis = reader.basis().await?;
    let point = args.point.point();
    let mut changes = reader.history_rows(&basis, KeyFilter::keys([key.clone()]), point).await?;
    let mut kept: VecDeque<RecordBatch> = VecDeque::new();
    let mut count = 0;
    while let Some(batch) = changes.try_next().await? {
        count += batch.num_rows();
        kept.push_back(batch);
        drop_first(&mut kept, &mut count, args.last);
    }
    if kept.is_empty() {
        let when = if point.is_latest() { String::new() } else { format!(" as of {point}") };
        session
            .complain(&format!("the state {} has no change of the key {key:?}{when}", args.state));
        return Ok(ExitCodes::NOT_FOUND);
    }
    // A table of one key needs not repeat it.
    let columns = if session.is_table() { &COLUMNS[1..] } else { &COLUMNS[..] };
    let schema =
        rename(&RecordBatch::new_empty(history_schema(basis.definition())), columns)?.schema();
    let batches = futures::stream::iter(kept.into_iter().map(|batch| rename(&batch, columns)));
    let (rows, remark) = session.emit(&schema, None, batches).await?;
    session.summarize(rows, Some((basis.commit(), point)), remark);
    Ok(ExitCodes::OK)
}

/// Drops what is older than the last so many rows.
fn drop_first(kept: &mut VecDeque<RecordBatch>, count: &mut usize, last: Option<u64>) {
    let Some(last) = last.and_then(|last| usize::try_from(last).ok()) else { return };
    while let Some(first) = kept.pop_front() {
        let (rows, surplus) = (first.num_rows(), count.saturating_sub(last));
        if rows > surplus || kept.is_empty() {
            let dropped = surplus.min(rows);
            *count -= dropped;
            return kept.push_front(first.slice(dropped, rows - dropped));
        }
        *count -= rows;
    }
}
