//! The clock that leases are measured by.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine started, also while it is suspended: a process that slept finds its leases ended.
pub fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
