//! Seeded events: keys, versions, times and values in the shape of an append.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, StructArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, Fields};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::Outcome;

/// Keys of the states that benches load.
pub const KEYS: u64 = 1_000_000;
/// 2024-01-15T00:00:00Z in microseconds; 8.6 million events stay within this day, more go on into the next ones.
const FIRST_MICROS: i64 = 1_705_276_800_000_000;
/// From one event to the next.
const STEP_MICROS: i64 = 10_000;
const SOURCES: [&str; 6] = ["web", "ios", "android", "api", "batch", "partner"];

/// The fields of a value.
pub fn value_fields() -> Fields {
    Fields::from(vec![
        Field::new("login_count", DataType::Int64, true),
        Field::new("score", DataType::Float64, true),
        Field::new("source", DataType::Utf8, true),
    ])
}

/// The key with a number.
pub fn key_text(number: u64) -> String {
    format!("user-{number:010}")
}

/// How many bytes [`long_key_text`] has.
const LONG_KEY_BYTES: usize = 100;

/// The key with a number, of 100 bytes: half of them are as random as a digest is.
pub fn long_key_text(number: u64) -> String {
    use std::fmt::Write;
    let mut key = key_text(number);
    let mut digest = number;
    while key.len() < LONG_KEY_BYTES {
        // A step of splitmix64: neighbours have nothing in common.
        digest = digest.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (digest ^ (digest >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // Writing to a text can't fail.
        write!(key, "-{:016x}", mixed ^ (mixed >> 27)).ok();
    }
    key.truncate(LONG_KEY_BYTES);
    key
}

/// The numbers below `keys` with these places in an order in which each stretch is spread over all of them. No list
/// of them is held, however many there are; `keys` is below four thousand million.
pub fn spread_keys(places: std::ops::Range<u64>, keys: u64) -> Vec<u64> {
    // A prime above `keys`: every number comes up exactly once.
    const STRIDE: u64 = 4_294_967_291;
    places.map(|place| (place * (STRIDE % keys.max(1))) % keys.max(1)).collect()
}

/// So many different numbers below `keys`, in random order.
pub fn distinct_keys(seed: u64, count: usize, keys: u64) -> Vec<u64> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut seen = HashSet::with_capacity(count);
    let mut numbers = Vec::with_capacity(count);
    while numbers.len() < count {
        let number = rng.random_range(0..keys);
        if seen.insert(number) {
            numbers.push(number);
        }
    }
    numbers
}

/// A stream of events whose versions and times rise.
#[derive(Debug)]
pub struct Events {
    rng: StdRng,
    next: i64,
}

impl Events {
    /// A stream that begins with version 1.
    pub fn seeded(seed: u64) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), next: 1 }
    }

    /// The version of the next event.
    pub fn next_version(&self) -> i64 {
        self.next
    }

    /// When the event with a version happens, in microseconds.
    pub fn time_of(version: i64) -> i64 {
        FIRST_MICROS + version * STEP_MICROS
    }

    /// One number below `keys`.
    pub fn any_key(&mut self, keys: u64) -> u64 {
        self.rng.random_range(0..keys)
    }

    /// Events of keys drawn uniformly.
    pub fn random(&mut self, rows: usize, keys: u64) -> Outcome<RecordBatch> {
        let numbers: Vec<u64> = (0..rows).map(|_| self.any_key(keys)).collect();
        self.of_keys(&numbers)
    }

    /// Every key below `keys` once, in random order, in batches.
    pub fn every_key(&mut self, keys: u64, batch_rows: usize) -> Outcome<Vec<RecordBatch>> {
        use rand::seq::SliceRandom;
        let mut numbers: Vec<u64> = (0..keys).collect();
        numbers.shuffle(&mut self.rng);
        numbers.chunks(batch_rows).map(|chunk| self.of_keys(chunk)).collect()
    }

    /// One event of each of these keys.
    pub fn of_keys(&mut self, numbers: &[u64]) -> Outcome<RecordBatch> {
        self.of_named_keys(numbers, key_text)
    }

    /// One event of each of these keys, whose text is made by `name`.
    pub fn of_named_keys(
        &mut self,
        numbers: &[u64],
        name: fn(u64) -> String,
    ) -> Outcome<RecordBatch> {
        let first = self.next;
        self.next += i64::try_from(numbers.len())?;
        let versions: Vec<i64> = (first..self.next).collect();
        let times: Vec<i64> = versions.iter().map(|&version| Self::time_of(version)).collect();
        let keys = StringArray::from_iter_values(numbers.iter().map(|&number| name(number)));
        let operations =
            StringArray::from_iter_values(std::iter::repeat_n("UPSERT", numbers.len()));
        let counts: Int64Array =
            numbers.iter().map(|_| Some(self.rng.random_range(0..10_000_i64))).collect();
        let scores: Float64Array = numbers.iter().map(|_| Some(self.rng.random::<f64>())).collect();
        let sources = StringArray::from_iter_values(
            numbers.iter().map(|_| SOURCES[self.rng.random_range(0..SOURCES.len())]),
        );
        let columns: Vec<ArrayRef> = vec![Arc::new(counts), Arc::new(scores), Arc::new(sources)];
        let value = StructArray::try_new(value_fields(), columns, None)?;
        Ok(RecordBatch::try_from_iter_with_nullable([
            ("state_key", Arc::new(keys) as ArrayRef, false),
            ("version", Arc::new(Int64Array::from(versions)), false),
            (
                "event_time",
                Arc::new(TimestampMicrosecondArray::from(times).with_timezone("UTC")),
                false,
            ),
            ("op_type", Arc::new(operations), false),
            ("state_value", Arc::new(value), true),
        ])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_up_once_in_spread_order() {
        for keys in [1, 2, 10, 1_000, 99_991] {
            let mut numbers = spread_keys(0..keys, keys);
            numbers.sort_unstable();
            assert_eq!(numbers, (0..keys).collect::<Vec<_>>(), "{keys}");
        }
        let first = spread_keys(0..100, 1_000_000);
        assert!(first.iter().any(|&number| number > 900_000), "{first:?}");
    }

    #[test]
    fn long_keys_have_a_hundred_bytes_and_the_order_of_their_numbers() {
        let keys: Vec<String> = (0..1_000).map(long_key_text).collect();
        assert!(keys.iter().all(|key| key.len() == LONG_KEY_BYTES));
        assert!(keys.is_sorted());
    }
}
