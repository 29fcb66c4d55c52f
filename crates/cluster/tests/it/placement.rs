//! Placements, tested against a checker that independently computes shares, zones and the minimum number of moves.

use std::collections::BTreeMap;

use larder_cluster::map::{NodeId, SlotRange};
use larder_cluster::placement::{CurrentPlacement, Goal, PlacementNode, place};

use crate::random::Random;

const SLOTS: usize = 16_384;
const SPARE: u8 = 5;

pub fn node(number: u32, zone: u32, weight: u32) -> PlacementNode {
    PlacementNode {
        id: NodeId(number),
        name: format!("node-{number}").parse().expect("a name"),
        zone: format!("zone-{zone}"),
        weight,
    }
}

pub fn held(goals: &[Goal]) -> Vec<CurrentPlacement> {
    if goals.is_empty() {
        return vec![CurrentPlacement {
            slots: SlotRange::ALL,
            goal: Vec::new(),
            present: Vec::new(),
        }];
    }
    let held = |(slots, goal): &Goal| CurrentPlacement {
        slots: *slots,
        goal: goal.clone(),
        present: Vec::new(),
    };
    goals.iter().map(held).collect()
}

/// The holders of each slot, the owner first.
fn by_slot(goals: &[Goal]) -> Vec<Vec<NodeId>> {
    let mut slots = Vec::new();
    for (range, goal) in goals {
        assert_eq!(
            usize::from(range.from),
            slots.len(),
            "slots follow on one another"
        );
        slots.extend(range.slots().map(|_| goal.clone()));
    }
    assert_eq!(slots.len(), SLOTS);
    slots
}

/// Maximum copies of a slot per zone: distributed one by one to the zone with the fewest.
fn zone_limits(nodes: &[PlacementNode], copies: usize) -> BTreeMap<&str, usize> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    nodes
        .iter()
        .for_each(|node| *sizes.entry(&node.zone).or_default() += 1);
    let mut most = 0;
    let mut dealt = 0;
    while dealt < copies {
        most += 1;
        dealt = sizes.values().map(|&size| size.min(most)).sum();
    }
    sizes
        .iter()
        .map(|(&zone, &size)| (zone, size.min(most)))
        .collect()
}

/// The slots that each node should hold by weight. A node whose share exceeds its maximum gets the maximum, and the rest is
/// shared again.
fn held_shares(nodes: &[PlacementNode], copies: usize) -> BTreeMap<NodeId, f64> {
    let limits = zone_limits(nodes, copies);
    let all: Vec<&PlacementNode> = nodes.iter().collect();
    let mut fixed: BTreeMap<NodeId, f64> = BTreeMap::new();
    let mut free = all.clone();
    let mut rest = (copies * SLOTS) as f64;
    loop {
        let shares = capped(&free, rest);
        let zone = limits.iter().find(|&(zone, &limit)| {
            let of_zone = free.iter().filter(|node| node.zone == **zone);
            of_zone.map(|node| shares[&node.id]).sum::<f64>() > (limit * SLOTS) as f64 + 1e-6
        });
        let Some((zone, &limit)) = zone else {
            fixed.extend(shares);
            return fixed;
        };
        let (inside, outside): (Vec<&PlacementNode>, Vec<&PlacementNode>) =
            free.into_iter().partition(|node| node.zone == *zone);
        fixed.extend(capped(&inside, (limit * SLOTS) as f64));
        rest -= (limit * SLOTS) as f64;
        free = outside;
    }
}

fn capped(nodes: &[&PlacementNode], total: f64) -> BTreeMap<NodeId, f64> {
    let mut shares = BTreeMap::new();
    let mut free = nodes.to_vec();
    let mut rest = total;
    loop {
        let weights: f64 = free.iter().map(|node| f64::from(node.weight)).sum();
        let share = |node: &PlacementNode| rest * f64::from(node.weight) / weights;
        let Some(at) = free
            .iter()
            .position(|node| share(node) > SLOTS as f64 + 1e-9)
        else {
            shares.extend(free.iter().map(|node| (node.id, share(node))));
            return shares;
        };
        shares.insert(free.remove(at).id, SLOTS as f64);
        rest -= SLOTS as f64;
    }
}

fn at_most(share: f64) -> usize {
    ((share * (1.0 + f64::from(SPARE) / 100.0) - 1e-6).ceil() as usize).min(SLOTS)
}

fn at_least(share: f64) -> usize {
    (share * (1.0 - f64::from(SPARE) / 100.0) + 1e-6).floor() as usize
}

/// Asserts all guarantees of a placement.
#[track_caller]
pub fn check(goals: &[Goal], nodes: &[PlacementNode], replicas: usize) {
    let copies = replicas.min(nodes.len());
    let limits = zone_limits(nodes, copies);
    let known: BTreeMap<NodeId, &PlacementNode> =
        nodes.iter().map(|node| (node.id, node)).collect();
    let (mut owned, mut held): (BTreeMap<NodeId, usize>, BTreeMap<NodeId, usize>) =
        Default::default();
    for (slot, holders) in by_slot(goals).iter().enumerate() {
        assert_eq!(holders.len(), copies, "slot {slot}");
        let mut zones: BTreeMap<&str, usize> = BTreeMap::new();
        for (at, id) in holders.iter().enumerate() {
            assert!(!holders[..at].contains(id), "slot {slot} is twice on {id}");
            *zones.entry(&known[id].zone).or_default() += 1;
            *held.entry(*id).or_default() += 1;
        }
        for (zone, count) in zones {
            assert!(
                count <= limits[zone],
                "slot {slot}: {count} copies in {zone}"
            );
        }
        *owned.entry(holders[0]).or_default() += 1;
    }
    let weights: f64 = nodes.iter().map(|node| f64::from(node.weight)).sum();
    let shares = held_shares(nodes, copies);
    for node in nodes {
        let owned = owned.get(&node.id).copied().unwrap_or(0);
        let held = held.get(&node.id).copied().unwrap_or(0);
        let share = SLOTS as f64 * f64::from(node.weight) / weights;
        let within = |have: usize, share: f64| (at_least(share)..=at_most(share)).contains(&have);
        assert!(
            within(owned, share),
            "{node:?} owns {owned}, its share is {share}, of {nodes:?}"
        );
        assert!(
            within(held, shares[&node.id]),
            "{node:?} holds {held}, its share is {}",
            shares[&node.id]
        );
    }
}

/// Counts the new copies, and the minimum that any placement within the bounds must create: the missing copies, and one for each
/// copy that must be dropped. A copy must be dropped if its node exceeds its bound. More copies must move if some nodes need more
/// copies than the slots with missing copies can give them, or must take more than they have room for. (Examined for all sets of
/// nodes if there are few, else for all sets of zones.)
pub fn moved(
    old: &[Goal],
    new: &[Goal],
    nodes: &[PlacementNode],
    replicas: usize,
) -> (usize, usize) {
    let copies = replicas.min(nodes.len());
    let limits = zone_limits(nodes, copies);
    let zones: Vec<&str> = limits.keys().copied().collect();
    let known: BTreeMap<NodeId, &PlacementNode> =
        nodes.iter().map(|node| (node.id, node)).collect();
    let mut kept: BTreeMap<NodeId, usize> = BTreeMap::new();
    let (mut moved, mut lacking) = (0, 0);
    let zone_of: Vec<usize> = nodes
        .iter()
        .map(|node| {
            zones
                .iter()
                .position(|zone| *zone == node.zone)
                .expect("it is one of them")
        })
        .collect();
    let few = nodes.len() <= 5;
    let sets = 1usize << if few { nodes.len() } else { zones.len() };
    let is_in = |set: usize, node: usize| set >> (if few { node } else { zone_of[node] }) & 1 == 1;
    // For each set of nodes, the number of missing copies that they can take.
    let mut taken = vec![0; sets];
    for (old, new) in by_slot(old).iter().zip(by_slot(new)) {
        moved += new.iter().filter(|node| !old.contains(node)).count();
        let mut counts = vec![0; zones.len()];
        for id in old.iter().filter(|id| known.contains_key(id)) {
            *kept.entry(*id).or_default() += 1;
            let zone = zones.iter().position(|zone| *zone == known[id].zone);
            counts[zone.expect("it is one of them")] += 1;
        }
        let stay: usize = zones
            .iter()
            .zip(&counts)
            .map(|(zone, &count)| count.min(limits[zone]))
            .sum();
        let lack = copies - stay.min(copies);
        lacking += lack;
        for (set, taken) in taken.iter_mut().enumerate().filter(|_| lack > 0) {
            let mut able = vec![0; zones.len()];
            for (at, node) in nodes.iter().enumerate().filter(|&(at, _)| is_in(set, at)) {
                able[zone_of[at]] += usize::from(!old.contains(&node.id));
            }
            let room = zones.iter().zip(&counts).zip(able);
            *taken += lack.min(
                room.map(|((zone, &count), able)| able.min(limits[zone].saturating_sub(count)))
                    .sum(),
            );
        }
    }
    let shares = held_shares(nodes, copies);
    let mut over = 0;
    let (mut under, mut room) = (Vec::new(), Vec::new());
    for node in nodes {
        let kept = kept.get(&node.id).copied().unwrap_or(0);
        over += kept.saturating_sub(at_most(shares[&node.id]));
        under.push(at_least(shares[&node.id]).saturating_sub(kept));
        room.push(at_most(shares[&node.id]).saturating_sub(kept));
    }
    let dropped = (0..sets).map(|set| {
        let sum = |of: &[usize]| -> usize {
            of.iter()
                .enumerate()
                .filter(|&(node, _)| is_in(set, node))
                .map(|(_, it)| it)
                .sum()
        };
        // Copies that the other nodes cannot take must go to these, whether they have room or not.
        let forced = lacking - taken[sets - 1 - set];
        sum(&under)
            .saturating_sub(taken[set])
            .max(over + forced.saturating_sub(sum(&room)))
    });
    (moved, lacking + dropped.max().unwrap_or(0))
}

/// Applies random changes of the set of nodes. Checks each placement, and compares its moves with the minimum.
fn run(
    seed: u64,
    count: u64,
    zones: u64,
    weights: u64,
    replicas: usize,
    worst: &mut (f64, String),
    counts: &mut (u32, u32),
) {
    let mut random = Random::new(seed);
    let new = |number: u64, random: &mut Random| {
        node(
            number as u32,
            random.below(zones) as u32,
            1 + random.below(weights) as u32,
        )
    };
    let mut nodes: Vec<PlacementNode> =
        (1..=count).map(|number| new(number, &mut random)).collect();
    let mut next = count + 1;
    let mut goals = place(&held(&[]), &nodes, replicas as u8, SPARE);
    check(&goals, &nodes, replicas);
    for step in 0..6 {
        let what = if random.one_in(2) || nodes.len() < 3 {
            nodes.push(new(next, &mut random));
            next += 1;
            "join"
        } else {
            let at = random.below(nodes.len() as u64) as usize;
            nodes.remove(at);
            "leave"
        };
        let after = place(&held(&goals), &nodes, replicas as u8, SPARE);
        check(&after, &nodes, replicas);
        assert_eq!(
            after,
            place(&held(&goals), &nodes, replicas as u8, SPARE),
            "the same every time"
        );
        let (moved, least) = moved(&goals, &after, &nodes, replicas);
        let ratio = if moved == least {
            1.0
        } else {
            moved as f64 / (least as f64).max(1.0)
        };
        counts.0 += 1;
        counts.1 += u32::from(ratio > 1.1);
        if ratio > worst.0 {
            *worst = (
                ratio,
                format!(
                    "{what} {step}: {moved} for {least}, seed {seed}, {} nodes, {zones} zones, weights to {weights}, {replicas} replicas",
                    nodes.len()
                ),
            );
        }
        goals = after;
    }
}

/// The minimum cannot always be reached: a node may have an excess of exactly those slots that no node below its share may take.
/// (Observed with five nodes in zones of one and two, once in a thousand changes.)
fn run_all(sizes: &[u64], seeds: u64) -> (f64, u32, u32) {
    let mut worst = (1.0, String::new());
    let mut counts = (0, 0);
    for &count in sizes {
        for (zones, weights) in [(1, 1), (3, 1), (3, 4), (2, 3), (5, 2)] {
            for replicas in [1, 2, 3] {
                for seed in 0..seeds {
                    let seed = (seed * 1000 + count) * 1000 + zones * 10 + weights;
                    run(
                        seed,
                        count,
                        zones,
                        weights,
                        replicas,
                        &mut worst,
                        &mut counts,
                    );
                }
            }
        }
    }
    println!(
        "at most {:.3} times the least moves ({}); {} of {} changes above 1.1",
        worst.0, worst.1, counts.1, counts.0
    );
    (worst.0, counts.1, counts.0)
}

#[test]
fn membership_changes_keep_every_bound_and_move_little_more_than_necessary() {
    let (worst, _, _) = run_all(&[3, 5, 16, 64], 1);
    assert!(worst <= 1.1, "{worst}");
}

#[test]
fn membership_changes_keep_every_bound_at_all_sizes() {
    if larder_testing::is_enabled("LARDER_SLOW_TESTS", "it takes some minutes") {
        let (worst, above, all) = run_all(&[1, 2, 3, 4, 5, 6, 8, 11, 16, 23, 32, 45, 64], 3);
        assert!(
            worst <= 1.3 && above * 200 <= all,
            "{worst}, {above} of {all} above 1.1"
        );
    }
}

#[test]
fn other_weights_replicas_and_zones_keep_every_bound_too() {
    let mut random = Random::new(5);
    let mut nodes: Vec<PlacementNode> = (1..=9).map(|number| node(number, number % 3, 1)).collect();
    let mut goals = place(&held(&[]), &nodes, 2, SPARE);
    for replicas in [2, 3, 1, 2, 3, 2] {
        let at = random.below(9) as usize;
        nodes[at].weight = 1 + random.below(5) as u32;
        nodes[(at + 1) % 9].zone = format!("zone-{}", random.below(4));
        goals = place(&held(&goals), &nodes, replicas, SPARE);
        check(&goals, &nodes, usize::from(replicas));
    }
}

#[test]
fn a_removed_owner_is_replaced_by_a_node_that_has_the_rows() {
    let mut nodes: Vec<PlacementNode> = (1..=8).map(|number| node(number, number % 4, 1)).collect();
    let before = place(&held(&[]), &nodes, 2, SPARE);
    nodes.remove(3);
    let after = by_slot(&place(&held(&before), &nodes, 2, SPARE));
    let (mut followed, mut with_rows) = (0, 0);
    for (before, after) in by_slot(&before).iter().zip(&after) {
        if before[0] == NodeId(4) {
            followed += 1;
            with_rows += usize::from(before.contains(&after[0]));
        } else {
            assert!(
                before.contains(&after[0]),
                "an owner without rows: {before:?} {after:?}"
            );
        }
    }
    // The others would exceed a bound of the nodes that have the rows. Their ownership changes when the new copy has the rows.
    assert!(
        followed > 1900 && with_rows * 10 > followed * 9,
        "{with_rows} of {followed}"
    );
}

/// If two nodes die, the slots that only they held are lost. With 64 nodes and copies spread evenly over all pairs, that would be
/// 8 slots per pair.
#[test]
fn copies_are_spread_over_many_nodes_and_cluster_slots_stays_short() {
    for (count, replicas) in [
        (3, 2),
        (8, 2),
        (16, 2),
        (64, 2),
        (64, 3),
        (256, 2),
        (1000, 3),
    ] {
        let nodes: Vec<PlacementNode> = (1..=count)
            .map(|number| node(number, number % 4, 1))
            .collect();
        let goals = place(&held(&[]), &nodes, replicas, SPARE);
        let mut pairs: BTreeMap<(NodeId, NodeId), u32> = BTreeMap::new();
        let mut others: BTreeMap<NodeId, std::collections::BTreeSet<NodeId>> = BTreeMap::new();
        for (slots, goal) in &goals {
            for one in goal {
                others
                    .entry(*one)
                    .or_default()
                    .extend(goal.iter().filter(|it| *it != one));
                for other in goal.iter().filter(|other| one < other) {
                    *pairs.entry((*one, *other)).or_default() += slots.count();
                }
            }
        }
        let worst = pairs.values().max().copied().unwrap_or(0);
        let fewest = others.values().map(|it| it.len()).min().unwrap_or(0);
        println!(
            "{count} nodes, {replicas} replicas: {} entries, worst pair shares {:.2} % of all slots, a node's copies are on at least {fewest} others",
            goals.len(),
            f64::from(worst) / 163.84,
        );
        assert!(
            goals.len() <= usize::min(60 + 20 * count as usize, 3000),
            "{} entries",
            goals.len()
        );
        assert!(fewest >= usize::min(count as usize / 4, 4), "{fewest}");
        if replicas == 2 {
            let even = 2 * 16_384 / (count * (count - 1));
            assert!(
                worst <= 8 * even.max(16),
                "{worst} slots in one pair, {even} if even"
            );
        }
    }
}

#[test]
fn a_thousand_nodes_are_placed_evenly_and_one_more_moves_its_share() {
    let mut nodes: Vec<PlacementNode> = (1..=1000)
        .map(|number| node(number, number % 5, 1))
        .collect();
    let goals = place(&held(&[]), &nodes, 3, SPARE);
    check(&goals, &nodes, 3);
    nodes.push(node(1001, 2, 1));
    let joined = place(&held(&goals), &nodes, 3, SPARE);
    check(&joined, &nodes, 3);
    let join = moved(&goals, &joined, &nodes, 3);
    nodes.remove(500);
    let left = place(&held(&joined), &nodes, 3, SPARE);
    check(&left, &nodes, 3);
    let leave = moved(&joined, &left, &nodes, 3);
    println!(
        "slots moved and the least: one joins {join:?}, one goes {leave:?}; {} runs",
        left.len()
    );
    assert!(join.0 * 10 <= join.1 * 11 && leave.0 * 10 <= leave.1 * 11);
}
