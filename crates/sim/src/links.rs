//! Links between nodes, each direction by itself, and the connections over them.
//!
//! 1. A connection keeps its order and loses nothing: what cannot pass waits, and at last the connection breaks, at both ends, each
//!    at a time of its own. What was on its way then is lost.
//! 2. Whoever is told of a connection is told of its loss before it is told of the next.
//! 3. Datagrams keep no order; they may be lost or come twice.

use std::collections::VecDeque;

use crate::node::NodeId;

/// What one end believes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum End {
    #[default]
    None,
    /// Told of this connection, and not of its loss.
    Told(u64),
}

/// Both directions between two nodes; `a` is the lower.
#[derive(Debug)]
pub(crate) struct Pair<M> {
    /// The number of the connection that is there; 0 for none.
    pub connection: u64,
    pub ends: [End; 2],
    pub ways: [Way<M>; 2],
    /// An attempt to connect is under way.
    pub is_connecting: bool,
}

/// One direction.
#[derive(Debug)]
pub(crate) struct Way<M> {
    /// So many faults block it now.
    pub blocks: u32,
    /// Since when, as a number that is another each time.
    pub blocked_since: u64,
    /// When the last message on its way arrives.
    pub last_at: u64,
    /// What arrived while it was blocked.
    pub held: VecDeque<M>,
}

impl<M> Default for Way<M> {
    fn default() -> Self {
        Way {
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
            ways: [Way::default(), Way::default()],
            is_connecting: false,
        }
    }
}

impl<M> Pair<M> {
    pub fn is_open(&self) -> bool {
        self.ways.iter().all(|way| way.blocks == 0)
    }

    /// What is on its way is lost.
    pub fn break_off(&mut self) {
        self.connection = 0;
        for way in &mut self.ways {
            way.held.clear();
        }
    }
}

/// All pairs of so many nodes.
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

    pub fn way(&mut self, from: NodeId, to: NodeId) -> &mut Way<M> {
        &mut self.pair(from, to).ways[direction(from, to)]
    }
}

/// Which of a pair's ends or ways is that of `from`.
pub(crate) fn direction(from: NodeId, to: NodeId) -> usize {
    usize::from(from.0 > to.0)
}
