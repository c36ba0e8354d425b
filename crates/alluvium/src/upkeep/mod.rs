//! The periodic job over the states of a store: once, or again and again by one process among many.
//!
//! ```text
//! Lease (who does it) -> Maintainer::run (all states once) -> RunReport
//!          ^-------------- Maintainer::run_every ---------------'
//! ```

mod job;
mod lease;

pub use job::{FailedState, MaintainEvent, MaintainRun, Maintainer, MaintainerOptions, RunReport};
pub use lease::{Leadership, Lease};
