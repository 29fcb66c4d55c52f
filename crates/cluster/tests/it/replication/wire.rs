//! The messages between the nodes of the simulated cluster.

use std::fmt;
use std::sync::Arc;

use larder_cluster::coordination::{
    Error, Keys, Request as CoordinationRequest, Response, Revision, WatchItem,
};
use larder_cluster::map::{Incarnation, Map, NodeId, NodeName, Registration, Term};
use larder_cluster::replication::{MapRequest, Message};
use larder_sim::{NodeId as At, Output, Outputs};
use larder_types::VersionId;

use crate::system::joins::JoinMessage;

#[derive(Debug, Clone, PartialEq)]
pub enum Wire {
    /// To and from the service: datagrams.
    Poll,
    Map(Shown),
    Register(Box<Registration>, u64),
    KeepAlive(NodeName, Incarnation, u64),
    Alive(u64, bool),
    Ask(NodeName, Incarnation, MapRequest),
    HandOver(u16, NodeId),
    /// Between servers, over connections: the sender's member id, once it is ready.
    Hello(NodeId),
    Peer(Peer),
    /// To and from etcd, over a connection, with a number each. A watch that disappears was interrupted.
    Call(u64, CoordinationRequest),
    Answer(u64, Box<Result<Response, Error>>),
    Watch(u64, Keys, Revision),
    Heard(u64, Option<WatchItem>),
    Unwatch(u64),
    /// A read of stores over all slots, and its parts, which carry the version that the read started with.
    ReadVersions(u64),
    VersionsRead(u64, Option<Vec<VersionId>>),
    Part(u64, u16, VersionId),
    PartOf(u64, u16, Option<VersionId>),
    /// Messages of joins, with the number of their conversation.
    Join(u64, JoinMessage),
    /// To and from a client.
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
    /// Reads the output that shows the row, on another slot.
    Shown,
    Set(u64),
    Delete,
    Add(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// The value read; 0 if there is none.
    Value(u64),
    /// The term of the slot.
    Done(Term),
    NotDone,
}

/// A map that is short in traces.
#[derive(Clone, PartialEq)]
pub struct Shown(pub Arc<Map>);

impl fmt::Debug for Shown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "map {}:", self.0.epoch())?;
        for run in self.0.slots().runs() {
            let placed = &run.placement;
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

/// A replication message, encoded.
#[derive(Clone, PartialEq)]
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
