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
//! 4. After [`ROUTE_TIMEOUT`] without progress, the remaining requests are rejected; none of them was executed.

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
use super::super::place::{are_slots_moving, place_avoiding};
use super::super::subject::CommandSubject;
use super::super::tables::{
    Destination, keys_on_several_nodes, slot_not_served, slots_still_moving,
};
use crate::clients::{Charge, Client};
use crate::cluster::{Failure, Link, ResponseStream};
use crate::error::Refusal;
use crate::tables::{CoreMessage, Execution, ReplyPiece, Requests, Scope};

/// Maximum time to search for an owner.
pub(in crate::resp) const ROUTE_TIMEOUT: Duration = Duration::from_secs(3);
/// Retry interval for an unreachable place, unless a newer view arrives earlier.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The target of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::resp) enum BatchTarget {
    /// The owner of their keys.
    Owner,
    /// This place. For a request over all nodes, it executes its part.
    Part(u16),
}

/// Requests to be routed.
pub(in crate::resp) struct RoutedBatch {
    pub batch: Batch,
    pub proto: Proto,
    pub client: Arc<Client>,
    pub execution: Execution,
    pub target: BatchTarget,
    /// The store versions from which the requests must be answered, by store name.
    pub versions: Vec<(String, u64)>,
    /// As in [`Requests`], for cores of this node.
    pub shared_batch: Option<u64>,
}

impl RoutedBatch {
    /// Creates requests that are executed one by one, each by the owner of its keys.
    pub fn of(batch: Batch, proto: Proto, client: &Arc<Client>) -> RoutedBatch {
        RoutedBatch {
            batch,
            proto,
            client: client.clone(),
            execution: Execution::OneByOne,
            target: BatchTarget::Owner,
            versions: Vec::new(),
            shared_batch: None,
        }
    }
}

pub(in crate::resp) struct BatchRouter {
    core: Rc<Core>,
    client: Arc<Client>,
    batch: Batch,
    proto: Proto,
    execution: Execution,
    target: BatchTarget,
    versions: Vec<(String, u64)>,
    shared_batch: Option<u64>,
    /// The first request without a complete reply.
    next: usize,
    /// A part of its reply has been returned.
    has_partial_reply: bool,
    in_flight: Option<InFlight>,
    /// The place to which requests were sent, and the end of the range of those requests.
    place: u16,
    end: usize,
    /// Nodes that could not be reached for records of stores. Other nodes with the records are tried first.
    avoided_nodes: Vec<NodeId>,
    /// The epoch of the view by which the last requests were routed.
    epoch: u64,
    /// The deadline.
    deadline: Option<Instant>,
    /// Requests before this index may have been executed; the second value is the cause of the uncertainty.
    unknown_outcome: Option<(usize, Rc<str>)>,
    last_failure: Option<Rc<str>>,
    /// The reason why the requests were not executed, for [`BatchTarget::Part`].
    rejection: Option<Rc<str>>,
    _charge: Charge,
}

enum InFlight {
    Core(mpsc::Receiver<ReplyPiece>),
    Node(ResponseStream),
    /// The connection's queue is full.
    QueueFull(Rc<Link>, peer::Requests),
}

impl BatchRouter {
    /// Starts to route requests, and sends the first ones if possible. `place`: the target of the first requests, if it
    /// is known.
    pub fn start(core: &Rc<Core>, place: Option<u16>, requests: RoutedBatch) -> BatchRouter {
        let RoutedBatch {
            batch,
            proto,
            client,
            execution,
            target,
            versions,
            shared_batch,
        } = requests;
        let mut charge = Charge::new(&client);
        charge.set(batch.memory_bytes());
        let mut router = BatchRouter {
            core: core.clone(),
            client,
            batch,
            proto,
            execution,
            target,
            versions,
            shared_batch,
            next: 0,
            has_partial_reply: false,
            in_flight: None,
            place: 0,
            end: 0,
            avoided_nodes: Vec::new(),
            epoch: 0,
            deadline: None,
            unknown_outcome: None,
            last_failure: None,
            rejection: None,
            _charge: charge,
        };
        match place {
            Some(place) => {
                let all = router.count();
                router.send(place, all);
            }
            // Errors are returned when the replies are read.
            None => drop(router.route()),
        }
        router
    }

    /// Returns the number of replies.
    fn count(&self) -> usize {
        match self.execution {
            Execution::Transaction => 1,
            _ => self.batch.len(),
        }
    }

    /// For [`BatchTarget::Part`], returns why the requests were not executed.
    pub fn rejection(&self) -> Option<&str> {
        self.rejection.as_deref()
    }

    /// Returns the next piece of the replies. `None` after the last, or if the rest of a reply is lost.
    pub async fn next(&mut self) -> Option<ReplyPiece> {
        while self.next < self.count() {
            if self.in_flight.is_none() {
                if let Some(refused) = self.refuse_unknown() {
                    return Some(refused);
                }
                // A part must not be retried: it would be executed by a later map than the other parts.
                let is_part = matches!(self.target, BatchTarget::Part(_));
                if !is_part && let Err(refusal) = self.route() {
                    let is_moving = self.is_moving();
                    if is_moving && self.has_time() {
                        self.wait_for_view().await;
                        continue;
                    }
                    return Some(self.refuse_next(if is_moving {
                        slots_still_moving()
                    } else {
                        refusal
                    }));
                }
            }
            match self.receive_piece().await {
                Ok(Some(piece)) => {
                    self.deadline = None;
                    self.next += piece.ends.len();
                    let complete = piece.ends.last().copied().unwrap_or(0);
                    self.has_partial_reply = piece.bytes.len() > complete
                        || (self.has_partial_reply && piece.ends.is_empty());
                    if self.next >= self.end {
                        self.in_flight = None;
                    }
                    return Some(piece);
                }
                Ok(None) => {
                    // Fewer replies arrived than requests were sent.
                    self.in_flight = None;
                    self.record_loss("the reply ended before all requests were answered".into())?;
                }
                Err(Failure::NotDone(why)) => {
                    self.in_flight = None;
                    if matches!(self.target, BatchTarget::Part(_)) {
                        self.rejection = Some(why);
                        return None;
                    }
                    self.last_failure = Some(why);
                    if !self.avoid_node() {
                        self.wait_for_view().await;
                    }
                }
                Err(Failure::Unknown(why)) => {
                    self.in_flight = None;
                    self.record_loss(why)?;
                    self.avoid_node();
                }
            }
        }
        None
    }

    /// Handles a lost connection: the requests that were sent may have been executed.
    fn record_loss(&mut self, why: Rc<str>) -> Option<()> {
        if self.has_partial_reply {
            return None;
        }
        self.unknown_outcome = Some((self.end, why.clone()));
        self.last_failure = Some(why);
        Some(())
    }

    /// Returns the error for a write of which it is unknown whether it was executed.
    fn refuse_unknown(&mut self) -> Option<ReplyPiece> {
        let (end, why) = self.unknown_outcome.as_ref()?;
        let is_write = match self.execution {
            Execution::Transaction => self.batch.iter().any(|command| command.writes()),
            _ => self.batch.get(self.next)?.writes(),
        };
        if self.next >= *end || !is_write {
            return None;
        }
        let message = format!("{why}; it is unknown whether the write was executed");
        Some(self.refuse_next((Code::Unknown, message)))
    }

    /// Returns an error in place of the next reply.
    fn refuse_next(&mut self, (code, message): Refusal) -> ReplyPiece {
        self.core.stats.error_replies.add(code);
        self.next += 1;
        self.deadline = None;
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
    fn avoid_node(&mut self) -> bool {
        let is_of_stores = |command| {
            let snapshot = self.core.shared.catalog.load();
            CommandSubject::of(&snapshot, command) == CommandSubject::Records
        };
        let is_read = self.target == BatchTarget::Owner
            && self.execution == Execution::OneByOne
            && self.batch.get(self.next).is_some_and(is_of_stores);
        let Some(failed) = self.core.tables.place(self.place).filter(|_| is_read) else {
            return false;
        };
        self.avoided_nodes.push(failed.node);
        // If no other node is left, all are tried again after a delay.
        let is_other_left = self.place_of(self.next).is_ok();
        if !is_other_left {
            self.avoided_nodes.clear();
        }
        is_other_left
    }

    /// Returns the place of a request.
    fn place_of(&self, at: usize) -> Result<u16, Refusal> {
        let command = match self.batch.get(at) {
            Some(command) => command,
            None => return Ok(self.core.index as u16),
        };
        let snapshot = self.core.shared.catalog.load();
        match place_avoiding(&self.core, &snapshot, command, &self.avoided_nodes) {
            Destination::Core(place) => Ok(place as u16),
            Destination::AllCores => Ok(self.core.index as u16),
            Destination::Unavailable => Err(slot_not_served(&self.core)),
            Destination::Nodes => {
                let message =
                    "the keys of the request are now owned by several nodes; retry the request";
                Err((Code::TryAgain, message.to_owned()))
            }
        }
    }

    /// Returns whether the rows of the next request are moving from this node to another one, so that waiting helps.
    fn is_moving(&self) -> bool {
        self.batch.get(self.next).is_some_and(|command| {
            let snapshot = self.core.shared.catalog.load();
            CommandSubject::of(&snapshot, command).has_rows()
                && matches!(self.place_of(self.next), Err((Code::ClusterDown, _)))
                && are_slots_moving(&self.core, command)
        })
    }

    fn has_time(&self) -> bool {
        self.deadline
            .is_none_or(|deadline| Instant::now() <= deadline)
    }

    /// Sends the next requests up to the first that belongs to another place.
    fn route(&mut self) -> Result<(), Refusal> {
        // Set before the search, so that after a failure the next view is waited for.
        self.epoch = self.core.tables.map_epoch();
        if !self.has_time() {
            let why = self
                .last_failure
                .as_deref()
                .unwrap_or("no node of the cluster replied");
            return Err((
                Code::ClusterDown,
                format!("the request was not executed: {why}"),
            ));
        }
        if self.execution == Execution::Transaction {
            let places = (0..self.batch.len()).map(|at| self.place_of(at));
            let places = places.collect::<Result<Vec<u16>, Refusal>>()?;
            let first = places.first().copied().unwrap_or(self.core.index as u16);
            let nodes = |place: &u16| self.core.tables.place(*place).map(|place| place.node);
            if places.iter().any(|place| nodes(place) != nodes(&first)) {
                return Err(keys_on_several_nodes("EXEC"));
            }
            self.send(first, 1);
            return Ok(());
        }
        let first = self.place_of(self.next)?;
        let unknown_end = self.unknown_outcome.as_ref().map_or(0, |(end, _)| *end);
        let mut end = self.next + 1;
        while end < self.batch.len() && self.place_of(end).is_ok_and(|place| place == first) {
            // The write may have been executed, so it must not be sent again.
            if end < unknown_end && self.batch.get(end).is_some_and(|command| command.writes()) {
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
        self.epoch = tables.map_epoch();
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
            self.in_flight = Some(InFlight::Core(receiver));
            return;
        }
        let (Some(nodes), Some(to)) = (&self.core.nodes, tables.place(place)) else {
            self.last_failure = Some("the core is no longer in the cluster map".into());
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
            Err(failure) => self.last_failure = Some(failure.into_reason()),
            Ok(link) => {
                self.in_flight = Some(match link.can_request() {
                    Ok(()) => match link.try_request(requests) {
                        Ok(answer) => InFlight::Node(answer),
                        Err(_) => return self.last_failure = link.end_reason(),
                    },
                    Err(_) => InFlight::QueueFull(link, requests),
                });
            }
        }
    }

    /// Returns the next piece of the replies.
    async fn receive_piece(&mut self) -> Result<Option<ReplyPiece>, Failure> {
        if let Some(InFlight::QueueFull(..)) = self.in_flight
            && let Some(InFlight::QueueFull(link, requests)) = self.in_flight.take()
        {
            self.in_flight = Some(InFlight::Node(link.request(requests).await?));
        }
        match &mut self.in_flight {
            Some(InFlight::Core(receiver)) => match receiver.recv().await {
                Some(ReplyPiece {
                    not_done: Some(why),
                    ..
                }) => Err(Failure::NotDone(why.into())),
                piece => Ok(piece),
            },
            Some(InFlight::Node(answer)) => {
                let piece = answer.next().await?;
                Ok(piece.map(|piece| ReplyPiece {
                    ends: piece.ends.iter().collect(),
                    moment: piece.moment,
                    bytes: piece.bytes.into(),
                    ..ReplyPiece::default()
                }))
            }
            _ => {
                let why = self.last_failure.clone();
                Err(Failure::NotDone(
                    why.unwrap_or_else(|| "the request could not be sent".into()),
                ))
            }
        }
    }

    /// Waits for a newer view, or for [`RETRY_INTERVAL`].
    async fn wait_for_view(&mut self) {
        self.deadline
            .get_or_insert_with(|| Instant::now() + ROUTE_TIMEOUT);
        let newer = self.core.tables.wait_for_epoch(self.epoch + 1);
        // After a timeout, the request is retried with the same view.
        let _ = tokio::time::timeout(RETRY_INTERVAL, newer).await;
    }
}
