//! Durations as options and settings spell them.

use std::time::Duration;

/// 250ms, 10s, 2m, 1.5s.
///
/// # Errors
///
/// What is no duration.
pub fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|it: char| it.is_ascii_digit() || it == '.');
    let number = &text[..text.len() - unit.len()];
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("a duration has a unit: 250ms, 10s, 2m".to_owned()),
    };
    let count: f64 = number
        .parse()
        .map_err(|_| format!("{number:?} is no number"))?;
    Duration::try_from_secs_f64(count * seconds).map_err(|why| why.to_string())
}
