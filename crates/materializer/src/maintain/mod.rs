//! Keeping a state small: compaction, and what goes with it. Every step is atomic, changes no answer that is promised, and may be
//! killed at any instant and run again.

mod archive;
mod check;
pub(crate) mod compact;
mod expire;
mod folding;
mod job;
mod plan;
mod retention;
mod stop;
mod tombstones;
mod vacuum;

pub use archive::{ArchiveReport, archive};
pub use check::{SnapshotCheck, check};
pub use compact::{COMPACTED_FILE_ROWS, CompactOptions, CompactReport, compact, compaction_debt};
pub use expire::{ExpireReport, expire};
pub use job::{
    ArchiveTotals, FailedSteps, Footprint, MaintainOptions, MaintainReport, MaintainStep,
    StepOutcome, StepReport, maintain,
};
pub use retention::{
    Kept, KeptBy, LeaseCost, Readable, RetentionReport, SavepointCost, explain_retention,
};
pub use stop::StopSignal;
pub use tombstones::{TombstonesReport, forget_tombstones, tombstones_to_forget};
