//! Reads that may become long hold what they read: a basis for as long as it is kept, a stream of rows for as long as it lives.
//!
//! Lookups of keys hold nothing: they are over before anything could be removed.

use alluvium_log::{Hold, Result};
use alluvium_materializer::SnapshotState;

use crate::basis::Basis;
use crate::reader::Reader;

impl Reader {
    /// Pins the newest basis like [`Reader::basis`], and holds it: nothing of it is removed while it or a clone of it is there, however long
    /// that is.
    ///
    /// Nothing is written for ten minutes; then a task of the runtime takes a lease, which is a small file of the state's folder, and
    /// renews it. On a store that can't be written to the reads go on, and are safe for `file_retention`: [`Hold::status`] tells. As of a
    /// point a read begins with an older snapshot, which is held for as long as its rows come.
    pub async fn hold(&self) -> Result<Basis> {
        let mut basis = self.basis().await?;
        let snapshot = (&basis.snapshot, basis.pinned_ms);
        basis.hold = Some(self.inner.snapshot.hold((&basis.log, basis.pinned_ms), &[snapshot]));
        Ok(basis)
    }

    /// Holds a basis, and the snapshot that was found just now to answer a question about it.
    pub(crate) fn hold_for(&self, basis: &Basis, snapshot: &SnapshotState) -> Hold {
        let found_ms = match snapshot.version() == basis.snapshot.version() {
            true => basis.pinned_ms,
            false => self.inner.log.clock().now_ms(),
        };
        self.inner.snapshot.hold((&basis.log, basis.pinned_ms), &[(snapshot, found_ms)])
    }
}
