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
/// Runs of the periodic job that came to their end.
pub const MAINTAIN_RUNS: &str = "alluvium_maintain_runs_total";
/// States that a run of the periodic job failed on, by `state`.
pub const MAINTAIN_FAILURES: &str = "alluvium_maintain_failures_total";
/// When the periodic job last did all that it was to do for a state, in seconds since 1970, by `state`: age = now - this.
pub const MAINTAIN_DONE_AT: &str = "alluvium_maintain_done_timestamp_seconds";
/// How long the last run of a step took, by `state` and `step`.
pub const MAINTAIN_STEP_SECONDS: &str = "alluvium_maintain_step_seconds";
/// 1 while this process is the one that does the job, else 0.
pub const MAINTAIN_LEADING: &str = "alluvium_maintain_leading";
/// Files of a table's newest version when the periodic job last ended, by `state` and `table`.
pub const TABLE_FILES: &str = "alluvium_table_files";
/// Their bytes, by `state` and `table`.
pub const TABLE_BYTES: &str = "alluvium_table_bytes";
