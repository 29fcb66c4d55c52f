//! Numbers the changes of own rows: the engine's changes become changes of slots, in one batch of the journal.

use std::collections::HashSet;

use larder_cluster::replication::{ExecutedChange, Record};
use larder_join::{BeforeImage, Engine, row_slot};
use larder_journal::{Entry, Producer};
use larder_protocol::errors::Code;

use super::value::{encode, encode_into};
use super::{Replicated, ReplicationState};
use crate::tables::{Gate, Refusal, Tables};

impl Tables {
    /// Numbers and logs the changes of own rows since the last call, as one transaction. If a row changed several
    /// times, only the last change is sent to other nodes. `gate` then waits for the conditions of the reply.
    ///
    /// # Errors
    /// The journal has stopped.
    pub(in crate::tables) fn number_changes(
        &self,
        replicated: &Replicated,
        engine: &mut Engine,
        gate: &mut Gate,
    ) -> Result<(), Refusal> {
        let befores = engine.take_before_images();
        if befores.is_empty() {
            return Ok(());
        }
        let mut state = replicated.state.borrow_mut();
        state.number(engine, befores, gate);
        let appended = state.append_records(&mut self.producer.borrow_mut());
        drop(state);
        self.wake_maintenance();
        match appended {
            Ok(ticket) => {
                gate.ticket = gate.ticket.max(ticket);
                Ok(())
            }
            Err(error) => {
                let why = format!("{error}; it is unknown whether this write is durable");
                self.check_journal();
                Err((Code::Io, why))
            }
        }
    }
}

impl ReplicationState {
    fn number(&mut self, engine: &mut Engine, mut befores: Vec<BeforeImage>, gate: &mut Gate) {
        if befores.len() == 1
            && let Some(before) = befores.pop()
        {
            return self.number_row(engine, row_slot(&before.key), before, false, gate);
        }
        let rows = keep_first_states(befores);
        let ends = mark_slot_ends(&rows);
        for ((slot, before), is_end) in rows.into_iter().zip(ends) {
            self.number_row(engine, slot, before, !is_end, gate);
        }
    }

    /// `is_open` is true if the slot's next change belongs to the same transaction.
    fn number_row(
        &mut self,
        engine: &mut Engine,
        slot: u16,
        before: BeforeImage,
        is_open: bool,
        gate: &mut Gate,
    ) {
        let key = &*before.key;
        let owner = self.replication.as_mut();
        let Some(replication) = owner.filter(|it| it.owner.is_owner(slot)) else {
            // Cannot happen, because commands are admitted before they are executed.
            tracing::error!(
                slot,
                "a row changed in a slot that this node does not own; the change is undone"
            );
            engine.remove_unowned(key);
            gate.failed = true;
            return;
        };
        self.value.clear();
        let is_there = match engine.base_row(key) {
            Some((value, at)) => {
                encode_into(&mut self.value, value, at);
                true
            }
            None => false,
        };
        match (&before.value, is_there) {
            // Its group was recorded when the row was added.
            (Some(_), true) => {}
            (None, true) => self.groups.insert_row(slot, key),
            (_, false) => self.groups.remove_row(engine, slot, key),
        }
        let changed = ExecutedChange {
            key,
            value: is_there.then_some(&*self.value),
            is_open,
        };
        let value = before.value.as_deref();
        let value = value.map(|value| encode(value, before.expires_at));
        self.numbered += 1;
        let ticket = replication.change(slot, changed, value, &mut self.out);
        if self.waits_for_replicas {
            self.changes.executed += 1;
            self.changes.waiting.push_back(ticket);
            gate.replicated.get_or_insert_default().wait_for(ticket);
        }
    }

    /// Appends the records of the turn so far to the journal, as one batch. Returns `None` if there are none.
    ///
    /// # Errors
    /// The journal has stopped: the records are lost, and will never be acknowledged.
    pub(super) fn append_records(
        &mut self,
        producer: &mut Producer,
    ) -> Result<Option<larder_journal::Ticket>, larder_journal::Error> {
        let records = self.dropped.iter().chain(&self.out.records);
        let count = self.out.records.len() as u64;
        if records.clone().next().is_none() {
            return Ok(None);
        }
        let appended = append(producer, records, &mut self.encoded);
        self.dropped.clear();
        self.out.records.clear();
        let ticket = appended.inspect_err(|_| self.is_broken = true)?;
        self.log.records += count;
        self.log.appended.push_back((self.log.records, ticket));
        Ok(Some(ticket))
    }
}

fn append<'a>(
    producer: &mut Producer,
    records: impl Iterator<Item = &'a Record>,
    bytes: &mut Vec<u8>,
) -> Result<larder_journal::Ticket, larder_journal::Error> {
    let mut batch = producer.batch();
    for record in records {
        bytes.clear();
        record.encode(bytes);
        batch.add(Entry::Slot {
            slot: record.slot(),
            record: bytes,
        })?;
    }
    batch.end()
}

/// Keeps the first former state of each row.
fn keep_first_states(befores: Vec<BeforeImage>) -> Vec<(u16, BeforeImage)> {
    let mut is_first = vec![true; befores.len()];
    if befores.len() > 1 {
        let mut seen = HashSet::with_capacity(befores.len());
        for (before, is_first) in befores.iter().zip(&mut is_first) {
            *is_first = seen.insert(&*before.key);
        }
    }
    let firsts = befores.into_iter().zip(is_first);
    let firsts = firsts.filter(|(_, is_first)| *is_first);
    firsts
        .map(|(before, _)| (row_slot(&before.key), before))
        .collect()
}

/// Marks the last row of each slot.
fn mark_slot_ends(rows: &[(u16, BeforeImage)]) -> Vec<bool> {
    if rows.len() == 1 {
        return vec![true];
    }
    let mut seen = HashSet::new();
    let mut ends: Vec<bool> = rows
        .iter()
        .rev()
        .map(|(slot, _)| seen.insert(*slot))
        .collect();
    ends.reverse();
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before(key: &str, value: Option<&str>) -> BeforeImage {
        BeforeImage {
            key: key.as_bytes().into(),
            value: value.map(|value| value.as_bytes().into()),
            expires_at: None,
        }
    }

    #[test]
    fn a_row_that_changed_twice_is_sent_once_and_each_slot_ends_once() {
        let rows = keep_first_states(vec![
            before("t|a|1", Some("x")),
            before("t|b|1", None),
            before("t|a|1", Some("y")),
            before("t|a|2", None),
        ]);
        let keys: Vec<&[u8]> = rows.iter().map(|(_, it)| &*it.key).collect();
        assert_eq!(keys, [b"t|a|1", b"t|b|1", b"t|a|2"]);
        assert_eq!(rows[0].1.value.as_deref(), Some(&b"x"[..]));
        assert_eq!(mark_slot_ends(&rows), [false, true, true]);
    }
}
