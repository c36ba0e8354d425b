//! Imports: files of changes or records into a state.
//!
//! ```text
//! files -> [ a thread: read, decode, tell deletes ] -> [ check rows ] -> rejects
//!                                                           |
//!                                                           +-> appends in flight, or one epoch
//! ```
//!
//! Reading and decoding of the next batch overlap encoding and committing of the ones before. What can't be
//! taken is never dropped: it stops the import, or it goes to the rejects with its place and the reason; and whatever
//! stops an import, the error says which rows are in, and how to go on.

mod check;
mod feed;
mod ledger;
mod options;
mod predicate;
mod rejects;
mod report;
mod run;
mod spool;
mod target;
#[cfg(test)]
mod tests;

pub use options::{ImportInput, ImportOptions, MAX_BATCH_ROWS};
pub use report::{ImportProgress, ImportReport};
pub use run::Import;
