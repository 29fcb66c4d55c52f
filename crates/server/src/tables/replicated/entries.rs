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

use larder_cluster::replication::{Record, SlotCopy};

use super::copies::Copies;

const BEGIN: u8 = 0xf0;
const END: u8 = 0xf1;
const IN_LOG: u8 = 0xf2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotMark {
    Begin,
    End,
    InLog,
}

impl SnapshotMark {
    pub fn encode(self, id: u64) -> [u8; 9] {
        let tag = match self {
            SnapshotMark::Begin => BEGIN,
            SnapshotMark::End => END,
            SnapshotMark::InLog => IN_LOG,
        };
        let mut bytes = [tag; 9];
        bytes[1..].copy_from_slice(&id.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<(SnapshotMark, u64)> {
        let (tag, id) = bytes.split_first()?;
        let mark = match *tag {
            BEGIN => SnapshotMark::Begin,
            END => SnapshotMark::End,
            IN_LOG => SnapshotMark::InLog,
            _ => return None,
        };
        Some((mark, u64::from_le_bytes(id.try_into().ok()?)))
    }
}

/// The state of slots, as recovered so far.
#[derive(Default)]
pub struct SlotRecovery {
    slots: BTreeMap<u16, Option<SlotCopy>>,
    /// Slots of a snapshot whose third mark in the log has not been reached.
    pending_marks: BTreeMap<u16, u64>,
    pub copies: Copies,
}

impl SlotRecovery {
    /// # Errors
    /// The entry is invalid. The error describes why.
    pub fn apply(&mut self, slot: u16, entry: &[u8]) -> Result<(), String> {
        let waits_for = self.pending_marks.get(&slot).copied();
        match SnapshotMark::decode(entry) {
            Some((SnapshotMark::Begin, _)) => {
                self.slots.insert(slot, None);
                self.copies.take(slot);
            }
            Some((SnapshotMark::End, id)) => {
                self.pending_marks.insert(slot, id);
            }
            Some((SnapshotMark::InLog, id)) if waits_for == Some(id) => {
                self.pending_marks.remove(&slot);
            }
            Some((SnapshotMark::InLog, _)) => {}
            None if waits_for.is_some() => {}
            None => {
                let record = Record::decode(entry).map_err(|error| error.to_string())?;
                if record.slot() != slot {
                    return Err(format!(
                        "a record of slot {} is in an entry of slot {slot}",
                        record.slot()
                    ));
                }
                let copy = self.slots.entry(slot).or_default();
                SlotCopy::replay(copy, &record, &mut self.copies);
            }
        }
        Ok(())
    }

    /// Returns the recovered copies.
    ///
    /// # Errors
    /// The log lacks entries that the snapshot depends on. The error describes which.
    pub fn finish(self) -> Result<(BTreeMap<u16, SlotCopy>, Copies), String> {
        if let Some(slot) = self.pending_marks.keys().next() {
            return Err(format!(
                "the log ends before the position at which the snapshot of slot {slot} was made"
            ));
        }
        let slots = self.slots.into_iter();
        let slots = slots.filter_map(|(slot, copy)| Some((slot, copy?)));
        Ok((slots.collect(), self.copies))
    }
}
