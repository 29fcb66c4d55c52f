//! The time of day, by which rows expire and by which the controller writes down when something was.
//!
//! `LARDER_CLOCK_AHEAD_SECONDS=-3600` puts it back by an hour, for tests of nodes whose clocks are apart. Release builds hold no such thing.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = since.map_or(0, |since| since.as_millis() as u64);
    now.saturating_add_signed(ahead_ms())
}

#[cfg(debug_assertions)]
fn ahead_ms() -> i64 {
    use std::sync::OnceLock;
    static AHEAD: OnceLock<i64> = OnceLock::new();
    *AHEAD.get_or_init(|| {
        let seconds = std::env::var("LARDER_CLOCK_AHEAD_SECONDS").unwrap_or_default();
        seconds.parse::<i64>().unwrap_or(0) * 1000
    })
}

#[cfg(not(debug_assertions))]
#[inline(always)]
fn ahead_ms() -> i64 {
    0
}
