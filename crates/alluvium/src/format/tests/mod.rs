//! Tests of the formats, by topic, and what they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod columnar;
mod csv_files;
mod garbage;
mod inference;
mod json_lines;
mod round_trip;
mod text;
mod values;

use std::io::{Cursor, Read};

use super::{ChangeChunk, ChangeMapping, ChangeReader, ReadOptions, ReaderSchema, parse_fields};

pub(super) fn bytes(text: impl Into<Vec<u8>>) -> Box<dyn Read + Send> {
    Box::new(Cursor::new(text.into()))
}

pub(super) fn by_key(key: &[&str]) -> ChangeMapping {
    ChangeMapping { key: key.iter().map(|k| (*k).to_owned()).collect(), ..Default::default() }
}

pub(super) fn fixed(schema: &str) -> ReaderSchema {
    ReaderSchema::Fixed(parse_fields(schema).unwrap())
}

pub(super) fn read(
    text: impl Into<Vec<u8>>,
    options: ReadOptions,
) -> alluvium_log::Result<Vec<ChangeChunk>> {
    ChangeReader::from_read("input", bytes(text), options)?.collect()
}

/// Every change as the JSON of its row.
pub(super) fn rows(chunks: &[ChangeChunk]) -> Vec<String> {
    let mut rows = Vec::new();
    for chunk in chunks {
        assert_eq!(chunk.lines.len(), chunk.len());
        for row in 0..chunk.len() {
            let mut text = Vec::new();
            super::write_row(&mut text, &chunk.changes, row).unwrap();
            rows.push(String::from_utf8(text).unwrap());
        }
    }
    rows
}

pub(super) fn refusal(text: impl Into<Vec<u8>>, options: ReadOptions) -> String {
    match read(text, options) {
        Ok(chunks) => panic!("it was read: {:?}", rows(&chunks)),
        Err(error) => error.to_string(),
    }
}

/// A small generator whose seed can be given by `ALLUVIUM_SEED` and is printed by the failing assertion.
pub(super) struct Random {
    pub(super) seed: u64,
    state: u64,
}

impl Random {
    pub(super) fn new(default_seed: u64) -> Self {
        let seed = std::env::var("ALLUVIUM_SEED")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or(default_seed);
        Self { seed, state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }
}
