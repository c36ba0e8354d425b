//! Keys of several columns as one text, in the order of the tuples (docs/formats.md §7).

/// The integer as a part of a composite key: 20 digits, so that texts order as the numbers do.
pub fn integer_key_part(value: i64) -> String {
    // Adding 2^63 is the same as flipping the sign bit.
    format!("{:020}", value.cast_unsigned() ^ (1 << 63))
}

/// The key of these parts. A single part is the key as it is; several are escaped and joined, so that the order
/// of the encoded keys is the order of the tuples and [`decode_key`] finds the parts again.
pub fn encode_key(parts: &[&str]) -> String {
    if let [single] = parts {
        return (*single).to_owned();
    }
    let mut key = String::with_capacity(parts.iter().map(|part| part.len() + 1).sum());
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            key.push('\0');
        }
        push_escaped(&mut key, part);
    }
    key
}

fn push_escaped(key: &mut String, part: &str) {
    let mut rest = part;
    while let Some(at) = rest.find(['\0', '\u{1}']) {
        let (plain, tail) = rest.split_at(at);
        key.push_str(plain);
        key.push_str(if tail.starts_with('\0') { "\u{1}\u{1}" } else { "\u{1}\u{2}" });
        rest = &tail[1..];
    }
    key.push_str(rest);
}

/// The parts of a key of several columns.
///
/// A key that [`encode_key`] did not write comes back as well as it can: an unknown escape stays as it is.
pub fn decode_key(key: &str) -> Vec<String> {
    key.split('\0').map(unescape).collect()
}

fn unescape(part: &str) -> String {
    let mut plain = String::with_capacity(part.len());
    let mut chars = part.chars().peekable();
    while let Some(c) = chars.next() {
        let original = match (c, chars.peek()) {
            ('\u{1}', Some('\u{1}')) => Some('\0'),
            ('\u{1}', Some('\u{2}')) => Some('\u{1}'),
            _ => None,
        };
        if original.is_some() {
            chars.next();
        }
        plain.push(original.unwrap_or(c));
    }
    plain
}
