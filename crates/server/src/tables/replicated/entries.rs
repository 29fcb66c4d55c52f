//! The journal's entries about slots, and their recovery at startup.
//!
//! An entry of a slot is a record of `larder_cluster::replication`, or a mark (its tag, then the snapshot's id, 8
//! bytes):
//!
//! | tag | mark | where |
//! |---|---|---|
//! | 0xf0 | the records of this slot's accumulated state begin | a snapshot |
//! | 0xf1 | they end; they include all log entries up to the third mark | a snapshot |
//! | 0xf2 | the slot had the state of that snapshot at this point | the log |
//!
//! An abandoned snapshot leaves marks of the third kind, which are ignored.

use std::collections::BTreeMap;

use larder_cluster::replication::{Copy, Record};

use super::copies::Copies;

const BEGIN: u8 = 0xf0;
const END: u8 = 0xf1;
const HERE: u8 = 0xf2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Begin,
    End,
    Here,
}

impl Mark {
    pub fn encode(self, id: u64) -> [u8; 9] {
        let tag = match self {
            Mark::Begin => BEGIN,
            Mark::End => END,
            Mark::Here => HERE,
        };
        let mut bytes = [tag; 9];
        bytes[1..].copy_from_slice(&id.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<(Mark, u64)> {
        let (tag, id) = bytes.split_first()?;
        let mark = match *tag {
            BEGIN => Mark::Begin,
            END => Mark::End,
            HERE => Mark::Here,
            _ => return None,
        };
        Some((mark, u64::from_le_bytes(id.try_into().ok()?)))
    }
}

/// The state of slots, as recovered so far.
#[derive(Default)]
pub struct Recovered {
    slots: BTreeMap<u16, Option<Copy>>,
    /// Slots of a snapshot whose third mark in the log has not been reached.
    passed_over: BTreeMap<u16, u64>,
    pub copies: Copies,
}

impl Recovered {
    /// # Errors
    /// The entry is invalid. The error describes why.
    pub fn apply(&mut self, slot: u16, entry: &[u8]) -> Result<(), String> {
        let waits_for = self.passed_over.get(&slot).copied();
        match Mark::decode(entry) {
            Some((Mark::Begin, _)) => {
                self.slots.insert(slot, None);
                self.copies.take(slot);
            }
            Some((Mark::End, id)) => {
                self.passed_over.insert(slot, id);
            }
            Some((Mark::Here, id)) if waits_for == Some(id) => {
                self.passed_over.remove(&slot);
            }
            Some((Mark::Here, _)) => {}
            None if waits_for.is_some() => {}
            None => {
                let record = Record::decode(entry).map_err(|error| error.to_string())?;
                if record.slot() != slot {
                    return Err(format!(
                        "a record of slot {} is said to be of {slot}",
                        record.slot()
                    ));
                }
                let copy = self.slots.entry(slot).or_default();
                Copy::replay(copy, &record, &mut self.copies);
            }
        }
        Ok(())
    }

    /// Returns the recovered copies.
    ///
    /// # Errors
    /// The log lacks entries that the snapshot depends on. The error describes which.
    pub fn finish(self) -> Result<(BTreeMap<u16, Copy>, Copies), String> {
        if let Some(slot) = self.passed_over.keys().next() {
            return Err(format!(
                "the log does not reach to where the snapshot was made of slot {slot}"
            ));
        }
        let slots = self.slots.into_iter();
        let slots = slots.filter_map(|(slot, copy)| Some((slot, copy?)));
        Ok((slots.collect(), self.copies))
    }
}
