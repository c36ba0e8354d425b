//! `history`: every change of a key.

use std::collections::VecDeque;

use alluvium::{Error, HistoryExpired, KeyFilter, history_schema};
use arrow::array::{Array, RecordBatch};
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

/// The same in a table: of one key, which needs not be repeated; and the epoch only where there is one.
const IN_TABLE: [(&str, &str); 7] = [
    ("op_type", "op"),
    ("event_time", "event_time"),
    ("commit", "commit"),
    ("is_late", "late"),
    ("state_value", "value"),
    ("version", "version"),
    ("writer", "writer"),
];
const EPOCH_IN_TABLE: [(&str, &str); 9] = [
    ("op_type", "op"),
    ("event_time", "event_time"),
    ("commit", "commit"),
    ("is_late", "late"),
    ("app_id", "app_id"),
    ("epoch", "epoch"),
    ("state_value", "value"),
    ("version", "version"),
    ("writer", "writer"),
];

pub(super) async fn run(session: &mut Session<'_>, args: HistoryArgs) -> Outcome {
    let key = if args.composite { composite_key(&args.key)? } else { args.key.clone() };
    let store = session.open().await?;
    let named = args.point.point();
    let (state, points) = session.state_at(&store, &args.state, &[&named]).await?;
    let point = points.into_iter().next().unwrap_or_default();
    let reader = state.reader();
    let basis = reader.basis().await?;
    let keys = KeyFilter::keys([key.clone()]);
    let ask = |after| reader.history_rows_after(&basis, keys.clone(), point, after);
    let (mut changes, expired) = match ask(args.from_commit).await {
        Ok(changes) => (changes, None),
        // The last ones may all be there.
        Err(error) => match expired_commit(&error).filter(|_| args.last.is_some()) {
            Some(after) => (ask(after).await?, Some(error)),
            None => return Err(error.into()),
        },
    };
    let mut kept: VecDeque<RecordBatch> = VecDeque::new();
    let mut count = 0;
    while let Some(batch) = changes.try_next().await? {
        count += batch.num_rows();
        kept.push_back(batch);
        drop_first(&mut kept, &mut count, args.last);
    }
    drop(changes);
    store.close().await;
    if let Some(error) = expired.filter(|_| args.last.is_some_and(|last| (count as u64) < last)) {
        return Err(error.into());
    }
    if kept.is_empty() {
        let mut when = if point.is_latest() { String::new() } else { format!(" as of {point}") };
        if args.from_commit > 0 {
            when.push_str(&format!(" after commit {}", args.from_commit));
        }
        session
            .complain(&format!("the state {} has no change of the key {key:?}{when}", args.state));
        return Ok(ExitCodes::NOT_FOUND);
    }
    let columns = match session.is_table() {
        true if kept.iter().all(has_no_epoch) => &IN_TABLE[..],
        true => &EPOCH_IN_TABLE[..],
        false => &COLUMNS[..],
    };
    let schema =
        rename(&RecordBatch::new_empty(history_schema(basis.definition())), columns)?.schema();
    let batches = futures::stream::iter(kept.into_iter().map(|batch| rename(&batch, columns)));
    let (rows, remark) = session.emit(&schema, None, batches).await?;
    session.summarize(rows, Some((basis.commit(), point)), remark);
    Ok(ExitCodes::OK)
}

/// The commit up to which rows have expired, if that is why a question has no answer.
fn expired_commit(error: &Error) -> Option<i64> {
    let cause = std::error::Error::source(error)?.downcast_ref::<HistoryExpired>()?;
    Some(cause.expired_commit)
}

fn has_no_epoch(batch: &RecordBatch) -> bool {
    batch.column_by_name("epoch").is_none_or(|epochs| epochs.null_count() == epochs.len())
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
