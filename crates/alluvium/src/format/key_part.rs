//! The parts of a key: one rule for all formats of input, by which the same part is the same text (docs/formats.md §7).
//!
//! A key of one column is its text. A part of a key of several columns is typed, so that integers order as numbers: by the
//! JSON value, by the type of a Parquet or Arrow column, and in a CSV file, whose cells have no types, by how the
//! cell itself is written. It is each cell for itself and never the column, because a row must not get another
//! key with the rows that happen to be around it. Where that is not wanted, every part is its text.

use std::borrow::Cow;

use alluvium_log::integer_key_part;

use super::changes::ChangeMapping;

/// How the parts of a key are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartStyle {
    /// As their texts.
    Text,
    /// Integers in their ordered form, booleans as `0` and `1`.
    Typed,
}

impl ChangeMapping {
    /// How the parts of the mapped key are written.
    pub(crate) fn part_style(&self) -> PartStyle {
        if self.key.len() > 1 && !self.text_key_parts { PartStyle::Typed } else { PartStyle::Text }
    }
}

/// An integer as a part of a key.
pub(crate) fn integer(value: i64, style: PartStyle) -> String {
    match style {
        PartStyle::Text => value.to_string(),
        PartStyle::Typed => integer_key_part(value),
    }
}

/// A boolean as a part of a key.
pub(crate) fn boolean(value: bool, style: PartStyle) -> &'static str {
    match (style, value) {
        (PartStyle::Text, true) => "true",
        (PartStyle::Text, false) => "false",
        (PartStyle::Typed, true) => "1",
        (PartStyle::Typed, false) => "0",
    }
}

/// A cell of a file without types as a part of a key: what is written exactly as JSON writes a BIGINT or a boolean is
/// one, so `42` is and `007` is not.
pub(crate) fn cell(text: &str, style: PartStyle) -> Cow<'_, str> {
    if style == PartStyle::Text {
        return Cow::Borrowed(text);
    }
    match text {
        "true" => Cow::Borrowed(boolean(true, style)),
        "false" => Cow::Borrowed(boolean(false, style)),
        _ => match text.parse::<i64>() {
            Ok(value) if is_plain(text) => Cow::Owned(integer(value, style)),
            _ => Cow::Borrowed(text),
        },
    }
}

/// Whether an integer is written in the one way that needs no more digits: without a plus or leading zeros.
fn is_plain(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    text == "0" || (digits.starts_with(|first: char| ('1'..='9').contains(&first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_written_as_an_integer_is_one() {
        for (text, value) in [("0", 0), ("42", 42), ("-7", -7), ("-9223372036854775808", i64::MIN)]
        {
            assert_eq!(cell(text, PartStyle::Typed), integer_key_part(value), "{text}");
        }
        for text in ["007", "-0", "+7", "7.0", "1e3", "", "-", "9223372036854775808", " 7", "True"]
        {
            assert_eq!(cell(text, PartStyle::Typed), text);
        }
        assert_eq!([cell("true", PartStyle::Typed), cell("42", PartStyle::Text)], ["1", "42"]);
    }
}
