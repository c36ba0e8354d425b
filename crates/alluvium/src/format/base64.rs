//! Binary values in JSON and CSV: base64 of RFC 4648 §4, padded, one spelling for each value.

use super::number::Why;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the base64 text of the bytes.
pub(crate) fn encode(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            if at <= chunk.len() {
                out.push(ALPHABET[(word >> (18 - 6 * at) & 63) as usize]);
            } else {
                out.push(b'=');
            }
        }
    }
}

/// Appends the bytes of a base64 text.
pub(crate) fn decode(out: &mut Vec<u8>, text: &str) -> Result<(), Why> {
    const FORM: Why = "it is not base64 (A-Z a-z 0-9 + /, padded with =)";
    let bytes = text.as_bytes();
    if !bytes.len().is_multiple_of(4) {
        return Err(FORM);
    }
    let groups = bytes.len() / 4;
    for (at, group) in bytes.chunks_exact(4).enumerate() {
        let padding = group.iter().rev().take_while(|b| **b == b'=').count();
        if padding > 2 || (padding > 0 && at + 1 != groups) {
            return Err(FORM);
        }
        let mut word = 0_u32;
        for byte in &group[..4 - padding] {
            word = word << 6 | sextet(*byte).ok_or(FORM)?;
        }
        word <<= 6 * padding as u32;
        let [_, decoded @ ..] = word.to_be_bytes();
        let (kept, dropped) = decoded.split_at(3 - padding);
        if dropped.iter().any(|b| *b != 0) {
            return Err("it is base64 with stray bits before its padding");
        }
        out.extend_from_slice(kept);
    }
    Ok(())
}

fn sextet(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}
