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

use std::collections::VecDeque;
use std::ops::ControlFlow;

use crate::base::key_range::KeyRange;
use crate::base::owner::Shard;
use crate::base::spans::Spans;
use crate::engine::Engine;
use crate::evaluate::reads::OwnRows;
use crate::tables::log::LogEntry;

/// Rows and bytes of one `Supply`.
const CHUNK_ROWS: u64 = 2048;
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks for one receiver that may be on their way: memory is bounded, however large a range is.
const CHUNKS_ON_WAY: usize = 4;
/// What a chunk weighs in a step, beside its rows.
const CHUNK_WEIGHT: usize = 16;

type Bytes = Box<[u8]>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineMessage {
    /// To an owner: the rows of a range, and all their changes from then on.
    Ask(KeyRange),
    Unsubscribe(KeyRange),
    /// From an owner: all rows that it has of a part of what was asked for.
    Supply {
        range: KeyRange,
        rows: Vec<(Bytes, Bytes)>,
    },
    /// From an owner: rows that have a new value, or none any more.
    Changes {
        rows: VecDeque<(Bytes, Option<Bytes>)>,
        mark: u64,
        /// They are one transaction's: nothing is read in between.
        whole: bool,
    },
    /// To an owner: all changes up to this mark are reflected.
    Ack(u64),
    /// To an owner: a `Supply` was taken in.
    Taken,
}

/// One shard's end of all conversations.
pub struct Exchange {
    shard: Shard,
    peers: Vec<Peer>,
    /// The last change that was told to anybody.
    sequence: u64,
    turn: usize,
    chunk_rows: u64,
}

#[derive(Default)]
struct Peer {
    out: Vec<EngineMessage>,
    /// The last of them takes more rows of the same transaction.
    is_open: bool,
    inbox: VecDeque<EngineMessage>,
    /// What it is told changes of.
    subscribed: Spans,
    /// What it asked for and has yet to get.
    answers: VecDeque<KeyRange>,
    /// Chunks that it has yet to take in.
    on_way: usize,
    /// First and last change of what it has yet to acknowledge.
    outstanding: VecDeque<(u64, u64)>,
    /// What it was asked for and has yet to give.
    asked: Spans,
    /// Marks of changes that wait for a fan-out of this engine.
    to_ack: VecDeque<(u64, u64)>,
}

/// What a step came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// There is more to do at once.
    pub more: bool,
    /// Rows were supplied: reads that wait may be tried again.
    pub supplied: bool,
}

impl Exchange {
    pub fn new(shard: Shard) -> Self {
        Exchange {
            shard,
            peers: (0..shard.count).map(|_| Peer::default()).collect(),
            sequence: 0,
            turn: 0,
            chunk_rows: CHUNK_ROWS,
        }
    }

    /// How many rows one `Supply` has at most.
    pub fn set_chunk_rows(&mut self, rows: u64) {
        self.chunk_rows = rows.max(1);
    }

    /// Asks for what a read needs of other owners (see [`Needs`](crate::Needs)).
    pub fn ask(&mut self, engine: &mut Engine, needed: &[(u16, KeyRange)]) {
        self.unsubscribe(engine);
        for (owner, range) in needed {
            let peer = &mut self.peers[usize::from(*owner)];
            for gap in peer.asked.gaps(range) {
                peer.asked.insert(&gap);
                peer.out.push(EngineMessage::Ask(gap));
            }
        }
    }

    /// Whether any of these ranges is still to come.
    pub fn is_asked(&self, ranges: &[(u16, KeyRange)]) -> bool {
        let is_asked = |(owner, range): &(u16, KeyRange)| {
            self.peers[usize::from(*owner)].asked.overlaps(range)
        };
        ranges.iter().any(is_asked)
    }

    /// Tells of changes of own rows, which are in the engine and come in the order in which they happened. Those of a
    /// transaction (`whole`) are seen as one.
    pub fn export(&mut self, changes: &[LogEntry], whole: bool) {
        for change in changes {
            let (key, value) = match change {
                LogEntry::Put { key, value } => (key, Some(value)),
                LogEntry::Remove { key } => (key, None),
                _ => continue,
            };
            let heard = |peer: &Peer| peer.subscribed.contains(key);
            if !self.peers.iter().any(heard) {
                continue;
            }
            self.sequence += 1;
            for peer in self.peers.iter_mut().filter(|peer| heard(peer)) {
                let row = (Bytes::from(&**key), value.map(|v| Bytes::from(&**v)));
                peer.tell(row, self.sequence, whole);
            }
        }
        self.peers.iter_mut().for_each(|peer| peer.is_open = false);
    }

    /// The last change that was told, to wait for.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether all who were told of changes up to this one reflect them.
    pub fn is_acknowledged(&self, sequence: u64) -> bool {
        let waits = |peer: &Peer| {
            peer.outstanding
                .front()
                .is_some_and(|(f, _)| *f <= sequence)
        };
        !self.peers.iter().any(waits)
    }

    /// Takes in a message; [`Exchange::step`] does what it asks for.
    pub fn receive(&mut self, from: u16, message: EngineMessage) {
        self.peers[usize::from(from)].inbox.push_back(message);
    }

    /// Acknowledges what all outputs reflect by now: to be called when the engine has gone on with long fan-outs too.
    pub fn acknowledge(&mut self, engine: &Engine) {
        self.peers.iter_mut().for_each(|p| p.acknowledge(engine));
    }

    /// Whether anything came that has yet to be worked on.
    pub fn has_unprocessed(&self) -> bool {
        self.peers.iter().any(|peer| !peer.inbox.is_empty())
    }

    /// What is to be sent to a shard, in order.
    pub fn take_out(&mut self, to: u16) -> Vec<EngineMessage> {
        std::mem::take(&mut self.peers[usize::from(to)].out)
    }

    /// Works on what has come, until about `budget` rows were touched. What the engine changed by it is to be logged and
    /// exported before anything else is done.
    pub fn step(&mut self, engine: &mut Engine, now: u64, mut budget: usize) -> Progress {
        let mut progress = Progress::default();
        // Another comes first each time, so that none is starved.
        self.turn = (self.turn + 1) % self.peers.len();
        for at in (self.turn..self.peers.len()).chain(0..self.turn) {
            while budget > 0
                && let Some(message) = self.peers[at].inbox.pop_front()
            {
                let spent = self.act(engine, at, message, now, budget, &mut progress);
                budget = budget.saturating_sub(spent);
            }
            while budget > 0
                && self.peers[at].on_way < CHUNKS_ON_WAY
                && let Some(range) = self.peers[at].answers.pop_front()
            {
                let spent = self.answer(engine, at, range, now);
                budget = budget.saturating_sub(spent);
            }
        }
        self.acknowledge(engine);
        self.unsubscribe(engine);
        let may_answer = |peer: &Peer| !peer.answers.is_empty() && peer.on_way < CHUNKS_ON_WAY;
        let waits = |peer: &Peer| !peer.inbox.is_empty() || may_answer(peer);
        progress.more = self.peers.iter().any(waits);
        progress
    }

    fn act(
        &mut self,
        engine: &mut Engine,
        from: usize,
        message: EngineMessage,
        now: u64,
        budget: usize,
        progress: &mut Progress,
    ) -> usize {
        let peer = &mut self.peers[from];
        match message {
            EngineMessage::Ask(range) => peer.answers.push_back(range),
            EngineMessage::Unsubscribe(range) => peer.subscribed.remove(&range),
            EngineMessage::Supply { range, rows } => {
                let spent = rows.len() + CHUNK_WEIGHT;
                peer.asked.remove(&range);
                progress.supplied = true;
                peer.out.push(EngineMessage::Taken);
                if !engine.supply_replicas(from as u16, &range, rows.into_iter()) {
                    peer.out.push(EngineMessage::Unsubscribe(range));
                }
                return spent;
            }
            EngineMessage::Changes {
                mut rows,
                mark,
                whole,
            } => {
                let mut spent = 0;
                while let Some((key, value)) = rows.pop_front() {
                    let _ = engine.apply_replica(&key, value.as_deref(), now);
                    spent += 1 + engine.spent();
                    if spent >= budget && !whole && !rows.is_empty() {
                        // The rest comes next; the whole is acknowledged at its end.
                        let rest = EngineMessage::Changes { rows, mark, whole };
                        peer.inbox.push_front(rest);
                        return spent;
                    }
                }
                peer.to_ack.push_back((mark, engine.last_change()));
                return spent;
            }
            EngineMessage::Taken => peer.on_way = peer.on_way.saturating_sub(1),
            EngineMessage::Ack(mark) => {
                while peer.outstanding.front().is_some_and(|(_, l)| *l <= mark) {
                    peer.outstanding.pop_front();
                }
            }
        }
        1
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
        let peer = &mut self.peers[to];
        if given == OwnRows::ExpireFirst {
            peer.answers.push_front(range);
            return usize::MAX;
        }
        let is_all = (rows.len() as u64) < self.chunk_rows && bytes < CHUNK_BYTES;
        let mut part = range.clone();
        if let (false, Some((last, _))) = (is_all, rows.last()) {
            part.hi = KeyRange::point(last).hi.min(range.hi.clone());
            let rest = KeyRange::new(&part.hi, &range.hi);
            if !rest.is_empty() {
                peer.answers.push_front(rest);
            }
        }
        peer.subscribed.insert(&part);
        let spent = rows.len() + CHUNK_WEIGHT;
        peer.on_way += 1;
        peer.out.push(EngineMessage::Supply { range: part, rows });
        spent
    }

    fn unsubscribe(&mut self, engine: &mut Engine) {
        for (owner, range) in engine.take_unsubscribed() {
            let out = &mut self.peers[usize::from(owner)].out;
            out.push(EngineMessage::Unsubscribe(range));
        }
    }

    pub fn shard(&self) -> Shard {
        self.shard
    }
}

impl Peer {
    fn tell(&mut self, row: (Bytes, Option<Bytes>), sequence: u64, is_whole: bool) {
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
