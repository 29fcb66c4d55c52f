//! Values as exact decimals, so that a sum does not depend on the order of its terms.
//!
//! A number is an optional sign, up to 18 digits, and optionally a point with up to 9 digits. Anything else is text.

use std::cmp::Ordering;
use std::fmt::Write;

/// A decimal as a multiple of 10⁻⁹.
pub type Billionths = i128;

const ONE: i128 = 1_000_000_000;

pub fn parse(text: &[u8]) -> Option<Billionths> {
    let (negative, digits) = match text.first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (whole, fraction) = match digits.iter().position(|&b| b == b'.') {
        Some(point) => (&digits[..point], &digits[point + 1..]),
        None => (digits, &b"0"[..]),
    };
    if whole.is_empty() || whole.len() > 18 || fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let whole = unsigned(whole)?;
    let billionths = unsigned(fraction)? * 10_u64.pow(9 - fraction.len() as u32);
    let value = i128::from(whole) * ONE + i128::from(billionths);
    Some(if negative { -value } else { value })
}

fn unsigned(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |sum, &b| {
        b.is_ascii_digit().then(|| sum * 10 + u64::from(b - b'0'))
    })
}

/// Writes a decimal without trailing zeros after the point.
pub fn print(value: Billionths, out: &mut Vec<u8>) {
    let sign = if value < 0 { "-" } else { "" };
    let (whole, fraction) = (
        (value.unsigned_abs()) / ONE as u128,
        value.unsigned_abs() % ONE as u128,
    );
    let mut text = format!("{sign}{whole}");
    if fraction != 0 {
        let _ = write!(text, ".{fraction:09}");
        text.truncate(text.trim_end_matches('0').len());
    }
    out.extend_from_slice(text.as_bytes());
}

/// Writes a count in decimal.
pub fn print_count(count: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let (mut at, mut left) = (digits.len(), count);
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// The mean of `count` values, rounded half away from zero to six decimals.
pub fn mean(sum: Billionths, count: u64) -> Billionths {
    let divisor = i128::from(count) * 1000;
    let half = if sum < 0 { -divisor / 2 } else { divisor / 2 };
    (sum + half) / divisor * 1000
}

/// Compares numbers by value; numbers precede text, and text compares by bytes. Different spellings of one number
/// compare by bytes.
pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    match (parse(a), parse(b)) {
        (Some(x), Some(y)) => x.cmp(&y).then_with(|| a.cmp(b)),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(value: Billionths) -> String {
        let mut out = Vec::new();
        print(value, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn decimals_are_exact_and_print_back() {
        for text in [
            "0",
            "7",
            "-7",
            "12.5",
            "-0.000000001",
            "999999999999999999.999999999",
        ] {
            assert_eq!(printed(parse(text.as_bytes()).unwrap()), text);
        }
        assert_eq!(printed(parse(b"+1.50").unwrap()), "1.5");
        for text in [
            "",
            "-",
            "1e3",
            "1.",
            ".5",
            " 1",
            "1234567890123456789",
            "0x1",
            "1.0000000001",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn means_are_rounded_to_six_decimals() {
        assert_eq!(printed(mean(parse(b"2").unwrap(), 3)), "0.666667");
        assert_eq!(printed(mean(parse(b"-2").unwrap(), 3)), "-0.666667");
        assert_eq!(printed(mean(parse(b"9").unwrap(), 3)), "3");
    }

    #[test]
    fn numbers_sort_by_value_and_before_text() {
        let mut values = [&b"b"[..], b"10", b"3", b"7", b"a", b"-1"];
        values.sort_by(|a, b| compare(a, b));
        assert_eq!(values, [&b"-1"[..], b"3", b"7", b"10", b"a", b"b"]);
    }
}
