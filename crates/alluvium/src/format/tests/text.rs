//! Schemas, keys, times and numbers as text.

use arrow::datatypes::{DataType, TimeUnit};

use super::super::number::{self, decimal, double, float, significant_digits};
use super::super::{base64, time};
use super::super::{
    decode_key, encode_key, format_fields, format_timestamp, integer_key_part, parse_date,
    parse_fields, parse_timestamp, parse_timestamp_ntz,
};
use super::Random;

const EVERY_TYPE: &str = "login_count BIGINT, tags ARRAY<STRING>, m MAP<STRING, DOUBLE>, \
    a STRUCT<x: INT NOT NULL, y STRING>, d DECIMAL(38,18), \"odd name\" DOUBLE, t TIMESTAMP, n TIMESTAMP_NTZ, \
    b BINARY, day DATE, f FLOAT, s SMALLINT, y TINYINT, ok BOOLEAN NOT NULL, \
    deep ARRAY<MAP<INT, STRUCT<`q\"t`: ARRAY<BIGINT NOT NULL> NOT NULL>>>, \"日 本\" STRING, Mixed STRING";

#[test]
fn a_schema_of_every_type_is_written_so_that_it_reads_back_equal() {
    let fields = parse_fields(EVERY_TYPE).unwrap();
    assert_eq!(fields.len(), 17);
    assert_eq!(fields[0].data_type(), &DataType::Int64);
    assert_eq!(
        fields[6].data_type(),
        &DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
    );
    assert_eq!(fields[7].data_type(), &DataType::Timestamp(TimeUnit::Microsecond, None));
    assert!(!fields[13].is_nullable());
    assert_eq!(fields[16].name(), "Mixed");
    let DataType::Map(entry, false) = fields[2].data_type() else { panic!() };
    assert_eq!((entry.name().as_str(), entry.is_nullable()), ("key_value", false));
    assert_eq!(parse_fields(&format_fields(&fields)).unwrap(), fields);
}

#[test]
fn types_have_their_usual_synonyms_in_any_case() {
    let one = parse_fields("a long, b Int, c integer, d varchar, e text, f real, g byte, h SHORT, i int64, j list<bool>").unwrap();
    let other = parse_fields("a BIGINT, b INT, c INT, d STRING, e STRING, f FLOAT, g TINYINT, h SMALLINT, i BIGINT, j ARRAY<BOOLEAN>").unwrap();
    assert_eq!(one, other);
}

#[test]
fn a_schema_error_names_the_position_and_what_was_expected() {
    let message = |text: &str| parse_fields(text).unwrap_err().to_string();
    assert!(
        message("a BIGINT, b FOO").contains("at character 13: expected a type"),
        "{}",
        message("a BIGINT, b FOO")
    );
    assert!(message("a ARRAY<STRING").contains("expected NOT NULL or >, found the end"));
    assert!(message("a DECIMAL(39,2)").contains("a precision from 1 to 38"));
    assert!(message("a DECIMAL(5,6)").contains("a scale from 0 to the precision"));
    assert!(message("a BIGINT b INT").contains("a comma or the end"));
    assert!(message("").contains("a field name"));
    assert!(message("\"\" INT").contains("not empty"));
    assert!(message("\"a INT").contains("closed by \""));
    assert!(message("a MAP<ARRAY<INT>, INT>").contains("not nested"));
    assert!(message(&format!("a {}", "ARRAY<".repeat(100))).contains("at most 64 deep"));
}

#[test]
fn names_that_differ_only_by_case_are_refused_with_both() {
    let message = parse_fields("colUtc BIGINT, colUTC BIGINT").unwrap_err().to_string();
    assert!(message.contains("colUTC") && message.contains("colUtc"), "{message}");
    assert!(parse_fields("a INT, a INT").unwrap_err().to_string().contains("twice"));
    assert!(parse_fields("s STRUCT<a: INT, A: INT>").is_err());
}

#[test]
fn garbage_schemas_never_panic() {
    let mut random = Random::new(1);
    let parts = [
        "a", "\"", "`", "<", ">", ",", " ", "ARRAY", "MAP", "STRUCT", "DECIMAL", "(", ")", "9",
        "é", "NOT", "NULL", ":", "INT", "🇯🇵",
    ];
    for _ in 0..20_000 {
        let text: String =
            (0..random.below(14)).map(|_| parts[random.below(parts.len())]).collect();
        if let Ok(fields) = parse_fields(&text) {
            assert_eq!(
                parse_fields(&format_fields(&fields)).unwrap(),
                fields,
                "seed {} {text}",
                random.seed
            );
        }
    }
}

#[test]
fn encoded_keys_order_as_the_tuples_do_and_are_decoded_again() {
    let mut random = Random::new(2);
    let letters = ["", "a", "b", "\0", "\u{1}", "\u{2}", "é", "\u{10ffff}"];
    let mut tuples: Vec<Vec<String>> = (0..2_000)
        .map(|_| {
            (0..2 + random.below(2))
                .map(|_| {
                    (0..random.below(4)).map(|_| letters[random.below(letters.len())]).collect()
                })
                .collect()
        })
        .collect();
    let encode =
        |tuple: &[String]| encode_key(&tuple.iter().map(String::as_str).collect::<Vec<_>>());
    for tuple in &tuples {
        assert_eq!(&decode_key(&encode(tuple)), tuple, "seed {}", random.seed);
    }
    let mut encoded: Vec<String> = tuples.iter().map(|tuple| encode(tuple)).collect();
    tuples.sort();
    encoded.sort();
    assert_eq!(tuples.iter().map(|tuple| encode(tuple)).collect::<Vec<_>>(), encoded);
}

#[test]
fn a_key_of_one_column_is_its_text_and_integers_of_several_order_as_numbers() {
    assert_eq!(encode_key(&["a\0b\u{1}"]), "a\0b\u{1}");
    let numbers = [i64::MIN, -10, -9, -1, 0, 1, 9, 10, i64::MAX];
    let texts: Vec<String> = numbers.iter().map(|n| integer_key_part(*n)).collect();
    assert!(texts.is_sorted() && texts.iter().all(|text| text.len() == 20));
    assert_eq!(texts[4], "09223372036854775808");
}

#[test]
fn times_are_read_and_written_exactly_over_their_whole_range() {
    let cases = [
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000_000),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("1970-01-01T00:00:00Z", 0),
        ("1677-09-21T00:12:43Z", -9_223_372_037_000_000),
        ("2024-02-29T12:00:00.500Z", 1_709_208_000_500_000),
        ("1900-02-28T23:59:59Z", -2_203_891_201_000_000),
    ];
    for (text, micros) in cases {
        assert_eq!(parse_timestamp(text).unwrap(), micros, "{text}");
        assert_eq!(format_timestamp(micros), text);
    }
    assert_eq!(
        parse_timestamp("2024-01-15t12:30:00.123456000+02:00").unwrap(),
        parse_timestamp("2024-01-15 10:30:00.123456z").unwrap()
    );
    assert_eq!(
        parse_timestamp("1850-01-01T01:01:01-00:30").unwrap(),
        parse_timestamp("1850-01-01T01:31:01Z").unwrap()
    );
    assert_eq!(parse_date("0001-01-01").unwrap(), -719_162);
    assert_eq!(parse_timestamp_ntz("1970-01-01T00:00:01").unwrap(), 1_000_000);
    let mut random = Random::new(3);
    for _ in 0..20_000 {
        let span = (time::MAX_MICROS - time::MIN_MICROS) as u64;
        let micros = time::MIN_MICROS + (random.next() % span) as i64;
        assert_eq!(
            parse_timestamp(&format_timestamp(micros)).unwrap(),
            micros,
            "seed {}",
            random.seed
        );
    }
}

#[test]
fn times_that_have_no_exact_instant_are_refused_with_the_reason() {
    let cases = [
        ("2016-12-31T23:59:60Z", "leap seconds"),
        ("2016-12-31T23:59:60.5Z", "leap seconds"),
        ("2020-09-08T12:00:60Z", "leap seconds"),
        ("2024-01-15T10:30:00", "no offset"),
        ("2024-01-15T10:30:00.1234567Z", "finer than a microsecond"),
        ("2024-01-15T10:30:00.Z", "one to nine digits"),
        ("2024-01-15T10:30:00.1234567890Z", "one to nine digits"),
        ("1850-01-01T01:01:01+01:12:12", "offsets with seconds"),
        ("2024-01-15T10:30:00+0200", "offset"),
        ("2024-01-15T10:30:00+24:00", "within 23:59"),
        ("2024-02-30T10:30:00Z", "no such day"),
        ("2023-02-29T10:30:00Z", "no such day"),
        ("2024-01-15T24:00:00Z", "no such time"),
        ("0000-01-01T00:00:00Z", "years 0001 to 9999"),
        ("0001-01-01T00:00:00+00:01", "years 0001 to 9999"),
        ("9999-12-31T23:59:59-00:01", "years 0001 to 9999"),
        ("10000-01-01T00:00:00Z", "YYYY-MM-DD"),
        ("2024-01-15", "YYYY-MM-DDTHH:MM:SS"),
        ("yesterday", "YYYY-MM-DD"),
        ("", "YYYY-MM-DD"),
    ];
    for (text, why) in cases {
        let message = parse_timestamp(text).unwrap_err().to_string();
        assert!(message.contains(why), "{text}: {message}");
    }
    assert!(parse_timestamp_ntz("2024-01-15T10:30:00Z").is_err());
    assert!(parse_date("2024-1-5").is_err());
}

#[test]
fn decimals_are_exact_or_refused() {
    let nines = "9".repeat(38);
    assert_eq!(decimal(&nines, 38, 0), Ok(10_i128.pow(38) - 1));
    assert_eq!(decimal("1", 1, 0), Ok(1));
    assert_eq!(decimal("10", 1, 0).unwrap_err(), "it has more digits than the type");
    assert_eq!(decimal("0.0000039178294781", 38, 18), Ok(3_917_829_478_100));
    assert_eq!(decimal("3.9178294781e-6", 38, 18), Ok(3_917_829_478_100));
    assert_eq!(decimal("3.9e-6", 38, 18), Ok(3_900_000_000_000));
    assert_eq!(decimal("-12.340", 4, 2), Ok(-1234));
    assert!(decimal("12.345", 10, 2).is_err());
    assert_eq!(decimal("1e2", 3, 0), Ok(100));
    assert_eq!(decimal("100e-2", 1, 0), Ok(1));
    assert_eq!(decimal("0e999999999999999999999", 1, 0), Ok(0));
    assert!(decimal("1e999999999999999999999", 38, 0).is_err());
    assert!(decimal("1e-999999999999999999999", 38, 18).is_err());
    let long = format!("{}.{}", "9".repeat(20), "9".repeat(18));
    assert_eq!(decimal(&long, 38, 18), Ok(10_i128.pow(38) - 1));
    for text in ["", "-", ".", ".5", "5.", "1e", "e5", "1e+-5", "NaN", "1_000", "+1", " 1", "1,5"] {
        assert!(decimal(text, 38, 18).is_err(), "{text}");
    }
}

#[test]
fn doubles_take_integers_only_when_exact() {
    assert_eq!(double("9007199254740992"), Ok(9_007_199_254_740_992.0));
    assert!(double("9007199254740993").is_err());
    assert!(double("-9007199254740993").is_err());
    assert_eq!(double("1152921504606846976"), Ok(2_f64.powi(60)));
    assert!(double("100000000000000000000000").is_err());
    assert_eq!(double("0.1"), Ok(0.1));
    assert!(double("1e400").is_err() && double("-1e400").is_err() && double("1e-400").is_err());
    assert_eq!(double("0e-400"), Ok(0.0));
    assert!(double("-0").unwrap().is_sign_negative());
    assert_eq!(float("16777216"), Ok(16_777_216.0));
    assert!(float("16777217").is_err() && float("1e39").is_err());
    for text in ["inf", "nan", "+1", ".5", "1.", "", "0x10", "infinity", "1e", "01"] {
        assert!(double(text).is_err(), "{text}");
    }
    assert_eq!(significant_digits("-0.001200e5"), 2);
    assert_eq!(significant_digits("1000.5"), 5);
    assert_eq!(number::integer("-9223372036854775808", i64::MIN, i64::MAX), Ok(i64::MIN));
    assert!(
        number::integer("9223372036854775808", i64::MIN, i64::MAX).unwrap_err().contains("range")
    );
}

#[test]
fn base64_has_one_spelling_for_each_value() {
    for (plain, coded) in
        [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
    {
        let mut text = Vec::new();
        base64::encode(&mut text, plain.as_bytes());
        assert_eq!(text, coded.as_bytes());
        let mut back = Vec::new();
        base64::decode(&mut back, coded).unwrap();
        assert_eq!(back, plain.as_bytes());
    }
    for text in ["Zg", "Zg=", "Zh==", "Z===", "====", "Zg==Zg==", "Zm9_", "Zm 9", "é==="] {
        assert!(base64::decode(&mut Vec::new(), text).is_err(), "{text}");
    }
}
