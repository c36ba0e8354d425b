//! The bytes under the CSV parser: bounded, with lines counted, and kept long enough to see what the parser doesn't tell:
//! which of the empty cells of a record were quoted.

use std::collections::VecDeque;
use std::io::Read;

use super::input::Bytes;
use super::lines::MAX_LINE_BYTES;

/// The bytes of a file, read by the CSV parser a buffer at a time.
///
/// It keeps one record, such as one with a quote that never closes, from filling the memory; and it counts lines, which
/// the parser itself does not place well around `\r\n`.
pub(crate) struct CsvBytes {
    bytes: Bytes,
    left: usize,
    /// What was read and may still be looked at, and the place of its first byte in the file.
    kept: Vec<u8>,
    kept_from: u64,
    /// Where line ends stand that have not been counted yet, and whether each is a line feed.
    ends: VecDeque<(u64, bool)>,
    line: u64,
}

impl CsvBytes {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self {
            bytes,
            left: MAX_LINE_BYTES,
            kept: Vec::new(),
            kept_from: 0,
            ends: VecDeque::new(),
            line: 1,
        }
    }

    /// Makes room for a record that begins at this byte or later; what stands before it is forgotten.
    pub(crate) fn begin_record(&mut self, start: u64) {
        self.left = MAX_LINE_BYTES;
        let past = usize::try_from(start.saturating_sub(self.kept_from)).unwrap_or(usize::MAX);
        let past = past.min(self.kept.len());
        // Moving the rest for every record would cost more than the bytes that are kept too long.
        if past * 2 > self.kept.len() {
            self.kept.drain(..past);
            self.kept_from += past as u64;
        }
    }

    /// The line of the record that begins at this byte, or after the line ends that follow it.
    pub(crate) fn line_at(&mut self, start: u64) -> u64 {
        let mut start = start;
        while let Some((at, is_feed)) = self.ends.front().copied().filter(|(at, _)| *at <= start) {
            self.line += u64::from(is_feed);
            start = start.max(at + 1);
            self.ends.pop_front();
        }
        self.line
    }

    /// The places of the cells that are written `""`, in the record that begins at this byte.
    pub(crate) fn quoted_empty_cells(&self, start: u64, delimiter: u8) -> Vec<usize> {
        let skipped = usize::try_from(start.saturating_sub(self.kept_from)).unwrap_or(usize::MAX);
        let record = self.kept.get(skipped..).unwrap_or_default();
        let blank = record.iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        quoted_empty_cells(record.get(blank..).unwrap_or_default(), delimiter)
    }
}

impl Read for CsvBytes {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge));
        }
        let limit = buffer.len().min(self.left);
        let count = self.bytes.read(buffer.get_mut(..limit).unwrap_or_default())?;
        let read = buffer.get(..count).unwrap_or_default();
        let offset = self.kept_from + self.kept.len() as u64;
        for (at, byte) in (offset..).zip(read) {
            if matches!(byte, b'\n' | b'\r') {
                self.ends.push_back((at, *byte == b'\n'));
            }
        }
        self.kept.extend_from_slice(read);
        self.left -= count;
        Ok(count)
    }
}

/// Where the parser stands in a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    Plain,
    Quoted,
    /// After a quote inside of quotes: the end of them, or the first half of a doubled one.
    Quote,
}

/// Walks over the first record of a text by the rules of the parser.
fn quoted_empty_cells(record: &[u8], delimiter: u8) -> Vec<usize> {
    let (mut found, mut cell, mut place) = (Vec::new(), 0, Place::Start);
    // Whether the cell has been an opening and a closing quote, and nothing else.
    let mut is_empty = false;
    for &byte in record.iter().chain(b"\n") {
        let is_end = matches!(byte, b'\n' | b'\r');
        if place != Place::Quoted && (byte == delimiter || is_end) {
            if is_empty && place == Place::Quote {
                found.push(cell);
            }
            if is_end {
                break;
            }
            (cell, place, is_empty) = (cell + 1, Place::Start, false);
            continue;
        }
        (place, is_empty) = match (place, byte) {
            (Place::Start, b'"') => (Place::Quoted, true),
            (Place::Start | Place::Plain, _) => (Place::Plain, false),
            (Place::Quoted, b'"') => (Place::Quote, is_empty),
            (Place::Quoted, _) => (Place::Quoted, false),
            (Place::Quote, b'"') => (Place::Quoted, false),
            (Place::Quote, _) => (Place::Plain, false),
        };
    }
    found
}

/// A record written anew, for the file of rejects. Each cell comes with whether it is an empty text, and not null.
pub(crate) fn csv_text<'a>(
    cells: impl Iterator<Item = (&'a [u8], bool)>,
    delimiter: u8,
) -> Vec<u8> {
    let mut text = Vec::new();
    for (at, (cell, is_quoted)) in cells.enumerate() {
        if at > 0 {
            text.push(delimiter);
        }
        let is_special = |byte: &u8| *byte == delimiter || matches!(byte, b'"' | b'\n' | b'\r');
        if !is_quoted && !cell.iter().any(is_special) {
            text.extend_from_slice(cell);
            continue;
        }
        text.push(b'"');
        for byte in cell {
            if *byte == b'"' {
                text.push(b'"');
            }
            text.push(*byte);
        }
        text.push(b'"');
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::super::tests::Random;
    use super::*;

    #[test]
    fn cells_of_two_quotes_are_found_by_the_rules_of_the_parser() {
        let found = |text: &str| quoted_empty_cells(text.as_bytes(), b',');
        assert_eq!(found("\"\",,\"\"\n\"\""), [0, 2]);
        assert_eq!(found("a,\"\""), [1]);
        assert_eq!(found("\"\"\"\",\"a,\n\"\"\",x\"\",\"\"\r\n"), [3]);
        assert_eq!(found("\"\"x,\"\" ,"), [0_usize; 0]);
    }

    #[test]
    fn every_text_is_cut_into_cells_as_the_parser_cuts_it() {
        let mut random = Random::new(11);
        let seed = random.seed;
        for _ in 0..20_000 {
            let length = 1 + random.below(12);
            let text: String =
                (0..length).map(|_| ['"', ',', 'a', '\n', '\r', '"'][random.below(6)]).collect();
            let mut reader = csv::ReaderBuilder::new()
                .has_headers(false)
                .flexible(true)
                .from_reader(text.as_bytes());
            let Some(Ok(record)) = reader.records().next() else { continue };
            let start = text.len() - text.trim_start_matches(['\n', '\r']).len();
            for cell in quoted_empty_cells(&text.as_bytes()[start..], b',') {
                assert_eq!(record.get(cell), Some(""), "ALLUVIUM_SEED={seed}: {text:?}");
            }
            let bare = text[start..].split('\n').next().unwrap_or_default();
            let has_quotes = bare.contains('"') || bare.contains('\r');
            let cells = quoted_empty_cells(&text.as_bytes()[start..], b',').len();
            assert!(has_quotes || cells == 0, "ALLUVIUM_SEED={seed}: {text:?}");
        }
    }
}
