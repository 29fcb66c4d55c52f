//! The wall clock, used for the expiry of rows and for timestamps.
//!
//! `LARDER_CLOCK_AHEAD_SECONDS=-3600` sets it back by an hour, for tests of nodes with different clocks. Release builds do not
//! support it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    unix_time().as_millis() as u64
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    unix_time().as_secs()
}

/// The time since 1970.
pub fn unix_time() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let (now, offset_ms) = (since.unwrap_or_default(), offset_ms());
    let offset = Duration::from_millis(offset_ms.unsigned_abs());
    if offset_ms < 0 {
        now.saturating_sub(offset)
    } else {
        now + offset
    }
}

#[cfg(debug_assertions)]
fn offset_ms() -> i64 {
    use std::sync::OnceLock;
    static OFFSET_MS: OnceLock<i64> = OnceLock::new();
    *OFFSET_MS.get_or_init(|| {
        let seconds = std::env::var("LARDER_CLOCK_AHEAD_SECONDS").unwrap_or_default();
        seconds.parse::<i64>().unwrap_or(0) * 1000
    })
}

#[cfg(not(debug_assertions))]
#[inline(always)]
fn offset_ms() -> i64 {
    0
}
