//! Exchange: what engines that each own a part of the tables say to one another. Messages come in and go out as values.
//!
//! ```text
//!   reader's shard                          owner's shard
//!   fill lacks post|bob|  ── Ask ─────────► rows of the range, in chunks; from each chunk on the range is subscribed
//!   supply_replicas       ◄──── Supply ──
//!                         ◄──── Changes ──  put post|bob|17: the writer waits ...
//!   apply_replica, fan-out ─ Ack ─────────► ... until all who have the range reflect it
//!                         ── Taken ───────► so many chunks are on their way, and no more
//!   evict_replicas        ── Unsubscribe ─►
//! ```
//!
//! 1. Messages from one shard to another arrive in the order in which they were sent: so `Supply` and `Changes` of one
//!    owner tell one story.
//! 2. Only base rows travel. A computed row is computed where it is read, from base rows that are there. So an owner
//!    always has what it is asked for, no shard waits for another's fill, and no two wait for each other.
//! 3. A change is acknowledged when all outputs of its receiver reflect it, and is told to nobody else.
//! 4. A change may be told of a range that is not there any more, and rows supplied that nobody wants: both do no harm.
//! 5. An owner that is to give slots away says so first ([`Exchange::withdraw`]): whoever read their rows forgets them with what it
//!    computed, and acknowledges that as it does a change.
//! 6. Who owns what may change while the shards run, and not all learn of it at the same moment. So it has an *epoch*, which questions
//!    and answers carry: what is of a later epoch waits until this shard is in it, what is of an earlier one counts as not said.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Bound, ControlFlow};

use crate::base::key_range::KeyRange;
use crate::base::owner::{NOBODY, Owner, Shard, range_slot};
use crate::base::spans::Spans;
use crate::engine::Engine;
use crate::evaluate::reads::OwnRows;
use crate::shard::parts::{NoParts, PartAnswer, Parts, part_change};
use crate::tables::log::LogEntry;

/// Rows and bytes of one `Supply`.
const CHUNK_ROWS: u64 = 2048;
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks for one receiver that may be on their way: memory is bounded, however large a range is.
pub(super) const CHUNKS_ON_WAY: usize = 4;
/// Of them, those of parts at most, so that what reads of a join wait for is not behind them.
pub(super) const PARTS_ON_WAY: usize = 2;
/// What a row of a part weighs in a step: it is put into indexes, which takes so many times what a row of a join takes.
pub(super) const PART_ROW_WEIGHT: usize = 128;
/// What a chunk weighs in a step, beside its rows.
pub(super) const CHUNK_WEIGHT: usize = 16;

type Bytes = Box<[u8]>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineMessage {
    /// To an owner: the rows of a range, and all their changes from then on.
    Ask {
        range: KeyRange,
        epoch: u64,
    },
    Unsubscribe(KeyRange),
    /// From an owner: all rows that it has of a part of what was asked for.
    Supply {
        range: KeyRange,
        rows: Vec<(Bytes, Bytes)>,
        epoch: u64,
    },
    /// From an owner: rows that have a new value, or none any more.
    Changes {
        rows: VecDeque<(Bytes, Option<Bytes>)>,
        mark: u64,
        /// They are one transaction's: nothing is read in between.
        whole: bool,
    },
    /// From an owner: nothing more is told of rows in these slots (first and last of each run), and what is there of them is to be forgotten.
    Withdraw {
        slots: Vec<(u16, u16)>,
        mark: u64,
    },
    /// From an owner: the question counts for nothing, since it is of an epoch before this one.
    Later(u64),
    /// To an owner: rows that are wanted by what is in them (see `parts`), and all their changes from then on. What the same number asked for before
    /// is wanted no more.
    AskPart {
        number: u32,
        part: Bytes,
        epoch: u64,
    },
    EndPart(u32),
    /// From an owner: rows of a part. The last of them come with `is_last`.
    SupplyPart {
        number: u32,
        part: Bytes,
        rows: Vec<(Bytes, Bytes)>,
        is_last: bool,
        epoch: u64,
    },
    /// To an owner: all changes up to this mark are reflected.
    Ack(u64),
    /// To an owner: a `Supply` was taken in.
    Taken,
}

impl EngineMessage {
    /// Whether it is the owner of rows who says this, to who reads them.
    pub fn is_of_owner(&self) -> bool {
        matches!(
            self,
            EngineMessage::Supply { .. }
                | EngineMessage::SupplyPart { .. }
                | EngineMessage::Changes { .. }
                | EngineMessage::Withdraw { .. }
                | EngineMessage::Later(_)
        )
    }

    fn epoch(&self) -> Option<u64> {
        match self {
            EngineMessage::Ask { epoch, .. }
            | EngineMessage::AskPart { epoch, .. }
            | EngineMessage::Supply { epoch, .. }
            | EngineMessage::SupplyPart { epoch, .. } => Some(*epoch),
            _ => None,
        }
    }
}

/// One shard's end of all conversations.
pub struct Exchange {
    pub(super) shard: Shard,
    /// Of who owns what.
    epoch: u64,
    pub(super) peers: Vec<Peer>,
    /// The last change that was told to anybody.
    sequence: u64,
    pub(super) turn: usize,
    pub(super) chunk_rows: u64,
    /// Parts come as fast as [`Exchange::take_part`] lets them.
    pub(super) is_paced: bool,
    /// Where it is to be known which rows have changes that are not acknowledged.
    told: Option<Told>,
    /// Readers whose conversation has ended, which parts are yet to be told.
    lost_readers: Vec<u16>,
}

/// Changes that were told and that not all acknowledge yet: the last of each row, and all in their order.
#[derive(Default)]
struct Told {
    last: BTreeMap<Bytes, u64>,
    order: VecDeque<(u64, Bytes)>,
}

impl Told {
    fn note(&mut self, key: &[u8], sequence: u64) {
        self.last.insert(key.into(), sequence);
        self.order.push_back((sequence, key.into()));
    }

    /// All before this one are acknowledged.
    fn forget_before(&mut self, sequence: u64) {
        while let Some((told, _)) = self.order.front()
            && *told < sequence
        {
            let (told, key) = self.order.pop_front().expect("just seen");
            if self.last.get(&key) == Some(&told) {
                self.last.remove(&key);
            }
        }
    }
}

/// The conversations with another shard: one in which it is the owner, and one in which it is the reader. Neither relies on the
/// other, and each ends by itself.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) owner: OwnerSide,
    pub(super) reader: ReaderSide,
}

/// Another shard as the owner of rows that are read here.
#[derive(Default)]
pub(super) struct OwnerSide {
    pub(super) out: Vec<EngineMessage>,
    inbox: VecDeque<EngineMessage>,
    /// What it was asked for and has yet to give.
    asked: Spans,
    /// Chunks of parts that were taken in, and that it has yet to be told of: until then it sends no more than a few.
    pub(super) untold: usize,
    /// It is in this epoch, or a later one, as it has said.
    epoch: u64,
    /// Marks of changes that wait for a fan-out of this engine.
    to_ack: VecDeque<(u64, u64)>,
}

/// Another shard as the reader of rows that are owned here.
#[derive(Default)]
pub(super) struct ReaderSide {
    pub(super) out: Vec<EngineMessage>,
    /// The last of them takes more rows of the same transaction.
    is_open: bool,
    inbox: VecDeque<EngineMessage>,
    /// What it is told changes of.
    subscribed: Spans,
    /// What it asked for and has yet to get.
    answers: VecDeque<KeyRange>,
    /// The parts that it is told changes of, by number, and those that it has yet to get.
    pub(super) parts: BTreeSet<u32>,
    pub(super) part_answers: VecDeque<PartAnswer>,
    /// Chunks that it has yet to take in.
    pub(super) on_way: usize,
    /// First and last change of what it has yet to acknowledge.
    outstanding: VecDeque<(u64, u64)>,
    /// It has yet to forget what it was told in the conversation before, and acknowledges that with this.
    ends_with: Option<u64>,
}

/// What a step came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// There is more to do at once.
    pub more: bool,
    /// Rows were supplied, or will not be: reads that wait are to be tried again.
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
            told: None,
            lost_readers: Vec::new(),
        }
    }

    /// How many rows one `Supply` has at most.
    pub fn set_chunk_rows(&mut self, rows: u64) {
        self.chunk_rows = rows.max(1);
    }

    /// From now on [`Exchange::last_told`] can be asked.
    pub fn remember_told(&mut self) {
        self.told.get_or_insert_default();
    }

    /// The last change of a row that was told and may not be acknowledged by all.
    pub fn last_told(&self, key: &[u8]) -> Option<u64> {
        self.told.as_ref()?.last.get(key).copied()
    }

    /// As [`Exchange::last_told`], of all rows of a range.
    pub fn last_told_in(&self, lo: &[u8], hi: &[u8]) -> Option<u64> {
        let last = &self.told.as_ref()?.last;
        if last.is_empty() || lo >= hi {
            return None;
        }
        let range = (Bound::Included(lo), Bound::Excluded(hi));
        last.range::<[u8], _>(range).map(|(_, told)| *told).max()
    }

    /// Forgets of what was told that which all have acknowledged.
    fn forget_told(&mut self) {
        let Some(told) = self.told.as_mut().filter(|told| !told.order.is_empty()) else {
            return;
        };
        let first = (self.peers.iter()).filter_map(|peer| peer.reader.first_unacknowledged());
        told.forget_before(first.min().unwrap_or(u64::MAX));
    }

    /// The first change that a reader has yet to acknowledge.
    pub fn first_unacknowledged(&self, reader: u16) -> Option<u64> {
        self.peers
            .get(usize::from(reader))?
            .reader
            .first_unacknowledged()
    }

    /// From `epoch` on others own what `shard` says (see [`Engine::change_owners`]). Reads that wait for rows are to be tried again.
    pub fn change_owners(&mut self, engine: &mut Engine, shard: Shard, epoch: u64) {
        engine.change_owners(shard.clone());
        let peers = self.peers.len().max(usize::from(shard.count));
        self.peers.resize_with(peers, Peer::default);
        (self.shard, self.epoch) = (shard, epoch);
        self.unsubscribe(engine);
        for peer in &mut self.peers {
            // The answers will be of an earlier epoch, and count for nothing: who still needs them asks again.
            peer.owner.asked = Spans::default();
            // So were the questions: who asked asks again.
            peer.reader.answers.clear();
            peer.reader.part_answers.clear();
        }
    }

    /// The conversation in which another shard was the owner has ended: what was read of its rows may be stale, and is forgotten
    /// with what was computed from it. Reads that wait for its rows are to be tried again.
    pub fn owner_lost(&mut self, engine: &mut Engine, owner: u16) {
        engine.forget_owner(owner);
        let _ = engine.take_unsubscribed();
        if let Some(peer) = self.peers.get_mut(usize::from(owner)) {
            peer.owner = OwnerSide::default();
        }
    }

    /// The conversation in which another shard read rows of this one has ended: it knows, and has forgotten them.
    pub fn reader_lost(&mut self, reader: u16) {
        if let Some(peer) = self.peers.get_mut(usize::from(reader)) {
            peer.reader = ReaderSide::default();
            self.lost_readers.push(reader);
        }
    }

    /// Ends the conversation in which another shard read rows of this one, and does not know it yet: [`Exchange::owner_ended`] is to be called there.
    /// What it was to acknowledge it has acknowledged when it says this, and changes from now on wait for that, too: it may show what was before them.
    pub fn end_reader(&mut self, reader: u16) -> u64 {
        self.sequence += 1;
        let upto = self.sequence;
        if let Some(peer) = self.peers.get_mut(usize::from(reader)) {
            let first = peer.reader.first_unacknowledged().unwrap_or(upto);
            peer.reader = ReaderSide::default();
            // One wait is as good as many.
            peer.reader.outstanding.push_back((first, upto));
            peer.reader.ends_with = Some(upto);
        }
        upto
    }

    /// As [`Exchange::owner_lost`], where the owner waits until it knows that.
    pub fn owner_ended(&mut self, engine: &mut Engine, owner: u16, upto: u64) {
        self.owner_lost(engine, owner);
        if let Some(peer) = self.peers.get_mut(usize::from(owner)) {
            peer.owner.out.push(EngineMessage::Ack(upto));
        }
    }

    /// Asks for what a read needs of other owners (see [`Needs`](crate::Needs)).
    pub fn ask(&mut self, engine: &mut Engine, needed: &[(u16, KeyRange)]) {
        self.unsubscribe(engine);
        for (owner, range) in needed {
            let Some(peer) = self.peers.get_mut(usize::from(*owner)) else {
                continue;
            };
            let owner = &mut peer.owner;
            for range in owner.asked.gaps(range) {
                owner.asked.insert(&range);
                let epoch = self.epoch;
                owner.out.push(EngineMessage::Ask { range, epoch });
            }
        }
    }

    /// Whether any of these ranges is still to come.
    pub fn is_asked(&self, ranges: &[(u16, KeyRange)]) -> bool {
        let is_asked = |(owner, range): &(u16, KeyRange)| {
            let peer = self.peers.get(usize::from(*owner));
            peer.is_some_and(|peer| peer.owner.asked.overlaps(range))
        };
        ranges.iter().any(is_asked)
    }

    /// Whether this owner has said that it is in a later epoch: it answers when this shard is, too.
    pub fn is_behind(&self, owner: u16) -> bool {
        let peer = self.peers.get(usize::from(owner));
        peer.is_some_and(|peer| peer.owner.epoch > self.epoch)
    }

    /// Tells of changes of own rows, which are in the engine and come in the order in which they happened. Those of a
    /// transaction (`whole`) are seen as one.
    pub fn export(&mut self, changes: &[LogEntry], whole: bool) {
        if !changes.is_empty()
            && self
                .peers
                .iter()
                .any(|peer| peer.reader.ends_with.is_some())
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
            self.begin_told(key);
            for peer in self.peers.iter_mut().filter(|peer| is_subscribed(peer)) {
                let row = (Bytes::from(&**key), value.map(|v| Bytes::from(&**v)));
                peer.reader.tell(row, self.sequence, whole);
            }
        }
        self.end_told();
    }

    /// What is told from now on is of another transaction.
    pub fn end_told(&mut self) {
        for peer in &mut self.peers {
            peer.reader.is_open = false;
        }
    }

    /// Slots are to be another's: whoever has rows of them is told to forget them. Their rows are read by nobody before others own what they did
    /// not ([`Exchange::change_owners`]). What is to be acknowledged until all have: see [`Exchange::is_acknowledged`].
    pub fn withdraw(&mut self, slots: &[(u16, u16)]) -> u64 {
        let has = |slot: u16| slots.iter().any(|(lo, hi)| (*lo..=*hi).contains(&slot));
        self.sequence += 1;
        for peer in &mut self.peers {
            let reader = &mut peer.reader;
            // Who has rows of many slots forgets all of them, and says so.
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

    /// A change of this row is about to be told.
    pub(super) fn begin_told(&mut self, key: &[u8]) {
        self.sequence += 1;
        if let Some(told) = &mut self.told {
            told.note(key, self.sequence);
        }
    }

    /// The last change that was told, to wait for.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether all who were told of changes up to this one reflect them.
    pub fn is_acknowledged(&self, sequence: u64) -> bool {
        self.is_acknowledged_by_first(self.peers.len(), sequence)
    }

    /// As [`Exchange::is_acknowledged`], of the first `count` shards only.
    pub fn is_acknowledged_by_first(&self, count: usize, sequence: u64) -> bool {
        let waits = |peer: &Peer| {
            let first = peer.reader.first_unacknowledged();
            first.is_some_and(|first| first <= sequence)
        };
        !self.peers.iter().take(count).any(waits)
    }

    /// Takes in a message; [`Exchange::step`] does what it asks for.
    pub fn receive(&mut self, from: u16, message: EngineMessage) {
        let peer = &mut self.peers[usize::from(from)];
        match message.is_of_owner() {
            true => peer.owner.inbox.push_back(message),
            false => peer.reader.inbox.push_back(message),
        }
    }

    /// Acknowledges what all outputs reflect by now: to be called when the engine has gone on with long fan-outs too.
    pub fn acknowledge(&mut self, engine: &Engine) {
        let owners = self.peers.iter_mut().map(|peer| &mut peer.owner);
        owners.for_each(|owner| owner.acknowledge(engine));
    }

    /// Whether anything came that has yet to be worked on.
    pub fn has_unprocessed(&self) -> bool {
        let is_left = |peer: &Peer| !peer.owner.inbox.is_empty() || !peer.reader.inbox.is_empty();
        self.peers.iter().any(is_left)
    }

    /// What is to be sent to a shard, in order: to it as an owner, and to it as a reader.
    pub fn take_out(&mut self, to: u16) -> Vec<EngineMessage> {
        let peer = &mut self.peers[usize::from(to)];
        let mut out = std::mem::take(&mut peer.owner.out);
        match out.is_empty() {
            true => std::mem::take(&mut peer.reader.out),
            false => {
                out.append(&mut peer.reader.out);
                out
            }
        }
    }

    /// Works on what has come, until about `budget` rows were touched. What the engine changed by it is to be logged and
    /// exported before anything else is done.
    pub fn step(&mut self, engine: &mut Engine, now: u64, budget: usize) -> Progress {
        self.step_with(engine, &mut NoParts, now, budget)
    }

    /// As [`Exchange::step`], where others want parts.
    pub fn step_with(
        &mut self,
        engine: &mut Engine,
        parts: &mut dyn Parts,
        now: u64,
        mut budget: usize,
    ) -> Progress {
        let mut progress = Progress::default();
        let lost = std::mem::take(&mut self.lost_readers).into_iter();
        lost.for_each(|reader| parts.reader_lost(reader));
        // Another comes first each time, so that none is starved.
        self.turn = (self.turn + 1) % self.peers.len();
        for at in (self.turn..self.peers.len()).chain(0..self.turn) {
            while budget > 0
                && let Some(message) = next(&mut self.peers[at].owner.inbox, self.epoch)
            {
                let spent = match self.hear_part(at, message, parts) {
                    Ok(spent) => spent,
                    Err(message) => {
                        let room = (now, budget);
                        self.hear_owner(engine, parts, at, message, room, &mut progress)
                    }
                };
                budget = budget.saturating_sub(spent);
            }
            while budget > 0
                && let Some(message) = next(&mut self.peers[at].reader.inbox, self.epoch)
            {
                if let Err(message) = self.hear_part(at, message, parts) {
                    self.hear_reader(at, message);
                }
                budget -= 1;
            }
            while budget > 0
                && let Some(next) = next_answer(&self.shard, &self.peers[at].reader)
                && let Some(range) = self.peers[at].reader.answers.remove(next)
            {
                let spent = self.answer(engine, at, range, now);
                budget = budget.saturating_sub(spent);
            }
            while budget > 0
                && let Some(spent) = self.answer_part(engine, at, parts)
            {
                budget = budget.saturating_sub(spent);
                progress.more = budget == 0;
            }
        }
        self.forget_told();
        self.acknowledge(engine);
        self.unsubscribe(engine);
        let epoch = self.epoch;
        let waits = |peer: &Peer| {
            is_due(&peer.owner.inbox, epoch)
                || is_due(&peer.reader.inbox, epoch)
                || next_answer(&self.shard, &peer.reader).is_some()
        };
        progress.more |= self.peers.iter().any(waits);
        progress
    }

    /// Does what an owner's message asks for; says how many rows that touched.
    fn hear_owner(
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
                owner.out.push(EngineMessage::Taken);
                if epoch < self.epoch {
                    return 1;
                }
                let spent = rows.len() + CHUNK_WEIGHT;
                owner.asked.remove(&range);
                progress.supplied = true;
                if !engine.supply_replicas(from as u16, &range, rows.into_iter()) {
                    owner.out.push(EngineMessage::Unsubscribe(range));
                }
                spent
            }
            EngineMessage::Changes {
                mut rows,
                mark,
                whole,
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
                            spent += engine.spent();
                        }
                    }
                    if spent >= budget && !whole && !rows.is_empty() {
                        // The rest comes next; the whole is acknowledged at its end.
                        let rest = EngineMessage::Changes { rows, mark, whole };
                        owner.inbox.push_front(rest);
                        return spent;
                    }
                }
                owner.to_ack.push_back((mark, engine.last_change()));
                spent
            }
            EngineMessage::Withdraw { slots, mark } => {
                parts.withdraw(&slots);
                engine.forget_computed_from(&|slot| {
                    slots.iter().any(|(lo, hi)| (*lo..=*hi).contains(&slot))
                });
                owner.to_ack.push_back((mark, engine.last_change()));
                CHUNK_WEIGHT
            }
            EngineMessage::Later(epoch) => {
                owner.epoch = owner.epoch.max(epoch);
                1
            }
            _ => 1,
        }
    }

    /// Notes what a reader says.
    fn hear_reader(&mut self, from: usize, message: EngineMessage) {
        let reader = &mut self.peers[from].reader;
        match message {
            EngineMessage::Ask { epoch, .. } if epoch < self.epoch => {
                reader.out.push(EngineMessage::Later(self.epoch));
            }
            EngineMessage::Ask { range, .. } => reader.answers.push_back(range),
            EngineMessage::Unsubscribe(range) => reader.subscribed.remove(&range),
            EngineMessage::Taken => reader.on_way = reader.on_way.saturating_sub(1),
            EngineMessage::Ack(mark) => {
                let outstanding = &mut reader.outstanding;
                while outstanding.front().is_some_and(|(_, last)| *last <= mark) {
                    outstanding.pop_front();
                }
                reader.ends_with = reader.ends_with.filter(|upto| *upto > mark);
            }
            _ => {}
        }
    }

    /// Sends a chunk of an answer; says what it weighs: more than any budget, if the rest must wait for the next turn.
    fn answer(&mut self, engine: &mut Engine, to: usize, range: KeyRange, now: u64) -> usize {
        let mut rows: Vec<(Bytes, Bytes)> = Vec::new();
        let mut bytes = 0;
        let given = engine.own_rows(&range, self.chunk_rows, now, &mut |key, value| {
            rows.push((key.into(), value.into()));
            bytes += key.len() + value.len();
            match bytes < CHUNK_BYTES {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        let reader = &mut self.peers[to].reader;
        if given == OwnRows::ExpireFirst {
            reader.answers.push_front(range);
            return usize::MAX;
        }
        let is_all = (rows.len() as u64) < self.chunk_rows && bytes < CHUNK_BYTES;
        let mut part = range.clone();
        if let (false, Some((last, _))) = (is_all, rows.last()) {
            part.hi = KeyRange::point(last).hi.min(range.hi.clone());
            let rest = KeyRange::new(&part.hi, &range.hi);
            if !rest.is_empty() {
                reader.answers.push_front(rest);
            }
        }
        reader.subscribed.insert(&part);
        let spent = rows.len() + CHUNK_WEIGHT;
        reader.on_way += 1;
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

    /// Of who owns what.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn shard(&self) -> &Shard {
        &self.shard
    }
}

/// The next message, unless it is of an epoch that has yet to come.
fn next(inbox: &mut VecDeque<EngineMessage>, epoch: u64) -> Option<EngineMessage> {
    match is_due(inbox, epoch) {
        true => inbox.pop_front(),
        false => None,
    }
}

fn is_due(inbox: &VecDeque<EngineMessage>, epoch: u64) -> bool {
    let first = inbox.front();
    first.is_some_and(|first| first.epoch().is_none_or(|of| of <= epoch))
}

/// The next question that is to be answered now. A shard that does not have yet what others believe to be its own, or has it no more, says
/// nothing of it: that there are no rows would be wrong, and nobody would be told when they come.
fn next_answer(shard: &Shard, reader: &ReaderSide) -> Option<usize> {
    let is_here = |range: &KeyRange| match shard.owner_of_range(&range.lo, &range.hi) {
        // Another's is asked for where the rest of a range over several columns is known.
        Owner::One(owner) => owner != NOBODY,
        Owner::All => shard.owners().all(|owner| owner != NOBODY),
    };
    match reader.on_way < CHUNKS_ON_WAY {
        true => reader.answers.iter().position(is_here),
        false => None,
    }
}

impl ReaderSide {
    fn first_unacknowledged(&self) -> Option<u64> {
        self.outstanding.front().map(|(first, _)| *first)
    }

    pub(super) fn tell(&mut self, row: (Bytes, Option<Bytes>), sequence: u64, is_whole: bool) {
        // A transaction's go with nothing else.
        if let (Some(EngineMessage::Changes { rows, mark, whole }), Some(last)) =
            (self.out.last_mut(), self.outstanding.back_mut())
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
            whole: is_whole,
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
