//! Numbers from their text, exactly or not at all.
//!
//! A JSON number or a CSV cell arrives as text, and stays text until its target type is known: so no
//! integer passes through a float, and no decimal through either.

/// Why a text is not a value of the type; completed by the caller with the text and the type.
pub(crate) type Why = &'static str;

/// Whether the text is an optional minus and digits, and nothing else.
pub(crate) fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Whether the text has the form of a JSON number: no plus sign, no leading zeros, no `.5`.
pub(crate) fn is_json_number(text: &str) -> bool {
    let bytes = text.strip_prefix('-').unwrap_or(text).as_bytes();
    let whole = digits(bytes);
    if whole == 0 || (whole > 1 && bytes.first() == Some(&b'0')) {
        return false;
    }
    let mut rest = &bytes[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = &fraction[count..];
    }
    if let Some((b'e' | b'E', exponent)) = rest.split_first() {
        let exponent =
            exponent.strip_prefix(b"+").or(exponent.strip_prefix(b"-")).unwrap_or(exponent);
        return !exponent.is_empty() && digits(exponent) == exponent.len();
    }
    rest.is_empty()
}

fn digits(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|b| b.is_ascii_digit()).count()
}

/// An integer within `min..=max` (the range of the stored type).
pub(crate) fn integer(text: &str, min: i64, max: i64) -> Result<i64, Why> {
    match text.parse::<i64>() {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        Ok(_) => Err("it is outside the range of the type"),
        Err(_) if is_integer(text) => Err("it is outside the range of the type"),
        Err(_) if is_json_number(text) => {
            Err("it is written with a fraction or an exponent, and is not rounded")
        }
        Err(_) => Err("it is not an integer"),
    }
}

/// A double: integers only when they are exactly representable, decimals as the nearest double.
pub(crate) fn double(text: &str) -> Result<f64, Why> {
    let value = plain_float::<f64>(text)?;
    if !value.is_finite() {
        return Err("it is beyond the range of a DOUBLE");
    }
    if value == 0.0 && has_significant_digit(text) {
        return Err("it is too small for a DOUBLE, which would make it zero");
    }
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.abs() >= EXACT && is_integer(text) && format!("{value:.0}") != text {
        return Err(
            "a DOUBLE can't hold this integer exactly; declare BIGINT, DECIMAL(38,0) or STRING",
        );
    }
    Ok(value)
}

/// A float of 32 bits, by the rules of [`double`].
pub(crate) fn float(text: &str) -> Result<f32, Why> {
    let value = plain_float::<f32>(text)?;
    if !value.is_finite() {
        return Err("it is beyond the range of a FLOAT");
    }
    if value == 0.0 && has_significant_digit(text) {
        return Err("it is too small for a FLOAT, which would make it zero");
    }
    const EXACT: f32 = 16_777_216.0;
    if value.abs() >= EXACT && is_integer(text) && format!("{value:.0}") != text {
        return Err("a FLOAT can't hold this integer exactly; declare DOUBLE or BIGINT");
    }
    Ok(value)
}

fn plain_float<F: std::str::FromStr>(text: &str) -> Result<F, Why> {
    // The parser of the standard library also takes "inf", "nan", "+1" and ".5".
    if !is_json_number(text) {
        return Err("it is not a number");
    }
    text.parse::<F>().map_err(|_| "it is not a number")
}

fn has_significant_digit(text: &str) -> bool {
    let mantissa = text.split(['e', 'E']).next().unwrap_or(text);
    mantissa.bytes().any(|b| (b'1'..=b'9').contains(&b))
}

/// How many digits count: without the zeros that lead or trail, the point and the exponent.
pub(crate) fn significant_digits(text: &str) -> usize {
    let mantissa = text.split(['e', 'E']).next().unwrap_or(text);
    let mut count = 0;
    let mut zeros = 0;
    for byte in mantissa.bytes().filter(u8::is_ascii_digit) {
        if byte == b'0' {
            zeros += usize::from(count > 0);
        } else {
            count += zeros + 1;
            zeros = 0;
        }
    }
    count
}

/// The float that a name stands for: JSON has no other way to write these three.
pub(crate) fn named_float(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// The unscaled integer of a decimal of this precision and scale, exactly.
pub(crate) fn decimal(text: &str, precision: u8, scale: i8) -> Result<i128, Why> {
    const NOT_DECIMAL: Why = "it is not a decimal number";
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent_value(exponent).ok_or(NOT_DECIMAL)?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let has_point = mantissa.len() > whole.len();
    if whole.is_empty() || (has_point && fraction.is_empty()) {
        return Err(NOT_DECIMAL);
    }
    if !all_digits(whole) || !all_digits(fraction) {
        return Err(NOT_DECIMAL);
    }
    let digits = || whole.bytes().chain(fraction.bytes());
    // Everything up to the last digit that is not zero; the zeros after it only shift the point.
    let kept = digits().enumerate().filter(|(_, b)| *b != b'0').map(|(at, _)| at + 1).last();
    let Some(kept) = kept else { return Ok(0) };
    let dropped = whole.len() + fraction.len() - kept;
    let shift = exponent + i64::from(scale) + to_i64(dropped) - to_i64(fraction.len());
    if shift < 0 {
        return Err("it has more digits after the point than the type, and is not rounded");
    }
    const TOO_LARGE: Why = "it has more digits than the type";
    let mut unscaled: i128 = 0;
    for byte in digits().take(kept) {
        unscaled = unscaled
            .checked_mul(10)
            .and_then(|value| value.checked_add(i128::from(byte - b'0')))
            .ok_or(TOO_LARGE)?;
    }
    let factor = u32::try_from(shift).ok().and_then(|shift| 10_i128.checked_pow(shift));
    let unscaled = factor.and_then(|factor| unscaled.checked_mul(factor)).ok_or(TOO_LARGE)?;
    if unscaled >= 10_i128.checked_pow(u32::from(precision)).unwrap_or(i128::MAX) {
        return Err(TOO_LARGE);
    }
    Ok(if negative { -unscaled } else { unscaled })
}

fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX / 4)
}

fn exponent_value(text: &str) -> Option<i64> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if !is_integer(unsigned) || (unsigned.len() < text.len() && unsigned.starts_with('-')) {
        return None;
    }
    // Far beyond any scale: the exact size no longer matters, only that sums do not overflow.
    const FAR: i64 = 1 << 40;
    let sign = if unsigned.starts_with('-') { -FAR } else { FAR };
    Some(unsigned.parse::<i64>().unwrap_or(sign).clamp(-FAR, FAR))
}
