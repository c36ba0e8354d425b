//! Keeping a state small: compaction, and what goes with it. Every step is atomic, changes no answer that is promised, and may be
//! killed at any instant and run again.

mod archive;
mod check;
pub(crate) mod compact;
mod expire;
mod folding;
mod job;
mod plan;
mod report;
mod retention;
mod step;
mod stop;
mod tombstones;
mod unreadable;
mod vacuum;

pub use archive::{ArchiveReport, archive};
pub use check::{SnapshotCheck, check};
pub use compact::{COMPACTED_FILE_ROWS, CompactOptions, CompactReport, compact, compaction_debt};
pub use expire::{ExpireReport, expire};
pub use job::{MaintainOptions, maintain};
pub use report::{
    ArchiveTotals, FailedSteps, Footprint, LeftOut, LeftOutReason, MaintainReport, ReportedError,
    StepOutcome, StepReport,
};
pub use retention::{
    Kept, KeptBy, LeaseCost, Readable, RetentionReport, SavepointCost, explain_retention,
};
pub use step::MaintainStep;
pub use stop::StopSignal;
pub use tombstones::{TombstonesReport, forget_tombstones, tombstones_to_forget};
pub use unreadable::UnreadableVersions;
