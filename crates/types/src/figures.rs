//! Formats numbers for people: counts, sizes, durations and times. Output for programs never uses these formats.

use std::time::Duration;

use crate::civil_date;

/// Formats `1234567` as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number of bytes with one decimal, in powers of 1024: `1.5 MiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64;
    let mut unit = "";
    for name in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = name;
    }
    format!("{value:.1} {unit}")
}

/// Formats a duration with at most three digits: `250 ns`, `1.5 µs`, `12.3 ms`, `4.56 s`, `3 min 20 s`.
pub fn duration(time: Duration) -> String {
    let (value, unit) = match time.as_secs_f64() {
        s if s >= 60.0 => {
            return format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60);
        }
        // A value that rounds up to the next unit in three digits is shown in that unit.
        s if s >= 0.9995 || time.is_zero() => (s, "s"),
        s if s >= 0.9995e-3 => (s * 1e3, "ms"),
        s if s >= 0.9995e-6 => (s * 1e6, "µs"),
        s => (s * 1e9, "ns"),
    };
    let decimals = match value {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{} {unit}", plain(value, decimals))
}

/// Formats a number with at most `decimals` decimals, without trailing zeros.
pub fn plain(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Formats seconds since 1970 as `2026-03-01 09:30:00Z`.
pub fn moment(unix_seconds: u64) -> String {
    let (year, month, day) = civil_date((unix_seconds / 86_400) as i64);
    let second = unix_seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_people() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!([5, 1536, 3 << 20].map(bytes), ["5 B", "1.5 KiB", "3.0 MiB"]);
        assert_eq!(plain(100.0, 0), "100");
        assert_eq!(plain(0.5, 2), "0.5");
    }

    #[test]
    fn durations_have_three_figures_at_most() {
        for (nanoseconds, text) in [
            (0, "0 s"),
            (250, "250 ns"),
            (1_500, "1.5 µs"),
            (850_000, "850 µs"),
            (999_499, "999 µs"),
            (999_500, "1 ms"),
            (1_234_000, "1.23 ms"),
            (12_340_000, "12.3 ms"),
            (4_560_000_000, "4.56 s"),
            (45_678_900_000, "45.7 s"),
            (200_000_000_000, "3 min 20 s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanoseconds)), text);
        }
    }

    #[test]
    fn moments_are_dates_and_times() {
        assert_eq!(moment(0), "1970-01-01 00:00:00Z");
        assert_eq!(moment(951_782_400), "2000-02-29 00:00:00Z");
        assert_eq!(moment(1_735_689_599), "2024-12-31 23:59:59Z");
    }
}
