//! Friendships with a skew: 80 % of them belong to 20 % of the members.
//!
//! Both members of a pair are drawn by the Zipf-Mandelbrot law, and duplicate pairs are dropped (the model of Chung and
//! Lu). With plain Zipf, the first members would need more friends than there are members. Popular pairs are drawn many
//! times, so the exponent and the number of draws are chosen such that the *remaining* pairs have the requested mean
//! and share. The pair `i, j` remains with probability `1 - exp(-2 draws p_i p_j)`, summed over pairs of bins of ranks.

use larder_types::Random;

use super::graph::Graph;
use crate::model::draw::Alias;

/// The shift of the ranks, as a share of the members. It makes the first members nearly equally popular.
const SHIFT: f64 = 0.05;

/// The factor by which the ranks of a bin grow.
const GROWTH: f64 = 1.08;

/// Returns a graph with this mean number of friends, where the share `top` of the members has the share `share` of the
/// friendships. Both shares are between 0 and 1.
///
/// # Errors
///
/// No graph of these members has such numbers.
pub fn graph(members: u32, friends: u32, share: f64, top: f64, seed: u64) -> Result<Graph, String> {
    let bins = bins(members, top);
    let (mut low, mut high) = (0.0, 12.0);
    for _ in 0..40 {
        let exponent = f64::midpoint(low, high);
        let remaining = draws_for(&bins, exponent, friends).map(|(_, remaining)| remaining);
        // If this number of friends is impossible, popular members are already friends of all others: the exponent is
        // too high.
        match remaining {
            Some(remaining) if remaining < share => low = exponent,
            _ => high = exponent,
        }
    }
    let found =
        draws_for(&bins, low, friends).filter(|(_, remaining)| (remaining - share).abs() < 0.02);
    let Some((draws, _)) = found else {
        return Err(format!(
            "--friendships zipf: a graph of {members} members with {friends} friends on average cannot give {} % of the friendships to {} % of the members",
            share * 100.0,
            top * 100.0
        ));
    };
    let shift = f64::from(members) * SHIFT;
    let weights: Vec<f64> = (1..=members)
        .map(|rank| (f64::from(rank) + shift).powf(-low))
        .collect();
    let alias = Alias::new(&weights);
    let mut random = Random::stream(seed, 0xf21e);
    let mut member = || alias.draw(&mut random) as u32;
    let edges: Vec<(u32, u32)> = (0..draws as u64).map(|_| (member(), member())).collect();
    Ok(Graph::new(members, &edges))
}

/// Returns the first and the last rank of each bin, counted from 1. The `top` share of the ranks ends at the end of a
/// bin.
fn bins(members: u32, top: f64) -> Vec<(f64, f64, bool)> {
    let cut = (f64::from(members) * top).round();
    let mut bins = Vec::new();
    let mut first = 1.0;
    while first <= f64::from(members) {
        let end = if first <= cut { cut } else { members.into() };
        let last = (first * GROWTH).floor().max(first).min(end);
        bins.push((first, last, last <= cut));
        first = last + 1.0;
    }
    bins
}

/// Returns the number of draws that yields this mean number of friends, and the resulting share of the top members.
/// `None` if no number suffices.
fn draws_for(bins: &[(f64, f64, bool)], exponent: f64, friends: u32) -> Option<(f64, f64)> {
    let members = bins.last()?.1;
    let sizes = bins.iter().map(|(first, last, _)| last - first + 1.0);
    let weights: Vec<(f64, f64, bool)> = bins
        .iter()
        .zip(sizes)
        .map(|((first, last, top), size)| {
            (
                ((first * last).sqrt() + members * SHIFT).powf(-exponent),
                size,
                *top,
            )
        })
        .collect();
    let total: f64 = weights.iter().map(|(weight, size, _)| weight * size).sum();
    // The number of ends of remaining pairs, for all members and for the top.
    let remaining = |draws: f64| {
        let (mut all, mut top) = (0.0, 0.0);
        for (one, ones, is_top) in &weights {
            let of_one: f64 = weights
                .iter()
                .map(|(other, others, _)| {
                    let expected = 2.0 * draws * (one / total) * (other / total);
                    -others * (-expected).exp_m1()
                })
                .sum();
            all += ones * of_one;
            top += if *is_top { ones * of_one } else { 0.0 };
        }
        (all / members, top / all)
    };
    let goal = f64::from(friends);
    let (mut low, mut high) = (0.0, members * goal * 1000.0);
    if remaining(high).0 < goal {
        return None;
    }
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        if remaining(middle).0 < goal {
            low = middle
        } else {
            high = middle
        }
    }
    // Most graphs need few draws beyond their friendships. More than ten times as many mean that some member is a
    // friend of all others.
    (high < members * goal * 5.0).then(|| (high, remaining(high).1))
}
