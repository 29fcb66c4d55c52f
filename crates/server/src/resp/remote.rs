//! Requests of another core's connection, executed here.
//!
//! An answer leaves when its gate is open, as a reply leaves its session. See `forwarded` for what may be executed at
//! the same time.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::time::Instant;

use larder_protocol::commands::{Batch, Id, OwnedCommand};
use tokio::sync::mpsc;

use super::core::Core;
use super::count::finish;
use super::dispatch::begin;
use super::drive::{Ended, Replies, drive};
use super::execute::TURN_MAX;
use super::pending::Pending;
use super::state::State;
use super::subject::About;
use super::tables;
use crate::clients::Charge;
use crate::tables::{Execution, Gate, ReplyPiece, Requests};

/// A reply longer than this goes out in pieces.
const PIECE_BYTES: usize = 256 << 10;

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
    execution: Execution,
    shared_batch: Option<u64>,
    pieces: mpsc::Sender<ReplyPiece>,
    /// What the requests and the replies take.
    counted: Charge,
}

/// Executes requests: at once if that can be, else in a task.
pub(super) fn execute(core: &Rc<Core>, requests: Requests) {
    let mut remote = Remote::new(core, requests);
    // Changes that were sent before are to be seen.
    if core.tables.process_messages() && !core.tables.is_paused() && remote.ticket.is_none() {
        let pending = remote.step();
        if pending.is_none() && remote.is_done() && remote.state.gate.is_open() {
            let answer = remote.take();
            // An error means that the connection has gone. There is room: it is the first answer.
            let _ = remote.pieces.try_send(answer);
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
            execution,
            shared_batch,
            pieces,
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
            execution,
            shared_batch,
            pieces,
            counted,
        }
    }

    /// Whether so much is answered that it should be sent before there is more.
    fn is_long(&self) -> bool {
        self.execution != Execution::Transaction && self.state.output.tail.len() >= PIECE_BYTES
    }

    /// Executes requests until one takes longer, or the core's other connections should have their turn.
    fn step(&mut self) -> Option<Pending> {
        let core = self.state.core.clone();
        self.note_moment();
        let snapshot = core.shared.catalog.load();
        if self.execution == Execution::Transaction {
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
        while clock.duration_since(begun) < TURN_MAX
            && let Some(command) = self.batch.get(self.at)
        {
            self.at += 1;
            let state = &mut self.state;
            (state.failed, state.keys) = (false, (0, 0));
            let execution = self.execution;
            let work = core
                .tables
                .in_shared_batch(self.shared_batch, || match execution {
                    Execution::OneByOne => {
                        begin(state, &snapshot, command, About::of(&snapshot, command))
                    }
                    _ => tables::execute_whole(state, &snapshot, command),
                });
            if let Some(work) = work {
                return Some(Pending::new(command, work));
            }
            if self.execution == Execution::Prefetch {
                self.answer_prefetch();
            } else {
                finish(state, command.spec, &mut clock, command.args());
            }
            self.ends.push(self.state.output.tail.len());
            if self.is_long() || (self.execution == Execution::OneByOne && core.has_messages()) {
                break;
            }
        }
        None
    }

    /// What the one request reads is here; its answer is not wanted yet.
    fn answer_prefetch(&mut self) {
        self.state.output.tail.clear();
        self.state.encoder().ok();
    }

    fn is_done(&self) -> bool {
        self.at == self.batch.len()
    }

    fn take(&mut self) -> ReplyPiece {
        let bytes = std::mem::take(&mut self.state.output.tail);
        let ends = std::mem::take(&mut self.ends);
        let moment = self.moment.filter(|(_, all)| *all).map(|(first, _)| first);
        let changes = match self.execution == Execution::TransactionPart && self.is_done() {
            true => self.state.core.tables.take_transaction_changes(),
            false => Vec::new(),
        };
        ReplyPiece {
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
            tables.wait_until_processed().await;
            tables.wait_while_paused(self.ticket).await;
            self.check_pause()?;
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
            self.state
                .core
                .tables
                .clone()
                .wait_while_paused(self.ticket)
                .await;
            self.check_pause()?;
            pending = self.step();
        }
        self.send().await
    }

    /// # Errors
    /// The pause in which this was to be executed was abandoned.
    fn check_pause(&self) -> io::Result<()> {
        match self.state.core.tables.is_held_by(self.ticket) {
            true => Ok(()),
            false => Err(io::Error::other("the pause has ended")),
        }
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
        let sent = self.pieces.send(answer).await;
        sent.map_err(|_| io::Error::other("the connection has gone"))
    }

    /// Executes a command that waits to its end.
    async fn end(&mut self, mut pending: Pending) -> io::Result<()> {
        let ended = drive(self, &mut pending).await?;
        if self.state.closing {
            return Err(io::Error::other("an answer cannot be ended"));
        }
        match (self.execution, ended) {
            (Execution::Prefetch, Ended::Answered) => self.answer_prefetch(),
            (Execution::Prefetch, Ended::Refused) => {}
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

    fn shared_batch(&self) -> Option<u64> {
        self.shared_batch
    }

    fn note_moment(&mut self) {
        let now = self.state.core.tables.moment();
        let (first, all) = self.moment.unwrap_or((now, true));
        self.moment = Some((first, all && first == now));
    }
}
