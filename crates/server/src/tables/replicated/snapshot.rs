//! Slots in a snapshot of the journal: each has the state of one moment, which the log marks.
//!
//! The engine contains uncommitted changes, which must not become part of the snapshot's rows. Changed rows are
//! therefore written in their former state, followed by the changes.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_cluster::map::Term;
use larder_cluster::replication::{LogEntry, Position, Record, Row, RowStore};
use larder_journal::{Error, SnapshotPart};

use super::entries::SnapshotMark;
use super::rows::AllRows;
use super::{Replicated, ReplicationState};
use crate::tables::Tables;

/// Maximum size of the rows of one record.
const CHUNK_BYTES: usize = 256 << 10;

/// The state of a slot, without its rows.
struct SlotOutline {
    term: Term,
    /// `None`: the copy is incomplete.
    settled: Option<Position>,
    tail: Vec<LogEntry>,
    /// Rows with uncommitted changes, in their former state.
    before: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Tables {
    /// Writes this core's slots. Slots change during the snapshot, but not while they are written.
    ///
    /// # Errors
    /// The snapshot, or the journal, has failed.
    pub(in crate::tables) async fn write_slots(
        &self,
        replicated: &Replicated,
        part: &mut SnapshotPart,
    ) -> Result<(), Error> {
        let slots = replicated.state.borrow().slots();
        for slot in slots {
            self.wait_while_paused(None).await;
            self.write_slot(replicated, slot, part)?;
            while !part.has_room() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn write_slot(
        &self,
        replicated: &Replicated,
        slot: u16,
        part: &mut SnapshotPart,
    ) -> Result<(), Error> {
        let mut engine = self.engine.borrow_mut();
        let mut state = replicated.state.borrow_mut();
        let mut producer = self.producer.borrow_mut();
        // Earlier records must precede the mark in the log.
        state.append_records(&mut producer)?;
        let Some(outline) = state.outline(slot) else {
            return Ok(());
        };
        let id = producer.new_shared_batch();
        let add = |part: &mut SnapshotPart, record: &[u8]| {
            part.add(larder_journal::Entry::Slot { slot, record })
        };
        let mut bytes = Vec::new();
        let mut add_record = |part: &mut SnapshotPart, record: &Record| {
            bytes.clear();
            record.encode(&mut bytes);
            add(part, &bytes)
        };
        add(part, &SnapshotMark::Begin.encode(id))?;
        add_record(part, &Record::Clear { slot })?;
        let ReplicationState { groups, copies, .. } = &mut *state;
        let rows = AllRows {
            engine: &mut engine,
            groups,
            copies,
        };
        let mut after: Option<Vec<u8>> = None;
        loop {
            let mut chunk = Vec::new();
            let is_last = rows.read(slot, after.as_deref(), CHUNK_BYTES, &mut chunk);
            after = chunk.last().map(|row| row.key().to_vec()).or(after);
            chunk.retain(|row| !outline.before.contains_key(row.key()));
            if !chunk.is_empty() {
                let rows = chunk;
                add_record(part, &Record::Rows { slot, rows })?;
            }
            if is_last {
                break;
            }
        }
        for (key, value) in &outline.before {
            if let Some(value) = value {
                let rows = vec![Row::new(key, Some(value))];
                add_record(part, &Record::Rows { slot, rows })?;
            }
        }
        if let Some(at) = outline.settled {
            add_record(part, &Record::Filled { slot, at })?;
        }
        let term = outline.term;
        add_record(part, &Record::Term { slot, term })?;
        for entry in outline.tail {
            add_record(part, &Record::Change { slot, entry })?;
        }
        add(part, &SnapshotMark::End.encode(id))?;
        producer.append(larder_journal::Entry::Slot {
            slot,
            record: &SnapshotMark::InLog.encode(id),
        })?;
        Ok(())
    }
}

impl ReplicationState {
    pub(super) fn slots(&self) -> Vec<u16> {
        let mut slots: Vec<u16> = self.recovered.keys().copied().collect();
        if let Some(replication) = &self.replication {
            slots.extend(replication.owner.slots());
            slots.extend(replication.replica.slots());
        }
        slots
    }

    fn outline(&self, slot: u16) -> Option<SlotOutline> {
        let replication = self.replication.as_ref();
        let owned = replication.and_then(|it| it.owner.uncommitted(slot));
        if let Some(owned) = owned {
            let mut tail = Vec::new();
            let mut before = BTreeMap::new();
            for (entry, was) in owned.changes {
                tail.push(entry.clone());
                // The first change of a row has its committed state.
                let row = before.entry(entry.row.key().to_vec());
                row.or_insert_with(|| was.map(<[u8]>::to_vec));
            }
            return Some(SlotOutline {
                term: owned.term,
                settled: Some(owned.committed),
                tail,
                before,
            });
        }
        let copy = match replication {
            Some(replication) => replication.replica.copy(slot)?,
            None => self.recovered.get(&slot)?,
        };
        Some(SlotOutline {
            term: copy.term,
            settled: copy.is_complete.then_some(copy.settled),
            tail: copy.tail.iter().cloned().collect(),
            before: BTreeMap::new(),
        })
    }
}
