//! Instants, dates, times of day, durations and intervals in ISO 8601, for any 64-bit count and without the range
//! limits of a calendar library.
//!
//! Instants are in UTC, with a final `Z` if the column has a time zone. A fraction has no trailing zeros, so an
//! instant has the same text whatever the column's unit. Years past 9999 or before 0 have a sign.

use std::io::Write;

use arrow_schema::TimeUnit;

/// Ticks per second: 1, 1_000, 1_000_000 or 1_000_000_000.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticks(pub i64);

impl Ticks {
    pub fn of(unit: TimeUnit) -> Ticks {
        Ticks(match unit {
            TimeUnit::Second => 1,
            TimeUnit::Millisecond => 1_000,
            TimeUnit::Microsecond => 1_000_000,
            TimeUnit::Nanosecond => 1_000_000_000,
        })
    }
}

/// A calendar interval. Its three parts do not convert into each other: a month has no fixed number of days.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Interval {
    pub months: i32,
    pub days: i32,
    pub nanos: i64,
}

const DAY_SECONDS: i64 = 86_400;

pub(crate) fn write_instant(out: &mut Vec<u8>, value: i64, ticks: Ticks, zoned: bool) {
    let seconds = value.div_euclid(ticks.0);
    write_date(out, seconds.div_euclid(DAY_SECONDS));
    out.push(b'T');
    let second_of_day = seconds.rem_euclid(DAY_SECONDS);
    write_clock(out, second_of_day, value.rem_euclid(ticks.0), ticks);
    if zoned {
        out.push(b'Z');
    }
}

pub(crate) fn write_time_of_day(out: &mut Vec<u8>, value: i64, ticks: Ticks) {
    let second = value.div_euclid(ticks.0);
    write_clock(out, second, value.rem_euclid(ticks.0), ticks);
}

fn write_clock(out: &mut Vec<u8>, second: i64, fraction: i64, ticks: Ticks) {
    let (hour, minute) = (second / 3600, second / 60 % 60);
    text(
        out,
        format_args!("{hour:02}:{minute:02}:{:02}", second % 60),
    );
    write_fraction(out, fraction.unsigned_abs(), ticks);
}

/// Writes a decimal point and the digits after it without trailing zeros; nothing for zero.
fn write_fraction(out: &mut Vec<u8>, fraction: u64, ticks: Ticks) {
    if fraction == 0 {
        return;
    }
    let digits = ticks.0.ilog10() as usize;
    text(out, format_args!(".{fraction:0digits$}"));
    while out.last() == Some(&b'0') {
        out.pop();
    }
}

/// Writes seconds: `PT90.5S`, `-PT1S`.
pub(crate) fn write_duration(out: &mut Vec<u8>, value: i64, ticks: Ticks) {
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(b"PT");
    write_seconds(out, value.unsigned_abs(), ticks);
}

fn write_seconds(out: &mut Vec<u8>, value: u64, ticks: Ticks) {
    let per_second = ticks.0.unsigned_abs();
    text(out, format_args!("{}", value / per_second));
    write_fraction(out, value % per_second, ticks);
    out.push(b'S');
}

/// Writes each part with its own sign, like PostgreSQL's `iso_8601`: `P1Y2M3DT4H5M6.5S`, `P-1M`, and `PT0S` for an
/// empty interval.
pub(crate) fn write_interval(out: &mut Vec<u8>, interval: Interval) {
    let Interval {
        months,
        days,
        nanos,
    } = interval;
    out.push(b'P');
    let begin = out.len();
    part(out, i64::from(months / 12), b'Y');
    part(out, i64::from(months % 12), b'M');
    part(out, i64::from(days), b'D');
    if nanos != 0 {
        const SECOND: i64 = 1_000_000_000;
        out.push(b'T');
        part(out, nanos / (3600 * SECOND), b'H');
        part(out, nanos / (60 * SECOND) % 60, b'M');
        let seconds = nanos % (60 * SECOND);
        if seconds != 0 {
            if seconds < 0 {
                out.push(b'-');
            }
            write_seconds(out, seconds.unsigned_abs(), Ticks(SECOND));
        }
    }
    if out.len() == begin {
        out.extend_from_slice(b"T0S");
    }
}

fn part(out: &mut Vec<u8>, value: i64, unit: u8) {
    if value != 0 {
        text(out, format_args!("{value}"));
        out.push(unit);
    }
}

/// Writes the date `days` after 1970-01-01.
pub(crate) fn write_date(out: &mut Vec<u8>, days: i64) {
    let (year, month, day) = larder_types::civil_date(days);
    match year {
        0..=9999 => text(out, format_args!("{year:04}-{month:02}-{day:02}")),
        _ => text(out, format_args!("{year:+05}-{month:02}-{day:02}")),
    }
}

fn text(out: &mut Vec<u8>, arguments: std::fmt::Arguments<'_>) {
    out.write_fmt(arguments)
        .expect("memory takes what is written to it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_in_iso_8601() {
        let shown = |value, ticks, zoned| {
            let mut out = Vec::new();
            write_instant(&mut out, value, Ticks(ticks), zoned);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown(0, 1, false), "1970-01-01T00:00:00");
        assert_eq!(shown(-1, 1_000, true), "1969-12-31T23:59:59.999Z");
        assert_eq!(
            shown(951_782_400_000_000, 1_000_000, true),
            "2000-02-29T00:00:00Z"
        );
        assert_eq!(shown(253_402_300_800, 1, false), "+10000-01-01T00:00:00");
        assert!(shown(i64::MIN, 1, false).starts_with('-'));
        assert_eq!(
            shown(1_500, 1_000_000_000, false),
            "1970-01-01T00:00:00.0000015"
        );
    }

    #[test]
    fn an_instant_has_the_same_text_in_every_unit() {
        for (value, ticks) in [
            (1_500, 1_000),
            (1_500_000, 1_000_000),
            (1_500_000_000, 1_000_000_000),
        ] {
            let mut out = Vec::new();
            write_instant(&mut out, value, Ticks(ticks), true);
            assert_eq!(out, b"1970-01-01T00:00:01.5Z");
        }
    }

    #[test]
    fn durations_and_intervals_are_written_in_iso_8601() {
        let duration = |value, ticks| {
            let mut out = Vec::new();
            write_duration(&mut out, value, Ticks(ticks));
            String::from_utf8(out).unwrap()
        };
        assert_eq!(duration(0, 1), "PT0S");
        assert_eq!(duration(-1_500, 1_000), "-PT1.5S");
        assert_eq!(duration(i64::MAX, 1), "PT9223372036854775807S");
        assert_eq!(duration(i64::MIN, 1), "-PT9223372036854775808S");
        let interval = |months, days, nanos| {
            let mut out = Vec::new();
            write_interval(
                &mut out,
                Interval {
                    months,
                    days,
                    nanos,
                },
            );
            String::from_utf8(out).unwrap()
        };
        assert_eq!(interval(0, 0, 0), "PT0S");
        assert_eq!(interval(14, 3, 14_706_500_000_000), "P1Y2M3DT4H5M6.5S");
        assert_eq!(interval(-1, 0, -500_000_000), "P-1MT-0.5S");
        assert_eq!(interval(0, 40, 90_000_000_000_000), "P40DT25H");
    }
}
