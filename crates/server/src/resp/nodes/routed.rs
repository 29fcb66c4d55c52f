//! Routes requests to the owner of their keys, on this node or another, and routes them again if the owner has changed.
//!
//! ```text
//!            ┌─────────── NotDone: a newer view, or a delay ──────────────┐
//!            ▼                                                            │
//!   batch ─ route ─► consecutive requests of one place ─► pieces ─────────┤
//!            ▲                                                            │
//!            └─ Unknown: returns UNKNOWN for a write, retries reads ◄─────┘
//! ```
//!
//! 1. The replies arrive in the order of the requests, each exactly once.
//! 2. A write that may have been executed is never sent again.
//! 3. A part of a request over all nodes is sent only once. Its place executes it by the map of the same epoch as the
//!    places of the other parts.
//! 4. After [`PATIENCE`] without progress, the remaining requests are rejected; none of them was executed.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_cluster::map::NodeId;
use larder_cluster::peer;
use larder_protocol::commands::Batch;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto};
use tokio::sync::mpsc;

use super::super::core::Core;
use super::super::incoming::PIECES_MAX;
use super::super::place::{is_on_its_way, place_without};
use super::super::subject::About;
use super::super::tables::{To, not_served, of_several_nodes, still_moving};
use crate::clients::{Charge, Client};
use crate::cluster::{Answer, Failure, Link};
use crate::error::Refusal;
use crate::tables::{CoreMessage, Execution, ReplyPiece, Requests, Scope};

/// Maximum time to search for an owner.
pub(in crate::resp) const PATIENCE: Duration = Duration::from_secs(3);
/// Retry interval for an unreachable place, unless a newer view arrives earlier.
const AGAIN: Duration = Duration::from_millis(50);

/// The target of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::resp) enum Target {
    /// The owner of their keys.
    Owner,
    /// This place. For a request over all nodes, it executes its part.
    Part(u16),
}

/// Requests to be routed.
pub(in crate::resp) struct Wanted {
    pub batch: Batch,
    pub proto: Proto,
    pub client: Arc<Client>,
    pub execution: Execution,
    pub target: Target,
    /// The store versions from which the requests must be answered, by store name.
    pub versions: Vec<(String, u64)>,
    /// As in [`Requests`], for cores of this node.
    pub shared_batch: Option<u64>,
}

impl Wanted {
    /// Creates requests that are executed one by one, each by the owner of its keys.
    pub fn of(batch: Batch, proto: Proto, client: &Arc<Client>) -> Wanted {
        Wanted {
            batch,
            proto,
            client: client.clone(),
            execution: Execution::OneByOne,
            target: Target::Owner,
            versions: Vec::new(),
            shared_batch: None,
        }
    }
}

pub(in crate::resp) struct Routed {
    core: Rc<Core>,
    client: Arc<Client>,
    batch: Batch,
    proto: Proto,
    execution: Execution,
    target: Target,
    versions: Vec<(String, u64)>,
    shared_batch: Option<u64>,
    /// The first request without a complete reply.
    next: usize,
    /// A part of its reply has been returned.
    is_begun: bool,
    asked: Option<Asked>,
    /// The place to which requests were sent, and the end of the range of those requests.
    place: u16,
    end: usize,
    /// Nodes that could not be reached for records of stores. Other nodes with the records are tried first.
    avoided: Vec<NodeId>,
    /// The epoch of the view by which the last requests were routed.
    epoch: u64,
    /// The deadline.
    until: Option<Instant>,
    /// Requests before this index may have been executed; the second value is the cause of the uncertainty.
    unknown: Option<(usize, Rc<str>)>,
    why: Option<Rc<str>>,
    /// The reason why the requests were not executed, for [`Target::Part`].
    not_done: Option<Rc<str>>,
    _charge: Charge,
}

enum Asked {
    Core(mpsc::Receiver<ReplyPiece>),
    Node(Answer),
    /// The connection's queue is full.
    Room(Rc<Link>, peer::Requests),
}

impl Routed {
    /// Starts to route requests, and sends the first ones if possible. `place`: the target of the first requests, if it
    /// is known.
    pub fn ask(core: &Rc<Core>, place: Option<u16>, wanted: Wanted) -> Routed {
        let Wanted {
            batch,
            proto,
            client,
            execution,
            target,
            versions,
            shared_batch,
        } = wanted;
        let mut charge = Charge::new(&client);
        charge.set(batch.memory_bytes());
        let mut routed = Routed {
            core: core.clone(),
            client,
            batch,
            proto,
            execution,
            target,
            versions,
            shared_batch,
            next: 0,
            is_begun: false,
            asked: None,
            place: 0,
            end: 0,
            avoided: Vec::new(),
            epoch: 0,
            until: None,
            unknown: None,
            why: None,
            not_done: None,
            _charge: charge,
        };
        match place {
            Some(place) => {
                let all = routed.count();
                routed.send(place, all);
            }
            // Errors are returned when the replies are read.
            None => drop(routed.route()),
        }
        routed
    }

    /// Returns the number of replies.
    fn count(&self) -> usize {
        match self.execution {
            Execution::Transaction => 1,
            _ => self.batch.len(),
        }
    }

    /// For [`Target::Part`], returns why the requests were not executed.
    pub fn not_done(&self) -> Option<&str> {
        self.not_done.as_deref()
    }

    /// Returns the next piece of the replies. `None` after the last, or if the rest of a reply is lost.
    pub async fn next(&mut self) -> Option<ReplyPiece> {
        while self.next < self.count() {
            if self.asked.is_none() {
                if let Some(refused) = self.refused_unknown() {
                    return Some(refused);
                }
                // A part must not be retried: it would be executed by a later map than the other parts.
                let is_part = matches!(self.target, Target::Part(_));
                if !is_part && let Err(refusal) = self.route() {
                    let is_on_its_way = self.is_on_its_way();
                    if is_on_its_way && self.has_time() {
                        self.wait().await;
                        continue;
                    }
                    return Some(self.refuse_next(if is_on_its_way {
                        still_moving()
                    } else {
                        refusal
                    }));
                }
            }
            match self.heard().await {
                Ok(Some(piece)) => {
                    self.until = None;
                    self.next += piece.ends.len();
                    let whole = piece.ends.last().copied().unwrap_or(0);
                    self.is_begun =
                        piece.bytes.len() > whole || (self.is_begun && piece.ends.is_empty());
                    if self.next >= self.end {
                        self.asked = None;
                    }
                    return Some(piece);
                }
                Ok(None) => {
                    // Fewer replies arrived than requests were sent.
                    self.asked = None;
                    self.lost("an answer ended before its time".into())?;
                }
                Err(Failure::NotDone(why)) => {
                    self.asked = None;
                    if matches!(self.target, Target::Part(_)) {
                        self.not_done = Some(why);
                        return None;
                    }
                    self.why = Some(why);
                    if !self.avoids_node() {
                        self.wait().await;
                    }
                }
                Err(Failure::Unknown(why)) => {
                    self.asked = None;
                    self.lost(why)?;
                    self.avoids_node();
                }
            }
        }
        None
    }

    /// Handles a lost connection: the requests that were sent may have been executed.
    fn lost(&mut self, why: Rc<str>) -> Option<()> {
        if self.is_begun {
            return None;
        }
        self.unknown = Some((self.end, why.clone()));
        self.why = Some(why);
        Some(())
    }

    /// Returns the error for a write of which it is unknown whether it was executed.
    fn refused_unknown(&mut self) -> Option<ReplyPiece> {
        let (end, why) = self.unknown.as_ref()?;
        let is_write = match self.execution {
            Execution::Transaction => self.batch.iter().any(|command| command.writes()),
            _ => self.batch.get(self.next)?.writes(),
        };
        if self.next >= *end || !is_write {
            return None;
        }
        let message = format!("{why}; it is unknown whether this was done");
        Some(self.refuse_next((Code::Unknown, message)))
    }

    /// Returns an error in place of the next reply.
    fn refuse_next(&mut self, (code, message): Refusal) -> ReplyPiece {
        self.core.stats.error_replies.add(code);
        self.next += 1;
        self.until = None;
        let mut bytes = Vec::new();
        let proto = self.proto;
        let mut encoder = Encoder {
            out: &mut bytes,
            proto,
        };
        encoder.error(code, &message);
        ReplyPiece {
            ends: vec![bytes.len()],
            bytes,
            ..ReplyPiece::default()
        }
    }

    /// Excludes the failed node if another one has the records that the next request reads. Returns whether there is
    /// one.
    fn avoids_node(&mut self) -> bool {
        let is_of_stores = |command| {
            let snapshot = self.core.shared.catalog.load();
            About::of(&snapshot, command) == About::Records
        };
        let is_read = self.target == Target::Owner
            && self.execution == Execution::OneByOne
            && self.batch.get(self.next).is_some_and(is_of_stores);
        let Some(asked) = self.core.tables.place(self.place).filter(|_| is_read) else {
            return false;
        };
        self.avoided.push(asked.node);
        // If no other node is left, all are tried again after a delay.
        let is_left = self.place_of(self.next).is_ok();
        if !is_left {
            self.avoided.clear();
        }
        is_left
    }

    /// Returns the place of a request.
    fn place_of(&self, at: usize) -> Result<u16, Refusal> {
        let command = match self.batch.get(at) {
            Some(command) => command,
            None => return Ok(self.core.index as u16),
        };
        let snapshot = self.core.shared.catalog.load();
        match place_without(&self.core, &snapshot, command, &self.avoided) {
            To::Core(place) => Ok(place as u16),
            To::Several => Ok(self.core.index as u16),
            To::Nobody => Err(not_served(&self.core)),
            To::Nodes => {
                let message = "the keys of this request have come to be on several nodes meanwhile; send it again";
                Err((Code::TryAgain, message.to_owned()))
            }
        }
    }

    /// Returns whether the rows of the next request are moving from this node to another one, so that waiting helps.
    fn is_on_its_way(&self) -> bool {
        self.batch.get(self.next).is_some_and(|command| {
            let snapshot = self.core.shared.catalog.load();
            About::of(&snapshot, command).has_rows()
                && matches!(self.place_of(self.next), Err((Code::ClusterDown, _)))
                && is_on_its_way(&self.core, command)
        })
    }

    fn has_time(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() <= until)
    }

    /// Sends the next requests up to the first that belongs to another place.
    fn route(&mut self) -> Result<(), Refusal> {
        // Set before the search, so that after a failure the next view is waited for.
        self.epoch = self.core.tables.epoch_of_map();
        if !self.has_time() {
            let why = self
                .why
                .as_deref()
                .unwrap_or("no node of the cluster answers");
            return Err((Code::ClusterDown, format!("not done: {why}")));
        }
        if self.execution == Execution::Transaction {
            let places = (0..self.batch.len()).map(|at| self.place_of(at));
            let places = places.collect::<Result<Vec<u16>, Refusal>>()?;
            let first = places.first().copied().unwrap_or(self.core.index as u16);
            let nodes = |place: &u16| self.core.tables.place(*place).map(|place| place.node);
            if places.iter().any(|place| nodes(place) != nodes(&first)) {
                return Err(of_several_nodes("EXEC"));
            }
            self.send(first, 1);
            return Ok(());
        }
        let first = self.place_of(self.next)?;
        let until = self.unknown.as_ref().map_or(0, |(end, _)| *end);
        let mut end = self.next + 1;
        while end < self.batch.len() && self.place_of(end).is_ok_and(|place| place == first) {
            // The write may have been executed, so it must not be sent again.
            if end < until && self.batch.get(end).is_some_and(|command| command.writes()) {
                break;
            }
            end += 1;
        }
        self.send(first, end);
        Ok(())
    }

    /// Sends requests up to `end` to a place.
    fn send(&mut self, place: u16, end: usize) {
        let tables = &self.core.tables;
        (self.place, self.end) = (place, end);
        self.epoch = tables.epoch_of_map();
        let is_all = self.next == 0 && end == self.count();
        let part = || {
            self.batch
                .iter()
                .skip(self.next)
                .take(end - self.next)
                .collect::<Batch>()
        };
        if usize::from(place) < self.core.shared.tables.cores() {
            let (pieces, receiver) = mpsc::channel(PIECES_MAX);
            let requests = Requests {
                batch: if is_all { self.batch.clone() } else { part() },
                proto: self.proto,
                client: self.client.clone(),
                ticket: None,
                execution: self.execution,
                shared_batch: self.shared_batch,
                scope: Scope::Node { epoch: self.epoch },
                versions: self.versions.clone(),
                pieces,
            };
            let message = CoreMessage::Requests(requests);
            self.core.shared.tables.send(usize::from(place), message);
            self.asked = Some(Asked::Core(receiver));
            return;
        }
        let (Some(nodes), Some(to)) = (&self.core.nodes, tables.place(place)) else {
            self.why = Some("the place is not known any more".into());
            return;
        };
        let mut bytes = Vec::new();
        if is_all {
            self.batch.encode(&mut bytes)
        } else {
            part().encode(&mut bytes)
        }
        let requests = peer::Requests {
            core: to.core,
            execution: match self.execution {
                Execution::Transaction => peer::Execution::Transaction,
                _ => peer::Execution::OneByOne,
            },
            proto: match self.proto {
                Proto::Resp2 => 2,
                Proto::Resp3 => 3,
            },
            client: Some(self.client.addr),
            epoch: self.epoch,
            versions: self.versions.clone(),
            batch: Bytes::from(bytes),
        };
        match nodes.peers.link(to.node) {
            Err(failure) => self.why = Some(failure.why()),
            Ok(link) => {
                self.asked = Some(match link.can_ask() {
                    Ok(()) => match link.try_ask(requests) {
                        Ok(answer) => Asked::Node(answer),
                        Err(_) => return self.why = link.why(),
                    },
                    Err(_) => Asked::Room(link, requests),
                });
            }
        }
    }

    /// Returns the next piece of the replies.
    async fn heard(&mut self) -> Result<Option<ReplyPiece>, Failure> {
        if let Some(Asked::Room(..)) = self.asked
            && let Some(Asked::Room(link, requests)) = self.asked.take()
        {
            self.asked = Some(Asked::Node(link.ask(requests).await?));
        }
        match &mut self.asked {
            Some(Asked::Core(receiver)) => match receiver.recv().await {
                Some(ReplyPiece {
                    not_done: Some(why),
                    ..
                }) => Err(Failure::NotDone(why.into())),
                piece => Ok(piece),
            },
            Some(Asked::Node(answer)) => {
                let piece = answer.next().await?;
                Ok(piece.map(|piece| ReplyPiece {
                    ends: piece.ends.iter().collect(),
                    moment: piece.moment,
                    bytes: piece.bytes.into(),
                    ..ReplyPiece::default()
                }))
            }
            _ => {
                let why = self.why.clone();
                Err(Failure::NotDone(
                    why.unwrap_or_else(|| "it could not be sent".into()),
                ))
            }
        }
    }

    /// Waits for a newer view, or for [`AGAIN`].
    async fn wait(&mut self) {
        self.until.get_or_insert_with(|| Instant::now() + PATIENCE);
        let newer = self.core.tables.wait_for_epoch(self.epoch + 1);
        // After a timeout, the request is retried with the same view.
        let _ = tokio::time::timeout(AGAIN, newer).await;
    }
}
