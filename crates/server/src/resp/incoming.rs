//! Replies of another core, of this node or another, as they come in, to requests that this one sent it for a connection.
//!
//! A long reply comes in pieces, each sent when the core of the connection has taken those before.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use larder_join::LogEntry;
use larder_protocol::commands::Batch;
use larder_protocol::resp::Proto;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::core::Core;
use super::nodes::{Routed, Wanted};
use crate::clients::{Client, Limits};
use crate::tables::{CoreMessage, Execution, ReplyPiece, Requests, Scope};

/// Pieces of replies that wait to be taken.
pub(super) const PIECES_MAX: usize = 4;

/// The replies of one core, in the order of the requests.
pub(super) struct Incoming {
    source: Source,
    bytes: Vec<u8>,
    at: usize,
    ends: VecDeque<usize>,
    moments: Vec<Option<(u64, u64)>>,
    changes: Vec<LogEntry>,
    limits: Limits,
    until: Option<Instant>,
}

enum Source {
    /// A core of this node, whatever its rows.
    Core(mpsc::Receiver<ReplyPiece>),
    /// In a cluster, whoever owns the keys.
    Owner(Box<Routed>),
}

impl Incoming {
    /// Asks whoever owns the keys, in a cluster. `place`: where they are known to be.
    pub fn routed(core: &Rc<Core>, place: Option<u16>, wanted: Wanted) -> Incoming {
        // What was written here before is logged before.
        core.tables.commit();
        let routed = Routed::ask(core, place, wanted);
        Incoming::new(core, Source::Owner(Box::new(routed)))
    }

    fn new(core: &Core, source: Source) -> Incoming {
        Incoming {
            source,
            bytes: Vec::new(),
            at: 0,
            ends: VecDeque::new(),
            moments: Vec::new(),
            changes: Vec::new(),
            limits: core.clients.limits,
            until: None,
        }
    }

    /// What comes later is not waited for.
    pub fn until(mut self, until: Option<Instant>) -> Incoming {
        self.until = until;
        self
    }

    /// Why nothing of it was executed, if that is so.
    pub fn not_done(&self) -> Option<&str> {
        match &self.source {
            Source::Core(_) => None,
            Source::Owner(routed) => routed.not_done(),
        }
    }

    /// Asks a core of this node. `epoch`: of the map that its part is to be of, in a cluster.
    #[allow(clippy::too_many_arguments, reason = "one call")]
    pub fn ask(
        core: &Core,
        to: usize,
        batch: Batch,
        proto: Proto,
        client: &Arc<Client>,
        ticket: Option<u64>,
        execution: Execution,
        epoch: u64,
    ) -> Incoming {
        let (pieces, receiver) = mpsc::channel(PIECES_MAX);
        let requests = Requests {
            batch,
            proto,
            client: client.clone(),
            ticket,
            execution,
            shared_batch: None,
            scope: match (ticket, &core.nodes) {
                (None, Some(_)) => Scope::Core { epoch },
                _ => Scope::Settled,
            },
            versions: Vec::new(),
            pieces,
        };
        // What was written here before is logged before.
        core.tables.commit();
        Incoming::of(core, to, requests, receiver)
    }

    pub fn of(
        core: &Core,
        to: usize,
        requests: Requests,
        receiver: mpsc::Receiver<ReplyPiece>,
    ) -> Self {
        core.shared.tables.send(to, CoreMessage::Requests(requests));
        Incoming::new(core, Source::Core(receiver))
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
            let answer = match &mut self.source {
                Source::Core(receiver) => match self.until {
                    None => receiver.recv().await?,
                    Some(until) => timeout_at(until, receiver.recv()).await.ok()??,
                },
                Source::Owner(routed) => routed.next().await?,
            };
            let ReplyPiece { bytes, ends, .. } = answer;
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
