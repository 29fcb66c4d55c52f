//! Fits costs to measured times of commands.
//!
//! A command's time is the sum of its steps' costs. There are more commands than costs, so no costs fit all of them
//! exactly. The fit minimizes the sum of the squared relative errors, with costs of at least zero (non-negative least
//! squares, by coordinate descent). Thus no single command determines a cost, and small costs are not differences of
//! large ones.

use larder_space::plan::Costs;

/// A kind of command: the number of its steps, and the time measured in each turn.
pub struct CostSample {
    pub steps: Vec<(&'static str, f64)>,
    pub turns_us: Vec<f64>,
}

/// The cost of a step, and its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    pub name: &'static str,
    pub us: f64,
    /// Interquartile range of the costs that the individual turns yield.
    pub spread_us: f64,
}

/// Returns the costs of the named steps. Costs in `known` are kept.
///
/// # Panics
/// A sample has no turns, or not as many as the first.
pub fn fit(names: &[&'static str], samples: &[CostSample], known: &Costs) -> Vec<Cost> {
    let middle = solve(names, samples, known, |turns| median(turns.to_vec()));
    let turns = samples.first().map_or(0, |it| it.turns_us.len());
    let each: Vec<Vec<f64>> = (0..turns)
        .map(|turn| solve(names, samples, known, |turns| turns[turn]))
        .collect();
    let cost = |(at, name): (usize, &&'static str)| {
        let mut all: Vec<f64> = each.iter().map(|costs| costs[at]).collect();
        all.sort_by(f64::total_cmp);
        let quarter = |of: usize| all.get(of * all.len() / 4).copied().unwrap_or_default();
        Cost {
            name,
            us: middle[at],
            spread_us: quarter(3) - quarter(1),
        }
    };
    names.iter().enumerate().map(cost).collect()
}

pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn solve(
    names: &[&'static str],
    samples: &[CostSample],
    known: &Costs,
    us: impl Fn(&[f64]) -> f64,
) -> Vec<f64> {
    // Each row is relative to its measurement, so that all sums should be one.
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(samples.len());
    let mut selected: Vec<f64> = Vec::with_capacity(samples.len());
    for sample in samples {
        let measured = us(&sample.turns_us).max(f64::MIN_POSITIVE);
        let mut row = vec![0.0; names.len()];
        let mut left = measured;
        for (step, times) in &sample.steps {
            match names.iter().position(|name| name == step) {
                Some(at) => row[at] += times / measured,
                None => left -= times * get_cost(known, step),
            }
        }
        rows.push(row);
        selected.push(left / measured);
    }
    least_squares(&rows, &selected)
}

/// Returns the non-negative numbers for which the rows' sums are closest to `wanted`.
fn least_squares(rows: &[Vec<f64>], selected: &[f64]) -> Vec<f64> {
    const ROUNDS_MAX: usize = 100_000;
    const CHANGE_MIN: f64 = 1e-12;
    let count = rows.first().map_or(0, Vec::len);
    let product = |one: &dyn Fn(usize) -> f64, other: &dyn Fn(usize) -> f64| -> f64 {
        (0..rows.len()).map(|row| one(row) * other(row)).sum()
    };
    let column = |at: usize| move |row: usize| rows[row][at];
    let norms: Vec<f64> = (0..count)
        .map(|at| product(&column(at), &column(at)).sqrt())
        .collect();
    let scaled = |at: usize| {
        let norm = if norms[at] > 0.0 { norms[at] } else { 1.0 };
        move |row: usize| rows[row][at] / norm
    };
    let squares: Vec<Vec<f64>> = (0..count)
        .map(|at| {
            let other = |other: usize| product(&scaled(at), &scaled(other));
            (0..count).map(other).collect()
        })
        .collect();
    let targets: Vec<f64> = (0..count)
        .map(|at| product(&scaled(at), &|row| selected[row]))
        .collect();
    let mut found = vec![0.0; count];
    for _ in 0..ROUNDS_MAX {
        let mut most: f64 = 0.0;
        for at in (0..count).filter(|at| norms[*at] > 0.0) {
            let reached: f64 = squares[at].iter().zip(&found).map(|(a, b)| a * b).sum();
            let next = (found[at] + targets[at] - reached).max(0.0);
            most = most.max((next - found[at]).abs());
            found[at] = next;
        }
        if most < CHANGE_MIN {
            break;
        }
    }
    let each = found.iter().zip(&norms);
    each.map(|(it, norm)| if *norm > 0.0 { it / norm } else { 0.0 })
        .collect()
}

fn get_cost(costs: &Costs, name: &str) -> f64 {
    let mut costs = *costs;
    *cost_mut(&mut costs, name)
}

/// Returns the field of a cost.
///
/// # Panics
/// There is no such cost.
pub fn cost_mut<'c>(costs: &'c mut Costs, name: &str) -> &'c mut f64 {
    match name {
        "get_us" => &mut costs.get_us,
        "query_us" => &mut costs.query_us,
        "server_us" => &mut costs.server_us,
        "subspace_us" => &mut costs.subspace_us,
        "condition_us" => &mut costs.condition_us,
        "region_us" => &mut costs.region_us,
        "candidate_us" => &mut costs.candidate_us,
        "scan_us" => costs.scan_us.get_or_insert(0.0),
        "match_us" => costs.match_us.get_or_insert(0.0),
        "walk_us" => costs.walk_us.get_or_insert(0.0),
        "found_us" => &mut costs.found_us,
        "row_us" => costs.row_us.get_or_insert(0.0),
        "row_byte_us" => &mut costs.row_byte_us,
        "result_us" => &mut costs.result_us,
        "result_byte_us" => &mut costs.result_byte_us,
        "write_us" => &mut costs.write_us,
        "commit_us" => &mut costs.commit_us,
        "beside_us" => &mut costs.beside_us,
        "stage_us" => &mut costs.stage_us,
        "move_us" => &mut costs.move_us,
        "index_entry_us" => &mut costs.index_entry_us,
        _ => unreachable!("{name} is no cost"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(steps: &[(&'static str, f64)], turns_us: &[f64]) -> CostSample {
        CostSample {
            steps: steps.to_vec(),
            turns_us: turns_us.to_vec(),
        }
    }

    #[test]
    fn a_disturbed_turn_is_ignored_and_known_costs_are_subtracted() {
        let known = Costs {
            server_us: 2.0,
            ..Costs::default()
        };
        let samples = [
            sample(
                &[("query_us", 1.0), ("server_us", 2.0)],
                &[14.0, 90.0, 14.0],
            ),
            sample(
                &[("query_us", 1.0), ("server_us", 2.0), ("result_us", 20.0)],
                &[24.0, 24.0, 24.0],
            ),
        ];
        let costs = fit(&["query_us", "result_us", "match_us"], &samples, &known);
        assert!((costs[0].us - 10.0).abs() < 1e-6, "{costs:?}");
        assert!((costs[1].us - 0.5).abs() < 1e-6, "{costs:?}");
        // No sample has this step.
        assert_eq!(costs[2].us, 0.0);
    }

    #[test]
    fn a_cost_is_never_negative() {
        let samples = [
            sample(&[("write_us", 1.0)], &[10.0]),
            sample(&[("write_us", 1.0), ("stage_us", 1.0)], &[9.0]),
        ];
        let costs = fit(&["write_us", "stage_us"], &samples, &Costs::default());
        assert_eq!(costs[1].us, 0.0);
        assert!((9.0..10.0).contains(&costs[0].us), "{costs:?}");
    }

    proptest! {
        #[test]
        fn costs_that_fit_are_found(
            costs in proptest::collection::vec(0.0f64..50.0, 3), times in proptest::collection::vec(proptest::collection::vec(0u32..9, 3), 6..12),
        ) {
            let names = ["query_us", "server_us", "result_us"];
            let samples: Vec<CostSample> = times.iter().map(|times| {
                let steps: Vec<_> = names.into_iter().zip(times.iter().map(|it| f64::from(*it))).collect();
                let us = 1.0 + steps.iter().zip(&costs).map(|(step, us)| step.1 * us).sum::<f64>();
                // A step that all samples have.
                let steps = steps.into_iter().chain([("get_us", 1.0)]).collect();
                CostSample { steps, turns_us: vec![us; 3] }
            }).collect();
            let known = Costs { get_us: 1.0, ..Costs::default() };
            let found = fit(&names, &samples, &known);
            for sample in &samples {
                let predicted = 1.0 + found.iter().map(|cost| {
                    let own = sample.steps.iter().filter(|step| step.0 == cost.name);
                    own.map(|step| step.1 * cost.us).sum::<f64>()
                }).sum::<f64>();
                prop_assert!((predicted / sample.turns_us[0] - 1.0).abs() < 1e-3, "{} {:?}", predicted, sample.turns_us);
            }
        }
    }
}
