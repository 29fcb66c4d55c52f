//! Replication messages over the connections between nodes.
//!
//! ```text
//!   core 1 of node a, which owns                          core 0 of node b, which replicates
//!   its link to b ── a part of a stream ─────────────────► accepted by some core of b ── by message ──► core 0
//!                 ◄── Acknowledged, Answer ─────────────────────────────┘ the same way back
//! ```

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use larder_cluster::map::NodeId;
use larder_cluster::peer::Replicate;
use larder_cluster::replication::{Message, Place};

use super::carrier::Carrier;
use crate::cluster::{Link, Peers};
use crate::tables::{CoreMessage, Tables, TablesHandle, conversations::Via};

/// A message for one core of this node, received over a connection that another core has accepted.
pub struct FromOwner {
    pub place: Place,
    pub via: Via,
    pub bytes: Bytes,
}

/// The connections of one core.
pub(super) struct Links {
    core: u16,
    peers: Rc<Peers>,
    handle: Arc<TablesHandle>,
    /// This core's connections that replication knows of. Stream messages use no others, because they would be taken
    /// for part of another stream.
    own: RefCell<HashMap<NodeId, Rc<Link>>>,
    /// Connections that other nodes have opened to this core, by number.
    accepted: RefCell<HashMap<u64, Rc<Link>>>,
    /// The core that has accepted each connection with a stream.
    accepted_by: RefCell<HashMap<u64, u16>>,
}

fn frame(from_core: u16, to: Place, message: &Message) -> Replicate {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    Replicate {
        from_core,
        to_core: to.core,
        bytes: bytes.into(),
    }
}

impl Carrier for Links {
    fn connect(&self, node: NodeId) {
        // A failed attempt is repeated later.
        let _ = self.peers.link(node);
    }

    fn send_stream(&self, to: Place, message: &Message) {
        if let Some(link) = self.own.borrow().get(&to.node) {
            // An error means that the connection has ended, which is handled elsewhere.
            let _ = link.replicate(frame(self.core, to, message));
        }
    }

    fn send_answer(&self, to: Place, connection: u64, message: &Message) {
        let frame = frame(self.core, to, message);
        match self.accepted_by.borrow().get(&connection) {
            Some(&core) if core == self.core => self.send_over(connection, frame),
            Some(&core) => {
                let message = CoreMessage::ToOwner {
                    link: connection,
                    replicate: frame,
                };
                self.handle.send(usize::from(core), message);
            }
            None => {}
        }
    }
}

impl Links {
    fn send_over(&self, link: u64, replicate: Replicate) {
        if let Some(link) = self.accepted.borrow().get(&link) {
            // An error means that the connection has ended, which is handled elsewhere.
            let _ = link.replicate(replicate);
        }
    }
}

impl Tables {
    /// Sets the connections that replication uses.
    pub fn set_replication_peers(&self, peers: Rc<Peers>) {
        let Some(replicated) = &self.replicated else {
            return;
        };
        let links = Rc::new(Links {
            core: self.index as u16,
            peers,
            handle: self.handle.clone(),
            own: RefCell::default(),
            accepted: RefCell::default(),
            accepted_by: RefCell::default(),
        });
        *replicated.links.borrow_mut() = Some(links.clone());
        self.set_carrier(links);
    }

    fn links(&self) -> Option<Rc<Links>> {
        self.replicated.as_ref()?.links.borrow().clone()
    }

    /// Closes all connections of this core, in both directions.
    pub(super) fn end_links(&self, why: &str) {
        if let Some(links) = self.links() {
            links.own.borrow().values().for_each(|link| link.end(why));
            links
                .accepted
                .borrow()
                .values()
                .for_each(|link| link.end(why));
        }
    }

    /// Handles a new connection of this core to or from another node.
    pub fn replication_link_opened(&self, link: &Rc<Link>) {
        let (Some(links), Some(peer)) = (self.links(), link.peer()) else {
            return;
        };
        if link.is_accepted() {
            drop(links.accepted.borrow_mut().insert(link.id, link.clone()))
        } else {
            links.own.borrow_mut().insert(peer.node, link.clone());
            self.replication_connected(peer.node, link.id);
        }
    }

    /// Handles the end of such a connection.
    pub fn replication_link_ended(&self, link: &Rc<Link>) {
        let (Some(links), Some(peer)) = (self.links(), link.peer()) else {
            return;
        };
        if !link.is_accepted() {
            let mut own = links.own.borrow_mut();
            if own.get(&peer.node).is_some_and(|it| it.id == link.id) {
                own.remove(&peer.node);
            }
            drop(own);
            return self.replication_disconnected(peer.node, link.id);
        }
        links.accepted.borrow_mut().remove(&link.id);
        for core in 0..self.handle.cores() {
            let (node, link) = (peer.node, link.id);
            self.handle
                .send(core, CoreMessage::OwnerDisconnected { node, link });
        }
    }

    /// Handles the end of another node's connection: its streams, to whichever core, have ended.
    pub fn replication_owner_disconnected(&self, node: NodeId, link: u64) {
        if let Some(links) = self.links() {
            links.accepted_by.borrow_mut().remove(&link);
            self.replication_source_lost(node, link);
        }
    }

    /// Receives a message for this or another core over a connection of this core.
    pub fn receive_replicate(&self, link: &Rc<Link>, replicate: Replicate) {
        let Some(peer) = link.peer() else { return };
        let place = Place {
            node: peer.node,
            core: replicate.from_core,
        };
        if !link.is_accepted() {
            if let Err(why) = self.replication_received(place, link.id, &replicate.bytes) {
                link.end(&why.to_string());
            }
            return;
        }
        let (core, to) = (self.index as u16, usize::from(replicate.to_core));
        if to >= self.handle.cores() {
            return link
                .end("this node has no core with that number: your map describes an earlier incarnation of this node");
        }
        let from = FromOwner {
            place,
            via: Via {
                core,
                link: link.id,
            },
            bytes: replicate.bytes,
        };
        if to == self.index {
            self.receive_from_owner(&from)
        } else {
            self.handle.send(to, CoreMessage::FromOwner(from))
        }
    }

    /// Receives an owner's message for this core.
    pub fn receive_from_owner(&self, from: &FromOwner) {
        let Some(links) = self.links() else { return };
        let Via { core, link } = from.via;
        links.accepted_by.borrow_mut().insert(link, core);
        if let Err(why) = self.replication_received(from.place, link, &from.bytes) {
            tracing::error!(%why, "a replication message of another node cannot be decoded");
            self.end_link(
                from.via,
                "this node cannot decode your replication message; run the same version of larder on all nodes",
            );
        }
    }

    /// Sends another core's answer over a connection that this core has accepted.
    pub fn send_answer_over(&self, link: u64, replicate: Replicate) {
        if let Some(links) = self.links() {
            links.send_over(link, replicate);
        }
    }
}
