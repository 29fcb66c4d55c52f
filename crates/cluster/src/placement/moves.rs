//! A plan: the target placement, the moves that lead to it, their order and their cost.

use std::collections::BTreeMap;

use super::{Goal, PlacementNode, current_placement, place};
use crate::map::{Map, NodeId, SlotRange};

/// The size of each slot, indexed by slot number. A missing slot has size zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct SlotSizes<'a> {
    pub rows: &'a [u64],
    pub bytes: &'a [u64],
}

/// The target placement of a map. `larder cluster plan` shows it before anything moves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    pub goals: Vec<Goal>,
    /// In execution order. Moves of one wave may run concurrently, one kind after another.
    pub moves: Vec<Move>,
    pub totals: Totals,
    /// The slots and bytes that each node receives and sends. The owner sends a copy.
    pub nodes: BTreeMap<NodeId, NodeTraffic>,
}

/// One move of adjacent slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub wave: u32,
    pub kind: MoveKind,
    pub slots: SlotRange,
    /// The node that sends the rows, hands over ownership, or drops its copy.
    pub from: Option<NodeId>,
    pub to: Option<NodeId>,
    pub rows: u64,
    pub bytes: u64,
}

/// The kinds of moves, in execution order. Copies are dropped last, so that the number of in-sync copies never falls below both
/// its old and its target value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MoveKind {
    /// A node receives the rows.
    Fill,
    /// A replica becomes the owner. No rows move.
    ChangeOwner,
    /// A node drops its copy.
    Drop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Filled slots, counted once per copy.
    pub filled_slots: u64,
    pub filled_rows: u64,
    pub filled_bytes: u64,
    /// Slots whose owner changes.
    pub owned_slots: u64,
    pub waves: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeTraffic {
    pub slots_in: u64,
    pub slots_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl Plan {
    /// Plans `replicas` copies on `nodes` for `map`, where each node is filled with at most `slots_at_once` slots concurrently.
    pub fn of(
        map: &Map,
        nodes: &[PlacementNode],
        replicas: u8,
        spare_percent: u8,
        slots_at_once: u16,
        weights: SlotSizes<'_>,
    ) -> Plan {
        let goals = place(
            &current_placement(map, nodes),
            nodes,
            replicas,
            spare_percent,
        );
        Plan::to(map, goals, slots_at_once, weights)
    }

    /// Plans the moves from `map` to `goals`.
    pub fn to(map: &Map, goals: Vec<Goal>, slots_at_once: u16, weights: SlotSizes<'_>) -> Plan {
        let mut plan = Plan::default();
        let mut given: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut runs = map.slots().runs().iter().peekable();
        for (slots, goal) in &goals {
            while let Some(run) = runs.peek() {
                if let Some(common) = run.slots.intersection(*slots) {
                    let holders: Vec<NodeId> = run.placement.holders().collect();
                    for piece in parts(common, slots_at_once) {
                        plan.add_piece(piece, &holders, goal, slots_at_once, weights, &mut given);
                    }
                }
                if run.slots.to > slots.to {
                    break;
                }
                runs.next();
            }
        }
        plan.moves.sort_by_key(|it| (it.wave, it.kind, it.slots));
        plan.totals.waves = plan.moves.last().map_or(0, |last| last.wave + 1);
        plan.goals = goals;
        plan
    }

    fn add_piece(
        &mut self,
        slots: SlotRange,
        holders: &[NodeId],
        goal: &[NodeId],
        slots_at_once: u16,
        weights: SlotSizes<'_>,
        given: &mut BTreeMap<NodeId, u64>,
    ) {
        let sum = |of: &[u64]| {
            let of = slots.slots().filter_map(|slot| of.get(usize::from(slot)));
            of.sum::<u64>()
        };
        let (rows, bytes, count) = (
            sum(weights.rows),
            sum(weights.bytes),
            u64::from(slots.count()),
        );
        let Some(&owner) = holders.first() else {
            // No node has rows: the slots start at their target.
            return;
        };
        let missing: Vec<NodeId> = goal
            .iter()
            .copied()
            .filter(|node| !holders.contains(node))
            .collect();
        // The ownership change belongs to the wave of the last fill.
        let mut wave = 0;
        for &node in &missing {
            let before = given.entry(node).or_default();
            *before += count;
            wave = wave.max((*before - 1) / u64::from(slots_at_once.max(1)));
        }
        let one = Move {
            wave: wave as u32,
            kind: MoveKind::Fill,
            slots,
            from: Some(owner),
            to: None,
            rows,
            bytes,
        };
        for &node in &missing {
            self.moves.push(Move {
                to: Some(node),
                ..one
            });
            self.totals.filled_slots += count;
            self.totals.filled_rows += rows;
            self.totals.filled_bytes += bytes;
            let receiver = self.nodes.entry(node).or_default();
            receiver.slots_in += count;
            receiver.bytes_in += bytes;
            let giver = self.nodes.entry(owner).or_default();
            giver.slots_out += count;
            giver.bytes_out += bytes;
        }
        if owner != goal[0] {
            let to = Some(goal[0]);
            self.moves.push(Move {
                kind: MoveKind::ChangeOwner,
                to,
                ..one
            });
            self.totals.owned_slots += count;
        }
        for &node in holders.iter().filter(|node| !goal.contains(node)) {
            let from = Some(node);
            self.moves.push(Move {
                kind: MoveKind::Drop,
                from,
                ..one
            });
        }
    }
}

/// Splits `slots` into parts that a node receives in one wave.
fn parts(slots: SlotRange, most: u16) -> impl Iterator<Item = SlotRange> {
    let most = most.max(1);
    slots
        .slots()
        .step_by(usize::from(most))
        .map(move |from| SlotRange::new(from, slots.to.min(from.saturating_add(most - 1))))
}
