//! Runs a check with many seeds.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs a check with the seeds from 0 to `quick`, or to `slow` if `LARDER_SLOW_TESTS` is set (exclusive).
/// `LARDER_SIM_SEED=7` runs only seed 7, to reproduce a run.
///
/// # Panics
/// If the check does, after the seed was printed.
pub fn for_each_seed(quick: u64, slow: u64, check: impl Fn(u64)) {
    let only = std::env::var("LARDER_SIM_SEED").ok();
    if let Some(seed) = only.and_then(|seed| seed.parse().ok()) {
        return check(seed);
    }
    let count = match std::env::var_os("LARDER_SLOW_TESTS") {
        Some(_) => slow,
        None => quick,
    };
    for seed in 0..count {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(seed))) {
            eprintln!("failed with seed {seed}: LARDER_SIM_SEED={seed} runs it alone");
            resume_unwind(panic);
        }
    }
}

/// Verifies that a check finds a planted bug: it must fail with one of `seeds` seeds from `first` on, and pass with the
/// same seed without the bug. Its arguments are the seed, and whether to plant the bug. `first` is a seed that is known
/// to find the bug. If `LARDER_SLOW_TESTS` is set, a later seed must find it too.
///
/// # Panics
/// If no seed finds the bug, or if the check fails without the bug, too.
pub fn check_found(first: u64, seeds: u64, check: impl Fn(u64, bool)) {
    let fails =
        |seed, is_planted| catch_unwind(AssertUnwindSafe(|| check(seed, is_planted))).is_err();
    let is_slow = std::env::var_os("LARDER_SLOW_TESTS").is_some();
    let first = first + u64::from(is_slow);
    let found = (first..first + seeds).find(|seed| fails(*seed, true));
    eprintln!("found by seed {found:?}");
    let found = found.unwrap_or_else(|| panic!("{seeds} seeds from {first} on do not find it"));
    assert!(!fails(found, false), "seed {found} fails without it, too");
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn seeds_run_in_order_until_one_fails() {
        let tried = RefCell::new(Vec::new());
        let failed = catch_unwind(AssertUnwindSafe(|| {
            for_each_seed(10, 10, |seed| {
                tried.borrow_mut().push(seed);
                assert!(seed < 3);
            });
        }));
        let alone = std::env::var_os("LARDER_SIM_SEED").is_some();
        assert!(alone || (failed.is_err() && tried.into_inner() == [0, 1, 2, 3]));
    }
}
