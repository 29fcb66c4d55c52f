//! Simple heuristics for choosing subspaces, as compared in the thesis.

use serde::{Deserialize, Serialize};

use super::configuration::AttributeSet;
use super::problem::{LayoutSet, Problem};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Heuristic {
    /// No subspace: each search contacts every server.
    NoSubspace,
    /// One subspace of all searched attributes.
    OneHyperspace,
    /// One subspace for each searched attribute.
    OnePerAttribute,
    /// One subspace: the attributes of the query that is most expensive without it.
    Dominant,
    /// Single attributes, added in order of their gain as long as there is one.
    Greedy,
}

impl Heuristic {
    pub const ALL: [Heuristic; 5] = [
        Heuristic::NoSubspace,
        Heuristic::OneHyperspace,
        Heuristic::OnePerAttribute,
        Heuristic::Dominant,
        Heuristic::Greedy,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Heuristic::NoSubspace => "no subspace",
            Heuristic::OneHyperspace => "one hyperspace",
            Heuristic::OnePerAttribute => "one per attribute",
            Heuristic::Dominant => "dominant",
            Heuristic::Greedy => "greedy",
        }
    }
}

/// Returns the choice of a heuristic among the layouts of a problem. `constrained` contains the attributes that each
/// query constrains.
///
/// Lists without a layout are omitted, so the result may have fewer subspaces than the heuristic would choose.
pub fn heuristic(which: Heuristic, problem: &Problem, constrained: &[AttributeSet]) -> Vec<u32> {
    let all = AttributeSet(constrained.iter().fold(0, |all, it| all | it.0));
    let layout = |list: AttributeSet| cheapest(problem, list);
    let singles = || all.iter().filter_map(|it| layout(AttributeSet::of([it])));
    let mut open: LayoutSet = match which {
        Heuristic::NoSubspace => Vec::new(),
        Heuristic::OneHyperspace => largest(problem, all).into_iter().collect(),
        Heuristic::OnePerAttribute => singles().collect(),
        Heuristic::Dominant => {
            let costs = problem.without().iter().enumerate();
            let dominant = costs.max_by(|one, other| one.1.total_cmp(other.1));
            let list = dominant.map(|(query, _)| constrained[query]);
            list.and_then(|it| largest(problem, it))
                .into_iter()
                .collect()
        }
        Heuristic::Greedy => greedy(problem, singles().collect()),
    };
    open.sort_unstable();
    open.truncate(problem.open_max());
    open
}

fn greedy(problem: &Problem, mut left: LayoutSet) -> LayoutSet {
    let mut open = Vec::new();
    let mut cost = problem.cost(&open);
    loop {
        let with = |&at: &u32| {
            let mut with = open.clone();
            with.push(at);
            problem.cost(&with)
        };
        let best = left
            .iter()
            .copied()
            .min_by(|one, other| with(one).total_cmp(&with(other)));
        match best {
            Some(best) if with(&best) < cost => {
                cost = with(&best);
                left.retain(|it| *it != best);
                open.push(best);
            }
            _ => return open,
        }
    }
}

/// Returns the layout of a list that is cheapest on its own.
fn cheapest(problem: &Problem, list: AttributeSet) -> Option<u32> {
    let of_list = (0..problem.count()).filter(|&at| {
        let layout = &problem.layouts()[at as usize];
        layout.attributes() == list
    });
    of_list.min_by(|&one, &other| problem.cost(&[one]).total_cmp(&problem.cost(&[other])))
}

/// Like [`cheapest`]; for a list with more attributes than bits, uses the longest list within it.
fn largest(problem: &Problem, list: AttributeSet) -> Option<u32> {
    cheapest(problem, list).or_else(|| {
        let within = problem.layouts().iter().map(|it| it.attributes());
        let within = within.filter(|it| it.common(list) == *it);
        let longest = within.max_by_key(|it| it.count());
        longest.and_then(|it| cheapest(problem, it))
    })
}
