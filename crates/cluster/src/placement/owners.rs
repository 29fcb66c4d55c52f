//! Ownership: one holder of each slot becomes its owner, within the bounds and with as few changes as possible.

use std::collections::VecDeque;

use super::assign::AssignmentState;

impl AssignmentState<'_> {
    pub fn assign_owners(&mut self) {
        self.count_owners();
        self.assign_missing_owners();
        self.balance_owners();
        self.balance_owners_by_chains();
        if self.owners_out_of_bounds().is_some() {
            self.swap_copies();
        }
    }

    fn count_owners(&mut self) {
        self.owned.fill(0);
        for piece in &self.pieces {
            if let Some(owner) = piece.owner() {
                self.owned[usize::from(owner)] += u32::from(piece.count);
            }
        }
    }

    /// Assigns an owner to pieces whose owner is gone: the holder furthest below its share, preferring nodes that have the rows.
    fn assign_missing_owners(&mut self) {
        for at in 0..self.pieces.len() {
            if self.pieces[at].is_owned {
                continue;
            }
            let fullness = |node: u16| {
                let at = usize::from(node);
                f64::from(self.owned[at]) / self.shares.owned[at].share
            };
            let piece = &self.pieces[at];
            let is_new =
                |node: u16| !piece.before.contains(&node) && !piece.present.contains(&node);
            let owner = piece.holders.iter().copied().min_by(|&one, &other| {
                let by_rows = is_new(one).cmp(&is_new(other));
                by_rows.then_with(|| fullness(one).total_cmp(&fullness(other)))
            });
            let owner = owner.expect("every piece has a holder");
            let piece = &mut self.pieces[at];
            piece.make_owner(owner);
            self.owned[usize::from(owner)] += u32::from(piece.count);
        }
    }

    /// Makes single ownership changes that benefit both nodes, while there are any.
    fn balance_owners(&mut self) {
        for (give, take) in [
            (GiveLevel::AboveMost, TakeLevel::Target),
            (GiveLevel::AboveMost, TakeLevel::Most),
            (GiveLevel::AboveTarget, TakeLevel::Least),
        ] {
            let mut at = 0;
            while at < self.pieces.len() {
                let piece = &self.pieces[at];
                let owner = piece.holders[0];
                let surplus = self.surplus(owner, give);
                let room = |node: u16| self.room(node, take);
                let taker = piece.holders[1..].iter().copied().max_by_key(|&node| {
                    (
                        room(node) > 0 && piece.before.contains(&node),
                        room(node),
                        node,
                    )
                });
                if let Some(taker) = taker.filter(|&taker| surplus > 0 && room(taker) > 0) {
                    let amount = surplus.min(room(taker)).min(u32::from(piece.count));
                    self.hand_over(at, taker, amount as u16);
                }
                at += 1;
            }
        }
    }

    fn surplus(&self, node: u16, give: GiveLevel) -> u32 {
        let at = usize::from(node);
        let bounds = self.shares.owned[at];
        let level = match give {
            GiveLevel::AboveMost => bounds.at_most,
            GiveLevel::AboveTarget => bounds.target,
        };
        self.owned[at].saturating_sub(level)
    }

    fn room(&self, node: u16, take: TakeLevel) -> u32 {
        let at = usize::from(node);
        let bounds = self.shares.owned[at];
        let level = match take {
            TakeLevel::Least => bounds.at_least,
            TakeLevel::Target => bounds.target,
            TakeLevel::Most => bounds.at_most,
        };
        level.saturating_sub(self.owned[at])
    }

    fn hand_over(&mut self, at: usize, to: u16, amount: u16) {
        let piece = &mut self.pieces[at];
        let from = piece.holders[0];
        let rest = (amount < piece.count).then(|| piece.split(amount));
        piece.make_owner(to);
        self.owned[usize::from(from)] -= u32::from(amount);
        self.owned[usize::from(to)] += u32::from(amount);
        if let Some(rest) = rest {
            self.pieces.insert(at + 1, rest);
        }
    }

    /// Returns a node that owns too many slots (`true`) or too few.
    fn owners_out_of_bounds(&self) -> Option<(u16, bool)> {
        let nodes = 0..self.nodes.len() as u16;
        let bounds = |node: u16| self.shares.owned[usize::from(node)];
        let owned = |node: u16| self.owned[usize::from(node)];
        let over = nodes
            .clone()
            .find(|&node| owned(node) > bounds(node).at_most);
        let mut under = nodes.filter(|&node| owned(node) < bounds(node).at_least);
        over.map(|node| (node, true))
            .or_else(|| under.next().map(|node| (node, false)))
    }

    /// Applies chains of ownership changes, like the chains of moves in `chains`.
    fn balance_owners_by_chains(&mut self) {
        while let Some((node, is_over)) = self.owners_out_of_bounds() {
            let count = self.nodes.len() as u16;
            let is_end = |it: u16| {
                let at = usize::from(it);
                if is_over {
                    self.owned[at] < self.shares.owned[at].target
                } else {
                    self.owned[at] > self.shares.owned[at].target
                }
            };
            let ends: Vec<bool> = (0..count).map(is_end).collect();
            let Some(chain) = self.owner_chain(node, is_over, &ends) else {
                return;
            };
            let mut moves = chain;
            moves.sort_unstable_by_key(|&(at, _)| std::cmp::Reverse(at));
            // One slot at a time would also work; a larger amount is faster, and stays within the bounds of both ends.
            let end = find_chain_end(&self.pieces, &moves, node, is_over);
            let (own, other) = (usize::from(node), usize::from(end));
            let (own_bounds, other_bounds) = (self.shares.owned[own], self.shares.owned[other]);
            let need = if is_over {
                (self.owned[own] - own_bounds.at_most).min(other_bounds.target - self.owned[other])
            } else {
                (own_bounds.at_least - self.owned[own]).min(self.owned[other] - other_bounds.target)
            };
            let shortest = moves.iter().map(|&(at, _)| self.pieces[at].count).min();
            let amount = need.min(u32::from(shortest.unwrap_or(0))) as u16;
            for (at, to) in moves {
                self.hand_over(at, to, amount);
            }
        }
    }

    /// Returns the shortest chain of ownership changes from `node` (or to it) that ends at one of `ends`: pieces and their new
    /// owners.
    fn owner_chain(&self, node: u16, is_over: bool, ends: &[bool]) -> Option<Vec<(usize, u16)>> {
        let count = self.nodes.len();
        // For each node, the ownership changes from it: (piece, new owner, next node).
        let mut edges: Vec<Vec<(usize, u16, u16)>> = vec![Vec::new(); count];
        for (at, piece) in self.pieces.iter().enumerate() {
            let owner = piece.holders[0];
            for &to in &piece.holders[1..] {
                if is_over {
                    edges[usize::from(owner)].push((at, to, to))
                } else {
                    edges[usize::from(to)].push((at, to, owner))
                }
            }
        }
        let mut predecessor: Vec<Option<(u16, usize, u16)>> = vec![None; count];
        let mut queue = VecDeque::from([node]);
        while let Some(here) = queue.pop_front() {
            if here != node && ends[usize::from(here)] {
                let mut chain = Vec::new();
                let mut at = here;
                while at != node {
                    let (before, piece, to) = predecessor[usize::from(at)]
                        .expect("every node of the chain has a predecessor");
                    chain.push((piece, to));
                    at = before;
                }
                return Some(chain);
            }
            for &(piece, to, next) in &edges[usize::from(here)] {
                if next != node && predecessor[usize::from(next)].is_none() {
                    predecessor[usize::from(next)] = Some((here, piece, to));
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// The last resort, which moves rows: a node that owns too few slots takes over a copy, and the ownership, of a slot from a
    /// node that owns too many. In return it gives one of its own copies to that node or to another holder.
    fn swap_copies(&mut self) {
        for _ in 0..self.pieces.len() {
            let Some((node, is_over)) = self.owners_out_of_bounds() else {
                return;
            };
            let nodes = 0..self.nodes.len() as u16;
            let other = if is_over {
                nodes
                    .filter(|&it| it != node)
                    .max_by_key(|&it| (self.room(it, TakeLevel::Target), it))
            } else {
                nodes
                    .filter(|&it| it != node)
                    .max_by_key(|&it| (self.surplus(it, GiveLevel::AboveTarget), it))
            };
            let Some(other) = other else {
                return;
            };
            let (overloaded, underloaded) = if is_over {
                (node, other)
            } else {
                (other, node)
            };
            if !self.swap_copy(overloaded, underloaded) {
                return;
            }
            self.balance_owners_by_chains();
        }
    }

    /// Makes `underloaded` the owner of a slot of `overloaded`, in place of one of its holders, which receives another slot of `underloaded`.
    fn swap_copy(&mut self, overloaded: u16, underloaded: u16) -> bool {
        for at in 0..self.pieces.len() {
            let piece = &self.pieces[at];
            if piece.holders[0] != overloaded || piece.holds(underloaded) {
                continue;
            }
            for giver in piece.holders.clone().into_iter().rev() {
                if !self.may_hold(&self.pieces[at], underloaded, Some(giver)) {
                    continue;
                }
                let back = self.pieces.iter().position(|it| {
                    it.holds(underloaded)
                        && it.holders[0] != underloaded
                        && self.may_hold(it, giver, Some(underloaded))
                });
                let Some(back) = back else {
                    continue;
                };
                let room = self
                    .room(underloaded, TakeLevel::Most)
                    .max(1)
                    .min(self.surplus(overloaded, GiveLevel::AboveTarget).max(1));
                let amount = self.pieces[at]
                    .count
                    .min(self.pieces[back].count)
                    .min(room as u16);
                // The later piece goes first, so that its split does not move the earlier one.
                let mut both = [
                    (at, giver, underloaded, true),
                    (back, underloaded, giver, false),
                ];
                both.sort_unstable_by_key(|it| std::cmp::Reverse(it.0));
                for (at, from, to, owns) in both {
                    self.transfer(at, from, to, amount);
                    if owns {
                        self.pieces[at].make_owner(to);
                    }
                }
                self.count_owners();
                return true;
            }
        }
        false
    }
}

/// Returns the node at the other end of a chain of ownership changes.
fn find_chain_end(
    pieces: &[super::blocks::Piece],
    moves: &[(usize, u16)],
    node: u16,
    is_over: bool,
) -> u16 {
    let mut here = node;
    for _ in 0..moves.len() {
        let step = moves.iter().find(|&&(at, to)| {
            if is_over {
                pieces[at].holders[0] == here
            } else {
                to == here
            }
        });
        let &(at, to) = step.expect("the moves form a chain");
        here = if is_over { to } else { pieces[at].holders[0] };
    }
    here
}

#[derive(Clone, Copy)]
enum GiveLevel {
    AboveMost,
    AboveTarget,
}

#[derive(Clone, Copy)]
enum TakeLevel {
    Least,
    Target,
    Most,
}
