//! What is written reads back equal.

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use std::sync::Arc;

use super::super::{
    Json, build_array, format_date, format_timestamp, format_timestamp_ntz, parse_fields,
    parse_json, time, write_row,
};
use super::{Random, bytes};

fn random_json(random: &mut Random, field: &Field, out: &mut String) {
    if field.is_nullable() && random.below(5) == 0 {
        return out.push_str("null");
    }
    match field.data_type() {
        DataType::Boolean => out.push_str(if random.below(2) == 0 { "true" } else { "false" }),
        DataType::Int8 => out.push_str(&(random.next() as i8).to_string()),
        DataType::Int16 => out.push_str(&(random.next() as i16).to_string()),
        DataType::Int32 => out.push_str(&(random.next() as i32).to_string()),
        DataType::Int64 => out.push_str(&(random.next() as i64).to_string()),
        DataType::Float32 => push_float(random, out, |bits| {
            let value = f32::from_bits(bits as u32);
            value.is_finite().then(|| format!("{value:?}"))
        }),
        DataType::Float64 => push_float(random, out, |bits| {
            let value = f64::from_bits(bits);
            value.is_finite().then(|| format!("{value:?}"))
        }),
        DataType::Decimal128(_, scale) => {
            let digits = random.next() as i64;
            out.push_str(&format!(
                "\"{digits}.{:0width$}\"",
                random.below(1_000),
                width = *scale as usize
            ));
        }
        DataType::Utf8 => {
            let letters = ["a", "\\\"", "\\u0000", "é", "🇯🇵", " ", "\\n", "/"];
            let text: String =
                (0..random.below(6)).map(|_| letters[random.below(letters.len())]).collect();
            out.push_str(&format!("\"{text}\""));
        }
        DataType::Binary => {
            out.push_str(["\"\"", "\"AA==\"", "\"/+8=\"", "\"Zm9v\""][random.below(4)])
        }
        DataType::Date32 => {
            out.push_str(&format!("\"{}\"", format_date(random.below(700_000) as i32 - 300_000)))
        }
        DataType::Timestamp(_, zone) => {
            let micros = time::MIN_MICROS
                + (random.next() % (time::MAX_MICROS - time::MIN_MICROS) as u64) as i64;
            let text = if zone.is_some() {
                format_timestamp(micros)
            } else {
                format_timestamp_ntz(micros)
            };
            out.push_str(&format!("\"{text}\""));
        }
        DataType::Struct(fields) => {
            out.push('{');
            for (at, field) in fields.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                out.push_str(&format!("{:?}:", field.name()));
                random_json(random, field, out);
            }
            out.push('}');
        }
        DataType::List(element) => {
            out.push('[');
            for at in 0..random.below(4) {
                out.push_str(if at > 0 { "," } else { "" });
                random_json(random, element, out);
            }
            out.push(']');
        }
        DataType::Map(entry, _) => {
            let DataType::Struct(pair) = entry.data_type() else { panic!() };
            let is_text = pair[0].data_type() == &DataType::Utf8;
            out.push(if is_text { '{' } else { '[' });
            for at in 0..random.below(4) {
                out.push_str(if at > 0 { "," } else { "" });
                out.push_str(&if is_text { format!("\"k{at}\":") } else { format!("[{at},") });
                random_json(random, &pair[1], out);
                out.push_str(if is_text { "" } else { "]" });
            }
            out.push(if is_text { '}' } else { ']' });
        }
        other => panic!("{other}"),
    }
}

fn push_float(random: &mut Random, out: &mut String, show: impl Fn(u64) -> Option<String>) {
    let named = ["\"NaN\"", "\"Infinity\"", "\"-Infinity\"", "-0.0"];
    match show(random.next()).filter(|_| random.below(4) > 0) {
        Some(text) => out.push_str(&text),
        None => out.push_str(named[random.below(4)]),
    }
}

const SCHEMA: &str = "a BIGINT, b INT NOT NULL, c SMALLINT, d TINYINT, e DOUBLE, f FLOAT, g DECIMAL(38,10), h STRING, \
    i BINARY, j DATE, k TIMESTAMP, l TIMESTAMP_NTZ, m BOOLEAN, n ARRAY<STRUCT<x: BIGINT NOT NULL, \"y.z\" ARRAY<STRING>>>, \
    o MAP<STRING, DOUBLE>, p MAP<INT, ARRAY<DATE>>, q STRUCT<r: STRUCT<s: STRING>>";

#[test]
fn random_values_of_every_type_read_back_equal() {
    let fields = parse_fields(SCHEMA).unwrap();
    let row = Field::new("row", DataType::Struct(fields.clone()), false);
    let mut random = Random::new(4);
    for _ in 0..40 {
        let texts: Vec<String> = (0..25)
            .map(|_| {
                let mut text = String::new();
                random_json(&mut random, &row, &mut text);
                text
            })
            .collect();
        let parse = |texts: &[String]| {
            let values: Vec<Json<'_>> =
                texts.iter().map(|text| parse_json(text).unwrap()).collect();
            build_array(&row, &values)
                .unwrap_or_else(|error| panic!("seed {}: {error}", random.seed))
        };
        let array = parse(&texts);
        let batch = RecordBatch::from(arrow::array::AsArray::as_struct(array.as_ref()));
        let written: Vec<String> = (0..array.len())
            .map(|row| {
                let mut out = Vec::new();
                write_row(&mut out, &batch, row).unwrap();
                String::from_utf8(out).unwrap()
            })
            .collect();
        // Equal rows have equal texts, bit for bit (NaN included), and equal arrays.
        let again = parse(&written);
        assert_eq!(&format!("{array:?}"), &format!("{again:?}"), "seed {}", random.seed);
        assert_eq!(array.to_data(), again.to_data(), "seed {}", random.seed);
    }
}

#[test]
fn the_lines_of_a_scan_feed_back_as_changes() {
    let fields = parse_fields("n BIGINT, x DOUBLE, when TIMESTAMP, d DECIMAL(38,19)").unwrap();
    let options = super::super::ReadOptions {
        schema: super::super::ReaderSchema::Fixed(fields.clone()),
        ..Default::default()
    };
    let line = r#"{"key":"k\u0000é","value":{"n":9007199254740993,"x":-0.0,"when":"9999-12-31T23:59:59.999999Z","d":"0.1234567890123456789"},"version":9223372036854775807,"event_time":"0001-01-01T00:00:00Z"}"#;
    let mut reader =
        super::super::ChangeReader::from_read("scan", bytes(line), options.clone()).unwrap();
    let chunk = reader.next_chunk().unwrap().unwrap();
    let order = ["state_key", "state_value", "version", "event_time"];
    let names = ["key", "value", "version", "event_time"];
    let columns = order.map(|name| chunk.changes.column_by_name(name).unwrap().clone());
    let schema: Vec<Field> = names
        .iter()
        .zip(&columns)
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), true))
        .collect();
    let scan = RecordBatch::try_new(Arc::new(Schema::new(schema)), columns.to_vec()).unwrap();
    let mut out = Vec::new();
    write_row(&mut out, &scan, 0).unwrap();
    assert_eq!(String::from_utf8(out.clone()).unwrap(), line);
    let again = super::read(out, options).unwrap();
    assert_eq!(again[0].changes, chunk.changes);
}
