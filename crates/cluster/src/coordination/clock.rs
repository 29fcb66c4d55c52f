//! The clock for leases.

use rustix::time::{ClockId, clock_gettime};

/// Returns the milliseconds since the machine started, including time in suspension, so that a process finds its leases expired
/// after a suspension.
pub fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
