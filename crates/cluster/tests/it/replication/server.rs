//! A server of the simulated cluster: one place, its log, its lease, and a table for rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use larder_cluster::map::{DiskId, Incarnation, Map, NodeId, NodeName, Registration, Roles, State};
use larder_cluster::replication::recovery::{Identity, prove};
use larder_cluster::replication::{
    Admission, Assignment, Changed, Confirmation, Copy, Event, Lease, Limits, Message, Outcome,
    Outputs as Put, Place, ReadWait, Record, Replication, Row, Rows, Ticket,
};
use larder_sim::{Input, NodeId as At, Output, Outputs, Random, Start};
use larder_types::checksum32;

use super::service::SLOTS;
use super::wire::{Call, Op, Peer, Reply, Wire, datagram};
use super::{SERVICE, Setup, TTL_MS};

const TICK_US: u64 = 40_000;
const KEEPALIVE_MS: u64 = TTL_MS / 4;

/// The rows of all slots, owned or copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table(pub BTreeMap<u16, BTreeMap<Vec<u8>, Vec<u8>>>);

impl Rows for Table {
    fn get(&self, slot: u16, key: &[u8]) -> Option<Vec<u8>> {
        self.0.get(&slot)?.get(key).cloned()
    }

    fn set(&mut self, slot: u16, key: &[u8], value: Option<&[u8]>) {
        let rows = self.0.entry(slot).or_default();
        match value {
            Some(value) => rows.insert(key.to_vec(), value.to_vec()),
            None => rows.remove(key),
        };
    }

    fn clear(&mut self, slot: u16) {
        self.0.remove(&slot);
    }

    fn read(&self, slot: u16, after: Option<&[u8]>, bytes: usize, into: &mut Vec<Row>) -> bool {
        let Some(rows) = self.0.get(&slot) else {
            return true;
        };
        let mut size = 0;
        let from = rows
            .iter()
            .filter(|(key, _)| after.is_none_or(|it| key.as_slice() > it));
        for (key, value) in from {
            if size >= bytes {
                return false;
            }
            size += key.len() + value.len();
            into.push(Row::new(key, Some(value)));
        }
        true
    }
}

/// A call that waits.
struct Waiting {
    client: At,
    number: u64,
    reply: Reply,
    acknowledged: Option<Ticket>,
    confirmed: Confirmed,
    slot: u16,
}

enum Confirmed {
    NotNeeded,
    ToAsk,
    Asked(Confirmation),
}

pub struct Server {
    name: NodeName,
    setup: Setup,
    random: Random,
    /// What this life is known by; None until the disk has it.
    identity: Identity,
    is_known: bool,
    identity_change: Option<u64>,
    found: Option<Identity>,
    is_log_whole: bool,
    copies: BTreeMap<u16, Copy>,
    pub table: Table,
    pub replication: Option<Replication>,
    map: Option<Arc<Map>>,
    /// The map had this node up in its present life.
    is_member: bool,
    lease: Lease,
    keepalives: u64,
    sent_keepalive_ms: u64,
    connected: BTreeSet<At>,
    greeted: BTreeMap<At, NodeId>,
    waiting: Vec<Waiting>,
    /// Changes of the disk, and how many records each brought it to.
    changes: u64,
    records: u64,
    on_disk: Vec<(u64, u64)>,
    synced_ms: u64,
    sync_due: bool,
    pub missing: bool,
    pub behind: bool,
}

/// The records of a log, as far as it is whole.
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

impl Server {
    pub fn start(setup: &Setup, start: Start<'_>, out: &mut Outputs<Wire>) -> Server {
        let text = start.disk.read("identity");
        let found = (text.len() == 16).then(|| Identity {
            disk: DiskId(u64::from_le_bytes(text[..8].try_into().expect("8"))),
            incarnation: Incarnation(u64::from_le_bytes(text[8..].try_into().expect("8"))),
        });
        let mut table = Table::default();
        let mut copies: BTreeMap<u16, Option<Copy>> = BTreeMap::new();
        let mut whole = Vec::new();
        for record in records(start.disk.read("log")) {
            let copy = copies.entry(record.slot()).or_default();
            Copy::replay(copy, &record, &mut table);
            frame(&record, &mut whole);
        }
        out.note(|| format!("found {copies:?}"));
        let mut changes = 0;
        if whole.len() < start.disk.read("log").len() {
            // A torn end is cut off, or what is written from now on would be behind it.
            changes += 1;
            out.push(Output::Replace("log", whole));
        }
        out.push(Output::Wake(start.now_us + 1));
        Server {
            name: format!("n{}", start.me.0).parse().expect("a name"),
            setup: setup.clone(),
            random: Random::stream(start.seed, 3),
            identity: Identity {
                disk: DiskId(0),
                incarnation: Incarnation(0),
            },
            is_known: false,
            identity_change: None,
            found,
            is_log_whole: setup.syncs_always || !start.lost_power,
            copies: copies
                .into_iter()
                .filter_map(|(slot, it)| Some((slot, it?)))
                .collect(),
            table,
            replication: None,
            map: None,
            is_member: false,
            lease: new_lease(setup),
            keepalives: 0,
            sent_keepalive_ms: 0,
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
        }
    }

    pub fn step(&mut self, now_us: u64, input: Input<Wire>, out: &mut Outputs<Wire>) {
        let now_ms = now_us / 1_000;
        let mut put = Put::default();
        match input {
            Input::Tick => {
                self.tick(now_ms, &mut put, out);
                out.push(Output::Wake(now_us + TICK_US));
            }
            Input::Connected(peer) => {
                self.connected.insert(peer);
                self.greet(peer, out);
            }
            Input::Lost(peer) => {
                self.connected.remove(&peer);
                if let Some(node) = self.greeted.remove(&peer)
                    && let Some(replication) = &mut self.replication
                {
                    replication.lost(place(node), now_ms);
                }
            }
            Input::Message(from, wire) | Input::Datagram(from, wire) => {
                self.hear(now_ms, from, wire, &mut put, out);
            }
            Input::Synced(upto) => {
                if self.setup.syncs_always {
                    self.durable(upto, &mut put);
                }
                if self.identity_change.is_some_and(|change| change <= upto) {
                    self.identity_change = None;
                    self.register(now_ms, out);
                }
            }
        }
        self.end_turn(now_ms, put, out);
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
            replication.durable(records, put);
        }
    }

    fn greet(&mut self, peer: At, out: &mut Outputs<Wire>) {
        let id = self
            .map
            .as_ref()
            .and_then(|map| map.member_named(&self.name))
            .map(|it| it.id);
        if let (Some(id), Some(_)) = (id, &self.replication)
            && (1..=self.setup.servers).contains(&peer.0)
        {
            out.push(Output::Send(peer, Wire::Hello(id)));
        }
    }

    fn hear(&mut self, now_ms: u64, from: At, wire: Wire, put: &mut Put, out: &mut Outputs<Wire>) {
        match wire {
            Wire::Map(map) => self.see(now_ms, map.0, put, out),
            Wire::Alive(number, true) => {
                self.lease.answered(number, now_ms);
                self.lend();
            }
            // This life is over; a new one begins.
            Wire::Alive(_, false) if self.is_known => {
                self.lease.ended();
                self.lend();
                let disk = self.identity.disk;
                self.live(disk, out);
            }
            Wire::HandOver(slot, to) => {
                if let Some(replication) = &mut self.replication {
                    replication.owner.hand_over(slot, place(to));
                }
            }
            Wire::Hello(node) => {
                self.greeted.insert(from, node);
                if let Some(replication) = &mut self.replication {
                    replication.connected(place(node), now_ms);
                }
            }
            Wire::Peer(Peer(bytes)) => {
                let message = Message::decode(&bytes).expect("whole");
                if let (Some(node), Some(replication)) =
                    (self.greeted.get(&from), &mut self.replication)
                {
                    replication.receive(place(*node), message, &mut self.table, now_ms, put);
                }
            }
            Wire::Request(number, call) => self.execute(now_ms, from, number, call, put, out),
            _ => {}
        }
    }

    /// A lease counts for the slots of a map that has this life.
    fn lend(&mut self) {
        let until = match self.is_member {
            true => self.lease.until_ms(),
            false => 0,
        };
        if let Some(replication) = &mut self.replication {
            replication.owner.set_lease(until);
        }
    }

    fn see(&mut self, now_ms: u64, map: Arc<Map>, put: &mut Put, out: &mut Outputs<Wire>) {
        if self
            .map
            .as_ref()
            .is_some_and(|known| known.epoch() >= map.epoch())
        {
            return;
        }
        let member = map.member_named(&self.name).cloned();
        if self.map.is_none() {
            let known = member.as_ref().map(|it| Identity {
                disk: it.registration.disk,
                incarnation: it.registration.incarnation,
            });
            let proof = prove(self.found, known, self.is_log_whole);
            let newest = [self.found, known].into_iter().flatten();
            let newest = newest.map(|it| it.incarnation).max();
            self.identity.incarnation = newest.unwrap_or(Incarnation(0));
            let disk = match proof {
                Ok(()) => self.found.expect("it is proven").disk,
                Err(_) => {
                    self.copies.clear();
                    self.table = Table::default();
                    self.changes += 1;
                    out.push(Output::Replace("log", Vec::new()));
                    DiskId(self.random.word())
                }
            };
            self.live(disk, out);
        }
        self.map = Some(map.clone());
        let Some(member) = member else {
            return;
        };
        if self.replication.is_none() {
            let limits = Limits {
                silent_ms: 400,
                ask_again_ms: 100,
                beat_ms: 80,
                chunk_bytes: 12,
                window_bytes: 200,
                fill_bytes_per_second: 1 << 20,
                unacknowledged_bytes_max: 1_000,
            };
            let copies = std::mem::take(&mut self.copies);
            let bugs = self.setup.bugs;
            let replication = Replication::with_bugs(place(member.id), limits, copies, bugs);
            self.replication = Some(replication);
            for peer in self.connected.clone() {
                self.greet(peer, out);
            }
            for node in self.greeted.values() {
                let replication = self.replication.as_mut().expect("just made");
                replication.connected(place(*node), now_ms);
            }
        }
        self.is_member = member.registration.incarnation == self.identity.incarnation
            && member.state == State::Up
            && self.is_known;
        if self.is_member {
            let replication = self.replication.as_mut().expect("made above");
            for slot in 0..SLOTS {
                let placed = &map.slots().of(slot).placed;
                let assignment = Assignment::of(placed, place);
                let epoch = map.epoch();
                replication.assign(epoch, slot, &assignment, &mut self.table, now_ms, put);
            }
        }
        self.lend();
    }

    /// A new life begins: the disk is told first, then the service.
    fn live(&mut self, disk: DiskId, out: &mut Outputs<Wire>) {
        self.is_known = false;
        self.is_member = false;
        self.identity = Identity {
            disk,
            incarnation: Incarnation(self.identity.incarnation.0 + 1),
        };
        let mut bytes = disk.0.to_le_bytes().to_vec();
        bytes.extend(self.identity.incarnation.0.to_le_bytes());
        self.changes += 1;
        out.push(Output::Replace("identity", bytes));
        out.push(Output::Sync);
        self.identity_change = Some(self.changes);
    }

    fn register(&mut self, now_ms: u64, out: &mut Outputs<Wire>) {
        self.is_known = true;
        self.lease = new_lease(&self.setup);
        let registration = Registration {
            name: self.name.clone(),
            incarnation: self.identity.incarnation,
            disk: self.identity.disk,
            resp: String::new(),
            http: String::new(),
            peer: String::new(),
            hostname: None,
            cores: 1,
            zone: String::new(),
            weight: 1,
            roles: Roles::Base,
        };
        self.keepalives += 1;
        self.sent_keepalive_ms = now_ms;
        self.lease.sent(self.keepalives, now_ms);
        let wire = Wire::Register(Box::new(registration), self.keepalives);
        datagram(out, SERVICE, wire);
    }

    fn tick(&mut self, now_ms: u64, put: &mut Put, out: &mut Outputs<Wire>) {
        datagram(out, SERVICE, Wire::Poll);
        if self.is_known && now_ms >= self.sent_keepalive_ms + KEEPALIVE_MS {
            // The registration may have been lost.
            let is_registered = self.lease.until_ms() > 0;
            if is_registered {
                self.keepalives += 1;
                self.sent_keepalive_ms = now_ms;
                self.lease.sent(self.keepalives, now_ms);
                let (name, life) = (self.name.clone(), self.identity.incarnation);
                datagram(out, SERVICE, Wire::KeepAlive(name, life, self.keepalives));
            } else {
                let disk = self.identity.disk;
                self.live(disk, out);
            }
        }
        if let Some(replication) = &mut self.replication {
            replication.tick(now_ms, put);
        }
        if !self.setup.syncs_always && now_ms >= self.synced_ms + 300 {
            self.synced_ms = now_ms;
            self.sync_due = true;
        }
    }

    fn execute(
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
                ReadWait::NotOwner => return out.push(refuse),
            };
            self.waiting.push(Waiting {
                client,
                number,
                reply: Reply::Value(value),
                acknowledged,
                confirmed: match confirmed {
                    true => Confirmed::ToAsk,
                    false => Confirmed::NotNeeded,
                },
                slot,
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
        let ticket = {
            let changed = Changed {
                key: &key,
                value: bytes,
                is_open: false,
            };
            replication.change(slot, changed, before, put)
        };
        self.waiting.push(Waiting {
            client,
            number,
            reply: Reply::Done,
            acknowledged: Some(ticket),
            confirmed: Confirmed::NotNeeded,
            slot,
        });
    }

    fn answer(&mut self, now_ms: u64, put: &mut Put, out: &mut Outputs<Wire>) {
        let Some(replication) = &mut self.replication else {
            return;
        };
        let owner = &mut replication.owner;
        self.waiting.retain_mut(|it| {
            let known = it.acknowledged.as_ref().map(|ticket| owner.outcome(ticket));
            if let Confirmed::ToAsk = it.confirmed
                && let Some(asked) = owner.confirm(it.slot, now_ms, put)
            {
                it.confirmed = Confirmed::Asked(asked);
            }
            let confirmed = match &it.confirmed {
                Confirmed::NotNeeded => Outcome::Acknowledged,
                Confirmed::ToAsk if owner.is_owner(it.slot) => Outcome::Waiting,
                Confirmed::ToAsk => Outcome::Unknown,
                Confirmed::Asked(asked) => owner.is_confirmed(asked),
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

    fn end_turn(&mut self, now_ms: u64, mut put: Put, out: &mut Outputs<Wire>) {
        self.answer(now_ms, &mut put, out);
        if let Some(replication) = &mut self.replication {
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
            self.sync_due |= self.setup.syncs_always;
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
        for ask in put.asks {
            let (name, life) = (self.name.clone(), self.identity.incarnation);
            if self.is_member {
                datagram(out, SERVICE, Wire::Ask(name, life, ask));
            }
        }
        for event in put.events {
            out.note(|| format!("{event:?}"));
            self.missing |= matches!(event, Event::Missing(_));
            self.behind |= matches!(event, Event::Behind(_));
        }
        if !self.setup.syncs_always && self.on_disk.last().is_some() {
            // What is with the system is safe from a kill.
            let mut put = Put::default();
            self.durable(u64::MAX, &mut put);
            self.end_turn(now_ms, put, out);
        }
    }
}

fn new_lease(setup: &Setup) -> Lease {
    let lease = Lease::new(TTL_MS, 3_000);
    match setup.counts_leases_from_answers {
        true => lease.counting_from_the_answer(),
        false => lease,
    }
}

pub fn place(node: NodeId) -> Place {
    Place { node, core: 0 }
}
