//! What is wrong with one value, before the file and the line are known.
//!
//! A [`Fault`] is made where a value does not fit and gathers its path on the way out, so that the good
//! path of a million values pays nothing for it. The reader of a file turns it into an error or a reject.

use std::fmt;

use alluvium_log::Error;

/// A value that does not fit: where in the row it stands, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    path: String,
    reason: String,
}

impl Fault {
    /// A fault of the value at hand.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { path: String::new(), reason: reason.into() }
    }

    /// The same fault, seen from the object that holds the value as the field `name`.
    pub fn in_field(mut self, name: &str) -> Self {
        let mut path = quote_name(name);
        if !self.path.is_empty() && !self.path.starts_with('[') {
            path.push('.');
        }
        path.push_str(&self.path);
        self.path = path;
        self
    }

    /// The same fault, seen from the array that holds the value at `index`.
    pub fn at_index(mut self, index: usize) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("[{index}]{dot}{}", self.path);
        self
    }

    /// Where the value stands, such as `state_value.address.lines[2]`; empty when it is the whole row.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Why the value does not fit, and what to do about it.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.reason)
        } else {
            write!(f, "{}: {}", self.path, self.reason)
        }
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::invalid(fault.to_string())
    }
}

/// Whether a name can stand in a path or a schema without quotes.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_alphabetic() || first == '_')
        && chars.all(|c| c.is_alphanumeric() || c == '_')
}

/// A name as it stands in a path or a schema: in double quotes unless it is plain.
pub(crate) fn quote_name(name: &str) -> String {
    if is_plain_name(name) { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// A text for a message: quoted, escaped and cut when it is long.
pub(crate) fn excerpt(text: &str) -> String {
    const SHOWN_CHARS: usize = 60;
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// A number's text for a message: cut when it is long.
pub(crate) fn excerpt_number(text: &str) -> &str {
    const SHOWN_BYTES: usize = 60;
    text.get(..SHOWN_BYTES.min(text.len())).unwrap_or(text)
}
