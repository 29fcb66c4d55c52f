//! Tries every set of a few layouts: the fifteen lists of four attributes have 32,768 sets. The program of the thesis
//! tries only those without a common attribute: 51 and the empty set.

use super::configuration::AttributeSet;
use super::problem::{LayoutSet, Problem, Top};

/// The maximum number of layouts for which all sets are tried: a million sets.
pub(super) const LAYOUTS_MAX: u32 = 20;

/// The maximum number of attributes for which all sets without a common attribute are tried. Ten attributes already have
/// 678,570 such sets.
pub(super) const DISJOINT_ATTRIBUTES_MAX: u32 = 9;

/// Tries every set, or with `is_disjoint` every set of layouts without a common attribute. Returns their number.
pub(super) fn try_all(problem: &Problem, is_disjoint: bool, top: &mut Top) -> u64 {
    assert!(is_disjoint || problem.count() <= LAYOUTS_MAX);
    let mut search = ExhaustiveSearch {
        problem,
        is_disjoint,
        top,
        open: Vec::new(),
        sets: 0,
    };
    let without = problem.without();
    search.branch(0, problem.fixed(), without, AttributeSet::default());
    search.sets
}

struct ExhaustiveSearch<'a> {
    problem: &'a Problem,
    is_disjoint: bool,
    top: &'a mut Top,
    open: LayoutSet,
    sets: u64,
}

impl ExhaustiveSearch<'_> {
    /// Tries the open layouts, and all sets that contain them and any layouts from `first`. `least` is the cost of each
    /// query with the open layouts, and `used` has their attributes.
    fn branch(&mut self, first: u32, upkeep: f64, least: &[f64], used: AttributeSet) {
        self.sets += 1;
        let cost = upkeep + least.iter().sum::<f64>();
        if self.top.would_keep(cost) {
            self.top.offer(self.problem, cost, self.open.clone());
        }
        if self.open.len() >= self.problem.open_max() {
            return;
        }
        for next in first..self.problem.count() {
            let attributes = self.problem.attributes(next);
            if self.is_disjoint && !attributes.common(used).is_empty() {
                continue;
            }
            let row = least.iter().zip(self.problem.row(next));
            let less: Vec<f64> = row.map(|(&least, &cost)| least.min(cost)).collect();
            let upkeep = upkeep + self.problem.upkeep(next);
            let used = AttributeSet(used.0 | attributes.0);
            self.open.push(next);
            self.branch(next + 1, upkeep, &less, used);
            self.open.pop();
        }
    }
}
