//! What the nodes of the simulated cluster say to one another.

use std::fmt;
use std::sync::Arc;

use larder_cluster::map::{Incarnation, Map, NodeId, NodeName, Registration};
use larder_cluster::replication::{Ask, Message};
use larder_sim::{NodeId as At, Output, Outputs};

#[derive(Debug, Clone)]
pub enum Wire {
    /// To the service, and back: datagrams.
    Poll,
    Map(Shown),
    Register(Box<Registration>, u64),
    KeepAlive(NodeName, Incarnation, u64),
    Alive(u64, bool),
    Ask(NodeName, Incarnation, Ask),
    HandOver(u16, NodeId),
    /// Between servers, over connections: which member this is, once it is ready.
    Hello(NodeId),
    Peer(Peer),
    /// Of a client, and back.
    Request(u64, Call),
    Reply(u64, Reply),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub slot: u16,
    pub key: u8,
    pub what: Op,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Get,
    Set(u64),
    Delete,
    Add(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// What was read; 0 for nothing.
    Value(u64),
    Done,
    NotDone,
}

/// A map, short in the trace.
#[derive(Clone)]
pub struct Shown(pub Arc<Map>);

impl fmt::Debug for Shown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "map {}:", self.0.epoch())?;
        for run in self.0.slots().runs() {
            let placed = &run.placed;
            if let Some(owner) = placed.owner {
                let in_sync: Vec<u32> = placed.in_sync.iter().map(|it| it.0).collect();
                let filling: Vec<u32> = placed.filling.iter().map(|it| it.node.0).collect();
                let slot = run.slots.from;
                let to = run.slots.to;
                let term = placed.term;
                write!(out, " {slot}-{to}@{term}:{owner}+{in_sync:?}~{filling:?}")?;
            }
        }
        for member in self.0.members() {
            let life = member.registration.incarnation;
            write!(out, " n{}.{life}:{:?}", member.id, member.state)?;
        }
        Ok(())
    }
}

/// A message of replication, as bytes.
#[derive(Clone)]
pub struct Peer(pub Vec<u8>);

impl fmt::Debug for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Message::decode(&self.0) {
            Ok(message) => message.fmt(out),
            Err(error) => error.fmt(out),
        }
    }
}

pub fn datagram(out: &mut Outputs<Wire>, to: At, wire: Wire) {
    out.push(Output::Datagram(to, wire));
}
