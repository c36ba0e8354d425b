//! Just enough of Thrift's compact protocol to see whether a text is one, before a decoder that believes what it says reads it.
//!
//! A list's length, a text's length and the depth of nesting are checked against the bytes that are there: the decoder makes room
//! for so many before it looks.

use crate::error::{Error, Result};

/// Structs within structs at most; Parquet has a handful.
const DEPTH: usize = 24;

const BOOL_TRUE: u8 = 1;
const BOOL_FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// The rest of a text.
pub(super) struct Walker<'a> {
    rest: &'a [u8],
}

/// Whole numbers of a struct, with the numbers of the fields that lead to them: `[2]`, or `[7, 1]` within a struct.
pub(super) type Found<'a> = &'a mut dyn FnMut(&[i16], i64);

impl<'a> Walker<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { rest: text }
    }

    /// What is left.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Goes past a struct and shows its whole numbers.
    pub(super) fn pass_struct(&mut self, found: Found<'_>) -> Result<()> {
        self.fields(&mut Vec::new(), found)
    }

    fn fields(&mut self, path: &mut Vec<i16>, found: Found<'_>) -> Result<()> {
        if path.len() >= DEPTH {
            return Err(wrong("too deep"));
        }
        let mut field = 0_i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            let delta = i16::from(head >> 4);
            field = match delta {
                0 => i16::try_from(self.number()?).map_err(|_| wrong("a field's number"))?,
                delta => field.checked_add(delta).ok_or_else(|| wrong("a field's number"))?,
            };
            path.push(field);
            match head & 15 {
                BOOL_TRUE | BOOL_FALSE => {}
                kind => self.value(kind, path, found)?,
            }
            path.pop();
        }
    }

    fn value(&mut self, kind: u8, path: &mut Vec<i16>, found: Found<'_>) -> Result<()> {
        match kind {
            BOOL_TRUE | BOOL_FALSE | BYTE => self.byte().map(drop),
            I16 | I32 | I64 => {
                let number = self.number()?;
                found(path, number);
                Ok(())
            }
            DOUBLE => self.pass(8),
            UUID => self.pass(16),
            BINARY => {
                let length = self.length()?;
                self.pass(length)
            }
            LIST | SET => self.list(path, found),
            MAP => {
                let count = self.length()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                for _ in 0..count {
                    self.value(kinds >> 4, path, found)?;
                    self.value(kinds & 15, path, found)?;
                }
                Ok(())
            }
            STRUCT => self.fields(path, found),
            _ => Err(wrong("a type that there is not")),
        }
    }

    /// Each element takes a byte at least.
    fn list(&mut self, path: &mut Vec<i16>, found: Found<'_>) -> Result<()> {
        let head = self.byte()?;
        let count = match usize::from(head >> 4) {
            15 => self.length()?,
            count => count,
        };
        // An element's own lists and structs are one deeper.
        path.push(0);
        if path.len() >= DEPTH || count > self.rest.len() {
            return Err(wrong("a list that is longer than the text"));
        }
        for _ in 0..count {
            self.value(head & 15, path, found)?;
        }
        path.pop();
        Ok(())
    }

    fn byte(&mut self) -> Result<u8> {
        let (&first, rest) = self.rest.split_first().ok_or_else(|| wrong("its end"))?;
        self.rest = rest;
        Ok(first)
    }

    fn pass(&mut self, bytes: usize) -> Result<()> {
        self.rest = self.rest.get(bytes..).ok_or_else(|| wrong("its end"))?;
        Ok(())
    }

    fn unsigned(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte & 128 == 0 {
                return Ok(value);
            }
        }
        Err(wrong("a number of more than 64 bits"))
    }

    /// A length, which what is left must have room for.
    fn length(&mut self) -> Result<usize> {
        let length = usize::try_from(self.unsigned()?).unwrap_or(usize::MAX);
        match length <= self.rest.len() {
            true => Ok(length),
            false => Err(wrong("a length beyond its end")),
        }
    }

    fn number(&mut self) -> Result<i64> {
        let value = self.unsigned()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }
}

fn wrong(what: &str) -> Error {
    Error::corrupt(format!("the Parquet file can't be read: in its metadata there is {what}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    type Numbers = Vec<(Vec<i16>, i64)>;

    fn pass(text: &[u8]) -> Result<(Numbers, usize)> {
        let mut found = Vec::new();
        let mut walker = Walker::new(text);
        walker.pass_struct(&mut |path, number| found.push((path.to_vec(), number)))?;
        Ok((found, walker.rest().len()))
    }

    #[test]
    fn numbers_are_told_with_their_places_and_the_rest_stays() {
        // 1: i32 = -3, 2: binary "ab", 4: struct { 1: i64 = 150 }, 20: list<i32> of two; then two bytes more.
        let text = [
            0x15, 5, 0x18, 2, b'a', b'b', 0x2c, 0x16, 0xac, 0x02, 0, 0x09, 40, 0x25, 2, 4, 0, 9, 9,
        ];
        let (found, rest) = pass(&text).unwrap();
        let expected = [(vec![1], -3), (vec![4, 1], 150), (vec![20, 0], 1), (vec![20, 0], 2)];
        assert_eq!((found.as_slice(), rest), (&expected[..], 2));
    }

    #[test]
    fn what_claims_more_than_there_is_is_refused() {
        // Lists and maps of 2^31 elements, a text of 4 GiB, a number without end, nesting without end.
        let long = [0xff, 0xff, 0xff, 0xff, 0x07];
        let with = |head: &[u8]| [head, &long[..], &[0; 8]].concat();
        assert!(pass(&with(&[0x19, 0xfc])).is_err());
        assert!(pass(&with(&[0x1b])).is_err());
        assert!(pass(&with(&[0x18])).is_err());
        assert!(pass(&[&[0x16][..], &[0xff; 12]].concat()).is_err());
        assert!(pass(&[0x1c; 4_000]).is_err());
        assert!(pass(&[0x19; 4_000]).is_err());
        for cut in 0..18 {
            let text =
                [0x15, 5, 0x18, 2, b'a', b'b', 0x2c, 0x16, 0xac, 0x02, 0, 0x09, 40, 0x25, 2, 4, 0];
            let end = cut.min(text.len() - 1);
            assert!(pass(&text[..end]).is_err(), "{end}");
        }
    }
}
