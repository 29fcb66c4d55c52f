//! The interface of simulated nodes: they receive inputs and return outputs.

use std::fmt::Debug;

use crate::disk::Disk;

/// A node of a world, by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// A state machine without access to clocks, sockets, files or randomness, except through its arguments.
pub trait Node: Sized {
    /// The configuration that every start of a node receives.
    type Setup;
    type Message: Clone + Debug;

    /// Starts a process with the contents of its disk. `seed` differs at each start.
    fn start(setup: &Self::Setup, start: Start<'_>, out: &mut Outputs<Self::Message>) -> Self;

    /// Processes an input. `now_us` is this node's own clock: it is monotonic, and differs from those of other nodes.
    fn step(&mut self, now_us: u64, input: Input<Self::Message>, out: &mut Outputs<Self::Message>);
}

/// The environment of a new process.
#[derive(Debug)]
pub struct Start<'a> {
    pub me: NodeId,
    pub now_us: u64,
    pub seed: u64,
    pub disk: &'a Disk,
    /// The machine lost its power since the last start: unsynced data may be lost.
    pub lost_power: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<M> {
    /// A time that [`Output::Wake`] requested has been reached.
    Tick,
    /// A connection is established, in both directions; the previous one, if any, was reported as [`Input::Lost`].
    Connected(NodeId),
    Lost(NodeId),
    /// A message over the connection, in the order of sending.
    Message(NodeId, M),
    /// A message without a connection: possibly late, duplicated, or reordered.
    Datagram(NodeId, M),
    /// This number of disk changes since this start is durable.
    Synced(u64),
}

/// The outputs of a node, executed in order; a crash may occur between any two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<M> {
    /// Sends over the connection. A no-op if there is none.
    Send(NodeId, M),
    Datagram(NodeId, M),
    /// Appends bytes to a file.
    Append(&'static str, Vec<u8>),
    /// Replaces a file's contents atomically.
    Replace(&'static str, Vec<u8>),
    /// Requests [`Input::Synced`] for everything written so far.
    Sync,
    /// Requests an [`Input::Tick`] when the node's clock reaches this time.
    Wake(u64),
    /// Writes a line to the trace.
    Note(String),
}

/// The outputs of a step.
#[derive(Debug)]
pub struct Outputs<M> {
    pub list: Vec<Output<M>>,
    /// True if notes are recorded.
    pub is_traced: bool,
}

impl<M> Outputs<M> {
    pub fn push(&mut self, output: Output<M>) {
        self.list.push(output);
    }

    /// Adds a trace line; it is only formatted if notes are recorded.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if self.is_traced {
            self.list.push(Output::Note(line()));
        }
    }
}
