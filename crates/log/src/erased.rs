//! Keys that were erased and may not come back: their markers, kept in the properties of the log's table.
//!
//! A marker is the keyed hash of a key, by a secret that is drawn at random when the first key of a state is erased. Secret and
//! markers are properties of the table, so that they are part of every state of it, change by a commit, and are known to whoever
//! decides on the commit after it: from the marker's commit on no row of the key can be committed.

use std::collections::BTreeSet;
use std::fmt;

use arrow::array::{Array, StringArray};

use crate::error::{Error, ErrorKind, Result};
use crate::rows::row_name;
use crate::table::{TableMetadata, TableState};

/// The application id under which the log's table records the newest commit that took part in an erase: markers were set, or
/// rows were taken out. The snapshot's table records under it how far its own files follow.
pub const ERASE_APP_ID: &str = "alluvium/erase";
/// The application id under which the log's table records that log, savepoints and snapshot are free of what was erased before:
/// what was kept in memory of earlier commits is to be dropped.
pub const ERASED_APP_ID: &str = "alluvium/erased";
/// Markers that a state may have: each takes 33 bytes of the properties of its table.
pub const MAX_ERASED_KEYS: usize = 100_000;

const SECRET: &str = "alluvium.erasedSecret";
const MARKERS: &str = "alluvium.erased";

/// The markers of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erased {
    secret: [u8; 32],
    markers: BTreeSet<u128>,
}

/// A key that was erased was to be appended; the cause of an error of the kind [`ErrorKind::InvalidInput`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyErased {
    /// The row, counted from 0 in what was appended at once, where that is known; and the key.
    pub row: String,
}

impl fmt::Display for KeyErased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: the key was erased and may not come back: leave its rows out, or allow it again by erase --forget; nothing was written",
            self.row
        )
    }
}

impl std::error::Error for KeyErased {}

impl KeyErased {
    pub(crate) fn error(row: String) -> Error {
        let cause = Self { row };
        Error::new(ErrorKind::InvalidInput, cause.to_string()).with_source(cause)
    }

    /// Whether this is why an append was refused.
    pub fn is_cause_of(error: &Error) -> bool {
        std::error::Error::source(error).is_some_and(|cause| cause.is::<Self>())
    }
}

impl Erased {
    /// No markers yet, under a secret of their own.
    pub(crate) fn under(secret: [u8; 32]) -> Self {
        Self { secret, markers: BTreeSet::new() }
    }

    /// The markers that a state of a log's table has; `None` where nothing was ever erased.
    ///
    /// # Errors
    /// Something was erased, and the properties that tell what are gone or damaged.
    pub fn of(state: &TableState) -> Result<Option<Self>> {
        let properties = &state.metadata.properties;
        let (Some(secret), Some(markers)) = (properties.get(SECRET), properties.get(MARKERS))
        else {
            return match state.transaction(ERASE_APP_ID) {
                None => Ok(None),
                Some(commit) => Err(Error::corrupt(format!(
                    "keys were erased up to commit {commit}, and the log's table lacks the properties {SECRET} and {MARKERS}, which tell \
                     what may not come back: set them to what they were in that commit"
                ))),
            };
        };
        let damaged = |name: &str| Error::corrupt(format!("the property {name} can't be read"));
        let number = |text: &str| u128::from_str_radix(text, 16).ok();
        let halves = secret.split_at_checked(32).filter(|(_, low)| low.len() == 32);
        let halves = halves.and_then(|(high, low)| number(high).zip(number(low)));
        let (high, low) = halves.ok_or_else(|| damaged(SECRET))?;
        let mut erased = Self::under([0; 32]);
        erased.secret[..16].copy_from_slice(&high.to_be_bytes());
        erased.secret[16..].copy_from_slice(&low.to_be_bytes());
        for text in markers.split(',').filter(|text| !text.is_empty()) {
            erased.markers.insert(number(text).ok_or_else(|| damaged(MARKERS))?);
        }
        Ok(Some(erased))
    }

    /// Puts the markers into the properties of a table.
    pub(crate) fn write_to(&self, metadata: &mut TableMetadata) {
        let secret: String = self.secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let markers: Vec<String> =
            self.markers.iter().map(|marker| format!("{marker:032x}")).collect();
        metadata.properties.insert(SECRET.to_owned(), secret);
        metadata.properties.insert(MARKERS.to_owned(), markers.join(","));
    }

    fn number(&self, key: &str) -> u128 {
        let hash = blake3::keyed_hash(&self.secret, key.as_bytes());
        let mut half = [0; 16];
        half.copy_from_slice(&hash.as_bytes()[..16]);
        u128::from_be_bytes(half)
    }

    /// The marker that a key has or would have, as text.
    pub fn marker(&self, key: &str) -> String {
        format!("{:032x}", self.number(key))
    }

    /// Whether a key was erased.
    pub fn contains(&self, key: &str) -> bool {
        !self.markers.is_empty() && self.markers.contains(&self.number(key))
    }

    /// How many keys were erased.
    pub fn len(&self) -> usize {
        self.markers.len()
    }

    /// Whether no key is marked any more.
    pub fn is_empty(&self) -> bool {
        self.markers.is_empty()
    }

    pub(crate) fn insert(&mut self, key: &str) -> Result<bool> {
        let is_new = self.markers.insert(self.number(key));
        if self.markers.len() > MAX_ERASED_KEYS {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                format!(
                    "a state has {MAX_ERASED_KEYS} markers of erased keys at most: lift some by erase --forget; nothing was erased"
                ),
            ));
        }
        Ok(is_new)
    }

    pub(crate) fn remove(&mut self, key: &str) -> bool {
        self.markers.remove(&self.number(key))
    }

    /// Refuses keys that were erased.
    pub(crate) fn check(&self, keys: &StringArray) -> Result<()> {
        if self.markers.is_empty() {
            return Ok(());
        }
        let mut last = None;
        for row in 0..keys.len() {
            let key = keys.value(row);
            // Rows of one key often stand together.
            if last == Some(key) {
                continue;
            }
            if self.contains(key) {
                return Err(KeyErased::error(row_name(keys, row)));
            }
            last = Some(key);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn markers_tell_the_keys_under_their_secret_only() {
        let (mut one, other) = (Erased::under([1; 32]), Erased::under([2; 32]));
        assert!(one.insert("u7").unwrap() && !one.insert("u7").unwrap());
        assert!(one.contains("u7") && !one.contains("u70") && !one.contains(""));
        assert_ne!(one.marker("u7"), other.marker("u7"));
        let keys = StringArray::from(vec!["u6", "u6", "u7"]);
        let error = one.check(&keys).unwrap_err();
        assert!(KeyErased::is_cause_of(&error.context("somewhere")));
        assert!(other.check(&keys).is_ok());
        assert!(one.remove("u7") && !one.remove("u7") && one.check(&keys).is_ok());
    }
}
