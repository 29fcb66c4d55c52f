//! The choice of subspaces as uncapacitated facility location: subspaces are facilities, and query classes are
//! customers.
//!
//! A query uses the cheapest available subspace, or the key subspace; writes pay for every subspace. The cost of a set
//! is therefore a sum of minima and of upkeep, and not all sets need to be tried: 12 attributes have 4,095 lists, and
//! 2^4095 sets of them.

use super::configuration::{AttributeSet, Layout};
use super::model::CostModel;

/// The precomputed costs of some layouts.
#[derive(Debug, Clone)]
pub struct Problem {
    layouts: Vec<Layout>,
    attributes: Vec<AttributeSet>,
    /// The cost of each query with each layout, at most the cost without it.
    costs: Vec<f64>,
    upkeep: Vec<f64>,
    without: Vec<f64>,
    fixed: f64,
    open_max: usize,
}

/// The indices of layouts, ascending.
pub(super) type LayoutSet = Vec<u32>;

impl Problem {
    pub fn new(model: &dyn CostModel, layouts: impl IntoIterator<Item = Layout>) -> Problem {
        let mut problem = Problem {
            layouts: Vec::new(),
            attributes: Vec::new(),
            costs: Vec::new(),
            upkeep: Vec::new(),
            without: (0..model.queries()).map(|it| model.without(it)).collect(),
            fixed: model.fixed(),
            open_max: model.subspaces_max(),
        };
        for layout in layouts {
            problem.add(model, layout);
        }
        problem
    }

    /// Returns the index of a layout, and adds the layout if it is new.
    pub fn add(&mut self, model: &dyn CostModel, layout: Layout) -> u32 {
        if let Some(at) = self.find(&layout) {
            return at;
        }
        for (query, without) in self.without.iter().enumerate() {
            self.costs.push(model.with(query, &layout).min(*without));
        }
        self.upkeep.push(model.upkeep(&layout));
        self.attributes.push(layout.attributes());
        self.layouts.push(layout);
        self.layouts.len() as u32 - 1
    }

    pub fn find(&self, layout: &Layout) -> Option<u32> {
        let attributes = layout.attributes();
        let mut same = self.attributes.iter().zip(&self.layouts);
        let at = same.position(|(set, other)| *set == attributes && other == layout);
        at.map(|at| at as u32)
    }

    /// Returns the layouts, by index.
    pub fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    pub fn layouts_of(&self, open: &[u32]) -> Vec<Layout> {
        let layouts = open.iter().map(|&at| self.layouts[at as usize].clone());
        layouts.collect()
    }

    pub fn queries(&self) -> usize {
        self.without.len()
    }

    /// Returns the mean cost of an operation with these layouts.
    pub fn cost(&self, open: &[u32]) -> f64 {
        let upkeep: f64 = open.iter().map(|&at| self.upkeep[at as usize]).sum();
        let queries = (0..self.queries()).map(|query| {
            let costs = open.iter().map(|&at| self.row(at)[query]);
            costs.fold(self.without[query], f64::min)
        });
        self.fixed + upkeep + queries.sum::<f64>()
    }

    pub(super) fn row(&self, at: u32) -> &[f64] {
        let queries = self.queries();
        &self.costs[at as usize * queries..][..queries]
    }

    pub(super) fn attributes(&self, at: u32) -> AttributeSet {
        self.attributes[at as usize]
    }

    pub(super) fn upkeep(&self, at: u32) -> f64 {
        self.upkeep[at as usize]
    }

    pub(super) fn without(&self) -> &[f64] {
        &self.without
    }

    pub(super) fn fixed(&self) -> f64 {
        self.fixed
    }

    pub(super) fn open_max(&self) -> usize {
        self.open_max
    }

    pub(super) fn count(&self) -> u32 {
        self.layouts.len() as u32
    }

    /// Returns the attribute lists of a set, without their bits and order.
    fn family(&self, open: &[u32]) -> Vec<AttributeSet> {
        let sets = open.iter().map(|&at| self.attributes[at as usize]);
        let mut family: Vec<AttributeSet> = sets.collect();
        family.sort_unstable();
        family
    }
}

/// The relative difference up to which costs count as equal, because of rounding.
const COST_EPSILON: f64 = 1e-12;

/// The cheapest sets seen, at most one for the same attribute lists. Of sets with equal costs, the one with the fewest
/// layouts is kept, because layouts take memory that a model may ignore.
#[derive(Debug, Clone)]
pub(super) struct Top {
    size: usize,
    best: Vec<(f64, Vec<AttributeSet>, LayoutSet)>,
}

impl Top {
    pub fn new(size: usize) -> Top {
        Top {
            size: size.max(1),
            best: Vec::new(),
        }
    }

    /// Returns whether a set of this cost would be kept.
    pub fn would_keep(&self, cost: f64) -> bool {
        self.best.len() < self.size || cost <= self.best[self.size - 1].0 * (1.0 + COST_EPSILON)
    }

    pub fn offer(&mut self, problem: &Problem, cost: f64, open: LayoutSet) {
        if !self.would_keep(cost) {
            return;
        }
        let family = problem.family(&open);
        if let Some(at) = self.best.iter().position(|it| it.1 == family) {
            if !is_before((cost, &open), &self.best[at]) {
                return;
            }
            self.best.remove(at);
        }
        let at = self.best.iter().position(|it| is_before((cost, &open), it));
        let at = at.unwrap_or(self.best.len());
        self.best.insert(at, (cost, family, open));
        self.best.truncate(self.size);
    }

    /// Returns the sets by ascending cost.
    pub fn best(&self) -> impl Iterator<Item = (f64, &LayoutSet)> {
        self.best.iter().map(|(cost, _, open)| (*cost, open))
    }
}

/// Returns whether a set is better than a known one.
fn is_before((cost, open): (f64, &LayoutSet), known: &(f64, Vec<AttributeSet>, LayoutSet)) -> bool {
    if (cost - known.0).abs() <= known.0 * COST_EPSILON {
        open.len() < known.2.len()
    } else {
        cost < known.0
    }
}
