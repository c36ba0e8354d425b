//! The names of this crate's metrics.

/// Commits made, by `table`.
pub const COMMITS: &str = "alluvium_commits_total";
/// Rows appended.
pub const ROWS_APPENDED: &str = "alluvium_rows_appended_total";
/// Bytes of Parquet written.
pub const BYTES_WRITTEN: &str = "alluvium_bytes_written_total";
/// Races for a commit number that were lost.
pub const COMMIT_CONFLICTS: &str = "alluvium_commit_conflicts_total";
/// Checkpoints written.
pub const CHECKPOINTS: &str = "alluvium_checkpoints_total";
/// Appends that shared one commit: appends per commit = appends / commits.
pub const APPENDS: &str = "alluvium_appends_total";
/// Commits whose files were removed because no kept version needs them.
pub const COMMITS_CLEANED_UP: &str = "alluvium_commits_cleaned_up_total";
/// Data files removed because no kept version has them.
pub const FILES_VACUUMED: &str = "alluvium_files_vacuumed_total";
/// Pages that a lookup of keys found decoded.
pub const PAGE_CACHE_HITS: &str = "alluvium_page_cache_hits_total";
/// Pages that a lookup of keys had to read and decode: hit rate = hits / (hits + misses).
pub const PAGE_CACHE_MISSES: &str = "alluvium_page_cache_misses_total";
/// Decoded pages that had to leave for others.
pub const PAGE_CACHE_EVICTIONS: &str = "alluvium_page_cache_evictions_total";
/// Bytes of decoded pages in memory.
pub const PAGE_CACHE_BYTES: &str = "alluvium_page_cache_bytes";
/// Lookups that found their row in a temporary file with the rows of pages that had to leave.
pub const PAGE_SPILL_HITS: &str = "alluvium_page_spill_hits_total";
/// Bytes of these files.
pub const PAGE_SPILL_BYTES: &str = "alluvium_page_spill_bytes";
/// Requests to object stores, also those that were sent again, by `method` and `outcome`. Sent again are `throttled`, `failed`,
/// `unreachable`, and, of what only reads, `timeout` and `broken`.
pub const STORE_REQUESTS: &str = "alluvium_store_requests_total";
/// Seconds from sending a request to an object store until its answer begins, by `method`.
pub const STORE_REQUEST_SECONDS: &str = "alluvium_store_request_seconds";
/// Leases that long reads wrote or renewed.
pub const LEASES_WRITTEN: &str = "alluvium_leases_written_total";
/// Leases that could not be written: the reads go on and hold nothing.
pub const LEASE_FAILURES: &str = "alluvium_lease_failures_total";
/// Versions whose lease came or was renewed too late, or of which a file was missing then: their reads may fail.
pub const LEASES_IN_DOUBT: &str = "alluvium_leases_in_doubt_total";
/// Holders whose leases timed out and were removed.
pub const LEASES_OVER: &str = "alluvium_leases_over_total";
/// Bytes of files copied to archives.
pub const BYTES_ARCHIVED: &str = "alluvium_bytes_archived_total";
