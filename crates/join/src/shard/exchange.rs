//! The exchange: messages between engines that each own a part of the tables. Messages are arguments and return values.
//!
//! ```text
//!   reader's shard                          owner's shard
//!   fill lacks post|bob|  ── Request ─────► rows of the range, in chunks; each chunk's part is subscribed when it is sent
//!   supply_replicas       ◄──── Supply ──
//!                         ◄──── Changes ──  put post|bob|17: the writer waits ...
//!   apply_replica, fan-out ─ Ack ─────────► ... until all subscribers reflect it
//!                         ── Processed ───► limits the number of chunks in flight
//!   evict_replicas        ── Unsubscribe ─►
//! ```
//!
//! A *conversation* is the message stream between a reader and an owner, from its start until it is reset.
//! 1. Messages from one shard to another arrive in the order in which they were sent. The `Supply` and `Changes`
//!    messages of an owner are therefore consistent.
//! 2. Only base rows are sent. A row is computed where it is read, from local base rows and replicas. An owner
//!    therefore has every requested row, no shard waits for another's fill, and there are no deadlocks.
//! 3. A change is acknowledged when all outputs of its receiver reflect it. It is not forwarded.
//! 4. Changes of dropped ranges and rows that are no longer needed may arrive and are ignored.
//! 5. Before an owner gives slots away, it announces this ([`Exchange::withdraw`]): readers of their rows drop them
//!    with what they computed, and acknowledge that like a change.
//! 6. Ownership may change while the shards run, and shards learn of it at different times. Ownership therefore has an
//!    *epoch*, which requests and their answers carry. Messages of a later epoch wait until this shard reaches it;
//!    messages of an earlier one are ignored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Bound, ControlFlow};

use crate::base::key_range::KeyRange;
use crate::base::owner::{NO_OWNER, Owner, Shard, range_slot};
use crate::base::range_set::RangeSet;
use crate::engine::Engine;
use crate::evaluate::reads::OwnRowsOutcome;
use crate::shard::parts::{NoParts, PartRequest, Parts, part_change};
use crate::tables::log::LogEntry;

/// Maximum rows and bytes of one `Supply`.
const CHUNK_ROWS: u64 = 2048;
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum number of chunks in flight to one receiver, which bounds memory for ranges of any size.
pub(super) const CHUNKS_IN_FLIGHT_MAX: usize = 4;
/// Maximum number of these that are chunks of parts, so that reads of joins do not wait behind them.
pub(super) const PART_CHUNKS_IN_FLIGHT_MAX: usize = 2;
/// Weight of a part's row in a step: its insertion into indexes takes this many times as long as a row of a join.
pub(super) const PART_ROW_WEIGHT: usize = 128;
/// Weight of a chunk in a step, besides its rows.
pub(super) const CHUNK_WEIGHT: usize = 16;

type Bytes = Box<[u8]>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineMessage {
    /// To an owner: requests the rows of a range, and all their later changes.
    Request {
        range: KeyRange,
        epoch: u64,
    },
    Unsubscribe(KeyRange),
    /// From an owner: all its rows in a part of a requested range.
    Supply {
        range: KeyRange,
        rows: Vec<(Bytes, Bytes)>,
        epoch: u64,
    },
    /// From an owner: rows with their new values; `None` for removed rows.
    Changes {
        rows: VecDeque<(Bytes, Option<Bytes>)>,
        mark: u64,
        /// True if the rows are the changes of one transaction, between which nothing is read.
        atomic: bool,
    },
    /// From an owner: no further changes of rows in these slots (first and last of each run) follow, and the reader
    /// must drop them.
    Withdraw {
        slots: Vec<(u16, u16)>,
        mark: u64,
    },
    /// From an owner: the request was ignored, because it is of an earlier epoch than this one.
    EpochTooOld(u64),
    /// To an owner: requests rows that are selected by their content (see `parts`), and all their later changes.
    /// Replaces an earlier request with the same number.
    RequestPart {
        number: u32,
        part: Bytes,
        epoch: u64,
    },
    EndPart(u32),
    /// From an owner: rows of a part. `is_last` marks the last of them.
    SupplyPart {
        number: u32,
        part: Bytes,
        rows: Vec<(Bytes, Bytes)>,
        is_last: bool,
        epoch: u64,
    },
    /// To an owner: all changes up to this mark are reflected.
    Ack(u64),
    /// To an owner: a `Supply` was processed.
    Processed,
}

impl EngineMessage {
    /// Returns whether an owner sends this message to a reader, and not the reverse.
    pub fn is_from_owner(&self) -> bool {
        matches!(
            self,
            EngineMessage::Supply { .. }
                | EngineMessage::SupplyPart { .. }
                | EngineMessage::Changes { .. }
                | EngineMessage::Withdraw { .. }
                | EngineMessage::EpochTooOld(_)
        )
    }

    fn epoch(&self) -> Option<u64> {
        match self {
            EngineMessage::Request { epoch, .. }
            | EngineMessage::RequestPart { epoch, .. }
            | EngineMessage::Supply { epoch, .. }
            | EngineMessage::SupplyPart { epoch, .. } => Some(*epoch),
            _ => None,
        }
    }
}

/// One shard's side of all conversations.
pub struct Exchange {
    pub(super) shard: Shard,
    /// The epoch of ownership.
    epoch: u64,
    pub(super) peers: Vec<Peer>,
    /// The last change that was sent to any reader.
    sequence: u64,
    pub(super) turn: usize,
    pub(super) chunk_rows: u64,
    /// True if the pace of parts is controlled by [`Exchange::release_part_chunk`].
    pub(super) is_paced: bool,
    /// Set if rows with unacknowledged changes must be tracked.
    in_flight: Option<InFlightChanges>,
    /// Readers whose conversations have ended, of which the parts have not been notified.
    lost_readers: Vec<u16>,
}

/// Changes that were sent and not acknowledged by all: the last change of each row, and all changes in order.
#[derive(Default)]
struct InFlightChanges {
    last: BTreeMap<Bytes, u64>,
    order: VecDeque<(u64, Bytes)>,
}

impl InFlightChanges {
    fn record(&mut self, key: &[u8], sequence: u64) {
        self.last.insert(key.into(), sequence);
        self.order.push_back((sequence, key.into()));
    }

    /// Removes the changes before `sequence`, which all have acknowledged.
    fn remove_before(&mut self, sequence: u64) {
        while let Some((first, _)) = self.order.front()
            && *first < sequence
        {
            let (first, key) = self.order.pop_front().expect("checked above");
            if self.last.get(&key) == Some(&first) {
                self.last.remove(&key);
            }
        }
    }
}

/// The conversations with another shard: one in which it is the owner, and one in which it is the reader. They are
/// independent and end separately.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) owner: OwnerSide,
    pub(super) reader: ReaderSide,
}

/// Another shard as the owner of rows that this shard reads.
#[derive(Default)]
pub(super) struct OwnerSide {
    pub(super) out: Vec<EngineMessage>,
    inbox: VecDeque<EngineMessage>,
    /// Requested ranges that have not arrived.
    requested: RangeSet,
    /// Processed chunks of parts that were not confirmed yet. The owner limits their number.
    pub(super) unconfirmed_chunks: usize,
    /// The latest epoch that the owner has announced.
    epoch: u64,
    /// Marks of changes that wait for a fan-out of this engine.
    to_ack: VecDeque<(u64, u64)>,
}

/// Another shard as the reader of rows that this shard owns.
#[derive(Default)]
pub(super) struct ReaderSide {
    pub(super) out: Vec<EngineMessage>,
    /// True if the last message accepts more rows of the same transaction.
    is_open: bool,
    inbox: VecDeque<EngineMessage>,
    /// Ranges whose changes it receives.
    subscribed: RangeSet,
    /// Requested ranges that were not sent yet.
    pending_requests: VecDeque<KeyRange>,
    /// The parts whose changes it receives, by number, and those that were not completely sent.
    pub(super) parts: BTreeSet<u32>,
    pub(super) pending_parts: VecDeque<PartRequest>,
    /// Chunks that it has not processed.
    pub(super) chunks_in_flight: usize,
    /// First and last change of each message that it has not acknowledged.
    outstanding: VecDeque<(u64, u64)>,
    /// Set if the reader has not yet dropped the rows of the previous conversation: the mark with which it acknowledges
    /// that.
    reset_barrier: Option<u64>,
}

/// The outcome of a step.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// True if there is more to do immediately.
    pub more: bool,
    /// True if rows were supplied, or certainly will not be, so that waiting reads must be retried.
    pub supplied: bool,
}

impl Exchange {
    pub fn new(shard: Shard) -> Self {
        Exchange {
            peers: (0..shard.count).map(|_| Peer::default()).collect(),
            shard,
            epoch: 0,
            sequence: 0,
            turn: 0,
            chunk_rows: CHUNK_ROWS,
            is_paced: false,
            in_flight: None,
            lost_readers: Vec::new(),
        }
    }

    /// Sets the maximum number of rows of one `Supply`.
    pub fn set_chunk_rows(&mut self, rows: u64) {
        self.chunk_rows = rows.max(1);
    }

    /// Enables [`Exchange::last_in_flight`].
    pub fn track_in_flight(&mut self) {
        self.in_flight.get_or_insert_default();
    }

    /// Returns the last change of a row that was sent and may not be acknowledged by all readers.
    pub fn last_in_flight(&self, key: &[u8]) -> Option<u64> {
        self.in_flight.as_ref()?.last.get(key).copied()
    }

    /// As [`Exchange::last_in_flight`], for all rows of a range.
    pub fn last_in_flight_in(&self, lo: &[u8], hi: &[u8]) -> Option<u64> {
        let last = &self.in_flight.as_ref()?.last;
        if last.is_empty() || lo >= hi {
            return None;
        }
        let range = (Bound::Included(lo), Bound::Excluded(hi));
        last.range::<[u8], _>(range).map(|(_, told)| *told).max()
    }

    /// Removes the changes that all readers have acknowledged.
    fn prune_in_flight(&mut self) {
        let Some(told) = self
            .in_flight
            .as_mut()
            .filter(|told| !told.order.is_empty())
        else {
            return;
        };
        let first = (self.peers.iter()).filter_map(|peer| peer.reader.first_unacknowledged());
        told.remove_before(first.min().unwrap_or(u64::MAX));
    }

    /// Returns the first change that a reader has not acknowledged.
    pub fn first_unacknowledged(&self, reader: u16) -> Option<u64> {
        self.peers
            .get(usize::from(reader))?
            .reader
            .first_unacknowledged()
    }

    /// Changes the owners to those of `shard`, as of `epoch` (see [`Engine::change_owners`]). Reads that wait for rows
    /// must be retried.
    pub fn change_owners(&mut self, engine: &mut Engine, shard: Shard, epoch: u64) {
        engine.change_owners(shard.clone());
        let peers = self.peers.len().max(usize::from(shard.count));
        self.peers.resize_with(peers, Peer::default);
        (self.shard, self.epoch) = (shard, epoch);
        self.unsubscribe(engine);
        for peer in &mut self.peers {
            // The answers will be of an earlier epoch and ignored; reads that still need them request them again.
            peer.owner.requested = RangeSet::default();
            // The requests are of an earlier epoch too; their senders repeat them.
            peer.reader.pending_requests.clear();
            peer.reader.pending_parts.clear();
        }
    }

    /// Handles the end of a conversation with an owner: its rows may be stale, and are dropped with what was computed
    /// from them. Reads that wait for its rows must be retried.
    pub fn handle_owner_loss(&mut self, engine: &mut Engine, owner: u16) {
        engine.discard_owner(owner);
        let _ = engine.take_unsubscribed();
        if let Some(peer) = self.peers.get_mut(usize::from(owner)) {
            peer.owner = OwnerSide::default();
        }
    }

    /// Handles the end of a conversation with a reader that knows of it, and has dropped the rows.
    pub fn handle_reader_loss(&mut self, reader: u16) {
        if let Some(peer) = self.peers.get_mut(usize::from(reader)) {
            peer.reader = ReaderSide::default();
            self.lost_readers.push(reader);
        }
    }

    /// Ends a conversation with a reader that does not know of it yet; [`Exchange::handle_owner_end`] must be called
    /// there. With its acknowledgement of the returned mark, the reader acknowledges all earlier changes. Later changes
    /// wait for it too, because the reader may still show older rows.
    pub fn end_reader(&mut self, reader: u16) -> u64 {
        self.sequence += 1;
        let upto = self.sequence;
        if let Some(peer) = self.peers.get_mut(usize::from(reader)) {
            let first = peer.reader.first_unacknowledged().unwrap_or(upto);
            peer.reader = ReaderSide::default();
            // One wait covers all outstanding changes.
            peer.reader.outstanding.push_back((first, upto));
            peer.reader.reset_barrier = Some(upto);
        }
        upto
    }

    /// As [`Exchange::handle_owner_loss`], if the owner waits for an acknowledgement of the end.
    pub fn handle_owner_end(&mut self, engine: &mut Engine, owner: u16, upto: u64) {
        self.handle_owner_loss(engine, owner);
        if let Some(peer) = self.peers.get_mut(usize::from(owner)) {
            peer.owner.out.push(EngineMessage::Ack(upto));
        }
    }

    /// Requests the rows that a read needs from other owners (see [`Needs`](crate::Needs)).
    pub fn request(&mut self, engine: &mut Engine, needed: &[(u16, KeyRange)]) {
        self.unsubscribe(engine);
        for (owner, range) in needed {
            let Some(peer) = self.peers.get_mut(usize::from(*owner)) else {
                continue;
            };
            let owner = &mut peer.owner;
            for range in owner.requested.gaps(range) {
                owner.requested.insert(&range);
                let epoch = self.epoch;
                owner.out.push(EngineMessage::Request { range, epoch });
            }
        }
    }

    /// Returns whether rows of any of these ranges are outstanding.
    pub fn is_requested(&self, ranges: &[(u16, KeyRange)]) -> bool {
        let is_asked = |(owner, range): &(u16, KeyRange)| {
            let peer = self.peers.get(usize::from(*owner));
            peer.is_some_and(|peer| peer.owner.requested.overlaps(range))
        };
        ranges.iter().any(is_asked)
    }

    /// Returns whether this owner is in a later epoch. It answers when this shard has reached that epoch too.
    pub fn is_epoch_behind(&self, owner: u16) -> bool {
        let peer = self.peers.get(usize::from(owner));
        peer.is_some_and(|peer| peer.owner.epoch > self.epoch)
    }

    /// Sends changes of own rows to readers. The engine has applied them; they are in order. The changes of a
    /// transaction (`whole`) become visible together.
    pub fn export(&mut self, changes: &[LogEntry], atomic: bool) {
        if !changes.is_empty()
            && self
                .peers
                .iter()
                .any(|peer| peer.reader.reset_barrier.is_some())
        {
            self.sequence += 1;
        }
        for change in changes {
            let (key, value) = match change {
                LogEntry::Put { key, value } => (key, Some(value)),
                LogEntry::Remove { key } => (key, None),
                _ => continue,
            };
            let is_subscribed = |peer: &Peer| peer.reader.subscribed.contains(key);
            if !self.peers.iter().any(is_subscribed) {
                continue;
            }
            self.begin_change(key);
            for peer in self.peers.iter_mut().filter(|peer| is_subscribed(peer)) {
                let row = (Bytes::from(&**key), value.map(|v| Bytes::from(&**v)));
                peer.reader.queue_change(row, self.sequence, atomic);
            }
        }
        self.end_transaction();
    }

    /// Ends a transaction: later changes belong to another one.
    pub fn end_transaction(&mut self) {
        for peer in &mut self.peers {
            peer.reader.is_open = false;
        }
    }

    /// Announces that slots will be given away: readers of their rows must drop them. No shard can read these rows
    /// again before the owners change ([`Exchange::change_owners`]). Returns the mark that all readers must
    /// acknowledge; see [`Exchange::is_acknowledged`].
    pub fn withdraw(&mut self, slots: &[(u16, u16)]) -> u64 {
        let has = |slot: u16| slots.iter().any(|(lo, hi)| (*lo..=*hi).contains(&slot));
        self.sequence += 1;
        for peer in &mut self.peers {
            let reader = &mut peer.reader;
            // A reader with a range over many slots drops the complete range, and unsubscribes from it.
            let is_hit = |range: &KeyRange| range_slot(&range.lo, &range.hi).is_none_or(has);
            let hit: Vec<KeyRange> = reader.subscribed.ranges().filter(is_hit).collect();
            if hit.is_empty() && reader.parts.is_empty() {
                continue;
            }
            for range in hit {
                if range_slot(&range.lo, &range.hi).is_some() {
                    reader.subscribed.remove(&range);
                }
            }
            let mark = self.sequence;
            reader.outstanding.push_back((mark, mark));
            let slots = slots.to_vec();
            reader.out.push(EngineMessage::Withdraw { slots, mark });
            reader.is_open = false;
        }
        self.sequence
    }

    /// Numbers a change of this row, which is about to be sent.
    pub(super) fn begin_change(&mut self, key: &[u8]) {
        self.sequence += 1;
        if let Some(told) = &mut self.in_flight {
            told.record(key, self.sequence);
        }
    }

    /// Returns the last change that was sent, to wait for.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns whether all readers reflect the changes up to this one.
    pub fn is_acknowledged(&self, sequence: u64) -> bool {
        self.is_acknowledged_by_first(self.peers.len(), sequence)
    }

    /// As [`Exchange::is_acknowledged`], for the first `count` shards only.
    pub fn is_acknowledged_by_first(&self, count: usize, sequence: u64) -> bool {
        let waits = |peer: &Peer| {
            let first = peer.reader.first_unacknowledged();
            first.is_some_and(|first| first <= sequence)
        };
        !self.peers.iter().take(count).any(waits)
    }

    /// Receives a message; [`Exchange::step`] processes it.
    pub fn receive(&mut self, from: u16, message: EngineMessage) {
        let peer = &mut self.peers[usize::from(from)];
        if message.is_from_owner() {
            peer.owner.inbox.push_back(message)
        } else {
            peer.reader.inbox.push_back(message)
        }
    }

    /// Acknowledges changes that all outputs now reflect. Must also be called after long fan-outs have progressed.
    pub fn acknowledge(&mut self, engine: &Engine) {
        let owners = self.peers.iter_mut().map(|peer| &mut peer.owner);
        owners.for_each(|owner| owner.acknowledge(engine));
    }

    /// Returns whether messages have not been processed yet.
    pub fn has_unprocessed(&self) -> bool {
        let is_left = |peer: &Peer| !peer.owner.inbox.is_empty() || !peer.reader.inbox.is_empty();
        self.peers.iter().any(is_left)
    }

    /// Returns the messages to a shard in order: those to it as an owner, then those to it as a reader.
    pub fn drain_outgoing(&mut self, to: u16) -> Vec<EngineMessage> {
        let peer = &mut self.peers[usize::from(to)];
        let mut out = std::mem::take(&mut peer.owner.out);
        if out.is_empty() {
            std::mem::take(&mut peer.reader.out)
        } else {
            out.append(&mut peer.reader.out);
            out
        }
    }

    /// Processes received messages, up to about `budget` rows. The caller must log and export the engine's changes
    /// before any other operation.
    pub fn step(&mut self, engine: &mut Engine, now: u64, budget: usize) -> Progress {
        self.step_with(engine, &mut NoParts, now, budget)
    }

    /// As [`Exchange::step`], with parts.
    pub fn step_with(
        &mut self,
        engine: &mut Engine,
        parts: &mut dyn Parts,
        now: u64,
        mut budget: usize,
    ) -> Progress {
        let mut progress = Progress::default();
        let lost = std::mem::take(&mut self.lost_readers).into_iter();
        lost.for_each(|reader| parts.handle_reader_loss(reader));
        // Another peer is first in each step, so that none is starved.
        self.turn = (self.turn + 1) % self.peers.len();
        for at in (self.turn..self.peers.len()).chain(0..self.turn) {
            while budget > 0
                && let Some(message) = pop_due(&mut self.peers[at].owner.inbox, self.epoch)
            {
                let spent = match self.handle_part_message(at, message, parts) {
                    Ok(spent) => spent,
                    Err(message) => {
                        let room = (now, budget);
                        self.handle_owner_message(engine, parts, at, message, room, &mut progress)
                    }
                };
                budget = budget.saturating_sub(spent);
            }
            while budget > 0
                && let Some(message) = pop_due(&mut self.peers[at].reader.inbox, self.epoch)
            {
                if let Err(message) = self.handle_part_message(at, message, parts) {
                    self.handle_reader_message(at, message);
                }
                budget -= 1;
            }
            while budget > 0
                && let Some(next) = next_ready_request(&self.shard, &self.peers[at].reader)
                && let Some(range) = self.peers[at].reader.pending_requests.remove(next)
            {
                let spent = self.send_chunk(engine, at, range, now);
                budget = budget.saturating_sub(spent);
            }
            while budget > 0
                && let Some(spent) = self.send_part_chunk(engine, at, parts)
            {
                budget = budget.saturating_sub(spent);
                progress.more = budget == 0;
            }
        }
        self.prune_in_flight();
        self.acknowledge(engine);
        self.unsubscribe(engine);
        let epoch = self.epoch;
        let waits = |peer: &Peer| {
            is_due(&peer.owner.inbox, epoch)
                || is_due(&peer.reader.inbox, epoch)
                || next_ready_request(&self.shard, &peer.reader).is_some()
        };
        progress.more |= self.peers.iter().any(waits);
        progress
    }

    /// Processes an owner's message. Returns the number of rows processed.
    fn handle_owner_message(
        &mut self,
        engine: &mut Engine,
        parts: &mut dyn Parts,
        from: usize,
        message: EngineMessage,
        (now, budget): (u64, usize),
        progress: &mut Progress,
    ) -> usize {
        let owner = &mut self.peers[from].owner;
        match message {
            EngineMessage::Supply { range, rows, epoch } => {
                owner.out.push(EngineMessage::Processed);
                if epoch < self.epoch {
                    return 1;
                }
                let spent = rows.len() + CHUNK_WEIGHT;
                owner.requested.remove(&range);
                progress.supplied = true;
                if !engine.supply_replicas(from as u16, &range, rows.into_iter()) {
                    owner.out.push(EngineMessage::Unsubscribe(range));
                }
                spent
            }
            EngineMessage::Changes {
                mut rows,
                mark,
                atomic: whole,
            } => {
                let mut spent = 0;
                while let Some((key, value)) = rows.pop_front() {
                    spent += 1;
                    match part_change(&key) {
                        Some((number, key)) => {
                            parts.change(&self.shard, from as u16, number, key, value.as_deref());
                            spent += PART_ROW_WEIGHT;
                        }
                        None => {
                            let _ = engine.apply_replica(from as u16, &key, value.as_deref(), now);
                            spent += engine.outputs_updated();
                        }
                    }
                    if spent >= budget && !whole && !rows.is_empty() {
                        // The rest is next; the whole message is acknowledged at its end.
                        let rest = EngineMessage::Changes {
                            rows,
                            mark,
                            atomic: whole,
                        };
                        owner.inbox.push_front(rest);
                        return spent;
                    }
                }
                owner.to_ack.push_back((mark, engine.last_change()));
                spent
            }
            EngineMessage::Withdraw { slots, mark } => {
                parts.withdraw(&slots);
                engine.discard_computed_from(&|slot| {
                    slots.iter().any(|(lo, hi)| (*lo..=*hi).contains(&slot))
                });
                owner.to_ack.push_back((mark, engine.last_change()));
                CHUNK_WEIGHT
            }
            EngineMessage::EpochTooOld(epoch) => {
                owner.epoch = owner.epoch.max(epoch);
                1
            }
            _ => 1,
        }
    }

    /// Processes a reader's message.
    fn handle_reader_message(&mut self, from: usize, message: EngineMessage) {
        let reader = &mut self.peers[from].reader;
        match message {
            EngineMessage::Request { epoch, .. } if epoch < self.epoch => {
                reader.out.push(EngineMessage::EpochTooOld(self.epoch));
            }
            EngineMessage::Request { range, .. } => reader.pending_requests.push_back(range),
            EngineMessage::Unsubscribe(range) => reader.subscribed.remove(&range),
            EngineMessage::Processed => {
                reader.chunks_in_flight = reader.chunks_in_flight.saturating_sub(1)
            }
            EngineMessage::Ack(mark) => {
                let outstanding = &mut reader.outstanding;
                while outstanding.front().is_some_and(|(_, last)| *last <= mark) {
                    outstanding.pop_front();
                }
                reader.reset_barrier = reader.reset_barrier.filter(|upto| *upto > mark);
            }
            _ => {}
        }
    }

    /// Sends a chunk of a requested range. Returns its weight, which exceeds every budget if the rest must wait for the
    /// next turn.
    fn send_chunk(&mut self, engine: &mut Engine, to: usize, range: KeyRange, now: u64) -> usize {
        let mut rows: Vec<(Bytes, Bytes)> = Vec::new();
        let mut bytes = 0;
        let given = engine.read_own_rows(&range, self.chunk_rows, now, &mut |key, value| {
            rows.push((key.into(), value.into()));
            bytes += key.len() + value.len();
            if bytes < CHUNK_BYTES {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        let reader = &mut self.peers[to].reader;
        if given == OwnRowsOutcome::ExpireFirst {
            reader.pending_requests.push_front(range);
            return usize::MAX;
        }
        let is_all = (rows.len() as u64) < self.chunk_rows && bytes < CHUNK_BYTES;
        let mut part = range.clone();
        if let (false, Some((last, _))) = (is_all, rows.last()) {
            part.hi = KeyRange::point(last).hi.min(range.hi.clone());
            let rest = KeyRange::new(&part.hi, &range.hi);
            if !rest.is_empty() {
                reader.pending_requests.push_front(rest);
            }
        }
        reader.subscribed.insert(&part);
        let spent = rows.len() + CHUNK_WEIGHT;
        reader.chunks_in_flight += 1;
        let (range, epoch) = (part, self.epoch);
        reader
            .out
            .push(EngineMessage::Supply { range, rows, epoch });
        spent
    }

    fn unsubscribe(&mut self, engine: &mut Engine) {
        for (owner, range) in engine.take_unsubscribed() {
            if let Some(peer) = self.peers.get_mut(usize::from(owner)) {
                peer.owner.out.push(EngineMessage::Unsubscribe(range));
            }
        }
    }

    /// Returns the epoch of ownership.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn shard(&self) -> &Shard {
        &self.shard
    }
}

/// Returns the next message, unless it is of a future epoch.
fn pop_due(inbox: &mut VecDeque<EngineMessage>, epoch: u64) -> Option<EngineMessage> {
    if is_due(inbox, epoch) {
        inbox.pop_front()
    } else {
        None
    }
}

fn is_due(inbox: &VecDeque<EngineMessage>, epoch: u64) -> bool {
    let first = inbox.front();
    first.is_some_and(|first| first.epoch().is_none_or(|of| of <= epoch))
}

/// Returns the next request that can be answered. A shard does not answer for rows that others believe it owns but that
/// it does not have yet, or no longer has: an empty answer would be wrong, and the reader would not be notified when
/// the rows arrive.
fn next_ready_request(shard: &Shard, reader: &ReaderSide) -> Option<usize> {
    let is_here = |range: &KeyRange| match shard.owner_of_range(&range.lo, &range.hi) {
        // The rest of a range over several columns may be a column of another owner. It is answered too.
        Owner::One(owner) => owner != NO_OWNER,
        Owner::All => shard.owners().all(|owner| owner != NO_OWNER),
    };
    if reader.chunks_in_flight < CHUNKS_IN_FLIGHT_MAX {
        reader.pending_requests.iter().position(is_here)
    } else {
        None
    }
}

impl ReaderSide {
    fn first_unacknowledged(&self) -> Option<u64> {
        self.outstanding.front().map(|(first, _)| *first)
    }

    pub(super) fn queue_change(
        &mut self,
        row: (Bytes, Option<Bytes>),
        sequence: u64,
        is_whole: bool,
    ) {
        // Changes of a transaction are not combined with others.
        if let (
            Some(EngineMessage::Changes {
                rows,
                mark,
                atomic: whole,
            }),
            Some(last),
        ) = (self.out.last_mut(), self.outstanding.back_mut())
            && *whole == is_whole
            && (self.is_open || !is_whole)
        {
            rows.push_back(row);
            *mark = sequence;
            last.1 = sequence;
            return;
        }
        self.outstanding.push_back((sequence, sequence));
        self.out.push(EngineMessage::Changes {
            rows: VecDeque::from([row]),
            mark: sequence,
            atomic: is_whole,
        });
        self.is_open = true;
    }
}

impl OwnerSide {
    fn acknowledge(&mut self, engine: &Engine) {
        let mut done = None;
        while let Some((mark, change)) = self.to_ack.front()
            && engine.is_done(*change)
        {
            done = Some(*mark);
            self.to_ack.pop_front();
        }
        self.out.extend(done.map(EngineMessage::Ack));
    }
}
