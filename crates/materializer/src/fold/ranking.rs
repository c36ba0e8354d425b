//! How the rows of one key compete, and the ties among them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use alluvium_log::OrderBy;

/// The order by which rows of one key compete, and a count of conflicting ties.
///
/// A conflicting tie is one of two rows that are equal in version and event time and differ in operation or value: the
/// last rules decide (DELETE, then the later commit, then the later row), always in the same way, but whoever made the
/// rows may have meant another. Clones share the count.
#[derive(Debug, Clone)]
pub struct Ranking {
    order_by: OrderBy,
    conflicting_ties: Arc<AtomicU64>,
}

impl From<OrderBy> for Ranking {
    fn from(order_by: OrderBy) -> Self {
        Self { order_by, conflicting_ties: Arc::default() }
    }
}

impl Ranking {
    /// The order.
    pub fn order_by(&self) -> OrderBy {
        self.order_by
    }

    /// The conflicting ties that were decided so far, each time that two such rows met.
    pub fn conflicting_ties(&self) -> u64 {
        self.conflicting_ties.load(Ordering::Relaxed)
    }

    pub(crate) fn count_tie(&self) {
        self.conflicting_ties.fetch_add(1, Ordering::Relaxed);
    }
}
