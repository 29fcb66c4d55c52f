//! What is simulated: nodes, which are told of what happens and say what they do.

use std::fmt::Debug;

use crate::disk::Disk;

/// A node of a world, by its place in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// A state machine: no clock, no socket, no file, no randomness but what it is given.
pub trait Node: Sized {
    /// What every start of a node is told.
    type Setup;
    type Message: Clone + Debug;

    /// A process begins, on what its disk has. `seed` is another at each start.
    fn start(setup: &Self::Setup, start: Start<'_>, out: &mut Outputs<Self::Message>) -> Self;

    /// `now_us` is this node's own clock: it only goes forward, and is not that of the others.
    fn step(&mut self, now_us: u64, input: Input<Self::Message>, out: &mut Outputs<Self::Message>);
}

/// What a process finds when it begins.
#[derive(Debug)]
pub struct Start<'a> {
    pub me: NodeId,
    pub now_us: u64,
    pub seed: u64,
    pub disk: &'a Disk,
    /// The machine was without power since the last start: what was not synced may be lost.
    pub lost_power: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<M> {
    /// A time that was asked for by [`Output::Wake`] has come.
    Tick,
    /// A connection is there, in both directions; the one before, if any, was [`Input::Lost`].
    Connected(NodeId),
    Lost(NodeId),
    /// Over the connection, in the order in which it was sent.
    Message(NodeId, M),
    /// Without a connection: late, twice, or overtaken by others.
    Datagram(NodeId, M),
    /// So many changes of the disk since this start are safe from a loss of power.
    Synced(u64),
}

/// What a node does, in this order; a crash may come between any two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<M> {
    /// Over the connection. Nothing happens if there is none.
    Send(NodeId, M),
    Datagram(NodeId, M),
    /// Writes bytes at the end of a file.
    Append(&'static str, Vec<u8>),
    /// Gives a file a new content, all or nothing.
    Replace(&'static str, Vec<u8>),
    /// Asks for [`Input::Synced`] of all that was written so far.
    Sync,
    /// Asks for a [`Input::Tick`] when its clock shows this.
    Wake(u64),
    /// For the trace.
    Note(String),
}

/// What a step put out.
#[derive(Debug)]
pub struct Outputs<M> {
    pub list: Vec<Output<M>>,
    /// Whether anybody reads the notes.
    pub is_traced: bool,
}

impl<M> Outputs<M> {
    pub fn push(&mut self, output: Output<M>) {
        self.list.push(output);
    }

    /// A line for the trace; it is only made where it is read.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if self.is_traced {
            self.list.push(Output::Note(line()));
        }
    }
}
