//! Parts: rows that another shard wants not by their keys but by what is in them. This crate carries them; who knows what rows hold says which
//! they are.
//!
//! ```text
//!   reader's shard                      owner's shard
//!   wants what lies in ... ─ AskPart ─► told of every change from now on; its rows, in chunks
//!   Parts::supply      ◄── SupplyPart ─
//!   Parts::change      ◄──── Changes ── put hotel:7: the writer waits until all who are told have it
//!                      ─── EndPart ───►
//! ```
//!
//! What `exchange` promises holds for them too: the order of messages, epochs, that a change is acknowledged by whoever was told of it, and that
//! rows of slots that are withdrawn are forgotten. A reader numbers what it asks for. With the same number it asks for the same again, for some reason
//! of its own; whatever else it wants has another number, so that what is still on its way for the one is not taken for the other.

use super::exchange::{CHUNK_WEIGHT, EngineMessage, Exchange, PART_ROW_WEIGHT, PARTS_ON_WAY};
use crate::base::owner::Shard;
use crate::engine::Engine;

type Bytes = Box<[u8]>;

/// Some rows of a part.
#[derive(Debug, Default)]
pub struct PartRows {
    pub rows: Vec<(Bytes, Bytes)>,
    /// The last that was looked at. None: there are no more.
    pub last: Option<Bytes>,
    /// How many were looked at.
    pub visited: usize,
}

/// Who knows what rows hold.
pub trait Parts {
    /// As the owner: from now on this reader is told of changes in this part, as number `number`. `None`: it has ended.
    fn subscribe(&mut self, reader: u16, number: u32, part: Option<&[u8]>);

    /// As the owner: the conversation with this reader has ended, and it is told of nothing.
    fn reader_lost(&mut self, reader: u16);

    /// As the owner: the rows of a part, in the order of their keys, from the first behind `after` on. At most `rows_max` are looked at. None: some
    /// of its slots are not here yet, and it is to be asked again.
    fn rows(
        &mut self,
        engine: &Engine,
        shard: &Shard,
        part: &[u8],
        after: Option<&[u8]>,
        rows_max: usize,
    ) -> Option<PartRows>;

    /// As the reader: rows of a part that this owner has (`shard` says who owns what); with the last of them it has given all. `part` is what was asked for: whoever asks
    /// twice with one number makes them differ.
    fn supply(
        &mut self,
        shard: &Shard,
        owner: u16,
        number: u32,
        part: &[u8],
        rows: Vec<(Bytes, Bytes)>,
        is_last: bool,
    );

    /// As the reader: a row of this owner has changed, in the part of this number.
    fn change(&mut self, shard: &Shard, owner: u16, number: u32, key: &[u8], value: Option<&[u8]>);

    /// As the reader: nothing more is told of rows in these slots (first and last of each run).
    fn withdraw(&mut self, slots: &[(u16, u16)]);
}

/// Where there are no parts.
pub struct NoParts;

impl Parts for NoParts {
    fn subscribe(&mut self, _: u16, _: u32, _: Option<&[u8]>) {}

    fn reader_lost(&mut self, _: u16) {}

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

/// A part that a reader has asked for and has yet to get.
pub(super) struct PartAnswer {
    number: u32,
    part: Bytes,
    /// It has the rows up to this one.
    after: Option<Bytes>,
}

/// What no key of a row begins with that engines tell each other of.
const NUMBERED: u8 = 0;

/// The key in a change of a part.
fn numbered(number: u32, key: &[u8]) -> Bytes {
    [&[NUMBERED], &number.to_le_bytes()[..], key]
        .concat()
        .into()
}

/// The number and the key in a change of a part. `None`: it is a row like any other.
pub(super) fn part_change(key: &[u8]) -> Option<(u32, &[u8])> {
    let (number, key) = key.strip_prefix(&[NUMBERED])?.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), key))
}

impl Exchange {
    /// Asks an owner for a part; what was asked for with the same number is wanted no more.
    pub fn ask_part(&mut self, owner: u16, number: u32, part: Vec<u8>) {
        let epoch = self.epoch();
        if let Some(peer) = self.peers.get_mut(usize::from(owner)) {
            let part = part.into();
            peer.owner.out.push(EngineMessage::AskPart {
                number,
                part,
                epoch,
            });
        }
    }

    /// A part is wanted of nobody any more.
    pub fn end_part(&mut self, number: u32) {
        for peer in &mut self.peers {
            peer.owner.out.push(EngineMessage::EndPart(number));
        }
    }

    /// Tells readers of a change of an own row, each for the part of a number: its value, or, if it is none of the part any more, that it is gone.
    pub fn tell(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        readers: &[(u16, u32, bool)],
        whole: bool,
    ) {
        if readers.is_empty() {
            return;
        }
        self.begin_told(key);
        let sequence = self.sequence();
        for &(reader, number, is_there) in readers {
            let value = value.filter(|_| is_there).map(Bytes::from);
            let peer = self.peers.get_mut(usize::from(reader));
            // It may be lost already.
            let peer = peer.filter(|peer| peer.reader.parts.contains(&number));
            if let Some(peer) = peer {
                let row = (numbered(number, key), value);
                peer.reader.tell(row, sequence, whole);
            }
        }
    }

    /// From now on an owner sends more of a part when [`Exchange::take_part`] says so, and not as soon as what it sent is taken in.
    pub fn pace_parts(&mut self) {
        self.is_paced = true;
    }

    /// Lets an owner that waits for it send another chunk of a part, each in its turn; whether there was one.
    pub fn take_part(&mut self) -> bool {
        let (first, count) = (self.turn, self.peers.len());
        let mut turns = (0..count).map(|at| (first + at) % count);
        let Some(at) = turns.find(|at| self.peers[*at].owner.untold > 0) else {
            return false;
        };
        let owner = &mut self.peers[at].owner;
        owner.untold -= 1;
        owner.out.push(EngineMessage::Taken);
        true
    }

    /// Whether readers wait for parts.
    pub fn has_part_answers(&self) -> bool {
        let mut readers = self.peers.iter().map(|peer| &peer.reader);
        readers.any(|reader| !reader.part_answers.is_empty())
    }

    /// Takes in a message of parts; what it costs. `Err`: it is another message.
    pub(super) fn hear_part(
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
                match self.is_paced {
                    true => peer.owner.untold += 1,
                    false => peer.owner.out.push(EngineMessage::Taken),
                }
                let spent = rows.len() * PART_ROW_WEIGHT + CHUNK_WEIGHT;
                if epoch >= own_epoch {
                    parts.supply(&self.shard, from as u16, number, &part, rows, is_last);
                }
                Ok(spent)
            }
            EngineMessage::AskPart { epoch, .. } if epoch < own_epoch => {
                peer.reader.out.push(EngineMessage::Later(own_epoch));
                Ok(1)
            }
            EngineMessage::AskPart { number, part, .. } => {
                parts.subscribe(from as u16, number, Some(&part));
                peer.reader.parts.insert(number);
                let answers = &mut peer.reader.part_answers;
                let after = None;
                answers.push_back(PartAnswer {
                    number,
                    part,
                    after,
                });
                Ok(1)
            }
            EngineMessage::EndPart(number) => {
                parts.subscribe(from as u16, number, None);
                peer.reader.parts.remove(&number);
                (peer.reader.part_answers).retain(|answer| answer.number != number);
                Ok(1)
            }
            other => Err(other),
        }
    }

    /// Sends a chunk of the first part that a reader has asked for and that is here; what it weighs. None: there is none such.
    pub(super) fn answer_part(
        &mut self,
        engine: &Engine,
        to: usize,
        parts: &mut dyn Parts,
    ) -> Option<usize> {
        let (epoch, chunk_rows) = (self.epoch(), self.chunk_rows as usize);
        let shard = self.shard().clone();
        let reader = &mut self.peers[to].reader;
        if reader.on_way >= PARTS_ON_WAY {
            return None;
        }
        let answers = reader.part_answers.iter_mut().enumerate();
        let found = answers.into_iter().find_map(|(at, answer)| {
            let after = answer.after.as_deref();
            let found = parts.rows(engine, &shard, &answer.part, after, chunk_rows)?;
            Some((at, found))
        });
        let (at, found) = found?;
        let answer = &mut reader.part_answers[at];
        let (number, part) = (answer.number, answer.part.clone());
        let is_last = found.last.is_none();
        answer.after = found.last;
        if is_last {
            reader.part_answers.remove(at);
        }
        let spent = found.visited + CHUNK_WEIGHT;
        // Who is told of nothing takes nothing in.
        if is_last || !found.rows.is_empty() {
            reader.on_way += 1;
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
