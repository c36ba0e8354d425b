//! `diff`: what is different at two points.

use std::sync::Arc;

use alluvium::format::write_value;
use alluvium::{Basis, BatchStream, Error, diff_schema};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, StructArray};
use futures::TryStreamExt;

use super::{Outcome, Session};
use crate::args::DiffArgs;
use crate::failure::{ExitCodes, Failure};
use crate::output::{rename, with_column};
use crate::progress::thousands;

const COLUMNS: [(&str, &str); 6] = [
    ("state_key", "key"),
    ("change", "change"),
    ("before", "before"),
    ("after", "after"),
    ("version", "version"),
    ("event_time", "event_time"),
];
/// The columns of a table, before what changed is told in words.
const IN_TABLE: [(&str, &str); 3] =
    [("key", "key"), ("change", "change"), ("event_time", "event_time")];

/// How many keys changed, and how.
#[derive(Default)]
pub(super) struct Counts {
    inserted: u64,
    updated: u64,
    deleted: u64,
}

pub(super) async fn run(session: &mut Session<'_>, args: DiffArgs) -> Outcome {
    let store = session.open().await?;
    let (state, points) = session.state_at(&store, &args.state, &[&args.from, &args.to]).await?;
    let [from, to] = points.as_slice() else {
        return Err(Error::internal("two points came to another number of them").into());
    };
    let reader = state.reader();
    let basis = reader.basis().await?;
    let differences = reader.diff_rows(&basis, *from, *to, args.keys.filter()).await?;
    let mut counts = Counts::default();
    let shown = show(session, &basis, differences, args.limit, &mut counts).await;
    store.close().await;
    let (rows, remark) = shown?;
    let mut text = counts.to_string();
    if args.limit.is_some_and(|limit| rows >= limit) {
        text = format!("the first {}", thousands(rows));
    }
    if let Some(remark) = remark {
        text = format!("{text}; {remark}");
    }
    let elapsed = session.elapsed();
    session.say(&format!(
        "({text}, {elapsed}, from {} to {} at commit {})",
        args.from,
        args.to,
        basis.commit()
    ));
    Ok(ExitCodes::OK)
}

/// Writes differences, or the first so many.
pub(super) async fn show(
    session: &mut Session<'_>,
    basis: &Basis,
    differences: BatchStream,
    limit: Option<u64>,
    counts: &mut Counts,
) -> Result<(u64, Option<String>), Failure> {
    let is_table = session.is_table();
    let shown = move |batch: &RecordBatch| -> Result<RecordBatch, Failure> {
        let batch = rename(batch, &COLUMNS)?;
        if is_table { in_words(&batch) } else { Ok(batch) }
    };
    let schema = shown(&RecordBatch::new_empty(diff_schema(basis.definition())))?.schema();
    let batches = differences.map_err(Failure::from).and_then(|batch| {
        // All are counted, also those beyond a limit, of which no more are read than come in one batch.
        counts.add(&batch);
        std::future::ready(shown(&batch))
    });
    session.emit(&schema, limit, Box::pin(batches)).await
}

impl Counts {
    fn add(&mut self, batch: &RecordBatch) {
        let Some(changes) = batch.column_by_name("change") else { return };
        for change in changes.as_string::<i32>().iter().flatten() {
            match change {
                "inserted" => self.inserted += 1,
                "updated" => self.updated += 1,
                _ => self.deleted += 1,
            }
        }
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} inserted, {} updated, {} deleted",
            thousands(self.inserted),
            thousands(self.updated),
            thousands(self.deleted)
        )
    }
}

/// The differences with what changed told in words: `field: before → after` of an update, else the value.
fn in_words(batch: &RecordBatch) -> Result<RecordBatch, Failure> {
    let side = |name: &str| -> Result<StructArray, Failure> {
        let column = batch.column_by_name(name).and_then(|column| column.as_struct_opt());
        column.cloned().ok_or_else(|| alluvium::Error::internal("a difference lacks a side").into())
    };
    let (before, after) = (side("before")?, side("after")?);
    let mut texts = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        texts.push(Some(match (before.is_valid(row), after.is_valid(row)) {
            (true, true) => changed_fields(&before, &after, row)?,
            (true, false) => fields_of(&before, row)?,
            _ => fields_of(&after, row)?,
        }));
    }
    let texts: ArrayRef = Arc::new(StringArray::from(texts));
    with_column(&rename(batch, &IN_TABLE)?, "what", texts)
}

fn changed_fields(
    before: &StructArray,
    after: &StructArray,
    row: usize,
) -> Result<String, Failure> {
    let mut parts = Vec::new();
    for ((field, old), new) in before.fields().iter().zip(before.columns()).zip(after.columns()) {
        let (old, new) = (json(old, row)?, json(new, row)?);
        if old != new {
            parts.push(format!("{}: {old} → {new}", field.name()));
        }
    }
    Ok(parts.join(", "))
}

fn fields_of(value: &StructArray, row: usize) -> Result<String, Failure> {
    let mut parts = Vec::new();
    for (field, column) in value.fields().iter().zip(value.columns()) {
        if column.is_valid(row) {
            parts.push(format!("{}: {}", field.name(), json(column, row)?));
        }
    }
    Ok(parts.join(", "))
}

fn json(column: &ArrayRef, row: usize) -> Result<String, Failure> {
    let mut text = Vec::new();
    write_value(&mut text, column.as_ref(), row)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
