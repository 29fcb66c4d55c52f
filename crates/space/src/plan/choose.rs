//! Finds the best sets of layouts under one model by local search from many starts, and proves how good they are.

use larder_types::Random;
use serde::{Deserialize, Serialize};

use super::configuration::{AttributeSet, Layout};
use super::descent::descend;
use super::exhaustive::{LAYOUTS_MAX, try_all};
use super::heuristics::{Heuristic, heuristic};
use super::model::CostModel;
use super::problem::{LayoutSet, Problem, Top};
use super::proof::prove;

/// The parameters of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// The number of best configurations to report.
    pub top: usize,
    /// The number of random configurations to report, for comparison.
    pub random: usize,
    /// The number of random starts, in addition to those derived from the workload.
    pub starts: usize,
    /// The maximum number of steps of the proof. A step is one query of one layout, which takes a few nanoseconds. 0
    /// disables the proof.
    pub proof_steps: u64,
    pub seed: u64,
    /// The relative cost by which the chosen configuration may exceed the best, if it is simpler: see
    /// [`Report::chosen`](super::Report::chosen).
    pub tolerance: f64,
    /// The attributes with local indexes. `None`: the search chooses them too.
    pub indexes: Option<AttributeSet>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            top: 10,
            random: 32,
            starts: 12,
            proof_steps: 2_000_000_000,
            seed: 1,
            tolerance: 0.1,
            indexes: None,
        }
    }
}

/// The evidence that no better set of the examined layouts exists.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Proof {
    pub layouts: u64,
    /// All sets were tried.
    pub is_exhaustive: bool,
    /// It is proven that no set is better, no cost is a guess, and the workload is complete.
    pub is_proven: bool,
    /// A lower bound of the cost of all sets, in the model's unit.
    pub bound: f64,
    /// The maximum relative excess of the found cost over the optimum: 0.02 is 2 %.
    pub gap: f64,
}

/// The best sets of layouts found.
#[derive(Debug, Clone)]
pub struct Choice {
    pub problem: Problem,
    /// By ascending cost, with at most one set for the same attribute lists.
    pub top: Vec<(f64, Vec<u32>)>,
    pub proof: Proof,
    /// The number of layouts compared, counted for each query.
    pub steps: u64,
}

impl Choice {
    pub fn cost(&self) -> f64 {
        self.top[0].0
    }

    pub fn best(&self) -> Vec<Layout> {
        self.problem.layouts_of(&self.top[0].1)
    }
}

/// Finds the best sets of these layouts under a model. `known` is an additional start. `constrained` contains the
/// attributes that each query constrains. `more` returns variants of a layout; the variants of the best set's layouts
/// become candidates too.
pub fn choose(
    model: &dyn CostModel,
    layouts: Vec<Layout>,
    known: &[Layout],
    constrained: &[AttributeSet],
    options: &Options,
    more: impl Fn(&Layout) -> Vec<Layout>,
) -> Choice {
    let mut problem = Problem::new(model, layouts);
    let known = known.iter().map(|it| problem.add(model, it.clone()));
    let known: LayoutSet = known.collect();
    let mut top = Top::new(options.top);
    let mut steps = 0;
    let mut best: Option<(LayoutSet, f64)> = None;
    let keep = |found: (LayoutSet, f64), best: &mut Option<(LayoutSet, f64)>| {
        if best.as_ref().is_none_or(|best| found.1 < best.1) {
            *best = Some(found);
        }
    };
    let is_exhaustive = problem.count() <= LAYOUTS_MAX;
    if is_exhaustive {
        steps += try_all(&problem, false, &mut top) * problem.queries() as u64;
    } else {
        let starts = starts(&problem, constrained, options);
        for start in starts.into_iter().chain([known]) {
            let found = descend(&problem, start, &mut top, &mut steps);
            keep(found, &mut best);
        }
    }
    if let Some(first) = top.best().next() {
        keep((first.1.clone(), first.0), &mut best);
    }
    let (mut open, mut cost) = best.expect("the empty set is a start");
    // Add variants of the best set's layouts as long as they improve it.
    loop {
        let near: Vec<Layout> = open
            .iter()
            .flat_map(|&at| more(&problem.layouts()[at as usize]))
            .collect();
        let before = problem.count();
        for layout in near {
            problem.add(model, layout);
        }
        if problem.count() == before {
            break;
        }
        let found = descend(&problem, open.clone(), &mut top, &mut steps);
        if found.1 >= cost * (1.0 - 1e-12) {
            break;
        }
        (open, cost) = found;
    }
    let all_tried = is_exhaustive && problem.count() <= LAYOUTS_MAX;
    let mut left = options.proof_steps;
    let (bound, is_proven) = match all_tried {
        true => (cost, true),
        false if left == 0 => (problem.fixed(), false),
        false => {
            let bound = prove(&problem, &mut top, &mut left);
            (bound.cost, bound.is_complete)
        }
    };
    let top: Vec<(f64, LayoutSet)> = top
        .best()
        .map(|(cost, open)| (cost, open.clone()))
        .collect();
    let proof = Proof {
        layouts: problem.count().into(),
        is_exhaustive: all_tried,
        is_proven,
        bound,
        gap: (top[0].0 / bound - 1.0).max(0.0),
    };
    Choice {
        problem,
        top,
        proof,
        steps,
    }
}

/// Returns the starts: the empty set, each single attribute's layout alone and all of them together, the heuristics,
/// the favourites of the queries, and random sets.
fn starts(problem: &Problem, constrained: &[AttributeSet], options: &Options) -> Vec<LayoutSet> {
    let mut starts: Vec<LayoutSet> = Heuristic::ALL
        .iter()
        .map(|&which| heuristic(which, problem, constrained))
        .collect();
    let favourites: Vec<u32> = (0..problem.queries())
        .filter_map(|query| {
            let layouts = 0..problem.count();
            layouts.min_by(|&one, &other| {
                let cost = |at: u32| problem.row(at)[query] + problem.upkeep(at);
                cost(one).total_cmp(&cost(other))
            })
        })
        .collect();
    starts.push(favourites);
    let mut random = Random::new(options.seed);
    for _ in 0..options.starts {
        starts.push(random_set(problem, &mut random));
    }
    starts
}

/// Returns a random set of one to six layouts.
pub(super) fn random_set(problem: &Problem, random: &mut Random) -> LayoutSet {
    let most = problem.open_max().min(6).min(problem.count() as usize);
    if most == 0 {
        return Vec::new();
    }
    let count = 1 + random.index(most);
    let mut open: LayoutSet = (0..count)
        .map(|_| random.below(problem.count().into()) as u32)
        .collect();
    open.sort_unstable();
    open.dedup();
    open
}
