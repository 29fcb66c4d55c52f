//! Chains of moves, for cases that no single move solves: one node gives to a second, which gives another piece to a third.
//!
//! A node above its maximum may hold only slots that no node below its share may take, because that node or its zone already has
//! them. Then an intermediate node helps. A chain is an augmenting path of the flow from slots over zones to nodes. The shortest
//! chain is chosen, so its moves do not interfere; a chain exists whenever the bounds can be met. Copies that must be created
//! anyway can be placed anywhere at no cost, and moving a copy back to a previous holder is free too, so chains of these are used
//! first.

use std::collections::VecDeque;

use super::assign::AssignmentState;

/// The ends of a chain.
#[derive(Clone, Copy)]
pub(super) enum ChainEnds {
    /// From a node above its maximum to a node below its minimum.
    Both,
    /// From or to such a node.
    Any,
}

impl AssignmentState<'_> {
    /// Brings every node within its bounds. With `only_new_copies`, only as far as moves of new copies, or moves back to previous
    /// holders, allow.
    pub fn balance_by_chains(&mut self, ends: ChainEnds, only_new_copies: bool) {
        let count = self.nodes.len();
        let share = |state: &Self, at: usize| state.shares.held[at];
        loop {
            let over: Vec<usize> = (0..count)
                .filter(|&at| self.held[at] > share(self, at).at_most)
                .collect();
            let under: Vec<usize> = (0..count)
                .filter(|&at| self.held[at] < share(self, at).at_least)
                .collect();
            let ceiling = |at: usize| {
                if only_new_copies {
                    share(self, at).at_most
                } else {
                    share(self, at).target
                }
            };
            let below = || (0..count).filter(|&at| self.held[at] < ceiling(at));
            let floor = |at: usize| {
                if only_new_copies {
                    share(self, at).at_least
                } else {
                    share(self, at).target
                }
            };
            let above = || (0..count).filter(|&at| self.held[at] > floor(at));
            if over.is_empty() && under.is_empty() {
                break;
            }
            // A chain that fixes both ends costs as much as one that fixes a single end.
            let both = || {
                self.chain(&over, &under, only_new_copies)
                    .filter(|chain| chain.len() == 1 || only_new_copies)
            };
            let from_over = || self.chain(&over, &below().collect::<Vec<_>>(), only_new_copies);
            let to_under = || self.chain(&above().collect::<Vec<_>>(), &under, only_new_copies);
            let chain = match ends {
                ChainEnds::Both => both(),
                ChainEnds::Any => both().or_else(from_over).or_else(to_under),
            };
            if !chain.is_some_and(|chain| self.apply_chain(&chain, only_new_copies)) {
                break;
            }
        }
        #[cfg(debug_assertions)]
        self.check();
    }

    /// Returns the shortest chain of moves from one of `sources` to one of `sinks`: nodes, and the piece that each gives to the
    /// next.
    fn chain(
        &self,
        sources: &[usize],
        sinks: &[usize],
        only_new_copies: bool,
    ) -> Option<Vec<(u16, usize, u16)>> {
        let count = self.nodes.len();
        let mut of_node: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (at, piece) in self.pieces.iter().enumerate() {
            let holders = piece.holders.iter();
            holders.for_each(|&node| of_node[usize::from(node)].push(at));
        }
        let mut predecessor: Vec<Option<(u16, usize)>> = vec![None; count];
        let mut seen = vec![false; count];
        let mut queue: VecDeque<usize> = sources.iter().copied().collect();
        sources.iter().for_each(|&at| seen[at] = true);
        while let Some(node) = queue.pop_front() {
            if sinks.contains(&node) {
                let mut chain = Vec::new();
                let mut to = node as u16;
                while let Some((from, piece)) = predecessor[usize::from(to)] {
                    chain.push((from, piece, to));
                    to = from;
                }
                return Some(chain);
            }
            for &at in &of_node[node] {
                let piece = &self.pieces[at];
                // A new copy costs the same anywhere; moving a copy back to a previous holder is free.
                let is_new = !piece.before.contains(&(node as u16));
                for next in 0..count {
                    let is_free = is_new || piece.before.contains(&(next as u16));
                    if only_new_copies && !is_free {
                        continue;
                    }
                    if !seen[next] && self.may_hold(piece, next as u16, Some(node as u16)) {
                        seen[next] = true;
                        predecessor[next] = Some((node as u16, at));
                        queue.push_back(next);
                    }
                }
            }
        }
        None
    }

    /// Executes the moves of a chain, last first, with as many slots as all of them allow, at least one.
    fn apply_chain(&mut self, chain: &[(u16, usize, u16)], only_new_copies: bool) -> bool {
        let (Some(&(_, _, sink)), Some(&(source, _, _))) = (chain.first(), chain.last()) else {
            return false;
        };
        let (source, sink) = (usize::from(source), usize::from(sink));
        let (gives, takes) = (self.shares.held[source], self.shares.held[sink]);
        // Brings nodes that are out of bounds to their bound. Nodes within bounds stay there, or on their side of the share if
        // moves are not free.
        let surplus = match self.held[source] > gives.at_most {
            true => self.held[source] - gives.at_most,
            false if only_new_copies => self.held[source] - gives.at_least,
            false => self.held[source] - gives.target,
        };
        let shortage = match self.held[sink] < takes.at_least {
            true => takes.at_least - self.held[sink],
            false if only_new_copies => takes.at_most - self.held[sink],
            false => takes.target - self.held[sink],
        };
        let shortest = chain.iter().map(|&(_, at, _)| self.pieces[at].count).min();
        let amount = surplus.min(shortage).min(u32::from(shortest.unwrap_or(0))) as u16;
        if amount == 0 {
            return false;
        }
        // Splitting a piece moves the pieces after it, so those with the highest index go first.
        let mut moves = chain.to_vec();
        moves.sort_unstable_by_key(|&(_, at, _)| std::cmp::Reverse(at));
        for (from, at, to) in moves {
            if !self.may_hold(&self.pieces[at], to, Some(from)) {
                return false;
            }
            self.transfer(at, from, to, amount);
        }
        true
    }
}
