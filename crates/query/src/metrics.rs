//! The names of this crate's metrics.

/// Bytes of the tail that is kept in memory, by `state`.
pub const TAIL_BYTES: &str = "alluvium_tail_bytes";
