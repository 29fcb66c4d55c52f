//! Formats numbers for tables, short but accurate, and escapes text for pages.

use std::time::Duration;

use larder_types::figures;

pub fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase());
    first.into_iter().flatten().chain(letters).collect()
}

/// Formats an integer with commas.
pub fn count(value: f64) -> String {
    figures::count(value.round() as u64)
}

/// Formats 12.5k, 3M.
pub fn short(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(unit, _)| value >= *unit) {
        Some((unit, name)) => format!("{}{name}", number(value / unit)),
        None => number(value),
    }
}

/// Formats with at most two decimals.
pub fn number(value: f64) -> String {
    figures::plain(value, 2)
}

/// Formats a duration in microseconds.
pub fn micros(value: f64) -> String {
    figures::duration(Duration::from_nanos((value * 1e3).round() as u64))
}

/// Formats with four decimals near 0 or 100, so that a few failures among many are visible.
pub fn fine_percent(value: f64) -> String {
    if value > 0.0 && (value < 1.0 || (value > 99.0 && value < 100.0)) {
        format!("{value:.4}%")
    } else {
        format!("{value:.2}%")
    }
}

/// Formats small shares: 0.0004%, 2%.
pub fn tiny_percent(value: f64) -> String {
    if value >= 0.01 {
        return coarse_percent(value);
    }
    let digits = (-value.log10()).ceil().clamp(2.0, 9.0) as usize;
    format!("{value:.digits$}%")
}

pub fn coarse_percent(value: f64) -> String {
    format!("{}%", number(value))
}

pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_accurate() {
        assert_eq!(count(1234567.4), "1,234,567");
        assert_eq!(count(100.0), "100");
        assert_eq!(short(12_500.0), "12.5k");
        assert_eq!(micros(1_234.0), "1.23 ms");
        assert_eq!(micros(45_678_900.0), "45.7 s");
        assert_eq!(micros(0.25), "250 ns");
        assert_eq!(fine_percent(0.0004), "0.0004%");
        assert_eq!(fine_percent(99.99951), "99.9995%");
        assert_eq!(fine_percent(100.0), "100.00%");
        assert_eq!(tiny_percent(0.0005), "0.0005%");
        assert_eq!(tiny_percent(2.5), "2.5%");
        assert_eq!(escape("a<b & \"c\""), "a&lt;b &amp; &quot;c&quot;");
    }
}
