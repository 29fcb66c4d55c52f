//! Conversations between this core's engine and engines of other nodes, over connections between nodes.
//!
//! ```text
//!   core 1 of node a, which reads                         core 0 of node b, which owns
//!   its link to b ── begin, Ask, Ack, Taken, Unsubscribe ──► accepted by some core of b ── by message ──► core 0
//!                 ◄── Supply, Changes ─────────────────────────────┘
//! ```
//!
//! 1. A conversation connects a reader's core and an owner's core, over one connection, which the reader has opened. An
//!    owner's messages therefore arrive in order, until the connection ends.
//! 2. The reader numbers its conversations. It begins a new one after it has dropped everything that it received in
//!    earlier ones. Messages with another number than the current one are discarded.
//! 3. A reader may serve an owner's rows while the connection's subscription lease is valid (see
//!    `larder_cluster::peer::SubscriptionLease`); it checks this after each read of outputs. The owner never grants
//!    more time than is left of its own lease, in the incarnation in which the connection began. When the owner may no
//!    longer serve its slots, they may have another owner, and no reader uses the rows that it sent.
//! 4. If the connection to a reader ends, the owner waits until that lease has certainly expired, or the reader begins
//!    a new conversation. Only then does it acknowledge the changes that the reader had to reflect. If a reader does
//!    not acknowledge changes for a long time, the owner closes its connection.
//! 5. Before an owner gives a slot away, its readers have dropped the slot's rows, or their leases have certainly
//!    expired (`Exchange::withdraw`). A reader that learns late of a new owner therefore has no stale rows.

mod owners;
mod readers;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::task::Waker;

use bytes::Bytes;
use larder_cluster::map::{Incarnation, NodeId};
use larder_cluster::peer;
use larder_cluster::replication::Place;
use larder_join::EngineMessage;
use larder_types::wire::WireReader;

use super::{CoreMessage, Tables};
use crate::cluster::{Link, Peers};

/// Interval at which connections are checked, in milliseconds.
pub(super) const CHECK_INTERVAL_MS: u64 = 50;

pub use readers::FromReader;

use owners::OwnerConnection;
use readers::ReaderConversation;

/// A connection that another node has opened to a core of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Via {
    pub core: u16,
    /// The number of the link.
    pub link: u64,
}

/// The conversations of one core.
pub(super) struct Conversations {
    peers: Rc<Peers>,
    /// Connections that other nodes have opened to this core, by number.
    accepted: HashMap<u64, Rc<Link>>,
    /// Conversations in which this core reads, by the owners' node.
    owners: HashMap<NodeId, OwnerConnection>,
    /// Conversations in which this core owns, by the number of the reader's place.
    readers: HashMap<u16, ReaderConversation>,
    last: u64,
}

fn encode_messages(messages: &[EngineMessage]) -> Bytes {
    let mut bytes = Vec::new();
    for message in messages {
        message.encode(&mut bytes);
    }
    bytes.into()
}

fn decode_messages(bytes: &[u8], is_of_owner: bool) -> Option<Vec<EngineMessage>> {
    let mut reader = WireReader::new(bytes);
    let mut messages = Vec::new();
    while !reader.rest().is_empty() {
        let message = EngineMessage::decode(&mut reader).ok()?;
        messages.push(message);
    }
    let is_right = |message: &EngineMessage| message.is_from_owner() == is_of_owner;
    messages.iter().all(is_right).then_some(messages)
}

/// The reason for closing a connection after a protocol violation.
const MALFORMED: &str = "this node cannot decode the messages of your engine; run the same version of larder on all nodes";

impl Conversations {
    fn new(peers: Rc<Peers>) -> Conversations {
        Conversations {
            peers,
            accepted: HashMap::new(),
            owners: HashMap::new(),
            readers: HashMap::new(),
            last: 0,
        }
    }
}

impl Tables {
    /// Sets the connections over which the engine communicates with engines of other nodes.
    pub fn set_peers(&self, peers: Rc<Peers>) {
        if let Some(sharing) = &self.sharing {
            *sharing.conversations.borrow_mut() = Some(Conversations::new(peers));
        }
    }

    fn with_conversations<T>(&self, run: impl FnOnce(&mut Conversations) -> T) -> Option<T> {
        let sharing = self.sharing.as_ref()?;
        let mut conversations = sharing.conversations.borrow_mut();
        conversations.as_mut().map(run)
    }

    /// Sends messages to the engine of another node's core.
    pub(in crate::tables) fn send_to_node(
        &self,
        number: u16,
        to: Place,
        messages: Vec<EngineMessage>,
    ) {
        let own = self.index as u16;
        let (of_owner, of_reader): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(EngineMessage::is_from_owner);
        if !of_reader.is_empty() {
            self.send_to_owner(number, to, of_reader);
        }
        if of_owner.is_empty() {
            return;
        }
        let reader = self.with_conversations(|all| {
            let reader = all.readers.get(&number)?;
            let is_there = reader.forgotten_after_ms.is_none();
            is_there.then_some((reader.via, reader.conversation.1))
        });
        let Some((via, conversation)) = reader.flatten() else {
            return;
        };
        let exchange = peer::Exchange {
            from_core: own,
            to_core: to.core,
            conversation,
            bytes: encode_messages(&of_owner),
        };
        self.send_to_reader(via, exchange);
    }

    /// Receives messages for an engine over a connection of this core, and passes them on if the engine is another
    /// core's.
    pub fn receive_exchange(&self, link: &Rc<Link>, exchange: &peer::Exchange) {
        let Some(peer) = link.peer() else { return };
        let place = Place {
            node: peer.node,
            core: exchange.from_core,
        };
        let Some(messages) = decode_messages(&exchange.bytes, !link.is_accepted()) else {
            return link.end(MALFORMED);
        };
        if !link.is_accepted() {
            let is_present = self.with_conversations(|all| {
                let Some(owners) = all.owners.get_mut(&peer.node) else {
                    return false;
                };
                let is_present =
                    Rc::ptr_eq(&owners.link, link) && owners.conversation == exchange.conversation;
                owners.has_received |= is_present;
                is_present
            });
            if is_present == Some(true)
                && let Some(number) = self.place_number(place)
            {
                self.receive(number, messages);
            }
            return;
        }
        let from = FromReader {
            place: Place {
                core: peer.core,
                ..place
            },
            conversation: (peer.incarnation.0, exchange.conversation),
            life: link.life(),
            via: Via {
                core: self.index as u16,
                link: link.id,
            },
            messages,
        };
        match usize::from(exchange.to_core) {
            own if own == self.index => self.receive_from_reader(from),
            other if other < self.handle.cores() => {
                self.handle.send(other, CoreMessage::FromReader(from));
            }
            _ => link
                .end("this node has no core with that number: your map describes an earlier incarnation of this node"),
        }
    }

    /// Handles the end of a connection of this core.
    pub fn link_ended(&self, link: &Rc<Link>) {
        if !link.is_accepted() {
            return self.drop_ended_owners();
        }
        self.with_conversations(|all| all.accepted.remove(&link.id));
        let (core, link, forgotten_after_ms) =
            (self.index as u16, link.id, link.forgotten_after_ms());
        for to in 0..self.handle.cores() {
            let via = Via { core, link };
            let message = CoreMessage::ReaderDisconnected {
                via,
                forgotten_after_ms,
            };
            self.handle.send(to, message);
        }
    }

    /// This node's incarnation, according to the last view that this core has applied.
    fn current_incarnation(&self) -> Option<Incarnation> {
        let view = self.view()?;
        view.is_up().then_some(view.life.as_ref()?.incarnation)
    }

    /// Checks the connections periodically: those that ended before they began, readers that no longer delay
    /// acknowledgements, and messages that could not be sent.
    pub async fn watch_conversations(self: Rc<Self>) {
        let Some(sharing) = &self.sharing else { return };
        let mut tick = tokio::time::interval(std::time::Duration::from_millis(CHECK_INTERVAL_MS));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.drop_ended_owners();
            self.check_readers();
            self.close_stale_links();
            for (number, messages) in sharing.unsent.take() {
                // Rows of a node that is down are requested again from their next owner.
                let is_up =
                    |place: &Place| self.view().is_some_and(|view| view.map.is_up(place.node));
                if let Some(place) = self.place(number).filter(is_up) {
                    self.send_to_owner(number, place, messages);
                }
            }
            // Tasks that wait for a lease or for an unreachable node check again.
            sharing.waiting.take().into_iter().for_each(Waker::wake);
        }
    }

    fn place_number(&self, place: Place) -> Option<u16> {
        self.sharing
            .as_ref()?
            .view
            .borrow()
            .as_ref()?
            .places
            .number(place)
    }

    /// Returns the place with this number; `None` outside clusters.
    pub fn place(&self, number: u16) -> Option<Place> {
        self.sharing
            .as_ref()?
            .view
            .borrow()
            .as_ref()?
            .places
            .get(number)
    }
}

/// Messages that wait until a node can be reached, with the number of the place.
pub(super) type Unsent = RefCell<Vec<(u16, Vec<EngineMessage>)>>;
