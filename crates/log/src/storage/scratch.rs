//! Reads and writes of temporary files at a place, on the thread that asks.

use std::fs::File;
use std::io;

/// Writes all bytes at a place.
#[cfg(unix)]
pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// Elsewhere nothing is written.
#[cfg(not(unix))]
pub(crate) fn write_at(_: &File, _: &[u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Reads what a file has from a place on, as far as it is in memory; `None` where the disk would have to be waited for.
#[cfg(target_os = "linux")]
pub(crate) fn read_in_memory(file: &File, bytes: &mut [u8], offset: u64) -> Option<usize> {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    let mut parts = [io::IoSliceMut::new(bytes)];
    match preadv2(file, &mut parts, offset, ReadWriteFlags::NOWAIT) {
        Ok(count) => Some(count),
        // File systems in memory and on top of others don't know of waiting.
        Err(Errno::OPNOTSUPP) => std::os::unix::fs::FileExt::read_at(file, bytes, offset).ok(),
        Err(_) => None,
    }
}

/// Elsewhere there is no read that promises not to wait.
#[cfg(not(target_os = "linux"))]
pub(crate) fn read_in_memory(_: &File, _: &mut [u8], _: u64) -> Option<usize> {
    None
}
