//! A clock that all processes of a race read alike, and that runs so much faster than time that days end during a race.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use alluvium::Clock;

/// The file that says when the race began, by the machine's clock.
const FILE: &str = "began";
/// A day is two minutes.
const SPEED: i64 = 720;
/// 2024-01-15T23:30:00Z in microseconds: so that a day ends in a race of seconds, too.
const FIRST_MICROS: i64 = 1_705_361_400_000_000;

/// Microseconds of the machine's clock.
pub(crate) fn machine_micros() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

/// The clock of a race.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RaceClock {
    began: i64,
}

impl RaceClock {
    /// Begins a race in a folder.
    pub(crate) fn begin(folder: &Path) -> Result<Self, String> {
        let began = machine_micros();
        std::fs::write(folder.join(FILE), began.to_string()).map_err(|error| error.to_string())?;
        Ok(Self { began })
    }

    /// That of the race that has begun in a folder.
    pub(crate) fn of(folder: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(folder.join(FILE)).map_err(|error| error.to_string())?;
        let began = text.parse().map_err(|error| format!("{FILE}: {error}: {text}"))?;
        Ok(Self { began })
    }
}

impl Clock for RaceClock {
    fn now_micros(&self) -> i64 {
        FIRST_MICROS + (machine_micros() - self.began) * SPEED
    }
}
