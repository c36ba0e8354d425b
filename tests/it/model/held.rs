//! Reads that last for days: each by a process of its own, which renews its lease, or has died.

use alluvium::{Basis, ErrorKind, HoldStatus, KeyFilter, Point, RawState, Result};
use alluvium_materializer::{BatchStream, whole_value};
use arrow::array::RecordBatch;
use futures::TryStreamExt;
use rand::Rng;

use super::checks;
use super::expiry::Folds;
use super::ledger::{Ledger, Row};
use super::plan::handle_settings;
use super::run::{World, open};
use crate::support::rows::{Seen, seen};
use crate::support::stores::DAY;

const MINUTE: i64 = 60_000_000;
/// The reads that are held at once, at most.
const MOST: usize = 2;
/// A dead reader is let go of after its lease and the margin of clocks.
const DEAD_AFTER: i64 = 71 * MINUTE;
/// Days that pass at once while a lease is renewed, at most.
const MOST_DAYS: i64 = 4;

/// What a reader holds, and what the model said then.
pub(crate) struct Held {
    state: RawState,
    basis: Basis,
    /// A scan that is read to its end when the read ends.
    scan: Option<Vec<BatchStream>>,
    ledger: Ledger,
    since: i64,
    is_dead: bool,
}

/// A process that begins a read, and a scan of all keys; or one that dies at once.
pub(crate) async fn begin(world: &mut World) {
    if world.held.len() >= MOST {
        return;
    }
    let settings = handle_settings(&mut world.rng, world.kind);
    let (home, clock, name) = (world.home.clone(), world.clock.clone(), world.name.clone());
    let hold = async move {
        let (_, state) = open(&home, &settings, &clock, &name).await;
        let basis = state.reader().hold().await.unwrap();
        let scan = all_rows(&state, &basis).await.unwrap();
        let status = basis.hold().unwrap().secure().await;
        assert!(matches!(status, HoldStatus::Leased { .. }), "{status:?}");
        (state, basis, scan)
    };
    let is_dead = world.rng.random_bool(0.3);
    let (state, basis, scan) = match is_dead {
        false => hold.await,
        true => run_and_die(hold).await,
    };
    assert_eq!(basis.commit(), world.newest);
    let (ledger, since) = (world.ledger.clone(), world.now());
    world.held.push(Held { state, basis, scan: Some(scan), ledger, since, is_dead });
}

/// Runs work whose tasks end with it, as those of a process that is killed.
async fn run_and_die<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let process = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let done = runtime.block_on(work);
        runtime.shutdown_background();
        done
    };
    tokio::task::spawn_blocking(process).await.unwrap()
}

async fn all_rows(state: &RawState, basis: &Basis) -> Result<Vec<BatchStream>> {
    let payload = whole_value(basis.definition());
    state.reader().scan(basis, Point::LATEST, KeyFilter::All, payload, 2).await
}

/// Lets days pass; the living renew their leases meanwhile.
pub(crate) async fn pass(world: &mut World, days: i64) {
    let begun = world.now();
    if world.held.iter().all(|held| held.is_dead) {
        return world.months.set(begun + days * DAY);
    }
    let end = begun + days.min(MOST_DAYS) * DAY;
    let mut now = begun + 15 * MINUTE;
    while now < end {
        world.months.set(now);
        for held in world.held.iter().filter(|held| !held.is_dead) {
            held.state.log().keep_leases().await.unwrap();
        }
        now += 40 * MINUTE;
    }
    world.months.set(end);
}

/// After a run of the job there are the leases of the living, and of those who died a moment ago.
pub(crate) async fn only_the_living_hold(world: &World, state: &RawState) {
    let held = world.held.iter();
    let expected = held.filter(|held| !held.is_dead || world.now() < held.since + DEAD_AFTER);
    let found = state.explain_retention().await.unwrap().leases;
    assert_eq!(found.len(), expected.count(), "{found:?}");
}

/// Reads at a basis that is held: what the model said then. A dead reader that wakes up is answered right, or refused.
pub(crate) async fn read(world: &mut World) {
    if world.held.is_empty() {
        return;
    }
    let index = world.rng.random_range(0..world.held.len());
    let mut held = world.held.swap_remove(index);
    if held.is_dead {
        return wake(world, held).await;
    }
    let status = held.basis.hold().unwrap().status();
    assert!(matches!(status, HoldStatus::Leased { .. }), "{status:?}");
    as_it_was(world, &mut held).await;
    match world.rng.random_bool(0.4) {
        true => finish(held).await,
        false => world.held.push(held),
    }
}

/// Ends all reads.
pub(crate) async fn end(world: &mut World) {
    while !world.held.is_empty() {
        read(world).await;
    }
}

/// Every kind of answer at its basis, by the model of then. Its own snapshot is promised to it, and the log as it was.
async fn as_it_was(world: &mut World, held: &mut Held) {
    let folds = Folds::of(held.basis.snapshot().log_commit());
    let newest = std::mem::replace(&mut world.newest, held.basis.commit());
    let folds = std::mem::replace(&mut world.folds, folds);
    let (saved, marks) = (std::mem::take(&mut world.saved), std::mem::take(&mut world.marks));
    std::mem::swap(&mut world.ledger, &mut held.ledger);
    let (state, basis) = (held.state.clone(), held.basis.clone());
    let point = world.pools.point(&mut world.rng, world.newest);
    for point in [Point::LATEST, point] {
        checks::as_of(world, &state, &basis, point).await;
    }
    std::mem::swap(&mut world.ledger, &mut held.ledger);
    (world.newest, world.folds, world.saved, world.marks) = (newest, folds, saved, marks);
}

/// Reads the scan to its end, and lets go.
async fn finish(mut held: Held) {
    let rows = rows_of(held.scan.take().unwrap()).await.unwrap();
    held.is_latest(&rows);
    held.let_go().await;
}

/// What a dead reader finds that wakes up.
async fn wake(world: &World, held: Held) {
    let read = async { rows_of(all_rows(&held.state, &held.basis).await?).await };
    match read.await {
        Ok(rows) => held.is_latest(&rows),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(world.now() >= held.since + DEAD_AFTER, "its lease is not over yet: {error}");
        }
    }
    held.let_go().await;
}

/// No read lasts any longer.
pub(crate) async fn let_go_of_all(world: &mut World) {
    for held in world.held.drain(..) {
        held.let_go().await;
    }
}

async fn rows_of(scan: Vec<BatchStream>) -> Result<Vec<Seen>> {
    let mut rows = Vec::new();
    for part in scan {
        let batches: Vec<RecordBatch> = part.try_collect().await?;
        rows.extend(batches.iter().flat_map(seen));
    }
    Ok(rows)
}

impl Held {
    async fn let_go(self) {
        let Self { state, basis, scan, .. } = self;
        drop((basis, scan));
        // What is held no more is given back in the background.
        state.log().close().await;
    }

    /// Compares all rows with the latest state of then.
    fn is_latest(&self, rows: &[Seen]) {
        let winners = self.ledger.fold(Point::LATEST).into_values();
        let live: Vec<&Row> = winners.filter(|row| row.value.is_some()).collect();
        assert_eq!(rows.len(), live.len(), "keys of a held scan");
        for (row, seen) in live.into_iter().zip(rows) {
            assert!(
                self.ledger.is_row(row, seen),
                "held: the model has {row:?}, the store {seen:?}"
            );
        }
    }
}
