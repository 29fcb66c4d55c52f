//! Joins over nodes: each node's engine computes outputs from rows that other nodes own.
//!
//! ```text
//!   node that owns src|<at>|       Begin, Ask, Ack, Ping ◄──── node that owns by|<home>|
//!                                  Supply, Changes, Pong ────►
//! ```
//!
//! Engines and exchanges are the server's own. This module connects them like the server's `tables/conversations` and
//! `tables/replicated`; decision 17 has the rules.
//!
//! 1. A message that shows a change is sent when replicas have the change. A write is answered when all readers reflect it.
//! 2. A reader trusts an owner's rows as long as its subscription lease lasts. The owner waits for a lost reader that long, and a margin.
//! 3. A slot is released when all readers have dropped its rows.
//! 4. A conversation ends with its connection and with the owner's life. The reader drops the rows it received in a conversation
//!    before the next one begins.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, LazyLock};

use larder_cluster::peer::SubscriptionLease;
use larder_cluster::replication::{
    Outcome, Outputs as Put, Replication, ReplicationEvent, RowStore, Ticket,
};
use larder_join::{Engine, EngineMessage, Exchange, NO_OWNER, ReadOutcome, Shard, SlotOwners};
use larder_sim::{NodeId as At, Output, Outputs};
use larder_types::slot_of;

use super::SLOTS;
use crate::replication::client::KEYS;
use crate::replication::host::Table;
use crate::replication::wire::Wire;

/// Time for which a reader trusts rows, from the sending of the last answered ping.
pub const TRUST_MS: u64 = 600;
const PING_EVERY_MS: u64 = 200;
/// The rates of two clocks differ by at most 0.1 %.
pub const MARGIN_MS: u64 = 50;
/// Time after which the owner no longer waits for a reader that acknowledges nothing.
const SLOW_MS: u64 = 900;
/// Timeout of a read of an output.
const READ_MAX_MS: u64 = 1_000;

const JOIN: &str = "by|<home>|<at>|<key> = copy src|<at>|<key>|<home>";

/// A leading column for each slot.
static COLUMNS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let column = |slot: &u16| {
        let mut names = (0..).map(|number| format!("c{number}"));
        names.find(|name| slot_of(name.as_bytes()) == *slot)
    };
    SLOTS.iter().filter_map(column).collect()
});

/// Mistakes for the simulation to find.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PlantedBug {
    #[default]
    None,
    /// One in four messages with changes is not sent.
    LosesChanges,
    /// A reader trusts rows even if their owner has sent nothing for any length of time.
    NeverExpiresRows,
    /// A write is answered before readers reflect it.
    RepliesEarly,
}

/// A message about joins between nodes. Each belongs to a conversation, which the reader has numbered.
#[derive(Debug, Clone, PartialEq)]
pub enum JoinMessage {
    /// The first message of a conversation begins it.
    ToOwner(Vec<EngineMessage>),
    ToReader(Vec<EngineMessage>),
    Ping(u64),
    /// The time at which the ping was sent, and the time for which the owner certainly serves its slots.
    Pong(u64, u64),
    /// The owner ends the conversation.
    End,
}

/// This node as a reader.
struct Reading {
    conversation: u64,
    lease: SubscriptionLease,
    has_rows: bool,
}

/// Another node as a reader.
struct Reader {
    conversation: u64,
    /// The life of this node in which the conversation began.
    life: u64,
    lease: SubscriptionLease,
    is_ended: bool,
    /// The first change that it has not acknowledged, and since when.
    waits: Option<(u64, u64)>,
}

/// A read of an output that awaits its reply.
struct Pending {
    client: At,
    number: u64,
    slot: u16,
    key: u8,
    since_ms: u64,
}

/// The result of a read of an output, and the changes that its reply waits for.
pub struct JoinReadResult {
    pub client: At,
    pub number: u64,
    pub slot: u16,
    pub value: u64,
    /// The last own change that it may show, and the number of changes that had ended unknown.
    pub upto: (u64, u64),
}

pub struct Joins {
    me: u16,
    count: u16,
    engine: Engine,
    exchange: Exchange,
    bug: PlantedBug,
    sent_changes: u64,
    kept: Vec<(u64, u16, Vec<EngineMessage>)>,
    waiting: VecDeque<Ticket>,
    executed: u64,
    settled: u64,
    unknown: u64,
    /// From the map: its epoch, the owner of each slot, and the nodes that are up.
    epoch: u64,
    mapped: Vec<u16>,
    up: BTreeSet<u16>,
    owners: Vec<u16>,
    is_map_new: bool,
    withdrawn: BTreeMap<u16, u64>,
    reading: BTreeMap<u16, Reading>,
    /// Owners to which a new conversation must be announced: from the next tick on, and now.
    to_begin: BTreeSet<u16>,
    begin: BTreeSet<u16>,
    conversations: u64,
    readers: BTreeMap<u16, Reader>,
    /// The last conversation of each reader.
    reader_conversations: BTreeMap<u16, u64>,
    life: u64,
    pub lease_until_ms: u64,
    pending: Vec<Pending>,
}

fn at_of(slot: u16) -> usize {
    let at = SLOTS.iter().position(|it| *it == slot);
    at.expect("a slot with rows")
}

/// The slot of the outputs that show the rows of a slot.
pub fn home(at: usize) -> usize {
    (at + 1) % SLOTS.len()
}

fn row(slot: u16, key: u8) -> Vec<u8> {
    let at = at_of(slot);
    format!("src|{}|{key}|{}", COLUMNS[at], COLUMNS[home(at)]).into_bytes()
}

fn output(slot: u16, key: u8) -> Vec<u8> {
    let at = at_of(slot);
    format!("by|{}|{}|{key}", COLUMNS[home(at)], COLUMNS[at]).into_bytes()
}

fn shard(me: u16, count: u16, owners: &[u16]) -> Shard {
    let owner = |slot: u16| {
        let at = SLOTS.iter().position(|it| *it == slot);
        at.map_or(NO_OWNER, |at| owners[at])
    };
    let owners = (0..larder_types::SLOTS).map(owner).collect();
    Shard::with_owners(me, count, Arc::new(SlotOwners::new(owners)))
}

impl Joins {
    /// Creates the state of the node at this place, one of `count` nodes numbered from 1. `now_us` is its clock, which continues
    /// from life to life.
    pub fn new(at: At, count: usize, bug: PlantedBug, now_us: u64) -> Joins {
        let (me, count) = (at.0 as u16 - 1, count as u16);
        let owners = vec![NO_OWNER; SLOTS.len()];
        let shard = shard(me, count, &owners);
        let mut engine = Engine::new();
        engine.set_shard(shard.clone());
        engine.record_changes(true);
        engine.create("by", JOIN, 0).expect("it is right");
        engine.take_changes();
        let mut exchange = Exchange::new(shard);
        exchange.track_in_flight();
        Joins {
            me,
            count,
            engine,
            exchange,
            bug,
            sent_changes: 0,
            kept: Vec::new(),
            waiting: VecDeque::new(),
            executed: 0,
            settled: 0,
            unknown: 0,
            epoch: 0,
            mapped: owners.clone(),
            up: BTreeSet::new(),
            owners,
            is_map_new: false,
            withdrawn: BTreeMap::new(),
            reading: BTreeMap::new(),
            to_begin: BTreeSet::new(),
            begin: BTreeSet::new(),
            conversations: now_us,
            readers: BTreeMap::new(),
            reader_conversations: BTreeMap::new(),
            life: 0,
            lease_until_ms: 0,
            pending: Vec::new(),
        }
    }

    /// Applies a map: the place of each slot's owner, for slots with rows, and the places that are up.
    pub fn take_map(&mut self, epoch: u64, owners: Vec<Option<At>>, up: BTreeSet<At>) {
        let place = |at: At| at.0 as u16 - 1;
        let owners = owners.into_iter().map(|at| at.map_or(NO_OWNER, place));
        (self.epoch, self.mapped) = (epoch, owners.collect());
        self.up = up.into_iter().map(place).collect();
        self.is_map_new = true;
    }

    /// Starts another life of this node, without any promise to the readers of the previous life.
    pub fn start_incarnation(&mut self, life: u64, out: &mut Outputs<Wire>) {
        if std::mem::replace(&mut self.life, life) != life {
            for place in self.readers.keys().copied().collect::<Vec<_>>() {
                self.end_reader(place, out);
            }
        }
    }

    /// Executes a change of an own row. Returns the export that its reply waits for.
    pub fn write(&mut self, slot: u16, key: u8, value: Option<&[u8]>, ticket: Ticket) -> u64 {
        let row = row(slot, key);
        let written = match value {
            Some(value) => self.engine.put(&row, value, 0),
            None => self.engine.remove(&row, 0),
        };
        written.expect("it is of a base table");
        let changes = self.engine.take_changes();
        self.exchange.export(&changes, false);
        self.executed += 1;
        self.waiting.push_back(ticket);
        self.exchange.sequence()
    }

    /// Returns the export that a read of the row waits for.
    pub fn last_export(&self, slot: u16, key: u8) -> Option<u64> {
        self.exchange.last_in_flight(&row(slot, key))
    }

    pub fn is_reflected(&self, export: u64) -> bool {
        self.bug == PlantedBug::RepliesEarly || self.exchange.is_acknowledged(export)
    }

    /// Returns whether changes up to this one are settled; `None` if more of them have ended unknown.
    pub fn are_settled(&self, (upto, unknown): (u64, u64)) -> Option<bool> {
        (self.unknown <= unknown).then_some(self.settled >= upto)
    }

    /// Returns whether this node computes the outputs that show rows of a slot.
    pub fn computes(&self, slot: u16) -> bool {
        self.owners[home(at_of(slot))] == self.me
    }

    /// Begins a read of the output that shows a row.
    pub fn read(&mut self, client: At, number: u64, slot: u16, key: u8, since_ms: u64) {
        self.pending.push(Pending {
            client,
            number,
            slot,
            key,
            since_ms,
        });
    }

    /// Removes and returns the reads that can be answered.
    pub fn shown(&mut self, now_ms: u64) -> Vec<JoinReadResult> {
        let mut shown = Vec::new();
        for pending in std::mem::take(&mut self.pending) {
            let is_late = now_ms > pending.since_ms + READ_MAX_MS;
            if is_late || now_ms >= self.lease_until_ms || !self.computes(pending.slot) {
                continue;
            }
            let mut value = 0;
            let output = output(pending.slot, pending.key);
            let done = self.engine.get(&output, 0, &mut |bytes| {
                value = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            });
            self.engine.take_changes();
            match done.expect("it is of a table") {
                ReadOutcome::Done(()) if self.is_subscribed(now_ms) => shown.push(JoinReadResult {
                    client: pending.client,
                    number: pending.number,
                    slot: pending.slot,
                    value,
                    upto: (self.executed, self.unknown),
                }),
                ReadOutcome::Done(()) => self.pending.push(pending),
                ReadOutcome::Needs(needs) => {
                    self.exchange.request(&mut self.engine, &needs.remote);
                    self.pending.push(pending);
                }
            }
        }
        shown
    }

    fn is_subscribed(&self, now_ms: u64) -> bool {
        let mut reading = self.reading.values().filter(|it| it.has_rows);
        self.bug == PlantedBug::NeverExpiresRows
            || reading.all(|it| now_ms < it.lease.subscribed_until_ms())
    }

    /// Ends both conversations over a connection that has ended.
    pub fn lost(&mut self, peer: At) {
        let place = peer.0 as u16 - 1;
        self.owner_lost(place);
        if let Some(reader) = self.readers.get_mut(&place) {
            reader.is_ended = true;
        }
    }

    fn owner_lost(&mut self, owner: u16) {
        if self.reading.remove(&owner).is_some() {
            self.exchange.handle_owner_loss(&mut self.engine, owner);
            // The owner waits for this reader until the next conversation begins.
            self.to_begin.insert(owner);
        }
    }

    fn end_reader(&mut self, place: u16, out: &mut Outputs<Wire>) {
        if let Some(reader) = self.readers.get_mut(&place).filter(|it| !it.is_ended) {
            reader.is_ended = true;
            send(out, place, reader.conversation, JoinMessage::End);
        }
    }

    fn reader_lost(&mut self, place: u16) {
        self.readers.remove(&place);
        self.exchange.handle_reader_loss(place);
        self.kept.retain(|(_, to, _)| *to != place);
    }

    pub fn receive(
        &mut self,
        from: At,
        conversation: u64,
        message: JoinMessage,
        now_ms: u64,
        out: &mut Outputs<Wire>,
    ) {
        let place = from.0 as u16 - 1;
        let reading = self.reading.get_mut(&place);
        let reading = reading.filter(|it| it.conversation == conversation);
        match message {
            JoinMessage::ToReader(messages) => {
                if let Some(reading) = reading {
                    reading.has_rows = true;
                    let exchange = &mut self.exchange;
                    messages
                        .into_iter()
                        .for_each(|it| exchange.receive(place, it));
                }
            }
            JoinMessage::Pong(sent_ms, acts_for_ms) => {
                if let Some(reading) = reading {
                    let result = reading.lease.record_pong(sent_ms, acts_for_ms);
                    result.expect("pongs come in order");
                }
            }
            JoinMessage::End if reading.is_some() => self.owner_lost(place),
            JoinMessage::End => {}
            JoinMessage::Ping(sent_ms) => {
                let acts_for_ms = self.lease_until_ms.saturating_sub(now_ms);
                if let Some(reader) = self.readers.get_mut(&place)
                    && reader.conversation == conversation
                    && !reader.is_ended
                {
                    reader.lease.record_ping(now_ms);
                    send(
                        out,
                        place,
                        conversation,
                        JoinMessage::Pong(sent_ms, acts_for_ms),
                    );
                }
            }
            JoinMessage::ToOwner(messages) => {
                let last = self.reader_conversations.entry(place).or_insert(0);
                if *last < conversation {
                    *last = conversation;
                    self.reader_lost(place);
                    let mut lease = SubscriptionLease::new(0, PING_EVERY_MS, MARGIN_MS);
                    lease.begin(now_ms, TRUST_MS);
                    let reader = Reader {
                        conversation,
                        life: self.life,
                        lease,
                        is_ended: false,
                        waits: None,
                    };
                    self.readers.insert(place, reader);
                    if self.life == 0 {
                        self.end_reader(place, out);
                    }
                }
                let reader = self.readers.get(&place);
                let reader = reader.filter(|it| it.conversation == conversation && !it.is_ended);
                if let Some(reader) = reader {
                    assert_eq!(reader.life, self.life);
                    let exchange = &mut self.exchange;
                    messages
                        .into_iter()
                        .for_each(|it| exchange.receive(place, it));
                }
            }
        }
    }

    pub fn tick(&mut self, now_ms: u64, out: &mut Outputs<Wire>) {
        self.begin.append(&mut self.to_begin);
        for (owner, reading) in &mut self.reading {
            if let Some(sent_ms) = reading.lease.ping(now_ms) {
                send(
                    out,
                    *owner,
                    reading.conversation,
                    JoinMessage::Ping(sent_ms),
                );
            }
        }
        let (mut slow, mut gone) = (Vec::new(), Vec::new());
        for (place, reader) in &mut self.readers {
            let first = self.exchange.first_unacknowledged(*place);
            reader.waits = match (first, reader.waits) {
                (Some(first), Some((before, since))) if first == before => Some((first, since)),
                (first, _) => first.map(|first| (first, now_ms)),
            };
            if reader.is_ended {
                if now_ms >= reader.lease.forgotten_after_ms() {
                    gone.push(*place);
                }
            } else if reader
                .waits
                .is_some_and(|(_, since)| now_ms >= since + SLOW_MS)
            {
                slow.push(*place);
            }
        }
        slow.into_iter()
            .for_each(|place| self.end_reader(place, out));
        gone.into_iter().for_each(|place| self.reader_lost(place));
    }

    /// Applies the map, the state of replication and the outcomes of own changes. Releases slots of which no reader has rows.
    pub fn follow(
        &mut self,
        replication: &mut Replication,
        table: &Table,
        put: &mut Put,
        out: &mut Outputs<Wire>,
    ) {
        self.take_owners(replication, &put.events);
        for event in &put.events {
            match *event {
                ReplicationEvent::Opened(slot) => {
                    for key in 0..KEYS {
                        if let Some(value) = table.get(slot, &[b'k', key]) {
                            let adopted = self.engine.adopt(&row(slot, key), &value, None);
                            adopted.expect("it is of a table");
                        }
                    }
                }
                ReplicationEvent::Closed(slot) => {
                    self.withdrawn.remove(&slot);
                    for key in 0..KEYS {
                        self.engine.remove_unowned(&row(slot, key));
                    }
                }
                ReplicationEvent::MoveRequested(slot) => {
                    let export = self.exchange.withdraw(&[(slot, slot)]);
                    self.withdrawn.insert(slot, export);
                }
                ReplicationEvent::MoveCancelled(slot) => {
                    self.withdrawn.remove(&slot);
                }
                ReplicationEvent::Progress
                | ReplicationEvent::CopyMissing(_)
                | ReplicationEvent::OwnerBehind(_) => {}
            }
        }
        self.settle(replication, out);
        while self.exchange.step(&mut self.engine, 0, 64).more {}
        self.engine.take_changes();
        self.exchange.acknowledge(&self.engine);
        let exchange = &self.exchange;
        self.withdrawn.retain(|slot, export| {
            let is_forgotten = exchange.is_acknowledged(*export);
            if is_forgotten {
                replication.owner.complete_release(*slot, put);
            }
            !is_forgotten
        });
    }

    fn take_owners(&mut self, replication: &Replication, events: &[ReplicationEvent]) {
        let owner = &replication.owner;
        let has = |slot: u16| owner.is_owner(slot) && !owner.is_moving(slot);
        let real = |(slot, mapped): (&u16, &u16)| match *mapped {
            me if me == self.me && !has(*slot) => NO_OWNER,
            mapped => mapped,
        };
        let owners: Vec<u16> = SLOTS.iter().zip(&self.mapped).map(real).collect();
        let is_new = std::mem::take(&mut self.is_map_new);
        if is_new || owners != self.owners {
            let closed = events.iter().filter_map(|event| match event {
                ReplicationEvent::Closed(slot) => Some(*slot),
                _ => None,
            });
            let term = |slot| replication.replica.copy(slot).map_or(0, |copy| copy.term.0);
            let last = closed.map(term).max().unwrap_or(0);
            let epoch = if is_new {
                self.epoch
            } else {
                self.exchange.epoch().max(last)
            };
            let shard = shard(self.me, self.count, &owners);
            self.owners = owners;
            self.exchange.change_owners(&mut self.engine, shard, epoch);
        }
        let down: Vec<u16> = (self.reading.keys().copied())
            .filter(|place| !self.up.contains(place))
            .collect();
        down.into_iter().for_each(|place| self.owner_lost(place));
        let closed = |slot: u16| events.contains(&ReplicationEvent::Closed(slot));
        if events
            .iter()
            .any(|it| matches!(it, ReplicationEvent::Closed(_)))
        {
            self.engine.discard_computed_from(&closed);
        }
    }

    fn settle(&mut self, replication: &Replication, out: &mut Outputs<Wire>) {
        let before = self.unknown;
        while let Some(ticket) = self.waiting.front() {
            match replication.owner.outcome(ticket) {
                Outcome::Waiting => break,
                Outcome::Acknowledged => {}
                Outcome::Unknown => self.unknown += 1,
            }
            self.waiting.pop_front();
            self.settled += 1;
        }
        if self.unknown > before {
            for (_, place, _) in std::mem::take(&mut self.kept) {
                self.end_reader(place, out);
            }
        }
    }

    /// Sends the messages that are due, over the connections that exist.
    pub fn send(&mut self, now_ms: u64, connected: &BTreeSet<At>, out: &mut Outputs<Wire>) {
        let settled = self.settled;
        let free: Vec<_> = (self.kept.extract_if(.., |(upto, ..)| *upto <= settled)).collect();
        for (_, place, messages) in free {
            self.send_to_reader(place, messages, out);
        }
        let me = self.me;
        for place in (0..self.count).filter(|place| *place != me) {
            let is_connected = connected.contains(&At(usize::from(place) + 1));
            if !is_connected || !self.up.contains(&place) || self.to_begin.contains(&place) {
                continue;
            }
            let messages = self.exchange.drain_outgoing(place);
            let (of_owner, of_reader): (Vec<_>, Vec<_>) =
                messages.into_iter().partition(EngineMessage::is_from_owner);
            if !of_owner.is_empty() {
                if self.settled < self.executed {
                    self.kept.push((self.executed, place, of_owner))
                } else {
                    self.send_to_reader(place, of_owner, out)
                }
            }
            let begins = self.begin.remove(&place);
            if !of_reader.is_empty() || begins {
                self.send_to_owner(now_ms, place, of_reader, out);
            }
        }
    }

    fn send_to_reader(
        &mut self,
        place: u16,
        mut messages: Vec<EngineMessage>,
        out: &mut Outputs<Wire>,
    ) {
        if self.bug == PlantedBug::LosesChanges {
            let sent = &mut self.sent_changes;
            messages.retain(|message| {
                let is_change = matches!(message, EngineMessage::Changes { .. });
                *sent += u64::from(is_change);
                !(is_change && sent.is_multiple_of(4))
            });
        }
        if let Some(reader) = self.readers.get(&place).filter(|it| !it.is_ended) {
            send(
                out,
                place,
                reader.conversation,
                JoinMessage::ToReader(messages),
            );
        }
    }

    fn send_to_owner(
        &mut self,
        now_ms: u64,
        place: u16,
        messages: Vec<EngineMessage>,
        out: &mut Outputs<Wire>,
    ) {
        let conversations = &mut self.conversations;
        let reading = self.reading.entry(place).or_insert_with(|| {
            *conversations += 1;
            let mut lease = SubscriptionLease::new(TRUST_MS, PING_EVERY_MS, MARGIN_MS);
            lease.begin(now_ms, 0);
            Reading {
                conversation: *conversations,
                lease,
                has_rows: false,
            }
        });
        send(
            out,
            place,
            reading.conversation,
            JoinMessage::ToOwner(messages),
        );
        if let Some(sent_ms) = reading.lease.ping(now_ms) {
            send(out, place, reading.conversation, JoinMessage::Ping(sent_ms));
        }
    }
}

fn send(out: &mut Outputs<Wire>, place: u16, conversation: u64, message: JoinMessage) {
    let to = At(usize::from(place) + 1);
    out.push(Output::Send(to, Wire::Join(conversation, message)));
}
