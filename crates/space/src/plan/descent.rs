//! Local search: moves from a set of layouts to a better neighbour until there is none.
//!
//! A step removes up to two layouts and adds at most one: it adds, drops, swaps, or merges two into one. Without
//! merges, a set of single attributes could only be left through worse sets if writes are frequent.

use super::problem::{LayoutSet, Problem, Top};

/// The minimum gain of a step, above the rounding errors.
const GAIN_MIN: f64 = 1e-12;

/// Returns the best set that steps from `start` lead to, and its cost. `steps` counts the layouts compared, for each
/// query.
pub(super) fn descend(
    problem: &Problem,
    start: LayoutSet,
    top: &mut Top,
    steps: &mut u64,
) -> (LayoutSet, f64) {
    let mut open = start;
    open.truncate(problem.open_max());
    open.sort_unstable();
    open.dedup();
    let mut cost = problem.cost(&open);
    if top.would_keep(cost) {
        top.offer(problem, cost, open.clone());
    }
    let mut left = Vec::with_capacity(problem.queries());
    loop {
        let mut best: Option<(f64, LayoutSet)> = None;
        let mut consider = |cost: f64, out: &[u32], into: Option<u32>| {
            let is_better = best.as_ref().is_none_or(|best| cost < best.0);
            if !is_better && !top.would_keep(cost) {
                return;
            }
            let kept = open.iter().copied().filter(|it| !out.contains(it));
            let mut next: LayoutSet = kept.chain(into).collect();
            next.sort_unstable();
            if is_better {
                best = Some((cost, next.clone()));
            }
            top.offer(problem, cost, next);
        };
        for (at, &one) in open.iter().enumerate() {
            for &other in &open[at..] {
                let pair = [one, other];
                let out = if one == other { &pair[..1] } else { &pair[..] };
                explore(problem, &open, out, &mut left, steps, &mut consider);
            }
        }
        explore(problem, &open, &[], &mut left, steps, &mut consider);
        match best {
            Some((better, next)) if better < cost * (1.0 - GAIN_MIN) => {
                (open, cost) = (next, better);
            }
            _ => return (open, cost),
        }
    }
}

/// Considers all steps that remove these layouts.
fn explore(
    problem: &Problem,
    open: &[u32],
    out: &[u32],
    left: &mut Vec<f64>,
    steps: &mut u64,
    consider: &mut impl FnMut(f64, &[u32], Option<u32>),
) {
    left.clear();
    left.extend_from_slice(problem.without());
    let mut upkeep = problem.fixed();
    let kept = open.iter().filter(|it| !out.contains(it));
    for &at in kept.clone() {
        upkeep += problem.upkeep(at);
        for (least, &cost) in left.iter_mut().zip(problem.row(at)) {
            *least = least.min(cost);
        }
    }
    if !out.is_empty() {
        consider(upkeep + left.iter().sum::<f64>(), out, None);
    }
    if kept.count() >= problem.open_max() {
        return;
    }
    for at in 0..problem.count() {
        if open.contains(&at) {
            continue;
        }
        let costs = left.iter().zip(problem.row(at));
        let queries: f64 = costs.map(|(least, &cost)| least.min(cost)).sum();
        consider(upkeep + problem.upkeep(at) + queries, out, Some(at));
    }
    *steps += u64::from(problem.count()) * problem.queries() as u64;
}
