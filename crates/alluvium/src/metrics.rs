//! The names of this crate's metrics.

/// Reads of a typed state that the row cache answered, by `state`.
pub const ROW_CACHE_HITS: &str = "alluvium_row_cache_hits_total";
/// Reads of a typed state that went on to tail and snapshot, by `state`: hit rate = hits / (hits + misses).
pub const ROW_CACHE_MISSES: &str = "alluvium_row_cache_misses_total";
/// Rows that had to leave the row cache for others, by `state`.
pub const ROW_CACHE_EVICTIONS: &str = "alluvium_row_cache_evictions_total";
/// Bytes of keys and values in the row cache, about, by `state`.
pub const ROW_CACHE_BYTES: &str = "alluvium_row_cache_bytes";
/// Times that an epoch's changes outgrew their budget and were staged as files.
pub const EPOCH_SPILLS: &str = "alluvium_epoch_spills_total";
