//! Spans of time as people and Delta's properties write them.

use crate::error::{Error, Result};

pub(super) const HOUR_MS: i64 = 3_600_000;
pub(super) const DAY_MS: i64 = 24 * HOUR_MS;

/// Milliseconds of a unit by its name in Delta's intervals or its short name.
fn unit_ms(unit: &str) -> Option<i64> {
    Some(match unit {
        "ms" | "millisecond" | "milliseconds" => 1,
        "s" | "second" | "seconds" => 1_000,
        "m" | "minute" | "minutes" => 60_000,
        "h" | "hour" | "hours" => HOUR_MS,
        "d" | "day" | "days" => DAY_MS,
        "w" | "week" | "weeks" => 7 * DAY_MS,
        _ => return None,
    })
}

/// Reads Delta's form of a span: `interval 30 days`.
pub(super) fn parse_interval(text: &str) -> Option<i64> {
    let mut words = text.split_whitespace();
    let (first, number, unit) = (words.next()?, words.next()?, words.next()?);
    let number: i64 = number.parse().ok().filter(|number| *number >= 0)?;
    let is_interval = first.eq_ignore_ascii_case("interval") && words.next().is_none();
    is_interval.then(|| unit_ms(&unit.to_ascii_lowercase()))?.and_then(|ms| number.checked_mul(ms))
}

/// Reads a span: a number and a unit, `90s`, `15m`, `36h`, `30d` or `4w`.
pub fn parse_duration(text: &str) -> Result<i64> {
    let wrong = || {
        Error::invalid(format!(
            "{text:?} is not a span: write a number and a unit, like 90s, 15m, 36h, 30d or 4w"
        ))
    };
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits).ok_or_else(wrong)?;
    let number: i64 = number.parse().map_err(|_| wrong())?;
    let unit = unit_ms(unit.trim()).ok_or_else(wrong)?;
    number.checked_mul(unit).ok_or_else(wrong)
}

/// A span as [`parse_duration`] reads it, in the largest unit that divides it.
pub fn duration_text(ms: i64) -> String {
    let units = [("d", DAY_MS), ("h", HOUR_MS), ("m", 60_000), ("s", 1_000)];
    match units.into_iter().find(|(_, unit)| ms != 0 && ms % unit == 0) {
        Some((name, unit)) => format!("{}{name}", ms / unit),
        None if ms == 0 => "0s".to_owned(),
        None => format!("{ms}ms"),
    }
}
