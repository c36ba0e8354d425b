//! Whatever the bytes are, the answer is rows, rejects or an error.

use super::super::{InputFormat, OnBad, ReadOptions, parse_json};
use super::{Random, by_key, fixed, read};

#[test]
fn garbage_lines_never_panic_and_never_vanish() {
    let mut random = Random::new(5);
    let parts = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"key\"",
        "\"value\"",
        "\"op\"",
        "\"n\"",
        "\"UPSERT\"",
        "\"DELETE\"",
        "\"a\"",
        "1",
        "-0",
        "1.5",
        "1e999",
        "9223372036854775808",
        "null",
        "true",
        "\"",
        "\\",
        "\\u",
        "\\ud800",
        "é",
        "\u{feff}",
        "\0",
        " ",
        "{\"key\":\"a\",\"value\":{\"n\":1}}",
        "{\"key\":\"a\",\"value\":",
    ];
    for round in 0..3_000 {
        let lines = 1 + random.below(6);
        let mut text = String::new();
        for _ in 0..lines {
            for _ in 0..random.below(10) {
                text.push_str(parts[random.below(parts.len())]);
            }
            text.push('\n');
        }
        let mut options = ReadOptions {
            on_bad: OnBad::Collect,
            format: Some(InputFormat::Jsonl),
            ..Default::default()
        };
        if round % 2 == 0 {
            options.schema = fixed("n BIGINT NOT NULL, a ARRAY<STRUCT<n: INT NOT NULL>>");
        }
        let given = text
            .trim_start_matches('\u{feff}')
            .lines()
            .filter(|line| !line.trim_ascii().is_empty())
            .count();
        let chunks = read(text.clone(), options)
            .unwrap_or_else(|error| panic!("seed {}: {error}", random.seed));
        let seen: usize = chunks.iter().map(|chunk| chunk.len() + chunk.rejects.len()).sum();
        assert_eq!(seen, given, "seed {}: {text:?}", random.seed);
    }
}

#[test]
fn garbage_bytes_never_panic_in_any_format() {
    let mut random = Random::new(6);
    let heads: [&[u8]; 8] = [
        b"",
        b"PAR1",
        b"ARROW1",
        &[0xff; 4],
        &[0x1f, 0x8b, 8, 0],
        &[0x28, 0xb5, 0x2f, 0xfd],
        b"id,n\n",
        b"{",
    ];
    for _ in 0..2_000 {
        let mut bytes = heads[random.below(heads.len())].to_vec();
        bytes.extend((0..random.below(60)).map(|_| random.next() as u8));
        for format in [None, Some(InputFormat::Csv), Some(InputFormat::Jsonl)] {
            let options = ReadOptions {
                format,
                mapping: by_key(&["id"]),
                on_bad: OnBad::Collect,
                ..Default::default()
            };
            let _ = read(bytes.clone(), options);
        }
    }
}

#[test]
fn what_the_parser_takes_is_what_serde_json_takes() {
    let mut random = Random::new(7);
    let parts = [
        "{", "}", "[", "]", ":", ",", "\"a\"", "\"b\"", "1", "-", "0", ".", "e", "+", "true",
        "nul", "null", " ", "\"\\n\"", "\"\\x\"",
    ];
    for _ in 0..50_000 {
        let text: String = (0..random.below(9)).map(|_| parts[random.below(parts.len())]).collect();
        let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
        let ours = parse_json(&text);
        let is_duplicate = matches!(&ours, Err(error) if error.message().contains("twice"));
        assert_eq!(ours.is_ok() || is_duplicate, theirs, "seed {}: {text}", random.seed);
    }
}
