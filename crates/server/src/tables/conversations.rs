//! Where engines of other nodes own or read rows: the conversations of this core's engine with theirs, over connections between nodes.
//!
//! ```text
//!   core 1 of node a, which reads                         core 0 of node b, which owns
//!   its link to b ── begin, Ask, Ack, Taken, Unsubscribe ──► accepted by some core of b ── by message ──► core 0
//!                 ◄── Supply, Changes ─────────────────────────────┘
//! ```
//!
//! 1. A conversation is between a reader's core and an owner's core, over one connection, which the reader has opened. So what an owner
//!    says comes in its order, and ends with the connection.
//! 2. The reader numbers its conversations. It begins one when it has forgotten all that came in those before; what is of another
//!    number than the present one is thrown away.
//! 3. A reader trusts what it was told as long as the connection's subscription lease lasts, see `larder_cluster::peer::SubscriptionLease`:
//!    it looks after each read of outputs.
//!    The owner gives no more of it than is left of its own lease, in the life in which the connection began: when it may not act any
//!    more, its rows may have another owner, and no reader trusts what it said.
//! 4. An owner whose connection to a reader has ended waits until that lease has surely ended, or the reader begins anew, before it
//!    acknowledges what the reader was to reflect. One that does not acknowledge for long has its connection ended.
//! 5. Before an owner gives a slot away its readers have forgotten its rows, or surely trust them no more (`Exchange::withdraw`). So a reader that
//!    hears late of a new owner has nothing that is old.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::task::Waker;

use bytes::Bytes;
use larder_cluster::coordination::boot_ms;
use larder_cluster::map::{Incarnation, NodeId};
use larder_cluster::peer;
use larder_cluster::replication::Place;
use larder_join::EngineMessage;
use larder_types::wire::WireReader;

use super::{CoreMessage, Tables};
use crate::cluster::{Link, Peers, View};

/// A reader that has not acknowledged anything for so long while it should is not waited for.
const SLOW_MS: u64 = 3_000;
/// How often connections are looked at.
pub(super) const LOOK_EVERY_MS: u64 = 50;

/// A connection that another node has opened to a core of this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Via {
    pub core: u16,
    /// Of the link.
    pub link: u64,
}

/// What a reader's engine says, as it passes from the core that has its connection to the one that owns the rows.
pub struct FromReader {
    pub place: Place,
    /// The life of the reader's node, and its number of the conversation.
    pub conversation: (u64, u64),
    /// The life of this node in which the connection began.
    pub life: Incarnation,
    pub via: Via,
    pub messages: Vec<EngineMessage>,
}

/// The conversations of one core.
pub(super) struct Conversations {
    peers: Rc<Peers>,
    /// Connections that others have opened to this core, by their numbers.
    accepted: HashMap<u64, Rc<Link>>,
    /// In which this core reads, by the node of the owners.
    owners: HashMap<NodeId, Owners>,
    /// In which this core owns, by the number of the reader's place.
    readers: HashMap<u16, Reader>,
    last: u64,
}

/// The owners on one node.
struct Owners {
    link: Rc<Link>,
    conversation: u64,
    /// Numbers of their places.
    begun: Vec<u16>,
    /// Something came from them: there may be rows here that must be kept fresh.
    has_told: bool,
}

struct Reader {
    conversation: (u64, u64),
    via: Via,
    /// Its connection has ended, and from when on it surely trusts nothing.
    forgotten_after_ms: Option<u64>,
    /// The first change that it has not acknowledged, and since when that is so.
    waits: Option<(u64, u64)>,
}

fn encoded(messages: &[EngineMessage]) -> Bytes {
    let mut bytes = Vec::new();
    for message in messages {
        message.encode(&mut bytes);
    }
    bytes.into()
}

fn decoded(bytes: &[u8], is_of_owner: bool) -> Option<Vec<EngineMessage>> {
    let mut reader = WireReader::new(bytes);
    let mut messages = Vec::new();
    while !reader.rest().is_empty() {
        let message = EngineMessage::decode(&mut reader).ok()?;
        messages.push(message);
    }
    let is_right = |message: &EngineMessage| message.is_of_owner() == is_of_owner;
    messages.iter().all(is_right).then_some(messages)
}

const OTHER_LIFE: &str = "this node is in another life, in which it may own other rows";

/// What the other side breaks the rules with.
const MALFORMED: &str = "what your engine says is nothing that this larder understands";

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

    /// Says something to an owner. What cannot be said now is lost with the conversation: says whether it is.
    fn tell_owner(&mut self, from: u16, number: u16, to: Place, said: &[EngineMessage]) -> bool {
        let owners = match self.owners.get_mut(&to.node) {
            Some(owners) if !owners.link.is_ended() => owners,
            // Its end is noticed first, and then that nothing was asked.
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
        // An error means that the connection has ended, which is noticed.
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
    /// Has the engine speak with those of other nodes over these connections.
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
    pub(super) fn send_to_node(&self, number: u16, to: Place, messages: Vec<EngineMessage>) {
        let own = self.index as u16;
        let (of_owner, of_reader): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(EngineMessage::is_of_owner);
        if !of_reader.is_empty() {
            self.say_to_owner(number, to, of_reader);
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
            bytes: encoded(&of_owner),
        };
        self.tell_reader(via, exchange);
    }

    /// What cannot be said now is said when there is a connection.
    fn say_to_owner(&self, number: u16, to: Place, said: Vec<EngineMessage>) {
        let Some(sharing) = &self.sharing else { return };
        let own = self.index as u16;
        let told = self.with_conversations(|all| all.tell_owner(own, number, to, &said));
        if told == Some(false) {
            sharing.unsent.borrow_mut().push((number, said));
        }
    }

    fn tell_reader(&self, via: Via, exchange: peer::Exchange) {
        if via.core == self.index as u16 {
            return self.send_over(via.link, exchange);
        }
        let link = via.link;
        let message = CoreMessage::ToReader { link, exchange };
        self.handle.send(usize::from(via.core), message);
    }

    /// Sends what this or another core's engine has to say, over a connection that this core has accepted.
    pub fn send_over(&self, link: u64, exchange: peer::Exchange) {
        self.with_conversations(|all| {
            if let Some(link) = all.accepted.get(&link) {
                // An error means that it has ended, which is told.
                let _ = link.exchange(exchange);
            }
        });
    }

    /// A node has connected to this core.
    pub fn link_accepted(&self, link: Rc<Link>) {
        self.with_conversations(|all| all.accepted.insert(link.id, link));
    }

    /// Takes what came for an engine over a connection of this core; the core that it is for, if that is another one.
    pub fn receive_exchange(&self, link: &Rc<Link>, exchange: &peer::Exchange) {
        let Some(peer) = link.peer() else { return };
        let place = Place {
            node: peer.node,
            core: exchange.from_core,
        };
        let Some(messages) = decoded(&exchange.bytes, !link.is_accepted()) else {
            return link.end(MALFORMED);
        };
        if !link.is_accepted() {
            let is_present = self.with_conversations(|all| {
                let Some(owners) = all.owners.get_mut(&peer.node) else {
                    return false;
                };
                let is_present =
                    Rc::ptr_eq(&owners.link, link) && owners.conversation == exchange.conversation;
                owners.has_told |= is_present;
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
                .end("this node has no core of that number: your map is not of its present life"),
        }
    }

    /// Takes what a reader's engine says to this one.
    pub fn receive_from_reader(&self, from: FromReader) {
        let (Some(sharing), Some(number)) = (&self.sharing, self.place_number(from.place)) else {
            // A later view will know it. Nothing was promised: it is told that it is not heard.
            return self.end_link(from.via, "this node's map does not have yours yet");
        };
        if self.present_life() != Some(from.life) {
            return self.end_link(from.via, OTHER_LIFE);
        }
        let mut begins = false;
        let is_present = self.with_conversations(|all| {
            let reader = all.readers.get_mut(&number);
            match reader.map(|reader| reader.conversation) {
                Some(present) if from.conversation < present => false,
                Some(present) if from.conversation == present => true,
                _ => {
                    begins = true;
                    let reader = Reader {
                        conversation: from.conversation,
                        via: from.via,
                        forgotten_after_ms: None,
                        waits: None,
                    };
                    all.readers.insert(number, reader);
                    true
                }
            }
        });
        if begins {
            // It says that it has forgotten what it was told before.
            sharing.exchange.borrow_mut().reader_lost(number);
            self.wake_maintenance();
        }
        if is_present == Some(true) && !from.messages.is_empty() {
            self.receive(number, from.messages);
        }
    }

    /// Ends the connection of a reader.
    pub(super) fn end_reader(&self, number: u16, why: &'static str) {
        let via = self.with_conversations(|all| Some(all.readers.get(&number)?.via));
        if let Some(via) = via.flatten() {
            self.end_link(via, why);
        }
    }

    pub(super) fn end_link(&self, via: Via, why: &'static str) {
        if via.core != self.index as u16 {
            let link = via.link;
            return (self.handle).send(usize::from(via.core), CoreMessage::EndLink { link, why });
        }
        self.end_accepted(via.link, why);
    }

    /// Ends a connection that this core has accepted.
    pub fn end_accepted(&self, link: u64, why: &str) {
        let link = self.with_conversations(|all| all.accepted.get(&link).cloned());
        if let Some(link) = link.flatten() {
            link.end(why);
        }
    }

    /// A connection of this core has ended.
    pub fn link_ended(&self, link: &Rc<Link>) {
        if !link.is_accepted() {
            return self.look_at_owners();
        }
        self.with_conversations(|all| all.accepted.remove(&link.id));
        let (core, link, forgotten_after_ms) =
            (self.index as u16, link.id, link.forgotten_after_ms());
        for to in 0..self.handle.cores() {
            let via = Via { core, link };
            let message = CoreMessage::ReaderGone {
                via,
                forgotten_after_ms,
            };
            self.handle.send(to, message);
        }
    }

    /// Readers whose connection this was trust what they were told until then.
    pub fn readers_gone(&self, via: Via, forgotten_after_ms: u64) {
        self.with_conversations(|all| {
            let of = all.readers.values_mut().filter(|reader| reader.via == via);
            of.for_each(|reader| reader.forgotten_after_ms = Some(forgotten_after_ms));
        });
    }

    /// Of this node, as the last view has it that this core has taken.
    fn present_life(&self) -> Option<Incarnation> {
        let view = self.view()?;
        view.is_up().then_some(view.life.as_ref()?.incarnation)
    }

    /// What came from nodes that are down is forgotten: others take writes of it, and nobody says that it is fresh any more.
    pub(super) fn forget_nodes_down(&self, view: &View) {
        let gone = self.with_conversations(|all| {
            let down = |node: &NodeId, _: &mut Owners| !view.map.is_up(*node);
            let down = all.owners.extract_if(down);
            down.flat_map(|(_, owners)| owners.begun).collect()
        });
        self.forget_owners(gone.unwrap_or_default());
    }

    /// Forgets the rows of owners whose connection has ended.
    fn look_at_owners(&self) {
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

    fn forget_owners(&self, numbers: Vec<u16>) {
        let Some(sharing) = &self.sharing else { return };
        for number in numbers {
            let mut engine = self.engine.borrow_mut();
            sharing
                .exchange
                .borrow_mut()
                .owner_lost(&mut engine, number);
            drop(engine);
            self.spaces.owner_lost(number, &sharing.shard());
            // It need not wait for this reader: that is said as soon as there is a connection.
            sharing.unsent.borrow_mut().push((number, Vec::new()));
            sharing.waiting.take().into_iter().for_each(Waker::wake);
            self.wake_maintenance();
        }
    }

    /// Looks at the connections, over and over: at those that ended before they began, at readers that are not to be waited for any more,
    /// and at what could not be sent.
    pub async fn watch_conversations(self: Rc<Self>) {
        let Some(sharing) = &self.sharing else { return };
        let mut tick = tokio::time::interval(std::time::Duration::from_millis(LOOK_EVERY_MS));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.look_at_owners();
            self.look_at_readers();
            self.end_links_of_earlier_lives();
            for (number, messages) in sharing.unsent.take() {
                // Whoever has the rows of a node that is down is asked anew.
                let is_up =
                    |place: &Place| self.view().is_some_and(|view| view.map.is_up(place.node));
                if let Some(place) = self.place(number).filter(is_up) {
                    self.say_to_owner(number, place, messages);
                }
            }
            // Whoever waits for a lease, or for somebody who cannot be reached, looks again.
            sharing.waiting.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Nothing is promised over them any more: those who read what this node owns now connect anew.
    fn end_links_of_earlier_lives(&self) {
        let Some(life) = self.present_life() else {
            return;
        };
        let ended = self.with_conversations(|all| {
            let links = all.accepted.values();
            let earlier = links.filter(|link| link.life() != life && !link.is_ended());
            earlier.cloned().collect::<Vec<_>>()
        });
        for link in ended.into_iter().flatten() {
            link.end(OTHER_LIFE);
        }
    }

    fn look_at_readers(&self) {
        let Some(sharing) = &self.sharing else { return };
        let now_ms = boot_ms();
        let exchange = &sharing.exchange;
        let looked = self.with_conversations(|all| {
            let mut slow = Vec::new();
            for (number, reader) in &mut all.readers {
                let first = exchange.borrow().first_unacknowledged(*number);
                reader.waits = match (first, reader.waits) {
                    (None, _) => None,
                    (Some(first), Some((before, since))) if first == before => Some((first, since)),
                    (Some(first), _) => Some((first, now_ms)),
                };
                if reader.forgotten_after_ms.is_none()
                    && reader
                        .waits
                        .is_some_and(|(_, since)| now_ms >= since + SLOW_MS)
                {
                    slow.push(reader.via);
                }
            }
            let is_forgotten =
                |reader: &Reader| reader.forgotten_after_ms.is_some_and(|at| now_ms >= at);
            let gone: Vec<u16> = (all.readers.iter())
                .filter(|(_, reader)| is_forgotten(reader))
                .map(|(number, _)| *number)
                .collect();
            all.readers.retain(|_, reader| !is_forgotten(reader));
            (slow, gone)
        });
        let (slow, gone) = looked.unwrap_or_default();
        for via in slow {
            self.end_link(via, "your node has not acknowledged changes for long, and they are not held back for it any more");
        }
        if !gone.is_empty() {
            let mut exchange = exchange.borrow_mut();
            gone.into_iter()
                .for_each(|number| exchange.reader_lost(number));
            drop(exchange);
            self.wake_maintenance();
        }
    }

    /// Whether all rows of other nodes that are here are surely still kept fresh (invariant 3).
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

    /// Whether there is a way to an owner.
    pub(super) fn is_reached(&self, owner: u16) -> bool {
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

    fn place_number(&self, place: Place) -> Option<u16> {
        self.sharing
            .as_ref()?
            .view
            .borrow()
            .as_ref()?
            .places
            .number(place)
    }

    /// In a cluster, a place by its number.
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

/// Messages that wait until a node can be reached, by the number of the place.
pub(super) type Unsent = RefCell<Vec<(u16, Vec<EngineMessage>)>>;
