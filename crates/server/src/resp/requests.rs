//! What one core asks of another for a connection: commands, and their replies as they come back.
//!
//! A long reply comes in pieces, each sent when the core of the connection has taken those before.

use std::collections::VecDeque;
use std::sync::Arc;

use larder_join::LogEntry;
use larder_protocol::commands::Batch;
use larder_protocol::resp::Proto;
use tokio::sync::mpsc;

use super::clients::Client;
use super::core::Core;
use super::memory::Limits;
use crate::tables::Message;

/// Pieces of replies that wait to be taken.
pub(super) const ANSWERS_MAX: usize = 4;
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
    pub bytes: Vec<u8>,
    /// Where replies end in it.
    pub ends: Vec<usize>,
    /// When they were executed, if at one moment.
    pub moment: Option<(u64, u64)>,
    /// What a transaction's part changed.
    pub changes: Vec<LogEntry>,
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

    pub fn of(
        core: &Core,
        to: usize,
        requests: Requests,
        receiver: mpsc::Receiver<Answer>,
    ) -> Self {
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
