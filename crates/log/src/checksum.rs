//! Checksums of what lies in a store, so that a flipped bit is an error that names the file and never a row.
//!
//! ```text
//! data file    [block 0][block 1] .. [block n-1][ rest, page index, footer ]
//!               the footer's alluvium.blocks      the add's alluvium.check = <where it begins>:<sum>
//! commit, record   "alluvium.sum":"<16 digits>" in the text, made with these digits as zeros
//! checkpoint       N.alluvium.json beside it, which is such a text
//! ```
//!
//! Parquet has checksums of pages, but our encoder doesn't write them. Blocks are checked whatever part of a file is read, pages, bloom
//! filters and indexes alike: a read is widened to whole blocks. All sums are XXH64; of a block's the lower half is kept.

use std::hash::Hasher;
use std::ops::Range;

use bytes::Bytes;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use twox_hash::XxHash64;

use crate::error::{Error, Result};
use crate::table::FileAdd;

/// The tag that carries the checksum of a file's end, which holds those of its blocks.
pub const TAG_CHECK: &str = "alluvium.check";
/// The entry of a Parquet footer with the sums of the blocks before the file's end.
const BLOCKS_KEY: &str = "alluvium.blocks";
/// Bytes that are checked together.
const BLOCK_BYTES: usize = 16 * 1024;
/// Hexadecimal digits of a block's sum.
const BLOCK_DIGITS: usize = 8;
/// Hexadecimal digits of a text's sum.
const DIGITS: usize = 16;
/// Its sum stands within so many first bytes of a text.
const HEAD_BYTES: usize = 8 * 1024;
/// The entry of a text that holds its sum.
pub const SUM_ENTRY: &str = "alluvium.sum";
/// The digits of a text that has none yet, and that its sum is made with.
pub const NO_SUM: &str = "0000000000000000";

/// The sum of some bytes.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    XxHash64::oneshot(0, bytes)
}

/// The lower half of a block's sum.
fn block_sum(block: &[u8]) -> u32 {
    let [.., a, b, c, d] = sum(block).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// The sums of the whole blocks that some bytes begin with, as an entry of the footer; none if there is no such block.
///
/// The bytes come in parts, of which all but the last hold whole blocks.
pub(crate) fn blocks_entry<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Option<(usize, KeyValue)> {
    let blocks = parts.flat_map(|part| part.chunks_exact(BLOCK_BYTES));
    let text: String = blocks.map(|block| format!("{:08x}", block_sum(block))).collect();
    let count = text.len() / BLOCK_DIGITS;
    (count > 0).then(|| (count, KeyValue::new(BLOCKS_KEY.to_owned(), text)))
}

/// The check of a file of which so many blocks are in the footer's entry.
pub(crate) fn file_check<'a>(parts: impl Iterator<Item = &'a [u8]>, blocks: usize) -> String {
    let (mut hash, mut left, mut start) = (XxHash64::with_seed(0), blocks * BLOCK_BYTES, 0);
    for part in parts {
        let skipped = left.min(part.len());
        (left, start) = (left - skipped, start + skipped);
        hash.write(&part[skipped..]);
    }
    format!("{start}:{:016x}", hash.finish())
}

/// What a file's `add` says about its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileCheck {
    /// Where the end begins.
    pub(crate) start: u64,
    sum: u64,
}

impl FileCheck {
    /// What is noted about a file; nothing about those of other engines, and of ours from before there were checksums.
    pub(crate) fn of(add: &FileAdd) -> Result<Option<Self>> {
        let Some(text) = add.tags.get(TAG_CHECK) else { return Ok(None) };
        let parsed = text.split_once(':').and_then(|(start, sum)| {
            let sum = u64::from_str_radix(sum, 16).ok()?;
            Some(Self { start: start.parse().ok()?, sum })
        });
        match parsed.filter(|check| check.start <= add.size) {
            Some(check) => Ok(Some(check)),
            None => Err(Error::corrupt(format!("the tag {TAG_CHECK} can't be read: {text:?}"))),
        }
    }

    /// Checks a file's end.
    pub(crate) fn verify(&self, end: &[u8]) -> Result<()> {
        let found = sum(end);
        if found == self.sum {
            return Ok(());
        }
        Err(damaged(self.start, self.start + end.len() as u64))
    }
}

fn damaged(start: u64, end: u64) -> Error {
    Error::corrupt(format!(
        "the file is damaged: its bytes {start} to {end} are not those that were written; restore it from a copy, or run alluvium repair"
    ))
}

/// The sums of all blocks of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockSums {
    sums: Vec<u32>,
}

impl BlockSums {
    /// The sums that a footer lists, and those of the file's end, which was checked before.
    pub(crate) fn of(metadata: &ParquetMetaData, end: &[u8]) -> Result<Self> {
        let entries = metadata.file_metadata().key_value_metadata().into_iter().flatten();
        let text = entries.filter(|entry| entry.key == BLOCKS_KEY).find_map(|e| e.value.as_deref());
        let unreadable = || Error::corrupt(format!("the footer's {BLOCKS_KEY} can't be read"));
        let digits = text.unwrap_or_default().as_bytes().chunks(BLOCK_DIGITS);
        let listed = digits.map(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u32::from_str_radix(text, 16).ok()
        });
        let mut sums: Vec<u32> = listed.collect::<Option<_>>().ok_or_else(unreadable)?;
        sums.extend(end.chunks(BLOCK_BYTES).map(block_sum));
        Ok(Self { sums })
    }

    /// Bytes that it takes in memory.
    pub(crate) fn memory_size(&self) -> u64 {
        (self.sums.len() * size_of::<u32>()) as u64
    }

    /// The whole blocks that a range lies in.
    pub(crate) fn widened(range: &Range<u64>, size: u64) -> Range<u64> {
        let block = BLOCK_BYTES as u64;
        range.start / block * block..range.end.next_multiple_of(block).min(size)
    }

    /// Checks whole blocks from a place on.
    pub(crate) fn verify(&self, start: u64, bytes: &[u8]) -> Result<()> {
        let first = usize::try_from(start / BLOCK_BYTES as u64).unwrap_or(usize::MAX);
        for (index, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            if self.sums.get(first.saturating_add(index)) != Some(&block_sum(block)) {
                let begin = start + (index * BLOCK_BYTES) as u64;
                return Err(damaged(begin, begin + block.len() as u64));
            }
        }
        Ok(())
    }
}

/// What stands before the digits of a text's sum.
const SUM_NAMES: [&[u8]; 2] = [b"\"alluvium.sum\":\"", b"\"alluvium.sum\": \""];

/// Where the digits of a text's sum are.
fn digits_of(text: &[u8]) -> Option<Range<usize>> {
    let head = &text[..text.len().min(HEAD_BYTES)];
    let place = |name: &[u8]| {
        head.windows(name.len()).position(|part| part == name).map(|at| at + name.len())
    };
    let start = SUM_NAMES.into_iter().filter_map(place).min()?;
    // Whatever stands there counts as the sum, so that damage to it is damage.
    let digits = start..start + DIGITS;
    (digits.end <= text.len()).then_some(digits)
}

/// Whether a text has the name of a sum but for one byte: it was sealed, and the name is damaged.
fn hides_sum(text: &[u8]) -> bool {
    let head = &text[..text.len().min(HEAD_BYTES)];
    SUM_NAMES.into_iter().any(|name| {
        let differ = |part: &[u8]| part.iter().zip(name).filter(|(a, b)| a != b).take(2).count();
        head.windows(name.len()).any(|part| differ(part) == 1)
    })
}

fn sum_of_text(seed: u64, text: &[u8], digits: &Range<usize>) -> u64 {
    let mut hash = XxHash64::with_seed(seed);
    hash.write(&text[..digits.start]);
    hash.write(NO_SUM.as_bytes());
    hash.write(&text[digits.end..]);
    hash.finish()
}

/// Puts the sum of a JSON text in the place of the zeros that its first `"alluvium.sum"` has.
///
/// The seed tells where the text lies, such as a commit's number, so that it is not taken for another one.
pub fn seal_text(seed: u64, text: &mut [u8]) {
    if let Some(digits) = digits_of(text) {
        let sum = format!("{:016x}", sum_of_text(seed, text, &digits));
        text[digits].copy_from_slice(sum.as_bytes());
    }
}

/// Whether a JSON text is the one that was sealed; `None` where it has no sum, as those of other engines.
pub fn check_text(seed: u64, text: &[u8]) -> Option<bool> {
    let Some(digits) = digits_of(text) else { return hides_sum(text).then_some(false) };
    let sum = format!("{:016x}", sum_of_text(seed, text, &digits));
    Some(&text[digits] == sum.as_bytes())
}

/// The text beside a checkpoint that tells its size and sum.
pub(crate) fn checkpoint_note(version: i64, checkpoint: &[u8]) -> Vec<u8> {
    let (size, sum) = (checkpoint.len(), sum(checkpoint));
    let mut text =
        format!("{{\"alluvium.sum\":\"{NO_SUM}\",\"checkpoint\":{{\"size\":{size},\"xxh64\":\"{sum:016x}\"}}}}\n")
            .into_bytes();
    seal_text(version.unsigned_abs(), &mut text);
    text
}

/// Whether a checkpoint is the one that a text beside it tells of; `None` if the text itself is damaged, which tells nothing.
pub(crate) fn is_noted(version: i64, note: &[u8], checkpoint: &Bytes) -> Option<bool> {
    check_text(version.unsigned_abs(), note)
        .filter(|is_whole| *is_whole)
        .map(|_| checkpoint_note(version, checkpoint) == note)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_flipped_bit_of_a_sealed_text_is_found_also_one_that_hides_the_sum() {
        let mut text = format!(r#"{{"a":1,"alluvium.sum":"{NO_SUM}","b":"x"}}"#).into_bytes();
        seal_text(7, &mut text);
        assert_eq!(check_text(7, &text), Some(true));
        assert_eq!(check_text(8, &text), Some(false), "the text of another place");
        for at in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            assert_eq!(check_text(7, &flipped), Some(false), "bit {at}");
        }
        for other in ["{}", r#"{"alluvium.sums":"1"}"#, r#"{"alluvium.row":"1"}"#] {
            assert_eq!(check_text(7, other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn bytes_that_are_not_those_of_their_sums_are_refused() {
        let bytes: Vec<u8> =
            (0..40_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let (count, _) = blocks_entry([bytes.as_slice()].into_iter()).unwrap();
        let text = file_check([bytes.as_slice()].into_iter(), count);
        let (start, sum) = text.split_once(':').unwrap();
        let start = start.parse().unwrap();
        let check = FileCheck { start, sum: u64::from_str_radix(sum, 16).unwrap() };
        let blocks = BlockSums { sums: bytes.chunks(BLOCK_BYTES).map(block_sum).collect() };
        let end = usize::try_from(start).unwrap();
        assert_eq!((count, end), (2, 2 * BLOCK_BYTES));
        assert!(check.verify(&bytes[end..]).is_ok() && blocks.verify(0, &bytes).is_ok());
        for at in (0..bytes.len()).step_by(611) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(blocks.verify(0, &flipped).is_err(), "{at}");
            assert_eq!(check.verify(&flipped[end..]).is_err(), at >= end, "{at}");
        }
        assert!(blocks.verify(0, &[bytes.as_slice(), &[0]].concat()).is_err());
        assert!(blocks.verify(BLOCK_BYTES as u64, &bytes[..BLOCK_BYTES]).is_err());
    }

    #[test]
    fn the_note_beside_a_checkpoint_tells_it_from_others_and_nothing_when_it_is_damaged() {
        let checkpoint = Bytes::from_static(b"PAR1 .. PAR1");
        let note = checkpoint_note(9, &checkpoint);
        assert_eq!(is_noted(9, &note, &checkpoint), Some(true));
        assert_eq!(is_noted(9, &note, &Bytes::from_static(b"PAR1 ,. PAR1")), Some(false));
        let mut torn = note.clone();
        torn[40] ^= 1;
        assert_eq!(is_noted(9, &torn, &checkpoint), None);
        assert_eq!(is_noted(9, &note[..20], &checkpoint), None);
    }
}
