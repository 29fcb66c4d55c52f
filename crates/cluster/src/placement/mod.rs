//! Placement: computes which node owns each slot, and which nodes replicate it.
//!
//! [`place`] computes the target placement from the current one. [`Plan`] lists the required moves, their order and their cost.
//! Both are pure functions.
//!
//! Guarantees of a placement, tested against an independent checker:
//!
//! 1. Copies of a slot are on different nodes: `replicas` of them, or as many as there are nodes.
//! 2. They are in different zones if there are at least as many zones as copies; otherwise no zone has more of them than
//!    necessary.
//! 3. A node owns at most `ceil((1 + e) share)` slots. It holds (owns or replicates) at most `ceil((1 + e) share)` and at least
//!    `floor((1 - e) share)`. The share is proportional to the weight, as far as 1 and 2 allow (`shares`).
//! 4. A copy that may stay stays. If possible, ownership changes among nodes that hold the slot, which moves no rows.
//! 5. Free choices are made by weighted rendezvous hashing of blocks of adjacent slots. A node's copies are thus spread over many
//!    others, and adjacent slots stay together, so that `CLUSTER SLOTS` stays short.
//!
//! The steps, in the order of the files:
//!
//! - `shares` computes each node's share.
//! - `blocks` represents the assignment as pieces of adjacent slots.
//! - `assign` drops invalid copies, adds missing copies, and moves slots from nodes with too many to nodes with too few.
//! - `chains` makes the improvements that need several moves together.
//! - `owners` does the same for ownership.
//!
//! Sources. The bound on loads is that of consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, arXiv
//! 1608.01350): a node that has its share is skipped. There, load above the bound moves along a ring. Here, a change starts from
//! the old assignment, as in Helix's AutoRebalance. Adding or removing a node therefore moves little more than its share, while a
//! placement from scratch moves up to 1.5 times that. The next node is chosen by weighted rendezvous hashing (Thaler and
//! Ravishankar 1998; the form `-w / ln h` is from Schindelhauer and Schomaker, SPAA 2005) instead of a ring: it is balanced
//! without tokens, and a node's successors differ from block to block. Chains are augmenting paths, as in maximum flow.

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

use assign::AssignmentState;
use blocks::Piece;
use chains::ChainEnds;

pub use balance::{Balance, NodeBalance, ZoneBalance};
pub use moves::{Move, MoveKind, NodeTraffic, Plan, SlotSizes, Totals};
pub use shares::{Bounds, Shares};

/// A node on which slots may be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementNode {
    pub id: NodeId,
    pub name: NodeName,
    pub zone: String,
    pub weight: u32,
}

impl PlacementNode {
    pub fn of(member: &Member) -> PlacementNode {
        let it = &member.registration;
        PlacementNode {
            id: member.id,
            name: it.name.clone(),
            zone: it.zone.clone(),
            weight: it.weight,
        }
    }
}

/// Slots and their target nodes, the owner first.
pub type Goal = (SlotRange, Vec<NodeId>);

/// The current placement of slots, as far as it matters to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentPlacement {
    pub slots: SlotRange,
    /// The current or target nodes of the slots, the owner first. They are kept where possible.
    pub goal: Vec<NodeId>,
    /// Nodes that have the rows but are not targets. They are preferred if a node is needed.
    pub present: Vec<NodeId>,
}

/// Returns the current placement of `map`, for [`place`]. If the intended owner may not own a slot, the current owner keeps it.
pub fn current_placement(map: &Map, nodes: &[PlacementNode]) -> Vec<CurrentPlacement> {
    let nodes: BTreeSet<NodeId> = nodes.iter().map(|node| node.id).collect();
    let runs = map.slots().runs().iter().map(|run| {
        let mut goal = run.placement.goal();
        let owner = run.placement.owner.filter(|owner| nodes.contains(owner));
        if goal.first().is_some_and(|first| !nodes.contains(first))
            && let Some(at) = goal.iter().position(|&node| Some(node) == owner)
        {
            goal.swap(0, at);
        }
        let present = run.placement.holders().filter(|node| !goal.contains(node));
        CurrentPlacement {
            slots: run.slots,
            present: present.collect(),
            goal,
        }
    });
    runs.collect()
}

/// Computes the target placement: `replicas` copies (1 to 16) of each slot on `nodes`, with loads of at most `spare_percent`
/// above the share. The result covers all slots; it is empty if there are no nodes.
///
/// With 1,000 nodes and 3 replicas, it takes some tenths of a second from scratch, and about 10 milliseconds if one node is added
/// or removed.
pub fn place(
    old: &[CurrentPlacement],
    nodes: &[PlacementNode],
    replicas: u8,
    spare_percent: u8,
) -> Vec<Goal> {
    if nodes.is_empty() {
        return Vec::new();
    }
    let shares = Shares::of(nodes, replicas, spare_percent);
    let mut state = AssignmentState::new(old, nodes, &shares);
    state.drop_invalid_copies();
    state.add_missing_copies();
    // Copies that must be created can be placed anywhere; only then are existing copies moved.
    for only_new_copies in [true, false] {
        state.balance_by_chains(ChainEnds::Both, only_new_copies);
        state.fill_underloaded_nodes(only_new_copies);
        state.balance_by_chains(ChainEnds::Any, true);
        state.relieve_overloaded_nodes(only_new_copies);
        state.balance_by_chains(ChainEnds::Any, only_new_copies);
    }
    state.assign_owners();
    state.into_goals()
}

/// Computes which node computes the outputs of each slot, one node per slot, by the same rules without zones.
pub fn place_outputs(
    old: &[(SlotRange, NodeId)],
    nodes: &[PlacementNode],
    spare_percent: u8,
) -> Vec<(SlotRange, NodeId)> {
    let current: Vec<CurrentPlacement> = match old {
        [] => vec![CurrentPlacement {
            slots: SlotRange::ALL,
            goal: Vec::new(),
            present: Vec::new(),
        }],
        _ => old
            .iter()
            .map(|&(slots, node)| CurrentPlacement {
                slots,
                goal: vec![node],
                present: Vec::new(),
            })
            .collect(),
    };
    let goals = place(&current, nodes, 1, spare_percent);
    goals
        .into_iter()
        .map(|(slots, goal)| (slots, goal[0]))
        .collect()
}

/// The number of adjacent slots that are placed together: a sixteenth of a node's owned slots, limited to 16 to 256 and rounded
/// to a power of two.
///
/// A node's slots then form about 16 blocks. With 64 nodes and two copies, a node's copies are on 19 or more others, any two
/// nodes that fail lose at most 0.5 % of all slots, and `CLUSTER SLOTS` has 1,056 entries. With 1,000 nodes, each owning 16
/// slots, a node has one or two blocks, its copies are on 6 or more others, and there are about 2,300 entries. (Single slots
/// would give 16,384 entries, and copies on so many nodes that any two nodes that fail lose some slot.)
fn block_slots(nodes: usize) -> u16 {
    let part = usize::from(SLOTS) / nodes / 16;
    let power = part.checked_ilog2().unwrap_or(0).clamp(4, 8);
    1 << power
}

impl AssignmentState<'_> {
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
