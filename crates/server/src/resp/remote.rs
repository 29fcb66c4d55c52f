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

use larder_cluster::peer::Last;
use larder_join::Shard;
use larder_protocol::commands::{Batch, Command, Id, OwnedCommand};
use larder_protocol::errors::Code;
use larder_types::VersionId;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::core::Core;
use super::count::finish;
use super::dispatch::begin;
use super::drive::{Ended, Replies, drive};
use super::execute::TURN_MAX;
use super::nodes::encoded;
use super::pending::{Pending, Work};
use super::place::place_of;
use super::state::State;
use super::subject::About;
use super::tables::{self, SeveralCores, To, is_of_every_core};
use crate::Shared;
use crate::catalog::{LiveStore, Lookup, Snapshot};
use crate::clients::Charge;
use crate::cluster::Answering;
use crate::error::Error;
use crate::tables::{Execution, Gate, ReplyPiece, Requests, Scope};

/// Longer replies are sent in pieces.
const PIECE_BYTES: usize = 256 << 10;
const MOVED: &str = "the slot has moved to another node meanwhile; send it again";
/// Maximum time to wait for a cluster map as new as the sender's.
const MAP_MAX: Duration = Duration::from_secs(2);

/// The place that executes a request which arrived at this core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
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
fn snapshot_of(shared: &Shared, versions: &[(String, u64)]) -> Result<Arc<Snapshot>, String> {
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
    let kept = others.into_iter().map(|(name, id)| {
        let missing = |why: Error| format!("version {id} of {name} is not on this node: {why}");
        let store = shared.stores.get(name).map_err(missing)?;
        let version = store.judged(id).map_err(missing)?;
        Ok(LiveStore {
            name: store.name.clone(),
            version_id: id,
            version,
        })
    });
    let kept = kept.collect::<Result<Vec<LiveStore>, String>>()?;
    Ok(Arc::new(snapshot.with(kept)))
}

/// Requests of another core's connection during their execution.
pub(super) struct Remote {
    state: State,
    batch: Batch,
    /// Number of executed requests.
    at: usize,
    ends: Vec<usize>,
    /// The moment of the first request, and whether all requests were executed at that moment.
    moment: Option<((u64, u64), bool)>,
    ticket: Option<u64>,
    execution: Execution,
    shared_batch: Option<u64>,
    scope: Scope,
    versions: Vec<(String, u64)>,
    /// The snapshot for reads of stores, if the requests name versions.
    named: Option<Arc<Snapshot>>,
    /// The ownership by which all requests were checked. The check stays valid while the ownership is unchanged.
    checked: Option<Rc<Shard>>,
    pieces: Pieces,
    /// The memory of the requests and replies.
    counted: Charge,
}

/// The destination of the replies.
pub(super) enum Pieces {
    Core(mpsc::Sender<ReplyPiece>),
    Node(Answering),
}

impl Pieces {
    /// Sends the first piece. The channel always has room for it.
    fn send_first(&mut self, piece: ReplyPiece, last: Last) {
        // An error means that the receiver is gone.
        match self {
            Pieces::Core(sender) => drop(sender.try_send(piece)),
            Pieces::Node(answering) => drop(answering.try_send(encoded(piece, last))),
        }
    }

    /// # Errors
    /// The receiver is gone.
    async fn send(&mut self, piece: ReplyPiece, last: Last) -> io::Result<()> {
        let gone = || io::Error::other("the connection has gone");
        match self {
            Pieces::Core(sender) => sender.send(piece).await.map_err(|_| gone()),
            Pieces::Node(answering) => {
                let sent = answering.send(encoded(piece, last)).await;
                sent.map_err(|_| gone())
            }
        }
    }
}

/// Executes requests: synchronously if possible, else in a task.
pub(super) fn execute(core: &Rc<Core>, requests: Requests) {
    let pieces = Pieces::Core(requests.pieces.clone());
    execute_for(core, requests, pieces);
}

/// As [`execute`], but sends the replies to `pieces`.
pub(super) fn execute_for(core: &Rc<Core>, requests: Requests, pieces: Pieces) {
    let mut remote = Remote::new(core, requests, pieces);
    // Changes that were sent before these requests must be visible to them.
    if core.tables.process_messages()
        && !core.tables.is_paused()
        && remote.ticket.is_none()
        && remote.has_map()
    {
        if let Err(why) = remote.check() {
            return remote.refuse(why);
        }
        let pending = remote.step();
        if pending.is_none() && remote.is_done() && remote.state.gate.is_open() {
            let answer = remote.take();
            remote.pieces.send_first(answer, Last::Whole);
            return;
        }
        tokio::task::spawn_local(remote.run(pending));
        return;
    }
    tokio::task::spawn_local(remote.run(None));
}

impl Remote {
    fn new(core: &Rc<Core>, requests: Requests, pieces: Pieces) -> Remote {
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
        let mut counted = Charge::new(&client);
        counted.set(batch.memory_bytes());
        let mut state = State::new(core.clone(), client, true);
        state.proto = proto;
        state.output.tail = core.take_buffer();
        // A reply is sent as one piece, so it must be contiguous.
        state.output.has_holes = true;
        if let Scope::Node { epoch } | Scope::Core { epoch } = scope {
            (state.is_of_node, state.asked_at) = (true, epoch);
        }
        Remote {
            state,
            batch,
            at: 0,
            ends: Vec::new(),
            moment: None,
            ticket,
            execution,
            shared_batch,
            scope,
            versions,
            named: None,
            checked: None,
            pieces,
            counted,
        }
    }

    /// Returns whether this node's map is at least as new as the sender's.
    fn has_map(&self) -> bool {
        match self.scope {
            Scope::Node { epoch } => self.state.core.tables.epoch_of_map() >= epoch,
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
            self.named = Some(snapshot_of(&core.shared, &self.versions)?);
        }
        let (live, named) = (core.shared.catalog.load(), self.named.clone());
        let snapshot: &Snapshot = named.as_deref().unwrap_or(&live);
        let mut are_here = true;
        for command in self.batch.iter() {
            match self.fit(snapshot, command) {
                Fit::Here => {}
                Fit::Several => are_here = false,
                Fit::Elsewhere => {
                    let why = "this node does not own what is asked for, or no more";
                    return Err(why.to_owned());
                }
            }
        }
        self.checked = core.tables.shard().filter(|_| are_here);
        Ok(())
    }

    /// Returns where on this node a command is executed.
    fn fit(&self, snapshot: &Snapshot, command: Command<'_>) -> Fit {
        let Scope::Node { epoch } = self.scope else {
            return match self.scope {
                Scope::Core { epoch } => self.fit_part(snapshot, command, epoch),
                _ => Fit::Here,
            };
        };
        let core = &self.state.core;
        let cores = core.shared.tables.cores();
        if is_of_every_core(&core.tables, snapshot, command) {
            // The other nodes' parts were divided by that map, too.
            return match core.tables.ensure_owner_since(epoch) {
                Ok(()) if cores == 1 => Fit::Here,
                Ok(()) => Fit::Several,
                Err(_) => Fit::Elsewhere,
            };
        }
        match place_of(core, snapshot, command) {
            To::Core(own) if own == core.index => Fit::Here,
            To::Core(own) if own < cores && self.execution == Execution::Transaction => {
                Fit::Several
            }
            To::Several => Fit::Several,
            To::Nodes if !has_keys(command) && core.tables.owners_since() <= epoch => match cores {
                1 => Fit::Here,
                _ => Fit::Several,
            },
            _ => Fit::Elsewhere,
        }
    }

    /// As [`Remote::fit`], for a request that was already divided by core.
    fn fit_part(&self, snapshot: &Snapshot, command: Command<'_>, epoch: u64) -> Fit {
        let core = &self.state.core;
        let is_mapped = |key: &[u8]| core.tables.is_mapped(key);
        // Every core can execute commands on rows that PostgreSQL holds.
        let is_of_any = if command.writes() {
            command.keys().any(is_mapped)
        } else {
            has_keys(command) && command.keys().all(is_mapped)
        };
        if is_of_any {
            return Fit::Here;
        }
        if is_of_every_core(&core.tables, snapshot, command)
            && core.tables.ensure_owner_since(epoch).is_err()
        {
            return Fit::Elsewhere;
        }
        match place_of(core, snapshot, command) {
            To::Core(own) if own != core.index => Fit::Elsewhere,
            To::Several | To::Nodes if has_keys(command) => Fit::Elsewhere,
            _ => Fit::Here,
        }
    }

    /// Reports that none of the requests was executed.
    fn refuse(&mut self, why: String) {
        let refused = ReplyPiece {
            not_done: Some(why),
            ..ReplyPiece::default()
        };
        self.pieces.send_first(refused, Last::NotDone);
    }

    /// Returns whether the replies so far should be sent before more are produced.
    fn is_long(&self) -> bool {
        self.execution != Execution::Transaction && self.state.output.tail.len() >= PIECE_BYTES
    }

    /// Executes requests until one must wait, or until the time limit of a turn.
    fn step(&mut self) -> Option<Pending> {
        let core = self.state.core.clone();
        self.note_moment();
        let (live, named) = (core.shared.catalog.load(), self.named.clone());
        let snapshot: &Snapshot = named.as_deref().unwrap_or(&live);
        if self.execution == Execution::Transaction {
            if !self.ends.is_empty() {
                return None;
            }
            let batch = std::mem::take(&mut self.batch);
            let is_of_several = |command| self.fit(snapshot, command) == Fit::Several;
            if self.state.is_of_node && batch.iter().any(is_of_several) {
                let exec = OwnedCommand::of(Id::Exec, std::iter::empty());
                let several = SeveralCores::of_batch(&batch);
                return Some(Pending::new(exec.command(), Work::SeveralCores(several)));
            }
            let is_elsewhere = |command| self.fit(snapshot, command) == Fit::Elsewhere;
            if self.scope != Scope::Settled && batch.iter().any(is_elsewhere) {
                self.state.error(Code::TryAgain, MOVED);
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
        let begun = Instant::now();
        let mut clock = begun;
        while clock.duration_since(begun) < TURN_MAX && self.at < self.batch.len() {
            let fit = match self.scope {
                Scope::Settled => Fit::Here,
                _ => self.fit_now(snapshot, self.at),
            };
            let command = self.batch.get(self.at)?;
            self.at += 1;
            let state = &mut self.state;
            (state.failed, state.keys) = (false, (0, 0));
            let execution = self.execution;
            let work = match fit {
                Fit::Here => core
                    .tables
                    .in_shared_batch(self.shared_batch, || match execution {
                        Execution::OneByOne => {
                            begin(state, snapshot, command, About::of(snapshot, command))
                        }
                        _ => tables::execute_whole(state, snapshot, command),
                    }),
                Fit::Several => Some(Work::SeveralCores(SeveralCores::default())),
                Fit::Elsewhere => {
                    state.error(Code::TryAgain, MOVED);
                    None
                }
            };
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

    /// As [`Remote::fit`], but skips the check while the ownership is that of an earlier check.
    fn fit_now(&self, snapshot: &Snapshot, at: usize) -> Fit {
        let Some(command) = self.batch.get(at) else {
            return Fit::Elsewhere;
        };
        let is_known = |checked: &Rc<Shard>| {
            let now = self.state.core.tables.shard();
            now.is_some_and(|now| Rc::ptr_eq(&now, checked))
        };
        if self.checked.as_ref().is_some_and(is_known) {
            Fit::Here
        } else {
            self.fit(snapshot, command)
        }
    }

    /// Acknowledges a prefetch: the data that the request reads is now on this core, and its reply is discarded.
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
        if pending.is_none() && self.at == 0 && self.ends.is_empty() {
            let tables = self.state.core.tables.clone();
            if let Scope::Node { epoch } = self.scope {
                // A timeout is reported below, by `has_map`.
                let _ = timeout(MAP_MAX, tables.wait_for_epoch(epoch)).await;
            }
            tables.wait_until_processed().await;
            tables.wait_while_paused(self.ticket).await;
            self.check_pause()?;
            let checked = if self.has_map() {
                self.check()
            } else {
                Err("this node has not heard of the present map yet".to_owned())
            };
            if let Err(why) = checked {
                self.refuse(why);
                return Ok(());
            }
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
                self.send(Last::No).await?;
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
        self.send(Last::Whole).await
    }

    /// # Errors
    /// The pause in which the requests had to be executed was abandoned.
    fn check_pause(&self) -> io::Result<()> {
        if self.state.core.tables.is_held_by(self.ticket) {
            Ok(())
        } else {
            Err(io::Error::other("the pause has ended"))
        }
    }

    /// Sends the accumulated replies once the gate is open.
    ///
    /// # Errors
    /// The receiver is gone, or writes may be lost.
    async fn send(&mut self, last: Last) -> io::Result<()> {
        let tables = self.state.core.tables.clone();
        let mut gate: Gate = std::mem::take(&mut self.state.gate);
        poll_fn(|cx| tables.poll_gate(&mut gate, cx)).await?;
        let answer = self.take();
        self.pieces.send(answer, last).await
    }

    /// Completes a command that must wait.
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

    fn state_ref(&self) -> &State {
        &self.state
    }

    async fn room(&mut self) -> io::Result<()> {
        if self.is_long() || !self.state.has_room() {
            self.send(Last::No).await
        } else {
            Ok(())
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        if self.ends.is_empty() {
            Ok(())
        } else {
            self.send(Last::No).await
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
