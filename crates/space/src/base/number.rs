//! Numbers: exact 64-bit integers and doubles in one type, with an exact comparison between both.
//!
//! 1. Every number has one representation: `Int` if it is a 64-bit integer, otherwise `Float`. Equal numbers are
//!    therefore equal values. 9007199254740993 and 9007199254740992 differ, although they are the same double.
//! 2. No number is NaN, and there is only one zero.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

#[derive(Debug, Clone, Copy)]
pub enum Number {
    Int(i64),
    /// A fraction, an infinity, or a number outside the 64-bit integers.
    Float(f64),
}

/// 2^63, the first double above the 64-bit integers.
const INT_END: f64 = 9_223_372_036_854_775_808.0;

impl Number {
    pub const INFINITY: Number = Number::Float(f64::INFINITY);
    pub const NEG_INFINITY: Number = Number::Float(f64::NEG_INFINITY);

    /// Returns `None` for NaN.
    pub fn from_f64(value: f64) -> Option<Number> {
        if value.is_nan() {
            None
        } else if value.fract() == 0.0 && (-INT_END..INT_END).contains(&value) {
            Some(Number::Int(value as i64))
        } else {
            Some(Number::Float(value))
        }
    }

    /// Converts an integer of any size. More than 64 bits are rounded to the nearest double.
    pub fn from_i128(value: i128) -> Number {
        match i64::try_from(value) {
            Ok(value) => Number::Int(value),
            Err(_) => Number::from_f64(value as f64).expect("an integer is not NaN"),
        }
    }

    /// Parses the texts that C's `strtod` consumes completely: digits, a decimal point, an exponent, `inf`. Rejects
    /// whitespace, NaN and hexadecimal digits.
    pub fn parse(text: &[u8]) -> Option<Number> {
        let text = std::str::from_utf8(text).ok()?;
        // An integer with a zero fraction, such as 7.00, stays exact.
        let integer = match text.split_once('.') {
            Some((whole, zeros)) if !whole.is_empty() && zeros.bytes().all(|b| b == b'0') => whole,
            _ => text,
        };
        if let Ok(value) = integer.parse::<i64>() {
            return Some(Number::Int(value));
        }
        Number::from_f64(text.parse::<f64>().ok()?)
    }

    pub fn as_f64(self) -> f64 {
        match self {
            Number::Int(value) => value as f64,
            Number::Float(value) => value,
        }
    }

    pub fn is_zero(self) -> bool {
        matches!(self, Number::Int(0))
    }

    pub fn negate(self) -> Number {
        match self {
            Number::Int(value) => Number::from_i128(-i128::from(value)),
            Number::Float(value) => Number::from_f64(-value).unwrap_or(Number::Int(0)),
        }
    }

    /// Formats integers exactly, and doubles with twelve significant digits like C's `%.12g`: 3.60555127546, 1e+30,
    /// inf.
    pub fn print(self) -> String {
        match self {
            Number::Int(value) => value.to_string(),
            Number::Float(value) => print_general(value, 12),
        }
    }

    /// Formats the number as the shortest text that parses to the same number.
    pub fn print_exact(self) -> String {
        match self {
            Number::Int(value) => value.to_string(),
            Number::Float(value) if value.abs() >= 1e21 && value.is_finite() => {
                format!("{value:e}").replace('e', "e+")
            }
            Number::Float(value) if value.abs() < 1e-6 => format!("{value:e}"),
            Number::Float(value) => value.to_string(),
        }
    }

    /// Returns the greatest double that does not exceed the number, and the remainder, which is from 0 to 1023.
    fn floor_f64(self) -> (f64, u16) {
        match self {
            Number::Float(value) => (value, 0),
            Number::Int(value) => {
                let near = value as f64;
                let below = if near as i128 > i128::from(value) {
                    near.next_down()
                } else {
                    near
                };
                (below, (i128::from(value) - below as i128) as u16)
            }
        }
    }

    /// Returns a word that orders like the greatest double not above the number, and the remainder. Pairs order like
    /// the numbers.
    pub fn ordered_code(self) -> (u64, u16) {
        let (below, rest) = self.floor_f64();
        (ordered_f64(below), rest)
    }

    /// Returns the number whose [`Number::ordered_code`] is this word with remainder 0, or `None` for NaN.
    pub fn from_ordered_code(word: u64) -> Option<Number> {
        Number::from_f64(double_of(word))
    }

    /// Appends ten bytes that order like the numbers: the greatest double not above the number, then the remainder.
    pub fn encode_ordered(self, out: &mut Vec<u8>) {
        let (code, rest) = self.ordered_code();
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(&rest.to_be_bytes());
    }

    /// Returns `None` for bytes that [`Number::encode_ordered`] does not produce.
    pub fn decode_ordered(bytes: [u8; 10]) -> Option<Number> {
        let (double, rest) = bytes.split_first_chunk::<8>()?;
        let below = double_of(u64::from_be_bytes(*double));
        let rest = u16::from_be_bytes([rest[0], rest[1]]);
        let number = Number::from_f64(below)?;
        let number = match (number, rest) {
            (number, 0) => number,
            (Number::Int(value), rest) => Number::Int(value.checked_add(i64::from(rest))?),
            (Number::Float(_), _) => return None,
        };
        let mut again = Vec::with_capacity(10);
        number.encode_ordered(&mut again);
        (again == bytes).then_some(number)
    }
}

/// Maps a double to a word that orders like the doubles. NaN is not allowed.
fn ordered_f64(value: f64) -> u64 {
    let bits = (value + 0.0).to_bits();
    if bits >> 63 == 1 {
        !bits
    } else {
        bits ^ 1 << 63
    }
}

/// The inverse of [`ordered_f64`].
fn double_of(word: u64) -> f64 {
    f64::from_bits(match word >> 63 {
        1 => word ^ 1 << 63,
        _ => !word,
    })
}

/// Formats a double like C's `%.{digits}g`.
pub fn print_general(value: f64, digits: usize) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    if value == 0.0 {
        return "0".to_string();
    }
    let scientific = format!("{value:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').expect("it was written with one");
    let exponent: i32 = exponent.parse().expect("it was written as a number");
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs());
    }
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    trimmed(&format!("{value:.decimals$}")).to_string()
}

/// Removes trailing zeros of a fraction.
fn trimmed(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Number) -> Ordering {
        match (*self, *other) {
            (Number::Int(a), Number::Int(b)) => a.cmp(&b),
            (Number::Float(a), Number::Float(b)) => a.total_cmp(&b),
            (Number::Int(a), Number::Float(b)) => int_to_float(a, b),
            (Number::Float(a), Number::Int(b)) => int_to_float(b, a).reverse(),
        }
    }
}

/// Compares an integer with a `Float`, which is never equal to an integer (invariant 1).
fn int_to_float(a: i64, b: f64) -> Ordering {
    if b >= INT_END {
        Ordering::Less
    } else if b < -INT_END || a > b.floor() as i64 {
        Ordering::Greater
    } else {
        Ordering::Less
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Number) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Number {}

impl Hash for Number {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Number::Int(value) => value.hash(state),
            Number::Float(value) => value.to_bits().hash(state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(number: Number) -> [u8; 10] {
        let mut out = Vec::new();
        number.encode_ordered(&mut out);
        out.try_into().expect("ten bytes")
    }

    fn any_number() -> impl Strategy<Value = Number> {
        prop_oneof![
            any::<i64>().prop_map(Number::Int),
            (-5_i64..5, 0_u32..64)
                .prop_map(|(d, bit)| Number::from_i128((1_i128 << bit) + i128::from(d))),
            (-5_i64..5, 0_u32..64)
                .prop_map(|(d, bit)| Number::from_i128(-(1_i128 << bit) + i128::from(d))),
            any::<f64>().prop_filter_map("no NaN", Number::from_f64),
            (-1e6..1e6_f64).prop_filter_map("no NaN", Number::from_f64),
        ]
    }

    proptest! {
        #[test]
        fn bytes_sort_as_numbers_and_decode(a in any_number(), b in any_number()) {
            prop_assert_eq!(encoded(a).cmp(&encoded(b)), a.cmp(&b));
            prop_assert_eq!(Number::decode_ordered(encoded(a)), Some(a));
        }

        #[test]
        fn arbitrary_bytes_decode_only_if_they_are_canonical(bytes in any::<[u8; 10]>()) {
            if let Some(number) = Number::decode_ordered(bytes) {
                prop_assert_eq!(encoded(number), bytes);
            }
        }

        #[test]
        fn an_exact_text_parses_to_the_same_number(a in any_number()) {
            prop_assert_eq!(Number::parse(a.print_exact().as_bytes()), Some(a));
        }

        #[test]
        fn integers_compare_exactly_with_doubles(a in any::<i64>(), b in any::<f64>()) {
            prop_assume!(!b.is_nan());
            let number = Number::from_f64(b).unwrap();
            // A double in this range is a 128-bit integer plus a fraction.
            let expected = if b.abs() < 1e30 {
                i128::from(a).cmp(&(b.floor() as i128)).then(if b.fract() == 0.0 { Ordering::Equal } else { Ordering::Less })
            } else if b > 0.0 { Ordering::Less } else { Ordering::Greater };
            prop_assert_eq!(Number::Int(a).cmp(&number), expected);
        }
    }

    #[test]
    fn texts_are_parsed_like_strtod() {
        for (text, expected) in [
            ("7", Number::Int(7)),
            ("+7", Number::Int(7)),
            ("-0", Number::Int(0)),
            ("1e3", Number::Int(1000)),
            (".5", Number::Float(0.5)),
            ("5.", Number::Int(5)),
            ("9007199254740993", Number::Int(9_007_199_254_740_993)),
            ("9007199254740993.00", Number::Int(9_007_199_254_740_993)),
            ("-9223372036854775808", Number::Int(i64::MIN)),
            ("9223372036854775808", Number::Float(INT_END)),
            ("inf", Number::INFINITY),
            ("-Infinity", Number::NEG_INFINITY),
        ] {
            assert_eq!(Number::parse(text.as_bytes()), Some(expected), "{text}");
        }
        for text in [
            "", " 1", "1 ", "nan", "-NaN", "0x10", "1,5", "one", "1e", "--1",
        ] {
            assert_eq!(Number::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn printed_numbers_have_at_most_twelve_digits() {
        for (value, expected) in [
            (13.0_f64.sqrt(), "3.60555127546"),
            (0.1 + 0.2, "0.3"),
            (1e30, "1e+30"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (123_456_789_012.5, "123456789012"),
            (1_234_567_890_123.5, "1.23456789012e+12"),
            (-2.5, "-2.5"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(Number::from_f64(value).unwrap().print(), expected);
        }
        assert_eq!(Number::Int(i64::MAX).print(), "9223372036854775807");
        assert_eq!(print_general(f64::NAN, 12), "nan");
    }
}
