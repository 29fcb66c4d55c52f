//! One check with many seeds.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs a check with so many seeds, from 0 on; with `slow` of them where `LARDER_SLOW_TESTS` is set. `LARDER_SIM_SEED=7` runs it with
/// seed 7 alone, as it ran before.
///
/// # Panics
/// As the check does, when it has said with which seed.
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

/// A planted mistake must be found: the check fails with some seed of so many, and with that one passes where nothing is planted. It is told the
/// seed, and whether to plant.
///
/// # Panics
/// No seed finds it, or the one that does fails without it, too.
pub fn check_found(seeds: u64, check: impl Fn(u64, bool)) {
    let fails =
        |seed, is_planted| catch_unwind(AssertUnwindSafe(|| check(seed, is_planted))).is_err();
    let found = (0..seeds).find(|seed| fails(*seed, true));
    eprintln!("found by seed {found:?}");
    let found = found.unwrap_or_else(|| panic!("{seeds} seeds do not find it"));
    assert!(!fails(found, false), "seed {found} fails without it, too");
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn seeds_are_tried_in_their_order_until_one_fails() {
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
