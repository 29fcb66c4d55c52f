//! The reading side: the owners of this core's replicas on other nodes.

use std::rc::Rc;
use std::task::Waker;

use bytes::Bytes;
use larder_cluster::coordination::boot_ms;
use larder_cluster::map::NodeId;
use larder_cluster::peer;
use larder_cluster::replication::Place;
use larder_join::EngineMessage;

use super::{Conversations, encoded};
use crate::cluster::{Link, View};
use crate::tables::Tables;

/// The owners on one node.
pub(super) struct Owners {
    pub link: Rc<Link>,
    pub conversation: u64,
    /// Numbers of their places.
    pub begun: Vec<u16>,
    /// True if messages have arrived from the owners. If so, there may be replicas that must be kept fresh.
    pub has_told: bool,
}

impl Conversations {
    /// Sends messages to an owner. Returns `false` if there is no connection; messages over a connection that has ended
    /// are lost with the conversation.
    fn tell_owner(&mut self, from: u16, number: u16, to: Place, said: &[EngineMessage]) -> bool {
        let owners = match self.owners.get_mut(&to.node) {
            Some(owners) if !owners.link.is_ended() => owners,
            // The end of the connection will be handled first; then the reads are retried.
            Some(owners) => {
                if !owners.begun.contains(&number) {
                    owners.begun.push(number);
                }
                return true;
            }
            None => {
                let Ok(link) = self.peers.link(to.node) else {
                    return false;
                };
                self.last += 1;
                let conversation = self.last;
                self.owners.entry(to.node).or_insert(Owners {
                    link,
                    conversation,
                    begun: Vec::new(),
                    has_told: false,
                })
            }
        };
        let frame = |bytes| peer::Exchange {
            from_core: from,
            to_core: to.core,
            conversation: owners.conversation,
            bytes,
        };
        // An error means that the connection has ended, which is handled elsewhere.
        if !owners.begun.contains(&number) {
            owners.begun.push(number);
            let _ = owners.link.exchange(frame(Bytes::new()));
        }
        if !said.is_empty() {
            let _ = owners.link.exchange(frame(encoded(said)));
        }
        true
    }
}

impl Tables {
    /// Sends messages to an owner, or queues them until there is a connection.
    pub(super) fn say_to_owner(&self, number: u16, to: Place, said: Vec<EngineMessage>) {
        let Some(sharing) = &self.sharing else { return };
        let own = self.index as u16;
        let told = self.with_conversations(|all| all.tell_owner(own, number, to, &said));
        if told == Some(false) {
            sharing.unsent.borrow_mut().push((number, said));
        }
    }

    /// Drops the rows of nodes that are down: other nodes will accept writes to them, and their freshness is no longer
    /// guaranteed.
    pub(in crate::tables) fn forget_nodes_down(&self, view: &View) {
        let gone = self.with_conversations(|all| {
            let down = |node: &NodeId, _: &mut Owners| !view.map.is_up(*node);
            let down = all.owners.extract_if(down);
            down.flat_map(|(_, owners)| owners.begun).collect()
        });
        self.forget_owners(gone.unwrap_or_default());
    }

    /// Drops the rows of owners whose connections have ended.
    pub(super) fn look_at_owners(&self) {
        let ended = self.with_conversations(|all| {
            let ended: Vec<NodeId> = (all.owners.iter())
                .filter(|(_, owners)| owners.link.is_ended())
                .map(|(node, _)| *node)
                .collect();
            let gone = ended.iter().filter_map(|node| all.owners.remove(node));
            gone.flat_map(|owners| owners.begun).collect::<Vec<u16>>()
        });
        self.forget_owners(ended.unwrap_or_default());
    }

    pub(super) fn forget_owners(&self, numbers: Vec<u16>) {
        let Some(sharing) = &self.sharing else { return };
        for number in numbers {
            let mut engine = self.engine.borrow_mut();
            sharing
                .exchange
                .borrow_mut()
                .owner_lost(&mut engine, number);
            drop(engine);
            self.spaces.owner_lost(number, &sharing.shard());
            // An empty message, sent once there is a connection, notifies the owner that it need not wait for this reader.
            sharing.unsent.borrow_mut().push((number, Vec::new()));
            sharing.waiting.take().into_iter().for_each(Waker::wake);
            self.wake_maintenance();
        }
    }

    /// Returns whether the freshness of all replicas of other nodes' rows is guaranteed (invariant 3).
    #[inline]
    pub fn is_subscribed(&self) -> bool {
        let Some(sharing) = &self.sharing else {
            return true;
        };
        match &*sharing.conversations.borrow() {
            None => true,
            Some(all) if all.owners.is_empty() => true,
            Some(all) => {
                let now_ms = boot_ms();
                let mut owners = all.owners.values().filter(|owners| owners.has_told);
                owners.all(|owners| now_ms < owners.link.subscribed_until_ms())
            }
        }
    }

    /// Returns whether an owner can be reached.
    pub(in crate::tables) fn is_reached(&self, owner: u16) -> bool {
        if usize::from(owner) < self.handle.cores() {
            return true;
        }
        let Some(place) = self.place(owner) else {
            return false;
        };
        let is_reached = self.with_conversations(|all| {
            let owners = all.owners.get(&place.node);
            owners.is_some_and(|owners| owners.link.peer().is_some() && !owners.link.is_ended())
        });
        is_reached == Some(true)
    }
}
