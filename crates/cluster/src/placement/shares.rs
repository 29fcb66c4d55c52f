//! Computes each node's share by its weight.
//!
//! The share of *owned* slots is `slots × weight / all weights`. The share of *held* slots is the same part of
//! `slots × replicas`, with two limits: a node holds a slot once, and a zone holds no more copies of a slot than necessary. The
//! excess of a node that cannot take its share goes to the others, in proportion to their weights (water filling).

use std::collections::BTreeMap;

use larder_types::SLOTS;

use super::PlacementNode;

/// Shares and bounds of each node, in the order of the input.
#[derive(Debug, Clone)]
pub struct Shares {
    /// Copies of each slot: the requested number, or the number of nodes.
    pub copies: u8,
    pub held: Vec<Bounds>,
    pub owned: Vec<Bounds>,
    /// The index of each node's zone.
    pub(super) zone_of: Vec<u16>,
    /// Maximum number of copies of a slot per zone.
    pub(super) zone_copies: Vec<u8>,
}

/// The bounds of a node's load, in slots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    pub share: f64,
    pub at_least: u32,
    pub at_most: u32,
    /// The share as an integer. The targets add up to the total.
    pub target: u32,
}

impl Shares {
    pub fn of(nodes: &[PlacementNode], replicas: u8, spare_percent: u8) -> Shares {
        let copies = usize::from(replicas).clamp(1, nodes.len().max(1));
        let mut zones: BTreeMap<&str, u16> = BTreeMap::new();
        for node in nodes {
            let next = zones.len() as u16;
            zones.entry(&node.zone).or_insert(next);
        }
        let zone_of: Vec<u16> = nodes.iter().map(|node| zones[node.zone.as_str()]).collect();
        let mut sizes = vec![0; zones.len()];
        zone_of
            .iter()
            .for_each(|&zone| sizes[usize::from(zone)] += 1);
        // The smallest limit of copies per zone with which all copies can be placed.
        let fits = |most: usize| {
            sizes
                .iter()
                .map(|&size: &usize| size.min(most))
                .sum::<usize>()
                >= copies
        };
        let most = (1..=copies).find(|&most| fits(most)).unwrap_or(copies);
        let zone_copies: Vec<u8> = sizes.iter().map(|&size| size.min(most) as u8).collect();

        let slots = f64::from(SLOTS);
        let weights: Vec<f64> = nodes.iter().map(|node| f64::from(node.weight)).collect();
        let all: f64 = weights.iter().sum();
        let owned: Vec<f64> = weights.iter().map(|weight| slots * weight / all).collect();
        let held = water_fill(&weights, &zone_of, &zone_copies, copies as f64 * slots);
        let total = u32::from(SLOTS) * copies as u32;
        let spare = f64::from(spare_percent) / 100.0;
        let zone_most: Vec<u32> = zone_copies
            .iter()
            .map(|&it| u32::from(it) * u32::from(SLOTS))
            .collect();
        Shares {
            copies: copies as u8,
            held: bounds(&held, total, spare, &zone_of, &zone_most),
            owned: bounds(&owned, u32::from(SLOTS), spare, &zone_of, &zone_most),
            zone_of,
            zone_copies,
        }
    }
}

/// Divides `total` in proportion to `weights`, such that no node exceeds the number of slots and no zone exceeds its copies of
/// all slots.
fn water_fill(weights: &[f64], zone_of: &[u16], zone_copies: &[u8], total: f64) -> Vec<f64> {
    let slots = f64::from(SLOTS);
    let zones = zone_copies.len();
    let members: Vec<Vec<f64>> = (0..zones)
        .map(|zone| {
            let of_zone = weights.iter().zip(zone_of);
            of_zone
                .filter(|&(_, &of)| usize::from(of) == zone)
                .map(|(&weight, _)| weight)
                .collect()
        })
        .collect();
    let load_at = |weights: &[f64], level: f64| {
        weights
            .iter()
            .map(|weight| (weight * level).min(slots))
            .sum::<f64>()
    };
    let limit = |zone: usize| f64::from(zone_copies[zone]) * slots;
    let lightest = weights.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = slots / lightest;
    let total_at = |level: f64| {
        (0..zones)
            .map(|zone| load_at(&members[zone], level).min(limit(zone)))
            .sum::<f64>()
    };
    let level = bisect(highest, total, total_at);
    let levels: Vec<f64> = (0..zones)
        .map(|zone| {
            if load_at(&members[zone], level) > limit(zone) {
                bisect(highest, limit(zone), |level| load_at(&members[zone], level))
            } else {
                level
            }
        })
        .collect();
    let levels = zone_of.iter().map(|&zone| levels[usize::from(zone)]);
    weights
        .iter()
        .zip(levels)
        .map(|(weight, level)| (weight * level).min(slots))
        .collect()
}

/// Finds where the increasing function `of` reaches `wanted`, between 0 and `highest`.
fn bisect(highest: f64, wanted: f64, of: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, highest);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if of(middle) < wanted {
            low = middle
        } else {
            high = middle
        }
    }
    high
}

fn bounds(
    shares: &[f64],
    total: u32,
    spare: f64,
    zone_of: &[u16],
    zone_most: &[u32],
) -> Vec<Bounds> {
    /// Tolerance for rounding errors of a share.
    const NOISE: f64 = 1e-6;
    let mut zone_total = vec![0; zone_most.len()];
    let mut bounds: Vec<Bounds> = shares
        .iter()
        .zip(zone_of)
        .map(|(&share, &zone)| {
            let target = (share + NOISE).floor() as u32;
            zone_total[usize::from(zone)] += target;
            Bounds {
                share,
                at_least: (share * (1.0 - spare) + NOISE).floor().max(0.0) as u32,
                at_most: ((share * (1.0 + spare) - NOISE).ceil() as u32).min(u32::from(SLOTS)),
                target,
            }
        })
        .collect();
    // The remainder from rounding down goes to the nodes that lost most.
    let mut order: Vec<usize> = (0..bounds.len()).collect();
    let lost = |bounds: &[Bounds], at: usize| bounds[at].share - f64::from(bounds[at].target);
    order.sort_by(|&one, &other| {
        lost(&bounds, other)
            .total_cmp(&lost(&bounds, one))
            .then(one.cmp(&other))
    });
    let mut rest = total - bounds.iter().map(|it| it.target).sum::<u32>().min(total);
    for _ in 0..2 {
        for &at in &order {
            let zone = usize::from(zone_of[at]);
            if rest > 0
                && bounds[at].target < bounds[at].at_most
                && zone_total[zone] < zone_most[zone]
            {
                bounds[at].target += 1;
                zone_total[zone] += 1;
                rest -= 1;
            }
        }
    }
    bounds
}
