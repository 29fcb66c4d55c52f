//! Whether what is asked for fits into this machine's memory: a process that takes more is killed without a word.

use std::fs;

use larder_types::figures;

/// Part of the memory that is free, as percent, that members may take.
const PART: u64 = 80;

/// Refuses so many things of so many bytes each that do not fit.
///
/// # Errors
///
/// How much `what` would take, and how much there is.
pub fn check(count: u32, what: &str, bytes: u64) -> Result<(), String> {
    match available() {
        Some(available) => fits(u64::from(count) * bytes, what, available),
        None => Ok(()),
    }
}

fn fits(needed: u64, what: &str, available: u64) -> Result<(), String> {
    if needed <= available / 100 * PART {
        return Ok(());
    }
    Err(format!(
        "{what}: bg would need some {} of memory for them, and {} are free; take fewer, or clients on several machines",
        figures::bytes(needed),
        figures::bytes(available)
    ))
}

/// Bytes that can be had without taking them from others; None where the system does not say.
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
    fn what_does_not_fit_is_refused_with_both_figures() {
        let gib = 1 << 30;
        assert_eq!(fits(gib, "--members 5", 2 * gib), Ok(()));
        let why = fits(800 * gib, "--members 4000000000", 2 * gib).expect_err("too many");
        assert!(
            why.contains("some 800.0 GiB") && why.contains("2.0 GiB are free"),
            "{why}"
        );
        assert!(available().is_none_or(|bytes| bytes > 0));
    }
}
