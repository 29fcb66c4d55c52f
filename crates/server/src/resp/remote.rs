//! Executes requests that another core, or another node, has forwarded to this core.
//!
//! Replies are sent when their gate opens, as in a session. See `forwarded` for the requests that may be executed
//! concurrently.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use std::time::Duration;

use larder_cluster::peer::PieceStatus;
use larder_join::Shard;
use larder_protocol::commands::{Batch, Command, Id, OwnedCommand};
use larder_protocol::errors::Code;
use larder_types::VersionId;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::command_stats::record_command;
use super::core::Core;
use super::dispatch::start;
use super::drive::{Completion, ReplySink, drive};
use super::execute::TURN_MAX;
use super::nodes::encode_piece;
use super::pending::{Pending, Work};
use super::place::place_of;
use super::state::ConnectionState;
use super::subject::CommandSubject;
use super::tables::{self, CoordinatedCommand, Destination, concerns_every_core};
use crate::Shared;
use crate::catalog::{LiveStore, Lookup, Snapshot};
use crate::clients::Charge;
use crate::cluster::Responder;
use crate::error::Error;
use crate::tables::{Execution, Gate, ReplyPiece, Requests, Scope};

/// Longer replies are sent in pieces.
const PIECE_BYTES: usize = 256 << 10;
const SLOT_MOVED: &str = "the slot has moved to another node: send the command again";
/// Maximum time to wait for a cluster map as new as the sender's.
const MAP_WAIT_MAX: Duration = Duration::from_secs(2);

/// The place that executes a request which arrived at this core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placement {
    Here,
    /// On several cores of this node.
    Several,
    /// Not on this node, or not on the core to which it was sent.
    Elsewhere,
}

/// Returns whether the command names keys, instead of a range or all rows.
fn has_keys(command: Command<'_>) -> bool {
    command.keys().len() > 0
}

/// Returns the snapshot from which requests of another node are answered. It contains the versions that the requests
/// name, even if others are live on this node by now.
///
/// # Errors
/// The named version that this node does not have.
fn pin_versions(shared: &Shared, versions: &[(String, u64)]) -> Result<Arc<Snapshot>, String> {
    let snapshot = shared.catalog.load().clone();
    let mut others = Vec::new();
    for (store, version) in versions {
        match snapshot.lookup(store.as_bytes()) {
            Lookup::Live(live) if live.version_id.0 == *version => {}
            _ => others.push((store, VersionId(*version))),
        }
    }
    if others.is_empty() {
        return Ok(snapshot);
    }
    let retained = others.into_iter().map(|(name, id)| {
        let missing =
            |reason: Error| format!("version {id} of {name} is not on this node: {reason}");
        let store = shared.stores.get(name).map_err(missing)?;
        let version = store.checked_version(id).map_err(missing)?;
        Ok(LiveStore {
            name: store.name.clone(),
            version_id: id,
            version,
        })
    });
    let retained = retained.collect::<Result<Vec<LiveStore>, String>>()?;
    Ok(Arc::new(snapshot.with_versions(retained)))
}

/// Requests of another core's connection during their execution.
pub(super) struct Remote {
    state: ConnectionState,
    batch: Batch,
    /// Number of executed requests.
    executed: usize,
    ends: Vec<usize>,
    /// The moment of the first request, and whether all requests were executed at that moment.
    moment: Option<((u64, u64), bool)>,
    ticket: Option<u64>,
    execution: Execution,
    shared_batch: Option<u64>,
    scope: Scope,
    versions: Vec<(String, u64)>,
    /// The snapshot for reads of stores, if the requests name versions.
    pinned: Option<Arc<Snapshot>>,
    /// The ownership by which all requests were checked. The check stays valid while the ownership is unchanged.
    checked_shard: Option<Rc<Shard>>,
    replies: ReplyChannel,
    /// The memory of the requests and replies.
    charge: Charge,
}

/// The destination of the replies.
pub(super) enum ReplyChannel {
    Core(mpsc::Sender<ReplyPiece>),
    Node(Responder),
}

impl ReplyChannel {
    /// Sends the first piece. The channel always has room for it.
    fn send_first(&mut self, piece: ReplyPiece, last: PieceStatus) {
        // An error means that the receiver is gone.
        match self {
            ReplyChannel::Core(sender) => drop(sender.try_send(piece)),
            ReplyChannel::Node(answering) => drop(answering.try_send(encode_piece(piece, last))),
        }
    }

    /// # Errors
    /// The receiver is gone.
    async fn send(&mut self, piece: ReplyPiece, last: PieceStatus) -> io::Result<()> {
        let closed = || io::Error::other("the connection was closed");
        match self {
            ReplyChannel::Core(sender) => sender.send(piece).await.map_err(|_| closed()),
            ReplyChannel::Node(answering) => {
                let sent = answering.send(encode_piece(piece, last)).await;
                sent.map_err(|_| closed())
            }
        }
    }
}

/// Executes requests: synchronously if possible, else in a task.
pub(super) fn execute(core: &Rc<Core>, requests: Requests) {
    let pieces = ReplyChannel::Core(requests.pieces.clone());
    execute_for(core, requests, pieces);
}

/// As [`execute`], but sends the replies to `pieces`.
pub(super) fn execute_for(core: &Rc<Core>, requests: Requests, pieces: ReplyChannel) {
    let mut remote = Remote::new(core, requests, pieces);
    // Changes that were sent before these requests must be visible to them.
    if core.tables.process_messages()
        && !core.tables.is_paused()
        && remote.ticket.is_none()
        && remote.has_map()
    {
        if let Err(reason) = remote.check() {
            return remote.refuse(reason);
        }
        let pending = remote.step();
        if pending.is_none() && remote.is_done() && remote.state.gate.is_open() {
            let piece = remote.take_piece();
            remote.replies.send_first(piece, PieceStatus::Complete);
            return;
        }
        tokio::task::spawn_local(remote.run(pending));
        return;
    }
    tokio::task::spawn_local(remote.run(None));
}

impl Remote {
    fn new(core: &Rc<Core>, requests: Requests, pieces: ReplyChannel) -> Remote {
        let Requests {
            batch,
            proto,
            client,
            ticket,
            execution,
            shared_batch,
            scope,
            versions,
            pieces: _,
        } = requests;
        let mut charge = Charge::new(&client);
        charge.set(batch.memory_bytes());
        let mut state = ConnectionState::new(core.clone(), client, true);
        state.proto = proto;
        state.output.tail = core.take_buffer();
        // A reply is sent as one piece, so it must be contiguous.
        state.output.has_holes = true;
        if let Scope::Node { epoch } | Scope::Core { epoch } = scope {
            (state.executes_part, state.routing_epoch) = (true, epoch);
        }
        Remote {
            state,
            batch,
            executed: 0,
            ends: Vec::new(),
            moment: None,
            ticket,
            execution,
            shared_batch,
            scope,
            versions,
            pinned: None,
            checked_shard: None,
            replies: pieces,
            charge,
        }
    }

    /// Returns whether this node's map is at least as new as the sender's.
    fn has_map(&self) -> bool {
        match self.scope {
            Scope::Node { epoch } => self.state.core.tables.map_epoch() >= epoch,
            _ => true,
        }
    }

    /// Checks that the requests belong to this core or this node. For keys that another core of this node executes,
    /// that core checks.
    ///
    /// # Errors
    /// The reason why a request does not belong here.
    fn check(&mut self) -> Result<(), String> {
        let Scope::Node { .. } = self.scope else {
            return Ok(());
        };
        let core = &self.state.core;
        if !self.versions.is_empty() {
            self.pinned = Some(pin_versions(&core.shared, &self.versions)?);
        }
        let (live, pinned) = (core.shared.catalog.load(), self.pinned.clone());
        let snapshot: &Snapshot = pinned.as_deref().unwrap_or(&live);
        let mut all_local = true;
        for command in self.batch.iter() {
            match self.find_placement(snapshot, command) {
                Placement::Here => {}
                Placement::Several => all_local = false,
                Placement::Elsewhere => {
                    let reason = "this node does not own the requested keys";
                    return Err(reason.to_owned());
                }
            }
        }
        self.checked_shard = core.tables.shard().filter(|_| all_local);
        Ok(())
    }

    /// Returns where on this node a command is executed.
    fn find_placement(&self, snapshot: &Snapshot, command: Command<'_>) -> Placement {
        let Scope::Node { epoch } = self.scope else {
            return match self.scope {
                Scope::Core { epoch } => self.find_part_placement(snapshot, command, epoch),
                _ => Placement::Here,
            };
        };
        let core = &self.state.core;
        let cores = core.shared.tables.cores();
        if concerns_every_core(&core.tables, snapshot, command) {
            // The other nodes' parts were divided by that map, too.
            return match core.tables.ensure_owner_since(epoch) {
                Ok(()) if cores == 1 => Placement::Here,
                Ok(()) => Placement::Several,
                Err(_) => Placement::Elsewhere,
            };
        }
        match place_of(core, snapshot, command) {
            Destination::Core(own) if own == core.index => Placement::Here,
            Destination::Core(own) if own < cores && self.execution == Execution::Transaction => {
                Placement::Several
            }
            Destination::AllCores => Placement::Several,
            Destination::Nodes if !has_keys(command) && core.tables.ownership_epoch() <= epoch => {
                match cores {
                    1 => Placement::Here,
                    _ => Placement::Several,
                }
            }
            _ => Placement::Elsewhere,
        }
    }

    /// As [`Remote::fit`], for a request that was already divided by core.
    fn find_part_placement(
        &self,
        snapshot: &Snapshot,
        command: Command<'_>,
        epoch: u64,
    ) -> Placement {
        let core = &self.state.core;
        let is_mapped = |key: &[u8]| core.tables.is_mapped(key);
        // Every core can execute commands on rows that PostgreSQL holds.
        let is_of_any = if command.writes() {
            command.keys().any(is_mapped)
        } else {
            has_keys(command) && command.keys().all(is_mapped)
        };
        if is_of_any {
            return Placement::Here;
        }
        if concerns_every_core(&core.tables, snapshot, command)
            && core.tables.ensure_owner_since(epoch).is_err()
        {
            return Placement::Elsewhere;
        }
        match place_of(core, snapshot, command) {
            Destination::Core(own) if own != core.index => Placement::Elsewhere,
            Destination::AllCores | Destination::Nodes if has_keys(command) => Placement::Elsewhere,
            _ => Placement::Here,
        }
    }

    /// Reports that none of the requests was executed.
    fn refuse(&mut self, reason: String) {
        let refused = ReplyPiece {
            not_done: Some(reason),
            ..ReplyPiece::default()
        };
        self.replies.send_first(refused, PieceStatus::NotDone);
    }

    /// Returns whether the replies so far should be sent before more are produced.
    fn is_long(&self) -> bool {
        self.execution != Execution::Transaction && self.state.output.tail.len() >= PIECE_BYTES
    }

    /// Executes requests until one must wait, or until the time limit of a turn.
    fn step(&mut self) -> Option<Pending> {
        let core = self.state.core.clone();
        self.note_moment();
        let (live, pinned) = (core.shared.catalog.load(), self.pinned.clone());
        let snapshot: &Snapshot = pinned.as_deref().unwrap_or(&live);
        if self.execution == Execution::Transaction {
            if !self.ends.is_empty() {
                return None;
            }
            let batch = std::mem::take(&mut self.batch);
            let needs_several =
                |command| self.find_placement(snapshot, command) == Placement::Several;
            if self.state.executes_part && batch.iter().any(needs_several) {
                let exec = OwnedCommand::of(Id::Exec, std::iter::empty());
                let several = CoordinatedCommand::for_batch(&batch);
                return Some(Pending::new(exec.command(), Work::Coordinated(several)));
            }
            let is_elsewhere =
                |command| self.find_placement(snapshot, command) == Placement::Elsewhere;
            if self.scope != Scope::Verified && batch.iter().any(is_elsewhere) {
                self.state.error(Code::TryAgain, SLOT_MOVED);
                self.ends.push(self.state.output.tail.len());
                return None;
            }
            let work = tables::execute_together(&mut self.state, snapshot, batch);
            if work.is_none() {
                self.ends.push(self.state.output.tail.len());
            }
            return work.map(|work| {
                let exec = OwnedCommand::of(Id::Exec, std::iter::empty());
                Pending::new(exec.command(), work)
            });
        }
        let started = Instant::now();
        let mut clock = started;
        while clock.duration_since(started) < TURN_MAX && self.executed < self.batch.len() {
            let placement = match self.scope {
                Scope::Verified => Placement::Here,
                _ => self.find_current_placement(snapshot, self.executed),
            };
            let command = self.batch.get(self.executed)?;
            self.executed += 1;
            let state = &mut self.state;
            (state.failed, state.keys) = (false, (0, 0));
            let execution = self.execution;
            let work = match placement {
                Placement::Here => {
                    core.tables
                        .in_shared_batch(self.shared_batch, || match execution {
                            Execution::OneByOne => start(
                                state,
                                snapshot,
                                command,
                                CommandSubject::of(snapshot, command),
                            ),
                            _ => tables::execute_atomically(state, snapshot, command),
                        })
                }
                Placement::Several => Some(Work::Coordinated(CoordinatedCommand::default())),
                Placement::Elsewhere => {
                    state.error(Code::TryAgain, SLOT_MOVED);
                    None
                }
            };
            if let Some(work) = work {
                return Some(Pending::new(command, work));
            }
            if self.execution == Execution::Prefetch {
                self.acknowledge_prefetch();
            } else {
                record_command(state, command.spec, &mut clock, command.args());
            }
            self.ends.push(self.state.output.tail.len());
            if self.is_long() || (self.execution == Execution::OneByOne && core.has_messages()) {
                break;
            }
        }
        None
    }

    /// As [`Remote::fit`], but skips the check while the ownership is that of an earlier check.
    fn find_current_placement(&self, snapshot: &Snapshot, at: usize) -> Placement {
        let Some(command) = self.batch.get(at) else {
            return Placement::Elsewhere;
        };
        let is_unchanged = |checked: &Rc<Shard>| {
            let now = self.state.core.tables.shard();
            now.is_some_and(|now| Rc::ptr_eq(&now, checked))
        };
        if self.checked_shard.as_ref().is_some_and(is_unchanged) {
            Placement::Here
        } else {
            self.find_placement(snapshot, command)
        }
    }

    /// Acknowledges a prefetch: the data that the request reads is now on this core, and its reply is discarded.
    fn acknowledge_prefetch(&mut self) {
        self.state.output.tail.clear();
        self.state.encoder().ok();
    }

    fn is_done(&self) -> bool {
        self.executed == self.batch.len()
    }

    fn take_piece(&mut self) -> ReplyPiece {
        let bytes = std::mem::take(&mut self.state.output.tail);
        let ends = std::mem::take(&mut self.ends);
        let moment = self.moment.filter(|(_, all)| *all).map(|(first, _)| first);
        let changes = if self.execution == Execution::TransactionPart && self.is_done() {
            self.state.core.tables.take_transaction_changes()
        } else {
            Vec::new()
        };
        ReplyPiece {
            bytes,
            ends,
            moment,
            changes,
            not_done: None,
        }
    }

    /// Executes the remaining requests, and sends replies until the receiver is gone.
    async fn run(mut self, pending: Option<Pending>) {
        // An error means that the receiver is gone or that writes may be lost. The receiver notices the missing reply.
        let _ = self.serve(pending).await;
    }

    async fn serve(&mut self, mut pending: Option<Pending>) -> io::Result<()> {
        if pending.is_none() && self.executed == 0 && self.ends.is_empty() {
            let tables = self.state.core.tables.clone();
            if let Scope::Node { epoch } = self.scope {
                // A timeout is reported below, by `has_map`.
                let _ = timeout(MAP_WAIT_MAX, tables.wait_for_epoch(epoch)).await;
            }
            tables.wait_until_processed().await;
            tables.wait_while_paused(self.ticket).await;
            self.check_pause()?;
            let checked = if self.has_map() {
                self.check()
            } else {
                Err("this node has not received the current cluster map yet".to_owned())
            };
            if let Err(reason) = checked {
                self.refuse(reason);
                return Ok(());
            }
            pending = self.step();
        }
        loop {
            if let Some(next) = pending.take() {
                self.complete(next).await?;
                self.ends.push(self.state.output.tail.len());
            } else if self.is_done() {
                break;
            } else {
                tokio::task::yield_now().await;
            }
            self.charge
                .set(self.batch.memory_bytes() + self.state.output.tail.len());
            if self.is_long() {
                self.send(PieceStatus::Partial).await?;
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
        self.send(PieceStatus::Complete).await
    }

    /// # Errors
    /// The pause in which the requests had to be executed was abandoned.
    fn check_pause(&self) -> io::Result<()> {
        if self.state.core.tables.may_execute_with(self.ticket) {
            Ok(())
        } else {
            Err(io::Error::other(
                "the pause ended before the requests were executed",
            ))
        }
    }

    /// Sends the accumulated replies once the gate is open.
    ///
    /// # Errors
    /// The receiver is gone, or writes may be lost.
    async fn send(&mut self, last: PieceStatus) -> io::Result<()> {
        let tables = self.state.core.tables.clone();
        let mut gate: Gate = std::mem::take(&mut self.state.gate);
        poll_fn(|cx| tables.poll_gate(&mut gate, cx)).await?;
        let piece = self.take_piece();
        self.replies.send(piece, last).await
    }

    /// Completes a command that must wait.
    async fn complete(&mut self, mut pending: Pending) -> io::Result<()> {
        let ended = drive(self, &mut pending).await?;
        if self.state.closing {
            return Err(io::Error::other("a reply cannot be completed"));
        }
        match (self.execution, ended) {
            (Execution::Prefetch, Completion::Answered) => self.acknowledge_prefetch(),
            (Execution::Prefetch, Completion::Refused) => {}
            _ => pending.finish(&mut self.state),
        }
        Ok(())
    }
}

impl ReplySink for Remote {
    fn state(&mut self) -> &mut ConnectionState {
        &mut self.state
    }

    fn state_ref(&self) -> &ConnectionState {
        &self.state
    }

    async fn wait_for_room(&mut self) -> io::Result<()> {
        if self.is_long() || !self.state.has_room() {
            self.send(PieceStatus::Partial).await
        } else {
            Ok(())
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        if self.ends.is_empty() {
            Ok(())
        } else {
            self.send(PieceStatus::Partial).await
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
