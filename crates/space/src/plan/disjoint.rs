//! All sets of subspaces without a common attribute, which the program of the thesis examines. Four attributes have 51
//! of them, plus the empty set.

use super::configuration::{AttributeSet, Layout};
use super::problem::{LayoutSet, Problem, Top};

/// The maximum number of attributes. Ten attributes already have 678,570 such sets.
pub(super) const ATTRIBUTES_MAX: u32 = 9;

/// Returns one layout for each non-empty list of attributes. As bits, the list `set` is at position `set - 1`.
pub(super) fn lists(attributes: u32, layout: impl Fn(AttributeSet) -> Layout) -> Vec<Layout> {
    let sets = 1..1u64 << attributes;
    sets.map(|set| layout(AttributeSet(set))).collect()
}

/// Tries all such sets of a problem whose layouts are [`lists`]. Returns their number.
pub(super) fn try_disjoint(problem: &Problem, attributes: u32, top: &mut Top) -> u64 {
    let mut search = DisjointSearch {
        problem,
        attributes,
        top,
        sets: 0,
    };
    search.branch(0, &mut Vec::new());
    search.sets
}

struct DisjointSearch<'a> {
    problem: &'a Problem,
    attributes: u32,
    top: &'a mut Top,
    sets: u64,
}

impl DisjointSearch<'_> {
    /// Completes the partial set in which each attribute before `next` is in one of these lists, or in none.
    fn branch(&mut self, next: u32, lists: &mut Vec<u64>) {
        if next == self.attributes {
            self.sets += 1;
            let mut open: LayoutSet = lists.iter().map(|list| *list as u32 - 1).collect();
            open.sort_unstable();
            let cost = self.problem.cost(&open);
            if self.top.would_keep(cost) {
                self.top.offer(self.problem, cost, open);
            }
            return;
        }
        self.branch(next + 1, lists);
        for at in 0..lists.len() {
            lists[at] |= 1 << next;
            self.branch(next + 1, lists);
            lists[at] &= !(1 << next);
        }
        lists.push(1 << next);
        self.branch(next + 1, lists);
        lists.pop();
    }
}
