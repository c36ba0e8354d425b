//! Numbers of bytes as people write them.

use crate::error::{Error, Result};

/// Units by their names, the largest last.
const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("kB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
];

/// Reads a number of bytes, with a unit or without: `512MiB`, `2 GB`, `1000000`.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let unit = text.strip_prefix(digits).unwrap_or_default().trim();
    let size =
        UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, size)| *size);
    let number = digits.parse::<u64>().ok();
    number.zip(size).and_then(|(number, size)| number.checked_mul(size)).ok_or_else(|| {
        Error::invalid(format!(
            "{text:?} is no number of bytes: write one such as 512MiB, 2GiB or 1000000000"
        ))
    })
}

/// A number of bytes as [`parse_bytes`] reads it, in the largest unit that divides it.
pub fn bytes_text(bytes: u64) -> String {
    let divides = |(_, size): &&(&str, u64)| bytes != 0 && bytes.is_multiple_of(*size);
    match UNITS.iter().rev().find(divides) {
        Some((name, size)) => format!("{}{name}", bytes / size),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn numbers_of_bytes_come_back() {
        for (text, bytes) in [("128MiB", 128 << 20), ("1GB", 1_000_000_000), ("1500B", 1_500)] {
            assert_eq!(parse_bytes(text).unwrap(), bytes);
            assert_eq!(bytes_text(bytes), text);
        }
        assert_eq!(bytes_text(parse_bytes("1024 kib").unwrap()), "1MiB");
        for wrong in ["", "MB", "1.5MB", "-1", "1 MBB", "99999999TiB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong:?}");
        }
    }
}
