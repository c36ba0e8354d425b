//! JSON values into typed columns.

use arrow::array::{Array, AsArray};

use super::super::{Json, build_array, parse_fields, parse_json, write_value};

fn build(data_type: &str, json: &str) -> Result<String, String> {
    let fields = parse_fields(&format!("v {data_type}")).unwrap();
    let value = parse_json(json).map_err(|error| error.to_string())?;
    let array = build_array(&fields[0], &[value]).map_err(|error| error.to_string())?;
    assert_eq!(array.data_type(), fields[0].data_type());
    let mut out = Vec::new();
    write_value(&mut out, array.as_ref(), 0).unwrap();
    Ok(String::from_utf8(out).unwrap())
}

fn refused(data_type: &str, json: &str) -> String {
    match build(data_type, json) {
        Ok(value) => panic!("{json} into {data_type} gave {value}"),
        Err(message) => message,
    }
}

#[test]
fn a_tree_keeps_the_text_of_numbers() {
    let text =
        r#"{"a":1.50,"b":[9007199254740993,-0,1E+400],"c":"x\u00e9\n","d":{"e":null,"f":true}}"#;
    let Json::Object(entries) = parse_json(text).unwrap() else { panic!() };
    assert_eq!(entries[0].1, Json::Number("1.50"));
    let numbers = [Json::Number("9007199254740993"), Json::Number("-0"), Json::Number("1E+400")];
    assert_eq!(entries[1].1, Json::Array(numbers.to_vec()));
    assert_eq!(entries[2].1, Json::String("xé\n".into()));
}

#[test]
fn duplicate_names_trailing_text_and_deep_nesting_are_refused() {
    let message = |text: &str| parse_json(text).unwrap_err().to_string();
    assert!(message(r#"{"a":1,"a":2}"#).contains("\"a\" twice"));
    assert!(message(r#"{"a":1,"\u0061":2}"#).contains("twice"));
    assert!(message(r#"{"x":{"a":1,"b":2,"a":3}}"#).contains("twice"));
    let many: Vec<String> = (0..100).map(|n| format!("\"k{}\":1", n % 99)).collect();
    assert!(message(&format!("{{{}}}", many.join(","))).contains("\"k0\" twice"));
    assert!(message("{} x").contains("trailing") && message("1 2").contains("column 3"));
    assert!(parse_json(&format!("{}{}", "[".repeat(64), "]".repeat(64))).is_ok());
    assert!(message(&format!("{}{}", "[".repeat(65), "]".repeat(65))).contains("64 deep"));
    let far = 2_000_000;
    assert!(message(&format!("{}{}", "[".repeat(far), "]".repeat(far))).contains("64 deep"));
    for text in [
        "",
        " ",
        "{",
        "nul",
        "01",
        "1.",
        ".5",
        "+1",
        "NaN",
        "'a'",
        "{a:1}",
        "[1,]",
        "\"\\ud800\"",
        "\"\u{1}\"",
    ] {
        assert!(parse_json(text).is_err(), "{text}");
    }
}

#[test]
fn integers_fit_exactly_or_are_refused() {
    assert_eq!(build("BIGINT", "9007199254740993").unwrap(), "9007199254740993");
    assert_eq!(build("BIGINT", "-9223372036854775808").unwrap(), "-9223372036854775808");
    assert!(
        refused("BIGINT", "9223372036854775808")
            .contains("the number 9223372036854775808 does not fit BIGINT")
    );
    assert!(refused("INT", "2147483648").contains("range"));
    assert_eq!(build("TINYINT", "-128").unwrap(), "-128");
    assert!(refused("TINYINT", "128").contains("range"));
    assert!(refused("SMALLINT", "-32769").contains("range"));
    let message = refused("BIGINT", "1.5");
    assert!(
        message.contains("row 0: v: the number 1.5 does not fit BIGINT")
            && message.contains("not rounded"),
        "{message}"
    );
    assert!(refused("BIGINT", "1e3").contains("exponent"));
    assert!(refused("BIGINT", "\"7\"").contains("the string \"7\""));
    assert!(refused("BIGINT", "true").contains("the boolean true"));
    assert!(refused("BIGINT", "[1]").contains("an array"));
    assert!(refused("BIGINT", "{}").contains("an object"));
}

#[test]
fn floats_take_what_they_hold_and_the_three_names() {
    assert_eq!(build("DOUBLE", "0.1").unwrap(), "0.1");
    assert_eq!(build("DOUBLE", "-0.0").unwrap(), "-0.0");
    assert_eq!(build("DOUBLE", "7").unwrap(), "7.0");
    assert_eq!(build("DOUBLE", "\"NaN\"").unwrap(), "\"NaN\"");
    assert_eq!(build("FLOAT", "\"-Infinity\"").unwrap(), "\"-Infinity\"");
    assert_eq!(build("FLOAT", "0.1").unwrap(), "0.1");
    assert_eq!(build("DOUBLE", "1.7976931348623157e308").unwrap(), "1.7976931348623157e308");
    assert!(refused("DOUBLE", "9007199254740993").contains("exactly"));
    assert!(refused("DOUBLE", "1e400").contains("beyond the range"));
    assert!(refused("DOUBLE", "\"nan\"").contains("the string \"nan\""));
    assert!(refused("DOUBLE", "\"0.1\"").contains("JSON number"));
    assert!(refused("FLOAT", "16777217").contains("exactly"));
}

#[test]
fn decimals_come_from_numbers_and_strings_alike() {
    assert_eq!(build("DECIMAL(38,18)", "3.9178294781e-6").unwrap(), "\"0.000003917829478100\"");
    assert_eq!(
        build("DECIMAL(38,18)", "\"0.0000039178294781\"").unwrap(),
        "\"0.000003917829478100\""
    );
    assert_eq!(build("DECIMAL(1,0)", "1").unwrap(), "\"1\"");
    assert_eq!(build("DECIMAL(38,0)", &"9".repeat(38)).unwrap(), format!("\"{}\"", "9".repeat(38)));
    assert!(refused("DECIMAL(5,2)", "1.234").contains("DECIMAL(5,2)"));
    assert!(refused("DECIMAL(5,2)", "1234").contains("more digits"));
    assert!(refused("DECIMAL(5,2)", "\"x\"").contains("not a decimal"));
}

#[test]
fn strings_binaries_days_and_times_come_from_strings() {
    assert_eq!(build("STRING", "\"q\\\"\\u0000\"").unwrap(), "\"q\\\"\\u0000\"");
    assert!(refused("STRING", "5").contains("JSON string"));
    assert_eq!(build("BINARY", "\"Zm8=\"").unwrap(), "\"Zm8=\"");
    assert!(refused("BINARY", "\"fo\"").contains("base64"));
    assert_eq!(build("DATE", "\"2024-02-29\"").unwrap(), "\"2024-02-29\"");
    assert_eq!(
        build("TIMESTAMP", "\"2024-01-15T12:30:00+02:00\"").unwrap(),
        "\"2024-01-15T10:30:00Z\""
    );
    assert_eq!(
        build("TIMESTAMP_NTZ", "\"2024-01-15T12:30:00.5\"").unwrap(),
        "\"2024-01-15T12:30:00.500\""
    );
    assert!(refused("TIMESTAMP", "\"2024-01-15T12:30:00\"").contains("no offset"));
    assert!(refused("TIMESTAMP_NTZ", "\"2024-01-15T12:30:00Z\"").contains("no offset"));
    assert!(refused("TIMESTAMP", "1705314600").contains("RFC 3339"));
}

#[test]
fn maps_refuse_duplicate_and_null_keys_and_required_values() {
    assert_eq!(build("MAP<STRING, INT>", r#"{"a":1,"b":null}"#).unwrap(), r#"{"a":1,"b":null}"#);
    assert_eq!(build("MAP<STRING, INT>", r#"[["a",1]]"#).unwrap(), r#"{"a":1}"#);
    assert_eq!(
        build("MAP<INT, STRING>", r#"[[1,"x"],[2,null]]"#).unwrap(),
        r#"[[1,"x"],[2,null]]"#
    );
    assert!(refused("MAP<INT, STRING>", r#"{"1":"x"}"#).contains("[key, value] pairs"));
    assert!(refused("MAP<STRING, INT>", r#"[["a",1],["a",2]]"#).contains("twice"));
    assert!(
        refused("MAP<INT, INT>", "[[1,1],[2,2],[1,3]]")
            .contains("v[2]: the map has the key the number 1 twice")
    );
    assert!(refused("MAP<STRING, INT>", "[[null,1]]").contains("can't be null"));
    assert!(
        refused("MAP<STRING, STRING NOT NULL>", r#"{"a":null}"#).contains("v[0]: it is required")
    );
    assert!(refused("MAP<STRING, INT>", "[[1]]").contains("a key and a value"));
    assert_eq!(build("MAP<STRING, INT>", "{}").unwrap(), "{}");
}

#[test]
fn a_fault_names_its_path() {
    let schema =
        "STRUCT<a: STRUCT<b: BIGINT NOT NULL>, tags: ARRAY<STRING NOT NULL>, \"x.y\": INT>";
    assert!(refused(schema, r#"{"a":{"b":"7"}}"#).contains("v.a.b: the string"));
    assert!(refused(schema, r#"{"tags":["x","y",3]}"#).contains("v.tags[2]: the number 3"));
    assert!(refused(schema, r#"{"x.y":true}"#).contains("v.\"x.y\": the boolean"));
    assert!(refused(schema, r#"{"a":{}}"#).contains("v.a.b: it is required"));
    assert!(refused(schema, r#"{"a":{"b":null}}"#).contains("v.a.b: it is required"));
    assert!(refused(schema, r#"{"tags":["x",null]}"#).contains("v.tags[1]: it is required"));
    assert!(build(schema, r#"{"a":null}"#).is_ok());
    assert!(refused("BIGINT NOT NULL", "null").contains("v: it is required"));
}

#[test]
fn an_empty_array_is_not_null() {
    let fields = parse_fields("v ARRAY<STRING>").unwrap();
    let values = ["[]", "null", "[null]"].map(|text| parse_json(text).unwrap());
    let array = build_array(&fields[0], &values).unwrap();
    assert!(array.is_valid(0) && array.is_null(1) && array.is_valid(2));
    assert_eq!(array.as_list::<i32>().value(0).len(), 0);
}

#[test]
fn sql_results_of_other_types_are_written_too() {
    use arrow::array::*;
    use std::sync::Arc;
    let show = |array: ArrayRef| {
        let mut out = Vec::new();
        write_value(&mut out, array.as_ref(), array.len() - 1).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(show(Arc::new(UInt64Array::from(vec![u64::MAX]))), "18446744073709551615");
    assert_eq!(show(Arc::new(StringViewArray::from(vec!["a\"b"]))), "\"a\\\"b\"");
    assert_eq!(show(Arc::new(LargeStringArray::from(vec!["x"]))), "\"x\"");
    assert_eq!(show(Arc::new(BinaryViewArray::from(vec![b"fo".as_slice()]))), "\"Zm8=\"");
    let dictionary: DictionaryArray<arrow::datatypes::Int8Type> =
        vec!["a", "b", "a", "b"].into_iter().collect();
    assert_eq!(show(Arc::new(dictionary)), "\"b\"");
    assert_eq!(show(Arc::new(NullArray::new(1))), "null");
    assert_eq!(
        show(Arc::new(TimestampNanosecondArray::from(vec![1_500_000_001]).with_timezone("UTC"))),
        "\"1970-01-01T00:00:01.500000001Z\""
    );
    assert_eq!(
        show(Arc::new(TimestampMillisecondArray::from(vec![-1]))),
        "\"1969-12-31T23:59:59.999\""
    );
    assert_eq!(
        show(Arc::new(TimestampSecondArray::from(vec![i64::MAX]))).chars().next(),
        Some('"')
    );
    assert_eq!(show(Arc::new(Date32Array::from(vec![i32::MAX]))), "\"+5881580-07-11\"");
    assert!(write_value(&mut Vec::new(), &NullArray::new(1), 1).is_err());
    assert_eq!(show(Arc::new(Int64Array::from(vec![1, 2, 3]).slice(0, 2))), "2");
    assert_eq!(
        show(Arc::new(Float64Array::from(vec![f64::MIN_POSITIVE]))),
        "2.2250738585072014e-308"
    );
}
