//! Instants, as microseconds since 1970-01-01 00:00 UTC.
//!
//! The text form is a number of seconds with up to six decimals, or a date and time of RFC 3339: `2024-02-29`,
//! `2024-02-29T12:30Z`, `2024-02-29 12:30:01.5+01:00`. A time without an offset is UTC.

use larder_types::civil_date;

use super::number::Number;

pub const MICROS_PER_SECOND: i64 = 1_000_000;
pub const SECONDS_PER_DAY: i64 = 86_400;

/// Parses an instant. Returns `None` if the text is not an instant, or does not fit in 64 bits.
pub fn parse(text: &[u8]) -> Option<i64> {
    match Number::parse(text) {
        Some(number) => from_seconds(number),
        None => parse_date(std::str::from_utf8(text).ok()?),
    }
}

pub fn from_seconds(seconds: Number) -> Option<i64> {
    match seconds {
        Number::Int(seconds) => seconds.checked_mul(MICROS_PER_SECOND),
        Number::Float(seconds) => match Number::from_f64((seconds * 1e6).round())? {
            Number::Int(micros) => Some(micros),
            Number::Float(_) => None,
        },
    }
}

/// Returns the instant in seconds, with a fraction if it has one.
pub fn seconds(micros: i64) -> Number {
    match micros % MICROS_PER_SECOND {
        0 => Number::Int(micros / MICROS_PER_SECOND),
        _ => Number::from_f64(micros as f64 / 1e6).expect("not NaN"),
    }
}

fn parse_date(text: &str) -> Option<i64> {
    let (date, time) = match text.split_once(['T', 't', ' ']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let mut parts = date.split('-');
    let year = digits(parts.next()?, 4)?;
    let month = digits(parts.next()?, 2)?;
    let day = digits(parts.next()?, 2)?;
    if parts.next().is_some() {
        return None;
    }
    let days = days_of(year, month, day)?;
    let (second, micros) = match time {
        None => (0, 0),
        Some(time) => time_of_day(time)?,
    };
    (days * SECONDS_PER_DAY + second)
        .checked_mul(MICROS_PER_SECOND)?
        .checked_add(micros)
}

/// Parses a time of day into seconds and microseconds in UTC: `12:30` or `12:30:01.5`, optionally with `Z` or an
/// offset.
fn time_of_day(time: &str) -> Option<(i64, i64)> {
    let (clock, offset) = if let Some(clock) = time.strip_suffix(['Z', 'z']) {
        (clock, 0)
    } else if let Some(at) = time.find(['+', '-']) {
        let (hours, minutes) = time[at + 1..].split_once(':')?;
        let seconds = bounded(hours, 24)? * 3600 + bounded(minutes, 60)? * 60;
        let sign = if time.as_bytes()[at] == b'-' { -1 } else { 1 };
        (&time[..at], sign * seconds)
    } else {
        (time, 0)
    };
    let mut parts = clock.split(':');
    let hours = bounded(parts.next()?, 24)?;
    let minutes = bounded(parts.next()?, 60)?;
    let (seconds, micros) = match parts.next() {
        None => (0, 0),
        Some(text) => match text.split_once('.') {
            None => (bounded(text, 61)?, 0),
            Some((seconds, fraction)) if (1..=6).contains(&fraction.len()) => {
                let micros =
                    digits(fraction, fraction.len())? * 10_i64.pow(6 - fraction.len() as u32);
                (bounded(seconds, 61)?, micros)
            }
            Some(_) => return None,
        },
    };
    match parts.next() {
        None => Some((hours * 3600 + minutes * 60 + seconds - offset, micros)),
        Some(_) => None,
    }
}

fn bounded(text: &str, end: i64) -> Option<i64> {
    digits(text, 2).filter(|number| *number < end)
}

fn digits(text: &str, count: usize) -> Option<i64> {
    let is_number = text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Returns the days since 1970-01-01, or `None` if the date does not exist. Source: Howard Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms", `days_from_civil`.
pub fn days_of(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let shifted = year - i64::from(month <= 2);
    let era = shifted.div_euclid(400);
    let year_of_era = shifted.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    (civil_date(days) == (i128::from(year), month as u32, day as u32)).then_some(days)
}

/// Formats an instant as RFC 3339 in UTC, with a fraction if it has one.
pub fn print(micros: i64) -> String {
    let seconds = micros.div_euclid(MICROS_PER_SECOND);
    let fraction = micros.rem_euclid(MICROS_PER_SECOND);
    let (year, month, day) = civil_date(seconds.div_euclid(SECONDS_PER_DAY));
    let second = seconds.rem_euclid(SECONDS_PER_DAY);
    let clock = format!(
        "{:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    );
    let fraction = match fraction {
        0 => String::new(),
        _ => format!(".{fraction:06}").trim_end_matches('0').to_string(),
    };
    format!("{year:04}-{month:02}-{day:02}T{clock}{fraction}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seconds_and_dates_are_the_same_instants() {
        for (text, expected) in [
            ("0", 0),
            ("1.5", 1_500_000),
            ("-1", -1_000_000),
            ("1970-01-01", 0),
            ("1970-01-02", 86_400_000_000),
            ("1970-01-01T00:00:01.5Z", 1_500_000),
            ("1970-01-01 01:00+01:00", 0),
            ("1969-12-31T23:00:00-01:00", 0),
            ("2024-02-29", 1_709_164_800_000_000),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(expected), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "2023-02-29",
            "2024-13-01",
            "2024-01-01T25:00",
            "1e300",
            "inf",
            "2024-1-1",
            "2024-01-01T",
            "2024-01-01T12:00:00.1234567",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn printed_instants_parse_to_the_same_value(micros in -62_135_596_800_000_000_i64..253_402_300_800_000_000) {
            prop_assert_eq!(parse(print(micros).as_bytes()), Some(micros));
        }

        #[test]
        fn days_and_dates_convert_both_ways(days in -1_000_000_i64..1_000_000) {
            let (year, month, day) = civil_date(days);
            prop_assert_eq!(days_of(year as i64, i64::from(month), i64::from(day)), Some(days));
        }
    }
}
