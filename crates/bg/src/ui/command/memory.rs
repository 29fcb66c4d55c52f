//! Checks that the parameters fit into this machine's memory: the kernel kills a process that exceeds it, without a
//! message.

use std::fs;

use larder_types::figures;

/// The proportion of the free memory, in percent, that members may use.
const MEMORY_PERCENT_MAX: u64 = 80;

/// Checks that `count` objects of `bytes` bytes each fit into memory.
///
/// # Errors
///
/// They do not fit. The message contains the memory that `what` would use and the memory available.
pub fn check(count: u32, what: &str, bytes: u64) -> Result<(), String> {
    match available() {
        Some(available) => check_fits(u64::from(count) * bytes, what, available),
        None => Ok(()),
    }
}

fn check_fits(needed: u64, what: &str, available: u64) -> Result<(), String> {
    if needed <= available / 100 * MEMORY_PERCENT_MAX {
        return Ok(());
    }
    Err(format!(
        "{what}: bg would need about {} of memory, but {} are free; use smaller values, or clients on several machines",
        figures::bytes(needed),
        figures::bytes(available)
    ))
}

/// Returns the bytes that can be allocated without swapping. None if the system does not report it.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excessive_memory_is_rejected_with_both_figures() {
        let gib = 1 << 30;
        assert_eq!(check_fits(gib, "--members 5", 2 * gib), Ok(()));
        let why = check_fits(800 * gib, "--members 4000000000", 2 * gib).expect_err("too many");
        assert!(
            why.contains("about 800.0 GiB") && why.contains("2.0 GiB are free"),
            "{why}"
        );
        assert!(available().is_none_or(|bytes| bytes > 0));
    }
}
