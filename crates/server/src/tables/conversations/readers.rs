//! The owning side: the readers of this core's rows on other nodes, which delay acknowledgements.

use std::rc::Rc;

use larder_cluster::coordination::boot_ms;
use larder_cluster::map::Incarnation;
use larder_cluster::peer;
use larder_cluster::replication::Place;
use larder_join::EngineMessage;

use super::Via;
use crate::cluster::Link;
use crate::tables::{CoreMessage, Tables};

/// Time in milliseconds after which a reader with outstanding acknowledgements is disconnected.
const ACKNOWLEDGE_MS_MAX: u64 = 3_000;

const INCARNATION_CHANGED: &str = "this node has a new incarnation, in which it may own other rows";

/// Messages of a reader's engine, on the way from the core with the connection to the core that owns the rows.
pub struct FromReader {
    pub place: Place,
    /// The incarnation of the reader's node, and the reader's number of the conversation.
    pub conversation: (u64, u64),
    /// The incarnation of this node in which the connection began.
    pub life: Incarnation,
    pub via: Via,
    pub messages: Vec<EngineMessage>,
}

pub(super) struct ReaderConversation {
    pub conversation: (u64, u64),
    pub via: Via,
    /// Set when the connection has ended: the time from which the reader certainly uses no rows of this owner.
    pub forgotten_after_ms: Option<u64>,
    /// The first change that it has not acknowledged, and the time since when it is outstanding.
    pub oldest_unacknowledged: Option<(u64, u64)>,
}

impl Tables {
    pub(super) fn send_to_reader(&self, via: Via, exchange: peer::Exchange) {
        if via.core == self.index as u16 {
            return self.send_over(via.link, exchange);
        }
        let link = via.link;
        let message = CoreMessage::ToReader { link, exchange };
        self.handle.send(usize::from(via.core), message);
    }

    /// Sends messages of this or another core's engine over a connection that this core has accepted.
    pub fn send_over(&self, link: u64, exchange: peer::Exchange) {
        self.with_conversations(|all| {
            if let Some(link) = all.accepted.get(&link) {
                // An error means that the connection has ended, which is handled elsewhere.
                let _ = link.exchange(exchange);
            }
        });
    }

    /// Registers a connection that a node has opened to this core.
    pub fn link_accepted(&self, link: Rc<Link>) {
        self.with_conversations(|all| all.accepted.insert(link.id, link));
    }

    /// Receives messages of a reader's engine.
    pub fn receive_from_reader(&self, from: FromReader) {
        let (Some(sharing), Some(number)) = (&self.sharing, self.place_number(from.place)) else {
            // A later view will contain the reader's place. No lease was granted; the connection is closed, so that the
            // reader retries.
            return self.end_link(from.via, "this node's map does not have yours yet");
        };
        if self.current_incarnation() != Some(from.life) {
            return self.end_link(from.via, INCARNATION_CHANGED);
        }
        let mut begins = false;
        let is_present = self.with_conversations(|all| {
            let reader = all.readers.get_mut(&number);
            match reader.map(|reader| reader.conversation) {
                Some(present) if from.conversation < present => false,
                Some(present) if from.conversation == present => true,
                _ => {
                    begins = true;
                    let reader = ReaderConversation {
                        conversation: from.conversation,
                        via: from.via,
                        forgotten_after_ms: None,
                        oldest_unacknowledged: None,
                    };
                    all.readers.insert(number, reader);
                    true
                }
            }
        });
        if begins {
            // The reader has dropped everything that it received before.
            sharing.exchange.borrow_mut().handle_reader_loss(number);
            self.drop_held_messages(number);
            self.wake_maintenance();
        }
        if is_present == Some(true) && !from.messages.is_empty() {
            self.receive(number, from.messages);
        }
    }

    /// Closes the connection of a reader.
    pub(in crate::tables) fn end_reader(&self, number: u16, why: &'static str) {
        let via = self.with_conversations(|all| Some(all.readers.get(&number)?.via));
        if let Some(via) = via.flatten() {
            self.end_link(via, why);
        }
    }

    pub(in crate::tables) fn end_link(&self, via: Via, why: &'static str) {
        if via.core != self.index as u16 {
            let link = via.link;
            return (self.handle).send(usize::from(via.core), CoreMessage::EndLink { link, why });
        }
        self.end_accepted(via.link, why);
    }

    /// Closes a connection that this core has accepted.
    pub fn end_accepted(&self, link: u64, why: &str) {
        let link = self.with_conversations(|all| all.accepted.get(&link).cloned());
        if let Some(link) = link.flatten() {
            link.end(why);
        }
    }

    /// Records until when the readers of a closed connection may use their rows.
    pub fn record_readers_disconnected(&self, via: Via, forgotten_after_ms: u64) {
        self.with_conversations(|all| {
            let of = all.readers.values_mut().filter(|reader| reader.via == via);
            of.for_each(|reader| reader.forgotten_after_ms = Some(forgotten_after_ms));
        });
    }

    /// Closes connections that began in an earlier incarnation. They grant no leases any more; readers of this node's
    /// current rows connect again.
    pub(super) fn close_stale_links(&self) {
        let Some(life) = self.current_incarnation() else {
            return;
        };
        let ended = self.with_conversations(|all| {
            let links = all.accepted.values();
            let earlier = links.filter(|link| link.life() != life && !link.is_ended());
            earlier.cloned().collect::<Vec<_>>()
        });
        for link in ended.into_iter().flatten() {
            link.end(INCARNATION_CHANGED);
        }
    }

    pub(super) fn check_readers(&self) {
        let Some(sharing) = &self.sharing else { return };
        let now_ms = boot_ms();
        let exchange = &sharing.exchange;
        let checked = self.with_conversations(|all| {
            let mut slow = Vec::new();
            for (number, reader) in &mut all.readers {
                let first = exchange.borrow().first_unacknowledged(*number);
                reader.oldest_unacknowledged = match (first, reader.oldest_unacknowledged) {
                    (None, _) => None,
                    (Some(first), Some((before, since))) if first == before => Some((first, since)),
                    (Some(first), _) => Some((first, now_ms)),
                };
                if reader.forgotten_after_ms.is_none()
                    && reader
                        .oldest_unacknowledged
                        .is_some_and(|(_, since)| now_ms >= since + ACKNOWLEDGE_MS_MAX)
                {
                    slow.push(reader.via);
                }
            }
            let is_forgotten = |reader: &ReaderConversation| {
                reader.forgotten_after_ms.is_some_and(|at| now_ms >= at)
            };
            let gone: Vec<u16> = (all.readers.iter())
                .filter(|(_, reader)| is_forgotten(reader))
                .map(|(number, _)| *number)
                .collect();
            all.readers.retain(|_, reader| !is_forgotten(reader));
            (slow, gone)
        });
        let (slow, gone) = checked.unwrap_or_default();
        for via in slow {
            self.end_link(via, "your node has not acknowledged changes for a long time, so this node does not wait for it any more");
        }
        if !gone.is_empty() {
            for number in gone {
                exchange.borrow_mut().handle_reader_loss(number);
                self.drop_held_messages(number);
            }
            self.wake_maintenance();
        }
    }
}
