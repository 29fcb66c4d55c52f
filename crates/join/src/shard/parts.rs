//! Parts: subscriptions of a shard to rows that are selected by their content, not by their keys. This crate transports
//! the rows; an implementation of [`Parts`] selects them.
//!
//! ```text
//!   reader's shard                      owner's shard
//!   subscribe to a part ─ RequestPart ─► sends every change from now on, and the rows, in chunks
//!   Parts::supply      ◄── SupplyPart ─
//!   Parts::change      ◄──── Changes ── put hotel:7: the writer waits until all subscribers have it
//!                      ─── EndPart ───►
//! ```
//!
//! The guarantees of `exchange` hold for parts too: the order of messages, epochs, acknowledgement of changes, and
//! removal of rows in withdrawn slots. A reader numbers its parts. It may request the same part again with the same
//! number; a different part needs a different number, so that messages in flight for the one are not taken for the
//! other.

use super::exchange::{
    CHUNK_WEIGHT, EngineMessage, Exchange, PART_CHUNKS_IN_FLIGHT_MAX, PART_ROW_WEIGHT,
};
use crate::base::owner::Shard;
use crate::engine::Engine;

type Bytes = Box<[u8]>;

/// Rows of a part.
#[derive(Debug, Default)]
pub struct PartRows {
    pub rows: Vec<(Bytes, Bytes)>,
    /// The last key that was examined. `None`: the part is complete.
    pub last: Option<Bytes>,
    /// Number of rows examined.
    pub visited: usize,
}

/// Selects rows by their content.
pub trait Parts {
    /// Called on the owner: subscribes the reader to changes of this part, as number `number`. `None` ends the
    /// subscription.
    fn subscribe(&mut self, reader: u16, number: u32, part: Option<&[u8]>);

    /// Called on the owner: the conversation with this reader has ended, and with it all its subscriptions.
    fn handle_reader_loss(&mut self, reader: u16);

    /// Called on the owner: returns the rows of a part in key order, beginning after `after`, and examines at most
    /// `rows_max`. Returns `None` if some of its slots are not available yet; the caller tries again later.
    fn rows(
        &mut self,
        engine: &Engine,
        shard: &Shard,
        part: &[u8],
        after: Option<&[u8]>,
        rows_max: usize,
    ) -> Option<PartRows>;

    /// Called on the reader: receives rows of a part from this owner (`shard` defines the owners). `is_last` marks the
    /// last of them. `part` is the part as requested; to repeat a request under the same number, the caller makes the
    /// two distinguishable.
    fn supply(
        &mut self,
        shard: &Shard,
        owner: u16,
        number: u32,
        part: &[u8],
        rows: Vec<(Bytes, Bytes)>,
        is_last: bool,
    );

    /// Called on the reader: a row of this owner has changed, in the part with this number.
    fn change(&mut self, shard: &Shard, owner: u16, number: u32, key: &[u8], value: Option<&[u8]>);

    /// Called on the reader: the owner sends no more changes of rows in these slots (first and last of each run).
    fn withdraw(&mut self, slots: &[(u16, u16)]);
}

/// For engines without parts.
pub struct NoParts;

impl Parts for NoParts {
    fn subscribe(&mut self, _: u16, _: u32, _: Option<&[u8]>) {}

    fn handle_reader_loss(&mut self, _: u16) {}

    fn rows(
        &mut self,
        _: &Engine,
        _: &Shard,
        _: &[u8],
        _: Option<&[u8]>,
        _: usize,
    ) -> Option<PartRows> {
        Some(PartRows::default())
    }

    fn supply(&mut self, _: &Shard, _: u16, _: u32, _: &[u8], _: Vec<(Bytes, Bytes)>, _: bool) {}

    fn change(&mut self, _: &Shard, _: u16, _: u32, _: &[u8], _: Option<&[u8]>) {}

    fn withdraw(&mut self, _: &[(u16, u16)]) {}
}

/// A part that a reader has requested and not completely received.
pub(super) struct PartRequest {
    number: u32,
    part: Bytes,
    /// The last key sent so far.
    after: Option<Bytes>,
}

/// The first byte of a part's changes. No key of a base row that engines exchange begins with it.
const NUMBERED: u8 = 0;

/// Returns the key of a change in a part.
fn numbered(number: u32, key: &[u8]) -> Bytes {
    [&[NUMBERED], &number.to_le_bytes()[..], key]
        .concat()
        .into()
}

/// Splits the key of a change into the part's number and the row's key. Returns `None` for a change outside parts.
pub(super) fn part_change(key: &[u8]) -> Option<(u32, &[u8])> {
    let (number, key) = key.strip_prefix(&[NUMBERED])?.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), key))
}

impl Exchange {
    /// Requests a part from an owner, in place of an earlier part with the same number.
    pub fn request_part(&mut self, owner: u16, number: u32, part: Vec<u8>) {
        let epoch = self.epoch();
        if let Some(peer) = self.peers.get_mut(usize::from(owner)) {
            let part = part.into();
            peer.owner.out.push(EngineMessage::RequestPart {
                number,
                part,
                epoch,
            });
        }
    }

    /// Ends the subscriptions to a part at all owners.
    pub fn end_part(&mut self, number: u32) {
        for peer in &mut self.peers {
            peer.owner.out.push(EngineMessage::EndPart(number));
        }
    }

    /// Queues a change of an own row for readers. For each, `readers` has the part's number, and whether the row is in
    /// the part: if not, the change is sent as a removal.
    pub fn queue_part_change(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        readers: &[(u16, u32, bool)],
        atomic: bool,
    ) {
        if readers.is_empty() {
            return;
        }
        self.begin_change(key);
        let sequence = self.sequence();
        for &(reader, number, exists) in readers {
            let value = value.filter(|_| exists).map(Bytes::from);
            let peer = self.peers.get_mut(usize::from(reader));
            // The conversation with the reader may have ended already.
            let peer = peer.filter(|peer| peer.reader.parts.contains(&number));
            if let Some(peer) = peer {
                let row = (numbered(number, key), value);
                peer.reader.queue_change(row, sequence, atomic);
            }
        }
    }

    /// Makes owners send further chunks of parts only on [`Exchange::release_part_chunk`], not as soon as the last
    /// chunk was received.
    pub fn pace_parts(&mut self) {
        self.is_paced = true;
    }

    /// Allows one owner with withheld chunks to send the next one; the owners take turns. Returns whether there was
    /// one.
    pub fn release_part_chunk(&mut self) -> bool {
        let (first, count) = (self.turn, self.peers.len());
        let mut turns = (0..count).map(|at| (first + at) % count);
        let Some(at) = turns.find(|at| self.peers[*at].owner.unconfirmed_chunks > 0) else {
            return false;
        };
        let owner = &mut self.peers[at].owner;
        owner.unconfirmed_chunks -= 1;
        owner.out.push(EngineMessage::Processed);
        true
    }

    /// Returns whether readers are waiting for parts.
    pub fn has_pending_parts(&self) -> bool {
        let mut readers = self.peers.iter().map(|peer| &peer.reader);
        readers.any(|reader| !reader.pending_parts.is_empty())
    }

    /// Handles a message about parts. Returns its weight, or `Err` with the message if it is not about parts.
    pub(super) fn handle_part_message(
        &mut self,
        from: usize,
        message: EngineMessage,
        parts: &mut dyn Parts,
    ) -> Result<usize, EngineMessage> {
        let own_epoch = self.epoch();
        let peer = &mut self.peers[from];
        match message {
            EngineMessage::SupplyPart {
                number,
                part,
                rows,
                is_last,
                epoch,
            } => {
                if self.is_paced {
                    peer.owner.unconfirmed_chunks += 1
                } else {
                    peer.owner.out.push(EngineMessage::Processed)
                }
                let spent = rows.len() * PART_ROW_WEIGHT + CHUNK_WEIGHT;
                if epoch >= own_epoch {
                    parts.supply(&self.shard, from as u16, number, &part, rows, is_last);
                }
                Ok(spent)
            }
            EngineMessage::RequestPart { epoch, .. } if epoch < own_epoch => {
                peer.reader.out.push(EngineMessage::EpochTooOld(own_epoch));
                Ok(1)
            }
            EngineMessage::RequestPart { number, part, .. } => {
                parts.subscribe(from as u16, number, Some(&part));
                peer.reader.parts.insert(number);
                let answers = &mut peer.reader.pending_parts;
                let after = None;
                answers.push_back(PartRequest {
                    number,
                    part,
                    after,
                });
                Ok(1)
            }
            EngineMessage::EndPart(number) => {
                parts.subscribe(from as u16, number, None);
                peer.reader.parts.remove(&number);
                (peer.reader.pending_parts).retain(|answer| answer.number != number);
                Ok(1)
            }
            other => Err(other),
        }
    }

    /// Sends a chunk of the first requested part that is available. Returns its weight, or `None` if there is none.
    pub(super) fn send_part_chunk(
        &mut self,
        engine: &Engine,
        to: usize,
        parts: &mut dyn Parts,
    ) -> Option<usize> {
        let (epoch, chunk_rows) = (self.epoch(), self.chunk_rows as usize);
        let shard = self.shard().clone();
        let reader = &mut self.peers[to].reader;
        if reader.chunks_in_flight >= PART_CHUNKS_IN_FLIGHT_MAX {
            return None;
        }
        let answers = reader.pending_parts.iter_mut().enumerate();
        let found = answers.into_iter().find_map(|(at, answer)| {
            let after = answer.after.as_deref();
            let found = parts.rows(engine, &shard, &answer.part, after, chunk_rows)?;
            Some((at, found))
        });
        let (at, found) = found?;
        let answer = &mut reader.pending_parts[at];
        let (number, part) = (answer.number, answer.part.clone());
        let is_last = found.last.is_none();
        answer.after = found.last;
        if is_last {
            reader.pending_parts.remove(at);
        }
        let spent = found.visited + CHUNK_WEIGHT;
        // An empty chunk is not sent, so it is never acknowledged.
        if is_last || !found.rows.is_empty() {
            reader.chunks_in_flight += 1;
            reader.out.push(EngineMessage::SupplyPart {
                number,
                part,
                rows: found.rows,
                is_last,
                epoch,
            });
        }
        Some(spent)
    }
}
