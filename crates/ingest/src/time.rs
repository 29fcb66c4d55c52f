//! Instants, dates and times of day in ISO 8601, for any 64-bit count and without a calendar library's range.
//!
//! Instants are written in UTC: with a final `Z` when the column has a time zone. A fraction shows
//! the column's unit (3, 6 or 9 digits) and is left out when it is zero. Years past 9999 or before 0 carry a sign.

use std::io::Write;

/// Ticks per second: 1, 1_000, 1_000_000 or 1_000_000_000.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticks(pub i64);

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
    if fraction != 0 {
        let digits = ticks.0.ilog10() as usize;
        text(out, format_args!(".{fraction:0digits$}"));
    }
}

/// The date `days` after 1970-01-01.
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
    fn instants_as_people_write_them() {
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
            "1970-01-01T00:00:00.000001500"
        );
    }
}
