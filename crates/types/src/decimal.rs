//! Sums of decimal numbers for INCRBYFLOAT and HINCRBYFLOAT. A sum is exact if both numbers have at most 17 decimals
//! and the result has at most 21 digits before the decimal point; otherwise it is the nearest double.

/// Maximum number of decimals of a sum, as in Redis.
const PLACES: usize = 17;

/// Adds two numbers and formats the sum without an exponent and without trailing zeros.
///
/// # Errors
/// Redis's error text, if an argument is not a number.
pub fn add(a: &[u8], b: &[u8]) -> Result<String, &'static str> {
    let (first, second) = (parse(a)?, parse(b)?);
    if let Some(sum) = first.plus(&second) {
        return Ok(format_units(sum));
    }
    let sum = first.about + second.about;
    if !sum.is_finite() {
        return Err("increment would produce NaN or Infinity");
    }
    Ok(match sum {
        0.0 => "0".to_owned(),
        _ => sum.to_string(),
    })
}

/// Returns the exact sum or difference of two numbers. `None` if a text is not a number or the result does not fit.
pub fn add_exact(a: &[u8], b: &[u8], subtract: bool) -> Option<String> {
    let (first, mut second) = (parse(a).ok()?, parse(b).ok()?);
    if subtract {
        second.exact = second.exact.map(|units| -units);
    }
    first.plus(&second).map(format_units)
}

struct Number {
    about: f64,
    /// The number in units of 10^-17; `None` if it has more decimals.
    exact: Option<i128>,
}

impl Number {
    fn plus(&self, other: &Number) -> Option<i128> {
        self.exact?.checked_add(other.exact?)
    }
}

fn parse(text: &[u8]) -> Result<Number, &'static str> {
    const NOT: &str = "value is not a valid float";
    let text = std::str::from_utf8(text).map_err(|_| NOT)?;
    let about: f64 = text.parse().map_err(|_| NOT)?;
    if about.is_nan() {
        return Err(NOT);
    }
    Ok(Number {
        about,
        exact: exact(text),
    })
}

/// Parses a number into units of 10^-17; `None` if it has more decimals or does not fit.
fn exact(text: &str) -> Option<i128> {
    let (digits, exponent) = match text.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (negative, digits) = match digits.as_bytes().first()? {
        b'-' => (true, &digits[1..]),
        b'+' => (false, &digits[1..]),
        _ => (false, digits),
    };
    let (integer, part) = digits.split_once('.').unwrap_or((digits, ""));
    let places = i32::try_from(PLACES).ok()? + exponent - i32::try_from(part.len()).ok()?;
    let mut units: i128 = 0;
    for digit in integer.bytes().chain(part.bytes()) {
        let digit = i128::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
        units = units.checked_mul(10)?.checked_add(digit)?;
    }
    let scale = 10_i128.checked_pow(places.unsigned_abs())?;
    units = match places {
        0.. => units.checked_mul(scale)?,
        _ if units % scale == 0 => units / scale,
        _ => return None,
    };
    Some(if negative { -units } else { units })
}

fn format_units(units: i128) -> String {
    let one = 10_u128.pow(PLACES as u32);
    let (integer, part) = (units.unsigned_abs() / one, units.unsigned_abs() % one);
    let sign = if units < 0 { "-" } else { "" };
    let part = format!("{part:0PLACES$}");
    match part.trim_end_matches('0') {
        "" => format!("{sign}{integer}"),
        part => format!("{sign}{integer}.{part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_formatted_as_in_redis() {
        for (a, b, sum) in [
            ("0", "1", "1"),
            ("1", "0.25", "1.25"),
            ("1.5", "1.5", "3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("17179869184", "1.5", "17179869185.5"),
            ("1", "-1.1", "-0.1"),
            ("1.1", "2.2", "3.3"),
            ("0.1", "0.2", "0.3"),
            ("0.02439024390243902", "-0.02439024390243902", "0"),
            ("0.024390243902439025", "-0.024390243902439025", "0"),
            ("-0.0", "0", "0"),
            ("3", "-3", "0"),
            ("+5", ".5", "5.5"),
            ("1e-17", "0", "0.00000000000000001"),
            ("1e30", "1e30", "2000000000000000000000000000000"),
        ] {
            assert_eq!(
                add(a.as_bytes(), b.as_bytes()).as_deref(),
                Ok(sum),
                "{a} + {b}"
            );
        }
        for wrong in [
            "", " 1", "1 ", "x", "0x10", "nan", "1,5", "--1", "1e", "\u{661}",
        ] {
            let result = add(wrong.as_bytes(), b"1");
            assert_eq!(result, Err("value is not a valid float"), "{wrong:?}");
        }
        for endless in ["inf", "+inf", "-Infinity"] {
            let result = add(b"1", endless.as_bytes());
            assert_eq!(result, Err("increment would produce NaN or Infinity"));
        }
        assert!(add(b"1e308", b"1e308").is_err());
    }
}
