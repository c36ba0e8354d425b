//! The base of an answer as of an earlier point: which one it is, and what comes instead of one that goes while it is read.
//!
//! As long as nothing was ever vacuumed, an answer begins with versions of the snapshot that the first vacuum may take at that very
//! moment; an erase takes them whenever it likes. Either says so in the snapshot's table before a file goes. So who finds a file gone
//! has the versions told anew and begins with what is left: the answer is the same from any base.

use alluvium_log::{Error, KeyFilter, Result};
use alluvium_materializer::{BaseBounds, BatchStream, SnapshotState};
use arrow::array::{Array, RecordBatch};
use futures::{StreamExt, TryStreamExt, stream};

use crate::basis::Basis;
use crate::point::Point;
use crate::reader::{Reader, key_column};
use crate::scan::Scan;

impl Reader {
    /// The newest snapshot that may be the base of an answer as of a point.
    pub(crate) async fn snapshot_for(&self, basis: &Basis, point: Point) -> Result<SnapshotState> {
        if point.is_latest() {
            return Ok(basis.snapshot.clone());
        }
        let bounds = BaseBounds {
            commit: point.commit,
            version: point.version,
            event_time: point.event_time,
            expired: basis.expired_commit(),
        };
        let within = self.inner.snapshot.within(&basis.snapshot, &bounds).await?;
        // Without a base the log answers alone, and has to have every row.
        if within.table().is_none() && bounds.expired > 0 {
            return Err(self.expired(basis, format!("the state at {point}")).await);
        }
        Ok(within)
    }

    /// What an answer begins with instead of a base of which a file is gone.
    ///
    /// # Errors
    /// The error that was met, where it tells of no such file, or the base would be the same one: then the file is lost. A refusal,
    /// where the point can't be answered any more.
    pub(crate) async fn other_base(
        &self,
        basis: &Basis,
        point: Point,
        gone: &SnapshotState,
        error: Error,
    ) -> Result<SnapshotState> {
        if point.is_latest() || !error.is_of_missing_file() {
            return Err(error);
        }
        self.inner.snapshot.refresh().await?;
        let other = self.snapshot_for(basis, point).await?;
        if other.version() == gone.version() {
            return Err(error);
        }
        tracing::debug!(state = self.name(), %error, gone = gone.version(), base = other.version(), "the base of an answer is gone; beginning anew");
        Ok(other)
    }
}

/// A part of a scan that goes on from another base when its own goes away.
pub(crate) struct Part {
    pub(crate) reader: Reader,
    pub(crate) basis: Basis,
    pub(crate) scan: Scan,
    pub(crate) base: SnapshotState,
    /// The keys of the part.
    pub(crate) range: KeyFilter,
    pub(crate) rows: BatchStream,
    /// The last key that was handed out.
    pub(crate) last: Option<String>,
}

impl Part {
    /// Its rows.
    pub(crate) fn into_stream(self) -> BatchStream {
        let batches = stream::try_unfold(self, |mut part| async move {
            Ok::<_, Error>(part.next_batch().await?.map(|batch| (batch, part)))
        });
        batches.boxed()
    }

    async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            match self.rows.try_next().await {
                Ok(Some(batch)) => {
                    let keys = key_column(&batch)?;
                    if let Some(last) = keys.len().checked_sub(1) {
                        self.last = Some(keys.value(last).to_owned());
                    }
                    return Ok(Some(batch));
                }
                Ok(None) => return Ok(None),
                Err(error) => self.begin_anew(error).await?,
            }
        }
    }

    /// Goes on after the last key, from what is there.
    async fn begin_anew(&mut self, error: Error) -> Result<()> {
        let Self { reader, basis, scan, base, range, .. } = self;
        let other = reader.other_base(basis, scan.point, base, error).await?;
        let left = match &self.last {
            None => range.clone(),
            // No key lies between one and the same with the least character behind it.
            Some(last) => {
                let after = KeyFilter::Range { from: Some(format!("{last}\0")), to: None };
                range.intersect(&after)
            }
        };
        let parts = reader.scan_from(basis, &other, scan, left, 1).await?;
        let rows = parts.into_iter().map(|(_, rows)| rows);
        self.rows = stream::iter(rows.collect::<Vec<_>>()).flatten().boxed();
        self.base = other;
        Ok(())
    }
}
