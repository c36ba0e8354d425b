//! The fields of a state as text, such as `n BIGINT NOT NULL, tags ARRAY<STRING>`: read and written.
//!
//! Types are those that Delta stores, by their SQL names and usual synonyms, in any case. Names keep their
//! case; a name that is no plain word stands in double quotes or backticks (doubled inside). What
//! [`format_fields`] writes, [`parse_fields`] reads back equal.

use std::collections::HashMap;
use std::sync::Arc;

use alluvium_log::{Error, Result};
use arrow::datatypes::{DataType, Field, Fields, TimeUnit};

use super::fault::{is_plain_name, quote_name};

/// How deep types may nest.
const MAX_TYPE_DEPTH: usize = 64;
/// The name of the elements' field in a list, as Delta's Parquet files have it.
pub(crate) const ELEMENT: &str = "element";

/// A list type in the form that all parts of the product use.
pub fn list_type(element: DataType, nullable: bool) -> DataType {
    DataType::List(Arc::new(Field::new(ELEMENT, element, nullable)))
}

/// A map type in the form that all parts of the product use.
pub fn map_type(key: DataType, value: DataType, value_nullable: bool) -> DataType {
    let entry = Fields::from(vec![
        Field::new("key", key, false),
        Field::new("value", value, value_nullable),
    ]);
    DataType::Map(Arc::new(Field::new("key_value", DataType::Struct(entry), false)), false)
}

/// Reads a list of fields: `name TYPE [NOT NULL], ...`.
///
/// # Errors
/// [`ErrorKind::InvalidInput`](alluvium_log::ErrorKind::InvalidInput) naming the position (in characters, from 1) and what was
/// expected there; also for names that are equal or differ only by case.
pub fn parse_fields(text: &str) -> Result<Fields> {
    let mut parser = Parser { text, at: 0 };
    let fields = parser.fields(None, 0)?;
    parser.skip_space();
    match parser.peek() {
        None => Ok(fields),
        Some(_) => Err(parser.expected("a comma or the end of the schema")),
    }
}

/// Writes the fields so that [`parse_fields`] reads them back equal.
pub fn format_fields(fields: &Fields) -> String {
    join_fields(fields, " ")
}

/// Writes a type by its SQL name; a type that Delta does not store by its Arrow name.
pub fn format_type(data_type: &DataType) -> String {
    let plain = match data_type {
        DataType::Boolean => "BOOLEAN",
        DataType::Int8 => "TINYINT",
        DataType::Int16 => "SMALLINT",
        DataType::Int32 => "INT",
        DataType::Int64 => "BIGINT",
        DataType::Float32 => "FLOAT",
        DataType::Float64 => "DOUBLE",
        DataType::Utf8 => "STRING",
        DataType::Binary => "BINARY",
        DataType::Date32 => "DATE",
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => "TIMESTAMP",
        DataType::Timestamp(TimeUnit::Microsecond, None) => "TIMESTAMP_NTZ",
        DataType::Decimal128(precision, scale) => return format!("DECIMAL({precision},{scale})"),
        DataType::Struct(fields) => return format!("STRUCT<{}>", join_fields(fields, ": ")),
        DataType::List(element) => return format!("ARRAY<{}>", type_with_null(element)),
        DataType::Map(entry, _) => match entry.data_type() {
            DataType::Struct(pair) if pair.len() == 2 => {
                let key = format_type(pair[0].data_type());
                return format!("MAP<{key}, {}>", type_with_null(&pair[1]));
            }
            other => return format!("MAP<{other}>"),
        },
        other => return other.to_string(),
    };
    plain.to_owned()
}

fn join_fields(fields: &Fields, separator: &str) -> String {
    let texts: Vec<String> = fields
        .iter()
        .map(|field| format!("{}{separator}{}", quote_name(field.name()), type_with_null(field)))
        .collect();
    texts.join(", ")
}

fn type_with_null(field: &Field) -> String {
    let required = if field.is_nullable() { "" } else { " NOT NULL" };
    format!("{}{required}", format_type(field.data_type()))
}

/// Refuses names of one object that are equal or differ only by case: Delta tells them apart no more than SQL does.
pub(crate) fn refuse_same_names<'a>(
    names: impl Iterator<Item = &'a str>,
) -> Result<(), (String, String)> {
    let mut seen: HashMap<String, &str> = HashMap::new();
    for name in names {
        if let Some(other) = seen.insert(name.to_lowercase(), name) {
            return Err((other.to_owned(), name.to_owned()));
        }
    }
    Ok(())
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    /// Fields up to the closing character, or the end of the text.
    fn fields(&mut self, close: Option<char>, depth: usize) -> Result<Fields> {
        let mut fields: Vec<Field> = Vec::new();
        loop {
            let name = self.name()?;
            if close.is_some() {
                self.eat(':');
            }
            let data_type = self.data_type(depth)?;
            let nullable = !self.not_null()?;
            fields.push(Field::new(name, data_type, nullable));
            if !self.eat(',') {
                break;
            }
        }
        if let Some(close) = close {
            self.require(close, "a comma or >")?;
        }
        if let Err((one, other)) = refuse_same_names(fields.iter().map(|f| f.name().as_str())) {
            let how = if one == other { "is named twice" } else { "differs only by case" };
            return Err(Error::invalid(format!(
                "schema: the field {} {how} from {}: rename one of them",
                quote_name(&other),
                quote_name(&one)
            )));
        }
        Ok(fields.into())
    }

    fn name(&mut self) -> Result<String> {
        self.skip_space();
        match self.peek() {
            Some(quote @ ('"' | '`')) => self.quoted_name(quote),
            _ => {
                let word = self.word();
                if is_plain_name(word) {
                    return Ok(word.to_owned());
                }
                self.at -= word.len();
                Err(self.expected("a field name (in \"quotes\" unless it is a plain word)"))
            }
        }
    }

    fn quoted_name(&mut self, quote: char) -> Result<String> {
        let start = self.at;
        self.at += 1;
        let mut name = String::new();
        while let Some(c) = self.peek() {
            self.at += c.len_utf8();
            if c != quote {
                name.push(c);
            } else if self.peek() == Some(quote) {
                self.at += 1;
                name.push(quote);
            } else if name.is_empty() {
                self.at = start;
                return Err(self.expected("a field name that is not empty"));
            } else {
                return Ok(name);
            }
        }
        self.at = start;
        Err(self.expected(&format!("a name closed by {quote}")))
    }

    fn data_type(&mut self, depth: usize) -> Result<DataType> {
        if depth > MAX_TYPE_DEPTH {
            return Err(self.expected(&format!("types nested at most {MAX_TYPE_DEPTH} deep")));
        }
        self.skip_space();
        let start = self.at;
        let word = self.word().to_ascii_uppercase();
        let data_type = match word.as_str() {
            "BOOLEAN" | "BOOL" => DataType::Boolean,
            "TINYINT" | "BYTE" | "INT8" => DataType::Int8,
            "SMALLINT" | "SHORT" | "INT16" => DataType::Int16,
            "INT" | "INTEGER" | "INT32" => DataType::Int32,
            "BIGINT" | "LONG" | "INT64" => DataType::Int64,
            "FLOAT" | "REAL" | "FLOAT32" => DataType::Float32,
            "DOUBLE" | "FLOAT64" => DataType::Float64,
            "STRING" | "VARCHAR" | "TEXT" => DataType::Utf8,
            "BINARY" | "VARBINARY" | "BYTES" | "BLOB" => DataType::Binary,
            "DATE" => DataType::Date32,
            "TIMESTAMP" | "TIMESTAMPTZ" | "TIMESTAMP_LTZ" => alluvium_log::event_time_type(),
            "TIMESTAMP_NTZ" | "DATETIME" => DataType::Timestamp(TimeUnit::Microsecond, None),
            "DECIMAL" | "NUMERIC" | "DEC" => self.decimal()?,
            "STRUCT" => {
                self.require('<', "<")?;
                DataType::Struct(self.fields(Some('>'), depth + 1)?)
            }
            "ARRAY" | "LIST" => {
                self.require('<', "<")?;
                let element = self.data_type(depth + 1)?;
                let nullable = !self.not_null()?;
                self.require('>', "NOT NULL or >")?;
                list_type(element, nullable)
            }
            "MAP" => self.map(depth)?,
            _ => {
                self.at = start;
                return Err(self.expected(
                    "a type: BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, BINARY, \
                     DATE, TIMESTAMP, TIMESTAMP_NTZ, STRUCT<..>, ARRAY<..> or MAP<.., ..>",
                ));
            }
        };
        Ok(data_type)
    }

    fn map(&mut self, depth: usize) -> Result<DataType> {
        self.require('<', "<")?;
        self.skip_space();
        let start = self.at;
        let key = self.data_type(depth + 1)?;
        if key.is_nested() {
            self.at = start;
            return Err(self.expected("a key type that is not nested"));
        }
        self.not_null()?;
        self.require(',', "a comma")?;
        let value = self.data_type(depth + 1)?;
        let nullable = !self.not_null()?;
        self.require('>', "NOT NULL or >")?;
        Ok(map_type(key, value, nullable))
    }

    /// The precision and scale of a decimal; without them (10,0), as in SQL.
    fn decimal(&mut self) -> Result<DataType> {
        if !self.eat('(') {
            return Ok(DataType::Decimal128(10, 0));
        }
        const PRECISION: &str = "a precision from 1 to 38";
        let precision = self.small_number(PRECISION)?;
        if !(1..=38).contains(&precision) {
            return Err(self.expected(PRECISION));
        }
        let scale = if self.eat(',') { self.small_number("a scale")? } else { 0 };
        if scale > precision {
            return Err(self.expected("a scale from 0 to the precision"));
        }
        self.require(')', ")")?;
        let scale = i8::try_from(scale).map_err(|_| self.expected("a scale"))?;
        Ok(DataType::Decimal128(precision, scale))
    }

    fn small_number(&mut self, expected: &str) -> Result<u8> {
        self.skip_space();
        let start = self.at;
        let parsed = self.word().parse::<u8>();
        parsed.map_err(|_| {
            self.at = start;
            self.expected(expected)
        })
    }

    fn not_null(&mut self) -> Result<bool> {
        self.skip_space();
        let start = self.at;
        if self.word().eq_ignore_ascii_case("NOT") {
            self.skip_space();
            if self.word().eq_ignore_ascii_case("NULL") {
                return Ok(true);
            }
            return Err(self.expected("NULL after NOT"));
        }
        self.at = start;
        if self.word().eq_ignore_ascii_case("NULL") {
            return Ok(false);
        }
        self.at = start;
        Ok(false)
    }

    fn require(&mut self, wanted: char, expected: &str) -> Result<()> {
        if self.eat(wanted) { Ok(()) } else { Err(self.expected(expected)) }
    }

    fn eat(&mut self, wanted: char) -> bool {
        self.skip_space();
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn word(&mut self) -> &'a str {
        let rest = self.text.get(self.at..).unwrap_or("");
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn expected(&self, what: &str) -> Error {
        let rest = self.rest().trim_start();
        let position = self.text[..self.text.len() - rest.len()].chars().count() + 1;
        let found: String = rest.chars().take(20).collect();
        let found = if found.is_empty() { "the end".to_owned() } else { format!("{found:?}") };
        Error::invalid(format!("schema, at character {position}: expected {what}, found {found}"))
    }
}
