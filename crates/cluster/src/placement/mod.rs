//! Placement: which node is to own each slot, and which are to copy it.
//!
//! [`place`] computes where slots are to be from where they are; [`Plan`] says what has to be done
//! for that, in which order and at what cost. Both are pure: the same arguments give the same answer.
//!
//! What is promised of a placement, and tested against an independent checker:
//!
//! 1. Copies of a slot are on different nodes, as many as `replicas`, or as there are nodes.
//! 2. They are in different zones where there are as many zones as copies; else no zone has more of them than it must.
//! 3. A node owns at most `ceil((1 + e) share)` slots and holds (owns or copies) at most `ceil((1 + e) share)`, and
//!    at least `floor((1 - e) share)`. The share is by weight, as far as 1 and 2 let a node have so much (`shares`).
//! 4. What is allowed to stay stays. Ownership changes among nodes that hold the slot wherever that suffices, which moves no rows.
//! 5. What is free to choose is chosen by weighted rendezvous hashing of blocks of adjacent slots: a node's copies are spread over
//!    many others, and neighbours lie together, so that `CLUSTER SLOTS` stays short.
//!
//! The steps, in the order of the files: `shares` says how much each node is to have; `blocks` holds the
//! assignment in pieces of adjacent slots; `assign` drops what may not stay, fills what lacks copies and moves
//! from who has too much to who has too little; `chains` does what no single move can; `owners` does the same for ownership.
//!
//! Sources. The bound on loads is that of consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, arXiv 1608.01350):
//! a node that has its share is passed over. There, load that is above the bound moves on along a ring; here a change begins
//! from the old assignment, as Helix's AutoRebalance does, so that a node that comes or goes moves little more than its share (from scratch
//! they move up to 1.5 times that). Who is next is decided by rendezvous hashing with weights (Thaler and Ravishankar 1998; the
//! form `-w / ln h` from Schindelhauer and Schomaker, SPAA 2005) in place of a ring: even without tokens, and any node's
//! successors differ from block to block. Chains are augmenting paths, as in maximum flow.

mod assign;
mod balance;
mod blocks;
mod chains;
mod moves;
mod owners;
mod rendezvous;
mod shares;

use std::collections::BTreeSet;

use larder_types::SLOTS;

use crate::map::{Map, Member, NodeId, NodeName, SlotRange};

use assign::State;
use blocks::Piece;
use chains::Ends;

pub use balance::{Balance, NodeBalance, ZoneBalance};
pub use moves::{Flow, Kind, Move, Plan, Totals, Weights};
pub use shares::{Bounds, Shares};

/// A node that slots may be placed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub id: NodeId,
    pub name: NodeName,
    pub zone: String,
    pub weight: u32,
}

impl Node {
    pub fn of(member: &Member) -> Node {
        let it = &member.registration;
        Node {
            id: member.id,
            name: it.name.clone(),
            zone: it.zone.clone(),
            weight: it.weight,
        }
    }
}

/// Slots and the nodes that are to have them, the owner first.
pub type Goal = (SlotRange, Vec<NodeId>);

/// Where slots are now, as far as the placement keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub slots: SlotRange,
    /// The nodes that have the slots or are to have them, the owner first. They stay where they may.
    pub goal: Vec<NodeId>,
    /// Nodes that have the rows and are not to have them: the first to be chosen where one is needed.
    pub present: Vec<NodeId>,
}

/// Where the slots of `map` are, for [`place`]. A slot whose owner-to-be may not own it is to be owned by who owns it now.
pub fn held(map: &Map, nodes: &[Node]) -> Vec<Held> {
    let nodes: BTreeSet<NodeId> = nodes.iter().map(|node| node.id).collect();
    let runs = map.slots().runs().iter().map(|run| {
        let mut goal = run.placed.goal();
        let owner = run.placed.owner.filter(|owner| nodes.contains(owner));
        if goal.first().is_some_and(|first| !nodes.contains(first))
            && let Some(at) = goal.iter().position(|&node| Some(node) == owner)
        {
            goal.swap(0, at);
        }
        let present = run.placed.holders().filter(|node| !goal.contains(node));
        Held {
            slots: run.slots,
            present: present.collect(),
            goal,
        }
    });
    runs.collect()
}

/// Where slots are to be: on `nodes`, `replicas` copies of each (1 to 16), with loads of at most
/// `spare_percent` above the share. It covers all slots, and is empty if there are no nodes.
///
/// With 1,000 nodes and 3 replicas it takes some tenths of a second from nothing, and a hundredth for one node that comes or goes.
pub fn place(old: &[Held], nodes: &[Node], replicas: u8, spare_percent: u8) -> Vec<Goal> {
    if nodes.is_empty() {
        return Vec::new();
    }
    let shares = Shares::of(nodes, replicas, spare_percent);
    let mut state = State::new(old, nodes, &shares);
    state.drop_what_may_not_stay();
    state.fill_what_lacks_copies();
    // Copies that are made anew may go anywhere; only then those that would stay move.
    for only_new in [true, false] {
        state.mend_by_chains(Ends::Both, only_new);
        state.give_to_who_has_too_little(only_new);
        state.mend_by_chains(Ends::Any, true);
        state.take_from_who_has_too_much(only_new);
        state.mend_by_chains(Ends::Any, only_new);
    }
    state.settle_owners();
    state.into_goals()
}

/// Who is to compute the outputs of which slots, one node each: the same rules, without zones.
pub fn place_outputs(
    old: &[(SlotRange, NodeId)],
    nodes: &[Node],
    spare_percent: u8,
) -> Vec<(SlotRange, NodeId)> {
    let held: Vec<Held> = match old {
        [] => vec![Held {
            slots: SlotRange::ALL,
            goal: Vec::new(),
            present: Vec::new(),
        }],
        _ => old
            .iter()
            .map(|&(slots, node)| Held {
                slots,
                goal: vec![node],
                present: Vec::new(),
            })
            .collect(),
    };
    let goals = place(&held, nodes, 1, spare_percent);
    goals
        .into_iter()
        .map(|(slots, goal)| (slots, goal[0]))
        .collect()
}

/// How many adjacent slots are placed together: a sixteenth of what a node owns, but 16 to 256, a power of two.
///
/// A node's slots then lie in some 16 blocks: of 64 nodes with two copies of each slot, a node's copies are on 19 or more others, any two
/// nodes that die lose at most 0.5 % of all slots, and `CLUSTER SLOTS` has 1,056 entries. A thousand nodes, each of which owns 16
/// slots, have one block or two each, 6 or more others, and some 2,300 entries. (Single slots would be 16,384
/// entries, and copies on so many others that any two nodes that die lose something.)
fn block_slots(nodes: usize) -> u16 {
    let part = usize::from(SLOTS) / nodes / 16;
    let power = part.checked_ilog2().unwrap_or(0).clamp(4, 8);
    1 << power
}

impl State<'_> {
    fn into_goals(self) -> Vec<Goal> {
        let mut pieces = self.pieces;
        pieces.sort_unstable_by_key(|piece| piece.from);
        let mut goals: Vec<Goal> = Vec::new();
        for Piece {
            from,
            count,
            holders,
            ..
        } in pieces
        {
            let mut goal: Vec<NodeId> = holders
                .iter()
                .map(|&at| self.nodes[usize::from(at)].id)
                .collect();
            goal[1..].sort_unstable();
            let slots = SlotRange::new(from, from + count - 1);
            match goals.last_mut() {
                Some((last, same)) if *same == goal => last.to = slots.to,
                _ => goals.push((slots, goal)),
            }
        }
        goals
    }
}
