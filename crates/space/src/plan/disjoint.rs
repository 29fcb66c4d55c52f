//! All sets of subspaces of which no two have an attribute in common: those that the thesis's program looks at. Four attributes have 51 of them, and none.

use super::configuration::{AttributeSet, Layout};
use super::problem::{Open, Problem, Top};

/// With more attributes there are too many such sets: ten have 678,570.
pub(super) const ATTRIBUTES_MAX: u32 = 9;

/// One layout for each list of so many attributes, by its bits: the list `set` is at `set - 1`.
pub(super) fn lists(attributes: u32, layout: impl Fn(AttributeSet) -> Layout) -> Vec<Layout> {
    let sets = 1..1u64 << attributes;
    sets.map(|set| layout(AttributeSet(set))).collect()
}

/// Tries them all, of a problem whose layouts are [`lists`]; returns how many they are.
pub(super) fn try_disjoint(problem: &Problem, attributes: u32, top: &mut Top) -> u64 {
    let mut search = Search {
        problem,
        attributes,
        top,
        sets: 0,
    };
    search.branch(0, &mut Vec::new());
    search.sets
}

struct Search<'a> {
    problem: &'a Problem,
    attributes: u32,
    top: &'a mut Top,
    sets: u64,
}

impl Search<'_> {
    /// The sets in which the attributes before `next` are in these lists, or in none.
    fn branch(&mut self, next: u32, lists: &mut Vec<u64>) {
        if next == self.attributes {
            self.sets += 1;
            let mut open: Open = lists.iter().map(|list| *list as u32 - 1).collect();
            open.sort_unstable();
            let cost = self.problem.cost(&open);
            if self.top.wants(cost) {
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
