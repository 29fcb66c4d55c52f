//! The plain text form of a value: bytes and strings are unchanged, all others are as in JSON or ISO 8601.

use super::value::{Digits, Value};
use crate::emit::{Emit, Json};
use crate::time::{write_date, write_duration, write_instant, write_interval, write_time_of_day};

/// The result of writing a text form.
pub(crate) enum TextForm {
    Written,
    Null,
    /// A list, map or struct, by its common name: it has no text form.
    Nested(&'static str),
}

/// Appends a value as plain text: bytes and strings unchanged, numbers as in JSON, instants in ISO 8601.
pub(crate) fn write_text(value: &Value<'_>, out: &mut Vec<u8>) -> TextForm {
    match value {
        Value::Null => return TextForm::Null,
        Value::List(..) => return TextForm::Nested("a list"),
        Value::Struct(..) => return TextForm::Nested("a struct"),
        Value::Map(..) => return TextForm::Nested("a map"),
        Value::Bool(value) => Json::scalar(out).bool(*value),
        Value::Int(value) => Json::scalar(out).int(*value),
        Value::UInt(value) => Json::scalar(out).uint(*value),
        Value::Float16(value) => match non_finite(f64::from(*value)) {
            Some(name) => out.extend_from_slice(name.as_bytes()),
            None => Json::scalar(out).float16(*value),
        },
        Value::Float32(value) => match non_finite(f64::from(*value)) {
            Some(name) => out.extend_from_slice(name.as_bytes()),
            None => Json::scalar(out).float32(*value),
        },
        Value::Float64(value) => match non_finite(*value) {
            Some(name) => out.extend_from_slice(name.as_bytes()),
            None => Json::scalar(out).float(*value),
        },
        Value::Str(text) => out.extend_from_slice(text.as_bytes()),
        Value::Bytes(bytes) => out.extend_from_slice(bytes),
        Value::Uuid(bytes) => write_uuid(out, bytes),
        Value::Date(days) => write_date(out, *days),
        Value::Timestamp {
            value,
            ticks,
            is_zoned,
        } => write_instant(out, *value, *ticks, *is_zoned),
        Value::TimeOfDay(value, ticks) => write_time_of_day(out, *value, *ticks),
        Value::Duration(value, ticks) => write_duration(out, *value, *ticks),
        Value::Interval(interval) => write_interval(out, *interval),
        Value::Decimal(Digits::I128(digits), scale) => {
            write_decimal(out, &digits.to_string(), *scale);
        }
        Value::Decimal(Digits::I256(digits), scale) => {
            write_decimal(out, &digits.to_string(), *scale);
        }
    }
    TextForm::Written
}

/// Returns the name of a float that JSON cannot represent as a number.
pub(crate) fn non_finite(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some("NaN")
    } else if value == f64::INFINITY {
        Some("Infinity")
    } else if value == f64::NEG_INFINITY {
        Some("-Infinity")
    } else {
        None
    }
}

/// Writes 8-4-4-4-12 digits in lower case.
fn write_uuid(out: &mut Vec<u8>, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        out.push(HEX[usize::from(byte >> 4)]);
        out.push(HEX[usize::from(byte & 15)]);
    }
}

/// Inserts the decimal point into an integer: `scale` digits follow it, including trailing zeros.
fn write_decimal(out: &mut Vec<u8>, digits: &str, scale: i8) {
    let digits = match digits.strip_prefix('-') {
        Some(digits) => {
            out.push(b'-');
            digits
        }
        None => digits,
    };
    let fraction_digits = usize::try_from(scale).unwrap_or(0);
    let integer_digits = digits.len().saturating_sub(fraction_digits);
    if integer_digits == 0 {
        out.push(b'0');
    }
    out.extend_from_slice(&digits.as_bytes()[..integer_digits]);
    if scale < 0 && digits != "0" {
        out.resize(out.len() + usize::from(scale.unsigned_abs()), b'0');
    }
    if fraction_digits > 0 {
        out.push(b'.');
        out.resize(
            out.len() + fraction_digits - (digits.len() - integer_digits),
            b'0',
        );
        out.extend_from_slice(&digits.as_bytes()[integer_digits..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_have_every_digit_of_their_scale() {
        let shown = |digits: &str, scale| {
            let mut out = Vec::new();
            write_decimal(&mut out, digits, scale);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown("1250", 2), "12.50");
        assert_eq!(shown("-5", 2), "-0.05");
        assert_eq!(shown("0", 2), "0.00");
        assert_eq!(shown("7", 0), "7");
        assert_eq!(shown("7", -2), "700");
        assert_eq!(shown("0", -2), "0");
        assert_eq!(shown("-123456", 6), "-0.123456");
    }
}
