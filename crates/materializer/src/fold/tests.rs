//! The fold against the plainest model of it, a map from key to best row, over seeded random rows.
//!
//! A failure prints its seed; `ALLUVIUM_TEST_SEED=<seed>` runs that one alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod budget;
mod bytes;
mod copy;
mod gather;
mod keep;
mod memory;
mod merge;
mod parts;
mod ties;
mod tree;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use alluvium_log::{DELETE, OrderBy, Rank, Result, UPSERT, fold_schema};
use arrow::array::{
    Array, ArrayRef, Int32Array, Int64Array, Int64Builder, ListBuilder, MapBuilder, StringArray,
    StringBuilder, StructArray, TimestampMicrosecondArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{Field, Fields, SchemaRef};
use arrow::record_batch::RecordBatch;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::BatchStream;

const ORDERS: [OrderBy; 2] = [OrderBy::EventTime, OrderBy::Version];

/// Runs a test with each of some seeds, and names the seed of a failure.
pub(super) fn with_seeds(count: u64, mut test: impl FnMut(&mut Random)) {
    let replayed = std::env::var("ALLUVIUM_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds = replayed.map_or(1..=count, |seed: u64| seed..=seed);
    for seed in seeds {
        let named = NameOnPanic(seed);
        test(&mut Random::new(seed));
        std::mem::forget(named);
    }
}

struct NameOnPanic(u64);

impl Drop for NameOnPanic {
    #[allow(clippy::print_stderr)]
    fn drop(&mut self) {
        eprintln!("failed with ALLUVIUM_TEST_SEED={}", self.0);
    }
}

/// xorshift64*.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// A number below one of the bounds.
    pub(super) fn below_one_of(&mut self, bounds: &[usize]) -> usize {
        let bound = *self.pick(bounds);
        self.below(bound)
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}

/// A row; its payload follows from the rest, so that rows of equal rank are identical.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) key: String,
    pub(super) rank: Rank,
}

/// A row of a key that differs from others of the key by its version alone.
pub(super) fn row(key: &str, version: i64) -> Row {
    let rank = Rank { version, event_time: 5, is_delete: false, commit: 1, append_seq: 0 };
    Row { key: key.to_owned(), rank }
}

/// Rows of few keys and few values of each level of rank, so that ties abound.
pub(super) fn random_rows(random: &mut Random, count: usize) -> Vec<Row> {
    let keys = random_keys(random, count);
    let level = 1 + random.below(4);
    let mut rows = Vec::new();
    for _ in 0..count {
        let rank = Rank {
            version: random.below(level) as i64,
            event_time: random.below(level) as i64 - 1,
            is_delete: random.below(3) == 0,
            commit: random.below(level) as i64,
            append_seq: random.below(3) as i32,
        };
        rows.push(Row { key: random.pick(&keys).clone(), rank });
    }
    rows
}

fn random_keys(random: &mut Random, count: usize) -> Vec<String> {
    let shared = *random.pick(&["", "k", "customer-00", "ünï-💧-shared-"]);
    let mut keys: Vec<String> = (0..1 + random.below(count + 1))
        .map(|_| {
            format!("{shared}{:0width$}", random.below(count * 2 + 1), width = random.below(9))
        })
        .collect();
    if random.below(2) == 0 {
        let odd =
            ["", "\0", "\0\0", "a", "a\0", "ab", "abcdefgh", "abcdefgh\0", "abcdefghi", "é", "💧"];
        keys.extend(odd.iter().map(|key| (*key).to_owned()));
        keys.push("long".repeat(1500));
        keys.push("long".repeat(1500) + "er");
    }
    keys
}

/// The winner of each key, by the plainest means.
pub(super) fn model(rows: &[Row], order_by: OrderBy) -> Vec<Row> {
    let mut best: BTreeMap<&[u8], &Row> = BTreeMap::new();
    for row in rows {
        let kept = best.entry(row.key.as_bytes()).or_insert(row);
        if row.rank.compare(&kept.rank, order_by) == Ordering::Greater {
            *kept = row;
        }
    }
    best.into_values().cloned().collect()
}

/// The columns of [`batch_of`]: a nullable text and a nullable struct with a list and a map.
pub(super) fn schema() -> SchemaRef {
    let payload = payload_of(&[]);
    let field =
        |name: &str, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
    fold_schema(&[field("label", &payload[0]), field("state_value", &payload[1])])
}

pub(super) fn batch_of(rows: &[Row]) -> RecordBatch {
    let op = |row: &Row| if row.rank.is_delete { DELETE } else { UPSERT };
    let int = |value: fn(&Rank) -> i64| rows.iter().map(move |row| value(&row.rank));
    let times = TimestampMicrosecondArray::from_iter_values(int(|rank| rank.event_time));
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.key))),
        Arc::new(Int64Array::from_iter_values(int(|rank| rank.version))),
        Arc::new(times.with_timezone("UTC")),
        Arc::new(StringArray::from_iter_values(rows.iter().map(op))),
        Arc::new(Int64Array::from_iter_values(int(|rank| rank.commit))),
        Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.rank.append_seq))),
    ];
    columns.extend(payload_of(rows));
    match rows.is_empty() {
        true => RecordBatch::new_empty(schema()),
        false => RecordBatch::try_new(schema(), columns).unwrap(),
    }
}

fn payload_of(rows: &[Row]) -> Vec<ArrayRef> {
    let mut labels = StringBuilder::new();
    let mut numbers = Int64Builder::new();
    let mut tags = ListBuilder::new(StringBuilder::new());
    let mut counts = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for Row { key, rank } in rows {
        let number = rank.version * 31 + rank.event_time * 7 + rank.commit * 3;
        let number = number + i64::from(rank.append_seq) + key.len() as i64;
        labels.append_option((number % 5 != 0).then(|| format!("{key}/{number}")));
        numbers.append_option((number % 3 != 0).then_some(number));
        for tag in 0..number % 4 {
            tags.values().append_option((tag != 1).then(|| format!("tag {tag} of {number}")));
        }
        tags.append(number % 6 != 1);
        for entry in 0..number % 3 {
            counts.keys().append_value(format!("{entry}"));
            counts.values().append_option((number % 2 == 0).then_some(number + entry));
        }
        counts.append(number % 7 != 2).unwrap();
    }
    let columns: Vec<ArrayRef> =
        vec![Arc::new(numbers.finish()), Arc::new(tags.finish()), Arc::new(counts.finish())];
    let fields: Fields = ["number", "tags", "counts"]
        .iter()
        .zip(&columns)
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), true))
        .collect();
    let valid: Vec<bool> = rows.iter().map(|row| !row.rank.is_delete).collect();
    let value = StructArray::new(fields, columns, Some(valid.into()));
    vec![Arc::new(labels.finish()), Arc::new(value)]
}

/// Sorts rows by key alone: those of one key stay in any order.
pub(super) fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by(|a, b| a.key.as_bytes().cmp(b.key.as_bytes()));
    rows
}

/// Cuts rows into batches of random sizes: some empty, some slices of one batch.
pub(super) fn random_batches(random: &mut Random, rows: &[Row]) -> Vec<RecordBatch> {
    let whole = batch_of(rows);
    let largest = *random.pick(&[1, 3, 20, 1000]);
    let mut batches = Vec::new();
    let mut start = 0;
    while start < rows.len() {
        let count = random.below(largest + 1).min(rows.len() - start);
        batches.push(match random.below(2) {
            0 => whole.slice(start, count),
            _ => batch_of(&rows[start..start + count]),
        });
        start += count;
    }
    batches
}

/// Deals rows to so many inputs at random.
pub(super) fn dealt(random: &mut Random, rows: &[Row], inputs: usize) -> Vec<Vec<Row>> {
    let mut dealt = vec![Vec::new(); inputs];
    for row in rows {
        dealt[random.below(inputs)].push(row.clone());
    }
    dealt
}

pub(super) fn stream_of(batches: Vec<RecordBatch>) -> BatchStream {
    stream::iter(batches.into_iter().map(Ok)).boxed()
}

/// Reads a stream to its end and compares it to rows, payload and all.
pub(super) async fn assert_gives(stream: BatchStream, expected: &[Row]) -> Vec<RecordBatch> {
    let batches: Vec<RecordBatch> = stream.try_collect().await.unwrap();
    assert_are(&batches, expected);
    batches
}

pub(super) fn assert_are(batches: &[RecordBatch], expected: &[Row]) {
    assert!(batches.iter().all(|batch| batch.num_rows() > 0), "an empty batch came out");
    assert!(batches.iter().all(|batch| batch.schema() == schema()));
    let all = concat_batches(&schema(), batches).unwrap();
    assert_eq!(all, batch_of(expected));
}

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

pub(super) async fn failure_of(stream: Result<BatchStream>) -> alluvium_log::Error {
    match stream {
        Ok(stream) => stream.try_collect::<Vec<_>>().await.expect_err("the fold should fail"),
        Err(error) => error,
    }
}
