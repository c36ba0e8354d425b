//! The ways in which files are damaged.

use std::path::Path;

/// One way to damage a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Harm {
    /// Flips one bit, at so many 1024ths of the file.
    Flip(usize),
    /// Flips one bit so many bytes before the end.
    FlipEnd(usize),
    /// Cuts it down to so many 1024ths.
    Cut(usize),
    CutLast,
    Delete,
    Zero,
}

pub(super) const HARMS: [Harm; 13] = [
    Harm::Flip(0),
    Harm::Flip(100),
    Harm::Flip(300),
    Harm::Flip(512),
    Harm::Flip(800),
    Harm::Flip(1_000),
    Harm::FlipEnd(6),
    Harm::FlipEnd(120),
    Harm::Cut(0),
    Harm::Cut(512),
    Harm::CutLast,
    Harm::Delete,
    Harm::Zero,
];

/// Damages a file of a store whose files others share.
pub(super) fn harm(path: &Path, harm: Harm) {
    let bytes = std::fs::read(path).unwrap();
    // Other stores share the file: this one gets its own.
    std::fs::remove_file(path).unwrap();
    if let Some(bytes) = harmed(bytes, harm) {
        std::fs::write(path, bytes).unwrap();
    }
}

/// What is left of a file; nothing when it is gone.
pub(super) fn harmed(mut bytes: Vec<u8>, harm: Harm) -> Option<Vec<u8>> {
    let length = bytes.len();
    match harm {
        Harm::Flip(at) => bytes[at * (length - 1) / 1_024] ^= 4,
        Harm::FlipEnd(at) => bytes[length.saturating_sub(at + 1)] ^= 4,
        Harm::Cut(to) => bytes.truncate(to * length / 1_024),
        Harm::CutLast => bytes.truncate(length - 1),
        Harm::Delete => return None,
        Harm::Zero => bytes.fill(0),
    }
    Some(bytes)
}
