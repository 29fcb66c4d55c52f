//! Proves by branch and bound that no set of the layouts is cheaper.
//!
//! The bound is a Lagrangian one. Each query offers a price for being served. A layout is open if its customers pay
//! more than its upkeep, where each pays the amount that it saves below its price. The sum of all prices, minus the
//! excess payments to these layouts, is a lower bound of the cost of any set. Dual ascent (Erlenkotter 1978) computes
//! the initial prices: it raises them as long as no layout is overpaid. A subgradient method then improves them: it
//! raises the price of a query that no layout serves, and lowers that of a query that several serve.
//!
//! The deficit of a layout, its upkeep minus the payments, is the amount by which any set with it exceeds the bound. If
//! that exceeds the best known set, the layout is closed permanently. Likewise, a layout with such an excess is opened.
//! Branching decides the others.

use super::problem::{LayoutSet, Problem, Top};

/// The number of price improvements at the root and at each branch.
const IMPROVED_AT_ROOT: u32 = 400;
const IMPROVED_AT_BRANCH: u32 = 40;

/// The result of the proof.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    /// A lower bound of the cost of all sets.
    pub cost: f64,
    /// True if the search is complete, so that the best known set is the optimum.
    pub is_complete: bool,
}

/// Proves that the best of `top` is the optimum, or finds a better set, in at most `steps` steps. A step is one query
/// of one layout. On return, `steps` is the remaining number.
pub(super) fn prove(problem: &Problem, top: &mut Top, steps: &mut u64) -> Bound {
    let rows = (0..problem.count()).map(|at| {
        let helped = |(query, (&cost, &without)): (usize, (&f64, &f64))| {
            (cost < without).then_some((query as u32, cost))
        };
        let row = problem.row(at).iter().zip(problem.without());
        row.enumerate().filter_map(helped).collect()
    });
    let mut proof = Proof {
        problem,
        rows: rows.collect(),
        top,
        steps,
        open_bound: f64::INFINITY,
    };
    let root = Node {
        is_free: vec![true; problem.count() as usize],
        open: Vec::new(),
        prices: problem.without().to_vec(),
    };
    let root_bound = proof.branch(root, true);
    let best = proof.best();
    let is_complete = proof.open_bound == f64::INFINITY;
    let cost = if is_complete {
        best
    } else {
        proof.open_bound.max(root_bound).min(best)
    };
    Bound { cost, is_complete }
}

struct Proof<'a> {
    problem: &'a Problem,
    /// For each layout, the queries that benefit from it.
    rows: Vec<Vec<(u32, f64)>>,
    top: &'a mut Top,
    steps: &'a mut u64,
    /// The lowest bound of an unexplored branch.
    open_bound: f64,
}

struct Node {
    /// The undecided layouts.
    is_free: Vec<bool>,
    open: LayoutSet,
    prices: Vec<f64>,
}

/// Prices, and the values derived from them.
struct Pricing {
    bound: f64,
    prices: Vec<f64>,
    /// The deficit of each layout: its upkeep minus the payments.
    short: Vec<f64>,
}

impl Proof<'_> {
    fn best(&self) -> f64 {
        self.top.best().next().map_or(f64::INFINITY, |best| best.0)
    }

    /// Returns whether a set of this cost would not improve the result.
    fn is_no_gain(&self, cost: f64) -> bool {
        cost >= self.best() * (1.0 - 1e-9)
    }

    /// Searches all sets of a node. Returns its lower bound.
    fn branch(&mut self, mut node: Node, is_root: bool) -> f64 {
        let free: Vec<u32> = self.free(&node);
        let improve = if is_root {
            IMPROVED_AT_ROOT
        } else {
            IMPROVED_AT_BRANCH
        };
        let priced = self.price(&node, &free, improve, is_root);
        if self.is_no_gain(priced.bound) {
            return priced.bound;
        }
        if *self.steps == 0 {
            self.open_bound = self.open_bound.min(priced.bound);
            return priced.bound;
        }
        let mut chosen: LayoutSet = node.open.clone();
        for &at in &free {
            let short = priced.short[at as usize];
            if short <= 0.0 {
                chosen.push(at);
            }
            if self.is_no_gain(priced.bound + short) {
                node.is_free[at as usize] = false;
            } else if self.is_no_gain(priced.bound - short) {
                node.is_free[at as usize] = false;
                node.open.push(at);
            }
        }
        self.offer(chosen);
        self.offer(node.open.clone());
        node.prices = priced.prices;
        let bound = priced.bound;
        if node.open.len() >= self.problem.open_max() {
            return bound;
        }
        let free = self.free(&node);
        let next = free.iter().copied().min_by(|&one, &other| {
            let short = |at: u32| priced.short[at as usize];
            short(one).total_cmp(&short(other)).then(one.cmp(&other))
        });
        let Some(next) = next else {
            return bound;
        };
        for opens in [true, false] {
            let mut child = Node {
                is_free: node.is_free.clone(),
                open: node.open.clone(),
                prices: node.prices.clone(),
            };
            child.is_free[next as usize] = false;
            if opens {
                child.open.push(next);
            }
            self.branch(child, false);
        }
        bound
    }

    fn offer(&mut self, mut open: LayoutSet) {
        open.sort_unstable();
        if open.len() <= self.problem.open_max() {
            let cost = self.problem.cost(&open);
            self.top.offer(self.problem, cost, open);
        }
    }

    fn free(&self, node: &Node) -> Vec<u32> {
        let all = 0..self.problem.count();
        all.filter(|&at| node.is_free[at as usize]).collect()
    }

    fn price(&mut self, node: &Node, free: &[u32], improve: u32, ascend: bool) -> Pricing {
        let problem = self.problem;
        let mut fixed = problem.fixed();
        // The maximum cost of each query, which also limits its price.
        let mut most = problem.without().to_vec();
        for &at in &node.open {
            fixed += problem.upkeep(at);
            for &(query, cost) in &self.rows[at as usize] {
                let most = &mut most[query as usize];
                *most = most.min(cost);
            }
        }
        let capped = node.prices.iter().zip(&most);
        let mut prices: Vec<f64> = capped.map(|(price, most)| price.min(*most)).collect();
        if ascend {
            prices = self.ascend(free, &most);
        }
        let mut best = self.evaluate(free, fixed, &prices);
        let mut scale = 1.0;
        let mut without_gain = 0;
        let mut now = self.evaluate(free, fixed, &prices);
        for _ in 0..improve {
            if self.is_no_gain(best.bound) || *self.steps == 0 {
                break;
            }
            // A query must be served once: by a layout that is open at these prices, or at its maximum cost.
            let mut served: Vec<f64> = prices
                .iter()
                .zip(&most)
                .map(|(price, most)| f64::from(u8::from(price >= most)))
                .collect();
            for &at in free {
                if now.short[at as usize] < 0.0 {
                    for &(query, cost) in &self.rows[at as usize] {
                        if cost < prices[query as usize] {
                            served[query as usize] += 1.0;
                        }
                    }
                }
            }
            let norm: f64 = served.iter().map(|it| (1.0 - it) * (1.0 - it)).sum();
            if norm == 0.0 {
                break;
            }
            let step = scale * (self.best() * 1.001 - now.bound) / norm;
            for ((price, most), served) in prices.iter_mut().zip(&most).zip(&served) {
                *price = (*price + step * (1.0 - served)).clamp(0.0, *most);
            }
            now = self.evaluate(free, fixed, &prices);
            if now.bound > best.bound {
                best = Pricing {
                    bound: now.bound,
                    prices: now.prices.clone(),
                    short: now.short.clone(),
                };
                without_gain = 0;
            } else {
                without_gain += 1;
                if without_gain == 8 {
                    scale /= 2.0;
                    without_gain = 0;
                    prices.clone_from(&best.prices);
                }
            }
        }
        best
    }

    fn evaluate(&mut self, free: &[u32], fixed: f64, prices: &[f64]) -> Pricing {
        let mut short = vec![0.0; self.rows.len()];
        let mut bound = fixed + prices.iter().sum::<f64>();
        let mut visited = 0;
        for &at in free {
            let row = &self.rows[at as usize];
            visited += row.len() as u64;
            let paid = row
                .iter()
                .map(|&(query, cost)| (prices[query as usize] - cost).max(0.0));
            let of = self.problem.upkeep(at) - paid.sum::<f64>();
            short[at as usize] = of;
            bound += of.min(0.0);
        }
        *self.steps = self.steps.saturating_sub(visited + 1);
        Pricing {
            bound,
            prices: prices.to_vec(),
            short,
        }
    }

    /// Dual ascent: raises each price in turn to the query's next cost, as long as no layout is paid more than its
    /// upkeep.
    fn ascend(&mut self, free: &[u32], most: &[f64]) -> Vec<f64> {
        let mut offers: Vec<Vec<(f64, u32)>> = vec![Vec::new(); most.len()];
        for &at in free {
            for &(query, cost) in &self.rows[at as usize] {
                offers[query as usize].push((cost, at));
            }
        }
        for offers in &mut offers {
            offers.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        }
        let least = |(offers, most): (&Vec<(f64, u32)>, &f64)| match offers.first() {
            Some(first) => first.0.min(*most),
            None => *most,
        };
        let mut prices: Vec<f64> = offers.iter().zip(most).map(least).collect();
        let mut room: Vec<f64> = (0..self.problem.count())
            .map(|at| self.problem.upkeep(at))
            .collect();
        let mut rising: Vec<usize> = (0..most.len()).collect();
        while !rising.is_empty() && *self.steps > 0 {
            let mut visited = 1;
            rising.retain(|&query| {
                let offers = &offers[query];
                let price = prices[query];
                let reached = offers.partition_point(|offer| offer.0 <= price);
                let next = offers.get(reached).map_or(most[query], |it| it.0);
                let next = next.min(most[query]);
                let paid = &offers[..reached];
                let spare = paid.iter().map(|it| room[it.1 as usize]);
                let rise = spare.fold(next - price, f64::min).max(0.0);
                for &(_, at) in paid {
                    room[at as usize] -= rise;
                }
                visited += reached as u64;
                prices[query] = if rise == next - price {
                    next
                } else {
                    price + rise
                };
                prices[query] == next && next < most[query]
            });
            *self.steps = self.steps.saturating_sub(visited);
        }
        prices
    }
}
