//! Plans: the moves, their order and their cost.

use std::collections::{BTreeMap, BTreeSet};

use larder_cluster::map::{Change, NodeId, SlotRange};
use larder_cluster::placement::{
    Balance, MoveKind, PlacementNode, Plan, SlotSizes, current_placement, place,
};

use crate::maps::{apply, members};

fn nodes(map: &larder_cluster::map::Map, without: u32) -> Vec<PlacementNode> {
    let members = map
        .members()
        .iter()
        .filter(|member| member.id != NodeId(without));
    members.map(PlacementNode::of).collect()
}

#[test]
fn a_plan_reaches_its_goal_and_never_reduces_the_copies_of_a_slot() {
    let map = members(5, 2);
    let four = nodes(&map, 5);
    let goals = place(&current_placement(&map, &four), &four, 2, 5);
    let map = apply(
        &map,
        Change::PlacementReplaced {
            goals,
            outputs: Vec::new(),
            from: 1,
        },
    );
    let rows: Vec<u64> = (0..16_384).collect();
    let bytes: Vec<u64> = rows.iter().map(|row| row * 100).collect();
    let weights = SlotSizes {
        rows: &rows,
        bytes: &bytes,
    };
    // Node 5 joins, node 2 leaves.
    let plan = Plan::of(&map, &nodes(&map, 2), 2, 5, 64, weights);
    assert_eq!(plan, Plan::of(&map, &nodes(&map, 2), 2, 5, 64, weights));

    let mut copies: Vec<BTreeSet<NodeId>> = Vec::new();
    let mut owners: Vec<NodeId> = Vec::new();
    for run in map.slots().runs() {
        for _ in run.slots.slots() {
            copies.push(run.placement.holders().collect());
            owners.push(run.placement.owner.expect("it has one"));
        }
    }
    let mut filled_at_once: BTreeMap<(u32, NodeId), u32> = BTreeMap::new();
    let (mut filled, mut filled_bytes, mut last) = (0, 0, (0, MoveKind::Fill));
    for it in &plan.moves {
        assert!(last <= (it.wave, it.kind), "moves are in order");
        last = (it.wave, it.kind);
        for slot in it.slots.slots().map(usize::from) {
            match it.kind {
                MoveKind::Fill => {
                    assert_eq!(it.from, Some(owners[slot]));
                    assert!(copies[slot].insert(it.to.expect("a receiver")));
                    filled += 1;
                    filled_bytes += slot as u64 * 100;
                }
                MoveKind::ChangeOwner => {
                    owners[slot] = it.to.expect("a new owner");
                    assert!(
                        copies[slot].contains(&owners[slot]),
                        "an owner has the rows"
                    );
                }
                MoveKind::Drop => {
                    assert!(copies[slot].remove(&it.from.expect("a holder")));
                    assert_ne!(Some(owners[slot]), it.from, "an owner is not dropped");
                }
            }
            assert!(copies[slot].len() >= 2, "slot {slot}");
        }
        if it.kind == MoveKind::Fill {
            *filled_at_once
                .entry((it.wave, it.to.expect("a receiver")))
                .or_default() += it.slots.count();
        }
    }
    assert!(
        filled_at_once.values().all(|&count| count <= 2 * 64),
        "{filled_at_once:?}"
    );
    for (slots, goal) in &plan.goals {
        for slot in slots.slots().map(usize::from) {
            assert_eq!(owners[slot], goal[0]);
            assert_eq!(copies[slot], goal.iter().copied().collect());
        }
    }
    assert_eq!(
        (plan.totals.filled_slots, plan.totals.filled_bytes),
        (filled, filled_bytes)
    );
    let given: u64 = plan.nodes.values().map(|flow| flow.bytes_in).sum();
    assert_eq!(given, filled_bytes);
    assert!(plan.totals.waves > 10);
}

#[test]
fn the_balance_is_reported_per_node_and_zone() {
    let map = members(4, 2);
    let all = nodes(&map, 0);
    let goals = place(&current_placement(&map, &all), &all, 2, 5);
    let placed = goals.iter().map(|(slots, goal)| (*slots, goal.as_slice()));
    let balance = Balance::of(placed, &all, 2);
    assert_eq!(balance.nodes.iter().map(|it| it.owned).sum::<u32>(), 16_384);
    assert_eq!(
        balance.zones.iter().map(|it| it.held).sum::<u32>(),
        2 * 16_384
    );
    assert_eq!(
        balance.zones.iter().map(|it| it.nodes).collect::<Vec<_>>(),
        [1, 2, 1]
    );
    assert!(
        balance.owned_worst <= 1.06 && balance.held_worst <= 1.06,
        "{balance:?}"
    );

    let one = Balance::of([(SlotRange::ALL, &[NodeId(1)][..])].into_iter(), &all, 1);
    assert_eq!((one.owned_worst, one.held_worst), (4.0, 4.0));
}
