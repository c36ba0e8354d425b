//! Times and days from text and to text: RFC 3339, microseconds, the years 0001 to 9999.
//!
//! The rules are one for the whole product. A `TIMESTAMP` needs an offset (`Z` or `+HH:MM`): a time without one
//! is refused, never taken as UTC or as the machine's zone. A `TIMESTAMP_NTZ` must have none. Up to nine
//! digits of fraction are read, but those beyond the sixth must be zero. The second `:60` is refused: it has no
//! instant of its own, and to guess one would break the order of events. Years are those of the proleptic
//! Gregorian calendar.

use alluvium_log::{Error, Result};

use super::fault::excerpt;
use super::number::Why;

const MICROS_PER_SECOND: i64 = 1_000_000;
const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SECOND;
/// 0001-01-01T00:00:00Z.
pub(crate) const MIN_MICROS: i64 = -62_135_596_800 * MICROS_PER_SECOND;
/// 9999-12-31T23:59:59.999999Z.
pub(crate) const MAX_MICROS: i64 = 253_402_300_800 * MICROS_PER_SECOND - 1;

/// The microseconds since 1970 in UTC of an RFC 3339 time with an offset.
///
/// # Errors
/// [`ErrorKind::InvalidInput`](alluvium_log::ErrorKind::InvalidInput) for a time without an offset, outside the years
/// 0001 to 9999, on a leap second, or finer than a microsecond.
pub fn parse_timestamp(text: &str) -> Result<i64> {
    timestamp(text)
        .map_err(|why| Error::invalid(format!("{} is no TIMESTAMP: {why}", excerpt(text))))
}

/// The microseconds since 1970 of a time without an offset, such as `2024-01-15T10:30:00`.
///
/// # Errors
/// As [`parse_timestamp`], and for a time that has an offset.
pub fn parse_timestamp_ntz(text: &str) -> Result<i64> {
    timestamp_ntz(text)
        .map_err(|why| Error::invalid(format!("{} is no TIMESTAMP_NTZ: {why}", excerpt(text))))
}

/// The days since 1970 of a day written as `2024-01-15`.
///
/// # Errors
/// [`ErrorKind::InvalidInput`](alluvium_log::ErrorKind::InvalidInput) for anything else.
pub fn parse_date(text: &str) -> Result<i32> {
    date(text).map_err(|why| Error::invalid(format!("{} is no DATE: {why}", excerpt(text))))
}

pub(crate) fn timestamp(text: &str) -> Result<i64, Why> {
    let (local, rest) = local_micros(text)?;
    let offset = match rest {
        b"Z" | b"z" => 0,
        b"" => return Err("it has no offset; write the zone as Z or +HH:MM"),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let hours = two_digits(*h1, *h2).ok_or("its offset is not +HH:MM or -HH:MM")?;
            let minutes = two_digits(*m1, *m2).ok_or("its offset is not +HH:MM or -HH:MM")?;
            if hours > 23 || minutes > 59 {
                return Err("its offset is not within 23:59");
            }
            let seconds = (hours * 60 + minutes) * 60;
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => {
            return Err("its offset is not Z, +HH:MM or -HH:MM (offsets with seconds are refused)");
        }
    };
    in_range(local - offset * MICROS_PER_SECOND)
}

pub(crate) fn timestamp_ntz(text: &str) -> Result<i64, Why> {
    let (local, rest) = local_micros(text)?;
    if !rest.is_empty() {
        return Err("it must end after the seconds: a TIMESTAMP_NTZ has no offset");
    }
    in_range(local)
}

pub(crate) fn date(text: &str) -> Result<i32, Why> {
    let (days, rest) = day(text.as_bytes())?;
    if !rest.is_empty() {
        return Err("it is not written YYYY-MM-DD");
    }
    i32::try_from(days).map_err(|_| "it is out of range")
}

fn in_range(micros: i64) -> Result<i64, Why> {
    if (MIN_MICROS..=MAX_MICROS).contains(&micros) {
        Ok(micros)
    } else {
        Err("it lies outside the years 0001 to 9999 in UTC")
    }
}

/// The microseconds as if in UTC, and what follows the seconds and their fraction.
fn local_micros(text: &str) -> Result<(i64, &[u8]), Why> {
    const FORM: Why =
        "it is not written YYYY-MM-DDTHH:MM:SS[.fraction] with an offset as its type asks";
    let (days, rest) = day(text.as_bytes())?;
    let [b'T' | b't' | b' ', h1, h2, b':', m1, m2, b':', s1, s2, rest @ ..] = rest else {
        return Err(FORM);
    };
    let hour = two_digits(*h1, *h2).ok_or(FORM)?;
    let minute = two_digits(*m1, *m2).ok_or(FORM)?;
    let second = two_digits(*s1, *s2).ok_or(FORM)?;
    if second == 60 {
        return Err("leap seconds (:60) are refused; use :59.999999 or the next second");
    }
    if hour > 23 || minute > 59 || second > 59 {
        return Err("there is no such time of day");
    }
    let (fraction, rest) = fraction(rest)?;
    let seconds = days * 86_400 + (hour * 60 + minute) * 60 + second;
    Ok((seconds * MICROS_PER_SECOND + fraction, rest))
}

fn fraction(bytes: &[u8]) -> Result<(i64, &[u8]), Why> {
    let Some(after) = bytes.strip_prefix(b".") else { return Ok((0, bytes)) };
    let count = after.iter().take_while(|b| b.is_ascii_digit()).count();
    if count == 0 || count > 9 {
        return Err("its fraction of a second must have one to nine digits");
    }
    let (digits, rest) = after.split_at(count);
    let mut micros = 0;
    for at in 0..6 {
        micros = micros * 10 + digits.get(at).map_or(0, |b| i64::from(b - b'0'));
    }
    if digits.iter().skip(6).any(|b| *b != b'0') {
        return Err("it is finer than a microsecond, and is not rounded");
    }
    Ok((micros, rest))
}

fn day(bytes: &[u8]) -> Result<(i64, &[u8]), Why> {
    const FORM: Why = "it does not begin with a day as YYYY-MM-DD";
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, rest @ ..] = bytes else { return Err(FORM) };
    let year = two_digits(*y1, *y2).ok_or(FORM)? * 100 + two_digits(*y3, *y4).ok_or(FORM)?;
    let month = two_digits(*m1, *m2).ok_or(FORM)?;
    let day = two_digits(*d1, *d2).ok_or(FORM)?;
    if year == 0 {
        return Err("it lies outside the years 0001 to 9999");
    }
    if !(1..=12).contains(&month) || day < 1 || day > days_in_month(year, month) {
        return Err("there is no such day");
    }
    Ok((days_from_civil(year, month, day), rest))
}

fn two_digits(tens: u8, units: u8) -> Option<i64> {
    (tens.is_ascii_digit() && units.is_ascii_digit())
        .then(|| i64::from(tens - b'0') * 10 + i64::from(units - b'0'))
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970 of a civil day: eras of 400 years that begin in March, so that leap days come last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// An instant as RFC 3339 in UTC: whole seconds without a fraction, else three digits of it or six.
pub fn format_timestamp(micros: i64) -> String {
    let mut text = format_timestamp_ntz(micros);
    text.push('Z');
    text
}

/// A time without a zone, in the form of [`format_timestamp`] less its `Z`.
pub fn format_timestamp_ntz(micros: i64) -> String {
    let mut text = date_time(micros.div_euclid(MICROS_PER_SECOND));
    let fraction = micros.rem_euclid(MICROS_PER_SECOND);
    if fraction % 1_000 != 0 {
        text.push_str(&format!(".{fraction:06}"));
    } else if fraction != 0 {
        text.push_str(&format!(".{:03}", fraction / 1_000));
    }
    text
}

/// An instant as it stands in a composite key: always with six digits of fraction.
pub(crate) fn format_timestamp_key(micros: i64) -> String {
    let text = date_time(micros.div_euclid(MICROS_PER_SECOND));
    format!("{text}.{:06}Z", micros.rem_euclid(MICROS_PER_SECOND))
}

/// Nanoseconds since 1970 with their nine digits of fraction, for SQL results that have them.
pub(crate) fn format_nanos(nanos: i64) -> String {
    let text = date_time(nanos.div_euclid(1_000_000_000));
    format!("{text}.{:09}", nanos.rem_euclid(1_000_000_000))
}

/// Whole seconds since 1970 as `YYYY-MM-DDTHH:MM:SS`.
pub(crate) fn date_time(seconds: i64) -> String {
    let time = seconds.rem_euclid(86_400);
    let day = format_day(seconds.div_euclid(86_400));
    format!("{day}T{:02}:{:02}:{:02}", time / 3_600, time / 60 % 60, time % 60)
}

/// Days since 1970 as `YYYY-MM-DD`.
pub fn format_date(days: i32) -> String {
    format_day(i64::from(days))
}

fn format_day(days: i64) -> String {
    let (year, month, day) = civil_from_days(days);
    if (0..=9999).contains(&year) {
        format!("{year:04}-{month:02}-{day:02}")
    } else {
        format!("{year:+05}-{month:02}-{day:02}")
    }
}

/// Whether the days lie in the years that are stored.
pub(crate) fn is_stored_day(days: i64) -> bool {
    (MIN_MICROS / MICROS_PER_DAY..=MAX_MICROS / MICROS_PER_DAY).contains(&days)
}
