//! Links between nodes, separately per direction, and the connections over them.
//!
//! 1. A connection preserves the order and loses nothing: blocked messages wait, and eventually the connection
//!    breaks, at both ends at different times. Messages in flight are then lost.
//! 2. An end is notified of the loss of a connection before it is notified of the next one.
//! 3. Datagrams have no order; they may be lost or duplicated.

use std::collections::VecDeque;

use crate::node::NodeId;

/// The state of a connection as one end knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum End {
    #[default]
    None,
    /// It was notified of this connection, and not of its loss.
    Notified(u64),
}

/// Both directions between two nodes; `a` is the lower one.
#[derive(Debug)]
pub(crate) struct Pair<M> {
    /// The number of the current connection; 0 for none.
    pub connection: u64,
    pub ends: [End; 2],
    pub ways: [Direction<M>; 2],
    /// An attempt to connect is in progress.
    pub is_connecting: bool,
}

/// One direction.
#[derive(Debug)]
pub(crate) struct Direction<M> {
    /// The number of faults that currently block it.
    pub blocks: u32,
    /// Identifies the current blockage; unique.
    pub blocked_since: u64,
    /// The arrival time of the last message in flight.
    pub last_at: u64,
    /// Messages that arrived while it was blocked.
    pub held: VecDeque<M>,
}

impl<M> Default for Direction<M> {
    fn default() -> Self {
        Direction {
            blocks: 0,
            blocked_since: 0,
            last_at: 0,
            held: VecDeque::new(),
        }
    }
}

impl<M> Default for Pair<M> {
    fn default() -> Self {
        Pair {
            connection: 0,
            ends: [End::None; 2],
            ways: [Direction::default(), Direction::default()],
            is_connecting: false,
        }
    }
}

impl<M> Pair<M> {
    pub fn is_open(&self) -> bool {
        self.ways.iter().all(|way| way.blocks == 0)
    }

    /// Breaks the connection; messages in flight are lost.
    pub fn break_off(&mut self) {
        self.connection = 0;
        for way in &mut self.ways {
            way.held.clear();
        }
    }
}

/// All pairs of nodes.
pub(crate) struct Links<M> {
    nodes: usize,
    pairs: Vec<Pair<M>>,
}

impl<M> Links<M> {
    pub fn new(nodes: usize) -> Links<M> {
        Links {
            nodes,
            pairs: (0..nodes * nodes).map(|_| Pair::default()).collect(),
        }
    }

    pub fn pair(&mut self, one: NodeId, other: NodeId) -> &mut Pair<M> {
        let (a, b) = (one.0.min(other.0), one.0.max(other.0));
        &mut self.pairs[a * self.nodes + b]
    }

    pub fn direction(&mut self, from: NodeId, to: NodeId) -> &mut Direction<M> {
        &mut self.pair(from, to).ways[direction_index(from, to)]
    }
}

/// Returns the index of `from`'s end, or of the direction from it, in a pair.
pub(crate) fn direction_index(from: NodeId, to: NodeId) -> usize {
    usize::from(from.0 > to.0)
}
