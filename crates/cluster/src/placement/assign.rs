//! The assignment: transforms the old assignment into one within all bounds, with few moves.

use std::collections::HashMap;

use super::blocks::Piece;
use super::rendezvous::{score, seed};
use super::{CurrentPlacement, PlacementNode, Shares, block_slots};
use crate::map::NodeId;

/// An assignment in progress.
pub(super) struct AssignmentState<'a> {
    pub nodes: &'a [PlacementNode],
    pub shares: &'a Shares,
    pub pieces: Vec<Piece>,
    /// The number of slots that each node holds (including those it owns), and owns.
    pub held: Vec<u32>,
    pub owned: Vec<u32>,
    block: u16,
    seeds: Vec<u64>,
}

impl<'a> AssignmentState<'a> {
    pub fn new(
        old: &[CurrentPlacement],
        nodes: &'a [PlacementNode],
        shares: &'a Shares,
    ) -> AssignmentState<'a> {
        let index: HashMap<NodeId, u16> = nodes
            .iter()
            .zip(0..)
            .map(|(node, at)| (node.id, at))
            .collect();
        let to_indexes = |ids: &[NodeId]| -> Vec<u16> {
            ids.iter().filter_map(|id| index.get(id).copied()).collect()
        };
        let block = block_slots(nodes.len());
        let mut pieces = Vec::new();
        for run in old {
            let piece = Piece {
                from: run.slots.from,
                count: run.slots.count() as u16,
                holders: to_indexes(&run.goal),
                before: to_indexes(&run.goal),
                is_owned: run
                    .goal
                    .first()
                    .is_some_and(|owner| index.contains_key(owner)),
                present: to_indexes(&run.present),
            };
            let mut rest = piece;
            // A piece ends at the end of a block at the latest.
            while rest.from / block != (rest.from + (rest.count - 1)) / block {
                let after = rest.split(block - rest.from % block);
                pieces.push(std::mem::replace(&mut rest, after));
            }
            pieces.push(rest);
        }
        AssignmentState {
            nodes,
            shares,
            pieces,
            held: vec![0; nodes.len()],
            owned: vec![0; nodes.len()],
            block,
            seeds: nodes.iter().map(seed).collect(),
        }
    }

    pub fn score(&self, node: u16, from: u16) -> f64 {
        let at = usize::from(node);
        score(self.seeds[at], from / self.block, self.nodes[at].weight)
    }

    fn zone(&self, node: u16) -> u16 {
        self.shares.zone_of[usize::from(node)]
    }

    fn in_zone(&self, piece: &Piece, zone: u16) -> u8 {
        let holders = piece.holders.iter();
        holders.filter(|&&it| self.zone(it) == zone).count() as u8
    }

    /// Returns whether `node` may hold the piece, if it replaces `instead_of`.
    pub fn may_hold(&self, piece: &Piece, node: u16, instead_of: Option<u16>) -> bool {
        let zone = self.zone(node);
        let same = instead_of.is_some_and(|it| self.zone(it) == zone);
        let limit = self.shares.zone_copies[usize::from(zone)];
        !piece.holds(node) && (same || self.in_zone(piece, zone) < limit)
    }

    /// The number of slots by which a node exceeds its share; negative if it is below.
    pub fn above(&self, node: u16) -> i64 {
        let at = usize::from(node);
        i64::from(self.held[at]) - i64::from(self.shares.held[at].target)
    }

    /// Drops the copies that violate a rule: too many copies of a slot in a zone, then too many copies of a slot.
    pub fn drop_invalid_copies(&mut self) {
        let mut pieces = std::mem::take(&mut self.pieces);
        for piece in &pieces {
            self.count(piece, 1);
        }
        for piece in &mut pieces {
            while let Some(node) = self.surplus_holder(piece) {
                piece.drop_holder(node);
                self.held[usize::from(node)] -= u32::from(piece.count);
                piece.present.push(node);
            }
        }
        // Owners are counted once the holders are final.
        self.pieces = pieces;
    }

    fn count(&mut self, piece: &Piece, sign: i32) {
        for &node in &piece.holders {
            let held = &mut self.held[usize::from(node)];
            *held = held.wrapping_add_signed(sign * i32::from(piece.count));
        }
    }

    fn surplus_holder(&self, piece: &Piece) -> Option<u16> {
        let crowded = |node: &u16| {
            let zone = self.zone(*node);
            self.in_zone(piece, zone) > self.shares.zone_copies[usize::from(zone)]
        };
        let holders = || piece.holders.iter().copied();
        let worst = |nodes: &mut dyn Iterator<Item = u16>| {
            nodes.max_by_key(|&node| (piece.owner() != Some(node), self.above(node), node))
        };
        let from_zone = worst(&mut holders().filter(crowded));
        from_zone.or_else(|| {
            let is_surplus = piece.holders.len() > usize::from(self.shares.copies);
            is_surplus.then(|| worst(&mut holders())).flatten()
        })
    }

    /// Adds copies until each slot has the required number: on nodes that already have its rows, or else by rendezvous hashing
    /// among nodes below their share.
    pub fn add_missing_copies(&mut self) {
        let copies = usize::from(self.shares.copies);
        let mut waiting = std::mem::take(&mut self.pieces);
        waiting.sort_unstable_by_key(|piece| std::cmp::Reverse(piece.from));
        while let Some(mut piece) = waiting.pop() {
            while piece.holders.len() < copies {
                let (node, room) = self.receiver(&piece);
                if room < u32::from(piece.count) {
                    waiting.push(piece.split(room as u16));
                }
                piece.holders.push(node);
                piece.present.retain(|&it| it != node);
                self.held[usize::from(node)] += u32::from(piece.count);
            }
            self.pieces.push(piece);
        }
    }

    /// Chooses the node for a further copy, and the number of the piece's slots (at least 1).
    fn receiver(&self, piece: &Piece) -> (u16, u32) {
        let count = u32::from(piece.count);
        let fewest = |node: u16| self.in_zone(piece, self.zone(node));
        let best = |limit: &dyn Fn(u16) -> u32, room_min: u32| {
            let nodes = (0..self.nodes.len() as u16).filter(|&node| {
                let room = limit(node).saturating_sub(self.held[usize::from(node)]);
                room >= room_min && self.may_hold(piece, node, None)
            });
            nodes.max_by(|&one, &other| {
                let present = |node| piece.present.contains(&node);
                let by_zone = fewest(other).cmp(&fewest(one));
                let by_score = || {
                    self.score(one, piece.from)
                        .total_cmp(&self.score(other, piece.from))
                };
                present(one)
                    .cmp(&present(other))
                    .then(by_zone)
                    .then_with(by_score)
            })
        };
        let target = |node: u16| self.shares.held[usize::from(node)].target;
        let at_least = |node: u16| self.shares.held[usize::from(node)].at_least;
        let at_most = |node: u16| self.shares.held[usize::from(node)].at_most;
        let room = |node: u16, limit: u32| count.min(limit - self.held[usize::from(node)]);
        // In order of preference: the complete piece to a node below its minimum, or below its share; a part to a node below its
        // share; a part above the share; beyond all bounds (which the chains repair).
        if let Some(node) = best(&at_least, count).or_else(|| best(&target, count)) {
            return (node, count);
        }
        if let Some(node) = best(&target, count.div_ceil(4)).or_else(|| best(&target, 1)) {
            return (node, room(node, target(node)));
        }
        if let Some(node) = best(&at_most, 1) {
            return (node, room(node, at_most(node)));
        }
        let any = best(&|_| u32::MAX, 1);
        (any.expect("a zone has room for each missing copy"), count)
    }

    /// Moves slots to nodes below their minimum, in the order of those nodes' rendezvous scores: first from nodes above their
    /// maximum, then from nodes above their share, then from any node that can give.
    pub fn fill_underloaded_nodes(&mut self, only_new_copies: bool) {
        for node in 0..self.nodes.len() as u16 {
            let bounds = self.shares.held[usize::from(node)];
            if self.held[usize::from(node)] >= bounds.at_least {
                continue;
            }
            let mut order: Vec<(f64, u16)> = self
                .pieces
                .iter()
                .map(|piece| (self.score(node, piece.from), piece.from))
                .collect();
            order
                .sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
            order.dedup();
            for level in [Level::AtMost, Level::Target, Level::AtLeast] {
                for &(_, from) in &order {
                    let need = bounds.at_least.saturating_sub(self.held[usize::from(node)]);
                    if need == 0 {
                        break;
                    }
                    self.take_piece(node, from, need, level, only_new_copies);
                }
            }
        }
    }

    /// Moves a piece, or a part of it, to `node` from the holder that exceeds its level the most.
    fn take_piece(&mut self, node: u16, from: u16, need: u32, level: Level, only_new_copies: bool) {
        let Some(at) = self.piece_at(from) else {
            return;
        };
        let piece = &self.pieces[at];
        let surplus = |it: u16| self.held[usize::from(it)].saturating_sub(self.level(it, level));
        let givers = piece.holders.iter().copied().filter(|&it| {
            surplus(it) > 0
                && !(only_new_copies && piece.before.contains(&it))
                && self.may_hold(piece, node, Some(it))
        });
        let Some(giver) = givers.max_by_key(|&it| (surplus(it), it)) else {
            return;
        };
        let amount = need.min(surplus(giver)).min(u32::from(piece.count));
        self.transfer(at, giver, node, amount as u16);
    }

    fn level(&self, node: u16, level: Level) -> u32 {
        let bounds = self.shares.held[usize::from(node)];
        match level {
            Level::AtMost => bounds.at_most,
            Level::Target => bounds.target,
            Level::AtLeast => bounds.at_least,
        }
    }

    /// Finds a piece by its first slot, by which the pieces are sorted.
    fn piece_at(&self, from: u16) -> Option<usize> {
        self.pieces
            .binary_search_by_key(&from, |piece| piece.from)
            .ok()
    }

    /// Moves `amount` slots of a piece from one node to another.
    pub fn transfer(&mut self, at: usize, from: u16, to: u16, amount: u16) {
        let piece = &mut self.pieces[at];
        debug_assert!(amount > 0 && amount <= piece.count);
        let rest = (amount < piece.count).then(|| piece.split(amount));
        piece.replace(from, to);
        self.held[usize::from(from)] -= u32::from(amount);
        self.held[usize::from(to)] += u32::from(amount);
        if let Some(rest) = rest {
            self.pieces.insert(at + 1, rest);
        }
    }

    /// Moves slots from nodes above their maximum to nodes below their share, choosing the pieces with the highest score there.
    pub fn relieve_overloaded_nodes(&mut self, only_new_copies: bool) {
        for node in 0..self.nodes.len() as u16 {
            let at_most = self.shares.held[usize::from(node)].at_most;
            for level in [Level::Target, Level::AtMost] {
                let mut at = 0;
                while at < self.pieces.len() && self.held[usize::from(node)] > at_most {
                    let piece = &self.pieces[at];
                    if piece.holds(node) && !(only_new_copies && piece.before.contains(&node)) {
                        self.give_piece(node, at, at_most, level);
                    }
                    at += 1;
                }
            }
        }
    }

    fn give_piece(&mut self, node: u16, at: usize, at_most: u32, level: Level) {
        let piece = &self.pieces[at];
        let room = |it: u16| {
            self.level(it, level)
                .saturating_sub(self.held[usize::from(it)])
        };
        let takers = (0..self.nodes.len() as u16)
            .filter(|&it| room(it) > 0 && self.may_hold(piece, it, Some(node)));
        let by_score = |one: &u16, other: &u16| {
            self.score(*one, piece.from)
                .total_cmp(&self.score(*other, piece.from))
        };
        let Some(taker) = takers.max_by(by_score) else {
            return;
        };
        let amount = (self.held[usize::from(node)] - at_most)
            .min(room(taker))
            .min(u32::from(piece.count));
        self.transfer(at, node, taker, amount as u16);
    }

    /// Checks the counters; for tests.
    #[cfg(debug_assertions)]
    pub fn check(&self) {
        let mut held = vec![0; self.nodes.len()];
        let mut slots = 0;
        for piece in &self.pieces {
            piece
                .holders
                .iter()
                .for_each(|&it| held[usize::from(it)] += u32::from(piece.count));
            slots += u32::from(piece.count);
        }
        assert_eq!(slots, u32::from(larder_types::SLOTS));
        assert_eq!(held, self.held);
    }
}

/// The limit to which a node may give or receive.
#[derive(Clone, Copy)]
enum Level {
    AtMost,
    Target,
    AtLeast,
}
