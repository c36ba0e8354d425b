//! Time and the versions made from it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};

/// Where time comes from. Tests bring their own.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Microseconds since 1970 UTC.
    fn now_micros(&self) -> i64;

    /// Milliseconds since 1970 UTC.
    fn now_ms(&self) -> i64 {
        self.now_micros().div_euclid(1_000)
    }
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_micros(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
        }
    }
}

/// A clock that stands until it is moved: for tests and replays.
#[derive(Debug, Default)]
pub struct ManualClock {
    micros: AtomicI64,
}

impl ManualClock {
    /// A clock that shows the given microseconds since 1970 UTC.
    pub fn at(micros: i64) -> Self {
        Self { micros: AtomicI64::new(micros) }
    }

    /// Sets what the clock shows; it may go back.
    pub fn set(&self, micros: i64) {
        self.micros.store(micros, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_micros(&self) -> i64 {
        self.micros.load(Ordering::SeqCst)
    }
}

/// Bits of a version below the milliseconds.
pub const HLC_LOW_BITS: u32 = 20;
/// Bits that tell writers apart.
const WRITER_BITS: u32 = 8;

/// A hybrid logical clock: versions that follow the wall clock, never repeat and never go back, also when the wall clock does.
///
/// The layout of a version is in `docs/formats.md` §6. Two writers need no coordination; versions of two writers within one
/// millisecond are ordered by counter and then by chance.
#[derive(Debug)]
pub struct HybridClock {
    clock: Arc<dyn Clock>,
    /// The last version made, without the writer's bits.
    last: AtomicI64,
    /// The latest time of arrival given, in microseconds.
    last_arrival: AtomicI64,
    writer: i64,
}

/// A wall clock that goes back by more than this was wrong before: then what arrives is timed by it anew.
const MAX_STEP_BACK_MICROS: i64 = 3_600_000_000;

impl HybridClock {
    /// A clock for one writer, with random writer bits.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let writer = crate::random::random::<i64>() & ((1 << WRITER_BITS) - 1);
        Self { clock, last: AtomicI64::new(0), last_arrival: AtomicI64::new(i64::MIN), writer }
    }

    /// Makes `count` versions in a row; the first is returned and each next one is [`HybridClock::STEP`] greater.
    pub fn reserve(&self, count: usize) -> Result<i64> {
        let exhausted = || {
            Error::invalid(
                "versions of the hybrid clock are exhausted: the wall clock is beyond the year 2248",
            )
        };
        let span = i64::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(Self::STEP))
            .ok_or_else(exhausted)?;
        let wall =
            self.clock.now_ms().max(0).checked_mul(1 << HLC_LOW_BITS).ok_or_else(exhausted)?;
        loop {
            let last = self.last.load(Ordering::SeqCst);
            let first = wall.max(last);
            let next = first.checked_add(span).ok_or_else(exhausted)?;
            if self.last.compare_exchange(last, next, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Ok(first | self.writer);
            }
        }
    }

    /// The time at which something arrives, in microseconds since 1970: that of the wall clock, or, while that has stepped back
    /// a little, the latest one given, so that a later change of one writer never counts as a late one.
    pub fn arrival_micros(&self) -> i64 {
        let now = self.clock.now_micros();
        let given = self.last_arrival.fetch_max(now, Ordering::SeqCst);
        if given.saturating_sub(now) > MAX_STEP_BACK_MICROS {
            self.last_arrival.store(now, Ordering::SeqCst);
            return now;
        }
        now.max(given)
    }

    /// The distance between two versions that follow each other.
    pub const STEP: i64 = 1 << WRITER_BITS;

    /// The wall-clock time of a version made by such a clock, in milliseconds since 1970.
    pub fn milliseconds_of(version: i64) -> i64 {
        version >> HLC_LOW_BITS
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_arrives_later_is_not_timed_earlier_unless_the_clock_was_far_off() {
        let wall = Arc::new(ManualClock::at(10_000_000_000));
        let clock = HybridClock::new(wall.clone());
        assert_eq!(clock.arrival_micros(), 10_000_000_000);
        wall.set(9_000_000_000);
        assert_eq!(clock.arrival_micros(), 10_000_000_000);
        let (first, second) = (clock.reserve(1).unwrap(), clock.reserve(1).unwrap());
        assert!(first < second);
        wall.set(1_000_000_000);
        assert_eq!(clock.arrival_micros(), 1_000_000_000);
    }
}
