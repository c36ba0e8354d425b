//! Schemas found from rows.

use super::super::{Json, format_fields, infer_fields, parse_json};

fn infer(rows: &[&str]) -> Result<(String, Vec<String>), String> {
    let rows: Vec<Json<'_>> = rows.iter().map(|row| parse_json(row).unwrap()).collect();
    let (fields, left_out) = infer_fields(&rows).map_err(|error| error.to_string())?;
    Ok((format_fields(&fields), left_out))
}

#[test]
fn every_kind_of_value_tells_its_type() {
    let (fields, left_out) = infer(&[
        r#"{"n":1,"x":1.5,"s":"2024-01-15T10:30:00Z","b":true,"tags":["a"],"o":{"p":1,"q":null}}"#,
        r#"{"n":-7,"x":2,"tags":[],"o":{"q":[{"r":0.5}]},"later":"x"}"#,
    ])
    .unwrap();
    assert_eq!(
        fields,
        "n BIGINT, x DOUBLE, s STRING, b BOOLEAN, tags ARRAY<STRING>, \
         o STRUCT<p: BIGINT, q: ARRAY<STRUCT<r: DOUBLE>>>, later STRING"
    );
    assert!(left_out.is_empty());
}

#[test]
fn a_field_that_is_only_null_or_empty_is_left_out_by_name() {
    let (fields, left_out) =
        infer(&[r#"{"a":null,"b":[],"c":{},"d":[null,[]],"e":{"f":null},"g":1}"#]).unwrap();
    assert_eq!(fields, "g BIGINT");
    assert_eq!(left_out, ["a", "b", "c", "d", "e"]);
}

#[test]
fn integers_and_decimals_make_double_as_long_as_it_is_exact() {
    assert_eq!(infer(&[r#"{"n":1}"#, r#"{"n":1.5}"#, r#"{"n":2}"#]).unwrap().0, "n DOUBLE");
    let exact = infer(&[r#"{"n":1.5}"#, r#"{"n":9007199254740992}"#]).unwrap();
    assert_eq!(exact.0, "n DOUBLE");
    for rows in [
        [r#"{"n":9007199254740993}"#, r#"{"n":1.5}"#],
        [r#"{"n":1.5}"#, r#"{"n":9007199254740993}"#],
    ] {
        let message = infer(&rows).unwrap_err();
        assert!(
            message.contains("row 1: n: ") && message.contains("declare a schema"),
            "{message}"
        );
    }
}

#[test]
fn numbers_that_no_inferred_type_keeps_ask_for_a_schema() {
    let big = infer(&[r#"{"n":9223372036854775808}"#]).unwrap_err();
    assert!(big.contains("DECIMAL(38,0) or STRING"), "{big}");
    assert!(infer(&[r#"{"n":1e400}"#]).unwrap_err().contains("declare a schema"));
    assert!(infer(&[r#"{"n":0.1234567890123456789}"#]).unwrap_err().contains("DECIMAL(p,s)"));
    assert!(infer(&[r#"{"n":0.30000000000000004}"#]).is_ok());
}

#[test]
fn contradicting_rows_name_field_and_both_types() {
    let message = infer(&[r#"{"n":1}"#, r#"{"n":"x"}"#]).unwrap_err();
    assert!(message.contains("row 1: n: the string \"x\" does not fit BIGINT"), "{message}");
    assert!(infer(&[r#"{"n":[1]}"#, r#"{"n":["x"]}"#]).unwrap_err().contains("n[0]: "));
    assert!(infer(&[r#"{"n":[]}"#, r#"{"n":1}"#]).unwrap_err().contains("ARRAY"));
    assert!(infer(&[r#"{"n":{"a":1}}"#, r#"{"n":1}"#]).unwrap_err().contains("STRUCT"));
    let message = infer(&[r#"{"colUtc":1}"#, r#"{"colUTC":2}"#]).unwrap_err();
    assert!(message.contains("colUTC") && message.contains("colUtc"), "{message}");
    assert!(infer(&["[1]"]).unwrap_err().contains("an object is needed"));
}
