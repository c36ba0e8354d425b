//! Reads that the page cache answers: no other thread is asked, and none ever waits for the disk.

use std::ops::Range;
use std::path::Path;

use bytes::Bytes;

/// More bytes than this at once are copied on a thread that may take its time.
const MAX_BYTES: u64 = 256 * 1024;

/// The bytes of some ranges of a file if all of them are in memory. `None` says nothing: read in the ordinary way.
#[cfg(target_os = "linux")]
pub(super) fn read_cached(path: &Path, ranges: &[Range<u64>]) -> Option<Vec<Bytes>> {
    if ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum::<u64>() > MAX_BYTES {
        return None;
    }
    let file = std::fs::File::open(path).ok()?;
    ranges.iter().map(|range| read_range(&file, range)).collect()
}

/// The bytes of a whole file if all of them are in memory. `None` says nothing.
#[cfg(target_os = "linux")]
pub(super) fn read_file_cached(path: &Path) -> Option<Bytes> {
    let file = std::fs::File::open(path).ok()?;
    let about = file.metadata().ok()?;
    if !about.is_file() || about.len() > MAX_BYTES {
        return None;
    }
    read_range(&file, &(0..about.len()))
}

#[cfg(target_os = "linux")]
fn read_range(file: &std::fs::File, range: &Range<u64>) -> Option<Bytes> {
    use rustix::io::{ReadWriteFlags, preadv2};
    let length = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let offset = range.start + filled as u64;
        let mut parts = [std::io::IoSliceMut::new(rest)];
        // The end of the file, or what would have to wait: the ordinary read tells.
        match preadv2(file, &mut parts, offset, ReadWriteFlags::NOWAIT) {
            Ok(0) | Err(_) => return None,
            Ok(count) => filled += count,
        }
    }
    Some(bytes.into())
}

/// Elsewhere there is no read that promises not to wait.
#[cfg(not(target_os = "linux"))]
pub(super) fn read_cached(_: &Path, _: &[Range<u64>]) -> Option<Vec<Bytes>> {
    None
}

/// Elsewhere there is no read that promises not to wait.
#[cfg(not(target_os = "linux"))]
pub(super) fn read_file_cached(_: &Path) -> Option<Bytes> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

    use super::*;

    #[test]
    fn what_was_written_just_now_is_read_and_what_lies_beyond_is_left_to_the_ordinary_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"0123456789").unwrap();
        // Some file systems refuse such reads; then nothing is known.
        if let Some(read) = read_cached(&path, &[2..5, 0..10, 4..4]) {
            assert_eq!(read, [&b"234"[..], &b"0123456789"[..], &b""[..]]);
        }
        if let Some(read) = read_file_cached(&path) {
            assert_eq!(read, &b"0123456789"[..]);
        }
        assert_eq!(read_file_cached(folder.path()), None);
        assert_eq!(read_cached(&path, &[8..12]), None);
        assert_eq!(read_cached(&path, &[0..MAX_BYTES + 1]), None);
        assert_eq!(read_cached(&folder.path().join("none"), &[0..1]), None);
    }
}
