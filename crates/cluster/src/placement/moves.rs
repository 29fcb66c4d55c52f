//! A plan: where slots are to be, what has to be done for that, in which order, and what it costs.

use std::collections::BTreeMap;

use super::{Goal, Node, held, place};
use crate::map::{Map, NodeId, SlotRange};

/// What one slot weighs, by its number. A slot that is missing weighs nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weights<'a> {
    pub rows: &'a [u64],
    pub bytes: &'a [u64],
}

/// The placement that a map is to come to. `larder cluster plan` shows it before anything moves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    pub goals: Vec<Goal>,
    /// In the order in which they are made. Moves of one wave may be made at the same time, kind after kind.
    pub moves: Vec<Move>,
    pub totals: Totals,
    /// What each node is given and gives, in slots and bytes. A copy is given by the owner.
    pub nodes: BTreeMap<NodeId, Flow>,
}

/// Something that happens to adjacent slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub wave: u32,
    pub kind: Kind,
    pub slots: SlotRange,
    /// Who gives the rows, gives up ownership, or drops its copy.
    pub from: Option<NodeId>,
    pub to: Option<NodeId>,
    pub rows: u64,
    pub bytes: u64,
}

/// What happens, in the order in which it must: copies are dropped last, so that no slot has fewer in sync than it had or is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A node is given the rows.
    Fill,
    /// A replica becomes the owner. No rows move.
    Own,
    /// A copy is dropped.
    Drop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Slots that are filled, counted once for each copy.
    pub filled_slots: u64,
    pub filled_rows: u64,
    pub filled_bytes: u64,
    /// Slots that get another owner.
    pub owned_slots: u64,
    pub waves: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flow {
    pub slots_in: u64,
    pub slots_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl Plan {
    /// The plan that brings `map` to `replicas` copies on `nodes`, each of which is filled with at most `slots_at_once` slots at a time.
    pub fn of(
        map: &Map,
        nodes: &[Node],
        replicas: u8,
        spare_percent: u8,
        slots_at_once: u16,
        weights: Weights<'_>,
    ) -> Plan {
        let goals = place(&held(map, nodes), nodes, replicas, spare_percent);
        Plan::to(map, goals, slots_at_once, weights)
    }

    /// The plan that brings `map` to `goals`.
    pub fn to(map: &Map, goals: Vec<Goal>, slots_at_once: u16, weights: Weights<'_>) -> Plan {
        let mut plan = Plan::default();
        let mut given: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut runs = map.slots().runs().iter().peekable();
        for (slots, goal) in &goals {
            while let Some(run) = runs.peek() {
                if let Some(common) = run.slots.and(*slots) {
                    let holders: Vec<NodeId> = run.placed.holders().collect();
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
        weights: Weights<'_>,
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
            // Nobody has rows: the slots begin where they are to be.
            return;
        };
        let missing: Vec<NodeId> = goal
            .iter()
            .copied()
            .filter(|node| !holders.contains(node))
            .collect();
        // The piece goes with the last of its fills.
        let mut wave = 0;
        for &node in &missing {
            let before = given.entry(node).or_default();
            *before += count;
            wave = wave.max((*before - 1) / u64::from(slots_at_once.max(1)));
        }
        let one = Move {
            wave: wave as u32,
            kind: Kind::Fill,
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
                kind: Kind::Own,
                to,
                ..one
            });
            self.totals.owned_slots += count;
        }
        for &node in holders.iter().filter(|node| !goal.contains(node)) {
            let from = Some(node);
            self.moves.push(Move {
                kind: Kind::Drop,
                from,
                ..one
            });
        }
    }
}

/// Parts of `slots` that are no longer than a node takes at a time.
fn parts(slots: SlotRange, most: u16) -> impl Iterator<Item = SlotRange> {
    let most = most.max(1);
    slots
        .slots()
        .step_by(usize::from(most))
        .map(move |from| SlotRange::new(from, slots.to.min(from.saturating_add(most - 1))))
}
