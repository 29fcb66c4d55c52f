//! Friendships of which most are a few members': 80 % of them on 20 % of the members.
//!
//! Pairs are drawn with both members by the law of Zipf and Mandelbrot, and kept once (the model of Chung and Lu). Plain Zipf would not do: its
//! first members would have to know more members than there are. A pair of popular members is drawn many times, so the
//! exponent and the number of draws are chosen such that what is *kept* has the mean and the share asked for:
//! pair `i, j` is kept with probability `1 - exp(-2 draws p_i p_j)`, summed over pairs of bins of ranks.

use larder_types::Random;

use super::graph::Graph;
use crate::model::draw::Alias;

/// Part of the members by which ranks are shifted, so that those first are nearly as popular.
const SHIFT: f64 = 0.05;

/// Ranks of one bin grow by this factor.
const GROWTH: f64 = 1.08;

/// Members with this many friends in the mean, of which `top` of the members have `share`; both between 0 and 1.
///
/// # Errors
///
/// Numbers that no graph of these members has.
pub fn graph(members: u32, friends: u32, share: f64, top: f64, seed: u64) -> Result<Graph, String> {
    let bins = bins(members, top);
    let (mut low, mut high) = (0.0, 12.0);
    for _ in 0..40 {
        let exponent = f64::midpoint(low, high);
        let kept = draws_for(&bins, exponent, friends).map(|(_, kept)| kept);
        // Where so many friends cannot be had, the popular ones know everybody: too steep.
        match kept {
            Some(kept) if kept < share => low = exponent,
            _ => high = exponent,
        }
    }
    let found = draws_for(&bins, low, friends).filter(|(_, kept)| (kept - share).abs() < 0.02);
    let Some((draws, _)) = found else {
        return Err(format!(
            "--friendships zipf: no {members} members have {friends} friends in the mean with {} % of them on {} %",
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

/// Ranks from 1, as first, last; `top` of them end at a bin's end.
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

/// How many pairs to draw to have so many friends in the mean, and the share of them that the top then has. None if no number is enough.
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
    // Ends of kept pairs, of all members and of the top.
    let kept = |draws: f64| {
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
    if kept(high).0 < goal {
        return None;
    }
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        match kept(middle).0 < goal {
            true => low = middle,
            false => high = middle,
        }
    }
    // Most graphs need few draws beyond their friendships; more than ten times as many is a member who knows all.
    (high < members * goal * 5.0).then(|| (high, kept(high).1))
}
