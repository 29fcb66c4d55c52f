//! The reading side: the owners of this core's replicas on other nodes.

use std::rc::Rc;
use std::task::Waker;

use bytes::Bytes;
use larder_cluster::coordination::boot_ms;
use larder_cluster::map::NodeId;
use larder_cluster::peer;
use larder_cluster::replication::Place;
use larder_join::EngineMessage;

use super::{Conversations, encode_messages};
use crate::cluster::{Link, View};
use crate::tables::Tables;

/// The owners on one node.
pub(super) struct OwnerConnection {
    pub link: Rc<Link>,
    pub conversation: u64,
    /// Numbers of their places.
    pub started_places: Vec<u16>,
    /// True if messages have arrived from the owners. If so, there may be replicas that must be kept fresh.
    pub has_received: bool,
}

impl Conversations {
    /// Sends messages to an owner. Returns `false` if there is no connection; messages over a connection that has ended
    /// are lost with the conversation.
    fn try_send_to_owner(
        &mut self,
        from: u16,
        number: u16,
        to: Place,
        messages: &[EngineMessage],
    ) -> bool {
        let owners = match self.owners.get_mut(&to.node) {
            Some(owners) if !owners.link.is_ended() => owners,
            // The end of the connection will be handled first; then the reads are retried.
            Some(owners) => {
                if !owners.started_places.contains(&number) {
                    owners.started_places.push(number);
                }
                return true;
            }
            None => {
                let Ok(link) = self.peers.link(to.node) else {
                    return false;
                };
                self.last += 1;
                let conversation = self.last;
                self.owners.entry(to.node).or_insert(OwnerConnection {
                    link,
                    conversation,
                    started_places: Vec::new(),
                    has_received: false,
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
        if !owners.started_places.contains(&number) {
            owners.started_places.push(number);
            let _ = owners.link.exchange(frame(Bytes::new()));
        }
        if !messages.is_empty() {
            let _ = owners.link.exchange(frame(encode_messages(messages)));
        }
        true
    }
}

impl Tables {
    /// Sends messages to an owner, or queues them until there is a connection.
    pub(super) fn send_to_owner(&self, number: u16, to: Place, messages: Vec<EngineMessage>) {
        let Some(sharing) = &self.sharing else { return };
        let own = self.index as u16;
        let sent = self.with_conversations(|all| all.try_send_to_owner(own, number, to, &messages));
        if sent == Some(false) {
            sharing.unsent.borrow_mut().push((number, messages));
        }
    }

    /// Drops the rows of nodes that are down: other nodes will accept writes to them, and their freshness is no longer
    /// guaranteed.
    pub(in crate::tables) fn drop_down_nodes(&self, view: &View) {
        let gone = self.with_conversations(|all| {
            let down = |node: &NodeId, _: &mut OwnerConnection| !view.map.is_up(*node);
            let down = all.owners.extract_if(down);
            down.flat_map(|(_, owners)| owners.started_places).collect()
        });
        self.drop_owner_rows(gone.unwrap_or_default());
    }

    /// Drops the rows of owners whose connections have ended.
    pub(super) fn drop_ended_owners(&self) {
        let ended = self.with_conversations(|all| {
            let ended: Vec<NodeId> = (all.owners.iter())
                .filter(|(_, owners)| owners.link.is_ended())
                .map(|(node, _)| *node)
                .collect();
            let gone = ended.iter().filter_map(|node| all.owners.remove(node));
            gone.flat_map(|owners| owners.started_places)
                .collect::<Vec<u16>>()
        });
        self.drop_owner_rows(ended.unwrap_or_default());
    }

    pub(super) fn drop_owner_rows(&self, numbers: Vec<u16>) {
        let Some(sharing) = &self.sharing else { return };
        for number in numbers {
            let mut engine = self.engine.borrow_mut();
            sharing
                .exchange
                .borrow_mut()
                .handle_owner_loss(&mut engine, number);
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
                let mut owners = all.owners.values().filter(|owners| owners.has_received);
                owners.all(|owners| now_ms < owners.link.subscribed_until_ms())
            }
        }
    }

    /// Returns whether an owner can be reached.
    pub(in crate::tables) fn is_reachable(&self, owner: u16) -> bool {
        if usize::from(owner) < self.handle.cores() {
            return true;
        }
        let Some(place) = self.place(owner) else {
            return false;
        };
        let is_reachable = self.with_conversations(|all| {
            let owners = all.owners.get(&place.node);
            owners.is_some_and(|owners| owners.link.peer().is_some() && !owners.link.is_ended())
        });
        is_reachable == Some(true)
    }
}
