//! One JSON text as a tree in which nothing is lost: numbers stay the text they are.
//!
//! The grammar is serde_json's, the strictest there is (RFC 8259, no comments, no trailing text). On top
//! of it an object may not name a field twice, and values nest at most [`MAX_DEPTH`] deep.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use alluvium_log::{Error, Result};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::fault::excerpt;

/// How deep arrays and objects of one JSON text may nest.
pub const MAX_DEPTH: usize = 64;

/// A JSON value that borrows from its text.
#[derive(Debug, Clone, PartialEq)]
pub enum Json<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as it is written.
    Number(&'a str),
    /// A string, its escapes resolved.
    String(Cow<'a, str>),
    /// An array.
    Array(Vec<Json<'a>>),
    /// An object: its fields in the order given, each name once.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl Json<'_> {
    /// The value as a message names it, such as `the number 1.5`.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => format!("the boolean {value}"),
            Self::Number(text) => format!("the number {}", super::fault::excerpt_number(text)),
            Self::String(text) => format!("the string {}", excerpt(text)),
            Self::Array(_) => "an array".to_owned(),
            Self::Object(_) => "an object".to_owned(),
        }
    }
}

/// Parses one JSON text, which must hold one value and nothing after it.
///
/// # Errors
/// [`ErrorKind::InvalidInput`](alluvium_log::ErrorKind::InvalidInput) with the column, counted in bytes from 1.
pub fn parse_json(text: &str) -> Result<Json<'_>> {
    let raw: &RawValue = serde_json::from_str(text).map_err(not_json)?;
    tree(raw.get(), 0)
}

fn not_json(error: serde_json::Error) -> Error {
    // A line is parsed on its own, so serde_json's "line 1" would only mislead.
    let text = error.to_string().replace("at line 1 column", "at column");
    Error::invalid(format!("not valid JSON: {text}"))
}

fn tree(raw: &str, depth: usize) -> Result<Json<'_>> {
    match raw.as_bytes().first() {
        Some(b'n') => Ok(Json::Null),
        Some(b't') => Ok(Json::Bool(true)),
        Some(b'f') => Ok(Json::Bool(false)),
        Some(b'"') => string(raw).map(Json::String),
        Some(b'[' | b'{') if depth >= MAX_DEPTH => Err(Error::invalid(format!(
            "arrays and objects nest more than {MAX_DEPTH} deep, which is refused"
        ))),
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(raw).map_err(not_json)?;
            let items: Result<_> =
                items.into_iter().map(|item| tree(item.get(), depth + 1)).collect();
            items.map(Json::Array)
        }
        Some(b'{') => {
            let Entries(entries) = serde_json::from_str(raw).map_err(not_json)?;
            refuse_duplicates(&entries)?;
            let fields: Result<_> = entries
                .into_iter()
                .map(|(name, value)| Ok((name, tree(value.get(), depth + 1)?)))
                .collect();
            fields.map(Json::Object)
        }
        _ => Ok(Json::Number(raw)),
    }
}

fn string(raw: &str) -> Result<Cow<'_, str>> {
    match raw.get(1..raw.len().saturating_sub(1)) {
        Some(plain) if !plain.contains('\\') => Ok(Cow::Borrowed(plain)),
        _ => serde_json::from_str(raw).map(Cow::Owned).map_err(not_json),
    }
}

fn refuse_duplicates(entries: &[(Cow<'_, str>, &RawValue)]) -> Result<()> {
    /// Up to here comparing each with each is faster than hashing.
    const FEW: usize = 24;
    let duplicate = if entries.len() <= FEW {
        entries
            .iter()
            .enumerate()
            .find(|(at, (name, _))| entries[..*at].iter().any(|(other, _)| other == name))
            .map(|(_, (name, _))| name)
    } else {
        let mut seen = HashSet::with_capacity(entries.len());
        entries.iter().map(|(name, _)| name).find(|name| !seen.insert(*name))
    };
    match duplicate {
        Some(name) => Err(Error::invalid(format!(
            "an object has the field {} twice; keep one of them",
            excerpt(name)
        ))),
        None => Ok(()),
    }
}

/// The fields of an object, not yet looked into.
struct Entries<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// A field name that borrows when it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> std::result::Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> std::result::Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Entries<'de>, A::Error> {
                let mut entries = Vec::with_capacity(map.size_hint().unwrap_or(8));
                while let Some((Name(name), value)) = map.next_entry()? {
                    entries.push((name, value));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}
