//! A place of a simulated node: its rows, its log, and its replication. The caller provides the map and the lease.

use std::collections::{BTreeMap, BTreeSet};

use larder_cluster::map::{Map, NodeId, Term};
use larder_cluster::replication::{
    Admission, Assignment, Bugs, Confirmation, ExecutedChange, Limits, MapRequest, Message,
    Outcome, Outputs as Put, Place, ReadWait, Record, Replication, ReplicationEvent, RowStore,
    SlotCopy, Ticket,
};
use larder_sim::{NodeId as At, Output, Outputs, Start};
use larder_types::checksum32;

use super::wire::{Call, Op, Peer, Reply, Wire};
use crate::system::joins::Joins;

pub use larder_cluster::replication::InMemoryRows as Table;

/// A call that waits for its reply.
struct WaitingCommand {
    client: At,
    number: u64,
    reply: Reply,
    acknowledged: Option<Ticket>,
    confirmed: ConfirmationState,
    slot: u16,
    /// The export that readers of other nodes are to reflect.
    export: Option<u64>,
    /// Own changes that a read of an output may show, and how many had ended unknown.
    upto: Option<(u64, u64)>,
}

enum ConfirmationState {
    NotNeeded,
    ToAsk,
    Asked(Confirmation),
}

pub struct Host {
    /// The replicated slots.
    slots: Vec<u16>,
    /// True if changes are synced before they are acknowledged, instead of only written to the operating system.
    syncs_always: bool,
    bugs: Bugs,
    pub table: Table,
    copies: BTreeMap<u16, SlotCopy>,
    pub replication: Option<Replication>,
    me: Option<NodeId>,
    /// The terms in the last map.
    terms: BTreeMap<u16, Term>,
    connected: BTreeSet<At>,
    pub greeted: BTreeMap<At, NodeId>,
    waiting: Vec<WaitingCommand>,
    /// The number of changes of the disk; for each, the number of records after it.
    changes: u64,
    records: u64,
    on_disk: Vec<(u64, u64)>,
    synced_ms: u64,
    pub sync_due: bool,
    pub missing: bool,
    pub behind: bool,
    /// The joins of this node, if it computes outputs.
    pub joins: Option<Joins>,
}

/// Decodes the records of a log, up to its torn end.
pub fn records(log: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    let mut rest = log;
    while rest.len() >= 8 {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("four bytes"));
        let (size, checksum) = (word(0) as usize, word(4));
        if rest.len() < 8 + size {
            break;
        }
        let body = &rest[8..8 + size];
        if checksum32(body, 0) != checksum {
            break;
        }
        records.push(Record::decode(body).expect("a record whose checksum is right"));
        rest = &rest[8 + size..];
    }
    records
}

fn frame(record: &Record, into: &mut Vec<u8>) {
    let mut body = Vec::new();
    record.encode(&mut body);
    into.extend((body.len() as u32).to_le_bytes());
    into.extend(checksum32(&body, 0).to_le_bytes());
    into.extend(body);
}

impl Host {
    /// Recovers from the contents of the disk.
    pub fn load(
        start: &Start<'_>,
        slots: Vec<u16>,
        syncs_always: bool,
        bugs: Bugs,
        out: &mut Outputs<Wire>,
    ) -> Host {
        let mut table = Table::default();
        let mut copies: BTreeMap<u16, Option<SlotCopy>> = BTreeMap::new();
        let mut whole = Vec::new();
        for record in records(start.disk.read("log")) {
            let copy = copies.entry(record.slot()).or_default();
            SlotCopy::replay(copy, &record, &mut table);
            frame(&record, &mut whole);
        }
        out.note(|| format!("found {copies:?}"));
        let mut changes = 0;
        if whole.len() < start.disk.read("log").len() {
            // A torn end is cut off, because records appended after it could not be read.
            changes += 1;
            out.push(Output::Replace("log", whole));
        }
        Host {
            slots,
            syncs_always,
            bugs,
            table,
            copies: copies
                .into_iter()
                .filter_map(|(slot, it)| Some((slot, it?)))
                .collect(),
            replication: None,
            me: None,
            terms: BTreeMap::new(),
            connected: BTreeSet::new(),
            greeted: BTreeMap::new(),
            waiting: Vec::new(),
            changes,
            records: 0,
            on_disk: Vec::new(),
            synced_ms: 0,
            sync_due: false,
            missing: false,
            behind: false,
            joins: None,
        }
    }

    /// Writes a file other than the log. Returns the number of the change.
    pub fn replace(&mut self, file: &'static str, bytes: Vec<u8>, out: &mut Outputs<Wire>) -> u64 {
        self.changes += 1;
        out.push(Output::Replace(file, bytes));
        self.changes
    }

    /// Discards everything found, because the disk is not proven.
    pub fn forget(&mut self, out: &mut Outputs<Wire>) {
        self.copies.clear();
        self.table = Table::default();
        self.replace("log", Vec::new(), out);
    }

    /// Starts with the node's identity in the map.
    pub fn begin(&mut self, me: NodeId, now_ms: u64, put: &mut Put, out: &mut Outputs<Wire>) {
        if let Some(replication) = &mut self.replication {
            if self.me.replace(me) != Some(me) {
                replication.restart_as(place(me), &mut self.table, put);
                self.terms.clear();
                for peer in self.connected.clone() {
                    self.greet(peer, out);
                }
            }
            return;
        }
        let limits = Limits {
            silent_ms: 400,
            slowest_bytes_per_second: 1 << 20,
            request_retry_ms: 100,
            heartbeat_ms: 80,
            chunk_bytes: 130,
            window_bytes: 200,
            fill_window_bytes: 200,
            fill_bytes_per_second: 1 << 20,
            unacknowledged_bytes_max: 1_000,
        };
        let copies = std::mem::take(&mut self.copies);
        let mut replication = Replication::with_bugs(place(me), limits, copies, self.bugs);
        for node in self.greeted.values() {
            replication.handle_connect(place(*node), now_ms);
        }
        self.replication = Some(replication);
        self.me = Some(me);
        for peer in self.connected.clone() {
            self.greet(peer, out);
        }
    }

    /// Without `moves`, the map does not request hand-overs.
    pub fn assign(&mut self, map: &Map, moves: bool, now_ms: u64, put: &mut Put) {
        let Some(replication) = &mut self.replication else {
            return;
        };
        for &slot in &self.slots {
            let placed = &map.slots().of(slot).placement;
            let assignment = Assignment::of(placed, map.next_owner(slot).filter(|_| moves), place);
            let epoch = map.epoch();
            self.terms.insert(slot, placed.term);
            replication.assign(epoch, slot, &assignment, &mut self.table, now_ms, put);
        }
        replication.finish_assignment(map.epoch(), put);
    }

    pub fn set_lease(&mut self, until_ms: u64) {
        if let Some(replication) = &mut self.replication {
            replication.owner.set_lease(until_ms);
        }
        if let Some(joins) = &mut self.joins {
            joins.lease_until_ms = until_ms;
        }
    }

    pub fn connected(&mut self, peer: At, out: &mut Outputs<Wire>) {
        self.connected.insert(peer);
        self.greet(peer, out);
    }

    fn greet(&mut self, peer: At, out: &mut Outputs<Wire>) {
        if let Some(me) = self.me {
            out.push(Output::Send(peer, Wire::Hello(me)));
        }
    }

    pub fn lost(&mut self, peer: At, now_ms: u64) {
        self.connected.remove(&peer);
        if let Some(joins) = &mut self.joins {
            joins.lost(peer);
        }
        if let Some(node) = self.greeted.remove(&peer)
            && let Some(replication) = &mut self.replication
        {
            replication.handle_disconnect(place(node), now_ms);
        }
    }

    pub fn hello(&mut self, from: At, node: NodeId, now_ms: u64) {
        let before = self.greeted.insert(from, node);
        if let Some(replication) = &mut self.replication {
            if let Some(before) = before.filter(|before| *before != node) {
                replication.handle_disconnect(place(before), now_ms);
            }
            replication.handle_connect(place(node), now_ms);
        }
    }

    pub fn receive(&mut self, from: At, bytes: &[u8], now_ms: u64, put: &mut Put) {
        let message = Message::decode(bytes).expect("a complete message");
        if let (Some(node), Some(replication)) = (self.greeted.get(&from), &mut self.replication) {
            replication.receive(place(*node), message, &mut self.table, now_ms, put);
        }
    }

    pub fn synced(&mut self, upto: u64, put: &mut Put) {
        if self.syncs_always {
            self.durable(upto, put);
        }
    }

    pub fn tick(&mut self, now_ms: u64, put: &mut Put, out: &mut Outputs<Wire>) {
        if let Some(joins) = &mut self.joins {
            joins.tick(now_ms, out);
        }
        if let Some(replication) = &mut self.replication {
            replication.tick(now_ms, put);
        }
        if !self.syncs_always && now_ms >= self.synced_ms + 300 {
            self.synced_ms = now_ms;
            self.sync_due = true;
        }
    }

    fn durable(&mut self, upto: u64, put: &mut Put) {
        let reached = self
            .on_disk
            .iter()
            .take_while(|(change, _)| *change <= upto)
            .count();
        if let Some((_, records)) = self.on_disk.drain(..reached).next_back()
            && let Some(replication) = &mut self.replication
        {
            replication.record_durable(records, put);
        }
    }

    pub fn execute(
        &mut self,
        now_ms: u64,
        client: At,
        number: u64,
        call: Call,
        put: &mut Put,
        out: &mut Outputs<Wire>,
    ) {
        let Call { slot, key, what } = call;
        let refuse = Output::Send(client, Wire::Reply(number, Reply::NotDone));
        let Some(replication) = &mut self.replication else {
            return out.push(refuse);
        };
        if what == Op::Shown {
            return match &mut self.joins {
                Some(joins) if joins.computes(slot) => {
                    joins.read(client, number, slot, key, now_ms);
                }
                _ => out.push(refuse),
            };
        }
        let number_of_key = key;
        let key = [b'k', key];
        let before = self.table.get(slot, &key);
        let value = before.as_ref().map_or(0, |bytes| {
            u64::from_le_bytes(bytes.as_slice().try_into().expect("8 bytes"))
        });
        if what == Op::Get {
            let (acknowledged, confirmed) = match replication.owner.read(slot, Some(&key), now_ms) {
                ReadWait::Now => (None, false),
                ReadWait::After {
                    acknowledged,
                    confirmed,
                } => (acknowledged, confirmed),
                ReadWait::NotOwner | ReadWait::Later => return out.push(refuse),
            };
            self.waiting.push(WaitingCommand {
                client,
                number,
                reply: Reply::Value(value),
                acknowledged,
                confirmed: if confirmed {
                    ConfirmationState::ToAsk
                } else {
                    ConfirmationState::NotNeeded
                },
                slot,
                export: (self.joins.as_ref()).and_then(|it| it.last_export(slot, number_of_key)),
                upto: None,
            });
            return;
        }
        let admission = replication.owner.may_write(slot, now_ms);
        if admission != Admission::Now {
            out.note(|| format!("refused: {admission:?}"));
            return out.push(refuse);
        }
        let after = match what {
            Op::Set(value) => Some(value),
            Op::Add(by) => Some(value + by as u64),
            _ => None,
        };
        let after = after.map(u64::to_le_bytes);
        let bytes = after.as_ref().map(<[u8; 8]>::as_slice);
        self.table.set(slot, &key, bytes);
        let changed = ExecutedChange {
            key: &key,
            value: bytes,
            is_open: false,
        };
        let ticket = replication.change(slot, changed, before, put);
        let joins = self.joins.as_mut();
        let export = joins.map(|joins| joins.write(slot, number_of_key, bytes, ticket));
        self.waiting.push(WaitingCommand {
            client,
            number,
            reply: Reply::Done(self.terms.get(&slot).copied().unwrap_or_default()),
            acknowledged: Some(ticket),
            confirmed: ConfirmationState::NotNeeded,
            slot,
            export,
            upto: None,
        });
    }

    fn answer(&mut self, now_ms: u64, put: &mut Put, out: &mut Outputs<Wire>) {
        let Some(replication) = &mut self.replication else {
            return;
        };
        let owner = &mut replication.owner;
        let joins = self.joins.as_ref();
        self.waiting.retain_mut(|it| {
            if let (Some(joins), Some(upto)) = (joins, it.upto) {
                match joins.are_settled(upto) {
                    Some(true) => it.upto = None,
                    Some(false) => return true,
                    None => return false,
                }
            }
            let is_reflected = |export| joins.is_none_or(|joins| joins.is_reflected(export));
            if it.export.is_some_and(|export| !is_reflected(export)) {
                return true;
            }
            let known = it.acknowledged.as_ref().map(|ticket| owner.outcome(ticket));
            if let ConfirmationState::ToAsk = it.confirmed
                && let Some(asked) = owner.confirm(it.slot, now_ms, put)
            {
                it.confirmed = ConfirmationState::Asked(asked);
            }
            let confirmed = match &it.confirmed {
                ConfirmationState::NotNeeded => Outcome::Acknowledged,
                ConfirmationState::ToAsk if owner.is_owner(it.slot) => Outcome::Waiting,
                ConfirmationState::ToAsk => Outcome::Unknown,
                ConfirmationState::Asked(asked) => owner.is_confirmed(asked),
            };
            match (known.unwrap_or(Outcome::Acknowledged), confirmed) {
                (Outcome::Acknowledged, Outcome::Acknowledged) => {
                    out.push(Output::Send(it.client, Wire::Reply(it.number, it.reply)));
                    false
                }
                (Outcome::Unknown, _) | (_, Outcome::Unknown) => false,
                _ => true,
            }
        });
    }

    fn follow_joins(&mut self, now_ms: u64, put: &mut Put, out: &mut Outputs<Wire>) {
        let (Some(joins), Some(replication)) = (&mut self.joins, &mut self.replication) else {
            return;
        };
        joins.follow(replication, &self.table, put, out);
        let shown = joins.shown(now_ms).into_iter();
        self.waiting.extend(shown.map(|shown| WaitingCommand {
            client: shown.client,
            number: shown.number,
            reply: Reply::Value(shown.value),
            acknowledged: None,
            confirmed: ConfirmationState::NotNeeded,
            slot: shown.slot,
            export: None,
            upto: Some(shown.upto),
        }));
        joins.send(now_ms, &self.connected, out);
    }

    /// Ends the turn: replies, records, messages. The caller makes the map changes that the owner requests.
    pub fn end_turn(
        &mut self,
        now_ms: u64,
        mut put: Put,
        out: &mut Outputs<Wire>,
    ) -> Vec<MapRequest> {
        self.follow_joins(now_ms, &mut put, out);
        self.answer(now_ms, &mut put, out);
        if let Some(replication) = &mut self.replication {
            // Without joins no other node computes from these slots.
            let leaving = |event: &ReplicationEvent| match event {
                ReplicationEvent::MoveRequested(slot) => Some(*slot),
                _ => None,
            };
            let leaving: Vec<u16> = put.events.iter().filter_map(leaving).collect();
            if self.joins.is_none() {
                for slot in leaving {
                    replication.owner.complete_release(slot, &mut put);
                }
            }
            replication.flush(&self.table, now_ms, &mut put);
        }
        if !put.records.is_empty() {
            let mut bytes = Vec::new();
            for record in &put.records {
                frame(record, &mut bytes);
            }
            self.changes += 1;
            self.records += put.records.len() as u64;
            self.on_disk.push((self.changes, self.records));
            out.push(Output::Append("log", bytes));
            self.sync_due |= self.syncs_always;
        }
        if std::mem::take(&mut self.sync_due) {
            out.push(Output::Sync);
        }
        for (to, message) in put.messages {
            let peer = self.greeted.iter().find(|(_, node)| place(**node) == to);
            if let Some((peer, _)) = peer {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                out.push(Output::Send(*peer, Wire::Peer(Peer(bytes))));
            }
        }
        let mut requests = put.requests;
        for event in put.events {
            out.note(|| format!("{event:?}"));
            self.missing |= matches!(event, ReplicationEvent::CopyMissing(_));
            self.behind |= matches!(event, ReplicationEvent::OwnerBehind(_));
        }
        if !self.syncs_always && self.on_disk.last().is_some() {
            // Writes in the operating system survive a kill.
            let mut put = Put::default();
            self.durable(u64::MAX, &mut put);
            requests.extend(self.end_turn(now_ms, put, out));
        }
        requests
    }
}

pub fn place(node: NodeId) -> Place {
    Place { node, core: 0 }
}
