//! Finds the simplest set whose cost is close to the best.
//!
//! Predictions have errors: a model with an error of a tenth cannot distinguish the best set from one that is a tenth
//! worse. Fewer subspaces use less memory, and writes wait for fewer servers. Of the sets that a model cannot
//! distinguish, the simplest is therefore chosen. Statistics does the same with trees that fit the data about equally
//! well (L. Breiman, J. Friedman, R. Olshen, C. Stone, "Classification and Regression Trees", 1984, section 3.4.3: the
//! 1 SE rule).

use super::problem::{LayoutSet, Problem};

/// Returns the simplest set with a cost of at most `cost_max`: the one with the fewest layouts, then with the fewest
/// attributes in them, then the cheapest. It considers the starts, and the sets obtained from them by removing layouts,
/// merging two, or replacing one by a shorter one. `None` if all starts cost more.
pub(super) fn simplest(
    problem: &Problem,
    starts: impl IntoIterator<Item = LayoutSet>,
    cost_max: f64,
) -> Option<LayoutSet> {
    let is_in = |open: &LayoutSet| problem.cost(open) <= cost_max;
    let starts = starts.into_iter().filter(is_in);
    let simplified = starts.map(|start| simplified(problem, start, cost_max));
    simplified.min_by(|one, other| {
        let sizes = size(problem, one).cmp(&size(problem, other));
        sizes.then_with(|| problem.cost(one).total_cmp(&problem.cost(other)))
    })
}

fn simplified(problem: &Problem, mut open: LayoutSet, cost_max: f64) -> LayoutSet {
    loop {
        let found = fewer(problem, &open, cost_max).or_else(|| shorter(problem, &open, cost_max));
        match found {
            Some(next) => open = next,
            None => return open,
        }
    }
}

/// Returns the cheapest set with one layout fewer, by removing one or by replacing two with one.
fn fewer(problem: &Problem, open: &LayoutSet, cost_max: f64) -> Option<LayoutSet> {
    let one_less = (0..open.len()).map(|at| without(open, at));
    let found = cheapest(problem, one_less, cost_max);
    found.or_else(|| {
        let pairs = (0..open.len()).flat_map(|at| (0..at).map(move |before| (at, before)));
        let merged = pairs.flat_map(|(at, before)| {
            let left = without(&without(open, at), before);
            (0..problem.count()).map(move |layout| with(left.clone(), layout))
        });
        cheapest(problem, merged, cost_max)
    })
}

/// Returns the cheapest set in which a layout with fewer attributes replaces one.
fn shorter(problem: &Problem, open: &LayoutSet, cost_max: f64) -> Option<LayoutSet> {
    let swapped = (0..open.len()).flat_map(|at| {
        let (left, long) = (without(open, at), length(problem, open[at]));
        let shorter = (0..problem.count()).filter(move |it| length(problem, *it) < long);
        shorter.map(move |layout| with(left.clone(), layout))
    });
    cheapest(problem, swapped, cost_max)
}

fn cheapest(
    problem: &Problem,
    sets: impl Iterator<Item = LayoutSet>,
    cost_max: f64,
) -> Option<LayoutSet> {
    let priced = sets.map(|open| (problem.cost(&open), open));
    let cheap = priced.filter(|it| it.0 <= cost_max);
    let cheapest = cheap.min_by(|one, other| one.0.total_cmp(&other.0));
    cheapest.map(|it| it.1)
}

fn without(open: &[u32], at: usize) -> LayoutSet {
    let mut left = open.to_vec();
    left.remove(at);
    left
}

fn with(mut open: LayoutSet, layout: u32) -> LayoutSet {
    if let Err(at) = open.binary_search(&layout) {
        open.insert(at, layout);
    }
    open
}

fn size(problem: &Problem, open: &[u32]) -> (usize, usize) {
    let lengths = open.iter().map(|&at| length(problem, at));
    (open.len(), lengths.sum())
}

fn length(problem: &Problem, layout: u32) -> usize {
    problem.layouts()[layout as usize].dimensions.len()
}

#[cfg(test)]
mod tests {
    use larder_types::Random;

    use super::*;
    use crate::plan::configuration::{Configuration, Layout};
    use crate::plan::model::{CostModel, Prediction};

    /// Random costs: each list of three attributes helps some queries.
    struct RandomCosts {
        seed: u64,
    }

    impl CostModel for RandomCosts {
        fn queries(&self) -> usize {
            4
        }

        fn without(&self, _: usize) -> f64 {
            30.0
        }

        fn with(&self, query: usize, layout: &Layout) -> f64 {
            let list = layout.attributes().0;
            Random::stream(self.seed, 8 * query as u64 + list).below(30) as f64
        }

        fn upkeep(&self, layout: &Layout) -> f64 {
            1.0 + layout.dimensions.len() as f64
        }

        fn fixed(&self) -> f64 {
            20.0
        }

        fn subspaces_max(&self) -> usize {
            7
        }

        fn predict(&self, _: &Configuration) -> Prediction {
            unreachable!("only costs are needed")
        }
    }

    #[test]
    fn the_result_is_nearly_always_the_simplest_of_all_sets() {
        let (mut same, rounds) = (0, 300);
        for seed in 0..rounds {
            let list = |set: u8| Layout {
                dimensions: (0..3)
                    .filter(|at| set >> at & 1 == 1)
                    .map(|at| (at, 2))
                    .collect(),
            };
            let problem = Problem::new(&RandomCosts { seed }, (1..8).map(list));
            let all = (0..1u32 << 7).map(|set| (0..7).filter(|at| set >> at & 1 == 1).collect());
            let all: Vec<LayoutSet> = all.collect();
            let costs = all.iter().map(|open| problem.cost(open));
            let best = costs.fold(f64::INFINITY, f64::min);
            let start = all
                .iter()
                .find(|open| problem.cost(open) == best)
                .expect("there is one");
            let cost_max = best * 1.1;
            let within = all.iter().filter(|open| problem.cost(open) <= cost_max);
            let simplest_of_all = within.map(|open| size(&problem, open)).min();
            let found = simplest(&problem, [start.clone()], cost_max).expect("the start is one");
            assert!(problem.cost(&found) <= cost_max);
            assert!(size(&problem, &found) <= size(&problem, start));
            same += u64::from(Some(size(&problem, &found)) == simplest_of_all);
            assert_eq!(simplest(&problem, [start.clone()], best * 0.99), None);
        }
        assert!(100 * same >= 90 * rounds, "{same} of {rounds}");
    }
}
