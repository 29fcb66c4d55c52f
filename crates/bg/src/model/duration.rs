//! Parses and formats durations, as in options, settings of data stores and SLAs.
//!
//! ```text
//!   duration   number unit
//!   unit       "ns" | "us" | "µs" | "ms" | "s" | "m" | "min" | "h"
//! ```

use std::fmt;
use std::time::Duration;

/// The advice for an invalid duration.
pub const DURATION_SYNTAX: &str = "a duration is a number and a unit (ns, us, ms, s, m, h), such as 250ms, 1.5s or 2m; 10000h at most";

/// Longer durations are mistakes. The nanoseconds of the longest one fit in 64 bits many times.
const DURATION_MAX: Duration = Duration::from_secs(10_000 * 3600);

/// Parses a complete text as a duration, which may be zero.
///
/// # Errors
///
/// [`DURATION_SYNTAX`] to write a duration.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let end = text.find(|it: char| !it.is_ascii_digit() && it != '.');
    let (number, name) = text.split_at(end.unwrap_or(text.len()));
    let count = number.parse().ok();
    count
        .zip(unit(name.trim_start()))
        .and_then(|(count, unit)| times(count, unit))
        .ok_or_else(|| DURATION_SYNTAX.to_owned())
}

/// Returns a unit in nanoseconds.
pub fn unit(name: &str) -> Option<f64> {
    Some(match name {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        _ => return None,
    })
}

/// Returns `count` units, rounded to nanoseconds, so that 0.1ms is 100us. `None` if that is out of range.
pub fn times(count: f64, unit: f64) -> Option<Duration> {
    let time = Duration::try_from_secs_f64((count * unit).round() / 1e9).ok()?;
    (time <= DURATION_MAX).then_some(time)
}

/// Formats a duration in its largest exact unit.
pub struct Time(pub Duration);

impl fmt::Display for Time {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos();
        let units = [
            (60_000_000_000, "m"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
        ];
        // Minutes are used from two minutes on, because SLAs use 60s.
        let fits = |unit: u128| ns >= unit && ns.is_multiple_of(unit);
        match units
            .into_iter()
            .find(|(unit, name)| fits(*unit) && (*name != "m" || ns > *unit))
        {
            Some((unit, name)) => write!(out, "{}{name}", ns / unit),
            None => write!(out, "{ns}ns"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_durations_parse_to_the_same_value() {
        for text in ["0ns", "7ns", "250us", "100ms", "1500ms", "60s", "90s", "2m"] {
            let read = parse_duration(text).expect(text);
            assert_eq!(Time(read).to_string(), text);
        }
        let same = ["0.1ms", "100us", "100µs", " 100 us ", "100000ns"];
        for text in same {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_micros(100)),
                "{text}"
            );
        }
        assert_eq!(parse_duration("1.5min"), parse_duration("90s"));
        assert_eq!(parse_duration("1h"), parse_duration("60m"));
    }

    #[test]
    fn invalid_durations_are_rejected_with_the_syntax() {
        for text in [
            "",
            "10",
            "s",
            "1..5s",
            "-1s",
            "1e3s",
            "5 parsecs",
            "9e99h",
            "99999999999999h",
        ] {
            assert_eq!(
                parse_duration(text),
                Err(DURATION_SYNTAX.to_owned()),
                "{text}"
            );
        }
    }
}
