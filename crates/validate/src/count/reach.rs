//! Subset sums.

/// Maximum number of sums to examine.
const SUMS_MAX: usize = 1 << 20;

/// Returns whether `base` plus some subset of `deltas` equals `target`; `None` if the search is too expensive.
pub fn reaches(base: i64, deltas: &[i32], target: i64) -> Option<bool> {
    let mut deltas = deltas.to_vec();
    // Large deltas first: the remaining ones then cover a small range, and few sums stay in the search.
    deltas.sort_unstable_by_key(|delta| std::cmp::Reverse(delta.unsigned_abs()));
    let (mut below, mut above) = (0, 0);
    for &delta in &deltas {
        below += i64::from(delta).min(0);
        above += i64::from(delta).max(0);
    }
    let mut sums = vec![base];
    for delta in deltas {
        let delta = i64::from(delta);
        below -= delta.min(0);
        above -= delta.max(0);
        sums = with(&sums, delta);
        sums.retain(|sum| sum + below <= target && target <= sum + above);
        if sums.len() > SUMS_MAX {
            return None;
        }
    }
    Some(sums.binary_search(&target).is_ok())
}

/// Returns `base` plus every subset sum of `deltas`, ascending; `None` if there are too many.
pub fn all(base: i64, deltas: &[i32]) -> Option<Vec<i64>> {
    let mut sums = vec![base];
    for &delta in deltas {
        sums = with(&sums, i64::from(delta));
        if sums.len() > SUMS_MAX {
            return None;
        }
    }
    Some(sums)
}

/// Merges the sums with the same sums plus `delta`, ascending and without duplicates.
fn with(sums: &[i64], delta: i64) -> Vec<i64> {
    let mut merged = Vec::with_capacity(sums.len() * 2);
    let mut added = sums.iter().map(|sum| sum + delta).peekable();
    for &sum in sums {
        while let Some(smaller) = added.next_if(|other| *other < sum) {
            merged.push(smaller);
        }
        added.next_if_eq(&sum);
        merged.push(sum);
    }
    merged.extend(added);
    merged
}
