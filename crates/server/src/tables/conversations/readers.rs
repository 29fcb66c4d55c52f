//! Where this core owns: the readers of its rows on other nodes, who are waited for.

use std::rc::Rc;

use larder_cluster::coordination::boot_ms;
use larder_cluster::map::Incarnation;
use larder_cluster::peer;
use larder_cluster::replication::Place;
use larder_join::EngineMessage;

use super::Via;
use crate::cluster::Link;
use crate::tables::{CoreMessage, Tables};

/// A reader that has not acknowledged anything for so long while it should is not waited for.
const SLOW_MS: u64 = 3_000;

const OTHER_LIFE: &str = "this node is in another life, in which it may own other rows";

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

pub(super) struct Reader {
    pub conversation: (u64, u64),
    pub via: Via,
    /// Its connection has ended, and from when on it surely trusts nothing.
    pub forgotten_after_ms: Option<u64>,
    /// The first change that it has not acknowledged, and since when that is so.
    pub waits: Option<(u64, u64)>,
}

impl Tables {
    pub(super) fn tell_reader(&self, via: Via, exchange: peer::Exchange) {
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
            self.drop_kept_back(number);
            self.wake_maintenance();
        }
        if is_present == Some(true) && !from.messages.is_empty() {
            self.receive(number, from.messages);
        }
    }

    /// Ends the connection of a reader.
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

    /// Ends a connection that this core has accepted.
    pub fn end_accepted(&self, link: u64, why: &str) {
        let link = self.with_conversations(|all| all.accepted.get(&link).cloned());
        if let Some(link) = link.flatten() {
            link.end(why);
        }
    }

    /// Readers whose connection this was trust what they were told until then.
    pub fn readers_gone(&self, via: Via, forgotten_after_ms: u64) {
        self.with_conversations(|all| {
            let of = all.readers.values_mut().filter(|reader| reader.via == via);
            of.for_each(|reader| reader.forgotten_after_ms = Some(forgotten_after_ms));
        });
    }

    /// Nothing is promised over them any more: those who read what this node owns now connect anew.
    pub(super) fn end_links_of_earlier_lives(&self) {
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

    pub(super) fn look_at_readers(&self) {
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
            for number in gone {
                exchange.borrow_mut().reader_lost(number);
                self.drop_kept_back(number);
            }
            self.wake_maintenance();
        }
    }
}
