//! SQL through real stores in memory: recorded answers (`slt`), and what text can't record.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod equal;
mod fixture;
mod plans;
mod slt;
mod values;
