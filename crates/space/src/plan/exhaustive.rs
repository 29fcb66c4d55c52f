//! All sets of a few layouts: the fifteen lists of four attributes have 32,768.

use super::problem::{LayoutSet, Problem, Top};

/// The maximum number of layouts for which all sets are tried: a million sets.
pub(super) const LAYOUTS_MAX: u32 = 20;

/// Tries every set. Returns their number.
pub(super) fn try_all(problem: &Problem, top: &mut Top) -> u64 {
    assert!(problem.count() <= LAYOUTS_MAX);
    let mut search = ExhaustiveSearch {
        problem,
        top,
        open: Vec::new(),
        sets: 0,
    };
    search.branch(0, problem.fixed(), problem.without().to_vec());
    search.sets
}

struct ExhaustiveSearch<'a> {
    problem: &'a Problem,
    top: &'a mut Top,
    open: LayoutSet,
    sets: u64,
}

impl ExhaustiveSearch<'_> {
    /// Tries all sets that contain the open layouts before `next`, and any of the others.
    fn branch(&mut self, next: u32, upkeep: f64, least: Vec<f64>) {
        if next == self.problem.count() {
            self.sets += 1;
            let cost = upkeep + least.iter().sum::<f64>();
            if self.top.would_keep(cost) {
                self.top.offer(self.problem, cost, self.open.clone());
            }
            return;
        }
        if self.open.len() < self.problem.open_max() {
            let row = least.iter().zip(self.problem.row(next));
            let less = row.map(|(&least, &cost)| least.min(cost)).collect();
            self.open.push(next);
            self.branch(next + 1, upkeep + self.problem.upkeep(next), less);
            self.open.pop();
        }
        self.branch(next + 1, upkeep, least);
    }
}
