//! One value as the text of a cell.

use alluvium::format::write_value;
use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;

use super::Result;

/// The text of a value: a string as it is, anything else as in JSON, without the quotes around times and the like.
/// Null gives none.
pub(super) fn cell(column: &ArrayRef, row: usize, scratch: &mut Vec<u8>) -> Result<Option<String>> {
    if column.is_null(row) || *column.data_type() == DataType::Null {
        return Ok(None);
    }
    scratch.clear();
    write_value(scratch, column.as_ref(), row)?;
    if scratch.first() == Some(&b'"')
        && let Ok(text) = serde_json::from_slice::<String>(scratch)
    {
        return Ok(Some(text));
    }
    Ok(Some(String::from_utf8_lossy(scratch).into_owned()))
}

/// A text on one line of a terminal: control characters, which could move the cursor, are shown by their names.
pub(super) fn printable(text: &str) -> String {
    // Besides what `is_control` knows: the characters that turn the direction of writing.
    let is_odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_odd) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            '\r' => shown.push_str("\\r"),
            odd if is_odd(odd) => shown.extend(odd.escape_unicode()),
            plain => shown.push(plain),
        }
    }
    shown
}

/// Whether a column of this type is aligned at its right.
pub(super) fn is_number(data_type: &DataType) -> bool {
    data_type.is_numeric()
}
