//! The fold: rows in, the winner of each key out.
//!
//! Everything that answers about a state is this pure function over a set of rows. It knows nothing of
//! tables, files of the store or commits: it takes batches of the [`fold_schema`] and gives batches of it.
//!
//! In the order of the flow:
//!
//! * [`fold`] takes inputs of any size and number, and holds a budget of memory: it folds what is small or
//!   unsorted into sorted runs, spills runs that do not fit, and ends in one merge;
//! * [`fold_batches`] folds unsorted batches that are in memory;
//! * [`merge`] folds inputs that are sorted by key, streaming.
//!
//! Each is the same function of the rows: how they are split into inputs and batches, and in which order
//! they come, changes nothing but the boundaries of the batches that come out.
//!
//! [`fold_schema`]: alluvium_log::fold_schema

mod batch;
mod budget;
mod bytes;
mod copy;
mod cursor;
mod distinct;
mod keep;
mod memory;
mod merge;
mod merger;
mod output;
mod patch;
mod ranking;
mod settings;
mod spill;
mod tree;

#[cfg(test)]
mod tests;

use alluvium_log::Result;
use arrow::record_batch::RecordBatch;
use futures::stream::BoxStream;

pub use budget::{FoldInput, fold};
pub(crate) use bytes::batch_bytes;
pub(crate) use distinct::distinct;
pub(crate) use keep::{merge_all, sort_all};
pub use memory::fold_batches;
pub use merge::{SortedInput, merge, merge_partly};
pub use ranking::Ranking;
pub use settings::FoldSettings;

/// Batches of one schema, one after the other, until the end or the first error.
pub type BatchStream = BoxStream<'static, Result<RecordBatch>>;

/// How large a batch that comes out of a fold may become.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    rows: usize,
    bytes: usize,
}

impl Bounds {
    /// Far below the 2 GiB at which the offsets of a text column overflow, and enough for any usual row.
    const MAX_BYTES: usize = 64 << 20;

    fn of_rows(rows: usize) -> Self {
        Self { rows: rows.max(1), bytes: Self::MAX_BYTES }
    }
}
