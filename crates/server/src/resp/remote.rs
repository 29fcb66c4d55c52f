//! Requests that another core executes: those of one batch in one message a core, their replies put back in order.
//!
//! ```text
//!  session ─ gather ─► [ reply | hole: core 2 | reply | hole: core 1 ] ─ drain: fills the holes as answers come
//!                                 │ Requests                 ▲ Answer: bytes, and where replies end
//!                                 ▼                          │
//!                              core 2: Remote ─ dispatch ─ gate ─┘
//! ```
//!
//! 1. Requests of one session to one core are executed in their order. Requests to several cores are executed at the same
//!    time, unless one reads what joins compute, which depends on rows of all cores: it waits for writes before it, and
//!    writes behind it wait for it.
//! 2. An answer leaves its core when its gate is open, as a reply leaves its session.
//! 3. A long reply comes in pieces, each sent when the session has taken those before.
//! 4. After a crash no write of a session is there without those before it. So where writes of one batch are executed by several
//!    cores at the same time, they are parts of one whole in the journal (see `crate::tables::Tables::keep_parts`), which is ended
//!    as soon as all were executed, and not when the client takes the replies.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use larder_join::LogEntry;
use larder_protocol::commands::{Batch, Command, Id, OwnedCommand};
use larder_protocol::resp::Proto;
use tokio::sync::mpsc;

use super::clients::Client;
use super::core::Core;
use super::dispatch::begin;
use super::drive::{Ended, Replies, drive};
use super::finish::finish;
use super::memory::{Charge, Limits};
use super::pending::Pending;
use super::session::{State, TURN};
use super::tables;
use crate::tables::{Gate, Message, Tables};

/// Pieces of replies that wait to be taken.
const ANSWERS_MAX: usize = 4;
/// A reply longer than this goes out in pieces.
const PIECE_BYTES: usize = 256 << 10;

/// How requests are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Each by itself, long ones in several turns.
    Each,
    /// Each to its end, while the cores are paused.
    Whole,
    /// As `Whole`, and all that a transaction has for this core: what changed comes with the answer.
    Part,
    /// All at once, as a transaction; one reply.
    Together,
    /// One, to its end and for nothing but to have here what it reads: the reply is OK, or why that cannot be.
    Ahead,
}

/// Commands for a core.
pub struct Requests {
    pub(super) batch: Batch,
    pub(super) proto: Proto,
    pub(super) client: Arc<Client>,
    pub(super) ticket: Option<u64>,
    pub(super) mode: Mode,
    /// Their writes are parts of this.
    pub(super) parts: Option<u64>,
    pub(super) answers: mpsc::Sender<Answer>,
}

/// A part of the replies.
pub(super) struct Answer {
    bytes: Vec<u8>,
    /// Where replies end in it.
    ends: Vec<usize>,
    /// When they were executed, if at one moment.
    moment: Option<(u64, u64)>,
    /// What a transaction's part changed.
    changes: Vec<LogEntry>,
}

/// What decides whether requests to several cores may be executed at the same time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub writes: bool,
    /// It reads what joins compute.
    pub depends: bool,
    /// Its reply may be long, and then waits for the client.
    pub is_long: bool,
}

/// What a batch has for other cores.
pub(super) struct Gathered {
    proto: Proto,
    by_core: Vec<Batch>,
    wrote: Vec<bool>,
    /// Cores that read what joins compute.
    depends: Vec<bool>,
    is_long: bool,
    /// The number of what is written at the same time, if it is.
    parts: Option<u64>,
    /// Where in the output's tail a reply of a core belongs.
    holes: Vec<(usize, usize)>,
}

impl Gathered {
    pub fn new(cores: usize, proto: Proto) -> Gathered {
        Gathered {
            proto,
            by_core: vec![Batch::default(); cores],
            wrote: vec![false; cores],
            depends: vec![false; cores],
            is_long: false,
            parts: None,
            holes: Vec::new(),
        }
    }

    /// Whether a request to `core` must wait for those gathered before it.
    pub fn must_come_before(&self, core: usize, kind: Kind, proto: Proto) -> bool {
        let others = |cores: &[bool]| {
            let mut others = cores.iter().enumerate();
            others.any(|(other, is)| *is && other != core)
        };
        proto != self.proto
            || (kind.depends && others(&self.wrote))
            || (kind.writes && others(&self.depends))
            || (kind.writes && self.is_long)
            || (kind.is_long && self.writes())
    }

    /// Whether there are writes among it.
    pub fn writes(&self) -> bool {
        self.wrote.contains(&true)
    }

    /// What a write that is executed here, behind those that were gathered, is part of.
    pub fn parts_with_here(&mut self, tables: &Tables) -> Option<u64> {
        if self.writes() {
            self.parts.get_or_insert_with(|| tables.new_parts());
        }
        self.parts
    }

    pub fn add(&mut self, core: usize, at: usize, kind: Kind, command: Command<'_>) {
        self.by_core[core].push(command);
        self.wrote[core] |= kind.writes;
        self.depends[core] |= kind.depends;
        self.is_long |= kind.is_long;
        self.holes.push((at, core));
    }

    /// Sends it; the answers of each core, and the holes. `parts` are to be kept when all have answered.
    pub fn send(mut self, state: &State) -> Sent {
        let tables = &state.core.tables;
        match self.wrote.iter().filter(|wrote| **wrote).count() {
            0 => {}
            // What was written here before is logged before.
            1 if self.parts.is_none() => tables.commit(),
            _ => {
                self.parts.get_or_insert_with(|| tables.new_parts());
            }
        }
        let writes = self.writes();
        // What this core's writes mean to others comes before what reads them.
        tables.send_exchange();
        let send = |(core, batch): (usize, Batch)| {
            (!batch.is_empty()).then(|| {
                let (answers, receiver) = mpsc::channel(ANSWERS_MAX);
                let requests = Requests {
                    batch,
                    proto: self.proto,
                    client: state.client.clone(),
                    ticket: None,
                    mode: Mode::Each,
                    parts: self.parts,
                    answers,
                };
                Incoming::of(&state.core, core, requests, receiver)
            })
        };
        let incoming = self.by_core.into_iter().enumerate().map(send).collect();
        Sent {
            incoming,
            holes: self.holes,
            writes,
            parts: self.parts,
        }
    }
}

/// What was gathered, on its way.
pub(super) struct Sent {
    pub incoming: Vec<Option<Incoming>>,
    pub holes: Vec<(usize, usize)>,
    pub writes: bool,
    pub parts: Option<u64>,
}

/// The answers of one core.
pub(super) struct Incoming {
    receiver: mpsc::Receiver<Answer>,
    bytes: Vec<u8>,
    at: usize,
    ends: VecDeque<usize>,
    moments: Vec<Option<(u64, u64)>>,
    changes: Vec<LogEntry>,
    limits: Limits,
}

impl Incoming {
    /// Asks a core.
    pub fn ask(
        core: &Core,
        to: usize,
        batch: Batch,
        proto: Proto,
        client: &Arc<Client>,
        ticket: Option<u64>,
        mode: Mode,
    ) -> Incoming {
        let (answers, receiver) = mpsc::channel(ANSWERS_MAX);
        let requests = Requests {
            batch,
            proto,
            client: client.clone(),
            ticket,
            mode,
            parts: None,
            answers,
        };
        // What was written here before is logged before.
        core.tables.commit();
        Incoming::of(core, to, requests, receiver)
    }

    fn of(core: &Core, to: usize, requests: Requests, receiver: mpsc::Receiver<Answer>) -> Self {
        core.shared.tables.send(to, Message::Requests(requests));
        Incoming {
            receiver,
            bytes: Vec::new(),
            at: 0,
            ends: VecDeque::new(),
            moments: Vec::new(),
            changes: Vec::new(),
            limits: core.clients.limits,
        }
    }

    /// Appends the next piece of a reply; says whether the reply ended with it. `None`: the core is gone.
    pub async fn next(&mut self, out: &mut Vec<u8>) -> Option<bool> {
        loop {
            if let Some(end) = self.ends.pop_front() {
                out.extend_from_slice(&self.bytes[self.at..end]);
                self.at = end;
                return Some(true);
            }
            if self.at < self.bytes.len() {
                out.extend_from_slice(&self.bytes[self.at..]);
                self.at = self.bytes.len();
                return Some(false);
            }
            let answer = self.receiver.recv().await?;
            let Answer { bytes, ends, .. } = answer;
            self.moments.push(answer.moment);
            self.changes.extend(answer.changes);
            (self.bytes, self.at, self.ends) = (bytes, 0, ends.into());
        }
    }

    /// When all so far was executed, if at one moment (see `Tables::moment`).
    pub fn moment(&self) -> Option<(u64, u64)> {
        let first = self.moments.first().copied().flatten()?;
        let is_one = self.moments.iter().all(|moment| *moment == Some(first));
        is_one.then_some(first)
    }

    /// What the part of a transaction changed, once its last reply was taken.
    pub fn take_changes(&mut self) -> Vec<LogEntry> {
        std::mem::take(&mut self.changes)
    }

    /// The next reply, whole.
    pub async fn reply(&mut self) -> Option<Vec<u8>> {
        let mut reply = Vec::new();
        let mut is_too_long = false;
        while !self.next(&mut reply).await? {
            if reply.len() > self.limits.answer() {
                is_too_long = true;
                reply.clear();
            }
        }
        if is_too_long {
            reply = self.limits.too_long_reply();
        }
        Some(reply)
    }
}

/// Requests of another core's connection while they are executed here.
pub(super) struct Remote {
    state: State,
    batch: Batch,
    /// How many of them were executed.
    at: usize,
    ends: Vec<usize>,
    /// Of the first request, and whether all were of that moment.
    moment: Option<((u64, u64), bool)>,
    ticket: Option<u64>,
    mode: Mode,
    parts: Option<u64>,
    answers: mpsc::Sender<Answer>,
    /// What the requests and the replies take.
    counted: Charge,
}

/// Executes requests: at once if that can be, else in a task.
pub(super) fn execute(core: &Rc<Core>, requests: Requests) {
    let mut remote = Remote::new(core, requests);
    // Changes that were sent before are to be seen.
    if core.tables.take_in() && !core.tables.is_paused() && remote.ticket.is_none() {
        let pending = remote.step();
        if pending.is_none() && remote.is_done() && remote.state.gate.is_open() {
            let answer = remote.take();
            // An error means that the connection has gone. There is room: it is the first answer.
            let _ = remote.answers.try_send(answer);
            return;
        }
        tokio::task::spawn_local(remote.run(pending));
        return;
    }
    tokio::task::spawn_local(remote.run(None));
}

impl Remote {
    fn new(core: &Rc<Core>, requests: Requests) -> Remote {
        let Requests {
            batch,
            proto,
            client,
            ticket,
            mode,
            parts,
            answers,
        } = requests;
        let mut counted = Charge::new(&client);
        counted.set(batch.memory_bytes());
        let mut state = State::new(core.clone(), client, true);
        state.proto = proto;
        state.output.tail = core.take_buffer();
        // What is answered is handed over as one piece.
        state.output.has_holes = true;
        Remote {
            state,
            batch,
            at: 0,
            ends: Vec::new(),
            moment: None,
            ticket,
            mode,
            parts,
            answers,
            counted,
        }
    }

    /// Whether so much is answered that it should be sent before there is more.
    fn is_long(&self) -> bool {
        self.mode != Mode::Together && self.state.output.tail.len() >= PIECE_BYTES
    }

    /// Executes requests until one takes longer, or the core's other connections should have their turn.
    fn step(&mut self) -> Option<Pending> {
        let core = self.state.core.clone();
        self.note_moment();
        let snapshot = core.shared.catalog.load();
        if self.mode == Mode::Together {
            if !self.ends.is_empty() {
                return None;
            }
            let batch = std::mem::take(&mut self.batch);
            let work = tables::execute_together(&mut self.state, &snapshot, batch);
            if work.is_none() {
                self.ends.push(self.state.output.tail.len());
            }
            return work.map(|work| {
                let exec = OwnedCommand::of(Id::Exec, std::iter::empty());
                Pending::new(exec.command(), work)
            });
        }
        let begun = Instant::now();
        let mut clock = begun;
        while clock.duration_since(begun) < TURN
            && let Some(command) = self.batch.get(self.at)
        {
            self.at += 1;
            let state = &mut self.state;
            (state.failed, state.keys) = (false, (0, 0));
            let mode = self.mode;
            let work = core.tables.in_parts(self.parts, || match mode {
                Mode::Each => begin(state, &snapshot, command),
                _ => tables::execute_whole(state, &snapshot, command),
            });
            if let Some(work) = work {
                return Some(Pending::new(command, work));
            }
            if self.mode == Mode::Ahead {
                self.is_ahead();
            } else {
                finish(state, command.spec, &mut clock, command.args());
            }
            self.ends.push(self.state.output.tail.len());
            if self.is_long() || (self.mode == Mode::Each && core.is_called()) {
                break;
            }
        }
        None
    }

    /// What the one request reads is here; its answer is not wanted yet.
    fn is_ahead(&mut self) {
        self.state.output.tail.clear();
        self.state.encoder().ok();
    }

    fn is_done(&self) -> bool {
        self.at == self.batch.len()
    }

    fn take(&mut self) -> Answer {
        let bytes = std::mem::take(&mut self.state.output.tail);
        let ends = std::mem::take(&mut self.ends);
        let moment = self.moment.filter(|(_, all)| *all).map(|(first, _)| first);
        let changes = match self.mode == Mode::Part && self.is_done() {
            true => self.state.core.tables.take_together(),
            false => Vec::new(),
        };
        Answer {
            bytes,
            ends,
            moment,
            changes,
        }
    }

    /// Executes what is left, and sends the replies until nobody takes them.
    async fn run(mut self, pending: Option<Pending>) {
        // An error means that the connection has gone, or that what was written may be lost: it notices.
        let _ = self.serve(pending).await;
    }

    async fn serve(&mut self, mut pending: Option<Pending>) -> io::Result<()> {
        if pending.is_none() && self.at == 0 && self.ends.is_empty() {
            let tables = self.state.core.tables.clone();
            tables.taken_in().await;
            tables.resumed(self.ticket).await;
            pending = self.step();
        }
        loop {
            if let Some(next) = pending.take() {
                self.end(next).await?;
                self.ends.push(self.state.output.tail.len());
            } else if self.is_done() {
                break;
            } else {
                tokio::task::yield_now().await;
            }
            self.counted
                .set(self.batch.memory_bytes() + self.state.output.tail.len());
            if self.is_long() {
                self.send().await?;
            }
            self.state.core.tables.clone().resumed(self.ticket).await;
            pending = self.step();
        }
        self.send().await
    }

    /// Sends what there is once the gate is open.
    ///
    /// # Errors
    /// Nobody takes it, or what was written may be lost.
    async fn send(&mut self) -> io::Result<()> {
        let tables = self.state.core.tables.clone();
        let mut gate: Gate = std::mem::take(&mut self.state.gate);
        poll_fn(|cx| tables.poll_gate(&mut gate, cx)).await?;
        let answer = self.take();
        let sent = self.answers.send(answer).await;
        sent.map_err(|_| io::Error::other("the connection has gone"))
    }

    /// Executes a command that waits to its end.
    async fn end(&mut self, mut pending: Pending) -> io::Result<()> {
        let ended = drive(self, &mut pending).await?;
        if self.state.closing {
            return Err(io::Error::other("an answer cannot be ended"));
        }
        match (self.mode, ended) {
            (Mode::Ahead, Ended::Answered) => self.is_ahead(),
            (Mode::Ahead, Ended::Without) => {}
            _ => pending.finish(&mut self.state),
        }
        Ok(())
    }
}

impl Replies for Remote {
    fn state(&mut self) -> &mut State {
        &mut self.state
    }

    async fn room(&mut self) -> io::Result<()> {
        match self.is_long() || !self.state.has_room() {
            true => self.send().await,
            false => Ok(()),
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        match self.ends.is_empty() {
            true => Ok(()),
            false => self.send().await,
        }
    }

    fn ticket(&self) -> Option<u64> {
        self.ticket
    }

    fn parts(&self) -> Option<u64> {
        self.parts
    }

    fn note_moment(&mut self) {
        let now = self.state.core.tables.moment();
        let (first, all) = self.moment.unwrap_or((now, true));
        self.moment = Some((first, all && first == now));
    }
}
