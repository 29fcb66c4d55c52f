//! A place: the owner of some slots and the replica of others, according to the map.
//!
//! In each turn, the host passes in all inputs (messages, connections, maps, executed changes, durable records, the time) and
//! calls [`Replication::flush`]. It then executes the [`Outputs`]: records to its log, messages to their connections, requests to
//! the map.

use std::collections::BTreeMap;

use crate::map::{Epoch, Term};

use super::change::{Assignment, ExecutedChange, Place, RowStore};
use super::message::{Message, StreamPart};
use super::outputs::{Outputs, ReplicationEvent};
use super::owner::{Owner, Ticket};
use super::record::{Record, SlotCopy};
use super::replica::Replica;
use super::{Bugs, Limits};

pub struct Replication {
    me: Place,
    pub owner: Owner,
    pub replica: Replica,
    epoch: Epoch,
    /// The number of records ever put out.
    logged: u64,
}

impl Replication {
    /// Starts with the copies that its log contains: see [`SlotCopy::replay`].
    pub fn new(me: Place, limits: Limits, copies: BTreeMap<u16, SlotCopy>) -> Replication {
        Replication::with_bugs(me, limits, copies, Bugs::default())
    }

    /// With deliberate bugs, which tests must find.
    pub fn with_bugs(
        me: Place,
        limits: Limits,
        copies: BTreeMap<u16, SlotCopy>,
        bugs: Bugs,
    ) -> Replication {
        let mut replica = Replica::new(bugs);
        for (slot, copy) in copies {
            replica.insert_copy(slot, copy);
        }
        Replication {
            me,
            owner: Owner::new(limits, bugs),
            replica,
            epoch: Epoch(0),
            logged: 0,
        }
    }

    /// Applies the assignment of a slot by the map of this epoch. Only for maps in which this node is up, in its current
    /// incarnation.
    pub fn assign(
        &mut self,
        epoch: Epoch,
        slot: u16,
        assignment: &Assignment,
        rows: &mut impl RowStore,
        now_ms: u64,
        out: &mut Outputs,
    ) {
        if epoch < self.epoch {
            return;
        }
        self.epoch = epoch;
        if self.term(slot).is_some_and(|known| assignment.term < known) {
            // An owner of a later term sent a message first; its map will follow.
            return;
        }
        let is_owned = self.owner.is_owner(slot);
        if assignment.owner == Some(self.me) {
            if is_owned {
                let logged = &mut self.logged;
                return self.owner.reassign(slot, assignment, logged, now_ms, out);
            }
            return self.open(slot, assignment, rows, now_ms, out);
        }
        if is_owned {
            let copy = self.owner.close(slot, assignment.term, rows, out);
            self.replica.insert_copy(slot, copy);
        }
        if assignment.includes(self.me) {
            self.replica.record_term(slot, assignment.term);
        } else if self.replica.is_ahead_of(slot, epoch) {
            // The slot is being filled; the map that contains the fill will follow.
        } else if self.replica.remove_copy(slot).is_some() {
            self.logged += 1;
            out.records.push(Record::Gone { slot });
            rows.clear(slot);
        }
    }

    /// Continues as a new member, because the node was removed while it was disconnected. Its copies no longer count.
    pub fn restart_as(&mut self, me: Place, rows: &mut impl RowStore, out: &mut Outputs) {
        let owned: Vec<u16> = self.owner.slots().collect();
        for slot in owned {
            let copy = self.owner.close(slot, Term(0), rows, out);
            self.replica.insert_copy(slot, copy);
        }
        let kept: Vec<u16> = self.replica.slots().collect();
        for slot in kept {
            self.replica.remove_copy(slot);
            self.logged += 1;
            out.records.push(Record::Gone { slot });
            rows.clear(slot);
        }
        self.me = me;
    }

    pub fn me(&self) -> Place {
        self.me
    }

    /// Reports that all slots have been assigned by the map of this epoch.
    pub fn finish_assignment(&mut self, epoch: Epoch, out: &mut Outputs) {
        if epoch >= self.epoch {
            self.epoch = epoch;
            self.owner.record_epoch(epoch, out);
        }
    }

    fn open(
        &mut self,
        slot: u16,
        assignment: &Assignment,
        rows: &mut impl RowStore,
        now_ms: u64,
        out: &mut Outputs,
    ) {
        let mut copy = match self.replica.remove_copy(slot) {
            Some(copy) if copy.is_complete => copy,
            Some(copy) => {
                self.replica.insert_copy(slot, copy);
                out.events.push(ReplicationEvent::CopyMissing(slot));
                return;
            }
            None => {
                // A slot that no node had before.
                let copy = SlotCopy {
                    is_complete: true,
                    ..SlotCopy::default()
                };
                self.logged += 1;
                let at = copy.settled;
                out.records.push(Record::Filled { slot, at });
                copy
            }
        };
        copy.term = assignment.term;
        let number = copy.last_transaction_end();
        if number < copy.last().number {
            // These changes were not acknowledged to a client: all in-sync replicas must acknowledge the end of a transaction,
            // and this place lacks it.
            self.logged += 1;
            out.records.push(Record::Cut { slot, number });
            copy.cut(number);
        }
        let mut before = Vec::with_capacity(copy.tail.len());
        for entry in &copy.tail {
            before.push(rows.get(slot, entry.row.key()));
            rows.set(slot, entry.row.key(), entry.row.value());
        }
        let logged = &mut self.logged;
        self.owner
            .open(slot, (copy, before), assignment, logged, now_ms, out);
    }

    /// Records an executed change of an owned slot. `before` is the row's previous value. The host logs the change with the
    /// resulting record.
    ///
    /// # Panics
    /// If [`Owner::may_write`] does not admit it.
    pub fn change(
        &mut self,
        slot: u16,
        changed: ExecutedChange<'_>,
        before: Option<Vec<u8>>,
        out: &mut Outputs,
    ) -> Ticket {
        let logged = &mut self.logged;
        self.owner.change(slot, changed, before, logged, out)
    }

    /// If the two directions use separate connections: the one to a replica is established.
    pub fn handle_stream_start(&mut self, to: Place, now_ms: u64) {
        self.owner.handle_connect(to, now_ms);
    }

    /// The stream to a replica has ended.
    pub fn handle_stream_end(&mut self, to: Place, now_ms: u64) {
        self.owner.handle_disconnect(to, now_ms);
    }

    /// The stream from an owner has ended or was replaced.
    pub fn handle_source_loss(&mut self, from: Place) {
        self.replica.drop_owner(from);
    }

    pub fn handle_connect(&mut self, peer: Place, now_ms: u64) {
        self.replica.drop_owner(peer);
        self.owner.handle_connect(peer, now_ms);
    }

    pub fn handle_disconnect(&mut self, peer: Place, now_ms: u64) {
        self.replica.drop_owner(peer);
        self.owner.handle_disconnect(peer, now_ms);
    }

    pub fn receive(
        &mut self,
        from: Place,
        message: Message,
        rows: &mut impl RowStore,
        now_ms: u64,
        out: &mut Outputs,
    ) {
        match message {
            Message::Stream { sequence, part } => {
                if let StreamPart::Begin(begin) = &part
                    && let Some(own) = self.owner.term(begin.slot)
                    && own < begin.term
                {
                    // Another node owns it; the map will follow.
                    let copy = self.owner.close(begin.slot, own, rows, out);
                    self.replica.insert_copy(begin.slot, copy);
                }
                let owner = &self.owner;
                let owned = |slot: u16| owner.term(slot);
                let logged = &mut self.logged;
                self.replica
                    .receive(from, (sequence, part), owned, rows, logged, out);
            }
            Message::Acknowledged { sequence } => {
                self.owner
                    .handle_acknowledgement(from, sequence, now_ms, out);
            }
            Message::Reply {
                slot,
                term,
                reply: answer,
            } => {
                self.owner
                    .handle_reply(from, (slot, term), answer, now_ms, out);
            }
        }
    }

    /// The first `upto` records ever put out are in the log, as durable as the host promises its clients.
    pub fn record_durable(&mut self, upto: u64, out: &mut Outputs) {
        self.owner.record_durable(upto, out);
        self.replica.record_durable(upto, out);
    }

    /// To be called at least about every tenth of [`Limits::silent_ms`].
    pub fn tick(&mut self, now_ms: u64, out: &mut Outputs) {
        self.owner.tick(now_ms, &mut self.logged, out);
    }

    /// Ends a turn.
    pub fn flush(&mut self, rows: &impl RowStore, now_ms: u64, out: &mut Outputs) {
        self.owner.flush(rows, now_ms, out);
    }

    /// The latest term of a slot that this place knows.
    pub fn term(&self, slot: u16) -> Option<Term> {
        let copied = || self.replica.copy(slot).map(|copy| copy.term);
        self.owner.term(slot).or_else(copied)
    }
}
