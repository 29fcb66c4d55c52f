//! Replies of another core, on this node or another, to requests that this core forwarded for a connection.
//!
//! A long reply arrives in pieces. Each is sent once the receiving core has consumed the previous ones.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use larder_join::LogEntry;
use larder_protocol::commands::Batch;
use larder_protocol::resp::Proto;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::core::Core;
use super::nodes::{BatchRouter, RoutedBatch};
use crate::clients::{Client, Limits};
use crate::tables::{CoreMessage, Execution, ReplyPiece, Requests, Scope};

/// Maximum number of pieces queued for the receiving core.
pub(super) const PIECES_MAX: usize = 4;

/// The replies of one core, in the order of the requests.
pub(super) struct Incoming {
    source: Source,
    bytes: Vec<u8>,
    consumed: usize,
    ends: VecDeque<usize>,
    moments: Vec<Option<(u64, u64)>>,
    changes: Vec<LogEntry>,
    limits: Limits,
    deadline: Option<Instant>,
}

enum Source {
    /// A core of this node, whichever rows it owns.
    Core(mpsc::Receiver<ReplyPiece>),
    /// In a cluster, the owner of the keys.
    Owner(Box<BatchRouter>),
}

impl Incoming {
    /// In a cluster, forwards requests to the owner of their keys. `place` is the owner, if it is already known.
    pub fn request_owner(
        core: &Rc<Core>,
        place: Option<u16>,
        routed_batch: RoutedBatch,
    ) -> Incoming {
        // This core's earlier writes must precede the forwarded ones in the log.
        core.tables.commit();
        let routed = BatchRouter::start(core, place, routed_batch);
        Incoming::new(core, Source::Owner(Box::new(routed)))
    }

    fn new(core: &Core, source: Source) -> Incoming {
        Incoming {
            source,
            bytes: Vec::new(),
            consumed: 0,
            ends: VecDeque::new(),
            moments: Vec::new(),
            changes: Vec::new(),
            limits: core.clients.limits,
            deadline: None,
        }
    }

    /// Sets the deadline: replies that arrive later are not waited for.
    pub fn with_deadline(mut self, until: Option<Instant>) -> Incoming {
        self.deadline = until;
        self
    }

    /// Returns the reason if none of the requests was executed.
    pub fn rejection(&self) -> Option<&str> {
        match &self.source {
            Source::Core(_) => None,
            Source::Owner(routed) => routed.rejection(),
        }
    }

    /// Sends requests to a core of this node. In a cluster, `epoch` is that of the map by which they were divided.
    #[allow(clippy::too_many_arguments, reason = "one call")]
    pub fn request_core(
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
                _ => Scope::Verified,
            },
            versions: Vec::new(),
            pieces,
        };
        // This core's earlier writes must precede the forwarded ones in the log.
        core.tables.commit();
        Incoming::send(core, to, requests, receiver)
    }

    pub fn send(
        core: &Core,
        to: usize,
        requests: Requests,
        receiver: mpsc::Receiver<ReplyPiece>,
    ) -> Self {
        core.shared.tables.send(to, CoreMessage::Requests(requests));
        Incoming::new(core, Source::Core(receiver))
    }

    /// Appends the next piece of a reply to `out`, and returns whether it completes the reply. `None` if the core has
    /// stopped.
    pub async fn next(&mut self, out: &mut Vec<u8>) -> Option<bool> {
        loop {
            if let Some(end) = self.ends.pop_front() {
                out.extend_from_slice(&self.bytes[self.consumed..end]);
                self.consumed = end;
                return Some(true);
            }
            if self.consumed < self.bytes.len() {
                out.extend_from_slice(&self.bytes[self.consumed..]);
                self.consumed = self.bytes.len();
                return Some(false);
            }
            let piece = match &mut self.source {
                Source::Core(receiver) => match self.deadline {
                    None => receiver.recv().await?,
                    Some(until) => timeout_at(until, receiver.recv()).await.ok()??,
                },
                Source::Owner(routed) => routed.next().await?,
            };
            let ReplyPiece { bytes, ends, .. } = piece;
            self.moments.push(piece.moment);
            self.changes.extend(piece.changes);
            (self.bytes, self.consumed, self.ends) = (bytes, 0, ends.into());
        }
    }

    /// Returns the moment (see `Tables::moment`) at which all replies so far were executed, if it is the same for all.
    pub fn moment(&self) -> Option<(u64, u64)> {
        let first = self.moments.first().copied().flatten()?;
        let is_one = self.moments.iter().all(|moment| *moment == Some(first));
        is_one.then_some(first)
    }

    /// Takes the changes made by a core's part of a transaction. Call it after the last reply.
    pub fn take_changes(&mut self) -> Vec<LogEntry> {
        std::mem::take(&mut self.changes)
    }

    /// Returns the next complete reply. A reply that exceeds the client's limit is replaced by an error.
    pub async fn reply(&mut self) -> Option<Vec<u8>> {
        let mut reply = Vec::new();
        let mut is_too_long = false;
        while !self.next(&mut reply).await? {
            if reply.len() > self.limits.reply_bytes() {
                is_too_long = true;
                reply.clear();
            }
        }
        if is_too_long {
            reply = self.limits.encode_reply_too_long();
        }
        Some(reply)
    }
}
