//! Records as text and as columns: schemas, JSON, CSV, Parquet and Arrow, in and out.
//!
//! Pure functions over Arrow, which know nothing of a store. What comes in is taken exactly or refused with its
//! place and a remedy; what goes out reads back equal.
//!
//! * a schema as text: [`parse_fields`], [`format_fields`]
//! * JSON in: [`parse_json`], [`infer_fields`], [`build_array`]; JSON out: [`write_row`], [`write_value`]
//! * times: [`parse_timestamp`], [`format_timestamp`]; keys of several columns: [`encode_key`]
//! * files of changes: [`ChangeReader`]

mod base64;
mod build;
mod canonical;
mod changes;
mod chunk;
mod columnar;
mod columnar_head;
mod csv_bytes;
mod csv_in;
mod ddl;
mod fault;
mod infer;
mod input;
mod json;
mod json_out;
mod jsonl;
mod key_part;
mod leaf;
mod lines;
mod number;
mod object;
mod required;
mod rows;
mod time;

#[cfg(test)]
mod tests;

pub use alluvium_log::{decode_key, encode_key, integer_key_part};
pub use build::{ColumnBuilder, build_array};
pub use changes::{ChangeMapping, ChangeReader, OnBad, ReadOptions, ReaderSchema, SAMPLE_ROWS};
pub use chunk::{ChangeChunk, Reject};
pub use ddl::{format_fields, format_type, list_type, map_type, parse_fields};
pub use fault::Fault;
pub use infer::{Inference, infer_fields};
pub use input::InputFormat;
pub use json::{Json, MAX_DEPTH, parse_json};
pub use json_out::{write_row, write_value};
pub use lines::MAX_LINE_BYTES;
pub use time::{
    format_date, format_timestamp, format_timestamp_ntz, parse_date, parse_timestamp,
    parse_timestamp_ntz,
};
