//! One scalar value of each stored type, from a JSON scalar or a text cell.

use super::base64;
use super::fault::{excerpt, excerpt_number};
use super::number::{self, Why};
use super::time;

/// A scalar as it arrived.
pub(crate) enum Given<'a> {
    /// A JSON boolean.
    Bool(bool),
    /// A JSON number.
    Number(&'a str),
    /// A JSON string.
    Text(&'a str),
    /// A cell of a file whose cells have no types.
    Cell(&'a str),
}

impl Given<'_> {
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Bool(value) => format!("the boolean {value}"),
            Self::Number(text) => format!("the number {}", excerpt_number(text)),
            Self::Text(text) => format!("the string {}", excerpt(text)),
            Self::Cell(text) => format!("the text {}", excerpt(text)),
        }
    }
}

const NO_NUMBER: Why = "a JSON number is needed";
const NO_STRING: Why = "a JSON string is needed";

pub(crate) fn boolean(given: &Given<'_>) -> Result<bool, Why> {
    match given {
        Given::Bool(value) => Ok(*value),
        Given::Cell(text) if text.eq_ignore_ascii_case("true") => Ok(true),
        Given::Cell(text) if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err("true or false is needed"),
    }
}

pub(crate) fn integer(given: &Given<'_>, min: i64, max: i64) -> Result<i64, Why> {
    match given {
        Given::Number(text) | Given::Cell(text) => number::integer(text, min, max),
        _ => Err(NO_NUMBER),
    }
}

pub(crate) fn double(given: &Given<'_>) -> Result<f64, Why> {
    match given {
        Given::Number(text) => number::double(text),
        Given::Cell(text) => number::named_float(text).map_or_else(|| number::double(text), Ok),
        Given::Text(text) => number::named_float(text)
            .ok_or("a JSON number is needed, or one of \"NaN\", \"Infinity\", \"-Infinity\""),
        Given::Bool(_) => Err(NO_NUMBER),
    }
}

pub(crate) fn float(given: &Given<'_>) -> Result<f32, Why> {
    match given {
        Given::Number(text) => number::float(text),
        Given::Cell(text) if number::named_float(text).is_none() => number::float(text),
        Given::Cell(text) | Given::Text(text) => match *text {
            "NaN" => Ok(f32::NAN),
            "Infinity" => Ok(f32::INFINITY),
            "-Infinity" => Ok(f32::NEG_INFINITY),
            _ => Err("a JSON number is needed, or one of \"NaN\", \"Infinity\", \"-Infinity\""),
        },
        Given::Bool(_) => Err(NO_NUMBER),
    }
}

pub(crate) fn decimal(given: &Given<'_>, precision: u8, scale: i8) -> Result<i128, Why> {
    match given {
        Given::Number(text) | Given::Text(text) | Given::Cell(text) => {
            number::decimal(text, precision, scale)
        }
        Given::Bool(_) => Err("a JSON number or a string of digits is needed"),
    }
}

pub(crate) fn text<'a>(given: &'a Given<'a>) -> Result<&'a str, Why> {
    match given {
        Given::Text(text) | Given::Cell(text) => Ok(text),
        _ => Err(NO_STRING),
    }
}

pub(crate) fn binary(given: &Given<'_>, out: &mut Vec<u8>) -> Result<(), Why> {
    let start = out.len();
    let decoded = match given {
        Given::Text(text) | Given::Cell(text) => base64::decode(out, text),
        _ => Err("a JSON string of base64 is needed"),
    };
    if decoded.is_err() {
        out.truncate(start);
    }
    decoded
}

pub(crate) fn date(given: &Given<'_>) -> Result<i32, Why> {
    match given {
        Given::Text(text) | Given::Cell(text) => time::date(text),
        _ => Err("a JSON string YYYY-MM-DD is needed"),
    }
}

pub(crate) fn timestamp(given: &Given<'_>, has_zone: bool) -> Result<i64, Why> {
    match given {
        Given::Text(text) | Given::Cell(text) if has_zone => time::timestamp(text),
        Given::Text(text) | Given::Cell(text) => time::timestamp_ntz(text),
        _ if has_zone => {
            Err("a JSON string in RFC 3339 is needed, such as \"2024-01-15T10:30:00Z\"")
        }
        _ => Err("a JSON string is needed, such as \"2024-01-15T10:30:00\""),
    }
}
