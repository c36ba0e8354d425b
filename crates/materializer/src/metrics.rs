//! The names of this crate's metrics.

/// Materializations that changed the snapshot.
pub const MATERIALIZATIONS: &str = "alluvium_materializations_total";
/// Rows of the log that were folded into snapshots.
pub const ROWS_FOLDED: &str = "alluvium_rows_folded_total";
/// Rows written to snapshots: write amplification = rows written / rows folded.
pub const ROWS_WRITTEN: &str = "alluvium_snapshot_rows_written_total";
/// Bytes written to snapshots.
pub const BYTES_WRITTEN: &str = "alluvium_snapshot_bytes_written_total";
/// Materializations that found the snapshot moved by another one.
pub const RACES_LOST: &str = "alluvium_materializer_races_lost_total";
/// Rows of one key with the same version and event time and another content, among which the last rules decided.
pub const CONFLICTING_TIES: &str = "alluvium_conflicting_ties_total";
/// Bytes written by compactions of logs: what they cost for each byte appended.
pub const COMPACTED_BYTES: &str = "alluvium_compacted_bytes_total";
/// Rows that left logs by expiry.
pub const ROWS_EXPIRED: &str = "alluvium_rows_expired_total";
/// Rows that moved to archives.
pub const ROWS_ARCHIVED: &str = "alluvium_rows_archived_total";
/// Tombstones that snapshots were made without.
pub const TOMBSTONES_FORGOTTEN: &str = "alluvium_tombstones_forgotten_total";
/// Forks that were made.
pub const FORKS_MADE: &str = "alluvium_forks_made_total";
/// Forks that were dropped.
pub const FORKS_DROPPED: &str = "alluvium_forks_dropped_total";
/// Snapshots that were made anew because a file of theirs was damaged.
pub const SNAPSHOTS_MADE_ANEW: &str = "alluvium_snapshots_made_anew_total";
